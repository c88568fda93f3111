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


class GpuInfo(Frozen):
    """The GPU that was asked about: its name, and all its memory as the runtime reports it. None where only a budget was stated."""

    name: str | None
    memory_bytes: int | None


class Memory(Frozen):
    """One GPU's memory. `usable_bytes` is what the engine takes, `reserve_bytes` a flat sum for everything beside weights and cache (activations,
    CUDA graphs, the runtime). All but `kv_bytes` are None where the KV budget was stated.
    """

    total_bytes: int | None = None
    usable_bytes: int | None = None
    weights_bytes: int | None = None
    activation_bytes: int | None = None
    graph_bytes: int | None = None
    runtime_bytes: int | None = None
    reserve_bytes: int | None = None
    kv_bytes: int


class Range(Frozen):
    """Low and high of an estimated size."""

    low: int
    high: int


class CapacityInfo(Frozen):
    """What one replica holds. `requests` of the asked context at once, as the engine reports it (it may count blocks that no request can use), and
    the `tokens` in them; `max_context`: the longest single request; `blocks` of `block_bytes` on the GPU that binds, each for `block_tokens`;
    `request_bytes`: one request of the context there.
    """

    requests: float
    tokens: int
    max_context: int
    blocks: int
    block_tokens: int
    block_bytes: int
    request_bytes: int


class LengthRow(Frozen):
    """What fits at another length of request: as many whole requests, together `tokens`. `request_bytes`: one of them on the GPU that binds."""

    context: int
    requests: int
    tokens: int
    request_bytes: int


class Difference(Frozen):
    """Bytes by which one request of the context, on all GPUs of a replica, differs from the plain formula, for one cause."""

    cause: str
    bytes: int


class Division(Frozen):
    """What free memory divided by 2 L H_kv d_h b gives for a replica, and where the engine's `request_bytes` differ from the formula's. Differences
    sum to `engine_request_bytes` - `request_bytes`.
    """

    tokens: int
    requests: float
    request_bytes: int
    engine_request_bytes: int
    differences: tuple[Difference, ...]


class Fit(Answer):
    """What a KV budget holds under an engine's rules. `fits`: whether `batch` requests of `context` do; `limited_by` is what binds: kv_bytes,
    max_seqs (the scheduler takes no more at once) or weights (they leave nothing). `memory_range` holds the sizes that are estimated. `division`
    is None where the plain formula cannot be written. `advice`: what would make it fit. `lengths`: other lengths of request. `commands`: the line that
    starts a server so, of the longest request where the context does not fit.
    """

    model: ModelInfo
    engine: str
    engine_version: str | None
    gpu: GpuInfo
    gpus: int
    parallel: Parallel
    context: int
    batch: int
    kv_dtype: str
    memory: Memory
    memory_range: dict[str, Range]
    capacity: CapacityInfo
    fits: bool
    limited_by: Literal["kv_bytes", "max_seqs", "weights"]
    lengths: tuple[LengthRow, ...]
    division: Division | None
    advice: tuple[str, ...]
    commands: dict[str, str]
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
