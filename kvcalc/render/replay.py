"""`kvcalc replay` for a reader."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, notes, with_version
from kvcalc.results.replay import Outcome, Percentiles, PrefixUse, Replay, RoutingLoss
from kvcalc.units import counted, format_bytes

HEIGHTS: Final = "\u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
DIGITS: Final = "0123456789"
"""Heights of a course where the output takes no more than ASCII."""
POLICIES: Final = {
    "paged": "blocks as it grows",
    "exact": "ahead: exact",
    "power of two": "ahead: power of 2",
    "maximum": "ahead: maximum",
}


def render_replay(result: Replay, console: Console) -> None:
    """The verdict first, then lengths, times, memory over time, prefixes, reserving ahead, and what would change. A ~ marks what rests on likely times."""
    console.print(_verdict(result), style="bold", highlight=False, markup=False)
    for line in _about(result):
        console.print(line, highlight=False, markup=False)
    for table in (_lengths(result), _times(result.outcome), _load(result)):
        console.print()
        table.print(console)
    console.print()
    console.print(_done(result), highlight=False, markup=False)
    console.print()
    for line in _course(result, console):
        console.print(line, highlight=False, markup=False, no_wrap=True)
    _rest(result, console)
    notes(console, result.notes)


def _rest(result: Replay, console: Console) -> None:
    if result.prefix is not None:
        console.print()
        for line in (*_prefix(result.prefix), *(() if result.routing is None else _routing(result.routing))):
            console.print(line, highlight=False, markup=False)
    console.print()
    console.print(_ways(result), highlight=False, markup=False)
    _policies(result).print(console)
    console.print()
    _changes(result).print(console)


def _verdict(result: Replay) -> str:
    trace, outcome = result.trace, result.outcome
    where = printable(result.model.name) if result.gpu.name is None else f"{printable(result.model.name)} on {printable(result.gpu.name)}"
    served = f"all {trace.requests:,} requests fit" if not outcome.never else f"{outcome.never:,} of {trace.requests:,} requests can never fit"
    return f"{where}: {served}; p95 wait ~{_seconds(outcome.wait_s.p95)}, KV cache {_percent(outcome.used.max)} full at its peak"


def _about(result: Replay) -> Iterator[str]:
    pool, parallel, trace = result.pool, result.parallel, result.trace
    layout = " x ".join(f"{name} {number}" for name, number in (("tp", parallel.tp), ("pp", parallel.pp), ("dp", parallel.dp)) if number > 1)
    gpus = "1 GPU" if result.gpus == 1 else f"{result.gpus} GPUs: {layout}"
    yield f"engine {with_version(result.engine, result.engine_version)}, KV dtype {result.kv_dtype}, {gpus}"
    scaled = "" if result.rate_scale == 1 else f", at {result.rate_scale:g} times its rate"
    rate = f", {trace.requests / trace.seconds:,.2f} a second" if trace.seconds else ""
    yield printable(f"trace {trace.source} ({trace.kind}): {counted(trace.requests, 'request')} in {_seconds(trace.seconds)}{rate}{scaled}")
    each = " in each replica" if parallel.dp > 1 else ""
    size = format_bytes(pool.blocks * pool.block_bytes)
    most = "" if pool.max_requests is None else f"; at most {counted(pool.max_requests, 'request')} at once"
    yield f"{counted(pool.blocks, 'block')} of {counted(pool.block_tokens, 'token')} ({size} a GPU){each}{most}, {counted(pool.batch_tokens, 'token')} a step"
    if result.outcome.never:
        yield f"the longest that never fits has {counted(result.outcome.longest_never, 'token')}; a prompt of less than {pool.limit_tokens:,} does"


def _lengths(result: Replay) -> Grid:
    table = Grid(left=["tokens"], right=["mean", "p50", "p95", "p99", "max"])
    for name, row in (("prompt", result.trace.prompt), ("answer", result.trace.output)):
        table.add(name, *(f"{number:,.0f}" for number in (row.mean, row.p50, row.p95, row.p99, row.max)))
    return table


def _times(outcome: Outcome) -> Grid:
    table = Grid(left=["seconds"], right=["mean", "p50", "p95", "p99", "max"])
    for name, row in (("wait", outcome.wait_s), ("first token", outcome.ttft_s), ("each token, wait included", outcome.per_token_s)):
        table.add(name, *(f"~{_plain(number)}" for number in _numbers(row)))
    return table


def _numbers(row: Percentiles) -> tuple[float, ...]:
    return row.mean, row.p50, row.p95, row.p99, row.max


def _load(result: Replay) -> Grid:
    outcome = result.outcome
    table = Grid(left=["over time" if result.parallel.dp == 1 else "over time, a replica"], right=["mean", "p50", "p95", "p99", "peak"])
    table.add("KV cache in use, %", *(f"~{100 * number:,.1f}" for number in _numbers(outcome.used)))
    table.add("running", f"~{outcome.running.mean:,.1f}", "", "", "", f"~{outcome.running.peak:,}")
    table.add("waiting for room", f"~{outcome.waiting.mean:,.1f}", "", "", "", f"~{outcome.waiting.peak:,}")
    return table


def _done(result: Replay) -> str:
    outcome = result.outcome
    again = f", {counted(outcome.recomputed_tokens, 'token')} computed again" if outcome.preempted else ""
    return f"~{outcome.output_tokens_s:,.0f} tokens a second until all is answered after ~{_seconds(outcome.seconds)}; ~{outcome.preempted:,} preempted{again}."


def _course(result: Replay, console: Console) -> Iterator[str]:
    """One line for each of what runs, waits and is in use, from the first request to the end of the last."""
    marks = HEIGHTS if (console.encoding or "").lower().startswith("utf") else DIGITS
    cells = max(8, min(len(result.course), min(console.width, 80) - 26))
    rows = {
        "running": [each.running for each in result.course],
        "waiting": [each.waiting for each in result.course],
        "KV in use": [each.used for each in result.course],
        "warm": [each.warm for each in result.course],
    }
    for name, values in rows.items():
        squeezed = _squeezed(values, cells)
        most = max(squeezed, default=0.0)
        said = _percent(most) if name == "KV in use" else f"~{most:,.1f}"
        if said == "~0.0":
            continue
        drawn = "".join(marks[min(len(marks) - 1, int(value / most * len(marks)))] if most else marks[0] for value in squeezed)
        yield f"{name:<9} {drawn} up to {said}"


def _squeezed(values: Sequence[float], cells: int) -> list[float]:
    """Means of equal parts, no more of them than cells."""
    if len(values) <= cells:
        return list(values)
    edges = [index * len(values) // cells for index in range(cells + 1)]
    return [sum(values[low:high]) / (high - low) for low, high in pairwise(edges)]


def _prefix(prefix: PrefixUse) -> Iterator[str]:
    yield "Hit rate of a prefix cache without end: " + _unlimited(prefix) + "." + ("" if prefix.counted else " (of the blocks that could be remembered)")
    part = f"~{_part(prefix.hit_tokens, prefix.prompt_tokens)} of the tokens of prompts"
    yield f"Hit rate here: {part}. Idle conversations in the cache: ~{prefix.warm_mean:,.1f} on average, ~{prefix.warm_end:,} in the end."


def _unlimited(prefix: PrefixUse) -> str:
    tokens = f"{_part(prefix.unlimited_tokens, prefix.prompt_tokens)} of the tokens"
    if prefix.blocks is None or prefix.unlimited_blocks is None:
        return tokens
    return f"{_part(prefix.unlimited_blocks, prefix.blocks)} of the trace's {prefix.blocks:,} blocks, {tokens}"


def _routing(loss: RoutingLoss) -> Iterator[str]:
    each = f", ~{_seconds(loss.ttft_s / loss.requests)} later its first token each" if loss.requests else ""
    came, again = counted(loss.requests, "request"), counted(loss.tokens, "token")
    yield f"Routing {loss.routing}: ~{came} came to a replica without what another had cached: ~{again} again{each}."


def _ways(result: Replay) -> str:
    longest = f"the longest request ({counted(result.pool.limit_tokens, 'token')})"
    ahead = f"in one piece ahead: for its exact length, for an answer rounded up to a power of two, for {longest}"
    return f"Memory for a request in blocks as it grows, or {ahead}; holes between the pieces are not counted."


def _policies(result: Replay) -> Grid:
    """What is used of the memory that is held, where all layers keep the same rows."""
    alike = all(row.used is not None for row in result.memory)
    parts = ["used", "later", "never", "last block"] if alike else []
    table = Grid(left=["% of memory held" if alike else "memory held"], right=[*parts, "at once", "p95 wait, s"])
    for row in result.memory:
        shares = [f"~{100 * part:.1f}" if part else "" for part in (row.used, row.later, row.never, row.last_block)] if alike else []
        if row.running.peak == 0:
            table.add(POLICIES[row.name], *("" for _ in shares), "none fits", "")
        else:
            table.add(POLICIES[row.name], *shares, f"~{row.at_once:,}", f"~{_plain(row.wait_p95_s)}")
    return table


def _changes(result: Replay) -> Grid:
    table = Grid(left=["p95 seconds, with"], right=["wait", "first token", "tokens/s", "KV peak", "preempted"])
    cached = result.prefix is not None
    if cached:
        table.right = [*table.right, "hits"]
    for row in result.what_if:
        outcome = row.outcome
        hits = [f"~{_part(row.hit_tokens, result.sample_prompt_tokens)}"] if cached else []
        table.add(
            row.options or row.text,
            f"~{_plain(outcome.wait_s.p95)}",
            f"~{_plain(outcome.ttft_s.p95)}",
            f"~{outcome.output_tokens_s:,.0f}",
            _percent(outcome.used.max),
            f"~{outcome.preempted:,}",
            *hits,
        )
    return table


def _part(number: int, whole: int) -> str:
    return f"{100 * number / whole:.1f} %" if whole else "0 %"


def _percent(part: float) -> str:
    return f"~{100 * part:.0f} %" if part >= 0.01 or part == 0 else "under 1 %"


def _plain(seconds: float) -> str:
    """Seconds in three digits or more."""
    return f"{seconds:,.0f}" if seconds >= 100 else f"{seconds:.1f}" if seconds >= 10 else f"{seconds:.2f}" if seconds >= 1 else f"{seconds:.3f}"


def _seconds(seconds: float) -> str:
    return f"{_plain(seconds)} s"
