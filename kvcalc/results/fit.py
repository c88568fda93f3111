"""The answer of `kvcalc fit`."""

from typing import Literal

from kvcalc.layers import Frozen, Note
from kvcalc.results.shared import Answer, ModelInfo, Parallel


class GpuInfo(Frozen):
    """The GPU that was asked about: its name, and all its memory, as `memory_by` reports it where the catalogue was asked. None where not stated."""

    name: str | None
    memory_bytes: int | None
    memory_by: str | None = None


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
    starts a server so, of the longest request where the context does not fit. `lacking_bytes`: what one GPU has too little of for the batch.
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
    lacking_bytes: int
    limited_by: Literal["kv_bytes", "max_seqs", "weights"]
    lengths: tuple[LengthRow, ...]
    division: Division | None
    advice: tuple[str, ...]
    commands: dict[str, str]
    notes: tuple[Note, ...]


class Fits(Answer):
    """The same question about many models, best first; `notes` name those that could not be answered."""

    rows: tuple[Fit, ...]
    notes: tuple[Note, ...]
