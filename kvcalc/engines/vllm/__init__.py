"""vLLM 0.33.0: its own plan of the KV cache, block for block, without a GPU."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from kvcalc.engines.base import LayerKind, LayerUse, Options, Pool, layer_kind, pipeline_stages
from kvcalc.engines.vllm.backends import sparse_mla
from kvcalc.engines.vllm.dtypes import as_packing, kv_dtype_name
from kvcalc.engines.vllm.groups import Group, Grouping, group
from kvcalc.engines.vllm.pages import Layout, PageSpec, layout
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, ModelSpec, Note, Window
from kvcalc.packing import KvDtype

VERSION: Final = "0.33.0"
ASSUMED_CAPABILITY: Final = 90
"""Without a GPU the attention backends are those of an H100."""
SPARSE_DTYPES: Final = frozenset({"indexer"})


@dataclass(frozen=True, slots=True)
class VllmPlan:
    """One pool of blocks for each GPU. A block id costs `block_bytes` whatever group uses it; a request holds blocks in every group."""

    kv_dtype: KvDtype
    grouping: Grouping
    state_blocks: int
    stages: tuple[range, ...]
    options: Options
    batched_tokens: int
    batches: int
    max_seqs: int
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("blocks", unit_bytes=max(map(self._block_bytes, self.stages)), unit_rows=self.block_tokens),)

    @property
    def block_tokens(self) -> int:
        """Tokens in a block of the layers that keep everything, else of the first group."""
        blocks = [each.specs[0].block for each in self.grouping.groups]
        full = [each.specs[0].block for each in self.grouping.groups if each.specs[0].family == "full"]
        return min(full or blocks)

    def need(self, tokens: int) -> tuple[int, ...]:
        return (sum(self._blocks(each, tokens) for each in self.grouping.groups),)

    def resident_bytes(self, tokens: int, batch: int) -> int:
        return batch * self.need(tokens)[0] * self.pools[0].unit_bytes

    def total_bytes(self, tokens: int, batch: int) -> int:
        on_all_stages = sum(map(self._block_bytes, self.stages))
        return self.options.dp * self.options.tp * batch * self.need(tokens)[0] * on_all_stages

    def token_bytes(self, tokens: int) -> int:
        """Blocks count in parts: a token takes its share of one in each group that still grows."""
        block_bytes = self.pools[0].unit_bytes
        return sum(block_bytes // (each.specs[0].block * self.options.dcp) for each in self.grouping.groups if self._grows(each, tokens))

    def fixed_bytes(self) -> int:
        return self.pools[0].unit_bytes * sum(self._blocks(each, 0) for each in self.grouping.groups if each.specs[0].family in ("mamba", "ring", "cross"))

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        """Each group's blocks by kind of layer; what a block holds beyond its group's own pages counts for the group's first kind."""
        fullest = max(self.stages, key=self._block_bytes)
        found: dict[tuple[LayerKind, Cache], list[int]] = {}
        for each in self.grouping.groups:
            blocks, left = self._blocks(each, tokens), self.pools[0].unit_bytes
            kinds: dict[tuple[LayerKind, Cache], list[PageSpec]] = {}
            for spec in each.specs:
                kinds.setdefault((layer_kind(spec.cache), spec.cache), []).append(spec)
            for key, specs in reversed(kinds.items()):
                own = sum(spec.page_bytes for spec in specs if spec.layer in fullest)
                size = left if key == next(iter(kinds)) else own
                left -= own
                rows = found.setdefault(key, [0, 0, 0])
                rows[0] += sum(spec.layer in fullest for spec in specs)
                rows[1] = max(rows[1], blocks * specs[0].block)
                rows[2] += blocks * size
        return tuple(LayerUse(kind, layers, cache, (), rows, size) for (kind, cache), (layers, rows, size) in found.items())

    def _block_bytes(self, stage: range) -> int:
        return self.grouping.block_bytes(lambda layer: layer in stage)

    def _in_flight(self, tokens: int) -> int:
        """Tokens that can be on their way at once (max_in_flight_tokens)."""
        return self.batches * min(self.batched_tokens, self.max_seqs * max(tokens, 1))

    def _grows(self, each: Group, tokens: int) -> bool:
        spec = each.specs[0]
        match spec.family:
            case "full":
                return True
            case "sliding" | "sliding_mla":
                return tokens < spec.span - 1 + self._in_flight(tokens)
            case "chunked":
                return tokens < spec.span + self._in_flight(tokens)
            case "mamba" | "ring" | "cross":
                return False

    def _blocks(self, each: Group, tokens: int) -> int:
        """Blocks of one request (KVCacheSpec.max_memory_usage_bytes over the page, vllm/v1/kv_cache_interface.py)."""
        return max(self._spec_blocks(spec, tokens) for spec in each.specs)

    def _spec_blocks(self, spec: PageSpec, tokens: int) -> int:
        match spec.family:
            case "full":
                return -(-(-(-tokens // self.options.dcp)) // spec.block)
            case "sliding" | "sliding_mla":
                return -(-min(spec.span - 1 + self._in_flight(tokens), tokens) // spec.block) + 1
            case "chunked":
                return -(-min(spec.span + self._in_flight(tokens), tokens) // spec.block)
            case "mamba":
                return self.state_blocks
            case "ring":
                return 1
            case "cross":
                rows = self.batched_tokens if self.options.encoder_tokens is None else self.options.encoder_tokens
                return -(-rows // spec.block)


class VllmEngine:
    """vLLM with its V2 model runner on CUDA."""

    name = "vllm"
    version = VERSION

    def plan(self, spec: ModelSpec, options: Options) -> VllmPlan:
        notes: list[Note] = []
        capability = options.capability
        if capability is None:
            capability = ASSUMED_CAPABILITY
            notes.append(Note(code="gpu", text="no GPU is named: attention backends are taken as on an H100, batch sizes as on an unknown device"))
        _check(spec, options)
        dtype = kv_dtype_name(options.kv_dtype, spec.facts)
        _check_checkpoint(spec, dtype)
        if "auto" in options.kv_dtype and dtype != "auto":
            notes.append(Note(code="kv-dtype", text=f"the checkpoint's quantization names {dtype} for the KV cache; another with --kv-dtype"))
        pages = layout(spec, options, dtype, capability)
        _check_layout(spec, options, pages)
        model = model_name(spec)
        batched, seqs = options.max_batched_tokens or 2048, options.max_seqs or 128
        return VllmPlan(
            kv_dtype=KvDtype(*[as_packing(pages.dtype, model)] * 2) if pages.dtype == "auto" else KvDtype(pages.dtype, pages.dtype),
            grouping=group(pages, _row_alignment(spec, options, pages, capability)),
            state_blocks=pages.state_blocks,
            stages=_stages(spec, options),
            options=options,
            batched_tokens=batched,
            batches=options.pp + 1 if options.async_scheduling and not spec.facts.pooling else 1,
            max_seqs=min(seqs, batched),
            notes=tuple(notes),
        )


VLLM: Final = VllmEngine()


def model_name(spec: ModelSpec) -> str:
    """The packing of the model's own dtype as it is served."""
    from kvcalc.engines.base import model_packing

    return model_packing(spec.facts)[0].name


def _stages(spec: ModelSpec, options: Options) -> tuple[range, ...]:
    """The layers of each pipeline stage, by index."""
    ranges, start = [], 0
    for stage in pipeline_stages(spec.layers, options.pp):
        ranges.append(range(start, start + len(stage)))
        start += len(stage)
    for index, layer in enumerate(spec.layers):
        if layer.reads is not None and not any(index in stage and layer.reads in stage for stage in ranges):
            raise KvcalcError(f"vLLM: layer {index} uses the cache of layer {layer.reads}, which --pp {options.pp} puts on another stage", hint="use a smaller --pp")
    return tuple(ranges)


def _row_alignment(spec: ModelSpec, options: Options, pages: Layout, capability: int) -> int:
    """The stride of sparse MLA rows, to which packed groups are rounded."""
    latents = [page.cache for page in pages.specs if page.cache.kernel == "mla"]
    if not pages.block_outermost or not latents or pages.dtype == "fp8_ds_mla":
        return 1
    width = sum(plane.width for plane in latents[0].planes)
    del spec
    return sparse_mla(pages.dtype, capability, options.block_size, width, options.dcp).alignment


def _check(spec: ModelSpec, options: Options) -> None:
    """What vLLM refuses before it plans: heads that tensor parallelism does not divide, and the rules of DCP."""
    attention = [cache for layer in spec.layers for cache in layer.caches if cache.query_heads is not None]
    for cache in attention:
        heads = cache.query_heads or 1
        if heads % options.tp:
            raise KvcalcError(f"vLLM: total number of attention heads ({heads}) must be divisible by --tp {options.tp}", hint=f"use a --tp that divides {heads}")
    for number in spec.facts.sharded_tower:
        if number % options.tp:
            raise KvcalcError(f"vLLM: --tp {options.tp} does not divide {number}, a width of the vision tower", hint="use a --tp that divides it")
    if options.dcp > 1:
        _check_dcp(attention, options)
    if any(isinstance(cache.retention, Chunk) for cache in attention) and options.kv_dtype.k.startswith("turboquant"):
        raise KvcalcError("vLLM: TurboQuant cannot store chunked attention", hint="use --kv-dtype fp8")


def _check_dcp(attention: Sequence[Cache], options: Options) -> None:
    if options.tp % options.dcp:
        raise KvcalcError(f"vLLM: --dcp {options.dcp} must divide --tp {options.tp}", hint="lower --dcp or raise --tp")
    if any(isinstance(cache.retention, Window | Chunk) for cache in attention):
        raise KvcalcError("vLLM: DCP not supported with sliding windows", hint="leave out --dcp")
    for cache in attention:
        heads = cache.planes[0].heads
        if cache.kernel == "mla":
            continue
        if options.tp <= heads or options.dcp > options.tp // heads or (cache.query_heads or heads) // heads % options.dcp:
            raise KvcalcError(f"vLLM: --dcp {options.dcp} wants --tp above the {heads} KV heads, and as many copies of each", hint="lower --dcp or raise --tp")


def _check_checkpoint(spec: ModelSpec, dtype: str) -> None:
    if dtype == "fp8_e5m2" and spec.facts.quantized_kv_scales:
        raise KvcalcError("vLLM: fp8_e5m2 kv-cache is not supported with fp8 checkpoints", hint="use --kv-dtype fp8")


def _check_layout(spec: ModelSpec, options: Options, pages: Layout) -> None:
    families = {page.family for page in pages.specs}
    if not options.hybrid_manager and "mamba" in families and len(families) > 1:
        raise KvcalcError("vLLM cannot run a model with states without its hybrid KV cache manager", hint="leave out --disable-hybrid-kv-cache-manager")
    if not pages.specs:
        raise KvcalcError("vLLM keeps no KV cache for this model")
    del spec
