"""What all screens share: plain tables, notes, and a console that suits where the output goes."""

import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from kvcalc.layers import Note


class Columns(NamedTuple):
    """Column heads: names stand to the left, figures to the right."""

    left: tuple[str, ...]
    right: tuple[str, ...]


def columns(*, left: str | Sequence[str], right: Sequence[str]) -> Columns:
    """Column heads from one name or several."""
    return Columns((left,) if isinstance(left, str) else tuple(left), tuple(right))


def plain_table(heads: Columns) -> Table:
    """A table without lines, which reads as well in a pipe as on a terminal."""
    table = Table(box=None, show_edge=False, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for name in heads.left:
        table.add_column(name, overflow="fold")
    for name in heads.right:
        table.add_column(name, justify="right", overflow="fold")
    return table


def notes(console: Console, items: Iterable[Note]) -> None:
    """Each note on lines of its own, below the answer."""
    for item in items:
        console.print()
        console.print(f"Note: {item.text}.", highlight=False, markup=False)


def console_for_stdout() -> Console:
    """Colour and width as the terminal has them; plain text elsewhere."""
    return Console(file=sys.stdout, emoji=False)
