"""The capacity solver by its definition, for every preset, and its answers against plans and arithmetic that are not its own."""

from collections.abc import Callable
from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.advice import MOST_CHANGES, advised, fewest_gpus
from kvcalc.budget import Asked, Question, StatedWeights
from kvcalc.catalog import load_model, preset_names
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.families import read_config
from kvcalc.fit import answer
from kvcalc.gpus import find_gpu
from kvcalc.layers import ModelSpec, Note
from kvcalc.packing import parse_kv_dtype
from kvcalc.quantizations import BY_NAME
from kvcalc.results.fit import Fit, GpuInfo
from kvcalc.search import largest
from kvcalc.tensors import WeighedModel

GIB = 1 << 30
ENGINES = ("ideal", "vllm")
OLDER = ("vllm@0.25", "vllm@0.19", "vllm@0.11", "vllm@0.6")
ONE_OF_EACH_KIND = ("llama-3-8b", "gemma-3-27b", "llama-4-scout-17b-16e", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b", "mistral-7b-v0.1")
budgets = st.integers(min_value=0, max_value=1 << 41)
lengths = st.integers(min_value=1, max_value=1 << 20)


@cache
def loaded(model: str) -> ModelSpec:
    return load_model(model).spec


@cache
def weighed(model: str) -> WeighedModel:
    return load_model(model).weighed()


def ask(model: str | ModelSpec, kv_bytes: int, context: int = 8192, *, engine: str = "vllm", batch: int = 1, kv_dtype: str = "auto", **choices: Any) -> Fit:
    """One question about a preset or a spec, with a KV budget that is stated."""
    spec = loaded(model) if isinstance(model, str) else model
    asked = Asked(name="m", source="s", served_as="org/m", context=context, batch=batch)
    options = Options(kv_dtype=parse_kv_dtype(kv_dtype), **choices)
    return advised(Question(spec, find_engine(engine), options, asked, GpuInfo(name=None, memory_bytes=None), kv_bytes=kv_bytes))


def on_gpu(
    model: str | ModelSpec, gib: int, context: int = 8192, *, engine: str = "vllm", batch: int = 1, used: int | None = None, gpu: str | None = None, **more: Any
) -> Question:
    """One question about a preset on a GPU of so many GiB; `more` are fields of the question or of its options."""
    spec = weighed(model) if isinstance(model, str) else model
    fields = {name: more.pop(name) for name in list(more) if name in Question._fields}
    options = Options(device=None if gpu is None else find_gpu(gpu).device(gib * GIB), **more)
    asked = Asked(name="m", source="preset m", served_as="org/m", context=context, batch=batch)
    return Question(spec, find_engine(engine), options, asked, GpuInfo(name=gpu, memory_bytes=gib * GIB, used_bytes=used), **fields)


def answered(model: str, engine: str) -> bool:
    """Whether an engine at that release takes the model at all."""
    try:
        find_engine(engine).plan(loaded(model), Options())
    except KvcalcError:
        return False
    return True


CASES = [
    *((model, engine) for model in preset_names() for engine in ENGINES if answered(model, engine)),
    *((model, engine) for model in ONE_OF_EACH_KIND for engine in OLDER if answered(model, engine)),
]


def test_newest_vllm_and_the_formula_answer_every_preset() -> None:
    refused = [(model, engine) for model in preset_names() for engine in ("ideal", "vllm") if (model, engine) not in CASES]
    assert refused == []


@pytest.mark.parametrize(("model", "engine"), CASES)
@settings(max_examples=3, deadline=None, derandomize=True)
@given(sizes=st.tuples(budgets, budgets), tokens=st.tuples(lengths, lengths))
def test_capacity_by_its_definition(model: str, engine: str, sizes: tuple[int, int], tokens: tuple[int, int]) -> None:
    (budget, more), (context, longer) = sizes, tokens
    result = ask(model, budget, context, engine=engine)
    held = result.capacity
    assert held.blocks * held.block_bytes <= budget < (held.blocks + 1) * held.block_bytes
    assert ask(model, budget + more, context, engine=engine).capacity.requests >= held.requests
    assert ask(model, budget, context + longer, engine=engine).capacity.requests <= held.requests
    if held.max_context:
        assert ask(model, budget, held.max_context, engine=engine).fits
    if held.max_context < max(context, loaded(model).facts.max_context or 0):
        assert not ask(model, budget, held.max_context + 1, engine=engine).fits
    assert result.fits == (held.max_context >= context) == (result.lacking_bytes == 0)
    if not result.fits:
        assert ask(model, budget + result.lacking_bytes, context, engine=engine).fits
        assert not ask(model, budget + result.lacking_bytes - 1, context, engine=engine).fits
    if result.division is not None:
        between = sum(difference.bytes for difference in result.division.differences)
        assert result.division.request_bytes + between == result.division.engine_request_bytes


@pytest.mark.parametrize("model", ["llama-3-8b", "deepseek-v3", "gpt2", "mistral-7b-v0.1"])
@pytest.mark.parametrize("engine", ["ideal", "vllm"])
def test_smaller_elements_and_fewer_layers_hold_more(model: str, engine: str) -> None:
    """True of the formula, and of vLLM for models with one group: several make a staircase."""
    spec, context = loaded(model), 1000
    wide, narrow = (ask(spec, GIB, context, engine=engine, kv_dtype=kv_dtype).capacity.requests for kv_dtype in ("auto", "fp8_e4m3"))
    assert narrow > wide
    halved = spec.model_copy(update={"layers": spec.layers[: len(spec.layers) // 2]})
    assert ask(halved, GIB, context, engine=engine).capacity.requests > wide


def test_longest_request_brackets() -> None:
    assert [largest(last.__ge__, 100) for last in (0, 1, 57, 99, 100, 1000)] == [0, 1, 57, 99, 100, 100]


def test_null_block_is_not_for_requests() -> None:
    """Mistral-Nemo at 131,072 tokens takes 20 GiB to the byte: vLLM 0.33.0 refuses them in 20 GiB, and names 131,056."""
    result = ask("mistral-nemo-12b", 20 * GIB, 131_072)
    assert (result.fits, result.capacity.max_context, result.capacity.requests) == (False, 131_056, 1.0)
    assert result.lacking_bytes == 2_621_440
    assert (result.advice[0].options, result.advice[0].requests) == ("--context 131056", 1)
    assert ask("mistral-nemo-12b", 20 * GIB, 131_072, engine="vllm@0.25").fits
    assert ask("mistral-nemo-12b", 20 * GIB, 131_072, engine="ideal").fits


def test_windows_and_in_flight_tokens_are_named() -> None:
    """Gemma-3-27B at 8,192 tokens: seven padded groups of ten layers hold 574,400 B a token, where the formula has 507,904."""
    result = ask("gemma-3-27b", 20 * GIB, 8192, max_batched_tokens=8192, max_seqs=1024)
    assert (result.capacity.blocks, result.capacity.tokens, result.capacity.block_bytes) == (16_384, 37_386, 1_310_720)
    assert result.division is not None
    assert result.division.request_bytes == 507_904 * 8192
    assert result.division.engine_request_bytes == 3590 * 1_310_720
    named = {difference.cause: difference.bytes for difference in result.division.differences}
    assert named["windows"] == -52 * (8192 - 1024) * 2 * 16 * 128 * 2
    assert {"windows hold tokens in flight", "page padding"} <= set(named)


def test_windows_at_full_length_are_named_where_the_manager_is_off() -> None:
    result = ask("gemma-3-27b", 80 * GIB, 131_072, hybrid_manager=False)
    assert result.division is not None
    named = {difference.cause: difference.bytes for difference in result.division.differences}
    assert named == {"windows": -named["windows kept at full length"], "windows kept at full length": named["windows kept at full length"]}


def test_copied_heads_are_named() -> None:
    result = ask("llama-3.1-70b", 20 * GIB, 131_072, tp=16)
    assert result.division is not None
    assert [(each.cause, each.bytes) for each in result.division.differences] == [("heads and latents that GPUs copy", 131_072 * 327_680)]
    assert result.division.tokens == 16 * 20 * GIB // 327_680
    assert result.capacity.tokens == 524_288


def test_formula_that_cannot_be_written_has_no_division() -> None:
    assert ask("mamba-2.8b", GIB).division is None


def test_replicas_count_apart() -> None:
    one, two = ask("llama-3-8b", 20 * GIB), ask("llama-3-8b", 20 * GIB, dp=2)
    assert (one.gpus, two.gpus) == (1, 2)
    assert one.capacity == two.capacity
    assert one.division == two.division


def test_batch_that_does_not_fit_is_told_how_many_do() -> None:
    result = ask("llama-3-8b", 20 * GIB, batch=20)
    assert not result.fits
    assert ("--batch 19", 19) in [(change.options, change.requests) for change in result.advice]
    assert ask("llama-3-8b", 20 * GIB, batch=19).fits


def test_scheduler_may_bind_before_memory() -> None:
    result = ask("llama-3-8b", 20 * GIB, 1024, max_seqs=8)
    assert result.limited_by == "max_seqs"
    assert any(note.code == "max-seqs" and "8 requests" in note.text for note in result.notes)
    assert ask("llama-3-8b", 20 * GIB, 1024, max_seqs=1024).limited_by == "kv_bytes"


# The budget of a GPU


def test_budget_is_what_weights_and_overheads_leave() -> None:
    memory = answer(on_gpu("llama-3-8b", 80)).memory
    assert memory.usable_bytes == -(-80 * GIB * 92 // 100)
    assert memory.weights_bytes == 8_030_261_248 * 2
    parts = (memory.weights_bytes, memory.activation_bytes, memory.graph_bytes, memory.runtime_bytes)
    assert memory.kv_bytes == memory.usable_bytes - sum(part or 0 for part in parts)
    assert answer(on_gpu("llama-3-8b", 80, engine="vllm@0.11")).memory.usable_bytes == 72 * GIB
    assert answer(on_gpu("llama-3-8b", 80, utilization=Decimal("0.5"))).memory.usable_bytes == 40 * GIB
    kept = answer(on_gpu("llama-3-8b", 80, reserve_bytes=3 * GIB)).memory
    assert (kept.reserve_bytes, kept.kv_bytes) == (3 * GIB, memory.kv_bytes - 3 * GIB)


def test_the_bare_formula_keeps_nothing_beside_the_weights() -> None:
    memory = answer(on_gpu("llama-3-8b", 80, engine="ideal")).memory
    assert memory.kv_bytes == 80 * GIB - memory.weights_bytes if memory.weights_bytes is not None else False


STATED = [
    (StatedWeights(16 * GIB, "gpu", "--weights-per-gpu"), {}, 16 * GIB),
    (StatedWeights(16 * GIB, "gpu", "--weights-per-gpu"), {"tp": 2}, 16 * GIB),
    (StatedWeights(8_030_261_248 * 2, "checkpoint", "--weights"), {}, 8_030_261_248 * 2),
    (StatedWeights(8_030_261_248 * 4, "checkpoint", "an index"), {}, 8_030_261_248 * 2),
    (StatedWeights(8_030_261_248, "checkpoint", "an index"), {}, 8_030_261_248),
]


@pytest.mark.parametrize(("stated", "choices", "loaded_bytes"), STATED)
def test_stated_weights_count_before_tensors(stated: StatedWeights, choices: dict[str, Any], loaded_bytes: int) -> None:
    """A checkpoint of four bytes a parameter is one in fp32, and loads in half of that; one of half the size is taken as quantized."""
    memory = answer(on_gpu("llama-3-8b", 80, weights=stated, **choices)).memory
    assert (memory.weights_bytes, memory.weights_from) == (loaded_bytes, stated.source)


def test_a_checkpoint_whose_tensors_are_not_known_is_shared_evenly() -> None:
    spec = weighed("llama-3-8b").model_copy(update={"tensors": ()})
    result = answer(on_gpu(spec, 80, weights=StatedWeights(16 * GIB, "checkpoint", "--weights"), tp=4))
    assert result.memory.weights_bytes == 4 * GIB
    assert result.memory_range["weights_bytes"].high > 4 * GIB
    assert any(note.code == "weights" and "evenly" in note.text for note in result.notes)


def test_estimated_figures_have_a_range_and_stated_ones_have_none() -> None:
    result = answer(on_gpu("llama-3-8b", 80))
    assert {"activation_bytes", "graph_bytes", "runtime_bytes", "kv_bytes"} == set(result.memory_range)
    spread = result.memory_range["kv_bytes"]
    assert spread.low < result.memory.kv_bytes < spread.high
    assert result.capacity_range.low <= int(result.capacity.requests) <= result.capacity_range.high
    assert ask("llama-3-8b", 20 * GIB).memory_range == {}


@pytest.mark.parametrize("name", BY_NAME)
def test_weights_by_the_name_of_a_quantization_are_an_estimate(name: str) -> None:
    result = answer(on_gpu("llama-3-8b", 80, quantization=BY_NAME[name]))
    assert "weights_bytes" in result.memory_range
    assert (result.memory.weights_bytes or 0) <= 8_030_261_248 * 2
    assert f"stored as {name}" in (result.memory.weights_from or "")


def test_the_name_of_a_quantization_does_not_replace_that_of_the_checkpoint() -> None:
    plain, named = (answer(on_gpu("deepseek-v3", 1000, quantization=named)).memory.weights_bytes for named in (None, BY_NAME["awq"]))
    assert plain == named


@pytest.mark.parametrize(("gib", "said"), [(16, "more"), (80, "leave nothing")])
def test_weights_that_leave_nothing(gib: int, said: str) -> None:
    model = "llama-3-8b" if gib == 16 else "qwen2.5-72b"
    result = advised(on_gpu("llama-3.1-70b" if gib == 80 else model, gib, utilization=Decimal("0.9")))
    assert (result.fits, result.limited_by, result.memory.kv_bytes) == (False, "weights", 0)
    assert (result.capacity.requests, result.capacity.max_context) == (0, 0)
    assert result.advice, said


def test_weights_of_unknown_size_are_asked_for() -> None:
    spec = read_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4})
    with pytest.raises(KvcalcError, match="vocab_size") as refused:
        answer(on_gpu(spec, 1))
    assert "--weights" in refused.value.hint


def test_other_processes_that_leave_too_little_stop_the_engine() -> None:
    with pytest.raises(KvcalcError, match=r"other processes hold 20\.00 GiB") as refused:
        answer(on_gpu("llama-3-8b", 80, used=20 * GIB))
    assert refused.value.code == ExitCode.NO
    assert "--utilization 0.75" in refused.value.hint
    beside = answer(on_gpu("llama-3-8b", 80, used=20 * GIB, utilization=Decimal("0.75")))
    assert beside.memory.usable_bytes == 60 * GIB
    assert any(note.code == "gpu-used" for note in beside.notes)


def test_adapters_drafts_and_towers_are_terms() -> None:
    plain = answer(on_gpu("qwen3-vl-8b", 80)).memory
    without = answer(on_gpu("qwen3-vl-8b", 80, towers=False)).memory
    assert (plain.weights_bytes or 0) - (without.weights_bytes or 0) == 576_388_336 * 2
    adapted = answer(on_gpu("llama-3-8b", 80, max_loras=2, max_lora_rank=64)).memory
    sides = 2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 14336)
    assert adapted.lora_bytes == 32 * sides * 64 * 2 * 2
    assert adapted.weights_bytes == 8_030_261_248 * 2 + adapted.lora_bytes
    drafted = answer(on_gpu("llama-3-8b", 80, draft=weighed("llama-3.2-1b"), speculative_tokens=4)).memory
    assert drafted.draft_bytes == 1_235_814_400 * 2
    mtp = answer(on_gpu("deepseek-v3", 1000, draft_layers=True, speculative_tokens=1)).memory
    experts = 257 * 3 * 7168 * 2048
    assert experts < (mtp.draft_bytes or 0) < experts * 104 // 100


def test_a_draft_model_keeps_a_cache_too() -> None:
    """Llama-3.2-1B keeps 16 layers x 8 heads x 64: 32 KiB a token beside the 128 KiB of the 8B."""
    alone, drafted = (answer(on_gpu("llama-3-8b", 80, engine="ideal", draft=draft)).capacity.request_bytes for draft in (None, weighed("llama-3.2-1b")))
    assert (alone, drafted) == (8192 * 131_072, 8192 * (131_072 + 32_768))


# What would make it fit

TIGHT = [
    ("llama-3.1-70b", 80, {}),
    ("llama-3.1-70b", 48, {"tp": 2}),
    ("qwen3-32b", 24, {"batch": 4, "context": 32768}),
    ("llama-3-8b", 24, {"batch": 64}),
    ("deepseek-v3", 80, {"tp": 8}),
    ("gpt-oss-120b", 48, {}),
]


WORDS: dict[str, Callable[[Question, str], Question]] = {
    "--tp": lambda old, value: old._replace(options=old.options._replace(tp=int(value))),
    "--pp": lambda old, value: old._replace(options=old.options._replace(pp=int(value))),
    "--max-batched-tokens": lambda old, value: old._replace(options=old.options._replace(max_batched_tokens=int(value))),
    "--kv-dtype": lambda old, value: old._replace(options=old.options._replace(kv_dtype=parse_kv_dtype(value))),
    "--utilization": lambda old, value: old._replace(utilization=Decimal(value)),
    "--quantization": lambda old, value: old._replace(quantization=BY_NAME[value]),
    "--context": lambda old, value: old._replace(asked=old.asked._replace(context=int(value))),
    "--batch": lambda old, value: old._replace(asked=old.asked._replace(batch=int(value))),
}
"""What each option of an advice asks."""


@pytest.mark.parametrize(("model", "gib", "more"), TIGHT)
def test_every_change_that_is_advised_makes_it_fit(model: str, gib: int, more: dict[str, Any]) -> None:
    """Each is asked for again in its own words."""
    question = on_gpu(model, gib, **more)
    result = advised(question)
    assert not result.fits
    assert 0 < len(result.advice) <= MOST_CHANGES + 3
    for change in result.advice:
        changed = question
        words = change.options.removesuffix(" (of vllm)").split()
        for word, value in zip(words[::2], words[1::2], strict=True):
            if word == "--cpu-offload-gb":
                rest = (result.memory.weights_bytes or 0) - int(value) * GIB
                changed = changed._replace(weights=StatedWeights(rest, "gpu", "the rest"))
            else:
                changed = WORDS[word](changed, value)
        again = answer(changed)
        assert again.fits, change.options
        assert again.gpus == change.gpus
        assert change.requests == next(row.requests for row in again.lengths if row.context == change.context)


def test_no_set_of_changes_holds_one_that_is_enough() -> None:
    sets = [
        frozenset(zip(words[::2], words[1::2], strict=True))
        for change in advised(on_gpu("qwen3-32b", 24, 32768, batch=4)).advice
        if len(words := change.options.split()) % 2 == 0
    ]
    assert not any(one < other for one in sets for other in sets)


@pytest.mark.parametrize(("model", "gib", "more"), [*TIGHT, ("llama-3-8b", 80, {})])
def test_fewest_gpus_are_enough_and_fewer_are_not(model: str, gib: int, more: dict[str, Any]) -> None:
    question = on_gpu(model, gib, **{name: value for name, value in more.items() if name != "tp"})
    options = fewest_gpus(question).options
    gpus = options.tp * options.pp
    assert answer(question._replace(options=options)).fits
    for tp, pp in ((tp, pp) for tp in range(1, 9) for pp in range(1, gpus + 1) if tp * pp < gpus):
        try:
            fewer = answer(question._replace(options=question.options._replace(tp=tp, pp=pp)))
        except KvcalcError:
            continue
        assert not fewer.fits, (tp, pp)


def test_a_model_that_no_number_of_gpus_holds() -> None:
    with pytest.raises(KvcalcError, match="up to 64 of these GPUs") as refused:
        fewest_gpus(on_gpu("deepseek-v3", 1))
    assert refused.value.code == ExitCode.NO


def test_totals_are_of_all_replicas() -> None:
    one, two = (answer(on_gpu("llama-3-8b", 80, dp=dp)) for dp in (1, 2))
    assert one.capacity == two.capacity
    assert (two.totals.requests, two.totals.tokens) == (2 * one.totals.requests, 2 * one.totals.tokens)


def test_notes_of_the_look_up_are_passed_on() -> None:
    note = Note(code="checkpoint", text="could not be looked up")
    assert note in answer(on_gpu("llama-3-8b", 80, notes=(note,))).notes


def test_a_quantization_by_name_is_not_served_from_the_plain_repository() -> None:
    plain, awq = (
        answer(on_gpu("llama-3-70b", 44, gpu="l40s", tp=2, **more)) for more in ({"kv_dtype": parse_kv_dtype("fp8")}, {"quantization": BY_NAME["awq"]})
    )
    assert not plain.fits
    assert awq.commands["vllm"].startswith("vllm serve CHECKPOINT ")
    assert "CHECKPOINT stands for org/m in a checkpoint quantized to awq" in [note.text for note in awq.notes]
    own = answer(on_gpu("gpt-oss-20b", 44, gpu="l40s", quantization=BY_NAME["awq"]))
    assert own.commands["vllm"].startswith("vllm serve org/m ")
