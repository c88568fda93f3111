"""`kvcalc models` and `kvcalc gpus`."""

from typing import Annotated

import typer

from kvcalc.cli.options import Json, one_form


def models(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Only presets whose name, alias or Hub id contains this.")] = None,
    family: Annotated[str | None, typer.Option("--family", metavar="NAME", help="Only presets of this family.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the names, one a line.")] = False,
) -> None:
    """The presets: what --model takes by name."""
    from kvcalc.catalog import presets
    from kvcalc.listing import list_models

    one_form(as_json=as_json, quiet=quiet)
    result = list_models(presets(), text, family)
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.models:
            print(row.name)
    else:
        from kvcalc.render.models import render_models
        from kvcalc.render.style import console_for_stdout

        render_models(result, console_for_stdout())


def gpus(
    text: Annotated[str | None, typer.Argument(metavar="TEXT", help="Only cards whose name, alias or make contains this.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the names, one a line.")] = False,
) -> None:
    """The GPUs: what --gpu takes by name."""
    from kvcalc.gpus import list_gpus

    one_form(as_json=as_json, quiet=quiet)
    result = list_gpus(text)
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.gpus:
            print(row.name)
    else:
        from kvcalc.render.gpus import render_gpus
        from kvcalc.render.style import console_for_stdout

        render_gpus(result, console_for_stdout())
