"""vLLM: its own plan of the KV cache, block for block, without a GPU."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal

from kvcalc.engines.base import (
    Capacity,
    LayerKind,
    LayerUse,
    Loaded,
    Options,
    Overheads,
    PlaneUse,
    Pool,
    layer_kind,
    model_packing,
    pipeline_stages,
)
from kvcalc.engines.loading import loaded_shares
from kvcalc.engines.vllm.backends import sparse_mla
from kvcalc.engines.vllm.dtypes import SIXTEEN_BIT, kv_dtype_name
from kvcalc.engines.vllm.groups import Group, Grouping, group
from kvcalc.engines.vllm.overheads import UNKNOWN_WIDTHS, Deployment, overheads, widths_of
from kvcalc.engines.vllm.pages import Layout, PageSpec, layout
from kvcalc.engines.vllm.serve import BatchSizes, batch_sizes, serve_command
from kvcalc.engines.vllm.versions import NEWEST, Version
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, ModelSpec, Note, Window
from kvcalc.packing import KvDtype, Packing
from kvcalc.tensors import WeighedModel

ASSUMED_CAPABILITY: Final = 90
"""Without a GPU, or on one that CUDA does not run, the attention backends are those of an H100."""


@dataclass(frozen=True, slots=True)
class VllmPlan:
    """One pool of blocks for each GPU. A block id costs the same whatever group uses it; a request holds blocks in every group."""

    kv_dtype: KvDtype
    model: Packing
    grouping: Grouping
    state_blocks: int
    encoder_tokens: int | None
    stages: tuple[range, ...]
    options: Options
    batch: BatchSizes
    batches: int
    version: Version
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("blocks", unit_bytes=max(map(self._block_bytes, self.stages)), unit_rows=self._block_tokens),)

    @property
    def _block_tokens(self) -> int:
        """Tokens in a block of the layers that keep everything, else of the group with the smallest."""
        full = [each.specs[0].block for each in self.grouping.groups if each.specs[0].family == "full"]
        return min(full or [each.specs[0].block for each in self.grouping.groups])

    @property
    def reserved(self) -> int:
        """The null block, which stands for tokens that a window has left behind."""
        return 1 if self.version.packs_groups else 0

    @property
    def slots(self) -> int | None:
        return None

    @property
    def max_requests(self) -> int | None:
        return self.batch.seqs

    def capacity(self, units: int, tokens: int) -> Capacity:
        """`Maximum concurrency` and `GPU KV cache size` as this release logs them."""
        need = self.need(tokens)[0]
        if self.version.one_kind_of_layer:
            whole = units * self._block_tokens
            return Capacity(whole / tokens, whole)
        requests = units / need
        if self.version.tokens_follow_requests:
            return Capacity(requests, int(requests * tokens))
        smallest = min(each.specs[0].block for each in self.grouping.groups)
        return Capacity(requests, units // len(self.grouping.groups) * smallest * self.options.dcp)

    def need(self, tokens: int) -> tuple[int, ...]:
        return (sum(self._blocks(each, tokens) for each in self.grouping.groups),)

    def resident_bytes(self, tokens: int, batch: int) -> int:
        return batch * self.need(tokens)[0] * self.pools[0].unit_bytes

    def total_bytes(self, tokens: int, batch: int) -> int:
        return self.options.dp * batch * self.need(tokens)[0] * self._replica_block_bytes

    @property
    def _replica_block_bytes(self) -> int:
        """One block on all GPUs of a replica."""
        return self.options.tp * sum(map(self._block_bytes, self.stages))

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
        return tuple(LayerUse(kind, layers, cache, self._planes(cache), rows, size) for (kind, cache), (layers, rows, size) in found.items())

    def _planes(self, cache: Cache) -> tuple[PlaneUse, ...]:
        """The shape of a row on one GPU; its bytes are the page's."""
        tp = self.options.tp
        return tuple(
            PlaneUse(
                plane,
                max(1, plane.heads // tp) if plane.split == "heads" else plane.heads,
                plane.width // tp if plane.split == "width" else plane.width,
                self.model,
            )
            for plane in cache.planes
        )

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        found = {
            "page padding": 0,
            "windows hold tokens in flight": 0,
            "windows kept at full length": 0,
            "states kept twice or more": 0,
            "room for a whole batch of encoder tokens": 0,
        }
        tp = self.options.tp
        for each in self.grouping.groups:
            blocks = self._blocks(each, tokens)
            own = tp * sum(spec.page_bytes if spec.own_bytes is None else spec.own_bytes for spec in each.specs)
            found["page padding"] += blocks * (self._replica_block_bytes - own)
            match each.specs[0].family:
                case "sliding" | "sliding_mla" | "chunked":
                    kept = -(-min(each.specs[0].span, tokens) // each.specs[0].block)
                    found["windows hold tokens in flight"] += (blocks - kept) * own
                case "mamba":
                    found["states kept twice or more"] += (blocks - 1) * own
                case "full":
                    for spec in each.specs:
                        if isinstance(spec.cache.retention, Window | Chunk):
                            kept = -(-min(spec.cache.retention.size, tokens) // spec.block)
                            found["windows kept at full length"] += (blocks - kept) * tp * spec.page_bytes
                case "cross" if self.encoder_tokens is not None:
                    found["room for a whole batch of encoder tokens"] += (blocks - -(-self.encoder_tokens // each.specs[0].block)) * own
                case "ring" | "cross":
                    pass
        return tuple((cause, size) for cause, size in found.items() if size)

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:
        return serve_command(self.version, self.options, model, context, kv_bytes=kv_bytes, utilization=utilization)

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:  # noqa: ARG002 (a pool of fixed size holds nothing beside it)
        return ()

    def _block_bytes(self, stage: range) -> int:
        return self.grouping.block_bytes(lambda layer: layer in stage)

    def _in_flight(self, tokens: int) -> int:
        """Tokens that can be on their way at once (max_in_flight_tokens)."""
        return self.batches * min(self.batch.tokens, self.batch.seqs * max(tokens, 1))

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
        return max(self._spec_blocks(spec, tokens) for spec in each.unlike)

    def _spec_blocks(self, spec: PageSpec, tokens: int) -> int:
        match spec.family:
            case "full":
                of_one_gpu = -(-tokens // self.options.dcp)
                return -(-of_one_gpu // spec.block)
            case "sliding" | "sliding_mla":
                return -(-min(spec.span - 1 + self._in_flight(tokens), tokens) // spec.block) + 1
            case "chunked":
                return -(-min(spec.span + self._in_flight(tokens), tokens) // spec.block)
            case "mamba":
                return self.state_blocks
            case "ring":
                return 1
            case "cross":
                rows = self.batch.tokens if self.options.encoder_tokens is None else self.options.encoder_tokens
                return -(-rows // spec.block)


class VllmEngine:
    """vLLM at one release, with its V1 scheduler on CUDA."""

    name = "vllm"
    part_of: Literal["all"] = "all"

    def __init__(self, release: Version) -> None:
        self.release = release

    @property
    def version(self) -> str:
        return self.release.number

    def utilization(self, _spec: ModelSpec, _options: Options, _total_bytes: int) -> Decimal:
        return Decimal(self.release.utilization_percent) / 100

    def plan(self, spec: ModelSpec, options: Options) -> VllmPlan:
        capability, notes = _capability(options)
        _check(spec, options)
        dtype = kv_dtype_name(options.kv_dtype, spec.facts, self.release)
        if dtype == "fp8_e5m2" and spec.facts.quantized_kv_scales:
            raise KvcalcError("vLLM: fp8_e5m2 kv-cache is not supported with fp8 checkpoints", hint="use --kv-dtype fp8")
        if "auto" in options.kv_dtype and dtype != "auto":
            notes.append(Note(code="kv-dtype", text=f"the checkpoint's quantization names {dtype} for the KV cache; another with --kv-dtype"))
        pages = layout(spec, options, dtype, capability, self.release)
        _check_layout(options, pages, self.release)
        model, dtype_note = model_packing(spec.facts)
        if dtype_note is not None and pages.dtype == "auto":
            notes.append(dtype_note)
        stored = model.name if pages.dtype in SIXTEEN_BIT else pages.dtype
        overlap = options.pp + 1 if options.async_scheduling and not spec.facts.pooling and self.release.batches_overlap else 1
        return VllmPlan(
            kv_dtype=KvDtype(stored, stored),
            model=model,
            grouping=group(pages, _row_alignment(options, pages, capability), self.release.group_growth_percent),
            state_blocks=pages.state_blocks,
            encoder_tokens=spec.facts.encoder_tokens,
            stages=_stages(spec, options),
            options=options,
            batch=batch_sizes(options, spec.facts, self.release),
            batches=overlap,
            version=self.release,
            notes=tuple(notes),
        )

    def loaded(self, spec: WeighedModel, options: Options) -> Loaded:
        nvidia = options.device is None or options.device.nvidia
        return loaded_shares(_as_loaded(spec), options, MXFP4_STEP if nvidia else MXFP4_STEP_ELSEWHERE)

    def overheads(self, spec: WeighedModel, options: Options, context: int) -> Overheads:
        if not any(tensor.part == "text" and tensor.role == "embedding" for tensor in spec.tensors):
            return UNKNOWN_WIDTHS
        batch = batch_sizes(options, spec.facts, self.release)
        deployment = Deployment(
            minor=self.release.minor,
            batched_tokens=batch.tokens,
            sequences=batch.seqs,
            context=context,
            tp=options.tp,
            drafted=options.speculative_tokens,
            eager=options.enforce_eager,
            unified=options.device is not None and options.device.unified,
        )
        return overheads(widths_of(spec, towers=options.towers), deployment)


def _as_loaded(spec: WeighedModel) -> WeighedModel:
    """The model as vLLM 0.33.0 holds it: MLX's own quantization is read as if it were not there, and the attention of GLM-5.3-Flash stays in 16 bits
    whatever the checkpoint says (vllm/models/glm5next).
    """
    stored = spec.quantization
    if stored is not None and stored.method == "mlx":
        return spec.model_copy(update={"quantization": None})
    if stored is not None and spec.facts.model_type == "glm5_next":
        return spec.model_copy(update={"quantization": stored.model_copy(update={"keeps_mixers": True})})
    return spec


MXFP4_STEP: Final = (128, 256)
MXFP4_STEP_ELSEWHERE: Final = (256, 256)
"""Width on a GPU and features of experts in mxfp4, for Marlin and TensorRT-LLM kernels and for ROCm's (vllm/model_executor/layers/fused_moe/oracle/mxfp4.py
0.33.0; gpt-oss-120b logs 65.97 GiB on an H100, of which 4.5 are this padding)."""

NEWEST_VLLM: Final = VllmEngine(Version(NEWEST))


def _capability(options: Options) -> tuple[int, list[Note]]:
    if options.device is None:
        text = "no GPU is named: attention backends are taken as on an H100, batch sizes as on an unknown device"
    elif options.device.capability is None:
        text = f"which backends vLLM takes on {options.device.name} is not known: those of an H100 are taken"
    else:
        return options.device.capability, []
    return ASSUMED_CAPABILITY, [Note(code="gpu", text=text)]


def _stages(spec: ModelSpec, options: Options) -> tuple[range, ...]:
    """The layers of each pipeline stage, by index."""
    ranges, start = [], 0
    for stage in pipeline_stages(spec.layers, options.pp):
        ranges.append(range(start, start + len(stage)))
        start += len(stage)
    for index, layer in enumerate(spec.layers):
        if layer.reads is not None and not any(index in stage and layer.reads in stage for stage in ranges):
            raise KvcalcError(
                f"vLLM: layer {index} uses the cache of layer {layer.reads}, which --pp {options.pp} puts on another stage", hint="use a smaller --pp"
            )
    return tuple(ranges)


def _row_alignment(options: Options, pages: Layout, capability: int) -> int:
    """The stride of sparse MLA rows, to which packed groups are rounded."""
    latents = [page.cache for page in pages.specs if page.cache.kernel == "mla"]
    if not pages.block_outermost or not latents or pages.dtype.endswith("_ds_mla"):
        return 1
    width = sum(plane.width for plane in latents[0].planes)
    return sparse_mla(pages.dtype, capability, options.block_size, width, options.dcp).alignment


def _check(spec: ModelSpec, options: Options) -> None:
    """What vLLM refuses before it plans: heads that tensor parallelism does not divide, and the rules of DCP."""
    caches = dict.fromkeys(cache for layer in spec.layers for cache in layer.caches)
    for heads in [cache.query_heads for cache in caches if cache.query_heads is not None]:
        if heads % options.tp:
            raise KvcalcError(
                f"vLLM: total number of attention heads ({heads}) must be divisible by --tp {options.tp}", hint=f"use a --tp that divides {heads}"
            )
    for number in spec.facts.sharded_tower:
        if number % options.tp:
            raise KvcalcError(f"vLLM: --tp {options.tp} does not divide {number}, a width of the vision tower", hint="use a --tp that divides it")
    if options.dcp > 1:
        _check_dcp(caches, options)
    if any(isinstance(cache.retention, Chunk) for cache in caches) and options.kv_dtype.k.startswith("turboquant"):
        raise KvcalcError("vLLM: TurboQuant cannot store chunked attention", hint="use --kv-dtype fp8")


def _check_dcp(caches: Iterable[Cache], options: Options) -> None:
    if options.tp % options.dcp:
        raise KvcalcError(f"vLLM: --dcp {options.dcp} must divide --tp {options.tp}", hint="lower --dcp or raise --tp")
    if any(isinstance(cache.retention, Window | Chunk) for cache in caches):
        raise KvcalcError("vLLM: DCP not supported with sliding windows", hint="leave out --dcp")
    for cache in caches:
        heads = cache.planes[0].heads
        if cache.kernel != "gqa":
            continue
        ungrouped = cache.query_heads is not None and cache.query_heads // heads % options.dcp != 0
        if options.tp <= heads or options.dcp > options.tp // heads or ungrouped:
            raise KvcalcError(f"vLLM: --dcp {options.dcp} wants --tp above the {heads} KV heads, and as many copies of each", hint="lower --dcp or raise --tp")


def _check_layout(options: Options, pages: Layout, version: Version) -> None:
    """What vLLM, at this release, cannot put into blocks."""
    if not pages.specs:
        raise KvcalcError("vLLM keeps no KV cache for this model")
    families = {page.family for page in pages.specs}
    if "mamba" in families and not version.pools_states:
        raise KvcalcError(f"vLLM {version.number} kept states outside its KV pool", hint="use --engine vllm@0.11 or newer")
    if (pages.block_outermost or "sliding_mla" in families) and not version.packs_groups:
        raise KvcalcError(f"how vLLM {version.number} lays out the pages of this model is not known", hint="use --engine vllm")
    shapes = [page.cache.planes for page in pages.specs if page.cache.kernel == "gqa"]
    if not version.stores_v_apart and any(k.width != v.width for k, v in shapes):
        raise KvcalcError(f"vLLM {version.number} stores K and V of one width only", hint="use --engine vllm@0.14 or newer")
    if not options.hybrid_manager and "mamba" in families and len(families) > 1:
        raise KvcalcError("vLLM cannot run a model with states without its hybrid KV cache manager", hint="leave out --disable-hybrid-kv-cache-manager")
