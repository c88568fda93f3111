"""What fits of requests that begin alike, and of mixed lengths: by hand, by drawing at random, and on the command line."""

from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.fit import answer
from kvcalc.results.fit import Fit, GpuInfo
from kvcalc.workload import Lengths, Workload, mixed, shared
from tests.command import Done, kvcalc

GIB = 1 << 30


def question(
    workload: Workload | None = None, model: str = "llama-3-8b", engine: str = "vllm", context: int = 8192, batch: int = 1, **choices: Any
) -> Question:
    found = load_model(model)
    asked = Asked(model, f"preset {model}", "org/m", context, batch)
    spec, gpu = found.spec, GpuInfo(name=None, memory_bytes=None)
    return Question(spec, find_engine(engine), Options(**choices), asked, gpu, kv_bytes=20 * GIB, workload=workload)


def fitted(**fields: Any) -> Fit:
    return answer(question(**fields))


def lengths(*tokens: int, source: str = "a file") -> Lengths:
    return Lengths(tuple((each, tokens.count(each)) for each in sorted(set(tokens))), source)


# Requests that begin alike


def test_whole_blocks_of_what_is_shared_are_held_once() -> None:
    """20 GiB are 10,240 blocks of 16 tokens, one of them vLLM's own. 8,192 tokens are 512 blocks; of 2,010 shared tokens 125 blocks (2,000) are held once:
    (10,239 - 125) / (512 - 125) = 26.1, where 10,239 / 512 = 19.99 without.
    """
    found = fitted(workload=Workload(2010))
    assert (fitted().held, found.held) == (19, 26)
    assert found.capacity.requests == (10_239 - 125) / 387
    assert found.shared is not None
    assert (found.shared.held_tokens, found.shared.block_tokens) == (2000, 16)
    assert (found.shared.once_bytes, found.shared.own_bytes) == (125 * 16 * 131_072, 387 * 16 * 131_072)
    assert fitted(workload=Workload(2010), batch=26).fits
    assert not fitted(workload=Workload(2010), batch=27).fits


def test_less_than_a_block_is_not_shared() -> None:
    assert fitted(workload=Workload(15)).held == fitted().held


def test_pages_of_one_token_share_every_token() -> None:
    """SGLang's pages: 20 GiB are 163,840 tokens."""
    found = fitted(workload=Workload(2010), engine="sglang")
    assert found.shared is not None
    assert found.shared.held_tokens == 2010


def test_only_what_grows_is_shared() -> None:
    """Behind a prefix that has left the windows of Gemma-3, these hold tokens of each request alone: 10 of 62 layers share."""
    plan = find_engine("vllm").plan(load_model("gemma-3-27b").spec, Options())
    alike = shared(plan, Workload(16_384), 65_536)
    assert 0 < alike.once(65_536) < plan.need(65_536)[0]
    assert alike.once(65_536) == plan.need(65_536)[0] - plan.need(65_536 - 16_384)[0]


@settings(deadline=None)
@given(st.integers(1, 8191), st.integers(1, 64))
def test_what_is_held_is_within_the_budget_and_one_more_is_not(tokens: int, context_blocks: int) -> None:
    context = tokens + 16 * context_blocks
    asked = question(workload=Workload(tokens), context=context)
    plan, found = asked.engine.plan(asked.spec, asked.options), answer(asked)
    alike = shared(plan, asked.workload, context)
    once, own, usable = alike.once(context), alike.own(context), 10_239
    assert once + found.held * own <= usable < once + (found.held + 1) * own
    assert once + own == plan.need(context)[0]


REFUSED = {
    "nothing left": ({"workload": Workload(8192)}, "leave nothing of 8,192"),
    "an engine that reuses nothing": ({"workload": Workload(100), "engine": "transformers"}, "keeps nothing from one request"),
    "slots": ({"workload": Workload(100), "engine": "llama.cpp"}, "which slot"),
    "told not to": ({"workload": Workload(100), "prefix_caching": False}, "told to reuse no prefix"),
    "all are longer": ({"workload": Workload(0, lengths(9000))}, "are longer than 8,192"),
}


@pytest.mark.parametrize(("fields", "text"), REFUSED.values(), ids=REFUSED)
def test_is_refused(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(KvcalcError, match=text):
        fitted(**fields)


# Mixed lengths


def test_a_mix_fits_in_the_mean_and_safely() -> None:
    """As many of 1,024 as of 8,192 tokens: 64 or 512 blocks, 288 in the mean, 224 apart from it. 10,239 / 288 = 35.6; 26 x 288 + 2.326 x sqrt(26) x 224 =
    10,145 fit, 27 of them (10,483) do not; 19 of the longest do.
    """
    found = fitted(workload=Workload(0, lengths(1024, 8192)))
    assert found.mix is not None
    assert found.mix.mean_requests == 10_239 / 288
    assert (found.mix.safe_requests, found.mix.longest_requests, found.held) == (26, 19, 26)
    assert (found.mix.mean_tokens, found.mix.p50_tokens, found.mix.max_tokens) == (4608, 1024, 8192)
    assert fitted(workload=Workload(0, lengths(1024, 8192)), batch=26).fits
    assert not fitted(workload=Workload(0, lengths(1024, 8192)), batch=27).fits


def test_lengths_that_are_alike_are_no_mix() -> None:
    found = fitted(workload=Workload(0, lengths(8192, 8192, 8192)))
    assert found.held == fitted().held


def test_longer_requests_than_the_server_takes_are_left_out() -> None:
    found = fitted(workload=Workload(0, lengths(1024, 8192, 9000)))
    assert found.mix is not None
    assert found.mix.requests == 2
    assert any(note.code == "longer" and note.text.startswith("1 requests") for note in found.notes)


def test_a_prefix_is_held_once_beside_a_mix() -> None:
    """Of 2,000 shared tokens 125 blocks once; one request of 8,192 holds 387 of its own, one of 1,024 is no longer than what is shared and holds its 64."""
    found = fitted(workload=Workload(2000, lengths(1024, 8192)))
    assert found.mix is not None
    assert found.mix.mean_requests == (10_239 - 125) / ((387 + 64) / 2)


@pytest.mark.parametrize(("mean", "sigma"), [(5.0, 1.0), (6.5, 0.7), (7.5, 0.4)])
def test_safe_requests_fit_in_99_of_100_draws(mean: float, sigma: float) -> None:
    """Drawn at random from the same lengths, two of a hundred times at most they do not fit: the sums of skewed lengths are a little wider than normal ones."""
    random = Random(7)
    tokens = [max(1, round(random.lognormvariate(mean, sigma))) for _ in range(4000)]
    found = mixed(lengths(*tokens), lambda each: -(-each // 16), 20_000)
    over = sum(sum(-(-random.choice(tokens) // 16) for _ in range(found.safe)) > 20_000 for _ in range(1000))
    assert over <= 20
    more = sum(sum(-(-random.choice(tokens) // 16) for _ in range(int(found.mean))) > 20_000 for _ in range(200))
    assert more > 60


def test_percentiles_are_those_of_a_sorted_list() -> None:
    random = Random(3)
    tokens = sorted(random.randrange(1, 500) for _ in range(1000))
    found = lengths(*tokens)
    for percent in (1, 50, 95, 99, 100):
        assert found.percentile(percent) == tokens[-(-1000 * percent // 100) - 1]
    assert found.mean_tokens == sum(tokens) / 1000


# On the command line


def fit_of(*words: str) -> Done:
    return kvcalc("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", *words)


def test_lengths_are_read_from_numbers_and_traces(tmp_path: Path) -> None:
    """The same mix as above, as numbers and in the columns of three public traces."""
    files = {
        "numbers.txt": "1024\n8192\n",
        "azure.csv": "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,1000,24\n2023-11-16 18:17:04.0319600,8000,192\n",
        "burst.csv": "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,ChatGPT,1000,24,1024,API log\n45,GPT-4,8000,192,8192,API log\n",
        "mooncake.jsonl": '{"timestamp": 0, "input_length": 1000, "output_length": 24, "hash_ids": [0, 1]}\n'
        '{"timestamp": 9, "input_length": 8000, "output_length": 192, "hash_ids": [0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]}\n',
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        found = fit_of("--lengths", str(tmp_path / name), "--json")
        assert (found.code, found.json["mix"]["safe_requests"], found.json["context"]) == (ExitCode.YES, 26, 8192), name
    done = fit_of("--lengths", str(tmp_path / "numbers.txt"), "--shared-prefix", "2000")
    text = " ".join(done.out.split())
    for said in ("requests of mixed lengths up to 8,192 tokens fit", "in 99 of 100 draws", "held once, whole blocks of 16", "each request's own"):
        assert said in text
    assert fit_of("--lengths", str(tmp_path / "numbers.txt"), "--quiet").out.strip() == "26"


UNREAD: dict[str, tuple[str | None, ExitCode, str]] = {
    "none": (None, ExitCode.UNANSWERABLE, "cannot be read"),
    "empty": ("", ExitCode.UNANSWERABLE, "is empty"),
    "words": ("many\nfew\n", ExitCode.UNANSWERABLE, "no trace that is known"),
    "a word among numbers": ("12\nmany\n", ExitCode.UNANSWERABLE, "line 2 of"),
    "nothing": ("12\n0\n", ExitCode.UNANSWERABLE, "line 2 of"),
    "absurd": ("9" * 4000 + "\n", ExitCode.UNANSWERABLE, "line 1 of"),
}


@pytest.mark.parametrize(("text", "code", "said"), UNREAD.values(), ids=UNREAD)
def test_a_file_without_lengths_is_refused(text: str | None, code: ExitCode, said: str, tmp_path: Path) -> None:
    path = tmp_path / "lengths.txt"
    if text is not None:
        path.write_text(text)
    done = fit_of("--lengths", str(path))
    assert (done.code, done.out, said in done.err) == (code, "", True), done.err


def test_a_shared_prefix_is_swept() -> None:
    rows = kvcalc("sweep", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--context", "8K", "--shared-prefix", "none,2000,4000", "--json").json["rows"]
    assert [row["totals"]["requests"] for row in rows] == [19, 26, (10_239 - 250) // (512 - 250)]


def test_what_is_cached_comes_sooner() -> None:
    words = ("fit", "-m", "llama-3.1-8b", "--gpu", "h100 sxm", "-c", "8192", "--ttft", "300ms", "--json")
    plain, alike = kvcalc(*words).json, kvcalc(*words, "--shared-prefix", "4096").json
    assert alike["latency"]["requests"] > plain["latency"]["requests"]


def test_shorter_requests_are_advised_by_what_each_holds_beside_the_prefix() -> None:
    """512 blocks, of which one is empty: 250 of the prefix once, and 3 x 87 of 16 tokens: 4,000 + 1,392."""
    told = fit_of("--kv-mem", "1GiB", "--shared-prefix", "4000", "-c", "8192", "-b", "3", "--json").json
    (shorter,) = [change for change in told["advice"] if change["options"].startswith("--context")]
    assert shorter["options"] == "--context 5392"
