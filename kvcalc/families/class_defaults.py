"""What the config classes of transformers 5.24.0 (models/*/configuration_*.py) fill in for absent keys.

A file at the top level states every dimension, since saving drops only what equals the base class. A nested text_config is saved without the
keys that equal its own class, so there an absent dimension has the value of this table.
"""

from collections.abc import Mapping
from typing import Any, Final


def _dims(  # noqa: PLR0917 (the columns of a table have an order)
    layers: int, hidden: int, query_heads: int, kv_heads: int | None, max_context: int, vocabulary: int, mlp: int | None, **more: int
) -> Mapping[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": max_context,
        "vocab_size": vocabulary,
        "intermediate_size": mlp,
        **more,
    }


NESTED_DEFAULTS: Final[dict[str, Mapping[str, Any]]] = {
    "cohere2": _dims(40, 8192, 64, None, 8192, 256000, 22528),
    "exaone4": _dims(32, 4096, 32, 32, 2048, 102400, 16384),
    "gemma": _dims(28, 3072, 16, 16, 8192, 256000, 24576),
    "gemma2": _dims(26, 2304, 8, 4, 8192, 256000, 9216),
    "gemma3_text": _dims(26, 2304, 8, 4, 131072, 262208, 9216),
    "gemma3n_text": _dims(
        35,
        2048,
        8,
        2,
        32768,
        262400,
        16384,
        num_kv_shared_layers=15,
        hidden_size_per_layer_input=256,
        vocab_size_per_layer_input=262144,
        laurel_rank=64,
        altup_num_inputs=4,
    ),
    "gemma4_text": _dims(30, 2304, 8, 4, 131072, 262144, 9216, hidden_size_per_layer_input=256, vocab_size_per_layer_input=262144),
    "glm4": _dims(40, 4096, 32, 2, 131072, 151552, 13696),
    "glm4v_moe_text": _dims(
        46,
        4096,
        96,
        8,
        65536,
        151424,
        10944,
        n_routed_experts=128,
        num_experts_per_tok=8,
        moe_intermediate_size=1408,
        n_shared_experts=1,
        first_k_dense_replace=1,
    ),
    "glm4v_text": _dims(40, 4096, 32, 2, 32768, 151552, 13696),
    "granite": _dims(32, 4096, 32, None, 2048, 32000, 11008),
    "lfm2": _dims(32, 2560, 32, 8, 128000, 65536, 12288),
    "llama": _dims(32, 4096, 32, None, 2048, 32000, 11008),
    "llama4_text": _dims(
        48, 5120, 40, 8, 131072, 202048, 8192, num_local_experts=16, num_experts_per_tok=1, intermediate_size_mlp=16384, interleave_moe_layer_step=1
    ),
    "ministral3": _dims(34, 4096, 32, 8, 262144, 131072, 14336),
    "mistral": _dims(32, 4096, 32, 8, 131072, 32000, 14336),
    "mixtral": _dims(32, 4096, 32, 8, 131072, 32000, 14336, num_local_experts=8, num_experts_per_tok=2),
    "mllama_text_model": _dims(40, 4096, 32, 8, 131072, 128256, 14336),
    "olmo2": _dims(32, 4096, 32, None, 2048, 50304, 11008),
    "opt": _dims(12, 768, 12, None, 2048, 50272, None, ffn_dim=3072),
    "phi": _dims(24, 2048, 32, None, 2048, 51200, 8192),
    "phi3": _dims(32, 3072, 32, None, 4096, 32064, 8192),
    "qwen2": _dims(32, 4096, 32, 32, 32768, 151936, 22016),
    "qwen2_5_omni_text": _dims(28, 3584, 28, 4, 32768, 152064, 18944),
    "qwen2_5_vl_text": _dims(80, 8192, 64, 8, 32768, 152064, 29568),
    "qwen2_vl_text": _dims(80, 8192, 64, 8, 32768, 152064, 29568),
    "qwen3_5_moe_text": _dims(
        40,
        2048,
        16,
        2,
        32768,
        248320,
        None,
        num_experts=256,
        num_experts_per_tok=8,
        moe_intermediate_size=512,
        shared_expert_intermediate_size=512,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
    "qwen3_5_text": _dims(
        32,
        4096,
        16,
        4,
        32768,
        248320,
        12288,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        linear_conv_kernel_dim=4,
    ),
    "qwen3": _dims(32, 4096, 32, 32, 32768, 151936, 22016),
    "qwen3_moe": _dims(24, 2048, 32, 4, 32768, 151936, 6144, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
    "qwen3_omni_moe_text": _dims(28, 2048, 28, 4, 32768, 3584, 18944, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768),
    "qwen3_vl_moe_text": _dims(24, 2048, 16, 16, 128000, 151936, 5632, num_experts=60, num_experts_per_tok=4, moe_intermediate_size=1408),
    "qwen3_vl_text": _dims(32, 4096, 32, 32, 128000, 151936, 22016),
    "smollm3": _dims(36, 2048, 16, 4, 32768, 128256, 11008),
}
