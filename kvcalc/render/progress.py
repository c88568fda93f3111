"""How far a file was read, on a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn


@contextmanager
def reading_bar() -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr that goes once it is done. What it gives is told the bytes read, and those there are."""
    with Progress(BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn(), console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task("")

        def told(done: int, size: int) -> None:
            bar.update(task, completed=done, total=size)

        yield told
