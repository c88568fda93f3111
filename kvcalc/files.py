"""Files and pipes that a user names, opened so that none holds us up: a pipe into which nobody writes, a device, a folder, a name that no file can have;
and read line by line, however long they are.
"""

import gzip
import io
import os
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import IO, Final, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError, printable, without_halves
from kvcalc.units import format_bytes, shorten

WAIT_FOR_WRITER_S: float = 5
"""How long a named pipe is waited for into which nobody writes yet. One that has a writer is read for as long as that goes on."""

STDIN: Final = "-"
"""What stands for standard input in place of a name."""

MOST_SKIPPED_BYTES: Final = 1 << 28
"""Of one line that is too long: what does not end then has no lines."""
MOST_UNREADABLE: Final = 100_000
"""Lines before the first that is understood: a file, or a pipe without end, of which none of so many is, holds nothing of its kind."""
TOLD_BYTES: Final = 1 << 20
"""Of text, after which it is told again how far a file was read."""

GZIP: Final = b"\x1f\x8b"
BINARY: Final = {b"PAR1": "Parquet", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
"""What else lines come in, by how it begins."""

Progress = Callable[[int], None]
"""Told from time to time how many bytes of a file have been read, packed as it is."""


class Line(NamedTuple):
    """A line of a file, from 1 on, with its end; `cut` where it was longer than is read of one."""

    number: int
    text: bytes
    cut: bool


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


def source_of(name: str) -> str:
    """What a file is called in messages and answers."""
    return "standard input" if name == STDIN else without_halves(name)


def size_of(name: str) -> int | None:
    """Bytes of a file, None where that is not known."""
    path = path_named(name)
    return os.path.getsize(path) if name != STDIN and os.path.isfile(path) else None  # noqa: PTH113, PTH202 (pathlib raises for a name that no file can have)


@contextmanager
def opened_lines(name: str, most_bytes: int, progress: Progress | None = None) -> Iterator[Iterator[Line]]:
    """Lines of a file, a pipe or standard input (`-`), gzipped or not, without a byte order mark; of a longer one the first `most_bytes`.

    Raises KvcalcError as `opened` does, and for another packed form; while lines are taken for one without an end, and for a file that is damaged.
    """
    with standard_input() if name == STDIN else opened(path_named(name), name, pipes=True) as raw:
        yield _lines(_unpacked(raw, source_of(name)), raw, most_bytes, progress)


def _unpacked(raw: io.BufferedReader, source: str) -> IO[bytes] | gzip.GzipFile:
    try:
        begin = raw.peek(8)[:8]
    except OSError as error:
        raise KvcalcError(f"{shorten(source)} cannot be read: {error.strerror}") from None
    if begin.startswith(GZIP):
        return gzip.open(raw)
    for magic, form in BINARY.items():
        if begin.startswith(magic):
            raise KvcalcError(f"{shorten(source)} is a {form} file", hint="unpack it to lines of text (CSV, JSONL), or name - and pipe those in")
    return raw


def _lines(text: IO[bytes] | gzip.GzipFile, raw: io.BufferedReader, most_bytes: int, progress: Progress | None) -> Iterator[Line]:
    number = untold = 0
    try:
        while line := text.readline(most_bytes + 1):
            number += 1
            cut = len(line) > most_bytes and not line.endswith(b"\n")
            untold += len(line)
            if cut:
                untold += _skip(text, number)
                line = line[:most_bytes]
            yield Line(number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line, cut)
            if progress is not None and untold >= TOLD_BYTES:
                progress(raw.tell())
                untold = 0
        if progress is not None:
            progress(raw.tell())
    except (OSError, EOFError, zlib.error) as error:
        raise KvcalcError(f"line {number + 1:,} cannot be read: {printable(str(error))}", hint="is the file whole? gzip -t tests one that is packed") from None


def _skip(text: IO[bytes] | gzip.GzipFile, number: int) -> int:
    """Reads a line to its end, and says how many bytes that were."""
    skipped = 0
    while rest := text.readline(TOLD_BYTES):
        skipped += len(rest)
        if rest.endswith(b"\n"):
            break
        if skipped > MOST_SKIPPED_BYTES:
            raise KvcalcError(f"line {number:,} does not end within {format_bytes(MOST_SKIPPED_BYTES)}", hint="what is read has many lines")
    return skipped
