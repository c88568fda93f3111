"""The layer specs of vLLM 0.33.0: how many tokens one page of a layer holds, and its bytes (vllm/v1/kv_cache_interface.py)."""

from collections.abc import Sequence
from math import lcm
from typing import Final, Literal, NamedTuple, assert_never

from kvcalc.engines.base import Options, drafting_layers, model_packing
from kvcalc.engines.vllm.backends import DEFAULT_BLOCK, HOPPER, Attention, Backend, dense, is_blackwell, mla, no_backend, sparse_mla
from kvcalc.engines.vllm.dtypes import EIGHT_BIT, SPARSE_MLA_ROW, TURBOQUANT, head_bytes
from kvcalc.engines.vllm.versions import Version
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, ModelSpec, Once, Window
from kvcalc.packing import PACKINGS

Family = Literal["full", "sliding", "chunked", "sliding_mla", "mamba", "ring", "cross"]

ATTENTION_SINKS: Final = frozenset({"gpt_oss", "mimo_v2_flash"})
"""Model types whose attention has a learned sink."""
ALIBI: Final = frozenset({"baichuan", "bloom", "mpt"})
"""Model types that run with ALiBi. Falcon's old variants do too, but keep their cache in the model's dtype anyway."""
IGNORES_KV_DTYPE: Final = frozenset({"RefinedWeb", "RefinedWebModel", "falcon"})
"""Falcon (rotary or ALiBi) stores its cache in the model's dtype whatever --kv-cache-dtype says (vllm/model_executor/models/falcon.py)."""
EXPANDS_LATENT: Final = frozenset({"minicpm3"})
"""MiniCPM3 is not run as MLA: every query head keeps K and V of nope + rope (vllm/model_executor/models/minicpm3.py)."""
FLASH_KDA: Final = frozenset({"glm5_next", "kimi_k3"})
"""Models whose KDA layers run on FlashKDA, which keeps a checkpoint block and aligns it to 16 tokens."""
FP8_ON_BLACKWELL: Final = frozenset({"glm5_next", "glm_moe_dsa"})
"""Models for which `auto` becomes fp8 on data-centre Blackwell."""

INDEX_SCALE_BYTES: Final = 4
"""One fp32 scale for each 128 fp8 index values."""
V4_BLOCK: Final = 256
V4_ALIGNMENT: Final = 576


class PageSpec(NamedTuple):
    """One cache of one layer on one GPU. `span` is a window or chunk in tokens, `shape` what two specs must share to be the same."""

    layer: int
    cache: Cache
    family: Family
    block: int
    page_bytes: int
    span: int = 0
    shape: tuple[object, ...] = ()
    alignment: int = 1
    own_bytes: int | None = None
    """The page before it was enlarged to that of other layers, for `block` tokens; None where it was not."""

    @property
    def same(self) -> tuple[object, ...]:
        """What makes layers share a block table as they are: full layers may differ in a recorded window, which is none here."""
        return (self.family, self.block, self.page_bytes, self.span, self.shape)


class Layout(NamedTuple):
    """All specs of a model, and what of the choice a reader should know."""

    specs: tuple[PageSpec, ...]
    block_outermost: bool
    dtype: str
    state_blocks: int
    """Blocks of one request in each group of states."""


def layout(spec: ModelSpec, options: Options, dtype: str, capability: int, version: Version) -> Layout:
    """The pages of every layer. Raises KvcalcError for what vLLM refuses."""
    model_type = spec.facts.model_type or ""
    if model_type in FP8_ON_BLACKWELL and is_blackwell(capability) and dtype == "auto":
        dtype = "fp8"
    if model_type in IGNORES_KV_DTYPE:
        dtype = "auto"
    caches = _caches(spec, options)
    if any(cache.kernel == "mla" and isinstance(cache.retention, Window) for _, cache in caches):
        return _compressed(options, dtype, capability, caches)
    return _Pages(spec, options, dtype, capability, version).layout()


def _caches(spec: ModelSpec, options: Options) -> list[tuple[int, Cache]]:
    """Every cache with the index of its layer; those of draft layers lie on the stage of the last."""
    caches = [(index, cache) for index, layer in enumerate(spec.layers) for cache in layer.caches]
    return caches + [(len(spec.layers) - 1, cache) for layer in drafting_layers(spec, options) for cache in layer.caches]


class _Pages:
    """The pages of a model whose layers are attention, MLA, index keys and states."""

    def __init__(self, spec: ModelSpec, options: Options, dtype: str, capability: int, version: Version) -> None:
        self.spec, self.options, self.dtype, self.capability, self.version = spec, options, dtype, capability, version
        self.caches = caches = _caches(spec, options)
        self.model_type = spec.facts.model_type or ""
        self.model = model_packing(spec.facts)[0]
        self.kernels = {cache.kernel for _, cache in caches}
        self.states = [cache for _, cache in caches if isinstance(cache.retention, Once) and cache.kernel != "ring"]
        self.attends = any(not isinstance(cache.retention, Once) for _, cache in caches)
        self.packed_groups = "ring" in self.kernels

    def layout(self) -> Layout:
        backends = {cache: self._backend(cache) for cache in dict.fromkeys(cache for _, cache in self.caches) if not isinstance(cache.retention, Once)}
        block = self._block(list(backends.values()))
        state_page = 0
        state_blocks = 1 + self.options.speculative_tokens
        if self.states:
            natural = max(self._state_bytes(cache) for cache in self.states)
            state_page = natural
            if self.attends:
                align, checkpoint = self._state_alignment()
                token = self._token_bytes(backends)
                block = max(block, self._aligned_block(natural, token, block, align, [backend.block for backend in backends.values()]))
                state_page = block * token
                if self.options.prefix_caching and self.version.copies_states:
                    state_blocks += 1 + checkpoint
        specs = tuple(self._page(index, cache, block, backends, state_page) for index, cache in self.caches)
        return Layout(specs, self.packed_groups, self.dtype, state_blocks)

    # Backends and block sizes

    def _backend(self, cache: Cache) -> Backend:
        given = self.options.block_size
        match cache.kernel:
            case "indexer":
                return Backend("indexer", 64 if "mla" in self.kernels else 128)
            case "mla" if self.model_type in EXPANDS_LATENT:
                _, width = self._expanded(cache)
                return dense(Attention(width, width, full_causal=True), self.dtype, self.capability, given)
            case "mla" if "indexer" in self.kernels:
                width = sum(plane.width for plane in cache.planes)
                return self._sparse(width, given)
            case "mla":
                rope = sum(plane.width for plane in cache.planes if plane.role == "rope")
                nope = None if cache.expanded is None else cache.expanded[0] - rope
                return mla(self.dtype, self.capability, given, nope)
            case _:
                return dense(self._attention(cache), self.dtype, self.capability, given)

    def _sparse(self, width: int, given: int | None) -> Backend:
        if not self.version.stores_v_apart and self.dtype in ("auto", *EIGHT_BIT):
            return Backend("FLASHMLA_SPARSE", 64, SPARSE_MLA_ROW)  # 0.11: `auto` and fp8 both mean fp8_ds_mla
        return sparse_mla(self.dtype, self.capability, given, width, self.options.dcp).backend

    def _attention(self, cache: Cache) -> Attention:
        k, v = cache.planes
        return Attention(
            k.width,
            v.width,
            full_causal=isinstance(cache.retention, Grows),
            sinks=self.model_type in ATTENTION_SINKS,
            alibi=self.model_type in ALIBI,
            image_prefix=self.spec.facts.image_prefix,
        )

    def _expanded(self, cache: Cache) -> tuple[int, int]:
        """Heads, and their width, of a latent that vLLM does not keep as one."""
        if cache.expanded is None or cache.query_heads is None:
            raise KvcalcError("vLLM expands this model's latent, and its heads are not known")
        return cache.query_heads, cache.expanded[0]

    def _block(self, backends: Sequence[Backend]) -> int:
        """The block size before states: given, else the smallest from 16 on that every backend takes."""
        wanted = lcm(DEFAULT_BLOCK, *(backend.block for backend in backends))
        if self.options.block_size is None:
            return self._turboquant_block(wanted, DEFAULT_BLOCK)
        return self._turboquant_block(self.options.block_size, self.options.block_size)

    def _turboquant_block(self, block: int, align: int) -> int:
        """TurboQuant in a dense model, whose first and last layers stay 16-bit: the shared page must hold 16 tokens of those, at the first layer's
        packing of one byte an element.
        """
        if self.dtype not in TURBOQUANT or self.states:
            return block
        least = DEFAULT_BLOCK * 2
        return align * -(-least // align)

    @property
    def _checkpoints(self) -> bool:
        return self.options.prefix_caching and self.version.checkpoints_states

    def _state_alignment(self) -> tuple[int, int]:
        """The tokens to which states are checkpointed, and the blocks that a checkpoint takes; both only with prefix caching."""
        hopper_or_newer = self.capability >= HOPPER
        if not self._checkpoints:
            return 1, 0
        if "mamba2" in self.kernels:
            return 1, 1
        if "gdn" in self.kernels and hopper_or_newer:
            return 64, 1
        if "kda" in self.kernels and hopper_or_newer and self.model_type in FLASH_KDA:
            return 16, 1
        return 1, 0

    def _aligned_block(self, state: int, token: int, block: int, align: int, kernels: Sequence[int]) -> int:
        """Tokens a block must hold so that an attention page is at least as large as a state."""
        unit = max(block, 128 if "mla" in self.kernels else 1)
        unit = lcm(unit, align)
        aligned = unit * -(-state // (unit * token))
        return lcm(*kernels) * -(-aligned // lcm(*kernels))

    def _token_bytes(self, backends: dict[Cache, Backend]) -> int:
        """Bytes of one token in one attention layer: of the latent in MLA models."""
        cache, backend = next((cache, backend) for cache, backend in backends.items() if cache.kernel in ("gqa", "mla"))
        return self._row_bytes(cache, backend, packed=self.dtype in TURBOQUANT)

    # Pages

    def _row_bytes(self, cache: Cache, backend: Backend, *, packed: bool = False) -> int:
        """Bytes of one token on one GPU."""
        if cache.kernel == "mla" and self.model_type not in EXPANDS_LATENT:
            width = sum(plane.width for plane in cache.planes)
            if backend.row_bytes is not None:
                return backend.row_bytes
            return width if self.dtype in EIGHT_BIT else width * self.model.size_bytes
        if cache.kernel == "mla":
            heads, width = self._expanded(cache)
        else:
            width, heads = cache.planes[0].width, cache.planes[0].heads
        v_width = width if cache.kernel == "mla" else cache.planes[1].width
        dtype = "auto" if self.dtype in TURBOQUANT and not packed else self.dtype
        return _rank_heads(heads, self.options.tp) * head_bytes(dtype, width, v_width, self.model.size_bytes)

    def _page(self, index: int, cache: Cache, block: int, backends: dict[Cache, Backend], state_page: int) -> PageSpec:
        match cache.retention:
            case Once() if cache.kernel == "ring":
                rows = cache.planes[0]
                return PageSpec(index, cache, "ring", rows.heads, rows.heads * rows.width * PACKINGS[rows.dtype].size_bytes)
            case Once():
                own = self._state_bytes(cache)
                return PageSpec(index, cache, "mamba", block, state_page if self.attends else own, shape=(cache.kernel, own), own_bytes=own)
            case Grows(stride=stride) if cache.kernel == "indexer":
                return self._index_page(index, cache, block, stride)
            case Grows():
                family: Family = "full"
                span = 0
            case Window(size=size):
                family, span = ("sliding", size) if self._bounded and not self.version.one_kind_of_layer else ("full", 0)
            case Chunk(size=size):
                family, span = ("chunked", size) if self._bounded and self.version.keeps_chunks else ("full", 0)
            case Encoder():
                family, span = "cross", 0
            case unreachable:
                assert_never(unreachable)
        packed = self.dtype in TURBOQUANT and not self._stays_sixteen_bit(index)
        row = self._row_bytes(cache, backends[cache], packed=packed)
        planes = tuple((plane.heads, plane.width) for plane in cache.planes)
        return PageSpec(index, cache, family, block, block * row, span, (planes, packed))

    @property
    def _bounded(self) -> bool:
        """Whether layers of bounded span are allocated as such: not with the hybrid manager off, if the model has layers that keep all."""
        return self.options.hybrid_manager or not any(isinstance(cache.retention, Grows) for _, cache in self.caches)

    def _stays_sixteen_bit(self, index: int) -> bool:
        """TurboQuant leaves the first two and the last two layers of a dense model alone."""
        count = len(self.spec.layers)
        ends = min(2, count // 2)
        return not self.states and (index < ends or index >= count - ends)

    def _index_page(self, index: int, cache: Cache, block: int, stride: int) -> PageSpec:
        width = cache.planes[0].width
        if "mla" not in self.kernels:  # MiniMax-M3 keeps plain keys, in the model's dtype
            return PageSpec(index, cache, "full", block, block * width * self.model.size_bytes, shape=("index", width))
        row = width + INDEX_SCALE_BYTES * width // 128
        return PageSpec(index, cache, "full", block, block // stride * row, shape=("index", width), alignment=_pooled_alignment(row, stride))

    def _state_bytes(self, cache: Cache) -> int:
        """One state of one layer on one GPU."""
        total = 0
        for plane in cache.planes:
            dtype = self.options.state_dtype if plane.role == "state" and self.options.state_dtype else plane.dtype
            packing = self.model if dtype == "model" else PACKINGS[dtype]
            columns = plane.columns + self.options.speculative_tokens if plane.role == "conv" else 1
            heads, width = plane.heads, plane.width
            match plane.split:
                case "heads" if cache.kernel == "mamba2" and plane.role == "conv":
                    heads = heads // self.options.tp if heads % self.options.tp == 0 else 1  # groups of B and C are copied where they do not divide
                case "heads":
                    heads = _divided(heads, self.options.tp, f"{cache.kernel} heads")
                case "width":
                    width = _divided(width, self.options.tp, f"{cache.kernel} channels")
                case "replicated":
                    pass
                case unreachable:
                    assert_never(unreachable)
            total += heads * columns * packing.row_bytes(width)
        return total


def _divided(number: int, tp: int, what: str) -> int:
    if number % tp:
        raise KvcalcError(f"vLLM: --tp {tp} does not divide the {number} {what}", hint="use a --tp that divides them")
    return number // tp


def _rank_heads(heads: int, tp: int) -> int:
    """KV heads on one GPU: divided, or copied where there are fewer heads than GPUs."""
    if (heads % tp if tp <= heads else tp % heads) != 0:
        raise KvcalcError(f"vLLM: --tp {tp} neither divides the {heads} KV heads nor is a multiple of them", hint=f"use a --tp that divides {heads}")
    return max(1, heads // tp)


def _pooled_alignment(row: int, stride: int) -> int:
    """Stride of a pooled indexer in packed groups: gcd(256, block) / pool rows, for the blocks in use 256 / stride."""
    return 1 if stride == 1 else 256 // stride * row


# DeepSeek-V4 and V4.1


def _compressed(options: Options, dtype: str, capability: int, caches: Sequence[tuple[int, Cache]]) -> Layout:
    """Windows of latents, compressed latents and index keys, and the fp32 rows of compressors, each in pages of its own size."""
    if dtype not in ("auto", *EIGHT_BIT[:2]):
        raise KvcalcError(f"vLLM: DeepSeek-V4 stores packed fp8 rows only, not {dtype}", hint="use --kv-dtype fp8 or auto")
    if options.dcp > 1:
        raise KvcalcError("vLLM: DCP not supported with sliding windows", hint="leave out --dcp")
    if not options.hybrid_manager:
        raise KvcalcError("vLLM cannot run DeepSeek-V4 without its hybrid KV cache manager")
    newer, packed = not any(cache.kernel == "compressor" for _, cache in caches), "fp8_ds_mla"
    if newer and is_blackwell(capability):
        packed = "nvfp4_ds_mla"
        sizes = _V4Sizes(window_block=32, block=128, window_row=528, row=288, alignment=512)
    else:
        sizes = _V4Sizes(window_block=32 if newer else 64, block=64 if newer else V4_BLOCK, window_row=584, row=584, alignment=V4_ALIGNMENT)
    if options.block_size is not None and not newer:
        if options.block_size % 128:
            raise no_backend(dtype, capability, "DeepSeek-V4 wants a block size that is a multiple of 128")
        sizes = sizes._replace(block=options.block_size)
    return Layout(tuple(_compressed_page(index, cache, sizes) for index, cache in caches), block_outermost=True, dtype=packed, state_blocks=1)


class _V4Sizes(NamedTuple):
    window_block: int
    block: int
    window_row: int
    row: int
    alignment: int


def _compressed_page(index: int, cache: Cache, sizes: _V4Sizes) -> PageSpec:
    width = cache.planes[0].width
    match cache.retention:
        case Window(size=rows) if cache.kernel == "compressor":
            block = 4 if rows == 8 else 8
            return PageSpec(index, cache, "sliding_mla", block, _up(block * width * 4, sizes.alignment), rows, ("compressor",))
        case Window(size=size):
            return PageSpec(index, cache, "sliding_mla", sizes.window_block, _up(sizes.window_block * sizes.window_row, sizes.alignment), size, ("window",))
        case Grows(stride=stride) if cache.kernel == "indexer":
            row = width + INDEX_SCALE_BYTES * width // 128
            return PageSpec(index, cache, "full", sizes.block, _up(sizes.block // stride * row, sizes.alignment), shape=("index",))
        case Grows(stride=stride):
            return PageSpec(index, cache, "full", sizes.block, _up(sizes.block // stride * sizes.row, sizes.alignment), shape=("latent",))
        case Once():
            rows_of = cache.planes[0]
            return PageSpec(index, cache, "ring", rows_of.heads, rows_of.heads * width * 4)
        case _:
            raise KvcalcError("vLLM: a DeepSeek-V4 model with layers of another kind is not known")


def _up(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
