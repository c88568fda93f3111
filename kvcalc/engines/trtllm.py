"""TensorRT-LLM's PyTorch backend: one pool of blocks, each of so many tokens of every layer.

Rules: tensorrt_llm/_torch/pyexecutor/resource_manager.py (KVCacheManager) at 001541ba and _util.py at 00043967; defaults: the KvCacheConfig reference of
1.4.0rc4. Models that take another manager by default (KVCacheManagerV2, the managers of hybrids and of sparse attention) are refused.
"""

import shlex
from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, assert_never

from kvcalc.engines.base import Capacity, LayerUse, Loaded, Options, Overheads, PlaneUse, Pool, Span, drafting_layers, layer_kind, model_packing, unused_options
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, Layer, ModelSpec, Note, Once, Plane, Window
from kvcalc.packing import PACKINGS, KvDtype, Packing
from kvcalc.units import BINARY_UNITS

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel

GIB: Final = BINARY_UNITS["GiB"]
TOKENS_PER_BLOCK: Final = 32
FREE_FRACTION: Final = Decimal("0.9")
"""free_gpu_memory_fraction: of the memory that weights and the profiled pass leave."""
MAX_BATCH: Final = 2048
"""max_batch_size by default (BuildConfig, tensorrt_llm/builder.py)."""
DTYPES: Final = {"fp8": "fp8", "fp8_e4m3": "fp8", "nvfp4": "nvfp4"}
"""kv_cache_config.dtype beside auto, by the name of a packing (get_cache_bytes_per_token takes no int8)."""
OWN_MANAGER: Final = frozenset(("gemma4", "gemma4_text", "gemma3n", "gemma3n_text", "inkling", "inkling_text"))
"""Model types whose heads differ from layer to layer, which KVCacheManagerV2 alone can store (_non_hybrid_kv_cache_manager_cls, _util.py)."""
USES: Final = frozenset(("device", "max_batched_tokens", "max_seqs", "block_size", "prefix_caching", "enforce_eager", "dp_attention", "speculative_tokens"))

HELD_BY_EACH: Final = frozenset(("attention", "embedding", "head", "mlp"))
"""Roles of tensors that every GPU holds whole under attention DP (enable_attention_dp in tensorrt_llm/_torch/models)."""

FORWARD: Final = Span(GIB // 8, GIB // 2, 4 * GIB)
OUTSIDE: Final = Span(GIB, 5 * GIB // 2, 4 * GIB)
"""What the profiled pass takes inside torch, and the process outside of it. Llama-3-8B on an H200, with batches of 1,024 tokens, logs 0.14 and 2.55 GiB; the
bounds are a guess, wide as one log leaves it.
"""


class _Kept(NamedTuple):
    """`layers` layers of a stage with the same cache, and the bytes of one token in one of them, on one GPU."""

    cache: Cache
    layers: int
    planes: tuple[PlaneUse, ...]
    row_bytes: int


@dataclass(frozen=True, slots=True)
class TrtllmPlan:
    """One pool of blocks for each GPU; the stage whose blocks are largest binds the others."""

    kv_dtype: KvDtype
    stages: tuple[tuple[_Kept, ...], ...]
    block: int
    options: Options
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("blocks", unit_bytes=self.block * max(map(_token_bytes, self.stages)), unit_rows=self.block),)

    @property
    def reserved(self) -> int:
        return 0

    @property
    def slots(self) -> int | None:
        return None

    @property
    def max_requests(self) -> int | None:
        return MAX_BATCH if self.options.max_seqs is None else self.options.max_seqs

    def need(self, tokens: int) -> tuple[int, ...]:
        return (-(-tokens // self.block),)

    def capacity(self, units: int, tokens: int) -> Capacity:
        """Requests by whole blocks, and the tokens of all blocks, as the log says (max tokens in paged KV cache)."""
        return Capacity(units / self.need(tokens)[0], units * self.block)

    def resident_bytes(self, tokens: int, batch: int) -> int:
        return batch * self.need(tokens)[0] * self.pools[0].unit_bytes

    def total_bytes(self, tokens: int, batch: int) -> int:
        """Under attention DP each of the GPUs that share a model has requests of its own."""
        return self.options.dp * self.options.tp * batch * self.need(tokens)[0] * self.block * sum(map(_token_bytes, self.stages))

    def token_bytes(self, tokens: int) -> int:  # noqa: ARG002 (every token costs alike)
        return max(map(_token_bytes, self.stages))

    def fixed_bytes(self) -> int:
        return 0

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        rows = self.need(tokens)[0] * self.block
        largest = max(self.stages, key=_token_bytes)
        return tuple(LayerUse(layer_kind(kept.cache), kept.layers, kept.cache, kept.planes, rows, rows * kept.layers * kept.row_bytes) for kept in largest)

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        rows, whole = self.need(tokens)[0] * self.block, 0
        for kept in (kept for stage in self.stages for kept in stage):
            match kept.cache.retention:
                case Window(size=size) | Chunk(size=size):
                    whole += (rows - min(tokens, size)) * kept.layers * kept.row_bytes
                case Grows() | Once() | Encoder():
                    pass
                case unreachable:
                    assert_never(unreachable)
        return (("windows kept at full length", self.options.tp * whole),) if whole else ()

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:  # noqa: ARG002 (an engine's word, and nothing is held beside the pool)
        return ()

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:
        """A file of options for trtllm-serve, below the command that reads it."""
        options = self.options
        tokens = None if kv_bytes is None else kv_bytes // self.pools[0].unit_bytes * self.block
        dtype = "auto" if options.kv_dtype.k == "auto" or options.kv_dtype.k not in DTYPES else DTYPES[options.kv_dtype.k]
        lines = [
            f"# trtllm-serve {shlex.quote(model)} --backend pytorch --extra_llm_api_options FILE, with these lines as FILE",
            f"tensor_parallel_size: {options.tp}",
            *([f"pipeline_parallel_size: {options.pp}"] if options.pp > 1 else []),
            *(["enable_attention_dp: true"] if options.dp_attention else []),
            *([f"moe_expert_parallel_size: {options.tp}"] if options.expert_parallel else []),
            f"max_seq_len: {context}",
            *([f"max_batch_size: {options.max_seqs}"] if options.max_seqs is not None else []),
            *([f"max_num_tokens: {options.max_batched_tokens}"] if options.max_batched_tokens is not None else []),
            *(["cuda_graph_config: null"] if options.enforce_eager else []),
            "kv_cache_config:",
            f"  dtype: {dtype}",
            f"  tokens_per_block: {self.block}",
            f"  enable_block_reuse: {str(options.prefix_caching).lower()}",
            f"  free_gpu_memory_fraction: {FREE_FRACTION if utilization is None else utilization}",
            *([f"  max_tokens: {tokens}"] if tokens is not None else []),
        ]
        if options.draft_layers:
            lines += ["speculative_config:", "  decoding_type: MTP", f"  num_nextn_predict_layers: {options.speculative_tokens}"]
        return "\n".join(lines)


class TrtllmEngine:
    """TensorRT-LLM on its PyTorch backend with the first KV cache manager."""

    name = "trtllm"
    version = "1.4.0rc4"
    part_of: Literal["rest"] = "rest"

    def utilization(self, _spec: ModelSpec, _options: Options, _total_bytes: int) -> Decimal:
        return FREE_FRACTION

    def plan(self, spec: ModelSpec, options: Options) -> TrtllmPlan:
        _check(spec, options)
        block = TOKENS_PER_BLOCK if options.block_size is None else options.block_size
        if block < 2 or block & (block - 1):
            raise KvcalcError(f"TensorRT-LLM: tokens_per_block must be a power of two above 1, not {block}", hint="use --block-size 32")
        packing, notes = _packing(spec, options)
        windowed = [cache.retention for layer in spec.layers for cache in layer.caches if isinstance(cache.retention, Window | Chunk)]
        if windowed:
            text = "TensorRT-LLM keeps windows at full length unless max_attention_window states them, which gives each window an equal part of the memory"
            notes.append(Note(code="windows", text=text))
        return TrtllmPlan(
            kv_dtype=KvDtype(packing.name, packing.name),
            stages=_stages(spec, options, packing),
            block=block,
            options=options,
            notes=(*notes, *unused_options(options, self.name, USES)),
        )

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        from kvcalc.engines.loading import loaded_apart, loaded_shares  # a question about the cache does without

        return loaded_apart(spec, options, HELD_BY_EACH, 1) if options.dp_attention else loaded_shares(spec, options._replace(dp=1))

    def overheads(self, _spec: "WeighedModel", _options: Options, _context: int) -> Overheads:
        both = Span(FORWARD.low + OUTSIDE.low, FORWARD.likely + OUTSIDE.likely, FORWARD.high + OUTSIDE.high)
        return Overheads(FORWARD, Span(0, 0, 0), OUTSIDE, both, same_from=0)


TRTLLM: Final = TrtllmEngine()


def _token_bytes(stage: tuple[_Kept, ...]) -> int:
    return sum(kept.layers * kept.row_bytes for kept in stage)


def _check(spec: ModelSpec, options: Options) -> None:
    """Raises KvcalcError for what the first KV cache manager does not store, and for what is not modelled."""
    if options.draft is not None:
        raise KvcalcError("how TensorRT-LLM shares its memory with the cache of a draft model is not modelled", hint="use --mtp, or --engine vllm")
    name = spec.facts.model_type or "this model"
    caches = list(dict.fromkeys(cache for layer in (*spec.layers, *drafting_layers(spec, options)) for cache in layer.caches))
    if any(isinstance(cache.retention, Once) for cache in caches):
        raise KvcalcError(f"TensorRT-LLM gives the states of {name} a cache manager of their own, which is not modelled", hint="use --engine vllm")
    if any(isinstance(cache.retention, Encoder) for cache in caches):
        raise KvcalcError("TensorRT-LLM divides its cache between self- and cross-attention by a fraction that is not modelled", hint="use --engine vllm")
    if any(cache.kernel not in ("gqa", "mla") for cache in caches) or any(
        isinstance(cache.retention, Grows) and cache.retention.stride > 1 for cache in caches
    ):
        raise KvcalcError(f"TensorRT-LLM gives the sparse attention of {name} a cache manager of its own, which is not modelled", hint="use --engine vllm")
    widths = {plane.width for cache in caches if cache.kernel == "gqa" for plane in cache.planes}
    if spec.facts.model_type in OWN_MANAGER or len(widths) > 1:
        raise KvcalcError(f"TensorRT-LLM stores heads of several widths, as {name} has, by KVCacheManagerV2, which is not modelled", hint="use --engine vllm")
    for heads in {cache.query_heads for cache in caches if cache.query_heads is not None}:
        if heads % options.tp and not options.dp_attention:
            raise KvcalcError(f"TensorRT-LLM: --tp {options.tp} does not divide {heads} attention heads", hint=f"use a --tp that divides {heads}")
    if options.dcp > 1:
        raise KvcalcError("TensorRT-LLM has no --dcp", hint="leave it out")
    if options.dp_attention and options.dp > 1:
        raise KvcalcError("TensorRT-LLM deals requests out to all --tp GPUs under attention DP: --dp has no part in it", hint="leave out --dp")


def _packing(spec: ModelSpec, options: Options) -> tuple[Packing, list[Note]]:
    """The element type of the cache, `auto` resolved."""
    asked = options.kv_dtype
    if asked.k != asked.v:
        raise KvcalcError(f"TensorRT-LLM stores K and V alike, not as {asked}", hint="name one dtype; llama.cpp is the engine that takes two")
    model, note = model_packing(spec.facts)
    if asked.k == "auto":
        named = spec.facts.kv_dtype
        if named is None:
            return model, [] if note is None else [note]
        if named in DTYPES:
            text = f"the checkpoint's quantization names {named} for the KV cache; another with --kv-dtype"
            return PACKINGS[named], [Note(code="kv-dtype", text=text)]
    name = asked.k if asked.k != "auto" else str(spec.facts.kv_dtype)
    if name == model.name:
        return model, []
    if name not in DTYPES:
        raise KvcalcError(f"TensorRT-LLM has no KV dtype {name}", hint=f"it has auto ({model.name} here), {', '.join(sorted(set(DTYPES.values())))}")
    return PACKINGS[name], []


def _stages(spec: ModelSpec, options: Options, packing: Packing) -> tuple[tuple[_Kept, ...], ...]:
    """Layers of each pipeline stage, the remainder one each from the first on, drafts on the last (Mapping.pp_layers, tensorrt_llm/mapping.py)."""
    if options.pp > len(spec.layers):
        raise KvcalcError(f"--pp {options.pp} is more than the {len(spec.layers)} layers of the model", hint=f"use --pp {len(spec.layers)} or less")
    size, more = divmod(len(spec.layers), options.pp)
    found, start = [], 0
    for number in range(options.pp):
        end = start + size + (number < more)
        layers = spec.layers[start:end]
        found.append(_stage((*layers, *drafting_layers(spec, options)) if number == options.pp - 1 else layers, options, packing))
        start = end
    return tuple(found)


def _stage(layers: tuple[Layer, ...], options: Options, packing: Packing) -> tuple[_Kept, ...]:
    counts = Counter(cache for layer in layers for cache in layer.caches)
    return tuple(_kept(cache, count, options, packing) for cache, count in counts.items())


def _kept(cache: Cache, layers: int, options: Options, packing: Packing) -> _Kept:
    planes = tuple(_plane_use(plane, options, packing) for plane in cache.planes)
    elements = sum(use.heads * use.width for use in planes)
    return _Kept(cache, layers, planes, packing.row_bytes(elements))


def _plane_use(plane: Plane, options: Options, packing: Packing) -> PlaneUse:
    """Heads are shared, and rounded up (KVCacheManager.__init__); not under attention DP."""
    tp = 1 if options.dp_attention else options.tp
    match plane.split:
        case "heads":
            return PlaneUse(plane, -(-plane.heads // tp), plane.width, packing)
        case "width" | "replicated":
            return PlaneUse(plane, plane.heads, plane.width, packing)
        case unreachable:
            assert_never(unreachable)
