"""`kvcalc compare` for a reader."""

from collections.abc import Sequence

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, in_unit, notes, signed, with_version
from kvcalc.results.compare import ComparedEstimate, ComparedFit, Comparison
from kvcalc.results.fit import Difference
from kvcalc.units import binary_unit, counted


def render_compare(result: Comparison, console: Console) -> None:
    """A row a contender, then for each but the first what its request and its cache differ by."""
    rows: Sequence[ComparedFit | ComparedEstimate] = result.rows
    contexts = {row.context for row in rows}
    of = f"of {counted(contexts.pop(), 'token')}" if len(contexts) == 1 else "of each context"
    console.print(f"{len(rows)} side by side: a request {of}", style="bold", highlight=False, markup=False)
    console.print()
    names = _names(rows)
    _table(rows, names).print(console)
    console.print()
    for row, name in zip(rows, names, strict=True):
        console.print(f"{name}: {_layers(row)}", highlight=False, markup=False)
    for row, name in zip(rows[1:], names[1:], strict=True):
        console.print()
        console.print(f"{name} against {names[0]}", style="bold", highlight=False, markup=False)
        _print_differences("one request, all GPUs", row.request_differs, console)
        if isinstance(row, ComparedFit):
            console.print()
            _print_differences("KV cache of one GPU", row.budget_differs, console)
    notes(console, result.notes)


def _names(rows: Sequence[ComparedFit | ComparedEstimate]) -> list[str]:
    """What tells the rows apart: the model, the engine, or both."""
    models, engines = {row.model.name for row in rows}, {(row.engine, row.engine_version) for row in rows}
    if len(engines) == 1:
        return [printable(row.model.name) for row in rows]
    under = [with_version(row.engine, row.engine_version) for row in rows]
    return under if len(models) == 1 else [f"{printable(row.model.name)}, {name}" for row, name in zip(rows, under, strict=True)]


def _layers(row: ComparedFit | ComparedEstimate) -> str:
    """The layers of each kind, with heads and widths on one GPU, and how many rows of a request they keep."""
    said = []
    for layer in row.layers:
        text = f"{layer.count} {layer.kind}"
        if layer.kv_heads is not None and layer.k_dim is not None:
            widths = f"{layer.k_dim}" if layer.v_dim in (layer.k_dim, 0, None) else f"{layer.k_dim}/{layer.v_dim}"
            text += f" ({layer.rows:,} x {layer.kv_heads} x {widths})"
        said.append(text)
    return ", ".join(said) or "no layer keeps anything"


def _table(rows: Sequence[ComparedFit | ComparedEstimate], names: Sequence[str]) -> Grid:
    requests = [row.capacity.request_bytes if isinstance(row, ComparedFit) else row.request_bytes for row in rows]
    unit = binary_unit(max(requests))
    columns = ["B/token", f"{unit}/request"]
    if isinstance(rows[0], ComparedFit):
        columns += ["KV GiB", "requests", "longest"]
    grid = Grid(left=["one GPU"], right=[*columns, "KV dtype"])
    for row, name, request in zip(rows, names, requests, strict=True):
        cells = [f"{row.token_bytes:,}", in_unit(request, unit)]
        if isinstance(row, ComparedFit):
            mark = "~" if "kv_bytes" in row.memory_range else ""
            cells += [mark + in_unit(row.memory.kv_bytes, "GiB"), f"{row.capacity.requests:,.2f}", f"{row.capacity.max_context:,}"]
        grid.add(name, *cells, row.kv_dtype)
    return grid


def _print_differences(title: str, differences: Sequence[Difference], console: Console) -> None:
    if differences:
        _differences(title, differences).print(console)
    else:
        console.print(f"{title}: the same", highlight=False, markup=False)


def _differences(title: str, differences: Sequence[Difference]) -> Grid:
    """Signed sizes in one unit, and their sum."""
    whole = sum(each.bytes for each in differences)
    unit = binary_unit(max(abs(each.bytes) for each in differences))
    grid = Grid(left=[title], right=["bytes"] if unit == "B" else ["bytes", unit])
    for cause, size in (*((each.cause, each.bytes) for each in differences), ("in all", whole)):
        grid.add(cause, *(signed(size, each) for each in dict.fromkeys(("B", unit))))
    return grid
