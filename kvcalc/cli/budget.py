"""What commands about a budget have alike: the memory of the GPUs, and what is taken from it."""

from collections.abc import Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.cli.options import COUNT, OWNERS, PART, Group, find_gpu_named, parser
from kvcalc.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from kvcalc.budget import StatedWeights
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.engines.base import Device, Options
    from kvcalc.layers import Note
    from kvcalc.quantizations import Named
    from kvcalc.results.fit import GpuInfo

SIZE: Final[dict[str, Any]] = {"parser": parser(parse_bytes), "metavar": "SIZE"}


def complete_quantization(incomplete: str) -> list[str]:
    from kvcalc.quantizations import BY_NAME

    return [name for name in BY_NAME if name.startswith(incomplete.lower())]


BUDGET: Final[Group] = {
    "gpu_mem": (Annotated[int | None, typer.Option("--gpu-mem", **SIZE, help="All memory of one GPU, as the runtime reports it: 80GiB, 79.2GiB.")], None),
    "kv_mem": (
        Annotated[
            int | None,
            typer.Option("--kv-mem", "--kv-cache-memory-bytes", **SIZE, help="The KV budget of one GPU itself: weights and overheads are skipped."),
        ],
        None,
    ),
    "utilization": (
        Annotated[Decimal | None, typer.Option("--utilization", "--gpu-memory-utilization", **PART, help="Of the memory, what the engine takes.")],
        None,
    ),
    "mem_fraction_static": (Annotated[Decimal | None, typer.Option("--mem-fraction-static", **PART, help="The same as SGLang calls it.")], None),
    "quantization": (
        Annotated[
            str | None,
            typer.Option(
                "--quantization",
                metavar="NAME",
                help="How the weights are stored, where the config does not say: awq, fp8, nvfp4, ...",
                autocompletion=complete_quantization,
            ),
        ],
        None,
    ),
    "reserve": (Annotated[int, typer.Option("--reserve", **SIZE, show_default="none", help="Memory of each GPU to keep back.")], 0),
    "gpus": (Annotated[int | None, typer.Option("--gpus", **COUNT, help="GPUs in all; given alone, they share the heads.")], None),
    "expert_parallel": (Annotated[bool, typer.Option("--ep", "--enable-expert-parallel", help="Experts are dealt out whole to the GPUs.")], False),
    "max_loras": (Annotated[int, typer.Option("--max-loras", min=0, max=1000, metavar="N", help="LoRA adapters kept on the GPU.")], 0),
    "max_lora_rank": (Annotated[int, typer.Option("--max-lora-rank", min=1, max=4096, metavar="N", help="The highest rank among them.")], 16),
    "language_model_only": (Annotated[bool, typer.Option("--language-model-only", help="As vLLM's own switch: no vision or audio towers.")], False),
}


def with_budget(options: "Options", typed: Mapping[str, Any]) -> "Options":
    """The same with what only a budget is about."""
    return options._replace(
        expert_parallel=typed["expert_parallel"],
        towers=not typed["language_model_only"],
        max_loras=typed["max_loras"],
        max_lora_rank=typed["max_lora_rank"],
    )


def utilization_of(typed: Mapping[str, Any], engine: str) -> Decimal | None:
    """The part of the memory that the engine is told to take."""
    static: Decimal | None = typed["mem_fraction_static"]
    stated: Decimal | None = typed["utilization"]
    if static is not None and stated is not None:
        raise typer.BadParameter("--mem-fraction-static is what SGLang calls --utilization: give one of them")
    return static if static is not None and engine in OWNERS["mem_fraction_static"] else stated


def gpu_and_device(typed: Mapping[str, Any], needed: int) -> "tuple[GpuInfo, Device | None]":
    """The GPU that is asked about: named, described by its memory alone, or where nothing is said those of this machine."""
    from kvcalc.engines.base import Device
    from kvcalc.results.fit import GpuInfo

    gpu, gpu_mem, kv_mem = typed["gpu"], typed["gpu_mem"], typed["kv_mem"]
    if gpu is None and gpu_mem is None and kv_mem is None:
        from kvcalc.gpus import gpus_here

        return gpus_here(needed)
    if gpu is None:
        device = None if gpu_mem is None else Device(f"a GPU of {format_bytes(gpu_mem)}", None, (gpu_mem,))
        return GpuInfo(name=None, memory_bytes=gpu_mem), device
    card = find_gpu_named(gpu)
    memory_bytes, memory_by = (gpu_mem, None) if gpu_mem is not None or kv_mem is not None else card.memory()
    return GpuInfo(name=card.name, memory_bytes=memory_bytes, memory_by=memory_by), card.device(gpu_mem)


def deployed_gpus(typed: Mapping[str, Any], tp: int) -> int:
    """GPUs in all, of which `tp` share the heads."""
    return int(tp * typed["pp"] * (1 if typed["enable_dp_attention"] else typed["dp"]))


def shared_heads(typed: Mapping[str, Any]) -> int:
    """GPUs that share the heads: as many as there are where nothing is said of how they share the work."""
    gpus, tp, pp, dp = typed["gpus"], typed["tp"], typed["pp"], typed["dp"]
    needed = deployed_gpus(typed, tp)
    if gpus is None or gpus == needed:
        return int(tp)
    if (tp, pp, dp) == (1, 1, 1):
        return int(gpus)
    replicas = "" if typed["enable_dp_attention"] else f" x --dp {dp}"
    raise typer.BadParameter(f"--gpus {gpus} are not --tp {tp} x --pp {pp}{replicas} = {needed}")


def quantization_named(name: str | None) -> "Named | None":
    """How weights are stored, by its name. Raises BadParameter for one that is not known."""
    if name is None:
        return None
    from kvcalc.quantizations import BY_NAME

    try:
        return BY_NAME[name.strip().lower()]
    except KeyError:
        raise typer.BadParameter(f"--quantization {name[:40]!r} is not known; known: {', '.join(BY_NAME)}") from None


def checkpoint_of(found: "FoundModel", *, named: bool) -> "tuple[StatedWeights | None, tuple[Note, ...]]":
    """The size of the weights from the checkpoint beside the config; None leaves it to the tensors, as a quantization that is `named` does."""
    from kvcalc.budget import StatedWeights
    from kvcalc.catalog import find_checkpoint

    if named:
        return None, ()
    checkpoint, notes = find_checkpoint(found)
    return (None if checkpoint is None else StatedWeights(checkpoint.size_bytes, "checkpoint", checkpoint.source)), notes
