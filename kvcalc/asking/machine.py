"""How fast the GPU is, and how soon an answer is wanted."""

from typing import TYPE_CHECKING, Final

from kvcalc.asking.budget import KV_STATED, budgeted_options, checkpoint_of, deployed_gpus, gpu_and_device, question_of, shared_heads, utilization_of
from kvcalc.asking.deployment import Typed, check_together, find_gpu_named, find_model, wrong
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Latency, Question
    from kvcalc.engines.base import Device, Engine
    from kvcalc.machine import Machine
    from kvcalc.results.fit import GpuInfo

RATES: Final = ("bandwidth", "tflops", "link")
"""What is stated of a GPU in place of the catalogue's figures."""


def machine_asked(typed: Typed, needed: int) -> "tuple[GpuInfo, Device | None, Machine]":
    """The GPU that is asked about, by name or that of this machine, and how fast it is, with what is stated in place of the catalogue's figures."""
    from kvcalc.results.fit import GpuInfo

    if typed["gpu"] is None and typed["gpu_mem"] is not None:
        raise wrong("--gpu-mem tells no speed: name the GPU with --gpu")
    try:
        info, device = gpu_and_device(typed, needed)
    except KvcalcError:
        if typed["gpu"] is None:
            raise
        card = find_gpu_named(typed["gpu"])
        info, device = GpuInfo(name=card.name, memory_bytes=None), card.device()
    name = typed["gpu"] if info.name is None else info.name
    if name is None:
        raise wrong("name the GPU with --gpu")
    return info, device, _stated(find_gpu_named(name).machine(typed["bandwidth"]), typed)


def _stated(machine: "Machine", typed: Typed) -> "Machine":
    tflops, link = typed["tflops"], typed["link"]
    if tflops is not None:
        flops = int(tflops * 10**12)
        machine = machine._replace(rates=(("fp16", flops),), ceilings=(("fp16", flops),))
    if link is not None:
        machine = machine._replace(link="stated link", link_bytes_s=link, link_on_board=True)
    return machine


def check_no_rates(typed: Typed) -> None:
    """Raises KvcalcError (usage) for what is stated of a GPU where none is named."""
    given = [name for name in RATES if typed[name] is not None]
    if given:
        raise wrong(f"--{given[0]} is about a GPU: name it with --gpu")


def timed_question(typed: Typed, rules: "Engine", batch: int) -> "tuple[Question, Machine]":
    """What is asked of a model whose steps are timed, and how fast its GPUs are."""
    of_a_gpu = {"--utilization": utilization_of(typed, rules.name), "--reserve": typed["reserve"] or None}
    check_together(KV_STATED, typed["kv_mem"], of_a_gpu)
    tp = shared_heads(typed)
    info, device, machine = machine_asked(typed, deployed_gpus(typed, tp))
    memory = None if info.memory_bytes is None else info.memory_bytes * tp * typed["pp"]
    found, length = find_model(typed, typed["context"], rules.name, memory)
    options = budgeted_options(typed, device, rules.name)
    checkpoint = checkpoint_of(found, named=typed["quantization"] is not None)
    return question_of(typed, rules, options, info, found, length=length, batch=batch, tensors=True, checkpoint=checkpoint), machine


def latency_asked(typed: Typed, needed: int) -> "Latency | None":
    """How soon an answer is wanted, None where that is not said. Raises KvcalcError (usage) for what then has nothing to say."""
    if typed["ttft"] is None and typed["tpot"] is None:
        given = [name for name in ("output", *RATES) if typed[name] is not None]
        if given:
            raise wrong(f"--{given[0]} goes with --ttft or --tpot: `kvcalc speed` answers without")
        return None
    if typed["output"] is not None and typed["ttft"] is None:
        raise wrong("--output goes with --ttft: it says what of the context is no prompt")
    from kvcalc.budget import Latency

    return Latency(machine_asked(typed, needed)[2], typed["ttft"], typed["tpot"], typed["output"] or 0)
