"""`kvcalc prefix`."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.asking.budget import checkpoint_of, deployed_gpus, gpu_and_device, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.asking.deployment import check_owned, check_together, find_model, options_of
from kvcalc.asking.machine import machine_asked
from kvcalc.cli.budget import BUDGET
from kvcalc.cli.machine import MACHINE
from kvcalc.cli.options import DEPLOYMENT, MODEL, Context, EngineName, Json, with_options
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Question
    from kvcalc.engines.base import Engine
    from kvcalc.machine import Machine
    from kvcalc.prefix.answer import Deployed

DEFAULTS: Final = {name: default for group in (MODEL, BUDGET, DEPLOYMENT, MACHINE) for name, (_, default) in group.items()}
OF_NO_MODEL: Final = frozenset(("block_size", "page_size", "no_prefix_caching"))
"""Options that say something where no model is named."""
MODEL_NAMED_BY: Final = ("model", "layers", "kv_heads", "head_dim")


@with_options(MODEL, BUDGET, DEPLOYMENT, MACHINE)
def prefix(
    call: typer.Context,
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Prompts in the order that they arrive: JSONL, an OpenAI batch file, or text, one a line; - for a pipe.")
    ],
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="FILE", help="The model's tokenizer.json, or its folder; without, 4 bytes are a token.")
    ] = None,
    form: Annotated[str | None, typer.Option("--format", metavar="jsonl|text", help="What FILE is, where its first lines do not tell.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that holds no prompt.")] = False,
    context: Context = None,
    engine: EngineName = "vllm",
    as_json: Json = False,
) -> None:
    """What prompts share, and what breaks it.

    Hit rates of the prefix cache, where sharing breaks and what that costs; with a model and a GPU also under the KV budget. No word of
    a prompt is shown.
    """
    from kvcalc.prefix.answer import answer
    from kvcalc.prompts import PromptFile, encode_bytes, form_named, load_tokenizer

    deployed = _deployed(call.params, engine, context)
    encode = encode_bytes if tokenizer is None else load_tokenizer(tokenizer)
    with _progress() as progress:
        prompts = PromptFile(file, form=None if form is None else form_named(form), strict=strict, progress=progress)
        result = answer(prompts.read, encode, deployed, lambda: prompts.reading, again=prompts.again, by_tokenizer=tokenizer is not None)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.prefix import render_prefix
        from kvcalc.render.style import console_for_stdout

        render_prefix(result, console_for_stdout())


def _deployed(typed: Mapping[str, Any], engine: str, context: int | None) -> "Deployed":
    """The rules of the cache: of an engine alone, or of one that serves a model."""
    from kvcalc.engines import find_engine
    from kvcalc.engines.reuse import check_reuse
    from kvcalc.prefix.answer import with_model, without_model

    rules = find_engine(engine)
    check_owned(typed, (rules.name,))
    check_reuse(rules.name, prefix_caching=not typed["no_prefix_caching"])
    if any(typed[name] is not None for name in MODEL_NAMED_BY):
        machine = _machine(typed)
        return with_model(_question(typed, rules, context, timed=machine is not None), machine)
    given = [name for name, default in DEFAULTS.items() if name not in OF_NO_MODEL and typed[name] != default] + ["context"] * (context is not None)
    if given:
        flag = "as" if given[0] == "as_model_type" else given[0].replace("_", "-")
        raise typer.BadParameter(f"--{flag} says nothing without a model: give --model too")
    return without_model(rules, typed["block_size"] if typed["page_size"] is None else typed["page_size"])


def _machine(typed: Mapping[str, Any]) -> "Machine | None":
    """How fast the GPU is, where one is named: cards of a name that differ in it are not told apart for that alone."""
    if typed["gpu"] is None:
        return None
    try:
        return machine_asked(typed, deployed_gpus(typed, shared_heads(typed)))[2]
    except KvcalcError:
        if any(typed[name] is not None for name in MACHINE):
            raise
        return None


def _question(typed: Mapping[str, Any], rules: "Engine", context: int | None, *, timed: bool) -> "Question":
    """What a server of the model has for its cache, where a GPU or a budget is stated."""
    from kvcalc.budget import Asked, Question
    from kvcalc.results.fit import GpuInfo

    kv_mem, named = typed["kv_mem"], quantization_named(typed["quantization"])
    of_a_gpu = {"--utilization": utilization_of(typed, rules.name), "--quantization": typed["quantization"], "--reserve": typed["reserve"] or None}
    check_together("--kv-mem states what is left for the cache", kv_mem, of_a_gpu)
    weighs = kv_mem is None and (typed["gpu_mem"] is not None or typed["gpu"] is not None)
    tp = shared_heads(typed)
    info, device = gpu_and_device(typed, deployed_gpus(typed, tp)) if weighs or kv_mem is not None else (GpuInfo(name=None, memory_bytes=None), None)
    found, length = find_model(typed, context, rules.name, None)
    stated, notes = checkpoint_of(found, named=named is not None) if weighs else (None, ())
    return Question(
        found.weighed() if weighs or timed else found.spec,
        rules,
        with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed),
        Asked(found.name, found.source, found.served_as, length, 1),
        info,
        kv_bytes=kv_mem,
        utilization=utilization_of(typed, rules.name),
        weights=stated,
        quantization=named,
        reserve_bytes=typed["reserve"],
        notes=notes,
    )


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """What is told how much of the file was read: a bar where a person looks on."""
    if not sys.stderr.isatty():
        yield None
        return
    from kvcalc.render.progress import reading_bar

    with reading_bar() as told:
        yield told
