"""How many requests a server can have at once and still answer in time: a pure function of a question."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple

from kvcalc.budget import Latency, Question, stored_model
from kvcalc.engines.work import costs
from kvcalc.errors import KvcalcError
from kvcalc.machine import Machine
from kvcalc.search import largest
from kvcalc.tensors import weighed
from kvcalc.timing import STACKS, Clock, Times

MOST_REQUESTS: Final = 1 << 20
"""More than a scheduler runs at once: so many within the times are as good as any number."""


class Within(NamedTuple):
    """Requests of one length that are served within the times that are asked for: as is likely, at the slow end (`low`) and at the quick end (`high`) of
    what four of five servers take; which time binds; and the times that so many requests (or one) take.
    """

    requests: int
    low: int
    high: int
    bound_by: Literal["ttft", "tpot"]
    ttft: Times
    tpot: Times


def clock(question: Question, machine: Machine) -> Clock:
    """Raises KvcalcError where the engine cannot run the model so, or what it computes is not known."""
    options, engine = question.options, question.engine
    kv_dtype = engine.plan(question.spec, options).kv_dtype
    spec = weighed(question.spec)
    if spec.tensors:
        spec, scale = stored_model(question)
    else:
        scale = 1.0
    return Clock(
        costs(spec, kv_dtype, options),
        machine,
        STACKS.get(engine.name, "server"),
        kv_dtype,
        len(spec.layers),
        options.tp,
        options.pp,
        scale,
        options.max_batched_tokens,
    )


def prompt_of(context: int, output: int) -> int:
    """Tokens of a request that are its prompt. Raises KvcalcError where the output leaves none."""
    if output >= context:
        raise KvcalcError(f"{output:,} tokens of output leave none of {context:,} for the prompt", hint="raise --context or lower --output")
    return context - output


def within(timed: Clock, latency: Latency, context: int, cached: int = 0) -> Within:
    """Requests of so many tokens, of whose prompt so many are `cached`. A prompt waits for the step of the others that it arrives in.

    Raises KvcalcError where the output leaves no prompt, and for a first token whose time cannot be told.
    """
    prompt = prompt_of(context, latency.output)
    alone = timed.prompt(prompt, min(cached, prompt - 1))
    if latency.ttft_us is not None and alone.compute is None:
        raise KvcalcError(f"what {timed.machine.name} computes in a second is not known, and so no time to first token", hint="state it with --tflops")

    def held(seconds: Callable[[Times], float]) -> tuple[int, Literal["ttft", "tpot"]]:
        def steps(requests: int) -> bool:
            return latency.tpot_us is None or seconds(timed.step(context, requests)) * 1e6 <= latency.tpot_us

        def starts(requests: int) -> bool:
            waits = seconds(timed.step(context, requests - 1)) if requests > 1 else 0.0
            return latency.ttft_us is None or (seconds(alone) + waits) * 1e6 <= latency.ttft_us

        by_tpot, by_ttft = largest(steps, MOST_REQUESTS), largest(starts, MOST_REQUESTS)
        return min(by_tpot, by_ttft), "ttft" if by_ttft < by_tpot else "tpot"

    requests, bound_by = held(lambda times: times.likely)
    low, high = held(lambda times: times.high)[0], held(lambda times: times.low)[0]
    step = timed.step(context, max(1, requests))
    return Within(requests, low, high, bound_by, _after(alone, timed.step(context, requests - 1) if requests > 1 else None), step)


def _after(prompt: Times, step: Times | None) -> Times:
    """A prompt that waits for a step of others."""
    return prompt if step is None else prompt._replace(lower=prompt.lower, low=prompt.low + step.low, high=prompt.high + step.high)
