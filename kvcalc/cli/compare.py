"""`kvcalc compare`."""

from typing import Annotated

import typer

from kvcalc.cli.budget import BUDGET, checkpoint_of, deployed_gpus, gpu_and_device, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.cli.options import (
    CONTEXT_WITHOUT_MODEL,
    DEPLOYMENT,
    Batch,
    Context,
    Json,
    check_owned,
    check_together,
    complete_model,
    options_of,
    with_options,
)


@with_options(BUDGET, DEPLOYMENT)
def compare(
    call: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models, each as --model takes one.", autocompletion=complete_model)],
    context: Context = None,
    batch: Batch = 1,
    engine: Annotated[
        str | None, typer.Option("--engine", metavar="NAMES", help="One, several with commas between, or all; without: vllm, or for one model all.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Models or engines side by side.

    A request of each, and why they differ; with --gpu, --gpu-mem or --kv-mem also what fits.
    """
    from kvcalc.budget import Asked, Question
    from kvcalc.catalog import load_model
    from kvcalc.compare import compare as compute
    from kvcalc.engines import ENGINES, find_engine
    from kvcalc.results.fit import GpuInfo

    asked_for = engine or ("vllm" if len(names) > 1 else "all")
    engines = [find_engine(name) for name in (ENGINES if asked_for.strip().lower() == "all" else asked_for.split(","))]
    if len(names) * len(engines) == 1:
        raise typer.BadParameter("one model under one engine has nothing to be compared with: name another, or --engine all")
    typed = call.params
    check_owned(typed, tuple(rules.name for rules in engines))
    kv_mem, named = typed["kv_mem"], quantization_named(typed["quantization"])
    of_a_gpu = {"--utilization": typed["utilization"], "--quantization": typed["quantization"], "--reserve": typed["reserve"] or None}
    check_together("--kv-mem states what is left for the cache", kv_mem, of_a_gpu)
    has_budget = kv_mem is not None or typed["gpu_mem"] is not None or typed["gpu"] is not None
    tp = shared_heads(typed)
    info, device = gpu_and_device(typed, deployed_gpus(typed, tp)) if has_budget else (GpuInfo(name=None, memory_bytes=None), None)
    models = [load_model(name) for name in names]
    own = [found.spec.facts.max_context for found in models]
    length = min((CONTEXT_WITHOUT_MODEL, *(tokens for tokens in own if tokens is not None))) if context is None else context
    questions = []
    for found in models:
        weighed = has_budget and kv_mem is None
        stated, notes = checkpoint_of(found, named=named is not None) if weighed else (None, ())
        questions += [
            Question(
                found.weighed() if weighed else found.spec,
                rules,
                with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed),
                Asked(found.name, found.source, found.served_as, length, batch),
                info,
                kv_bytes=kv_mem,
                utilization=utilization_of(typed, rules.name),
                weights=stated,
                quantization=named,
                reserve_bytes=typed["reserve"],
                notes=notes,
            )
            for rules in engines
        ]
    result = compute(questions)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.compare import render_compare
        from kvcalc.render.style import console_for_stdout

        render_compare(result, console_for_stdout())
