"""What commands that draw have alike: `--plot` in the terminal, `--save` into a file."""

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvcalc.cli.options import Group, parser
from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.files import path_named
from kvcalc.units import shorten

if TYPE_CHECKING:
    from kvcalc.results.plot import Drawing

KINDS: Final = (".svg", ".png", ".html")
NOTHING_FITS: Final = "nothing fits at any length: there is nothing to draw"


def _target(text: str) -> Path:
    """A file that can be written, of a kind that its name tells. Raises KvcalcError (usage) for another name."""
    path = path_named(text)
    if path.suffix.lower() not in KINDS:
        raise KvcalcError(f"{shorten(text)!r} does not end in {', '.join(KINDS[:-1])} or {KINDS[-1]}", code=ExitCode.USAGE)
    return path


PICTURES: Final[Group] = {
    "plot": (Annotated[bool, typer.Option("--plot", help="Also draw it in the terminal.")], False),
    "save": (
        Annotated[
            Path | None, typer.Option("--save", parser=parser(_target), metavar="FILE", help="Also write it, as a .svg or .png picture or an .html page.")
        ],
        None,
    ),
}


def check_pictures(plot: bool, save: Path | None, form: str | None) -> None:
    """Raises BadParameter for a plot beside an answer that is not for a reader, which the option `form` asks for; KvcalcError for a file that could not be
    written in the end.
    """
    if plot and form is not None:
        raise typer.BadParameter(f"--plot draws below the answer in words: leave out {form}")
    if save is None:
        return
    folder = save.parent
    if save.is_dir():
        raise KvcalcError(f"{shorten(str(save))} is a folder", hint="name a file to --save", code=ExitCode.ENVIRONMENT)
    if not folder.is_dir():
        raise KvcalcError(f"there is no folder {shorten(str(folder))}", hint="make it, or --save elsewhere", code=ExitCode.ENVIRONMENT)
    if find_spec("matplotlib") is None:
        raise KvcalcError("pictures are drawn by matplotlib, which is not installed", hint="pip install 'kvcalc[plot]'", code=ExitCode.ENVIRONMENT)


def draw_in_terminal(chart: "Drawing | None", nothing: str) -> None:
    """Below the answer; or why there is `nothing` to draw."""
    from kvcalc.render.plot import draw
    from kvcalc.render.style import console_for_stdout

    console = console_for_stdout()
    console.print()
    if chart is None:
        console.print(f"{nothing}.", highlight=False)
    else:
        draw(chart, console)


def save_as(path: Path, drawings: "Sequence[Drawing]", page: Callable[[], str], nothing: str) -> None:
    """All into one file: a picture, or the `page`. It is written before the answer is, which nobody may read to its end.

    Raises KvcalcError (environment) where the file cannot be written.
    """
    kind = path.suffix.lower()
    if kind == ".html":
        content = page().encode()
    elif drawings:
        from kvcalc.render.picture import picture

        content = picture(drawings, "svg" if kind == ".svg" else "png")
    else:
        print(f"{nothing}: {printable(str(path))} is not written", file=sys.stderr)
        return
    _write(path.resolve(), content)
    print(f"wrote {printable(str(path))} ({len(content):,} bytes)", file=sys.stderr)


def _write(path: Path, content: bytes) -> None:
    """The whole file or nothing of it."""
    half = path.with_name(f".kvcalc-{os.getpid()}")
    try:
        half.write_bytes(content)
        half.replace(path)
    except OSError as error:
        raise KvcalcError(f"cannot write {shorten(str(path))}: {error.strerror}", hint="--save elsewhere", code=ExitCode.ENVIRONMENT) from None
    finally:
        with suppress(OSError):
            half.unlink(missing_ok=True)
