"""The answer of `kvcalc speed`."""

from typing import Literal

from kvcalc.layers import Frozen, Note
from kvcalc.results.shared import Answer, ModelInfo, Parallel, Seconds

Side = Literal["compute", "bandwidth", "link"]


class MachineInfo(Frozen):
    """One GPU: bytes a second of its memory and, each way, of the `link` to another; dense operations a second by format, as rated. None, or left out, where
    not known.
    """

    name: str
    bandwidth_bytes_s: int
    flops: dict[str, int]
    link: str | None
    link_bytes_s: int | None


class Phase(Frozen):
    """The work of one GPU of each pipeline stage, all stages together, and how long it takes.

    FLOPs: those of matrices (`linear_flops`), of attention, of recurrent states. Bytes: weights, cached rows read and written, states read and written,
    and what the GPUs sum among them (`reduced_bytes`). `intensity`: FLOPs for each byte that its memory moves. At full rate, `compute_s`, `bandwidth_s`
    and `link_s`, of which `bound_by` is the longest; `compute_s` None where that rate is not known, and so is `seconds` of
    a prompt, `link_s` 0 then.
    """

    linear_flops: int
    attention_flops: int
    recurrence_flops: int
    flops: int
    weight_bytes: int
    kv_read_bytes: int
    kv_write_bytes: int
    state_bytes: int
    moved_bytes: int
    reduced_bytes: int
    intensity: float
    compute_s: float | None
    bandwidth_s: float
    link_s: float
    bound_by: Side
    seconds: Seconds | None


class Rate(Frozen):
    """Tokens a second: `upper`, which no server exceeds, and the range that is likely."""

    upper: float
    low: float
    likely: float
    high: float


class Lever(Frozen):
    """A change, the options that ask for it where there are any, and the likely seconds and tokens a second of all replicas with it."""

    text: str
    options: str
    ttft_s: float | None
    tpot_s: float
    tokens_s: float


class Chunked(Frozen):
    """A prompt in chunks of so many `tokens`: how long the steps of other requests likely wait for the last chunk, and for the whole prompt
    at once.
    """

    tokens: int
    wait_s: float
    whole_wait_s: float


class Doubling(Frozen):
    """By what factor something grows with twice the context, or the batch: for this model, and if every layer kept and attended to all tokens."""

    what: Literal["KV memory", "KV read", "prefill attention", "prefill matrices", "decode step"]
    context: float
    batch: float
    plain_context: float
    plain_batch: float


class Recomputed(Frozen):
    """FLOPs of generating `tokens` from nothing: with a cache, and with the whole sequence computed again at each step; of these the attention's."""

    tokens: int
    cached_flops: int
    cached_attention_flops: int
    recomputed_flops: int
    recomputed_attention_flops: int


class BatchRow(Frozen):
    """A decode step of another batch: FLOPs for each byte that a GPU moves, likely seconds, and likely tokens a second of all replicas."""

    batch: int
    intensity: float
    tpot_s: float
    tokens_s: float


class ExpertsInfo(Frozen):
    """Of `experts` in a layer each token uses `used`; those that a step of the batch, on one replica, is expected to read: `distinct`."""

    experts: int
    used: int
    distinct: float


class Speed(Answer):
    """Prefill of one prompt of `prompt` tokens, and one decode step of `batch` requests in each replica that have `context` tokens then.

    `weights` is how most of them are stored, and `computes_in`
    the format that servers multiply them in, None where the GPU's rate is not known. `experts` is None for a model without any. `batches` are those that memory
    holds, where that is known.
    `decode_tokens_s` are those of all replicas while they decode, `request_tokens_s` of one request. `served_tokens_s`, where requests have an `output`, are
    those of all replicas with the prompts of later requests beside the steps of earlier ones. `turning_batch`: the smallest batch whose decode step
    computes for longer than it moves bytes, at this context and where nothing is cached, None where none does or the rate is not known. `kv_share`: of the
    bytes of a decode step that are cached rows. `prefill_in_steps`: as many decode steps take as long as the prompt. `memory_requests`: whole requests of
    the context that one replica's memory holds, None where that is not known. `chunked`: None where the prompt is no longer than a small chunk.
    """

    model: ModelInfo
    engine: str
    engine_version: str | None
    gpu: MachineInfo
    gpus: int
    parallel: Parallel
    context: int
    prompt: int
    output: int
    batch: int
    kv_dtype: str
    weights: str
    computes_in: str | None
    prefill: Phase
    decode: Phase
    experts: ExpertsInfo | None
    request_tokens_s: Rate
    decode_tokens_s: Rate
    served_tokens_s: Rate | None
    batches: tuple[BatchRow, ...]
    turning_batch: int | None
    turning_batch_uncached: int | None
    kv_share: float
    prefill_in_steps: float | None
    memory_requests: int | None
    levers: tuple[Lever, ...]
    chunked: Chunked | None
    doubling: tuple[Doubling, ...]
    recomputed: tuple[Recomputed, ...]
    efficiency: dict[str, str]
    notes: tuple[Note, ...]
