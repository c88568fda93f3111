"""A pool of units that requests hold, give back, and find again by the prefix that they were filled with.

What vLLM does (BlockPool and FreeKVCacheBlockQueue, vllm/v1/core): units that nobody holds stand in one queue, whether a prefix is known in them or not; the
one that was given back longest ago is handed out next, and what it knew is forgotten then.
"""

from collections import OrderedDict
from dataclasses import dataclass


@dataclass(slots=True)
class Part:
    """A part of a prefix that is kept: its units, the requests that hold it, and whether a conversation ends here."""

    units: int
    holders: int
    tail: bool = False


class Pool:
    """`free` units are held by nobody; `warm` conversations have their last part among them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.free = total
        self.warm = 0
        self.parts: dict[int, Part] = {}
        self._queue: OrderedDict[int, int] = OrderedDict({-1: total})
        self._nameless = -1

    @property
    def queued(self) -> int:
        """Units in the queue: those that are free, counted again."""
        return sum(self._queue.values())

    def take(self, units: int) -> None:
        """Hands out units, of which so many must be free."""
        self.free -= units
        while units:
            key, there = next(iter(self._queue.items()))
            if there > units and key < 0:
                self._queue[key] = there - units
                return
            del self._queue[key]
            if key >= 0:
                self._forget(key)
            if there > units:
                self._nameless -= 1
                self._queue[self._nameless] = there - units
                self._queue.move_to_end(self._nameless, last=False)
                return
            units -= there

    def _forget(self, key: int) -> None:
        self.warm -= self.parts.pop(key).tail

    def give(self, units: int) -> None:
        """Takes back units in which no prefix is known."""
        if not units:
            return
        self.free += units
        last = next(reversed(self._queue)) if self._queue else 0
        if last < 0:
            self._queue[last] += units
        else:
            self._nameless -= 1
            self._queue[self._nameless] = units

    def known(self, keys: tuple[int, ...]) -> int:
        """How many parts of a prefix, from the first on, are kept."""
        found = 0
        for key in keys:
            if key not in self.parts:
                break
            found += 1
        return found

    def idle(self, keys: tuple[int, ...]) -> int:
        """Units of these parts, all of them kept, that nobody holds."""
        return sum(part.units for part in (self.parts[key] for key in keys) if not part.holders)

    def hold(self, key: int) -> int:
        """One more request holds a part; answers its units."""
        part = self.parts[key]
        if not part.holders:
            self.free -= part.units
            del self._queue[key]
            self.warm -= part.tail
        part.holders += 1
        return part.units

    def keep(self, key: int, units: int) -> bool:
        """Makes units that a request holds a part that others find; no, where there is one already."""
        if key in self.parts:
            return False
        self.parts[key] = Part(units, 1)
        return True

    def let_go(self, key: int) -> None:
        """One request less holds a part."""
        part = self.parts[key]
        part.holders -= 1
        if not part.holders:
            self.free += part.units
            self._queue[key] = part.units
            self.warm += part.tail

    def end_conversation(self, key: int, *, ends: bool) -> None:
        """Whether a conversation ends at a part, and not behind it."""
        part = self.parts[key]
        if not part.holders:
            self.warm += ends - part.tail
        part.tail = ends
