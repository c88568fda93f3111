"""The caches that models are made of, in the field's terms. Families and presets build their layers from these functions alone.

State shapes: vllm/model_executor/layers/mamba/mamba_utils.py (0.33.0). A convolution state is counted with kernel - 1 columns, as
vLLM, SGLang and llama.cpp keep it; an engine that keeps more adds its own.
"""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from kvcalc.layers import Cache, Chunk, Encoder, Grows, Kernel, Once, Plane, Retention, Size, Window

Split = Literal["heads", "width", "replicated"]


class Widths(NamedTuple):
    """Elements of K and of V in one head."""

    k: int
    v: int


def attention(
    *,
    kv_heads: Size,
    query_heads: Size | None = None,
    head_dim: Size | None = None,
    k_dim: Size | None = None,
    v_dim: Size | None = None,
    window: Size | None = None,
    chunk: Size | None = None,
    cross: bool = False,
    picks: Size | None = None,
) -> Cache:
    """K and V of every token, `head_dim` wide both, or `k_dim` and `v_dim`.

    `window` and `chunk` (tokens) bound what is kept; `cross` keeps the encoder's tokens instead of the request's own. A query attends to
    `picks` rows at most. Raises ValueError for widths that are missing or stated twice, for two retentions, and for query heads that the KV
    heads do not divide.
    """
    if query_heads is not None and query_heads % kv_heads:
        raise ValueError(f"{query_heads} query heads cannot share {kv_heads} KV heads evenly")
    if (window is not None) + (chunk is not None) + cross > 1:
        raise ValueError("attention is windowed, chunked or cross, not several of them")
    retention: Retention = Grows()
    if window is not None:
        retention = Window(size=window)
    elif chunk is not None:
        retention = Chunk(size=chunk)
    elif cross:
        retention = Encoder()
    k, v = _widths(head_dim, k_dim, v_dim)
    planes = (Plane(role="k", heads=kv_heads, width=k, split="heads"), Plane(role="v", heads=kv_heads, width=v, split="heads"))
    return Cache(retention=retention, planes=planes, kernel="gqa", query_heads=query_heads, picks=picks)


def _widths(head_dim: int | None, k_dim: int | None, v_dim: int | None) -> Widths:
    match head_dim, k_dim, v_dim:
        case int(), None, None:
            return Widths(head_dim, head_dim)
        case None, int(), int():
            return Widths(k_dim, v_dim)
        case _:
            raise ValueError("attention wants head_dim, or both k_dim and v_dim")


def latent(
    *,
    rank: Size,
    rope: int = 0,
    query_heads: Size | None = None,
    k_dim: Size | None = None,
    v_dim: Size | None = None,
    stride: Size = 1,
    window: Size | None = None,
    picks: Size | None = None,
) -> Cache:
    """Multi-head latent attention: one vector of `rank` and a rotary key of `rope` elements a token, shared by all heads, never split.

    `k_dim` and `v_dim` are the widths that each of `query_heads` would have uncompressed. One row stands for `stride` tokens. A query attends
    to `picks` rows at most.
    """
    retention: Retention = Grows(stride=stride) if window is None else Window(size=window)
    planes = [Plane(role="latent", heads=1, width=rank, split="replicated")]
    if rope:
        planes.append(Plane(role="rope", heads=1, width=rope, split="replicated"))
    expanded = None if k_dim is None or v_dim is None else (k_dim, v_dim)
    return Cache(retention=retention, planes=tuple(planes), kernel="mla", query_heads=query_heads, expanded=expanded, picks=picks)


def index_keys(*, width: Size, stride: Size = 1, scorers: Size | None = None) -> Cache:
    """The keys by which a sparse indexer picks tokens: one vector for `stride` tokens, never split, which `scorers` query heads score."""
    plane = Plane(role="index", heads=1, width=width, split="replicated")
    return Cache(retention=Grows(stride=stride), planes=(plane,), kernel="indexer", scorers=scorers)


def compressor(*, width: Size, rows: Size) -> Cache:
    """The fp32 rows of the last `rows` tokens that a compressing layer still needs to build its next entry (DeepSeek-V4)."""
    return Cache(retention=Window(size=rows), planes=(_state(1, width, "fp32", "replicated"),), kernel="compressor")


def ring(*, rows: Size, width: Size, dtype: str) -> Cache:
    """A ring buffer of fixed length beside a compressed cache: `rows` of `width` elements."""
    return Cache(retention=Once(), planes=(_state(rows, width, dtype, "replicated"),), kernel="ring")


def mamba1(*, channels: Size, state: Size, conv_kernel: Size, state_dtype: str = "model") -> Cache:
    """Mamba-1: a convolution over `channels` and a state of `state` elements for each of them."""
    return _recurrent("mamba1", _conv(1, channels, conv_kernel, "width"), _state(channels, state, state_dtype, "heads"))


def mamba2(*, heads: Size, head_dim: Size, state: Size, groups: Size, conv_kernel: Size, channels: Size | None = None, state_dtype: str = "model") -> Cache:
    """Mamba-2: a convolution over x (`channels`, heads x head_dim where not stated) and over B and C (`groups` x 2 x `state`), and a matrix
    state for each head.
    """
    x = heads * head_dim if channels is None else channels
    return _recurrent(
        "mamba2",
        _conv(1, x, conv_kernel, "width"),
        _conv(groups, 2 * state, conv_kernel, "heads"),
        _state(heads, head_dim * state, state_dtype, "heads"),
    )


def delta_net(
    *, kernel: Literal["gdn", "kda"], key_heads: Size, value_heads: Size, key_dim: Size, value_dim: Size, conv_kernel: Size, state_dtype: str = "model"
) -> Cache:
    """Gated DeltaNet or Kimi Delta Attention: a convolution over Q, K and V, and a key x value matrix for each value head."""
    return _recurrent(
        kernel,
        _conv(key_heads, 2 * key_dim, conv_kernel, "heads"),
        _conv(value_heads, value_dim, conv_kernel, "heads"),
        _state(value_heads, value_dim * key_dim, state_dtype, "heads"),
    )


def lightning(*, heads: Size, head_dim: Size, state_dtype: str = "model") -> Cache:
    """Lightning attention: a head_dim x head_dim matrix for each head."""
    return _recurrent("lightning", _state(heads, head_dim * head_dim, state_dtype, "heads"))


def short_conv(*, channels: Size, conv_kernel: Size, dtype: str = "model") -> Cache:
    """A short convolution (LFM2) that keeps its last inputs and nothing else."""
    return _recurrent("shortconv", _conv(1, channels, conv_kernel, "width", dtype))


def cca(*, channels: Size, columns: Size, delayed: Size) -> Cache:
    """Compressed convolutional attention (Zaya): the last `columns` inputs of the convolutions over Q and K, and the half of V that lags a token."""
    convolved = Plane(role="conv", heads=1, width=channels, split="width", dtype="model", columns=columns)
    return _recurrent("cca", convolved, _state(1, delayed, "model", "width"))


def rglru(*, width: Size, conv_kernel: Size) -> Cache:
    """The real-gated linear recurrent unit of RecurrentGemma: a convolution state and one fp32 vector."""
    return _recurrent("rglru", _conv(1, width, conv_kernel, "width"), _state(1, width, "fp32", "width"))


def rwkv(*, heads: Size, head_dim: Size, hidden: Size) -> Cache:
    """RWKV from version 5: a matrix for each head in fp32, and the last hidden row of time mixing and of channel mixing."""
    return _recurrent("rwkv", _state(heads, head_dim * head_dim, "fp32", "heads"), _state(2, hidden, "model", "replicated"))


def _recurrent(kernel: Kernel, *planes: Plane | None) -> Cache:
    return Cache(retention=Once(), planes=tuple(plane for plane in planes if plane is not None), kernel=kernel)


def _conv(heads: int, width: int, conv_kernel: int, split: Split, dtype: str = "model") -> Plane | None:
    """Kernel - 1 columns of the inputs; None for a kernel of one, which looks back at nothing."""
    return None if conv_kernel == 1 else Plane(role="conv", heads=heads, width=width, split=split, dtype=dtype, columns=conv_kernel - 1)


def _state(heads: int, width: int, dtype: str, split: Split) -> Plane:
    return Plane(role="state", heads=heads, width=width, split=split, dtype=dtype)


CACHES: Final[dict[str, Callable[..., Cache]]] = {
    "attention": attention,
    "cca": cca,
    "compressor": compressor,
    "delta_net": delta_net,
    "index_keys": index_keys,
    "latent": latent,
    "lightning": lightning,
    "mamba1": mamba1,
    "mamba2": mamba2,
    "rglru": rglru,
    "ring": ring,
    "rwkv": rwkv,
    "short_conv": short_conv,
}
"""What a preset may name as `kind`."""
