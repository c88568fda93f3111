"""How vLLM 0.33.0 puts layers into groups that share a block table, and what a block id then costs (vllm/v1/core/kv_cache_utils.py)."""

from collections.abc import Callable, Sequence
from math import lcm
from typing import NamedTuple

from kvcalc.engines.vllm.pages import Layout, PageSpec
from kvcalc.errors import KvcalcError


class Group(NamedTuple):
    """Layers with one block table. Where pages differ (a uniform or packed group), each keeps its own. `unlike`: one spec of each family, block and
    span, which are what blocks depend on.
    """

    specs: tuple[PageSpec, ...]
    unlike: tuple[PageSpec, ...]

    def page_bytes(self, on_stage: Callable[[int], bool]) -> int:
        """Bytes of one block in the layers that `on_stage` picks."""
        return sum(spec.page_bytes for spec in self.specs if on_stage(spec.layer))


def _group(specs: tuple[PageSpec, ...]) -> Group:
    unlike = {(spec.family, spec.block, spec.span): spec for spec in reversed(specs)}
    return Group(specs, tuple(unlike.values()))


class Grouping(NamedTuple):
    """All groups, and the bytes to which a block is rounded (1 where pages lie layer by layer)."""

    groups: tuple[Group, ...]
    rounding: int

    def block_bytes(self, on_stage: Callable[[int], bool]) -> int:
        """What one block id costs on a pipeline stage: its widest group, counting the layers it has."""
        widest = max(group.page_bytes(on_stage) for group in self.groups)
        return -(-widest // self.rounding) * self.rounding


def group(layout: Layout, alignment: int, growth_percent: int) -> Grouping:
    """The rules in their order. `alignment` is the stride of sparse MLA rows, which counts for packed groups; `growth_percent` is how much larger
    than the smallest bucket the largest may be for groups to take its size.
    """
    specs = layout.specs
    if len({spec.same for spec in specs}) == 1:
        return Grouping((_group(specs),), 1)
    if uniform(specs):
        return Grouping((_group(specs),), 1)
    if layout.block_outermost and len({spec.page_bytes for spec in specs}) > 1:
        return Grouping(_packed(specs), lcm(alignment, *(spec.alignment for spec in specs)))
    return Grouping(_equal_sized(_one_page_size(specs), growth_percent), 1)


def uniform(specs: Sequence[PageSpec]) -> bool:
    """Layers of one kind and block size, whose pages may differ: all that keep everything, or windows of one length, or equal states."""
    first = specs[0]
    if any(spec.family != first.family or spec.block != first.block for spec in specs):
        return False
    match first.family:
        case "full" | "ring" | "cross":
            return True
        case "sliding" | "sliding_mla" | "chunked":
            return all(spec.span == first.span for spec in specs)
        case "mamba":
            return all(spec.same == first.same for spec in specs)


def _one_page_size(specs: Sequence[PageSpec]) -> tuple[PageSpec, ...]:
    """Pages enlarged to the largest: attention takes more tokens a page where the largest is a multiple of its own, states and the rest are padded."""
    largest = max(spec.page_bytes for spec in specs)
    grown = []
    for spec in specs:
        ratio, rest = divmod(largest, spec.page_bytes)
        if spec.family == "mamba" or rest:
            if rest and spec.cache.kernel == "mla":
                raise KvcalcError("vLLM cannot bring the pages of this model's MLA and other layers to one size")
            grown.append(spec._replace(page_bytes=largest, own_bytes=spec.page_bytes if spec.own_bytes is None else spec.own_bytes))
        else:
            grown.append(spec._replace(page_bytes=largest, block=spec.block * ratio))
    return tuple(grown)


def _equal_sized(specs: Sequence[PageSpec], growth_percent: int) -> tuple[Group, ...]:
    """Groups of as many layers as the smallest bucket has, or the largest where it is little larger; the last may be short."""
    buckets: dict[tuple[object, ...], list[PageSpec]] = {}
    for spec in specs:
        buckets.setdefault(spec.same, []).append(spec)
    smallest, largest = min(map(len, buckets.values())), max(map(len, buckets.values()))
    size = largest if 100 * largest < growth_percent * smallest else smallest
    return tuple(each for bucket in buckets.values() for each in _dealt(bucket, -(-len(bucket) // size)))


def _dealt(bucket: Sequence[PageSpec], count: int) -> list[Group]:
    """A bucket dealt round-robin into groups."""
    return [_group(tuple(bucket[start::count])) for start in range(count)]


def _packed(specs: Sequence[PageSpec]) -> tuple[Group, ...]:
    """Groups of pages of several sizes, so that one block id wastes little (block-outermost layouts)."""
    buckets: list[list[PageSpec]] = []
    for spec in specs:
        home = next((bucket for bucket in buckets if uniform([bucket[0], spec])), None)
        if home is None:
            buckets.append([spec])
        else:
            home.append(spec)
    counts = [_counts(bucket) for bucket in buckets]
    repeats = [sizes[0] if len(set(sizes)) == 1 else None for sizes in counts]
    mixed = [repeat for repeat, sizes in zip(repeats, counts, strict=True) if repeat is not None and len(sizes) > 1]
    depth = _depth(min_depth=max(mixed), repeats=[repeat for repeat in repeats if repeat is not None]) if mixed else None
    parts = [1 if repeat is None or depth is None else -(-repeat // depth) for repeat in repeats]
    states = [bucket[0].family in ("mamba", "ring") or (depth is None and bucket[0].family == "sliding_mla") for bucket in buckets]
    anchor = max(_widest(bucket, part, alone=state) for bucket, part, state in zip(buckets, parts, states, strict=True))
    split = []
    for bucket, part, state in zip(buckets, parts, states, strict=True):
        page = max(spec.page_bytes for spec in bucket)
        split.append(max(part, -(-len(bucket) // max(1, anchor // page))) if state else part)
    return tuple(each for bucket, part in zip(buckets, split, strict=True) for each in _dealt_by_size(bucket, part))


def _counts(bucket: Sequence[PageSpec]) -> list[int]:
    """Layers of each page size."""
    return [sum(spec.page_bytes == size for spec in bucket) for size in dict.fromkeys(spec.page_bytes for spec in bucket)]


def _depth(min_depth: int, repeats: Sequence[int]) -> int:
    """Repeats in a group: what wastes least over all buckets, the larger on a tie."""
    return min(range(min_depth, max(repeats) + 1), key=lambda depth: (sum(-(-repeat // depth) * depth - repeat for repeat in repeats), -depth))


def _widest(bucket: Sequence[PageSpec], parts: int, *, alone: bool) -> int:
    """Bytes of the widest group of a bucket; of one layer for states."""
    if alone:
        return max(spec.page_bytes for spec in bucket)
    return max(sum(spec.page_bytes for spec in each.specs) for each in _dealt_by_size(bucket, parts))


def _dealt_by_size(bucket: Sequence[PageSpec], count: int) -> list[Group]:
    """A bucket dealt round-robin, one layer of each page size at a time."""
    dealt: list[list[PageSpec]] = [[] for _ in range(count)]
    for size in dict.fromkeys(spec.page_bytes for spec in bucket):
        for position, spec in enumerate(each for each in bucket if each.page_bytes == size):
            dealt[position % count].append(spec)
    return [_group(tuple(specs)) for specs in dealt]
