"""Charts and bars as files, by matplotlib: told apart without colour, and the same bytes each time. The only place that imports it."""

import io
import textwrap
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.render.axes import Ends, axis_name, ends, ticks
from kvcalc.results.plot import Axis, Bar, Chart, Drawing
from kvcalc.units import binary_unit, format_bytes, shorten

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

INK: Final = "#1c1e21"
FAINT: Final = "#8a9099"
GRID: Final = "#dfe2e6"
PAPER: Final = "#ffffff"
WIDE_IN: Final = 8.0
"""Inches of a picture in a file."""
DOTS_AN_INCH: Final = 200


class _Pen(NamedTuple):
    """How one series is drawn. Lightness, dashes and the shape of points each tell it from the others."""

    colour: str
    dashes: str
    point: str
    filled: bool


PENS: Final = (
    _Pen("#123f73", "-", "o", filled=True),
    _Pen("#d9762b", "--", "s", filled=False),
    _Pen("#1f6b4e", "-.", "^", filled=True),
    _Pen("#b58fd6", ":", "D", filled=False),
    _Pen("#5c6b7a", "-", "v", filled=True),
    _Pen("#c9a820", "--", "P", filled=False),
)


class _Fill(NamedTuple):
    """How one part of a bar is filled."""

    colour: str
    hatch: str


FILLS: Final = (_Fill("#2b3a4d", ""), _Fill("#7d8ea3", "//"), _Fill("#b9c4d1", "xx"), _Fill("#8a6a35", ".."), _Fill("#e9a33d", ""))


def picture(drawings: Sequence[Drawing], form: Literal["svg", "png"], *, width_in: float = WIDE_IN) -> bytes:
    """All drawings, one under the other. Raises KvcalcError (environment) where matplotlib cannot be used."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except (ImportError, ValueError) as error:  # a ValueError is what it makes of a setting that it does not know
        hint = "unset MPLBACKEND" if isinstance(error, ValueError) else "pip install 'kvcalc[plot]'"
        message = f"pictures are drawn by matplotlib, which cannot be loaded: {shorten(printable(str(error)), 200)}"
        raise KvcalcError(message, hint=hint, code=ExitCode.ENVIRONMENT) from None
    out = io.BytesIO()
    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()  # whatever the user has set for charts of their own
        _set_looks(mpl.rc)
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")  # a name in other letters: an SVG keeps them, a PNG shows boxes
        laid = [_lay_out(drawing, width_in) for drawing in drawings]
        height_in = sum(each.height_in for each in laid)
        figure = Figure(figsize=(width_in, height_in), facecolor=PAPER)
        top_in = height_in
        for layout, drawing in zip(laid, drawings, strict=True):
            bottom_in = top_in - layout.above_in - layout.plot_in
            axes = figure.add_axes((layout.left_in / width_in, bottom_in / height_in, layout.across_in / width_in, layout.plot_in / height_in))
            axes.set_facecolor("none")
            axes.spines[["top", "right"]].set_visible(False)
            match drawing:
                case Chart():
                    handles = _draw_chart(axes, drawing, layout)
                case Bar():
                    handles = _draw_bar(axes, drawing, layout)
            _surround(axes, layout, handles)
            top_in -= layout.height_in
        figure.savefig(out, format=form, dpi=DOTS_AN_INCH, metadata={"Date": None, "Creator": "kvcalc"} if form == "svg" else {"Software": "kvcalc"})
    return out.getvalue()


def _set_looks(rc: Callable[..., None]) -> None:
    """By matplotlib's own names."""
    rc("font", family=["DejaVu Sans", "sans-serif"], size=9)
    rc("text", color=INK, parse_math=False)  # a $ in a name is a $
    rc("axes", labelcolor=INK, edgecolor=FAINT)
    rc(("xtick", "ytick"), color=INK)
    rc("hatch", linewidth=0.6)
    rc("svg", fonttype="none", hashsalt="kvcalc")  # words stay words, names are the same each time


EDGE_IN: Final = 0.15
"""What is left free around words, and around a bar."""
FIGURES_IN: Final = 0.75
"""What stands left of a chart: the figures of its y axis."""
RIGHT_IN: Final = 0.35
LINE_IN: Final = 0.2
"""Height of a line of small text."""
TITLE_LINE_IN: Final = 0.24
LETTER_IN: Final = 0.076
"""Width of a letter of small text, and (half as much again) of a title: in DejaVu, which is wider than what a reader has in its place."""


class _Layout(NamedTuple):
    """Where the parts of one drawing stand, in inches, and the lines of its text."""

    left_in: float
    across_in: float
    plot_in: float
    title: list[str]
    names: list[str]
    columns: int
    y_name: str
    captions: list[str]

    @property
    def rows(self) -> int:
        return -(-len(self.names) // self.columns)

    @property
    def above_in(self) -> float:
        return 0.32 + TITLE_LINE_IN * len(self.title) + LINE_IN * (self.rows + bool(self.y_name)) + (0.08 if self.y_name else 0)

    @property
    def height_in(self) -> float:
        return self.above_in + self.plot_in + 0.6 + LINE_IN * len(self.captions) + (0.1 if self.captions else 0)


def _lay_out(drawing: Drawing, width_in: float) -> _Layout:
    words_in = width_in - 2 * EDGE_IN
    match drawing:
        case Chart():
            left_in, plot_in = FIGURES_IN, 3.4 if words_in > 5 else 3.0
            title, y_name, captions = drawing.title, axis_name(drawing.y), drawing.captions
            names = [*(series.name for series in drawing.series), *(mark.name for mark in drawing.marks)]
        case Bar():
            unit = binary_unit(drawing.total_bytes)
            left_in, plot_in = EDGE_IN, 0.5
            title, y_name, captions = drawing.title, "", ()
            names = [f"{part.name} {'~' if part.estimated else ''}{format_bytes(part.bytes, unit)}" for part in drawing.parts if part.bytes]
            names += [f"the engine takes {format_bytes(drawing.usable_bytes, unit)}", f"all memory {format_bytes(drawing.total_bytes, unit)}"]
    names = [printable(name) for name in names]
    columns = max(1, min(len(names), int(words_in / (0.55 + LETTER_IN * max(map(len, names))))))
    lines = [line for caption in captions for line in textwrap.wrap(printable(caption), int(words_in / LETTER_IN))]
    heads = textwrap.wrap(printable(title), int(words_in / LETTER_IN / 1.4))
    return _Layout(left_in, width_in - left_in - RIGHT_IN, plot_in, heads, names, columns, y_name, lines)


def _surround(axes: "Axes", layout: _Layout, handles: Sequence["Artist"]) -> None:
    """Above the plot its title, what its lines mean, row by row, and the name of the y axis; below it the captions."""

    def text(words: str, above_in: float, **looks: Any) -> None:  # noqa: ANN401 (each look has a type of its own)
        start, offset = (0, 1 if above_in >= 0 else 0), (72 * (EDGE_IN - layout.left_in), 72 * above_in)
        axes.annotate(words, start, offset, xycoords="axes fraction", textcoords="offset points", annotation_clip=False, **looks)

    y_in = LINE_IN + 0.08 if layout.y_name else 0
    text(layout.y_name, 0.1, va="bottom", fontsize=9)
    text("\n".join(layout.title), 0.18 + y_in + LINE_IN * layout.rows, va="bottom", fontsize=11, fontweight="bold", linespacing=1.25)
    text("\n".join(layout.captions), -0.6, va="top", fontsize=9, linespacing=1.45)
    order = [at for column in range(layout.columns) for at in range(column, len(handles), layout.columns)]  # matplotlib fills column by column
    axes.legend(
        [handles[at] for at in order],
        [layout.names[at] for at in order],
        loc="lower left",
        bbox_to_anchor=((EDGE_IN - layout.left_in) / layout.across_in, 1 + (y_in + 0.1) / layout.plot_in),
        ncols=layout.columns,
        frameon=False,
        borderpad=0,
        borderaxespad=0,
        labelspacing=0.45,
        fontsize=9,
        handlelength=2.6,
    )


def _draw_chart(axes: "Axes", chart: Chart, layout: _Layout) -> list["Artist"]:
    """What stands for each name in the legend."""
    handles: list[Artist] = []
    for number, series in enumerate(chart.series):
        pen = PENS[number % len(PENS)]
        xs, ys = [x for x, _ in series.points], [y for _, y in series.points]
        handles += axes.plot(
            xs,
            ys,
            color=pen.colour,
            linestyle="none" if series.kind == "points" else pen.dashes,
            linewidth=1.8,
            marker="none" if series.kind == "line" else pen.point,
            markersize=9 if series.kind == "points" else 6,
            markerfacecolor=pen.colour if pen.filled else PAPER,
            markeredgewidth=1.5,
            clip_on=False,
            zorder=3,
        )
        if series.band:
            axes.fill_between(xs, [low for low, _ in series.band], [high for _, high in series.band], color=pen.colour, alpha=0.2, linewidth=0)
    for mark in chart.marks:
        draw = axes.axvline if mark.axis == "x" else axes.axhline
        handles.append(draw(mark.value, color=INK, linestyle=(0, (1, 2)) if mark.axis == "x" else (0, (6, 3)), linewidth=1.2, clip_on=False, zorder=2.5))
    _scale(axes, chart.x, chart, along="x", most=int(layout.across_in / 0.55))
    _scale(axes, chart.y, chart, along="y", most=int(layout.plot_in / 0.28))
    axes.set_xlabel(axis_name(chart.x), fontsize=9)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    return handles


def _scale(axes: "Axes", axis: Axis, chart: Chart, *, along: Literal["x", "y"], most: int) -> None:
    """Ends and ticks, as on a terminal."""
    span = ends(chart, along)
    marks = ticks(axis, span, most)
    line = axes.xaxis if along == "x" else axes.yaxis
    if axis.scale != "linear":
        (axes.set_xscale if along == "x" else axes.set_yscale)("log", base=2 if axis.scale == "log2" else 10)
    line.set_ticks([tick.value for tick in marks], [tick.text for tick in marks])
    line.set_ticks([], minor=True)
    (axes.set_xlim if along == "x" else axes.set_ylim)(span.low, span.high)


def _draw_bar(axes: "Axes", bar: Bar, layout: _Layout) -> list["Artist"]:
    """What stands for each name in the legend. Parts that are more than there is stand beyond the line at the end of the memory."""
    unit = binary_unit(bar.total_bytes)
    handles: list[Artist] = []
    left = 0
    for part, fill in zip(bar.parts, FILLS, strict=True):
        if part.bytes:
            handles += axes.barh(0, part.bytes, left=left, color=fill.colour, hatch=fill.hatch, edgecolor=PAPER, linewidth=0.8, height=1)
            left += part.bytes
    for value, dashes in ((bar.usable_bytes, (0, (1, 1.5))), (bar.total_bytes, "-")):
        axes.axvline(value, color=PAPER, linewidth=5, clip_on=False)  # what lets the line be seen on a dark part
        handles.append(axes.axvline(value, color=INK, linewidth=1.8, linestyle=dashes, clip_on=False))
    span = Ends(0, max(left, bar.total_bytes))
    axis = Axis(label="one GPU", quantity="bytes", unit=unit, scale="linear")
    marks = ticks(axis, span, int(layout.across_in / 0.55))
    axes.set_xticks([tick.value for tick in marks], [tick.text for tick in marks])
    axes.set_xlim(*span)
    axes.set_ylim(-0.5, 0.5)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(axis_name(axis), fontsize=9)
    return handles
