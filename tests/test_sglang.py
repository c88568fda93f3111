"""The sglang engine against what public start-up logs print, against hand arithmetic by the rules of its source (0.5.23), and by its definition."""

from decimal import Decimal
from typing import Any

import pytest

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model
from kvcalc.engines.base import Options
from kvcalc.engines.sglang import SGLANG, SglangPlan
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.families import read_config
from kvcalc.fit import answer
from kvcalc.gpus import find_gpu
from kvcalc.layers import Layer, ModelSpec
from kvcalc.packing import KvDtype, parse_kv_dtype
from kvcalc.quantizations import BY_NAME
from kvcalc.results.fit import Fit, GpuInfo

GIB = 1 << 30
MIB = 1 << 20


def planned(model: str | ModelSpec, gpu: str = "h100", kv_dtype: str = "auto", **choices: Any) -> SglangPlan:
    """The plan of a preset, or of a spec, on a GPU; `kv_dtype` is a name."""
    spec = load_model(model).spec if isinstance(model, str) else model
    return SGLANG.plan(spec, Options(kv_dtype=parse_kv_dtype(kv_dtype), device=find_gpu(gpu).device(), **choices))


def in_gib(size_bytes: int) -> float:
    return size_bytes / GIB


# What public logs print of pools: model, tokens of the full pool, GiB of all pools (each line rounds to 0.01), options.
ALLOCATED: list[tuple[str, int, float, dict[str, Any]]] = [
    ("qwen3-235b-a22b", 367_404, 8.23 + 8.23, {"tp": 4}),
    ("devstral-small-2-24b", 202_093, 3.85 + 3.85, {"tp": 2, "kv_dtype": "fp8_e4m3", "gpu": "rtx 3090"}),
    ("gemma-4-31b", 24_248, 3.70 + 3.70 + 0.46 + 0.46, {"tp": 2, "gpu": "rtx 3090"}),
    ("gemma-4-31b", 109_120, 2.08 * 4, {"tp": 2, "gpu": "rtx 3090", "swa_ratio": Decimal("0.1")}),
    ("gemma-4-31b", 260_289, 2.48 * 4, {"tp": 2, "gpu": "rtx 3090", "swa_ratio": Decimal("0.1"), "kv_dtype": "fp8_e5m2"}),
    ("gemma-4-26b-a4b", 117_840, 4.50 * 2 + 0.56 * 2, {"tp": 2, "gpu": "rtx 3090"}),
    ("gemma-4-26b-a4b", 652_652, 1.95 * 2 + 3.11 * 2, {"tp": 2, "gpu": "rtx 3090", "swa_ratio": Decimal("0.0625")}),
]


@pytest.mark.parametrize(("model", "tokens", "gib", "choices"), ALLOCATED, ids=lambda value: str(value)[:30])
def test_pools_take_what_public_logs_print(model: str, tokens: int, gib: float, choices: dict[str, Any]) -> None:
    assert in_gib(planned(model, **choices).resident_bytes(tokens, 1)) == pytest.approx(gib, abs=0.025)


def test_the_pool_for_windows_has_a_share_of_the_full_pool_of_mimo() -> None:
    """A public log: full_layer_tokens=375360, swa_layer_tokens=300288, of which the latter take K 8.38 and V 5.59 GiB."""
    plan = planned("mimo-v2-flash", tp=4)
    full, sliding = plan.uses(375_360)
    assert (full.rows, sliding.rows) == (375_360 + 1, 300_288 + 1)
    assert (full.layers, sliding.layers) == (9, 39)
    assert in_gib(sliding.size_bytes) == pytest.approx(13.97, abs=0.01)
    assert full.size_bytes == 375_361 * 9 * (192 + 128) * 2
    budget = full.size_bytes + sliding.size_bytes
    assert plan.total_tokens(budget) - 375_360 in (0, 1)


GRANITE = {
    "model_type": "granitemoehybrid",
    "num_hidden_layers": 40,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "layer_types": ["attention" if layer in (5, 15, 25, 35) else "mamba" for layer in range(40)],
    "mamba_n_heads": 128,
    "mamba_d_head": 64,
    "mamba_d_state": 128,
    "mamba_d_conv": 4,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "torch_dtype": "bfloat16",
}


def test_slots_for_states_take_what_a_public_log_prints() -> None:
    """granite-4.0-h-small: max_mamba_cache_size 218, conv_state 0.37 GB, ssm_state 30.80 GB."""
    plan = planned(read_config(GRANITE))
    slot = 36 * ((8192 + 2 * 128) * 3 * 2 + 128 * 64 * 128 * 4)
    assert plan.states is not None
    assert plan.states.slot_bytes == slot
    assert in_gib(plan.states.bytes_of(218)) == pytest.approx(0.37 + 30.80, abs=0.01)


def test_states_get_a_part_of_the_budget_and_five_slots_make_a_request() -> None:
    """By hand: 47.4 % of 20 GiB for states, less the slot that absorbs padding; Qwen3-Next has 36 layers with states and 12 with K and V."""
    plan = planned("qwen3-next-80b-a3b", tp=4)
    slot = 36 * (8192 // 4 * 3 * 2 + 32 // 4 * 128 * 128 * 4)
    number = (20 * GIB * 9 // 19 - slot) // slot
    row = 12 * 1 * (256 + 256) * 2
    tokens = (20 * GIB - (number + 1) * slot) // row
    held = plan.capacity(20 * GIB, 262_144)
    assert held.tokens == tokens
    assert held.requests == pytest.approx(tokens / 262_144)
    assert plan.capacity(20 * GIB, 64).requests == number // 5
    assert plan.capacity(20 * GIB, 64).requests == (20 * GIB - plan.reserved) // plan.need(64)[0]


def test_without_a_prefix_cache_states_have_one_slot_for_each_running_request() -> None:
    plan = planned("qwen3-next-80b-a3b", tp=4, prefix_caching=False, max_seqs=64)
    slot = 36 * (8192 // 4 * 3 * 2 + 32 // 4 * 128 * 128 * 4)
    assert plan.reserved == 65 * slot
    assert plan.max_requests == 64
    assert plan.capacity(20 * GIB, 64).requests == 64
    assert plan.capacity(20 * GIB, 4096).tokens == (20 * GIB - 65 * slot) // (12 * 512 * 2)


def test_drafts_keep_states_to_go_back_to() -> None:
    """By hand: 3 drafted tokens are 4 checked ones; K solves K + (K // 5 + 1) x 4 + 1 slots in the part for states; 48 requests run."""
    plan = planned("qwen3.6-35b-a3b", draft_layers=True, speculative_tokens=3)
    assert plan.states is not None
    slot, own = plan.states.slot_bytes, 20 * GIB * 9 // 19
    number = int((own - slot * 5) // (slot * (1 + 4 / 5)))
    assert plan.states.number(20 * GIB) == number
    assert plan.states.bytes_of(number) == (number + 1 + (min(48, number // 5) + 1) * 4) * slot
    assert plan.max_requests == 48


# Bytes of one token on one GPU: model, options, bytes by hand.
TOKEN: list[tuple[str, dict[str, Any], int]] = [
    ("llama-3-8b", {}, 32 * 8 * 256 * 2),
    ("llama-3-8b", {"tp": 16}, 32 * 1 * 256 * 2),
    ("llama-3-8b", {"tp": 8, "dp": 4, "dp_attention": True}, 32 * 4 * 256 * 2),
    ("llama-3-8b", {"tp": 8, "dcp": 2}, 32 * 2 * 256 * 2 // 2),
    ("llama-3-8b", {"pp": 3}, 11 * 8 * 256 * 2),
    ("llama-3-8b", {"kv_dtype": "fp8"}, 32 * 8 * 256),
    ("llama-3-8b", {"kv_dtype": "fp4_mx_block16"}, 32 * 8 * 256 * 9 // 16),
    ("llama-3-8b", {"kv_dtype": "nvfp4", "gpu": "b200"}, 32 * 8 * 256 * 9 // 16),
    ("llama-3-8b", {"kv_dtype": "mxfp8", "gpu": "b200"}, 32 * 8 * 256 * 33 // 32),
    ("gemma-3-27b", {}, 62 * 16 * 256 * 2),
    ("deepseek-v3", {"tp": 8}, 61 * 576 * 2),
    ("deepseek-v3", {"tp": 8, "draft_layers": True, "speculative_tokens": 1}, 62 * 576 * 2),
    ("deepseek-v3", {"kv_dtype": "fp4_mx_block16"}, 61 * (288 + 36)),
    ("deepseek-v3.2", {"tp": 8}, 61 * (576 * 2 + 132)),
    ("deepseek-v3.2", {"tp": 8, "kv_dtype": "fp8_e4m3"}, 61 * (656 + 132)),
    ("deepseek-v3.2", {"gpu": "b200"}, 61 * (576 + 132)),
    ("llama-3.3-nemotron-super-49b", {}, 80 * 8 * 256 * 2),
]


@pytest.mark.parametrize(("model", "choices", "size"), TOKEN, ids=lambda value: str(value)[:40])
def test_a_token_costs_what_the_source_says(model: str, choices: dict[str, Any], size: int) -> None:
    assert planned(model, **choices).token_bytes(100_000) == size


def test_layers_that_read_anothers_cache_have_rows_of_their_own() -> None:
    """Gemma 3n: 15 of 35 layers share, and SGLang has a pool of 35 layers."""
    plan = planned("gemma-3n-e4b")
    assert plan.token_bytes(100_000) == 35 * 2 * (256 + 256) * 2
    assert dict(plan.surplus(1000))["layers that store another's cache again"] == 15 * 1001 * 2 * 512 * 2


def test_dtype_auto_is_the_checkpoints_fp8() -> None:
    spec = load_model("llama-3-8b").spec
    named = spec.model_copy(update={"facts": spec.facts.model_copy(update={"kv_dtype": "fp8_e4m3"})})
    plan = SGLANG.plan(named, Options())
    assert plan.kv_dtype == KvDtype("fp8_e4m3", "fp8_e4m3")
    assert "kv-dtype" in {note.code for note in plan.notes}


# Pages: model, GPU, asked, taken.
PAGES = [
    ("llama-3-8b", "h100", None, 1),
    ("llama-3-8b", "h100", 16, 16),
    ("llama-3-8b", "b200", None, 64),
    ("llama-3-8b", "b200", 32, 32),
    ("deepseek-v3.2", "h100", None, 64),
    ("deepseek-v3.2", "h100", 16, 64),
    ("deepseek-v3", "b200", None, 64),
    ("deepseek-v2-lite", "b200", None, 1),
    ("mimo-v2-flash", "b200", None, 128),
    ("falcon-h1-7b", "b200", None, 1),
]


@pytest.mark.parametrize(("model", "gpu", "asked", "page"), PAGES)
def test_pages_are_those_of_the_attention_backend(model: str, gpu: str, asked: int | None, page: int) -> None:
    plan = planned(model, gpu, block_size=asked)
    assert plan.page == page
    assert ("page" in {note.code for note in plan.notes}) == (asked not in (None, page))
    row = plan.resident_bytes(64 * page + 1, 1) - plan.resident_bytes(64 * page, 1)
    assert row >= page * plan.token_bytes(64 * page) // 2  # one token more takes a whole page


# The part of the memory by default: model, GPU memory as nvidia-smi counts it in MiB, options, part by hand.
PARTS: list[tuple[str, int, dict[str, Any], str]] = [
    ("llama-3-8b", 81559, {}, "0.830"),  # 512 + 1.5 x 8192 + 128 + 2 x 256 + 8 x 58 = 13,904
    ("llama-3-8b", 81559, {"tp": 8}, "0.812"),  # 512 + 12,288 + 1,024 + 2 x 512 + 464 = 15,312
    ("deepseek-v3", 81559, {"tp": 8}, "0.799"),  # 1,536 in place of 464
    ("llama-3-8b", 143771, {}, "0.903"),
    ("llama-3-8b", 24564, {}, "0.704"),  # 512 + 1.5 x 4096 + 128 + 2 x 48 + 8 x 50 = 7,280
    ("llama-3-8b", 15360, {}, "0.735"),  # 512 + 1.5 x 2048 + 128 + 2 x 8 + 8 x 42 = 4,064
    ("llama-3-8b", 183359, {}, "0.854"),  # 512 + 1.5 x 16,384 + 128 + 2 x 512 + 8 x 74 = 26,832
    ("llama-3-8b", 81559, {"max_batched_tokens": 2048, "max_seqs": 16}, "0.874"),  # 4,080: less than the 10 GiB that a large GPU keeps
    ("llama-3-8b", 81559, {"enforce_eager": True}, "0.841"),  # 512 + 12,288 + 128 = 12,928
    ("deepseek-v3", 81559, {"tp": 8, "dp": 8, "dp_attention": True}, "0.573"),  # 16,384 + 3 x 512 x 8 + 1.5 x 512 x 8
]


@pytest.mark.parametrize(("model", "mib", "choices", "part"), PARTS, ids=lambda value: str(value)[:40])
def test_the_part_of_the_memory_is_that_of_the_source(model: str, mib: int, choices: dict[str, Any], part: str) -> None:
    assert SGLANG.utilization(load_model(model).spec, Options(**choices), mib * MIB) == Decimal(part)


def test_a_vision_tower_makes_the_part_smaller() -> None:
    """LLaVA's tower of 24 x 1024 takes 0.95 of the part; one of 27 x 1152 (Gemma 3) 0.95 x (1 - 0.1 x (27 x 1152^2 / (24 x 1024^2) - 1))."""
    plain = SGLANG.utilization(load_model("llama-3-8b").spec, Options(), 81559 * MIB)
    gemma = load_model("gemma-3-27b").weighed()
    factor = Decimal("0.95") * (1 - (Decimal(27 * 1152**2) / (24 * 1024**2) - 1) / 10)
    assert SGLANG.utilization(gemma, Options(), 81559 * MIB) == plain * factor
    assert SGLANG.utilization(gemma, Options(towers=False), 81559 * MIB) == plain


def fitted(model: str, gpu: str, context: int, *, quantization: str | None = None, utilization: str | None = None, **choices: Any) -> Fit:
    """The answer about a preset; `kv_bytes` states the pool."""
    found, kv_bytes = find_gpu(gpu), choices.pop("kv_bytes", None)
    memory, by = found.memory()
    question = Question(
        spec=load_model(model).weighed(),
        engine=SGLANG,
        options=Options(device=found.device(), **choices),
        asked=Asked(model, "preset", f"org/{model}", context, 1),
        gpu=GpuInfo(name=gpu, memory_bytes=memory, memory_by=by),
        utilization=None if utilization is None else Decimal(utilization),
        quantization=None if quantization is None else BY_NAME[quantization],
        kv_bytes=kv_bytes,
    )
    return answer(question)


# Public reports: model, GPU, options, GiB of the cache on one GPU, how far the likely figure may lie from it.
REPORTED: list[tuple[str, str, dict[str, Any], float, float]] = [
    ("qwen3-235b-a22b", "H100 SXM5 80GB", {"tp": 4, "utilization": "0.93", "quantization": "fp8"}, 16.46, 0.08),
    ("deepseek-r1", "h200", {"tp": 8, "utilization": "0.82"}, 509_000 * 61 * 576 * 2 / GIB, 0.05),
]


@pytest.mark.parametrize(("model", "gpu", "choices", "gib", "miss"), REPORTED, ids=lambda value: str(value)[:30])
def test_public_reports_lie_within_the_range(model: str, gpu: str, choices: dict[str, Any], gib: float, miss: float) -> None:
    """VLLM issue 21348 (mem_fraction_static 0.93), and ai-dynamo/aisimulate 263 (0.82, about 509,000 tokens)."""
    found = fitted(model, gpu, 8192, **choices)
    bounds = found.memory_range["kv_bytes"]
    assert in_gib(bounds.low) <= gib <= in_gib(bounds.high)
    assert in_gib(found.memory.kv_bytes) == pytest.approx(gib, rel=miss)
    assert found.commands["sglang"].endswith(f" --tp-size {choices['tp']} --mem-fraction-static {choices['utilization']}")


def test_a_stated_pool_is_told_in_tokens() -> None:
    found = fitted("qwen3-235b-a22b", "h100", 32768, kv_bytes=367_404 * 94 * 512, tp=4)
    assert found.capacity.tokens == 367_404
    assert found.capacity.requests == pytest.approx(367_404 / 32768)
    assert "--max-total-tokens 367404" in found.commands["sglang"]


def test_the_command_says_what_is_not_default() -> None:
    plan = planned(
        "qwen3-next-80b-a3b",
        kv_dtype="fp8",
        tp=8,
        dp=2,
        dp_attention=True,
        prefix_caching=False,
        max_seqs=32,
        max_batched_tokens=4096,
        mamba_ratio=Decimal("0.5"),
        swa_ratio=Decimal("0.25"),
        state_dtype="bf16",
        enforce_eager=True,
        expert_parallel=True,
    )
    assert plan.command("a b/c", 4096, None, "0.9") == (
        "python -m sglang.launch_server --model-path 'a b/c' --context-length 4096 --tp-size 8 --dp-size 2 --ep-size 8 --mem-fraction-static 0.9 "
        "--kv-cache-dtype fp8_e4m3 --swa-full-tokens-ratio 0.25 --mamba-full-memory-ratio 0.5 --mamba-ssm-dtype bfloat16 --chunked-prefill-size 4096 "
        "--max-running-requests 32 --enable-dp-attention --disable-radix-cache --cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled"
    )
    assert "unused" in {note.code for note in plan.notes}  # there is no pool for windows


def test_requests_that_all_windows_can_need_bound_their_pool() -> None:
    """Without a prefix cache and with 32 requests at most: 32 x (127 + 128 + 2 pages) + 2 x 8192 + 1 rows of gpt-oss's windows, the rest for full attention."""
    plan = planned("gpt-oss-20b", prefix_caching=False, max_seqs=32)
    rows = 32 * (127 + 128 + 1 + 1) + 2 * 8192 + 1
    row = 12 * 8 * 128 * 2
    assert plan.reserved == rows * row
    assert plan.capacity(10 * GIB, 4096).tokens == (10 * GIB - rows * row) // row


def test_a_model_of_windows_alone_has_one_pool() -> None:
    spec = load_model("gpt-oss-20b").spec
    windows = tuple(Layer(caches=layer.caches) for layer in spec.layers if layer.caches[0].retention.kind == "window")
    plan = planned(spec.model_copy(update={"layers": windows}))
    row = len(windows) * 8 * 128 * 2
    assert plan.capacity(row * 100_000, 4096).tokens == 100_000
    assert plan.need(4096) == ((127 + 1) * row,)


@pytest.mark.parametrize("model", ["llama-3-8b", "gpt-oss-20b", "gemma-4-31b", "qwen3-next-80b-a3b", "deepseek-v3.2", "llama-4-scout-17b-16e", "mimo-v2-flash"])
@pytest.mark.parametrize("tokens", [1000, 40_000])
def test_what_is_needed_is_held_and_no_less_is(model: str, tokens: int) -> None:
    """By its definition: 20 requests fit in what 20 need, and 21 do not. A slot for states, which the solver cannot part, is the tolerance."""
    plan = planned(model, tp=2)
    need, slack = plan.need(tokens)[0], 2 * plan.states.slot_bytes if plan.states is not None else 0
    assert plan.capacity(plan.reserved + 20 * need, tokens).requests >= 20
    assert plan.capacity(plan.reserved + 20 * need + need // 2 - 2 * slack, tokens).requests < 21
    assert plan.resident_bytes(tokens, 20) > plan.resident_bytes(tokens, 19)
    assert sum(use.size_bytes for use in plan.uses(tokens)) == plan.resident_bytes(tokens, 1)


def test_dp_attention_fills_all_gpus_of_a_model_once() -> None:
    plan = planned("deepseek-v3", tp=8, dp=8, dp_attention=True)
    assert plan.total_bytes(1000, 3) == 8 * plan.resident_bytes(1000, 3)
    assert planned("deepseek-v3", tp=8).total_bytes(1000, 3) == 8 * plan.resident_bytes(1000, 3)


def test_dp_attention_copies_what_requests_pass_alone() -> None:
    """By hand: Llama-3-8B's attention and embedding, which two GPUs share else; bf16, so that half of them are as many bytes as there are elements."""
    spec = load_model("llama-3-8b").weighed()
    shared = SGLANG.loaded(spec, Options(tp=2)).weights
    copied = SGLANG.loaded(spec, Options(tp=2, dp=2, dp_attention=True)).weights
    assert copied - shared == 32 * (2 * 4096 * 4096 + 2 * 1024 * 4096) + 128_256 * 4096


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3-8b", {"kv_dtype": "int8"}, "has no KV dtype int8"),
    ("llama-3-8b", {"kv_dtype": "fp16"}, "has no KV dtype fp16"),
    ("llama-3-8b", {"kv_dtype": "k=fp8,v=bf16"}, "stores K and V alike"),
    ("llama-3-8b", {"kv_dtype": "nvfp4"}, "on Blackwell GPUs alone"),
    ("llama-3-8b", {"kv_dtype": "mxfp8"}, "on Blackwell GPUs alone"),
    ("llama-3-8b", {"kv_dtype": "nvfp4", "gpu": "rtx 5090"}, "adds a workspace"),
    ("llama-3-8b", {"tp": 3}, "cannot share 32 attention heads"),
    ("llama-3-8b", {"tp": 8, "dp": 3, "dp_attention": True}, "--dp 3 must divide --tp 8"),
    ("llama-3-8b", {"tp": 8, "dcp": 3}, "--dcp 3 must divide"),
    ("llama-3-8b", {"pp": 33}, "more than the 32 layers"),
    ("llama-3-8b", {"draft_layers": True, "speculative_tokens": 1}, "no draft (MTP) layers"),
    ("mimo-v2-flash", {"kv_dtype": "nvfp4", "gpu": "b200"}, "prices a pool for windows"),
    ("phi-2", {"kv_dtype": "fp4_mx_block16", "gpu": "h100", "tp": 3}, "cannot share 32 attention heads"),
    ("qwen3.5-35b-a3b", {"tp": 64}, "cannot share"),
    ("deepseek-v3", {"kv_dtype": "mxfp8", "gpu": "b200"}, "does not store latents as mxfp8"),
    ("deepseek-v3.2", {"kv_dtype": "fp8_e5m2"}, "stores sparse attention as bf16 or fp8_e4m3"),
    ("deepseek-v3.2", {"tp": 8, "dcp": 2}, "by --dcp is not modelled"),
    ("gpt-oss-20b", {"tp": 8, "dcp": 2}, "by --dcp is not modelled"),
    ("gpt-oss-20b", {"swa_ratio": Decimal("1.5")}, "not above 0 and up to 1"),
    ("qwen3.5-35b-a3b", {"mamba_ratio": Decimal(0)}, "is not above 0"),
    ("lfm2.5-vl-1.6b", {"block_size": 16}, "pages hold one"),
]


@pytest.mark.parametrize(("model", "choices", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_sglang_turns_down_is_refused_and_its_plain_form_is_not(model: str, choices: dict[str, Any], said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        planned(model, **choices)
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert said in refused.value.message
    assert refused.value.hint
    planned(model)


NOT_MODELLED = [
    ("deepseek-v4-flash", "pools of its own"),
    ("deepseek-v4.1-flash", "pools of its own"),
    ("glm-5.3-flash", "pools of its own"),
    ("minimax-m3", "index keys in a pool of its own"),
    ("jamba-v0.1", "pool for the states of jamba is not known"),
    ("mamba-2.8b", "pool for the states of mamba is not known"),
    ("llama-3.2-11b-vision", "cross-attention is not modelled"),
    ("whisper-large-v3", "cross-attention is not modelled"),
]


@pytest.mark.parametrize(("model", "said"), NOT_MODELLED)
def test_models_with_other_pools_are_refused(model: str, said: str) -> None:
    with pytest.raises(KvcalcError, match=said) as refused:
        planned(model)
    assert refused.value.code == ExitCode.UNANSWERABLE


def test_layers_of_unlike_heads_are_refused() -> None:
    spec = load_model("llama-3-8b").spec
    fewer = spec.layers[0].caches[0].model_copy(update={"planes": tuple(plane.model_copy(update={"heads": 4}) for plane in spec.layers[0].caches[0].planes)})
    with pytest.raises(KvcalcError, match="the same heads and widths"):
        planned(spec.model_copy(update={"layers": (Layer(caches=(fewer,)), *spec.layers[1:])}))


def test_a_server_whose_pool_for_windows_holds_no_request_does_not_start() -> None:
    """validate_swa_pool_size: 0.8 x 150 rows are fewer than the window and a page, though a request of 20 tokens would have room."""
    plan = planned("gpt-oss-20b")
    budget = 150 * plan.token_bytes(4096)
    with pytest.raises(KvcalcError, match="cannot hold even one request") as refused:
        plan.capacity(budget, 20)
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert plan.capacity(budget, 4096).requests < 1  # it does not fit in any case
