"""A trace replayed: answers worked out by hand, a plain scheduler written again as an oracle, conservation, and published figures."""

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import KvcalcError
from kvcalc.gpus import find_gpu
from kvcalc.latency import clock
from kvcalc.replay import ReplayQuestion, replay
from kvcalc.replay.blocks import Pool
from kvcalc.replay.fleet import Fleet
from kvcalc.replay.pace import Pace, Piece, rounded
from kvcalc.replay.replica import Replica, Reserve, Shape, Tally
from kvcalc.replay.requests import Prefixes, Reading, Request, Row
from kvcalc.replay.stairs import Stairs, stairs
from kvcalc.replay.synthetic import parse_synthetic
from kvcalc.replay.tally import Course, Histogram
from kvcalc.results.fit import GpuInfo
from tests.collection import COLLECTION
from tests.command import kvcalc, on_a_terminal

TRACES = COLLECTION / "traces"
CHAT = "prompt=lognormal(100,1.0) output=geometric(338) rate=30/s requests=1500"
"""ShareGPT as vLLM's paper has it: prompts of 161 tokens, answers of 338 on average."""


class Metronome(Pace):
    """Every step takes a second, and a prompt one for each token that is not cached."""

    def __init__(self) -> None: ...

    def decode(self, batch: int, context: int) -> float:
        assert batch > 0
        assert context >= 0
        return 1.0

    def mixed(self, batch: int, context: int, pieces: list[Piece]) -> float:
        assert pieces
        assert all(tokens > 0 for _, tokens in pieces)
        return self.decode(max(1, batch), context)

    def prompt(self, tokens: int, cached: int) -> float:
        return tokens - cached


def shape(units: int, block: int = 4, *, seqs: int | None = None, batch: int = 100, limit: int = 1000, finds: bool = True, whole: bool = False) -> Shape:
    return Shape(units, Stairs(block, 1, 0), seqs, batch, min(limit, units * block), finds, whole)


def run(of: Shape, requests: Iterable[Request], reserve: Reserve | None = None, replicas: int = 1) -> Tally:
    fleet = Fleet(of, Metronome(), replicas, "round-robin", reserve)
    for request in requests:
        fleet.send(request)
    fleet.drain()
    return fleet.tally


# By hand


def test_a_request_alone() -> None:
    """A prompt of 5 is computed in one step, which samples the first of 4 tokens; three steps more. In the cache: 5, then 6, 7, 8 rows: 2 blocks of 4."""
    tally = run(shape(10), [Request(3.0, 5, 4)])
    assert (tally.served, tally.preempted, tally.end_s, tally.most_units) == (1, 0, 7.0, 2)
    assert tally.wait_s.sum == 0
    assert tally.ttft_s.sum == 1
    assert tally.token_s.sum == pytest.approx(4 / 4)
    assert tally.unit_s == 4 * 2


def test_the_last_admitted_is_preempted_and_computed_again() -> None:
    """Three blocks of 4, two requests of 4 + 5. Step 1 computes both. Step 2 needs a block for each and one is free: the second gives its own back. The first
    ends with step 5. The second has 4 + 1 tokens to compute again, in step 6, which samples its second; three more until 9.
    """
    tally = run(shape(3), [Request(0.0, 4, 5), Request(0.0, 4, 5)])
    assert (tally.served, tally.preempted, tally.recomputed_tokens, tally.end_s) == (2, 1, 4, 9.0)
    assert tally.ttft_s.sum == 2
    assert tally.token_s.sum == pytest.approx(5 / 5 + 9 / 5)


def test_tensorrt_llm_lets_in_only_what_fits_to_its_end() -> None:
    """The same two need 2 blocks each by their end, of 3: the second waits for the end of the first, and nothing is lost."""
    tally = run(shape(3, whole=True), [Request(0.0, 4, 5), Request(0.0, 4, 5)])
    assert (tally.preempted, tally.end_s, tally.wait_s.sum) == (0, 10.0, 5)


def test_a_prompt_is_cut_to_what_is_left_of_a_batch() -> None:
    """Batches of 4 tokens: a prompt of 10 takes steps of 4, 4, 2; a request of 1 + 2 behind it gets 1 of the 2 that are left in the third."""
    tally = run(shape(10, batch=4), [Request(0.0, 10, 1), Request(0.0, 1, 2)])
    assert (tally.end_s, tally.ttft_s.sum, tally.wait_s.sum) == (4.0, 3 + 3, 2)


def test_no_more_run_than_the_scheduler_takes() -> None:
    """One at a time, of 1 + 3: three steps each."""
    tally = run(shape(10, seqs=1), [Request(0.0, 1, 3)] * 3)
    assert (tally.end_s, tally.most_running, tally.wait_s.sum, tally.most_waiting) == (9.0, 1, 3 + 6, 2)


@pytest.mark.parametrize(("prompt", "output", "never", "cut", "served"), [(39, 1, 0, 0, 1), (40, 1, 1, 0, 0), (30, 11, 0, 1, 1), (500, 1, 1, 0, 0)])
def test_what_can_never_fit(prompt: int, output: int, never: int, cut: int, served: int) -> None:
    """Ten blocks of 4: a prompt of 40 leaves no token for an answer; one of 30 + 11 ends after 40."""
    tally = run(shape(10), [Request(0.0, prompt, output)])
    assert (tally.never, tally.cut, tally.served) == (never, cut, served)


def test_a_prefix_is_found_again_but_for_the_last_token() -> None:
    """Two prompts of 8 with the same two blocks of 4. The second comes later and finds 1 block: of 8 tokens the last is computed, and a block is found whole
    or not.
    """
    one = Request(0.0, 8, 1, (7, 8), (4, 8))
    tally = run(shape(10), [one, one._replace(arrival_s=5.0)])
    assert tally.cached_tokens == 4
    longer = Request(5.0, 9, 1, (7, 8, 9), (4, 8, 9))
    assert run(shape(10), [one, longer]).cached_tokens == 8
    assert run(shape(10, finds=False), [one, longer]).cached_tokens == 0


def test_what_was_given_back_first_is_forgotten_first() -> None:
    """Four blocks: a, then b, of two blocks each, fill them; c takes those of a, from its end on. So b is found again and a is not."""
    a, b, c = (Request(at, 8, 1, keys, (4, 8)) for at, keys in ((0.0, (1, 2)), (2.0, (3, 4)), (4.0, (5, 6))))
    again = Request(6.0, 9, 1, (3, 4, 9), (4, 8, 9))
    assert run(shape(4), [a, b, c, again]).cached_tokens == 8
    gone = Request(6.0, 9, 1, (1, 2, 9), (4, 8, 9))
    assert run(shape(4), [a, b, c, gone]).cached_tokens == 0


def test_a_conversation_that_lands_elsewhere_is_computed_again() -> None:
    """Round robin sends the second turn to the other replica: 8 tokens again, at a second each. Sticky and prefix find them."""
    turns = [Request(0.0, 8, 1, (1, 2), (4, 8), 2, 5), Request(10.0, 13, 1, (1, 2, 3), (4, 8, 12), 3, 5)]
    for routing, tokens, requests in (("round-robin", 8, 1), ("sticky", 0, 0), ("prefix", 0, 0)):
        fleet = Fleet(shape(10), Metronome(), 2, routing)  # type: ignore[arg-type]  # one of the names
        for turn in turns:
            fleet.send(turn)
        fleet.drain()
        assert (fleet.lost.tokens, fleet.lost.requests, fleet.lost.ttft_s) == (tokens, requests, tokens)
        assert fleet.tally.cached_tokens == 8 - tokens
        assert fleet.warm == 1


def test_conversations_stay_warm_while_nothing_runs() -> None:
    """Each step takes a second, and each request one step. One replica has the first conversation from 1 to 10, then its second turn runs, and from 11 on it
    has it again, until another ends at 21. Of two, the first has it for 9 seconds, until the turn that goes on comes to the other, which has it from 11 to 21.
    """
    turns = [Request(0.0, 8, 1, (1, 2), (4, 8), 2, 5), Request(10.0, 13, 1, (1, 2, 3), (4, 8, 12), 3, 5), Request(20.0, 8, 1, (8, 9), (4, 8), 9, 6)]
    never = Request(30.0, 5000, 1, (1, 2, 3, 4), (4, 8, 12, 5000), 4, 5)
    for replicas in (1, 2):
        fleet = Fleet(shape(10), Metronome(), replicas, "round-robin")
        for turn in (*turns, never):
            fleet.send(turn)
        fleet.drain()
        tally = fleet.tally
        running, waiting, used, warm = (sum(column) for column in zip(*tally.course.bins, strict=True))
        assert (tally.end_s, fleet.warm) == (21.0, 2)
        assert warm == 9 + 9 + 1
        assert (running, waiting, used) == (tally.running_s, tally.waiting_s, tally.unit_s) == (3, 0, 2 + 4 + 2)


def test_memory_reserved_ahead_by_hand() -> None:
    """A request of 4 + 5, alone, with 12 tokens reserved: over its 5 steps it has 4, 5, 6, 7, 8 of 12 rows in use, and will have 8."""
    tally = run(shape(10, limit=12), [Request(0.0, 4, 5)], reserve=lambda _: 12)
    assert (tally.unit_s, tally.row_s, tally.final_row_s) == (5 * 3, 4 + 5 + 6 + 7 + 8, 5 * 8)


# An oracle: block by block, step by step


class Answered(NamedTuple):
    ttft_s: float
    end_s: float
    preempted: int
    recomputed: int
    most_blocks: int


@dataclass
class Entry:
    """A request in the plain scheduler: tokens to compute before the next is sampled, tokens still to sample, tokens computed, blocks held."""

    at: float
    target: int
    left: int
    done: int = 0
    blocks: int = 0
    told: bool = False


class Plain:
    """The scheduler again, without a shortcut: each running request is looked at in each step, and every block is counted when it is taken."""

    def __init__(self, blocks: int, block: int, seqs: int, batch: int) -> None:
        self.blocks, self.block, self.seqs, self.batch = blocks, block, seqs, batch
        self.waiting, self.running = list[Entry](), list[Entry]()
        self.now = self.ttft = 0.0
        self.preempted = self.recomputed = self.most = 0

    def answer(self, requests: list[Request]) -> Answered:
        coming = list(requests)
        while coming or self.waiting or self.running:
            if not self.waiting and not self.running:
                self.now = max(self.now, coming[0].arrival_s)
            while coming and coming[0].arrival_s <= self.now:
                first = coming.pop(0)
                self.waiting.append(Entry(first.arrival_s, first.prompt, first.output))
            self.step()
        return Answered(self.ttft, self.now, self.preempted, self.recomputed, self.most)

    def free(self) -> int:
        return self.blocks - sum(each.blocks for each in self.running)

    def preempt(self) -> None:
        last = self.running.pop()
        self.preempted += 1
        self.recomputed += last.done
        if last.done >= last.target:
            last.target = last.done + 1
        last.done = last.blocks = 0
        self.waiting.insert(0, last)

    def step(self) -> None:
        before = self.preempted
        decoding = self.decoding()
        left = self.batch - len(decoding)
        computing = self.computing(left)
        left -= sum(tokens for _, tokens in computing)
        while self.waiting and left > 0 and len(self.running) < self.seqs and (self.preempted == before or not self.running):
            each = self.waiting[0]
            if -(-each.target // self.block) > self.free():
                break
            self.running.append(self.waiting.pop(0))
            tokens = min(left, each.target)
            each.blocks = -(-tokens // self.block)
            computing.append((each, tokens))
            left -= tokens
        decoding = [each for each in decoding if each in self.running]
        if decoding or computing:
            self.work(decoding, [(each, tokens) for each, tokens in computing if each in self.running])

    def decoding(self) -> list[Entry]:
        """Those that get a token, each with a block for it."""
        found = [each for each in self.running if each.done >= each.target]
        while sum(each.done // self.block + 1 - each.blocks for each in found if each in self.running) > self.free():
            self.preempt()
        found = [each for each in found if each in self.running]
        for each in found:
            each.blocks = each.done // self.block + 1
        return found

    def computing(self, left: int) -> list[tuple[Entry, int]]:
        """Prompts that are computed already go on."""
        found = []
        for each in [each for each in self.running if each.done < each.target]:
            tokens = min(left, each.target - each.done)
            if each not in self.running or tokens <= 0:
                continue
            wants = -(-(each.done + tokens) // self.block) - each.blocks
            while wants > self.free() and each in self.running:
                self.preempt()
            if each in self.running:
                each.blocks += wants
                found.append((each, tokens))
                left -= tokens
        return found

    def work(self, decoding: list[Entry], computing: list[tuple[Entry, int]]) -> None:
        self.now += 1
        self.most = max(self.most, self.blocks - self.free())
        for each in decoding:
            each.done += 1
            each.left -= 1
        for each, tokens in computing:
            each.done += tokens
            if each.done >= each.target:
                each.left -= 1
                self.ttft += 0 if each.told else self.now - each.at
                each.told = True
        self.running = [each for each in self.running if each.left > 0]


REQUESTS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 30), st.integers(1, 20)).map(lambda each: Request(each[0] / 2, each[1], each[2])), min_size=1, max_size=25
).map(lambda drawn: sorted(drawn, key=lambda each: each.arrival_s))


@settings(max_examples=300, deadline=None)
@given(REQUESTS, st.integers(13, 40), st.integers(1, 8), st.integers(8, 64))
def test_the_replay_is_the_plain_scheduler(requests: list[Request], blocks: int, seqs: int, batch: int) -> None:
    """Blocks of 4; every request is at most 50 tokens long, which 13 blocks hold."""
    tally = run(shape(blocks, seqs=seqs, batch=batch), requests)
    expected = Plain(blocks, 4, seqs, batch).answer(requests)
    assert tally.served == len(requests)
    assert Answered(tally.ttft_s.sum, tally.end_s, tally.preempted, tally.recomputed_tokens, tally.most_units) == expected


# Conservation


class Watched(Replica):
    """Counts every unit after every step."""

    def _step(self, until: float) -> None:
        super()._step(until)
        assert self.pool.queued == self.pool.free
        assert self.pool.free + self.live == self.pool.total
        assert self.pool.free >= 0
        assert self.pool.warm >= 0

    def owes(self) -> bool:
        """Whether anything is still counted of a request that is gone."""
        return any(self._growth.values()) or any((self._rows, self._prefilled, self._final_rows, self._promised))


PREFIXED = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 40), st.integers(1, 20), st.integers(0, 3), st.booleans()), min_size=1, max_size=40)


@settings(max_examples=300, deadline=None)
@given(PREFIXED, st.integers(16, 40), st.sampled_from([1, 4, 16, 64]), st.integers(1, 8))
def test_units_are_conserved_and_never_more_than_there_are(drawn: list[tuple[int, int, int, int, bool]], units: int, block: int, seqs: int) -> None:
    """Requests that share prefixes, in sessions or by names in common, on pools that are too small for all of them."""
    tally, prefixes = Tally(), Prefixes()
    units *= -(-64 // block)
    server = Watched(shape(units // 16, block, seqs=seqs, batch=32), Metronome(), tally)
    sent = 0
    for at, prompt, output, session, named in sorted(drawn):
        if named:
            request = prefixes.request(Row(at / 2, prompt, output, session=str(session)))
        else:
            keys = tuple(1000 + 100 * session + index for index in range(-(-prompt // 8)))
            request = Request(at / 2, prompt, output, keys, (*range(8, prompt, 8), prompt), keys[-1], session)
        server.advance(request.arrival_s)
        server.submit(request)
        sent += 1
    server.advance(inf)
    assert tally.served + tally.never == sent
    assert server.pool.free == server.pool.total
    assert tally.most_units <= server.pool.total
    assert not server.owes()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["take", "give", "keep", "hold", "let go"]), st.integers(0, 9)), max_size=60))
def test_a_pool_gives_and_takes(moves: list[tuple[str, int]]) -> None:
    pool, own, held = Pool(20), 0, list[int]()
    for move, number in moves:
        if move == "take" and number <= pool.free:
            pool.take(number)
            own += number
        elif move == "give" and number <= own:
            pool.give(number)
            own -= number
        elif move == "keep" and own and pool.keep(number, 1):
            own -= 1
            held.append(number)
        elif move == "hold" and number in pool.parts:
            pool.hold(number)
            held.append(number)
        elif move == "let go" and number in held:
            pool.let_go(number)
            held.remove(number)
        assert pool.queued == pool.free
        assert pool.free + own + sum(pool.parts[key].units for key in set(held)) == 20


# Blocks of one token, and without end


def use(of: Shape, requests: list[Request], reserve: Reserve | None = None) -> float:
    tally = run(of, requests, reserve)
    return tally.row_s / (tally.unit_s * of.stairs.block)


def test_blocks_of_one_token_waste_nothing_and_a_block_without_end_is_the_maximum_ahead() -> None:
    requests = [Request(row.arrival_s, min(900, row.prompt), min(100, row.output)) for row in parse_synthetic(CHAT).rows()][:200]
    one = use(shape(16_000, block=1), requests)
    sixteen = use(shape(1_000, block=16), requests)
    endless = use(shape(16, block=1000), requests)
    ahead = use(shape(16_000, block=1), requests, reserve=lambda _: 1000)
    assert one == pytest.approx(1)
    assert endless < sixteen < one
    assert endless == pytest.approx(ahead, rel=0.02)


# Steps of need, figures over time


def test_stairs_of_plain_and_of_other_layers() -> None:
    assert stairs(lambda tokens: -(-tokens // 16), 16, 1000) == Stairs(16, 1, 0)
    assert stairs(lambda tokens: 131_072 * tokens, 1, 1000) == Stairs(1, 131_072, 0)

    def window(tokens: int) -> int:
        return -(-tokens // 16) + -(-min(tokens, 100) // 16) + 1

    found = stairs(window, 16, 1000)
    assert not found.regular
    assert [found.need(tokens) for tokens in range(1, 1001)] == [window(tokens) for tokens in range(1, 1001)]


def test_each_step_of_unlike_layers_is_asked_for_once() -> None:
    """A need takes time: that of every length of a long context is most of a short replay."""
    asked_for: list[int] = []

    def need(tokens: int) -> int:
        asked_for.append(tokens)
        return tokens + min(tokens, 128)

    assert stairs(need, 1, 10_000).sums[-1] == 10_128
    assert len(asked_for) < 10_000 * 1.1


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 40), st.integers(0, 9), st.integers(1, 200), st.integers(0, 200), st.sampled_from([0, 50]))
def test_rises_are_the_differences_of_need(block: int, fixed: int, low: int, more: int, window: int) -> None:
    def need(tokens: int) -> int:
        return fixed + -(-tokens // block) + -(-min(tokens, window) // 7)

    found = stairs(need, block, 400)
    assert need(low) + sum(units for _, units in found.rises(low, low + more)) == need(low + more)
    assert all(need(tokens) - need(tokens - 1) == units for tokens, units in found.rises(low, low + more))


def test_percentiles_and_courses() -> None:
    of = Histogram()
    for number in range(1, 101):
        of.add(number)
    assert of.percentiles(0.5, 0.95, 0.99) == pytest.approx([50, 95, 99], rel=0.005)
    assert (of.mean, of.largest) == (50.5, 100)
    assert Histogram().percentiles(0.5) == [0]
    course = Course()
    course.add(0.5, 1000.25, (2.0,))
    assert len(course.bins) <= 96
    assert sum(values[0] for values in course.bins) == pytest.approx(2 * 999.75)
    assert course.width_s == 16


@given(st.integers(0, 10**9))
def test_counts_are_rounded_to_one_percent(number: int) -> None:
    assert abs(rounded(number) - number) <= number / 128


# Prefixes and conversations


def test_conversations_by_blocks_and_by_sessions() -> None:
    """Blocks of 512: the second prompt goes on behind the first's one whole block; the third begins another way."""
    by_blocks = Prefixes()
    made = [by_blocks.request(Row(0.0, prompt, 1, ids)) for prompt, ids in ((600, (1, 2)), (1100, (1, 3, 4)), (600, (9, 2)))]
    assert made[0].conversation == made[1].conversation != made[2].conversation
    assert (by_blocks.found["ids"], by_blocks.found["known_ids"], by_blocks.found["known_tokens"]) == (7, 1, 512)
    by_sessions = Prefixes()
    one = by_sessions.request(Row(0.0, 100, 20, session="a"))
    two = by_sessions.request(Row(1.0, 150, 20, session="a"))
    short = by_sessions.request(Row(2.0, 10, 20, session="a"))
    assert (one.ends, two.ends, short.ends) == ((119,), (119, 169), (29,))
    assert two.keys[0] == one.keys[0]
    assert short.keys[0] not in two.keys
    assert by_sessions.found["known_tokens"] == 119


@pytest.mark.parametrize(("sample", "of_tokens", "of_blocks"), [("conversation", 0.294, 15_771 / 54_559), ("synthetic", 0.336, 16_270 / 49_580)])
def test_mooncakes_own_hit_rate(sample: str, of_tokens: float, of_blocks: float) -> None:
    """29.4 % and 33.6 % of the samples' tokens (as the README beside them says), 28.9 % and 32.8 % of their blocks: counted again here."""
    path = TRACES / f"mooncake_fast25_{sample}.first2000.jsonl"
    if not path.exists():
        pytest.skip("the public traces are not here")
    prefixes, seen, known, every = Prefixes(), set[int](), 0, 0
    for line in path.read_text().splitlines():
        told = json.loads(line)
        prefixes.request(Row(0.0, told["input_length"], told["output_length"], tuple(told["hash_ids"])))
        leading = next((index for index, key in enumerate(told["hash_ids"]) if key not in seen), len(told["hash_ids"]))
        known, every = known + leading, every + len(told["hash_ids"])
        seen.update(told["hash_ids"])
    found = prefixes.found
    assert (found["known_ids"], found["ids"]) == (known, every)
    assert found["known_ids"] / found["ids"] == pytest.approx(of_blocks, abs=1e-4)
    assert found["known_tokens"] / found["prompt_tokens"] == pytest.approx(of_tokens, abs=5e-4)


# Steps in time


def test_a_step_takes_what_the_clock_says() -> None:
    """Weights are read once for prompts and tokens together: a mixed step takes longer than either alone, and less than one after the other."""
    question = asked()
    timed = clock(question.question, question.machine)
    pace = Pace(timed)
    assert pace.decode(64, 100) == timed.step(100, 64).likely
    assert pace.mixed(0, 0, [(0, 4096)]) == pytest.approx(timed.times(timed.prompt_work(4096), 1).likely)
    assert pace.mixed(0, 0, [(0, 1024), (0, 1024)]) < 2 * pace.mixed(0, 0, [(0, 1024)])
    mixed, prompt, tokens = pace.mixed(64, 1000, [(0, 4096)]), pace.mixed(0, 0, [(0, 4096)]), pace.decode(64, 1000)
    assert max(prompt, tokens) < mixed < prompt + tokens
    assert pace.mixed(64, 1000, [(8192, 4096)]) > mixed


# The whole answer


def asked(model: str = "llama-3.1-8b", gpu: str = "h100-sxm", context: int = 2048, engine: str = "vllm", **choices: int) -> ReplayQuestion:
    card, found = find_gpu(gpu), load_model(model)
    info = GpuInfo(name=card.name, memory_bytes=card.memory()[0])
    question = Question(found.weighed(), find_engine(engine), Options(device=card.device(None), **choices), Asked(model, model, model, context, 1), info)  # type: ignore[arg-type]  # numbers
    return ReplayQuestion(question, card.machine(None))


def test_reserving_ahead_wastes_most_of_the_cache() -> None:
    """VLLM's paper (SOSP 2023, figure 2): of the memory that Orca reserves for the maximum of 2,048 tokens, 20.4 % hold tokens; in blocks 96.3 % do. Its 26.8 %
    and 38.2 % for powers of two and exact lengths count holes between pieces too, which are not counted here.
    """
    result = replay(asked(), parse_synthetic(CHAT).rows(), Reading("chat", "synthetic"))
    used = {row.name: row.used or 0.0 for row in result.memory}
    assert 0.18 < used["maximum"] < 0.27
    assert used["maximum"] < used["power of two"] < used["exact"] < 0.7
    assert used["paged"] > 0.96
    for row in result.memory:
        assert sum(part or 0.0 for part in (row.used, row.later, row.never, row.last_block)) == pytest.approx(1)
    at_once = {row.name: row.at_once for row in result.memory}
    assert at_once["maximum"] == result.pool.blocks // 128
    assert at_once["paged"] > 3.5 * at_once["maximum"]


def test_idle_conversations_are_a_mean_over_all_of_the_time() -> None:
    """Two turns of one session: it is in the cache for the 100 s between them."""
    rows = [Row(0.0, 100, 20, session="a"), Row(100.0, 200, 20, session="a")]
    found = replay(asked(), rows, Reading("t", "kvcalc", "sessions"))
    assert found.prefix is not None
    assert found.prefix.warm_mean == pytest.approx(100 / found.outcome.seconds, rel=0.02)
    assert sum(each.warm for each in found.course[:50]) == pytest.approx(50, rel=0.02)


def test_a_change_is_another_replay() -> None:
    result = replay(asked(), parse_synthetic(CHAT).rows(), Reading("chat", "synthetic"))
    by_words = {row.options: row for row in result.what_if}
    assert set(by_words) == {"", "--max-seqs 256", "--max-seqs 4096", "--block-size 64", "--kv-dtype fp8", "--dp 2"}
    assert by_words[""].outcome == result.outcome
    assert by_words["--kv-dtype fp8"].blocks == pytest.approx(2 * result.pool.blocks, rel=0.01)
    assert by_words["--dp 2"].gpus == 2
    assert by_words["--dp 2"].outcome.ttft_s.p95 < result.outcome.ttft_s.p95


@pytest.mark.parametrize(("engine", "block", "codes"), [("vllm", 16, {"cut"}), ("sglang", 1, {"cut", "scheduler"}), ("trtllm", 32, {"cut", "scheduler"})])
def test_engines(engine: str, block: int, codes: set[str]) -> None:
    result = replay(asked(engine=engine), parse_synthetic(CHAT).rows(), Reading("chat", "synthetic"))
    assert (result.outcome.served, result.outcome.never) == (1498, 2)  # of 2,048 tokens and more are two prompts
    assert {note.code for note in result.notes} >= codes
    assert result.pool.block_tokens == block
    assert sum(each.running for each in result.course) > 0


def test_models_with_windows_find_no_prefixes() -> None:
    rows = [Row(index / 10, 600, 10, (1, 2)) for index in range(20)]
    result = replay(asked("gemma-3-27b", "h200-sxm", 8192), rows, Reading("rows", "mooncake", "blocks"))
    assert result.outcome.served == 20
    assert result.prefix is not None
    assert result.prefix.hit_tokens == 0
    assert {row.used for row in result.memory} == {None}
    assert result.memory[0].at_once > result.memory[-1].at_once > 0
    assert result.prefix.unlimited_tokens == 19 * 600
    assert "prefixes" in {note.code for note in result.notes}


def test_a_context_that_the_cache_does_not_hold_is_told() -> None:
    """131,072 tokens of Llama-3.1-8B are 16 GiB, and its weights 15 of the 23.6 GiB of an RTX 4090."""
    result = replay(asked(gpu="rtx4090", context=131_072), [Row(0.0, 100, 5)], Reading("rows", "kvcalc"))
    assert result.pool.limit_tokens == result.pool.blocks * 16 < 131_072
    assert "context" in {note.code for note in result.notes}


def test_a_deployment_that_does_not_keep_up_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcalc.replay.fleet.MOST_WAITING", 50)
    fleet = Fleet(shape(10), Metronome(), 1, "round-robin")

    def send_all() -> None:
        for number in range(200):
            fleet.send(Request(number / 100, 10, 10))

    with pytest.raises(KvcalcError, match="does not keep up"):
        send_all()


# The command

WORDS = ("replay", "-m", "llama-3.1-8b", "--gpu", "h100-sxm", "--context", "8192")
SMALL = ("--synthetic", "prompt=constant(100) output=constant(10) rate=5/s requests=20")


def test_the_screen() -> None:
    done = kvcalc(*WORDS, *SMALL)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("llama-3.1-8b on NVIDIA H100 SXM5 80GB: all 20 requests fit; p95 wait ~")
    assert "prompt   100  100  100  100  100" in done.out
    assert "ahead: maximum" in done.out
    for width in ("40", "200"):
        narrow = kvcalc(*WORDS, *SMALL, env={"COLUMNS": width})
        assert narrow.code == 0
        assert max(map(len, narrow.out.splitlines())) <= int(width)


def test_a_bar_on_a_terminal_and_the_answer_elsewhere(tmp_path: Path) -> None:
    with (tmp_path / "answer").open("wb") as out:
        said = on_a_terminal((*WORDS, "--synthetic", "prompt=constant(100) output=constant(10) rate=50/s requests=30000"), out=out)  # about two seconds
    assert b"%" in said
    answer = (tmp_path / "answer").read_text()
    assert answer.startswith("llama-3.1-8b on NVIDIA H100 SXM5 80GB: all 30,000 requests fit")
    assert "\x1b" not in answer


def test_a_pipe() -> None:
    words = [sys.executable, "-m", "kvcalc", *WORDS, "-", "--json"]
    done = subprocess.run(words, input=b"arrival,prompt,output\n0,100,10\n", capture_output=True, timeout=60, check=True)
    assert json.loads(done.stdout)["trace"]["source"] == "standard input"


def test_json_and_what_never_fits(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("arrival,prompt,output\n0,100,10\n1,9000,5\n2,100,0\n3,x,5\n")
    done = kvcalc(*WORDS, str(tmp_path / "t.csv"), "--json")
    assert done.code == 1
    answer = done.json
    assert answer["schema"] == 1
    assert (answer["outcome"]["served"], answer["outcome"]["never"], answer["outcome"]["longest_never"]) == (1, 1, 9005)
    assert (answer["trace"]["requests"], answer["trace"]["empty"], answer["trace"]["malformed"]) == (2, 1, 1)
    assert answer["trace"]["malformed_lines"] == ["line 5: prompt is no whole number"]
    assert answer["prefix"] is None


def test_routing_on_the_command_line(tmp_path: Path) -> None:
    lines = [
        {
            "timestamp": 1000 * index,
            "input_length": 512 * (1 + index // 4),
            "output_length": 5,
            "hash_ids": [100 * (index % 4) + part for part in range(1 + index // 4)],
        }
        for index in range(24)
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    answer = kvcalc(*WORDS, str(tmp_path / "t.jsonl"), "--dp", "3", "--routing", "sticky", "--json").json
    assert answer["routing"] == {"routing": "sticky", "requests": 0, "tokens": 0, "ttft_s": 0.0}
    assert {"--routing round-robin", "--routing prefix"} <= {row["options"] for row in answer["what_if"]}
    assert answer["prefix"]["unlimited_blocks"] == 4 * (1 + 2 + 3 + 4 + 5)
    screen = kvcalc(*WORDS, str(tmp_path / "t.jsonl"), "--dp", "3").out
    assert "Routing round-robin: ~" in screen
    assert "of the trace's 84 blocks" in screen


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 2, "name a trace"),
        (("t.csv", *SMALL), 2, "name a trace"),
        (("-",), 3, "standard input is empty"),
        ((str(Path(__file__).parent),), 3, "cannot be read: Is a directory"),
        (("nothing.csv",), 3, "nothing.csv cannot be read"),
        ((*SMALL, "--strict"), 2, "--strict goes with a file"),
        ((*SMALL, "--routing", "prefix"), 2, "--dp 2 or more"),
        ((*SMALL, "--routing", "nearest", "--dp", "2"), 2, "known: round-robin, sticky, prefix"),
        ((*SMALL, "--routing", "sticky", "--dp", "2"), 3, "wants a trace that names conversations"),
        ((*SMALL, "--engine", "ideal"), 3, "ideal is no server that hands out blocks"),
        ((*SMALL, "--engine", "llama.cpp"), 3, "replay on vllm, sglang or trtllm"),
        ((*SMALL, "--rate-scale", "0"), 2, "is not above 0 and up to 100"),
        ((*SMALL, "--rate-scale", "1e-400"), 2, "1e-400 is below 0.000001"),
        ((*SMALL, "--kv-mem", "1MiB"), 1, "no room for any request"),
        ((*SMALL, "--kv-mem", "1GiB", "--reserve", "1GiB"), 2, "--reserve has nothing to say"),
        (("--synthetic", ""), 2, "prompt= is missing"),
        (("--synthetic", "prompt=lognormal(512,1.0) output=geometric(200)"), 2, "rate= is missing"),
        (("--synthetic", "prompt=zipf(2) output=geometric(200) rate=5/s"), 2, "there are constant(tokens)"),
        (("--synthetic", "prompt=uniform(9,2) output=geometric(200) rate=5/s"), 2, "least above its most"),
        (("--synthetic", "prompt=constant(-5) output=geometric(200) rate=5/s"), 2, "as plain numbers"),
        (("--synthetic", "prompt=constant(5,6) output=geometric(200) rate=5/s"), 2, "wants tokens"),
        (("--synthetic", "prompt=geometric(0) output=geometric(200) rate=5/s"), 2, "less than one token"),
        (("--synthetic", "prompt=lognormal(512,99) output=geometric(200) rate=5/s"), 2, "spreads over more"),
        (("--synthetic", "prompt=constant(5) output=constant(5) rate=5"), 2, "write it like 5/s"),
        (("--synthetic", "prompt=constant(5) output=constant(5) rate=0/s"), 2, "not at least 0.000001 and up to 1,000,000 a second"),
        (("--synthetic", f"prompt=constant(5) output=constant(5) rate=0.{'0' * 400}1/s"), 2, "not at least 0.000001"),
        (("--synthetic", "prompt=constant(5) output=constant(5) rate=1000001/s"), 2, "up to 1,000,000 a second"),
        (("--synthetic", "prompt=constant(5) output=constant(5) rate=5/s requests=0"), 2, "at least 1"),
        (("--synthetic", "prompt=constant(5) output=constant(5) rate=5/s seed=x"), 2, "seed=x is not a whole number"),
        (("--synthetic", "prompt=constant(5) prompt=constant(5) rate=5/s"), 2, "prompt is said twice"),
        (("--synthetic", "promt=constant(5) output=constant(5) rate=5/s"), 2, "there are prompt, output, rate"),
        (("--synthetic", "prompt=constant(999999999999) output=constant(5) rate=5/s"), 2, "goes beyond"),
    ],
)
def test_it_refuses(words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    done = kvcalc(*WORDS, *words, cwd=tmp_path)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


MEANS = {
    "constant(7)": 7,
    "uniform(3,9)": 6,
    "lognormal(50,0.5)": 50 * 2.718281828**0.125,
    "geometric(200)": 200,
    "geometric(1)": 1,
    "exponential(30)": 30,
    "normal(100,20)": 100,
}


@pytest.mark.parametrize("drawn", MEANS)
def test_what_is_drawn(drawn: str) -> None:
    """The same each time, at least 1 token, and on average what the words say."""
    spec = parse_synthetic(f"prompt={drawn} output=constant(5) rate=120/min requests=20000 seed=3")
    rows = list(spec.rows())
    assert rows == list(spec.rows())
    assert min(row.prompt for row in rows) >= 1
    assert sum(row.prompt for row in rows) / 20000 == pytest.approx(MEANS[drawn], rel=0.03)
    assert rows[-1].arrival_s == pytest.approx(20000 / 2, rel=0.05)


@pytest.mark.parametrize("rate", ["0.000001", "1000000"])
def test_the_least_and_the_highest_rate_are_drawn(rate: str) -> None:
    rows = list(parse_synthetic(f"prompt=constant(5) output=constant(5) rate={rate}/s requests=2000").rows())
    assert rows[-1].arrival_s * float(rate) == pytest.approx(2000, rel=0.1)
