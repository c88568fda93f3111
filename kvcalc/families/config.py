"""Typed access to the fields of a config.json, and the facts that every family reads alike.

A getter either returns a value of the right type or raises KvcalcError that names the key: nothing is guessed and no type is coerced.
"""

from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final

from kvcalc.errors import KvcalcError
from kvcalc.layers import MAX_LAYERS
from kvcalc.packing import packing_name

MAX_SIZE: Final = 1 << 31
"""Larger than any width, head count or window of a real model: a larger number is a damaged file."""

LAYERS: Final = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
QUERY_HEADS: Final = ("num_attention_heads", "n_head", "n_heads")
KV_HEADS: Final = ("num_key_value_heads", "num_kv_heads", "n_head_kv", "num_attention_groups")
HIDDEN: Final = ("hidden_size", "n_embd", "n_embed", "d_model")
HEAD_DIM: Final = ("head_dim", "attention_head_dim", "kv_channels")
MAX_CONTEXT: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "seq_length",
    "model_max_length",
    "max_target_positions",
    "max_sequence_length",
    "max_seq_length",
    "seq_len",
    "context_length",
)
"""The names under which configs state their longest sequence (vllm/config/model.py 0.33.0)."""


class Config:
    """One object of a config.json. `class_defaults` are values that the config class of its model type fills in for keys that are absent."""

    def __init__(self, fields: Mapping[str, Any], where: str = "config.json", class_defaults: Mapping[str, Any] | None = None) -> None:
        self.fields = fields
        self.where = where
        self.class_defaults = class_defaults or {}

    def error(self, message: str, hint: str = "") -> KvcalcError:
        """An error about this object, to be raised by the caller."""
        return KvcalcError(f"{self.where}: {message}", hint=hint)

    def get(self, name: str) -> Any:  # noqa: ANN401 (a JSON value can be anything)
        """The value of a key, the class default of an absent one, else None. A key that is null stays None."""
        return self.fields[name] if name in self.fields else self.class_defaults.get(name)

    def section(self, name: str) -> "Config | None":
        """The object under a key, or None where the key is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.error(f"{name} is {_shown(value)}; an object is needed")
        return Config(value, f"{self.where}: {name}")

    def number(self, name: str, minimum: int, maximum: int = MAX_SIZE) -> int | None:
        """A whole number within bounds, or None where the key is absent or null."""
        value = self.get(name)
        return None if value is None else self._whole(name, value, minimum, maximum)

    def optional(self, *names: str, minimum: int = 1) -> int | None:
        """The number under the first of several names for the same thing. Raises where two of them are set and differ."""
        found = {name: value for name in names if (value := self.number(name, minimum)) is not None}
        if len(set(found.values())) > 1:
            raise self.error("contradictory numbers: " + ", ".join(f"{name} is {value}" for name, value in found.items()))
        return next(iter(found.values()), None)

    def size(self, *names: str, minimum: int = 1) -> int:
        """The same, required."""
        value = self.optional(*names, minimum=minimum)
        if value is None:
            raise self.missing(*names)
        return value

    def sizes(self, *names: str) -> tuple[int, ...]:
        """The required numbers under several names for several things."""
        return tuple(self.size(name) for name in names)

    def missing(self, *names: str) -> KvcalcError:
        """The error for a key that must be there."""
        return self.error(f"needs {' or '.join(names)}, which is absent or null")

    def flag(self, name: str, *, absent: bool) -> bool:
        """A boolean, `absent` where the key is absent or null."""
        value = self.get(name)
        if value is None:
            return absent
        if not isinstance(value, bool):
            raise self.error(f"{name} is {_shown(value)}; true or false is needed")
        return value

    def text(self, name: str) -> str | None:
        """A string, or None where the key is absent or null."""
        value = self.get(name)
        if value is None or isinstance(value, str):
            return value
        raise self.error(f"{name} is {_shown(value)}; a string is needed")

    def strings(self, name: str) -> tuple[str, ...] | None:
        """A list of strings, or None where the key is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value) or len(value) > MAX_LAYERS:
            raise self.error(f"{name} is {_shown(value)}; a list of strings is needed")
        return tuple(value)

    def numbers(self, name: str, minimum: int = 0) -> tuple[int, ...] | None:
        """A list of whole numbers, or None where the key is absent or null."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) > MAX_LAYERS:
            raise self.error(f"{name} is {_shown(value)}; a list of numbers is needed")
        return tuple(self._whole(f"{name}[{index}]", item, minimum, MAX_SIZE) for index, item in enumerate(value))

    def _whole(self, name: str, value: Any, minimum: int, maximum: int) -> int:  # noqa: ANN401 (a JSON value can be anything)
        if not isinstance(value, int) or isinstance(value, bool):
            raise self.error(f"{name} is {_shown(value)}; a whole number is needed")
        if not minimum <= value <= maximum:
            raise self.error(f"{name} is {_shown(value)}; a number from {minimum} to {maximum:,} is needed")
        return value

    # What every family reads alike.

    def layer_count(self) -> int:
        """The decoder layers, draft layers not among them."""
        return self.layers(*LAYERS)

    def layers(self, *names: str) -> int:
        """A required number of layers, under the first of several names for it."""
        count = self.stated_layers(*names, minimum=1)
        if count is None:
            raise self.missing(*names)
        return count

    def stated_layers(self, *names: str, minimum: int = 0) -> int | None:
        """The same, None where the key is absent or null. Raises for more than MAX_LAYERS: lists of so many would fill the memory."""
        count = self.optional(*names, minimum=minimum)
        if count is not None and count > MAX_LAYERS:
            raise self.error(f"{count:,} layers are more than any model has")
        return count

    def query_heads(self) -> int:
        return self.size(*QUERY_HEADS)

    def kv_heads(self, *, absent_means_all: bool = True) -> int:
        """KV heads of a layer. A null, and where the config class says so an absent key, stands for one a query head."""
        heads = self.optional(*KV_HEADS)
        if heads is not None:
            return heads
        if not absent_means_all and not any(name in self.fields for name in KV_HEADS):
            raise self.missing(KV_HEADS[0])
        return self.query_heads()

    def head_dim(self) -> int:
        """Width of a head: stated, else hidden size over query heads, which must come out even."""
        stated = self.optional(*HEAD_DIM)
        return self.derived_head_dim() if stated is None else stated

    def derived_head_dim(self) -> int:
        hidden, heads = self.size(*HIDDEN), self.query_heads()
        if hidden % heads:
            raise self.error(f"no head_dim, and a hidden size of {hidden} does not divide into {heads} heads")
        return hidden // heads

    def per_layer(self, name: str, count: int, drafts: int = 0) -> tuple[str, ...] | None:
        """A list with a string for each layer. It may be longer by the declared draft layers and by no more; the draft layers are cut off."""
        values = self.strings(name)
        if values is not None:
            self.check_per_layer(name, len(values), count, drafts)
        return None if values is None else values[:count]

    def check_per_layer(self, name: str, length: int, count: int, drafts: int = 0) -> None:
        """Raises where a list for each layer does not fit the number of layers."""
        if not count <= length <= count + drafts:
            raise self.error(f"contradictory numbers: {name} has {length} entries for {count} layers" + (f" and {drafts} draft layers" if drafts else ""))

    def dtype(self) -> str | None:
        """The packing that `dtype` (or `torch_dtype`, its older name) stands for; None where neither is stated."""
        for name in ("dtype", "torch_dtype"):
            text = self.text(name)
            if text is not None and text != "auto":
                packing = packing_name(text.removeprefix("torch."))
                if packing is None:
                    raise self.error(f"{name} {_shown(text)} is not known")
                return packing
        return None

    def max_context(self, *, scaled: bool) -> int | None:
        """The longest sequence, in tokens: model_max_length where it is stated, else the smallest of the others. With `scaled`, rotary scaling of
        type linear or dynamic multiplies it; other types have it counted in already (vllm/config/model.py 0.33.0, _get_and_verify_max_len).
        """
        stated = {name: value for name in MAX_CONTEXT if (value := self.number(name, 1, 1 << 40)) is not None}
        if not stated:
            return None
        longest = stated.get("model_max_length", min(stated.values()))
        scaling = self.section("rope_scaling") or self.section("rope_parameters")
        kind = scaling and (scaling.get("rope_type") or scaling.get("type"))
        if not scaled or scaling is None or kind not in ("linear", "dynamic"):
            return longest
        factor = scaling.get("factor")
        if isinstance(factor, bool) or not isinstance(factor, int | Decimal) or not 0 < factor <= MAX_SIZE:
            raise scaling.error(f"factor is {_shown(factor)}; a positive number is needed")
        return int(longest * factor)


def _shown(value: object) -> str:
    """A JSON value as a message shows it, cut to one short line."""
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
