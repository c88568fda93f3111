"""The tensors of a GGUF file as weights: what a name says of a tensor's role and of how it is divided, and its type as a scheme of quantization.

Names: gguf-py/gguf/constants.py, TENSOR_NAMES (llama.cpp as vendored by llama-cpp-python 0.3.36).
"""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from kvcalc.families.config import Config
from kvcalc.gguf import Block, StoredTensor
from kvcalc.layers import Layer
from kvcalc.tensors import Quantization, Scheme, Tensor
from kvcalc.units import shorten


class Stored(NamedTuple):
    """The tensors of a model, how they are stored, the dtype of all matrices where they share one of PyTorch's, and how many parameters they have
    without drafts and buffers.
    """

    tensors: tuple[Tensor, ...]
    quantization: Quantization | None
    dtype: str | None
    parameters: int | None


class _Kind(NamedTuple):
    """What a name says: the role of a tensor, the side that tensor parallelism divides."""

    role: str
    split: str = "replicated"


_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+", re.ASCII)
_IN_BLOCK: Final = re.compile(r"(?:dec\.)?blk\.(?P<block>[0-9]{1,5})\.(?P<rest>.+)", re.ASCII)

_OUTSIDE: Final = {
    "token_embd": _Kind("embedding", "vocab"),
    "per_layer_token_embd": _Kind("embedding", "vocab"),
    "output": _Kind("head", "vocab"),
    "rope_freqs": _Kind("buffer"),
    "rope_factors_long": _Kind("buffer"),
    "rope_factors_short": _Kind("buffer"),
}
_LAST_NORMS: Final = ("output_norm", "dec.output_norm")

_BLOCKS: Final = tuple(
    (re.compile(pattern), kind)
    for pattern, kind in (
        (r"(.*_)?norm(_\w+)?|.*_norm_?\d*|layer_output_norm", _Kind("norm")),
        (r"rope_freqs|rope_factors_\w+", _Kind("buffer")),
        (r"ffn_(gate|up|gate_up)_(exps|chexps)", _Kind("expert", "rows")),
        (r"ffn_down_(exps|chexps)", _Kind("expert", "cols")),
        (r"ffn_(gate|up)_shexp", _Kind("shared", "rows")),
        (r"ffn_down_shexp", _Kind("shared", "cols")),
        (r"ffn_gate_inp\w*|exp_probs_b", _Kind("router")),
        (r"ffn_(gate|up)", _Kind("mlp", "rows")),
        (r"ffn_down", _Kind("mlp", "cols")),
        (r"attn_(q|k|v|qkv|q_b|k_b|v_b|kv_b|gate)", _Kind("attention", "rows")),
        (r"attn_output", _Kind("attention", "cols")),
        (r"(attn|cross_attn|indexer)[_.].*", _Kind("attention")),
        (r"ssm_(in|ba|beta_alpha)|shortconv\.in_proj", _Kind("recurrent", "rows")),
        (r"ssm_out|shortconv\.out_proj", _Kind("recurrent", "cols")),
        (r"ssm_(a|d|norm)|time_mix_(lerp.*|first|decay)", _Kind("other")),
        (r"(ssm|shortconv|time_mix|channel_mix)[_.].*", _Kind("recurrent")),
    )
)
"""What the name of a tensor within a block says, the first that matches."""
_WITHOUT_ROWS: Final = frozenset({"norm", "buffer", "other", "router"})
"""Roles of which a quantization speaks only where it names them, or never: a tensor in blocks takes none of them."""

_TYPES: Final = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}


def stored_tensors(config: Config, name: str, stored: Sequence[StoredTensor], layers: tuple[Layer, ...], drafts: int) -> Stored:
    """The tensors of all parts of a file for `layers` and `drafts` blocks behind them. Raises KvcalcError for a name twice, of a layer that is not there,
    or that is none.
    """
    twice = next((each for each, times in Counter(tensor.name for tensor in stored).items() if times > 1), None)
    if twice is not None:
        raise config.error(f"the tensor {shorten(twice)!r} stands in two parts")
    used = _used(config, name)
    named: dict[str, Scheme] = {}
    groups: dict[tuple[Any, ...], list[int]] = {}
    for tensor in stored:
        if tensor.elements:
            group, block = _group(config, tensor, layers, drafts, named)
            groups.setdefault(group, []).extend([] if block is None else [block])
    tensors = tuple(_built(group, tuple(sorted(blocks)), used) for group, blocks in groups.items())
    types = {tensor.stored.name for tensor in stored if len(tensor.shape) > 1}
    parameters = sum(tensor.elements * tensor.number for tensor in tensors if tensor.part != "draft" and tensor.role != "buffer")
    quantization = Quantization(method="gguf", named=tuple(named.items()), whole=True) if named else None
    return Stored(tensors, quantization, _TYPES.get(types.pop()) if len(types) == 1 else None, parameters or None)


def _used(config: Config, name: str) -> int:
    """Experts that one token passes, in the layer where it passes most."""
    key = f"{name}.expert_used_count"
    value = config.get(key)
    if isinstance(value, list):
        return max(config.numbers(key) or (0,), default=0)
    return config.optional(key, minimum=0) or 0


def _group(config: Config, tensor: StoredTensor, layers: tuple[Layer, ...], drafts: int, named: dict[str, Scheme]) -> tuple[tuple[Any, ...], int | None]:
    """What tensors of several blocks have alike, and the block of this one, None outside of them. Notes in `named` how it is stored."""
    if _NAME.fullmatch(tensor.name) is None:
        raise config.error(f"the tensor {shorten(tensor.name)!r} has a name that is none")
    module = tensor.name.removesuffix(".weight")
    within = _IN_BLOCK.fullmatch(module)
    block = None if within is None else int(within["block"])
    if block is not None and block >= len(layers) + drafts:
        raise config.error(f"contradictory numbers: the tensor {shorten(tensor.name)!r} is of block {block} of {len(layers) + drafts}")
    kind = _outside(module) if within is None else _inside(within["rest"], recurs=block is not None and block < len(layers) and _recurs(layers[block]))
    shape, copies = tensor.shape, 1
    if kind.role == "expert" and len(shape) > 1:
        copies, shape = shape[0], shape[1:]
    if tensor.stored.name not in _TYPES:
        shape = shape if len(shape) > 1 else (1, *shape)
        kind = _Kind("linear") if kind.role in _WITHOUT_ROWS else kind
        named[module] = _scheme(tensor.stored)
    pattern = module if within is None else f"{module[: within.start('block')]}*.{within['rest']}"
    split = "replicated" if kind.split == "cols" and len(shape) == 1 else kind.split
    part = "draft" if block is not None and block >= len(layers) else "text"
    return ("norm" if module in _LAST_NORMS else pattern, shape, copies, kind.role, split, part, _TYPES.get(tensor.stored.name, "model")), block


def _outside(module: str) -> _Kind:
    if module in _OUTSIDE:
        return _OUTSIDE[module]
    return _Kind("norm" if "norm" in module else "other")


def _inside(rest: str, *, recurs: bool) -> _Kind:
    stem = rest.removesuffix(".bias").removesuffix(".scale")
    kind = next((kind for pattern, kind in _BLOCKS if pattern.fullmatch(stem)), _Kind("other"))
    return kind._replace(role="recurrent") if recurs and kind.role == "attention" else kind


def _recurs(layer: Layer) -> bool:
    """Whether a layer keeps a state and nothing else: what attends in others belongs to it here (qwen3next: attn_qkv, attn_gate)."""
    return bool(layer.caches) and all(plane.role in ("conv", "state") for cache in layer.caches for plane in cache.planes)


def _scheme(stored: Block) -> Scheme:
    """A type in blocks: the bits of its elements, and what a block has besides."""
    bits = 8 * stored.size_bytes // stored.elements
    beside = stored.size_bytes - stored.elements * bits // 8
    return Scheme(name=stored.name.lower(), bits=bits, per="block", block_columns=stored.elements, scale_bytes=beside)


def _built(group: tuple[Any, ...], blocks: tuple[int, ...], used: int) -> Tensor:
    name, shape, copies, role, split, part, dtype = group
    passed = min(used, copies) if role == "expert" else 1
    return Tensor(name=name, shape=shape, layers=blocks, copies=copies, used=passed, role=role, split=split, part=part, dtype=dtype)
