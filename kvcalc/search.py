"""The search that every solver needs."""

from collections.abc import Callable


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that `holds`, 0 where not even one does. `holds` must not come back once it is lost."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low
