"""`kvcalc verify`."""

import json
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.asking.budget import checkpoint_of, deployed_gpus, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.asking.deployment import check_owned, check_together, find_gpu_named, length_for, options_of
from kvcalc.cli.budget import BUDGET, SIZE
from kvcalc.cli.options import DEPLOYMENT, MODEL, Context, Json, complete_engine, with_options
from kvcalc.errors import ExitCode, KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Question
    from kvcalc.results.verify import Verified

SMALL_PRESET: Final = "qwen3-0.6b"
"""The model that is verified on a device where none is named."""
API_KEY: Final = "KVCALC_API_KEY"
"""The environment variable that holds a server's API key."""
DEFAULTS: Final = {name: default for group in (MODEL, BUDGET, DEPLOYMENT) for name, (_, default) in group.items()}


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
        question = _question(call.params, stated, model, context, engine, weighs=False)  # the log says what was loaded
        result = verify_log(found, question, any_release=engine is None and found.release is None)
    elif server is not None:
        result = _verify_server(server, call.params, context, engine)
    else:
        result = _verify_device(device or DEVICE, {**call.params, "context": context, "engine": engine}, max_mem, every=every)
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


def _verify_server(url: str, typed: Mapping[str, Any], context: int | None, engine: str | None) -> "Verified":
    from kvcalc.verify.server import find_served, options_from, read_server, verify_server

    facts = read_server(url, os.environ.get(API_KEY) or None)
    return verify_server(facts, _question(typed, options_from(facts), find_served(facts), context, engine, weighs=True))


def _log_bytes(name: str, most: int) -> bytes:
    """The beginning of a log, or of what comes in."""
    from kvcalc.files import STDIN, opened, path_named, standard_input

    with standard_input() if name == STDIN else opened(path_named(name), name, pipes=True) as file:
        try:
            return file.read(most)
        except OSError as error:
            raise KvcalcError(f"{name[:200]} cannot be read: {error.strerror}") from None


def _question(given: Mapping[str, Any], stated: Mapping[str, Any], model: str | None, context: int | None, engine: str | None, *, weighs: bool) -> "Question":
    """What is predicted: the options that were typed, and for those that were not what the server or the log states. `weighs`: the checkpoint is looked
    for.
    """
    from kvcalc.budget import Asked, Question
    from kvcalc.catalog import load_model, model_from_shape
    from kvcalc.engines import find_engine
    from kvcalc.engines.base import Device
    from kvcalc.results.fit import GpuInfo

    free = {name: value for name, value in stated.items() if name in DEFAULTS and given[name] == DEFAULTS[name]}
    if given["utilization"] is not None or given["mem_fraction_static"] is not None:
        for other in ("utilization", "mem_fraction_static", "kv_mem"):  # other words for the same
            free.pop(other, None)
    check_together("--kv-mem states what is left for the cache", given["kv_mem"], {"--utilization": given["utilization"]})
    typed = {**given, **free}
    rules = find_engine(engine or stated.get("engine") or "vllm")
    check_owned(given, (rules.name,))
    shape = (typed["layers"], typed["kv_heads"], typed["head_dim"])
    name = given["model"] or model
    if name is not None and shape == (None, None, None):
        found = load_model(name, typed["revision"], typed["as_model_type"])
    elif given["model"] is None and None not in shape:
        found = model_from_shape(*shape)
    else:
        raise KvcalcError("which model it is cannot be told from what the server or the log says", hint="name it with --model")
    card = None if typed["gpu"] is None else find_gpu_named(typed["gpu"])
    memory = typed["gpu_mem"] if typed["gpu_mem"] is not None or card is None or typed["kv_mem"] is not None else card.memory()[0]
    device = card.device(typed["gpu_mem"]) if card is not None else None if memory is None else Device("the GPU", None, (memory,))
    named = quantization_named(typed["quantization"])
    tp = shared_heads(typed)
    options = with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed)
    length = context or stated.get("context") or length_for(found, None, rules.name, None if memory is None else memory * deployed_gpus(typed, tp))
    weighed = found.weighed()
    weights, notes = checkpoint_of(found, named=named is not None) if weighs and memory is not None and typed["kv_mem"] is None else (None, ())
    return Question(
        weighed,
        rules,
        options,
        Asked(found.name, found.source, found.served_as, length, 1),
        GpuInfo(name=None if card is None else card.name, memory_bytes=memory),
        kv_bytes=typed["kv_mem"],
        utilization=utilization_of(typed, rules.name),
        weights=weights,
        quantization=named,
        reserve_bytes=typed["reserve"],
        notes=notes,
    )
