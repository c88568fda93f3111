"""Prompts in whole blocks, and the cache of blocks that they share.

A prompt is `symbols`: SYMBOL_BYTES bytes for each token, token ids or the text itself. Of a block the cache keeps a digest alone.
"""

from array import array
from collections import deque
from collections.abc import Callable
from functools import lru_cache
from itertools import islice
from typing import Final

from kvcalc.search import largest

SYMBOL_BYTES: Final = 4
"""What a token takes in `symbols`: an id in 32 bits, and as many bytes of English text:
https://help.openai.com/en/articles/4936856-what-are-tokens-and-how-to-count-them (four characters, read 2026-11-29)."""
DIGEST_BYTES: Final = 8
"""What is kept of a block that is longer than that."""
RUN_WEIGHT: Final = 64
"""Digests that take the memory of one run beside its own (CPython 3.11: object, children, key, its place in the order)."""
MOST_WEIGHT: Final = 1 << 25
"""Digests that a cache without a budget holds, runs counted as RUN_WEIGHT: 256 MiB."""


def digest_bytes(block_tokens: int) -> int:
    return min(DIGEST_BYTES, SYMBOL_BYTES * block_tokens)


def digests(symbols: bytes, block_tokens: int) -> bytes:
    """A digest of each whole block; short blocks as they are. Two blocks of one digest would count as one: at 64 bits, and compared at one place of the tree
    alone, less than once in a million files of a million blocks.
    """
    size = SYMBOL_BYTES * block_tokens
    if size <= DIGEST_BYTES:
        return symbols[: len(symbols) // size * size]
    return array("q", [hash(symbols[at : at + size]) for at in range(0, len(symbols) - size + 1, size)]).tobytes()


def reusable_blocks(tokens: int, block_tokens: int) -> int:
    """Blocks of a prompt that can come from the cache: whole ones, and never that of the last token, whose logits are wanted
    (vllm/v1/core/kv_cache_manager.py 0.33.0, get_computed_blocks; sglang/srt/managers/schedule_batch.py, max_prefix_len).
    """
    return max(0, tokens - 1) // block_tokens


class Run:
    """Blocks that follow one another and were last used by the same prompt; `start` is the depth of the first. `prompts` went through all of them. Of a root,
    which is its own parent, `digests` is empty.
    """

    __slots__ = ("children", "digests", "parent", "prompts", "start", "used_at")

    def __init__(self, parent: "Run | None", start: int, digests: bytes, used_at: int, prompts: int) -> None:
        self.parent = self if parent is None else parent
        self.start = start
        self.digests = digests
        self.used_at = used_at
        self.prompts = prompts
        self.children = NO_CHILDREN


NO_CHILDREN: Final[dict[bytes, Run]] = {}
"""Of all runs that have none: most are ends, and a dict for each would double what they take."""


class Root(Run):
    """Where the prompts of one `space` begin: others share nothing with them, whatever they say."""

    __slots__ = ("space",)

    def __init__(self, space: bytes) -> None:
        super().__init__(None, 0, b"", 0, 0)
        self.space = space


class PrefixCache:
    """Blocks of prompts that come one after another, by what stands before them: radix trees, of which the least recently used blocks go first, and of one
    prompt's the last (vllm/v1/core/block_pool.py 0.33.0: blocks are freed tail first; sglang/srt/mem_cache/radix_cache.py evicts leaves). vLLM may hold a
    block twice, if the last token of a prompt was recomputed in it: here it is held once.

    `units(n)` is what a prompt of n blocks takes, and never falls; `capacity` is what there is, None without end. `partly` is what a block takes that is
    not full: it is held as the others are, but found by nobody. Where memory ends first, the oldest blocks go too, and `overflowed` is set.
    """

    def __init__(self, width: int, capacity: int | None = None, units: Callable[[int], int] | None = None, most_weight: int = MOST_WEIGHT) -> None:
        self.overflowed = False
        self.used_blocks = 0
        self.used_units = 0
        """Units of all prompts, each on its own, without blocks that are not full."""
        self.new_units = 0
        """Units that were not in the cache yet."""
        self.new_blocks = 0
        self.shared_blocks = 0
        """Blocks that more than one prompt has used."""
        self._roots: dict[bytes, Root] = {}
        self._width = width
        self._capacity = capacity
        self._units = (lambda blocks: blocks) if units is None else lru_cache(maxsize=1 << 16)(units)
        self._most_weight = most_weight
        self._time = 0
        self._held = 0
        self._weight = 0
        self._order: deque[_Ended] = deque()

    def add(self, wanted: bytes, partly: int = 0, space: bytes = b"") -> int:
        """Takes the digests of a prompt of a space; returns how many of its first blocks were there."""
        self._time += 1
        width = self._width
        run: Run = self._roots.setdefault(space, Root(space))
        at, end = 0, len(wanted)
        while at < end:
            child = run.children.get(wanted[at : at + width])
            if child is None:
                break
            common = len(child.digests) if wanted.startswith(child.digests, at) else self._agreeing(child.digests, wanted, at)
            if common < len(child.digests):
                child = self._split(child, common)
            if child.prompts == 1:
                self.shared_blocks += common // width
            child.prompts += 1
            child.used_at = self._time
            run, at = child, at + common
        found, blocks = at // width, end // width
        if at < end:
            run = self._grow(run, found, wanted[at:])
        self.used_blocks += blocks
        self.used_units += self._units(blocks) if blocks else 0
        self._held += partly
        self._order.append(_Ended(self._time, run, partly))
        self._weight += RUN_WEIGHT // 4
        self._shrink()
        return found

    def holds(self, units: int) -> bool:
        """Whether a prompt that takes so many can run at all."""
        return self._capacity is None or units <= self._capacity

    def _agreeing(self, held: bytes, wanted: bytes, at: int) -> int:
        """Bytes of whole digests that a run and a prompt have in common: at least the first, not all of the run's."""
        width = self._width
        return width * largest(lambda blocks: wanted.startswith(held[: blocks * width], at), min(len(held), len(wanted) - at) // width)

    def _split(self, run: Run, common: int) -> Run:
        """The first part of a run; the run itself becomes the rest, since it is the end of the prompts that used it last."""
        parent = run.parent
        upper = Run(parent, run.start, run.digests[:common], run.used_at, run.prompts)
        parent.children[upper.digests[: self._width]] = upper
        run.parent, run.start, run.digests = upper, run.start + common // self._width, run.digests[common:]
        upper.children = {run.digests[: self._width]: run}
        self._weight += RUN_WEIGHT
        return upper

    def _grow(self, parent: Run, start: int, digests: bytes) -> Run:
        run = Run(parent, start, digests, self._time, 1)
        if parent.children is NO_CHILDREN:
            parent.children = {}
        parent.children[digests[: self._width]] = run
        blocks = len(digests) // self._width
        added = self._between(start, start + blocks)
        self.new_blocks += blocks
        self.new_units += added
        self._held += added
        self._weight += RUN_WEIGHT + blocks
        return run

    def _between(self, start: int, end: int) -> int:
        return self._units(end) - (self._units(start) if start else 0)

    def _shrink(self) -> None:
        """Drops what was not used for longest, until the rest fits."""
        while self._order and ((over := 0 if self._capacity is None else self._held - self._capacity) > 0 or self._weight > self._most_weight):
            oldest = self._order[0]
            self._held -= oldest.partly
            over -= oldest.partly
            oldest.partly = 0
            run = oldest.run
            if isinstance(run, Root) or run.used_at != oldest.time:
                self._order.popleft()
                if isinstance(run, Root) and not run.children and self._roots.get(run.space) is run:
                    del self._roots[run.space]
                self._weight -= RUN_WEIGHT // 4
            elif self._weight > self._most_weight:
                self.overflowed = True
                self._drop(oldest)
            elif over > 0:
                self._trim(oldest, over)

    def _drop(self, oldest: "_Ended") -> None:
        run = oldest.run
        blocks = len(run.digests) // self._width
        self._held -= self._between(run.start, run.start + blocks)
        self._weight -= RUN_WEIGHT + blocks
        del run.parent.children[run.digests[: self._width]]
        oldest.run = run.parent

    def _trim(self, oldest: "_Ended", over: int) -> None:
        """As many of a run's last blocks as make room for `over` units."""
        run = oldest.run
        blocks = len(run.digests) // self._width
        end = run.start + blocks
        low, high = 1, blocks
        while low < high:
            middle = (low + high) // 2
            if self._between(end - middle, end) >= over:
                high = middle
            else:
                low = middle + 1
        if low == blocks:
            self._drop(oldest)
            return
        self._held -= self._between(end - low, end)
        self._weight -= low
        run.digests = run.digests[: -low * self._width]

    def trunks(self, most: int, least_saved: int) -> list[tuple[Run, int]]:
        """The runs of which sharing saves most, and at least so many blocks, each with its blocks; in the order of the tree: from the root, the more prompts
        first.
        """
        found: list[tuple[int, int, Run]] = []
        order, waiting = 0, list[Run](self._roots.values())
        while waiting:
            run = waiting.pop()
            blocks = len(run.digests) // self._width
            if blocks and (run.prompts - 1) * blocks >= max(1, least_saved):
                found.append(((run.prompts - 1) * blocks, -order, run))
            order += 1
            shared = [child for child in run.children.values() if child.prompts > 1]
            waiting += sorted(shared, key=lambda child: child.prompts)
        best = islice(sorted(found, key=lambda item: item[:2], reverse=True), most)
        return [(run, len(run.digests) // self._width) for _, _, run in sorted(best, key=lambda item: -item[1])]


class _Ended:
    """Where the blocks of one prompt end that no later one has used, and what its last block took that was not full."""

    __slots__ = ("partly", "run", "time")

    def __init__(self, time: int, run: Run, partly: int) -> None:
        self.time = time
        self.run = run
        self.partly = partly
