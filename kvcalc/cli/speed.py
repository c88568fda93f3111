"""`kvcalc speed`."""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.cli.budget import BUDGET, SIZE, checkpoint_of, deployed_gpus, gpu_and_device, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.cli.options import (
    DEPLOYMENT,
    MODEL,
    Batch,
    Context,
    EngineName,
    Group,
    Json,
    check_owned,
    find_gpu_named,
    find_model,
    options_of,
    parser,
    with_options,
)
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
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


@with_options(MODEL, BUDGET, DEPLOYMENT, MACHINE)
def speed(
    call: typer.Context,
    context: Context = None,
    batch: Batch = 1,
    output: Annotated[int, typer.Option("--output", "-o", min=0, metavar="N", help="Of the context, tokens that a request generates.")] = 0,
    engine: EngineName = "vllm",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Beside it: generating while the whole sequence is computed again at each step.")] = False,
    as_json: Json = False,
) -> None:
    """Prefill and decode: time to first token, time a token, which of compute and bandwidth binds, and what doubles with the context."""
    from kvcalc.engines import find_engine
    from kvcalc.fit import Asked, Question
    from kvcalc.speed import SpeedQuestion
    from kvcalc.speed import speed as compute

    rules, typed = find_engine(engine), call.params
    check_owned(typed, (rules.name,))
    tp = shared_heads(typed)
    info, device, machine = machine_asked(typed, deployed_gpus(typed, tp))
    memory = None if info.memory_bytes is None else info.memory_bytes * tp * typed["pp"]
    found, length = find_model(typed, context, rules.name, memory)
    named = quantization_named(typed["quantization"])
    stated, notes = checkpoint_of(found, named=named is not None)
    question = Question(
        found.weighed(),
        rules,
        with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed),
        Asked(found.name, found.source, found.served_as, length, batch),
        info,
        kv_bytes=typed["kv_mem"],
        utilization=utilization_of(typed, rules.name),
        weights=stated,
        quantization=named,
        reserve_bytes=typed["reserve"],
        notes=notes,
    )
    result = compute(SpeedQuestion(question, machine, output, no_cache))
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.speed import render_speed
        from kvcalc.render.style import console_for_stdout

        render_speed(result, console_for_stdout())


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
