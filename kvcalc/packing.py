"""Element types of a cache: how many elements share how many bytes."""

from typing import Final, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError


class Packing(NamedTuple):
    """`elements` values are stored together in `size_bytes` bytes."""

    name: str
    elements: int
    size_bytes: int

    def row_bytes(self, width: int) -> int:
        """Bytes of a row of `width` elements; a block that the row fills only in part is stored whole."""
        return -(-width // self.elements) * self.size_bytes

    def fills(self, width: int) -> bool:
        """Whether a row of `width` elements leaves no block of this type part empty."""
        return width % self.elements == 0


# Block formats: ggml-common.h of llama.cpp (QK 32: a 16-bit scale, and for the _1 types a 16-bit minimum, beside the quants).
# nvfp4: 16 4-bit values and an fp8 scale. mxfp4: 32 4-bit values and an 8-bit exponent (OCP Microscaling formats 1.0).
# fp8 and int8 have scales for a whole tensor, which are no part of a row.
PACKINGS: Final = {
    packing.name: packing
    for packing in (
        Packing("fp32", 1, 4),
        Packing("bf16", 1, 2),
        Packing("fp16", 1, 2),
        Packing("fp8", 1, 1),
        Packing("fp8_e4m3", 1, 1),
        Packing("fp8_e5m2", 1, 1),
        Packing("int8", 1, 1),
        Packing("int4", 2, 1),
        Packing("nvfp4", 16, 9),
        Packing("mxfp4", 32, 17),
        Packing("q8_0", 32, 34),
        Packing("q5_1", 32, 24),
        Packing("q5_0", 32, 22),
        Packing("q4_1", 32, 20),
        Packing("q4_0", 32, 18),
        Packing("iq4_nl", 32, 18),
    )
}

_FP8, _INT4, _NVFP4, _THREE_BITS = PACKINGS["fp8"], PACKINGS["int4"], PACKINGS["nvfp4"], Packing("3-bit", 8, 3)
ENGINE_DTYPES: Final = {
    "fp8_ds_mla": (_FP8, _FP8),
    "fp8_inc": (_FP8, _FP8),
    "fp8_per_token_head": (_FP8, _FP8),
    "int8_per_token_head": (PACKINGS["int8"], PACKINGS["int8"]),
    "int4_per_token_head": (_INT4, _INT4),
    "fp4_mx_block16": (_NVFP4, _NVFP4),
    "mxfp8": (_FP8, _FP8),
    "nvfp4_4over6": (_NVFP4, _NVFP4),
    "nvfp4_ds_mla": (_NVFP4, _NVFP4),
    "turboquant_k8v4": (_FP8, _INT4),
    "turboquant_4bit_nc": (_INT4, _INT4),
    "turboquant_k3v4_nc": (_THREE_BITS, _INT4),
    "turboquant_3bit_nc": (_THREE_BITS, _THREE_BITS),
}
"""Types of which only an engine can say what a row takes, since it stores scales or pads in its own way: the packings of K and of V alone."""

ALIASES: Final = {
    "bfloat16": "bf16",
    "f16": "fp16",
    "f32": "fp32",
    "float": "fp32",
    "float16": "fp16",
    "float32": "fp32",
    "float8_e4m3fn": "fp8_e4m3",
    "float8_e5m2": "fp8_e5m2",
    "half": "fp16",
}
"""The same types as PyTorch, vLLM and llama.cpp write them."""


def packing_name(text: str) -> str | None:
    """The name in PACKINGS that `text` stands for, or None."""
    name = text.strip().lower()
    name = ALIASES.get(name, name)
    return name if name in PACKINGS else None


class KvDtype(NamedTuple):
    """The element types of K (and of everything cached that is not V) and of V. `auto` is the model's own."""

    k: str
    v: str

    def __str__(self) -> str:
        return self.k if self.k == self.v else f"k={self.k},v={self.v}"

    def elements(self) -> tuple[Packing, Packing]:
        """The packings of K and V, without what an engine stores beside the elements. `auto` must be resolved."""
        k = ENGINE_DTYPES[self.k][0] if self.k in ENGINE_DTYPES else PACKINGS[self.k]
        v = ENGINE_DTYPES[self.v][1] if self.v in ENGINE_DTYPES else PACKINGS[self.v]
        return k, v

    def resolved(self, auto: str) -> "KvDtype":
        """The same with `auto` replaced."""
        return KvDtype(*(auto if name == "auto" else name for name in (self.k, self.v)))


AUTO: Final = KvDtype("auto", "auto")


def parse_kv_dtype(text: str) -> KvDtype:
    """A KV dtype as typed: "auto", a name, or "k=NAME,v=NAME". Raises KvcalcError (usage) for anything else."""
    if "=" not in text:
        name = _named(text)
        return KvDtype(name, name)
    sides: dict[str, str] = {}
    for part in text.split(","):
        side, _, name = part.partition("=")
        side = side.strip().lower()
        if side not in ("k", "v") or side in sides:
            raise KvcalcError(f"KV dtype {text[:60]!r} names neither one type nor k=NAME,v=NAME", code=ExitCode.USAGE)
        sides[side] = _named(name)
    if len(sides) != 2:
        raise KvcalcError(f"KV dtype {text[:60]!r} names only one of k and v", code=ExitCode.USAGE)
    return KvDtype(sides["k"], sides["v"])


def _named(text: str) -> str:
    if text.strip().lower() == "auto":
        return "auto"
    if (engine_name := text.strip().lower()) in ENGINE_DTYPES:
        return engine_name
    name = packing_name(text)
    if name is None:
        raise KvcalcError(f"unknown KV dtype {text[:40]!r}", hint=f"known: auto, {', '.join((*PACKINGS, *ENGINE_DTYPES))}", code=ExitCode.USAGE)
    return name


def parse_state_dtype(text: str) -> str | None:
    """The packing of recurrent states as typed, None for "auto". Raises KvcalcError (usage) for anything else."""
    name = packing_name(text)
    if text.strip().lower() == "auto":
        return None
    if name not in ("fp32", "fp16", "bf16"):
        raise KvcalcError(f"unknown state dtype {text[:40]!r}", hint="known: auto, float32, float16, bfloat16", code=ExitCode.USAGE)
    return name
