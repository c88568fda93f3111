"""The command line: parse, call, render, exit. The only place that imports typer."""

import os
import sys
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from kvcalc import __version__
from kvcalc.cli.catalogues import gpus, models
from kvcalc.cli.compare import compare
from kvcalc.cli.estimate import estimate
from kvcalc.cli.fit import fit
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


app = typer.Typer(name="kvcalc", rich_markup_mode=None, pretty_exceptions_enable=False)
for command in (estimate, fit, compare, models, gpus):
    app.command()(_while_read(command))


@app.callback(invoke_without_command=True)
def kvcalc(
    context: typer.Context,
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """How much memory the KV cache of a language model takes, in exact bytes."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)
