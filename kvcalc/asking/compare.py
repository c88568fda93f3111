"""What `compare` is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcalc.asking.budget import (
    KV_STATED,
    budgeted_options,
    check_budget,
    checkpoint_of,
    deployed_gpus,
    gpu_and_device,
    quantization_named,
    question_of,
    shared_heads,
)
from kvcalc.asking.deployment import CONTEXT_WITHOUT_MODEL, Source, Typed, check_owned, check_together, found_model, wrong

if TYPE_CHECKING:
    from kvcalc.results.compare import Comparison


def compared(names: Sequence[Source], typed: Typed) -> "Comparison":
    """Models or engines side by side."""
    from kvcalc.compare import compare
    from kvcalc.engines import ENGINES, find_engine
    from kvcalc.results.fit import GpuInfo

    asked_for = typed["engine"] or ("vllm" if len(names) > 1 else "all")
    engines = [find_engine(name) for name in (ENGINES if asked_for.strip().lower() == "all" else asked_for.split(","))]
    if len(names) * len(engines) == 1:
        raise wrong("one model under one engine has nothing to be compared with: name another, or --engine all")
    check_owned(typed, tuple(rules.name for rules in engines))
    kv_mem, named = typed["kv_mem"], quantization_named(typed["quantization"])
    of_a_gpu = {
        "--utilization": typed["utilization"] or typed["mem_fraction_static"],
        "--quantization": typed["quantization"],
        "--reserve": typed["reserve"] or None,
    }
    check_together(KV_STATED, kv_mem, of_a_gpu)
    has_budget = kv_mem is not None or typed["gpu_mem"] is not None or typed["gpu"] is not None
    if not has_budget:
        check_budget(typed)
    info, device = gpu_and_device(typed, deployed_gpus(typed, shared_heads(typed))) if has_budget else (GpuInfo(name=None, memory_bytes=None), None)
    models = [found_model(name) for name in names]
    own = [found.spec.facts.max_context for found in models]
    length = min((CONTEXT_WITHOUT_MODEL, *(tokens for tokens in own if tokens is not None))) if typed["context"] is None else typed["context"]
    questions = []
    for found in models:
        weighed = has_budget and kv_mem is None
        checkpoint = checkpoint_of(found, named=named is not None) if weighed else (None, ())
        questions += [
            question_of(
                typed,
                rules,
                budgeted_options(typed, device, rules.name),
                info,
                found,
                length=length,
                batch=typed["batch"],
                tensors=weighed,
                checkpoint=checkpoint,
            )
            for rules in engines
        ]
    return compare(questions)
