"""What `estimate` is asked."""

from typing import TYPE_CHECKING

from kvcalc.asking.deployment import Typed, check_owned, find_gpu_named, find_model, options_of

if TYPE_CHECKING:
    from kvcalc.results.estimate import Estimate


def estimated(typed: Typed) -> "Estimate":
    """KV-cache bytes of a request and a batch."""
    from kvcalc.engines import find_engine
    from kvcalc.estimate import estimate

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    device = None if typed["gpu"] is None else find_gpu_named(typed["gpu"]).device()
    memory = None if device is None or len(set(device.memory_sizes)) != 1 else device.memory_sizes[0] * typed["tp"] * typed["pp"]
    found, length = find_model(typed, typed["context"], rules.name, memory)
    options = options_of(typed, device, rules.name)
    return estimate(found.spec, rules, options, name=found.name, source=found.source, context=length, batch=typed["batch"])
