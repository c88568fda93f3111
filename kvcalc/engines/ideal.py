"""The bare formula: what a model's layers hold, with no blocks, no slack and no padding."""

from collections import Counter
from collections.abc import Iterable
from decimal import Decimal
from math import lcm
from typing import TYPE_CHECKING, Literal, NamedTuple, assert_never

from kvcalc.engines.base import (
    NO_OVERHEADS,
    Capacity,
    LayerUse,
    Loaded,
    Options,
    Overheads,
    PlaneUse,
    Pool,
    divided,
    drafting_layers,
    layer_kind,
    model_packing,
    pipeline_stages,
    split_heads,
    unused_options,
)
from kvcalc.errors import KvcalcError
from kvcalc.layers import Cache, Chunk, Encoder, Grows, Layer, ModelSpec, Note, Once, Plane, Window
from kvcalc.packing import ENGINE_DTYPES, PACKINGS, KvDtype, Packing

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel


class _Share(NamedTuple):
    """`layers` layers of one pipeline stage whose caches are alike, and their planes on one GPU."""

    cache: Cache
    layers: int
    planes: tuple[PlaneUse, ...]

    @property
    def unit_bytes(self) -> int:
        """One row in each of the layers."""
        return self.layers * sum(plane.row_bytes for plane in self.planes)


class _Stage(NamedTuple):
    """One pipeline stage: what its layers keep, and how many read another layer's cache."""

    shares: tuple[_Share, ...]
    readers: int


class IdealPlan(NamedTuple):
    """Rows times bytes a row, summed over the layers of each stage; the stage that holds most at a length binds."""

    kv_dtype: KvDtype
    stages: tuple[_Stage, ...]
    encoder_tokens: int
    gpus_per_stage: int
    replicas: int
    dcp: int
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("memory", unit_bytes=1, unit_rows=1),)

    def need(self, tokens: int) -> tuple[int, ...]:
        return (self._stage_bytes(self._binding(tokens), tokens),)

    def resident_bytes(self, tokens: int, batch: int) -> int:
        return batch * self._stage_bytes(self._binding(tokens), tokens)

    def total_bytes(self, tokens: int, batch: int) -> int:
        return self.replicas * self.gpus_per_stage * batch * sum(self._stage_bytes(stage, tokens) for stage in self.stages)

    def token_bytes(self, tokens: int) -> int:
        """A row that stands for several tokens counts for each of them in equal parts; a part of a byte in the sum is dropped."""
        added = [(share.unit_bytes, self._tokens_a_row(share, tokens)) for share in self._binding(tokens).shares]
        parts = lcm(*(per_row for _, per_row in added if per_row))
        return sum(unit_bytes * parts // per_row for unit_bytes, per_row in added if per_row) // parts

    def fixed_bytes(self) -> int:
        return sum(share.unit_bytes * self._rows(share, 0) for share in self._binding(0).shares)

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        stage = self._binding(tokens)
        uses = [self._use(share, tokens) for share in stage.shares]
        if stage.readers:
            uses.append(LayerUse("shared", stage.readers, None, (), 0, 0))
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

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:  # noqa: ARG002 (an engine's word, and this one stores nothing beside rows)
        return ()

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:  # noqa: ARG002 (as above)
        return ""

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:  # noqa: ARG002 (as above)
        return ()

    def _use(self, share: _Share, tokens: int) -> LayerUse:
        rows = self._rows(share, tokens)
        return LayerUse(layer_kind(share.cache), share.layers, share.cache, share.planes, rows, rows * share.unit_bytes)

    def _binding(self, tokens: int) -> _Stage:
        return max(self.stages, key=lambda stage: self._stage_bytes(stage, tokens))

    def _stage_bytes(self, stage: _Stage, tokens: int) -> int:
        return sum(share.unit_bytes * self._rows(share, tokens) for share in stage.shares)

    def _tokens_a_row(self, share: _Share, tokens: int) -> int:
        """How many further tokens add one row to a request of `tokens`; 0 where none does."""
        match share.cache.retention:
            case Grows(stride=stride):
                return stride * self.dcp
            case Window(size=size) | Chunk(size=size):
                return 1 if tokens < size else 0
            case Once() | Encoder():
                return 0
            case unreachable:
                assert_never(unreachable)

    def _rows(self, share: _Share, tokens: int) -> int:
        match share.cache.retention:
            case Grows(stride=stride):
                return -(-(tokens // stride) // self.dcp)
            case Window(size=size) | Chunk(size=size):
                return min(tokens, size)
            case Once():
                return 1
            case Encoder():
                return self.encoder_tokens
            case unreachable:
                assert_never(unreachable)


class IdealEngine:
    """What every engine must at least store. Heads are divided by tensor parallelism where they can be, and copied where there are
    fewer heads than GPUs; MLA latents and index keys are copied to every GPU.
    """

    name = "ideal"
    version = None
    part_of: Literal["all"] = "all"

    def utilization(self, _spec: ModelSpec, _options: Options, _total_bytes: int) -> Decimal:
        return Decimal(1)

    def plan(self, spec: ModelSpec, options: Options) -> IdealPlan:
        kv_dtype, model, dtype_notes = _dtypes(spec, options)
        encoder_tokens, encoder_notes = _encoder_tokens(spec, options)
        stages = pipeline_stages(spec.layers, options.pp)
        stages[-1] += drafting_layers(spec, options)
        used = tuple(_stage(stage, kv_dtype, model, options) for stage in stages)
        return IdealPlan(
            kv_dtype=kv_dtype,
            stages=used,
            encoder_tokens=encoder_tokens,
            gpus_per_stage=options.tp,
            replicas=options.dp,
            dcp=options.dcp,
            notes=(*dtype_notes, *encoder_notes, *unused_options(options, self.name), *_padding_notes(share for stage in used for share in stage.shares)),
        )

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        from kvcalc.engines.loading import loaded_shares  # a question about the cache does without

        return loaded_shares(spec, options)

    def overheads(self, _spec: "WeighedModel", _options: Options, _context: int) -> Overheads:
        return NO_OVERHEADS


IDEAL = IdealEngine()


def _stage(layers: tuple[Layer, ...], kv_dtype: KvDtype, model: Packing, options: Options) -> _Stage:
    counts = Counter(cache for layer in layers for cache in layer.caches)
    shares = tuple(
        _Share(cache, count, tuple(_plane_use(plane, _packing(plane, kv_dtype, model), options.tp) for plane in cache.planes))
        for cache, count in counts.items()
    )
    for share in shares:
        _check_dcp(share, options)
    return _Stage(shares, readers=sum(layer.reads is not None and not layer.caches for layer in layers))


def _packing(plane: Plane, kv_dtype: KvDtype, model: Packing) -> Packing:
    """The element type of a plane."""
    match plane.dtype:
        case "kv":
            return PACKINGS[kv_dtype.v if plane.role == "v" else kv_dtype.k]
        case "model":
            return model
        case name:
            return PACKINGS[name]


def _plane_use(plane: Plane, packing: Packing, tp: int) -> PlaneUse:
    match plane.split:
        case "heads":
            return PlaneUse(plane, split_heads(plane.heads, tp, "KV heads" if plane.role in ("k", "v") else f"heads of the {plane.role}"), plane.width, packing)
        case "width":
            if plane.width % tp:
                raise KvcalcError(f"--tp {tp} does not divide the {plane.width} channels of the {plane.role} state", hint="use a --tp that divides them")
            return PlaneUse(plane, plane.heads, plane.width // tp, packing)
        case "replicated":
            return PlaneUse(plane, plane.heads, plane.width, packing)
        case unreachable:
            assert_never(unreachable)


def _check_dcp(share: _Share, options: Options) -> None:
    """Decode context parallelism divides the tokens of a growing cache among the GPUs that would hold copies of it."""
    if options.dcp == 1 or not isinstance(share.cache.retention, Grows):
        return
    for use in share.planes:
        copies = options.tp if use.plane.split == "replicated" else options.tp * use.heads // use.plane.heads
        if copies % options.dcp:
            raise KvcalcError(
                f"--dcp {options.dcp} wants {options.dcp} GPUs that hold the same tokens; --tp {options.tp} holds {copies} of {use.plane.heads} KV heads",
                hint="raise --tp or lower --dcp",
            )


def _dtypes(spec: ModelSpec, options: Options) -> tuple[KvDtype, Packing, list[Note]]:
    """The KV dtype with `auto` resolved (the checkpoint's own KV dtype, else the model's), and the dtype the model computes in."""
    model, note = model_packing(spec.facts)
    for name in options.kv_dtype:
        if name in ENGINE_DTYPES:
            raise KvcalcError(f"what {name} takes depends on the engine that stores it", hint="name one that has it: --engine vllm")
    if "auto" not in (options.kv_dtype.k, options.kv_dtype.v):
        return options.kv_dtype, model, []
    if spec.facts.kv_dtype is None:
        return options.kv_dtype.resolved(model.name), model, [note] if note else []
    named = Note(code="kv-dtype", text=f"the checkpoint's quantization names {spec.facts.kv_dtype} for the KV cache; another with --kv-dtype")
    return options.kv_dtype.resolved(spec.facts.kv_dtype), model, [named]


def _encoder_tokens(spec: ModelSpec, options: Options) -> tuple[int, list[Note]]:
    """Rows of each cross-attention cache: the user's number, the model's own, or 0 with a note."""
    crossed = any(isinstance(cache.retention, Encoder) for layer in spec.layers for cache in layer.caches)
    if not crossed or options.encoder_tokens is not None:
        return 0 if options.encoder_tokens is None else options.encoder_tokens, []
    if spec.facts.encoder_tokens is None:
        return 0, [Note(code="encoder-tokens", text="the encoder's input has no fixed length: 0 tokens are counted; state them with --encoder-tokens")]
    own = spec.facts.encoder_tokens
    return own, [Note(code="encoder-tokens", text=f"cross-attention is counted for {own:,} encoder tokens; another number with --encoder-tokens")]


def _padding_notes(shares: Iterable[_Share]) -> list[Note]:
    """A note for each block format whose blocks a row does not fill."""
    padded = {(use.packing.name, use.packing.elements, use.width) for share in shares for use in share.planes if not use.packing.fills(use.width)}
    return [
        Note(code="padding", text=f"a head of {width} elements does not fill the {elements}-element blocks of {name}: the last block is counted whole")
        for name, elements, width in sorted(padded)
    ]
