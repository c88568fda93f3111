"""config.json -> layers: the key names of each family, and what is refused."""

from decimal import Decimal
from typing import Any

import pytest

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.families import ARCHITECTURES, FAMILIES, NO_KV_CACHE, Family, Wrapper, read_config
from kvcalc.families.class_defaults import NESTED_DEFAULTS
from kvcalc.layers import Cache, Chunk, Grows, ModelSpec, Window

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 2048,
    "intermediate_size": 512,
    "vocab_size": 1000,
}
"""A complete small config; the tables below change one thing in it."""

MLA = {
    "model_type": "deepseek_v3",
    "hidden_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
}


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """The config with keys set, or taken away where the value is `...`."""
    return {key: value for key, value in {**config, **changes}.items() if value is not ...}


def described(spec: ModelSpec) -> list[str]:
    """Each layer in short: "2x32" is two KV heads of 32, "/16" a window, "32+4" a latent and its rotary key, "i16" index keys."""
    return [" ".join(_described(cache) for cache in layer.caches) for layer in spec.layers]


def _described(cache: Cache) -> str:
    planes = {plane.role: plane for plane in cache.planes}
    if "k" in planes:
        k, v = planes["k"], planes["v"]
        text = f"{k.heads}x{k.width}" + ("" if k.width == v.width else f":{v.width}")
    elif "latent" in planes:
        text = "+".join(str(plane.width) for plane in cache.planes)
    elif "index" in planes:
        text = f"i{planes['index'].width}"
    else:
        text = cache.kernel
    match cache.retention:
        case Window(size=size) | Chunk(size=size):
            return f"{text}/{size}"
        case Grows(stride=stride) if stride > 1:
            return f"{text}:{stride}"
        case _:
            return text


ATTENTION: dict[str, tuple[dict[str, Any], list[str]]] = {
    "grouped": (LLAMA, ["2x32"] * 4),
    "KV heads absent means all": (changed(LLAMA, num_key_value_heads=...), ["8x32"] * 4),
    "KV heads null means all": (changed(LLAMA, num_key_value_heads=None), ["8x32"] * 4),
    "head_dim stated": (changed(LLAMA, head_dim=128), ["2x128"] * 4),
    "head_dim null is derived": (changed(LLAMA, head_dim=None), ["2x32"] * 4),
    "use_cache says nothing": (changed(LLAMA, use_cache=False), ["2x32"] * 4),
    "Llama does not know windows": (changed(LLAMA, sliding_window=16), ["2x32"] * 4),
    "Mistral slides everywhere": (changed(LLAMA, model_type="mistral", sliding_window=16), ["2x32/16"] * 4),
    "Mistral without a window": (changed(LLAMA, model_type="mistral", sliding_window=None), ["2x32"] * 4),
    "Mistral's class default": (changed(LLAMA, model_type="mistral"), ["2x32/4096"] * 4),
    "Phi-3": (changed(LLAMA, model_type="phi3", sliding_window=2047), ["2x32/2047"] * 4),
    "Qwen2, window switched off": (changed(LLAMA, model_type="qwen2", sliding_window=16, use_sliding_window=False, max_window_layers=2), ["2x32"] * 4),
    "Qwen2, window not mentioned": (changed(LLAMA, model_type="qwen2", sliding_window=16), ["2x32"] * 4),
    "Qwen2, window from a layer on": (
        changed(LLAMA, model_type="qwen2", sliding_window=16, use_sliding_window=True, max_window_layers=3),
        ["2x32", "2x32", "2x32", "2x32/16"],
    ),
    "Qwen3": (changed(LLAMA, model_type="qwen3"), ["2x128"] * 4),
    "Gemma 2 alternates, sliding first": (changed(LLAMA, model_type="gemma2", sliding_window=16, head_dim=32), ["2x32/16", "2x32", "2x32/16", "2x32"]),
    "Gemma 3, each third": (
        changed(LLAMA, model_type="gemma3_text", sliding_window=16, head_dim=32, sliding_window_pattern=3),
        ["2x32/16", "2x32/16", "2x32", "2x32/16"],
    ),
    "Gemma 3, its key in files saved later": (
        changed(LLAMA, model_type="gemma3_text", sliding_window=16, head_dim=32, _sliding_window_pattern=2),
        ["2x32/16", "2x32", "2x32/16", "2x32"],
    ),
    "Gemma 3, pattern only in the code": (
        changed(LLAMA, model_type="gemma3_text", num_hidden_layers=7, sliding_window=16, head_dim=32),
        ["2x32/16"] * 5 + ["2x32", "2x32/16"],
    ),
    "layer_types wins": (
        changed(LLAMA, model_type="gemma2", sliding_window=16, head_dim=32, layer_types=["full_attention"] * 3 + ["sliding_attention"]),
        ["2x32", "2x32", "2x32", "2x32/16"],
    ),
    "layer_types longer by the draft layers": (
        changed(LLAMA, model_type="gpt_oss", sliding_window=16, head_dim=32, num_nextn_predict_layers=1, layer_types=["full_attention"] * 5),
        ["2x32"] * 4,
    ),
    "gpt-oss": (changed(LLAMA, model_type="gpt_oss", head_dim=64), ["2x64/128", "2x64"] * 2),
    "Cohere 2": (changed(LLAMA, model_type="cohere2", sliding_window=16), ["2x32/16"] * 3 + ["2x32"]),
    "OLMo 3": (changed(LLAMA, model_type="olmo3", sliding_window=16), ["2x32/16"] * 3 + ["2x32"]),
    "EXAONE 4 in letters": (changed(LLAMA, model_type="exaone4", sliding_window=16, sliding_window_pattern="LG"), ["2x32/16", "2x32"] * 2),
    "EXAONE 4 as a period": (changed(LLAMA, model_type="exaone4", sliding_window=16, sliding_window_pattern=4), ["2x32/16"] * 3 + ["2x32"]),
    "EXAONE 4 without a window": (changed(LLAMA, model_type="exaone4", sliding_window=None), ["2x32"] * 4),
    "Solar Open": (changed(LLAMA, model_type="solar_open"), ["2x128"] * 4),
    "StarCoder2": (changed(LLAMA, model_type="starcoder2", sliding_window=16), ["2x32/16"] * 4),
    "GPT-2": ({"model_type": "gpt2", "n_layer": 2, "n_head": 4, "n_embd": 64, "n_positions": 1024}, ["4x16"] * 2),
    "GPT-BigCode, one head": ({"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 4, "n_embd": 64, "multi_query": True}, ["1x16"] * 2),
    "GPT-BigCode, its default": ({"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 4, "n_embd": 64}, ["1x16"] * 2),
    "GPT-BigCode, all heads": ({"model_type": "gpt_bigcode", "n_layer": 2, "n_head": 4, "n_embd": 64, "multi_query": False}, ["4x16"] * 2),
    "BLOOM": ({"model_type": "bloom", "n_layer": 2, "n_head": 4, "hidden_size": 64}, ["4x16"] * 2),
    "BLOOM 176B has n_embed": ({"model_type": "bloom", "n_layer": 2, "num_attention_heads": 4, "n_embed": 64}, ["4x16"] * 2),
    "MPT": ({"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 64, "attn_config": {"attn_type": "multihead_attention"}}, ["4x16"] * 2),
    "MPT without attn_config": ({"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 64}, ["4x16"] * 2),
    "MPT grouped": (
        {"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 64, "attn_config": {"attn_type": "grouped_query_attention", "kv_n_heads": 2}},
        ["2x16"] * 2,
    ),
    "MPT multi-query": ({"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 64, "attn_config": {"attn_type": "multiquery_attention"}}, ["1x16"] * 2),
    "DBRX": ({"model_type": "dbrx", "n_layers": 2, "n_heads": 4, "d_model": 64, "attn_config": {"kv_n_heads": 2}}, ["2x16"] * 2),
    "Falcon 7B": ({"model_type": "falcon", "num_hidden_layers": 2, "num_attention_heads": 71, "hidden_size": 4544, "multi_query": True}, ["1x64"] * 2),
    "Falcon 7B, old": ({"model_type": "RefinedWebModel", "n_layer": 2, "n_head": 71, "hidden_size": 4544, "multi_query": True}, ["1x64"] * 2),
    "Falcon 40B": (
        {
            "model_type": "falcon",
            "num_hidden_layers": 2,
            "num_attention_heads": 16,
            "num_kv_heads": 8,
            "hidden_size": 1024,
            "multi_query": True,
            "new_decoder_architecture": True,
        },
        ["8x64"] * 2,
    ),
    "Falcon 40B, old": ({"model_type": "RefinedWeb", "n_layer": 2, "n_head": 16, "n_head_kv": 8, "hidden_size": 1024}, ["8x64"] * 2),
    "Falcon RW": ({"model_type": "falcon", "num_hidden_layers": 2, "num_attention_heads": 32, "hidden_size": 2048, "multi_query": False}, ["32x64"] * 2),
    "ChatGLM": ({"model_type": "chatglm", "num_layers": 2, "num_attention_heads": 32, "hidden_size": 4096}, ["32x128"] * 2),
    "ChatGLM 2": (
        {"model_type": "chatglm", "num_layers": 2, "num_attention_heads": 32, "hidden_size": 4096, "kv_channels": 128, "multi_query_attention": True}
        | {"multi_query_group_num": 2},
        ["2x128"] * 2,
    ),
    "Qwen 1": ({"model_type": "qwen", "num_hidden_layers": 2, "num_attention_heads": 4, "hidden_size": 512, "kv_channels": 128}, ["4x128"] * 2),
    "JetMoE": (
        {"model_type": "jetmoe", "num_hidden_layers": 2, "num_key_value_heads": 16, "kv_channels": 128, "num_experts_per_tok": 2, "hidden_size": 2048},
        ["16x128"] * 2,
    ),
    "no model_type": (changed(LLAMA, model_type=..., architectures=["LlamaForCausalLM"]), ["2x32"] * 4),
    "nested": ({"model_type": "llava", "text_config": LLAMA, "vision_config": {"num_hidden_layers": 24}}, ["2x32"] * 4),
    "nested twice": ({"model_type": "qwen2_5_omni", "thinker_config": {"text_config": changed(LLAMA, model_type="qwen2")}}, ["2x32"] * 4),
    "nested, dimensions left to the config class": ({"model_type": "llava", "text_config": {"model_type": "llama"}}, ["32x128"] * 32),
    "flat, as before text_config": (changed(LLAMA, model_type="qwen2_vl"), ["2x32"] * 4),
    "MLA": (MLA, ["32+4"] * 3),
    "MLA without a rotary part": (changed(MLA, qk_rope_head_dim=0), ["32"] * 3),
    "MLA switched off by null": (changed(MLA, model_type="deepseek_v2", kv_lora_rank=None), ["8x32"] * 3),
    "MLA switched off by a flag": (changed(MLA, model_type="deepseek_v2", use_mla=False, num_key_value_heads=4), ["4x32"] * 3),
    "DeepSeek-V3.2": (changed(MLA, model_type="deepseek_v32", index_head_dim=16), ["32+4 i16"] * 3),
    "GLM-5": (changed(MLA, model_type="glm_moe_dsa", index_head_dim=16), ["32+4 i16"] * 3),
    "GLM-5.2": (changed(MLA, model_type="glm_moe_dsa", index_head_dim=16, indexer_types=["full", "shared", "full"]), ["32+4 i16", "32+4", "32+4 i16"]),
    "GLM-5.2 by letters": (changed(MLA, model_type="glm_moe_dsa", index_head_dim=16, index_topk_pattern="FSS"), ["32+4 i16", "32+4", "32+4"]),
    "GLM-5.2 by a period": (
        changed(MLA, model_type="glm_moe_dsa", num_hidden_layers=6, index_head_dim=16, index_topk_freq=3),
        ["32+4 i16"] * 2 + ["32+4"] * 2 + ["32+4 i16", "32+4"],
    ),
    "LongCat-Flash": (changed(MLA, model_type="longcat_flash"), ["32+4 32+4"] * 3),
}


@pytest.mark.parametrize("case", ATTENTION)
def test_layers(case: str) -> None:
    config, layers = ATTENTION[case]
    assert described(read_config(config)) == layers


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "encoder only": ({"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 2}, "keeps no KV cache"),
    "vision only": ({"model_type": "clip"}, "keeps no KV cache"),
    "unknown model type": (changed(LLAMA, model_type="lama"), "what model_type 'lama' keeps is not known"),
    "no model type, unknown architecture": (changed(LLAMA, model_type=..., architectures=["FooForCausalLM"]), "needs model_type"),
    "no model type, no architecture": ({"hidden_size": 8}, "needs model_type"),
    "model_type is a number": (changed(LLAMA, model_type=7), "model_type is 7"),
    "layers missing": (changed(LLAMA, num_hidden_layers=...), "needs num_hidden_layers"),
    "layers null": (changed(LLAMA, num_hidden_layers=None), "needs num_hidden_layers"),
    "heads missing": (changed(LLAMA, num_attention_heads=...), "needs num_attention_heads"),
    "KV heads missing where the class has a number": (changed(LLAMA, model_type="mistral", num_key_value_heads=...), "needs num_key_value_heads"),
    "hidden size missing": (changed(LLAMA, hidden_size=...), "needs hidden_size"),
    "layers a string": (changed(LLAMA, num_hidden_layers="4"), "num_hidden_layers is '4'; a whole number is needed"),
    "layers a fraction": (changed(LLAMA, num_hidden_layers=Decimal("4.5")), "num_hidden_layers is 4.5"),
    "layers true": (changed(LLAMA, num_hidden_layers=True), "num_hidden_layers is true"),
    "layers infinite": (changed(LLAMA, num_hidden_layers=float("inf")), "num_hidden_layers is inf"),
    "layers zero": (changed(LLAMA, num_hidden_layers=0), "num_hidden_layers is 0"),
    "layers negative": (changed(LLAMA, num_hidden_layers=-1), "num_hidden_layers is -1"),
    "layers beyond reason": (changed(LLAMA, num_hidden_layers=10**9), "layers are more than any model has"),
    "heads beyond reason": (changed(LLAMA, num_key_value_heads=10**30), "num_key_value_heads is 1000"),
    "head dim a list": (changed(LLAMA, head_dim=[64]), "head_dim is [64]"),
    "two names that differ": (changed(LLAMA, n_layer=5), "contradictory numbers: num_hidden_layers is 4, n_layer is 5"),
    "heads that do not divide the hidden size": (changed(LLAMA, num_attention_heads=7, num_key_value_heads=7), "does not divide into 7 heads"),
    "KV heads that do not divide the heads": (changed(LLAMA, num_key_value_heads=3), "8 query heads cannot share 3 KV heads"),
    "more KV heads than heads": (changed(LLAMA, num_key_value_heads=16), "8 query heads cannot share 16 KV heads"),
    "window zero": (changed(LLAMA, model_type="mistral", sliding_window=0), "sliding_window is 0"),
    "window negative": (changed(LLAMA, model_type="mistral", sliding_window=-1), "sliding_window is -1"),
    "pattern zero": (changed(LLAMA, model_type="gemma3_text", sliding_window_pattern=0), "sliding_window_pattern is 0"),
    "pattern of other letters": (changed(LLAMA, model_type="exaone4", sliding_window=16, sliding_window_pattern="LLX"), "not made of the letters L and G"),
    "layer type unknown": (changed(LLAMA, layer_types=["full_attention"] * 3 + ["magic"]), "layer type 'magic' is not known"),
    "layer types too few": (changed(LLAMA, layer_types=["full_attention"] * 3), "layer_types has 3 entries for 4 layers"),
    "layer types too many": (changed(LLAMA, layer_types=["full_attention"] * 5), "layer_types has 5 entries for 4 layers"),
    "layer types beyond the draft layers": (
        changed(LLAMA, num_nextn_predict_layers=1, layer_types=["full_attention"] * 6),
        "layer_types has 6 entries for 4 layers and 1 draft layers",
    ),
    "layer types no list": (changed(LLAMA, layer_types="full"), "a list of strings is needed"),
    "layer types slide without a window": (changed(LLAMA, layer_types=["sliding_attention"] * 4), "needs sliding_window"),
    "flag a string": (changed(LLAMA, model_type="qwen2", use_sliding_window="no"), "use_sliding_window is 'no'"),
    "text_config missing": ({"model_type": "gemma3"}, "needs text_config"),
    "text_config a list": ({"model_type": "gemma3", "text_config": []}, "text_config is []; an object is needed"),
    "key missing in text_config": ({"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2"}}, "text_config: needs num_hidden_layers"),
    "text_config of an unknown type": ({"model_type": "llava", "text_config": {"model_type": "foo"}}, "what model_type 'foo' keeps is not known"),
    "wrapper in itself without end": ({"model_type": "llava", "text_config": {"model_type": "llava"}}, "needs num_hidden_layers"),
    "latent rank missing": (changed(MLA, kv_lora_rank=...), "needs kv_lora_rank"),
    "rotary part missing": (changed(MLA, qk_rope_head_dim=...), "needs qk_rope_head_dim"),
    "index width missing": (changed(MLA, model_type="deepseek_v32"), "needs index_head_dim"),
    "indexer type unknown": (changed(MLA, model_type="glm_moe_dsa", index_head_dim=16, indexer_types=["full", "half", "full"]), "indexer type 'half'"),
    "indexer types too few": (changed(MLA, model_type="glm_moe_dsa", index_head_dim=16, indexer_types=["full"]), "indexer_types has 1 entries for 3"),
    "an indexer of no known cache": (changed(LLAMA, model_type="qwen4_exp_text", indexer_n_heads=4), "(QSA, indexer_n_heads) are not modelled"),
    "attention type unknown": ({"model_type": "mpt", "n_layers": 2, "n_heads": 4, "d_model": 64, "attn_config": {"attn_type": "x"}}, "attn_type 'x'"),
    "dtype unknown": (changed(LLAMA, torch_dtype="float12"), "torch_dtype 'float12' is not known"),
    "max context a string": (changed(LLAMA, max_position_embeddings="4k"), "max_position_embeddings is '4k'"),
    "rope factor a string": (changed(LLAMA, rope_scaling={"type": "linear", "factor": "2"}), "factor is '2'"),
    "rope factor infinite": (changed(LLAMA, rope_scaling={"type": "linear", "factor": float("inf")}), "factor is inf"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused_with_the_key_named(case: str) -> None:
    config, said = REFUSED[case]
    with pytest.raises(KvcalcError) as refused:
        read_config(config)
    assert said in refused.value.message
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert len(refused.value.message) < 250


def test_an_unknown_model_type_names_its_neighbours() -> None:
    with pytest.raises(KvcalcError) as refused:
        read_config(changed(LLAMA, model_type="qwen22"))
    assert "qwen2" in refused.value.hint


FACTS: dict[str, tuple[dict[str, Any], str, object]] = {
    "dtype": (changed(LLAMA, torch_dtype="bfloat16"), "dtype", "bf16"),
    "dtype in its newer name": (changed(LLAMA, dtype="torch.float16"), "dtype", "fp16"),
    "dtype not stated": (LLAMA, "dtype", None),
    "dtype auto": (changed(LLAMA, torch_dtype="auto"), "dtype", None),
    "dtype of the language model": ({"model_type": "llava", "torch_dtype": "float32", "text_config": changed(LLAMA, torch_dtype="bfloat16")}, "dtype", "bf16"),
    "dtype of the whole": ({"model_type": "llava", "torch_dtype": "float16", "text_config": LLAMA}, "dtype", "fp16"),
    "max context": (LLAMA, "max_context", 2048),
    "max context, the smallest of several": (changed(LLAMA, seq_length=1024), "max_context", 1024),
    "max context scaled": (changed(LLAMA, rope_scaling={"type": "linear", "factor": Decimal("2.5")}), "max_context", 5120),
    "max context scaled dynamically": (changed(LLAMA, rope_scaling={"rope_type": "dynamic", "factor": 2}), "max_context", 4096),
    "max context with yarn counted in": (changed(LLAMA, rope_scaling={"type": "yarn", "factor": Decimal("4.0")}), "max_context", 2048),
    "max context, model_max_length wins": (changed(LLAMA, model_max_length=4096), "max_context", 4096),
    "max context of Gemma 3 has its factor counted in": (
        changed(LLAMA, model_type="gemma3_text", head_dim=32, rope_scaling={"rope_type": "linear", "factor": 8}),
        "max_context",
        2048,
    ),
    "max context not stated": (changed(LLAMA, max_position_embeddings=...), "max_context", None),
    "model type of the whole": ({"model_type": "llava", "text_config": LLAMA}, "model_type", "llava"),
}


@pytest.mark.parametrize("case", FACTS)
def test_facts(case: str) -> None:
    config, field, value = FACTS[case]
    assert getattr(read_config(config).facts, field) == value


MODELOPT = {"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}
FLOAT8 = {"num_bits": 8, "type": "float", "dynamic": False}
KV_DTYPES = {
    "none": ({}, None, None),
    "weights alone never change it": ({"quant_method": "fp8"}, None, None),
    "mxfp4 weights": ({"quant_method": "mxfp4"}, None, None),
    "ModelOpt scheme": ({"quant_method": "modelopt", "kv_cache_scheme": FLOAT8}, None, "fp8_e4m3"),
    "ModelOpt scheme of 4 bits": ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 4, "type": "float"}}, None, "nvfp4"),
    "ModelOpt scheme of another form": ({"quant_method": "modelopt", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}, None, None),
    "ModelOpt algorithm": ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "FP8"}, None, "fp8_e4m3"),
    "ModelOpt algorithm of 4 bits": ({"quant_method": "modelopt_fp4", "kv_cache_quant_algo": "NVFP4"}, None, "nvfp4"),
    "ModelOpt without either": ({"quant_method": "modelopt"}, None, None),
    "compressed-tensors": ({"quant_method": "compressed-tensors", "kv_cache_scheme": FLOAT8}, None, "fp8"),
    "compressed-tensors, null": ({"quant_method": "compressed-tensors", "kv_cache_scheme": None}, None, None),
    "scheme of another method": ({"quant_method": "fp8", "kv_cache_scheme": FLOAT8}, None, None),
    "the file beside": (None, MODELOPT, "fp8_e4m3"),
    "the file beside without its producer": (None, {"quantization": {"kv_cache_quant_algo": "FP8"}}, None),
    "the file beside of another producer": (None, {**MODELOPT, "producer": {"name": "other"}}, None),
    "the file beside does not count beside quantization_config": ({"quant_method": "fp8"}, MODELOPT, None),
}


@pytest.mark.parametrize("case", KV_DTYPES)
def test_kv_dtype_of_the_checkpoint(case: str) -> None:
    section, beside, dtype = KV_DTYPES[case]
    config = changed(LLAMA, quantization_config=section)
    assert read_config(config, hf_quant_config=beside).facts.kv_dtype == dtype


def test_a_config_is_read_as_another_type_only_when_the_user_says_so() -> None:
    unknown = changed(LLAMA, model_type="llamb")
    with pytest.raises(KvcalcError) as refused:
        read_config(unknown)
    assert "--as TYPE" in refused.value.hint
    spec = read_config(unknown, as_model_type="llama")
    assert described(spec) == ["2x32"] * 4
    assert [note.code for note in spec.notes] == ["as"]
    assert spec.facts.model_type == "llama"
    with pytest.raises(KvcalcError, match="what model_type 'lamb' keeps is not known"):
        read_config(unknown, as_model_type="lamb")


def test_notes() -> None:
    assert [note.code for note in read_config(changed(LLAMA, model_type=..., architectures=["LlamaForCausalLM"])).notes] == ["model-type"]
    assert [note.code for note in read_config(changed(LLAMA, is_causal=False)).notes] == ["not-causal"]
    assert read_config(LLAMA).notes == ()


def test_draft_layers() -> None:
    plain = read_config(changed(LLAMA, model_type="glm4_moe", num_nextn_predict_layers=2))
    assert plain.draft_layers == plain.layers[:2]
    assert read_config(changed(LLAMA, model_type="gpt_oss", head_dim=64, num_nextn_predict_layers=1)).draft_layers == ()

    assert len(read_config(changed(MLA, num_nextn_predict_layers=1)).draft_layers) == 1
    with_indexer = read_config(changed(MLA, model_type="deepseek_v32", index_head_dim=16, num_nextn_predict_layers=1))
    assert with_indexer.draft_layers[0] == with_indexer.layers[0]
    assert read_config(MLA).draft_layers == ()


def test_tables_fit_together() -> None:
    assert not set(FAMILIES) & set(NO_KV_CACHE)
    assert set(ARCHITECTURES.values()) <= set(FAMILIES)
    assert set(NESTED_DEFAULTS) <= set(FAMILIES)
    for family in FAMILIES.values():
        if isinstance(family, Wrapper):
            assert family.model_type in FAMILIES
            assert family.flat is None or isinstance(FAMILIES[family.flat], Family)
