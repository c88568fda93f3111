"""What prompts share: the cache against a list of blocks, breaks against those of public reports, files of every kind, and no word of a prompt shown."""

import gzip
import json
import os
import random
import subprocess
import sys
import uuid
from array import array
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import prompts as reader
from kvcalc.catalog import load_model, preset_names
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.engines.reuse import block_tokens
from kvcalc.errors import KvcalcError
from kvcalc.prefix.blocks import PrefixCache, digest_bytes, digests, reusable_blocks
from kvcalc.prefix.breaks import differences, places_in, without
from kvcalc.prefix.kinds import masked, named_in
from kvcalc.prefix.prompt import Prompt, RecordError, from_record, plain
from kvcalc.prefix.sharing import Held, Rules, shared
from kvcalc.prompts import PromptFile, encode_bytes
from kvcalc.render.prefix import percent
from kvcalc.results.prefix import Prefix, Rate
from tests.command import kvcalc

Chain = tuple[bytes, ...]


class Blocks:
    """The same cache as a plain list: every block by all that stands before it, the least recently used first."""

    def __init__(self, capacity: int | None) -> None:
        self.capacity = capacity
        self.queue: list[Chain | int] = []
        self.ever: set[Chain] = set()
        self.users: dict[Chain, int] = {}
        self.number = 0

    def add(self, blocks: Sequence[bytes], partly: int, space: bytes) -> int:
        chains: list[Chain] = [(space, *blocks[: index + 1]) for index in range(len(blocks))]
        found = 0
        while found < len(chains) and chains[found] in self.queue:
            found += 1
        for chain in chains:
            self.users[chain] = self.users.get(chain, 0) + 1
            if chain in self.queue:
                self.queue.remove(chain)
        if partly:
            self.number += 1
            self.queue.append(self.number)
        self.queue += reversed(chains)
        while self.capacity is not None and len(self.queue) > self.capacity:
            del self.queue[0]
        self.ever |= set(chains)
        return found


FEW_BLOCKS = st.lists(st.integers(0, 2), max_size=6)


@settings(max_examples=400, deadline=None)
@given(
    st.lists(st.tuples(FEW_BLOCKS, st.integers(0, 1), st.sampled_from([b"", b"", b"a"])), max_size=25),
    st.one_of(st.none(), st.integers(7, 20)),
    st.sampled_from([1, 2, 16]),
)
def test_the_cache_is_a_list_of_blocks(given_prompts: list[tuple[list[int], int, bytes]], capacity: int | None, block: int) -> None:
    cache, plainly = PrefixCache(digest_bytes(block), capacity), Blocks(capacity)
    for numbers, partly, space in given_prompts:
        blocks = [array("I", [number] * block).tobytes() for number in numbers]
        assert cache.add(digests(b"".join(blocks), block), partly, space) == plainly.add(blocks, partly, space)
    if capacity is None:
        assert cache.new_blocks == len(plainly.ever)
        assert cache.shared_blocks == sum(users > 1 for users in plainly.users.values())
        assert cache.used_blocks == sum(plainly.users.values())
        for run, size in cache.trunks(1000, 1):
            assert size == len(run.digests) // digest_bytes(block)


def test_a_space_that_is_left_and_entered_again() -> None:
    """Two prompts without a whole block leave the first one; what came into it since is still there once both are forgotten."""
    cache = PrefixCache(8, 8)
    assert [cache.add(b"", 1), cache.add(b"", 1), cache.add(bytes(range(48)), 0, b"a"), cache.add(bytes(8)), cache.add(bytes(8))] == [0, 0, 0, 0, 1]


@settings(max_examples=200, deadline=None)
@given(st.lists(FEW_BLOCKS, max_size=25), st.integers(7, 30))
def test_blocks_that_cost_more_at_the_front(given_prompts: list[list[int]], capacity: int) -> None:
    """A state beside the first block, and a window that ends: units by depth 3, 5, 6, 7, ... With enough of them nothing is dropped."""
    units = [0, 3, 5, 6, 7, 8, 9]
    bounded, endless = PrefixCache(8, capacity + 100, units.__getitem__), PrefixCache(8, None, units.__getitem__)
    small = PrefixCache(8, 9 + capacity % 5, units.__getitem__)
    distinct: set[tuple[int, ...]] = set()
    for numbers in given_prompts:
        wanted = b"".join(number.to_bytes(8, "little") for number in numbers)
        distinct |= {tuple(numbers[: index + 1]) for index in range(len(numbers))}
        most = sum(units[len(chain)] - units[len(chain) - 1] for chain in distinct)
        found = endless.add(wanted)
        assert small.add(wanted) <= found
        if most <= capacity + 100:
            assert bounded.add(wanted) == found
        else:
            return
    assert endless.new_units == sum(units[len(chain)] - units[len(chain) - 1] for chain in distinct)
    assert endless.used_units == sum(units[len(numbers)] for numbers in given_prompts)


def test_memory_ends_before_the_tree_does() -> None:
    """10,000 prompts of 10 blocks of their own, in the memory of few: the last ones are still there, and it is said."""
    cache = PrefixCache(8, most_weight=5000)
    for number in range(10_000):
        assert cache.add(b"".join((100 * number + at).to_bytes(8, "little") for at in range(10))) == 0
    assert cache.overflowed
    assert cache.add((100 * 9999).to_bytes(8, "little")) == 1
    assert cache.add(bytes(8)) == 0


# vLLM's rule: whole blocks only, and the last token is never from the cache


@pytest.mark.parametrize(
    ("tokens", "block", "reused"),
    [(160, 16, 144), (161, 16, 160), (15, 16, 0), (16, 16, 0), (17, 16, 16), (1, 1, 0), (100, 1, 99), (128, 64, 64), (0, 16, 0)],
)
def test_a_prompt_that_was_there_before(tokens: int, block: int, reused: int) -> None:
    """160 tokens again compute 16, 161 compute 1 (the design document of vLLM V1, prefix caching)."""
    assert reusable_blocks(tokens, block) * block == reused
    if tokens:
        found = shared(lambda: [ids(range(tokens))] * 2, encode_bytes, Rules(block), again=True)
        assert (found.unlimited.hit_tokens, found.unlimited.tokens) == (reused, 2 * tokens)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=12), max_size=12), st.sampled_from([1, 2, 3, 4]))
def test_what_is_found_is_the_longest_beginning_of_an_earlier_prompt(numbers: list[list[int]], block: int) -> None:
    """Compared token by token with each of them."""
    hits = 0
    for index, these in enumerate(numbers):
        agreeing = [
            next((at for at, (one, other) in enumerate(zip(these, those, strict=False)) if one != other), min(len(these), len(those)))
            for those in numbers[:index]
        ]
        hits += min(max(agreeing, default=0) // block, (len(these) - 1) // block) * block
    found = shared(lambda: map(ids, numbers), encode_bytes, Rules(block), again=True).unlimited
    assert (found.hit_tokens, found.tokens) == (hits, sum(map(len, numbers)))


@pytest.mark.parametrize(("at", "block", "reused"), [(20, 16, 16), (20, 1, 20), (20, 64, 0)])
def test_one_token_differs(at: int, block: int, reused: int) -> None:
    """Of 10,000 tokens: floor(p / B) B stay."""
    other = [*range(at), 77_777, *range(at + 1, 10_000)]
    assert shared(lambda: [ids(range(10_000)), ids(other)], encode_bytes, Rules(block), again=True).unlimited.hit_tokens == reused


def ids(numbers: Iterable[int]) -> Prompt:
    return Prompt("", (), "token ids", array("I", numbers).tobytes())


def test_a_budget_drops_what_was_used_longest_ago() -> None:
    """Blocks of one token, room for 8: A, B (4 each), A hits 3, C drops B, B hits nothing, A was dropped last."""
    a, b, c = ids([1, 2, 3, 4]), ids([5, 6, 7, 8]), ids([9, 10, 11, 12])
    held = Held(8, 100, lambda tokens: tokens, 1000)
    found = shared(lambda: [a, b, a, c, b, ids(range(9)), ids(range(9))], encode_bytes, Rules(1, held), again=True)
    assert found.unlimited.hit_tokens == 3 + 3 + 8
    assert found.budget is not None
    assert (found.budget.hit_tokens, found.budget.refused, found.budget.prompts, found.budget.capacity_tokens) == (3, 2, 5, 8)
    assert (found.tree.blocks, found.tree.distinct_blocks, found.tree.shared_blocks) == (4 * 5 + 18, 12 + 9, 4 + 4 + 9)
    assert (found.tree.alone_bytes, found.tree.once_bytes) == (3800, 2100)


def test_a_block_that_is_not_full_takes_its_place() -> None:
    """Blocks of 2 tokens, room for 4: each prompt of 3 tokens leaves a block that nobody finds, and B's drops what A left first."""
    a, b = ids([1, 2, 3]), ids([5, 6, 7])
    held = Held(4, 1, lambda tokens: -(-tokens // 2), 1000)
    found = shared(lambda: [a, b, a], encode_bytes, Rules(2, held), again=True)
    assert found.budget is not None
    assert found.budget.hit_tokens == 2
    held = Held(3, 1, lambda tokens: -(-tokens // 2), 1000)
    found = shared(lambda: [a, b, ids([5, 6, 8]), a], encode_bytes, Rules(2, held), again=True)
    assert found.budget is not None
    assert found.budget.hit_tokens == 2


def test_prefill_time_is_that_of_the_tokens_that_were_there() -> None:
    def seconds(cached: int, tokens: int) -> tuple[float, float]:
        return (tokens - cached) * 0.5, (tokens - cached) * 2.0

    found = shared(lambda: [ids(range(33))] * 2, encode_bytes, Rules(16, prefill=seconds), again=True)
    assert (found.unlimited.seconds_saved_low, found.unlimited.seconds_saved_high) == (16.0, 64.0)
    assert shared(lambda: [ids(range(33))], encode_bytes, Rules(16), again=True).unlimited.seconds_saved_low is None


@pytest.mark.parametrize("name", preset_names())
def test_blocks_end_where_the_plan_says(name: str) -> None:
    """Of vLLM, whose pool says how many tokens a block has; of models that keep no tokens nothing ends."""
    try:
        plan = find_engine("vllm").plan(load_model(name).spec, Options())
        found = block_tokens(plan)
    except KvcalcError:
        return
    assert found == plan.pools[0].unit_rows


@pytest.mark.parametrize(
    ("engine", "options", "tokens"),
    [
        ("sglang", Options(), 1),
        ("sglang", Options(block_size=64), 64),
        ("trtllm", Options(), 32),
        ("vllm", Options(), 16),
        ("vllm", Options(block_size=32), 32),
        ("vllm", Options(tp=16, dcp=2), 32),
    ],
)
def test_blocks_of_other_engines_and_of_shared_tokens(engine: str, options: Options, tokens: int) -> None:
    """SGLang's page; TensorRT-LLM's tokens_per_block; with --dcp 2 a block has its tokens on two GPUs."""
    assert block_tokens(find_engine(engine).plan(load_model("llama-3-8b").spec, options)) == tokens


# Breaks

SYSTEM = (
    "You are a careful assistant of a company that sells garden tools.\nAnswer in the language of the question, briefly, and never promise a day of delivery.\n"
    "If a question is about prices, look at the list below and quote it word for word.\nIf it is about anything else, say that a colleague will write back.\n"
)
WORDS = """spade rake hoe barrow fork shears trowel hose bucket gloves twine seeds lamp ladder broom saw axe file rope net""".split()  # noqa: SIM905 (words)


def chats(start: Callable[[random.Random], str], count: int = 40, after: str = SYSTEM) -> list[Prompt]:
    """Chats whose system message begins with something of each prompt's own, and then goes on alike."""
    made = random.Random(7)
    records = []
    for _ in range(count):
        question = " ".join(made.choice(WORDS) for _ in range(40))
        records.append({"messages": [{"role": "system", "content": start(made) + after}, {"role": "user", "content": question}]})
    return [prompt for record in records for prompt in from_record(record)]


def found_in(given: Sequence[Prompt]) -> Any:
    return shared(lambda: given, encode_bytes, Rules(16), again=True).breaks


def clock(made: random.Random) -> str:
    return f"{made.randrange(24):02d}:{made.randrange(60):02d}:{made.randrange(60):02d}"


def day(made: random.Random) -> str:
    return f"{made.randrange(1, 29):02d}"


SHOP = str(Path(__file__).parent / "prompts" / "shop.jsonl")
TOOLS = [{"type": "function", "function": {"name": name, "description": f"Looks for a {name} in the stock of all shops."}} for name in WORDS[:6]]


def tools_in_any_order(made: random.Random) -> str:
    return "\n".join(json.dumps(tool) for tool in made.sample(TOOLS, 6)) + "\n"


def keys_in_any_order(made: random.Random) -> str:
    fields = [("type", "object"), ("properties", "what is asked for"), ("required", "the article"), ("description", "a look at the list")]
    return json.dumps(dict(made.sample(fields, 4))) + "\n"


def lines_in_any_order(made: random.Random) -> str:
    return "".join(f"- the rule about the {word} comes from its own file\n" for word in made.sample(WORDS[:6], 6))


BREAKS: list[tuple[str, Callable[[random.Random], str], int]] = [
    # what stands there, how such prompts begin (the rows of public reports), the line
    ("time stamp", lambda made: f"date: 2031-02-03T{clock(made)}.{made.randrange(10**6):06d}\n", 1),
    ("time stamp", lambda made: f"Current date and time: Monday {int(day(made))} Feb 2031 04:{day(made)}:06 PM PST\n", 1),
    ("time stamp", lambda made: f"Conversation started: Monday, February {day(made)}, 2031 04:{day(made)} AM\n", 1),
    ("time stamp", lambda made: f"The time is {clock(made)}. Speak of it as now.\n", 1),
    ("time stamp", lambda made: f"A line that stays.\nAnother.\nIt is now 2031-02-{day(made)} {clock(made)}\n", 3),
    ("date", lambda made: f"Today Date: {day(made)} Jul 2031\n\n", 1),
    ("date", lambda made: f"Current date: 2031-02-{day(made)}\n", 1),
    ("epoch time", lambda made: f"ts={made.randrange(1_600_000_000, 1_900_000_000)}\n", 1),
    ("UUID", lambda made: f"Session {uuid.UUID(int=made.getrandbits(128))}\n", 1),
    ("id", lambda made: f"x-billing: v=9.9.9; id={made.getrandbits(20):05x};\n", 1),
    ("id", lambda made: f"request id: {made.randrange(10**6)}\n", 1),
    ("id", lambda made: f"<environment run={made.getrandbits(16):04x}>\n", 1),
    ("version", lambda made: f"client 1.{made.randrange(100)}.{made.randrange(100)}\n", 1),
    ("number", lambda made: f"Attempt {made.randrange(10, 99)} of this worker\n", 1),
    ("e-mail address", lambda made: f"Written to {made.choice(WORDS)}{made.randrange(100)}@example.com today\n", 1),
    ("IP address", lambda made: f"Seen at 10.{made.randrange(256)}.{made.randrange(256)}.7\n", 1),
    ("path", lambda made: f"Folder: /home/work/{made.choice(WORDS)}/{made.choice(WORDS)}\n", 1),
    ("user name", lambda made: f"You help the user {made.choice(WORDS).title()} {made.choice(WORDS).title()}\n", 1),
    ("secret", lambda made: f"Use sk-{made.getrandbits(100):x} for calls\n", 1),
    ("secret", lambda made: f"Authorization: Bearer {made.getrandbits(100):x}\n", 1),
    ("reasoning block", lambda made: made.choice(["", f"<think>\n{' '.join(made.sample(WORDS, 4))}\n</think>\n"]), 1),
    ("white space", lambda made: "Rules" + " " * made.randrange(30) + "\n", 1),
    ("order of tools", tools_in_any_order, 1),
    ("order of keys", keys_in_any_order, 1),
    ("order of lines", lines_in_any_order, 1),
    ("other text", lambda made: f"Mood: {made.choice(WORDS)}\n", 1),
]


@pytest.mark.parametrize(("kind", "start", "line"), BREAKS, ids=[f"{number}-{row[0]}" for number, row in enumerate(BREAKS)])
def test_what_breaks_sharing_is_named_and_what_it_costs(kind: str, start: Callable[[random.Random], str], line: int) -> None:
    given = chats(start)
    breaks = found_in(given)
    assert breaks is not None
    (found,) = breaks.found
    assert found.kinds[0] == kind
    assert (found.role, found.part, found.line) == ("system", 1, line)
    assert found.prompts == len(given)
    same = found_in(chats(lambda _: ""))
    assert same is None
    best = shared(lambda: chats(lambda _: "Alike in all.\n"), encode_bytes, Rules(16), again=True).unlimited
    assert found.moved.hit_rate > breaks.now.hit_rate + 0.1
    assert found.moved.hit_rate > best.hit_rate - 0.12


def test_the_date_in_line_1() -> None:
    """100 prompts of 800 equal characters behind a date of their own: 1 + 800 / 4 tokens, of which 12 blocks of 16 are found 99 times."""
    given = [plain(f"2031-{month:02d}-{date:02d} {'The same words for all of them. ' * 25}") for month in range(1, 11) for date in range(11, 21)]
    breaks = found_in(given)
    (found,) = breaks.found
    assert (found.kinds, found.shown, found.line, found.token) == (("date",), "####-##-##", 1, 0)
    tokens = -(-(10 + 1 + 800) // 4)
    assert breaks.now.tokens == 100 * tokens
    assert found.moved.hit_tokens == 99 * (801 // 64) * 16
    assert percent(found.moved) == f"{round(100 * 99 * 192 / (100 * tokens))} %"


def test_several_makes_of_prompts_and_breaks_in_only_some() -> None:
    """Dates before one text, ids before another, nothing before a third; of the first make only every second prompt has one."""
    made = random.Random(3)
    other = SYSTEM.replace("garden", "kitchen").replace("colleague", "clerk").replace("careful", "quick").replace("question", "letter")
    first = chats(lambda _: f"Current date: 2031-02-{day(made)}\n" if made.random() < 0.5 else "", 60)
    second = chats(lambda _: f"request id: {made.randrange(10**6)}\n", 60, other)
    third = chats(lambda _: "", 60, " ".join(WORDS * 4))
    breaks = found_in([prompt for row in zip(first, second, third, strict=True) for prompt in row])
    assert {each.kinds for each in breaks.found} == {("date",), ("id",)}
    assert all(each.moved.hit_tokens < breaks.all_moved.hit_tokens for each in breaks.found)


def test_conversations_that_go_on_in_their_own_words_break_at_one_place() -> None:
    """30 of 6 turns each, with the time in the last line of the system message: what is behind it differs from one to the next."""
    made, given = random.Random(9), list[Prompt]()
    for _ in range(30):
        said: list[dict[str, str]] = []
        for _ in range(6):
            said.append({"role": "user", "content": " ".join(made.choice(WORDS) for _ in range(40))})
            now = f"Current date and time: Monday 3 Feb 2031 {clock(made)} PM PST"
            given += from_record({"messages": [{"role": "system", "content": f"{SYSTEM}{now}\n"}, *said]})
            said.append({"role": "assistant", "content": " ".join(made.choice(WORDS) for _ in range(60))})
    breaks = found_in(given)
    (found,) = breaks.found
    assert (found.kinds, found.line, found.prompts) == (("time stamp",), 5, 180)
    assert found.moved.hit_rate > breaks.now.hit_rate + 0.4


def test_two_breaks_of_which_neither_is_worth_moving_alone() -> None:
    """The other one still stands in the way."""
    breaks = found_in(
        chats(
            lambda made: (
                f"The time is {clock(made)}.\nAll of this line is alike, in each one of all the prompts that there are.\nrequest id: {made.randrange(10**6)}\n"
            ),
            200,
        )
    )
    assert {each.kinds for each in breaks.found} == {("time stamp",), ("id",)}
    by_kind = {each.kinds[0]: each for each in breaks.found}
    assert by_kind["id"].moved.hit_rate < breaks.all_moved.hit_rate - 0.1
    assert (by_kind["time stamp"].line, by_kind["id"].line) == (1, 3)


def test_questions_at_the_end_are_no_break() -> None:
    assert found_in(chats(lambda _: "")) is None
    assert found_in([plain(word) for word in WORDS]) is None


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=300), st.text(max_size=300), st.text(max_size=40), st.text(max_size=40))
def test_differences_are_in_order(head: str, tail: str, one: str, other: str) -> None:
    first, second = head + one + tail, head + other + tail
    spans = list(differences(first, second))
    for start, end, begin, stop in spans:
        assert 0 <= start <= end <= len(first)
        assert 0 <= begin <= stop <= len(second)
        assert first[start:end] != second[begin:stop]
    assert all(before[1] <= after[0] for before, after in pairwise(spans))


@settings(max_examples=200, deadline=None)
@given(st.text("abc \n", max_size=300), st.text("01:-", min_size=1, max_size=40), st.text("XYZ", min_size=1, max_size=40))
def test_a_difference_is_found_where_it_is(head: str, one: str, other: str) -> None:
    """Widened at most to the line that it is in, or to all that was before."""
    tail = " of what is told to each of them, word for word, without one letter that is not the same in both.\n"
    ((start, end, begin, stop),) = differences(head + one + tail, head + other + tail)
    assert (start, begin) <= (len(head), len(head))
    assert (end, stop) >= (len(head + one), len(head + other))
    assert (head + one)[:start] == (head + other)[:begin]
    assert (head + one + tail)[end:] == (head + other + tail)[stop:]
    assert list(differences(head + one + tail, head + one + tail)) == []


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32))
def test_moving_keeps_every_character(seed: int) -> None:
    made = random.Random(seed)
    kind, start, _ = made.choice(BREAKS)
    given = chats(start, 12)
    places = places_in(given)
    assert places
    for place in places:
        for prompt in given:
            moved = without(prompt.text, [place])
            assert sorted(moved) == sorted(prompt.text), kind


# Nothing of a prompt is shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("2031-02-03T04:05:06Z", "####-##-##T##:##:##Z".replace("T", "x").replace("Z", "x")),
        ("sk-abcDEF123456", "xx-xxx…"),
        ("Anna", "xxxx"),
        ("a\x1b[31mb\n  c", "x?[xxxx x"),
        ("Übermäßig 12", "xxx… ##"),
        ("1" * 100, "#" * 23 + "…"),
        ("", ""),
    ],
)
def test_a_value_is_shown_by_its_form(value: str, shown: str) -> None:
    assert masked(value) == shown


def test_what_differs_over_thousands_of_characters_is_named_by_its_beginning() -> None:
    """Forms that are looked for from every character on would take hours."""
    assert named_in("a" * 300_000, 10, 299_990) == ((), 10, 299_990)
    assert named_in("x 2031-02-03 " + "b." * 150_000, 5, 300_000) == (("date",), 2, 300_000)


def secretive(path: Path, count: int = 60) -> list[str]:
    """A file whose prompts are full of secrets, malformed lines among them; returns the secrets."""
    made = random.Random(11)
    secrets, lines = [], []

    def secret() -> str:
        secrets.append("".join(made.choice("abcdefghijkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789") for _ in range(24)))
        return secrets[-1]

    for number in range(count):
        system = f"Authorization: Bearer {secret()}\nUser: {secret()} {secret()}\nsession={secret()}\n{SYSTEM}"
        record: dict[str, Any] = {"messages": [{"role": "system", "content": system}, {"role": secret(), "content": secret()}], "user": secret()}
        record["tools"] = [{"name": secret(), "description": secret()}]
        if number % 10 == 3:
            lines.append('{"messages": ' + secret())
        elif number % 10 == 4:
            lines.append(json.dumps({secret(): secret()}))
        elif number % 10 == 5:
            lines.append(json.dumps({"messages": [{"content": secret()}]}))
        else:
            lines.append(json.dumps(record))
    path.write_text("\n".join(lines))
    return secrets


@pytest.mark.parametrize(
    "words", [(), ("--json",), ("--strict",), ("--format", "text"), ("--tokenizer", "FILE"), ("--model", "llama-3-8b", "--kv-mem", "1GiB")]
)
def test_no_secret_is_ever_shown(words: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    secrets = secretive(file)
    done = kvcalc("prefix", str(file), *(str(file) if word == "FILE" else word for word in words))
    shown = done.out + done.err
    assert len(shown) > 100
    pieces = {secret[at : at + 6] for secret in secrets for at in range(len(secret) - 5)}
    assert not [piece for piece in pieces if piece in shown]


# Files


def read(path: Path, content: bytes | str, **choices: Any) -> tuple[list[Prompt], PromptFile]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    file = PromptFile(str(path), form=choices.get("form"), strict=choices.get("strict", False))
    return list(file.read()), file


HELLO = json.dumps({"messages": [{"role": "user", "content": "hello"}]})
RECORDS: list[tuple[object, list[str]]] = [
    ("hello", ["hello"]),
    ({"prompt": "hello"}, ["hello"]),
    ({"text": "hello"}, ["hello"]),
    ({"input": "hello"}, ["hello"]),
    ({"prompt": ["one", "two"]}, ["one", "two"]),
    ([{"role": "user", "content": "hello"}], ["<|user|>\nhello\n"]),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}, ["<|user|>\na\nb\n"]),
    ({"input": [{"role": "user", "content": "hello"}], "instructions": "Be brief."}, ["<|system|>\nBe brief.\n<|user|>\nhello\n"]),
    (
        {
            "custom_id": "1",
            "method": "POST",
            "url": "/v1/chat/completions",
            "body": {"messages": [{"role": "user", "content": "hi"}], "tools": [{"name": "t"}]},
        },
        ['<|tools|>\n{"name": "t"}\n<|user|>\nhi\n'],
    ),
    ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{"b": 1, "a": 2}]}]}, ['<|assistant|>\n[{"b": 1, "a": 2}]\n']),
]


@pytest.mark.parametrize(("record", "texts"), RECORDS, ids=[str(number) for number in range(len(RECORDS))])
def test_a_record_is_a_prompt(record: object, texts: list[str]) -> None:
    assert [prompt.text for prompt in from_record(record)] == texts


def test_token_ids_are_taken_as_they_are() -> None:
    (prompt,) = from_record({"prompt": [1, 2, 1 << 31]})
    assert prompt.ids == array("I", [1, 2, 1 << 31]).tobytes()
    assert [each.ids for each in from_record({"prompt": [[1], [2]]})] == [array("I", [1]).tobytes(), array("I", [2]).tobytes()]


def test_another_model_or_salt_shares_nothing(tmp_path: Path) -> None:
    """Twice 64 tokens for each of 4 makes: 48 come from the cache in each pair, none across them."""
    path, text = tmp_path / "f.jsonl", "what is shared by all of them, word by word. " * 6
    made = [{"model": "a"}, {"model": "b"}, {"model": "b", "cache_salt": "x"}, {"cache_salt": "a"}]
    path.write_text("\n".join(json.dumps({"prompt": text[:256], **each}) for each in made * 2))
    result = answered(str(path))
    assert (result.unlimited.tokens, result.unlimited.hit_tokens, result.unlimited.prompts_hit) == (8 * 64, 4 * 48, 4)
    assert "prompts are for 4 models, adapters or cache salts" in next(note.text for note in result.notes if note.code == "spaces")


def test_pictures_differ_by_what_they_show() -> None:
    """A key that ignores the picture gives false hits: the mark is of its record."""

    def of(url: str) -> str:
        picture = {"type": "image_url", "image_url": {"url": url}}
        return next(from_record({"messages": [{"role": "user", "content": [picture, {"type": "text", "text": "what is it?"}]}]})).text

    assert of("https://a.example/1.png") != of("https://a.example/2.png")
    assert of("https://a.example/1.png") == of("https://a.example/1.png")
    assert "example" not in of("https://a.example/1.png")


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({}, "no messages, prompt, input or text"),
        (7, "neither an object"),
        (None, "neither an object"),
        ({"prompt": ""}, "an empty prompt"),
        ({"prompt": None}, "neither a text"),
        ({"prompt": []}, "neither a text"),
        ({"prompt": [-1]}, "token ids that are not"),
        ({"prompt": [1, 2**32]}, "token ids that are not"),
        ({"prompt": [1, True]}, "token ids that are not"),
        ({"prompt": [1, "a"]}, "token ids that are not"),
        ({"messages": []}, "an empty one"),
        ({"messages": "hello"}, "no list"),
        ({"messages": [{"content": "x"}]}, "without a role"),
        ({"messages": [{"role": "user", "content": 7}]}, "neither a text nor a list"),
        ({"messages": ["x"]}, "without a role"),
        ({"prompt": "\ud800"}, "lone surrogate"),
        ({"body": {}}, "no messages"),
        ({"tokens": -5}, "no messages, prompt, input or text"),
    ],
)
def test_what_is_no_prompt(record: object, reason: str) -> None:
    with pytest.raises(RecordError, match=reason):
        list(from_record(record))


def test_malformed_lines_are_counted_and_the_first_five_named(tmp_path: Path) -> None:
    deep = "[" * 100_000
    bad = ["{", '{"a": 1}', '{"prompt": ' + "9" * 5000 + "}", deep, "null", "7", '{"prompt": -1}']
    found, file = read(tmp_path / "f", "\n".join([*[HELLO] * 9, *bad, "", HELLO]) + "\n")
    assert len(found) == 10
    reading = file.reading
    assert (reading.lines, reading.prompts, reading.malformed, reading.format) == (17, 10, 7, "jsonl")
    assert [each.line for each in reading.first_malformed] == [10, 11, 12, 13, 14]
    assert reading.first_malformed[0].reason == "not JSON from character 2 on"
    assert reading.first_malformed[2].reason == reading.first_malformed[3].reason == "JSON with numbers or nesting beyond reason"
    with pytest.raises(KvcalcError, match=r"line 10 of .* holds no prompt: not JSON from character 2 on"):
        read(tmp_path / "f", "\n".join([*[HELLO] * 9, *bad]), strict=True)


@pytest.mark.parametrize("depth", [900, 985, 995, 1000])
def test_nesting_at_the_limit_is_no_reason_to_fail(depth: int, tmp_path: Path) -> None:
    """Python reads and writes JSON to different depths."""
    deep = "[" * depth + "]" * depth
    line = f'{{"messages": [{{"role": "user", "content": [{deep}]}}]}}'
    found, file = read(tmp_path / "f", f"{HELLO}\n{line}\n")
    assert len(found) == 1 + (file.reading.malformed == 0)


def test_a_line_beyond_reason_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MOST_LINE_BYTES", 100)
    found, file = read(tmp_path / "f", b"short\n" + b"x" * (3 << 20) + b"\nalso\n" + b"y" * 101)
    assert [prompt.text for prompt in found] == ["short", "also"]
    assert [each.line for each in file.reading.first_malformed] == [2, 4]


@pytest.mark.parametrize(
    ("content", "form", "texts"),
    [
        ("one\ntwo\r\n\n  \nthree", "text", ["one", "two", "three"]),
        ('{not json\n{"nor": this\n', "text", ["{not json", '{"nor": this']),
        ('"one"\n"two"\n', "jsonl", ["one", "two"]),
        ("7\n8\n", "text", ["7", "8"]),
        ("\ufeff" + HELLO, "jsonl", ["<|user|>\nhello\n"]),
        (HELLO + '\n"plain"\n{"prompt": "completion"}\n', "jsonl", ["<|user|>\nhello\n", "plain", "completion"]),
    ],
)
def test_the_form_is_told_by_the_first_lines(content: str, form: str, texts: list[str], tmp_path: Path) -> None:
    found, file = read(tmp_path / "f", content)
    assert ([prompt.text for prompt in found], file.reading.format) == (texts, form)


def test_a_packed_file_is_read_through(tmp_path: Path) -> None:
    found, _ = read(tmp_path / "f.gz", gzip.compress(f"{HELLO}\n{HELLO}\n".encode()))
    assert len(found) == 2
    packed = bytearray(gzip.compress(random.Random(0).randbytes(5000).hex().encode()))
    with pytest.raises(KvcalcError, match="line 1 cannot be read"):
        read(tmp_path / "f.gz", bytes(packed[:-3000]))
    packed[2000:2100] = bytes(100)
    with pytest.raises(KvcalcError, match="line 1 cannot be read"):
        read(tmp_path / "f.gz", bytes(packed))


def test_how_far_it_was_read_is_told(tmp_path: Path) -> None:
    """In bytes of the file, after each MiB of lines and at the end; a packed file as it is packed."""
    told = list[int]()
    line = f'"{"x" * (1 << 19)}"\n'.encode()
    for path, content in ((tmp_path / "f", line * 5), (tmp_path / "f.gz", gzip.compress(line * 5))):
        path.write_bytes(content)
        told.clear()
        list(PromptFile(str(path), form=None, strict=False, progress=told.append).read())
        assert len(told) == 3
        assert told == sorted(told)
        assert told[-1] == len(content)


# The command


def answered(*words: str) -> Prefix:
    return Prefix.model_validate_json(
        json.dumps({key.replace("schema", "schema_version"): value for key, value in kvcalc("prefix", *words, "--json").json.items()})
    )


@pytest.fixture(name="dated")
def dated_file(tmp_path: Path) -> str:
    """200 plain prompts: a date in line 1 (a JSON text keeps the line break), 2,400 equal characters, a question."""
    made = random.Random(5)
    path = tmp_path / "dated.jsonl"
    rules = " ".join(made.choice(WORDS) for _ in range(450))
    texts = [f"Today is 2031-{made.randrange(1, 13):02d}-{day(made)}.\n{rules}\n{' '.join(made.choice(WORDS) for _ in range(5))}" for _ in range(200)]
    path.write_text("\n".join(json.dumps(text) for text in texts))
    return str(path)


def test_the_command_says_what_it_costs(dated: str) -> None:
    done = kvcalc("prefix", dated, env={"COLUMNS": "200"})
    assert done.code == 0
    assert done.err == ""
    result = answered(dated)
    assert result.breaks is not None
    now, possible = percent(result.breaks.now)[:-2], percent(result.breaks.all_moved)[:-2]
    assert f"the date (####-##-##) in line 1 costs you ~{int(possible) - int(now)} % of a possible ~{possible} % hit rate" in done.out
    assert int(possible) > 94
    assert "~" not in kvcalc("prefix", dated, "--engine", "sglang", "--block-size", "64", env={"COLUMNS": "200"}).out.splitlines()[1]


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_it_reads_at_any_width(columns: str, dated: str) -> None:
    done = kvcalc("prefix", dated, "-m", "llama-3-8b", "--gpu", "h100", env={"COLUMNS": columns})
    assert max(map(len, done.out.splitlines())) <= int(columns)
    assert "\x1b" not in done.out


def test_a_budget_and_the_bytes_of_a_model(dated: str) -> None:
    """Llama-3-8B keeps 131,072 B a token: 2 MiB a block. 512 blocks less the null block are 8,176 tokens."""
    result = answered(dated, "--model", "llama-3-8b", "--kv-mem", "1GiB")
    assert result.budget is not None
    assert result.budget.capacity_tokens == 511 * 16
    assert result.tree.alone_bytes == result.tree.blocks * (2 << 20)
    assert result.tree.once_bytes == result.tree.distinct_blocks * (2 << 20)
    assert result.tree.shared_bytes == (result.tree.blocks - result.tree.distinct_blocks) * (2 << 20)
    assert result.budget.hit_tokens <= result.unlimited.hit_tokens
    assert answered(dated, "--model", "llama-3-8b").budget is None


def test_a_pipe_is_read_once(dated: str) -> None:
    """More prompts than the sample: what breaks cost is said of the sample alone."""
    many = Path(dated).read_text() + "\n"
    done = subprocess.run([sys.executable, "-m", "kvcalc", "prefix", "-", "--json"], input=many * 4, capture_output=True, text=True, check=True, timeout=60)
    result = json.loads(done.stdout)
    assert result["reading"]["prompts"] == 800
    assert (result["breaks"]["on"], result["breaks"]["prompts"]) == ("sample", 500)
    assert "piped" in {note["code"] for note in result["notes"]}
    few = subprocess.run([sys.executable, "-m", "kvcalc", "prefix", "-", "--json"], input=many, capture_output=True, text=True, check=True, timeout=60)
    assert json.loads(few.stdout)["breaks"]["on"] == "all"
    assert json.loads(few.stdout)["breaks"] == json.loads(kvcalc("prefix", dated, "--json").out)["breaks"]


def test_a_packed_pipe_is_unpacked(dated: str) -> None:
    """As a file of the same bytes is, and as `kvcalc replay -` does."""
    words, packed = [sys.executable, "-m", "kvcalc", "prefix", "-", "--json"], gzip.compress(Path(dated).read_bytes())
    result = json.loads(subprocess.run(words, input=packed, capture_output=True, check=True, timeout=60).stdout)
    assert (result["reading"]["source"], result["reading"]["prompts"]) == ("standard input", 200)
    assert result["unlimited"] == kvcalc("prefix", dated, "--json").json["unlimited"]


def test_a_pipe_under_another_name_is_not_read_twice(dated: str, tmp_path: Path) -> None:
    """As a shell's <(...): the second reading would wait for ever."""
    pipe, copied = tmp_path / "pipe", tmp_path / "copied"
    os.mkfifo(pipe)
    copied.write_text(f"{Path(dated).read_text()}\n" * 3)
    with subprocess.Popen(["cp", str(copied), str(pipe)]):
        done = kvcalc("prefix", str(pipe), "--json", timeout_s=30)
    assert (done.json["reading"]["prompts"], done.json["breaks"]["on"]) == (600, "sample")


def test_a_tokenizer_counts_tokens(dated: str, tmp_path: Path) -> None:
    """A word a token, and what a training run cut prompts to is not applied."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed: nothing can be counted by it")
    words = sorted({word for line in Path(dated).read_text().splitlines() for word in json.loads(line).split()})
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: number for number, word in enumerate(["[UNK]", *words])}, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.enable_truncation(7)
    made.enable_padding(length=9)
    made.save(str(tmp_path / "tokenizer.json"))
    for name in (tmp_path, tmp_path / "tokenizer.json"):
        result = answered(dated, "--tokenizer", str(name))
        assert result.tokens_by == "tokenizer"
        assert result.unlimited.tokens == 200 * (3 + 450 + 5)
    assert "~" not in kvcalc("prefix", dated, "--tokenizer", str(tmp_path)).out


@pytest.mark.parametrize(
    ("content", "words", "code", "said"),
    [
        ("", (), 3, "holds no prompt: it is empty"),
        ("\n\n \n", (), 3, "holds no prompt: it is empty"),
        ("{}\n[]\n7", ("--format", "jsonl"), 3, "line 1: no messages, prompt, input or text in it; line 2: its messages are no list"),
        ("\xff\xfe", (), 3, "line 1: not UTF-8"),
        ("[\n{}\n]", (), 3, "one JSON value over many lines"),
        ("hello", ("--format", "csv"), 2, "'csv' is neither jsonl nor text"),
        ("hello", ("--engine", "transformers"), 3, "keeps nothing from one request to the next"),
        ("hello", ("--engine", "ideal"), 3, "--engine takes vllm, sglang and trtllm here"),
        ("hello", ("--engine", "llama.cpp"), 3, "which slot a prompt gets is not modelled"),
        ("hello", ("--no-prefix-caching",), 3, "told to reuse no prefix"),
        ("hello", ("--kv-mem", "1GiB"), 2, "--kv-mem says nothing without a model"),
        ("hello", ("--context", "8192"), 2, "--context says nothing without a model"),
        ("hello", ("--page-size", "16"), 2, "--page-size is an option of sglang"),
        ("hello", ("-m", "llama-3-8b", "--block-size", "-16"), 2, "'-16' is not a count"),
        ("hello", ("-m", "mamba-2.8b"), 3, ""),
        ("hello", ("-m", "llama-3-8b", "--gpu-mem", "8GiB"), 1, "nothing is left for the cache"),
        ("hello", ("-m", "llama-3-8b", "--kv-mem", "1GiB", "--utilization", "0.5"), 2, "has nothing to say beside it"),
        ("hello", ("--tokenizer", "nowhere.json"), 3, "there is no file nowhere.json"),
    ],
)
def test_it_refuses(content: str, words: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    path = tmp_path / "prompts"
    path.write_bytes(content.encode("latin-1"))
    done = kvcalc("prefix", str(path), *words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


@pytest.mark.parametrize(("name", "said"), [("none.jsonl", "there is no file"), (".", "is a folder")])
def test_it_refuses_what_is_no_file(name: str, said: str, tmp_path: Path) -> None:
    done = kvcalc("prefix", str(tmp_path / name))
    assert done.code == 3
    assert said in done.err


def test_a_rate_of_nothing_is_nothing() -> None:
    assert percent(Rate(tokens=0, hit_tokens=0, hit_rate=0.0)) == "0 %"
    assert percent(Rate(tokens=200, hit_tokens=1, hit_rate=0.005)) == "1 %"


def test_the_time_that_is_saved_is_that_of_the_tokens_that_were_there(tmp_path: Path) -> None:
    """Of a prompt of 4,097 tokens that comes twice: nearly what `speed` says of the whole, less a pass for the token that is left."""
    on = ("--model", "llama-3-8b", "--gpu", "h100 sxm", "--json")
    (tmp_path / "twice.jsonl").write_text(2 * f"{json.dumps({'prompt': [at % 7 for at in range(4097)]})}\n")
    whole = kvcalc("speed", *on, "--context", "4097").json["prefill"]["seconds"]
    saved = kvcalc("prefix", str(tmp_path / "twice.jsonl"), *on).json["unlimited"]
    assert 0.9 * whole["low"] < saved["seconds_saved_low"] < whole["low"]
    assert 0.7 * whole["high"] < saved["seconds_saved_high"] < whole["high"]
    assert saved["hit_tokens"] == 4096


def test_time_is_only_saved_where_it_is_known() -> None:
    assert kvcalc("prefix", SHOP, "--model", "llama-3-8b", "--gpu", "h100", "--json").json["unlimited"]["seconds_saved_low"] is None
    unknown = kvcalc("prefix", SHOP, "--model", "llama-3-8b", "--gpu", "m2 ultra", "--gpu-mem", "192GiB", "--json").json
    assert any(note["code"] == "time" for note in unknown["notes"])
