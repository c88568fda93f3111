"""`kvcalc fit` for a reader."""

from typing import Final

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.plot import draw_bar
from kvcalc.render.style import Grid, in_unit, milliseconds, notes, signed, with_version
from kvcalc.results.fit import Division, Figures, Fit, Fits, LatencyInfo
from kvcalc.results.plot import memory_chart
from kvcalc.units import binary_unit, counted


def render_fit(result: Fit, console: Console) -> None:
    """The verdict first, then the budget, pool, lengths, the plain division beside it, and the command line."""
    console.print(verdict(result), style="bold", highlight=False, markup=False)
    console.print(source_line(result), highlight=False, markup=False)
    if result.gpus > 1:
        console.print(layout_line(result), highlight=False, markup=False)
    console.print()
    bar = memory_chart(result)
    if bar is not None:
        draw_bar(bar, console)
    memory_grid(result).print(console)
    if result.advice:
        console.print()
        changes_grid(result).print(console)
    if not result.memory.kv_bytes:
        notes(console, result.notes)
        return
    console.print()
    pool_grid(result).print(console)
    for grid in workload_grids(result):
        console.print()
        grid.print(console)
    if result.latency is not None:
        console.print()
        latency_grid(result.latency).print(console)
        console.print(latency_line(result, result.latency), highlight=False, markup=False)
    console.print()
    lengths_grid(result).print(console)
    if result.division is not None:
        _print_division(result, result.division, console)
    for command in result.commands.values():
        console.print()
        for line in command.splitlines():
            indent = " " * (len(line) - len(line.lstrip(" ")))
            console.print(indent + printable(line), highlight=False, markup=False, soft_wrap=True)  # as it is, to be copied
    notes(console, result.notes)


def fits_cell(row: Figures) -> str:
    """Yes, what one GPU lacks in GiB, or that it holds them all and serves them too late."""
    if row.fits:
        return "yes"
    mark = "~" if "kv_bytes" in row.memory_range else ""
    return f"{mark}-{in_unit(row.lacking_bytes, 'GiB')}" if row.lacking_bytes else "too late"


def divides(result: Fit) -> bool:
    """Whether tokens by the plain formula mean anything: not where slots share one cache, or time binds."""
    return result.capacity.slots is None and result.limited_by not in IN_TIME


def _print_division(result: Fit, division: Division, console: Console) -> None:
    """Tokens by the plain formula, and where one request differs from it."""
    if divides(result):
        console.print()
        console.print(division_line(result, division), highlight=False)
    if division.differences:
        if not divides(result):
            console.print()
        differences_grid(division).print(console)


def source_line(result: Fit) -> str:
    """Whose rules, which KV dtype, where the model was read."""
    return f"engine {with_version(result.engine, result.engine_version)}, KV dtype {result.kv_dtype}, read from {printable(result.model.source)}"


def layout_line(result: Fit) -> str:
    """How several GPUs share the work."""
    parallel = result.parallel
    parts = [f"{name} {number}" for name, number in (("tp", parallel.tp), ("pp", parallel.pp), ("dp", parallel.dp)) if number > 1]
    text = f"{result.gpus} GPUs: {' x '.join(parts)}"
    return text if parallel.dp == 1 else f"{text}; the figures below are of one replica unless they say all"


def changes_grid(result: Fit) -> Grid:
    """What would make it fit, each with what a replica holds then."""
    table = Grid(left=["it would fit with"], right=["GPUs", "requests", "of tokens"])
    for change in result.advice:
        table.add(change.options, f"{change.gpus}", f"{change.requests:,}", f"{change.context:,}")
    return table


def verdict(result: Fit) -> str:
    """Whether it fits, and how much, in one line."""
    name, held = printable(result.model.name), result.held
    where = "" if result.parallel.dp == 1 else " in each replica"
    if result.fits and result.capacity.slots is not None:
        slots = result.capacity.slots
        return f"{name}: {counted(slots, 'slot')} with {counted(result.capacity.tokens, 'token')} together fit{'s' if slots == 1 else ''}{where}"
    of = f"of {counted(result.context, 'token')}" if result.mix is None else f"of mixed lengths up to {counted(result.mix.max_tokens, 'token')}"
    if result.fits:
        return f"{name}: {counted(held, 'request')} {of} fit{'s' if held == 1 else ''}{where}"
    if result.latency is not None and not result.lacking_bytes:
        return f"{name}: {counted(result.batch, 'request')} {of} {'is' if result.batch == 1 else 'are'} not served in time{where}"
    if result.limited_by == "weights":
        return f"{name} does not fit: {_over(result)}"
    return f"{name}: {counted(result.batch, 'request')} {of} {'does' if result.batch == 1 else 'do'} not fit{where}"


def _over(result: Fit) -> str:
    """By how much the weights, and what stands beside them, are more than the engine takes."""
    memory = result.memory
    unit = binary_unit(memory.total_bytes or 1)
    weights, usable = memory.weights_bytes or 0, memory.usable_bytes or 0
    if weights > usable:
        return f"its weights on one GPU, {in_unit(weights, unit)} {unit}, are {in_unit(weights - usable, unit)} {unit} more than the engine takes"
    return "its weights and what the engine keeps beside them leave nothing for the KV cache"


def memory_grid(result: Fit) -> Grid:
    """The budget of one GPU; estimated figures bear a ~ and the range that they lie in."""
    memory = result.memory
    total = memory.total_bytes if memory.total_bytes is not None else memory.kv_bytes
    unit = binary_unit(total)
    table = Grid(left=["one GPU"], right=["bytes", unit, "low", "high"])
    rows = [
        ("memory" if result.gpu.name is None else result.gpu.name, "total_bytes", memory.total_bytes),
        ("the engine takes", "usable_bytes", memory.usable_bytes),
        ("- weights", "weights_bytes", memory.weights_bytes),
        ("    of these drafts", "draft_bytes", memory.draft_bytes or None),
        ("    of these adapters", "lora_bytes", memory.lora_bytes or None),
        ("- activations", "activation_bytes", memory.activation_bytes or None),
        ("- CUDA graphs", "graph_bytes", memory.graph_bytes or None),
        ("- runtime", "runtime_bytes", memory.runtime_bytes or None),
        ("- kept back", "reserve_bytes", memory.reserve_bytes or None),
        ("= KV cache" if memory.total_bytes is not None else "KV cache, as stated", "kv_bytes", memory.kv_bytes),
    ]
    for what, field, size in rows:
        if size is None:
            continue
        bounds = result.memory_range.get(field)
        mark = "" if bounds is None else "~"
        low, high = ("", "") if bounds is None else (in_unit(bounds.low, unit), in_unit(bounds.high, unit))
        table.add(printable(what), f"{mark}{size:,}", mark + in_unit(size, unit), low, high)
    return table


def pool_grid(result: Fit) -> Grid:
    """What is handed out, and what that holds."""
    held = result.capacity
    unit = binary_unit(held.request_bytes)
    table = Grid(left=["pool"], right=[""])
    if held.block_bytes > 1:
        table.add("blocks", f"{held.blocks:,}")
        table.add(f"one block ({counted(held.block_tokens, 'token')})", f"{held.block_bytes:,} B")
    whole = "one request" if held.slots is None else "the cache"
    table.add(f"{whole} of {counted(result.context, 'token')}", f"{in_unit(held.request_bytes, unit)} {unit}")
    table.add("longest single request" if held.slots is None else "largest context", counted(held.max_context, "token"))
    if result.mix is not None:
        table.add(f"requests of mixed lengths, {result.mix.safe_percent} of 100", f"{result.held:,}")
    elif result.limited_by in IN_TIME:
        table.add("in time: requests", f"~{held.requests:,.0f}")
        table.add("in time: tokens", f"~{held.tokens:,}")
    else:
        table.add(f"as {result.engine} says: requests", f"{held.requests:,.2f}")
        table.add(f"as {result.engine} says: tokens", f"{held.tokens:,}")
    if "kv_bytes" in result.memory_range or result.latency is not None:
        table.add("whole requests, low to high", f"{result.capacity_range.low:,} to {result.capacity_range.high:,}")
    if result.parallel.dp > 1:
        table.add(f"all {result.parallel.dp} replicas: requests", f"{result.totals.requests:,}")
        table.add(f"all {result.parallel.dp} replicas: tokens", f"{result.totals.tokens:,}")
    return table


def workload_grids(result: Fit) -> list[Grid]:
    """What requests hold once for all of them, and what fits of mixed lengths."""
    grids = []
    if (shared := result.shared) is not None:
        unit = binary_unit(max(shared.own_bytes, 1))
        grid = Grid(left=["the same in all requests"], right=["tokens", unit])
        grid.add("prefix, as stated", f"{shared.tokens:,}", "")
        grid.add(f"held once, whole blocks of {shared.block_tokens:,}", f"{shared.held_tokens:,}", in_unit(shared.once_bytes, unit))
        grid.add("each request's own", f"{result.context - shared.held_tokens:,}", in_unit(shared.own_bytes, unit))
        grids.append(grid)
    if (mix := result.mix) is not None:
        lengths = Grid(left=["lengths"], right=["requests", "mean", "p50", "p95", "p99", "longest"])
        figures = (mix.p50_tokens, mix.p95_tokens, mix.p99_tokens, mix.max_tokens)
        lengths.add(printable(mix.source), f"{mix.requests:,}", f"{mix.mean_tokens:,.0f}", *(f"{tokens:,}" for tokens in figures))
        fits = Grid(left=["at once"], right=["requests"])
        fits.add("in the mean", f"{mix.mean_requests:,.1f}")
        fits.add(f"in {mix.safe_percent} of 100 draws", f"{mix.safe_requests:,}")
        fits.add(f"all of {counted(result.context, 'token')}", f"{mix.longest_requests:,}")
        grids += [lengths, fits]
    return grids


IN_TIME: Final = ("ttft", "tpot")
"""What binds where memory would hold more."""


def latency_grid(latency: LatencyInfo) -> Grid:
    """What was asked for, and how long it takes with as many requests as are served in time."""
    table = Grid(left=["milliseconds"], right=["at most", "likely", "low", "high"])
    for name, limit, seconds in (("first token", latency.ttft_limit_s, latency.ttft), ("each token", latency.tpot_limit_s, latency.tpot)):
        if seconds is not None:
            asked = "" if limit is None else milliseconds(limit)
            table.add(name, asked, f"~{milliseconds(seconds.likely)}", milliseconds(seconds.low), milliseconds(seconds.high))
    return table


def latency_line(result: Fit, latency: LatencyInfo) -> str:
    """Which of memory and time binds."""
    served = f"~{latency.requests:,} requests are served in time ({latency.requests_range.low:,} to {latency.requests_range.high:,})"
    binding = {"ttft": "The time to the first token binds", "tpot": "The time for each token binds"}.get(result.limited_by, "Memory binds")
    return f"{binding}: {served}, memory holds {latency.memory_requests:,}."


def lengths_grid(result: Fit) -> Grid:
    """What fits at other lengths of request."""
    unit = binary_unit(max(row.request_bytes for row in result.lengths))
    heads = ["requests of", "fit", "tokens together", f"{unit}/request"] if result.capacity.slots is None else ["context", "slots", "tokens together", unit]
    table = Grid(left=[], right=heads)
    for row in result.lengths:
        table.add(f"{row.context:,}", f"{row.requests:,}", f"{row.tokens:,}", in_unit(row.request_bytes, unit))
    return table


def division_line(result: Fit, division: Division) -> str:
    """The plain division beside the engine's answer."""
    return (
        f"Free memory / (2 L H_kv d_h b) would give {division.tokens:,} tokens, {division.requests:,.2f} requests, where the engine gives "
        f"{result.capacity.tokens:,} and {result.capacity.requests:,.2f}."
    )


def differences_grid(division: Division) -> Grid:
    """From the formula's request to the engine's, on all GPUs of a replica."""
    unit = binary_unit(max(division.request_bytes, division.engine_request_bytes))
    table = Grid(left=["one request, all GPUs"], right=["bytes", unit])
    table.add("by the formula", f"{division.request_bytes:,}", in_unit(division.request_bytes, unit))
    for difference in division.differences:
        table.add(f"{'+' if difference.bytes > 0 else '-'} {difference.cause}", signed(difference.bytes, "B"), signed(difference.bytes, unit))
    table.add("by the engine", f"{division.engine_request_bytes:,}", in_unit(division.engine_request_bytes, unit))
    return table


def render_fits(result: Fits, console: Console) -> None:
    """One line a model; sizes in GiB of one GPU, a ~ before those that are estimated, a - before what is lacking."""
    contexts = {row.context for row in result.rows}
    asked = f"{max(contexts):,} tokens, or the model's own maximum" if len(contexts) > 1 else counted(contexts.pop(), "token")
    console.print(f"Requests of {asked}; sizes in GiB on one GPU.", highlight=False, markup=False)
    table = Grid(left=["name"], right=["fits", "weights", "KV", "requests", "longest"])
    for row in result.rows:
        weights = "" if row.memory.weights_bytes is None else in_unit(row.memory.weights_bytes, "GiB")
        kv = ("~" if "kv_bytes" in row.memory_range else "") + in_unit(row.memory.kv_bytes, "GiB")
        table.add(printable(row.model.name), fits_cell(row), weights, kv, f"{row.held:,}", f"{row.capacity.max_context:,}")
    table.print(console)
    console.print()
    fitting = sum(row.fits for row in result.rows)
    text = f"{fitting} of {len(result.rows)} presets fit: the largest first, then those that lack least. `kvcalc fit --model NAME` says more of each."
    console.print(text, highlight=False, markup=False)
    notes(console, result.notes)
