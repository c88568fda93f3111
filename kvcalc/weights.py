"""What weights take: bytes of a checkpoint and of one GPU's share, as sums over the tensors of a model, in integers."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import prod
from typing import Final, NamedTuple

from kvcalc.packing import PACKINGS, Packing
from kvcalc.tensors import Quantization, Scheme, Tensor, WeighedModel

VOCABULARY_STEP: Final = 64
"""A vocabulary is padded to a multiple of so many rows before it is divided (vllm/model_executor/layers/vocab_parallel_embedding.py 0.33.0)."""


QUANTIZED: Final = ("attention", "recurrent", "mlp", "shared", "expert", "linear")
"""What a quantization stores in its own form unless it names the module."""


class Share(NamedTuple):
    """The part of a model that one GPU holds.

    `tp` GPUs divide each layer; with `ep` above 1 the experts are dealt out whole to so many instead. `stage` are the decoder layers of a pipeline stage
    (None: all), `first` and `last` say whether the embedding and the head stand on it. `draft` and `towers`: whether those are loaded. Experts stored as
    mxfp4 are padded to a multiple of `mxfp4_step`: their width on a GPU, and the features they read.
    """

    tp: int = 1
    ep: int = 1
    stage: range | None = None
    first: bool = True
    last: bool = True
    draft: bool = False
    towers: bool = True
    mxfp4_step: tuple[int, int] = (1, 1)


def checkpoint_bytes(spec: WeighedModel, model: Packing) -> int:
    """All tensors as the checkpoint stores them, drafts included, where what is not quantized is stored as `model`."""
    return sum(held.size_bytes for tensor in spec.tensors for held in _held(tensor, spec.quantization, model, Share(draft=True), padded=False))


def share_bytes(spec: WeighedModel, model: Packing, share: Share) -> int:
    """What one GPU holds of a model that is loaded with `model` as the type of what is not quantized."""
    return sum(held.size_bytes for held in held_tensors(spec, model, share))


class HeldTensor(NamedTuple):
    """What one GPU holds of a tensor in the layers that store it by one `scheme` (None: as it is): `elements` without any padding, `size_bytes` with it."""

    tensor: Tensor
    scheme: Scheme | None
    elements: int
    size_bytes: int


def held_tensors(spec: WeighedModel, model: Packing, share: Share) -> Iterator[HeldTensor]:
    """What `share_bytes` sums."""
    tied = not any(tensor.role == "head" for tensor in spec.tensors)
    whole_towers = any(tensor.part == "tower" and tensor.parts is not None and tensor.parts % share.tp for tensor in spec.tensors)
    for tensor in spec.tensors:
        of_tensor = share._replace(tp=1) if whole_towers and tensor.part == "tower" else share
        yield from _held(tensor, spec.quantization, model, of_tensor, padded=True, tied=tied)


def row_bytes(held: HeldTensor, model: Packing) -> int:
    """One row of a whole tensor: what a look-up reads."""
    return _matrix_bytes(held.tensor, (1, held.tensor.shape[-1]), held.scheme, model)


def _held(tensor: Tensor, quantization: Quantization | None, model: Packing, share: Share, *, padded: bool, tied: bool = False) -> Iterator[HeldTensor]:
    layers = _layers_on(tensor, share, tied=tied)
    if layers is None:
        return
    shape, copies = _shape_on(tensor, share, padded=padded), tensor.copies
    if tensor.role == "expert" and share.ep > 1:
        copies = -(-copies // share.ep)
    elements = prod(_shape_on(tensor, share, padded=False))
    for scheme, number in _schemes(tensor, quantization, layers).items():
        size_bytes = _matrix_bytes(tensor, _padded(tensor, shape, scheme, share), scheme, model)
        yield HeldTensor(tensor, scheme, number * copies * elements, number * copies * size_bytes)


def _layers_on(tensor: Tensor, share: Share, *, tied: bool) -> tuple[int, ...] | None:
    """The layers of a tensor that a GPU holds; empty for one outside of layers; None where it holds none of it."""
    if (tensor.part == "draft" and not share.draft) or (tensor.part == "tower" and not share.towers):
        return None
    if tensor.part == "draft":
        return tensor.layers if share.last else None
    if tensor.layers:
        layers = tensor.layers if share.stage is None else tuple(layer for layer in tensor.layers if layer in share.stage)
        return layers or None
    at_the_end = tensor.role == "head" or tensor.name in ("norm", "norm_f", "final_norm", "final_layernorm", "embedding_norm")
    if tensor.role == "embedding" and tied:
        return () if share.first or share.last else None
    return () if (share.last if at_the_end else share.first) else None


def _shape_on(tensor: Tensor, share: Share, *, padded: bool) -> tuple[int, ...]:
    """The shape of a GPU's part: whole pieces, as many as the fullest GPU holds."""
    whole = tensor.role == "expert" and share.ep > 1
    tp = 1 if whole else share.tp
    match tensor.split:
        case "rows":
            axis = 0
        case "cols":
            axis = len(tensor.shape) - 1
        case "vocab":
            rows = tensor.shape[0]
            rows = -(-rows // VOCABULARY_STEP) * VOCABULARY_STEP if padded else rows
            return (-(-rows // tp), *tensor.shape[1:])
        case "replicated":
            return tensor.shape
    size = tensor.shape[axis]
    parts = size if tensor.parts is None else tensor.parts
    local = -(-parts // tp) * (size // parts)
    return (*tensor.shape[:axis], local, *tensor.shape[axis + 1 :])


def _padded(tensor: Tensor, shape: tuple[int, ...], scheme: Scheme | None, share: Share) -> tuple[int, ...]:
    if tensor.role != "expert" or scheme is None or scheme.name != "mxfp4":
        return shape
    width, features = share.mxfp4_step
    rows, columns = (width, features) if tensor.split == "rows" else (features, width)
    return -(-shape[0] // rows) * rows, -(-shape[1] // columns) * columns


def lora_bytes(spec: WeighedModel, tp: int, adapters: int, rank: int) -> int:
    """Buffers for so many adapters beside every matrix of the language model, in 16 bits: A from all features to `rank`, B from `rank` to all; the side
    that tensor parallelism divides is divided (vllm/lora/layers/base_linear.py and fused_moe.py 0.33.0, without fully_sharded_loras).
    """
    sides = 0
    for tensor in spec.tensors:
        if tensor.part == "text" and tensor.role in QUANTIZED and len(tensor.shape) == 2:
            rows, columns = _shape_on(tensor, Share(tp=tp), padded=False)
            sides += tensor.number * (rows + columns)
    return 2 * adapters * rank * sides


def _matrix_bytes(tensor: Tensor, shape: tuple[int, ...], scheme: Scheme | None, model: Packing) -> int:
    elements = 1
    for size in shape:
        elements *= size
    if scheme is None:
        return (model if tensor.dtype == "model" else PACKINGS[tensor.dtype]).row_bytes(elements)
    return scheme.matrix_bytes(elements // shape[-1], shape[-1])


def _schemes(tensor: Tensor, quantization: Quantization | None, layers: tuple[int, ...]) -> Counter[Scheme | None]:
    """How many of the layers store a tensor by each scheme."""
    if quantization is None or len(tensor.shape) < 2 or tensor.role in ("unquantized", "norm", "buffer", "other"):
        return Counter({None: max(1, len(layers))})
    modules, found = _modules(quantization), Counter[Scheme | None]()
    for layer in layers or (0,):
        named, scheme = modules.find(_module(tensor, layer))
        if not named:
            scheme = _unnamed(tensor, quantization)
        found[scheme] += 1
    return found


def _unnamed(tensor: Tensor, quantization: Quantization) -> Scheme | None:
    """The scheme of a matrix that the quantization does not name; towers are named where they are quantized at all."""
    mixes = tensor.role in ("attention", "recurrent")
    if tensor.part == "tower" or (tensor.part == "draft" and not quantization.drafts) or (mixes and quantization.keeps_mixers):
        return None
    if tensor.role == "expert" and quantization.experts is not None:
        return quantization.experts
    if mixes and quantization.mixers is not None:
        return quantization.mixers
    return quantization.scheme if tensor.role in QUANTIZED or quantization.whole else None


def _module(tensor: Tensor, layer: int) -> str:
    """The name of one module of a tensor; of its copies the first one stands for all."""
    name = tensor.name.replace("*", str(layer), 1) if tensor.layers else tensor.name
    return name.replace("*", "0")


class Modules:
    """What a quantization says of single modules, for quick look-up."""

    def __init__(self, named: Iterable[tuple[str, Scheme | None]]) -> None:
        self.plain: dict[tuple[str, ...], Scheme | None] = {}
        wild: dict[Scheme | None, list[str]] = {}
        for name, scheme in named:
            if name.startswith("re:"):
                wild.setdefault(scheme, []).append(f"(?:{name[3:]})")
            elif "*" in name:
                wild.setdefault(scheme, []).append(".*".join(map(re.escape, _bare(name).split("*"))) + r"(?:\.|$)")
            else:
                self.plain.setdefault(tuple(_bare(name).split(".")), scheme)
        self.patterns = [(re.compile("|".join(sources)), scheme) for scheme, sources in wild.items()]

    def find(self, module: str) -> tuple[bool, Scheme | None]:
        """Whether a module, or one that holds it, is named, and by what scheme it is stored then."""
        parts = tuple(module.split("."))
        for length in range(len(parts), 0, -1):
            for start in range(len(parts) - length + 1):
                if (found := parts[start : start + length]) in self.plain:
                    return True, self.plain[found]
        return next(((True, scheme) for pattern, scheme in self.patterns if pattern.match(module)), (False, None))


_OUTER: Final = re.compile(r"(?:(?:model|language_model|backbone|transformer|thinker)\.)+")


def _bare(name: str) -> str:
    """A module's name without those of the objects around the language model."""
    return _OUTER.sub("", name, count=1) if _OUTER.match(name) else name


@lru_cache(maxsize=8)
def _modules(quantization: Quantization) -> Modules:
    return Modules(quantization.named)
