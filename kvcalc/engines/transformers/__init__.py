"""Hugging Face transformers: one cache object for a rectangular batch, in which each request costs as much as the longest.

Sizes are what torch has allocated after a decode step; facts and measurements are of 5.24.0 on CPU, and of 4.57.6 for the older line.
"""

from collections import Counter
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, assert_never

from kvcalc.engines.base import Capacity, LayerUse, Loaded, Options, Overheads, Pool, Span, divided, layer_kind, model_packing, unused_options
from kvcalc.engines.ideal import IDEAL, IdealPlan
from kvcalc.engines.transformers.kinds import GROUP, RESIDUAL, SCALE_BYTES, CacheKind, find_kind
from kvcalc.engines.transformers.releases import TRANSFORMERS_5, Release, find_release
from kvcalc.engines.transformers.stored import Held, Storing
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, ModelSpec, Note, Once, Window
from kvcalc.packing import PACKINGS, KvDtype, Packing
from kvcalc.units import BINARY_UNITS, format_bytes

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel

__all__ = ["TRANSFORMERS", "TransformersEngine", "TransformersPlan", "find_release"]

MIB: Final = BINARY_UNITS["MiB"]
USES: Final = frozenset({"cache", "device"})
QUANTIZED: Final = "the quantized cache"
"""Why a cache takes fewer bytes than its rows do, for the answers that name causes."""


class TransformersPlan(NamedTuple):
    """Rows times bytes a row of all layers, on one GPU or on the several that the layers are spread over."""

    kv_dtype: KvDtype
    kind: CacheKind
    model: Packing
    held: tuple[Held, ...]
    readers: int
    ideal: IdealPlan
    replicas: int
    expands_latents: bool
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("memory", unit_bytes=1, unit_rows=1),)

    def need(self, tokens: int) -> tuple[int, ...]:
        return (self.resident_bytes(tokens, 1),)

    def resident_bytes(self, tokens: int, batch: int) -> int:
        """The scales of fp8 are those of a tensor, which all requests share."""
        return batch * sum(each.row_bytes * self._rows(each, tokens) for each in self.held) + self._scale_bytes

    def total_bytes(self, tokens: int, batch: int) -> int:
        return self.replicas * self.resident_bytes(tokens, batch)

    def token_bytes(self, tokens: int) -> int:
        """A row that stands for several tokens counts for each of them in equal parts; a part of a byte in the sum is dropped."""
        grown = Fraction()
        for each in self.held:
            match each.kept:
                case Grows(stride=stride):
                    grown += Fraction(each.row_bytes, stride)
                case Window(size=size) | Chunk(size=size):
                    grown += each.row_bytes if tokens < size else 0
                case _:
                    pass  # of fixed size, or in turns larger and smaller
        return int(grown)

    def fixed_bytes(self) -> int:
        return self.resident_bytes(0, 1)

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        uses = [self._use(each, tokens) for each in self.held]
        if self.readers:
            uses.append(LayerUse("shared", self.readers, None, (), 0, 0))
        return tuple(uses)

    @property
    def reserved(self) -> int:
        return 0

    @property
    def slots(self) -> int | None:
        return None

    @property
    def max_requests(self) -> int | None:
        return None

    def capacity(self, units: int, tokens: int) -> Capacity:
        return divided(units, self.need(tokens)[0], tokens)

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        found: Counter[str] = Counter()
        for each in self.held:
            found[self._cause(each.source)] += each.row_bytes * self._rows(each, tokens)
        for use in self.ideal.uses(tokens):
            if use.cache is not None:
                found[self._cause(use.cache)] -= use.size_bytes
        found[QUANTIZED] += self._scale_bytes
        return tuple((cause, size) for cause, size in found.items() if size)

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:  # noqa: ARG002 (a library starts no server)
        return ""

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:
        """What is allocated beside the answer for moments, in bytes of the whole batch."""
        notes = [*self._prefill_notes(tokens, batch), *self._residual_notes(tokens, batch)]
        extra, why = self._step_extra(tokens)
        if extra:
            notes.append(Note(code="peak", text=f"a decode step holds up to {format_bytes(batch * extra)} more for a moment: {why}"))
        expanded = max((self._expanded_bytes(each, tokens) for each in self.held), default=0)
        if expanded:
            text = f"attention expands the latent of one layer at a time to K and V of every head: {format_bytes(batch * expanded)} more for a moment"
            notes.append(Note(code="peak", text=text))
        return tuple(notes)

    @property
    def _scale_bytes(self) -> int:
        return SCALE_BYTES * sum(each.layers * len(each.planes) for each in self.held) if self.kind.stores == "fp8" else 0

    def _rows(self, each: Held, tokens: int) -> int:
        return each.rows(tokens, self.ideal.encoder_tokens)

    def _use(self, each: Held, tokens: int) -> LayerUse:
        rows = self._rows(each, tokens)
        scales = SCALE_BYTES * each.layers * len(each.planes) if self.kind.stores == "fp8" else 0
        return LayerUse(layer_kind(each.source), each.layers, each.source, each.planes, rows, rows * each.row_bytes + scales)

    def _cause(self, cache: Cache) -> str:
        """Why a cache takes other bytes than its rows do."""
        match cache.kernel:
            case "gqa" | "mla" if self.kind.quantized:
                return QUANTIZED
            case "gqa":
                return "windows a token longer" if isinstance(cache.retention, Window) else "K and V copied to every query head"
            case "mla":
                return "latents expanded to heads"
            case "indexer" | "ring":
                return "index keys not pooled"
            case "compressor":
                return "compressors that keep what is unfinished"
            case "mamba1" | "mamba2" | "gdn" | "kda" | "shortconv" | "lightning" | "cca" | "rglru" | "rwkv":
                return "states with a column more, in fp32, or outside the cache"
            case unreachable:
                assert_never(unreachable)

    def _prefill_notes(self, tokens: int, batch: int) -> list[Note]:
        """A window's slice keeps the tensor of the whole prefill alive until the next step (DynamicSlidingWindowLayer.update)."""
        if self.kind.stores != "dynamic":
            return []
        after_prefill = batch * sum(each.row_bytes * each.prefill_rows(tokens, self.ideal.encoder_tokens) for each in self.held)
        after_step = self.resident_bytes(tokens, batch)
        if after_prefill == after_step:
            return []
        text = (
            f"right after a prefill of {tokens:,} tokens the layers with windows still hold all of them, {format_bytes(after_prefill)}; "
            f"the first decode step leaves {format_bytes(after_step)}, which is the answer here"
        )
        return [Note(code="prefill", text=text)]

    def _residual_notes(self, tokens: int, batch: int) -> list[Note]:
        """QuantizedLayer.update: a prefill is quantized whole, then new tokens wait in the model's dtype until they are RESIDUAL."""
        if self.kind.stores != "groups":
            return []
        waiting = min(max(tokens - 1, 0), RESIDUAL - 1)
        more = sum(each.layers * waiting * (self._plain_row(each) - each.layer_row_bytes) for each in self.held)
        text = (
            f"the answer has all tokens quantized; up to {RESIDUAL - 1} of the newest stay in {self.model.name} until there are {RESIDUAL}: "
            f"up to {format_bytes(batch * more)} more"
        )
        return [Note(code="residual", text=text)]

    def _plain_row(self, each: Held) -> int:
        """One row of one layer in the element type that the model computes in."""
        return sum(use.heads * self.model.row_bytes(use.width) for use in each.planes)

    def _step_extra(self, tokens: int) -> tuple[int, str]:
        """Bytes of one request that a decode step holds beside the cache, in the layer that needs most, and why."""
        match self.kind.stores:
            case "dynamic":
                extra = max((each.replaced_bytes(tokens) for each in self.held), default=0)
                return extra, "caches grow by copying, and the old tensors of one layer still live"
            case "static":
                full = [each.layer_row_bytes * each.kept.size for each in self.held if isinstance(each.kept, Window | Chunk) and tokens >= each.kept.size]
                return max(full, default=0), "a full window is rolled into new tensors, one layer at a time"
            case "groups":
                extra = max(2 * self._rows(each, tokens) * self._plain_row(each) for each in self.held)
                return extra, f"one layer at a time is dequantized and copied to append the new token, and every {RESIDUAL} tokens quantized anew"
            case "fp8":
                return max(self._fp8_extra(each, tokens) for each in self.held), "one layer at a time is copied to append, and dequantized through fp32"
            case unreachable:
                assert_never(unreachable)

    def _fp8_extra(self, each: Held, tokens: int) -> int:
        """Fp8QuantizedLayer.update: the old tensors of K and V, K dequantized, and two fp32 copies of V (of a latent and its rotary key alike)."""
        k, *rest = (self._rows(each, tokens) * use.heads * use.width for use in each.planes)
        v = sum(rest)
        return k + v + k * self.model.size_bytes + 2 * PACKINGS["fp32"].size_bytes * v

    def _expanded_bytes(self, each: Held, tokens: int) -> int:
        """K and V of every head of one layer, of which the cache keeps the latent."""
        cache = each.source
        if not self.expands_latents or cache.expanded is None or cache.query_heads is None:
            return 0
        return self._rows(each, tokens) * cache.query_heads * sum(map(self.model.row_bytes, cache.expanded))


class TransformersEngine:
    """transformers at one release, as `generate` builds its caches."""

    name = "transformers"
    part_of: Literal["all"] = "all"

    def __init__(self, release: Release) -> None:
        self.release = release

    @property
    def version(self) -> str:
        return self.release.number

    def utilization(self, _spec: ModelSpec, _options: Options, _total_bytes: int) -> Decimal:
        """It reserves nothing, and grows until the memory is full."""
        return Decimal(1)

    def plan(self, spec: ModelSpec, options: Options) -> TransformersPlan:
        kind = find_kind(options.cache)
        _check_deployment(options)
        notes = _native(spec, self.release)
        model, dtype_notes = _dtype(spec, options, self.release)
        _check_kind(spec, kind, self.release)
        storing = Storing(self.release, kind, spec.facts.model_type, model)
        kv_dtype = KvDtype(model.name, model.name)
        ideal = IDEAL.plan(spec, Options(kv_dtype=kv_dtype, encoder_tokens=options.encoder_tokens))
        counts = Counter(cache for layer in spec.layers for cache in layer.caches)
        notes += [*dtype_notes, *(note for note in ideal.notes if note.code == "encoder-tokens"), *_kind_notes(kind, model), *_module_states(counts, model)]
        notes.append(
            Note(code="activations", text="not counted: the forward pass's own tensors (activations, logits), and copies that a step makes for a moment")
        )
        return TransformersPlan(
            kv_dtype=KvDtype("fp8_e4m3", "fp8_e4m3") if kind.stores == "fp8" else kv_dtype,
            kind=kind,
            model=model,
            held=tuple(held for cache, layers in counts.items() for held in storing.held(cache, layers)),
            readers=sum(layer.reads is not None and not layer.caches for layer in spec.layers),
            ideal=ideal,
            replicas=options.dp,
            expands_latents=self.release.line == 5,
            notes=(*notes, *unused_options(options, self.name, USES)),
        )

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        from kvcalc.engines.loading import loaded_shares  # a question about the cache does without

        return loaded_shares(spec, options)

    def overheads(self, _spec: "WeighedModel", _options: Options, _context: int) -> Overheads:
        return Overheads(Span(0, 0, 0), Span(0, 0, 0), RUNTIME, RUNTIME, same_from=0)


RUNTIME: Final = Span(250 * MIB, 425 * MIB, 632 * MIB)
"""A CUDA context, 250 to 600 MiB by GPU, driver and loaded modules; at most a cuBLAS workspace of 32 MiB more (torch 2.13.0). Not measured."""

TRANSFORMERS: Final = TransformersEngine(TRANSFORMERS_5)


def _check_deployment(options: Options) -> None:
    """What is not modelled of how a model is spread over GPUs, or drafted for."""
    if options.tp > 1:
        raise KvcalcError(
            "transformers: --tp is not modelled (the tensor parallel plans of single models split KV heads; device_map spreads whole layers)",
            hint="leave out --tp: the cache of all GPUs together is the same under device_map",
        )
    for flag, size in (("--pp", options.pp), ("--dcp", options.dcp)):
        if size > 1:
            raise KvcalcError(f"transformers has no {flag}", hint=f"leave out {flag}: device_map spreads whole layers, and the cache of all GPUs is the same")
    if options.draft_layers:
        raise KvcalcError("transformers builds no draft (MTP) layers", hint="leave out --mtp")
    if options.draft is not None:
        raise KvcalcError("transformers: the caches of assisted decoding are not modelled", hint="leave out the draft model")


FALCON_BEFORE: Final = frozenset({"RefinedWeb", "RefinedWebModel"})
"""Falcon under its first names, whose published code may copy K and V to every query head, as that of transformers does."""


def _native(spec: ModelSpec, release: Release) -> list[Note]:
    """Nothing to say for a model type that the release has code for. For another, the code of the model's repository decides."""
    model_type = spec.facts.model_type
    if release.line == 4 and any(isinstance(cache.retention, Once) for layer in spec.layers for cache in layer.caches):
        raise KvcalcError("transformers 4 keeps states in cache classes of single models, which are not modelled", hint="use --engine transformers")
    if model_type is None or model_type in release.model_types:
        return []
    if model_type in TRANSFORMERS_5.model_types:
        raise KvcalcError(f"transformers {release.number} has no {model_type}: it came later", hint="use --engine transformers")
    plain = all(cache.kernel == "gqa" and cache.retention == Grows() for layer in spec.layers for cache in layer.caches)
    if not plain or model_type in FALCON_BEFORE:
        raise KvcalcError(
            f"transformers {release.number} has no code for {model_type}, and what the code of its repository caches is not known",
            hint="if it shares the code of a type that transformers has, name that with --as; else use --engine vllm or ideal",
        )
    text = f"transformers {release.number} has no code for {model_type}: the code of its repository is taken to cache K and V of every token"
    return [Note(code="remote-code", text=text)]


def _dtype(spec: ModelSpec, options: Options, release: Release) -> tuple[Packing, list[Note]]:
    """The element type that the model is loaded in, which is that of the cache; 5.x takes the checkpoint's own, fp32 too (dtype="auto")."""
    names = set(options.kv_dtype)
    if names == {"auto"}:
        model, note = model_packing(spec.facts)
        if spec.facts.dtype == "fp32":
            model, note = PACKINGS["fp32"], None
        notes = [] if note is None else [note]
        if release.line == 4 and model.name != "fp32":
            notes.append(Note(code="dtype", text=f'{model.name} as in the checkpoint: transformers 4 loads fp32 unless it is given dtype="auto" or another'))
        return model, notes
    if len(names) > 1 or not names <= {"bf16", "fp16", "fp32"}:
        raise KvcalcError(
            f"transformers caches K and V in the dtype that the model is loaded in, not in {options.kv_dtype}",
            hint="use --kv-dtype bf16, fp16 or fp32, or a quantized cache: --cache fp8, quanto-4 ...",
        )
    return PACKINGS[options.kv_dtype.k], []


def _check_kind(spec: ModelSpec, kind: CacheKind, release: Release) -> None:
    """Caches that a model does not run with, or that a release does not have."""
    if kind.stores == "dynamic":
        return
    caches = list(dict.fromkeys(cache for layer in spec.layers for cache in layer.caches))
    if kind.stores == "fp8" and release.line == 4:
        raise KvcalcError(f"transformers {release.number} has no fp8 cache", hint="use --cache quanto-4, or --engine transformers")
    if any(cache.kernel == "lightning" for cache in caches):
        raise KvcalcError("transformers: MiniMax has a cache class of its own and takes no other", hint="leave out --cache")
    if kind.stores == "static":
        _check_static(spec, caches, release)
        return
    whole = all(cache.kernel in ("gqa", "mla") and cache.retention == Grows() for cache in caches)
    if not whole or any(not layer.caches for layer in spec.layers):
        raise KvcalcError("transformers quantizes the cache only of models whose layers are all full attention", hint="use --cache dynamic or static")


def _check_static(spec: ModelSpec, caches: list[Cache], release: Release) -> None:
    if any(cache.kernel == "compressor" for cache in caches):
        raise KvcalcError("transformers has no static cache for the compressed layers of DeepSeek-V4", hint="leave out --cache")
    heads = [(cache.planes[0].heads, cache.query_heads) for cache in caches]
    if spec.facts.model_type == "falcon" and any(kv_heads == query_heads and kv_heads > 1 for kv_heads, query_heads in heads):
        raise KvcalcError("transformers: the static cache fails on Falcon with ALiBi (one KV head a query head)", hint="leave out --cache")
    alone = any(len(layer.caches) == 1 and isinstance(layer.caches[0].retention, Encoder) for layer in spec.layers)
    if release.line == 4 and alone:
        raise KvcalcError("transformers 4 has no static cache for layers of cross-attention alone", hint="leave out --cache, or use --engine transformers")


def _kind_notes(kind: CacheKind, model: Packing) -> list[Note]:
    match kind.stores:
        case "dynamic":
            return []
        case "static":
            text = "the context is max_cache_len, allocated at the first step: generate takes max_length - 1, and not less than in an earlier call"
            return [Note(code="static", text=text)]
        case "groups":
            text = (
                f"{kind.name} stores {GROUP} elements of K or V in {kind.group_bytes} bytes, and their scale and zero point in {model.name}: "
                f"{kind.packing(model).size_bytes} bytes for each {kind.packing(model).elements} elements"
            )
            return [Note(code="quantized", text=text)]
        case "fp8":
            return [Note(code="quantized", text="K and V are stored in fp8_e4m3, with one scale for each tensor of a layer, whatever the batch")]
        case unreachable:
            assert_never(unreachable)


def _module_states(counts: Counter[Cache], model: Packing) -> list[Note]:
    """RecurrentGemma keeps its states on the modules (models/recurrent_gemma/modeling_recurrent_gemma.py)."""
    size = sum(
        layers * plane.heads * plane.columns * (model if plane.dtype == "model" else PACKINGS[plane.dtype]).row_bytes(plane.width)
        for cache, layers in counts.items()
        if cache.kernel == "rglru"
        for plane in cache.planes
    )
    if not size:
        return []
    return [Note(code="module-states", text=f"the states of recurrent layers stand on the modules, not in the cache: {format_bytes(size)} a request more")]
