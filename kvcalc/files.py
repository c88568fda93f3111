"""Files and pipes that a user names, opened so that none holds us up: a pipe into which nobody writes, a device, a folder, a name that no file can have."""

import io
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Final

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import shorten

WAIT_FOR_WRITER_S: float = 5
"""How long a named pipe is waited for into which nobody writes yet. One that has a writer is read for as long as that goes on."""

STDIN: Final = "-"
"""What stands for standard input in place of a name."""


def path_named(text: str) -> Path:
    """The path that `text` names; `~` stands for the home folder of whoever has one."""
    try:
        return Path(text).expanduser()
    except RuntimeError:  # no such user
        return Path(text)


@contextmanager
def opened(path: Path, shown: str, *, pipes: bool = False) -> Iterator[io.BufferedReader]:
    """A regular file for reading; where `pipes`, also a pipe or a terminal. Raises KvcalcError for anything else, and for what cannot be opened."""
    try:
        file = _waited_for(path, shown) if pipes and stat.S_ISFIFO(path.stat().st_mode) else open(path, "rb", opener=_at_once)  # noqa: SIM115 (it is closed below)
    except ValueError:  # a NUL
        raise KvcalcError(f"{shorten(shown, 200)!r} is no name of a file") from None
    except OSError as error:
        raise KvcalcError(f"{shorten(shown, 200)} cannot be read: {error.strerror}") from None
    with file:
        mode = os.fstat(file.fileno()).st_mode
        if not (stat.S_ISREG(mode) or (pipes and (stat.S_ISFIFO(mode) or file.isatty()))):
            raise KvcalcError(f"{shorten(shown, 200)} is not a regular file{' or a pipe' if pipes else ''}")
        os.set_blocking(file.fileno(), True)
        yield file


def _at_once(name: str, flags: int) -> int:
    return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))


def _waited_for(path: Path, shown: str) -> io.BufferedReader:
    """A named pipe, once somebody writes into it."""
    found: list[io.BufferedReader | OSError] = []

    def wait() -> None:
        try:
            found.append(path.open("rb"))
        except OSError as error:
            found.append(error)

    thread = Thread(target=wait, daemon=True)  # it ends with the process where nobody ever writes
    thread.start()
    thread.join(WAIT_FOR_WRITER_S)
    match found:
        case [OSError() as error]:
            raise error
        case [io.BufferedReader() as file]:
            return file
        case _:
            raise KvcalcError(f"nobody writes into the pipe {shorten(shown, 200)}", hint=f"start what writes first: it is waited for {WAIT_FOR_WRITER_S:g} s")


@contextmanager
def standard_input() -> Iterator[io.BufferedReader]:
    """What is piped in. Raises KvcalcError (environment) where it is closed."""
    if sys.stdin is None:
        raise KvcalcError("standard input is closed", hint="pipe something in, or name a file", code=ExitCode.ENVIRONMENT)
    with open(0, "rb", closefd=False) as file:
        yield file
