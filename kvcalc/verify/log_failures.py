"""Why the server of a start-up log did not start, by how much, and what would have let it, each change answered by the solver."""

from decimal import Decimal
from math import ceil
from typing import Final, NamedTuple

from kvcalc.advice import advised
from kvcalc.budget import Question, budget, part_taken
from kvcalc.engines.base import Plan
from kvcalc.errors import KvcalcError
from kvcalc.fit import answer
from kvcalc.layers import Note
from kvcalc.results.fit import Change, Fit
from kvcalc.results.verify import Check
from kvcalc.search import largest
from kvcalc.units import format_bytes
from kvcalc.verify.log import Failure, LogFacts, described
from kvcalc.verify.log_exact import Span, count_check, logged_kv, size_check

FULLEST_PERCENT: Final = 98
"""The largest part of a GPU that is proposed to an engine, in hundredths: no GPU is wholly free, and vLLM does not start where less is free than it is to take
(request_memory, vllm/v1/worker/utils.py 0.33.0).
"""


class Diagnosis(NamedTuple):
    """What kept a server from starting: the question with the budget that it had, its answer, what `bound` it in words, and `changes` that would have let it
    start, the least first, each answered by the solver in full.
    """

    question: Question
    found: Fit
    bound: str
    changes: tuple[Change, ...]


def diagnose(facts: LogFacts, question: Question) -> Diagnosis | None:
    """Why the server of a log did not start; None where it did, or where neither the log nor the question tells its memory."""
    plan = question.engine.plan(question.spec, question.options)
    failure = facts.failure
    if facts.last(*_AFTER_PLANNING) is not None and (failure is None or failure.why == "out_of_memory"):
        return None
    if failure is not None and failure.why == "occupied":
        return _occupied(facts, question)
    budgeted = _as_budgeted(facts, question, plan)
    if budgeted is None:
        return None
    found, more = advised(budgeted), ""
    if found.fits and failure is None:
        return None
    if found.fits and (bounded := _bounded_by_message(facts, question, plan)) is not None:
        budgeted, more = bounded
        found = advised(budgeted)
    changes = tuple(found.advice)
    if (part := _least_utilization(budgeted)) is not None:
        changes = (*changes[:1], part, *(change for change in changes[1:] if not change.options.startswith("--utilization") or " --" in change.options))
    if (alone := _without_others(facts, budgeted)) is not None:
        changes = (alone, *changes)
    return Diagnosis(budgeted, found, _bound(failure, found, budgeted) + more, changes)


_AFTER_PLANNING: Final = ("tokens", "requests", "pool_tokens", "allocated", "kv_size_mib")
"""Figures that are printed once the cache is planned. Old releases of vLLM print their blocks before they refuse."""


def _bounded_by_message(facts: LogFacts, question: Question, plan: Plan) -> tuple[Question, str] | None:
    """Where a request fits by what is predicted and the engine says that it is too long: the budget in the sizes of the prediction, and what that rests on."""
    needed, available = facts.last("needed"), facts.last("available_for_requests") or facts.least("available")
    if facts.failure is None or facts.failure.why != "length" or needed is None or needed.number <= 0:
        return None
    wants = plan.need(question.asked.context)[0] * plan.pools[0].unit_bytes
    alone = question._replace(utilization=None, weights=None, quantization=None, reserve_bytes=0)
    if available is None:
        return alone._replace(kv_bytes=wants - 1), "; the log does not say how much there is: what follows is answered for the most that it can have been"
    share = max(Decimal(0), available.number / needed.number)
    text = (
        f"; the engine itself counts {needed.text} GiB for it and has {available.text}: what follows is answered for the same share of what is predicted here, "
        "and another release of the engine may be meant"
    )
    return alone._replace(kv_bytes=int(wants * share)), text


def _without_others(facts: LogFacts, question: Question) -> Change | None:
    """Memory outside of the engine's allocator beyond what an engine takes there: what else runs on the GPU."""
    figure = facts.most("non_torch")
    if figure is None or question.kv_bytes is not None:
        return None
    predicted = budget(question)
    own, likely = predicted.ranges.get("runtime_bytes"), predicted.memory.runtime_bytes
    if own is None or likely is None or figure.size_bytes <= own.high:
        return None
    others = figure.size_bytes - likely
    found = answer(question._replace(reserve_bytes=question.reserve_bytes - others))
    if not found.fits:
        return None
    text = f"end what else runs on the GPU and holds {format_bytes(others)} of it ({described(figure)}: {figure.text} GiB outside of the allocator)"
    return _change(text, "", found)


def _occupied(facts: LogFacts, question: Question) -> Diagnosis | None:
    """Others hold the GPU: the largest part of it that is free."""
    free, total, wanted = facts.last("free"), facts.last("total"), facts.last("usable")
    if free is None or total is None or total.number <= 0 or question.engine.part_of != "all":
        return None
    percent = int(100 * free.number / total.number)
    if not 0 < percent <= 100:
        return None
    gpu = question.gpu.model_copy(update={"memory_bytes": total.size_bytes, "used_bytes": None})
    part = Decimal(percent) / 100
    lowered = question._replace(gpu=gpu, kv_bytes=None, utilization=part)
    try:
        found = advised(lowered)
    except KvcalcError:
        return None
    lacks = "" if wanted is None else f", and the engine wanted {format_bytes(wanted.size_bytes)}: {format_bytes(wanted.size_bytes - free.size_bytes)} more"
    bound = f"other processes hold the GPU: {format_bytes(free.size_bytes)} of {format_bytes(total.size_bytes)} are free{lacks}"
    own = f"--utilization {part}"
    if found.fits:
        changes: tuple[Change, ...] = (_change("less of the GPU", own, found),)
    else:
        changes = tuple(change.model_copy(update={"options": f"{own} {change.options}"}) for change in found.advice if "--utilization" not in change.options)
    return Diagnosis(lowered, found, bound, changes)


def _budget_bytes(facts: LogFacts, plan: Plan) -> int | None:
    """What the cache of one GPU had, below zero where there was too little for the rest."""
    (pool,) = plan.pools
    if (logged := logged_kv(facts, plan)) is not None:
        return logged[0].likely
    if (stored := facts.last("stored_tokens")) is not None:
        return int(stored.number) // pool.unit_rows * pool.unit_bytes
    blocks = facts.least("blocks")
    return None if blocks is None else int(blocks.number) * pool.unit_bytes


def _as_budgeted(facts: LogFacts, question: Question, plan: Plan) -> Question | None:
    """The question with the KV budget of the log: all else of the GPU as predicted, and what differs kept back, so that other changes count too; or the budget
    alone, where nothing tells of the GPU.
    """
    left = _budget_bytes(facts, plan)
    total = question.gpu.memory_bytes or _total_by_terms(facts, question)
    alone = question._replace(utilization=None, weights=None, quantization=None, reserve_bytes=0)
    if total is None:
        return None if left is None else alone._replace(kv_bytes=max(0, left))
    of_gpu = question._replace(kv_bytes=None, gpu=question.gpu.model_copy(update={"memory_bytes": total, "used_bytes": None}))
    try:
        predicted = budget(of_gpu).left
    except KvcalcError:
        return None if left is None else alone._replace(kv_bytes=max(0, left))
    if left is None:
        return of_gpu
    if question.engine.part_of == "rest":
        return alone._replace(kv_bytes=max(0, left))
    return of_gpu._replace(reserve_bytes=of_gpu.reserve_bytes + predicted - left)


def _total_by_terms(facts: LogFacts, question: Question) -> int | None:
    """All memory of a GPU whose parts are logged."""
    parts = [facts.last(name) for name in ("weights", "non_torch", "activation", "available")]
    sizes = [figure.size_bytes for figure in parts if figure is not None]
    if len(sizes) < len(parts) or sum(sizes) <= 0:
        return None
    return ceil(sum(sizes) / part_taken(question, sum(sizes)))


def _least_utilization(question: Question) -> Change | None:
    """The smallest part of the GPU, in hundredths, with which it would have started."""
    total = question.gpu.memory_bytes
    if question.kv_bytes is not None or total is None or question.engine.part_of != "all":
        return None
    for percent in range(int(part_taken(question, total) * 100) + 1, FULLEST_PERCENT + 1):
        part = Decimal(percent) / 100
        try:
            found = answer(question._replace(utilization=part))
        except KvcalcError:
            return None
        if found.fits:
            return _change("more of the GPU", f"--utilization {part}", found)
    return None


def _change(text: str, options: str, found: Fit) -> Change:
    """A change that lets it start, with what then fits."""
    requests = next(row.requests for row in found.lengths if row.context == found.context)
    return Change(text=text, options=options, requests=requests, context=found.context, gpus=found.gpus)


def _bound(failure: Failure | None, found: Fit, question: Question) -> str:
    where = "by its figures alone" if failure is None else f"line {failure.line}"
    asked = question.asked
    if found.limited_by == "weights":
        lacking = format_bytes(found.lacking_bytes)
        return f"weights and what is kept beside them leave nothing for the cache ({where}): {lacking} too little for a request of {asked.context:,} tokens"
    if found.fits:
        return f"{where} says so, although by what is predicted a request of {asked.context:,} tokens fits"
    return (
        f"the KV cache ({where}): a request of {asked.context:,} tokens takes {format_bytes(found.capacity.request_bytes)}, "
        f"there are {format_bytes(found.memory.kv_bytes)}: {format_bytes(found.lacking_bytes)} too little"
    )


def failure_checks(facts: LogFacts, question: Question, plan: Plan) -> tuple[list[Check], list[Note]]:
    """A failed start: the sizes of its message, and what would have let it start."""
    checks = []
    asked, (pool,) = question.asked, plan.pools
    needed, estimated = facts.last("needed"), facts.last("estimated_length")
    length = facts.last("max_seq_len")
    tokens = asked.context if length is None else int(length.number)
    if needed is not None:
        units = plan.need(tokens)[0]
        checks.append(size_check(f"one request of {tokens:,} tokens", units * pool.unit_bytes, [needed], f"{units:,} blocks of {pool.unit_bytes:,} B"))
    logged = logged_kv(facts, plan)
    if estimated is not None and logged is not None:
        ends = [_longest(plan, size // pool.unit_bytes - plan.reserved, tokens) for size in logged[0]]
        checks.append(count_check("longest request", Span(*ends), estimated, f"from {logged[1].text} {logged[1].unit} for the KV cache"))
    try:
        found = diagnose(facts, question)
    except KvcalcError as error:
        return checks, [Note(code="changes", text=f"what would have let it start is not known: {error.message}")]
    if found is None:
        return checks, [] if facts.failure is None else [Note(code="failed", text=_undiagnosed(facts, facts.failure))]
    notes = [Note(code="failed", text=f"the server did not start: {found.bound}")]
    notes += [Note(code="change", text=_worded(change)) for change in found.changes]
    if not found.changes:
        notes.append(Note(code="changes", text="no change that was tried lets it start"))
    return checks, notes


def _longest(plan: Plan, units: int, limit: int) -> int:
    """The longest request up to `limit` tokens that so many units hold."""
    return largest(lambda tokens: plan.need(tokens)[0] <= units, limit)


def _undiagnosed(facts: LogFacts, failure: Failure) -> str:
    if facts.last(*_AFTER_PLANNING) is not None:
        return f"memory ran out (line {failure.line}) once the cache was there: more was needed beside it than was kept back; a lower --utilization leaves more"
    return f"the server did not start (line {failure.line}), and neither the log nor the question tells how much memory it had: state --gpu or --gpu-mem"


def _worded(change: Change) -> str:
    says = f"{change.options}: {change.text}" if change.options else change.text
    return f"{says}; then {change.requests:,} x {change.context:,} tokens fit"
