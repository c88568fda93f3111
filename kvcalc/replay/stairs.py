"""How the units that a request holds rise with its tokens: a plan's `need` at every length, as steps."""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import NamedTuple


class Stairs(NamedTuple):
    """Units at each length from 1 to a limit. Regular ones rise by `unit` every `block` tokens, the first of them on top of `fixed`; others rise to `sums`
    at the lengths `starts`.
    """

    block: int
    unit: int
    fixed: int
    starts: tuple[int, ...] = ()
    sums: tuple[int, ...] = ()

    @property
    def regular(self) -> bool:
        return not self.starts

    def need(self, tokens: int) -> int:
        """Units of a request of so many tokens."""
        if tokens <= 0:
            return 0
        if not self.starts:
            return self.fixed + self.unit * -(-tokens // self.block)
        return self.sums[bisect_right(self.starts, tokens) - 1]

    def rises(self, low: int, high: int) -> Iterable[tuple[int, int]]:
        """Each length above `low`, up to `high`, at which more are needed, and how many more. `low` is at least 1."""
        if not self.starts:
            return zip(range(-(-low // self.block) * self.block + 1, high + 1, self.block), repeat(self.unit), strict=False)
        first, last = bisect_right(self.starts, low), bisect_right(self.starts, high)
        return [(self.starts[index], self.sums[index] - self.sums[index - 1]) for index in range(first, last)]


def stairs(need: Callable[[int], int], block: int, limit: int) -> Stairs:
    """Those of `need`, which must not fall, up to `limit` tokens, for blocks of so many."""
    unit = need(block + 1) - need(block) if limit > block else need(limit)
    plain = Stairs(block, unit, need(1) - unit)
    if unit and all(plain.need(tokens) == need(tokens) for tokens in _probes(block, limit)):
        return plain
    steps = [(1, need(1))]
    _collect(need, steps[0], (limit, need(limit)), steps)
    starts, sums = zip(*steps, strict=True)
    return Stairs(block, 0, 0, starts, sums)


def _probes(block: int, limit: int) -> set[int]:
    """Lengths that tell regular steps from others: what a window or a state changes is told near its size, which may be any power of two."""
    found = {*range(1, 2 * block + 2), limit}
    edge = block
    while edge < limit:
        found |= {edge - 1, edge, edge + 1, edge + block, edge + block + 1}
        edge *= 2
    return {tokens for tokens in found if 1 <= tokens <= limit}


def _collect(need: Callable[[int], int], low: tuple[int, int], high: tuple[int, int], steps: list[tuple[int, int]]) -> None:
    """Adds each length in (low, high] at which `need` is more than just below, and what it is there."""
    (first, least), (last, most) = low, high
    if least == most:
        return
    if last - first == 1:
        steps.append(high)
        return
    middle = (first + last) // 2
    between = (middle, need(middle))
    _collect(need, low, between, steps)
    _collect(need, between, high, steps)
