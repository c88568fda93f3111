"""What the config classes of transformers 5.24.0 (models/*/configuration_*.py) fill in for absent keys.

A file at the top level states every dimension, since saving drops only what equals the base class. A nested text_config is saved without the
keys that equal its own class, so there an absent dimension has the value of this table.
"""

from collections.abc import Mapping
from typing import Any, Final


def _dims(layers: int, hidden: int, query_heads: int, kv_heads: int | None, max_context: int, **more: int) -> Mapping[str, Any]:
    return {
        "num_hidden_layers": layers,
        "hidden_size": hidden,
        "num_attention_heads": query_heads,
        "num_key_value_heads": kv_heads,
        "max_position_embeddings": max_context,
        **more,
    }


NESTED_DEFAULTS: Final[dict[str, Mapping[str, Any]]] = {
    "cohere2": _dims(40, 8192, 64, None, 8192),
    "exaone4": _dims(32, 4096, 32, 32, 2048),
    "gemma": _dims(28, 3072, 16, 16, 8192),
    "gemma2": _dims(26, 2304, 8, 4, 8192),
    "gemma3_text": _dims(26, 2304, 8, 4, 131072),
    "gemma3n_text": _dims(35, 2048, 8, 2, 32768, num_kv_shared_layers=15),
    "gemma4_text": _dims(30, 2304, 8, 4, 131072),
    "glm4": _dims(40, 4096, 32, 2, 131072),
    "glm4v_moe_text": _dims(46, 4096, 96, 8, 65536),
    "glm4v_text": _dims(40, 4096, 32, 2, 32768),
    "granite": _dims(32, 4096, 32, None, 2048),
    "lfm2": _dims(32, 2560, 32, 8, 128000),
    "llama": _dims(32, 4096, 32, None, 2048),
    "llama4_text": _dims(48, 5120, 40, 8, 131072),
    "ministral3": _dims(34, 4096, 32, 8, 262144),
    "mistral": _dims(32, 4096, 32, 8, 131072),
    "mixtral": _dims(32, 4096, 32, 8, 131072),
    "mllama_text_model": _dims(40, 4096, 32, 8, 131072),
    "olmo2": _dims(32, 4096, 32, None, 2048),
    "opt": _dims(12, 768, 12, None, 2048),
    "phi": _dims(24, 2048, 32, None, 2048),
    "phi3": _dims(32, 3072, 32, None, 4096),
    "qwen2": _dims(32, 4096, 32, 32, 32768),
    "qwen2_5_omni_text": _dims(28, 3584, 28, 4, 32768),
    "qwen2_5_vl_text": _dims(80, 8192, 64, 8, 32768),
    "qwen2_vl_text": _dims(80, 8192, 64, 8, 32768),
    "qwen3_5_moe_text": _dims(40, 2048, 16, 2, 32768),
    "qwen3_5_text": _dims(32, 4096, 16, 4, 32768),
    "qwen3": _dims(32, 4096, 32, 32, 32768),
    "qwen3_moe": _dims(24, 2048, 32, 4, 32768),
    "qwen3_omni_moe_text": _dims(28, 2048, 28, 4, 32768),
    "qwen3_vl_moe_text": _dims(24, 2048, 16, 16, 128000),
    "qwen3_vl_text": _dims(32, 4096, 32, 32, 128000),
    "smollm3": _dims(36, 2048, 16, 4, 32768),
}
