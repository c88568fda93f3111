"""Answers as one HTML page each: the words and figures are those of the terminal."""

from kvcalc.render import speed as timed
from kvcalc.render.fit import (
    changes_grid,
    differences_grid,
    divides,
    division_line,
    latency_grid,
    latency_line,
    layout_line,
    lengths_grid,
    memory_grid,
    pool_grid,
    source_line,
    verdict,
    workload_grids,
)
from kvcalc.render.page import command, figure, figures_of, heading, notes, page, paragraph, table
from kvcalc.render.sweep import screen_of
from kvcalc.results.fit import Fit
from kvcalc.results.plot import Chart, memory_chart
from kvcalc.results.speed import Speed
from kvcalc.results.sweep import Sweep


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
        blocks += [heading("Capacity"), table(pool_grid(result)), *map(table, workload_grids(result)), table(lengths_grid(result))]
    if result.latency is not None and result.memory.kv_bytes:
        blocks += [heading("Times"), table(latency_grid(result.latency)), paragraph(latency_line(result, result.latency))]
    if chart is not None:
        blocks += [figure(chart, "capacity"), figures_of(chart)]
    if result.division is not None and result.memory.kv_bytes and (divides(result) or result.division.differences):
        blocks += [heading("Beside the plain formula")]
        blocks += [paragraph(division_line(result, result.division))] if divides(result) else []
        blocks += [table(differences_grid(result.division))] if result.division.differences else []
    if result.commands and result.memory.kv_bytes:
        blocks += [heading("To serve it so"), *(command(text) for text in result.commands.values())]
    return page(verdict(result), [*blocks, *notes([note.text for note in result.notes])])


def speed_page(result: Speed, chart: Chart | None) -> str:
    """Times, work, roofline, levers and what doubles; `chart` is None where the GPU's arithmetic rate is not known."""
    blocks = [paragraph(timed.setup_line(result)), heading("Times"), table(timed.times_grid(result)), *map(paragraph, timed.sides_lines(result))]
    if chart is not None:
        blocks += [figure(chart, "roof"), figures_of(chart)]
    blocks += [heading("Work"), table(timed.work_grid(result)), heading("Tokens a second"), table(timed.rates_grid(result))]
    blocks += [table(timed.batches_grid(result))] if len(result.batches) > 1 else []
    levers = [grid for grid in (timed.prefill_levers_grid(result), timed.decode_levers_grid(result)) if grid.rows]
    blocks += [heading("What would be faster"), *map(table, levers)] if levers else []
    blocks += [paragraph(timed.chunked_line(result.chunked))] if result.chunked is not None else []
    blocks += [heading("What doubles"), table(timed.doublings_grid(result))]
    blocks += [heading("Without a cache"), table(timed.recomputed_grid(result))] if result.recomputed else []
    blocks += [heading("What the likely times rest on"), *map(paragraph, timed.efficiency_lines(result))]
    return page(timed.verdict(result), [*blocks, *notes([note.text for note in result.notes])])


def sweep_page(result: Sweep, chart: Chart | None) -> str:
    """The table and its picture; `chart` is None where nothing fits."""
    screen = screen_of(result)
    blocks = [paragraph(screen.alike), *([] if chart is None else [figure(chart, "grid"), figures_of(chart)]), table(screen.grid)]
    blocks += [paragraph(f"({number}) {reason}") for number, reason in enumerate(screen.reasons, 1)]
    return page(screen.title, [*blocks, *notes([note.text for note in result.notes])])
