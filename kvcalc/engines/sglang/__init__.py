"""SGLang: a pool of tokens that every GPU fills alike, a second one for windows, and slots for the states of hybrids.

Rules: sglang/srt/model_executor/pool_configurator.py and sglang/srt/mem_cache/kv_cache_configurator.py 0.5.23. The pools share one budget in fixed
proportions, so a plan has one pool of bytes, and a request needs the bytes at which each of the pools that it takes from has room for it.
"""

from collections import Counter
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from math import ceil
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, assert_never

from kvcalc.engines.base import Capacity, LayerUse, Loaded, Options, Overheads, Pool, unused_options
from kvcalc.engines.sglang.cells import (
    EXTRA_BUFFER,
    SWA_POOLS,
    WINDOW_LESS_ONE,
    Kept,
    Stage,
    attention_tp,
    check_model,
    page_tokens,
    stages,
    storage,
)
from kvcalc.engines.sglang.memory import overheads, sizes, static_part
from kvcalc.engines.sglang.serve import serve_command
from kvcalc.errors import KvcalcError
from kvcalc.layers import Chunk, Encoder, Grows, ModelSpec, Note, Once, Window
from kvcalc.packing import KvDtype

if TYPE_CHECKING:
    from kvcalc.tensors import WeighedModel

USES: Final = frozenset(
    (
        "device",
        "speculative_tokens",
        "max_batched_tokens",
        "max_seqs",
        "block_size",
        "state_dtype",
        "prefix_caching",
        "enforce_eager",
        "max_loras",
        "swa_ratio",
        "mamba_ratio",
        "dp_attention",
    )
)
DEFAULT_SWA_RATIO: Final = Decimal("0.8")
"""--swa-full-tokens-ratio: tokens in the pool for windows for each in the full pool."""
DEFAULT_MAMBA_RATIO: Final = Decimal("0.9")
"""--mamba-full-memory-ratio: bytes of states for each byte of the rest."""
MOST_RUNNING: Final = 4096
"""Requests that run at once by default: 512 for each that fits at full length, 2,048 to 4,096 (resolve_max_num_reqs). From eight on that is this bound,
and fewer than eight do not reach the lower one.
"""
RUNNING_WITH_DRAFTS: Final = 48
"""The default under speculative decoding (sglang/srt/arg_groups/speculative_hook.py)."""
EVICTION_INTERVAL: Final = 128
"""Tokens after which rows behind a window are freed (SGLANG_SWA_EVICTION_INTERVAL, sglang/srt/environ.py)."""
CHUNKS_IN_FLIGHT: Final = 2
SLOTS_WITH_PREFIX_CACHE: Final = 3
TRACKING_SLOTS: Final = 2
"""More slots where the prefix cache tracks states while batches overlap (get_mamba_tracking_slots, sglang/srt/mem_cache/allocation_sizing.py)."""


HELD_BY_GROUPS: Final = frozenset(("attention", "recurrent", "embedding"))
"""Roles of tensors that each group of GPUs holds under DP attention (sglang/srt/layers/dp_attention.py, vocab_parallel_embedding.py)."""


class _Windows(NamedTuple):
    """The pool for windows of `size` tokens: `ratio` tokens for each of the full pool, or a fixed number of `rows`."""

    size: int
    ratio: Fraction
    rows: int | None


class _States(NamedTuple):
    """Slots of `slot_bytes` for states, of which a request takes `slots`: as many as a part of the budget holds (`ratio` bytes for each of the rest), or a
    `fixed` number. For each of `running` requests there are `drafts` more states to go back to.
    """

    slot_bytes: int
    slots: int
    ratio: Fraction
    fixed: int | None
    drafts: int
    running: int

    def number(self, budget_bytes: int) -> int:
        """Slots in the pool beside one that absorbs padding (_handle_max_mamba_cache); below one where it has no room."""
        if self.fixed is not None:
            return self.fixed
        own = budget_bytes * self.ratio / (1 + self.ratio)
        return int((own - self.slot_bytes * (1 + self.drafts)) // (self.slot_bytes * (1 + Fraction(self.drafts, self.slots))))

    def bytes_of(self, number: int) -> int:
        """What a pool of so many slots takes."""
        going_back = (min(self.running, number // self.slots) + 1) * self.drafts
        return (number + 1 + going_back) * self.slot_bytes


@dataclass(frozen=True)
class SglangPlan:
    """Tokens of a full pool, in pages; with each come `ratio` tokens of a pool for windows. The stage whose tokens cost most binds them all."""

    kv_dtype: KvDtype
    stages: tuple[Stage, ...]
    page: int
    windows: _Windows | None
    states: _States | None
    options: Options
    notes: tuple[Note, ...]

    @property
    def pools(self) -> tuple[Pool, ...]:
        return (Pool("memory", unit_bytes=1, unit_rows=1),)

    @cached_property
    def _token(self) -> Fraction:
        """Bytes of one token of the full pool with its share of the others', on the GPU that binds."""
        return max(map(self._stage_token, self.stages))

    def _stage_token(self, stage: Stage) -> Fraction:
        if self.windows is None or self.windows.rows is not None:
            return Fraction(stage.full_bytes)
        return stage.full_bytes + stage.swa_bytes * (self.windows.ratio if stage.full else Fraction(1))

    @property
    def _keeps_all(self) -> bool:
        """Whether there is a full pool, as there is not where every layer has a window."""
        return any(stage.full for stage in self.stages)

    def _aligned(self, tokens: int | Fraction) -> int:
        """Rounded up to whole pages."""
        return ceil(Fraction(tokens) / self.page) * self.page

    def _full_rows(self, tokens: int) -> int:
        """Rows that one request holds in the full pool of one GPU."""
        return self._aligned(Fraction(tokens, self.options.dcp)) if self._keeps_all else 0

    def _swa_rows(self, tokens: int) -> int:
        """Rows that one request is charged in the pool for windows (estimate_swa_kv_tokens, sglang/srt/mem_cache/prefill_budget.py)."""
        return 0 if self.windows is None else self._aligned(min(tokens, self.windows.size)) + self.page

    def _tokens_for(self, swa_rows: int) -> int:
        """Tokens of the full pool beside which the pool for windows has so many rows."""
        if self.windows is None or self.windows.rows is not None:
            return 0
        return self._aligned(ceil(swa_rows / self.windows.ratio))

    @property
    def _floor(self) -> int:
        """Rows of the pool for windows without which no request starts (validate_swa_pool_size, pool_configurator.py)."""
        return 0 if self.windows is None else self.windows.size + self.page + 1

    def need(self, tokens: int) -> tuple[int, ...]:
        """Bytes of the budget at which each pool has room for one more such request."""
        rows = max(self._full_rows(tokens), self._tokens_for(self._swa_rows(tokens)))
        if self.states is None or self.states.fixed is not None:
            return (ceil(rows * self._token),)
        of_tokens = rows * self._token * (1 + self.states.ratio)
        of_states = self.states.slot_bytes * (self.states.slots + self.states.drafts) * (1 + self.states.ratio) / self.states.ratio
        return (ceil(max(of_tokens, of_states)),)

    @property
    def reserved(self) -> int:
        """Bytes that stand for no request: the slot for padding and what drafts go back to; pools whose size is fixed."""
        fixed = 0 if self.windows is None or self.windows.rows is None else self.windows.rows * max(stage.swa_bytes for stage in self.stages)
        if self.states is None:
            return fixed
        if self.states.fixed is not None:
            return fixed + self.states.bytes_of(self.states.fixed)
        return fixed + ceil(self.states.slot_bytes * (1 + self.states.drafts) * (1 + self.states.ratio) / self.states.ratio)

    @property
    def slots(self) -> int | None:
        return None

    @property
    def max_requests(self) -> int | None:
        running = self._running
        return running if self.states is None or self.states.fixed is None else min(running, self.states.fixed // self.states.slots)

    @property
    def _running(self) -> int:
        return _running(self.options)

    def total_tokens(self, budget_bytes: int) -> int:
        """max_total_num_tokens: rows of the full pool for a budget (calculate_pool_sizes)."""
        left = budget_bytes
        if self.states is not None:
            left -= self.states.bytes_of(max(0, self.states.number(budget_bytes)))
        if self.windows is not None and self.windows.rows is not None:
            left -= self.windows.rows * max(stage.swa_bytes for stage in self.stages)
        return max(0, int(left // self._token)) // self.page * self.page

    def _pool_rows(self, total: int) -> int:
        """Rows of the pool for windows beside a full pool of `total` tokens."""
        if self.windows is None:
            return 0
        return self.windows.rows if self.windows.rows is not None else int(total * self.windows.ratio) // self.page * self.page

    def capacity(self, units: int, tokens: int) -> Capacity:
        """max_total_num_tokens, and how many requests of `tokens` each pool and the scheduler leave at once.

        Raises KvcalcError where the memory is enough for a request, but the pool for windows would be too small for the server to start.
        """
        total = self.total_tokens(units)
        rows = self._pool_rows(total)
        if self.windows is not None and rows < self._floor and self.need(tokens)[0] <= units:
            raise KvcalcError(
                f"SGLang: a pool of {rows:,} rows for windows cannot hold even one request: it must exceed the window ({self.windows.size:,}) and a page",
                hint="raise --swa-full-tokens-ratio or the memory for the cache",
            )
        bounds: list[float] = [min(self._running, total // 2)]
        if self._keeps_all:
            bounds.append(total * self.options.dcp / tokens)
        if self.windows is not None:
            bounds.append(rows / self._swa_rows(tokens))
        if self.states is not None:
            bounds.append(max(0, self.states.number(units)) // self.states.slots)
        return Capacity(min(bounds), total * self.options.dcp)

    def _sized(self, tokens: int, batch: int) -> tuple[int, int]:
        """Rows of the full pool, and of that for windows, of the smallest server that holds the batch, without the page that absorbs padding."""
        swa = max(batch * self._swa_rows(tokens), self._floor)
        total = max(batch * self._full_rows(tokens), self._tokens_for(swa))
        return total, self._pool_rows(total)

    def _held(self, stage: Stage, tokens: int, batch: int) -> tuple[tuple[Kept, int], ...]:
        """Each kind of layer of a stage with the rows that are allocated: a page more than there are tokens, which absorbs padding, and a slot more."""
        total, rows = self._sized(tokens, batch)
        counts = ((stage.full, total + self.page), (stage.swa, (rows if stage.full else max(rows, total)) + self.page), (stage.states, self._slots(batch)))
        return tuple((kept, count) for pool, count in counts for kept in pool)

    def _stage_bytes(self, stage: Stage, tokens: int, batch: int) -> int:
        """What is allocated on one GPU of a stage."""
        return sum(count * kept.layers * kept.row_bytes for kept, count in self._held(stage, tokens, batch))

    def _slots(self, batch: int) -> int:
        """Slots for the states of a batch, with one that absorbs padding."""
        if self.states is None:
            return 0
        return batch * (self.states.slots + self.states.drafts) + 1 + self.states.drafts

    def resident_bytes(self, tokens: int, batch: int) -> int:
        return max(self._stage_bytes(stage, tokens, batch) for stage in self.stages)

    def total_bytes(self, tokens: int, batch: int) -> int:
        return self._gpus * sum(self._stage_bytes(stage, tokens, batch) for stage in self.stages)

    @property
    def _gpus(self) -> int:
        """GPUs of all replicas that hold one stage."""
        return self.options.tp if self.options.dp_attention else self.options.tp * self.options.dp

    def token_bytes(self, tokens: int) -> int:
        """A token's row in each layer, and its share of the pool for windows, also where its own window has left others behind."""
        if self.windows is not None and tokens < self.windows.size and self.windows.rows is None:
            return int(self._token / self.windows.ratio)
        return int(self._token / self.options.dcp)

    def fixed_bytes(self) -> int:
        """The states of a request."""
        return 0 if self.states is None else (self.states.slots + self.states.drafts) * max(stage.state_bytes for stage in self.stages)

    def uses(self, tokens: int) -> tuple[LayerUse, ...]:
        """The pools of a server for this one request."""
        stage = max(self.stages, key=lambda stage: self._stage_bytes(stage, tokens, 1))
        return tuple(_use(kept, count) for kept, count in self._held(stage, tokens, 1))

    def surplus(self, tokens: int) -> tuple[tuple[str, int], ...]:
        found = Counter[str]()
        gpus = self._gpus // self.options.dp
        for stage in self.stages:
            for kept, rows in self._held(stage, tokens, 1):
                padding, row_bytes, layers = 1 if kept in stage.states else self.page, gpus * kept.row_bytes, kept.layers - kept.again
                found["layers that store another's cache again"] += kept.again * rows * row_bytes
                found["a page and a slot for padding"] += layers * padding * row_bytes
                match kept.cache.retention:
                    case Window(size=size) | Chunk(size=size):
                        own, cause = min(tokens, size), "windows kept at full length" if kept in stage.full else "windows as a share of all tokens"
                    case Once():
                        own, cause = 1, "states kept twice or more"
                    case Grows() | Encoder():
                        own, cause = rows - padding, ""
                    case unreachable:
                        assert_never(unreachable)
                found[cause] += layers * (rows - padding - own) * row_bytes
                found["rows in a form of its own"] += layers * min(own, tokens) * gpus * (kept.row_bytes - kept.plain_bytes)
        return tuple((cause, size) for cause, size in found.items() if size)

    def length_notes(self, tokens: int, batch: int) -> tuple[Note, ...]:  # noqa: ARG002 (an engine's word, and nothing is held beside the pool)
        return ()

    def command(self, model: str, context: int, kv_bytes: int | None, utilization: str | None) -> str:
        return serve_command(self.options, model, context, max_tokens=None if kv_bytes is None else self.total_tokens(kv_bytes), part=utilization)


def _use(kept: Kept, rows: int) -> LayerUse:
    return LayerUse(kept.kind, kept.layers, kept.cache, kept.planes, rows, rows * kept.layers * kept.row_bytes)


class SglangEngine:
    """SGLang on CUDA, each GPU alike."""

    name = "sglang"
    version = "0.5.23"
    part_of: Literal["all"] = "all"

    def utilization(self, spec: ModelSpec, options: Options, total_bytes: int) -> Decimal:
        return static_part(spec, options, total_bytes)

    def plan(self, spec: ModelSpec, options: Options) -> SglangPlan:
        check_model(spec, options)
        how, notes = storage(spec, options)
        found = stages(spec, options, how)
        page, page_notes = page_tokens(options, how, found)
        windows = _windows(spec, options, found, page)
        states = _states(spec, options, found)
        return SglangPlan(
            kv_dtype=KvDtype(how.dtype, how.dtype),
            stages=found,
            page=page,
            windows=windows,
            states=states,
            options=options,
            notes=(*notes, *page_notes, *_pool_notes(spec, options, windows, states), *unused_options(options, self.name, USES)),
        )

    def loaded(self, spec: "WeighedModel", options: Options) -> Loaded:
        from kvcalc.engines.loading import loaded_apart, loaded_shares  # a question about the cache does without

        of_one_replica = options._replace(dp=1)  # experts are dealt out within it
        if not options.dp_attention:
            return loaded_shares(spec, of_one_replica)
        return loaded_apart(spec, of_one_replica, HELD_BY_GROUPS, attention_tp(options))

    def overheads(self, spec: "WeighedModel", options: Options, _context: int) -> Overheads:
        return overheads(spec, options)


SGLANG: Final = SglangEngine()


def _running(options: Options) -> int:
    """Requests that one group of GPUs runs at once."""
    groups = options.dp if options.dp_attention else 1
    if options.max_seqs is not None:
        return max(1, options.max_seqs // groups)
    return max(1, RUNNING_WITH_DRAFTS // groups) if _drafts(options) else MOST_RUNNING


def _drafts(options: Options) -> int:
    """Tokens that are checked in one step (--speculative-num-draft-tokens), 0 without drafts."""
    return options.speculative_tokens + 1 if options.draft_layers or options.draft is not None else 0


def _windows(spec: ModelSpec, options: Options, found: tuple[Stage, ...], page: int) -> _Windows | None:
    """The pool for windows, where the model has one. It is as large as running requests can need where their number is stated and there is no prefix cache
    (SWARequestCapPoolConfigurator).
    """
    own = {kept.cache.retention.size for stage in found for kept in stage.swa if isinstance(kept.cache.retention, Window | Chunk)}
    if not own:
        return None
    if len(own) > 1:
        raise KvcalcError("SGLang has one window for all layers, and this model has several", hint="use --engine vllm")
    size = own.pop() - (spec.facts.model_type in WINDOW_LESS_ONE)
    ratio = Fraction(DEFAULT_SWA_RATIO if options.swa_ratio is None else options.swa_ratio)
    every_layer = not any(stage.full for stage in found)
    if every_layer:
        return _Windows(size, Fraction(1), None)
    if options.prefix_caching or options.max_seqs is None:
        return _Windows(size, ratio, None)
    drafted = _drafts(options)
    decoding = 2 * drafted if drafted else page
    a_request = size + EVICTION_INTERVAL * max(1, drafted) + page + decoding
    rows = a_request * _running(options) + CHUNKS_IN_FLIGHT * sizes(options).chunk + page
    return _Windows(size, ratio, -(-rows // page) * page)


def _states(spec: ModelSpec, options: Options, found: tuple[Stage, ...]) -> _States | None:
    """Slots for states, where the model has any. Each stage has as many bytes of them as the stage with most layers."""
    slot_bytes = max(stage.state_bytes for stage in found)
    if not slot_bytes:
        return None
    cached = SLOTS_WITH_PREFIX_CACHE + (TRACKING_SLOTS if spec.facts.model_type in EXTRA_BUFFER else 0)
    return _States(
        slot_bytes=slot_bytes,
        slots=cached if options.prefix_caching else 1,
        ratio=Fraction(DEFAULT_MAMBA_RATIO if options.mamba_ratio is None else options.mamba_ratio),
        fixed=_running(options) if not options.prefix_caching and (options.max_seqs is not None or _drafts(options)) else None,
        drafts=_drafts(options),
        running=_running(options),
    )


def _pool_notes(spec: ModelSpec, options: Options, windows: _Windows | None, states: _States | None) -> list[Note]:
    """What a reader who knows the model, but not SGLang, would not expect."""
    found = []
    windowed = any(isinstance(cache.retention, Window | Chunk) for layer in spec.layers for cache in layer.caches)
    if windowed and spec.facts.model_type not in SWA_POOLS:
        found.append(Note(code="windows", text=f"SGLang keeps the windows of {spec.facts.model_type or 'this model'} at full length"))
    if windows is not None and windows.rows is None:
        share = DEFAULT_SWA_RATIO if options.swa_ratio is None else options.swa_ratio
        found.append(Note(code="windows", text=f"windows have a pool of {share} tokens for each of full attention: --swa-full-tokens-ratio"))
    if states is not None:
        text = f"a request takes {states.slots} of the slots for states{'' if options.prefix_caching else ', as there is no prefix cache'}"
        found.append(Note(code="states", text=text))
    if windows is None and options.swa_ratio is not None:
        found.append(Note(code="unused", text="--swa-full-tokens-ratio changes nothing here: SGLang has no pool for windows for this model"))
    if states is None and options.mamba_ratio is not None:
        found.append(Note(code="unused", text="--mamba-full-memory-ratio changes nothing here: the model has no states"))
    if options.draft is not None:
        found.append(Note(code="draft", text="SGLang prices each layer of a draft model as one of the model itself"))
    return found
