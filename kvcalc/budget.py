"""What a GPU leaves for the KV cache: a pure function of a question about a model, an engine, its options and a GPU."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from math import ceil, floor, isqrt
from typing import Final, Literal, NamedTuple

from kvcalc.engines.base import Engine, Loaded, Options, model_packing
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.layers import ModelSpec, Note
from kvcalc.machine import Machine
from kvcalc.packing import PACKINGS
from kvcalc.quantizations import Named
from kvcalc.results.fit import GpuInfo, Memory, Range
from kvcalc.tensors import WeighedModel, weighed
from kvcalc.units import format_bytes
from kvcalc.weights import checkpoint_bytes
from kvcalc.workload import Workload

NVIDIA_SMI_HIDES: Final = "0.9 GiB"
"""At most: 81,920 MiB of an A100 80GB are 79.15 to 79.32 GiB for CUDA, 15,360 MiB of a T4 14.56 to 14.74 (public logs)."""
NAMED_QUANTIZATION_PERCENT: Final = 4
"""How far the weights of a checkpoint lie from what the name of its quantization alone tells, in two of three public logs."""
UNEVEN_PERCENT: Final = 3
"""How much more than an even share one GPU of several may hold: copied norms, routers and KV heads."""


class StatedWeights(NamedTuple):
    """The size of the weights where it is known from elsewhere than the tensors: of the whole checkpoint, or as loaded on one GPU; and who says so."""

    size_bytes: int
    of: Literal["checkpoint", "gpu"]
    source: str


class Asked(NamedTuple):
    """What a question calls the model (`name`, `source`; `served_as` on a command line), and the requests that it is about."""

    name: str
    source: str
    served_as: str
    context: int
    batch: int


class Latency(NamedTuple):
    """How soon a server must answer, on a `machine`: microseconds to the first token of a prompt (the context less `output` tokens) and for each further
    token; None where that does not matter.
    """

    machine: Machine
    ttft_us: int | None
    tpot_us: int | None
    output: int = 0


class Question(NamedTuple):
    """A model on an engine, so deployed, on that GPU. `kv_bytes` is the KV budget of one GPU where it is stated; else it is what is left of `utilization` x
    memory after the weights (`weights`, else by the tensors), what the engine keeps beside them, and a `reserve_bytes`. `quantization` replaces that of a
    checkpoint that has none. `latency` is what the requests must be served within, `workload` what they are like beside
    their longest length. `notes` is what was said while these were looked up.
    """

    spec: ModelSpec
    engine: Engine
    options: Options
    asked: Asked
    gpu: GpuInfo
    kv_bytes: int | None = None
    utilization: Decimal | None = None
    weights: StatedWeights | None = None
    quantization: Named | None = None
    reserve_bytes: int = 0
    latency: Latency | None = None
    workload: Workload | None = None
    notes: tuple[Note, ...] = ()


class Budget(NamedTuple):
    """Memory of one GPU, the sizes in it that are estimated, what is `left` for the cache (below zero where there is too little), what to say about it. It
    is the same for requests of any length from `same_from` tokens on, None where it follows every length.
    """

    memory: Memory
    ranges: dict[str, Range]
    left: int
    notes: tuple[Note, ...]
    same_from: int | None


class Weights(NamedTuple):
    """The weights on one GPU, drafts and adapters among them; how much less or more they may be; where the size is from."""

    loaded: Loaded
    below: int
    above: int
    source: str
    notes: tuple[Note, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.loaded)


def budget(question: Question) -> Budget:
    """What a GPU leaves for the cache. Raises KvcalcError where its memory or the weights are not known, or where the engine would not start."""
    return budget_for(question, question.asked.context, lambda: weights_of(question, weighed(question.spec)))


def budget_for(question: Question, context: int, find_weights: Callable[[], Weights]) -> Budget:
    if question.kv_bytes is not None:
        return Budget(Memory(kv_bytes=question.kv_bytes), {}, question.kv_bytes, (), 0)
    total = question.gpu.memory_bytes
    if total is None:
        raise KvcalcError("the memory of the GPU is not known", hint="state it with --gpu-mem")
    part = part_taken(question, total)
    if question.engine.part_of == "all":
        _check_free(question, ceil(part * total), part)
    weights = find_weights()
    kept = question.engine.overheads(weighed(question.spec), question.options, context)
    used = weights.total + kept.total.likely + question.reserve_bytes
    usable = ceil(part * total) if question.engine.part_of == "all" else used + max(0, floor(part * (total - used)))
    left = usable - used
    more = isqrt((kept.total.likely - kept.total.low) ** 2 + weights.below**2)
    less = isqrt((kept.total.high - kept.total.likely) ** 2 + weights.above**2)
    named = {"activation_bytes": kept.activation, "graph_bytes": kept.graphs, "runtime_bytes": kept.runtime}
    ranges = {name: Range(low=span.low, high=span.high) for name, span in named.items() if span.low != span.high}
    if weights.above:
        ranges["weights_bytes"] = Range(low=weights.total - weights.below, high=weights.total + weights.above)
    if more or less:
        ranges["kv_bytes"] = Range(low=max(0, left - less), high=max(0, left + more))
    memory = Memory(
        total_bytes=total,
        usable_bytes=usable,
        weights_bytes=weights.total,
        weights_from=weights.source,
        draft_bytes=weights.loaded.draft,
        lora_bytes=weights.loaded.lora,
        activation_bytes=kept.activation.likely,
        graph_bytes=kept.graphs.likely,
        runtime_bytes=kept.runtime.likely,
        reserve_bytes=question.reserve_bytes,
        kv_bytes=max(0, left),
    )
    return Budget(memory, ranges, left, (*weights.notes, *_gpu_notes(question.gpu)), kept.same_from)


def part_taken(question: Question, total_bytes: int) -> Decimal:
    """The part of the memory that the engine takes."""
    return question.engine.utilization(question.spec, question.options, total_bytes) if question.utilization is None else question.utilization


def _check_free(question: Question, usable: int, part: Decimal) -> None:
    """An engine takes its part of all memory, and does not start where less is free (vllm/v1/worker/utils.py 0.33.0, request_memory)."""
    gpu = question.gpu
    if not gpu.used_bytes or gpu.memory_bytes is None or usable <= gpu.memory_bytes - gpu.used_bytes:
        return
    free = gpu.memory_bytes - gpu.used_bytes
    percent = 100 * free // gpu.memory_bytes
    raise KvcalcError(
        f"other processes hold {format_bytes(gpu.used_bytes)} of the {gpu.name or 'GPU'}: {format_bytes(free)} are free, and the engine would want "
        f"{format_bytes(usable)} ({part} of all)",
        hint=f"end them, or use --utilization 0.{percent:02d} or less",
        code=ExitCode.NO,
    )


def _gpu_notes(gpu: GpuInfo) -> Iterator[Note]:
    if gpu.memory_by is not None and gpu.memory_by.startswith("nvidia-smi"):
        yield Note(
            code="gpu-memory",
            text=f"the GPU's memory is what nvidia-smi shows; CUDA sees up to {NVIDIA_SMI_HIDES} less: --gpu-mem takes the engine's own figure",
        )
    if gpu.used_bytes:
        yield Note(code="gpu-used", text=f"other processes hold {format_bytes(gpu.used_bytes)} of the GPU; the engine's part of its memory is free beside them")


def weights_of(question: Question, spec: WeighedModel) -> Weights:
    """By what is stated for a GPU, else by the size of the checkpoint and the layout of the tensors, else by the tensors alone."""
    options, stated = question.options, question.weights
    if stated is not None and stated.of == "gpu":
        return Weights(Loaded(stated.size_bytes, 0, 0), 0, 0, stated.source)
    named = quantization_by_name(question, spec)
    stored, extra_permille = (spec.quantization, 0) if named is None else named.of(spec)
    known = spec.model_copy(update={"quantization": stored})
    if stated is None and spec.facts.checkpoint_bytes is not None and named is None:
        stated = StatedWeights(spec.facts.checkpoint_bytes, "checkpoint", f"the size of the checkpoint in the {question.asked.source}")
    if stated is None:
        loaded, source = question.engine.loaded(known, options), f"tensors of {question.asked.source}"
        if named is None:
            return Weights(loaded, 0, 0, source)
        loaded = loaded._replace(weights=loaded.weights * (1000 + extra_permille) // 1000)
        miss = loaded.weights * NAMED_QUANTIZATION_PERCENT // 100
        return Weights(loaded, miss, miss, f"{source}, stored as {named.plain.method} (by its name alone)")
    gpus = options.tp * options.pp
    if not spec.tensors or spec.untold is not None:
        share = -(-stated.size_bytes // gpus)
        text = f"{stated.source}: shared evenly by {gpus} GPUs, since its tensors are not all known"
        notes = (Note(code="weights", text=text),) if gpus > 1 else ()
        return Weights(Loaded(share, 0, 0), 0, share * UNEVEN_PERCENT // 100 if gpus > 1 else 0, stated.source, notes)
    loaded, predicted = question.engine.loaded(known, options), _predicted(known, stated.size_bytes)
    scaled = Loaded(loaded.weights * stated.size_bytes // predicted, loaded.draft * stated.size_bytes // predicted, loaded.lora)
    notes = ()
    if abs(stated.size_bytes - predicted) * 50 > predicted:
        says = f"the checkpoint is {format_bytes(stated.size_bytes)} ({stated.source}), where its config alone tells {format_bytes(predicted)}"
        notes = (Note(code="weights", text=f"{says}: what a GPU loads is scaled to it"),)
    return Weights(scaled, 0, 0, stated.source, notes)


def stored_model(question: Question) -> tuple[WeighedModel, float]:
    """The model as the question says that it is stored, and the size of its weights over that of its tensors. Raises KvcalcError where these are not all
    known.
    """
    spec = weighed(question.spec)
    named = quantization_by_name(question, spec)
    stored = spec if named is None else spec.model_copy(update={"quantization": named.of(spec)[0]})
    return stored, weights_of(question, spec).loaded.weights / question.engine.loaded(stored, question.options).weights


def quantization_by_name(question: Question, spec: WeighedModel) -> Named | None:
    """That of the question, where the model that it names is not quantized itself."""
    return question.quantization if spec.quantization is None else None


def _predicted(spec: WeighedModel, size_bytes: int) -> int:
    """What the tensors make of the checkpoint: as its config says, or in fp32, in which many are saved whatever they say, where that comes nearer."""
    own = PACKINGS[spec.facts.dtype or model_packing(spec.facts)[0].name]
    return min((checkpoint_bytes(spec, packing) for packing in (own, PACKINGS["fp32"])), key=lambda predicted: abs(predicted - size_bytes))
