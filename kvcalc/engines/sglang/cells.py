"""What SGLang 0.5.23 stores for one token, or one request, in each layer of a model on one GPU, and the page that it hands tokens out in.

Sizes: sglang/srt/model_executor/pool_configurator.py and sglang/srt/mem_cache/memory_pool.py. SGLang prices every layer of a pool alike; a model whose layers
are not alike is refused, unless it is one of those for which it has several pools.
"""

from collections import Counter
from typing import Final, NamedTuple, assert_never

from kvcalc.engines.base import LayerKind, Options, PlaneUse, drafting_layers, layer_kind, model_packing, pipeline_stages, split_heads
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, Layer, ModelSpec, Note, Once, Plane, Window
from kvcalc.packing import PACKINGS, KvDtype, Packing

SWA_POOLS: Final = frozenset(
    ("gemma4", "gemma4_text", "gpt_oss", "granite_swa", "laguna", "llama4", "mimo_v2_flash", "muse_glimmer", "muse_glimmer_text", "step3p5", "step3p7")
)
"""Model types with a second pool for their windows (is_hybrid_swa_model, sglang/srt/configs/model_config.py); others keep windows at full length."""
WINDOW_LESS_ONE: Final = frozenset(("gemma4", "gemma4_text", "gpt_oss", "muse_glimmer", "muse_glimmer_text"))
"""Types of these whose window does not count the token itself (get_attention_sliding_window_size in sglang/srt/models)."""
EXTRA_BUFFER: Final = frozenset(
    (
        "falcon_h1",
        "granitemoehybrid",
        "kimi_k3",
        "kimi_linear",
        "minicpmv4_6",
        "nemotron_h",
        "qwen3_5",
        "qwen3_5_moe",
        "qwen3_5_moe_text",
        "qwen3_5_text",
        "qwen3_next",
        "qwen4_exp",
        "qwen4_exp_text",
    )
)
"""Types with states whose prefix cache tracks them in extra slots by default (_MAMBA_EXTRA_BUFFER_ARCHS, sglang/srt/arg_groups/overrides.py)."""
NO_BUFFER: Final = frozenset(("lfm2", "lfm2_moe", "lfm2_vl"))
"""Types with states whose prefix cache does without (mambaish_config, sglang/srt/configs/hybrid_arch.py, names all types with states)."""
TRITON_ON_SM100: Final = frozenset(("falcon_h1", "minicpmv4_6", *NO_BUFFER))
"""Types that run on a backend with pages of one token on a B200 (sglang/srt/arg_groups/model_overrides; no_buffer takes no other page)."""
TRTLLM_MLA: Final = frozenset(("deepseek_v3", "kimi_k2", "kimi_k25", "longcat_flash"))
"""Types of MLA that run on trtllm_mla on a B200 (_deepseek_family_overrides, sglang/srt/arg_groups/model_overrides/deepseek_v2.py)."""

KV_DTYPES: Final = ("auto", "fp8_e5m2", "fp8_e4m3", "mxfp8", "bf16", "nvfp4", "fp4_mx_block16")
"""--kv-cache-dtype (sglang/srt/arg_groups/fields/model.py)."""
FOUR_BIT: Final = ("nvfp4", "fp4_mx_block16")
ASSUMED_CAPABILITY: Final = 90
"""Without a GPU, or on one that CUDA does not run, attention backends are those of an H100."""
DSA_PAGE: Final = 64
"""Tokens in a page of DeepSeek's sparse attention (DSATokenToKVPool, memory_pool.py)."""


class Kept(NamedTuple):
    """`layers` layers of a stage that keep a cache in the same way, `again` of them though they use that of another layer. `row_bytes` is one row in one of
    them (for a state: one slot), `plain_bytes` the elements of it alone.
    """

    kind: LayerKind
    cache: Cache
    layers: int
    again: int
    planes: tuple[PlaneUse, ...]
    row_bytes: int
    plain_bytes: int


class Stage(NamedTuple):
    """One pipeline stage, by pool: layers of the full pool and of the pool for windows (those that draft among them), and states."""

    full: tuple[Kept, ...]
    swa: tuple[Kept, ...]
    states: tuple[Kept, ...]

    @property
    def full_bytes(self) -> int:
        """One token in the full pool."""
        return sum(kept.layers * kept.row_bytes for kept in self.full)

    @property
    def swa_bytes(self) -> int:
        """One token in the pool for windows."""
        return sum(kept.layers * kept.row_bytes for kept in self.swa)

    @property
    def state_bytes(self) -> int:
        """One slot: the states of one request."""
        return sum(kept.layers * kept.row_bytes for kept in self.states)


class Storage(NamedTuple):
    """How rows are stored: `dtype` as SGLang names it (16 bits under the name of a packing), the dtype the model computes in, GPUs that share the heads
    of attention (`heads_tp`) and of states (`tp`), the compute capability, and whether attention is `sparse`.
    """

    dtype: str
    model: Packing
    heads_tp: int
    tp: int
    capability: int
    state_dtype: str | None
    model_type: str
    sparse: bool


def attention_tp(options: Options) -> int:
    """GPUs that share the heads of a layer. Raises KvcalcError where requests cannot be dealt out to the GPUs so."""
    groups = options.dp if options.dp_attention else 1
    if options.tp % groups:
        raise KvcalcError(f"SGLang: --dp {groups} must divide --tp {options.tp} under --enable-dp-attention", hint="lower --dp or raise --tp")
    return options.tp // groups


def storage(spec: ModelSpec, options: Options) -> tuple[Storage, list[Note]]:
    """How this model's rows are stored, and what was taken for granted. Raises KvcalcError for a dtype that SGLang has not, or not here."""
    capability, notes = _capability(options)
    model, dtype_note = model_packing(spec.facts)
    tp = attention_tp(options)
    if tp % options.dcp:
        raise KvcalcError(f"SGLang: --dcp {options.dcp} must divide the {tp} GPUs that share the heads", hint="lower --dcp or raise --tp")
    dtype = _dtype(spec, options, model, capability, notes)
    if dtype_note is not None and dtype == model.name:
        notes.append(dtype_note)
    found = Storage(
        dtype=dtype,
        model=model,
        heads_tp=tp // options.dcp,
        tp=tp,
        capability=capability,
        state_dtype=options.state_dtype,
        model_type=spec.facts.model_type or "",
        sparse=is_sparse(spec),
    )
    if dtype in FOUR_BIT and _has_windows(spec):
        raise KvcalcError(f"SGLang prices a pool for windows as if {dtype} took a byte an element: it is not modelled", hint="use --kv-dtype fp8_e4m3")
    return found, notes


def _capability(options: Options) -> tuple[int, list[Note]]:
    if options.device is None:
        text = "no GPU is named: attention backends, which decide about pages, are taken as on an H100"
    elif options.device.capability is None:
        text = f"which backends SGLang takes on {options.device.name} is not known: those of an H100 are taken"
    else:
        return options.device.capability, []
    return ASSUMED_CAPABILITY, [Note(code="gpu", text=text)]


def _dtype(spec: ModelSpec, options: Options, model: Packing, capability: int, notes: list[Note]) -> str:
    """The KV dtype, `auto` resolved (configure_kv_cache_dtype, sglang/srt/mem_cache/kv_cache_dtype.py)."""
    asked, facts = options.kv_dtype, spec.facts
    if asked.k != asked.v:
        raise KvcalcError(f"SGLang stores K and V alike, not as {asked}", hint="name one dtype; llama.cpp is the engine that takes two")
    dtype = "fp8_e4m3" if asked.k == "fp8" else asked.k
    sparse = is_sparse(spec)
    if dtype not in KV_DTYPES:
        raise KvcalcError(f"SGLang has no KV dtype {dtype}", hint=f"it has {', '.join(KV_DTYPES)}")
    if sparse and dtype == "auto":  # _dsa_kv_cache_dtype_default, sglang/srt/arg_groups/overrides.py
        return "fp8_e4m3" if capability >= 100 else "bf16"
    if sparse and dtype not in ("bf16", "fp8_e4m3"):
        raise KvcalcError(f"SGLang stores sparse attention as bf16 or fp8_e4m3, not as {dtype}", hint="use --kv-dtype fp8_e4m3")
    if dtype == "auto":
        if facts.kv_dtype is None or not facts.kv_dtype.startswith("fp8"):
            return model.name
        notes.append(Note(code="kv-dtype", text=f"the checkpoint's quantization names {facts.kv_dtype} for the KV cache; another with --kv-dtype"))
        return "fp8_e4m3"
    if dtype in ("mxfp8", "nvfp4") and capability < 100:  # sglang/srt/arg_groups/kv_cache_hook.py
        raise KvcalcError(f"SGLang stores {dtype} on Blackwell GPUs alone", hint="use --kv-dtype fp8_e4m3, or fp4_mx_block16")
    if dtype == "nvfp4" and not on_sm100(capability):
        raise KvcalcError("SGLang adds a workspace to nvfp4 on this GPU, which is not modelled", hint="use --kv-dtype fp8_e4m3, or fp4_mx_block16")
    return dtype


def on_sm100(capability: int) -> bool:
    """Whether a GPU is of the generation of the B200 (compute capability 10)."""
    return capability // 10 == 10


def page_tokens(options: Options, how: Storage, found: tuple[Stage, ...]) -> tuple[int, list[Note]]:
    """Tokens in a page, and whether SGLang takes another than was asked for (overrides.py and model_overrides/deepseek_v2.py, sglang/srt/arg_groups).

    Raises KvcalcError for a page that a prefix cache of states cannot have.
    """
    asked = options.block_size
    page = _page(1 if asked is None else asked, how, found)
    if page > 1 and options.prefix_caching and how.model_type in NO_BUFFER:
        raise KvcalcError("SGLang caches the states of this model by tokens: pages hold one", hint="leave out --block-size, or add --no-prefix-caching")
    if asked is None or asked == page:
        return page, []
    return page, [Note(code="page", text=f"SGLang takes pages of {page} tokens for this model on this GPU, not of {asked}")]


def _page(asked: int, how: Storage, found: tuple[Stage, ...]) -> int:
    if how.sparse:
        return DSA_PAGE
    if how.dtype == "mxfp8":
        return 128
    if not on_sm100(how.capability) or how.model_type in TRITON_ON_SM100:
        return asked
    attends = [kept for stage in found for kept in stage.full + stage.swa]
    if any(kept.cache.kernel == "mla" for kept in attends):
        return asked if how.model_type not in TRTLLM_MLA or asked in (32, 64) else 64
    if any(len({plane.width for plane in kept.cache.planes}) > 1 for kept in attends):
        return 128
    return asked if asked in (16, 32, 64, 128) else 64


def is_sparse(spec: ModelSpec) -> bool:
    """Whether latents are picked by an indexer (is_deepseek_dsa, sglang/srt/configs/model_config.py)."""
    kernels = {cache.kernel for layer in spec.layers for cache in layer.caches}
    return {"mla", "indexer"} <= kernels


def check_model(spec: ModelSpec, options: Options) -> None:
    """Raises KvcalcError for models whose pools are not modelled."""
    name = spec.facts.model_type or "this model"
    caches = list(dict.fromkeys(cache for layer in spec.layers for cache in layer.caches))
    kernels = {cache.kernel for cache in caches}
    strides = any(isinstance(cache.retention, Grows) and cache.retention.stride > 1 for cache in caches)
    if strides or kernels & {"compressor", "ring"}:
        raise KvcalcError(f"SGLang keeps {name} in pools of its own (compressed rows, rings), which are not modelled", hint="use --engine vllm or ideal")
    if "indexer" in kernels and "mla" not in kernels:
        raise KvcalcError(f"SGLang keeps {name}'s index keys in a pool of its own, which is not modelled", hint="use --engine vllm or ideal")
    if any(isinstance(cache.retention, Encoder) for cache in caches):
        raise KvcalcError("how SGLang stores cross-attention is not modelled", hint="use --engine vllm or ideal")
    states = any(isinstance(cache.retention, Once) for cache in caches)
    if states and spec.facts.model_type not in EXTRA_BUFFER | NO_BUFFER:
        raise KvcalcError(f"whether SGLang has a pool for the states of {name} is not known", hint="use --engine vllm or ideal")
    if states and not any(isinstance(cache.retention, Grows) for cache in caches):
        raise KvcalcError("SGLang gives a model without attention as many tokens as its context, whatever the memory", hint="use --engine vllm or ideal")
    _check_options(spec, caches, options)


def _check_options(spec: ModelSpec, caches: list[Cache], options: Options) -> None:
    """What SGLang refuses of a deployment, and what is not modelled."""
    tp = attention_tp(options)
    for heads in {cache.query_heads for cache in caches if cache.query_heads is not None}:
        if heads % tp:
            raise KvcalcError(f"SGLang: {tp} GPUs cannot share {heads} attention heads evenly", hint=f"use a --tp that divides {heads}")
    if options.dcp > 1 and (_has_windows(spec) or is_sparse(spec) or options.draft_layers or options.draft is not None):
        raise KvcalcError("how SGLang shares windows, sparse attention or drafts by --dcp is not modelled", hint="leave out --dcp")
    if options.swa_ratio is not None and not 0 < options.swa_ratio <= 1:
        raise KvcalcError(f"SGLang: --swa-full-tokens-ratio {options.swa_ratio} is not above 0 and up to 1", hint="its default is 0.8")
    if options.mamba_ratio is not None and options.mamba_ratio <= 0:
        raise KvcalcError(f"SGLang: --mamba-full-memory-ratio {options.mamba_ratio} is not above 0", hint="its default is 0.9")


def stages(spec: ModelSpec, options: Options, how: Storage) -> tuple[Stage, ...]:
    """What each pipeline stage keeps: layers shared as vLLM shares them but for the remainder, which goes to the last stages (get_pp_indices,
    sglang/srt/distributed/utils.py); draft layers cost what the model's own do, on every stage. Raises KvcalcError for layers that are not alike.
    """
    pipeline_stages(spec.layers, options.pp)  # refuses more stages than layers
    size, more = divmod(len(spec.layers), options.pp)
    sizes = [size] * (options.pp - more) + [size + 1] * more
    windowed = spec.facts.model_type in SWA_POOLS
    drafts = [_windows(layer) if windowed else False for layer in drafting_layers(spec, options)]
    found, start = [], 0
    for count in sizes:
        found.append(_stage(spec, range(start, start + count), how, windowed=windowed, drafts=drafts))
        start += count
    _check_alike(found)
    return tuple(found)


def _has_windows(spec: ModelSpec) -> bool:
    """Whether a model has a pool for its windows."""
    return spec.facts.model_type in SWA_POOLS and any(map(_windows, spec.layers))


def _windows(layer: Layer) -> bool:
    return any(isinstance(cache.retention, Window | Chunk) for cache in layer.caches)


def _stage(spec: ModelSpec, layers: range, how: Storage, *, windowed: bool, drafts: list[bool]) -> Stage:
    full: Counter[Cache] = Counter()
    swa: Counter[Cache] = Counter()
    states: Counter[Cache] = Counter()
    again: Counter[Cache] = Counter()
    for index in layers:
        again.update(() if spec.layers[index].caches else _caches(spec, spec.layers[index]))
        for cache in _caches(spec, spec.layers[index]):
            match cache.retention:
                case Grows():
                    full[cache] += 1
                case Window() | Chunk():
                    (swa if windowed else full)[cache] += 1
                case Once():
                    states[cache] += 1
                case Encoder():
                    raise AssertionError("check_model refuses these")
                case unreachable:
                    assert_never(unreachable)
    for window in drafts:
        pool = swa if window and swa else full
        for cache in {cache.kernel: cache for cache in pool}.values():
            pool[cache] += 1
    pools = (tuple(_kept(cache, count, again[cache], how) for cache, count in pool.items()) for pool in (full, swa, states))
    return Stage(*pools)


def _caches(spec: ModelSpec, layer: Layer) -> tuple[Cache, ...]:
    """The caches that SGLang allocates for a layer: its own; those of another kind again where it reads another's; those of its neighbours where it has no
    attention, unless the model has states, of which it knows which layers attend (full_attention_layer_ids).
    """
    if layer.caches:
        return layer.caches
    if layer.reads is not None:
        return spec.layers[layer.reads].caches
    every = [cache for each in spec.layers for cache in each.caches]
    if any(isinstance(cache.retention, Once) for cache in every):
        return ()
    return tuple(every[:1])


def _check_alike(found: list[Stage]) -> None:
    """One pool has rows of one shape for each kernel."""
    for pool in ([kept for stage in found for kept in stage.full], [kept for stage in found for kept in stage.swa]):
        shapes: dict[str, set[tuple[Plane, ...]]] = {}
        for kept in pool:
            shapes.setdefault(kept.cache.kernel, set()).add(kept.cache.planes)
        if any(len(each) > 1 for each in shapes.values()):
            raise KvcalcError("SGLang gives every layer of a pool the same heads and widths, and this model's layers differ in them", hint="use --engine vllm")


def _kept(cache: Cache, layers: int, again: int, how: Storage) -> Kept:
    planes = tuple(_plane_use(plane, how) for plane in cache.planes)
    plain = sum(use._replace(packing=_element(use.plane, how)).row_bytes for use in planes)
    return Kept(layer_kind(cache), cache, layers, again, planes, _row_bytes(cache, planes, how), plain)


def _element(plane: Plane, how: Storage) -> Packing:
    """The element type of a plane as the model has it, the KV dtype apart from scales."""
    match plane.dtype:
        case "kv":
            return KvDtype(how.dtype, how.dtype).elements()[0]
        case "model":
            return how.model
        case name:
            return PACKINGS[name]


def _plane_use(plane: Plane, how: Storage) -> PlaneUse:
    """The shape of a plane on one GPU. Its packing counts for states, and for attention where elements are stored as they are."""
    packing = _plane_packing(plane, how)
    match plane.split:
        case "heads":
            attends = plane.role in ("k", "v")
            what = "KV heads" if attends else f"heads of the {plane.role}"
            if plane.role == "state" and plane.heads % how.tp:
                raise KvcalcError(f"SGLang: {how.tp} GPUs cannot share {plane.heads} heads of a state evenly", hint=f"use a --tp that divides {plane.heads}")
            return PlaneUse(plane, split_heads(plane.heads, how.heads_tp if attends else how.tp, what), plane.width, packing)
        case "width":
            if plane.width % how.tp:
                raise KvcalcError(f"SGLang: {how.tp} GPUs cannot share {plane.width} channels of a state evenly", hint="use a --tp that divides them")
            return PlaneUse(plane, plane.heads, plane.width // how.tp, packing)
        case "replicated":
            return PlaneUse(plane, plane.heads, plane.width, packing)
        case unreachable:
            assert_never(unreachable)


def _plane_packing(plane: Plane, how: Storage) -> Packing:
    match plane.role:
        case "conv":
            return PACKINGS["bf16"]  # SGLANG_MAMBA_CONV_DTYPE, sglang/srt/environ.py
        case "state":
            return PACKINGS[_state_dtype(plane, how)]
        case "k" | "v" | "latent" | "rope" | "index":
            return PACKINGS.get(how.dtype, how.model)
        case unreachable:
            assert_never(unreachable)


def _state_dtype(plane: Plane, how: Storage) -> str:
    """The user's, the checkpoint's mamba_ssm_dtype (the key of the Qwen hybrids alone), else fp32 (mamba2_state_dtype, sglang/srt/configs/mamba_utils.py)."""
    if how.state_dtype is not None:
        return how.state_dtype
    return plane.dtype if how.model_type.startswith("qwen3") and plane.dtype != "model" else "fp32"


def _row_bytes(cache: Cache, planes: tuple[PlaneUse, ...], how: Storage) -> int:
    """One row of a layer: K and V, a latent, an index key, or the states of one request."""
    match cache.kernel:
        case "gqa":
            return _head_bytes(planes, how)
        case "mla":
            return _latent_bytes(cache, how)
        case "indexer":
            (plane,) = cache.planes
            return plane.width + plane.width // 128 * 4  # uint8 keys and an fp32 scale for 128 of them (DSATokenToKVPool, memory_pool.py)
        case "mamba1" | "mamba2" | "gdn" | "kda" | "shortconv":
            return sum(use.row_bytes for use in planes)
        case "lightning" | "compressor" | "ring" | "rwkv" | "rglru" | "cca":
            raise AssertionError("check_model refuses these")
        case unreachable:
            assert_never(unreachable)


def _head_bytes(planes: tuple[PlaneUse, ...], how: Storage) -> int:
    """K and V of all heads on one GPU."""
    heads = planes[0].heads
    widths = [use.width for use in planes]
    elements = heads * sum(widths)
    if how.dtype == "mxfp8":
        if any(width % 32 for width in widths):
            raise KvcalcError(f"SGLang: mxfp8 wants heads of a multiple of 32 elements, not {widths[0]}", hint="use --kv-dtype fp8_e4m3")
        return elements + elements // 32
    if how.dtype in FOUR_BIT:
        if len(set(widths)) > 1 or widths[0] % 16:
            raise KvcalcError(f"SGLang: {how.dtype} wants K and V of one width, a multiple of 16", hint="use --kv-dtype fp8_e4m3")
        return elements // 2 + elements // 16
    return sum(use.row_bytes for use in planes)


def _latent_bytes(cache: Cache, how: Storage) -> int:
    """A latent and its rotary key, copied to every GPU; in fp8 under sparse attention with scales beside it, unless TensorRT-LLM's kernels read it
    (calculate_mla_kv_cache_dim, sglang/srt/mem_cache/kv_cache_configurator.py).
    """
    rank = sum(plane.width for plane in cache.planes if plane.role == "latent")
    rope = sum(plane.width for plane in cache.planes if plane.role == "rope")
    if how.dtype in FOUR_BIT:
        return (rank + rope) // 2 + (rank + rope) // 16
    if how.dtype == "mxfp8":
        raise KvcalcError("SGLang does not store latents as mxfp8", hint="use --kv-dtype fp8_e4m3")
    if how.sparse and how.dtype == "fp8_e4m3" and not _reads_raw_rows(how):
        return rank + rank // 128 * 4 + rope * 2
    return PACKINGS[how.dtype].row_bytes(rank + rope)


def _reads_raw_rows(how: Storage) -> bool:
    """Whether sparse attention in fp8 runs on TensorRT-LLM's kernels by default (_dsa_split_backend_resolution, sglang/srt/arg_groups/overrides.py)."""
    return how.capability >= 100 and not (how.model_type == "glm_moe_dsa" and how.capability // 10 == 12)
