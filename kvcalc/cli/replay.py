"""`kvcalc replay`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.asking.replay import replayed_on
from kvcalc.cli.budget import BUDGET
from kvcalc.cli.machine import MACHINE
from kvcalc.cli.options import DEPLOYMENT, MODEL, RATIO, Context, Json, ServerName, with_options
from kvcalc.errors import ExitCode

if TYPE_CHECKING:
    from kvcalc.replay.requests import Reading, Row
    from kvcalc.results.replay import Routing


@with_options(MODEL, BUDGET, DEPLOYMENT, MACHINE)
def replay(
    call: typer.Context,
    file: Annotated[
        str | None,
        typer.Argument(metavar="FILE", help="A trace, CSV or JSONL, gzipped or not: Azure, BurstGPT, Mooncake, or arrival, prompt, output; - reads it."),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            "--synthetic", metavar="WORDS", help="In place of a file: 'prompt=lognormal(512,1.0) output=geometric(200) rate=5/s requests=1000 seed=0'."
        ),
    ] = None,
    routing: Annotated[
        str | None,
        typer.Option(
            "--routing",
            metavar="NAME",
            show_default="round-robin",
            help="How requests find one of several replicas: round-robin, sticky (a conversation stays), prefix (the longest in a cache).",
        ),
    ] = None,
    rate_scale: Annotated[Decimal, typer.Option("--rate-scale", **RATIO, help="Arrivals come so many times as fast.")] = Decimal(1),
    strict: Annotated[bool, typer.Option("--strict", help="Stop at the first line that cannot be read.")] = False,
    context: Context = None,
    engine: ServerName = "vllm",
    as_json: Json = False,
) -> int:
    """A request trace through a server.

    Waits, memory used and wasted, prefixes found again, and what would change. Exit code 1: some requests can never fit.
    """
    if (file is None) == (synthetic is None):
        raise typer.BadParameter("name a trace (- reads standard input), or draw one with --synthetic")
    if strict and file is None:
        raise typer.BadParameter("--strict goes with a file")
    typed = call.params
    if routing is not None and typed["dp"] == 1:
        raise typer.BadParameter("--routing goes with several replicas: add --dp 2 or more")
    from kvcalc.replay import replay as compute

    with _requests(file, synthetic, strict=strict) as (rows, reading):
        result = compute(replayed_on(typed)._replace(routing=_routing_named(routing)), rows, reading)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.replay import render_replay
        from kvcalc.render.style import console_for_stdout

        render_replay(result, console_for_stdout())
    return ExitCode.NO if result.outcome.never else ExitCode.YES


def _routing_named(name: str | None) -> "Routing":
    from kvcalc.replay.fleet import ROUTINGS

    found = next((routing for routing in ROUTINGS if routing == (name or ROUTINGS[0])), None)
    if found is None:
        raise typer.BadParameter(f"--routing {(name or '')[:40]!r} is not known; known: {', '.join(ROUTINGS)}")
    return found


@contextmanager
def _requests(file: str | None, synthetic: str | None, *, strict: bool) -> "Iterator[tuple[Iterator[Row], Reading]]":
    """The requests of a file, or drawn ones, with a bar on a terminal that says how far they are."""
    from kvcalc.files import size_of
    from kvcalc.render.progress import progress
    from kvcalc.replay.requests import Reading
    from kvcalc.replay.synthetic import parse_synthetic
    from kvcalc.traces import open_trace

    if synthetic is not None:
        drawn = parse_synthetic(synthetic)
        with progress(drawn.requests) as told:
            yield _counted(drawn.rows(), told), Reading(synthetic, "synthetic")
    elif file is not None:
        with progress(size_of(file)) as told, open_trace(file, strict=strict, progress=told) as trace:
            yield trace


def _counted(rows: "Iterator[Row]", told: Callable[[int], None] | None) -> "Iterator[Row]":
    for number, row in enumerate(rows):
        if told is not None and number % 4096 == 0:
            told(number)
        yield row
