"""HTML pages that stand alone: nothing is loaded from anywhere, and everything that comes from outside is escaped."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

from kvcalc import __version__
from kvcalc.errors import printable
from kvcalc.render.axes import axis_name
from kvcalc.render.picture import FAINT, FILLS, GRID, INK, PAPER, PENS, WIDE_IN, picture
from kvcalc.render.style import Grid
from kvcalc.results.plot import Chart, Drawing

PHONE_IN: Final = 3.4
"""Inches of a picture for a narrow screen: at the width of a phone its words are as large as those of the page."""

DARK: Final = {INK: "#e8eaed", FAINT: "#80868f", GRID: "#363b42", PAPER: "#16181c"} | dict(
    zip(
        (*(pen.colour for pen in PENS), *(fill.colour for fill in FILLS)),
        ("#8ab8f0", "#f0a060", "#6cc9a4", "#c4a0e0", "#a9b6c4", "#dcc460", "#9fb2c8", "#64768c", "#414f60", "#c9ab78", "#d9942f"),
        strict=True,
    )
)
"""Each colour of a picture, and what stands in its place on a dark page."""

STYLE: Final = """
:root { color-scheme: light dark; --soft: #f3f4f6; LIGHT }
@media (prefers-color-scheme: dark) { :root { --soft: #22262c; DARK } }
@media print { :root { --soft: #f3f4f6; LIGHT } button { display: none } }
* { box-sizing: border-box }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 3rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, sans-serif }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere }
h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; break-after: avoid }
p { margin: .5rem 0; overflow-wrap: anywhere }
.table { overflow-x: auto; break-inside: avoid; margin: .75rem 0 1.25rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .925rem }
th, td { padding: .25rem .9rem .25rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--grid) }
th { font-weight: 600; vertical-align: bottom }
.left { text-align: left; white-space: pre }
figure { margin: 1rem 0; break-inside: avoid }
svg { display: block; width: 100%; height: auto; font-family: system-ui, sans-serif }
.phone { display: none; max-width: 28rem }
@media screen and (max-width: 36rem) {
  .phone { display: block }
  .wide { display: none }
  table { font-size: .8125rem }
  th, td { padding-right: .6rem }
}
.command { position: relative; break-inside: avoid }
pre { margin: .5rem 0; padding: .8rem 1rem; background: var(--soft); border-radius: .4rem; white-space: pre-wrap; overflow-wrap: anywhere }
code { font: .875rem/1.5 ui-monospace, monospace; user-select: all }
button { margin-bottom: .5rem; padding: .3rem .9rem; font: inherit; font-size: .875rem; color: inherit; background: var(--soft);
  border: 1px solid var(--faint); border-radius: .4rem; cursor: pointer }
summary { cursor: pointer; margin: .5rem 0 }
footer { margin-top: 2.5rem; opacity: .7; font-size: .875rem }
"""

COPY: Final = """
for (const button of document.querySelectorAll("button")) {
  button.hidden = false;
  button.onclick = async () => {
    const code = button.parentElement.querySelector("code");
    try {
      await navigator.clipboard.writeText(code.textContent);
    } catch {
      getSelection().selectAllChildren(code);
      document.execCommand("copy");
    }
    button.textContent = "Copied";
  };
}
"""
"""What the buttons do; without scripts they stay hidden, and a click on the command selects it whole."""


def page(title: str, blocks: Iterable[str]) -> str:
    """A whole page. `title` is plain text, `blocks` are HTML."""
    light, dark = ("; ".join(f"{_variable(colour)}: {value}" for colour, value in pairs) for pairs in (((each, each) for each in DARK), DARK.items()))
    shown = _text(title)
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">",
            f"<title>{shown}</title>",
            f"<style>{STYLE.replace('LIGHT', light).replace('DARK', dark)}</style>",
            "</head>",
            "<body>",
            f"<h1>{shown}</h1>",
            *blocks,
            f"<footer>kvcalc {__version__}</footer>",
            f"<script>{COPY}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )


def heading(text: str) -> str:
    """A heading within the page."""
    return f"<h2>{_text(text)}</h2>"


def paragraph(text: str) -> str:
    """A paragraph of plain text."""
    return f"<p>{_text(text)}</p>"


def table(grid: Grid) -> str:
    """A table as it stands on a terminal: names to the left, figures to the right."""
    heads = [*(("left", name) for name in grid.left), *(("", name) for name in grid.right)]
    lines = [_row("th", heads)] if any(name for _, name in heads) else []
    lines += [_row("td", [(kind, cell) for (kind, _), cell in zip(heads, cells, strict=True)]) for cells in grid.rows]
    return f'<div class="table"><table>\n{"".join(lines)}</table></div>'


def _row(tag: str, cells: Iterable[tuple[str, str]]) -> str:
    return f"<tr>{''.join(f'<{tag}{_class(kind)}>{escape(cell)}</{tag}>' for kind, cell in cells)}</tr>\n"


def _class(kind: str) -> str:
    return f' class="{kind}"' if kind else ""


def command(text: str) -> str:
    """Lines to be copied as they are."""
    return f'<div class="command"><pre><code>{escape(text)}</code></pre><button type="button" hidden>Copy</button></div>'


def figure(drawing: Drawing, name: str) -> str:
    """A picture for a wide screen or paper, and one for a phone, of which a page shows one. `name` is a word that no other figure of the page has."""
    images = "".join(f'<div class="{kind}">{_inline(drawing, f"{name}-{kind}", inches)}</div>\n' for kind, inches in (("wide", WIDE_IN), ("phone", PHONE_IN)))
    return f"<figure>\n{images}</figure>"


def figures_of(chart: Chart) -> str:
    """The figures of a chart as a table, folded away: for those who want them, or cannot see a picture."""
    grid = Grid(left=[], right=[axis_name(chart.x), *(series.name for series in chart.series)])
    held = [dict(series.points) for series in chart.series]
    for x in sorted({x for points in held for x in points}):
        grid.add(_number(x), *(_number(points[x]) if x in points else "-" for points in held))
    return f"<details><summary>The same in figures: {_text(axis_name(chart.y))}</summary>{table(grid)}</details>"


def _number(value: float) -> str:
    return f"{value:,.10g}"


def _inline(drawing: Drawing, name: str, inches: float) -> str:
    """An SVG within HTML: no header, names of its own, the colours and the font of the page."""
    text = picture([drawing], "svg", width_in=inches).decode()
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text[text.index("<svg") :], count=1, flags=re.DOTALL)
    text = re.sub(r"<svg [^>]*?(viewBox=\"[^\"]*\")[^>]*>", rf'<svg \1 role="img" aria-label="{_attribute(drawing.title)}">', text, count=1)
    text = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"font-family: [^;\"]*; ", "", text)
    for colour in DARK:
        text = text.replace(f"{colour};", f"var({_variable(colour)});").replace(f'{colour}"', f'var({_variable(colour)})"')
    return text


def _variable(colour: str) -> str:
    """The name of a colour in the style of a page."""
    known = {INK: "--ink", FAINT: "--faint", GRID: "--grid", PAPER: "--paper"}
    return known.get(colour) or f"--c{colour[1:]}"


def _attribute(text: str) -> str:
    return _text(text).replace("\\", r"\\")


def _text(text: str) -> str:
    return escape(printable(text))


def notes(texts: Sequence[str]) -> list[str]:
    """A list of what to know, under a heading of its own; nothing where there is nothing."""
    if not texts:
        return []
    return [heading("Notes"), "<ul>", *(f"<li>{_text(text)}.</li>" for text in texts), "</ul>"]
