"""The answer of `kvcalc replay`."""

from typing import Literal

from kvcalc.layers import Frozen, Note
from kvcalc.results.fit import GpuInfo
from kvcalc.results.shared import Answer, ModelInfo, Parallel

TraceKind = Literal["azure", "burstgpt", "mooncake", "kvcalc", "synthetic"]
Identity = Literal["blocks", "sessions"]
"""By what a trace says that prompts begin alike."""
Routing = Literal["round-robin", "sticky", "prefix"]
"""How requests are divided by replicas."""
Way = Literal["paged", "exact", "power of two", "maximum"]
"""How memory is given to a request: in blocks as it grows, or in one piece ahead, for so much."""


class Percentiles(Frozen):
    """Of requests, or of time. Percentiles are those of a histogram, within 0.5 %."""

    mean: float
    p50: float
    p95: float
    p99: float
    max: float


class Spread(Frozen):
    """Of one replica over time: the mean while requests are there, and the most at once."""

    mean: float
    peak: int


class TraceInfo(Frozen):
    """What was read: `requests` with a prompt and an answer, over so many `seconds` from first to last. `identity`: by what prefixes are known. `malformed`
    lines were left out, of which `malformed_lines` says the first five; `empty` are those of requests that failed; `unordered` ones were put in order.
    """

    source: str
    kind: TraceKind
    identity: Identity | None
    requests: int
    seconds: float
    prompt: Percentiles
    output: Percentiles
    malformed: int
    malformed_lines: tuple[str, ...]
    empty: int
    unordered: int


class PoolInfo(Frozen):
    """One replica: `blocks` that requests can use, of `block_bytes` on the GPU that binds, each for `block_tokens`. The scheduler runs `max_requests` at once
    (None: any number) and takes `batch_tokens` in a step; no request is longer than `limit_tokens`.
    """

    blocks: int
    block_tokens: int
    block_bytes: int
    max_requests: int | None
    batch_tokens: int
    limit_tokens: int


class Interval(Frozen):
    """Means of a part of the time, all replicas together: requests that run and that wait, the part of the blocks in use, idle conversations in the cache."""

    start_s: float
    running: float
    waiting: float
    used: float
    warm: float


class Outcome(Frozen):
    """How the requests fared; all that rests on the time of steps is an estimate. `never`: longer than what an empty server takes, the longest of them with
    `longest_never` tokens; `cut`: their answers end at the limit. `recomputed_tokens`: what preempted requests lost. `per_token_s`: from arrival to the end,
    for each token of the answer. `used` is the part of the blocks in use.
    """

    served: int
    never: int
    longest_never: int
    cut: int
    preempted: int
    recomputed_tokens: int
    wait_s: Percentiles
    ttft_s: Percentiles
    per_token_s: Percentiles
    running: Spread
    waiting: Spread
    used: Percentiles
    peak_blocks: int
    seconds: float
    output_tokens_s: float


class PrefixUse(Frozen):
    """Of the prompts' tokens and, where the trace names blocks, of its blocks: what a cache without end finds again (`unlimited`), exactly. Of the tokens, what
    the replicas found (`hit`), by estimate. `counted`: whether every block was remembered, so that the first is all. `warm`: conversations of which no request
    runs while the cache holds all of their prefix, on average over time and in the end.
    """

    blocks: int | None
    unlimited_blocks: int | None
    prompt_tokens: int
    unlimited_tokens: int
    hit_tokens: int
    counted: bool
    warm_mean: float
    warm_end: int


class RoutingLoss(Frozen):
    """How requests are spread over replicas, and what others had cached of prompts when they arrived: `requests` of which another replica had more, `tokens`
    that were computed again for that, and the seconds by which their first tokens came later, together.
    """

    routing: Routing
    requests: int
    tokens: int
    ttft_s: float


class Policy(Frozen):
    """Memory given to requests in one way, on the first requests of the trace, while they run. Parts of what is held, over time: `used` by tokens in the cache;
    `later`: reserved for tokens to come; `never`: reserved for none, rows by which a reservation is rounded up to whole blocks among them; `last_block`: empty
    rows of last blocks of what is paged; None where layers keep unlike numbers of rows. `held_blocks`: what one request holds on average, `at_once`: how many
    the memory then holds. `held` is the part of the memory that is held.
    """

    name: Way
    used: float | None
    later: float | None
    never: float | None
    last_block: float | None
    held: Percentiles
    held_blocks: float
    at_once: int
    running: Spread
    wait_p95_s: float
    refused: int


class WhatIf(Frozen):
    """The same requests with a change, and the options that ask for it; empty for the one without."""

    text: str
    options: str
    gpus: int
    blocks: int
    outcome: Outcome
    hit_tokens: int


class Replay(Answer):
    """A trace replayed on a model, engine and GPUs. `memory` and `what_if` are of its first `sample` requests, whose prompts have
    `sample_prompt_tokens`.
    """

    model: ModelInfo
    engine: str
    engine_version: str | None
    gpu: GpuInfo
    gpus: int
    parallel: Parallel
    context: int
    kv_dtype: str
    rate_scale: float
    trace: TraceInfo
    pool: PoolInfo
    outcome: Outcome
    course: tuple[Interval, ...]
    prefix: PrefixUse | None
    routing: RoutingLoss | None
    sample: int
    sample_prompt_tokens: int
    memory: tuple[Policy, ...]
    what_if: tuple[WhatIf, ...]
    notes: tuple[Note, ...]
