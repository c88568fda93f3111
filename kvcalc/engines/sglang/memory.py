"""The part of a GPU's memory that SGLang 0.5.23 gives to weights and cache, and what is gone before it counts.

Rule: handle_gpu_memory_settings, sglang/srt/arg_groups/memory_hook.py. It reads the memory from nvidia-smi, which shows up to 0.9 GiB more than CUDA: the
part that is taken here for what CUDA shows is at most 0.002 lower.
"""

from decimal import ROUND_HALF_EVEN, Decimal
from typing import TYPE_CHECKING, Final, NamedTuple

from kvcalc.engines.base import NO_OVERHEADS, Options, Overheads, Span
from kvcalc.layers import ModelSpec
from kvcalc.units import BINARY_UNITS

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel

MIB: Final = BINARY_UNITS["MiB"]
GIB: Final = BINARY_UNITS["GiB"]


class Sizes(NamedTuple):
    """`chunk`: tokens of a prefill (--chunked-prefill-size). `graph_requests`: the largest batch captured for decoding."""

    chunk: int
    graph_requests: int


class _Tier(NamedTuple):
    below_mib: int | None
    chunk: int
    requests: int
    requests_from_tp4: int


TIERS: Final = (
    _Tier(20 * 1024, 2048, 8, 8),
    _Tier(35 * 1024, 4096, 48, 160),
    _Tier(60 * 1024, 4096, 32, 160),
    _Tier(160 * 1024, 8192, 256, 512),
    _Tier(None, 16384, 512, 512),
)
UNKNOWN: Final = _Tier(None, 4096, 160, 160)
"""Where the memory of the GPU is not known."""

FLAT_MIB: Final = 512
TOKEN_MIB: Final = Decimal("1.5")
LARGE_GPU_MIB: Final = 60 * 1024
LARGE_GPU_KEEPS_MIB: Final = 10 * 1024
MLA_PREFILL_GRAPHS_MIB: Final = 1536
PREFILL_GRAPH_MIB: Final = 8
MLA_PREFILL_GRAPH_TOKENS: Final = 8192

TOWER_BASE: Final = Decimal("0.95")
TOWER_LAYERS: Final = 24
TOWER_HIDDEN: Final = 1024
"""A vision tower takes its base part, a tenth less for each further tower of 24 x 1024 x 1024, within 0.8 and 1.05 (adjust_mem_fraction_for_vlm)."""
DEPTH_TYPES: Final = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_5")
"""Types whose config calls the tower's layers depth, which SGLang does not read: it takes 24. In Qwen2-VL hidden_size is the language model's."""
TOWER_CACHE_BYTES: Final = 100 * MIB
"""Kept out of the pool for embeddings of images (SGLANG_VLM_CACHE_SIZE_MB, sglang/srt/environ.py)."""

CONTEXT_GIB: Final = {1: ("0.35", "0.65", "0.9"), 2: ("0.6", "0.8", "1.1"), 4: ("0.8", "1.1", "1.6"), 8: ("1.4", "1.8", "2.5")}
"""GiB of a card gone before the weights, by GPUs that share the heads: total memory less "Load weight begin. avail mem" of public logs. One GPU: H100 0.38,
0.76, 0.87. Two: RTX 3090 0.65, 0.66. Four: RTX PRO 6000 1.0. Eight: H100 1.4, 1.8, 1.9; H200 2.5, of which NCCL takes 2.0."""
UNIFIED_GIB: Final = ("3", "6.5", "10")
"""The same where CPU and GPU share memory: DGX Spark 6.3, 6.4, 9.7."""
STATIC_PART: Final = Decimal("0.87")
"""The part that is taken of what is left after that, in the middle of the defaults: the cache loses so much of it."""


def sizes(options: Options) -> Sizes:
    """The user's, else the defaults for the GPU."""
    known = () if options.device is None else options.device.memory_sizes
    return _sizes(options, min(known) if known else None)


def _sizes(options: Options, total_bytes: int | None) -> Sizes:
    tier = UNKNOWN
    if total_bytes is not None:
        tier = next(tier for tier in TIERS if tier.below_mib is None or total_bytes < tier.below_mib * MIB)
    requests = tier.requests if options.tp < 4 else tier.requests_from_tp4
    chunk = tier.chunk if options.max_batched_tokens is None else options.max_batched_tokens
    return Sizes(chunk, requests if options.max_seqs is None else min(requests, options.max_seqs))


def static_part(spec: ModelSpec, options: Options, total_bytes: int) -> Decimal:
    """The default of --mem-fraction-static on a GPU of `total_bytes`."""
    size = _sizes(options, total_bytes)
    total_mib = Decimal(total_bytes) / MIB
    kept = FLAT_MIB + TOKEN_MIB * max(size.chunk, 2048) + Decimal(options.tp * options.pp * 1024) / 8 + _graphs_mib(spec, options, size)
    if total_mib > LARGE_GPU_MIB:
        kept = max(kept, Decimal(LARGE_GPU_KEEPS_MIB))
    part = ((total_mib - kept) / total_mib).quantize(Decimal("0.001"), ROUND_HALF_EVEN)
    return max(Decimal(0), part * _tower_factor(spec, options))


def _graphs_mib(spec: ModelSpec, options: Options, size: Sizes) -> Decimal:
    """What CUDA graphs are given (reserve_for_graph_mb)."""
    kernels = {cache.kernel for layer in spec.layers for cache in layer.caches}
    kept = Decimal(0) if options.enforce_eager else Decimal(2 * size.graph_requests)
    if options.dp_attention and options.dp > 1:
        kept += 3 * size.graph_requests * options.dp
        if size.graph_requests > 300:
            kept += Decimal("1.5") * size.graph_requests * options.dp
    if options.enforce_eager or options.pp > 1 or options.dcp > 1 or "kda" in kernels:  # apply_cuda_graph_compatibility, cuda_graph_hook.py
        return kept
    if "mla" in kernels:
        return kept + MLA_PREFILL_GRAPHS_MIB
    return kept + PREFILL_GRAPH_MIB * _captures(size.chunk)


def _captures(largest: int) -> int:
    """How many prefill sizes up to `largest` are captured (generate_prefill_cuda_graph_batch_sizes, cuda_graph_hook.py)."""
    steps = (range(4, 33, 4), range(48, 257, 16), range(288, 513, 32), range(576, 1025, 64), range(1280, 4097, 256), range(4608, largest + 1, 512))
    return sum(size <= largest for step in steps for size in step)


def _tower_factor(spec: ModelSpec, options: Options) -> Decimal:
    """What a vision tower leaves of the part; 1 without one, or where its tensors are not known."""
    from kvcalc.tensors import weighed  # a question about the cache does without

    tensors = weighed(spec).tensors
    inner = [tensor for tensor in tensors if tensor.part == "tower" and tensor.role == "mlp" and len(tensor.shape) == 2 and tensor.split != "cols"]
    if not inner or not options.towers:
        return Decimal(1)
    deepest = max(inner, key=lambda tensor: tensor.copies)
    layers, hidden = deepest.copies, deepest.shape[1]
    name = spec.facts.model_type or ""
    if name.startswith(DEPTH_TYPES):
        layers = TOWER_LAYERS
    if name == "qwen2_vl":
        hidden = max(tensor.shape[1] for tensor in tensors if tensor.part == "text" and tensor.role == "embedding")
    towers = Decimal(layers * hidden**2) / (TOWER_LAYERS * TOWER_HIDDEN**2)
    return TOWER_BASE * max(Decimal("0.8"), min(Decimal("1.05"), 1 - (towers - 1) / 10))


def overheads(spec: "WeighedModel", options: Options) -> Overheads:
    """What is gone before SGLang counts. Activations and CUDA graphs live in the part that it does not take."""
    unified = options.device is not None and options.device.unified
    cards = max(gpus for gpus in CONTEXT_GIB if gpus <= options.tp)
    images = TOWER_CACHE_BYTES if options.towers and any(tensor.part == "tower" for tensor in spec.tensors) else 0
    low, likely, high = (int(Decimal(size) * GIB * STATIC_PART) + images for size in (UNIFIED_GIB if unified else CONTEXT_GIB[cards]))
    gone = Span(low, likely, high)
    return NO_OVERHEADS._replace(runtime=gone, total=gone)
