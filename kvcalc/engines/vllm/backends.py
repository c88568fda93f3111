"""Which attention backend vLLM 0.33.0 takes on a CUDA GPU, and what follows for the cache: block sizes, packed rows, refusals.

vllm/platforms/cuda.py (priorities) and vllm/v1/attention/backends (what each supports). A GPU counts by its compute capability, times ten.
"""

from typing import Final, NamedTuple

from kvcalc.engines.vllm.dtypes import EIGHT_BIT, FOUR_BIT_FLOAT, PER_TOKEN_HEAD, SIXTEEN_BIT, SPARSE_MLA_ROW, TURBOQUANT
from kvcalc.errors import KvcalcError

HOPPER: Final = 90
FLASHINFER_HEADS: Final = (64, 128, 256, 512)
DEFAULT_BLOCK: Final = 16


class Backend(NamedTuple):
    """A backend as this model uses it. `block` tokens, or a multiple, is what its kernels take; `row_bytes` replaces the bytes of a token where
    the backend packs rows its own way.
    """

    name: str
    block: int = DEFAULT_BLOCK
    row_bytes: int | None = None


class Attention(NamedTuple):
    """What decides about the backend of ordinary attention."""

    k_dim: int
    v_dim: int
    full_causal: bool
    """No window, no chunk."""
    sinks: bool = False
    alibi: bool = False
    image_prefix: bool = False


def is_blackwell(capability: int) -> bool:
    """SM10x: data-centre Blackwell."""
    return 100 <= capability < 110


def no_backend(dtype: str, capability: int, why: str) -> KvcalcError:
    """The refusal that vLLM words "No valid attention backend found"."""
    gpu = f"compute capability {capability // 10}.{capability % 10}"
    return KvcalcError(f"vLLM has no attention backend for KV dtype {dtype} on a GPU of {gpu} here: {why}", hint="use --kv-dtype auto, or another GPU")


def dense(attention: Attention, dtype: str, capability: int, given_block: int | None) -> Backend:
    """The backend of ordinary attention. Raises KvcalcError where there is none."""
    if attention.k_dim != attention.v_dim:
        return _different_widths(dtype, capability)
    if dtype in TURBOQUANT:
        if not attention.full_causal or attention.sinks or attention.image_prefix:
            raise no_backend(dtype, capability, "TurboQuant wants full causal attention without sinks")
        if is_blackwell(capability):
            raise no_backend(dtype, capability, "its 16-bit layers want another cache layout than its packed ones")
        return Backend("TURBOQUANT")
    if dtype in FOUR_BIT_FLOAT:
        return _four_bit(attention, dtype, capability)
    if dtype in PER_TOKEN_HEAD:
        return Backend("TRITON_ATTN")
    if attention.image_prefix:
        return _image_prefix(attention, dtype, capability, given_block)
    if dtype in SIXTEEN_BIT:
        return _sixteen_bit(attention, capability)
    return _eight_bit(attention, dtype, capability)


def _flashinfer(attention: Attention, capability: int) -> bool:
    return attention.k_dim in FLASHINFER_HEADS and not attention.alibi and (not attention.sinks or capability >= HOPPER)


def _triton(dtype: str, capability: int) -> Backend:
    if dtype in EIGHT_BIT and capability < 89:
        raise no_backend(dtype, capability, "the Triton backend, which is left, takes fp8 from compute capability 8.9 on")
    return Backend("TRITON_ATTN")


def _flash_heads(width: int, capability: int) -> bool:
    """Head sizes of FlashAttention: multiples of 8 up to 256, and 512 where FA4 is there."""
    return width % 8 == 0 and (width <= 256 or (width == 512 and (capability == HOPPER or is_blackwell(capability))))


def _sixteen_bit(attention: Attention, capability: int) -> Backend:
    flash = _flash_heads(attention.k_dim, capability) and not (attention.sinks and capability != HOPPER)
    if is_blackwell(capability) and _flashinfer(attention, capability):
        return Backend("FLASHINFER")
    if flash:
        return Backend("FLASH_ATTN", 128 if is_blackwell(capability) and attention.k_dim == 256 else DEFAULT_BLOCK)
    if _flashinfer(attention, capability):
        return Backend("FLASHINFER")
    return Backend("TRITON_ATTN")


def _eight_bit(attention: Attention, dtype: str, capability: int) -> Backend:
    if capability == HOPPER and dtype != "fp8_e5m2" and _flash_heads(attention.k_dim, capability):
        if attention.alibi:
            raise no_backend(dtype, capability, "FlashAttention with ALiBi takes no fp8 on this GPU")
        return Backend("FLASH_ATTN", 64 if attention.k_dim == 512 else DEFAULT_BLOCK)
    if attention.k_dim in FLASHINFER_HEADS and (not attention.sinks or is_blackwell(capability)) and (not attention.alibi or is_blackwell(capability)):
        return Backend("FLASHINFER")
    return _triton(dtype, capability)


def _image_prefix(attention: Attention, dtype: str, capability: int, given_block: int | None) -> Backend:
    """Models that read image tokens both ways: head sizes 256 and 512 have backends of their own on Hopper and Blackwell."""
    if attention.k_dim in (256, 512) and capability == HOPPER and dtype != "fp8_e5m2":
        block = 64 if attention.k_dim == 512 and dtype in EIGHT_BIT else DEFAULT_BLOCK
        if given_block is None or given_block % block == 0:
            return Backend("TRITON_FLASH_ATTN", block)
    elif attention.k_dim in (256, 512) and is_blackwell(capability) and (given_block is None or given_block % 64 == 0):
        return Backend("TRITON_FLASHINFER", 64)
    return _triton(dtype, capability)


def _four_bit(attention: Attention, dtype: str, capability: int) -> Backend:
    if attention.k_dim not in FLASHINFER_HEADS or attention.image_prefix:
        raise no_backend(dtype, capability, "nvfp4 wants a head size of 64, 128, 256 or 512, and no image prefix")
    if not is_blackwell(capability) and (attention.k_dim == 64 or attention.sinks or dtype == "nvfp4_4over6"):
        raise no_backend(dtype, capability, "outside compute capability 10.x nvfp4 takes no head size of 64 and no sinks, and 4over6 not at all")
    return Backend("FLASHINFER")


def _different_widths(dtype: str, capability: int) -> Backend:
    """K wider than V (MiMo-V2)."""
    if dtype not in (*SIXTEEN_BIT, "fp8", "fp8_e4m3"):
        raise no_backend(dtype, capability, "with K and V of different width only fp8 (e4m3) is taken")
    if dtype in EIGHT_BIT and (capability < 89 or is_blackwell(capability)):
        raise no_backend(dtype, capability, "with K and V of different width FlashAttention takes fp8 on compute capability 9.0 alone")
    if capability == HOPPER or is_blackwell(capability):
        return Backend("FLASH_ATTN_DIFFKV")
    return Backend("TRITON_ATTN_DIFFKV")


def mla(dtype: str, capability: int, given_block: int | None, nope: int | None) -> Backend:
    """The backend of MLA without an indexer; `nope` is the width of a head's key without its rotary part."""
    if dtype in FOUR_BIT_FLOAT:
        raise KvcalcError("vLLM: nvfp4 KV cache is not supported with MLA", hint="use --kv-dtype fp8")
    if dtype not in (*SIXTEEN_BIT, "fp8", "fp8_e4m3"):
        raise no_backend(dtype, capability, "MLA on CUDA takes 16 bits, fp8 and fp8_e4m3")
    eight = dtype in EIGHT_BIT
    if capability == HOPPER and not eight:
        return Backend("FLASH_ATTN_MLA")
    if capability == HOPPER and (given_block is None or given_block % 64 == 0):
        return Backend("FLASHMLA", 64)
    if is_blackwell(capability) and nope in (64, 128, 192) and (given_block is None or given_block % 32 == 0):
        return Backend("FLASHINFER_MLA", 32)
    if is_blackwell(capability) and (given_block is None or given_block % 128 == 0):
        return Backend("CUTLASS_MLA", 128)
    if eight and capability < 89:
        raise no_backend(dtype, capability, "the Triton MLA backend, which is left, takes fp8 from compute capability 8.9 on")
    return Backend("TRITON_MLA")


class SparseMla(NamedTuple):
    """A sparse MLA backend and the stride, in bytes, that packed groups are rounded to."""

    backend: Backend
    alignment: int


def sparse_mla(dtype: str, capability: int, given_block: int | None, width: int, dcp: int) -> SparseMla:
    """The backend of MLA with an indexer, whose rows of `width` elements it may pack."""
    _check_sparse_mla(dtype, capability, given_block)
    if is_blackwell(capability):
        if dtype in EIGHT_BIT:
            return SparseMla(Backend("FLASHINFER_MLA_SPARSE", 64, width), 32 * width)
        return SparseMla(Backend("FLASHMLA_SPARSE", 64, 2 * width), 1)
    if dtype == "fp8" and width == 576:
        return SparseMla(Backend("FLASHMLA_SPARSE", 64, SPARSE_MLA_ROW), SPARSE_MLA_ROW)
    if dcp > 1 and dtype in SIXTEEN_BIT:
        raise KvcalcError("vLLM: DCP for sparse MLA wants packed fp8 rows", hint="use --kv-dtype fp8, or leave out --dcp")
    if dcp > 1:
        raise no_backend(dtype, capability, "DCP for sparse MLA wants rows packed as fp8_ds_mla")
    row = width if dtype in EIGHT_BIT else 2 * width
    name = "FLASH_ATTN_MLA_SPARSE" if width == 576 and dtype in SIXTEEN_BIT else "FLASHINFER_MLA_SPARSE_SM90"
    return SparseMla(Backend(name, 64, row), row)


def _check_sparse_mla(dtype: str, capability: int, given_block: int | None) -> None:
    if capability < HOPPER:
        raise no_backend(dtype, capability, "sparse MLA has none below compute capability 9.0")
    if capability != HOPPER and not is_blackwell(capability):
        raise no_backend(dtype, capability, "how sparse MLA stores its rows on this GPU is not known")
    if dtype not in (*SIXTEEN_BIT, "fp8", "fp8_e4m3"):
        raise no_backend(dtype, capability, "sparse MLA takes 16 bits, fp8 and fp8_e4m3")
    if given_block is not None and given_block % 64:
        raise no_backend(dtype, capability, "sparse MLA wants a block size that is a multiple of 64")
