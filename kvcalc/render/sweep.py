"""`kvcalc sweep` for a reader and for a Markdown file."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.layers import Note
from kvcalc.render.fit import fits_cell
from kvcalc.render.style import Grid, in_unit, notes, with_version
from kvcalc.results.sweep import Refused, Row, Sweep, SweptFit
from kvcalc.units import binary_unit, counted, format_bytes

NOTES_OF_A_KIND: Final = 3


class Screen(NamedTuple):
    """What the table and Markdown have alike: how many cells, what is the same in all, the table, why cells have no answer."""

    title: str
    alike: str
    grid: Grid
    reasons: list[str]


def render_sweep(result: Sweep, console: Console) -> None:
    """A row a cell, below what all have alike."""
    screen = screen_of(result)
    console.print(screen.title, style="bold", highlight=False, markup=False)
    console.print(screen.alike, highlight=False, markup=False)
    console.print()
    screen.grid.print(console)
    for number, reason in enumerate(screen.reasons, 1):
        console.print()
        console.print(f"({number}) {reason}", highlight=False, markup=False)
    notes(console, _few(result.notes))


def _few(said: Sequence[Note]) -> Iterator[Note]:
    """At most NOTES_OF_A_KIND of each kind: those of many cards differ in a figure."""
    kinds = Counter(note.code for note in said)
    shown: Counter[str] = Counter()
    for note in said:
        shown[note.code] += 1
        if shown[note.code] < NOTES_OF_A_KIND or kinds[note.code] == NOTES_OF_A_KIND:
            yield note
        elif shown[note.code] == NOTES_OF_A_KIND:
            yield Note(code=note.code, text=f"{kinds[note.code] - NOTES_OF_A_KIND + 1} more are like the last one; --json has them all")


def markdown(result: Sweep) -> str:
    """The same as a Markdown table between paragraphs."""
    screen = screen_of(result)
    heads = [*screen.grid.left, *screen.grid.right]
    lines = [[_cell(each) for each in row] for row in (heads, *screen.grid.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    marks = [("-" * (width - 1) + ":" if place >= len(screen.grid.left) else "-" * width) for place, width in enumerate(widths)]
    table = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in (lines[0], marks, *lines[1:])]
    below = [f"({number}) {reason}" for number, reason in enumerate(screen.reasons, 1)] + [f"Note: {printable(note.text)}." for note in _few(result.notes)]
    return "\n\n".join([f"{screen.title}: {screen.alike}", "\n".join(table), *below])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("~", "\\~")


def screen_of(result: Sweep) -> Screen:
    """What is shown of a grid, in whatever form."""
    answered = [row for row in result.rows if isinstance(row, SweptFit)]
    keys = list(result.rows[0].options)
    shown = [*keys, *_unasked(answered, keys)]
    left, right = [key for key in shown if not _are_numbers(result.rows, key)], [key for key in shown if _are_numbers(result.rows, key)]
    unit = binary_unit(max(row.capacity.request_bytes for row in answered))
    figures = [_figures(row, unit) for row in answered]
    alike = [name for name in (f"{unit}/request", "longest") if len({each[name] for each in figures}) == 1 < len(figures)]
    heads = [name for name in figures[0] if name not in alike]
    grid = Grid(left=[key.replace("_", "-") for key in left], right=[*(key.replace("_", "-") for key in right), *heads])
    reasons: dict[str, int] = {}
    remaining = iter(figures)
    for row in result.rows:
        labels = [*(_label(row, key) for key in left), *(_number(_label(row, key)) for key in right)]
        if isinstance(row, Refused):
            number = reasons.setdefault(row.refused, len(reasons) + 1)
            grid.add(*labels, f"? ({number})", *[""] * (len(heads) - 1))
        else:
            found = next(remaining)
            grid.add(*labels, *(found[name] for name in heads))
    fitting = sum(row.fits for row in answered)
    title = f"{len(result.rows):,} cells: {fitting:,} fit, {len(answered) - fitting:,} do not"
    silent = len(result.rows) - len(answered)
    said = [*_facts(answered, shown), *(f"{name} {figures[0][name]}" for name in alike)]
    of_all = "; requests and tokens in all replicas" if any(row.parallel.dp > 1 for row in answered) else ""
    return Screen(
        title=f"{title}, {silent:,} cannot be answered" if silent else title,
        alike=f"{', '.join(said)}; sizes are of one GPU{of_all}",
        grid=grid,
        reasons=[printable(reason) for reason in reasons],
    )


FACTS: Final[dict[str, Callable[[SweptFit], str]]] = {
    "model": lambda row: printable(row.model.name),
    "engine": lambda row: "engine " + with_version(row.engine, row.engine_version),
    "gpu": lambda row: "" if row.gpu.memory_bytes is None else f"{row.gpu.name or 'a GPU'} of {format_bytes(row.gpu.memory_bytes)}",
    "gpus": lambda row: "" if row.gpus == 1 else f"{row.gpus} GPUs",
    "kv_dtype": lambda row: f"KV dtype {row.kv_dtype}",
    "batch": lambda row: f"batch {row.batch:,}",
    "context": lambda row: f"requests of {counted(row.context, 'token')}",
}
"""What may be the same in all rows, in words."""


def _facts(answered: Sequence[SweptFit], shown: Sequence[str]) -> Iterator[str]:
    """What is not in a column, and the same in all rows."""
    for key, fact in FACTS.items():
        if key not in shown and len(words := {fact(row) for row in answered}) == 1:
            yield from words - {""}


def _unasked(answered: Sequence[SweptFit], keys: Sequence[str]) -> list[str]:
    """What differs between rows though nobody varied it: the length is the model's own, the type the checkpoint's."""
    return [key for key in ("kv_dtype", "context") if key not in keys and len({getattr(row, key) for row in answered}) > 1]


def _label(row: Row, key: str) -> str:
    if key in row.options:
        return printable(row.options[key])
    found = getattr(row, key, None)
    return "" if found is None else str(found)


def _are_numbers(rows: Sequence[Row], key: str) -> bool:
    return all(_is_number(_label(row, key)) or _label(row, key) in ("", "none") for row in rows)


def _number(label: str) -> str:
    return f"{int(label):,}" if _is_number(label) else label


def _is_number(label: str) -> bool:
    return label.isascii() and label.isdecimal()


def _figures(row: SweptFit, unit: str) -> dict[str, str]:
    """Estimated figures bear a ~; where a batch does not fit stands what one GPU lacks, in GiB."""
    mark = "~" if "kv_bytes" in row.memory_range else ""
    return {
        "fits": fits_cell(row),
        "KV GiB": mark + in_unit(row.memory.kv_bytes, "GiB"),
        f"{unit}/request": in_unit(row.capacity.request_bytes, unit),
        "requests": f"{mark}{row.totals.requests:,}",
        "tokens": f"{mark}{row.totals.tokens:,}",
        "longest": f"{mark}{row.capacity.max_context:,}",
    }
