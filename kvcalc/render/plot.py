"""Charts and bars as text. Characters alone tell the series apart, and plain ones where the output takes no others.

Own code, since no library draws this: plotext 6 frames in box characters whatever the output takes, always in colour, with a library of its own in C.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from rich.console import Console
from rich.text import Text

from kvcalc.errors import printable
from kvcalc.render.axes import Ends, axis_name, ends, figure, fraction, ticks
from kvcalc.results.plot import Bar, Chart, Drawing, Series

WIDEST: Final = 100
"""Columns beyond which a chart does not read better."""
BAR_WIDEST: Final = 80


class _Pens(NamedTuple):
    """The characters of a drawing."""

    across: str
    up: str
    corner: str
    tick_x: str
    tick_y: str
    line: str
    mark_x: str
    mark_y: str
    series: str
    parts: str


UNICODE: Final = _Pens(
    "\u2500", "\u2502", "\u2514", "\u252c", "\u2524", "\u00b7", "\u2506", "\u2504", "\u25cf\u25cb\u25b2\u25b3\u25a0\u25a1", "\u2588\u2593\u2592x\u2591"
)
ASCII: Final = _Pens("-", "|", "+", "+", "+", ".", ":", "-", "o*x#@%", "#arx=")
COLOURS: Final = ("bold blue", "bold red", "bold magenta", "bold green", "bold cyan", "bold yellow")


def pens(console: Console) -> _Pens:
    """Those that the output takes."""
    return UNICODE if (console.encoding or "").lower().startswith("utf") else ASCII


def draw(drawing: Drawing, console: Console) -> None:
    """A chart or a bar, no wider than the console."""
    match drawing:
        case Chart():
            draw_chart(drawing, console)
        case Bar():
            draw_bar(drawing, console)


def draw_bar(bar: Bar, console: Console) -> None:
    """Each part by its own mark, and what the marks mean; dots are what the engine leaves alone."""
    cells = max(20, min(console.width, BAR_WIDEST) - 2)
    drawn, done, legend = "", 0, []
    for part, shown in zip(bar.parts, pens(console).parts, strict=True):
        done += part.bytes
        width = round(min(done, bar.total_bytes) * cells / bar.total_bytes) - len(drawn)
        drawn += shown * max(0, width)
        if width > 0:
            legend.append(f"{shown} {part.name}")
    drawn = drawn[:cells] + "." * (cells - len(drawn))
    console.print(f"[{drawn}]\n{', '.join(legend)}, . left alone", highlight=False, markup=False)


class _Canvas:
    """Cells of one character and one style, the first row at the top."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns, self.rows = columns, rows
        self.cells = [[(" ", "")] * columns for _ in range(rows)]

    def put(self, column: int, row: int, character: str, style: str = "") -> None:
        self.cells[row][column] = (character, style)


def draw_chart(chart: Chart, console: Console) -> None:
    """The title, the plot in its axes, what its characters mean, the captions."""
    pen = pens(console)
    width = max(20, min(console.width, WIDEST))
    x, y = ends(chart, "x"), ends(chart, "y")
    rows = 11 if width < 60 else 16
    up = {row: tick.text for tick in ticks(chart.y, y, rows // 2) for row in [_row(chart, y, tick.value, rows)]}
    gutter = max(len(text) for text in up.values()) + 1
    right = len(figure(chart.x, x.high)) // 2
    canvas = _Canvas(width - gutter - 1 - right, rows)
    _cross(canvas, chart, x, y, pen)
    _fill(canvas, chart, x, y, pen)
    console.print(printable(chart.title), style="bold", highlight=False, markup=False)
    console.print(axis_name(chart.y), highlight=False, markup=False)
    for row, cells in enumerate(canvas.cells):
        line = Text(f"{up.get(row, ''):>{gutter - 1}} {pen.tick_y if row in up else pen.up}")
        for character, style in cells:
            line.append(character, style)
        line.rstrip()
        console.print(line, no_wrap=True)
    _print_x(chart, console, span=x, columns=canvas.columns, gutter=gutter, width=width)
    console.print()
    _print_legend(chart, pen, console)
    for caption in chart.captions:
        console.print(printable(caption), highlight=False, markup=False)


def _row(chart: Chart, span: Ends, value: float, rows: int) -> int:
    return rows - 1 - round(fraction(chart.y, span, value) * (rows - 1))


def _cross(canvas: _Canvas, chart: Chart, x: Ends, y: Ends, pen: _Pens) -> None:
    """Marks, from one end of the canvas to the other."""
    for mark in chart.marks:
        if mark.axis == "x":
            column = round(fraction(chart.x, x, mark.value) * (canvas.columns - 1))
            for row in range(canvas.rows):
                canvas.put(column, row, pen.mark_x)
        else:
            row = _row(chart, y, mark.value, canvas.rows)
            for column in range(canvas.columns):
                canvas.put(column, row, pen.mark_y)


def _fill(canvas: _Canvas, chart: Chart, x: Ends, y: Ends, pen: _Pens) -> None:
    """Lines, and points over them all."""
    places = [
        [(round(fraction(chart.x, x, at) * (canvas.columns - 1)), _row(chart, y, value, canvas.rows)) for at, value in series.points] for series in chart.series
    ]
    for series, points in zip(chart.series, places, strict=True):
        if series.kind != "points":
            for column, row in _between(points):
                canvas.put(column, row, pen.line)
    for number, points in enumerate(places):
        if chart.series[number].kind == "line":
            continue
        for column, row in points:
            canvas.put(column, row, pen.series[number % len(pen.series)], COLOURS[number % len(COLOURS)])


def _between(points: Sequence[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    """The cells of straight lines from point to point."""
    for (column, row), (next_column, next_row) in pairwise(points):
        steps = max(abs(next_column - column), abs(next_row - row), 1)
        for step in range(steps + 1):
            yield column + round((next_column - column) * step / steps), row + round((next_row - row) * step / steps)


def _print_x(chart: Chart, console: Console, *, span: Ends, columns: int, gutter: int, width: int) -> None:
    """The lower axis, its figures, and what it is."""
    pen = pens(console)
    longest = max(len(figure(chart.x, span.high)), len(figure(chart.x, span.low)), 3)
    line, under, free = [pen.across] * columns, [" "] * width, 0
    for tick in ticks(chart.x, span, max(2, columns // (longest + 3))):
        column = round(fraction(chart.x, span, tick.value) * (columns - 1))
        start = min(max(0, gutter + 1 + column - len(tick.text) // 2), width - len(tick.text))
        if start < free:
            continue
        line[column] = pen.tick_x
        under[start : start + len(tick.text)] = tick.text
        free = start + len(tick.text) + 1
    console.print(f"{' ' * gutter}{pen.corner}{''.join(line)}", highlight=False, markup=False)
    console.print("".join(under).rstrip(), highlight=False, markup=False)
    name = axis_name(chart.x)
    console.print(f"{' ' * max(0, min(width - len(name), gutter + 1 + (columns - len(name)) // 2))}{name}", highlight=False, markup=False)


def _print_legend(chart: Chart, pen: _Pens, console: Console) -> None:
    """What the characters mean, each with its name on one line."""
    meanings = [_meaning(number, series, pen) for number, series in enumerate(chart.series)]
    meanings += [Text(f"{pen.mark_x if mark.axis == 'x' else pen.mark_y} {printable(mark.name)}") for mark in chart.marks]
    line = Text()
    for meaning in meanings:
        if line and line.cell_len + 3 + meaning.cell_len > console.width:
            console.print(line)
            line = Text()
        line = Text("   ").join([line, meaning]) if line else meaning
    console.print(line)


def _meaning(number: int, series: Series, pen: _Pens) -> Text:
    if series.kind == "line":
        return Text(f"{pen.line} {printable(series.name)}")
    return Text.assemble((pen.series[number % len(pen.series)], COLOURS[number % len(COLOURS)]), f" {printable(series.name)}")
