"""What torch's CUDA allocator charges for tensors, where one stream allocates and frees nothing in between.

Rules: torch 2.13.0, c10/cuda/CUDACachingAllocator.cpp and c10/core/AllocatorConfig.h, without roundup_power2_divisions and max_split_size.
"""

from collections.abc import Iterable
from typing import Final, NamedTuple

from kvcalc.units import BINARY_UNITS

MIN_BLOCK: Final = 512
"""kMinBlockSize: sizes are rounded up to a multiple."""
SMALL: Final = BINARY_UNITS["MiB"]
"""kSmallSize: the largest block that comes from the small pool, and what must be left of a large block for it to be split."""
SMALL_SEGMENT: Final = 2 * SMALL
"""kSmallBuffer: what the small pool takes from the driver at once."""
LARGE_SEGMENT: Final = 20 * SMALL
"""kLargeBuffer: the same for blocks of less than MIN_LARGE."""
MIN_LARGE: Final = 10 * SMALL
"""kMinLargeAlloc: blocks from this size get a segment of their own, rounded up to ROUND_LARGE."""
ROUND_LARGE: Final = 2 * SMALL


class Charged(NamedTuple):
    """Bytes asked for, and bytes of the blocks handed out, which torch.cuda.memory_allocated is the sum of."""

    requested: int
    allocated: int


def block_bytes(size_bytes: int) -> int:
    """The block that a tensor of `size_bytes` needs. Nothing is allocated for an empty one."""
    return -(-size_bytes // MIN_BLOCK) * MIN_BLOCK


def blocks_bytes(sizes: Iterable[int]) -> int:
    """What tensors are charged with expandable segments, which are split to the block, in any order."""
    return sum(map(block_bytes, sizes))


def most_charged(sizes: Iterable[int]) -> int:
    """The most that tensors can be charged without expandable segments, in any order: a large block is handed out whole where SMALL or less would be left."""
    return sum(block + (SMALL if block > SMALL else 0) for block in map(block_bytes, sizes))


def charged(sizes: Iterable[int]) -> Charged:
    """What tensors allocated in this order are charged without expandable segments, by an allocator that holds no free block before."""
    requested = allocated = 0
    free: list[int] = []  # blocks of the large pool; a small one is always split
    for size in sizes:
        requested += size
        block = block_bytes(size)
        if block > SMALL:
            whole = min((each for each in free if each >= block), default=0)
            if whole:
                free.remove(whole)
            else:
                whole = LARGE_SEGMENT if block < MIN_LARGE else -(-block // ROUND_LARGE) * ROUND_LARGE
            if whole - block > SMALL:
                free.append(whole - block)
            else:
                block = whole
        allocated += block
    return Charged(requested, allocated)
