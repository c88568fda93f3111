"""GGUF files for tests: bytes from keys and tensors, and the keys that llama.cpp's converter writes for a config.json."""

import struct
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

U8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64 = 0, 2, 4, 5, 6, 7, 8, 9, 10
TYPES = {"F32": (0, 1, 4), "F16": (1, 1, 2), "Q4_0": (2, 32, 18), "Q8_0": (8, 32, 34), "Q4_K": (12, 256, 144), "Q6_K": (14, 256, 210), "BF16": (30, 1, 2)}
"""Number, elements and bytes of a block, of some types (gguf-py/gguf/constants.py)."""


class Of(NamedTuple):
    """A value with the number of its type; of an array the type of its values."""

    kind: int
    value: Any


def string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def typed(value: Any) -> Of:
    """A value with the type that gguf-py gives it."""
    match value:
        case Of():
            return value
        case bool():
            return Of(BOOL, value)
        case int():
            return Of(U32, value)
        case float():
            return Of(F32, value)
        case str():
            return Of(STRING, value)
        case list():
            return Of(ARRAY, [typed(each) for each in value])
        case _:
            raise TypeError(value)


def encoded(of: Of) -> bytes:
    """A value without the number of its type in front."""
    if of.kind == STRING:
        return string(of.value)
    if of.kind == ARRAY:
        inner = of.value[0].kind if of.value else I32
        return struct.pack("<IQ", inner, len(of.value)) + b"".join(map(encoded, of.value))
    return struct.pack({U8: "<B", U16: "<H", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?", U64: "<Q"}[of.kind], of.value)


def header(
    keys: Mapping[str, Any] | Sequence[tuple[str, Any]], tensors: Mapping[str, tuple[tuple[int, ...], str]] | None = None, *, version: int = 3, align: int = 32
) -> tuple[bytes, int]:
    """The header with its padding, and how many bytes the tensors take. Shapes as PyTorch states them; a file states them the other way round."""
    pairs = list(keys.items()) if isinstance(keys, Mapping) else list(keys)
    tensors = tensors or {}
    body = struct.pack("<4sIQQ", b"GGUF", version, len(tensors), len(pairs))
    for name, value in pairs:
        of = typed(value)
        body += string(name) + struct.pack("<I", of.kind) + encoded(of)
    offset = end = 0
    for name, (shape, kind) in tensors.items():
        number, elements, size_bytes = TYPES[kind]
        body += string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *reversed(shape), number, offset)
        end = offset + prod(shape) // elements * size_bytes
        offset = -(-end // align) * align
    return body + bytes(-len(body) % align), end


def file(keys: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], str]] | None = None) -> bytes:
    """A whole file: its tensors hold zeros."""
    start, size_bytes = header(keys, tensors)
    return start + bytes(size_bytes)


VOCABULARY = {"tokenizer.ggml.tokens": ["a", "b", "<eos>"], "tokenizer.ggml.scores": [0.5, 0.25, 0.0], "tokenizer.chat_template": "{{ x }}" * 400}


def llama(**changes: Any) -> dict[str, Any]:
    """The keys of a small model; `...` takes one away."""
    keys = {
        "general.architecture": "llama",
        "general.type": "model",
        "general.name": "Small",
        "llama.block_count": 2,
        "llama.context_length": 2048,
        "llama.embedding_length": 256,
        "llama.feed_forward_length": 512,
        "llama.attention.head_count": 8,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 32,
        **VOCABULARY,
    }
    changed = {**keys, **{name.replace("__", "."): value for name, value in changes.items()}}
    return {name: value for name, value in changed.items() if value is not ...}


def llama_tensors(layers: int = 2, kind: str = "Q4_0") -> dict[str, tuple[tuple[int, ...], str]]:
    """Those of the same model, as llama.cpp names and stores them."""
    tensors = {"token_embd.weight": ((1000, 256), "Q8_0"), "output.weight": ((1000, 256), "Q8_0"), "output_norm.weight": ((256,), "F32")}
    for layer in range(layers):
        shapes = {"attn_q": (256, 256), "attn_k": (64, 256), "attn_v": (64, 256), "attn_output": (256, 256)}
        shapes |= {"ffn_gate": (512, 256), "ffn_up": (512, 256), "ffn_down": (256, 512)}
        tensors |= {f"blk.{layer}.{name}.weight": (shape, kind) for name, shape in shapes.items()}
        tensors |= {f"blk.{layer}.{name}.weight": ((256,), "F32") for name in ("attn_norm", "ffn_norm")}
    return tensors


def converted(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The keys that llama.cpp's converter writes of a config.json for the architecture `name` (conversion/base.py set_gguf_parameters, and the file of the
    architecture; llama.cpp as vendored by llama-cpp-python 0.3.36).
    """
    drafts = fields.get("num_nextn_predict_layers", fields.get("mtp_num_hidden_layers")) or 0
    keys: dict[str, Any] = {"block_count": fields["num_hidden_layers"], "context_length": fields.get("max_position_embeddings", 1 << 20)}
    keys["embedding_length"] = fields["hidden_size"]
    if (width := fields.get("intermediate_size")) is not None:
        keys["feed_forward_length"] = width
    if (heads := fields.get("num_attention_heads")) is not None:
        keys["attention.head_count"] = heads
    if (heads := fields.get("num_key_value_heads")) is not None:
        keys["attention.head_count_kv"] = heads
    if (width := fields.get("head_dim")) is not None:
        keys |= {"attention.key_length": width, "attention.value_length": width}
    keys |= _OWN[name](fields, drafts) if name in _OWN else {}
    return {"general.architecture": name, **{f"{name}.{key}": value for key, value in keys.items()}}


def _latent(fields: Mapping[str, Any]) -> dict[str, Any]:
    """conversion/deepseek.py: one KV head, as wide as the latent and the rotary key."""
    rank, rope = fields["kv_lora_rank"], fields["qk_rope_head_dim"]
    return {
        "attention.head_count_kv": 1,
        "attention.kv_lora_rank": rank,
        "attention.key_length": rank + rope,
        "attention.value_length": rank,
        "attention.key_length_mla": fields["qk_nope_head_dim"] + rope,
        "attention.value_length_mla": fields["v_head_dim"],
        "rope.dimension_count": rope,
    }


def _indexer(fields: Mapping[str, Any]) -> dict[str, Any]:
    names = {"key_length": "index_head_dim", "head_count": "index_n_heads", "top_k": "index_topk"}
    return {f"attention.indexer.{key}": fields[name] for key, name in names.items()}


def _glm_dsa(fields: Mapping[str, Any], drafts: int) -> dict[str, Any]:
    keys = {**_latent(fields), "block_count": fields["num_hidden_layers"] + drafts, "nextn_predict_layers": drafts}
    keys |= _indexer(fields)
    if (types := fields.get("indexer_types")) is not None:
        keys["attention.indexer.types"] = [kind == "full" for kind in types]
    return keys


def _gemma4(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    slides = [kind == "sliding_attention" for kind in fields["layer_types"]]
    keys = {
        "attention.shared_kv_layers": fields["num_kv_shared_layers"],
        "attention.sliding_window": fields["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.key_length": fields["global_head_dim"],
        "attention.value_length": fields["global_head_dim"],
        "attention.key_length_swa": fields["head_dim"],
        "attention.value_length_swa": fields["head_dim"],
    }
    if (heads := fields.get("num_global_key_value_heads")) is not None:
        keys["attention.head_count_kv"] = [fields["num_key_value_heads"] if sliding else heads for sliding in slides]
    return keys


def _delta_net(fields: Mapping[str, Any], drafts: int) -> dict[str, Any]:
    """conversion/qwen.py: Qwen3-Next and Qwen3.5."""
    keys = {
        "block_count": fields["num_hidden_layers"] + drafts,
        "ssm.conv_kernel": fields["linear_conv_kernel_dim"],
        "ssm.state_size": fields["linear_key_head_dim"],
        "ssm.group_count": fields["linear_num_key_heads"],
        "ssm.time_step_rank": fields["linear_num_value_heads"],
        "ssm.inner_size": fields["linear_value_head_dim"] * fields["linear_num_value_heads"],
        "full_attention_interval": fields.get("full_attention_interval", 4),
    }
    if (types := fields.get("layer_types")) is not None:
        keys["attention.recurrent_layers"] = [kind == "linear_attention" for kind in types] + [False] * drafts
    return keys | ({"nextn_predict_layers": drafts} if drafts else {})


def _mamba2(fields: Mapping[str, Any], kv_heads: list[int]) -> dict[str, Any]:
    """conversion/granite.py: layers without KV heads are recurrent."""
    heads = fields.get("mamba_n_heads", fields.get("mamba_num_heads"))
    return {
        "attention.head_count_kv": kv_heads,
        "ssm.conv_kernel": fields.get("mamba_d_conv", fields.get("conv_kernel")),
        "ssm.state_size": fields.get("mamba_d_state", fields.get("ssm_state_size")),
        "ssm.group_count": fields.get("mamba_n_groups", fields.get("n_groups")),
        "ssm.inner_size": heads * fields.get("mamba_d_head", fields.get("mamba_head_dim")),
        "ssm.time_step_rank": heads,
    }


def _granite_hybrid(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    return _mamba2(fields, [fields["num_key_value_heads"] if kind == "attention" else 0 for kind in fields["layer_types"]])


def _nemotron_h(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    letters = fields["hybrid_override_pattern"]
    keys = _mamba2(fields, [fields["num_key_value_heads"] if letter == "*" else 0 for letter in letters])
    return {**keys, "feed_forward_length": [fields["moe_intermediate_size"] if letter == "E" else 0 for letter in letters]}


def _mamba1(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    """conversion/mamba.py: no heads at all."""
    width = fields["hidden_size"]
    return {
        "context_length": 1 << 20,
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "ssm.conv_kernel": fields["conv_kernel"],
        "ssm.inner_size": fields["intermediate_size"],
        "ssm.state_size": fields["state_size"],
        "ssm.time_step_rank": -(width // -16),
    }


def _lfm2(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    heads = [fields["num_key_value_heads"] if kind == "full_attention" else 0 for kind in fields["layer_types"]]
    return {"attention.head_count_kv": heads, "shortconv.l_cache": fields["conv_L_cache"]}


def _kimi_linear(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    linear = fields["linear_attn_config"]
    heads = [int(layer + 1 in linear["full_attn_layers"]) for layer in range(fields["num_hidden_layers"])]
    return {
        **_latent(fields),
        "attention.head_count_kv": heads,
        "ssm.conv_kernel": linear["short_conv_kernel_size"],
        "kda.head_dim": linear["head_dim"],
    }


def _mimo2(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    pattern = list(fields["hybrid_layer_pattern"])
    return {
        "attention.head_count_kv": [fields["swa_num_key_value_heads" if slides else "num_key_value_heads"] for slides in pattern],
        "attention.sliding_window": fields["sliding_window"],
        "attention.sliding_window_pattern": pattern,
        "attention.value_length": fields["v_head_dim"],
    }


def _step35(fields: Mapping[str, Any], drafts: int) -> dict[str, Any]:
    total = fields["num_hidden_layers"] + drafts
    slides = [kind == "sliding_attention" for kind in (*fields["layer_types"], *["full_attention"] * total)[:total]]
    other = fields["attention_other_setting"]
    return {
        "block_count": total,
        "nextn_predict_layers": drafts,
        "attention.head_count": [other["num_attention_heads"] if sliding else fields["num_attention_heads"] for sliding in slides],
        "attention.head_count_kv": [fields["num_attention_groups"]] * total,
        "attention.sliding_window": fields["sliding_window"],
        "attention.sliding_window_pattern": slides,
        "attention.value_length": fields["head_dim"],
    }


def _glm5_next(fields: Mapping[str, Any], drafts: int) -> dict[str, Any]:
    linear = fields["linear_attn_config"]
    heads = [int(layer in linear["full_attn_layers"]) for layer in range(fields["num_hidden_layers"])] + [1] * drafts
    return {
        **_latent(fields),
        "block_count": fields["num_hidden_layers"] + drafts,
        "nextn_predict_layers": drafts,
        "attention.head_count_kv": heads,
        "ssm.conv_kernel": linear["short_conv_kernel_size"],
        "kda.head_dim": linear["head_dim"],
        **_indexer(fields),
        "attention.indexer.kpool": fields["index_kpool"],
    }


def _deepseek4(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    return {
        "rope.dimension_count": fields["qk_rope_head_dim"],
        "attention.sliding_window": fields["sliding_window"],
        **_indexer(fields),
        "attention.compress_ratios": fields["compress_ratios"],
    }


def _minimax_m3(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    sparse = fields["sparse_attention_config"]
    return {
        "attention.indexer.key_length": sparse["sparse_index_dim"],
        "attention.indexer.head_count": sparse["sparse_num_index_heads"],
        "attention.indexer.top_k": sparse["sparse_topk_blocks"],
        "attention.indexer.block_size": sparse["sparse_block_size"],
        "leading_dense_block_count": sparse["sparse_attention_freq"].index(1),
    }


def _jamba(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    period, offset, heads = fields["attn_layer_period"], fields["attn_layer_offset"], fields["num_key_value_heads"]
    return {
        "attention.head_count_kv": [heads if layer % period == offset else 0 for layer in range(fields["num_hidden_layers"])],
        "ssm.conv_kernel": fields["mamba_d_conv"],
        "ssm.inner_size": fields["mamba_expand"] * fields["hidden_size"],
        "ssm.state_size": fields["mamba_d_state"],
        "ssm.time_step_rank": -(fields["hidden_size"] // -16),
    }


def _slides(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    return {"attention.sliding_window": fields["sliding_window"]}


def _slides_as_listed(fields: Mapping[str, Any], _: int) -> dict[str, Any]:
    pattern = [kind == "sliding_attention" for kind in fields["layer_types"]]
    return {"attention.sliding_window": fields["sliding_window"], "attention.sliding_window_pattern": pattern}


_OWN = {
    "cohere2": _slides,
    "deepseek2": lambda fields, _: _latent(fields),
    "deepseek32": _glm_dsa,
    "deepseek4": _deepseek4,
    "exaone4": _slides_as_listed,
    "falcon-h1": lambda fields, _: _mamba2(fields, [fields["num_key_value_heads"]] * fields["num_hidden_layers"]),
    "gemma2": _slides,
    "gemma3": _slides,
    "gemma3n": lambda fields, _: {**_slides_as_listed(fields, 0), "attention.shared_kv_layers": fields["num_kv_shared_layers"]},
    "gemma4": _gemma4,
    "glm-dsa": _glm_dsa,
    "glm5-next": _glm5_next,
    "glm4moe": lambda fields, drafts: {"block_count": fields["num_hidden_layers"] + drafts, "nextn_predict_layers": drafts},
    "gpt-oss": _slides,
    "granitehybrid": _granite_hybrid,
    "jamba": _jamba,
    "kimi-k3": _kimi_linear,
    "kimi-linear": _kimi_linear,
    "lfm2": _lfm2,
    "mamba": _mamba1,
    "mimo2": _mimo2,
    "minicpm3": lambda fields, _: {
        "attention.kv_lora_rank": fields["kv_lora_rank"],
        "attention.key_length": fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"],
        "rope.dimension_count": fields["qk_rope_head_dim"],
    },
    "minimax-m3": _minimax_m3,
    "muse-glimmer": _slides,
    "nemotron_h_moe": _nemotron_h,
    "olmo2": _slides_as_listed,
    "phi3": _slides,
    "qwen35": _delta_net,
    "qwen35moe": _delta_net,
    "qwen3next": _delta_net,
    "step35": _step35,
}
