"""What prompts share: a pure function of the prompts, of how they become tokens, and of what the engine holds."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from random import Random
from typing import Final, Literal, NamedTuple

from kvcalc.prefix.blocks import SYMBOL_BYTES, PrefixCache, digest_bytes, digests, reusable_blocks
from kvcalc.prefix.breaks import Place, places_in, without
from kvcalc.prefix.kinds import is_order, masked
from kvcalc.prefix.prompt import Prompt
from kvcalc.results.prefix import Break, Breaks, Hits, Rate, Tree, Trunk
from kvcalc.search import largest
from kvcalc.units import MAX_TOKENS

SAMPLE: Final = 500
"""Prompts in which places are looked for."""
SAMPLE_CHARS: Final = 32_768
"""Of each, the first so many characters: where breaks cost most."""
BATCH_PROMPTS: Final = 256
BATCH_CHARS: Final = 1 << 22
SHOWN_BREAKS: Final = 4
SHOWN_TRUNKS: Final = 8
SMALL_TRUNK: Final = 100
"""A trunk that saves less than this part of all blocks is not shown."""
LEAST_COST: Final = 0.005
"""Hit rate that a break must cost, in the sample, to be measured on all prompts."""

Encode = Callable[[Sequence[str]], Sequence[bytes]]
"""Texts to symbols, each SYMBOL_BYTES bytes a token; the last may be cut short."""
Prefill = Callable[[int, int], tuple[float, float]]
"""Seconds, low and high, that a prompt takes whose first tokens (the first number) of all (the second) are in the cache."""


class Held(NamedTuple):
    """What an engine holds: `units` in all (None: nobody said), of `unit_bytes` each; `need(tokens)` of them for a prompt, of up to `longest` tokens."""

    units: int | None
    unit_bytes: int
    need: Callable[[int], int]
    longest: int


class Rules(NamedTuple):
    """Tokens of a block; what the engine holds, and how fast prefill is, where these are asked about."""

    block_tokens: int
    held: Held | None = None
    prefill: Prefill | None = None

    @property
    def bounded(self) -> bool:
        return self.held is not None and self.held.units is not None


class Shared(NamedTuple):
    """The parts of the answer that follow from the prompts. `cut`: prompts of the sample were longer than what is looked at."""

    tree: Tree
    unlimited: Hits
    budget: Hits | None
    breaks: Breaks | None
    cut: bool


class _Server:
    """One cache that takes prompts one after another, and what it saved."""

    def __init__(self, rules: Rules, *, bounded: bool) -> None:
        self._rules = rules
        self._held = rules.held if bounded else None
        block, held = rules.block_tokens, rules.held
        units = None if held is None else (lambda blocks: held.need(blocks * block))
        self.cache = PrefixCache(digest_bytes(block), None if self._held is None else self._held.units, units)
        self.prompts = self.prompts_hit = self.refused = self.tokens = self.hit_tokens = 0
        self.seconds_low = self.seconds_high = 0.0

    def add(self, symbols: bytes, wanted: bytes, space: bytes) -> None:
        tokens, block, held = -(-len(symbols) // SYMBOL_BYTES), self._rules.block_tokens, self._held
        partly = 0
        if held is not None:
            whole = held.need(tokens)
            if tokens > held.longest or not self.cache.holds(whole):
                self.refused += 1
                return
            full = tokens // block
            partly = whole - (held.need(full * block) if full else 0)
        hit = min(self.cache.add(wanted, partly, space), reusable_blocks(tokens, block)) * block
        self.prompts += 1
        self.tokens += tokens
        self.hit_tokens += hit
        self.prompts_hit += hit > 0
        if self._rules.prefill is not None and hit:
            (cold_low, cold_high), (low, high) = self._rules.prefill(0, tokens), self._rules.prefill(hit, tokens)
            self.seconds_low += cold_low - low
            self.seconds_high += cold_high - high

    def rate(self) -> Rate:
        return Rate(tokens=self.tokens, hit_tokens=self.hit_tokens, hit_rate=self._part())

    def _part(self) -> float:
        return self.hit_tokens / self.tokens if self.tokens else 0.0

    def hits(self) -> Hits:
        timed, held = self._rules.prefill is not None, self._held
        return Hits(
            tokens=self.tokens,
            hit_tokens=self.hit_tokens,
            hit_rate=self._part(),
            prompts=self.prompts,
            prompts_hit=self.prompts_hit,
            refused=self.refused,
            capacity_tokens=None if held is None or held.units is None else _longest(held.need, held.units),
            seconds_saved_low=self.seconds_low if timed else None,
            seconds_saved_high=self.seconds_high if timed else None,
        )


def _rate(hits: Hits) -> Rate:
    return Rate(tokens=hits.tokens, hit_tokens=hits.hit_tokens, hit_rate=hits.hit_rate)


def _longest(need: Callable[[int], int], units: int) -> int:
    """Tokens of the longest prompt that the whole cache holds, whatever the context."""
    return largest(lambda tokens: need(tokens) <= units, MAX_TOKENS)


class _Sample:
    """So many prompts of all, each with the same chance, in their order."""

    def __init__(self) -> None:
        self.seen = 0
        self.cut = False
        self._kept: list[tuple[int, Prompt]] = []
        self._random = Random(0)  # noqa: S311 (a sample, which must be the same each time)

    def add(self, prompt: Prompt) -> None:
        self.seen += 1
        at = len(self._kept) if len(self._kept) < SAMPLE else self._random.randrange(self.seen)
        if at >= SAMPLE:
            return
        kept = (self.seen, self._shortened(prompt))
        self._kept[at : at + 1] = [kept]

    def _shortened(self, prompt: Prompt) -> Prompt:
        if len(prompt.text) <= SAMPLE_CHARS:
            return prompt
        self.cut = True
        return prompt._replace(text=prompt.text[:SAMPLE_CHARS], parts=tuple(part for part in prompt.parts if part.start < SAMPLE_CHARS))

    def prompts(self) -> list[Prompt]:
        return [prompt for _, prompt in sorted(self._kept, key=lambda item: item[0])]


def shared(prompts: Callable[[], Iterable[Prompt]], encode: Encode, rules: Rules, *, again: bool) -> Shared:
    """What the prompts share, in their order. They are read once, and where they can be read `again` and break somewhere, a second time; else breaks
    are measured on a sample of them.
    """
    servers = [_Server(rules, bounded=False)] + ([_Server(rules, bounded=True)] if rules.bounded else [])
    sample = _Sample()
    for batch in _batches(prompts()):
        for prompt, symbols in zip(batch, _symbols(batch, encode), strict=True):
            wanted = digests(symbols, rules.block_tokens)
            for server in servers:
                server.add(symbols, wanted, prompt.space)
            sample.add(prompt)
    tree, hits = _tree(servers[0], rules), [server.hits() for server in servers]
    servers.clear()
    kept = sample.prompts()
    places = _worst(places_in(kept), kept, encode, rules)
    breaks = None
    if places:
        whole = sample.seen <= SAMPLE and not sample.cut
        now = _rate(hits[-1]) if again or whole else None
        breaks = _measured(places, prompts() if again and not whole else kept, encode, rules, now)
    return Shared(tree, hits[0], hits[1] if len(hits) > 1 else None, breaks, sample.cut)


def _batches(prompts: Iterable[Prompt]) -> Iterator[list[Prompt]]:
    """Prompts in groups that are worth encoding together."""
    batch: list[Prompt] = []
    size = 0
    for prompt in prompts:
        batch.append(prompt)
        size += len(prompt.text)
        if len(batch) == BATCH_PROMPTS or size > BATCH_CHARS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _symbols(batch: Sequence[Prompt], encode: Encode) -> list[bytes]:
    encoded = iter(encode([prompt.text for prompt in batch if prompt.ids is None]))
    return [next(encoded) if prompt.ids is None else prompt.ids for prompt in batch]


def _tree(server: _Server, rules: Rules) -> Tree:
    cache, block, held = server.cache, rules.block_tokens, rules.held
    trunks: list[Trunk] = []
    above: list[int] = []
    for run, blocks in cache.trunks(SHOWN_TRUNKS, cache.used_blocks // SMALL_TRUNK):
        while above and run.start < above[-1]:
            above.pop()
        trunks.append(Trunk(level=len(above), start_tokens=run.start * block, tokens=blocks * block, prompts=run.prompts))
        above.append(run.start + blocks)
    sizes = None if held is None else (cache.used_units * held.unit_bytes, cache.new_units * held.unit_bytes)
    return Tree(
        blocks=cache.used_blocks,
        distinct_blocks=cache.new_blocks,
        shared_blocks=cache.shared_blocks,
        alone_bytes=None if sizes is None else sizes[0],
        once_bytes=None if sizes is None else sizes[1],
        shared_bytes=None if sizes is None else sizes[0] - sizes[1],
        trunks=tuple(trunks),
        whole=not cache.overflowed,
    )


# Breaks


def _simulated(batches: Iterable[Sequence[Prompt]], variants: Sequence[Sequence[Place]], encode: Encode, rules: Rules) -> list[_Server]:
    """A server for each variant, which takes the prompts without these places."""
    servers = [_Server(rules, bounded=rules.bounded) for _ in variants]
    for batch in batches:
        texts: dict[str, int] = {}
        wanted = [[texts.setdefault(without(prompt.text, places), len(texts)) if prompt.ids is None else -1 for places in variants] for prompt in batch]
        symbols = [(each, digests(each, rules.block_tokens)) for each in encode(list(texts))]
        for prompt, numbers in zip(batch, wanted, strict=True):
            for server, number in zip(servers, numbers, strict=True):
                server.add(*(symbols[number] if prompt.ids is None else (prompt.ids, digests(prompt.ids, rules.block_tokens))), prompt.space)
    return servers


def _worst(places: Sequence[Place], sample: Sequence[Prompt], encode: Encode, rules: Rules) -> list[Place]:
    """Those that cost most: of all, the one that is missed least is given up as long as that costs next to nothing, or they are too many. So one
    that pays only once another is moved too is kept, and of two that overlap but one.
    """
    kept, unlimited = list(places), rules._replace(held=None, prefill=None)
    while kept:
        variants = [kept, *([other for other in kept if other is not place] for place in kept)]
        best, *rest = (server.rate().hit_rate for server in _simulated(_batches(sample), variants, encode, unlimited))
        rate, _, index = max((rate, kept[index].offset, index) for index, rate in enumerate(rest))
        if best - rate >= LEAST_COST and len(kept) <= SHOWN_BREAKS:
            break
        del kept[index]
    return kept


def _measured(places: Sequence[Place], prompts: Iterable[Prompt], encode: Encode, rules: Rules, now: Rate | None) -> Breaks:
    """The hit rate of the prompts without each of the places, and without any; with all where it is not known yet (None), since these are but a sample."""
    variants: list[Sequence[Place]] = [places, *((place,) for place in places)] if len(places) > 1 else [places]
    variants += [()] if now is None else []
    counts = [0] * len(places)

    def counted() -> Iterator[list[Prompt]]:
        for batch in _batches(prompts):
            for number, place in enumerate(places):
                counts[number] += sum(prompt.ids is None and place.find(prompt.text) is not None for prompt in batch)
            yield batch

    servers = _simulated(counted(), variants, encode, rules._replace(prefill=None))
    moved, *others = servers
    alone = others[: len(places)] if len(places) > 1 else [moved]
    found = []
    for place, prompts_with, server in zip(places, counts, alone, strict=True):
        ahead = encode([place.ahead])[0] if place.ahead else b""
        found.append(
            Break(
                kinds=place.kinds,
                role=place.role or None,
                part=place.part + 1,
                line=place.line,
                token=len(ahead) // SYMBOL_BYTES,
                shown="" if is_order(place.kinds) else masked(place.example),
                prompts=prompts_with,
                remedy="sorted" if is_order(place.kinds) else "moved",
                moved=server.rate(),
            )
        )
    found.sort(key=lambda each: -each.moved.hit_rate)
    on: Literal["all", "sample"] = "sample" if now is None else "all"
    return Breaks(on=on, prompts=moved.prompts + moved.refused, now=now or servers[-1].rate(), all_moved=moved.rate(), found=tuple(found))
