"""`kvcalc models` for a reader."""

from rich.console import Console

from kvcalc.render.style import Grid
from kvcalc.results.models import Models


def render_models(result: Models, console: Console) -> None:
    """One line a preset."""
    table = Grid(left=["name", "family", "kinds of layer"], right=["layers", "max context", "B/token"])
    for row in result.models:
        context = "-" if row.max_context is None else f"{row.max_context:,}"
        table.add(row.name, row.family or "-", ", ".join(row.kinds), str(row.layers), context, f"{row.token_bytes:,}")
    table.print(console)
    console.print()
    console.print(f"{len(result.models)} presets; B/token: what a token adds in bf16 to a short request.", highlight=False)
