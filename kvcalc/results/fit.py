"""The answer of `kvcalc fit`."""

from typing import Literal

from kvcalc.layers import Frozen, Note
from kvcalc.results.shared import Answer, ModelInfo, Parallel, Seconds


class GpuInfo(Frozen):
    """The GPU that was asked about: its name, and all its memory, as `memory_by` reports it where the catalogue or the driver was asked; `used_bytes` of it are
    held by other processes. None where not stated.
    """

    name: str | None
    memory_bytes: int | None
    memory_by: str | None = None
    used_bytes: int | None = None


class Memory(Frozen):
    """One GPU's memory. `usable_bytes` is what the engine takes. `weights_bytes` are the weights as the engine reports them loaded, read from
    `weights_from`; of them `draft_bytes` belong to drafts and `lora_bytes` to the buffers of adapters. Then what the engine keeps beside them:
    `activation_bytes`, `graph_bytes`, `runtime_bytes`, and `reserve_bytes` that the user keeps back. The rest, `kv_bytes`, is the KV cache. All but that are
    None where the KV budget was stated.
    """

    total_bytes: int | None = None
    usable_bytes: int | None = None
    weights_bytes: int | None = None
    weights_from: str | None = None
    draft_bytes: int | None = None
    lora_bytes: int | None = None
    activation_bytes: int | None = None
    graph_bytes: int | None = None
    runtime_bytes: int | None = None
    reserve_bytes: int | None = None
    kv_bytes: int


class Range(Frozen):
    """Low and high of an estimated size."""

    low: int
    high: int


class Change(Frozen):
    """Something that would make it fit: the `options` that ask for it, and what a replica then holds: `requests` of (up to) `context` tokens on `gpus` GPUs."""

    text: str
    options: str
    requests: int
    context: int
    gpus: int


class CapacityInfo(Frozen):
    """What one replica holds. `requests` of the asked context at once, as the engine reports it (it may count blocks that no request can use), and
    the `tokens` in them; `max_context`: the longest single request; `blocks` of `block_bytes` on the GPU that binds, each for `block_tokens`;
    `request_bytes`: one request of the context there. `slots`: so many requests share one cache of fixed size, which all this is then about (llama.cpp);
    None where each holds blocks of its own.
    """

    requests: float
    tokens: int
    max_context: int
    blocks: int
    block_tokens: int
    block_bytes: int
    request_bytes: int
    slots: int | None


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


class Totals(Frozen):
    """All replicas together: whole requests of the context, and the tokens in them."""

    requests: int
    tokens: int


class LatencyInfo(Frozen):
    """Times that were asked for, None where one does not matter; the `requests` at once that one replica likely serves within them, and at both ends of the
    range; those that its memory holds; and the times of as many as fit both (of one where none does). `ttft` is None where it cannot be told.
    """

    ttft_limit_s: float | None
    tpot_limit_s: float | None
    requests: int
    requests_range: Range
    memory_requests: int
    ttft: Seconds | None
    tpot: Seconds


class SharedInfo(Frozen):
    """The first `tokens` are the same in all requests. A prefix cache holds `held_tokens` of them, whole blocks of `block_tokens`, once: `once_bytes` on
    the GPU that binds, where each request of the context then holds `own_bytes`.
    """

    tokens: int
    held_tokens: int
    block_tokens: int
    once_bytes: int
    own_bytes: int


class MixInfo(Frozen):
    """Requests of known lengths (prompt and output together), read from `source`. `mean_bytes`: what one holds for itself on the GPU that binds.
    At once fit `mean_requests` in the mean, `safe_requests` in `safe_percent` of 100 draws, `longest_requests` if all are as long as the context.
    """

    source: str
    requests: int
    mean_tokens: float
    p50_tokens: int
    p95_tokens: int
    p99_tokens: int
    max_tokens: int
    mean_bytes: int
    mean_requests: float
    safe_requests: int
    safe_percent: int
    longest_requests: int


class Figures(Frozen):
    """What is asked of a deployment, and what of it is held. `fits`: whether `batch` requests of `context` do; `limited_by` is what binds: kv_bytes, max_seqs
    (the scheduler takes no more at once), weights (with what the engine keeps beside them they leave nothing), ttft or tpot (more would be served too
    late; `capacity` and `lengths` are of those in time). `memory_range` holds the sizes that are estimated, `capacity_range` the whole requests of the
    context at both ends of the KV cache's. `capacity` is that of one replica, `totals` of all. `lacking_bytes`: what one GPU has too little of for
    the batch.
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
    capacity_range: Range
    totals: Totals
    fits: bool
    lacking_bytes: int
    limited_by: Literal["kv_bytes", "max_seqs", "weights", "ttft", "tpot"]
    latency: LatencyInfo | None
    shared: SharedInfo | None
    mix: MixInfo | None

    @property
    def held(self) -> int:
        """Whole requests that one replica holds at once, in time and of mixed lengths where these are asked for."""
        return self.totals.requests // self.parallel.dp


class Fit(Figures, Answer):
    """What a KV budget holds under an engine's rules, of one replica at other `lengths` too. `division` is None where the plain formula cannot be written.
    `advice`: changes that would make it fit, cheapest first. `commands`: the line that starts a server so, of the longest request where the context does
    not fit.
    """

    lengths: tuple[LengthRow, ...]
    division: Division | None
    advice: tuple[Change, ...]
    commands: dict[str, str]
    notes: tuple[Note, ...]


class Fits(Answer):
    """The same question about many models, best first; `notes` name those that could not be answered."""

    rows: tuple[Fit, ...]
    notes: tuple[Note, ...]
