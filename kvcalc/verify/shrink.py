"""A config.json made small: a model that is built in seconds, whose layers keep the same caches."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from kvcalc.errors import KvcalcError
from kvcalc.families import read_config
from kvcalc.layers import Layer

_DROPPED: Final = ("auto_map", "quantization_config", "torch_dtype")
"""What says how weights are stored, or names code that is not of transformers."""
_SMALL: Final = {
    "vocab_size": 128,
    "intermediate_size": 32,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "shared_intermediate_size": 32,
    "dense_intermediate_size": 32,
    "intermediate_size_mlp": 32,
    "ffn_hidden_size": 32,
    "q_lora_rank": 64,
    "n_group": 1,
    "topk_group": 1,
}
_EXPERTS: Final = ("num_experts", "num_local_experts", "n_routed_experts")
_CHOSEN: Final = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")
_HIDDEN: Final = 64


def shrink(config: Mapping[str, Any], dtype: str) -> dict[str, Any] | None:
    """The config of the language model, in the torch dtype of that name, with every width, expert and layer left out that no cache depends on; None where
    the language model cannot be read alone. A change is kept only where kvcalc reads the same caches from the changed config.
    """
    text = config.get("text_config")
    small = dict(text if isinstance(text, Mapping) and "model_type" in text else config)
    for name in _DROPPED:
        small.pop(name, None)
    if not small.get("is_encoder_decoder"):  # whose class AutoModelForCausalLM does not find
        small.pop("architectures", None)
    small |= {"dtype": dtype}
    layers = _layers(small)
    if layers is None:
        return None
    for alternatives in _changes(small):
        small |= next((change for change in alternatives if _layers(small | change) == layers), {})
    few = _few(layers)
    cut: dict[str, Any] = {"num_hidden_layers": few}
    cut |= {name: value[:few] for name, value in small.items() if isinstance(value, list) and len(value) == len(layers)}
    return small | cut if _layers(small | cut) == layers[:few] else small


def _changes(config: Mapping[str, Any]) -> Iterator[list[dict[str, Any]]]:
    """What to try, one after another, the first that keeps the caches of each list: only keys that the config has, the special tokens with the vocabulary,
    the experts with those that are chosen.
    """
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    for name, value in _SMALL.items():
        if isinstance(config.get(name), int):
            yield [{name: value} | (tokens if name == "vocab_size" else {})]
    chosen = {name: 2 for name in _CHOSEN if isinstance(config.get(name), int)}
    for name in _EXPERTS:
        if isinstance(config.get(name), int):
            yield [{name: 4} | chosen]
    hidden, heads = config.get("hidden_size"), config.get("num_attention_heads")
    stated_once = (
        list(config.values()).count(hidden) == 1
    )  # else the model may take a cache's width from this name, and kvcalc from the other (LFM2's conv_dim)
    if isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and stated_once:
        yield [{"hidden_size": _HIDDEN}, {"hidden_size": _HIDDEN, "head_dim": hidden // heads}]


def _layers(config: Mapping[str, Any]) -> tuple[Layer, ...] | None:
    try:
        return read_config(config).layers
    except KvcalcError:
        return None


def _few(layers: tuple[Layer, ...]) -> int:
    """The fewest first layers that have every kind; all of them where some read others."""
    if any(layer.reads is not None for layer in layers):
        return len(layers)
    return max(2, 1 + max(layers.index(layer) for layer in set(layers)))
