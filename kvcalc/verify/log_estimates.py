"""What is estimated of a start-up log's figures: weights, what an engine keeps beside them, and what both leave, each within its range."""

from collections.abc import Iterator
from typing import Final

from kvcalc.budget import Question, StatedWeights, budget
from kvcalc.errors import KvcalcError
from kvcalc.layers import Note
from kvcalc.results.fit import GpuInfo, Memory, Range
from kvcalc.results.verify import Check
from kvcalc.units import format_bytes
from kvcalc.verify.log import Figure, LogFacts, described

WEIGHTS_PERCENT: Final = 2
"""How far weights as engines report them lie from their tensors' bytes: buffers of the model, and what the allocator rounds (public logs)."""
ANY_GPU_BYTES: Final = 1 << 44
"""Beyond any GPU's memory: for the terms that do not depend on it."""


def estimate_checks(facts: LogFacts, question: Question) -> tuple[list[Check], list[Note]]:
    """Weights, what is kept beside them, and what they leave, each within its range."""
    of_gpu = question._replace(kv_bytes=None)
    known = question.gpu.memory_bytes is not None
    if not known:  # the terms do not need it: only what they leave does
        of_gpu = of_gpu._replace(gpu=GpuInfo(name=question.gpu.name, memory_bytes=ANY_GPU_BYTES))
    of_gpu = of_gpu._replace(gpu=of_gpu.gpu.model_copy(update={"used_bytes": None}))
    try:
        predicted = budget(of_gpu)
    except KvcalcError as error:
        return [], [Note(code="estimates", text=f"weights and what is kept beside them are not predicted: {error.message}")]
    checks = list(_weights_checks(facts, of_gpu, predicted.memory, predicted.ranges))
    for name, field, figure in (
        ("activation peak", "activation_bytes", facts.most("activation")),
        ("compute buffer", "activation_bytes", _largest_buffer(facts, "compute_buffer_mib")),
        ("memory outside of the allocator", "runtime_bytes", facts.most("non_torch")),
        ("CUDA graphs", "graph_bytes", facts.most("graphs_estimated")),
    ):
        likely = getattr(predicted.memory, field)
        if figure is not None and likely is not None and field in predicted.ranges:
            checks.append(_estimate(name, likely, predicted.ranges[field], figure))
    weights, kv = facts.most("weights"), facts.least("available")
    told = question.utilization is not None or facts.settings  # a configuration that does not name it leaves it at the default
    if known and told and kv is not None and weights is not None and weights.number > 0 and question.weights is None:
        left = budget(of_gpu._replace(weights=StatedWeights(weights.size_bytes, "gpu", "the log")))
        ends = left.ranges.get("kv_bytes", Range(low=left.left, high=left.left))
        ends = Range(low=min(ends.low, left.left), high=max(ends.high, left.left))
        checks.append(_estimate("left for the KV cache", left.left, ends, kv, " of the GPU's memory after the logged weights"))
    return checks, [*predicted.notes]


def _weights_checks(facts: LogFacts, question: Question, memory: Memory, ranges: dict[str, Range]) -> Iterator[Check]:
    """llama.cpp loads files in many forms: its buffer tells of the model alone where the form is known."""
    spec, predicted = question.spec, memory.weights_bytes
    stored = question.weights is not None or question.quantization is not None or spec.facts.checkpoint_bytes is not None
    figure = facts.most("weights") or (_largest_buffer(facts, "model_buffer_mib") if stored else None)
    if figure is None or predicted is None or figure.number <= 0:
        return
    miss = predicted * WEIGHTS_PERCENT // 100
    given = ranges.get("weights_bytes", Range(low=predicted, high=predicted))
    says = f" ({memory.weights_from}; engines report up to {WEIGHTS_PERCENT} % else)"
    yield _estimate("weights", predicted, Range(low=given.low - miss, high=given.high + miss), figure, says)


def _largest_buffer(facts: LogFacts, name: str) -> Figure | None:
    """Of the GPUs' buffers, each named on a line of its own."""
    return max(facts.all(name), key=lambda figure: figure.number, default=None)


def _estimate(name: str, likely: int, ends: Range, figure: Figure, more: str = "") -> Check:
    measured, half = figure.size_bytes, figure.half_digit_bytes
    return Check(
        name=name,
        predicted=likely,
        measured=measured,
        difference=measured - likely,
        unit="bytes",
        ok=ends.low - half <= measured <= ends.high + half,
        explanation=f"{described(figure)}; an estimate{more}: {format_bytes(max(0, ends.low))} to {format_bytes(max(0, ends.high))}",
    )
