"""The cache classes of transformers, as --cache names them (cache_utils.py 5.24.0: DynamicCache, StaticCache, QuantizedCache)."""

from math import gcd
from typing import Final, Literal, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.packing import PACKINGS, Packing

GROUP: Final = 64
"""Elements that share a scale and a zero point (q_group_size of QuantizedLayer)."""
RESIDUAL: Final = 128
"""Tokens at which those that are still in the model's dtype are quantized with all the rest (residual_length of QuantizedLayer)."""
SCALE_BYTES: Final = 4
"""The scale of a whole tensor in fp8 (Fp8QuantizedLayer): fp32, one for K and one for V of a layer, however many requests share them."""


class CacheKind(NamedTuple):
    """A cache class under the name that --cache takes. `group_bytes` hold the elements of one group, without scale and zero point."""

    name: str
    stores: Literal["dynamic", "static", "groups", "fp8"]
    group_bytes: int = 0

    @property
    def quantized(self) -> bool:
        return self.stores in ("groups", "fp8")

    def packing(self, model: Packing) -> Packing:
        """The element type of K and V in a model that computes in `model`. A group's scale and zero point have that type."""
        match self.stores:
            case "dynamic" | "static":
                return model
            case "groups":
                size_bytes = self.group_bytes + 2 * model.size_bytes
                parts = gcd(GROUP, size_bytes)
                return Packing(self.name, GROUP // parts, size_bytes // parts)
            case "fp8":
                return PACKINGS["fp8_e4m3"]


_THREE_BIT_BYTES: Final = -(-GROUP // 10) * 4
"""hqq 0.2.8 packs ten 3-bit elements of a group into an int32 (core/bitpack.py, pack_3bit_32)."""

KINDS: Final = {
    kind.name: kind
    for kind in (
        CacheKind("dynamic", "dynamic"),
        CacheKind("static", "static"),
        CacheKind("quanto-2", "groups", GROUP * 2 // 8),
        CacheKind("quanto-4", "groups", GROUP * 4 // 8),
        CacheKind("hqq-1", "groups", GROUP // 8),
        CacheKind("hqq-2", "groups", GROUP * 2 // 8),
        CacheKind("hqq-3", "groups", _THREE_BIT_BYTES),
        CacheKind("hqq-4", "groups", GROUP * 4 // 8),
        CacheKind("hqq-8", "groups", GROUP),
        CacheKind("fp8", "fp8"),
    )
}


def find_kind(text: str) -> CacheKind:
    """The kind of that name. Raises KvcalcError (usage) for another."""
    if text not in KINDS:
        raise KvcalcError(f"unknown --cache {text[:40]!r}", hint=f"known: {', '.join(KINDS)}", code=ExitCode.USAGE)
    return KINDS[text]
