"""What is predicted of a server, or of what a log tells."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvcalc.asking.budget import KV_STATED, budgeted_options, checkpoint_of, deployed_gpus, question_of, shared_heads
from kvcalc.asking.deployment import Typed, check_owned, check_together, find_gpu_named, length_for
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Question


def predicted(given: Typed, stated: Typed, defaults: Mapping[str, object], served: str | None, *, weighs: bool) -> "Question":
    """What is predicted: the options that were `given`, and for those that are at their `defaults` what the server or the log states. `served` is the model
    that it names, where none is given. `weighs`: the checkpoint is looked for.
    """
    from kvcalc.catalog import load_model, model_from_shape
    from kvcalc.engines import find_engine
    from kvcalc.engines.base import Device
    from kvcalc.results.fit import GpuInfo

    free = {name: value for name, value in stated.items() if name in defaults and given[name] == defaults[name]}
    if given["utilization"] is not None or given["mem_fraction_static"] is not None:
        for other in ("utilization", "mem_fraction_static", "kv_mem"):  # other words for the same
            free.pop(other, None)
    check_together(KV_STATED, given["kv_mem"], {"--utilization": given["utilization"]})
    typed = {**given, **free}
    rules = find_engine(given["engine"] or stated.get("engine") or "vllm")
    check_owned(given, (rules.name,))
    shape = (typed["layers"], typed["kv_heads"], typed["head_dim"])
    name = given["model"] or served
    if name is not None and shape == (None, None, None):
        found = load_model(name, typed["revision"], typed["as_model_type"])
    elif given["model"] is None and None not in shape:
        found = model_from_shape(*shape)
    else:
        raise KvcalcError("which model it is cannot be told from what the server or the log says", hint="name it with --model")
    card = None if typed["gpu"] is None else find_gpu_named(typed["gpu"])
    memory = typed["gpu_mem"] if typed["gpu_mem"] is not None or card is None or typed["kv_mem"] is not None else card.memory()[0]
    device = card.device(typed["gpu_mem"]) if card is not None else None if memory is None else Device("the GPU", None, (memory,))
    gpus_bytes = None if memory is None else memory * deployed_gpus(typed, shared_heads(typed))
    length = given["context"] or stated.get("context") or length_for(found, None, rules.name, gpus_bytes)
    looked_for = weighs and memory is not None and typed["kv_mem"] is None
    checkpoint = checkpoint_of(found, named=typed["quantization"] is not None) if looked_for else (None, ())
    info = GpuInfo(name=None if card is None else card.name, memory_bytes=memory)
    options = budgeted_options(typed, device, rules.name)
    return question_of(typed, rules, options, info, found, length=length, batch=1, tensors=True, checkpoint=checkpoint)
