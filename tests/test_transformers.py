"""The transformers engine against bytes of real caches, measured on CPU, and what it must turn down."""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.engines.transformers import TRANSFORMERS, TransformersEngine, TransformersPlan, find_release
from kvcalc.engines.transformers.kinds import KINDS
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import estimate
from kvcalc.families import read_config
from kvcalc.layers import ModelSpec, Note
from kvcalc.packing import parse_kv_dtype
from kvcalc.units import format_bytes
from tests.collection import COLLECTION

TRANSFORMERS_4 = TransformersEngine(find_release("4"))
MEASURED: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "transformers.yaml").read_text())
GOLDEN = COLLECTION / "golden" / "caches.jsonl"
PUBLISHED: list[dict[str, Any]] = [json.loads(line, parse_float=Decimal) for line in GOLDEN.read_text().splitlines()] if GOLDEN.is_file() else []
VISION_TOKENS = 50
"""What the Mllama row of the collection was measured with and does not state: (860,160 - 32 x 20,480) B in 8 layers of 512 B a token, for 2 requests."""


def config(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a config whose layer types are counted: "3 a, 2 b/c" is a a a b c b c."""
    spelled = dict(fields)
    for name in ("layer_types", "layers_block_type"):
        if name in spelled:
            runs = (run.split() for run in spelled[name].split(","))
            spelled[name] = [kind for count, kinds in runs for kind in kinds.split("/") * int(count)]
    return spelled


def plan(fields: dict[str, Any], engine: TransformersEngine = TRANSFORMERS, **choices: Any) -> TransformersPlan:
    return engine.plan(read_config(config(fields)), Options(**choices))


def llama(**changes: Any) -> dict[str, Any]:
    """Llama-3.1-8B with two layers."""
    heads = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    return {"model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": 2, **heads, **changes}


def deepseek(**changes: Any) -> dict[str, Any]:
    """A small DeepSeek-V3 with widths that differ."""
    shape = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "kv_lora_rank": 32, "v_head_dim": 12}
    return {"model_type": "deepseek_v3", "dtype": "bfloat16", **shape, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, **changes}


def texts(notes: tuple[Note, ...], code: str) -> list[str]:
    return [note.text for note in notes if note.code == code]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["name"])
def test_bytes_after_a_decode_step(row: dict[str, Any]) -> None:
    measured = row["measured"]
    found = plan(row["config"], encoder_tokens=measured.get("encoder_tokens"))
    assert found.total_bytes(measured["tokens"], measured["batch"]) == measured["decoded"]
    assert found.need(measured["tokens"]) == (measured["decoded"] // measured["batch"],)
    assert sum(use.size_bytes for use in found.uses(measured["tokens"])) * measured["batch"] == measured["decoded"]


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row["name"])
def test_bytes_right_after_a_prefill(row: dict[str, Any]) -> None:
    measured = row["measured"]
    found = plan(row["config"], encoder_tokens=measured.get("encoder_tokens"))
    prefill = measured["tokens"] - 3
    rows = sum(each.row_bytes * each.prefill_rows(prefill, found.ideal.encoder_tokens) for each in found.held)
    assert measured["batch"] * rows == measured["prefilled"]


@pytest.mark.parametrize("row", [row for row in MEASURED if "static" in row["measured"]], ids=lambda row: row["name"])
def test_bytes_of_a_static_cache(row: dict[str, Any]) -> None:
    assert plan(row["config"], cache="static").total_bytes(64, row["measured"]["batch"]) == row["measured"]["static"]


def test_cross_attention_in_a_static_cache_has_a_row_for_each_token() -> None:
    """Mllama's 40 layers stand in one cache: 64 rows of 8 heads x (8 + 8) x 2 bytes for two requests in each, whatever the image; measured."""
    row = next(row for row in MEASURED if row["name"] == "mllama-11b-text")
    assert plan(row["config"], cache="static", encoder_tokens=VISION_TOKENS).total_bytes(64, 2) == 40 * 64 * 8 * 16 * 2 * 2


@pytest.mark.skipif(not PUBLISHED, reason="no collection of measured caches beside the checkout")
def test_every_measured_cache_of_the_collection() -> None:
    assert len(PUBLISHED) == 54
    for row in PUBLISHED:
        spec = read_config(row["config"])
        encoder_tokens = VISION_TOKENS if row["model_type"] == "mllama_text_model" else row["encoder_tokens"]
        held = TRANSFORMERS.plan(spec, Options(encoder_tokens=encoder_tokens))
        assert held.total_bytes(row["tokens"], row["batch"]) == row["after_decode"]["storage"], row["name"]
        if row["static"]:
            static = TRANSFORMERS.plan(spec, Options(encoder_tokens=encoder_tokens, cache="static"))
            assert static.total_bytes(row["static"]["max_cache_len"], row["batch"]) == row["static"]["storage"], row["name"]


# One request of DeepSeek-V4-Flash with 23 heavily and 20 sparsely compressed layers, decoded to so many tokens.
COMPRESSED = [(3, 580_608), (4, 1_106_944), (6, 1_084_416), (128, 13_224_960), (129, 6_935_552), (131, 7_234_560), (304, 10_606_592), (305, 10_346_496)]


@pytest.mark.parametrize(("tokens", "size_bytes"), COMPRESSED)
def test_compressors_keep_what_is_unfinished(tokens: int, size_bytes: int) -> None:
    row = next(row for row in MEASURED if row["name"] == "deepseek-v4-flash")
    assert plan(row["config"]).resident_bytes(tokens, 1) == size_bytes


def test_index_keys_of_sparse_attention() -> None:
    shape = {"dtype": "bfloat16", "num_hidden_layers": 3, "num_attention_heads": 64, "num_key_value_heads": 4, "head_dim": 128, "index_head_dim": 128}
    fields = {"model_type": "minimax_m3_vl_text", **shape, "layer_types": "1 full_attention, 2 minimax_m3_sparse"}
    assert plan(fields).total_bytes(40, 2) == 532_480
    assert plan(fields, cache="static").total_bytes(64, 2) == 851_968


def test_short_convolutions_keep_a_column_more() -> None:
    shape = {"dtype": "bfloat16", "hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "conv_L_cache": 3}
    fields = {"model_type": "lfm2", **shape, "layer_types": "1 conv, 1 full_attention, 1 conv"}
    assert plan(fields).total_bytes(40, 2) == 11_776
    assert plan(fields, cache="static").total_bytes(64, 2) == 17_920


def test_gated_index_keys_are_not_pooled() -> None:
    """The attention layer keeps a latent of 64 and 32 + 32 + 1 elements for the indexer; the others 24,576 channels x 4 and 64 heads of 128 x 128 in fp32."""
    mla = {"kv_lora_rank": 64, "qk_nope_head_dim": 16, "qk_rope_head_dim": 0, "v_head_dim": 16, "index_head_dim": 32, "index_kpool": 16}
    linear = {"linear_attn_config": {"num_heads": 64, "head_dim": 128, "short_conv_kernel_size": 4}}
    types = "3 linear_attention, 1 deepseek_sparse_attention"
    shape = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
    fields = {"model_type": "glm5_next_text", "dtype": "bfloat16", **shape, **mla, **linear, "layer_types": types}
    assert plan(fields).total_bytes(40, 1) == 40 * (64 + 65) * 2 + 3 * (24_576 * 4 * 2 + 64 * 128 * 128 * 4)


def test_mimo_windows_count_the_token_that_looks_back() -> None:
    spec = load_model("mimo-v2-flash").spec
    found = TRANSFORMERS.plan(spec, Options())
    assert {use.rows for use in found.uses(4096) if use.kind == "sliding"} == {129}


def test_mimo_heads_that_do_not_divide_are_refused() -> None:
    fields = next(row for row in MEASURED if row["name"] == "mimo-v2-flash")["config"]
    with pytest.raises(KvcalcError, match="64 query heads cannot share the 128 KV heads of a sliding layer"):
        plan({**fields, "num_key_value_heads": 64})


def test_encoder_decoder_caches() -> None:
    """generate(cache_implementation="static") on real models of those shapes: self 40 or 41 tokens, cross 21 or 1,500."""
    t5 = next(row for row in MEASURED if row["name"] == "t5-small")["config"]
    whisper = next(row for row in MEASURED if row["name"] == "whisper-tiny")["config"]
    assert plan(t5, cache="static", encoder_tokens=21).total_bytes(40, 2) == 1_499_136
    assert plan(whisper, cache="static").total_bytes(41, 2) == 18_935_808
    assert texts(plan(t5).notes, "encoder-tokens")


# A prefill of 37 tokens for 2 requests on two layers of Llama-3.1-8B, in bf16 and in fp32 (hqq 0.2.8, optimum-quanto 0.2.7).
QUANTIZED = {
    "hqq-1": (56_832, 75_776),
    "hqq-2": (94_720, 113_664),
    "hqq-3": (151_552, 170_496),
    "hqq-4": (170_496, 189_440),
    "hqq-8": (322_048, 340_992),
    "quanto-2": (94_720, 113_664),
    "quanto-4": (170_496, 189_440),
    "fp8": (303_120, 303_120),
}


@pytest.mark.parametrize("name", QUANTIZED)
@pytest.mark.parametrize("column", [0, 1], ids=["bf16", "fp32"])
def test_bytes_of_a_quantized_cache(name: str, column: int) -> None:
    found = plan(llama(dtype=("bfloat16", "float32")[column]), cache=name)
    assert found.total_bytes(37, 2) == QUANTIZED[name][column]


def test_every_quantized_kind_was_measured() -> None:
    assert set(QUANTIZED) == {kind.name for kind in KINDS.values() if kind.quantized}


def test_latents_are_quantized_alike() -> None:
    fields = deepseek(kv_lora_rank=128, qk_rope_head_dim=64)
    assert [plan(fields, cache=name).total_bytes(37, 2) for name in ("quanto-4", "hqq-3", "fp8")] == [23_976, 21_312, 42_648]


def test_groups_run_over_heads() -> None:
    """A row of 32 heads of 100 elements is 50 groups: 16 layers of K and V, 10 tokens, 36 bytes a group."""
    assert plan(llama(num_hidden_layers=16, num_key_value_heads=32, head_dim=100), cache="quanto-4").total_bytes(10, 1) == 16 * 2 * 10 * 50 * 36


def test_requests_share_the_scales_of_fp8() -> None:
    found = plan(llama(), cache="fp8")
    assert found.resident_bytes(100, 1) == 2 * 100 * 2 * 8 * 128 + 16
    assert found.resident_bytes(100, 5) == 5 * 2 * 100 * 2 * 8 * 128 + 16
    assert sum(use.size_bytes for use in found.uses(100)) == found.resident_bytes(100, 1)
    result = estimate(read_config(llama()), TRANSFORMERS, Options(cache="fp8"), name="m", source="test", context=100, batch=5)
    assert result.formula == "2 x 2 x 100 x 8 x 128 x 1 x 5 + 16"
    assert result.total_bytes == 2_048_016


@pytest.mark.parametrize("model_type", ["deepseek_v2", "deepseek_v3"])
def test_release_4_caches_every_head_of_a_latent(model_type: str) -> None:
    """Measured with 4.57.6 on the CPU: K 4 heads of 24, V 4 heads of 12, 40 tokens, 2 requests, 3 layers."""
    assert plan(deepseek(model_type=model_type), TRANSFORMERS_4).total_bytes(40, 2) == 69_120
    assert plan(deepseek(model_type=model_type)).total_bytes(40, 2) == 2 * 3 * 40 * (32 + 8) * 2


def test_deepseek_v3_of_both_lines() -> None:
    """61 layers of 128 heads, 192 wide in K and 128 in V, against a latent of 512 and a key of 64."""
    spec = load_model("deepseek-v3").spec
    assert TRANSFORMERS.plan(spec, Options()).token_bytes(4096) == 61 * 576 * 2
    assert TRANSFORMERS_4.plan(spec, Options()).token_bytes(4096) == 61 * 40_960 * 2


@pytest.mark.parametrize("name", ["llama3.1-8b", "gemma2-9b-w16", "gemma3n-e4b", "llama4-scout-c16", "starcoder2-7b", "falcon-40b-like", "qwen2-swa-w16"])
def test_release_4_measures_the_same_elsewhere(name: str) -> None:
    row = next(row for row in MEASURED if row["name"] == name)
    assert plan(row["config"], TRANSFORMERS_4).total_bytes(40, 2) == row["measured"]["decoded"]


def test_growth_by_copying_peaks() -> None:
    """Measured: 4 layers of 8 heads at 1,003 tokens, 2,052,096 B more than the cache of 16,433,152 B; in a full window, K and V of its 64 tokens."""
    full = llama(num_hidden_layers=4)
    found = plan(full)
    assert found.resident_bytes(1003, 1) == 16_433_152
    assert max(each.replaced_bytes(1003) for each in found.held) == 2_052_096
    assert f"up to {format_bytes(2 * 2_052_096)} more" in texts(found.length_notes(1003, 2), "peak")[0]
    window = plan({**full, "model_type": "mistral", "sliding_window": 64})
    assert max(each.replaced_bytes(1000) for each in window.held) == 262_144


def test_a_latent_is_expanded_for_a_moment() -> None:
    (text,) = texts(TRANSFORMERS.plan(load_model("deepseek-v3").spec, Options()).length_notes(32_768, 1), "peak")[1:]
    assert f"{format_bytes(32_768 * 128 * (192 + 128) * 2)} more" in text
    assert len(texts(TRANSFORMERS_4.plan(load_model("deepseek-v3").spec, Options()).length_notes(32_768, 1), "peak")) == 1


def test_windows_hold_the_whole_prefill_until_the_next_step() -> None:
    found = plan({**llama(num_hidden_layers=32), "model_type": "mistral", "sliding_window": 16})
    assert found.length_notes(16, 1)[0].code == "peak"
    (text,) = texts(found.length_notes(4096, 1), "prefill")
    assert f"all of them, {format_bytes(32 * 4096 * 2 * 8 * 128 * 2)};" in text
    assert f"leaves {format_bytes(32 * 16 * 2 * 8 * 128 * 2)}," in text
    assert not texts(plan({**llama(), "model_type": "mistral", "sliding_window": 16}, cache="static").length_notes(4096, 1), "prefill")


@pytest.mark.parametrize(("name", "more"), [("quanto-4", 8_192_000), ("hqq-8", 8_192_000), ("fp8", 12_288_000)])
def test_quantized_caches_dequantize_a_layer_at_each_step(name: str, more: int) -> None:
    """Measured on 4 layers of 8 heads at 1,000 tokens: 8.2 MB more with groups of any width, 12.3 MB with fp8."""
    found = plan(llama(num_hidden_layers=4), cache=name)
    assert f"up to {format_bytes(more)} more" in texts(found.length_notes(1000, 1), "peak")[0]
    assert found.resident_bytes(1000, 1) == {"quanto-4": 4_608_000, "hqq-8": 8_704_000, "fp8": 8_192_032}[name]


def test_the_newest_tokens_wait_in_full_precision() -> None:
    """127 tokens of 4 layers: 4,096 B of K and V in bf16, 1,152 in 4 bits with scales."""
    (text,) = texts(plan(llama(num_hidden_layers=4), cache="quanto-4").length_notes(1000, 1), "residual")
    assert f"up to {format_bytes(127 * 4 * (4096 - 1152))} more" in text
    assert not texts(plan(llama(), cache="fp8").length_notes(1000, 1), "residual")


def test_a_full_static_window_is_rolled() -> None:
    found = plan({**llama(), "model_type": "mistral", "sliding_window": 64}, cache="static")
    assert not found.length_notes(63, 1)
    assert f"up to {format_bytes(2 * 8 * 64 * 128 * 2)} more" in found.length_notes(64, 1)[0].text


def test_recurrent_gemma_keeps_states_on_its_modules() -> None:
    """18 of 26 layers: 3 columns of 256 in bf16, and 256 elements in fp32."""
    found = plan(next(row for row in MEASURED if row["name"] == "recurrentgemma-2b")["config"])
    assert format_bytes(18 * (3 * 256 * 2 + 256 * 4)) in texts(found.notes, "module-states")[0]


def test_surplus_is_the_whole_difference_to_the_rows() -> None:
    for row in MEASURED:
        found = plan(row["config"])
        tokens = row["measured"]["tokens"]
        assert sum(dict(found.surplus(tokens)).values()) == found.total_bytes(tokens, 1) - found.ideal.total_bytes(tokens, 1)
    assert dict(plan(llama(), cache="quanto-4").surplus(64)) == {"the quantized cache": 2 * 64 * 2 * 8 * (72 - 256)}
    (falcon,) = (row for row in MEASURED if row["name"] == "falcon-40b-like")
    assert list(dict(plan(falcon["config"]).surplus(64))) == ["K and V copied to every query head"]
    mimo = TRANSFORMERS.plan(load_model("mimo-v2-flash").spec, Options())
    assert dict(mimo.surplus(4096)) == {"windows a token longer": 39 * 8 * (192 + 128) * 2}


def test_dtype_is_that_of_the_model() -> None:
    assert plan(llama(), kv_dtype=parse_kv_dtype("fp32")).total_bytes(10, 1) == 2 * plan(llama()).total_bytes(10, 1)
    assert str(plan(llama(dtype="float32")).kv_dtype) == "fp32"
    assert not texts(plan(llama(dtype="float32")).notes, "dtype")
    assert "bf16 is taken" in texts(plan(llama(dtype=None)).notes, "dtype")[0]
    assert "loads fp32" in texts(plan(llama(), TRANSFORMERS_4).notes, "dtype")[0]
    assert str(plan(llama(), cache="fp8").kv_dtype) == "fp8_e4m3"


def test_replicas_hold_the_same() -> None:
    assert plan(llama(), dp=3).total_bytes(100, 2) == 3 * plan(llama()).total_bytes(100, 2)
    assert plan(llama(), dp=3).resident_bytes(100, 2) == plan(llama()).resident_bytes(100, 2)


def test_a_library_takes_all_memory_and_starts_no_server() -> None:
    spec = load_model("llama-3-8b").spec
    assert TRANSFORMERS.utilization(spec, Options(), 80 << 30) == 1
    found = TRANSFORMERS.plan(spec, Options())
    assert found.command("m", 8192, None, None) == ""
    assert found.capacity(10 << 30, 8192).tokens == 10 * 8192
    assert texts(found.notes, "activations")
    assert texts(TRANSFORMERS.plan(spec, Options(block_size=32)).notes, "unused") == ["transformers does not use --block-size"]


def test_code_of_a_repository_is_said_to_be_assumed() -> None:
    assert "repository" in texts(TRANSFORMERS.plan(load_model("chatglm3-6b").spec, Options()).notes, "remote-code")[0]
    assert not texts(TRANSFORMERS.plan(load_model("llama-3-8b").spec, Options()).notes, "remote-code")


def test_releases() -> None:
    assert find_release("5.24").number == "5.24.0"
    assert find_release("4").number == "4.57.6"
    assert find_engine("transformers").version == "5.24.0"
    assert find_engine("transformers@4").version == "4.57.6"
    with pytest.raises(KvcalcError, match=r"'5\.10' is not modelled") as refused:
        find_release("5.10")
    assert "transformers@4" in refused.value.hint


REFINED_WEB = {"model_type": "RefinedWeb", "torch_dtype": "bfloat16", "hidden_size": 8192, "n_layer": 60, "n_head": 128, "n_head_kv": 8, "vocab_size": 65_024}
"""The first config of Falcon-40B."""


def spec_of(name: str) -> ModelSpec:
    fields = {row["name"]: row["config"] for row in MEASURED} | {"refined-web": REFINED_WEB}
    return read_config(config(fields[name])) if name in fields else load_model(name).spec


REFUSED: list[tuple[TransformersEngine, str, dict[str, Any], str]] = [
    (TRANSFORMERS, "llama-3-8b", {"tp": 2}, "--tp is not modelled"),
    (TRANSFORMERS, "llama-3-8b", {"pp": 2}, "has no --pp"),
    (TRANSFORMERS, "llama-3-8b", {"dcp": 2}, "has no --dcp"),
    (TRANSFORMERS, "deepseek-v3", {"draft_layers": True}, "builds no draft"),
    (TRANSFORMERS, "llama-3-8b", {"kv_dtype": parse_kv_dtype("fp8")}, "not in fp8"),
    (TRANSFORMERS, "llama-3-8b", {"kv_dtype": parse_kv_dtype("k=bf16,v=fp16")}, "not in k=bf16,v=fp16"),
    (TRANSFORMERS, "gemma2-9b-w16", {"cache": "quanto-4"}, "all full attention"),
    (TRANSFORMERS, "gemma3n-e4b", {"cache": "fp8"}, "all full attention"),
    (TRANSFORMERS, "deepseek-v3.2", {"cache": "hqq-4"}, "all full attention"),
    (TRANSFORMERS, "qwen3-next-80b-a3b", {"cache": "quanto-4"}, "all full attention"),
    (TRANSFORMERS, "whisper-tiny", {"cache": "quanto-4"}, "all full attention"),
    (TRANSFORMERS, "nemotron-h-8layer", {"cache": "quanto-4"}, "all full attention"),
    (TRANSFORMERS, "minicpm3-4b", {"cache": "quanto-4"}, "1 x 32 elements does not fill the groups of 64"),
    (TRANSFORMERS, "falcon-rw-like", {"cache": "static"}, "fails on Falcon with ALiBi"),
    (TRANSFORMERS, "deepseek-v4-flash", {"cache": "static"}, "no static cache for the compressed layers"),
    (TRANSFORMERS, "minimax-text-01-small", {"cache": "static"}, "a cache class of its own"),
    (TRANSFORMERS, "minimax-text-01-small", {"cache": "quanto-4"}, "a cache class of its own"),
    (TRANSFORMERS, "kimi-k2", {}, "no code for kimi_k2"),
    (TRANSFORMERS, "refined-web", {}, "no code for RefinedWeb"),
    (TRANSFORMERS_4, "llama-3-8b", {"cache": "fp8"}, "4.57.6 has no fp8 cache"),
    (TRANSFORMERS_4, "mllama-11b-text", {"cache": "static"}, "no static cache for layers of cross-attention alone"),
    (TRANSFORMERS_4, "qwen3-next-80b-a3b", {}, "keeps states in cache classes of single models"),
    (TRANSFORMERS_4, "gemma4-default-w16", {}, "has no gemma4_text: it came later"),
]


@pytest.mark.parametrize(("engine", "model", "choices", "message"), REFUSED, ids=lambda value: value if isinstance(value, str) else "")
def test_refuses(engine: TransformersEngine, model: str, choices: dict[str, Any], message: str) -> None:
    spec = spec_of(model)
    with pytest.raises(KvcalcError, match=message) as refused:
        engine.plan(spec, Options(**choices))
    assert refused.value.code is ExitCode.UNANSWERABLE
    assert refused.value.hint


def test_refuses_drafts_of_another_model() -> None:
    with pytest.raises(KvcalcError, match="assisted decoding"):
        TRANSFORMERS.plan(load_model("llama-3-8b").spec, Options(draft=load_model("llama-3-8b").weighed()))


@pytest.mark.parametrize("word", ["quantized", "hqq-5", "quanto-8", "offloaded", ""])
def test_an_unknown_cache_is_a_wrong_word(word: str) -> None:
    with pytest.raises(KvcalcError, match="unknown --cache") as refused:
        plan(llama(), cache=word)
    assert refused.value.code is ExitCode.USAGE
    assert refused.value.hint == "known: dynamic, static, quanto-2, quanto-4, hqq-1, hqq-2, hqq-3, hqq-4, hqq-8, fp8"
