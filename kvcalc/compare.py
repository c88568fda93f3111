"""Models or engines side by side, and why they differ: a pure function of the questions about each."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from kvcalc.budget import Question
from kvcalc.engines.base import LayerKind, Plan
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.estimate import estimate, rows_of_one_copy
from kvcalc.fit import answer
from kvcalc.layers import Note
from kvcalc.packing import KvDtype
from kvcalc.results.compare import ComparedEstimate, ComparedFit, Comparison
from kvcalc.results.estimate import Estimate
from kvcalc.results.fit import Difference, Fit, Memory

PARTS: Final[dict[LayerKind, str]] = {
    "full": "K and V of every token",
    "sliding": "windows",
    "chunked": "chunks",
    "latent": "latents",
    "indexer": "index keys",
    "compressed": "rows for several tokens",
    "state": "states",
    "cross": "encoder tokens",
}
"""What layers of a kind keep."""


class _Answered(NamedTuple):
    """One question, its answer without a budget and with one, and what its request and its budget are made of."""

    plain: Estimate
    budgeted: Fit | None
    request: Mapping[str, int]
    budget: Mapping[str, int]


def compare(questions: Sequence[Question]) -> Comparison:
    """Answers to all `questions`, each against the first that has one; with what a GPU holds where all state a budget.

    Raises KvcalcError where none can be answered: the error of the first.
    """
    answered, notes, errors = [], [], []
    for question in questions:
        try:
            answered.append(_answered(question))
        except KvcalcError as error:
            errors.append(error)
            notes.append(Note(code="unanswered", text=f"{question.asked.name} under {question.engine.name}: {error.message}"))
    if not answered:
        raise errors[0]
    first = answered[0]
    budgeted = [_with_budget(row, row.budgeted, first) for row in answered if row.budgeted is not None]
    plain = [] if budgeted else [_without_budget(row, first) for row in answered]
    return Comparison(rows=tuple(budgeted) if budgeted else tuple(plain), notes=tuple(notes))


def _answered(question: Question) -> _Answered:
    asked = question.asked
    plain = estimate(question.spec, question.engine, question.options, name=asked.name, source=asked.source, context=asked.context, batch=asked.batch)
    request = request_parts(question, question.engine.plan(question.spec, question.options))
    if question.kv_bytes is None and question.gpu.memory_bytes is None:
        return _Answered(plain, None, request, {})
    budgeted = answer(question)
    return _Answered(plain, budgeted, request, budget_parts(budgeted.memory))


def _with_budget(row: _Answered, budgeted: Fit, first: _Answered) -> ComparedFit:
    fields = {name: getattr(budgeted, name) for name in Fit.model_fields}
    return ComparedFit(
        **fields,
        token_bytes=row.plain.token_bytes,
        layers=row.plain.layers,
        request_differs=_differences(row.request, first.request),
        budget_differs=_differences(row.budget, first.budget),
    )


def _without_budget(row: _Answered, first: _Answered) -> ComparedEstimate:
    fields = {name: getattr(row.plain, name) for name in Estimate.model_fields}
    return ComparedEstimate(**fields, request_differs=_differences(row.request, first.request))


def _differences(these: Mapping[str, int], those: Mapping[str, int]) -> tuple[Difference, ...]:
    """From `those` to `these`, the largest first."""
    by_cause = {cause: these.get(cause, 0) - those.get(cause, 0) for cause in (*those, *(cause for cause in these if cause not in those))}
    return tuple(Difference(cause=cause, bytes=size) for cause, size in sorted(by_cause.items(), key=lambda item: -abs(item[1])) if size)


def request_parts(question: Question, plan: Plan) -> dict[str, int]:
    """Bytes of one request on all GPUs of a replica, by what they hold: rows in one copy, copies of them, what the engine adds. They sum to all."""
    spec, options, context = question.spec, question.options, question.asked.context
    whole = plan.total_bytes(context, 1) // options.dp
    rows = rows_of_one_copy(spec, options, plan.kv_dtype, context)
    if not rows:
        return {"rows in the engine's own element types": whole}
    found: Counter[str] = Counter()
    for use in rows:
        if use.size_bytes:
            found[PARTS[use.kind]] += use.size_bytes
    kept = found.total()
    elements = KvDtype(*(packing.name for packing in plan.kv_dtype.elements()))
    found["heads and latents that GPUs copy"] = IDEAL.plan(spec, options._replace(kv_dtype=elements, dp=1)).total_bytes(context, 1) - kept
    found.update(dict(plan.surplus(context)))
    found["rounding to what the engine hands out"] = whole - found.total()
    return found


def budget_parts(memory: Memory) -> dict[str, int]:
    """Bytes of the KV cache of one GPU, by what they are left of: what there is, and less than zero what is taken from it. They sum to the cache."""
    if memory.total_bytes is None or memory.usable_bytes is None:
        return {"the budget that is stated": memory.kv_bytes}
    taken = {
        "left outside of the engine's part": memory.total_bytes - memory.usable_bytes,
        "weights": memory.weights_bytes,
        "activations": memory.activation_bytes,
        "CUDA graphs": memory.graph_bytes,
        "runtime": memory.runtime_bytes,
        "kept back": memory.reserve_bytes,
    }
    found = {"memory of the GPU": memory.total_bytes, **{cause: -(size or 0) for cause, size in taken.items()}}
    return {**found, "what is lacking": memory.kv_bytes - sum(found.values())}
