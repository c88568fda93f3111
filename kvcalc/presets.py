"""The form of a model file (a preset, or a user's own spec YAML): facts in, ModelSpec out. Reads no file itself."""

import datetime as dt
from collections.abc import Callable
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, validate_call

from kvcalc.caches import CACHES
from kvcalc.errors import KvcalcError
from kvcalc.layers import MAX_LAYERS, MAX_SIZE, Cache, Facts, Frozen, Layer, ModelSpec, PlainFormula, Size
from kvcalc.packing import PACKINGS

CacheFields = dict[str, Any]
"""`kind` (a name in CACHES) and the arguments of that function, which checks them: only it knows their types."""


class Run(Frozen):
    """`repeat` times the layers named in `of`, in order."""

    repeat: Annotated[int, Field(gt=0, le=MAX_LAYERS)] = 1
    of: Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_LAYERS)]


class Kind(Frozen):
    """One kind of layer: its caches, or the index of the layer whose cache it reads."""

    caches: tuple[CacheFields, ...] = ()
    reads: int | None = None


class SpecFile(Frozen):
    """A model written down: what its layers keep, layer by layer, what is known beside that, and in `config` the keys of its config.json that decide
    about its weights.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$", max_length=100)]
    model_type: Annotated[str, Field(max_length=100)] | None = None
    dtype: str | None = None
    kv_dtype: str | None = None
    max_context: Size | None = None
    encoder_tokens: Annotated[int, Field(ge=0, le=MAX_SIZE)] | None = None
    parameters: Size | None = None
    parameters_text: Size | None = None
    checkpoint_bytes: Size | None = None
    image_prefix: bool = False
    pooling: bool = False
    quantized_kv_scales: bool = False
    sharded_tower: tuple[Size, ...] = ()
    formula: PlainFormula | None = None
    config: dict[str, Any] | None = None
    kinds: Annotated[dict[str, Kind], Field(min_length=1)]
    layers: Annotated[tuple[Run, ...], Field(min_length=1)]
    draft_layers: tuple[Run, ...] = ()
    aliases: tuple[str, ...] = ()
    family: str | None = None
    hub: tuple[str, ...] = ()
    source: str | None = None
    checked: dt.date | None = None

    def spec(self) -> ModelSpec:
        """The model that the file describes. Raises KvcalcError that names the field which is wrong."""
        for field in ("dtype", "kv_dtype"):
            if (name := getattr(self, field)) is not None and name not in PACKINGS:
                raise KvcalcError(f"{self.name}: {field} {name[:40]!r} is not known", hint=f"known: {', '.join(PACKINGS)}")
        kinds = {name: _layer(f"{self.name}: kinds.{name[:40]}", kind) for name, kind in self.kinds.items()}
        facts = Facts(**{field: getattr(self, field) for field in Facts.model_fields})
        try:
            return ModelSpec(layers=self._expand(self.layers, kinds), draft_layers=self._expand(self.draft_layers, kinds), facts=facts)
        except ValidationError as error:
            raise KvcalcError(f"{self.name}: {first_error(error)}") from None

    def _expand(self, runs: tuple[Run, ...], kinds: dict[str, Layer]) -> tuple[Layer, ...]:
        for name in (name for run in runs for name in run.of):
            if name not in kinds:
                raise KvcalcError(f"{self.name}: layers name the kind {name[:40]!r}, which is not among kinds", hint=f"kinds has {', '.join(kinds)[:200]}")
        if sum(run.repeat * len(run.of) for run in runs) > MAX_LAYERS:
            raise KvcalcError(f"{self.name}: more than {MAX_LAYERS:,} layers")
        return tuple(kinds[name] for run in runs for _ in range(run.repeat) for name in run.of)


def _layer(where: str, kind: Kind) -> Layer:
    return Layer(caches=tuple(_cache(f"{where}[{index}]", fields) for index, fields in enumerate(kind.caches)), reads=kind.reads)


def _cache(where: str, fields: CacheFields) -> Cache:
    arguments = dict(fields)
    kind = arguments.pop("kind", None)
    if not isinstance(kind, str) or kind not in CACHES:
        raise KvcalcError(f"{where}: kind {repr(kind)[:40]} is not known", hint=f"known: {', '.join(CACHES)}")
    try:
        checked: Callable[..., Cache] = validate_call(config=ConfigDict(strict=True))(CACHES[kind])
        cache = checked(**arguments)
    except ValidationError as error:
        raise KvcalcError(f"{where}: {first_error(error)}") from None
    except ValueError as error:
        raise KvcalcError(f"{where}: {error}") from None
    unknown = next((plane.dtype for plane in cache.planes if plane.dtype not in ("kv", "model", *PACKINGS)), None)
    if unknown is not None:
        raise KvcalcError(f"{where}: dtype {unknown[:40]!r} is not known", hint=f"known: model, {', '.join(PACKINGS)}")
    return cache


def first_error(error: ValidationError) -> str:
    """The first fault that pydantic found, as "field: what is wrong with it"."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    place = ".".join(str(part)[:40] for part in first["loc"][:8])
    message = _PLAIN_WORDS.get(first["type"], first["msg"][:200])
    return f"{place}: {message}" if place else message


_PLAIN_WORDS = {
    "extra_forbidden": "unknown field",
    "json_invalid": "holds a number beyond those that are read",
    "missing": "is missing",
    "missing_keyword_only_argument": "is missing",
    "unexpected_keyword_argument": "unknown field",
}
"""pydantic's error types in the words of a file, where its own are those of a function or a class."""
