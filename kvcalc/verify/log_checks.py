"""The figures of a start-up log beside what is predicted, and for a server that did not start what would have let it. Pure."""

from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from math import ceil
from typing import Final, NamedTuple

from kvcalc.engines import find_engine
from kvcalc.engines.base import LayerUse, Plan
from kvcalc.errors import KvcalcError
from kvcalc.fit import Question, StatedWeights, advised, answer, budget, largest
from kvcalc.layers import Note
from kvcalc.results.fit import Change, Fit, GpuInfo, Memory, Range
from kvcalc.results.verify import Check, Verified
from kvcalc.units import BINARY_UNITS, format_bytes
from kvcalc.verify.log import Failure, Figure, LogFacts, described

GIB: Final = BINARY_UNITS["GiB"]
MIB: Final = BINARY_UNITS["MiB"]
WEIGHTS_PERCENT: Final = 2
"""How far weights as engines report them lie from their tensors' bytes: buffers of the model, and what the allocator rounds (public logs)."""
MOST_UNITS: Final = 1 << 44
"""Beyond any pool: where a search for its size ends."""
LARGEST_PAGE: Final = 64
"""Tokens in a page of SGLang's that a log does not tell, at most: a public log of MiMo-V2-Flash pads its pools by so many."""
FULLEST_PERCENT: Final = 98
"""The largest part of a GPU that is proposed to an engine, in hundredths."""


def verify_log(facts: LogFacts, question: Question, *, any_release: bool = False) -> Verified:
    """Every figure that has a prediction, beside it: what follows from the logged memory exactly, and what is estimated within its range.

    `question` is the deployment that the log is of; its model should have its tensors (for the weights), and its `kv_bytes` is not read. With `any_release`, of
    a log of vLLM that prints no release the newest counts with whose rules all exact figures agree, where there is one.
    Raises KvcalcError where the engine cannot run the model so.
    """
    first = _compared(facts, question)
    if not any_release or facts.release is not None or facts.engine != "vllm" or first.agrees:
        return first.verified(facts)
    for minor in OLDER_RULES:
        older = question._replace(engine=find_engine(f"vllm@0.{minor}"))
        try:
            second = _compared(facts, older)
        except KvcalcError:
            continue  # it does not run the model so
        if second.exact and second.agrees:
            says = (
                f"the log prints no release: its figures agree with the rules of vLLM {older.engine.version}, and not with those of {question.engine.version}"
            )
            return second.verified(facts, Note(code="release", text=says))
    return first.verified(facts)


OLDER_RULES: Final = (28, 25, 20, 18, 14, 11, 9, 8, 6)
"""Minor numbers of releases of vLLM whose rules differ from those of newer ones (kvcalc/engines/vllm/versions.py)."""


class _Compared(NamedTuple):
    """Checks that are exact, those that are estimates, and what to say."""

    exact: tuple[Check, ...]
    estimated: tuple[Check, ...]
    notes: tuple[Note, ...]

    @property
    def agrees(self) -> bool:
        return all(check.ok for check in self.exact)

    def verified(self, facts: LogFacts, *more: Note) -> Verified:
        checks = (*self.exact, *self.estimated)
        alone = () if checks else (Note(code="log", text="no figure of the log has a prediction: it stands alone, or its line is cut"),)
        return Verified(checks=checks, ok=all(check.ok for check in checks), notes=(*facts.notes, *more, *self.notes, *alone))


def _compared(facts: LogFacts, question: Question) -> _Compared:
    plan = question.engine.plan(question.spec, question.options)
    notes = [*question.spec.notes, *question.notes, *plan.notes]
    if question.engine.name != facts.engine:
        notes.append(Note(code="engine", text=f"the log reads like one of {facts.engine}: its figures are compared with the rules of {question.engine.name}"))
    estimates, estimate_notes = _estimates(facts, question)
    failed, failed_notes = _failed(facts, question, plan)
    exact = (*_cache_checks(facts, question, plan), *failed)
    return _Compared(exact, tuple(estimates), (*notes, *estimate_notes, *failed_notes))


# What follows exactly from what is logged


class _Span(NamedTuple):
    """A size as logged, and the ends between which the size lies that was printed so."""

    low: int
    likely: int
    high: int


def _logged_kv(facts: LogFacts, plan: Plan) -> tuple[_Span, Figure] | None:
    """Memory for the KV cache of one GPU: in bytes where they are printed, else as rounded; of all ranks the smallest."""
    exact = facts.least("in_use_bytes")
    if exact is not None:
        return _Span(exact.size_bytes, exact.size_bytes, exact.size_bytes), exact
    figure = facts.least("allocated") or facts.least("available", "in_use", "kv_budget_gb")
    if figure is not None:
        half = figure.half_digit_bytes
        return _Span(figure.size_bytes - half, figure.size_bytes, figure.size_bytes + half + 1), figure
    figure = facts.least("available_for_requests")
    if figure is not None:  # the message leaves out the units that no request can use (check_enough_kv_cache_memory, vllm/v1/core/kv_cache_utils.py 0.33.0)
        size, half = figure.size_bytes + plan.reserved * plan.pools[0].unit_bytes, figure.half_digit_bytes
        return _Span(size - half, size, size + half + 1), figure
    return None


def _cache_checks(facts: LogFacts, question: Question, plan: Plan) -> Iterator[Check]:
    match facts.engine:
        case "vllm":
            yield from _block_size(facts, plan)
            yield from _block_checks(facts, question, plan)
        case "trtllm":
            yield from _block_size(facts, plan)
            yield from _trtllm_checks(facts, plan)
        case "sglang":
            yield from _sglang_checks(facts, question, plan)
        case "llama.cpp":
            yield from _llamacpp_checks(facts, question, plan)


def _block_size(facts: LogFacts, plan: Plan) -> Iterator[Check]:
    """Tokens of a block: the last size that is set, since hybrids enlarge it until a state fits."""
    figure = facts.last("block_tokens")
    if figure is not None:
        rows = plan.pools[0].unit_rows
        yield _count("block size", _Span(rows, rows, rows), figure, "what the engine takes for this model and these options")


def _block_checks(facts: LogFacts, question: Question, plan: Plan) -> Iterator[Check]:
    """Blocks, concurrency and tokens of vLLM from its KV memory, else from its blocks, else from its tokens."""
    (pool,) = plan.pools
    blocks, tokens, requests = facts.least("blocks"), facts.last("tokens"), facts.last("requests")
    logged = _logged_kv(facts, plan)
    length = question.asked.context
    if requests is not None and (beside := facts.beside(requests, "context")) is not None and beside.number > 0:
        length = int(beside.number)
    if logged is not None and logged[0].low > 0:
        span, figure = logged
        units = _Span(*(size // pool.unit_bytes for size in span))
        basis = f"from {figure.text} {figure.unit} for the KV cache ({described(figure)}), in blocks of {pool.unit_bytes:,} B"
        if blocks is not None:
            yield _count("blocks", units, blocks, basis)
    elif blocks is not None and blocks.number > 0:
        count = int(blocks.number)
        units, basis = _Span(count, count, count), f"from {count:,} blocks ({described(blocks)})"
        yield _told("KV cache", count * pool.unit_bytes, f"{basis}: the log does not print the memory")
    elif tokens is not None and tokens.number > 0:
        count = int(tokens.number)
        short = largest(lambda number: plan.capacity(number, length).tokens < count, MOST_UNITS)
        over = largest(lambda number: plan.capacity(number, length).tokens <= count, MOST_UNITS)
        units, basis = _Span(short + 1, short + 1, max(over, short + 1)), f"from {count:,} tokens ({described(tokens)})"
        yield _told("KV cache", units.likely * pool.unit_bytes, f"{basis}, in blocks of {pool.unit_bytes:,} B: the log does not print the memory")
        tokens = None if over > short else tokens
    else:
        return
    held = [plan.capacity(number, length) for number in units]
    if tokens is not None:
        yield _count("tokens", _Span(*(each.tokens for each in held)), tokens, f"{basis}, in requests of {length:,}")
    if requests is not None:
        low, likely, high = (Decimal(each.requests) for each in held)
        ok = low - requests.half_digit <= requests.number <= high + requests.half_digit
        says = f"requests of {length:,} tokens at once, {basis}; {low:.3f} to {high:.3f} by what its digits leave open"
        yield Check(
            name="concurrency",
            predicted=round(float(likely), 4),
            measured=float(requests.number),
            difference=round(float(requests.number - likely), 4),
            unit="x",
            ok=ok,
            explanation=says,
        )


def _count(name: str, span: _Span, figure: Figure, basis: str) -> Check:
    """A count that follows from a size as printed: exact where one count does, else within what the digits leave open."""
    measured = int(figure.number)
    between = f"{span.low:,}" if span.low == span.high else f"{span.low:,} to {span.high:,} by what its digits leave open"
    ok = span.low <= measured <= span.high
    return Check(
        name=name,
        predicted=span.likely,
        measured=measured,
        difference=measured - span.likely,
        unit=figure.unit,
        ok=ok,
        explanation=f"{described(figure)}; {basis}: {between}",
    )


def _size(name: str, predicted: int, figures: Iterable[Figure], basis: str, slack_bytes: int = 0) -> Check:
    """A size that follows exactly, against figures that are rounded each; `slack_bytes` more are explained by `basis`."""
    parts = tuple(figures)
    measured = sum(figure.size_bytes for figure in parts)
    within = sum(figure.half_digit_bytes + 1 for figure in parts)
    return Check(
        name=name,
        predicted=predicted,
        measured=measured,
        difference=measured - predicted,
        unit="bytes",
        ok=-within <= measured - predicted <= within + slack_bytes,
        explanation=f"{described(parts[-1])}; {basis}; printed to {format_bytes(2 * within)}",
    )


def _told(name: str, predicted: int, explanation: str) -> Check:
    return Check(name=name, predicted=predicted, measured=None, difference=None, unit="bytes", ok=True, explanation=explanation)


def _trtllm_checks(facts: LogFacts, plan: Plan) -> Iterator[Check]:
    """The last pool: the first one is of the profiling."""
    (pool,) = plan.pools
    tokens, blocks = facts.last("tokens"), facts.last("blocks")
    if tokens is None:
        return
    allocated = facts.beside(tokens, "allocated")
    units = int(tokens.number) // pool.unit_rows
    if blocks is not None:
        yield _count("blocks", _Span(units, units, units), blocks, f"{int(tokens.number):,} tokens in blocks of {pool.unit_rows}")
    if allocated is not None:
        yield _size("KV cache", units * pool.unit_bytes, [allocated], f"{units:,} blocks of {pool.unit_bytes:,} B")


ROLES: Final = frozenset(("k", "v", "latent", "rope", "index"))
"""Planes of rows that grow with tokens."""


def _row_bytes(uses: Iterable[LayerUse], roles: Collection[str]) -> int:
    return sum(use.layers * plane.row_bytes for use in uses for plane in use.planes if plane.plane.role in roles)


_BEHIND_WINDOWS: Final = ("sliding", "chunked")


def _sglang_checks(facts: LogFacts, question: Question, plan: Plan) -> Iterator[Check]:
    """K and V of each pool by its tokens. A pool has a page more than it says, which absorbs padding."""
    from kvcalc.engines.sglang import SglangPlan  # other logs do without

    uses = [use for use in plan.uses(question.asked.context) if use.cache is not None and use.kind != "state"]
    windows = [use for use in uses if use.kind in _BEHIND_WINDOWS]
    full = [use for use in uses if use.kind not in _BEHIND_WINDOWS]
    pools = facts.all("pool_tokens")
    whole = facts.last("full_tokens") or facts.last("tokens")
    for number, tokens in enumerate(figure for figure in pools if figure.rank == pools[0].rank):
        of_full = whole is not None and tokens.number == whole.number
        of_windows = bool(windows) and not of_full and (whole is not None or number == 0 or not full)
        kept, name = (windows, "pool for windows") if of_windows else (full or windows, "pool")
        count = int(tokens.number)
        for size_name, label, roles in (
            ("k_size", "K", ROLES - {"v"}),
            ("v_size", "V", {"v"}),
            ("kv_size", "KV", ROLES),
        ):
            size = facts.beside(tokens, size_name)
            if size is not None:
                row = _row_bytes(kept, roles)
                page = row * max(LARGEST_PAGE, plan.page if isinstance(plan, SglangPlan) else 1)
                yield _size(f"{label} of the {name}", count * row, [size], f"{count:,} tokens of {row:,} B, and a page for padding", page)
    states, conv, recurrent = facts.last("state_slots"), facts.last("conv_size"), facts.last("state_size")
    if states is not None and conv is not None and recurrent is not None:
        slots = [use for use in plan.uses(question.asked.context) if use.kind == "state"]
        count = int(states.number) + 1
        for figure, role, name in ((conv, "conv", "convolution states"), (recurrent, "state", "recurrent states")):
            row = _row_bytes(slots, {role})
            yield _size(name, count * row, [figure], f"{int(states.number):,} slots of {row:,} B, and one for padding")


def _llamacpp_checks(facts: LogFacts, question: Question, plan: Plan) -> Iterator[Check]:
    """The cache of the last context that the log tells of: a first one may be a trial that allocates nothing (--fit)."""
    cells, cached = facts.last("cells"), facts.last("context")
    tokens = question.asked.context
    begins = 0 if cached is None else cached.line
    sizes = [figure for figure in facts.all("kv_size_mib", "states_size_mib") if figure.line >= begins] or list(facts.all("kv_size_mib")[-1:])
    if not sizes:
        return
    tokens_of = f"-c {tokens:,}" if cells is None else f"-c {tokens:,} ({int(cells.number):,} cells logged)"
    whole = plan.total_bytes(tokens, 1)
    yield _size("cache", whole, sizes, f"{tokens_of}, all slots and devices")
    if question.options.gpus > 1:
        return
    uses = plan.uses(tokens)
    for name, label, roles in (
        ("k_size_mib", "K", ("k", "latent", "rope", "index")),
        ("v_size_mib", "V", ("v",)),
        ("r_size_mib", "R", ("conv",)),
        ("s_size_mib", "S", ("state",)),
    ):
        found = [figure for figure in facts.all(name) if figure.line >= begins]
        size = sum(use.rows * use.layers * plane.row_bytes for use in uses for plane in use.planes if plane.plane.role in roles)
        if found and size:
            yield _size(label, size, found, tokens_of)


# What is estimated


def _estimates(facts: LogFacts, question: Question) -> tuple[list[Check], list[Note]]:
    """Weights, what is kept beside them, and what they leave, each within its range."""
    of_gpu = question._replace(kv_bytes=None)
    known = question.gpu.memory_bytes is not None
    if not known:  # the terms do not need it: only what they leave does
        of_gpu = of_gpu._replace(gpu=GpuInfo(name=question.gpu.name, memory_bytes=MOST_UNITS))
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


# Servers that did not start


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
    held = next(row.requests for row in found.lengths if row.context == found.context)
    text = f"end what else runs on the GPU and holds {format_bytes(others)} of it ({described(figure)}: {figure.text} GiB outside of the allocator)"
    return Change(text=text, options="", requests=held, context=found.context, gpus=found.gpus)


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
        held = next(row.requests for row in found.lengths if row.context == found.context)
        changes: tuple[Change, ...] = (Change(text="less of the GPU", options=own, requests=held, context=found.context, gpus=found.gpus),)
    else:
        changes = tuple(change.model_copy(update={"options": f"{own} {change.options}"}) for change in found.advice if "--utilization" not in change.options)
    return Diagnosis(lowered, found, bound, changes)


def _budget_bytes(facts: LogFacts, plan: Plan) -> int | None:
    """What the cache of one GPU had, below zero where there was too little for the rest."""
    (pool,) = plan.pools
    if (logged := _logged_kv(facts, plan)) is not None:
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
    part = question.engine.utilization(question.spec, question.options, sum(sizes)) if question.utilization is None else question.utilization
    return ceil(sum(sizes) / part)


def _least_utilization(question: Question) -> Change | None:
    """The smallest part of the GPU, in hundredths, with which it would have started."""
    total = question.gpu.memory_bytes
    if question.kv_bytes is not None or total is None or question.engine.part_of != "all":
        return None
    now = question.engine.utilization(question.spec, question.options, total) if question.utilization is None else question.utilization
    for percent in range(int(now * 100) + 1, FULLEST_PERCENT + 1):
        part = Decimal(percent) / 100
        try:
            found = answer(question._replace(utilization=part))
        except KvcalcError:
            return None
        if found.fits:
            held = next(row.requests for row in found.lengths if row.context == found.context)
            return Change(text="more of the GPU", options=f"--utilization {part}", requests=held, context=found.context, gpus=found.gpus)
    return None


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


def _failed(facts: LogFacts, question: Question, plan: Plan) -> tuple[list[Check], list[Note]]:
    """A failed start: the sizes of its message, and what would have let it start."""
    checks = []
    asked, (pool,) = question.asked, plan.pools
    needed, estimated = facts.last("needed"), facts.last("estimated_length")
    length = facts.last("max_seq_len")
    tokens = asked.context if length is None else int(length.number)
    if needed is not None:
        units = plan.need(tokens)[0]
        checks.append(_size(f"one request of {tokens:,} tokens", units * pool.unit_bytes, [needed], f"{units:,} blocks of {pool.unit_bytes:,} B"))
    logged = _logged_kv(facts, plan)
    if estimated is not None and logged is not None:
        ends = [_longest(plan, size // pool.unit_bytes - plan.reserved, tokens) for size in logged[0]]
        checks.append(_count("longest request", _Span(*ends), estimated, f"from {logged[1].text} {logged[1].unit} for the KV cache"))
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
