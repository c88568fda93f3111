"""The answer of `kvcalc estimate`."""

from kvcalc.engines.base import LayerKind
from kvcalc.layers import Frozen, Note, PlainFormula
from kvcalc.results.shared import Answer, ModelInfo, Parallel


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


class Estimate(Answer):
    """KV-cache bytes of a batch of requests of one length.

    `total_bytes`: all GPUs. `bytes_per_gpu`: the batch on the GPU that binds. `request_bytes`: one request there. `token_bytes`: what one more
    token adds there at this context. `fixed_bytes`: what a request holds there whatever its length. `formula` gives `bytes_per_gpu`: of the engine's
    blocks (`in_blocks`), or of rows.
    `slots`: so many requests share one cache of fixed size, which all this is then about; None where each holds its own.
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
    in_blocks: bool
    slots: int | None
    plain_formula: PlainFormula | None
    plain_formula_bytes: int | None
    per_query_head: PerQueryHead | None
    layers: tuple[LayerRow, ...]
    notes: tuple[Note, ...]
