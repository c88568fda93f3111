"""`kvcalc speed`."""

from functools import partial
from typing import TYPE_CHECKING, Annotated, Final

import typer

from kvcalc.asking.speed import timed
from kvcalc.cli.budget import BUDGET
from kvcalc.cli.machine import MACHINE
from kvcalc.cli.options import DEPLOYMENT, MODEL, Batch, Context, EngineName, Json, with_options
from kvcalc.cli.pictures import PICTURES, check_pictures, draw_in_terminal, save_as
from kvcalc.units import MAX_TOKENS

if TYPE_CHECKING:
    from kvcalc.results.plot import Chart
    from kvcalc.results.speed import Speed


NO_ROOFLINE: Final = "what the GPU computes in a second is not known: there is nothing to draw"


@with_options(MODEL, BUDGET, DEPLOYMENT, MACHINE, PICTURES)
def speed(
    call: typer.Context,
    context: Context = None,
    batch: Batch = 1,
    output: Annotated[int, typer.Option("--output", "-o", min=0, max=MAX_TOKENS, metavar="N", help="Of the context, tokens that a request generates.")] = 0,
    engine: EngineName = "vllm",
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Beside it: generating while the whole sequence is computed again at each step.")] = False,
    as_json: Json = False,
) -> None:
    """How fast a prompt and each token are.

    Prefill and decode: time to first token and time a token, as a bound and a likely range, which of arithmetic and bandwidth binds, what would help, and
    what doubles with the context or the batch.
    """
    plot, save = call.params["plot"], call.params["save"]
    check_pictures(plot, save, "--json" if as_json else None)
    result = timed(call.params)
    chart = None
    if plot or save is not None:
        from kvcalc.charts import speed_chart

        chart = speed_chart(result)
    if save is not None:
        save_as(save, [] if chart is None else [chart], partial(_page, result, chart), NO_ROOFLINE)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.speed import render_speed
        from kvcalc.render.style import console_for_stdout

        render_speed(result, console_for_stdout())
        if plot:
            draw_in_terminal(chart, NO_ROOFLINE)


def _page(result: "Speed", chart: "Chart | None") -> str:
    from kvcalc.render.report import speed_page

    return speed_page(result, chart)
