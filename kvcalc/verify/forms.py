"""What a measuring process is asked, and what it answers: JSON in, JSON out."""

from typing import Annotated, Any, Final, Literal

from pydantic import Field

from kvcalc.layers import Frozen, Size

DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""Packings of one element under torch's names."""
REQUESTED: Final = "requested_bytes.all.current"
ALLOCATED: Final = "allocated_bytes.all.current"
"""What torch.cuda.memory_allocated returns."""
RESERVED: Final = "reserved_bytes.all.current"
PEAK: Final = "allocated_bytes.all.peak"
COUNTERS: Final = (REQUESTED, ALLOCATED, RESERVED, PEAK)
"""What is read of torch.cuda.memory_stats."""


class Filled(Frozen):
    """One layer that is filled by `update`: K (or a latent) and V (or a rotary key) of (heads, width), kept whole or for the last `window` tokens."""

    k: tuple[Size, Size]
    v: tuple[Size, Size]
    window: Size | None


class Tensors(Frozen):
    """`count` tensors of one shape and element type."""

    count: Size
    shape: tuple[int, ...]
    dtype: str


class FromModel(Frozen):
    """A model with random weights from a config.json: its caches after a prefill and after decode steps."""

    kind: Literal["model"] = "model"
    config: dict[str, Any]
    encoder_tokens: Annotated[int, Field(ge=0)]


class ByUpdate(Frozen):
    """Cache objects alone, filled as a model would."""

    kind: Literal["update"] = "update"
    layers: Annotated[tuple[Filled, ...], Field(min_length=1)]


class Bare(Frozen):
    """Tensors alone, of the shapes that are predicted."""

    kind: Literal["tensors"] = "tensors"
    tensors: tuple[Tensors, ...]


class Request(Frozen):
    """One case on one device (`cpu`, `cuda`, `cuda:1`), in the packing `dtype`: `batch` requests of `prefill` tokens, decoded to `tokens`; and a static
    cache of `static_tokens`, where there is to be one. `cache_bytes` is the largest of the predictions. No more than `max_bytes` may be taken (None: half
    of what is free); `expandable` tells torch's CUDA allocator to split its segments to the block.
    """

    device: str
    dtype: str
    what: Annotated[FromModel | ByUpdate | Bare, Field(discriminator="kind")]
    batch: Size = 1
    prefill: Size = 1
    tokens: Size = 1
    static_tokens: Size | None = None
    cache_bytes: Annotated[int, Field(ge=0)]
    max_bytes: Annotated[int, Field(ge=0)] | None = None
    expandable: bool = True


Moment = Literal["prefill", "decode", "static", "tensors"]


class Reading(Frozen):
    """The caches at one moment: bytes of each storage on the device, of K, V and states (`storages`) and of counters and window sizes beside them
    (`housekeeping`); bytes of K, V and states on other devices (`elsewhere`). `before` and `after`: COUNTERS, before there was a cache and now (none of a CPU).
    """

    moment: Moment
    storages: tuple[int, ...]
    housekeeping: tuple[int, ...]
    elsewhere: int
    before: dict[str, int] = Field(default_factory=dict)
    after: dict[str, int] = Field(default_factory=dict)

    @property
    def cache_bytes(self) -> int:
        """K, V and states, wherever they are."""
        return sum(self.storages) + self.elsewhere

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of all storages on the device."""
        return (*self.storages, *self.housekeeping)

    def grown(self, counter: str) -> int:
        """What a counter of the allocator grew by. Raises KeyError for one that was not read."""
        return self.after[counter] - self.before[counter]


class Report(Frozen):
    """What was measured, with which releases, on which device. `left` is what the allocator still counted after the last cache was dropped (None on a CPU);
    `refused` says why nothing was measured, where that is so.
    """

    torch: str
    transformers: str
    device_name: str
    readings: tuple[Reading, ...] = ()
    left: int | None = None
    refused: str | None = None
