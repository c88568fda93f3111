"""The trtllm engine against what public start-up logs print, and against hand arithmetic by the rules of its source."""

from typing import Any

import pytest
import yaml

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model
from kvcalc.engines.base import Options
from kvcalc.engines.trtllm import TRTLLM, TrtllmPlan
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.fit import answer
from kvcalc.gpus import find_gpu
from kvcalc.packing import parse_kv_dtype
from kvcalc.results.fit import GpuInfo

GIB = 1 << 30


def planned(model: str, kv_dtype: str = "auto", **choices: Any) -> TrtllmPlan:
    return TRTLLM.plan(load_model(model).spec, Options(kv_dtype=parse_kv_dtype(kv_dtype), **choices))


# What public logs print: model, KV dtype, GiB (rounded to 0.01), tokens in the paged KV cache.
LOGGED = [
    ("llama-3.1-8b", "fp8", 16.05, 263_008),
    ("qwen2.5-0.5b", "auto", 2.18, 190_656),
    ("qwen2.5-1.5b", "auto", 7.31, 273_792),
    ("llama-3-8b", "auto", 109.96, 900_800),
]


@pytest.mark.parametrize(("model", "kv_dtype", "gib", "tokens"), LOGGED)
def test_a_pool_holds_what_public_logs_print(model: str, kv_dtype: str, gib: float, tokens: int) -> None:
    plan = planned(model, kv_dtype)
    blocks = int(gib * GIB) // plan.pools[0].unit_bytes
    assert plan.capacity(blocks, 1024).tokens == pytest.approx(tokens, rel=0.006 / gib)
    assert plan.pools[0].unit_bytes * (tokens // 32) / GIB == pytest.approx(gib, abs=0.006)


# Bytes of one token on one GPU by hand.
TOKEN: list[tuple[str, dict[str, Any], int]] = [
    ("llama-3.1-8b", {"kv_dtype": "fp8"}, 65_536),
    ("llama-3.1-8b", {"tp": 16}, 32 * 1 * 256 * 2),
    ("llama-3.1-8b", {"tp": 8, "dp_attention": True}, 32 * 8 * 256 * 2),
    ("llama-3.1-8b", {"kv_dtype": "nvfp4"}, 32 * 8 * 256 * 9 // 16),
    ("llama-3.1-8b", {"pp": 3}, 11 * 8 * 256 * 2),
    ("phi-4", {"tp": 4}, 40 * 3 * 256 * 2),  # 10 KV heads on 4 GPUs: three each
    ("deepseek-v3", {"tp": 8}, 61 * 576 * 2),
    ("deepseek-v3", {"tp": 8, "draft_layers": True, "speculative_tokens": 1}, 62 * 576 * 2),
    ("deepseek-v3", {"pp": 2, "draft_layers": True, "speculative_tokens": 1}, 31 * 576 * 2),  # 31 and 30 layers, the draft on the last stage
    ("gpt-oss-20b", {}, 24 * 8 * 128 * 2),  # windows at full length
]


@pytest.mark.parametrize(("model", "choices", "size"), TOKEN, ids=lambda value: str(value)[:40])
def test_a_token_costs_what_the_source_says(model: str, choices: dict[str, Any], size: int) -> None:
    plan = planned(model, **choices)
    assert plan.token_bytes(1000) == size
    assert plan.pools[0].unit_bytes == 32 * size
    assert plan.need(33) == (2,)
    assert plan.resident_bytes(33, 3) == 3 * 64 * size


def test_windows_at_full_length_are_said_and_counted() -> None:
    plan = planned("gpt-oss-20b")
    assert "windows" in {note.code for note in plan.notes}
    assert plan.surplus(3200) == (("windows kept at full length", 12 * (3200 - 128) * 8 * 128 * 2),)


def test_stages_sum_to_the_whole() -> None:
    plan = planned("llama-3.1-8b", pp=3, tp=2, dp=2)
    assert plan.total_bytes(64, 5) == 2 * 5 * 64 * 32 * 8 * 256 * 2
    assert sum(use.size_bytes for use in plan.uses(64)) == plan.resident_bytes(64, 1)


def test_a_public_log_lies_within_the_range() -> None:
    """Llama-3-8B on an H200 with batches of 1,024 tokens: 14.96 GiB of weights, 109.96 GiB for the cache."""
    found = find_gpu("h200")
    memory, by = found.memory()
    question = Question(
        spec=load_model("llama-3-8b").weighed(),
        engine=TRTLLM,
        options=Options(device=found.device(), max_batched_tokens=1024, max_seqs=32),
        asked=Asked("llama-3-8b", "preset", "org/llama", 1025, 1),
        gpu=GpuInfo(name="h200", memory_bytes=memory, memory_by=by),
    )
    result = answer(question)
    bounds = result.memory_range["kv_bytes"]
    assert bounds.low <= 109.96 * GIB <= bounds.high
    assert result.memory.kv_bytes / GIB == pytest.approx(109.96, rel=0.02)


def test_the_file_of_options_is_yaml_below_its_command() -> None:
    text = planned(
        "deepseek-v3", "fp8", tp=8, pp=2, dp_attention=True, max_seqs=64, max_batched_tokens=4096, block_size=64, prefix_caching=False, enforce_eager=True
    ).command("a b", 8192, 10 * GIB, None)
    assert text.startswith("# trtllm-serve 'a b' --backend pytorch --extra_llm_api_options FILE")
    block = 64 * 31 * 576
    assert yaml.safe_load(text) == {
        "tensor_parallel_size": 8,
        "pipeline_parallel_size": 2,
        "enable_attention_dp": True,
        "max_seq_len": 8192,
        "max_batch_size": 64,
        "max_num_tokens": 4096,
        "cuda_graph_config": None,
        "kv_cache_config": {
            "dtype": "fp8",
            "tokens_per_block": 64,
            "enable_block_reuse": False,
            "free_gpu_memory_fraction": 0.9,
            "max_tokens": 10 * GIB // block * 64,
        },
    }


def test_drafts_are_told_to_the_server() -> None:
    text = planned("deepseek-v3", draft_layers=True, speculative_tokens=2).command("m", 8192, None, "0.8")
    assert yaml.safe_load(text)["speculative_config"] == {"decoding_type": "MTP", "num_nextn_predict_layers": 2}
    assert yaml.safe_load(text)["kv_cache_config"]["free_gpu_memory_fraction"] == 0.8


def test_attention_dp_copies_all_but_experts() -> None:
    """A dense model has nothing to share: each GPU holds it whole, as it does on one."""
    spec = load_model("llama-3-8b").weighed()
    assert TRTLLM.loaded(spec, Options(tp=4, dp_attention=True)) == TRTLLM.loaded(spec, Options())


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3.1-8b", {"block_size": 48}, "power of two above 1"),
    ("llama-3.1-8b", {"block_size": 1}, "power of two above 1"),
    ("llama-3.1-8b", {"kv_dtype": "int8"}, "has no KV dtype int8"),
    ("llama-3.1-8b", {"kv_dtype": "fp8_e5m2"}, "has no KV dtype fp8_e5m2"),
    ("llama-3.1-8b", {"kv_dtype": "fp16"}, "has no KV dtype fp16"),
    ("llama-3.1-8b", {"kv_dtype": "k=fp8,v=bf16"}, "stores K and V alike"),
    ("llama-3.1-8b", {"dcp": 2, "tp": 2}, "has no --dcp"),
    ("llama-3.1-8b", {"tp": 3}, "does not divide 32 attention heads"),
    ("llama-3.1-8b", {"tp": 8, "dp": 8, "dp_attention": True}, "--dp has no part in it"),
    ("llama-3.1-8b", {"pp": 33}, "more than the 32 layers"),
    ("llama-3.1-8b", {"draft_layers": True, "speculative_tokens": 1}, "no draft (MTP) layers"),
]


@pytest.mark.parametrize(("model", "choices", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_tensorrt_llm_turns_down_is_refused_and_its_plain_form_is_not(model: str, choices: dict[str, Any], said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        planned(model, **choices)
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert said in refused.value.message
    assert refused.value.hint
    planned(model)


OTHER_MANAGERS = [
    ("qwen3.5-27b", "a cache manager of their own"),
    ("nemotron-3-nano-30b-a3b", "a cache manager of their own"),
    ("deepseek-v3.2", "a cache manager of its own"),
    ("deepseek-v4-flash", "a cache manager of its own"),
    ("gemma-4-31b", "KVCacheManagerV2"),
    ("mimo-v2-flash", "KVCacheManagerV2"),
    ("t5-base", "self- and cross-attention"),
]


@pytest.mark.parametrize(("model", "said"), OTHER_MANAGERS)
def test_models_with_other_managers_are_refused(model: str, said: str) -> None:
    with pytest.raises(KvcalcError, match=said) as refused:
        planned(model)
    assert refused.value.code == ExitCode.UNANSWERABLE


def test_a_draft_model_is_refused() -> None:
    draft = load_model("llama-3.2-1b").weighed()
    with pytest.raises(KvcalcError, match="draft model is not modelled"):
        planned("llama-3.1-8b", draft=draft, speculative_tokens=3)
