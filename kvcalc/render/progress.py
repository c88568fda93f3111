"""How far long work is, on a terminal."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

PATIENCE_S: Final = 0.5
"""What takes no longer shows no bar."""


@contextmanager
def progress(total: int | None) -> Iterator[Callable[[int], None] | None]:
    """What is told how much of `total` is done: a bar on stderr that goes with the end of the work. None where no person looks on, and for what has no length;
    rich is not loaded then.
    """
    if total is None or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TimeRemainingColumn

    bar = Progress(BarColumn(), TaskProgressColumn(), TimeRemainingColumn(), console=Console(stderr=True), transient=True)
    task, began = bar.add_task("", total=total), time.monotonic()

    def told(done: int) -> None:
        bar.update(task, completed=done)
        if not bar.live.is_started and time.monotonic() - began > PATIENCE_S:
            bar.start()

    try:
        yield told
    finally:
        if bar.live.is_started:
            bar.stop()
