"""The answer of `kvcalc fit` as one HTML page: the words and figures are those of the terminal."""

from kvcalc.render.fit import (
    changes_grid,
    differences_grid,
    division_line,
    layout_line,
    lengths_grid,
    memory_grid,
    pool_grid,
    source_line,
    verdict,
)
from kvcalc.render.page import command, figure, figures_of, heading, notes, page, paragraph, table
from kvcalc.results.fit import Fit
from kvcalc.results.plot import Chart, memory_chart


def fit_page(result: Fit, chart: Chart | None) -> str:
    """Budget, capacity, plot and command lines; `chart` is None where nothing fits that could be drawn."""
    blocks = [paragraph(source_line(result)), *([paragraph(layout_line(result))] if result.gpus > 1 else []), heading("Memory")]
    bar = memory_chart(result)
    if bar is not None:
        blocks.append(figure(bar, "memory"))
    blocks.append(table(memory_grid(result)))
    if result.memory_range:
        blocks.append(paragraph("~ marks an estimate, low and high the bounds that hold four servers of five. Everything else is exact."))
    if result.advice:
        blocks += [heading("What would make it fit"), table(changes_grid(result))]
    if result.memory.kv_bytes:
        blocks += [heading("Capacity"), table(pool_grid(result)), table(lengths_grid(result))]
    if chart is not None:
        blocks += [figure(chart, "capacity"), figures_of(chart)]
    if result.division is not None and result.memory.kv_bytes:
        blocks += [heading("Beside the plain formula")]
        blocks += [paragraph(division_line(result, result.division))] if result.capacity.slots is None else []
        blocks += [table(differences_grid(result.division))] if result.division.differences else []
    if result.commands and result.memory.kv_bytes:
        blocks += [heading("To serve it so"), *(command(text) for text in result.commands.values())]
    return page(verdict(result), [*blocks, *notes([note.text for note in result.notes])])
