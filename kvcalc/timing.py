"""How long work takes on a GPU: a bound that no server beats, and the times between which four of five servers fall."""

from math import ceil, sqrt
from typing import Final, NamedTuple

from kvcalc.efficiency import COMPUTING, COMPUTING_LLAMA_CPP, EXCHANGING, MOVING, SERVING_MS, Part, Stack
from kvcalc.engines.work import Costs, Work, added, decode, prefill, repeated
from kvcalc.machine import Machine, ceiling, usual
from kvcalc.packing import KvDtype
from kvcalc.results.shared import Seconds
from kvcalc.results.speed import Side

STACKS: Final[dict[str, Stack]] = {"llama.cpp": "llama.cpp", "ollama": "llama.cpp", "transformers": "eager"}
"""Engines that are not a server with CUDA graphs."""
EIGHT_BIT_FLOATS: Final = ("fp8", "fp8_e4m3", "fp8_e5m2")


class Times(NamedTuple):
    """Seconds. `compute`, `bandwidth` and `link` at full rate: `compute` None where that rate is not known, `link` 0 then. Nothing is shorter than the
    longest of them over the stages that work at once (`lower`). Four of five servers take `low` to `high`.
    """

    compute: float | None
    bandwidth: float
    link: float
    lower: float
    low: float
    high: float

    @property
    def slowest(self) -> Side:
        """What takes longest at full rate."""
        parts: dict[Side, float] = {"bandwidth": self.bandwidth, "compute": self.compute or 0.0, "link": self.link}
        return max(parts, key=lambda side: parts[side])

    @property
    def likely(self) -> float:
        """One figure for the range: its geometric mean."""
        return sqrt(self.low * self.high)


def seconds_of(times: Times) -> Seconds:
    """As an answer says them."""
    return Seconds(lower=times.lower, low=times.low, likely=times.likely, high=times.high)


class Clock(NamedTuple):
    """Times a model on a machine. `costs` are those of one GPU of each pipeline stage, `scale` its weights' size over that of its tensors."""

    costs: Costs
    machine: Machine
    stack: Stack
    kv_dtype: KvDtype
    layers: int
    tp: int
    pp: int
    scale: float
    batched_tokens: int | None

    def passes(self, tokens: int) -> int:
        """Steps that a prompt is cut into."""
        return 1 if self.batched_tokens is None else max(1, ceil(tokens / self.batched_tokens))

    def prompt_work(self, tokens: int, cached: int = 0) -> Work:
        return self._scaled(prefill(self.costs, tokens, cached=cached, passes=self.passes(tokens - cached)))

    def step_work(self, context: int, batch: int) -> Work:
        """Of one step of a pipeline that is kept full by as many groups of requests as it has stages."""
        return self._scaled(decode(self.costs, context, ceil(batch / self.pp)))

    def _scaled(self, work: Work) -> Work:
        return work if self.scale == 1 else work._replace(weight_bytes=int(work.weight_bytes * self.scale))

    def prompt(self, tokens: int, cached: int = 0) -> Times:
        """Until the first token of one request, on a server that does nothing else."""
        passes = self.passes(tokens - cached)
        found = self.times(self.prompt_work(tokens, cached), passes, stages=self.pp)
        if self.stack == "llama.cpp":
            return found
        return found._replace(low=found.low + SERVING_MS.low / 1e3, high=found.high + SERVING_MS.high / 1e3)

    def step(self, context: int, batch: int) -> Times:
        """Of one more token for each request."""
        return self.times(self.step_work(context, batch), 1)

    def turnover(self, prompt: int, output: int, batch: int) -> Times:
        """Of so many requests from prompt to last token, in a server that always has `batch` of them: prompts are worked on beside the steps of others."""
        together = ceil(batch / self.pp)
        steps = self.step_work(prompt + output // 2, batch)
        return self.times(added(repeated(self.prompt_work(prompt), together), repeated(steps, output)), output)

    def times(self, work: Work, passes: int, stages: int = 1) -> Times:
        """Of work in so many passes. `stages` of a pipeline may each work on a pass of its own."""
        moved = work.moved_bytes / self.machine.bandwidth_bytes_s
        compute, link = self._compute(work), self._link(work)
        lower = max(compute or 0.0, moved, link) / stages
        filled = (passes + stages - 1) / (passes * stages)
        moving = MOVING[self.machine.memory, self.stack]
        moves = Part(moved / moving.bandwidth.high, moved / moving.bandwidth.low)
        computes = self._computes(work) if compute is not None else Part(0.0, 0.0)
        beside = Part(*(passes * self.layers * part / 1e6 for part in moving.layer_us))
        exchanges = self._exchanges(work)
        low = max(moves.low, computes.low) + beside.low + exchanges.low
        high = moves.high + computes.high + beside.high + exchanges.high
        return Times(compute, moved, link, lower, max(lower, low * filled), high * filled)

    def _compute(self, work: Work) -> float | None:
        """At the most that the GPU might reach; None where that is not known."""
        in_matrices = [(flops, ceiling(self.machine, stored)) for stored, flops in work.linear_flops.items()]
        attends_in = "fp8" if self.kv_dtype.k in EIGHT_BIT_FLOATS else "fp16"
        parts = [*in_matrices, (work.attention_flops + work.recurrence_flops, ceiling(self.machine, attends_in))]
        if any(rate is None for _, rate in parts):
            return None
        return sum(flops / rate for flops, rate in parts if rate is not None)

    def _computes(self, work: Work) -> Part:
        if self.stack == "llama.cpp":
            part = COMPUTING_LLAMA_CPP["geforce" if self.machine.geforce else "other"].rate
            at_rate = work.flops / (self.machine.rate("fp16") or 1)
            return Part(at_rate / part.high, at_rate / part.low)
        parts = [(flops, usual(self.machine, stored)) for stored, flops in work.linear_flops.items()]
        parts.append((work.attention_flops + work.recurrence_flops, "fp16"))
        seconds = [(flops / (self.machine.rate(form) or 1), COMPUTING[form].rate) for flops, form in parts]
        return Part(sum(each / part.high for each, part in seconds), sum(each / part.low for each, part in seconds))

    def _link(self, work: Work) -> float:
        """At least: each GPU sends what it has of a sum once, and a layer that works on attention and MLP side by side sums once."""
        if not work.reduced_bytes or self.machine.link_bytes_s is None or not self.machine.link_on_board:
            return 0.0
        return work.reduced_bytes / 2 / self.machine.link_bytes_s

    def _exchanges(self, work: Work) -> Part:
        """A ring: each GPU sends 2 (tp - 1) / tp of every sum."""
        if not work.reduced_bytes or self.machine.link_bytes_s is None:
            return Part(0.0, 0.0)
        how = EXCHANGING["nvlink" if self.machine.link_on_board else "pcie"]
        sent = work.reduced_bytes * 2 * (self.tp - 1) / self.tp / self.machine.link_bytes_s
        return Part(
            sent / how.rate.high + work.reductions * how.reduction_us.low / 1e6,
            sent / how.rate.low + work.reductions * how.reduction_us.high / 1e6,
        )
