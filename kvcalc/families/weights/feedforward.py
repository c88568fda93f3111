"""Feed-forward blocks: plain and gated MLPs, and mixtures of experts with what each type of model calls its numbers."""

from collections.abc import Callable
from dataclasses import dataclass

from kvcalc.families.config import Config
from kvcalc.families.weights.shapes import At, Role, Shapes

WIDTH = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "inner_hidden_size", "d_ff")

FeedForward = Callable[[Shapes, Config, int, int], None]
"""Adds the blocks of a config: hidden size, number of layers."""
Flag = bool | str
"""A fixed answer, or the key of a config that gives it (false where absent)."""
Layers = Callable[[Config, int], At]
"""The layers, of so many, that something applies to."""


def holds(config: Config, flag: Flag) -> bool:
    """Whether a flag is set."""
    return flag if isinstance(flag, bool) else config.flag(flag, absent=False)


def mlp(
    shapes: Shapes,
    name: str,
    hidden: int,
    width: int,
    *,
    at: At,
    gated: bool = True,
    bias: bool = False,
    role: Role = "mlp",
    copies: int = 1,
    used: int = 1,
    empty: int = 0,
) -> None:
    """Gate, up and down projections; without a gate two matrices."""
    for part in ("gate_proj", "up_proj") if gated else ("up_proj",):
        shapes.linear(f"{name}.{part}", width, hidden, at=at, split="rows", bias=bias, role=role, copies=copies, used=used, empty=empty)
    shapes.linear(f"{name}.down_proj", hidden, width, at=at, split="cols", bias=bias, role=role, copies=copies, used=used, empty=empty)


def every(_config: Config, count: int) -> At:
    """All layers."""
    return tuple(range(count))


def none(_config: Config, _count: int) -> At:
    """No layer."""
    return ()


def dense(*, gated: bool = True, bias: Flag = False, width: tuple[str, ...] = WIDTH, otherwise: int | None = None, name: str = "mlp") -> FeedForward:
    """The same MLP in each layer. Without a stated width it is `otherwise` times the hidden size."""

    def add(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
        stated = config.optional(*width)
        if stated is None and otherwise is None:
            raise config.missing(*width)
        size = otherwise * hidden if stated is None and otherwise is not None else stated
        mlp(shapes, f"layers.*.{name}", hidden, size or 0, at=every(config, count), gated=gated, bias=holds(config, bias))

    return add


@dataclass(frozen=True, slots=True)
class Moe:
    """How a type of model states its experts. `dense` are the layers with one MLP of `dense_width`; `shared` gives the width of what every token passes.

    `correction`: a bias of the router that balances load, stored in fp32 and no parameter.
    """

    experts: tuple[str, ...]
    used: tuple[str, ...] = ("num_experts_per_tok",)
    width: tuple[str, ...] = ("moe_intermediate_size", "intermediate_size")
    dense: Layers = none
    dense_width: tuple[str, ...] = WIDTH
    shared: Callable[[Config, int], int] = lambda _config, _width: 0
    shared_gate: bool = False
    gated: bool = True
    bias: bool = False
    router_bias: bool = False
    correction: Flag = False
    name: str = "mlp"
    router: str = "gate"
    shared_name: str = "shared_experts"
    router_dtype: str = "model"

    def __call__(self, shapes: Shapes, config: Config, hidden: int, count: int) -> None:
        dense = self.dense(config, count)
        if dense:
            mlp(shapes, f"layers.*.{self.name}", hidden, config.size(*self.dense_width), at=dense, gated=self.gated)
        sparse = tuple(layer for layer in range(count) if layer not in set(dense))
        if sparse:
            self.add(shapes, config, hidden, sparse)

    def add(self, shapes: Shapes, config: Config, hidden: int, at: At, width_into: int | None = None) -> None:
        """The experts of some layers, which read `width_into` features where they do not read the hidden ones."""
        experts, used = config.size(*self.experts), config.size(*self.used)
        width = first_stated(config, self.width)
        into = hidden if width_into is None else width_into
        name = f"layers.*.{self.name}"
        shapes.linear(f"{name}.{self.router}", experts, hidden, at=at, bias=self.router_bias, role="router", dtype=self.router_dtype)
        if holds(config, self.correction):
            shapes.add(f"{name}.{self.router}.e_score_correction_bias", experts, at=at, role="buffer", dtype="fp32")
        mlp(shapes, f"{name}.experts.*", into, width, at=at, gated=self.gated, bias=self.bias, role="expert", copies=experts, used=min(used, experts))
        if (shared := self.shared(config, width)) > 0:
            mlp(shapes, f"{name}.{self.shared_name}", hidden, shared, at=at, gated=self.gated, role="shared")
        if self.shared_gate:
            shapes.linear(f"{name}.shared_expert_gate", 1, hidden, at=at, role="router")


def first_stated(config: Config, names: tuple[str, ...]) -> int:
    """The number under the first of several names for different things, each standing in for the one before."""
    for name in names:
        value = config.optional(name)
        if value is not None:
            return value
    raise config.missing(*names)


def first_layers(key: str) -> Layers:
    """The first layers, as many as `key` says."""

    def layers(config: Config, count: int) -> At:
        stated = config.optional(key, minimum=0)
        return tuple(range(min(count, 0 if stated is None else stated)))

    return layers


def first_and_between(config: Config, count: int) -> At:
    """DeepSeek: the first first_k_dense_replace layers, and those between each moe_layer_freq-th one (modeling_deepseek.py)."""
    frequency = config.get("moe_layer_freq")
    if isinstance(frequency, list):
        marks = config.numbers("moe_layer_freq") or ()
        config.check_per_layer("moe_layer_freq", len(marks), count)
        return tuple(layer for layer in range(count) if not marks[layer])
    first = config.optional("first_k_dense_replace", minimum=0) or 0
    step = config.optional("moe_layer_freq")
    return tuple(layer for layer in range(count) if layer < first or layer % (1 if step is None else step))


def by_sparse_step(config: Config, count: int) -> At:
    """Qwen: mlp_only_layers, and those that decoder_sparse_step leaves out (transformers 5.24.0, modeling_qwen3_moe.py)."""
    listed = config.numbers("mlp_only_layers") or ()
    stated = config.optional("decoder_sparse_step")
    step = 1 if stated is None else stated
    return tuple(layer for layer in range(count) if layer in listed or (layer + 1) % step)


def by_types(config: Config, count: int) -> At | None:
    """The layers that mlp_layer_types calls dense; None where the config has no such list."""
    types = config.strings("mlp_layer_types")
    if types is None:
        return None
    config.check_per_layer("mlp_layer_types", len(types), count, 8)
    return tuple(layer for layer, kind in enumerate(types[:count]) if kind == "dense")


def typed_or_first(config: Config, count: int) -> At:
    """mlp_layer_types, else as DeepSeek."""
    typed = by_types(config, count)
    return first_and_between(config, count) if typed is None else typed


def some_experts(key: str, absent: int = 0) -> Callable[[Config, int], int]:
    """So many experts, side by side, for every token."""

    def width(config: Config, expert_width: int) -> int:
        stated = config.optional(key, minimum=0)
        return (absent if stated is None else stated) * expert_width

    return width


def stated_width(key: str) -> Callable[[Config, int], int]:
    """One shared expert of its own width."""
    return lambda config, _width: config.optional(key, minimum=0) or 0
