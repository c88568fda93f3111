"""How fast a deployment is, and what would make it faster: a pure function of a question, a machine, and how many tokens are generated."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from kvcalc.advice import EIGHT_BIT, SMALL_BATCH, quantizable, smaller_weights
from kvcalc.budget import Question
from kvcalc.efficiency import COMPUTING, COMPUTING_LLAMA_CPP, EXCHANGING, MOVING
from kvcalc.engines.work import Work, generated, without_windows
from kvcalc.errors import KvcalcError
from kvcalc.estimate import length_notes, model_info
from kvcalc.fit import answer
from kvcalc.latency import clock, prompt_of
from kvcalc.layers import Note
from kvcalc.machine import Machine, usual
from kvcalc.packing import KvDtype
from kvcalc.quantizations import BY_NAME
from kvcalc.results.shared import Parallel
from kvcalc.results.speed import BatchRow, Chunked, Doubling, ExpertsInfo, Lever, MachineInfo, Phase, Rate, Recomputed, Speed
from kvcalc.search import largest
from kvcalc.timing import Clock, Times, seconds_of
from kvcalc.units import counted

MOST_BATCH: Final = 1 << 20
"""The largest batch that is asked whether its step computes for longer than it moves bytes."""
BATCHES: Final = (1, 4, 16, 64, 256)
"""Batches that are shown beside the asked one."""
RECOMPUTED: Final = (256, 1024, 4096, 16384)
"""Tokens for which generating without a cache is computed."""


class SpeedQuestion(NamedTuple):
    """What is asked of `question`'s deployment on `machine`, for requests that generate `output` of their tokens; the whole context is prompt where that is 0.
    `no_cache`: beside it, what generating without a cache takes.
    """

    question: Question
    machine: Machine
    output: int = 0
    no_cache: bool = False

    @property
    def prompt(self) -> int:
        return prompt_of(self.question.asked.context, self.output)


def speed(asked: SpeedQuestion) -> Speed:
    """Raises KvcalcError as `clock` does, and for an output that leaves no prompt."""
    question, machine = asked.question, asked.machine
    options, about = question.options, question.asked
    timed = clock(question, machine)
    prompt_work, step_work = timed.prompt_work(asked.prompt), timed.step_work(about.context, about.batch)
    prompt, step = timed.prompt(asked.prompt), timed.step(about.context, about.batch)
    replicas, requests = options.dp, about.batch
    served = None
    if asked.output:
        turnover = timed.turnover(asked.prompt, asked.output, requests)
        served = _rate(turnover, replicas * requests * asked.output)
    plan = question.engine.plan(question.spec, options)
    held, memory_notes = _memory_requests(question)
    return Speed(
        model=model_info(question.spec, about.name, about.source),
        engine=question.engine.name,
        engine_version=question.engine.version,
        gpu=MachineInfo(
            name=machine.name,
            bandwidth_bytes_s=machine.bandwidth_bytes_s,
            flops=dict(machine.rates),
            link=machine.link if options.tp > 1 else None,
            link_bytes_s=machine.link_bytes_s if options.tp > 1 else None,
        ),
        gpus=options.gpus,
        parallel=Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
        context=about.context,
        prompt=asked.prompt,
        output=asked.output,
        batch=about.batch,
        kv_dtype=str(plan.kv_dtype),
        weights=_stored_as(timed),
        computes_in=None if machine.rate("fp16") is None else usual(machine, _stored_as(timed)),
        prefill=_phase(prompt_work, prompt, answered=prompt.compute is not None),
        decode=_phase(step_work, step, answered=True),
        experts=_experts(timed, about.batch),
        request_tokens_s=_rate(step, 1),
        decode_tokens_s=_rate(step, replicas * requests),
        served_tokens_s=served,
        batches=tuple(_batches(timed, about.context, about.batch, replicas, held)),
        turning_batch=_turning_batch(timed, about.context),
        turning_batch_uncached=_turning_batch(timed, 0),
        kv_share=step_work.kv_read_bytes / step_work.moved_bytes,
        prefill_in_steps=None if prompt.compute is None else prompt.likely / step.likely,
        memory_requests=held,
        levers=tuple(_levers(asked, timed)),
        chunked=_chunked(timed, asked.prompt),
        doubling=tuple(_doublings(question, timed, prompt=asked.prompt)),
        recomputed=tuple(_recomputed(timed, about.context)) if asked.no_cache else (),
        efficiency=_efficiency(timed, prompt_work),
        notes=(*question.spec.notes, *question.notes, *plan.notes, *length_notes(question.spec, plan, about.context), *memory_notes, *_notes(asked, prompt)),
    )


def _phase(work: Work, times: Times, *, answered: bool) -> Phase:
    return Phase(
        linear_flops=sum(work.linear_flops.values()),
        attention_flops=work.attention_flops,
        recurrence_flops=work.recurrence_flops,
        flops=work.flops,
        weight_bytes=work.weight_bytes,
        kv_read_bytes=work.kv_read_bytes,
        kv_write_bytes=work.kv_write_bytes,
        state_bytes=work.state_bytes,
        moved_bytes=work.moved_bytes,
        reduced_bytes=work.reduced_bytes,
        intensity=work.flops / work.moved_bytes,
        compute_s=times.compute,
        bandwidth_s=times.bandwidth,
        link_s=times.link,
        bound_by=times.slowest,
        seconds=seconds_of(times) if answered else None,
    )


def _rate(times: Times, tokens: int) -> Rate:
    return Rate(upper=tokens / times.lower, low=tokens / times.high, likely=tokens / times.likely, high=tokens / times.low)


def _stored_as(timed: Clock) -> str:
    """How most of what a token is multiplied by is stored."""
    return max(timed.costs.token_flops, key=lambda stored: timed.costs.token_flops[stored])


def _experts(timed: Clock, batch: int) -> ExpertsInfo | None:
    """Those that take most memory, where there are several kinds."""
    most = max(timed.costs.experts, key=lambda each: each.size_bytes, default=None)
    if most is None:
        return None
    unused = (1 - most.used / most.copies) ** -(-batch // timed.pp)
    return ExpertsInfo(experts=most.copies, used=most.used, distinct=most.copies * (1 - unused))


def _batches(timed: Clock, context: int, batch: int, replicas: int, held: int | None) -> Iterator[BatchRow]:
    """The asked one, and those around it that memory holds."""
    for each in sorted({batch, *(size for size in BATCHES if held is None or size <= held)}):
        work, times = timed.step_work(context, each), timed.step(context, each)
        yield BatchRow(batch=each, intensity=work.flops / work.moved_bytes, tpot_s=times.likely, tokens_s=replicas * each / times.likely)


def _turning_batch(timed: Clock, context: int) -> int | None:
    def moves_longer(groups: int) -> bool:
        times = timed.step(context, groups * timed.pp)
        return times.compute is not None and times.compute < times.bandwidth

    if timed.step(context, 1).compute is None:
        return None
    last = largest(moves_longer, MOST_BATCH)
    return None if last == MOST_BATCH else (last + 1) * timed.pp


def _memory_requests(question: Question) -> tuple[int | None, list[Note]]:
    """Whole requests of the context that a replica holds, with a note where they are fewer than the batch."""
    asked = question.asked
    if question.kv_bytes is None and question.gpu.memory_bytes is None:
        return None, []
    try:
        found = answer(question)
    except KvcalcError as error:
        return None, [Note(code="memory", text=f"how many requests memory holds cannot be told: {error.message}")]
    held = found.held
    if held >= asked.batch:
        return held, []
    text = f"memory holds {counted(held, 'request')} of {counted(asked.context, 'token')}, not the {asked.batch:,} that are timed: `kvcalc fit` says what would"
    return held, [Note(code="memory", text=text)]


# What would make it faster


def _levers(asked: SpeedQuestion, timed: Clock) -> Iterator[Lever]:
    """Those that the model, the engine and the GPU can do."""
    question, prompt = asked.question, asked.prompt
    context, batch = question.asked.context, question.asked.batch

    def lever(text: str, options: str, ttft: Times, tpot: Times, requests: int = batch) -> Lever:
        first = None if ttft.compute is None else ttft.likely
        return Lever(text=text, options=options, ttft_s=first, tpot_s=tpot.likely, tokens_s=question.options.dp * requests / tpot.likely)

    ttft, tpot = timed.prompt(prompt), timed.step(context, batch)
    if half := prompt // 2:
        yield lever("half the prompt", f"--context {context - half}", timed.prompt(prompt - half), timed.step(context - half, batch))
        yield lever("half of the prompt in the prefix cache", "", timed.prompt(prompt, cached=half), tpot)
    yield lever("twice the batch", f"--batch {2 * batch}", ttft, timed.step(context, 2 * batch), 2 * batch)
    for text, options, changed in _other_deployments(question):
        try:
            other = clock(changed, asked.machine)
        except KvcalcError:
            continue
        yield lever(text, options, other.prompt(prompt), other.step(context, batch))
    heads = _with_half_the_heads(timed)
    if heads is not None:
        yield lever("half the KV heads, or latents", "", ttft, heads.step(context, batch))
    faster = timed._replace(machine=timed.machine._replace(bandwidth_bytes_s=2 * timed.machine.bandwidth_bytes_s))
    yield lever("twice the bandwidth", "", faster.prompt(prompt), faster.step(context, batch))


def _other_deployments(question: Question) -> Iterator[tuple[str, str, Question]]:
    """Other ways to store and to share the same: what it is, the options that ask for it, the question."""
    options = question.options
    if question.engine.plan(question.spec, options).kv_dtype.k in ("bf16", "fp16"):
        name = EIGHT_BIT.get(question.engine.name, "fp8")
        yield "an 8-bit cache", f"--kv-dtype {name}", question._replace(options=options._replace(kv_dtype=KvDtype(name, name)))
    if quantizable(question):
        for name in smaller_weights(question):
            yield f"{name.upper()} weights", f"--quantization {name}", question._replace(quantization=BY_NAME[name], weights=None)
    yield "twice the GPUs", f"--tp {2 * options.tp}", question._replace(options=options._replace(tp=2 * options.tp))


def _chunked(timed: Clock, prompt: int) -> Chunked | None:
    chunks, at_once = timed._replace(batched_tokens=SMALL_BATCH), timed._replace(batched_tokens=None)
    if chunks.passes(prompt) <= timed.passes(prompt) or timed.prompt(prompt).compute is None:
        return None
    wait, whole = (each.times(each.prompt_work(prompt, prompt - tokens), 1) for each, tokens in ((chunks, SMALL_BATCH), (at_once, prompt)))
    return Chunked(tokens=SMALL_BATCH, wait_s=wait.likely, whole_wait_s=whole.likely)


def _with_half_the_heads(timed: Clock) -> Clock | None:
    """The same with half of the K and V bytes of a row, None where no cache has K and V heads."""
    halved = tuple(cost._replace(row_bytes=cost.row_bytes // 2) if cost.cache.kernel == "gqa" else cost for cost in timed.costs.caches)
    return None if halved == timed.costs.caches else timed._replace(costs=timed.costs._replace(caches=halved))


# What doubles


def _doublings(question: Question, timed: Clock, *, prompt: int) -> Iterator[Doubling]:
    options, context, batch = question.options, question.asked.context, question.asked.batch
    plan = question.engine.plan(question.spec, options)
    held = plan.resident_bytes(context, batch)
    step, longer, wider = (timed.step_work(n, b) for n, b in ((context, batch), (2 * context, batch), (context, 2 * batch)))
    one, two = timed.prompt_work(prompt), timed.prompt_work(2 * prompt)
    if held:
        wide = batch if plan.slots is not None else 2 * batch
        grown, widened = plan.resident_bytes(2 * context, batch) / held, plan.resident_bytes(context, wide) / held
        yield Doubling(what="KV memory", context=grown, batch=widened, plain_context=2, plain_batch=2)
    if step.kv_read_bytes:
        grown, widened = longer.kv_read_bytes / step.kv_read_bytes, wider.kv_read_bytes / step.kv_read_bytes
        yield Doubling(what="KV read", context=grown, batch=widened, plain_context=2, plain_batch=2)
    mixed = one.attention_flops + one.recurrence_flops
    if mixed:
        grown = (two.attention_flops + two.recurrence_flops) / mixed
        yield Doubling(what="prefill attention", context=grown, batch=2, plain_context=4, plain_batch=2)
    matrices, more = (sum(work.linear_flops.values()) for work in (one, two))
    yield Doubling(what="prefill matrices", context=more / matrices, batch=2, plain_context=2, plain_batch=2)
    whole = timed._replace(costs=without_windows(timed.costs))
    now, plainly = timed.step(context, batch).likely, whole.step(context, batch).likely
    yield Doubling(
        what="decode step",
        context=timed.step(2 * context, batch).likely / now,
        batch=timed.step(context, 2 * batch).likely / now,
        plain_context=whole.step(2 * context, batch).likely / plainly,
        plain_batch=whole.step(context, 2 * batch).likely / plainly,
    )


def _recomputed(timed: Clock, context: int) -> Iterator[Recomputed]:
    lengths = [tokens for tokens in RECOMPUTED if tokens <= context] or [context]
    for tokens in lengths:
        cached, again = generated(timed.costs, tokens)
        yield Recomputed(
            tokens=tokens,
            cached_flops=cached.flops,
            cached_attention_flops=cached.attention_flops,
            recomputed_flops=again.flops,
            recomputed_attention_flops=again.attention_flops,
        )


# What the range rests on


def _efficiency(timed: Clock, work: Work) -> dict[str, str]:
    """In words, for each of bandwidth, arithmetic and link that has a part in the answer."""
    moving = MOVING[timed.machine.memory, timed.stack]
    found = {
        "bandwidth": f"{_percent(moving.bandwidth)} of the bandwidth and {moving.layer_us.low:g} to {moving.layer_us.high:g} us a layer: {moving.source}",
    }
    if timed.machine.rate("fp16") is not None:
        if timed.stack == "llama.cpp":
            computing = COMPUTING_LLAMA_CPP["geforce" if timed.machine.geforce else "other"]
            form = "fp16"
        else:
            form = usual(timed.machine, max(work.linear_flops, key=lambda stored: work.linear_flops[stored]))
            computing = COMPUTING[form]
        found["compute"] = f"{_percent(computing.rate)} of the dense {form} rate: {computing.source}"
    if timed.tp > 1 and timed.machine.link_bytes_s is not None:
        how = EXCHANGING["nvlink" if timed.machine.link_on_board else "pcie"]
        each = how.reduction_us
        found["link"] = f"{_percent(how.rate)} of the {timed.machine.link} rate and {each.low:g} to {each.high:g} us a sum: {how.source}"
    return found


def _percent(part: tuple[float, float]) -> str:
    return f"{part[0] * 100:.0f} to {part[1] * 100:.0f} %"


def _notes(asked: SpeedQuestion, prompt: Times) -> Iterator[Note]:
    options, machine = asked.question.options, asked.machine
    if prompt.compute is None:
        yield Note(code="flops", text=f"what {machine.name} computes in a second is not known, and so the time to first token is not: state it with --tflops")
    if options.tp > 1 and machine.link_bytes_s is None:
        yield Note(code="link", text="what joins the GPUs is not known: the sums among them are not timed; state it with --link")
    elif options.tp > 1 and not machine.link_on_board:
        yield Note(code="link", text=f"the GPUs are taken to be joined by {machine.link}, which is in the likely times alone: state another with --link")
    if options.speculative_tokens:
        yield Note(code="drafts", text="a step is one token for each request: drafted tokens are not timed")
