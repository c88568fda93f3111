"""The command line: parse, call, render, exit. The only place that imports typer."""

import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import typer

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.packing import AUTO, KvDtype, parse_kv_dtype
from kvcalc.units import MAX_TOKENS, parse_count

T = TypeVar("T")

CONTEXT_WITHOUT_MODEL = 8192
"""The context of a question that names no model, so that the answer is about a round number."""


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
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader is gone: Python's own flush at exit must not fail on it
        return ExitCode.YES
    return code


def _refuse(message: str, hint: str, code: ExitCode) -> ExitCode:
    print(f"error: {printable(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {printable(hint)}", file=sys.stderr)
    return code


def _parser(parse: Callable[[str], T]) -> Callable[[str | T], T]:
    """A parser of one option, whose errors typer reports with the option's name. Defaults pass through it as they are."""

    def parser(text: str | T) -> T:
        if not isinstance(text, str):
            return text
        try:
            return parse(text)
        except KvcalcError as error:
            raise typer.BadParameter(f"{error.message}; {error.hint}" if error.hint else error.message) from None

    return parser


def _complete_model(incomplete: str) -> list[str]:
    from kvcalc.catalog import preset_names

    return [name for name in preset_names() if name.startswith(incomplete.lower())]


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"kvcalc {__version__}")
        raise typer.Exit


app = typer.Typer(name="kvcalc", rich_markup_mode=None, pretty_exceptions_enable=False)

COUNT: dict[str, Any] = {"parser": _parser(parse_count), "metavar": "N"}

Model = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="MODEL", help="A preset, a Hub id, a folder or config.json, or a spec YAML.", autocompletion=_complete_model),
]
Context = Annotated[
    int | None, typer.Option("--context", "-c", "--max-model-len", **COUNT, help="Tokens in one request's cache; the model's own maximum if left out.")
]
Batch = Annotated[int, typer.Option("--batch", "-b", **COUNT, help="Requests held at the same time (in each replica).")]
KvDtypeOption = Annotated[
    KvDtype,
    typer.Option("--kv-dtype", "--kv-cache-dtype", parser=_parser(parse_kv_dtype), metavar="DTYPE", help="auto, a name such as fp8 or q8_0, or k=NAME,v=NAME."),
]
EngineName = Annotated[str, typer.Option("--engine", metavar="NAME", help="Whose rules: ideal is the bare formula.")]
AsModelType = Annotated[str | None, typer.Option("--as", metavar="TYPE", help="Read a config.json of an unknown model_type as a known one.")]
Revision = Annotated[str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a Hub id.")]
Json = Annotated[bool, typer.Option("--json", help="The whole answer as one JSON object.")]


@app.callback(invoke_without_command=True)
def kvcalc(
    context: typer.Context,
    _version: Annotated[bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")] = False,
) -> None:
    """How much memory the KV cache of a language model takes, in exact bytes."""
    if context.invoked_subcommand is None:
        print(context.get_help(), file=sys.stderr)
        raise typer.Exit(ExitCode.USAGE)


@app.command()
def estimate(
    model: Model = None,
    context: Context = None,
    batch: Batch = 1,
    kv_dtype: KvDtypeOption = AUTO,
    engine: EngineName = "ideal",
    tp: Annotated[int, typer.Option("--tp", "--tensor-parallel-size", **COUNT, help="GPUs that share the heads.")] = 1,
    pp: Annotated[int, typer.Option("--pp", "--pipeline-parallel-size", **COUNT, help="GPUs that share the layers.")] = 1,
    dp: Annotated[int, typer.Option("--dp", "--data-parallel-size", **COUNT, help="Replicas.")] = 1,
    dcp: Annotated[int, typer.Option("--dcp", "--decode-context-parallel-size", **COUNT, help="GPUs that share the tokens of a copied cache.")] = 1,
    encoder_tokens: Annotated[
        int | None, typer.Option("--encoder-tokens", min=0, max=MAX_TOKENS, metavar="N", help="Tokens that cross-attention keeps.")
    ] = None,
    mtp: Annotated[int | None, typer.Option("--mtp", **COUNT, help="Speculative tokens by the model's own draft layers, which are then counted.")] = None,
    as_model_type: AsModelType = None,
    layers: Annotated[int | None, typer.Option("--layers", **COUNT, help="With --kv-heads and --head-dim, in place of --model.")] = None,
    kv_heads: Annotated[int | None, typer.Option("--kv-heads", **COUNT, help="KV heads of each layer.")] = None,
    head_dim: Annotated[int | None, typer.Option("--head-dim", **COUNT, help="Width of a head.")] = None,
    revision: Revision = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the total, in bytes.")] = False,
) -> None:
    """KV-cache bytes of a request and a batch."""
    from kvcalc.catalog import load_model, model_from_shape
    from kvcalc.engines import find_engine
    from kvcalc.engines.base import Options
    from kvcalc.estimate import estimate as compute

    if as_json and quiet:
        raise typer.BadParameter("--json and --quiet are two forms of one answer: give one of them")
    shape = (layers, kv_heads, head_dim)
    if model is not None and shape == (None, None, None):
        found = load_model(model, revision, as_model_type)
        length = found.spec.facts.max_context if context is None else context
        if length is None:
            raise KvcalcError(f"{found.name} states no maximum context", hint="say how many tokens with --context")
    elif model is None and layers is not None and kv_heads is not None and head_dim is not None:
        found = model_from_shape(layers, kv_heads, head_dim)
        length = CONTEXT_WITHOUT_MODEL if context is None else context
    else:
        raise typer.BadParameter("give --model MODEL, or --layers, --kv-heads and --head-dim together in its place")
    options = Options(kv_dtype=kv_dtype, tp=tp, pp=pp, dp=dp, dcp=dcp, encoder_tokens=encoder_tokens, draft_layers=mtp is not None)
    result = compute(found.spec, find_engine(engine), options, name=found.name, source=found.source, context=length, batch=batch)
    if as_json:
        print(result.to_json())
    elif quiet:
        print(result.total_bytes)
    else:
        from kvcalc.render.estimate import render_estimate
        from kvcalc.render.style import console_for_stdout

        render_estimate(result, console_for_stdout())


@app.command()
def models(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Only presets whose name, alias or Hub id contains this.")] = None,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Only presets of this family.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the names, one a line.")] = False,
) -> None:
    """The presets: what --model takes by name."""
    from kvcalc.catalog import presets
    from kvcalc.listing import list_models

    if as_json and quiet:
        raise typer.BadParameter("--json and --quiet are two forms of one answer: give one of them")
    result = list_models(presets(), text, family)
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.models:
            print(row.name)
    else:
        from kvcalc.render.models import render_models
        from kvcalc.render.style import console_for_stdout

        render_models(result, console_for_stdout())
