"""The llama.cpp engine against what public logs print, against its source by hand, and by its definition."""

from collections.abc import Iterable
from typing import Any

import pytest

from kvcalc.catalog import load_model, model_from_shape
from kvcalc.engines.base import Options
from kvcalc.engines.ideal import IDEAL
from kvcalc.engines.llamacpp import LLAMACPP, LlamaCppPlan
from kvcalc.engines.llamacpp.memory import FIT_MARGIN
from kvcalc.engines.llamacpp.models import (
    DRAFTS_OF_GGUF,
    EXPANDED,
    INDEX_TRIPLES,
    INDEX_VALUES,
    MODELS,
    MORE_DRAFTS,
    PER_SEQUENCE,
    WINDOWED,
    architecture,
    placed,
)
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.families import FAMILIES, read_config
from kvcalc.layers import ModelSpec
from kvcalc.packing import parse_kv_dtype
from kvcalc.tensors import weighed

MIB = 1 << 20

GEMMA_3_270M = {
    "model_type": "gemma3_text",
    "num_hidden_layers": 18,
    "hidden_size": 640,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 256,
    "sliding_window": 512,
    "dtype": "bfloat16",
}


def spec_of(model: str) -> ModelSpec:
    return read_config(GEMMA_3_270M) if model == "gemma-3-270m" else load_model(model).spec


def plan(model: str, **choices: Any) -> LlamaCppPlan:
    """A plan; `kv_dtype` is a name."""
    choices["kv_dtype"] = parse_kv_dtype(choices.get("kv_dtype", "auto"))
    return LLAMACPP.plan(spec_of(model), Options(**choices))


def bytes_of(model: str, tokens: int, **choices: Any) -> int:
    return plan(model, **choices).need(tokens)[0]


def notes_of(found: LlamaCppPlan) -> dict[str, str]:
    return {note.code: note.text for note in found.notes}


# What public logs print: model, -c, options, MiB (two decimals).
LOGGED: list[tuple[str, int, dict[str, Any], str]] = [
    ("deepseek-r1", 32_768, {}, "2196.00"),
    ("deepseek-r1", 32_768, {"kv_dtype": "q8_0"}, "1166.62"),
    ("deepseek-r1", 20_480, {"kv_dtype": "q8_0"}, "729.14"),
    ("deepseek-r1", 153_600, {"kv_dtype": "q8_0"}, "5468.55"),
    ("kimi-k2", 2048, {"kv_dtype": "q8_0"}, "72.91"),
    ("qwen3-235b-a22b", 32_768, {"kv_dtype": "q8_0"}, "3196.00"),
    ("qwen3-235b-a22b", 32_768, {}, "6016.00"),
    ("qwen3-30b-a3b", 16_384, {"max_seqs": 1}, "1536.00"),
    ("qwen2.5-7b", 32_768, {"max_seqs": 1}, "1792.00"),
    ("qwen2.5-32b", 32_768, {}, "8192.00"),
    ("llama-3.1-405b", 4096, {}, "2016.00"),
    ("command-r", 2048, {}, "2560.00"),
    ("yi-34b", 2048, {}, "480.00"),
    ("qwen3.5-35b-a3b", 32_768, {"max_seqs": 4}, "891.25"),  # 640.00 of attention, R 11.25 and S 240.00
    ("gemma-3-270m", 1024, {"max_seqs": 3}, "27.00"),  # 1,536 cells
    ("gemma-3-270m", 1024, {"max_seqs": 4}, "18.00"),  # 1,024 cells
]


@pytest.mark.parametrize(("model", "tokens", "choices", "mib"), LOGGED)
def test_cache_is_what_was_logged(model: str, tokens: int, choices: dict[str, Any], mib: str) -> None:
    assert f"{bytes_of(model, tokens, **choices) / MIB:.2f}" == mib


# By hand from the source: layers x cells x elements x bytes.
BY_HAND: list[tuple[str, int, dict[str, Any], int]] = [
    ("llama-3-8b", 8000, {}, 32 * 8192 * 2048 * 2),  # rounded up to 256
    ("llama-3-8b", 8192, {"kv_dtype": "k=q8_0,v=fp16"}, 32 * 8192 * (1024 // 32 * 34 + 1024 * 2)),
    ("llama-3-8b", 8192, {"kv_dtype": "k=fp32,v=q4_0"}, 32 * 8192 * (1024 * 4 + 1024 // 32 * 18)),
    ("llama-3-8b", 8192, {"kv_dtype": "k=q8_0,v=fp16", "flash_attention": False}, 32 * 8192 * (1024 // 32 * 34 + 1024 * 2)),
    ("llama-3-8b", 8192, {"kv_dtype": "q5_1"}, 32 * 8192 * 2 * 1024 // 32 * 24),
    ("llama-3-8b", 8192, {"kv_dtype": "iq4_nl"}, 32 * 8192 * 2 * 1024 // 32 * 18),
    ("llama-3-8b", 8192, {"max_seqs": 5}, 32 * 5 * 1792 * 2048 * 2),  # 8192 // 5 = 1638, to 1792
    ("llama-3-8b", 8192, {"max_seqs": 5, "unified": True}, 32 * 8192 * 2048 * 2),
    # Windows of 1,024: 4 x 1,024 + 512 cells for four slots of one pool, 1,536 for one, 3,072 with micro-batches of 2,048, for each slot of its own.
    ("gemma-3-27b", 32_768, {}, (10 * 32_768 + 52 * 4608) * 4096 * 2),
    ("gemma-3-27b", 32_768, {"max_seqs": 1}, (10 * 32_768 + 52 * 1536) * 4096 * 2),
    ("gemma-3-27b", 32_768, {"max_seqs": 1, "ubatch": 2048}, (10 * 32_768 + 52 * 3072) * 4096 * 2),
    ("gemma-3-27b", 32_768, {"max_seqs": 2}, 2 * (10 * 16_384 + 52 * 1536) * 4096 * 2),
    ("gemma-3-27b", 32_768, {"max_seqs": 2, "unified": True}, (10 * 32_768 + 52 * 2560) * 4096 * 2),
    ("gemma-3-27b", 32_768, {"swa_full": True}, 62 * 32_768 * 4096 * 2),
    ("gemma-3-27b", 1024, {}, 62 * 1024 * 4096 * 2),
    ("gemma-3-27b", 300, {}, 62 * 512 * 4096 * 2),
    ("llama-4-scout-17b-16e", 65_536, {"max_seqs": 1}, (12 * 65_536 + 36 * 8704) * 2048 * 2),  # chunks are windows of 8,192
    ("gemma-3n-e4b", 32_768, {}, (4 * 32_768 + 16 * 2560) * 1024 * 2),  # the last 15 of 35 layers use another's
    ("mistral-7b-v0.1", 32_768, {}, 32 * 32_768 * 2048 * 2),  # its window is not llama.cpp's
    ("minicpm3-4b", 4096, {}, 62 * 4096 * 40 * (96 + 64) * 2),  # MLA with K and V of every head
    ("deepseek-v3.2", 4096, {}, 61 * 4096 * (576 + 128) * 2),
    ("glm-5.2", 4096, {}, 4096 * (78 * 576 + 21 * 128) * 2),  # the index keys of "full" layers alone
    ("minimax-m3", 4096, {}, 4096 * (60 * 1024 + 57 * (128 + 128)) * 2),  # the indexer's own V of one head
    ("glm-5.3-flash", 4096, {"max_seqs": 2}, 4096 * 11 * (512 + 3 * 128) * 2 + 2 * 34 * (3 * 3 * 8192 + 64 * 128 * 128) * 4),
    ("mamba-2.8b", 4096, {"max_seqs": 3}, 3 * 64 * 5120 * (3 + 16) * 4),
    ("falcon-h1-7b", 4096, {}, 44 * 4096 * 512 * 2 + 4 * 44 * (3 * (3072 + 2 * 256) + 24 * 128 * 256) * 4),
    ("lfm2.5-vl-1.6b", 4096, {"max_seqs": 1}, 6 * 4096 * 1024 * 2 + 10 * 2048 * 2 * 4),
    ("t5-base", 512, {}, 12 * 512 * 1536 * 2),  # nothing for cross-attention
    # Without flash attention V is as wide as the widest layer's: 16 heads x 256 in layers that slide, 4 x 512 in the others.
    ("gemma-4-31b", 32_768, {"max_seqs": 1}, (10 * 32_768 * (2048 + 2048) + 50 * 1536 * (4096 + 4096)) * 2),
    ("gemma-4-31b", 32_768, {"max_seqs": 1, "flash_attention": False}, (10 * 32_768 * (2048 + 4096) + 50 * 1536 * (4096 + 4096)) * 2),
    # Each slot for itself, and each as long as the pool where that is shared: 640 of the window to 768, a quarter, and 2 x 128ths to 256; compressors in fp32.
    (
        "deepseek-v4-flash",
        32_768,
        {"max_seqs": 1},
        (43 * 768 * 512 + 21 * 8192 * (512 + 128) + 20 * 256 * 512) * 2 + (21 * 8 * 2 * (1024 + 256) + 20 * 128 * 2 * 512) * 4,
    ),
    (
        "deepseek-v4-flash",
        32_768,
        {},
        4 * ((43 * 768 * 512 + 21 * 8192 * (512 + 128) + 20 * 256 * 512) * 2 + (21 * 8 * 2 * (1024 + 256) + 20 * 128 * 2 * 512) * 4),
    ),
]


@pytest.mark.parametrize(("model", "tokens", "choices", "size_bytes"), BY_HAND)
def test_cache_by_hand(model: str, tokens: int, choices: dict[str, Any], size_bytes: int) -> None:
    found = plan(model, **choices)
    assert found.need(tokens) == (size_bytes,)
    assert found.resident_bytes(tokens, 1) == found.total_bytes(tokens, 1) == size_bytes
    assert sum(use.size_bytes for use in found.uses(tokens)) == size_bytes
    assert sum(use.layers * use.rows * sum(plane.row_bytes for plane in use.planes) for use in found.uses(tokens)) == size_bytes


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama-3-8b", {"tp": 2}, "--tp 2 is not modelled"),
    ("llama-3-8b", {"dcp": 2}, "does not divide the tokens"),
    ("llama-3-8b", {"pp": 17}, "at most 16 GPUs"),
    ("llama-3-8b", {"max_seqs": 257}, "at most 256 slots"),
    ("llama-3-8b", {"kv_dtype": "fp8"}, "no KV cache type fp8"),
    ("llama-3-8b", {"kv_dtype": "k=fp16,v=nvfp4"}, "no KV cache type nvfp4"),
    ("llama-3-8b", {"kv_dtype": "turboquant_4bit_nc"}, "no KV cache type turboquant_4bit_nc"),
    ("llama-3-8b", {"kv_dtype": "q8_0", "flash_attention": False}, "wants flash attention for a V of type q8_0"),
    ("llama-3-8b", {"draft_layers": True}, "speculative decoding under llama.cpp is not modelled"),
    ("stablelm-3b", {"kv_dtype": "k=q8_0,v=fp16"}, "stores K as q8_0 in blocks of 32, which a row of 80 elements does not fill"),
    ("phi-2", {"kv_dtype": "k=fp16,v=q4_0"}, "stores V as q4_0 in blocks of 32, which a row of 80 elements does not fill"),
    ("deepseek-r1", {"kv_dtype": "k=q8_0,v=fp16"}, "types cannot differ (q8_0, f16)"),
    ("deepseek-v4-flash", {"kv_dtype": "k=bf16,v=fp16"}, "types cannot differ (bf16, f16)"),
    ("whisper-large-v3", {}, "does not know the architecture of whisper"),
    ("llama-3.2-11b-vision", {}, "does not know the architecture of mllama"),
    ("deepseek-v4.1-flash", {}, "(src/llama-arch.cpp at 0c1e57098)"),
    ("opt-125m", {}, "does not know the architecture of opt"),
]


@pytest.mark.parametrize(("model", "choices", "said"), REFUSED)
def test_what_llama_cpp_turns_down_is_refused(model: str, choices: dict[str, Any], said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        plan(model, **choices)
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert said in refused.value.message
    assert refused.value.hint


@pytest.mark.parametrize("model", sorted({model for model, choices, _ in REFUSED if choices}))
def test_the_plain_form_of_what_is_refused_is_answered(model: str) -> None:
    assert bytes_of(model, 4096) > 0


def test_names_of_types_are_those_of_llama_cpp() -> None:
    with pytest.raises(KvcalcError) as refused:
        plan("llama-3-8b", kv_dtype="int8")
    assert refused.value.hint == "known: f32, f16, bf16, q8_0, q4_0, q4_1, iq4_nl, q5_0, q5_1"


def test_without_flash_attention_only_whole_rows_of_k_fill_blocks() -> None:
    """32 heads of 80 elements are a row of 2,560."""
    assert bytes_of("stablelm-3b", 4096, kv_dtype="k=q8_0,v=fp16", flash_attention=False) == 32 * 4096 * (2560 // 32 * 34 + 2560 * 2)


def test_every_model_type_of_the_table_is_one_that_is_read() -> None:
    assert MODELS.keys() <= FAMILIES.keys()
    assert MODELS.keys() >= {*DRAFTS_OF_GGUF, *MORE_DRAFTS}
    for names in (WINDOWED, EXPANDED, PER_SEQUENCE, INDEX_VALUES, INDEX_TRIPLES):
        assert names <= set(MODELS.values())


@pytest.mark.parametrize(
    ("model_type", "name"), [("gemma3_text", "gemma3"), ("qwen3_5_moe_text", "qwen35moe"), ("qwen3_asr_thinker", "qwen3vl"), ("phi4", "phi3")]
)
def test_a_language_model_alone_is_known_by_its_whole(model_type: str, name: str) -> None:
    shape = model_from_shape(2, 2, 64).spec
    assert architecture(shape.model_copy(update={"facts": shape.facts.model_copy(update={"model_type": model_type})})) == name


def test_a_shape_without_a_model_type_is_answered() -> None:
    assert LLAMACPP.plan(model_from_shape(2, 2, 64).spec, Options()).need(256) == (2 * 256 * 2 * 128 * 2,)


# Layers on the CPU and on several GPUs


@pytest.mark.parametrize(
    ("model", "gpu_layers", "on_gpu", "layers"),
    [
        ("llama-3-8b", 33, 32, 32),
        ("llama-3-8b", 99, 32, 32),
        ("llama-3-8b", 9, 8, 32),
        ("llama-3-8b", 1, 0, 32),
        ("llama-3-8b", 0, 0, 32),
        ("glm-4.5", 12, 10, 92),  # one draft layer behind the last counts, and holds nothing
        ("glm-4.5", 94, 92, 92),
        ("deepseek-v3", 12, 11, 61),  # converted without it
    ],
)
def test_the_last_layers_are_on_the_gpu_behind_the_output(model: str, gpu_layers: int, on_gpu: int, layers: int) -> None:
    whole = bytes_of(model, 4096)
    found = plan(model, gpu_layers=gpu_layers)
    assert found.need(4096) == (whole * on_gpu // layers,)
    assert found.total_bytes(4096, 1) == whole * on_gpu // layers
    token = whole // 4096 * (layers - on_gpu) // layers
    said = notes_of(found).get("cpu-layers")
    assert said == (None if on_gpu == layers else f"{layers - on_gpu} layers stay on the CPU: their cache is in host memory, {token:,} bytes a token")


@pytest.mark.parametrize(
    ("model", "gpu_layers", "last"),
    [("nemotron-3-super-120b-a12b", 3, 87), ("mimo-v2-flash", 5, 47), ("deepseek-v3", 2, 60), ("glm-4.5", 3, 91), ("llama-3-8b", 2, 31)],
)
def test_draft_layers_stand_between_the_last_layer_and_the_output(model: str, gpu_layers: int, last: int) -> None:
    """One block for both of Nemotron's, three for MiMo-V2 whose config counts none, none for DeepSeek-V3, one for GLM-4.5."""
    place = placed(spec_of(model), Options(gpu_layers=gpu_layers))
    assert place == (tuple(range(last)), ((last,),), 0)


@pytest.mark.parametrize(("gpu_layers", "layers", "output"), [(None, 17, 1), (3, 2, 1), (2, 1, 1), (1, 0, 0), (0, 0, None)])
def test_the_output_is_the_last_layer_of_the_last_gpu(gpu_layers: int | None, layers: int, output: int | None) -> None:
    """Llama-3-8B on two GPUs: layers of the first one, and who computes the output."""
    place = placed(spec_of("llama-3-8b"), Options(pp=2, gpu_layers=gpu_layers))
    assert (len(place.gpus[0]), place.output) == (layers, output)


def test_states_on_the_cpu_are_named() -> None:
    assert "bytes whatever the context" in notes_of(plan("falcon-h1-7b", gpu_layers=4))["cpu-layers"]


def test_which_layers_are_left_decides_about_windows() -> None:
    """Of Gemma 3's 62 layers every sixth keeps all: of the last six, one of them 60th."""
    assert bytes_of("gemma-3-27b", 32_768, max_seqs=1, gpu_layers=7) == (32_768 + 5 * 1536) * 4096 * 2
    assert bytes_of("gemma-3-27b", 32_768, max_seqs=1, gpu_layers=3) == 2 * 1536 * 4096 * 2


@pytest.mark.parametrize(("pp", "most"), [(1, 32), (2, 17), (3, 11), (4, 9)])
def test_gpus_share_the_layers_and_the_output(pp: int, most: int) -> None:
    """33 of Llama-3-8B: 17 and 16, of which one is the output; 11 each; 9, 8, 8, 8."""
    found = plan("llama-3-8b", pp=pp, dp=2)
    assert found.need(4096) == (most * 4096 * 2048 * 2,)
    assert found.total_bytes(4096, 1) == 2 * 32 * 4096 * 2048 * 2
    assert ("gpus" in notes_of(found)) is (pp > 1)


# Slots


def test_slots_and_their_cells() -> None:
    auto, split, one = plan("llama-3-8b"), plan("llama-3-8b", max_seqs=3), plan("llama-3-8b", max_seqs=1)
    assert (auto.max_requests, split.max_requests, one.max_requests) == (4, 3, 1)
    assert (auto.slot_cells(32_768), split.slot_cells(32_768), one.slot_cells(32_768)) == (32_768, 11_008, 32_768)
    assert notes_of(auto)["slots"].startswith("4 slots share one pool")
    assert notes_of(split)["slots"].startswith("-c is divided by 3 slots")
    assert "slots" not in notes_of(one)


def test_a_pool_that_fits_holds_every_slot_and_else_none() -> None:
    found = plan("llama-3-8b", max_seqs=3)
    need = found.need(32_768)[0]
    assert found.capacity(need, 32_768) == (3, 3 * 11_008)
    assert found.capacity(need - 1, 32_768) == (0, 0)
    shared = plan("llama-3-8b")
    assert shared.capacity(shared.need(1000)[0], 1000) == (4, 1024)


def test_more_requests_than_slots_are_refused() -> None:
    found = plan("llama-3-8b", max_seqs=2)
    assert found.resident_bytes(4096, 2) == found.resident_bytes(4096, 1)
    for size in (found.resident_bytes, found.total_bytes):
        with pytest.raises(KvcalcError, match="3 requests at once want as many slots") as refused:
            size(4096, 3)
        assert refused.value.hint == "state them: --max-seqs 3"


def test_a_pool_is_shared_without_np_whatever_is_said() -> None:
    found = plan("llama-3-8b", unified=False)
    assert found.unified
    assert "share one pool, --no-kv-unified or not" in notes_of(found)["unified"]


# What a token adds, and what the rest is made of


@pytest.mark.parametrize(
    ("model", "choices", "tokens", "added"),
    [
        ("llama-3-8b", {}, 4096, 32 * 2048 * 2),
        ("llama-3-8b", {"max_seqs": 4}, 4096, 32 * 2048 * 2),
        ("gemma-3-27b", {"max_seqs": 1}, 1000, 62 * 4096 * 2),
        ("gemma-3-27b", {"max_seqs": 1}, 8192, 10 * 4096 * 2),
        ("gemma-3-27b", {"swa_full": True}, 8192, 62 * 4096 * 2),
        ("deepseek-v4-flash", {"max_seqs": 1}, 8192, 21 * (512 + 128) * 2 // 4 + 20 * 512 * 2 // 128),
        ("deepseek-v4-flash", {}, 8192, 4 * (21 * (512 + 128) * 2 // 4 + 20 * 512 * 2 // 128)),
        ("mamba-2.8b", {}, 8192, 0),
    ],
)
def test_what_one_more_token_adds(model: str, choices: dict[str, Any], tokens: int, added: int) -> None:
    assert plan(model, **choices).token_bytes(tokens) == added


def test_states_and_compressors_are_fixed() -> None:
    assert plan("mamba-2.8b", max_seqs=3).fixed_bytes() == 3 * 64 * 5120 * (3 + 16) * 4
    assert plan("deepseek-v4-flash", max_seqs=1).fixed_bytes() == (21 * 8 * 2 * (1024 + 256) + 20 * 128 * 2 * 512) * 4
    assert plan("llama-3-8b").fixed_bytes() == 0


@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-27b", "falcon-h1-7b", "deepseek-v4-flash", "mistral-7b-v0.1", "kimi-linear-48b-a3b"])
def test_causes_explain_the_cache_to_the_cell(model: str) -> None:
    """At a length that fills whole cells nothing is left to rounding: rows of one request and the causes are the cache."""
    found = plan(model, max_seqs=1, kv_dtype="fp16")
    rows = IDEAL.plan(spec_of(model), Options(kv_dtype=parse_kv_dtype("fp16"))).need(32_768)[0]
    assert rows + sum(size for _, size in found.surplus(32_768)) == found.need(32_768)[0]


def test_causes_are_named() -> None:
    assert dict(plan("mistral-7b-v0.1").surplus(32_768)) == {"windows kept at full length": 32 * (32_768 - 4096) * 2048 * 2}
    assert dict(plan("gemma-3-27b", max_seqs=1).surplus(32_768)) == {"windows hold a micro-batch, in every slot": 52 * 512 * 4096 * 2}
    states = 64 * 5120 * ((3 + 16) * 4 * 4 - (3 * 2 + 16 * 2))
    assert dict(plan("mamba-2.8b").surplus(32_768)) == {"states of every slot, in fp32": states}


@pytest.mark.parametrize("model", ["llama-3-8b", "gemma-3-27b", "qwen3.5-35b-a3b", "deepseek-v4-flash", "minimax-m3"])
@pytest.mark.parametrize("choices", [{}, {"max_seqs": 3}, {"pp": 3}, {"gpu_layers": 7, "max_seqs": 1}])
def test_more_context_never_costs_less(model: str, choices: dict[str, Any]) -> None:
    found = plan(model, **choices)
    sizes = [found.need(tokens)[0] for tokens in range(1, 40_000, 509)]
    assert sizes == sorted(sizes)


def test_windows_that_are_not_kept_and_types_that_were_not_asked_for_are_noted() -> None:
    assert notes_of(plan("mistral-7b-v0.1"))["windows"] == "llama.cpp (llama) keeps every token in the 32 layers whose attention slides"
    assert "windows" not in notes_of(plan("gemma-3-27b"))
    assert "f16" in notes_of(plan("llama-3-8b"))["kv-dtype"]
    assert "kv-dtype" not in notes_of(plan("llama-3-8b", kv_dtype="bf16"))
    assert "llama-server does not" in notes_of(plan("t5-base"))["cross-attention"]
    assert notes_of(plan("llama-3-8b", block_size=16, ubatch=256))["unused"] == "llama.cpp does not use --block-size"


# The server's command, weights and what stays beside them


@pytest.mark.parametrize(
    ("model", "choices", "words"),
    [
        ("a folder/m.gguf", {}, "-m 'a folder/m.gguf' -c 8192"),
        ("ggml-org/gemma-3-4b-it-GGUF", {"max_seqs": 2}, "-hf ggml-org/gemma-3-4b-it-GGUF -c 8192 -np 2"),
        ("meta-llama/Meta-Llama-3-8B", {"max_seqs": 2, "unified": True}, "-m MODEL.gguf -c 8192 -np 2 -kvu"),
        ("m.gguf", {"kv_dtype": "k=q8_0,v=bf16"}, "-m m.gguf -c 8192 -ctk q8_0 -ctv bf16"),
        ("m.gguf", {"kv_dtype": "k=fp16,v=q4_0"}, "-m m.gguf -c 8192 -ctv q4_0"),
        ("m.gguf", {"swa_full": True, "ubatch": 1024}, "-m m.gguf -c 8192 --swa-full -ub 1024"),
        ("m.gguf", {"ubatch": 4096, "gpu_layers": 20, "flash_attention": False}, "-m m.gguf -c 8192 -b 4096 -ub 4096 -ngl 20 -fa off"),
    ],
)
def test_command_names_what_is_not_the_default(model: str, choices: dict[str, Any], words: str) -> None:
    assert plan("llama-3-8b", **choices).command(model, 8192, None, None) == f"llama-server {words}"


def test_no_server_runs_an_encoder_decoder() -> None:
    assert plan("t5-base").command("m.gguf", 512, None, None) == ""


def test_weights_on_gpus_leave_the_embedding_to_the_cpu() -> None:
    """Llama-3-8B: 218,112,000 parameters a layer, an output as large as the embedding, and a norm, in 16 bits."""
    spec = load_model("llama-3-8b").weighed()
    layer, output = 218_112_000 * 2, (128_256 * 4096 + 4096) * 2
    assert LLAMACPP.loaded(spec, Options()) == (32 * layer + output, 0, 0)
    assert LLAMACPP.loaded(spec, Options(pp=2)).weights == max(17 * layer, 15 * layer + output)
    assert LLAMACPP.loaded(spec, Options(gpu_layers=9)).weights == 8 * layer + output
    assert LLAMACPP.loaded(spec, Options(gpu_layers=1)).weights == output
    assert LLAMACPP.loaded(spec, Options(gpu_layers=0)).weights == 0


def test_a_tied_embedding_is_the_output() -> None:
    """Gemma-3-1B has no output of its own: its embedding is on the CPU, and as output on the last GPU."""
    spec = load_model("gemma-3-1b").weighed()
    assert LLAMACPP.loaded(spec, Options()).weights - LLAMACPP.loaded(spec, Options(gpu_layers=1)).weights == sum(_layer_bytes(spec.tensors))
    assert LLAMACPP.loaded(spec, Options(gpu_layers=1)).weights == (262_144 * 1152 + 1152) * 2


def _layer_bytes(tensors: Iterable[Any]) -> list[int]:
    return [2 * tensor.elements * tensor.number for tensor in tensors if tensor.layers]


def test_unknown_weights_are_refused() -> None:
    with pytest.raises(KvcalcError) as refused:
        LLAMACPP.loaded(weighed(model_from_shape(2, 2, 64).spec), Options())
    assert "--weights" in refused.value.hint


def test_compute_buffer_is_that_of_a_public_log() -> None:
    """A 32B of Qwen2.5's shape on five MI50, without flash attention at 32,768 tokens: 2,664 MiB each."""
    spec = load_model("qwen2.5-32b").weighed()
    kept = LLAMACPP.overheads(spec, Options(flash_attention=False), 32_768)
    assert kept.activation.likely == 2664 * MIB
    assert kept.runtime.likely == FIT_MARGIN + 400 * MIB
    assert kept.total.likely == kept.activation.likely + kept.runtime.likely
    assert kept.total.low < kept.total.likely < kept.total.high


def test_flash_attention_keeps_no_scores() -> None:
    """512 tokens: two rows of 27,648, four of 5,120, and a mask of 16 bits for each cell."""
    spec = load_model("qwen2.5-32b").weighed()
    kept = LLAMACPP.overheads(spec, Options(), 32_768).activation
    assert kept.likely == 512 * (4 * 2 * 27_648 + 4 * 4 * 5120 + 2 * 32_768)
    assert LLAMACPP.overheads(spec, Options(pp=2), 32_768).activation.high == kept.high + 3 * 512 * 2 * 32_768
    unknown = LLAMACPP.overheads(weighed(model_from_shape(2, 2, 64).spec), Options(), 4096).activation
    assert unknown.low < unknown.likely < unknown.high


@pytest.mark.parametrize(
    ("model", "tokens", "choices", "logged"),
    [
        ("qwen3-235b-a22b", 32_768, {"kv_dtype": "q8_0"}, "all tokens: K 1598.00 MiB, V 1598.00 MiB"),
        ("deepseek-r1", 32_768, {"kv_dtype": "q8_0"}, "all tokens: K 1166.62 MiB"),
        ("qwen3.5-35b-a3b", 32_768, {"max_seqs": 4, "unified": True}, "states: R 11.25 MiB, S 240.00 MiB; of all tokens: K 320.00 MiB, V 320.00 MiB"),
        ("llama-3-70b", 2048, {"max_seqs": 1}, "all tokens: K 320.00 MiB, V 320.00 MiB"),
    ],
)
def test_k_and_v_are_what_was_logged(model: str, tokens: int, choices: dict[str, Any], logged: str) -> None:
    """Public start-up logs, to the hundredth of a MiB and rounded as they are."""
    (note,) = plan(model, **choices).length_notes(tokens, 1)
    assert note.text == f"llama.cpp logs on all GPUs together, of {logged}"
