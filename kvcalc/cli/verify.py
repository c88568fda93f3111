"""`kvcalc verify`."""

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.asking.verify import predicted
from kvcalc.cli.budget import BUDGET, SIZE
from kvcalc.cli.options import DEPLOYMENT, MODEL, Context, Json, complete_engine, with_options
from kvcalc.errors import ExitCode, KvcalcError

if TYPE_CHECKING:
    from kvcalc.results.verify import Verified

SMALL_PRESET: Final = "qwen3-0.6b"
"""The model that is verified on a device where none is named."""
API_KEY: Final = "KVCALC_API_KEY"
"""The environment variable that holds a server's API key."""
DEFAULTS: Final = {name: default for group in (MODEL, BUDGET, DEPLOYMENT) for name, (_, default) in group.items()}
"""What an option is where it is not typed."""
DEVICE: Final = "cuda"
"""What is measured on where nothing is said."""


@with_options(MODEL, BUDGET, DEPLOYMENT)
def verify(
    call: typer.Context,
    device: Annotated[
        str | None, typer.Option("--device", metavar="DEVICE", help="Where transformers builds the cache: cuda, cuda:1 or cpu.  [default: cuda]")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="On the device: one small model of each kind of layer.")] = False,
    max_mem: Annotated[int | None, typer.Option("--max-mem", **SIZE, help="On the device: take no more than this; half of what is free if left out.")] = None,
    server: Annotated[str | None, typer.Option("--server", metavar="URL", help=f"A running vLLM, SGLang or llama.cpp; its API key from {API_KEY}.")] = None,
    log: Annotated[str | None, typer.Option("--log", metavar="FILE", help="A start-up log of vLLM, SGLang, llama.cpp or TensorRT-LLM; - reads it.")] = None,
    context: Context = None,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAME", help="Whose rules, where the server or the log does not tell.", autocompletion=complete_engine)
    ] = None,
    as_json: Json = False,
) -> int:
    """Predictions beside a GPU, server or log.

    Options on the command line win over what these say. Exit code 1: they disagree.
    """
    if sum(each is not None for each in (device, server, log)) > 1:
        raise typer.BadParameter("--device, --server and --log are three things to verify against: give one of them")
    if (server or log) is not None and (every or max_mem is not None):
        raise typer.BadParameter("--all and --max-mem go with --device")
    if log is not None:
        from kvcalc.engines import find_engine
        from kvcalc.verify.log import MOST_BYTES, options_from, read_log
        from kvcalc.verify.log_checks import verify_log
        from kvcalc.verify.server import find_named

        found = read_log(_log_bytes(log, MOST_BYTES + 1), None if engine is None else find_engine(engine).name)
        stated = options_from(found)
        model = find_named([stated["model"]]) if "model" in stated else None
        question = predicted(call.params, stated, DEFAULTS, model, weighs=False)  # the log says what was loaded
        result = verify_log(found, question, any_release=engine is None and found.release is None)
    elif server is not None:
        result = _verify_server(server, call.params)
    else:
        result = _verify_device(device or DEVICE, call.params, max_mem, every=every)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.style import console_for_stdout
        from kvcalc.render.verify import render_verify

        render_verify(result, console_for_stdout())
    return ExitCode.YES if result.ok else ExitCode.NO


def _verify_device(device: str, typed: Mapping[str, Any], max_mem: int | None, *, every: bool) -> "Verified":
    from kvcalc.catalog import load_model
    from kvcalc.verify.device import model_cases, require_libraries, small_cases, verify_device

    if every and typed["model"] is not None:
        raise typer.BadParameter("--all verifies one model of each kind: leave out --model")
    if others := [name for name in ("context", "engine", "layers", "kv_heads", "head_dim", *BUDGET, *DEPLOYMENT) if typed[name] != DEFAULTS.get(name)]:
        raise typer.BadParameter(f"what a server is told ({others[0].replace('_', '-')}) goes with --server or --log")
    require_libraries()
    if every:
        cases = small_cases()
    else:
        found = load_model(typed["model"] or SMALL_PRESET, typed["revision"], typed["as_model_type"])
        config = None if found.config is None else json.loads(json.dumps(found.config, default=float))  # fractions as transformers reads them
        cases = model_cases(found.name, found.spec, device=device, max_bytes=max_mem, config=config)
    told = sys.stderr.isatty()

    def progress(name: str) -> None:
        if told:
            print(f"\r\x1b[Kmeasuring {name}", end="", file=sys.stderr, flush=True)

    result = verify_device(device, cases, max_bytes=max_mem, progress=progress)
    if told:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return result


def _verify_server(url: str, typed: Mapping[str, Any]) -> "Verified":
    from kvcalc.verify.server import find_served, options_from, read_server, verify_server

    facts = read_server(url, os.environ.get(API_KEY) or None)
    return verify_server(facts, predicted(typed, options_from(facts), DEFAULTS, find_served(facts), weighs=True))


def _log_bytes(name: str, most: int) -> bytes:
    """The beginning of a log, or of what comes in."""
    from kvcalc.files import STDIN, opened, path_named, standard_input

    with standard_input() if name == STDIN else opened(path_named(name), name, pipes=True) as file:
        try:
            return file.read(most)
        except OSError as error:
            raise KvcalcError(f"{name[:200]} cannot be read: {error.strerror}") from None
