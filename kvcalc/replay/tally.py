"""Figures of any number of requests in bounded memory."""

from itertools import accumulate
from math import exp, log
from typing import Final

PRECISION: Final = 0.005
"""How far two neighbouring marks of a histogram are apart."""
BINS: Final = 48
"""Intervals in which a course over time is told, at least; at most twice as many."""

_SCALE: Final = 1 / log(1 + PRECISION)


class Histogram:
    """Values of at least 0, each with a weight, kept to PRECISION of themselves; sum, least and largest exactly."""

    def __init__(self) -> None:
        self._marks: dict[int, float] = {}
        self._zeros = 0.0
        self.weight = 0.0
        self.sum = 0.0
        self.least: float | None = None
        self.largest = 0.0

    def add(self, value: float, weight: float = 1) -> None:
        if value > 0:
            mark = round(log(value) * _SCALE)
            self._marks[mark] = self._marks.get(mark, 0) + weight
            self.largest = max(self.largest, value)
        else:
            self._zeros += weight
        self.least = value if self.least is None else min(self.least, value)
        self.weight += weight
        self.sum += value * weight

    @property
    def mean(self) -> float:
        return self.sum / self.weight if self.weight else 0.0

    def percentiles(self, *parts: float) -> list[float]:
        """For each part the value that so large a part of the weight does not exceed."""
        marks = sorted(self._marks)
        below = list(accumulate((self._marks[mark] for mark in marks), initial=self._zeros))
        return [self._at(part * self.weight, marks, below) for part in parts]

    def _at(self, weight: float, marks: list[int], below: list[float]) -> float:
        slack = 1e-9 * self.weight
        if weight <= self._zeros + slack or not marks:
            return 0.0
        index = next((index for index, up_to in enumerate(below[1:]) if up_to + slack >= weight), len(marks) - 1)
        return min(max(exp(marks[index] / _SCALE), self.least or 0.0), self.largest)


class Course:
    """Integrals over time in equal intervals, which grow by twos so that there are never more than 2 x BINS of them."""

    def __init__(self, width_s: float = 1.0) -> None:
        self.width_s = width_s
        self.bins: list[list[float]] = []

    def add(self, start_s: float, stop_s: float, values: tuple[float, ...]) -> None:
        """`values` hold from start to stop."""
        while stop_s >= 2 * BINS * self.width_s:
            self._halve()
        index = int(start_s / self.width_s)
        while start_s < stop_s:
            edge = min(stop_s, (index + 1) * self.width_s)
            while index >= len(self.bins):
                self.bins.append([0.0] * len(values))
            if edge > start_s:
                found = self.bins[index]
                for each, value in enumerate(values):
                    found[each] += value * (edge - start_s)
                start_s = edge
            index += 1

    def _halve(self) -> None:
        pairs = [self.bins[index : index + 2] for index in range(0, len(self.bins), 2)]
        self.bins = [[sum(values) for values in zip(*pair, strict=True)] for pair in pairs]
        self.width_s *= 2
