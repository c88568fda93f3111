"""Small models that have each kind of layer at a published model's geometry: few layers, tiny hidden sizes, vocabularies and experts."""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

_TINY: Final = {"vocab_size": 128, "hidden_size": 64, "intermediate_size": 32, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
_FEW_EXPERTS: Final = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 1, "topk_group": 1}


SMALL_PREFILL: Final = 37
"""Tokens of a prompt that is longer than the windows of 16 and no multiple of anything."""


class SmallModel(NamedTuple):
    """A config.json that both transformers and kvcalc read. `encoder_tokens` where they are not the model's own number; `prefill` tokens of the prompt."""

    name: str
    config: Mapping[str, Any]
    encoder_tokens: int | None = None
    prefill: int = SMALL_PREFILL


def _gqa(query_heads: int, kv_heads: int, head_dim: int) -> dict[str, int]:
    return {"num_attention_heads": query_heads, "num_key_value_heads": kv_heads, "head_dim": head_dim}


def _mla(heads: int, rank: int, nope: int, rope: int, v: int) -> dict[str, int]:
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "kv_lora_rank": rank,
        "q_lora_rank": 64,
        "qk_nope_head_dim": nope,
        "qk_rope_head_dim": rope,
        "v_head_dim": v,
    }


def _small(model_type: str, dtype: str, layers: int, *parts: Mapping[str, Any], **fields: Any) -> dict[str, Any]:  # noqa: ANN401 (JSON values)
    config: dict[str, Any] = {"model_type": model_type, "dtype": dtype, **_TINY, "num_hidden_layers": layers}
    for part in parts:
        config |= part
    return config | fields


_LLAMA: Final = _gqa(32, 8, 128)

SMALL_MODELS: Final = (
    SmallModel("llama-3-8b", _small("llama", "bfloat16", 4, _LLAMA)),
    SmallModel("llama-3-8b in fp16", _small("llama", "float16", 4, _LLAMA)),
    SmallModel("llama-3-8b in fp32", _small("llama", "float32", 4, _LLAMA)),
    SmallModel("mistral-7b-v0.1, window 16", _small("mistral", "bfloat16", 4, _LLAMA, sliding_window=16)),
    SmallModel(
        "gemma-3-1b, window 16",
        _small("gemma3_text", "bfloat16", 6, _gqa(4, 1, 256), sliding_window=16, layer_types=["sliding_attention"] * 5 + ["full_attention"]),
    ),
    SmallModel(
        "gpt-oss-20b, window 16",
        _small(
            "gpt_oss",
            "bfloat16",
            4,
            _gqa(64, 8, 64),
            sliding_window=16,
            num_local_experts=4,
            num_experts_per_tok=2,
            layer_types=["sliding_attention", "full_attention"] * 2,
        ),
    ),
    SmallModel(
        "gemma-3n-e4b, window 16",
        _small(
            "gemma3n_text",
            "bfloat16",
            10,
            _gqa(8, 2, 256),
            intermediate_size=[32] * 10,
            sliding_window=16,
            layer_types=(["sliding_attention"] * 4 + ["full_attention"]) * 2,
            num_kv_shared_layers=5,
            vocab_size_per_layer_input=128,
            hidden_size_per_layer_input=16,
            laurel_rank=8,
            activation_sparsity_pattern=[0.0] * 10,
        ),
    ),
    SmallModel(
        "llama-4-scout, chunks of 16",
        _small(
            "llama4_text",
            "bfloat16",
            4,
            _gqa(40, 8, 128),
            intermediate_size_mlp=32,
            attention_chunk_size=16,
            num_local_experts=2,
            num_experts_per_tok=1,
            no_rope_layers=[1, 1, 1, 0],
            layer_types=["chunked_attention"] * 3 + ["full_attention"],
        ),
    ),
    SmallModel(
        "falcon-40b",
        _small(
            "falcon",
            "bfloat16",
            2,
            hidden_size=2048,
            ffn_hidden_size=32,
            num_attention_heads=32,
            num_kv_heads=8,
            new_decoder_architecture=True,
            multi_query=True,
            alibi=False,
        ),
    ),
    SmallModel("deepseek-v3", _small("deepseek_v3", "bfloat16", 2, _mla(128, 512, 128, 64, 128), _FEW_EXPERTS, n_shared_experts=1, first_k_dense_replace=1)),
    SmallModel(
        "deepseek-v3.2",
        _small(
            "deepseek_v32",
            "bfloat16",
            2,
            _mla(128, 512, 128, 64, 128),
            _FEW_EXPERTS,
            n_shared_experts=1,
            first_k_dense_replace=1,
            index_topk=16,
            index_head_dim=128,
            index_n_heads=8,
        ),
    ),
    SmallModel(
        "deepseek-v4-flash",
        _small(
            "deepseek_v4",
            "bfloat16",
            4,
            _gqa(64, 1, 512),
            n_routed_experts=4,
            num_experts_per_tok=2,
            n_shared_experts=1,
            moe_intermediate_size=32,
            q_lora_rank=64,
            qk_rope_head_dim=64,
            o_groups=8,
            o_lora_rank=16,
            sliding_window=128,
            index_n_heads=8,
            index_head_dim=128,
            index_topk=512,
            layer_types=["heavily_compressed_attention", "compressed_sparse_attention"] * 2,
            mlp_layer_types=["moe"] * 4,
            compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
        ),
        prefill=300,
    ),
    SmallModel(
        "minimax-m3",
        _small(
            "minimax_m3_vl_text",
            "bfloat16",
            3,
            _gqa(64, 4, 128),
            num_local_experts=4,
            num_experts_per_tok=2,
            dense_intermediate_size=32,
            shared_intermediate_size=32,
            rotary_dim=64,
            index_n_heads=4,
            index_head_dim=128,
            layer_types=["full_attention", "minimax_m3_sparse", "minimax_m3_sparse"],
            mlp_layer_types=["sparse"] * 3,
        ),
    ),
    SmallModel(
        "qwen3-next-80b-a3b",
        _small(
            "qwen3_next",
            "bfloat16",
            4,
            _gqa(16, 2, 256),
            linear_conv_kernel_dim=4,
            linear_key_head_dim=128,
            linear_value_head_dim=128,
            linear_num_key_heads=16,
            linear_num_value_heads=32,
            moe_intermediate_size=32,
            shared_expert_intermediate_size=32,
            num_experts=4,
            num_experts_per_tok=2,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
        ),
    ),
    SmallModel(
        "kimi-linear-48b-a3b",
        _small(
            "kimi_linear",
            "bfloat16",
            4,
            _mla(32, 512, 128, 64, 128),
            q_lora_rank=None,
            num_experts=4,
            num_experts_per_token=2,
            num_shared_experts=1,
            moe_intermediate_size=32,
            num_expert_group=1,
            topk_group=1,
            linear_head_dim=128,
            linear_num_heads=32,
            linear_conv_kernel_dim=4,
            layer_types=["linear_attention"] * 3 + ["full_attention"],
            mlp_layer_types=["dense"] + ["sparse"] * 3,
        ),
    ),
    SmallModel(
        "jamba-v0.1, hidden size 1024",
        _small(
            "jamba",
            "bfloat16",
            8,
            hidden_size=1024,
            num_attention_heads=32,
            num_key_value_heads=8,
            num_experts=2,
            num_experts_per_tok=1,
            expert_layer_period=2,
            expert_layer_offset=1,
            attn_layer_period=8,
            attn_layer_offset=4,
            mamba_d_state=16,
            mamba_d_conv=4,
            mamba_expand=2,
            mamba_dt_rank=16,
        ),
    ),
    SmallModel(
        "falcon-h1",
        _small(
            "falcon_h1",
            "bfloat16",
            2,
            _LLAMA,
            hidden_size=512,
            mamba_d_ssm=1024,
            mamba_n_heads=128,
            mamba_d_head=8,
            mamba_n_groups=1,
            mamba_d_state=256,
            mamba_d_conv=4,
        ),
    ),
    SmallModel(
        "nemotron-h",
        _small(
            "nemotron_h",
            "bfloat16",
            4,
            _LLAMA,
            layers_block_type=["linear_attention", "mlp", "full_attention", "mlp"],
            ssm_state_size=128,
            mamba_num_heads=128,
            mamba_head_dim=64,
            n_groups=8,
            conv_kernel=4,
            n_routed_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=32,
            moe_shared_expert_intermediate_size=32,
        ),
    ),
    SmallModel("lfm2-1.2b", _small("lfm2", "bfloat16", 3, _gqa(32, 8, 64), hidden_size=2048, conv_L_cache=3, layer_types=["conv", "full_attention", "conv"])),
    SmallModel(
        "zaya1-8b",
        _small(
            "zaya",
            "bfloat16",
            2,
            _gqa(8, 2, 128),
            hidden_size=256,
            num_experts=2,
            num_experts_per_tok=1,
            moe_intermediate_size=64,
            router_hidden_size=32,
            cca_time0=2,
            cca_time1=2,
            layer_types=["hybrid"] * 2,
        ),
    ),
    SmallModel(
        "minimax-text-01",
        _small("minimax", "bfloat16", 2, _gqa(64, 8, 128), num_local_experts=2, num_experts_per_tok=1, layer_types=["full_attention", "linear_attention"]),
    ),
    SmallModel(
        "mamba-2.8b, hidden size 256",
        _small("mamba", "bfloat16", 2, hidden_size=256, state_size=16, expand=2, intermediate_size=512, conv_kernel=4, time_step_rank=16),
    ),
    SmallModel(
        "mamba2-2.7b, hidden size 512 in fp32",
        _small("mamba2", "float32", 2, hidden_size=512, num_heads=16, head_dim=64, state_size=128, n_groups=1, expand=2, conv_kernel=4, chunk_size=16),
    ),
    SmallModel(
        "t5-small",
        {"model_type": "t5", "dtype": "bfloat16", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 128, "d_model": 64, "d_kv": 64, "d_ff": 32}
        | {"num_layers": 2, "num_decoder_layers": 2, "num_heads": 8, "decoder_start_token_id": 0},
        encoder_tokens=21,
    ),
    SmallModel(
        "whisper-tiny",
        {
            "model_type": "whisper",
            "dtype": "float16",
            "architectures": ["WhisperForConditionalGeneration"],
            "vocab_size": 128,
            "num_mel_bins": 80,
            "d_model": 384,
        }
        | {"encoder_layers": 1, "encoder_attention_heads": 6, "decoder_layers": 2, "decoder_attention_heads": 6, "decoder_ffn_dim": 32, "encoder_ffn_dim": 32}
        | {"max_source_positions": 1500, "max_target_positions": 448, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
        | {"decoder_start_token_id": 1, "suppress_tokens": None, "begin_suppress_tokens": None},
    ),
    SmallModel(
        "llama-3.2-11b-vision, hidden size 4096",
        _small(
            "mllama_text_model",
            "bfloat16",
            3,
            hidden_size=4096,
            num_attention_heads=32,
            num_key_value_heads=8,
            cross_attention_layers=[1],
            architectures=["MllamaForCausalLM"],
        ),
        encoder_tokens=50,
    ),
)
"""Models whose caches `kvcalc verify --all` builds: each kind of layer, some in several architectures that cache them."""
