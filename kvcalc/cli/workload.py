"""What fit and sweep take about the requests themselves: what they have alike, how long they are."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from kvcalc.cli.options import COUNT, Group

if TYPE_CHECKING:
    from kvcalc.workload import Workload

WORKLOAD: Final[Group] = {
    "shared_prefix": (Annotated[int | None, typer.Option("--shared-prefix", **COUNT, help="Tokens that all requests begin with, and hold once.")], None),
    "lengths": (
        Annotated[str | None, typer.Option("--lengths", metavar="FILE", help="A request trace, or a number a line: what fits of requests so long.")],
        None,
    ),
}


def workload_typed(typed: Mapping[str, Any]) -> "Workload | None":
    """What is said of the requests, None where nothing is. Raises KvcalcError for a file without lengths."""
    if typed["shared_prefix"] is None and typed["lengths"] is None:
        return None
    from kvcalc.traces import read_lengths
    from kvcalc.workload import Workload

    return Workload(typed["shared_prefix"] or 0, None if typed["lengths"] is None else read_lengths(typed["lengths"]))
