"""The KV-cache dtypes of vLLM 0.33.0 (`--kv-cache-dtype`) and the bytes that each stores for a token.

vllm/config/cache.py names them; sizes: vllm/v1/attention/backends of each dtype.
"""

from typing import Final

from kvcalc.engines.vllm.versions import Version
from kvcalc.errors import KvcalcError
from kvcalc.layers import Facts
from kvcalc.packing import KvDtype

SIXTEEN_BIT: Final = ("auto", "bfloat16", "float16")
EIGHT_BIT: Final = ("fp8", "fp8_e4m3", "fp8_e5m2")
PER_TOKEN_HEAD: Final = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head")
FOUR_BIT_FLOAT: Final = ("nvfp4", "nvfp4_4over6")
TURBOQUANT: Final = {"turboquant_k8v4": (8, 4), "turboquant_4bit_nc": (4, 4), "turboquant_k3v4_nc": (3, 4), "turboquant_3bit_nc": (3, 3)}
"""Bits of K and of V."""
SCALES_OF_A_TOKEN_HEAD: Final = 8
"""Two fp32 scales, one for K and one for V."""
SPARSE_MLA_ROW: Final = 656
"""fp8_ds_mla: 512 fp8 values, 4 fp32 scales, 64 bf16 rotary values."""

_TYPED: Final = {"bf16": "bfloat16", "fp16": "float16"}


def kv_dtype_name(asked: KvDtype, facts: Facts, version: Version) -> str:
    """The dtype as vLLM names it, `auto` replaced by what the checkpoint's quantization names. Raises KvcalcError for one that vLLM has not."""
    if asked.k != asked.v:
        raise KvcalcError(f"vLLM stores K and V alike, not as {asked}", hint="name one dtype; llama.cpp is the engine that takes two")
    name = _TYPED.get(asked.k, asked.k)
    older = (*SIXTEEN_BIT, *EIGHT_BIT)
    known = (*older, *PER_TOKEN_HEAD, *FOUR_BIT_FLOAT, *TURBOQUANT)
    if name in ("fp8_ds_mla", "nvfp4_ds_mla"):
        raise KvcalcError(f"vLLM packs rows as {name} by itself, where a model has sparse MLA and fp8 is asked for", hint="use --kv-dtype fp8")
    if name == "fp8_inc":
        raise KvcalcError("vLLM has fp8_inc on Gaudi alone, whose backends are not modelled", hint="use --kv-dtype fp8")
    if name not in known:
        raise KvcalcError(f"vLLM has no KV dtype {name}", hint=f"it has {', '.join(known)}")
    if name not in older and not version.packs_groups:
        raise KvcalcError(
            f"how vLLM {version.number} stores {name}, or whether it has it, is not known", hint=f"use --engine vllm, or one of {', '.join(older)}"
        )
    if name == "auto":
        return "auto" if facts.kv_dtype is None else facts.kv_dtype
    if name in ("bfloat16", "float16") and facts.dtype in ("bf16", "fp16") and _TYPED[facts.dtype] != name:
        raise KvcalcError(f"vLLM keeps a 16-bit KV cache in the model's own dtype: {_TYPED[facts.dtype]}, not {name}", hint="use --kv-dtype auto")
    return name


def head_bytes(dtype: str, k_dim: int, v_dim: int, model_bytes: int) -> int:
    """Bytes of K and V of one head and token in ordinary attention; `model_bytes` are those of an element in the model's dtype."""
    if dtype in SIXTEEN_BIT:
        return (k_dim + v_dim) * model_bytes
    if dtype in EIGHT_BIT:
        return k_dim + v_dim
    if dtype == "int4_per_token_head":
        return k_dim // 2 + v_dim // 2 + SCALES_OF_A_TOKEN_HEAD
    if dtype in PER_TOKEN_HEAD:
        return k_dim + v_dim + SCALES_OF_A_TOKEN_HEAD
    if dtype in FOUR_BIT_FLOAT:
        return k_dim // 2 + k_dim // 16 + v_dim // 2 + v_dim // 16
    return turboquant_slot(dtype, k_dim, v_dim)


def turboquant_slot(dtype: str, k_dim: int, v_dim: int) -> int:
    """A packed slot of one head and token: the bits of K (a norm of 2 bytes beside them where K is below 8 bits) and of V (scale and zero, 4 bytes),
    rounded up to an even number.
    """
    k_bits, v_bits = TURBOQUANT[dtype]
    k = k_dim if k_bits == 8 else -(-k_bits * k_dim // 8) + 2
    slot = k + -(-v_bits * v_dim // 8) + 4
    return slot + slot % 2
