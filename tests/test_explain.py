"""What is taught is true: formulas give what they say, figures are those of an estimate and of hand arithmetic, no sentence is of another kind of model."""

import ast
import operator
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from math import floor
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model, preset_names
from kvcalc.engines import ENGINES, find_engine
from kvcalc.engines.base import Options
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.estimate import estimate
from kvcalc.explain import TOPICS, explain, find_topics
from kvcalc.packing import KvDtype
from kvcalc.results.explain import Explanation, Formula, Paragraph, TopicName
from kvcalc.results.fit import GpuInfo
from kvcalc.units import format_bytes
from tests.command import kvcalc

GIB = 1 << 30


def told(model: str, *topics: TopicName, engine: str = "vllm", context: int = 8192, batch: int = 1, **choices: Any) -> Explanation:
    """An explanation of a preset: of `topics`, or the short story."""
    found = load_model(model)
    asked = Asked(model, found.source, found.served_as, context, batch)
    return explain(Question(found.weighed(), find_engine(engine), Options(**choices), asked, GpuInfo(name=None, memory_bytes=None)), topics)


def paragraphs(result: Explanation) -> Iterator[Paragraph]:
    return (paragraph for topic in result.topics for paragraph in topic.paragraphs)


def formulas(result: Explanation) -> list[Formula]:
    return [formula for paragraph in paragraphs(result) for formula in paragraph.formulas]


def values(result: Explanation) -> dict[str, int]:
    return {formula.name: formula.value for formula in formulas(result)}


def words(result: Explanation) -> str:
    return " ".join(paragraph.text for paragraph in paragraphs(result))


def cells(result: Explanation, label: str) -> tuple[int | float | None, ...]:
    """The row of that label, of the only table that has one."""
    (found,) = [row.values for paragraph in paragraphs(result) if paragraph.table for row in paragraph.table.rows if row.label == label]
    return found


# Formulas


OPERATORS: dict[type[ast.operator], Callable[[Fraction, Fraction], Fraction]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
}


def computed(numbers: str) -> Fraction:
    """What a formula with numbers in it gives, by other code than that which wrote it."""
    return _value(ast.parse(numbers.replace(",", "").replace(" x ", " * "), mode="eval").body)


def _value(node: ast.expr) -> Fraction:
    match node:
        case ast.BinOp(left=left, op=sign, right=right):
            return OPERATORS[type(sign)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id="floor"), args=[inner]):
            return Fraction(floor(_value(inner)))
        case ast.Constant(value=int(number)):
            return Fraction(number)
        case _:
            raise AssertionError(ast.dump(node))


@settings(max_examples=80, deadline=None)
@given(
    st.sampled_from(preset_names()),
    st.sampled_from(ENGINES),
    st.one_of(st.integers(1, 64), st.integers(1, 1 << 17)),
    st.integers(1, 3),
    st.sampled_from(["auto", "fp8"]),
)
def test_every_figure_is_what_it_says(model: str, engine: str, context: int, batch: int, kv_dtype: str) -> None:
    choices: dict[str, Any] = {} if kv_dtype == "auto" else {"kv_dtype": KvDtype(kv_dtype, kv_dtype)}
    try:
        result = told(model, *TOPICS, engine=engine, context=context, batch=batch, **choices)
    except KvcalcError:
        assert kv_dtype != "auto"  # an engine that does not store this type; a model as it is can always be explained
        return
    spec = load_model(model).spec
    own = estimate(spec, IDEAL, Options(**choices), name=model, source="", context=context, batch=batch)
    assert (result.token_bytes, result.fixed_bytes, result.request_bytes, result.batch_bytes) == (
        own.token_bytes,
        own.fixed_bytes,
        own.request_bytes,
        own.total_bytes,
    )
    for formula in formulas(result):
        assert computed(formula.numbers) == formula.value, formula
    assert sum(each.value for each in formulas(result) if each.name.startswith("layers-")) == own.request_bytes
    plain = [each.value for each in formulas(result) if each.name == "plain"]
    assert plain == ([] if own.plain_formula_bytes is None else [own.plain_formula_bytes])
    plan = None
    try:
        plan = find_engine(engine).plan(spec, Options(**choices))
    except KvcalcError:
        assert "holds of this model cannot be told" in words(result)
    held = [each.value for each in formulas(result) if each.name == "held"]
    assert held == ([] if plan is None or plan.slots is not None or plan.pools[0].unit_bytes == 1 else [plan.resident_bytes(context, 1)])
    for number, rounded in re.findall(r"([\d,]+) B \(([\d,.]+ \w+)\)", words(result)):
        assert format_bytes(int(number.replace(",", ""))) == rounded


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(preset_names()), st.sampled_from(ENGINES))
def test_every_paragraph_is_whole_sentences(model: str, engine: str) -> None:
    for paragraph in paragraphs(told(model, *TOPICS, engine=engine)):
        assert re.match(r"[A-Z\d`]|vLLM|llama-server|transformers|" + re.escape(find_engine(engine).name), paragraph.text), paragraph.text
        assert "  " not in paragraph.text
        assert paragraph.text.endswith("." if not paragraph.formulas and paragraph.table is None else (".", ":")), paragraph.text


@pytest.mark.parametrize("name", preset_names())
def test_the_story_of_every_preset_is_short(name: str) -> None:
    result = told(name)
    assert not any(topic.whole for topic in result.topics)
    assert {"cache", "formula", "prefill-decode", "paging", "prefix"} <= {topic.name for topic in result.topics} <= set(TOPICS)
    assert len(words(result).split()) < 800


# By hand


def test_llama_3_8b() -> None:
    """32 layers, 8 KV heads and 32 query heads x 128 numbers of 2 bytes; blocks of 16 tokens."""
    result = told("llama-3-8b", *TOPICS)
    row, block = 2 * 8 * 128 * 2, 16 * 32 * 2 * 8 * 128 * 2
    assert values(result) == {
        "row-full": row,
        "query": 32 * 128 * 2,
        "recomputed": sum(range(1, 4097)),
        "plain": GIB,
        "layers-full": 32 * 8192 * row,
        "held": 512 * block,
        "held-quarter": 128 * block,
        "shared": 62 * 16,
        "reused": 511 * 16,
        "broken": 16,
    }
    assert "it is exact" in words(result)
    symbols = {each.symbol: each.value for formula in formulas(result) for each in formula.symbols}
    assert symbols == {"2": 2, "L": 32, "n": 8192, "H_kv": 8, "d_h": 128, "b": 2, "B": 1}
    assert cells(result, "fp8") == (65_536, GIB // 2)
    assert cells(result, "q8_0") == (32 * 2 * 8 * 4 * 34, 8192 * 32 * 2 * 8 * 4 * 34)
    assert cells(result, "--tp 8") == (GIB // 8, GIB)
    assert cells(result, "--dp 2") == (GIB, 2 * GIB)
    assert cells(result, "StaticCache made for 8,192 tokens") == (GIB,)


def test_the_work_of_llama_3_8b() -> None:
    """Two FLOPs for each weight of a matrix: all parameters but the embedding and 65 norms; four for each query head, number and token of attention."""
    result = told("llama-3-8b", "prefill-decode", "cache")
    embedding, norms = 128_256 * 4096, 65 * 4096
    matrices = 8_030_261_248 - embedding - norms
    head, token = 2 * embedding, 4 * 32 * 128 * 32
    weights = 2 * (matrices + norms)
    row = 131_072
    attention = token * sum(range(1, 8193))
    flops, weight_bytes, cache_bytes, intensity = cells(result, "decode, batch 1")
    assert (flops, weight_bytes, cache_bytes) == (2 * matrices + token * 8192, weights + 2 * 4096, 8192 * row)
    assert intensity == pytest.approx((2 * matrices + token * 8192) / (weights + 2 * 4096 + 8192 * row + row))
    assert cells(result, "decode, batch 16")[:3] == (16 * (2 * matrices + token * 8192), weights + 16 * 2 * 4096, 16 * 8192 * row)
    assert cells(result, "prefill")[:2] == (8192 * (2 * matrices - head) + head + attention, weights + 8192 * 2 * 4096)
    squares = sum(n * (n + 1) // 2 for n in range(1, 4097))
    assert cells(result, "attention, with the cache")[1] == token * sum(range(1, 4097))
    assert cells(result, "attention, without")[1] == token * squares


def test_deepseek_v3_keeps_latents() -> None:
    """61 layers with a latent of 512 and a rotary key of 64; 128 query heads of 128 + 64; the config says 128 KV heads, 7,168 / 128 wide."""
    result = told("deepseek-v3", *TOPICS)
    found = values(result)
    assert found["row-latent"] == (512 + 64) * 2
    assert found["layers-latent"] == found["batch"] == 61 * 8192 * 576 * 2
    assert found["query"] == 128 * 192 * 2
    assert found["plain"] == 2 * 61 * 8192 * 128 * 56 * 2
    said = words(result)
    assert "latents that K and V are made from" in said
    assert "it is wrong" in said
    assert "Latents have no heads to divide: every GPU keeps a whole copy" in said
    assert "heads with a K and a V of their own" not in result.to_json()
    assert cells(result, "--tp 8") == (61 * 8192 * 1152, 8 * 61 * 8192 * 1152)
    assert cells(result, "--tp 8 --dcp 8") == (61 * 1024 * 1152, 61 * 8192 * 1152)


def test_gemma_3_27b_drops_what_leaves_its_windows() -> None:
    """52 layers of 1,024 tokens and 10 of all, each with 16 KV heads x 128."""
    result = told("gemma-3-27b", *TOPICS, context=32_768)
    row = 2 * 16 * 128 * 2
    found = values(result)
    assert (found["layers-sliding"], found["layers-full"]) == (52 * 1024 * row, 10 * 32_768 * row)
    assert found["batch"] == found["layers-sliding"] + found["layers-full"]
    assert result.token_bytes == 10 * row
    assert "the first 31,744 are no longer needed" in words(result)
    for context in (1023, 1024):  # the window's own length too
        assert "it still holds all of them" in words(told("gemma-3-27b", "layers", context=context))
    assert "of the tokens that a layer can see" in words(result)


def test_mamba_has_no_k_and_v() -> None:
    """64 layers: 5,120 channels with 3 columns and 16 numbers of state, of 2 bytes."""
    result = told("mamba-2.8b", *TOPICS)
    state = 5120 * 3 * 2 + 5120 * 16 * 2
    assert values(result) == {
        "row-state": state,
        "recomputed": sum(range(1, 4097)),
        "batch": 64 * state,
        "layers-state": 64 * state,
        "held": 64 * state,
    }
    said = words(result)
    assert "no Q, K or V" in said
    assert "cannot be cut" in said
    assert "changes nothing" in said
    for untrue in ("Q is not cached", "K and V of a token", "KV heads", "attention grows", "`past_key_values`", "as it grows"):
        assert untrue not in said
    assert result.token_bytes == 0


def test_qwen3_next_keeps_both() -> None:
    """36 layers with 8,192 channels x 3 columns and 32 states of 128 x 128; 12 with 2 KV heads x 256. The states do not follow the KV dtype."""
    result = told("qwen3-next-80b-a3b", *TOPICS)
    state, row = 8192 * 3 * 2 + 32 * 128 * 128 * 2, 2 * 2 * 256 * 2
    found = values(result)
    assert (found["layers-state"], found["layers-full"]) == (36 * state, 12 * 8192 * row)
    assert cells(result, "fp8") == (12 * row // 2, 36 * state + 12 * 8192 * row // 2)
    said = words(result)
    assert "Of its 48 layers there are 12 with attention and 36 with a state of fixed size in its place." in said
    assert f"{36 * state:,} B" in said
    assert "saved one" in said


@pytest.mark.parametrize(
    ("model", "topic", "said"),
    [
        ("whisper-large-v3", "layers", "K and V of what comes from the encoder (cross-attention), 1,500 tokens here"),
        ("whisper-large-v3", "prefix", "vLLM switches it off for a model with an encoder"),
        ("whisper-large-v3", "prefill-decode", "No figures for this model: the work of an encoder is not counted"),
        ("falcon-h1-7b", "cache", "there are 44 with both attention and a state."),
        ("falcon-h1-7b", "layers", "beside the rows of the same layers"),
        ("kimi-linear-48b-a3b", "layers", "a state of fixed size (kda) in place of a row for every token"),
        ("gemma-3-27b", "paging", "With 8,192 tokens it holds at most:"),
        ("gemma-4-e2b", "layers", "20 layers use the cache of an earlier layer"),
        ("gemma-4-e2b", "parallel", "divides the 1 KV head of a layer"),
        ("nemotron-3-nano-30b-a3b", "layers", "layers with neither attention nor a state keep nothing"),
        ("llama-4-scout-17b-16e", "layers", "one chunk of 8,192 tokens"),
        ("deepseek-v3.2", "parallel", "Latents and index keys have no heads to divide"),
        ("deepseek-v3.2", "layers", "A query attends to 2,048 of them at most"),
        ("deepseek-v4-flash", "layers", "one latent for every 128 tokens"),
        ("deepseek-v4.1-flash", "prefill-decode", "No figures for this model"),
        ("llama-3.1-70b", "cache", "with the tokens squared with a cache, and cubed without."),
    ],
)
def test_each_kind_of_layer_has_its_own_words(model: str, topic: TopicName, said: str) -> None:
    assert said in words(told(model, topic))


@pytest.mark.parametrize(
    ("engine", "paging", "prefix"),
    [
        ("vllm", "0 places of the last one are empty; at most 15 are, when a request has just begun one. One more token takes 1 block more.", "vLLM"),
        ("vllm", "into blocks of 16 tokens", "vLLM shares whole blocks"),
        ("trtllm", "into blocks of 32 tokens", "enable_partial_reuse"),
        ("sglang", "pool of tokens", "tree of the tokens"),
        ("llama.cpp", "4 slots aside when it starts", "what a slot has seen"),
        ("ollama", "1 slot aside when it starts", "what a slot has seen"),
        ("transformers", "transformers has no blocks", "shares nothing between calls"),
        ("ideal", "The bare formula has no blocks", "counts each request by itself"),
    ],
)
def test_each_engine_has_its_own_words(engine: str, paging: str, prefix: str) -> None:
    assert paging in words(told("llama-3-8b", "paging", engine=engine))
    assert prefix in words(told("llama-3-8b", "prefix", engine=engine))


def test_no_prefix_caching_shares_nothing() -> None:
    result = told("llama-3-8b", "prefix", prefix_caching=False)
    assert "switched off here" in words(result)
    assert values(result) == {}


def test_several_gpus_are_asked_as_they_are() -> None:
    result = told("llama-3-8b", "parallel", tp=4, dp=2)
    assert f"{GIB // 4:,} B (256.00 MiB) of one request on the fullest of 8 GPUs, and {2 * GIB:,} B (2.00 GiB) on all of them" in words(result)


def test_k_and_v_of_two_types_have_no_single_b() -> None:
    """A head of 128 numbers: 4 blocks of 34 bytes for K, of 18 for V."""
    result = told("llama-3-8b", "formula", kv_dtype=KvDtype("q8_0", "q4_0"))
    (formula,) = formulas(result)
    assert formula.text == "M = L n H_kv (row(K) + row(V)) B"
    assert formula.value == 32 * 8192 * 8 * (4 * 34 + 4 * 18)
    with pytest.raises(KvcalcError, match="stores K and V alike"):
        told("llama-3-8b", "paging", kv_dtype=KvDtype("q8_0", "q4_0"))


def test_draft_layers_are_named() -> None:
    result = told("deepseek-v3", "layers", draft_layers=True, speculative_tokens=1)
    assert values(result)["layers-latent"] == 62 * 8192 * 1152
    assert [note.text for note in result.notes if note.code == "drafts"] == ["counted beside the other layers: 1 draft layer of the model's own (--mtp)"]


# Topics and the command


def test_topics_are_found_once_and_in_the_order_asked_for() -> None:
    assert find_topics(["Paging", "cache", "paging"]) == ("paging", "cache")
    assert find_topics(["prefill_decode"]) == ("prefill-decode",)
    assert find_topics(["all"]) == tuple(TOPICS)
    assert find_topics([]) == ()


def test_the_command() -> None:
    story = kvcalc("explain").out
    assert "No model is named: llama-3-8b stands for any." in story
    assert "= 2 x 32 x 8,192 x 8 x 128 x 2 x 1 = 1,073,741,824 B" in story
    assert len(story.splitlines()) <= 100
    answer = kvcalc("explain", "formula", "-m", "gemma-3-27b", "-c", "32K", "--json").json
    assert (answer["schema"], answer["assumed_model"], answer["context"]) == (1, False, 32_768)
    assert [topic["name"] for topic in answer["topics"]] == ["formula"]
    assert answer["request_bytes"] == 3_120_562_176
    assert kvcalc("explain", "-m", "whisper-large-v3", "--json").json["context"] == 448


def test_a_gpu_tells_what_binds() -> None:
    """A decode step of Llama-3-8B moves more than 15 GB, a prompt of 8,192 tokens takes 132 TFLOP."""
    said = " ".join(kvcalc("explain", "prefill-decode", "--gpu", "h100-sxm").out.split())
    assert "On NVIDIA H100 SXM5 80GB prefill is bound by arithmetic" in said
    assert "a decode step of 1 request by memory bandwidth" in said


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for model in ("llama-3-8b", "deepseek-v4-flash"):
        done = kvcalc("explain", "all", "-m", model, env={"COLUMNS": str(width)})
        assert (done.code, done.err) == (0, "")
        assert max(map(len, done.out.splitlines())) <= width
        assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("words_typed", "code", "said"),
    [
        (("pagin",), 2, "did you mean paging?"),
        (("qwen3-8b",), 2, "a model goes behind --model"),
        (("-m", "lama-3-8b"), 3, "did you mean llama-3-8b"),
        (("--tflops", "100"), 2, "--tflops is about a GPU: name it with --gpu"),
        (("-m", "qwen3-8b", "--tp", "3"), 3, "must be divisible by --tp 3"),
        (("--kv-dtype", "turboquant_3bit_nc"), 3, "cannot be explained by elements and bytes"),
        (("--engine", "vllm", "--swa-full"), 2, "--swa-full is an option of llama.cpp"),
        (("--layers", "32"), 2, "--layers, --kv-heads and --head-dim together"),
    ],
)
def test_it_refuses(words_typed: tuple[str, ...], code: int, said: str) -> None:
    done = kvcalc("explain", *words_typed)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
