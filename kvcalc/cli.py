"""The command line: parse, call, render, exit. The only place that imports typer."""

import os
import sys
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvcalc import __version__
from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.packing import AUTO, KvDtype, parse_kv_dtype, parse_state_dtype
from kvcalc.units import MAX_TOKENS, format_bytes, parse_bytes, parse_count, parse_part

if TYPE_CHECKING:
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.engines.base import Device, Options
    from kvcalc.fit import StatedWeights
    from kvcalc.gpus import GpuMatch
    from kvcalc.layers import Note
    from kvcalc.quantizations import Named
    from kvcalc.results.fit import Fit, GpuInfo

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


def _complete_quantization(incomplete: str) -> list[str]:
    from kvcalc.quantizations import BY_NAME

    return [name for name in BY_NAME if name.startswith(incomplete.lower())]


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
    typer.Option(
        "--kv-dtype",
        "--kv-cache-dtype",
        parser=_parser(parse_kv_dtype),
        metavar="DTYPE",
        show_default="auto",
        help="auto, a name such as fp8 or q8_0, or k=NAME,v=NAME.",
    ),
]
EngineName = Annotated[str, typer.Option("--engine", metavar="NAME", help="Whose rules: vllm, an older one as vllm@0.11, or ideal (the bare formula).")]
GpuName = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, as nvidia-smi or a person writes it.")]
Tp = Annotated[int, typer.Option("--tp", "--tensor-parallel-size", **COUNT, help="GPUs that share the heads.")]
Pp = Annotated[int, typer.Option("--pp", "--pipeline-parallel-size", **COUNT, help="GPUs that share the layers.")]
Dp = Annotated[int, typer.Option("--dp", "--data-parallel-size", **COUNT, help="Replicas.")]
Dcp = Annotated[int, typer.Option("--dcp", "--decode-context-parallel-size", **COUNT, help="GPUs that share the tokens of a copied cache.")]
MaxBatchedTokens = Annotated[
    int | None, typer.Option("--max-batched-tokens", "--max-num-batched-tokens", **COUNT, help="Tokens that the scheduler takes in one batch.")
]
MaxSeqs = Annotated[int | None, typer.Option("--max-seqs", "--max-num-seqs", **COUNT, help="Requests that the scheduler runs at once.")]
BlockSize = Annotated[int | None, typer.Option("--block-size", **COUNT, help="Tokens in a block.")]
StateDtype = Annotated[
    str | None,
    typer.Option("--mamba-ssm-cache-dtype", parser=_parser(parse_state_dtype), metavar="DTYPE", help="Of recurrent states: float32, float16 or bfloat16."),
]
NoPrefixCaching = Annotated[bool, typer.Option("--no-prefix-caching", "--no-enable-prefix-caching", help="As the engine's own switch.")]
NoHybridManager = Annotated[bool, typer.Option("--disable-hybrid-kv-cache-manager", help="As vLLM's own switch: windows are kept at full length.")]
NoAsyncScheduling = Annotated[bool, typer.Option("--no-async-scheduling", help="As vLLM's own switch: fewer tokens are in flight.")]
EnforceEager = Annotated[bool, typer.Option("--enforce-eager", help="As vLLM's own switch: no CUDA graphs.")]
EncoderTokens = Annotated[int | None, typer.Option("--encoder-tokens", min=0, max=MAX_TOKENS, metavar="N", help="Tokens that cross-attention keeps.")]
Mtp = Annotated[int | None, typer.Option("--mtp", **COUNT, help="Speculative tokens by the model's own draft layers, which are then counted.")]
Layers = Annotated[int | None, typer.Option("--layers", **COUNT, help="With --kv-heads and --head-dim, in place of --model.")]
KvHeads = Annotated[int | None, typer.Option("--kv-heads", **COUNT, help="KV heads of each layer.")]
HeadDim = Annotated[int | None, typer.Option("--head-dim", **COUNT, help="Width of a head.")]
SIZE: dict[str, Any] = {"parser": _parser(parse_bytes), "metavar": "SIZE"}
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
    call: typer.Context,
    model: Model = None,
    context: Context = None,
    batch: Batch = 1,
    kv_dtype: KvDtypeOption = AUTO,
    engine: EngineName = "ideal",
    gpu: GpuName = None,
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 1,
    dcp: Dcp = 1,
    max_batched_tokens: MaxBatchedTokens = None,
    max_seqs: MaxSeqs = None,
    block_size: BlockSize = None,
    mamba_ssm_cache_dtype: StateDtype = None,
    no_prefix_caching: NoPrefixCaching = False,
    disable_hybrid_kv_cache_manager: NoHybridManager = False,
    no_async_scheduling: NoAsyncScheduling = False,
    enforce_eager: EnforceEager = False,
    encoder_tokens: EncoderTokens = None,
    mtp: Mtp = None,
    as_model_type: AsModelType = None,
    layers: Layers = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    revision: Revision = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the total, in bytes.")] = False,
) -> None:
    """KV-cache bytes of a request and a batch."""
    from kvcalc.engines import find_engine
    from kvcalc.estimate import estimate as compute

    _one_form(as_json, quiet)
    found, length = _find_model(model, (layers, kv_heads, head_dim), context, revision, as_model_type)
    options = _options(call.params, None if gpu is None else _gpu(gpu).device())
    result = compute(found.spec, find_engine(engine), options, name=found.name, source=found.source, context=length, batch=batch)
    if as_json:
        print(result.to_json())
    elif quiet:
        print(result.total_bytes)
    else:
        from kvcalc.render.estimate import render_estimate
        from kvcalc.render.style import console_for_stdout

        render_estimate(result, console_for_stdout())


def _one_form(as_json: bool, quiet: bool) -> None:
    if as_json and quiet:
        raise typer.BadParameter("--json and --quiet are two forms of one answer: give one of them")


def _find_model(
    model: str | None, shape: tuple[int | None, int | None, int | None], context: int | None, revision: str | None, as_model_type: str | None
) -> tuple["FoundModel", int]:
    """The model that is asked about, and the length of its requests."""
    from kvcalc.catalog import load_model, model_from_shape

    if model is not None and shape == (None, None, None):
        found = load_model(model, revision, as_model_type)
        length = found.spec.facts.max_context if context is None else context
        if length is None:
            raise KvcalcError(f"{found.name} states no maximum context", hint="say how many tokens with --context")
        return found, length
    layers, kv_heads, head_dim = shape
    if model is None and layers is not None and kv_heads is not None and head_dim is not None:
        return model_from_shape(layers, kv_heads, head_dim), CONTEXT_WITHOUT_MODEL if context is None else context
    raise typer.BadParameter("give --model MODEL, or --layers, --kv-heads and --head-dim together in its place")


def _options(typed: dict[str, Any], device: "Device | None") -> "Options":
    """The deployment that was asked for, from the options that commands have alike."""
    from kvcalc.engines.base import Options

    return Options(
        kv_dtype=typed["kv_dtype"],
        tp=typed["tp"],
        pp=typed["pp"],
        dp=typed["dp"],
        dcp=typed["dcp"],
        encoder_tokens=typed["encoder_tokens"],
        draft_layers=typed["mtp"] is not None,
        speculative_tokens=0 if typed["mtp"] is None else typed["mtp"],
        device=device,
        max_batched_tokens=typed["max_batched_tokens"],
        max_seqs=typed["max_seqs"],
        block_size=typed["block_size"],
        state_dtype=typed["mamba_ssm_cache_dtype"],
        prefix_caching=not typed["no_prefix_caching"],
        hybrid_manager=not typed["disable_hybrid_kv_cache_manager"],
        async_scheduling=not typed["no_async_scheduling"],
        enforce_eager=typed["enforce_eager"],
    )


def _gpu(name: str) -> "GpuMatch":
    from kvcalc.gpus import find_gpu  # a question without a GPU does not read the catalogue

    return find_gpu(name)


@app.command()
def fit(
    call: typer.Context,
    model: Model = None,
    context: Context = None,
    batch: Batch = 1,
    gpu_mem: Annotated[int | None, typer.Option("--gpu-mem", **SIZE, help="All memory of one GPU, as the runtime reports it: 80GiB, 79.2GiB.")] = None,
    kv_mem: Annotated[
        int | None, typer.Option("--kv-mem", "--kv-cache-memory-bytes", **SIZE, help="The KV budget of one GPU itself: weights and overheads are skipped.")
    ] = None,
    utilization: Annotated[
        Decimal | None,
        typer.Option("--utilization", "--gpu-memory-utilization", parser=_parser(parse_part), metavar="PART", help="Of the memory, what the engine takes."),
    ] = None,
    weights: Annotated[int | None, typer.Option("--weights", **SIZE, help="Bytes of the whole checkpoint.")] = None,
    weights_per_gpu: Annotated[int | None, typer.Option("--weights-per-gpu", **SIZE, help="Bytes on one GPU, as the engine reports them loaded.")] = None,
    quantization: Annotated[
        str | None,
        typer.Option(
            "--quantization",
            metavar="NAME",
            help="How the weights are stored, where the config does not say: awq, fp8, nvfp4, ...",
            autocompletion=_complete_quantization,
        ),
    ] = None,
    reserve: Annotated[int, typer.Option("--reserve", **SIZE, show_default="none", help="Memory of each GPU to keep back.")] = 0,
    gpus: Annotated[int | None, typer.Option("--gpus", **COUNT, help="GPUs in all; given alone, they share the heads.")] = None,
    min_gpus: Annotated[bool, typer.Option("--min-gpus", help="The smallest number of these GPUs that serves it, and how they share the work.")] = False,
    name_filter: Annotated[str | None, typer.Option("--filter", metavar="TEXT", help="Without --model: only presets whose name contains this.")] = None,
    kv_dtype: KvDtypeOption = AUTO,
    engine: EngineName = "vllm",
    gpu: GpuName = None,
    tp: Tp = 1,
    pp: Pp = 1,
    dp: Dp = 1,
    dcp: Dcp = 1,
    expert_parallel: Annotated[bool, typer.Option("--ep", "--enable-expert-parallel", help="Experts are dealt out whole to the GPUs.")] = False,
    max_batched_tokens: MaxBatchedTokens = None,
    max_seqs: MaxSeqs = None,
    block_size: BlockSize = None,
    mamba_ssm_cache_dtype: StateDtype = None,
    no_prefix_caching: NoPrefixCaching = False,
    disable_hybrid_kv_cache_manager: NoHybridManager = False,
    no_async_scheduling: NoAsyncScheduling = False,
    enforce_eager: EnforceEager = False,
    encoder_tokens: EncoderTokens = None,
    mtp: Mtp = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="A model that drafts tokens, named as --model is.", autocompletion=_complete_model)
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option("--draft-tokens", **COUNT, help="Tokens that --draft proposes a step.")] = None,
    max_loras: Annotated[int, typer.Option("--max-loras", min=0, max=1000, metavar="N", help="LoRA adapters kept on the GPU.")] = 0,
    max_lora_rank: Annotated[int, typer.Option("--max-lora-rank", min=1, max=4096, metavar="N", help="The highest rank among them.")] = 16,
    language_model_only: Annotated[bool, typer.Option("--language-model-only", help="As vLLM's own switch: no vision or audio towers.")] = False,
    as_model_type: AsModelType = None,
    layers: Layers = None,
    kv_heads: KvHeads = None,
    head_dim: HeadDim = None,
    revision: Revision = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the number of whole requests; without --model, the names that fit.")] = False,
) -> int:
    """What fits: requests, tokens and the longest request, in the blocks of the engine. Without --model: every preset. Exit code 1: it does not fit."""
    from kvcalc.engines import find_engine
    from kvcalc.fit import Asked, Question, advised, fewest_gpus
    from kvcalc.fit import answer as plainly

    _one_form(as_json, quiet)
    of_a_gpu = {
        "--utilization": utilization,
        "--weights": weights,
        "--weights-per-gpu": weights_per_gpu,
        "--quantization": quantization,
        "--reserve": reserve or None,
    }
    _check_together("--kv-mem states what is left for the cache", kv_mem, of_a_gpu)
    _check_together("--weights-per-gpu states what is loaded", weights_per_gpu, {"--weights": weights, "--quantization": quantization})
    every_preset = model is None and (layers, kv_heads, head_dim) == (None, None, None)
    of_one = {
        "--weights": weights,
        "--weights-per-gpu": weights_per_gpu,
        "--as": as_model_type,
        "--revision": revision,
        "--encoder-tokens": encoder_tokens,
        "--draft": draft,
    }
    _check_scope({**of_one, "--min-gpus": min_gpus or None}, {"--filter": name_filter}, every_preset=every_preset)
    rules = find_engine(engine)
    tp = _tp(gpus, tp, pp, dp)
    if min_gpus and (gpus is not None or (tp, pp) != (1, 1)):
        raise typer.BadParameter("--min-gpus finds how many GPUs it takes: leave out --gpus, --tp and --pp")
    info, device = _gpu_and_device(gpu, gpu_mem, kv_mem, tp * pp * dp)
    drafter = _drafter(draft, draft_tokens, mtp)
    options = _options({**call.params, "tp": tp}, device)._replace(
        draft=None if drafter is None else drafter.weighed(),
        draft_served_as="" if drafter is None else drafter.served_as,
        speculative_tokens=(draft_tokens if mtp is None else mtp) or 0,
        expert_parallel=expert_parallel,
        towers=not language_model_only,
        max_loras=max_loras,
        max_lora_rank=max_lora_rank,
    )
    named = None if quantization is None else _quantization(quantization)

    def answer(found: "FoundModel", length: int) -> "Fit":
        stated, notes = (None, ()) if kv_mem is not None else _stated_weights(found, weights, weights_per_gpu, named=named is not None)
        question = Question(
            found.spec if kv_mem is not None else found.weighed(),
            rules,
            options,
            Asked(found.name, found.source, found.served_as, length, batch),
            info,
            kv_bytes=kv_mem,
            utilization=utilization,
            weights=stated,
            quantization=named,
            reserve_bytes=reserve,
            notes=notes,
        )
        if every_preset:
            return plainly(question)
        return advised(fewest_gpus(question) if min_gpus else question)

    if every_preset:
        return _fit_presets(answer, context, name_filter, as_json=as_json, quiet=quiet)
    result = answer(*_find_model(model, (layers, kv_heads, head_dim), context, revision, as_model_type))
    if as_json:
        print(result.to_json())
    elif quiet:
        print(next(row.requests for row in result.lengths if row.context == result.context))
    else:
        from kvcalc.render.fit import render_fit
        from kvcalc.render.style import console_for_stdout

        render_fit(result, console_for_stdout())
    return ExitCode.YES if result.fits else ExitCode.NO


def _gpu_and_device(gpu: str | None, gpu_mem: int | None, kv_mem: int | None, needed: int) -> "tuple[GpuInfo, Device | None]":
    """The GPU that is asked about: named, described by its memory alone, or where nothing is said those of this machine."""
    from kvcalc.engines.base import Device
    from kvcalc.results.fit import GpuInfo

    if gpu is None and gpu_mem is None and kv_mem is None:
        from kvcalc.gpus import gpus_here

        return gpus_here(needed)
    if gpu is None:
        device = None if gpu_mem is None else Device(f"a GPU of {format_bytes(gpu_mem)}", None, (gpu_mem,))
        return GpuInfo(name=None, memory_bytes=gpu_mem), device
    card = _gpu(gpu)
    memory_bytes, memory_by = (gpu_mem, None) if gpu_mem is not None or kv_mem is not None else card.memory()
    return GpuInfo(name=card.name, memory_bytes=memory_bytes, memory_by=memory_by), card.device(gpu_mem)


def _drafter(draft: str | None, draft_tokens: int | None, mtp: int | None) -> "FoundModel | None":
    """The model that drafts tokens."""
    if draft is None:
        if draft_tokens is not None:
            raise typer.BadParameter("--draft-tokens goes with --draft MODEL")
        return None
    if mtp is not None:
        raise typer.BadParameter("--mtp drafts with the model's own layers: give it, or --draft")
    if draft_tokens is None:
        raise typer.BadParameter("say how many tokens --draft proposes a step, with --draft-tokens")
    from kvcalc.catalog import load_model

    return load_model(draft)


def _quantization(name: str) -> "Named":
    from kvcalc.quantizations import BY_NAME

    try:
        return BY_NAME[name.strip().lower()]
    except KeyError:
        raise typer.BadParameter(f"--quantization {name[:40]!r} is not known; known: {', '.join(BY_NAME)}") from None


def _stated_weights(found: "FoundModel", weights: int | None, weights_per_gpu: int | None, *, named: bool) -> "tuple[StatedWeights | None, tuple[Note, ...]]":
    """The size of the weights from the command line, else from the checkpoint beside the config; None leaves it to the tensors."""
    from kvcalc.catalog import find_checkpoint
    from kvcalc.fit import StatedWeights

    if weights_per_gpu is not None:
        return StatedWeights(weights_per_gpu, "gpu", "--weights-per-gpu"), ()
    if weights is not None:
        return StatedWeights(weights, "checkpoint", "--weights"), ()
    if named:
        return None, ()
    checkpoint, notes = find_checkpoint(found)
    return (None if checkpoint is None else StatedWeights(checkpoint.size_bytes, "checkpoint", checkpoint.source)), notes


def _tp(gpus: int | None, tp: int, pp: int, dp: int) -> int:
    """GPUs that share the heads: as many as there are where nothing is said of how they share the work."""
    if gpus is None or gpus == tp * pp * dp:
        return tp
    if (tp, pp, dp) == (1, 1, 1):
        return gpus
    raise typer.BadParameter(f"--gpus {gpus} are not --tp {tp} x --pp {pp} x --dp {dp} = {tp * pp * dp}")


def _check_together(why: str, one: int | None, others: Mapping[str, object]) -> None:
    """Options that have nothing to say beside another."""
    given = [flag for flag, value in others.items() if value is not None]
    if one is not None and given:
        raise typer.BadParameter(f"{why}: {given[0]} has nothing to say beside it")


def _check_scope(of_one: dict[str, object], of_all: dict[str, object], *, every_preset: bool) -> None:
    """Options that go with one model, or with all presets, and were given for the other."""
    given = [flag for flag, value in (of_one if every_preset else of_all).items() if value is not None]
    if given:
        raise typer.BadParameter(
            f"{given[0]} goes with one model: give --model too" if every_preset else f"{given[0]} goes with all presets: leave out --model"
        )


def _fit_presets(answer: "Callable[[FoundModel, int], Fit]", context: int | None, name_filter: str | None, *, as_json: bool, quiet: bool) -> ExitCode:
    """The same question about every preset, at the length asked for, or one that each can take."""
    from kvcalc.catalog import model_of, presets
    from kvcalc.fit import ranked

    answers, unanswered = [], {}
    for preset in presets():
        found = model_of(preset)
        if name_filter is not None and name_filter.strip().lower() not in found.name:
            continue
        own = found.spec.facts.max_context
        length = context if context is not None else CONTEXT_WITHOUT_MODEL if own is None else min(own, CONTEXT_WITHOUT_MODEL)
        try:
            answers.append(answer(found, length))
        except KvcalcError as error:
            unanswered[found.name] = error.message
    result = ranked(answers, unanswered)
    if not result.rows:
        raise KvcalcError("no preset is left to be answered", hint="; ".join(note.text for note in result.notes)[:300] or "`kvcalc models` lists the presets")
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.rows:
            if row.fits:
                print(row.model.name)
    else:
        from kvcalc.render.fit import render_fits
        from kvcalc.render.style import console_for_stdout

        render_fits(result, console_for_stdout())
    return ExitCode.YES if result.rows[0].fits else ExitCode.NO


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

    _one_form(as_json, quiet)
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


@app.command()
def gpus(
    text: Annotated[str | None, typer.Argument(metavar="[TEXT]", help="Only cards whose name, alias or make contains this.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the names, one a line.")] = False,
) -> None:
    """The GPUs: what --gpu takes by name."""
    from kvcalc.gpus import list_gpus

    _one_form(as_json, quiet)
    result = list_gpus(text)
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.gpus:
            print(row.name)
    else:
        from kvcalc.render.gpus import render_gpus
        from kvcalc.render.style import console_for_stdout

        render_gpus(result, console_for_stdout())
