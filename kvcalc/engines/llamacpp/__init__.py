"""llama.cpp's server: a cache of cells that is allocated whole at start-up, for all slots together.

Files named here are those of commit 0c1e57098, the one that llama-cpp-python 0.3.36 carries.
"""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, assert_never

from kvcalc.engines.base import (
    Capacity,
    LayerUse,
    Loaded,
    Options,
    Overheads,
    PlaneUse,
    Pool,
    layer_kind,
    model_packing,
    unused_options,
)
from kvcalc.engines.llamacpp.memory import MIB, loaded_on, overheads_of
from kvcalc.engines.llamacpp.models import COMMIT, EXPANDED, INDEX_TRIPLES, INDEX_VALUES, PER_SEQUENCE, WINDOWED, architecture, placed
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, Layer, ModelSpec, Note, Once, Plane, Window
from kvcalc.packing import PACKINGS, KvDtype, Packing

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel

CELLS: Final = 256
"""What contexts and the cells of windows are rounded up to (GGML_PAD, src/llama-context.cpp and src/llama-kv-cache-iswa.cpp)."""
AUTO_SLOTS: Final = 4
"""Slots without `-np`, which then share one pool (tools/server/server.cpp)."""
MOST_SLOTS: Final = 256
"""LLAMA_MAX_SEQ (src/llama-cparams.h)."""
MOST_GPUS: Final = 16
"""llama_max_devices (src/llama.cpp)."""
UBATCH: Final = 512
"""Tokens of a micro-batch without `-ub` (common/common.h)."""
BATCH: Final = 2048
"""Tokens of a batch without `-b`, which bounds the micro-batch (common/common.h, src/llama-context.cpp)."""

TYPES: Final = {
    "fp32": "f32",
    "fp16": "f16",
    "bf16": "bf16",
    "q8_0": "q8_0",
    "q4_0": "q4_0",
    "q4_1": "q4_1",
    "iq4_nl": "iq4_nl",
    "q5_0": "q5_0",
    "q5_1": "q5_1",
}
"""The types of a cache and llama.cpp's names for them (kv_cache_types, common/arg.cpp)."""
DEFAULT_TYPE: Final = "fp16"
"""Whatever the model is stored in (llama_context_default_params, src/llama-context.cpp)."""
STATE: Final = PACKINGS["fp32"]
"""Convolution and recurrent states (create_memory, src/llama-model.cpp), and the inputs of compressors (src/llama-kv-cache-dsv4.cpp)."""

LOGGED_AS: Final = {"v": "V", "conv": "R", "state": "S"}
"""What the start-up log calls a tensor, where it is not K."""

USES: Final = frozenset({"device", "max_seqs", "flash_attention", "swa_full", "unified", "ubatch", "gpu_layers"})


class _Share(NamedTuple):
    """`layers` layers of one device that store alike: as the model declares it (`declared`), as llama.cpp allocates it (`stored`), and the tensors of a cell.
    `streams`: how many slots have cells of their own.
    """

    declared: Cache
    stored: Cache
    layers: int
    planes: tuple[PlaneUse, ...]
    streams: int

    @property
    def row_bytes(self) -> int:
        """One cell in each of the layers."""
        return self.layers * sum(plane.row_bytes for plane in self.planes)


class _Device(NamedTuple):
    """What the layers of one GPU, or of the CPU, keep, and how many of them use another layer's cache."""

    shares: tuple[_Share, ...]
    readers: int


def _mib(size_bytes: int) -> str:
    """As printf's %.2f: a tie goes to the even digit."""
    hundredths = round(Fraction(100 * size_bytes, MIB))
    return f"{hundredths // 100}.{hundredths % 100:02}"


class LlamaCppPlan(NamedTuple):
    """All cells of all slots, which exist from the start: a request takes none and frees none. Token counts are `-c`, all slots together."""

    kv_dtype: KvDtype
    model: Packing
    gpus: tuple[_Device, ...]
    slots: int
    unified: bool
    ubatch: int
    swa_full: bool
    replicas: int
    served: bool
    options: Options
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("cache", unit_bytes=1, unit_rows=1),)

    @property
    def windowed(self) -> bool:
        """Whether micro-batches decide about the size."""
        return any(isinstance(share.stored.retention, Window | Chunk) and not _is_state(share.stored) for gpu in self.gpus for share in gpu.shares)

    def slot_cells(self, tokens: int) -> int:
        """The longest request of a slot (n_ctx_seq, src/llama-context.cpp)."""
        cells = _padded(tokens)
        return cells if self.unified else _padded(cells // self.slots)

    def need(self, tokens: int) -> tuple[int, ...]:
        return (self._device_bytes(self._binding(tokens), tokens),)

    def resident_bytes(self, tokens: int, batch: int) -> int:
        """The same for any batch. Raises KvcalcError for more requests at once than slots."""
        self._check_slots(batch)
        return self.need(tokens)[0]

    def total_bytes(self, tokens: int, batch: int) -> int:
        self._check_slots(batch)
        return self.replicas * sum(self._device_bytes(gpu, tokens) for gpu in self.gpus)

    def token_bytes(self, tokens: int) -> int:
        """A cell that stands for several tokens counts for each of them in equal parts; a part of a byte in the sum is dropped."""
        shares = self._binding(tokens).shares
        return int(sum((self._rate(share, tokens) * share.row_bytes for share in shares), Fraction(0)))

    def fixed_bytes(self) -> int:
        """States and compressors of all slots."""
        return sum(share.row_bytes * self._rows(share, 0) for share in self._binding(0).shares if _is_state(share.stored))

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        device = self._binding(tokens)
        uses = [self._use(share, self._rows(share, tokens)) for share in device.shares]
        if device.readers:
            uses.append(LayerUse("shared", device.readers, None, (), 0, 0))
        return tuple(uses)

    def _use(self, share: _Share, rows: int) -> LayerUse:
        return LayerUse(layer_kind(share.stored), share.layers, share.stored, share.planes, rows, rows * share.row_bytes)

    @property
    def reserved(self) -> int:
        return 0

    @property
    def max_requests(self) -> int | None:
        return self.slots

    def capacity(self, units: int, tokens: int) -> Capacity:
        """Every slot and its cells where the whole cache of `-c` tokens fits, else nothing: the server does not start with a part of it."""
        if self.need(tokens)[0] > units:
            return Capacity(0, 0)
        cells = self.slot_cells(tokens)
        return Capacity(self.slots, cells if self.unified else cells * self.slots)

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        return self.beside(tokens, tokens)

    def beside(self, tokens: int, request: int) -> tuple[tuple[str, int], ...]:
        """Bytes of the cache for `-c` `tokens` beside the rows of one request of `request` tokens, by cause, but for rounding."""
        found = Counter[str]()
        for share in (share for gpu in self.gpus for share in gpu.shares):
            rows = self._rows(share, tokens)
            match share.declared.retention:
                case Grows(stride=stride):
                    found["cells of the other slots"] += share.row_bytes * (max(0, tokens - request) // stride)
                case Window(size=size) if _is_state(share.declared):
                    found["states of every slot, in fp32"] += share.row_bytes * (rows - min(request, size))
                case Window(size=size) | Chunk(size=size):
                    whole = self.swa_full or isinstance(share.stored.retention, Grows)
                    cause = "windows kept at full length" if whole else "windows hold a micro-batch, in every slot"
                    found[cause] += share.row_bytes * (rows - min(request, size))
                case Once():
                    found["states of every slot, in fp32"] += share.row_bytes * rows - share.layers * self._declared_row_bytes(share)
                case Encoder():
                    pass
                case unreachable:
                    assert_never(unreachable)
        return tuple((cause, size) for cause, size in found.items() if size)

    def _declared_row_bytes(self, share: _Share) -> int:
        """A state as the model itself would store it."""
        return sum(
            plane.heads * plane.columns * (self.model if plane.dtype == "model" else PACKINGS[plane.dtype]).row_bytes(plane.width)
            for plane in share.declared.planes
        )

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:  # noqa: ARG002 (an engine's word, and slots hold the same at all times)
        """The sizes that the start-up log has for each cache: K and V, R and S of states (llama_kv_cache and llama_memory_recurrent)."""
        logged: dict[str, Counter[str]] = {}
        for gpu in self.gpus:
            for share in gpu.shares:
                kind = "states" if _is_state(share.stored) else "windows" if isinstance(share.stored.retention, Window | Chunk) else "all tokens"
                sizes = logged.setdefault(kind, Counter())
                for plane in share.planes:
                    sizes[LOGGED_AS.get(plane.plane.role, "K")] += share.layers * self._rows(share, tokens) * plane.row_bytes
        if not logged:
            return ()
        said = [f"{kind}: " + ", ".join(f"{name} {_mib(size)} MiB" for name, size in sizes.items()) for kind, sizes in logged.items()]
        return (Note(code="logged", text=f"llama.cpp logs on all GPUs together, of {'; of '.join(said)}"),)

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:  # noqa: ARG002 (no flag states a budget)
        """Empty for an encoder-decoder, which llama-server does not run."""
        if not self.served:
            return ""
        options = self.options
        words = ["llama-server", *_model_words(model), "-c", str(context)]
        if options.max_seqs is not None:
            words += ["-np", str(options.max_seqs)]
            words += ["-kvu"] if self.unified else []
        for flag, name in zip(("-ctk", "-ctv"), self.kv_dtype, strict=True):
            words += [] if name == DEFAULT_TYPE else [flag, TYPES[name]]
        words += ["--swa-full"] if options.swa_full else []
        if options.ubatch is not None:
            words += ["-b", str(options.ubatch)] if options.ubatch > BATCH else []
            words += ["-ub", str(options.ubatch)]
        words += [] if options.gpu_layers is None else ["-ngl", str(options.gpu_layers)]
        words += [] if options.flash_attention else ["-fa", "off"]
        return shlex.join(words)

    def _check_slots(self, batch: int) -> None:
        if batch > self.slots:
            raise KvcalcError(f"{batch} requests at once want as many slots, and llama-server has {self.slots}", hint=f"state them: --max-seqs {batch}")

    def _binding(self, tokens: int) -> _Device:
        return max(self.gpus, key=lambda gpu: self._device_bytes(gpu, tokens))

    def _device_bytes(self, device: _Device, tokens: int) -> int:
        return sum(share.row_bytes * self._rows(share, tokens) for share in device.shares)

    def _rows(self, share: _Share, tokens: int) -> int:
        """Cells of one layer, of all slots together."""
        cells = self.slot_cells(tokens)
        match share.stored.retention:
            case Grows(stride=1):
                own = cells
            case Grows(stride=stride):
                own = _padded(-(-cells // stride))
            case Window(size=size) if share.stored.kernel == "compressor":
                own = size
            case Window() | Chunk():
                own = _padded(min(cells, self._window_cells(share, tokens)))
            case Once():
                own = 1
            case Encoder():
                own = 0
            case unreachable:
                assert_never(unreachable)
        return share.streams * own

    def _window_cells(self, share: _Share, tokens: int) -> int:
        """Cells that the windows of a stream want: each slot's window where they share it, and a micro-batch (src/llama-kv-cache-iswa.cpp)."""
        match share.stored.retention:
            case Window(size=size) | Chunk(size=size) if not self.swa_full:
                return size * (self.slots if share.streams == 1 else 1) + min(self.ubatch, tokens)
            case _:
                return self.slot_cells(tokens)

    def _rate(self, share: _Share, tokens: int) -> Fraction:
        """Cells that one more token of `-c` adds to a layer, without rounding."""
        streams = Fraction(share.streams, 1 if self.unified else self.slots)
        match share.stored.retention:
            case Grows(stride=stride):
                return streams / stride
            case Window() | Chunk() if not _is_state(share.stored) and (self.swa_full or self.slot_cells(tokens) < self._window_cells(share, tokens)):
                return streams
            case _:
                return Fraction(0)


def _padded(cells: int) -> int:
    return -(-cells // CELLS) * CELLS


def _is_state(cache: Cache) -> bool:
    return isinstance(cache.retention, Once) or cache.kernel == "compressor"


def _model_words(model: str) -> list[str]:
    """A GGUF file, of a repository where one is named before it, or a repository that names itself one; of any other model some file that was converted
    from it.
    """
    repo, colon, file = model.partition(":")
    if colon and file.endswith(".gguf"):
        return ["-hf", repo, "-hff", file]
    if model.lower().endswith(".gguf"):
        return ["-m", model]
    return ["-hf", model] if model.lower().endswith("-gguf") else ["-m", "MODEL.gguf"]


class LlamaCppEngine:
    """llama-server of llama.cpp, with its cache on the GPUs."""

    name = "llama.cpp"
    version = COMMIT
    part_of: Literal["all"] = "all"

    def utilization(self, _spec: ModelSpec, _options: Options, _total_bytes: int) -> Decimal:
        return Decimal(1)

    def plan(self, spec: ModelSpec, options: Options) -> LlamaCppPlan:
        plan = plan_of(spec, options, self.name)
        return plan._replace(notes=(*unused_options(options, self.name, USES), *_slot_notes(plan), *plan.notes))

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        return loaded_on(spec, options)

    def overheads(self, spec: "WeighedModel", options: Options, context: int) -> Overheads:
        return overheads_of(spec, options, self.plan(spec, options), context)


LLAMACPP: Final = LlamaCppEngine()


def plan_of(spec: ModelSpec, options: Options, engine: str) -> LlamaCppPlan:
    """The caches that llama-server allocates, for an `engine` of that name. Raises KvcalcError where it cannot run the model so."""
    _check(options, engine)
    name = architecture(spec)
    kv_dtype = options.kv_dtype.resolved(DEFAULT_TYPE)
    slots = AUTO_SLOTS if options.max_seqs is None else options.max_seqs
    unified = options.max_seqs is None or options.unified is True
    stored = {cache: as_stored(cache, layer, name) for layer in spec.layers for cache in layer.caches}
    _check_types(stored.values(), kv_dtype, options, engine)
    widest = max((_width(cache, "v") for cache in stored.values() if cache is not None and cache.kernel == "gqa"), default=0)

    def device(layers: Iterable[int]) -> _Device:
        here = [spec.layers[layer] for layer in layers]
        shares = []
        for declared, count in Counter(cache for layer in here for cache in layer.caches).items():
            if (cache := stored[declared]) is not None:
                own = not unified or name in PER_SEQUENCE or isinstance(cache.retention, Once)
                planes = _planes(cache, kv_dtype, None if options.flash_attention else widest)
                shares.append(_Share(declared, cache, count, planes, streams=slots if own else 1))
        return _Device(tuple(shares), readers=sum(layer.reads is not None and not layer.caches for layer in here))

    model, _ = model_packing(spec.facts)
    place = placed(spec, options)
    plan = LlamaCppPlan(
        kv_dtype=kv_dtype,
        model=model,
        gpus=tuple(device(layers) for layers in place.gpus),
        slots=slots,
        unified=unified,
        ubatch=UBATCH if options.ubatch is None else options.ubatch,
        swa_full=options.swa_full,
        replicas=options.dp,
        served=not _crossed(spec),
        options=options,
        notes=(),
    )
    return plan._replace(notes=(*_notes(spec, options, name, stored), *_cpu_notes(plan, device(place.cpu), len(place.cpu))))


def _crossed(spec: ModelSpec) -> bool:
    return any(isinstance(cache.retention, Encoder) for layer in spec.layers for cache in layer.caches)


def as_stored(cache: Cache, layer: Layer, name: str | None) -> Cache | None:
    """A cache as the architecture of that name allocates it; None for one that llama.cpp does not keep."""
    match cache.retention:
        case Encoder():
            return None
        case Window() | Chunk() if name is not None and name not in WINDOWED:
            return cache.model_copy(update={"retention": Grows()})
        case _:
            pass
    if cache.kernel == "ring" and name in INDEX_TRIPLES:
        return None
    if cache.kernel == "indexer" and name in INDEX_TRIPLES:
        key = cache.planes[0]
        return cache.model_copy(update={"retention": Grows(), "planes": (key.model_copy(update={"width": 3 * key.width}),)})
    if cache.kernel == "indexer" and name in INDEX_VALUES:
        width = next(plane.width for each in layer.caches for plane in each.planes if plane.role == "v")
        return cache.model_copy(update={"planes": (*cache.planes, Plane(role="v", heads=1, width=width, split="replicated"))})
    if cache.kernel == "mla" and name in EXPANDED and cache.expanded is not None and cache.query_heads is not None:
        k, v = cache.expanded
        planes = (
            Plane(role="k", heads=cache.query_heads, width=k, split="heads"),
            Plane(role="v", heads=cache.query_heads, width=v, split="heads"),
        )
        return cache.model_copy(update={"planes": planes, "kernel": "gqa", "expanded": None})
    return cache


def _width(cache: Cache, role: str) -> int:
    """Elements of a cell's row of K, or of V: all heads together."""
    return sum(plane.heads * plane.width for plane in cache.planes if (plane.role == "v") is (role == "v"))


def _planes(cache: Cache, kv_dtype: KvDtype, widest: int | None) -> tuple[PlaneUse, ...]:
    """The tensors of a cell: K, with latent and rotary key in one row, and V, which without flash attention is padded to the `widest` layer's
    (src/llama-kv-cache.cpp, TAG_V_CACHE_VARIABLE).
    """
    if _is_state(cache):
        return tuple(PlaneUse(plane, plane.heads, plane.width, STATE) for plane in cache.planes)
    k, v = PACKINGS[kv_dtype.k], PACKINGS[kv_dtype.v]
    if cache.kernel == "mla":
        return (PlaneUse(cache.planes[0], 1, _width(cache, "k"), k),)
    found = []
    for plane in cache.planes:
        packing = v if plane.role == "v" else k
        if plane.role == "v" and widest is not None and cache.kernel == "gqa" and plane.heads * plane.width != widest:
            found.append(PlaneUse(plane, 1, widest, packing))
        elif packing.fills(plane.width):
            found.append(PlaneUse(plane, plane.heads, plane.width, packing))
        else:
            found.append(PlaneUse(plane, 1, plane.heads * plane.width, packing))
    return tuple(found)


def _check(options: Options, engine: str) -> None:
    """Raises KvcalcError for a deployment that is not llama.cpp's, or that is not modelled."""
    if options.tp > 1:
        raise KvcalcError(f"{engine} gives whole layers to each GPU, so that --tp {options.tp} is not modelled", hint=f"use --pp {options.tp}")
    if options.dcp > 1:
        raise KvcalcError(f"{engine} does not divide the tokens of a request among GPUs", hint="leave out --dcp")
    if options.pp > MOST_GPUS:
        raise KvcalcError(f"{engine} uses at most {MOST_GPUS} GPUs, not {options.pp}", hint=f"use --pp {MOST_GPUS} or less")
    if options.draft_layers or options.draft is not None:
        raise KvcalcError(f"speculative decoding under {engine} is not modelled: the draft has a cache of its own", hint="leave out the draft")
    if options.max_seqs is not None and options.max_seqs > MOST_SLOTS:
        raise KvcalcError(f"{engine} has at most {MOST_SLOTS} slots, not {options.max_seqs}", hint=f"use --max-seqs {MOST_SLOTS} or less")
    for side in options.kv_dtype:
        if side != "auto" and side not in TYPES:
            raise KvcalcError(f"{engine} has no KV cache type {side}", hint=f"known: {', '.join(TYPES.values())}")


def _check_types(stored: Iterable[Cache | None], kv_dtype: KvDtype, options: Options, engine: str) -> None:
    """What llama_init_from_model turns down (src/llama-context.cpp), and rows that a block format does not fill (ggml_row_size)."""
    k, v = PACKINGS[kv_dtype.k], PACKINGS[kv_dtype.v]
    caches = [cache for cache in stored if cache is not None and not _is_state(cache)]
    if k != v and any(cache.kernel == "mla" for cache in caches):
        raise KvcalcError(
            f"{engine} stores the latent of MLA once, for K and V: their types cannot differ ({TYPES[k.name]}, {TYPES[v.name]})",
            hint=f"use --kv-dtype {k.name}",
        )
    if v.elements > 1 and not options.flash_attention:
        raise KvcalcError(f"{engine} wants flash attention for a V of type {TYPES[v.name]}", hint="leave out --flash-attn off, or quantize K alone")
    for cache in caches:
        for role, packing in (("K", k), ("V", v)):
            for width in _blocked_widths(cache, role, flash_attention=options.flash_attention):
                if not packing.fills(width):
                    raise KvcalcError(
                        f"{engine} stores {role} as {TYPES[packing.name]} in blocks of {packing.elements}, which a row of {width} elements does not fill",
                        hint=f"known without blocks: {', '.join(TYPES[name] for name in TYPES if PACKINGS[name].elements == 1)}",
                    )


def _blocked_widths(cache: Cache, role: str, *, flash_attention: bool) -> Iterator[int]:
    """Widths that a block format must divide: flash attention reads single heads, else only whole rows count."""
    if cache.kernel == "mla":
        yield from [_width(cache, "k")] if role == "K" else []
        return
    for plane in cache.planes:
        if (plane.role == "v") is (role == "V"):
            yield plane.width if flash_attention else plane.heads * plane.width


def _notes(spec: ModelSpec, options: Options, name: str | None, stored: dict[Cache, Cache | None]) -> Iterator[Note]:
    if "auto" in options.kv_dtype:
        yield Note(code="kv-dtype", text="llama.cpp stores the cache in f16, whatever the model is stored in; another type with --kv-dtype")
    widened = [
        cache for cache, kept in stored.items() if isinstance(cache.retention, Window | Chunk) and kept is not None and isinstance(kept.retention, Grows)
    ]
    if widened:
        layers = sum(cache in widened for layer in spec.layers for cache in layer.caches)
        yield Note(code="windows", text=f"llama.cpp ({name}) keeps every token in the {layers} layers whose attention slides")
    if _crossed(spec):
        text = "cross-attention has no cache: llama.cpp computes its K and V at every step; llama-completion runs such a model, llama-server does not"
        yield Note(code="cross-attention", text=text)
    if options.pp > 1:
        yield Note(code="gpus", text=f"layers are divided evenly by {options.pp} GPUs; llama.cpp divides them by free memory, or by --tensor-split")


def _slot_notes(plan: LlamaCppPlan) -> Iterator[Note]:
    if plan.options.max_seqs is None and plan.options.unified is False:
        yield Note(code="unified", text=f"without -np the server has {AUTO_SLOTS} slots that share one pool, --no-kv-unified or not; --max-seqs divides it")
    if plan.unified and plan.slots > 1:
        yield Note(code="slots", text=f"{plan.slots} slots share one pool: a request may take all of -c, and all requests together no more than that")
    elif plan.slots > 1:
        yield Note(code="slots", text=f"-c is divided by {plan.slots} slots: each takes requests of up to -c / {plan.slots}, rounded up to {CELLS} tokens")


def _cpu_notes(plan: LlamaCppPlan, cpu: _Device, layers: int) -> Iterator[Note]:
    """What the layers on the CPU keep in its memory, which no GPU holds."""
    if not layers:
        return
    on_cpu = plan._replace(gpus=(cpu,))
    text = f"{layers} layers stay on the CPU: their cache is in host memory, {on_cpu.token_bytes(CELLS):,} bytes a token"
    fixed = on_cpu.fixed_bytes()
    yield Note(code="cpu-layers", text=f"{text} and {fixed:,} bytes whatever the context" if fixed else text)
