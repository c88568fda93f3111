"""A trace of requests replayed on a deployment: a pure function of a question, a machine and the requests."""

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from kvcalc.budget import Question
from kvcalc.engines.base import Options, Plan
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import model_info
from kvcalc.fit import answer
from kvcalc.latency import clock
from kvcalc.layers import Note
from kvcalc.machine import Machine
from kvcalc.packing import KvDtype
from kvcalc.replay.fleet import ROUTINGS, Fleet
from kvcalc.replay.pace import Pace
from kvcalc.replay.replica import Reserve, Shape, Tally
from kvcalc.replay.requests import Prefixes, Reading, Request, Row
from kvcalc.replay.stairs import stairs
from kvcalc.replay.tally import Histogram
from kvcalc.results.fit import Fit
from kvcalc.results.replay import Interval, Outcome, Percentiles, Policy, PoolInfo, PrefixUse, Replay, Routing, RoutingLoss, Spread, TraceInfo, Way, WhatIf
from kvcalc.results.shared import Parallel

SAMPLE: Final = 5000
"""The first requests of a trace, with which other ways and changes are tried."""
SLACK: Final = 1e-6
"""Of a request: what sums of seconds may be off by."""
TRTLLM_BATCH: Final = 8192
"""max_num_tokens by default (tensorrt_llm/llmapi/llm_args.py)."""


class ReplayQuestion(NamedTuple):
    """A deployment, how fast its GPUs are, how requests find a replica, and by how much their arrivals are hurried."""

    question: Question
    machine: Machine
    routing: Routing = "round-robin"
    rate_scale: float = 1.0


class _Deployment(NamedTuple):
    """What requests are sent to."""

    shape: Shape
    pace: Pace
    fit: Fit
    block_tokens: int
    block_bytes: int


def replay(asked: ReplayQuestion, rows: Iterable[Row], reading: Reading) -> Replay:
    """Raises KvcalcError where the engine hands out no blocks, where no step can be timed, where no request fits, and for a trace without requests."""
    question = asked.question
    if asked.routing != "round-robin" and reading.identity is None:
        raise KvcalcError(f"--routing {asked.routing} wants a trace that names conversations, or blocks of prefixes, and this one does not")
    here = _deployed(question, asked.machine)
    prefixes, lengths, sample = Prefixes(), (Histogram(), Histogram()), list[Request]()
    fleet = Fleet(here.shape, here.pace, question.options.dp, asked.routing)
    last_s, number = 0.0, 0
    for row in rows:
        last_s = row.arrival_s / asked.rate_scale
        request = prefixes.request(row._replace(arrival_s=last_s))
        lengths[0].add(row.prompt)
        lengths[1].add(row.output)
        number += 1
        if len(sample) < SAMPLE:
            sample.append(request)
        fleet.send(request)
    if not number:
        raise _no_requests(reading)
    fleet.drain()
    options = question.options
    info = TraceInfo(
        source=reading.source,
        kind=reading.kind,
        identity=reading.identity,
        requests=number,
        seconds=last_s,
        prompt=_percentiles(lengths[0]),
        output=_percentiles(lengths[1]),
        malformed=reading.malformed,
        malformed_lines=tuple(reading.malformed_lines),
        empty=reading.empty,
        unordered=reading.unordered,
    )
    return Replay(
        model=model_info(question.spec, question.asked.name, question.asked.source),
        engine=question.engine.name,
        engine_version=question.engine.version,
        gpu=question.gpu,
        gpus=options.gpus,
        parallel=Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
        context=question.asked.context,
        kv_dtype=here.fit.kv_dtype,
        rate_scale=asked.rate_scale,
        trace=info,
        pool=PoolInfo(
            blocks=here.shape.units,
            block_tokens=here.block_tokens,
            block_bytes=here.block_bytes,
            max_requests=here.shape.max_requests,
            batch_tokens=here.shape.batch_tokens,
            limit_tokens=here.shape.limit,
        ),
        outcome=_outcome(fleet.tally),
        course=tuple(_course(fleet)),
        prefix=_prefix_use(prefixes, fleet, reading),
        routing=_routing_loss(fleet),
        sample=len(sample),
        sample_prompt_tokens=sum(request.prompt for request in sample),
        memory=tuple(_policies(here, options.dp, sample)),
        what_if=tuple(_changes(asked, here, sample, reading)),
        notes=(*here.fit.notes, *_notes(asked, here, info, fleet.tally)),
    )


def _no_requests(reading: Reading) -> KvcalcError:
    if reading.malformed_lines:
        return KvcalcError(f"no request of {reading.source[:60]} can be read: {'; '.join(reading.malformed_lines)}")
    return KvcalcError(f"{reading.source[:60]} has no requests" + (f" but {reading.empty:,} without a prompt or an answer" if reading.empty else ""))


# What requests are sent to


def _deployed(question: Question, machine: Machine) -> _Deployment:
    engine, options = question.engine, question.options
    plan = engine.plan(question.spec, options)
    batch_tokens = _batch_tokens(question, plan)
    fit = answer(question)
    (pool,) = plan.pools
    units = max(0, fit.capacity.blocks - plan.reserved)
    limit = min(question.asked.context, fit.capacity.max_context)
    if not units or not limit or plan.need(1)[0] > units:
        raise KvcalcError("the KV cache has no room for any request", hint="`kvcalc fit` says what there is, and what would help", code=ExitCode.NO)
    rises = stairs(lambda tokens: plan.need(tokens)[0], pool.unit_rows, limit)
    if rises.regular and not rises.fixed:
        block_tokens, block_units = rises.block, rises.unit
        rises = rises._replace(unit=1)
    else:
        block_tokens, block_units = pool.unit_rows, 1
    shape = Shape(
        units=units // block_units,
        stairs=rises,
        max_requests=plan.max_requests,
        batch_tokens=batch_tokens,
        limit=limit,
        finds_prefixes=options.prefix_caching and rises.regular and not rises.fixed,
        to_the_end=engine.name == "trtllm",
    )
    return _Deployment(shape, Pace(clock(question, machine)), fit, block_tokens, block_units * pool.unit_bytes)


def _batch_tokens(question: Question, plan: Plan) -> int:
    """Tokens that the scheduler takes in a step. Raises KvcalcError for what is no server that hands out blocks."""
    options, name = question.options, question.engine.name
    if name == "vllm":
        from kvcalc.engines.vllm import VllmPlan

        if isinstance(plan, VllmPlan):
            return plan.batch.tokens
    if name == "sglang":
        from kvcalc.engines.sglang.memory import sizes

        return sizes(options).chunk
    if name == "trtllm":
        return TRTLLM_BATCH if options.max_batched_tokens is None else options.max_batched_tokens
    raise KvcalcError(f"{name} is no server that hands out blocks as requests grow", hint="replay on vllm, sglang or trtllm")


# What is told of it


def _percentiles(of: Histogram) -> Percentiles:
    p50, p95, p99 = of.percentiles(0.5, 0.95, 0.99)
    return Percentiles(mean=of.mean, p50=p50, p95=p95, p99=p99, max=of.largest)


def _over(total: float, seconds: float) -> float:
    return total / seconds if seconds else 0.0


def _outcome(tally: Tally) -> Outcome:
    return Outcome(
        served=tally.served,
        never=tally.never,
        longest_never=tally.longest_never,
        cut=tally.cut,
        preempted=tally.preempted,
        recomputed_tokens=tally.recomputed_tokens,
        wait_s=_percentiles(tally.wait_s),
        ttft_s=_percentiles(tally.ttft_s),
        per_token_s=_percentiles(tally.token_s),
        running=Spread(mean=_over(tally.running_s, tally.busy_s), peak=tally.most_running),
        waiting=Spread(mean=_over(tally.waiting_s, tally.busy_s), peak=tally.most_waiting),
        used=_percentiles(tally.use),
        peak_blocks=tally.most_units,
        seconds=tally.end_s,
        output_tokens_s=_over(tally.output_tokens, tally.end_s),
    )


def _course(fleet: Fleet) -> Iterator[Interval]:
    course, units = fleet.tally.course, fleet.shape.units * fleet.replicas
    for index, (running, waiting, used, warm) in enumerate(course.bins):
        start = index * course.width_s
        width = min(course.width_s, fleet.tally.end_s - start) or course.width_s
        yield Interval(start_s=start, running=running / width, waiting=waiting / width, used=used / width / units, warm=warm / width)


def _prefix_use(prefixes: Prefixes, fleet: Fleet, reading: Reading) -> PrefixUse | None:
    if reading.identity is None:
        return None
    found, bins = prefixes.found, fleet.tally.course.bins
    named = reading.identity == "blocks"
    return PrefixUse(
        blocks=found["ids"] if named else None,
        unlimited_blocks=found["known_ids"] if named else None,
        prompt_tokens=found["prompt_tokens"],
        unlimited_tokens=found["known_tokens"],
        hit_tokens=fleet.tally.cached_tokens,
        counted=prefixes.complete,
        warm_mean=_over(sum(each[3] for each in bins), fleet.tally.end_s),
        warm_end=fleet.warm,
    )


def _routing_loss(fleet: Fleet) -> RoutingLoss | None:
    if fleet.replicas == 1:
        return None
    lost = fleet.lost
    return RoutingLoss(routing=fleet.routing, requests=lost.requests, tokens=lost.tokens, ttft_s=lost.ttft_s)


# Reserved ahead, against blocks


def _next_power(tokens: int) -> int:
    return 1 << (tokens - 1).bit_length()


def _policies(here: _Deployment, replicas: int, sample: list[Request]) -> Iterator[Policy]:
    """Contiguous memory for the maximum, for an answer rounded up to a power of two, for exactly what is needed, as vLLM's paper (SOSP 2023, section 6.1) has
    Orca reserve it; against blocks, none of them shared. What is reserved is rounded up to whole blocks, and the rows for that count as `never`.
    """
    limit = here.shape.limit
    ways: tuple[tuple[Way, Reserve | None], ...] = (
        ("paged", None),
        ("exact", lambda request: min(limit, request.prompt + request.output)),
        ("power of two", lambda request: min(limit, request.prompt + _next_power(request.output))),
        ("maximum", lambda _: limit),
    )
    for name, reserve in ways:
        fleet = Fleet(here.shape._replace(finds_prefixes=False), here.pace, replicas, "round-robin", reserve)
        _run(fleet, sample)
        yield _policy(name, here, fleet.tally, paged=reserve is None)


def _run(fleet: Fleet, requests: Iterable[Request]) -> None:
    for request in requests:
        fleet.send(request)
    fleet.drain()


def _policy(name: Way, here: _Deployment, tally: Tally, *, paged: bool) -> Policy:
    held, rows, final = tally.unit_s * here.block_tokens, tally.row_s, tally.final_row_s
    alike = here.shape.stairs.regular and not here.shape.stairs.fixed
    per_request = _over(tally.unit_s, tally.running_s)
    return Policy(
        name=name,
        used=_over(rows, held) if alike else None,
        later=(0.0 if paged else _over(final - rows, held)) if alike else None,
        never=(0.0 if paged else _over(held - final, held)) if alike else None,
        last_block=(_over(held - rows, held) if paged else 0.0) if alike else None,
        held=_percentiles(tally.use),
        held_blocks=per_request,
        at_once=int(here.shape.units / per_request + SLACK) if per_request else 0,
        running=Spread(mean=_over(tally.running_s, tally.busy_s), peak=tally.most_running),
        wait_p95_s=tally.wait_s.percentiles(0.95)[0],
        refused=tally.never,
    )


# What would change


def _changes(asked: ReplayQuestion, here: _Deployment, sample: list[Request], reading: Reading) -> Iterator[WhatIf]:
    """The sample as it is, and with one thing changed at a time. What the engine does not run is left out."""
    question, options = asked.question, asked.question.options

    def tried(text: str, words: str, question: Question, routing: Routing, deployed: _Deployment | None = None) -> WhatIf:
        place = _deployed(question, asked.machine) if deployed is None else deployed
        fleet = Fleet(place.shape, place.pace, question.options.dp, routing)
        _run(fleet, sample)
        return WhatIf(
            text=text,
            options=words,
            gpus=question.options.gpus,
            blocks=place.shape.units,
            outcome=_outcome(fleet.tally),
            hit_tokens=fleet.tally.cached_tokens,
        )

    yield tried("as it is", "", question, asked.routing, here)
    for text, words, changed in _changed(here, options, question.engine.name):
        try:
            yield tried(text, words, question._replace(options=changed), asked.routing)
        except KvcalcError:
            continue
    if options.dp > 1 and reading.identity is not None:
        for routing in ROUTINGS:
            if routing != asked.routing:
                yield tried(f"{routing} routing", f"--routing {routing}", question, routing, here)


def _changed(here: _Deployment, options: Options, engine: str) -> Iterator[tuple[str, str, Options]]:
    """What a change is called, the options that ask for it, and the deployment with it."""
    most, block = here.shape.max_requests, here.block_tokens
    for size in () if most is None else (most // 4, most * 4):
        if size:
            yield f"{size:,} requests at once", f"--max-seqs {size}", options._replace(max_seqs=size)
    if here.shape.stairs.regular and engine != "sglang":
        yield f"blocks of {block * 4} tokens", f"--block-size {block * 4}", options._replace(block_size=block * 4)
    if here.fit.kv_dtype in ("bf16", "fp16"):
        yield "an 8-bit cache", "--kv-dtype fp8", options._replace(kv_dtype=KvDtype("fp8", "fp8"))
    gpus = options.tp * options.pp
    more = "one more GPU" if gpus == 1 else f"one more replica of {gpus} GPUs"
    yield more, f"--dp {options.dp + 1}", options._replace(dp=options.dp + 1)


def _notes(asked: ReplayQuestion, here: _Deployment, trace: TraceInfo, tally: Tally) -> Iterator[Note]:
    yield from _trace_notes(trace)
    question, shape = asked.question, here.shape
    if shape.limit < question.asked.context:
        yield Note(
            code="context",
            text=f"the cache does not hold one request of {question.asked.context:,} tokens, with which the engine would not start: it is told {shape.limit:,}",
        )
    if tally.cut:
        yield Note(code="cut", text=f"answers that end where the request is {shape.limit:,} tokens long: {tally.cut:,}")
    if question.options.prefix_caching and not shape.finds_prefixes:
        yield Note(code="prefixes", text="layers with windows or states: no prefix is found again here, and a request holds the most that such layers need")
    elif trace.identity == "blocks":
        yield Note(
            code="answers",
            text="the trace names blocks of 512 tokens of prompts: the cache forgets whole ones, and no prompt finds an answer in it",
        )
    elif trace.identity == "sessions":
        yield Note(code="sessions", text="a prompt is taken to begin with the turn before it where it is long enough, and the cache forgets whole turns")
    if question.engine.name == "trtllm":
        yield Note(code="scheduler", text="requests are admitted where all of their answer has room (GUARANTEED_NO_EVICT), each as long as in the trace")
    elif question.engine.name != "vllm":
        yield Note(code="scheduler", text=f"requests are scheduled as vLLM does it; {question.engine.name} keeps room for answers by an estimate of its own")
    yield Note(
        code="times",
        text="times are those of likely steps (`kvcalc speed`); a wait ends when a request is scheduled; tokenizing, HTTP and scheduling take none",
    )


def _trace_notes(trace: TraceInfo) -> Iterator[Note]:
    if trace.malformed:
        yield Note(code="malformed", text=f"lines left out: {trace.malformed:,}; {'; '.join(trace.malformed_lines)} (--strict stops at the first)")
    if trace.empty:
        yield Note(code="empty", text=f"requests without a prompt or an answer (they failed), left out: {trace.empty:,}")
    if trace.unordered:
        yield Note(code="unordered", text=f"lines that stood behind later ones, put in order: {trace.unordered:,}")
    if trace.requests > SAMPLE:
        yield Note(code="sample", text=f"reserving ahead and changes are tried with the first {SAMPLE:,} requests")
