"""What fit and sweep take about the requests themselves: what they have alike, how long they are."""

from typing import Annotated, Final

import typer

from kvcalc.cli.options import COUNT, Group

WORKLOAD: Final[Group] = {
    "shared_prefix": (Annotated[int | None, typer.Option("--shared-prefix", **COUNT, help="Tokens that all requests begin with, and hold once.")], None),
    "lengths": (
        Annotated[str | None, typer.Option("--lengths", metavar="FILE", help="A request trace, or a number a line: what fits of requests so long.")],
        None,
    ),
}
