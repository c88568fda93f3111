"""What commands about time have alike: how fast the GPU is, and how soon an answer is wanted."""

from decimal import Decimal
from typing import Annotated, Any, Final

import typer

from kvcalc.cli.budget import SIZE
from kvcalc.cli.options import COUNT, Group, parser
from kvcalc.units import parse_duration, parse_tflops

NUMBER: Final[dict[str, Any]] = {"parser": parser(parse_tflops), "metavar": "N"}
MACHINE: Final[Group] = {
    "bandwidth": (Annotated[int | None, typer.Option("--bandwidth", **SIZE, help="What the memory of one GPU moves in a second: 3350GB.")], None),
    "tflops": (Annotated[Decimal | None, typer.Option("--tflops", **NUMBER, help="Dense 16-bit TFLOP/s of one GPU.")], None),
    "link": (Annotated[int | None, typer.Option("--link", **SIZE, help="What a GPU sends to another in a second, each way: 450GB.")], None),
}
DURATION: Final[dict[str, Any]] = {"parser": parser(parse_duration), "metavar": "TIME"}
LATENCY: Final[Group] = {
    "ttft": (Annotated[int | None, typer.Option("--ttft", **DURATION, help="Only so many requests that the first token comes within this: 2s.")], None),
    "tpot": (Annotated[int | None, typer.Option("--tpot", **DURATION, help="Only so many that each further token comes within this: 50ms.")], None),
    "output": (Annotated[int | None, typer.Option("--output", "-o", **COUNT, help="With --ttft: of the context, what is generated and no prompt.")], None),
}
