"""The memory of the GPUs, and what is taken from it."""

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from kvcalc.asking.deployment import OWNERS, Typed, check_together, find_gpu_named, options_of, wrong
from kvcalc.units import format_bytes

if TYPE_CHECKING:
    from kvcalc.budget import Question, StatedWeights
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.engines.base import Device, Engine, Options
    from kvcalc.layers import Note
    from kvcalc.quantizations import Named
    from kvcalc.results.fit import GpuInfo

MOST_LORAS: Final = 1000
"""More adapters than a server is started with: a larger number is a slip."""
HIGHEST_LORA_RANK: Final = 4096
"""The width of a model of 7 B parameters: a rank so high is no low rank."""
LORA_RANK: Final = 16
"""vLLM's own, where none is stated: vllm/config/lora.py, max_lora_rank."""
KV_STATED: Final = "--kv-mem states what is left for the cache"
OF_A_BUDGET: Final = ("utilization", "mem_fraction_static", "quantization", "reserve", "expert_parallel", "max_loras", "language_model_only")
"""Options that say nothing of a cache alone."""


def check_budget(typed: Typed) -> None:
    """Raises KvcalcError (usage) for what is stated of a budget where there is none."""
    given = [name for name in OF_A_BUDGET if typed[name]]
    if given:
        flag = "ep" if given[0] == "expert_parallel" else given[0].replace("_", "-")
        raise wrong(f"--{flag} is about the memory of a GPU: give --gpu, --gpu-mem or --kv-mem")


def budgeted_options(typed: Typed, device: "Device | None", engine: str) -> "Options":
    """The deployment, with what only a budget is about, on all GPUs that there are."""
    if typed["max_lora_rank"] != LORA_RANK and not typed["max_loras"]:
        raise wrong("--max-lora-rank goes with --max-loras N")
    return options_of({**typed, "tp": shared_heads(typed)}, device, engine)._replace(
        expert_parallel=typed["expert_parallel"],
        towers=not typed["language_model_only"],
        max_loras=typed["max_loras"],
        max_lora_rank=typed["max_lora_rank"],
    )


def utilization_of(typed: Typed, engine: str) -> Decimal | None:
    """The part of the memory that the engine is told to take."""
    static: Decimal | None = typed["mem_fraction_static"]
    stated: Decimal | None = typed["utilization"]
    if static is not None and stated is not None:
        raise wrong("--mem-fraction-static is what SGLang calls --utilization: give one of them")
    return static if static is not None and engine in OWNERS["mem_fraction_static"] else stated


def gpu_and_device(typed: Typed, needed: int) -> "tuple[GpuInfo, Device | None]":
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


def stated_budget(typed: Typed, utilization: Decimal | None) -> "tuple[GpuInfo, Device | None, bool]":
    """The GPU that is asked about where a GPU or a budget is stated, else none; and whether the weights are taken from its memory.

    Raises KvcalcError (usage) for what has nothing to say beside a stated budget, or without one.
    """
    from kvcalc.results.fit import GpuInfo

    kv_mem = typed["kv_mem"]
    check_together(KV_STATED, kv_mem, {"--utilization": utilization, "--quantization": typed["quantization"], "--reserve": typed["reserve"] or None})
    weighs = kv_mem is None and (typed["gpu_mem"] is not None or typed["gpu"] is not None)
    if not weighs and kv_mem is None:
        check_budget(typed)
        return GpuInfo(name=None, memory_bytes=None), None, False
    return *gpu_and_device(typed, deployed_gpus(typed, shared_heads(typed))), weighs


def deployed_gpus(typed: Typed, tp: int) -> int:
    """GPUs in all, of which `tp` share the heads."""
    return int(tp * typed["pp"] * (1 if typed["enable_dp_attention"] else typed["dp"]))


def shared_heads(typed: Typed) -> int:
    """GPUs that share the heads: as many as there are where nothing is said of how they share the work."""
    gpus, tp, pp, dp = typed["gpus"], typed["tp"], typed["pp"], typed["dp"]
    needed = deployed_gpus(typed, tp)
    if gpus is None or gpus == needed:
        return int(tp)
    if (tp, pp, dp) == (1, 1, 1):
        return int(gpus)
    replicas = "" if typed["enable_dp_attention"] else f" x --dp {dp}"
    raise wrong(f"--gpus {gpus} are not --tp {tp} x --pp {pp}{replicas} = {needed}")


def quantization_named(name: str | None) -> "Named | None":
    """How weights are stored, by its name. Raises KvcalcError (usage) for one that is not known."""
    if name is None:
        return None
    from kvcalc.quantizations import BY_NAME

    try:
        return BY_NAME[name.strip().lower()]
    except KeyError:
        raise wrong(f"--quantization {name[:40]!r} is not known; known: {', '.join(BY_NAME)}") from None


def checkpoint_of(found: "FoundModel", *, named: bool) -> "tuple[StatedWeights | None, tuple[Note, ...]]":
    """The size of the weights from the checkpoint beside the config; None leaves it to the tensors, as a quantization that is `named` does."""
    from kvcalc.budget import StatedWeights
    from kvcalc.catalog import find_checkpoint

    if named:
        return None, ()
    checkpoint, notes = find_checkpoint(found)
    return (None if checkpoint is None else StatedWeights(checkpoint.size_bytes, "checkpoint", checkpoint.source)), notes


def question_of(
    typed: Typed,
    rules: "Engine",
    options: "Options",
    gpu: "GpuInfo",
    found: "FoundModel",
    *,
    length: int,
    batch: int,
    tensors: bool,
    checkpoint: "tuple[StatedWeights | None, tuple[Note, ...]]",
) -> "Question":
    """What is asked of a model that was found, so deployed. `tensors`: its weights matter, for their size or for their time."""
    from kvcalc.budget import Asked, Question

    stated, notes = checkpoint
    return Question(
        found.weighed() if tensors else found.spec,
        rules,
        options,
        Asked(found.name, found.source, found.served_as, length, batch),
        gpu,
        kv_bytes=typed["kv_mem"],
        utilization=utilization_of(typed, rules.name),
        weights=stated,
        quantization=quantization_named(typed["quantization"]),
        reserve_bytes=typed["reserve"],
        notes=notes,
    )
