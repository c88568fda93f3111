"""`kvcalc sweep` for a spreadsheet and for a program, row by row as the cells are answered."""

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

from kvcalc.layers import Note
from kvcalc.render.progress import progress
from kvcalc.results.shared import as_json
from kvcalc.results.sweep import Refused, Row, Sweep

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
        yield between + as_json(row)
        between = ","
    yield "]" + Sweep(rows=(), notes=said()).to_json().partition("]")[2] + "\n"


def watched(rows: Iterable[Row], cells: int, *, streamed: bool) -> Iterator[Row]:
    """The same rows, with a bar on a terminal, but where they go to that terminal as they are found."""
    if streamed and sys.stdout.isatty():
        yield from rows
        return
    with progress(cells) as told:
        for done, row in enumerate(rows):
            if told is not None and done % 256 == 0:
                told(done)
            yield row
