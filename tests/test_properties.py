"""What must hold for every family, on generated configs: bytes grow with tokens, layers and heads; batches multiply; a window longer than the
request is no window; sharing never adds.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.engines.base import Options
from kvcalc.engines.ideal import IDEAL
from kvcalc.families import FAMILIES, Family, read_config
from kvcalc.families.decoder import decoder
from kvcalc.packing import parse_kv_dtype


class Size(NamedTuple):
    """A small model: `periods` times eight layers, KV heads, query heads to each, head width, window."""

    periods: int
    kv_heads: int
    group: int
    width: int
    window: int

    @property
    def layers(self) -> int:
        return 8 * self.periods

    @property
    def heads(self) -> int:
        return self.kv_heads * self.group


Config = dict[str, Any]


def plain(model_type: str, **more: Any) -> Callable[[Size], Config]:
    """Standard keys, a window that the type may or may not heed, and more keys (a function of the size, or a value)."""

    def build(size: Size) -> Config:
        config = {
            "model_type": model_type,
            "num_hidden_layers": size.layers,
            "hidden_size": size.heads * size.width,
            "num_attention_heads": size.heads,
            "num_key_value_heads": size.kv_heads,
            "head_dim": size.width,
            "sliding_window": size.window,
        }
        return {
            key: value
            for key, value in {**config, **{key: value(size) if callable(value) else value for key, value in more.items()}}.items()
            if value is not ...
        }

    return build


def types(*pattern: str) -> Callable[[Size], list[str]]:
    """A list of layer types: the pattern over and over."""
    return lambda size: [pattern[layer % len(pattern)] for layer in range(size.layers)]


MLA: Config = {"kv_lora_rank": 32, "qk_rope_head_dim": 4, "qk_nope_head_dim": 8, "v_head_dim": 8}
LINEAR: Config = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 16,
    "linear_conv_kernel_dim": 4,
}
MAMBA2: Config = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 2, "mamba_d_state": 16, "mamba_d_conv": 4, "mamba_expand": 2}
KDA: Config = {"linear_num_heads": 2, "linear_head_dim": 8, "linear_conv_kernel_dim": 4}
V4: Config = {"head_dim": 32, "qk_rope_head_dim": 8, "index_head_dim": 16, "num_key_value_heads": 1}


def seq2seq(**names: str) -> Callable[[Size], Config]:
    return lambda size: {
        names["type"]: names["name"],
        names["layers"]: size.layers,
        names["heads"]: size.heads,
        "d_model": size.heads * size.width,
        "d_kv": size.width,
        "max_source_positions": 99,
    }


BUILDERS: dict[str, Callable[[Size], Config]] = {
    "llama": plain("llama"),
    "mistral": plain("mistral"),
    "gemma2": plain("gemma2"),
    "gemma3_text": plain("gemma3_text"),
    "granite_swa": plain("granite_swa"),
    "exaone4": plain("exaone4", sliding_window_pattern="LLLG"),
    "laguna": plain("laguna"),
    "qwen2": plain("qwen2", use_sliding_window=True, max_window_layers=2),
    "qwen3_moe": plain("qwen3_moe", use_sliding_window=True),
    "gpt_bigcode": plain("gpt_bigcode", num_key_value_heads=...),
    "falcon": plain("falcon", new_decoder_architecture=True),
    "mpt": plain("mpt", attn_config=lambda size: {"kv_n_heads": size.kv_heads}),
    "chatglm": plain("chatglm", multi_query_attention=True, multi_query_group_num=lambda size: size.kv_heads),
    "jetmoe": plain("jetmoe", kv_channels=lambda size: size.width, num_experts_per_tok=2),
    "deepseek_v3": plain("deepseek_v3", **MLA),
    "deepseek_v32": plain("deepseek_v32", index_head_dim=16, **MLA),
    "glm_moe_dsa": plain("glm_moe_dsa", index_head_dim=16, index_topk_freq=4, **MLA),
    "longcat_flash": plain("longcat_flash", **MLA),
    "llama4_text": plain("llama4_text", attention_chunk_size=lambda size: size.window),
    "gemma3n_text": plain("gemma3n_text", num_kv_shared_layers=3),
    "gemma4_text": plain("gemma4_text", num_kv_shared_layers=2, global_head_dim=64),
    "mimo_v2_flash": plain("mimo_v2_flash", v_head_dim=16, layer_types=types("full_attention", "sliding_attention")),
    "step3p5": plain("step3p5", layer_types=types("full_attention", "sliding_attention")),
    "nemotron-nas": plain(
        "nemotron-nas", block_configs=lambda size: [{"attention": {"n_heads_in_group": size.group}}, {"attention": {"no_op": True}}] * (size.layers // 2)
    ),
    "qwen3_next": plain("qwen3_next", **LINEAR),
    "qwen4_exp_text": plain("qwen4_exp_text", layer_types=types("linear_attention", "indexed_attention"), **LINEAR),
    "minicpmv4_6_text": plain("minicpmv4_6_text", mamba_ssm_dtype="float32", **LINEAR),
    "kimi_linear": plain("kimi_linear", layer_types=types("linear_attention", "linear_attention", "linear_attention", "full_attention"), **KDA, **MLA),
    "glm5_next_text": plain(
        "glm5_next_text", layer_types=types("linear_attention", "deepseek_sparse_attention"), index_head_dim=16, index_kpool=4, **KDA, **MLA
    ),
    "jamba": plain("jamba"),
    "nemotron_h": plain("nemotron_h", hybrid_override_pattern=lambda size: "M-M*EM-M" * size.periods, n_groups=2, conv_kernel=4),
    "falcon_h1": plain("falcon_h1", **MAMBA2),
    "granitemoehybrid": plain("granitemoehybrid", layer_types=types("mamba", "mamba", "mamba", "attention"), **MAMBA2),
    "bamba": plain("bamba", attn_layer_indices=[1, 5], **MAMBA2),
    "zamba2": plain("zamba2", layers_block_type=types("mamba", "hybrid"), n_mamba_heads=1, mamba_ngroups=1, mamba_d_state=8, mamba_d_conv=4, mamba_expand=2),
    "lfm2": plain("lfm2", layer_types=types("conv", "full_attention"), conv_L_cache=3),
    "minimax": plain("minimax", attn_type_list=lambda size: [0, 1] * (size.layers // 2)),
    "recurrent_gemma": plain("recurrent_gemma", block_types=["recurrent", "recurrent", "attention"], attention_window_size=lambda size: size.window),
    "mamba": plain("mamba"),
    "mamba2": plain("mamba2", num_heads=4, state_size=8, n_groups=1, conv_kernel=4),
    "rwkv5": plain("rwkv5", head_size=lambda size: size.width),
    "yuan": plain("yuan"),
    "zaya": plain("zaya", cca_time0=2, cca_time1=2),
    "inkling_text": plain(
        "inkling_text",
        conv_kernel_size=4,
        swa_num_attention_heads=4,
        swa_num_key_value_heads=2,
        swa_head_dim=8,
        sliding_window_size=lambda size: size.window,
    ),
    "deepseek_v4": plain("deepseek_v4", compress_ratios=lambda size: [0, 4, 128, 4] * (size.layers // 4), **V4),
    "deepseek_v41_text": plain("deepseek_v41_text", compress_ratios=lambda size: [0, 2, 2, 1] * (size.layers // 4), kv_source_layer_ids=[1, 3], **V4),
    "minimax_m3": plain("minimax_m3", sparse_attention_config=lambda size: {"sparse_attention_freq": [0, 1] * (size.layers // 2), "sparse_index_dim": 16}),
    "t5": seq2seq(type="model_type", name="t5", layers="num_layers", heads="num_heads"),
    "bart": seq2seq(type="model_type", name="bart", layers="decoder_layers", heads="decoder_attention_heads"),
    "whisper": seq2seq(type="model_type", name="whisper", layers="decoder_layers", heads="decoder_attention_heads"),
    "mllama_text_model": plain("mllama_text_model", cross_attention_layers=[3]),
}

SIZES = st.builds(Size, st.integers(1, 4), st.integers(1, 6), st.sampled_from([2, 4, 8]), st.sampled_from([2, 4, 32, 64]), st.integers(1, 500))
TOKENS = st.integers(1, 2000)


def held(config: Config, tokens: int, batch: int = 1, encoder_tokens: int = 7) -> int:
    plan = IDEAL.plan(read_config(config), Options(kv_dtype=parse_kv_dtype("bf16"), encoder_tokens=encoder_tokens))
    return plan.total_bytes(tokens, batch)


def reader(family: Family) -> object:
    """The function that reads a family, and for the plain decoder its window rule."""
    if isinstance(family.read, partial):
        rule = family.read.keywords.get("slides")
        return (family.read.func, getattr(rule, "__qualname__", None))
    return (family.read, None)


def test_every_family_has_a_builder() -> None:
    built = {reader(family) for name in BUILDERS if isinstance(family := FAMILIES[name], Family)}
    known = {reader(family) for family in FAMILIES.values() if isinstance(family, Family)}
    assert known - built <= {(decoder, None)}


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=25)
@given(size=SIZES, tokens=TOKENS, more=TOKENS, batch=st.integers(1, 9))
def test_bytes_grow_with_tokens_and_a_batch_multiplies(name: str, size: Size, tokens: int, more: int, batch: int) -> None:
    config = BUILDERS[name](size)
    assert held(config, tokens) <= held(config, tokens + more)
    assert held(config, tokens, batch) == batch * held(config, tokens)


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=25)
@given(size=SIZES, tokens=TOKENS)
def test_bytes_grow_with_layers_and_heads(name: str, size: Size, tokens: int) -> None:
    bytes_of = held(BUILDERS[name](size), tokens)
    assert bytes_of <= held(BUILDERS[name](size._replace(periods=size.periods + 1)), tokens)
    assert bytes_of <= held(BUILDERS[name](size._replace(kv_heads=2 * size.kv_heads)), tokens)


@pytest.mark.parametrize("name", BUILDERS)
@settings(max_examples=25)
@given(size=SIZES, tokens=TOKENS)
def test_a_window_longer_than_the_request_is_no_window(name: str, size: Size, tokens: int) -> None:
    bytes_of = held(BUILDERS[name](size._replace(window=tokens)), tokens)
    assert bytes_of == held(BUILDERS[name](size._replace(window=10 * tokens)), tokens)
    assert held(BUILDERS[name](size), tokens) <= held(BUILDERS[name](size._replace(window=10**6)), tokens)


@pytest.mark.parametrize("name", ["gemma3n_text", "gemma4_text"])
@settings(max_examples=25)
@given(size=SIZES, tokens=TOKENS, shared=st.integers(0, 1))
def test_sharing_never_adds(name: str, size: Size, tokens: int, shared: int) -> None:
    config = BUILDERS[name](size)
    assert held({**config, "num_kv_shared_layers": shared + 1}, tokens) <= held({**config, "num_kv_shared_layers": shared}, tokens)


@settings(max_examples=50)
@given(size=SIZES, tokens=TOKENS, encoder=st.integers(0, 500))
def test_cross_attention_follows_the_encoder_alone(size: Size, tokens: int, encoder: int) -> None:
    for name in ("t5", "bart", "whisper", "mllama_text_model"):
        config = BUILDERS[name](size)
        grown = held(config, tokens, encoder_tokens=encoder) - held(config, tokens, encoder_tokens=0)
        assert grown == held(config, tokens + 100, encoder_tokens=encoder) - held(config, tokens + 100, encoder_tokens=0)
