"""`kvcalc models` for a reader."""

from rich.console import Console

from kvcalc.render.style import columns, plain_table
from kvcalc.results import Models


def render_models(result: Models, console: Console) -> None:
    """One line a preset."""
    table = plain_table(columns(left=("name", "family", "kinds of layer"), right=("layers", "max context", "B/token")))
    for row in result.models:
        context = "-" if row.max_context is None else f"{row.max_context:,}"
        table.add_row(row.name, row.family, ", ".join(row.kinds), str(row.layers), context, f"{row.token_bytes:,}")
    console.print(table)
    console.print()
    console.print(f"{len(result.models)} presets; B/token: what a token adds in bf16 to a short request.", highlight=False)
