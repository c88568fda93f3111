"""What requests are like beside their longest length: how long they are, and what they have alike. A pure function of a plan and of these."""

from collections.abc import Callable
from math import sqrt
from typing import Final, NamedTuple

from kvcalc.engines.base import Plan
from kvcalc.engines.reuse import block_tokens
from kvcalc.errors import KvcalcError
from kvcalc.search import largest

SAFE_PERCENT: Final = 99
SAFE_DEVIATIONS: Final = 2.326
"""Of a normal distribution, below which 99 of 100 values lie: the blocks of many requests together are distributed so (central limit theorem)."""
MOST_REQUESTS: Final = 1 << 40
"""More than any memory holds."""


class Lengths(NamedTuple):
    """Tokens of requests, prompt and output together, each with how many are so long, the shortest first; and where that was read."""

    counts: tuple[tuple[int, int], ...]
    source: str

    @property
    def number(self) -> int:
        return sum(count for _, count in self.counts)

    @property
    def mean_tokens(self) -> float:
        return sum(tokens * count for tokens, count in self.counts) / self.number

    def up_to(self, tokens: int) -> "Lengths":
        """Those that are no longer. Raises KvcalcError where none is left."""
        kept = tuple(each for each in self.counts if each[0] <= tokens)
        if not kept:
            raise KvcalcError(f"all requests of {self.source} are longer than {tokens:,} tokens", hint="raise --context")
        return self._replace(counts=kept)

    def percentile(self, percent: int) -> int:
        """The shortest length that so many of 100 requests do not exceed."""
        wanted, below = -(-self.number * percent // 100), 0
        for tokens, count in self.counts:
            below += count
            if below >= wanted:
                return tokens
        raise AssertionError("a percentile of no lengths")  # pragma: no cover (Lengths are never empty)


class Workload(NamedTuple):
    """The first `shared_prefix` tokens are the same in all requests; their `lengths`, where these are known."""

    shared_prefix: int = 0
    lengths: Lengths | None = None


class Shared(NamedTuple):
    """Of the tokens that requests have alike, those that a prefix cache holds once: whole blocks of `block` tokens. Where `tokens` is 0 none is shared."""

    plan: Plan
    block: int
    tokens: int

    def once(self, tokens: int) -> int:
        """Units of the pool that requests of so many tokens hold together, once for all of them: what the shared tokens add to a request."""
        need = self.plan.need
        return need(tokens)[0] - need(tokens - self.tokens)[0] if self.tokens and tokens > self.tokens else 0

    def own(self, tokens: int) -> int:
        """Units that each of them holds for itself. One that is no longer than what is shared counts whole."""
        return self.plan.need(tokens)[0] - self.once(tokens)


class Mixed(NamedTuple):
    """Requests of mixed lengths that fit at once: in the `mean`, and so many that they fit in SAFE_PERCENT of 100 draws; the mean of their own units."""

    mean: float
    safe: int
    mean_units: float


def shared(plan: Plan, workload: Workload | None, context: int) -> Shared:
    """Raises KvcalcError where the model keeps no tokens that could be shared, or where requests are no longer than what is shared."""
    if workload is None or not workload.shared_prefix:
        return Shared(plan, 1, 0)
    if workload.shared_prefix >= context:
        text = f"{workload.shared_prefix:,} shared tokens leave nothing of {context:,} for a request's own"
        raise KvcalcError(text, hint="raise --context or lower --shared-prefix")
    block = block_tokens(plan)
    return Shared(plan, block, workload.shared_prefix // block * block)


def mixed(lengths: Lengths, own: Callable[[int], int], free: int) -> Mixed:
    """Requests that so many units hold where `own` says what one of a length takes."""
    units = [(own(tokens), count) for tokens, count in lengths.counts]
    number = lengths.number
    mean = sum(each * count for each, count in units) / number
    if not mean:
        raise KvcalcError("requests of these lengths keep nothing, so that any number of them fits")
    deviation = sqrt(max(0.0, sum(each * each * count for each, count in units) / number - mean * mean))

    def holds(requests: int) -> bool:
        return requests * mean + SAFE_DEVIATIONS * sqrt(requests) * deviation <= free

    longest = max(each for each, _ in units)
    return Mixed(free / mean, max(largest(holds, MOST_REQUESTS), free // longest), mean)
