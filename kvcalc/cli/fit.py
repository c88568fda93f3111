"""`kvcalc fit`."""

from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.asking.fit import asks_every_preset, check_scope, fit_question, fitted_presets
from kvcalc.cli.budget import BUDGET, SIZE
from kvcalc.cli.machine import LATENCY, MACHINE
from kvcalc.cli.options import COUNT, DEPLOYMENT, MODEL, Batch, Context, EngineName, Json, complete_model, one_form, with_options
from kvcalc.cli.pictures import NOTHING_FITS, PICTURES, check_pictures, draw_in_terminal, save_as
from kvcalc.cli.workload import WORKLOAD
from kvcalc.errors import ExitCode

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.results.fit import Fit, Fits
    from kvcalc.results.plot import Chart


@with_options(MODEL, BUDGET, DEPLOYMENT, WORKLOAD, LATENCY, MACHINE, PICTURES)
def fit(
    call: typer.Context,
    context: Context = None,
    batch: Batch = 1,
    engine: EngineName = "vllm",
    weights: Annotated[int | None, typer.Option("--weights", **SIZE, help="Bytes of the whole checkpoint.")] = None,
    weights_per_gpu: Annotated[int | None, typer.Option("--weights-per-gpu", **SIZE, help="Bytes on one GPU, as the engine reports them loaded.")] = None,
    min_gpus: Annotated[bool, typer.Option("--min-gpus", help="The smallest number of these GPUs that serves it, and how they share the work.")] = False,
    name_filter: Annotated[str | None, typer.Option("--filter", metavar="TEXT", help="Without --model: only presets whose name contains this.")] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="A model that drafts tokens, named as --model is.", autocompletion=complete_model)
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option("--draft-tokens", **COUNT, help="Tokens that --draft proposes a step.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the number of whole requests; without --model, the names that fit.")] = False,
) -> int:
    """What fits on GPUs, and what would help.

    Requests, tokens and the longest request, in the blocks of the engine. Without --model: every preset. Exit code 1: it does not fit.
    """
    from kvcalc.advice import advised

    one_form(as_json=as_json, quiet=quiet)
    typed = call.params
    check_scope(typed)
    check_pictures(typed["plot"], typed["save"], "--json" if as_json else "--quiet" if quiet else None)
    if asks_every_preset(typed):
        return _show_presets(fitted_presets(typed), as_json=as_json, quiet=quiet)
    asked = fit_question(typed)
    result = advised(asked)
    chart = None
    if typed["plot"] or typed["save"] is not None:
        from kvcalc.charts import capacity_chart

        chart = capacity_chart(asked)
    if typed["save"] is not None:
        _save(typed["save"], result, chart)
    if as_json:
        print(result.to_json())
    elif quiet:
        print(result.held)
    else:
        from kvcalc.render.fit import render_fit
        from kvcalc.render.style import console_for_stdout

        render_fit(result, console_for_stdout())
    if typed["plot"]:
        draw_in_terminal(chart, NOTHING_FITS)
    return ExitCode.YES if result.fits else ExitCode.NO


def _save(path: "Path", result: "Fit", chart: "Chart | None") -> None:
    """What fits against context, and the memory of a GPU; or the whole answer as a page."""
    from kvcalc.results.plot import memory_chart

    def page() -> str:
        from kvcalc.render.report import fit_page

        return fit_page(result, chart)

    save_as(path, [drawing for drawing in (chart, memory_chart(result)) if drawing is not None], page, NOTHING_FITS)


def _show_presets(result: "Fits", *, as_json: bool, quiet: bool) -> ExitCode:
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.rows:
            if row.fits:
                print(row.model.name)
    else:
        from kvcalc.render.fit import render_fits
        from kvcalc.render.style import console_for_stdout

        render_fits(result, console_for_stdout())
    return ExitCode.YES if result.rows[0].fits else ExitCode.NO
