"""`kvcalc estimate`."""

from typing import Annotated

import typer

from kvcalc.asking.estimate import estimated
from kvcalc.cli.options import DEPLOYMENT, MODEL, Batch, Context, EngineName, Json, one_form, with_options


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
    one_form(as_json=as_json, quiet=quiet)
    result = estimated(call.params)
    if as_json:
        print(result.to_json())
    elif quiet:
        print(result.total_bytes)
    else:
        from kvcalc.render.estimate import render_estimate
        from kvcalc.render.style import console_for_stdout

        render_estimate(result, console_for_stdout())
