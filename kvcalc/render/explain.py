"""`kvcalc explain` for a reader."""

from collections.abc import Sequence
from textwrap import wrap
from typing import Final

from rich.console import Console

from kvcalc.errors import printable
from kvcalc.render.style import Grid, in_unit, notes, with_version
from kvcalc.results.explain import Column, Explanation, Formula, Paragraph, Row, Table, Topic, Unit
from kvcalc.units import binary_unit, counted, format_bytes

FLOPS: Final = {"FLOP": 1, "MFLOP": 10**6, "GFLOP": 10**9, "TFLOP": 10**12, "PFLOP": 10**15, "EFLOP": 10**18}
NARROW: Final = 60
"""Columns of a terminal below which nothing is indented."""


def render_explain(result: Explanation, console: Console) -> None:
    """Whose numbers these are, then a heading for each topic with its paragraphs, and where more is said."""
    console.print(_headline(result), style="bold", highlight=False, markup=False)
    console.print(_source(result), highlight=False, markup=False)
    if result.assumed_model:
        console.print(f"No model is named: {printable(result.model.name)} stands for any. Another with --model.", highlight=False, markup=False)
    for topic in result.topics:
        _print_topic(topic, console)
    if result.others:
        console.print()
        more = "In full" if not any(topic.whole for topic in result.topics) else "More"
        console.print(f"{more}: kvcalc explain TOPIC, of {', '.join(result.others)}, or all.", highlight=False, markup=False)
    notes(console, result.notes)


def _headline(result: Explanation) -> str:
    layers, tokens = counted(result.layer_count, "layer"), counted(result.context, "token")
    return f"{printable(result.model.name)}: {layers}, {format_bytes(result.request_bytes)} of KV cache for a request of {tokens}"


def _source(result: Explanation) -> str:
    where = "" if result.gpu is None else f", on {printable(result.gpu)}"
    engine = with_version(result.engine, result.engine_version)
    return f"engine {engine}{where}, KV dtype of the rows {result.kv_dtype}, read from {printable(result.model.source)}"


def _print_topic(topic: Topic, console: Console) -> None:
    console.print()
    console.print(topic.title, style="bold", highlight=False, markup=False)
    for number, paragraph in enumerate(topic.paragraphs):
        if number and topic.whole:
            console.print()
        _print_paragraph(paragraph, console)


def _print_paragraph(paragraph: Paragraph, console: Console) -> None:
    console.print(printable(paragraph.text), highlight=False, markup=False)
    for formula in paragraph.formulas:
        _print_formula(formula, console)
    if paragraph.table is not None:
        _grid(paragraph.table).print(console)


def _print_formula(formula: Formula, console: Console) -> None:
    _indented(printable(formula.text), console)
    unit = f" {formula.unit.removesuffix('s') if formula.value == 1 else formula.unit}" if formula.unit else ""
    of_bytes = f" ({format_bytes(formula.value)})" if formula.unit == "B" and formula.value >= 10_240 else ""
    same = formula.numbers == f"{formula.value:,}"
    _indented(f"= {'' if same else f'{formula.numbers} = '}{formula.value:,}{unit}{of_bytes}", console)
    if formula.symbols:
        grid = Grid(left=["", "stands for"], right=["here"])
        for each in formula.symbols:
            grid.add(each.symbol, each.meaning, f"{each.value:,}")
        grid.print(console)


def _indented(text: str, console: Console) -> None:
    indent = "  " if console.width >= NARROW else ""
    for line in wrap(text, console.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False):
        console.print(line, highlight=False, markup=False)


def _grid(table: Table) -> Grid:
    """Each kind of figure in one unit, which stands in the heads."""
    units = {unit: _unit_of(unit, table.columns, table.rows) for unit in ("B", "FLOP")}
    heads = [f"{column.name} {units[column.unit]}".strip() if column.unit in units else column.name for column in table.columns]
    grid = Grid(left=[table.label], right=heads)
    for row in table.rows:
        grid.add(row.label, *(_cell(value, column.unit, units.get(column.unit, "")) for value, column in zip(row.values, table.columns, strict=True)))
    return grid


def _unit_of(unit: Unit, columns: Sequence[Column], rows: Sequence[Row]) -> str:
    """Of bytes the unit in which the largest figure is at least 1; of FLOPs, which differ more, the one that still shows the smallest."""
    figures = [abs(int(value)) for row in rows for value, column in zip(row.values, columns, strict=True) if column.unit == unit and value]
    if unit == "B":
        return binary_unit(max(figures, default=0))
    smallest = min(figures, default=0)
    return max((name for name in FLOPS if FLOPS[name] <= max(100 * smallest, 1)), key=lambda name: FLOPS[name])


def _cell(value: float | None, kind: Unit, unit: str) -> str:
    if value is None:
        return "-"
    sign = "-" if value < 0 else ""
    if kind == "B":
        return sign + in_unit(abs(int(value)), unit)
    if kind == "FLOP":
        return f"{value / FLOPS[unit]:,.2f}" if not 0 < value / FLOPS[unit] < 0.005 else "< 0.01"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
