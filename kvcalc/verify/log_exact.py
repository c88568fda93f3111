"""What follows exactly from the memory that a start-up log names: blocks, tokens, concurrency, and the sizes of pools and caches."""

from collections.abc import Collection, Iterable, Iterator
from decimal import Decimal
from typing import Final, NamedTuple

from kvcalc.budget import Question
from kvcalc.engines.base import LayerUse, Plan
from kvcalc.results.verify import Check
from kvcalc.search import largest
from kvcalc.units import format_bytes
from kvcalc.verify.log import Figure, LogFacts, described

MOST_UNITS: Final = 1 << 44
"""Beyond any pool: where a search for its size ends."""
LARGEST_PAGE: Final = 64
"""Tokens in a page of SGLang's that a log does not tell, at most: a public log of MiMo-V2-Flash pads its pools by so many."""


class Span(NamedTuple):
    """A size as logged, and the ends between which the size lies that was printed so."""

    low: int
    likely: int
    high: int


def logged_kv(facts: LogFacts, plan: Plan) -> tuple[Span, Figure] | None:
    """Memory for the KV cache of one GPU: in bytes where they are printed, else as rounded; of all ranks the smallest."""
    exact = facts.least("in_use_bytes")
    if exact is not None:
        return Span(exact.size_bytes, exact.size_bytes, exact.size_bytes), exact
    figure = facts.least("allocated") or facts.least("available", "in_use", "kv_budget_gb")
    if figure is not None:
        half = figure.half_digit_bytes
        return Span(figure.size_bytes - half, figure.size_bytes, figure.size_bytes + half + 1), figure
    figure = facts.least("available_for_requests")
    if figure is not None:  # the message leaves out the units that no request can use (check_enough_kv_cache_memory, vllm/v1/core/kv_cache_utils.py 0.33.0)
        size, half = figure.size_bytes + plan.reserved * plan.pools[0].unit_bytes, figure.half_digit_bytes
        return Span(size - half, size, size + half + 1), figure
    return None


def cache_checks(facts: LogFacts, question: Question, plan: Plan) -> Iterator[Check]:
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
        yield count_check("block size", Span(rows, rows, rows), figure, "what the engine takes for this model and these options")


def _block_checks(facts: LogFacts, question: Question, plan: Plan) -> Iterator[Check]:
    """Blocks, concurrency and tokens of vLLM from its KV memory, else from its blocks, else from its tokens."""
    (pool,) = plan.pools
    blocks, tokens, requests = facts.least("blocks"), facts.last("tokens"), facts.last("requests")
    logged = logged_kv(facts, plan)
    length = question.asked.context
    if requests is not None and (beside := facts.beside(requests, "context")) is not None and beside.number > 0:
        length = int(beside.number)
    if logged is not None and logged[0].low > 0:
        span, figure = logged
        units = Span(*(size // pool.unit_bytes for size in span))
        basis = f"from {figure.text} {figure.unit} for the KV cache ({described(figure)}), in blocks of {pool.unit_bytes:,} B"
        if blocks is not None:
            yield count_check("blocks", units, blocks, basis)
    elif blocks is not None and blocks.number > 0:
        count = int(blocks.number)
        units, basis = Span(count, count, count), f"from {count:,} blocks ({described(blocks)})"
        yield _told("KV cache", count * pool.unit_bytes, f"{basis}: the log does not print the memory")
    elif tokens is not None and tokens.number > 0:
        count = int(tokens.number)
        short = largest(lambda number: plan.capacity(number, length).tokens < count, MOST_UNITS)
        over = largest(lambda number: plan.capacity(number, length).tokens <= count, MOST_UNITS)
        units, basis = Span(short + 1, short + 1, max(over, short + 1)), f"from {count:,} tokens ({described(tokens)})"
        yield _told("KV cache", units.likely * pool.unit_bytes, f"{basis}, in blocks of {pool.unit_bytes:,} B: the log does not print the memory")
        tokens = None if over > short else tokens
    else:
        return
    held = [plan.capacity(number, length) for number in units]
    if tokens is not None:
        yield count_check("tokens", Span(*(each.tokens for each in held)), tokens, f"{basis}, in requests of {length:,}")
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


def count_check(name: str, span: Span, figure: Figure, basis: str) -> Check:
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


def size_check(name: str, predicted: int, figures: Iterable[Figure], basis: str, slack_bytes: int = 0) -> Check:
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
        yield count_check("blocks", Span(units, units, units), blocks, f"{int(tokens.number):,} tokens in blocks of {pool.unit_rows}")
    if allocated is not None:
        yield size_check("KV cache", units * pool.unit_bytes, [allocated], f"{units:,} blocks of {pool.unit_bytes:,} B")


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
                yield size_check(f"{label} of the {name}", count * row, [size], f"{count:,} tokens of {row:,} B, and a page for padding", page)
    states, conv, recurrent = facts.last("state_slots"), facts.last("conv_size"), facts.last("state_size")
    if states is not None and conv is not None and recurrent is not None:
        slots = [use for use in plan.uses(question.asked.context) if use.kind == "state"]
        count = int(states.number) + 1
        for figure, role, name in ((conv, "conv", "convolution states"), (recurrent, "state", "recurrent states")):
            row = _row_bytes(slots, {role})
            yield size_check(name, count * row, [figure], f"{int(states.number):,} slots of {row:,} B, and one for padding")


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
    yield size_check("cache", whole, sizes, f"{tokens_of}, all slots and devices")
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
            yield size_check(label, size, found, tokens_of)
