"""What `speed` is asked."""

from typing import TYPE_CHECKING

from kvcalc.asking.budget import checkpoint_of, deployed_gpus, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.asking.deployment import Typed, check_owned, find_model, options_of
from kvcalc.asking.machine import machine_asked

if TYPE_CHECKING:
    from kvcalc.results.speed import Speed


def timed(typed: Typed) -> "Speed":
    """Prefill and decode: time to first token, time a token, and what binds."""
    from kvcalc.budget import Asked, Question
    from kvcalc.engines import find_engine
    from kvcalc.speed import SpeedQuestion, speed

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    tp = shared_heads(typed)
    info, device, machine = machine_asked(typed, deployed_gpus(typed, tp))
    memory = None if info.memory_bytes is None else info.memory_bytes * tp * typed["pp"]
    found, length = find_model(typed, typed["context"], rules.name, memory)
    named = quantization_named(typed["quantization"])
    stated, notes = checkpoint_of(found, named=named is not None)
    question = Question(
        found.weighed(),
        rules,
        with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed),
        Asked(found.name, found.source, found.served_as, length, typed["batch"]),
        info,
        kv_bytes=typed["kv_mem"],
        utilization=utilization_of(typed, rules.name),
        weights=stated,
        quantization=named,
        reserve_bytes=typed["reserve"],
        notes=notes,
    )
    return speed(SpeedQuestion(question, machine, typed["output"], typed["no_cache"]))
