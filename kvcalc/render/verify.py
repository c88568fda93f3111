"""`kvcalc verify` for a reader."""

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, notes
from kvcalc.results.verify import Check, Verified
from kvcalc.units import counted


def render_verify(result: Verified, console: Console) -> None:
    """The verdict, a row a figure, and for each what its agreement means."""
    compared = [check for check in result.checks if check.predicted is not None and check.measured is not None]
    wrong = sum(not check.ok for check in result.checks)
    agree = "no figure has a prediction" if not compared else f"{counted(len(compared), 'figure')} agree{'s' if len(compared) == 1 else ''}"
    verdict = agree if result.ok else f"{wrong} of {len(result.checks)} figures disagree"
    console.print(verdict, style="bold", highlight=False, markup=False)
    if result.checks:
        _table(result, console)
    notes(console, result.notes)


def _table(result: Verified, console: Console) -> None:
    console.print()
    grid = Grid(left=["", "figure"], right=["predicted", "measured", "difference"])
    for check in result.checks:
        grid.add("ok" if check.ok else "NO", f"{printable(check.name)}, {check.unit}", _shown(check.predicted), _shown(check.measured), _signed(check))
    grid.print(console)
    console.print()
    for check in result.checks:
        console.print(f"{printable(check.name)}: {printable(check.explanation)}", highlight=False, markup=False)


def _shown(value: float | None) -> str:
    match value:
        case None:
            return "-"
        case int():
            return f"{value:,}"
        case _:
            return f"{value:,.2f}"


def _signed(check: Check) -> str:
    difference = check.difference
    if difference is None:
        return ""
    return f"{difference:+,.2f}" if isinstance(difference, float) else f"{difference:+,}"
