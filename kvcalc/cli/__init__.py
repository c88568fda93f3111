"""The command line: parse, call, render, exit. The only place that imports typer."""

import os
import sys
from collections.abc import Callable
from difflib import get_close_matches
from functools import wraps
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup
from typer.main import get_command

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError, printable


def run() -> int:
    """Runs the command in sys.argv and returns the exit code. The one place where an exception becomes a line on stderr."""
    try:
        code: int = app(prog_name="kvcalc", standalone_mode=False) or ExitCode.YES
        sys.stdout.flush()
    except KvcalcError as error:
        return _refuse(error.message, error.hint, error.code)
    except typer.TyperException as error:
        return _refuse(error.format_message(), "", ExitCode.USAGE)
    except (KeyboardInterrupt, typer.Abort):
        return 130  # what a shell reports for a command ended by Ctrl-C
    except (BrokenPipeError, _ReaderGoneError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader is gone: Python's own flush at exit must not fail on it
        return ExitCode.YES
    return code


def _refuse(message: str, hint: str, code: ExitCode) -> ExitCode:
    print(f"error: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)
    return code


class _ReaderGoneError(Exception):
    """Nobody reads the output any more. Not an OSError: typer makes exit code 1 of a BrokenPipeError that it sees."""


def _while_read(command: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(command)
    def called(**values: Any) -> Any:  # noqa: ANN401 (each option has a type of its own)
        try:
            return command(**values)
        except BrokenPipeError:
            raise _ReaderGoneError from None

    return called


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

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ANN401, ARG002 (typer's own context class has no public name)
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ANN401 (as above)
        """Raises KvcalcError for a command that there is not, unless a shell asks how it goes on."""
        if cmd_name in COMMANDS:
            alone = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)
            alone.command(cmd_name)(_while_read(getattr(import_module(f"kvcalc.cli.{COMMANDS[cmd_name]}"), cmd_name)))
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
