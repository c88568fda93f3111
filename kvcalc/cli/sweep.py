"""`kvcalc sweep`."""

import gc
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, product
from math import prod
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.asking.budget import quantization_named
from kvcalc.asking.deployment import OWNERS, check_owned, find_gpu_named
from kvcalc.asking.fit import Lookup, asking_of
from kvcalc.cli.fit import fit
from kvcalc.cli.lists import NONE, RULE, Element, Lists
from kvcalc.cli.options import Json, with_options
from kvcalc.cli.pictures import NOTHING_FITS, PICTURES, check_pictures, draw_in_terminal, save_as
from kvcalc.errors import ExitCode, KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Question
    from kvcalc.results.plot import Chart
    from kvcalc.results.sweep import Sweep
    from kvcalc.sweep import Point

LISTS: Final = Lists(fit, but=("min_gpus", "name_filter", "as_json", "quiet", "plot", "save"))
LENGTHS: Final = ("context", "batch")
"""What one deployment is asked about again and again."""
FOREMOST: Final = ("model", "engine", "gpu")
"""What a reader looks for first; the others follow in the order of --help."""

Axes = Mapping[str, Sequence[Element]]


@with_options(LISTS.group, PICTURES)
def sweep(
    call: typer.Context,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values: sizes in bytes, columns named as in --json.")] = False,
    as_json: Json = False,
    as_markdown: Annotated[bool, typer.Option("--markdown", help="A table for a Markdown file.")] = False,
) -> int:
    from kvcalc.engines import ENGINES, find_engine
    from kvcalc.render.rows import csv_lines, json_pieces, watched
    from kvcalc.results.sweep import Sweep
    from kvcalc.sweep import MOST_CELLS, Said
    from kvcalc.sweep import sweep as compute

    forms = [flag for flag, given in (("--csv", as_csv), ("--json", as_json), ("--markdown", as_markdown)) if given]
    if len(forms) > 1:
        raise typer.BadParameter(f"{' and '.join(forms)} are forms of one answer: give one of them")
    plot, save = call.params["plot"], call.params["save"]
    check_pictures(plot, save, forms[0] if forms else None)
    if save is not None and forms:
        raise typer.BadParameter(f"--save writes the picture of a table: leave out {forms[0]}")
    every_engine = (call.params["engine"] or "").strip().lower() == "all"
    axes = LISTS.axes({**call.params, "engine": ",".join(ENGINES)} if every_engine else call.params, MOST_CELLS)
    cells = _checked_size(axes, MOST_CELLS)
    lookup = Lookup()
    _check_names(axes, lookup)
    check_owned(
        {name: next((each.value for each in axis if each.value is not None), None) for name, axis in axes.items()},
        tuple(find_engine(each.value).name for each in axes["engine"]),
    )
    contexts = [each.value for each in axes["context"]]
    if None in contexts and len(contexts) > 1:
        raise typer.BadParameter("--context none, the model's own maximum, stands alone")
    stated = [] if None in contexts else contexts
    said = Said()
    rows = said.listening(compute(_points(axes, lookup, stated), stated, [each.value for each in axes["batch"]]))

    first = next(rows)  # an error comes before the first line
    watching = watched(chain([first], rows), cells, streamed=as_csv or as_json)
    if as_csv:
        sys.stdout.writelines(csv_lines(watching, list(first.options)))
    elif as_json:
        sys.stdout.writelines(json_pieces(watching, said.notes))
    else:
        gc.disable()  # rows hold no cycles and live to the end: to look for some again and again would double the time
        found = tuple(watching)
        result = Sweep(rows=found, notes=said.notes())
        chart = _chart(result) if plot or save is not None else None
        if save is not None:
            save_as(save, [] if chart is None else [chart], partial(_page, result, chart), NOTHING_FITS)
        from kvcalc.render.style import console_for_stdout
        from kvcalc.render.sweep import markdown, render_sweep

        if as_markdown:
            print(markdown(result))
        else:
            render_sweep(result, console_for_stdout())
            if plot:
                draw_in_terminal(chart, NOTHING_FITS)
    return ExitCode.YES if said.fits else ExitCode.NO


def _chart(result: "Sweep") -> "Chart | None":
    from kvcalc.charts import sweep_chart

    return sweep_chart(result)


def _page(result: "Sweep", chart: "Chart | None") -> str:
    from kvcalc.render.report import sweep_page

    return sweep_page(result, chart)


sweep.__doc__ = f"""`fit` over a grid of its options.

One row for each combination. Exit code 1: none fits.

{RULE}
"""


def _key(name: str) -> str:
    """What an option is called in an answer: its flag, written as a field."""
    return LISTS.flag(name).removeprefix("--").replace("-", "_")


def _checked_size(axes: Axes, most: int) -> int:
    """Cells of the grid. Raises BadParameter where there are too many."""
    sizes = {LISTS.flag(name): len(axis) for name, axis in axes.items() if len(axis) > 1}
    cells = prod(sizes.values())
    if cells > most:
        grid = " x ".join(f"{size:,} of {flag}" for flag, size in sizes.items())
        raise typer.BadParameter(f"{grid} are {cells:,} cells, and a grid has at most {most:,}: give fewer values of {max(sizes, key=sizes.__getitem__)}")
    return cells


def _check_names(axes: Axes, lookup: Lookup) -> None:
    """Raises KvcalcError for a name that nothing has, before any cell is answered."""
    from kvcalc.engines import find_engine

    for each in axes["engine"]:
        find_engine(each.value)
    for each in axes["gpu"]:
        if each.value is not None:
            find_gpu_named(each.value)
    for each in axes["quantization"]:
        quantization_named(each.value)
    first = {name: axis[0].value for name, axis in axes.items()}
    lookup.model(first)
    for name in ("model", "draft"):
        for each in axes[name]:
            if each.value is not None:
                lookup.model({**first, "model": each.value} if name == "model" else {**dict.fromkeys(first), "model": each.value})


def _points(axes: Axes, lookup: Lookup, contexts: Sequence[int]) -> "Iterator[Point]":
    """Each deployment once: values of an option that an engine does not have are one deployment under it."""
    from kvcalc.engines import find_engine
    from kvcalc.sweep import Point

    first = {name: axis[0].value for name, axis in axes.items()}
    varied = [name for name in dict.fromkeys((*FOREMOST, *axes)) if len(axes[name]) > 1 and name not in LENGTHS]
    seen: set[tuple[Any, ...]] = set()
    for chosen in product(*(axes[name] for name in varied)):
        combination = dict(zip(varied, chosen, strict=True))
        engine = find_engine(combination["engine"].value if "engine" in combination else first["engine"]).name
        for name in varied:
            if engine not in OWNERS.get(name, (engine,)):
                combination[name] = Element(NONE, None)
        key = tuple(each.value for each in combination.values())
        if key not in seen:
            seen.add(key)
            typed = {**first, **{name: each.value for name, each in combination.items()}}
            yield Point({_key(name): each.word for name, each in combination.items()}, _question(typed, lookup, contexts))


def _question(typed: Mapping[str, Any], lookup: Lookup, contexts: Sequence[int]) -> "Question | KvcalcError":
    """What is asked of one deployment, or why it cannot be asked."""
    try:
        asking = asking_of(typed, lookup)
        found = lookup.model(typed)
        return asking.question(found, contexts[0] if contexts else asking.length(found, None), 1)
    except KvcalcError as error:
        return error
