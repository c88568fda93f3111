"""Where an axis begins and ends, where its ticks fall, and how figures along it are written: alike on a terminal and in a file."""

from collections.abc import Iterable, Sequence
from itertools import count
from math import ceil, floor, log2, log10
from typing import Literal, NamedTuple

from kvcalc.results.plot import Axis, Chart
from kvcalc.units import BINARY_UNITS


class Ends(NamedTuple):
    """The first and the last value of an axis."""

    low: float
    high: float


class Tick(NamedTuple):
    """A value, and how it is written."""

    value: float
    text: str


def axis_name(axis: Axis) -> str:
    """What lies along an axis, its unit, and whether it is logarithmic."""
    unit = [] if axis.unit in axis.label else [axis.unit]
    said = ", ".join(unit + ([] if axis.scale == "linear" else ["log scale"]))
    return f"{axis.label} ({said})" if said else axis.label


def ends(chart: Chart, along: Literal["x", "y"]) -> Ends:
    """Those of all points, bands and marks; outwards to a round figure but along x, whose own ends mean something."""
    axis, at = (chart.x, 0) if along == "x" else (chart.y, 1)
    values = [point[at] for series in chart.series for point in series.points] + [mark.value for mark in chart.marks if mark.axis == along]
    if along == "y":
        values += [end for series in chart.series for band in series.band for end in band if end > 0 or axis.scale == "linear"]
    low, high = min(values), max(values)
    if along == "y":
        low, high = _rounded(axis, low, high)
    return Ends(low, high) if low < high else Ends(low, low * 2 or 1)


def _rounded(axis: Axis, low: float, high: float) -> tuple[float, float]:
    if axis.scale == "linear":
        step = _step(axis, high, 6)
        return 0, step * ceil(high / step) if high else step
    figures = _round_figures(axis, Ends(low, high))
    return max(each for each in figures if each <= low), min(each for each in figures if each >= high)


def _round_figures(axis: Axis, span: Ends) -> list[float]:
    """1, 2 and 5 times the powers of ten about a range, in the unit of the axis."""
    unit = _unit(axis)
    powers = range(floor(log10(span.low / unit)) - 1, ceil(log10(span.high / unit)) + 2)
    return [digit * 10.0**power * unit for power in powers for digit in (1, 2, 5)]


def fraction(axis: Axis, span: Ends, value: float) -> float:
    """How far along the axis a value lies, from 0 to 1."""
    if axis.scale == "linear":
        return (value - span.low) / (span.high - span.low)
    return log2(value / span.low) / log2(span.high / span.low)


def ticks(axis: Axis, span: Ends, most: int) -> list[Tick]:
    """Round values along an axis, as many as there can be up to `most`."""
    match axis.scale:
        case "linear":
            step = _step(axis, span.high - span.low, max(1, most - 1))
            values: Sequence[float] = [step * number for number in range(ceil(span.low / step), floor(span.high / step) + 1)]
        case "log2":
            powers = range(ceil(log2(span.low)), floor(log2(span.high)) + 1)
            values = [2.0**power for power in powers[:: max(1, -(-len(powers) // most))]]
        case "log10":
            values = _within(_round_figures(axis, span), span)
            decades = [each for each in values if _is_decade(each / _unit(axis))]
            if len(values) > most:
                at_ends = {each for each in (values[0], values[-1]) if each in span}
                values = sorted({*decades[:: max(1, -(-len(decades) // most))], *at_ends})
    return [Tick(value, figure(axis, value)) for value in values]


def _is_decade(value: float) -> bool:
    return abs(log10(value) - round(log10(value))) < 1e-9


def _within(values: Iterable[float], span: Ends) -> list[float]:
    return [each for each in values if span.low * (1 - 1e-9) <= each <= span.high * (1 + 1e-9)]


def _step(axis: Axis, length: float, most: int) -> float:
    """The smallest round step that makes no more than `most` of a length: a power of two for tokens, else 1, 2 or 5 times one of ten, in the unit."""
    if axis.quantity == "tokens":
        return 2.0 ** max(0, ceil(log2(length / most)))
    unit = _unit(axis)
    whole = axis.quantity == "count"
    steps = (digit * 10.0**power * unit for power in count(0 if whole else floor(log10(length / unit / most or 1))) for digit in (1, 2, 5))
    return next(step for step in steps if step * most >= length)


def _unit(axis: Axis) -> int:
    return BINARY_UNITS[axis.unit] if axis.quantity == "bytes" else 1


def figure(axis: Axis, value: float) -> str:
    """A value as it stands beside a tick, without its unit: 32K tokens are 32,768."""
    match axis.quantity:
        case "tokens":
            return tokens(round(value))
        case "FLOP/s":
            return _with_prefix(value)
        case "count" | "bytes" | "FLOP/byte":
            return f"{value / _unit(axis):,.10g}"


def tokens(number: int) -> str:
    """A count of tokens in 1,024s where it is a whole number of them."""
    for letter, size in (("M", 1 << 20), ("K", 1 << 10)):
        if number >= size and number % size == 0:
            return f"{number // size:,}{letter}"
    return f"{number:,}"


def _with_prefix(value: float) -> str:
    """Operations a second by the prefixes of the SI: 500G, 1T."""
    for letter, size in (("E", 10**18), ("P", 10**15), ("T", 10**12), ("G", 10**9), ("M", 10**6)):
        if value >= size * (1 - 1e-9):
            return f"{value / size:,.3g}{letter}"
    return f"{value:,.3g}"
