"""What all screens share: tables, notes, and a console that suits where the output goes."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from kvcalc.errors import printable
from kvcalc.layers import Note
from kvcalc.units import BINARY_UNITS, format_bytes


@dataclass(slots=True)
class Grid:
    """Rows under heads. Names stand to the `left`, figures to the `right`."""

    left: Sequence[str]
    right: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """One row, a cell for each head."""
        self.rows.append(cells)

    def print(self, console: Console) -> None:
        """A table without lines, which reads as well in a pipe; row by row where the width does not hold it."""
        table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for name in self.left:
            table.add_column(name, no_wrap=True)
        for name in self.right:
            table.add_column(name, justify="right", no_wrap=True)
        for cells in self.rows:
            table.add_row(*map(Text, cells))
        if Measurement.get(console, console.options.update(max_width=10_000), table).maximum <= console.width:
            console.print(table)
            return
        for cells in self.rows:
            named = (f"{name} {cell}".strip() for name, cell in zip((*self.left, *self.right), cells, strict=True) if cell)
            console.print(", ".join(named), highlight=False, markup=False)


def in_unit(size: int, unit: str) -> str:
    """The figure of a size in a unit, without its name; "< 0.01" where two decimals show nothing."""
    if unit == "B":
        return f"{size:,}"
    if 0 < size * 200 < BINARY_UNITS[unit]:
        return "< 0.01"
    return format_bytes(size, unit).rpartition(" ")[0]


def signed(size: int, unit: str) -> str:
    """The same with its sign, none before nothing."""
    return ("+" if size > 0 else "-" if size else "") + in_unit(abs(size), unit)


def milliseconds(seconds: float) -> str:
    """A time in milliseconds, with three digits or more."""
    ms = seconds * 1e3
    return f"{ms:,.0f}" if ms >= 100 else f"{ms:.1f}" if ms >= 10 else f"{ms:.2f}"


def with_version(engine: str, version: str | None) -> str:
    """An engine and the release whose rules were used."""
    return engine if version is None else f"{engine} {version}"


def notes(console: Console, items: Iterable[Note]) -> None:
    """Each note on lines of its own, below the answer."""
    for item in items:
        console.print()
        console.print(f"Note: {printable(item.text)}.", highlight=False, markup=False)


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Rich would end the process with exit code 1, which here says that the answer is no."""
        raise BrokenPipeError


def console_for_stdout() -> Console:
    """Colour and width as the terminal has them; plain text elsewhere."""
    return _Console(file=sys.stdout, emoji=False)
