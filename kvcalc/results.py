"""Every answer of kvcalc: frozen values that print as JSON as they are. Sizes are whole bytes."""

from typing import Literal

from pydantic import Field

from kvcalc.engines.base import LayerKind
from kvcalc.layers import Frozen, Note, PlainFormula


class ModelInfo(Frozen):
    """The model that was asked about. `source` says where its layers were read; None stands for what the source does not tell."""

    name: str
    source: str
    model_type: str | None
    parameters: int | None
    parameters_text: int | None
    max_context: int | None


class Parallel(Frozen):
    """GPUs that share heads (tp), layers (pp), requests (dp), and the tokens of a copied cache (dcp)."""

    tp: int
    pp: int
    dp: int
    dcp: int


class LayerRow(Frozen):
    """All layers of one kind, for one request on the GPU that binds. `rows` are those of one layer, `bytes` those of all `count`.

    Heads and widths are those on that GPU; None where the kind has none.
    """

    kind: LayerKind
    kernel: str | None
    count: int
    kv_heads: int | None
    k_dim: int | None
    v_dim: int | None
    window: int | None
    stride: int | None
    rows: int
    bytes: int


class PerQueryHead(Frozen):
    """The attention caches of the batch in one copy of the model, and what they would be if each of `query_heads` kept K and V of its own."""

    query_heads: int
    attention_bytes: int
    expanded_bytes: int


class Answer(Frozen):
    """What every JSON object of kvcalc begins with."""

    schema_version: Literal[1] = Field(default=1, serialization_alias="schema")

    def to_json(self) -> str:
        """The whole answer as one JSON object."""
        return self.model_dump_json(by_alias=True)


class Estimate(Answer):
    """KV-cache bytes of a batch of requests of one length.

    `total_bytes`: all GPUs. `bytes_per_gpu`: the batch on the GPU that binds. `request_bytes`: one request there. `token_bytes`: what one more
    token adds there at this context. `fixed_bytes`: what a request holds there whatever its length. `formula` gives `bytes_per_gpu`.
    `plain_formula` holds what a reader would put into M = 2 L n H_kv d_h b B, and `plain_formula_bytes` what that gives for the batch in one
    copy of the model; both are None where the formula cannot be written. `per_query_head` is None where query heads are not known.
    """

    model: ModelInfo
    engine: str
    engine_version: str | None
    context: int
    batch: int
    kv_dtype: str
    parallel: Parallel
    total_bytes: int
    bytes_per_gpu: int
    request_bytes: int
    token_bytes: int
    fixed_bytes: int
    formula: str
    plain_formula: PlainFormula | None
    plain_formula_bytes: int | None
    per_query_head: PerQueryHead | None
    layers: tuple[LayerRow, ...]
    notes: tuple[Note, ...]


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
