"""The answer of `kvcalc models`."""

from kvcalc.engines.base import LayerKind
from kvcalc.layers import Frozen
from kvcalc.results.shared import Answer


class ModelRow(Frozen):
    """One preset in the catalogue. `kinds` are its kinds of layers, `token_bytes` what a token adds in bf16 at length 0."""

    name: str
    aliases: tuple[str, ...]
    family: str | None
    hub: tuple[str, ...]
    model_type: str | None
    layers: int
    kinds: tuple[LayerKind, ...]
    max_context: int | None
    parameters: int | None
    token_bytes: int
    source: str | None
    checked: str | None


class Models(Answer):
    """The presets that match a filter."""

    models: tuple[ModelRow, ...]
