"""Models and engines side by side: the differences sum, and their causes are those that can be computed by hand."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model, preset_names
from kvcalc.compare import compare
from kvcalc.engines import ENGINES, find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import KvcalcError
from kvcalc.gpus import find_gpu
from kvcalc.results.compare import ComparedEstimate, ComparedFit
from kvcalc.results.fit import GpuInfo
from tests.command import kvcalc

GIB = 1 << 30


def question(model: str, engine: str = "vllm", context: int = 8192, gib: int | None = None, kv_gib: int | None = None, **choices: Any) -> Question:
    """One contender; with `gib` on an H200 of so much memory."""
    device = None if gib is None else find_gpu("h200").device(gib * GIB)
    found = load_model(model)
    spec = found.spec if gib is None else found.weighed()
    asked = Asked(model, f"preset {model}", "org/m", context, 1)
    info = GpuInfo(name=None, memory_bytes=None if gib is None else gib * GIB)
    return Question(spec, find_engine(engine), Options(device=device, **choices), asked, info, kv_bytes=None if kv_gib is None else kv_gib * GIB)


def test_more_layers_are_more_bytes() -> None:
    """Four layers of 8 KV heads x 128 more: 8,192 tokens x 4 x 2 x 8 x 128 x 2 bytes."""
    first, second = compare([question("llama-3-8b"), question("qwen3-8b")]).rows
    assert isinstance(first, ComparedEstimate)
    assert isinstance(second, ComparedEstimate)
    assert first.request_differs == ()
    assert [(each.cause, each.bytes) for each in second.request_differs] == [("K and V of every token", 8192 * 4 * 2 * 8 * 128 * 2)]
    assert (first.token_bytes, second.token_bytes) == (131_072, 147_456)


def test_a_latent_takes_the_place_of_heads_and_is_copied() -> None:
    """DeepSeek-V3 keeps 61 x 576 x 2 bytes a token in one copy, and another on the second GPU; Llama-3-8B 32 x 2 x 8 x 128 x 2 on both together."""
    _, second = compare([question("llama-3-8b", "ideal", tp=2), question("deepseek-v3", "ideal", tp=2)]).rows
    latents, heads = 8192 * 61 * 576 * 2, 8192 * 32 * 2 * 8 * 128 * 2
    assert {each.cause: each.bytes for each in second.request_differs} == {
        "K and V of every token": -heads,
        "latents": latents,
        "heads and latents that GPUs copy": latents,
    }


def test_a_budget_differs_by_what_is_taken_from_it() -> None:
    """VLLM 0.11 takes 0.90 of the memory and charges no graphs; 0.33 takes 0.92."""
    rows = compare([question("llama-3-8b", "vllm@0.11", gib=100), question("llama-3-8b", "vllm@0.33", gib=100)]).rows
    assert isinstance(rows[1], ComparedFit)
    causes = {each.cause: each.bytes for each in rows[1].budget_differs}
    assert causes["left outside of the engine's part"] == 2 * GIB
    assert {"CUDA graphs", "activations", "runtime"} <= set(causes)
    assert sum(causes.values()) == rows[1].memory.kv_bytes - rows[0].memory.kv_bytes


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(preset_names()), min_size=2, max_size=4), st.integers(1, 1 << 17), st.sampled_from([None, 40, 141]))
def test_differences_sum(models: list[str], context: int, gib: int | None) -> None:
    try:
        rows = compare([question(model, context=context, gib=gib) for model in models]).rows
    except KvcalcError:
        return  # a model without tensors or above every scheduler's limit: named in the notes where others can be answered
    for row in rows:
        if isinstance(row, ComparedFit):
            first = rows[0]
            assert isinstance(first, ComparedFit)
            assert sum(each.bytes for each in row.budget_differs) == row.memory.kv_bytes - first.memory.kv_bytes
        else:
            assert isinstance(row, ComparedEstimate)
            assert isinstance(rows[0], ComparedEstimate)
            assert sum(each.bytes for each in row.request_differs) == row.total_bytes - rows[0].total_bytes


def test_what_cannot_be_answered_is_named_beside_what_can() -> None:
    result = compare([question("llama-3-8b", gib=80), question("deepseek-ocr", gib=80)])
    assert len(result.rows) == 1
    assert [note.code for note in result.notes] == ["unanswered"]
    assert result.notes[0].text.startswith("deepseek-ocr under vllm: ")
    with pytest.raises(KvcalcError):
        compare([question("deepseek-ocr", gib=80)])


def test_the_command() -> None:
    plain = kvcalc("compare", "llama-3-8b", "qwen3-8b", "--json").json
    assert [row["model"]["name"] for row in plain["rows"]] == ["llama-3-8b", "qwen3-8b"]
    assert "memory" not in plain["rows"][0]
    budgeted = kvcalc("compare", "llama-3-8b", "qwen3-8b", "--kv-mem", "10GiB", "--json").json
    assert [row["capacity"]["requests"] for row in budgeted["rows"]] == [10.0, pytest.approx(80 / 9, abs=0.01)]
    screen = kvcalc("compare", "llama-3-8b", "qwen3-8b", "--gpu", "h100").out
    assert "qwen3-8b against llama-3-8b" in screen
    assert "K and V of every token  +134,217,728  +128.00" in screen


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("llama-3-8b", "--engine", "vllm"), 2, "nothing to be compared with"),
        (("llama-3-8b", "lama-3-8b"), 3, "did you mean llama-3-8b"),
        (("llama-3-8b", "qwen3-8b", "--kv-mem", "1GiB", "--utilization", "0.5"), 2, "has nothing to say beside it"),
        (("llama-3-8b", "--engine", "vllm,vlm"), 2, "unknown engine 'vlm'"),
    ],
)
def test_it_refuses(words: tuple[str, ...], code: int, said: str) -> None:
    done = kvcalc("compare", *words)
    assert done.code == code
    assert said in done.err


def test_one_model_under_every_engine() -> None:
    """Half a GiB of bf16 or fp16 rows for 4,096 tokens of Llama-3-8B in all of them, and a page or a slot beside them in SGLang."""
    rows = kvcalc("compare", "llama-3-8b", "--engine", "all", "--context", "4096", "--json").json["rows"]
    assert [row["engine"] for row in rows] == list(ENGINES)
    for row in rows:
        beside = sum(each["bytes"] for each in row["request_differs"])
        assert row["request_bytes"] == GIB // 2 + beside
        assert beside == (131_072 if row["engine"] == "sglang" else 0)
