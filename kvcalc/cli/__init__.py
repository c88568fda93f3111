"""The command line: parse, call, render, exit. The only place that imports typer."""

import codecs
import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, TextIO

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.units import shorten

LONGEST_LINE: Final = 800
"""Of an error, in letters: what quotes a word or a file is cut."""


def run() -> int:
    """Runs the command in sys.argv and returns the exit code. The one place where an exception becomes a line on stderr."""
    try:
        _open_streams()
        code = _run()
        sys.stdout.flush()
    except KvcalcError as error:
        return _refuse(error.message, error.hint, error.code)
    except typer.TyperException as error:
        return _refuse(error.format_message(), "", ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return 130  # what a shell reports for a command ended by Ctrl-C
    except (BrokenPipeError, _ReaderGoneError):
        _write_no_more(sys.stdout)
        return ExitCode.YES
    except OSError as error:
        _write_no_more(sys.stdout)
        return _refuse(_refused_by_system(error), "", ExitCode.ENVIRONMENT)
    return code


def _run() -> int:
    try:
        code: int = app(prog_name="kvcalc", standalone_mode=False) or ExitCode.YES
    except SystemExit as error:  # so typer ends what it does about completion
        return error.code if isinstance(error.code, int) else ExitCode.YES
    return code


def _open_streams() -> None:
    """What the caller closed is as if it led nowhere: print would take stdout for a stderr that is None, and the next file that is opened would become either.
    What the locale cannot write is escaped, as JSON does it.
    """
    if sys.stdin is None:  # whoever reads from it says that it is closed
        os.open(os.devnull, os.O_RDONLY)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 (open until the end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        codecs.register_error("kvcalc", _escaped)
        sys.stdout.reconfigure(errors="kvcalc")


def _escaped(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4)), error.end


def _refused_by_system(error: OSError) -> str:
    """What it would not do: what has no name is stdout, or the folder that relative names begin from."""
    if error.filename is not None:
        return f"{shorten(str(error.filename))}: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return "the folder that this runs in is not there any more"
    return f"the answer cannot be written: {error.strerror}"


def _write_no_more(stream: TextIO) -> None:
    """Python's own flush at exit must not fail on what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _refuse(message: str, hint: str, code: ExitCode) -> ExitCode:
    try:
        print(f"error: {printable(shorten(message, LONGEST_LINE))}", file=sys.stderr)
        if hint:
            print(f"hint: {printable(shorten(hint, LONGEST_LINE))}", file=sys.stderr)
        sys.stderr.flush()
    except OSError:  # the exit code is then all that is told
        _write_no_more(sys.stderr)
    return code


class _ReaderGoneError(Exception):
    """Nobody reads the output any more. Not an OSError: typer makes exit code 1 of a BrokenPipeError that it sees."""


@contextmanager
def _while_read() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _ReaderGoneError from None


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kvcalc {__version__}")
        raise typer.Exit


COMMANDS: Final = {
    "estimate": "estimate",
    "fit": "fit",
    "sweep": "sweep",
    "speed": "speed",
    "compare": "compare",
    "explain": "explain",
    "replay": "replay",
    "prefix": "prefix",
    "verify": "verify",
    "models": "catalogues",
    "gpus": "catalogues",
    "schema": "schema",
}
"""Each command, and the module of this folder that has the function of its name."""


class Commands(TyperGroup):
    """The commands, each imported when it is asked for: to build the options of all takes a twentieth of a short answer's time."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 (as below)
        with _while_read():
            return super().make_context(*args, **kwargs)

    def invoke(self, ctx: Any) -> Any:  # noqa: ANN401 (as below)
        with _while_read():
            return super().invoke(ctx)

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 (typer's own context class has no public name)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (as above)
        """Raises KvcalcError for a command that there is not, unless a shell asks how it goes on."""
        if cmd_name in COMMANDS:
            alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
            alone.command(cmd_name)(getattr(import_module(f"kvcalc.cli.{COMMANDS[cmd_name]}"), cmd_name))
            return get_command(alone)
        if ctx.resilient_parsing:
            return None
        close = get_close_matches(cmd_name, COMMANDS)
        hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(COMMANDS)}"
        raise KvcalcError(f"no command {cmd_name[:40]!r}", hint=hint, code=ExitCode.USAGE)


app = typer.Typer(name="kvcalc", cls=Commands, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback(invoke_without_command=True)
def kvcalc(
    context: typer.Context,
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """How much memory the KV cache of a language model takes, in exact bytes; what fits on GPUs, how fast it is, and whether a server agrees."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)
