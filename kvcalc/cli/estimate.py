"""`kvcalc estimate`."""

from typing import Annotated

import typer

from kvcalc.cli.options import DEPLOYMENT, MODEL, Batch, Context, EngineName, Json, check_owned, find_gpu_named, find_model, one_form, options_of, with_options


@with_options(MODEL, DEPLOYMENT)
def estimate(
    call: typer.Context,
    context: Context = None,
    batch: Batch = 1,
    engine: EngineName = "ideal",
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the total, in bytes.")] = False,
) -> None:
    """KV-cache bytes of a request and a batch."""
    from kvcalc.engines import find_engine
    from kvcalc.estimate import estimate as compute

    one_form(as_json=as_json, quiet=quiet)
    rules, typed = find_engine(engine), call.params
    check_owned(typed, (rules.name,))
    device = None if typed["gpu"] is None else find_gpu_named(typed["gpu"]).device()
    memory = None if device is None or len(set(device.memory_sizes)) != 1 else device.memory_sizes[0] * typed["tp"] * typed["pp"]
    found, length = find_model(typed, context, rules.name, memory)
    options = options_of(typed, device, rules.name)
    result = compute(found.spec, rules, options, name=found.name, source=found.source, context=length, batch=batch)
    if as_json:
        print(result.to_json())
    elif quiet:
        print(result.total_bytes)
    else:
        from kvcalc.render.estimate import render_estimate
        from kvcalc.render.style import console_for_stdout

        render_estimate(result, console_for_stdout())
