"""The capacity solver by its definition, for every preset, and its answers against plans and arithmetic that are not its own."""

from decimal import Decimal
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.catalog import load_model, preset_names
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import KvcalcError
from kvcalc.families import read_config
from kvcalc.fit import FLAT_RESERVE_BYTES, Asked, Budget, fit, gpu_budget, longest_request, stated_budget
from kvcalc.layers import Facts, ModelSpec
from kvcalc.packing import parse_kv_dtype
from kvcalc.results.fit import Fit, GpuInfo

GIB = 1 << 30
ENGINES = ("ideal", "vllm")
OLDER = ("vllm@0.25", "vllm@0.19", "vllm@0.11", "vllm@0.6")
ONE_OF_EACH_KIND = ("llama-3-8b", "gemma-3-27b", "llama-4-scout-17b-16e", "deepseek-v3", "qwen3-next-80b-a3b", "gpt-oss-20b", "mistral-7b-v0.1")
budgets = st.integers(min_value=0, max_value=1 << 41)
lengths = st.integers(min_value=1, max_value=1 << 20)


@cache
def loaded(model: str) -> ModelSpec:
    return load_model(model).spec


def ask(
    model: str | ModelSpec, kv_bytes: int | Budget, context: int = 8192, *, engine: str = "vllm", batch: int = 1, kv_dtype: str = "auto", **choices: Any
) -> Fit:
    """One question about a preset or a spec."""
    spec = loaded(model) if isinstance(model, str) else model
    budget = stated_budget(kv_bytes, None) if isinstance(kv_bytes, int) else kv_bytes
    asked = Asked(name="m", source="s", served_as="org/m", context=context, batch=batch)
    return fit(spec, find_engine(engine), Options(kv_dtype=parse_kv_dtype(kv_dtype), **choices), budget, asked)


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
    assert [longest_request(last.__ge__, 100) for last in (0, 1, 57, 99, 100, 1000)] == [0, 1, 57, 99, 100, 100]


def test_null_block_is_not_for_requests() -> None:
    """Mistral-Nemo at 131,072 tokens takes 20 GiB to the byte: vLLM 0.33.0 refuses them in 20 GiB, and names 131,056."""
    result = ask("mistral-nemo-12b", 20 * GIB, 131_072)
    assert (result.fits, result.capacity.max_context, result.capacity.requests) == (False, 131_056, 1.0)
    assert result.advice == ("20.00 GiB on each GPU would hold it: 2.50 MiB more than there are", "one request of 131,056 tokens fits: --context 131056")
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
    assert result.advice[1] == "19 requests of 8,192 tokens fit: --batch 19"
    assert ask("llama-3-8b", 20 * GIB, batch=19).fits


def test_scheduler_may_bind_before_memory() -> None:
    result = ask("llama-3-8b", 20 * GIB, 1024, max_seqs=8)
    assert result.limited_by == "max_seqs"
    assert any(note.code == "max-seqs" and "8 requests" in note.text for note in result.notes)
    assert ask("llama-3-8b", 20 * GIB, 1024, max_seqs=1024).limited_by == "kv_bytes"


def budget_of(model: str, gib: int, *, engine: str = "vllm", utilization: str | None = None, weights_bytes: int | None = None, **choices: int) -> Budget:
    part = None if utilization is None else Decimal(utilization)
    gpu = GpuInfo(name=None, memory_bytes=gib * GIB)
    return gpu_budget(loaded(model), find_engine(engine), Options(**choices), gpu, utilization=part, weights_bytes=weights_bytes)  # type: ignore[arg-type]  # ints only


def test_budget_is_what_weights_and_a_reserve_leave() -> None:
    memory = budget_of("llama-3-8b", 80).memory
    assert memory.usable_bytes == -(-80 * GIB * 92 // 100)
    assert memory.weights_bytes == 8_030_261_248 * 2
    assert memory.kv_bytes == memory.usable_bytes - 8_030_261_248 * 2 - FLAT_RESERVE_BYTES
    assert budget_of("llama-3-8b", 80, engine="vllm@0.11").memory.usable_bytes == 72 * GIB
    assert budget_of("llama-3-8b", 80, utilization="0.5").memory.usable_bytes == 40 * GIB
    assert budget_of("llama-3-8b", 80, weights_bytes=GIB).memory.weights_bytes == GIB
    assert budget_of("llama-3-8b", 80, tp=2, pp=2).memory.weights_bytes == 8_030_261_248 * 2 // 4
    assert budget_of("deepseek-v3", 80).memory.weights_bytes == 671_026_404_352


def test_estimated_figures_have_a_range() -> None:
    budget = budget_of("llama-3-8b", 80)
    result = ask("llama-3-8b", budget)
    spread = result.memory_range["kv_bytes"]
    assert spread.low < result.memory.kv_bytes < spread.high
    assert {note.code for note in result.notes} >= {"reserve", "weights"}
    assert ask("llama-3-8b", 20 * GIB).memory_range == {}


def test_weights_that_leave_nothing_are_said_so() -> None:
    result = ask("llama-3.1-70b", budget_of("llama-3.1-70b", 80))
    assert (result.fits, result.limited_by, result.memory.kv_bytes) == (False, "weights", 0)
    assert result.capacity.requests == 0
    assert result.capacity.max_context == 0
    assert "more than one GPU gives" in result.advice[0]


@pytest.mark.parametrize("facts", [Facts(), Facts(dtype="bf16"), Facts(parameters=10, dtype="bf16", weights="awq")])
def test_weights_of_unknown_size_are_asked_for(facts: Facts) -> None:
    spec = read_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4}).model_copy(update={"facts": facts})
    with pytest.raises(KvcalcError) as refused:
        gpu_budget(spec, find_engine("vllm"), Options(), GpuInfo(name=None, memory_bytes=GIB), utilization=None, weights_bytes=None)
    assert "--weights" in refused.value.hint
