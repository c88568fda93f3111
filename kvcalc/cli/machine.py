"""What commands about time have alike: how fast the GPU is, and how soon an answer is wanted."""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.cli.budget import SIZE, gpu_and_device
from kvcalc.cli.options import COUNT, Group, find_gpu_named, parser
from kvcalc.errors import KvcalcError
from kvcalc.units import parse_duration

if TYPE_CHECKING:
    from kvcalc.budget import Latency
    from kvcalc.engines.base import Device
    from kvcalc.machine import Machine
    from kvcalc.results.fit import GpuInfo

MOST_TFLOPS: Final = 10**6
"""A thousand times what a GPU reaches."""


def _tflops(text: str) -> Decimal:
    try:
        number = Decimal(text)
    except ArithmeticError:
        raise typer.BadParameter(f"{text[:40]!r} is not a number") from None
    if not 0 < number <= MOST_TFLOPS:
        raise typer.BadParameter(f"{text[:40]} is not above 0 and up to {MOST_TFLOPS:,}")
    return number


NUMBER: Final[dict[str, Any]] = {"parser": parser(_tflops), "metavar": "N"}
MACHINE: Final[Group] = {
    "bandwidth": (Annotated[int | None, typer.Option("--bandwidth", **SIZE, help="What the memory of one GPU moves in a second: 3350GB.")], None),
    "tflops": (Annotated[Decimal | None, typer.Option("--tflops", **NUMBER, help="Dense 16-bit TFLOP/s of one GPU.")], None),
    "link": (Annotated[int | None, typer.Option("--link", **SIZE, help="What a GPU sends to another in a second, each way: 450GB.")], None),
}
DURATION: Final[dict[str, Any]] = {"parser": parser(parse_duration), "metavar": "TIME"}
LATENCY: Final[Group] = {
    "ttft": (Annotated[int | None, typer.Option("--ttft", **DURATION, help="Only so many requests that the first token comes within this: 2s.")], None),
    "tpot": (Annotated[int | None, typer.Option("--tpot", **DURATION, help="Only so many that each further token comes within this: 50ms.")], None),
    "output": (Annotated[int | None, typer.Option("--output", "-o", **COUNT, help="With --ttft: of the context, what is generated and no prompt.")], None),
}


def machine_asked(typed: Mapping[str, Any], needed: int) -> "tuple[GpuInfo, Device | None, Machine]":
    """The GPU that is asked about, by name or that of this machine, and how fast it is, with what is stated in place of the catalogue's figures."""
    from kvcalc.results.fit import GpuInfo

    if typed["gpu"] is None and typed["gpu_mem"] is not None:
        raise typer.BadParameter("--gpu-mem tells no speed: name the GPU with --gpu")
    try:
        info, device = gpu_and_device(typed, needed)
    except KvcalcError:
        if typed["gpu"] is None:
            raise
        card = find_gpu_named(typed["gpu"])
        info, device = GpuInfo(name=card.name, memory_bytes=None), card.device()
    name = typed["gpu"] if info.name is None else info.name
    if name is None:
        raise typer.BadParameter("name the GPU with --gpu")
    return info, device, _stated(find_gpu_named(name).machine(typed["bandwidth"]), typed)


def _stated(machine: "Machine", typed: Mapping[str, Any]) -> "Machine":
    tflops, link = typed["tflops"], typed["link"]
    if tflops is not None:
        flops = int(tflops * 10**12)
        machine = machine._replace(rates=(("fp16", flops),), ceilings=(("fp16", flops),))
    if link is not None:
        machine = machine._replace(link="stated link", link_bytes_s=link, link_on_board=True)
    return machine


def latency_asked(typed: Mapping[str, Any], needed: int) -> "Latency | None":
    """How soon an answer is wanted, None where that is not said. Raises BadParameter for what then has nothing to say."""
    if typed["ttft"] is None and typed["tpot"] is None:
        given = [name for name in ("output", *MACHINE) if typed[name] is not None]
        if given:
            raise typer.BadParameter(f"--{given[0]} goes with --ttft or --tpot: `kvcalc speed` answers without")
        return None
    if typed["output"] is not None and typed["ttft"] is None:
        raise typer.BadParameter("--output goes with --ttft: it says what of the context is no prompt")
    from kvcalc.budget import Latency

    return Latency(machine_asked(typed, needed)[2], typed["ttft"], typed["tpot"], typed["output"] or 0)
