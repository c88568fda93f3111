"""One server: requests that wait, run, and are preempted, step by step, as vLLM's scheduler has it (vllm/v1/core/sched/scheduler.py).

In each step those that run come first, a token each while they decode; where a block is lacking, the request that was admitted last gives all of its own back
and is computed again later. Then, if none was preempted, those that wait are admitted in their order while the batch has tokens left and the whole prompt fits
(scheduler_reserve_full_isl). Prompts are cut to what is left of the batch. Steps in which nothing but decoding happens are taken together.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import ceil
from typing import NamedTuple

from kvcalc.replay.blocks import Pool
from kvcalc.replay.pace import Pace, Piece
from kvcalc.replay.requests import Request
from kvcalc.replay.stairs import Stairs
from kvcalc.replay.tally import Course, Histogram


class Shape(NamedTuple):
    """What a server is made of: `units` of the pool, how many a request needs, requests that run at once (None: any number), tokens of a batch, and the tokens
    of the longest request. `finds_prefixes`: parts of prefixes are found again. `to_the_end`: a request is admitted only where all of its answer has room,
    as TensorRT-LLM does by default (GUARANTEED_NO_EVICT: SchedulerConfig, tensorrt_llm/llmapi/llm_args.py).
    """

    units: int
    stairs: Stairs
    max_requests: int | None
    batch_tokens: int
    limit: int
    finds_prefixes: bool = True
    to_the_end: bool = False


Reserve = Callable[[Request], int]
"""Tokens for which a request reserves memory before it starts."""


@dataclass(slots=True)
class Held:
    """A request in a server. `target` tokens are computed before its next one is sampled, of `left` that are still to come. `own` units are its alone;
    `shared` parts of its prefix stand for `matched` of those that it needs, and the first `parts` have been looked at. It decodes since the step `since_step`.
    `number` counts admissions, 0 where it waits.
    """

    request: Request
    target: int
    left: int
    computed: int = 0
    own: int = 0
    parts: int = 0
    shared: tuple[int, ...] = ()
    matched: int = 0
    since_step: int = 0
    number: int = 0
    started: bool = False
    answered: bool = False

    @property
    def rows(self) -> int:
        """Tokens in the cache at its end: the last that is sampled is never computed."""
        return self.target + self.left - 1


@dataclass(slots=True)
class Tally:
    """What happened in servers that are looked at together. Weights of `use` are seconds; it is told in parts of all units."""

    wait_s: Histogram = field(default_factory=Histogram)
    ttft_s: Histogram = field(default_factory=Histogram)
    token_s: Histogram = field(default_factory=Histogram)
    use: Histogram = field(default_factory=Histogram)
    course: Course = field(default_factory=Course)
    served: int = 0
    never: int = 0
    longest_never: int = 0
    cut: int = 0
    preempted: int = 0
    recomputed_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    busy_s: float = 0.0
    end_s: float = 0.0
    running_s: float = 0.0
    most_running: int = 0
    waiting_s: float = 0.0
    most_waiting: int = 0
    unit_s: float = 0.0
    most_units: int = 0
    row_s: float = 0.0
    final_row_s: float = 0.0


class Replica:
    """A server that is told of requests in the order of their arrival."""

    def __init__(self, shape: Shape, pace: Pace, tally: Tally, reserve: Reserve | None = None) -> None:
        self.shape, self.pace, self.tally = shape, pace, tally
        self.pool = Pool(shape.units)
        self.now = 0.0
        self.waiting: deque[Held] = deque()
        self.running: dict[int, Held] = {}
        self._reserve = reserve
        self._finds = shape.finds_prefixes and reserve is None
        self._prefilling: dict[int, Held] = {}
        self._finishing: list[tuple[int, int, Held]] = []
        self._growth: defaultdict[int, int] = defaultdict(int)
        self._step_number = 0
        self._rows = 0
        self._prefilled = 0
        self._final_rows = 0
        self._promised = 0
        self._admitted = 0
        self._ahead = 0

    def submit(self, request: Request) -> None:
        """A request arrives, not before any other. One that no empty server could run is counted and left out; an answer stops at the limit."""
        tally, limit = self.tally, self.shape.limit
        if not self.takes(request):
            tally.never += 1
            tally.longest_never = max(tally.longest_never, request.prompt + request.output)
            return
        output = min(request.output, limit - request.prompt)
        tally.cut += output < request.output
        self.rest(request.arrival_s)
        self.waiting.append(Held(request, request.prompt, output))

    def takes(self, request: Request) -> bool:
        """Whether an empty server could run it."""
        return request.prompt < self.shape.limit and (self._reserve is None or self.shape.stairs.need(self._reserve(request)) <= self.shape.units)

    def rest(self, until: float) -> None:
        """Without requests time passes until then, in which conversations stay in the cache."""
        if not self.running and not self.waiting and self.now < until:
            self.tally.course.add(self.now, until, (0, 0, 0, self.pool.warm))
            self.now = until

    def advance(self, until: float) -> None:
        """Takes every step that begins before then."""
        while self.now < until and (self.running or self.waiting):
            self._step(until)

    def cached(self, request: Request) -> int:
        """Tokens of a prompt that this server would find."""
        if not self._finds or not request.keys:
            return 0
        known = self.pool.known(request.keys)
        return self._whole(request.ends[known - 1], request.prompt) if known else 0

    def goes_on(self, request: Request) -> None:
        """The conversation of a request does not end any more with what this server has of it."""
        known = self.pool.known(request.keys) if self._finds else 0
        if 0 < known < len(request.keys):
            self.pool.end_conversation(request.keys[known - 1], ends=False)

    def _whole(self, tokens: int, prompt: int) -> int:
        """What whole blocks keep of so many tokens; the last of a prompt is always computed (get_computed_blocks, vllm/v1/core/kv_cache_manager.py)."""
        block = self.shape.stairs.block
        return min(tokens, prompt - 1) // block * block

    # One step

    def _step(self, until: float) -> None:
        preempted = self._make_room()
        budget = self.shape.batch_tokens - len(self.running) + len(self._prefilling)
        pieces: list[Piece] = []
        for number, held in tuple(self._prefilling.items()):
            if budget <= 0:
                break
            tokens = min(budget, held.target - held.computed)
            if number in self._prefilling and self._extend(held, tokens, pieces):
                budget -= tokens
            else:
                preempted = True
        if not preempted or not self.running:
            self._admit(budget, pieces)
        decoding = len(self.running) - len(self._prefilling)
        context = self._rows // decoding if decoding else 0
        if pieces:
            self._pass(1, self.pace.mixed(decoding, context, pieces))
            self._sample()
        elif decoding:
            steps = 1 if preempted else self._steps(until, decoding, context)
            self._pass(steps, steps * self.pace.decode(decoding, context + (steps + 1) // 2))
        self._finish()

    def _steps(self, until: float, decoding: int, context: int) -> int:
        """Steps in which nothing but decoding happens: until a request ends, another arrives, or blocks run out."""
        while self._finishing[0][2].number != self._finishing[0][1]:
            heappop(self._finishing)  # of a request that was preempted meanwhile
        steps = self._finishing[0][0] - self._step_number
        each = self.pace.decode(decoding, context)
        if self.now + steps * each > until:
            steps = max(1, min(steps, ceil((until - self.now) / each)))
        free, number = self.pool.free, self._step_number
        for step in range(2, steps + 1):
            free -= self._growth.get(number + step, 0)
            if free < 0:
                return step - 1
        return steps

    def _pass(self, steps: int, seconds: float) -> None:
        """Time in which every request that decodes gets so many tokens."""
        decoding = len(self.running) - len(self._prefilling)
        before = self.pool.total - self.pool.free
        grown = sum(self._growth.pop(number, 0) for number in range(self._step_number + 2, self._step_number + steps + 1))
        self.pool.take(grown)
        self._step_number += steps
        self._ahead = 0
        rows = self._rows + self._prefilled + decoding * (steps + 1) / 2
        self._rows += decoding * steps
        self._count(seconds, before + grown / 2, before + grown, rows)

    def _count(self, seconds: float, units: float, most_units: int, rows: float) -> None:
        tally, running, waiting = self.tally, len(self.running), len(self.waiting)
        tally.course.add(self.now, self.now + seconds, (running, waiting, units, self.pool.warm))
        self.now += seconds
        tally.busy_s += seconds
        tally.end_s = max(tally.end_s, self.now)
        tally.running_s += running * seconds
        tally.waiting_s += waiting * seconds
        tally.unit_s += units * seconds
        tally.row_s += rows * seconds
        tally.final_row_s += self._final_rows * seconds
        tally.use.add(units / self.pool.total, seconds)
        tally.most_running = max(tally.most_running, running)
        tally.most_waiting = max(tally.most_waiting, waiting)
        tally.most_units = max(tally.most_units, most_units)

    # Admission

    def _admit(self, budget: int, pieces: list[Piece]) -> None:
        most = self.shape.max_requests
        while self.waiting and budget > 0 and (most is None or len(self.running) < most):
            held = self.waiting[0]
            if not self._takes_in(held):
                return
            self.waiting.popleft()
            self._admitted += 1
            held.number = self._admitted
            self.running[self._admitted] = self._prefilling[self._admitted] = held
            self._prefilled += held.computed
            self._final_rows += held.rows
            if not held.started:
                held.started = True
                self.tally.wait_s.add(self.now - held.request.arrival_s)
                self.tally.cached_tokens += held.computed
            tokens = min(budget, held.target - held.computed)
            self._extend(held, tokens, pieces)
            budget -= tokens

    def _takes_in(self, held: Held) -> bool:
        """Holds what the pool knows of a prompt, where the rest of it fits too."""
        shape, request, pool = self.shape, held.request, self.pool
        if self._reserve is not None:
            units = shape.stairs.need(self._reserve(request))
            if units > pool.free:
                return False
            pool.take(units)
            held.own = units
            return True
        final = shape.stairs.need(held.rows)
        if shape.to_the_end and self._promised + final > shape.units:
            return False
        known = pool.known(request.keys) if self._finds else 0
        keys = request.keys[:known]
        computed = self._whole(request.ends[known - 1], held.target) if known else 0
        matched = shape.stairs.need(computed)
        if shape.stairs.need(held.target) - matched > pool.free - pool.idle(keys):
            return False
        for key in keys:
            pool.hold(key)
        self.goes_on(request)
        held.shared, held.parts = request.keys[:known], known
        held.computed, held.matched = computed, matched
        self._promised += final
        return True

    def _extend(self, held: Held, tokens: int, pieces: list[Piece]) -> bool:
        """Computes so many more tokens of a prompt in this step; no, where it was preempted for want of blocks."""
        number, start, computed = held.number, held.computed, held.computed + tokens
        if self._reserve is None:
            units = self.shape.stairs.need(computed) - held.matched - held.own
            while units > self.pool.free:
                victim = next(reversed(self.running))
                self._preempt(victim)
                if victim == number:
                    return False
            self.pool.take(units)
            held.own += units
        held.computed = computed
        self._prefilled += tokens
        if self._finds:
            self._name(held, computed)
        pieces.append((start, tokens))
        return True

    def _name(self, held: Held, rows: int) -> None:
        """The parts of a prefix that are computed now are found by others."""
        keys, ends, block, unit = held.request.keys, held.request.ends, self.shape.stairs.block, self.shape.stairs.unit
        while held.parts < len(keys) and ends[held.parts] <= rows:
            part = held.parts
            units = (ends[part] // block - (ends[part - 1] // block if part else 0)) * unit
            units = min(units, held.own)
            if self.pool.keep(keys[part], units):
                held.own -= units
                held.matched += units
                held.shared = (*held.shared, keys[part])
            held.parts += 1

    def _sample(self) -> None:
        """Prompts that are computed have their first token, or after a preemption the next."""
        for number, held in tuple(self._prefilling.items()):
            if held.computed < held.target:
                continue
            del self._prefilling[number]
            self._prefilled -= held.computed
            self._rows += held.target
            if not held.answered:
                held.answered = True
                self.tally.ttft_s.add(self.now - held.request.arrival_s)
            held.left -= 1
            held.since_step = self._step_number
            heappush(self._finishing, (self._step_number + held.left, number, held))
            if self._reserve is None:
                for tokens, units in self.shape.stairs.rises(held.target, held.target + held.left):
                    self._growth[self._step_number + tokens - held.target] += units

    # What runs ends, or is sent back

    def _finish(self) -> None:
        finishing, tally = self._finishing, self.tally
        while finishing and finishing[0][0] <= self._step_number:
            _, number, held = heappop(finishing)
            if held.number != number:
                continue
            rows = held.target + held.left
            self._rows -= rows
            self._final_rows -= rows
            del self.running[number]
            request = held.request
            output = min(request.output, self.shape.limit - request.prompt)
            if self._reserve is None:
                held.own = self.shape.stairs.need(rows) - held.matched
                self._promised -= self.shape.stairs.need(rows)
            if self._finds:
                self._name(held, rows)
                if request.tail in held.shared:
                    self.pool.end_conversation(request.tail, ends=True)
            self._release(held)
            tally.served += 1
            tally.output_tokens += output
            tally.token_s.add((self.now - request.arrival_s) / output)

    def _release(self, held: Held) -> None:
        """Its own units first, then its prefix from the end on, so that the beginning stays longest."""
        self.pool.give(held.own)
        for key in reversed(held.shared):
            self.pool.let_go(key)
        held.own = held.matched = held.parts = held.computed = 0
        held.shared = ()

    def _make_room(self) -> bool:
        """Takes what the next step's tokens need. While that is lacking, the request that was admitted last is preempted."""
        preempted = False
        while self._growth.get(self._step_number + 1, 0) > self.pool.free:
            self._preempt(next(reversed(self.running)))
            preempted = True
        self.pool.take(self._growth.pop(self._step_number + 1, 0))
        self._ahead = 1
        return preempted

    def _preempt(self, number: int) -> None:
        held = self.running.pop(number)
        stairs = self.shape.stairs
        self._final_rows -= held.rows if number in self._prefilling else held.target + held.left
        if number in self._prefilling:
            del self._prefilling[number]
            self._prefilled -= held.computed
            self._promised -= stairs.need(held.rows)
            lost = held.computed
        else:
            done = self._step_number - held.since_step
            rows = held.target + done
            for tokens, units in stairs.rises(rows + self._ahead, held.target + held.left):
                self._growth[held.since_step + tokens - held.target] -= units
            self._promised -= stairs.need(held.target + held.left)
            self._rows -= rows
            held.own = stairs.need(rows + self._ahead) - held.matched
            held.target, held.left = rows + 1, held.left - done
            lost = rows
        self.tally.preempted += 1
        self.tally.recomputed_tokens += lost
        held.number = 0
        self._release(held)
        self.waiting.appendleft(held)

    @property
    def live(self) -> int:
        """Units that running requests hold, counted one by one."""
        stairs, shared, own = self.shape.stairs, set[int](), 0
        for number, held in self.running.items():
            shared.update(held.shared)
            decoded = 0 if number in self._prefilling or self._reserve is not None else self._step_number - held.since_step
            own += held.own + (stairs.need(held.target + decoded) - stairs.need(held.target) if decoded else 0)
        return own + sum(self.pool.parts[key].units for key in shared)
