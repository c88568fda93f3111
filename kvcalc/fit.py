"""How many requests fit: a pure function of a question, and what the answer rests on."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Final, Literal, NamedTuple

from kvcalc.budget import Budget, Latency, Question, Weights, budget_for, quantization_by_name, weights_of
from kvcalc.engines.base import Capacity, Options, Plan
from kvcalc.engines.ideal import IDEAL
from kvcalc.engines.reuse import check_reuse
from kvcalc.errors import KvcalcError
from kvcalc.estimate import LAYER_CAUSES, formula_bytes, length_notes, model_info, rows_of_one_copy
from kvcalc.latency import Within, clock, within
from kvcalc.layers import ModelSpec, Note
from kvcalc.packing import KvDtype
from kvcalc.results.fit import CapacityInfo, Difference, Division, Fit, Fits, LatencyInfo, LengthRow, MixInfo, Range, SharedInfo, Totals
from kvcalc.results.shared import Parallel
from kvcalc.search import largest
from kvcalc.tensors import weighed
from kvcalc.timing import Clock, seconds_of
from kvcalc.workload import SAFE_DEVIATIONS, SAFE_PERCENT, Lengths, Mixed, Shared, mixed, shared

CHECKPOINT: Final = "CHECKPOINT"
"""What a server is told to load where the model's own repository is not quantized and the question is about one that is."""
GGUF_ENGINES: Final = ("llama.cpp", "ollama")
"""Engines that load GGUF files, and take a number of layers for the GPU."""
LENGTHS: Final = (1024, 4096, 16384, 65536)


Limit = Literal["kv_bytes", "max_seqs", "weights", "ttft", "tpot"]


class Held(NamedTuple):
    """What one replica holds of requests of one length: `blocks` of the `budget`, of which `usable` by requests; the `need` of one request in them; whether the
    batch `fits`, and the bytes of one GPU that it lacks; the `longest` request; the `capacity` that the engine reports; how many `whole` requests,
    each with so many units of its `own`, or `mixed` ones of known lengths; and those that are served `within` the times that are asked for.
    """

    budget: Budget
    blocks: int
    usable: int
    need: int
    fits: bool
    lacking_bytes: int
    longest: int
    capacity: Capacity
    whole: int
    own: int
    mixed: Mixed | None
    within: Within | None
    limited_by: Limit


class Deployed:
    """A question once planned, for requests of any length and number in place of its own: what does not depend on these is found once.

    Raises KvcalcError where the engine cannot run the model so; its methods raise it where there is no answer for a length.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.plan = question.engine.plan(question.spec, question.options)
        (self.pool,) = self.plan.pools
        self._budgets: dict[int, Budget] = {}
        self._same_from: int | None = None
        self._starts = self._divides = False
        self._longest: dict[int, tuple[int, int]] = {}
        self._within: dict[int, Within] = {}

    @cached_property
    def _weights(self) -> Weights:
        return weights_of(self.question, weighed(self.question.spec))

    @cached_property
    def _clock(self) -> tuple[Clock, Latency] | None:
        latency = self.question.latency
        return None if latency is None else (clock(self.question, latency.machine), latency)

    def shared(self, context: int) -> Shared:
        """What requests of so many tokens have alike, and hold once."""
        workload = self.question.workload
        if workload is not None and workload.shared_prefix:
            check_reuse(self.question.engine.name, prefix_caching=self.question.options.prefix_caching)
        return shared(self.plan, workload, context)

    def split(self, context: int) -> tuple[int, int]:
        """Units that requests of so many tokens hold once for all of them, and those that each holds for itself."""
        if self.question.workload is None:
            return 0, self.plan.need(context)[0]
        alike = self.shared(context)
        return alike.once(context), alike.own(context)

    def mixed(self, context: int, usable: int) -> Mixed | None:
        """Requests of the lengths that are known, none longer than the context; None where none are."""
        lengths, alike = self.lengths(context), self.shared(context)
        return None if lengths is None else mixed(lengths, alike.own, max(0, usable - alike.once(context)))

    def lengths(self, context: int) -> Lengths | None:
        """Those of the requests that a server for so many tokens takes, where lengths are known."""
        workload = self.question.workload
        return None if workload is None or workload.lengths is None else workload.lengths.up_to(context)

    def within(self, context: int) -> Within | None:
        """Requests of so many tokens that are served in time, None where no time is asked for."""
        if self._clock is None:
            return None
        if context not in self._within:
            self._within[context] = within(*self._clock, context, self.shared(context).tokens)
        return self._within[context]

    def budget(self, context: int) -> Budget:
        """What a GPU leaves for the cache of requests of up to so many tokens."""
        stands_for = context if self._same_from is None else min(context, self._same_from)
        found = self._budgets.get(stands_for)
        if found is None:
            found = budget_for(self.question, stands_for, lambda: self._weights)
            self._same_from = found.same_from
            self._budgets[stands_for] = found
        return found

    def longest(self, usable: int, limit: int) -> int:
        """The longest request, of up to `limit` tokens, that so many units of the pool hold."""

        def holds(tokens: int) -> bool:
            return self.plan.need(tokens)[0] <= usable

        tried, found = self._longest.get(usable, (0, 0))
        if found < tried or limit <= tried:
            return min(found, limit)
        found = limit if holds(limit) else largest(holds, limit)
        self._longest[usable] = limit, found
        return found

    def held(self, context: int, batch: int) -> Held:
        """What the budget holds in requests of one length, and whether it holds a batch of them."""
        plan, pool, budgeted = self.plan, self.pool, self.budget(context)
        blocks = budgeted.memory.kv_bytes // pool.unit_bytes
        usable = max(0, blocks - plan.reserved)
        need = plan.need(context)[0]
        longest = self.longest(usable, longest_asked(self.question.spec, context))
        once, own, of_mix = (0, need, None) if self.question.workload is None else (*self.split(context), self.mixed(context, usable))
        in_time = self.within(context)
        wanted = once + units_wanted(plan, own, batch)
        own_units = max(0, usable - once)
        whole = _whole(plan, own_units, own)
        capacity = Capacity(own_units / own, own_units * context // own) if once else plan.capacity(blocks, context)
        holds = wanted <= usable
        if of_mix is not None:
            whole, holds = of_mix.safe, batch <= of_mix.safe
            capacity = Capacity(of_mix.mean, int(of_mix.mean * self._mean_tokens(context)))
        fits = holds and (in_time is None or batch <= in_time.requests)
        limited_by = _limit(self.question, budgeted, plan, whole)
        if in_time is not None and in_time.requests < whole:
            whole, limited_by = in_time.requests, in_time.bound_by
            capacity = Capacity(whole, whole * context)
        if not (self._starts and self._divides):
            self._check_said(context, longest)
        return Held(
            budget=budgeted,
            blocks=blocks,
            usable=usable,
            need=need,
            fits=fits,
            lacking_bytes=0 if holds else (wanted + plan.reserved) * pool.unit_bytes - budgeted.left,
            longest=longest,
            capacity=capacity,
            whole=whole,
            own=own,
            mixed=of_mix,
            within=in_time,
            limited_by=limited_by,
        )

    def _check_said(self, context: int, longest: int) -> None:
        """Raises KvcalcError where an answer cannot say what it says beside its figures: no length changes that, so that once is enough."""
        if not self._starts and min(context, longest):
            self.command(min(context, longest))
            self._starts = True
        if not self._divides:
            _division(self.question.spec, self.plan, self.question.options, 0, context)
            self._divides = True

    def command(self, context: int) -> str:
        """What starts a server for requests of up to so many tokens, empty for what is no server. Raises KvcalcError where the release cannot be told so, which
        does not depend on the length.
        """
        question = self.question
        utilization = None if question.utilization is None else str(question.utilization)
        served_as = question.asked.served_as if _stands_for(question) is None else CHECKPOINT
        return self.plan.command(served_as, context, question.kv_bytes, utilization)

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        question, options = self.question, self.question.options
        return {
            "model": model_info(question.spec, question.asked.name, question.asked.source),
            "engine": question.engine.name,
            "engine_version": question.engine.version,
            "gpu": question.gpu,
            "gpus": options.gpus,
            "parallel": Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
            "kv_dtype": str(self.plan.kv_dtype),
        }

    def figures(self, context: int, batch: int, held: Held) -> dict[str, Any]:
        """The fields of an answer that say what is asked, and what of it is held."""
        plan, pool, dp = self.plan, self.pool, self.question.options.dp
        memory, ranges = held.budget.memory, held.budget.ranges
        low = high = held.whole
        if (ends := ranges.get("kv_bytes")) is not None:
            low, high = (self._requests(max(0, end // pool.unit_bytes - plan.reserved), held, context) for end in (ends.low, ends.high))
        if held.within is not None:
            low, high = min(low, held.within.low), min(max(high, held.whole), held.within.high)
        return {
            **self._fixed,
            "context": context,
            "batch": batch,
            "memory": memory,
            "memory_range": ranges,
            "capacity": CapacityInfo(
                requests=held.capacity.requests,
                tokens=held.capacity.tokens,
                max_context=held.longest,
                blocks=held.blocks,
                block_tokens=pool.unit_rows,
                block_bytes=pool.unit_bytes,
                request_bytes=held.need * pool.unit_bytes,
                slots=plan.slots,
            ),
            "capacity_range": Range(low=low, high=high),
            "totals": Totals(requests=dp * held.whole, tokens=dp * self._together(held, context)),
            "fits": held.fits,
            "lacking_bytes": held.lacking_bytes,
            "limited_by": held.limited_by,
            "latency": None if held.within is None else self._latency_info(held, held.within, context),
            "shared": self._shared_info(context),
            "mix": None if held.mixed is None else self._mix_info(held, held.mixed, context),
        }

    def _together(self, held: Held, context: int) -> int:
        """Tokens of the whole requests together."""
        return int(held.whole * self._mean_tokens(context)) if held.mixed is not None else _together(self.plan, held.usable, held.whole, context)

    def _requests(self, usable: int, held: Held, context: int) -> int:
        """Whole requests that so many units hold, of mixed lengths where these are known."""
        if self.question.workload is None:
            return _whole(self.plan, usable, held.own)
        of_mix = self.mixed(context, usable)
        return _whole(self.plan, max(0, usable - self.split(context)[0]), held.own) if of_mix is None else of_mix.safe

    def _mean_tokens(self, context: int) -> float:
        lengths = self.lengths(context)
        return context if lengths is None else lengths.mean_tokens

    def _shared_info(self, context: int) -> SharedInfo | None:
        workload = self.question.workload
        if workload is None or not workload.shared_prefix:
            return None
        alike = self.shared(context)
        return SharedInfo(
            tokens=workload.shared_prefix,
            held_tokens=alike.tokens,
            block_tokens=alike.block,
            once_bytes=alike.once(context) * self.pool.unit_bytes,
            own_bytes=alike.own(context) * self.pool.unit_bytes,
        )

    def _mix_info(self, held: Held, of_mix: Mixed, context: int) -> MixInfo | None:
        lengths = self.lengths(context)
        if lengths is None:
            return None
        return MixInfo(
            source=lengths.source,
            requests=lengths.number,
            mean_tokens=lengths.mean_tokens,
            p50_tokens=lengths.percentile(50),
            p95_tokens=lengths.percentile(95),
            p99_tokens=lengths.percentile(99),
            max_tokens=lengths.percentile(100),
            mean_bytes=int(of_mix.mean_units * self.pool.unit_bytes),
            mean_requests=of_mix.mean,
            safe_requests=of_mix.safe,
            safe_percent=SAFE_PERCENT,
            longest_requests=_whole(self.plan, max(0, held.usable - self.split(context)[0]), held.own),
        )

    def _latency_info(self, held: Held, in_time: Within, context: int) -> LatencyInfo:
        latency = self.question.latency
        ttft_us, tpot_us = (None, None) if latency is None else latency[1:3]
        return LatencyInfo(
            ttft_limit_s=None if ttft_us is None else ttft_us / 1e6,
            tpot_limit_s=None if tpot_us is None else tpot_us / 1e6,
            requests=in_time.requests,
            requests_range=Range(low=in_time.low, high=in_time.high),
            memory_requests=self._requests(held.usable, held, context),
            ttft=None if in_time.ttft.compute is None else seconds_of(in_time.ttft),
            tpot=seconds_of(in_time.tpot),
        )

    def length(self, usable: int, tokens: int) -> LengthRow:
        """What a server that takes requests of up to so many tokens holds of them, in time where one is asked for."""
        need, in_time = self.plan.need(tokens)[0], self.within(tokens) if self._serves(tokens) else None
        alike = self.shared(tokens) if self._shares(tokens) else Shared(self.plan, 1, 0)
        requests = _whole(self.plan, max(0, usable - alike.once(tokens)), alike.own(tokens))
        requests = requests if in_time is None else min(requests, in_time.requests)
        requests = requests if self._starts_for(usable, tokens) else 0
        together = _together(self.plan, usable, requests, tokens)
        return LengthRow(context=tokens, requests=requests, tokens=together, request_bytes=need * self.pool.unit_bytes)

    def _starts_for(self, usable: int, tokens: int) -> bool:
        """Whether a server for requests of up to so many tokens starts, which one of several pools may be too small for."""
        try:
            self.plan.capacity(usable + self.plan.reserved, tokens)
        except KvcalcError:
            return False
        return True

    def _shares(self, tokens: int) -> bool:
        """Whether requests of this length are longer than what they have alike."""
        return self.question.workload is not None and tokens > self.question.workload.shared_prefix

    def _serves(self, tokens: int) -> bool:
        """Whether requests of this length have a prompt beside the output that is asked for."""
        alike = 0 if self.question.workload is None else self.question.workload.shared_prefix
        return self.question.latency is not None and tokens > max(self.question.latency.output, alike)


def answer(question: Question) -> Fit:
    """Requests of one length that the budget holds in each replica. Raises KvcalcError where the engine cannot run the model so."""
    spec, asked, deployed = question.spec, question.asked, Deployed(question)
    plan, held = deployed.plan, deployed.held(asked.context, asked.batch)
    served = min(asked.context, held.longest)
    command, stands_for = deployed.command(served) if served else "", _stands_for(question)
    return Fit(
        **deployed.figures(asked.context, asked.batch, held),
        lengths=tuple(deployed.length(held.usable, tokens) for tokens in _lengths(spec, asked.context)),
        division=_division(spec, plan, question.options, held.budget.memory.kv_bytes, asked.context),
        advice=(),
        commands={question.engine.name: command} if command else {},
        notes=(
            *spec.notes,
            *question.notes,
            *plan.notes,
            *held.budget.notes,
            *length_notes(spec, plan, asked.context),
            *plan.length_notes(asked.context, asked.batch),
            *_scheduler_notes(held.limited_by, plan),
            *_latency_notes(held),
            *_workload_notes(question),
            *([] if stands_for is None or not command else [Note(code="checkpoint", text=f"{CHECKPOINT} stands for {stands_for}")]),
        ),
    )


def _stands_for(question: Question) -> str | None:
    """What a server must be told to load where that is not what was asked about: weights in another form."""
    named, name = quantization_by_name(question, weighed(question.spec)), question.asked.served_as
    if named is not None and question.engine.name not in GGUF_ENGINES:
        return f"{name} in a checkpoint quantized to {named.plain.method}"
    if name.endswith(".gguf") and question.engine.name not in GGUF_ENGINES:
        return f"the model of {name} in a form that {question.engine.name} loads"
    return None


def ranked(answers: Iterable[Fit], unanswered: Mapping[str, str]) -> Fits:
    """Answers about many models: those that fit, the largest weights (or parameters) first, then the others by how little they lack.

    `unanswered` holds the names of models with the reason why there is no answer.
    """
    rows = sorted(answers, key=lambda row: (not row.fits, row.lacking_bytes, -_size(row), row.model.name))
    reasons: dict[str, list[str]] = {}
    for name, reason in unanswered.items():
        reasons.setdefault(reason, []).append(name)
    notes = tuple(Note(code="unanswered", text=f"left out, since {reason}: {', '.join(names)}") for reason, names in reasons.items())
    return Fits(rows=tuple(rows), notes=notes)


def _size(row: Fit) -> int:
    """How large a model is, for an order alone: its weights, else its parameters, where either is known."""
    known = [size for size in (row.memory.weights_bytes, row.model.parameters) if size is not None]
    return known[0] if known else 0


def longest_asked(spec: ModelSpec, context: int) -> int:
    """The model's own maximum, or the context where that is longer or the only one known."""
    return context if spec.facts.max_context is None else max(context, spec.facts.max_context)


def _lengths(spec: ModelSpec, context: int) -> list[int]:
    longest = longest_asked(spec, context)
    return sorted({context, longest, *(tokens for tokens in LENGTHS if tokens < longest)})


def held_at(question: Question, kv_bytes: int, lengths: Iterable[int]) -> tuple[LengthRow, ...]:
    """What so many bytes of cache on one GPU hold in requests of other lengths."""
    deployed = Deployed(question)
    usable = max(0, kv_bytes // deployed.pool.unit_bytes - deployed.plan.reserved)
    return tuple(deployed.length(usable, tokens) for tokens in lengths)


def _together(plan: Plan, usable: int, requests: int, tokens: int) -> int:
    """Tokens in so many requests, or in all slots."""
    return requests * tokens if plan.slots is None else plan.capacity(usable, tokens).tokens


def units_wanted(plan: Plan, need: int, batch: int) -> int:
    """Units of the pool that a batch of requests holds, of which one needs so many. Raises KvcalcError for more requests than there are slots."""
    if plan.slots is None:
        return batch * need
    if batch > plan.slots:
        raise KvcalcError(f"{batch:,} requests at once want as many slots, and there are {plan.slots:,}", hint=f"use --max-seqs {batch} or more")
    return need


def _whole(plan: Plan, usable: int, need: int) -> int:
    """Whole requests that so many units hold at once, where one needs so many."""
    if plan.slots is not None:
        return plan.slots if need <= usable else 0
    return usable // need if need else 0


def _limit(question: Question, budgeted: Budget, plan: Plan, requests: int) -> Limit:
    if budgeted.left <= 0 and question.kv_bytes is None:
        return "weights"
    return "max_seqs" if plan.max_requests is not None and requests > plan.max_requests else "kv_bytes"


def _scheduler_notes(limit: str, plan: Plan) -> list[Note]:
    if limit != "max_seqs":
        return []
    return [Note(code="max-seqs", text=f"the scheduler runs at most {plan.max_requests:,} requests at once, fewer than memory holds: --max-seqs raises it")]


def _workload_notes(question: Question) -> list[Note]:
    """How a mix is answered."""
    workload = question.workload
    if workload is None or workload.lengths is None:
        return []
    left_out = workload.lengths.number - workload.lengths.up_to(question.asked.context).number
    longer = [
        Note(code="longer", text=f"{left_out:,} requests are longer than {question.asked.context:,} tokens and left out: no server started so takes them")
    ]
    text = f"requests of mixed lengths fit in {SAFE_PERCENT} of 100 draws: the mean of their blocks and {SAFE_DEVIATIONS} deviations of their sum"
    timed = f"; times are those of requests of {question.asked.context:,} tokens" if question.latency is not None else ""
    mix = Note(code="mix", text=f"{text}; each is counted at its full length, which it reaches with its last token{timed}")
    return [*(longer if left_out else []), mix]


def _latency_notes(held: Held) -> list[Note]:
    if held.limited_by not in ("ttft", "tpot") or not held.whole:
        return []
    return [Note(code="latency", text=f"a server runs as many requests at once as its memory holds: --max-seqs {held.whole} keeps them in time")]


# Free memory divided by the plain formula


def _division(spec: ModelSpec, plan: Plan, options: Options, kv_bytes: int, context: int) -> Division | None:
    plain = spec.plain_formula
    if plain is None:
        return None
    free = kv_bytes * options.gpus // options.dp
    by_formula = formula_bytes(plain, plan.kv_dtype, context, 1)
    by_engine = plan.total_bytes(context, 1) // options.dp
    differences = _differences(spec, plan, options, context, by_formula=by_formula, by_engine=by_engine)
    return Division(
        tokens=free * context // by_formula,
        requests=free / by_formula,
        request_bytes=by_formula,
        engine_request_bytes=by_engine,
        differences=tuple(Difference(cause=cause, bytes=size) for cause, size in differences.items() if size),
    )


def _differences(spec: ModelSpec, plan: Plan, options: Options, context: int, *, by_formula: int, by_engine: int) -> dict[str, int]:
    """From the formula's bytes to the engine's, in steps that sum: what the layers keep, what is copied between GPUs, what the engine adds."""
    rows = rows_of_one_copy(spec, options, plan.kv_dtype, context)
    if not rows:
        return {"the engine's own packing, blocks and padding": by_engine - by_formula}
    formula_parts = Counter(layer.caches[0] if layer.caches else None for layer in spec.layers)
    found: Counter[str] = Counter()
    for use in rows:
        found[LAYER_CAUSES.get(use.kind, "other heads or widths")] += use.size_bytes - formula_parts.pop(use.cache, 0) * by_formula // len(spec.layers)
    kept = sum(use.size_bytes for use in rows)
    found["layers that keep nothing"] -= formula_parts.pop(None, 0) * by_formula // len(spec.layers)
    found["other heads or widths"] += kept - by_formula - found.total()
    elements = KvDtype(*(packing.name for packing in plan.kv_dtype.elements()))
    spread = IDEAL.plan(spec, options._replace(kv_dtype=elements, dp=1)).total_bytes(context, 1)
    found["heads and latents that GPUs copy"] = spread - kept
    found.update(dict(plan.surplus(context)))
    found["rounding to whole blocks"] = by_engine - by_formula - found.total()
    return found
