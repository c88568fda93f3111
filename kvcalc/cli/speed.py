"""`kvcalc speed`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.cli.budget import BUDGET, checkpoint_of, deployed_gpus, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.cli.machine import MACHINE, machine_asked
from kvcalc.cli.options import (
    DEPLOYMENT,
    MODEL,
    Batch,
    Context,
    EngineName,
    Json,
    check_owned,
    find_model,
    options_of,
    with_options,
)
from kvcalc.cli.pictures import PICTURES, check_pictures, draw_in_terminal, save_as

if TYPE_CHECKING:
    from kvcalc.results.plot import Chart
    from kvcalc.results.speed import Speed


@with_options(MODEL, BUDGET, DEPLOYMENT, MACHINE, PICTURES)
def speed(
    call: typer.Context,
    context: Context = None,
    batch: Batch = 1,
    output: Annotated[int, typer.Option("--output", "-o", min=0, metavar="N", help="Of the context, tokens that a request generates.")] = 0,
    engine: EngineName = "vllm",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Beside it: generating while the whole sequence is computed again at each step.")] = False,
    as_json: Json = False,
) -> None:
    """How fast a prompt and each token are.

    Prefill and decode: time to first token and time a token, as a bound and a likely range, which of arithmetic and bandwidth binds, what would help, and
    what doubles with the context or the batch.
    """
    from kvcalc.budget import Asked, Question
    from kvcalc.engines import find_engine
    from kvcalc.speed import SpeedQuestion
    from kvcalc.speed import speed as compute

    rules, typed = find_engine(engine), call.params
    check_owned(typed, (rules.name,))
    check_pictures(typed["plot"], typed["save"], as_text=not as_json)
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
    chart = None
    if typed["plot"] or typed["save"] is not None:
        from kvcalc.charts import speed_chart

        chart = speed_chart(result)
    if typed["save"] is not None:
        save_as(typed["save"], [] if chart is None else [chart], partial(_page, result, chart))
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.speed import render_speed
        from kvcalc.render.style import console_for_stdout

        render_speed(result, console_for_stdout())
        if typed["plot"]:
            draw_in_terminal(chart)


def _page(result: "Speed", chart: "Chart | None") -> str:
    from kvcalc.render.report import speed_page

    return speed_page(result, chart)
