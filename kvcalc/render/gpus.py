"""`kvcalc gpus` for a reader."""

from rich.console import Console

from kvcalc.render.style import Grid, in_unit
from kvcalc.results.gpus import Gpus


def render_gpus(result: Gpus, console: Console) -> None:
    """One line a card, each column in one unit."""
    table = Grid(left=["name", "kind"], right=["CC", "GiB", "sold GB", "GB/s", "fp16", "fp8", "fp4"])
    for row in result.gpus:
        memory = "-" if row.memory_bytes is None else in_unit(row.memory_bytes, "GiB")
        rates = (_whole(rate, 10**12) for rate in (row.fp16_flops, row.fp8_flops, row.fp4_flops))
        table.add(row.name, row.kind, row.capability or "-", memory, _whole(row.sold_bytes, 10**9), _whole(row.bandwidth_bytes_s, 10**9), *rates)
    table.print(console)
    console.print()
    text = f"{len(result.gpus)} GPUs. GiB: all memory as the runtime reports it; GB: as sold. fp16, fp8, fp4: dense TFLOP/s. -: not known."
    console.print(text, highlight=False)


def _whole(number: int | None, unit: int) -> str:
    if number is None:
        return "-"
    return f"{(2 * number + unit) // (2 * unit):,}" if number >= unit else "< 1"
