"""`kvcalc sweep` for a reader, a spreadsheet, a program and a Markdown file."""

import csv
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final, NamedTuple

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.layers import Note
from kvcalc.render.style import Grid, in_unit, notes, with_version
from kvcalc.results.sweep import Refused, Row, Sweep, SweptFit
from kvcalc.units import binary_unit, format_bytes

PATIENCE_S: Final = 1.0
"""What a reader waits without a word."""


class _Screen(NamedTuple):
    """What the table and Markdown have alike: how many cells, what is the same in all, the table, why cells have no answer."""

    title: str
    alike: str
    grid: Grid
    reasons: list[str]


def render_sweep(result: Sweep, console: Console) -> None:
    """A row a cell, below what all have alike."""
    screen = _screen(result)
    console.print(screen.title, style="bold", highlight=False, markup=False)
    console.print(screen.alike, highlight=False, markup=False)
    console.print()
    screen.grid.print(console)
    for number, reason in enumerate(screen.reasons, 1):
        console.print()
        console.print(f"({number}) {reason}", highlight=False, markup=False)
    notes(console, result.notes)


def markdown(result: Sweep) -> str:
    """The same as a Markdown table between paragraphs."""
    screen = _screen(result)
    heads = [*screen.grid.left, *screen.grid.right]
    lines = [[_cell(each) for each in row] for row in (heads, *screen.grid.rows)]
    widths = [max(3, *map(len, column)) for column in zip(*lines, strict=True)]
    marks = [("-" * (width - 1) + ":" if place >= len(screen.grid.left) else "-" * width) for place, width in enumerate(widths)]
    table = ["| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in (lines[0], marks, *lines[1:])]
    below = [f"({number}) {reason}" for number, reason in enumerate(screen.reasons, 1)] + [f"Note: {printable(note.text)}." for note in result.notes]
    return "\n\n".join([f"{screen.title}: {screen.alike}", "\n".join(table), *below])


def _cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("~", "\\~")


def _screen(result: Sweep) -> _Screen:
    answered = [row for row in result.rows if isinstance(row, SweptFit)]
    keys = list(result.rows[0].options)
    shown = [*keys, *_unasked(answered, keys)]
    left, right = [key for key in shown if not _are_numbers(result.rows, key)], [key for key in shown if _are_numbers(result.rows, key)]
    unit = binary_unit(max(row.capacity.request_bytes for row in answered))
    figures = ["fits", "KV GiB", f"{unit}/request", "requests", "tokens", "longest"]
    grid = Grid(left=[key.replace("_", "-") for key in left], right=[*(key.replace("_", "-") for key in right), *figures])
    reasons: dict[str, int] = {}
    for row in result.rows:
        labels = [*(_label(row, key) for key in left), *(_number(_label(row, key)) for key in right)]
        if isinstance(row, Refused):
            number = reasons.setdefault(row.refused, len(reasons) + 1)
            grid.add(*labels, f"({number})", *[""] * (len(figures) - 1))
        else:
            grid.add(*labels, *_figures(row, unit))
    fitting = sum(row.fits for row in answered)
    title = f"{len(result.rows):,} cells: {fitting:,} fit, {len(answered) - fitting:,} do not"
    silent = len(result.rows) - len(answered)
    return _Screen(f"{title}, {silent:,} cannot be answered" if silent else title, _alike(answered, shown), grid, [printable(reason) for reason in reasons])


FACTS: Final[dict[str, Callable[[SweptFit], str]]] = {
    "model": lambda row: printable(row.model.name),
    "engine": lambda row: "engine " + with_version(row.engine, row.engine_version),
    "gpu": lambda row: "" if row.gpu.memory_bytes is None else f"{row.gpu.name or 'a GPU'} of {format_bytes(row.gpu.memory_bytes)}",
    "gpus": lambda row: f"{row.gpus} GPU{'' if row.gpus == 1 else 's'}",
    "kv_dtype": lambda row: f"KV dtype {row.kv_dtype}",
    "batch": lambda row: f"batch {row.batch:,}",
    "context": lambda row: f"requests of {row.context:,} tokens",
}
"""What may be the same in all rows, in words."""


def _alike(answered: Sequence[SweptFit], shown: Sequence[str]) -> str:
    """What all rows have alike, and what the figures are of."""
    said = []
    for key, fact in FACTS.items():
        if key not in shown and len(words := {fact(row) for row in answered}) == 1:
            said.append(words.pop())
    of_all = "; requests and tokens in all replicas" if any(row.parallel.dp > 1 for row in answered) else ""
    return f"{', '.join(each for each in said if each)}; sizes are of one GPU{of_all}"


def _unasked(answered: Sequence[SweptFit], keys: Sequence[str]) -> list[str]:
    """What differs between rows though nobody varied it: the length is the model's own, the type the checkpoint's."""
    return [key for key in ("kv_dtype", "context") if key not in keys and len({getattr(row, key) for row in answered}) > 1]


def _label(row: Row, key: str) -> str:
    if key in row.options:
        return printable(row.options[key])
    found = getattr(row, key, None)
    return "" if found is None else str(found)


def _are_numbers(rows: Sequence[Row], key: str) -> bool:
    return all(_label(row, key).isdigit() or _label(row, key) in ("", "none") for row in rows)


def _number(label: str) -> str:
    return f"{int(label):,}" if label.isdigit() else label


def _figures(row: SweptFit, unit: str) -> list[str]:
    """Estimated figures bear a ~; where a batch does not fit stands what one GPU lacks, in GiB."""
    mark = "~" if "kv_bytes" in row.memory_range else ""
    return [
        "yes" if row.fits else f"{mark}-{in_unit(row.lacking_bytes, 'GiB')}",
        mark + in_unit(row.memory.kv_bytes, "GiB"),
        in_unit(row.capacity.request_bytes, unit),
        f"{mark}{row.totals.requests:,}",
        f"{mark}{row.totals.tokens:,}",
        f"{mark}{row.capacity.max_context:,}",
    ]


FIELDS: Final = (
    "model.name",
    "engine",
    "engine_version",
    "gpu.name",
    "gpus",
    "parallel.tp",
    "parallel.pp",
    "parallel.dp",
    "parallel.dcp",
    "context",
    "batch",
    "kv_dtype",
    "fits",
    "limited_by",
    "lacking_bytes",
    "memory.total_bytes",
    "memory.usable_bytes",
    "memory.weights_bytes",
    "memory.kv_bytes",
    "capacity.requests",
    "capacity.tokens",
    "capacity.max_context",
    "capacity.blocks",
    "capacity.block_tokens",
    "capacity.block_bytes",
    "capacity.request_bytes",
    "capacity_range.low",
    "capacity_range.high",
    "totals.requests",
    "totals.tokens",
    "refused",
)
"""The fields of a row in CSV, as its JSON has them."""


class _Line:
    """What csv writes to: each line is handed back."""

    def write(self, text: str) -> str:
        return text


def csv_lines(rows: Iterable[Row], keys: Sequence[str]) -> Iterator[str]:
    """Lines as RFC 4180 has them: the options that vary, then the fields of `--json` by their paths. None is empty."""
    write: Callable[[Iterable[Any]], Any] = csv.writer(_Line()).writerow
    yield write([*(f"options.{key}" for key in keys), *FIELDS, "memory_range.kv_bytes.low", "memory_range.kv_bytes.high"])
    pick = attrgetter(*FIELDS)
    fits, few = FIELDS.index("fits"), {"context", "batch", "refused"}
    for row in rows:
        labels = [row.options[key] for key in keys]
        if isinstance(row, Refused):
            yield write([*labels, *(getattr(row, field) if field in few else None for field in FIELDS), None, None])
            continue
        found = list(pick(row))
        found[fits] = "true" if row.fits else "false"
        ends = row.memory_range.get("kv_bytes")
        yield write([*labels, *found, *((None, None) if ends is None else (ends.low, ends.high))])


def json_pieces(rows: Iterable[Row], said: Callable[[], tuple[Note, ...]]) -> Iterator[str]:
    """The JSON of a `Sweep` as it is found; `said` is asked for the notes once all rows have passed."""
    yield Sweep(rows=(), notes=()).to_json().partition("]")[0]
    between = ""
    for row in rows:
        yield between + row.model_dump_json()
        between = ","
    yield "]" + Sweep(rows=(), notes=said()).to_json().partition("]")[2] + "\n"


def watched(rows: Iterable[Row], cells: int, *, streamed: bool) -> Iterator[Row]:
    """The same rows, with a bar on a terminal where they take longer than a moment: not where they go to that terminal as they are found."""
    if not sys.stderr.isatty() or (streamed and sys.stdout.isatty()):
        yield from rows
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    started, bar, task = time.monotonic(), None, None
    try:
        for done, row in enumerate(rows):
            if done % 256 == 0:
                if bar is None and time.monotonic() - started > PATIENCE_S:
                    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
                    task = bar.add_task("cells", total=cells)
                    bar.start()
                if bar is not None and task is not None:
                    bar.update(task, completed=done)
            yield row
    finally:
        if bar is not None:
            bar.stop()
