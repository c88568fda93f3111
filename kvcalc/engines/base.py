"""What an engine is: it turns a model and its options into a plan, and the plan is all that the rest of the program sees."""

from decimal import Decimal
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, Protocol, assert_never

from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Facts, Grows, Layer, ModelSpec, Note, Once, Plane, Window
from kvcalc.packing import AUTO, PACKINGS, KvDtype, Packing

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel  # a question about the cache does without

LayerKind = Literal["full", "sliding", "chunked", "latent", "indexer", "compressed", "state", "cross", "shared"]


class Device(NamedTuple):
    """A GPU as engines see it. `capability` is the CUDA compute capability times ten, None for other makes; `memory_sizes` are the bytes that its
    variants have, which decide about batch sizes: several where the name does not tell, none where they are not known. `unified`: CPU and GPU share it.
    """

    name: str
    capability: int | None
    memory_sizes: tuple[int, ...]
    unified: bool = False
    nvidia: bool = True


class Options(NamedTuple):
    """What a user may choose about a deployment, whatever the engine.

    `tp`, `pp`, `dp`, `dcp`: GPUs that share the heads, the layers, the requests, the tokens of one replicated cache. `encoder_tokens`: rows of each
    cross-attention cache. `draft_layers`: count the model's own draft layers, for `speculative_tokens` a step; `draft`: another model that drafts
    them, which a server knows as `draft_served_as`. `device`: the GPU. `max_batched_tokens`, `max_seqs`: what the scheduler takes at once.
    `block_size`: tokens a block. `state_dtype`: the packing of recurrent states. `expert_parallel`: experts are dealt out whole. `towers`: vision and
    audio towers are loaded. `max_loras` adapters of up to `max_lora_rank` are kept on the GPU. `cache` is the kind of
    cache that transformers builds. Of llama.cpp: `flash_attention`, windows at full length (`swa_full`), one pool for all slots (`unified`), tokens of a
    micro-batch (`ubatch`), layers on the GPU (`gpu_layers`). Of SGLang: tokens of windows for each of full attention (`swa_ratio`), states' memory for
    each byte of the rest (`mamba_ratio`). `dp_attention`: attention is not split by heads but by requests. None everywhere means the model's or the
    engine's own default. The switches are those of the engines that have them.
    """

    kv_dtype: KvDtype = AUTO
    tp: int = 1
    pp: int = 1
    dp: int = 1
    dcp: int = 1
    encoder_tokens: int | None = None
    draft_layers: bool = False
    speculative_tokens: int = 0
    device: Device | None = None
    max_batched_tokens: int | None = None
    max_seqs: int | None = None
    block_size: int | None = None
    state_dtype: str | None = None
    prefix_caching: bool = True
    hybrid_manager: bool = True
    async_scheduling: bool = True
    enforce_eager: bool = False
    draft: "WeighedModel | None" = None
    draft_served_as: str = ""
    expert_parallel: bool = False
    towers: bool = True
    max_loras: int = 0
    max_lora_rank: int = 16
    cache: str = "dynamic"
    flash_attention: bool = True
    swa_full: bool = False
    unified: bool | None = None
    ubatch: int | None = None
    gpu_layers: int | None = None
    swa_ratio: Decimal | None = None
    mamba_ratio: Decimal | None = None
    dp_attention: bool = False

    @property
    def gpus(self) -> int:
        """In all replicas. Requests that are split among the GPUs of one replica (`dp_attention`) need no others."""
        return self.tp * self.pp * (1 if self.dp_attention else self.dp)


OPTION_FLAGS: Final = {
    "device": "--gpu",
    "speculative_tokens": "the number of --mtp",
    "max_batched_tokens": "--max-batched-tokens",
    "max_seqs": "--max-seqs",
    "block_size": "--block-size",
    "state_dtype": "--mamba-ssm-cache-dtype",
    "prefix_caching": "--no-prefix-caching",
    "hybrid_manager": "--disable-hybrid-kv-cache-manager",
    "async_scheduling": "--no-async-scheduling",
    "enforce_eager": "--enforce-eager",
    "max_loras": "--max-loras",
    "cache": "--cache",
    "flash_attention": "--flash-attn",
    "swa_full": "--swa-full",
    "unified": "--kv-unified",
    "ubatch": "--ubatch-size",
    "gpu_layers": "--n-gpu-layers",
    "swa_ratio": "--swa-full-tokens-ratio",
    "mamba_ratio": "--mamba-full-memory-ratio",
    "dp_attention": "--enable-dp-attention",
}
"""What a user typed for the options that not every engine has a use for."""


def unused_options(options: Options, engine: str, uses: frozenset[str] = frozenset()) -> list[Note]:
    """A note that names the options which were given and change nothing under this engine, all of OPTION_FLAGS but those that it `uses`."""
    plain = Options()
    given = [flag for field, flag in OPTION_FLAGS.items() if field not in uses and getattr(options, field) != getattr(plain, field)]
    return [Note(code="unused", text=f"{engine} does not use {', '.join(given)}")] if given else []


class Pool(NamedTuple):
    """Memory that an engine hands out in units of `unit_bytes` (one unit on the GPU that binds), each for `unit_rows` rows."""

    name: str
    unit_bytes: int
    unit_rows: int


class PlaneUse(NamedTuple):
    """One plane of a row as it is stored on one GPU."""

    plane: Plane
    heads: int
    width: int
    packing: Packing

    @property
    def row_bytes(self) -> int:
        return self.heads * self.plane.columns * self.packing.row_bytes(self.width)


class LayerUse(NamedTuple):
    """What `layers` layers of one kind hold for one request on the GPU that binds: `rows` rows each, `size_bytes` together."""

    kind: LayerKind
    layers: int
    cache: Cache | None
    planes: tuple[PlaneUse, ...]
    rows: int
    size_bytes: int

    @property
    def window(self) -> int | None:
        """Tokens of a window or a chunk, None where rows are not bounded by one."""
        return getattr(self.cache.retention, "size", None) if self.cache is not None else None

    @property
    def stride(self) -> int | None:
        """Tokens to a row, None where rows do not follow the tokens."""
        return getattr(self.cache.retention, "stride", None) if self.cache is not None else None


class Capacity(NamedTuple):
    """Requests of one length that a pool holds, and the tokens in them, as the engine itself reports both."""

    requests: float
    tokens: int


def divided(units: int, need: int, tokens: int) -> Capacity:
    """What so many units hold in requests that need `need` of them for `tokens`, without any rounding. Raises KvcalcError for a model that keeps nothing at
    this length: it has no largest number of requests.
    """
    if need == 0:
        raise KvcalcError(f"a request of {tokens:,} tokens keeps nothing, so that any number of them fits")
    return Capacity(units / need, units * tokens // need)


class Span(NamedTuple):
    """An estimated size in bytes: what is likely, and the bounds between which four of five servers fall."""

    low: int
    likely: int
    high: int


class Overheads(NamedTuple):
    """What one GPU keeps back from weights and cache: the `activation` peak, the CUDA `graphs`, the `runtime` (memory outside the allocator), and their
    `total`, whose bounds do not all fall together. They are the same for any length of request from `same_from` tokens on; None where they follow every length.
    """

    activation: Span
    graphs: Span
    runtime: Span
    total: Span
    same_from: int | None = None


NO_OVERHEADS: Final = Overheads(*(Span(0, 0, 0),) * 4, same_from=0)


class Loaded(NamedTuple):
    """Bytes on the GPU that holds most of them: the `weights`, those of the draft model or draft layers, and the `lora` adapters' buffers."""

    weights: int
    draft: int
    lora: int


class Plan(Protocol):
    """How an engine stores one model under one set of options. Token counts are the length of a request."""

    @property
    def kv_dtype(self) -> KvDtype:
        """The element types in use, `auto` resolved."""

    @property
    def pools(self) -> tuple[Pool, ...]: ...

    @property
    def notes(self) -> tuple[Note, ...]: ...

    def need(self, tokens: int) -> tuple[int, ...]:
        """Units of each pool that one request holds."""

    def resident_bytes(self, tokens: int, batch: int) -> int:
        """Bytes that `batch` requests hold on the GPU that binds."""

    def total_bytes(self, tokens: int, batch: int) -> int:
        """Bytes that `batch` requests in each replica hold on all GPUs together."""

    def token_bytes(self, tokens: int) -> int:
        """Bytes that one more token adds on the GPU that binds, before any rounding to blocks."""

    def fixed_bytes(self) -> int:
        """Bytes that a request holds whatever its length, on the GPU that binds."""

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        """One request by kind of layer, on the GPU that binds."""

    @property
    def reserved(self) -> int:
        """Units of the pool that no request can use."""

    @property
    def slots(self) -> int | None:
        """Requests that share one cache of fixed size, which `need` then is about; None where each holds units of its own."""

    @property
    def max_requests(self) -> int | None:
        """Requests that the scheduler runs at once, however much memory there is; None where it sets no bound."""

    def capacity(self, units: int, tokens: int) -> Capacity:
        """What `units` of the pool hold in requests of `tokens`."""

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        """Bytes that one request holds on all GPUs of a replica beside its rows, by cause. What is not named here is rounding to whole units."""

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:
        """What starts a server so (a command, or a file's lines), with a KV budget stated in bytes, or a part of the memory other than the default. Empty
        for what is no server.
        """

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:
        """What `batch` requests of this length hold at times beside `resident_bytes`, where there is anything to say."""


class Engine(Protocol):
    """A serving engine at one version."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str | None:
        """The release whose rules these are; None for the bare formula."""

    @property
    def part_of(self) -> Literal["all", "rest"]:
        """What `utilization` is a part of: all memory of the GPU, weights and overheads within that part; or the rest beside weights and overheads."""

    def utilization(self, spec: ModelSpec, options: Options, total_bytes: int) -> Decimal:
        """The part that the engine takes by default on a GPU of `total_bytes`."""

    def plan(self, spec: ModelSpec, options: Options) -> Plan:
        """Raises KvcalcError where the engine cannot run the model so."""

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        """What the model's tensors take once they are loaded. Raises KvcalcError where they are not all known."""

    def overheads(self, spec: "WeighedModel", options: Options, context: int) -> Overheads:
        """What else the engine keeps on a GPU, by estimate, for requests of up to `context` tokens."""


def layer_kind(cache: Cache) -> LayerKind:
    """The name of a cache in tables and in JSON."""
    match cache.retention:
        case Grows(stride=stride):
            if cache.kernel == "indexer":
                return "indexer"
            if stride > 1:
                return "compressed"
            return "latent" if cache.kernel == "mla" else "full"
        case Window():
            return "state" if cache.kernel == "compressor" else "sliding"
        case Chunk():
            return "chunked"
        case Once():
            return "state"
        case Encoder():
            return "cross"
        case unreachable:
            assert_never(unreachable)


def model_packing(facts: Facts) -> tuple[Packing, Note | None]:
    """The element type that a model computes in, with a note where it is not the checkpoint's own.

    Engines serve a float32 checkpoint, and one that names no dtype, in 16 bits (vllm/config/model.py 0.33.0, `--dtype auto`).
    """
    match facts.dtype:
        case None:
            return PACKINGS["bf16"], Note(code="dtype", text="the model names no dtype: bf16 is taken, as engines do; another with --kv-dtype")
        case "fp32":
            return PACKINGS["bf16"], Note(code="dtype", text="the checkpoint is fp32: bf16 is taken, as engines do; --kv-dtype fp32 keeps it")
        case name:
            return PACKINGS[name], None


def split_heads(heads: int, tp: int, what: str) -> int:
    """Heads on one of `tp` GPUs: an equal share, or one copied head where there are fewer heads than GPUs."""
    if heads % tp == 0:
        return heads // tp
    if tp % heads == 0:
        return 1
    raise KvcalcError(
        f"--tp {tp} neither divides the {heads} {what} nor is a multiple of them", hint=f"use a --tp that divides {heads}, or a multiple of {heads}"
    )


def drafting_layers(spec: ModelSpec, options: Options) -> tuple[Layer, ...]:
    """The layers that draft tokens: those of another model, or the model's own. Raises KvcalcError where it has none."""
    if options.draft is not None:
        return options.draft.layers
    if options.draft_layers and not spec.draft_layers:
        raise KvcalcError("the model has no draft (MTP) layers of its own", hint="leave out --mtp")
    return spec.draft_layers if options.draft_layers else ()


def pipeline_stages(layers: tuple[Layer, ...], pp: int) -> list[tuple[Layer, ...]]:
    """Layers of each of `pp` stages: as even as possible, the remainder one each from the second-to-last stage backwards
    (vllm/distributed/utils.py 0.33.0, get_pp_indices).
    """
    if pp > len(layers):
        raise KvcalcError(f"--pp {pp} is more than the {len(layers)} layers of the model", hint=f"use --pp {len(layers)} or less")
    sizes = [len(layers) // pp] * pp
    for back in range(2, len(layers) % pp + 2):
        sizes[-back] += 1
    stages, start = [], 0
    for size in sizes:
        stages.append(layers[start : start + size])
        start += size
    return stages
