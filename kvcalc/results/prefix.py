"""The answer of `kvcalc prefix`."""

from typing import Literal

from kvcalc.layers import Frozen, Note
from kvcalc.results.shared import Answer, ModelInfo


class Malformed(Frozen):
    """A line that holds no prompt, and why: never with its content."""

    line: int
    reason: str


class Reading(Frozen):
    """What was read: `lines` that are not blank, the `prompts` in them, by the `kinds` of their records; `malformed` lines were left out, of which the first
    are listed.
    """

    source: str
    format: Literal["jsonl", "text"]
    lines: int
    prompts: int
    kinds: dict[str, int]
    malformed: int
    first_malformed: tuple[Malformed, ...]


class Rate(Frozen):
    """Of all `tokens` of prompts, those that come from the cache (`hit_rate` is their part, from 0 to 1)."""

    tokens: int
    hit_tokens: int
    hit_rate: float


class Hits(Rate):
    """What a cache saves of the prompts, one after another. `prompts` were served, of which `prompts_hit` found something; `refused` are longer than the cache
    or the context. `capacity_tokens`: what the cache holds of one prompt, None without end. `seconds_saved_low` and `seconds_saved_high`: of prefill, where
    its speed is known.
    """

    prompts: int
    prompts_hit: int
    refused: int
    capacity_tokens: int | None
    seconds_saved_low: float | None
    seconds_saved_high: float | None


class Trunk(Frozen):
    """Tokens that prompts share, from `start_tokens` behind their beginning, in whole blocks. `level`: how many of the listed ones lie before it."""

    level: int
    start_tokens: int
    tokens: int
    prompts: int


class Tree(Frozen):
    """The whole blocks of all prompts: `blocks` one by one, `distinct_blocks` where equal beginnings are held once, `shared_blocks` of those in more than one
    prompt. `alone_bytes`, `once_bytes`: the KV cache of them on the GPU that binds, `shared_bytes` the difference; None without a model. `trunks`: where most
    is shared, in the order of the tree. `whole`: False where the tree was cut to stay in memory, so that sharing is a lower bound.
    """

    blocks: int
    distinct_blocks: int
    shared_blocks: int
    alone_bytes: int | None
    once_bytes: int | None
    shared_bytes: int | None
    trunks: tuple[Trunk, ...]
    whole: bool


class Break(Frozen):
    """Where prompts differ that agree again after it: in message `part` (from 1; its `role`, None where it is none that is known), `line` of that, `token` of
    the prompt. `kinds`: what stands there; `shown`: its form, without a letter of it (empty for white space and for parts that change places). `prompts` have
    such a place. `moved`: the hit rate with it moved to the end of the prompt, or (`remedy` sorted) always in one order.
    """

    kinds: tuple[str, ...]
    role: str | None
    part: int
    line: int
    token: int
    shown: str
    prompts: int
    remedy: Literal["moved", "sorted"]
    moved: Rate


class Breaks(Frozen):
    """The breaks that cost most, by the `prompts` that they were measured `on`: the hit rate `now`, and with `all_moved`. The cache is that of the KV budget
    where there is one.
    """

    on: Literal["all", "sample"]
    prompts: int
    now: Rate
    all_moved: Rate
    found: tuple[Break, ...]


class Prefix(Answer):
    """What prompts share. `tokens_by`: a tokenizer, the ids in the file, or bytes, where a token is an estimate. `budget` is None where no KV budget was asked
    about.
    """

    model: ModelInfo | None
    engine: str
    engine_version: str | None
    block_tokens: int
    tokens_by: Literal["tokenizer", "bytes", "ids"]
    reading: Reading
    tree: Tree
    unlimited: Hits
    budget: Hits | None
    breaks: Breaks | None
    notes: tuple[Note, ...]
