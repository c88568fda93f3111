"""`kvcalc compare`."""

from typing import Annotated

import typer

from kvcalc.asking.compare import compared
from kvcalc.cli.budget import BUDGET
from kvcalc.cli.options import DEPLOYMENT, Batch, Context, Json, complete_engine, complete_in_list, complete_model, with_options


@with_options(BUDGET, DEPLOYMENT)
def compare(
    call: typer.Context,
    names: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Models, each as --model takes one.", autocompletion=complete_model)],
    context: Context = None,
    batch: Batch = 1,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            metavar="NAMES",
            help="One, several with commas between, or all; without: vllm, or for one model all.",
            autocompletion=complete_in_list(complete_engine),
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Models or engines side by side.

    A request of each, and why they differ; with --gpu, --gpu-mem or --kv-mem also what fits.
    """
    result = compared(names, call.params)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.compare import render_compare
        from kvcalc.render.style import console_for_stdout

        render_compare(result, console_for_stdout())
