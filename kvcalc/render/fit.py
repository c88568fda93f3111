"""`kvcalc fit` for a reader."""

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, in_unit, notes, with_version
from kvcalc.results.fit import Division, Fit, Fits
from kvcalc.units import binary_unit, format_bytes


def render_fit(result: Fit, console: Console) -> None:
    """The verdict first, then memory, pool, lengths, the plain division beside it, and the command line."""
    console.print(_verdict(result), style="bold", highlight=False, markup=False)
    said = f"engine {with_version(result.engine, result.engine_version)}, KV dtype {result.kv_dtype}, read from {printable(result.model.source)}"
    console.print(said, highlight=False, markup=False)
    for text in result.advice:
        console.print(f"  {text}", highlight=False, markup=False)
    console.print()
    _memory(result).print(console)
    if not result.memory.kv_bytes:
        notes(console, result.notes)
        return
    console.print()
    _pool(result).print(console)
    console.print()
    _lengths(result).print(console)
    if result.division is not None:
        console.print()
        console.print(_division(result, result.division), highlight=False)
        if result.division.differences:
            _differences(result.division).print(console)
    for command in result.commands.values():
        console.print()
        console.print(printable(command), highlight=False, markup=False, soft_wrap=True)  # one line, to be copied
    notes(console, result.notes)


def _verdict(result: Fit) -> str:
    name, held = printable(result.model.name), next(row.requests for row in result.lengths if row.context == result.context)
    where = "" if result.parallel.dp == 1 else " in each replica"
    if result.fits:
        return f"{name}: {_requests(held)} of {result.context:,} tokens fit{'s' if held == 1 else ''}{where}"
    if result.limited_by == "weights":
        return f"{name} does not fit: its weights leave nothing for the KV cache"
    return f"{name}: {_requests(result.batch)} of {result.context:,} tokens {'does' if result.batch == 1 else 'do'} not fit{where}"


def _requests(number: int) -> str:
    return "1 request" if number == 1 else f"{number:,} requests"


def _memory(result: Fit) -> Grid:
    """The budget of one GPU; estimated figures bear a ~."""
    memory = result.memory
    total = memory.total_bytes if memory.total_bytes is not None else memory.kv_bytes
    unit = binary_unit(total)
    table = Grid(left=["one GPU"], right=["bytes", unit])
    rows = [
        ("memory" if result.gpu.name is None else result.gpu.name, memory.total_bytes, ""),
        ("the engine takes", memory.usable_bytes, ""),
        ("- weights", memory.weights_bytes, "~"),
        ("- flat reserve", memory.reserve_bytes, "~"),
        ("= KV cache" if memory.total_bytes is not None else "KV cache, as stated", memory.kv_bytes, "~" if "kv_bytes" in result.memory_range else ""),
    ]
    for what, size, mark in rows:
        if size is not None:
            table.add(printable(what), f"{mark}{size:,}", mark + in_unit(size, unit))
    return table


def _pool(result: Fit) -> Grid:
    held = result.capacity
    unit = binary_unit(held.request_bytes)
    table = Grid(left=["pool"], right=[""])
    if held.block_bytes > 1:
        table.add("blocks", f"{held.blocks:,}")
        table.add(f"one block ({held.block_tokens:,} tokens)", f"{held.block_bytes:,} B")
    table.add(f"one request of {result.context:,} tokens", f"{in_unit(held.request_bytes, unit)} {unit}")
    table.add("longest single request", f"{held.max_context:,} tokens")
    table.add(f"as {result.engine} says: requests", f"{held.requests:,.2f}")
    table.add(f"as {result.engine} says: tokens", f"{held.tokens:,}")
    return table


def _lengths(result: Fit) -> Grid:
    unit = binary_unit(max(row.request_bytes for row in result.lengths))
    table = Grid(left=[], right=["requests of", "fit", "tokens together", f"{unit}/request"])
    for row in result.lengths:
        table.add(f"{row.context:,}", f"{row.requests:,}", f"{row.tokens:,}", in_unit(row.request_bytes, unit))
    return table


def _division(result: Fit, division: Division) -> str:
    return (
        f"Free memory / (2 L H_kv d_h b) would give {division.tokens:,} tokens, {division.requests:,.2f} requests, where the engine gives "
        f"{result.capacity.tokens:,} and {result.capacity.requests:,.2f}."
    )


def _differences(division: Division) -> Grid:
    """From the formula's request to the engine's, on all GPUs of a replica."""
    unit = binary_unit(max(division.request_bytes, division.engine_request_bytes))
    table = Grid(left=["one request, all GPUs"], right=["bytes", unit])
    table.add("by the formula", f"{division.request_bytes:,}", in_unit(division.request_bytes, unit))
    for difference in division.differences:
        table.add(f"{'+' if difference.bytes > 0 else '-'} {difference.cause}", f"{difference.bytes:+,}", _signed(difference.bytes, unit))
    table.add("by the engine", f"{division.engine_request_bytes:,}", in_unit(division.engine_request_bytes, unit))
    return table


def _signed(size: int, unit: str) -> str:
    return f"{'-' if size < 0 else '+'}{format_bytes(abs(size), unit).rpartition(' ')[0]}"


def render_fits(result: Fits, console: Console) -> None:
    """One line a model."""
    table = Grid(left=["name", "fits"], right=["weights GiB", "KV GiB", "context", "requests", "longest", "lacking GiB"])
    for row in result.rows:
        held = next(each.requests for each in row.lengths if each.context == row.context)
        weights = "-" if row.memory.weights_bytes is None else f"~{in_unit(row.memory.weights_bytes, 'GiB')}"
        mark = "~" if "kv_bytes" in row.memory_range else ""
        kv, lacking = mark + in_unit(row.memory.kv_bytes, "GiB"), "" if row.fits else mark + in_unit(row.lacking_bytes, "GiB")
        longest = f"{row.capacity.max_context:,}"
        table.add(printable(row.model.name), "yes" if row.fits else "no", weights, kv, f"{row.context:,}", f"{held:,}", longest, lacking)
    table.print(console)
    console.print()
    fitting = sum(row.fits for row in result.rows)
    text = f"{fitting} of {len(result.rows)} presets fit: the largest first, then those that lack least. `kvcalc fit --model NAME` says more of each."
    console.print(text, highlight=False, markup=False)
    notes(console, result.notes)
