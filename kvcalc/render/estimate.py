"""`kvcalc estimate` for a reader."""

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, in_unit, notes, with_version
from kvcalc.results.estimate import Estimate, LayerRow
from kvcalc.units import binary_unit, counted, format_bytes, format_ratio


def render_estimate(result: Estimate, console: Console) -> None:
    """Total first, then how it comes about."""
    if result.slots is None:
        for_whom = f"{counted(result.batch, 'request')} of {counted(result.context, 'token')}"
    else:
        for_whom = f"{counted(result.slots, 'slot')} at a context of {result.context:,}"
    total = f"{printable(result.model.name)}: {format_bytes(result.total_bytes)} of KV cache for {for_whom}"
    console.print(total, style="bold", highlight=False, markup=False)
    console.print(
        f"engine {with_version(result.engine, result.engine_version)}, KV dtype {result.kv_dtype}, read from {printable(result.model.source)}",
        highlight=False,
        markup=False,
    )
    console.print()
    _sizes(result).print(console)
    console.print()
    console.print(_formula(result), highlight=False)
    console.print(f"  = {result.formula} = {result.bytes_per_gpu:,} B", highlight=False, soft_wrap=True)  # one line, to be copied
    console.print()
    _layers(result).print(console)
    saving = _saving(result)
    if saving:
        console.print()
        console.print(saving, highlight=False)
    notes(console, result.notes)


def _sizes(result: Estimate) -> Grid:
    rows = [("one more token", result.token_bytes), ("one request" if result.slots is None else "the cache of all slots", result.request_bytes)]
    if result.fixed_bytes:
        rows.insert(1, ("fixed part of a request", result.fixed_bytes))
    if result.batch > 1 and result.slots is None:
        rows.append((f"{result.batch:,} requests", result.bytes_per_gpu))
    unit = binary_unit(result.bytes_per_gpu)
    gpus = result.parallel.tp * result.parallel.pp * result.parallel.dp
    if gpus > 1:
        rows = [(f"{what}, on the fullest GPU", size) for what, size in rows]
        rows.append((f"all {gpus} GPUs", result.total_bytes))
        unit = binary_unit(result.total_bytes)
    table = Grid(left=[""], right=["bytes", unit])
    for what, size in rows:
        table.add(what, f"{size:,}", in_unit(size, unit))
    return table


def _formula(result: Estimate) -> str:
    """What the line with the numbers means."""
    if result.in_blocks:
        return "M = blocks x bytes a block x B" + ("" if result.parallel.tp * result.parallel.pp == 1 else ", on the fullest GPU")
    if result.plain_formula_bytes == result.bytes_per_gpu and len(result.layers) == 1:
        return "M = 2 L n H_kv d_h b B"
    where = "" if result.parallel.tp * result.parallel.pp == 1 else ", on the fullest GPU"
    return f"M = sum over layers of rows x bytes a row, x B{where}"


def _layers(result: Estimate) -> Grid:
    unit = binary_unit(result.request_bytes)
    table = Grid(left=["layers"], right=["count", "KV heads", "K dim", "V dim", "rows", f"{unit}/request", "share"])
    for row in result.layers:
        share = "" if not result.request_bytes else f"{(1000 * row.bytes // result.request_bytes + 5) // 10} %"
        table.add(_kind(row), f"{row.count:,}", _cell(row.kv_heads), _cell(row.k_dim), _cell(row.v_dim), f"{row.rows:,}", in_unit(row.bytes, unit), share)
    return table


def _kind(row: LayerRow) -> str:
    if row.kind == "state":
        return f"state ({row.kernel})"
    return row.kind if row.window is None else f"{row.kind} {row.window:,}"


def _cell(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _saving(result: Estimate) -> str:
    saved = result.per_query_head
    if result.engine_version is not None or saved is None or not saved.attention_bytes or saved.expanded_bytes <= saved.attention_bytes:
        return ""
    factor = format_ratio(saved.expanded_bytes, saved.attention_bytes)
    return f"{factor} smaller than with K and V for each of the {saved.query_heads} query heads ({format_bytes(saved.expanded_bytes)})."
