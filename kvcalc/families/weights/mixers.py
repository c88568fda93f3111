"""The projections around a cache: attention in its kinds, and recurrent layers. Their heads and widths are those of the cache."""

from dataclasses import dataclass
from typing import NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.families.config import Config
from kvcalc.families.weights.feedforward import Flag, holds
from kvcalc.families.weights.shapes import At, Shapes
from kvcalc.layers import Cache, Plane


class Attention(NamedTuple):
    """How a type of model projects to Q, K and V. `qk_norm`: over each head, over all heads at once, or none. `gated`: the output is gated by as
    many features as Q has ("q": projected with Q; "own": by a matrix of its own), or by one a head ("head").
    """

    qkv_bias: Flag = False
    o_bias: Flag = False
    qk_norm: str = ""
    norm_bias: bool = False
    gated: str = ""
    sinks: bool = False
    name: str = "self_attn"


def attention(
    shapes: Shapes, config: Config, how: Attention, cache: Cache, *, hidden: int, at: At, reads: bool = False, v_is_k: bool = False, passes_kv: bool = True
) -> None:
    """K and V heads shared by query heads. A layer that `reads` another's cache projects to Q alone; with `v_is_k` one matrix makes both. Without
    `passes_kv` the projections to K and V are there, and no token of the request passes them.
    """
    k, v = cache.planes
    heads, used = cache.query_heads or k.heads, int(passes_kv)
    name, bias = f"layers.*.{how.name}", holds(config, how.qkv_bias)
    shapes.linear(f"{name}.q_proj", heads * k.width * (2 if how.gated == "q" else 1), hidden, at=at, split="rows", parts=heads, bias=bias, role="attention")
    if not reads:
        shapes.linear(f"{name}.k_proj", k.heads * k.width, hidden, at=at, split="rows", parts=k.heads, bias=bias, role="attention", used=used)
        if not v_is_k:
            shapes.linear(f"{name}.v_proj", v.heads * v.width, hidden, at=at, split="rows", parts=v.heads, bias=bias, role="attention", used=used)
    shapes.linear(f"{name}.o_proj", hidden, heads * v.width, at=at, split="cols", parts=heads, bias=holds(config, how.o_bias), role="attention")
    if how.gated in ("own", "head"):
        shapes.linear(f"{name}.g_proj", heads * (k.width if how.gated == "own" else 1), hidden, at=at, split="rows", parts=heads, role="attention")
    if how.sinks:
        shapes.add(f"{name}.sinks", heads, at=at, split="rows", parts=heads)
    match how.qk_norm:
        case "head":
            shapes.norm(f"{name}.q_norm", k.width, at=at, bias=how.norm_bias)
            if not reads:
                shapes.norm(f"{name}.k_norm", k.width, at=at, bias=how.norm_bias)
        case "full":
            shapes.norm(f"{name}.q_norm", heads * k.width, at=at, split="rows", parts=heads)
            shapes.norm(f"{name}.k_norm", k.heads * k.width, at=at, split="rows", parts=k.heads)
        case "each":
            shapes.norm(f"{name}.q_norm", heads * k.width, at=at, bias=how.norm_bias, split="rows", parts=heads)
            shapes.norm(f"{name}.k_norm", k.heads * k.width, at=at, bias=how.norm_bias, split="rows", parts=k.heads)
        case _:
            pass


def mla(shapes: Shapes, config: Config, cache: Cache, hidden: int, at: At, *, bias: Flag = "attention_bias", name: str = "self_attn") -> None:
    """Latent attention: K and V through one latent, Q through another where the config states its rank."""
    heads, expanded = cache.query_heads, cache.expanded
    if heads is None or expanded is None:
        raise KvcalcError("latent attention without its heads")
    rank = cache.planes[0].width
    rope = cache.planes[1].width if len(cache.planes) > 1 else 0
    k_width, v_width = expanded
    base, q_rank, biased = f"layers.*.{name}", config.optional("q_lora_rank"), holds(config, bias)
    if q_rank is None:
        shapes.linear(f"{base}.q_proj", heads * k_width, hidden, at=at, split="rows", parts=heads, role="attention")
    else:
        shapes.linear(f"{base}.q_a_proj", q_rank, hidden, at=at, bias=biased, role="attention")
        shapes.norm(f"{base}.q_a_layernorm", q_rank, at=at)
        shapes.linear(f"{base}.q_b_proj", heads * k_width, q_rank, at=at, split="rows", parts=heads, role="attention")
    shapes.linear(f"{base}.kv_a_proj_with_mqa", rank + rope, hidden, at=at, bias=biased, role="attention")
    shapes.norm(f"{base}.kv_a_layernorm", rank, at=at)
    shapes.linear(f"{base}.kv_b_proj", heads * (k_width - rope + v_width), rank, at=at, split="rows", parts=heads, role="attention")
    shapes.linear(f"{base}.o_proj", hidden, heads * v_width, at=at, split="cols", parts=heads, bias=biased, role="attention")
    if config.flag("mla_use_output_gate", absent=False):
        shapes.linear(f"{base}.g_proj", heads * v_width, hidden, at=at, split="rows", parts=heads, role="attention")


def indexer(shapes: Shapes, config: Config, cache: Cache, hidden: int, at: At) -> None:
    """The sparse indexer of DeepSeek-V3.2: queries from the latent of Q, one key, a weight for each of its heads; that of MiniMax-M3 has queries
    from the hidden features and no weights (vLLM 0.33.0, models/minimax_m3/nvidia/model.py).
    """
    width, section, base = cache.planes[0].width, config.section("sparse_attention_config"), "layers.*.self_attn.indexer"
    if config.optional("q_lora_rank") is None:
        heads = config.size("index_n_heads") if section is None else section.size("sparse_num_index_heads")
        shapes.linear(f"{base}.q_proj", heads * width, hidden, at=at, split="rows", parts=heads, role="attention")
        shapes.linear(f"{base}.k_proj", width, hidden, at=at, role="attention")
        shapes.norm(f"{base}.q_norm", width, at=at)
        shapes.norm(f"{base}.k_norm", width, at=at)
        return
    heads = config.size("index_n_heads")
    shapes.linear(f"{base}.wq_b", heads * width, config.size("q_lora_rank"), at=at, role="attention")
    shapes.linear(f"{base}.wk", width, hidden, at=at, role="attention")
    shapes.norm(f"{base}.k_norm", width, at=at, bias=True)
    shapes.linear(f"{base}.weights_proj", heads, hidden, at=at, role="router")


def planes_of(cache: Cache, role: str) -> list[Plane]:
    """The planes of a cache that play a role."""
    return [plane for plane in cache.planes if plane.role == role]


def delta_net(shapes: Shapes, config: Config, hidden: int, at: At, *, fused: bool) -> None:
    """Gated DeltaNet: Q, K, V and the output gate Z, and two scalars for each value head (transformers 5.24.0, modeling_qwen3_next.py)."""
    key_heads, value_heads, key_width, value_width, kernel = config.sizes(
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"
    )
    keys, values = key_heads * key_width, value_heads * value_width
    base = "layers.*.linear_attn"
    if fused:
        shapes.linear(f"{base}.in_proj_qkvz", 2 * (keys + values), hidden, at=at, split="rows", parts=key_heads, role="recurrent")
        shapes.linear(f"{base}.in_proj_ba", 2 * value_heads, hidden, at=at, split="rows", parts=key_heads, role="recurrent")
    else:
        shapes.linear(f"{base}.in_proj_qkv", 2 * keys + values, hidden, at=at, split="rows", parts=key_heads, role="recurrent")
        shapes.linear(f"{base}.in_proj_z", values, hidden, at=at, split="rows", parts=value_heads, role="recurrent")
        shapes.linear(f"{base}.in_proj_b", value_heads, hidden, at=at, split="rows", parts=value_heads, role="recurrent")
        shapes.linear(f"{base}.in_proj_a", value_heads, hidden, at=at, split="rows", parts=value_heads, role="recurrent")
    shapes.add(f"{base}.conv1d", 2 * keys + values, 1, kernel, at=at, split="rows", role="unquantized", parts=key_heads)
    shapes.add(f"{base}.dt_bias", value_heads, at=at, split="rows", parts=value_heads)
    shapes.add(f"{base}.A_log", value_heads, at=at, split="rows", parts=value_heads)
    shapes.norm(f"{base}.norm", value_width, at=at)
    shapes.linear(f"{base}.out_proj", hidden, values, at=at, split="cols", parts=value_heads, role="recurrent")


def kda(shapes: Shapes, config: Config, cache: Cache, hidden: int, at: At) -> None:
    """Kimi Delta Attention: Q, K, V, a forget gate through one head's width, and an output gate that does so too or, with use_full_rank_gate, does not
    (transformers 5.24.0, modeling_kimi_linear.py; vLLM 0.33.0, models/kimi_k3/nvidia/kda.py).
    """
    section = config.section("linear_attn_config")
    full_rank = section is not None and section.flag("use_full_rank_gate", absent=False)
    conv = planes_of(cache, "conv")
    heads, width, kernel = conv[1].heads, conv[1].width, conv[1].columns + 1
    inner, base = heads * width, "layers.*.self_attn"
    for part in ("q", "k", "v"):
        shapes.linear(f"{base}.{part}_proj", inner, hidden, at=at, split="rows", parts=heads, role="recurrent")
        shapes.add(f"{base}.{part}_conv1d", inner, 1, kernel, at=at, split="rows", role="unquantized", parts=heads)
    if full_rank:
        shapes.linear(f"{base}.g_proj", inner, hidden, at=at, split="rows", parts=heads, role="recurrent")
    for gate in ("f",) if full_rank else ("f", "g"):
        shapes.linear(f"{base}.{gate}_a_proj", width, hidden, at=at, role="recurrent")
        shapes.linear(f"{base}.{gate}_b_proj", inner, width, at=at, split="rows", parts=heads, role="recurrent")
    shapes.add(f"{base}.dt_bias", inner, at=at, split="rows", parts=heads)
    shapes.add(f"{base}.A_log", heads, at=at, split="rows", parts=heads)
    shapes.linear(f"{base}.b_proj", heads, hidden, at=at, split="rows", parts=heads, role="recurrent")
    shapes.norm(f"{base}.o_norm", width, at=at)
    shapes.linear(f"{base}.o_proj", hidden, inner, at=at, split="cols", parts=heads, role="recurrent")


@dataclass(frozen=True, slots=True)
class Mamba2:
    """Where a config states the numbers of Mamba-2, and what stands around it."""

    heads: str
    head_dim: str
    state: str
    groups: str
    kernel: str
    conv_bias: Flag = True
    bias: Flag = False
    norm: bool = True
    name: str = "mixer"
    inner: str | None = None

    def __call__(self, shapes: Shapes, config: Config, hidden: int, at: At) -> None:
        heads, state, groups, kernel = config.sizes(self.heads, self.state, self.groups, self.kernel)
        stated = None if self.inner is None else config.optional(self.inner)
        inner = heads * config.size(self.head_dim) if stated is None else stated
        convolved = inner + 2 * groups * state
        base = f"layers.*.{self.name}"
        shapes.linear(f"{base}.in_proj", inner + convolved + heads, hidden, at=at, split="rows", parts=groups, bias=holds(config, self.bias), role="recurrent")
        shapes.add(f"{base}.conv1d", convolved, 1, kernel, at=at, split="rows", role="unquantized", parts=groups)
        if holds(config, self.conv_bias):
            shapes.add(f"{base}.conv1d.bias", convolved, at=at, split="rows", parts=groups)
        for vector in ("dt_bias", "A_log", "D"):
            shapes.add(f"{base}.{vector}", heads, at=at, split="rows", parts=heads)
        if self.norm:
            shapes.norm(f"{base}.norm", inner, at=at, split="rows", parts=groups)
        shapes.linear(f"{base}.out_proj", hidden, inner, at=at, split="cols", parts=groups, bias=holds(config, self.bias), role="recurrent")


def short_conv(shapes: Shapes, config: Config, cache: Cache, hidden: int, at: At) -> None:
    """The gated short convolution of LFM2 (transformers 5.24.0, modeling_lfm2.py)."""
    bias = holds(config, "conv_bias")
    (plane,) = cache.planes
    width = plane.width
    shapes.linear("layers.*.conv.in_proj", 3 * width, hidden, at=at, split="rows", bias=bias, role="recurrent")
    shapes.add("layers.*.conv.conv", width, 1, plane.columns + 1, at=at, split="rows", role="unquantized")
    if bias:
        shapes.add("layers.*.conv.conv.bias", width, at=at, split="rows")
    shapes.linear("layers.*.conv.out_proj", hidden, width, at=at, split="cols", bias=bias, role="recurrent")


@dataclass(frozen=True, slots=True)
class Mamba1:
    """Mamba-1: the rank of its time step is stated, or the hidden size over 16 (`time_step_rank` auto); Jamba adds three norms."""

    expand: str
    state: str
    kernel: str
    rank: str = "time_step_rank"
    conv_bias: str = "use_conv_bias"
    norms: bool = False
    name: str = "mixer"

    def __call__(self, shapes: Shapes, config: Config, hidden: int, at: At) -> None:
        channels = config.optional("intermediate_size", "d_inner") if self.name == "mixer" else None
        inner = config.size(self.expand) * hidden if channels is None else channels
        state, kernel = config.sizes(self.state, self.kernel)
        stated = config.get(self.rank)
        rank = -(-hidden // 16) if stated in (None, "auto") else config.size(self.rank)
        base = f"layers.*.{self.name}"
        shapes.linear(f"{base}.in_proj", 2 * inner, hidden, at=at, split="rows", role="recurrent")
        shapes.add(f"{base}.conv1d", inner, 1, kernel, at=at, split="rows", role="unquantized")
        if config.flag(self.conv_bias, absent=True):
            shapes.add(f"{base}.conv1d.bias", inner, at=at, split="rows")
        shapes.linear(f"{base}.x_proj", rank + 2 * state, inner, at=at, split="cols", role="recurrent")
        shapes.linear(f"{base}.dt_proj", inner, rank, at=at, split="rows", bias=True, role="recurrent")
        shapes.add(f"{base}.A_log", inner, state, at=at, split="rows")
        shapes.add(f"{base}.D", inner, at=at, split="rows")
        shapes.linear(f"{base}.out_proj", hidden, inner, at=at, split="cols", role="recurrent")
        if self.norms:
            for name, width in (("dt", rank), ("b", state), ("c", state)):
                shapes.norm(f"{base}.{name}_layernorm", width, at=at)


def lightning(shapes: Shapes, config: Config, hidden: int, at: At) -> None:
    """Lightning attention of MiniMax-Text-01: Q, K and V, a norm and an output gate (transformers 5.24.0, modeling_minimax.py)."""
    heads = config.query_heads()
    inner, base = heads * config.head_dim(), "layers.*.self_attn"
    shapes.linear(f"{base}.qkv_proj", 3 * inner, hidden, at=at, split="rows", parts=heads, role="recurrent")
    shapes.norm(f"{base}.norm", inner, at=at, split="rows", parts=heads)
    shapes.linear(f"{base}.out_proj", hidden, inner, at=at, split="cols", parts=heads, role="recurrent")
    shapes.linear(f"{base}.output_gate", inner, hidden, at=at, split="rows", parts=heads, role="recurrent")


def rglru(shapes: Shapes, config: Config, hidden: int, at: At) -> None:
    """The recurrent block of RecurrentGemma, whose gates work in each head (transformers 5.24.0, modeling_recurrent_gemma.py)."""
    stated, heads = config.optional("lru_width"), config.query_heads()
    width, base = hidden if stated is None else stated, "layers.*.temporal_block"
    for name in ("linear_y", "linear_x"):
        shapes.linear(f"{base}.{name}", width, hidden, at=at, split="rows", bias=True, role="recurrent")
    shapes.linear(f"{base}.linear_out", hidden, width, at=at, split="cols", bias=True, role="recurrent")
    shapes.add(f"{base}.conv_1d", width, 1, config.size("conv1d_width"), at=at, split="rows", role="unquantized")
    shapes.add(f"{base}.conv_1d.bias", width, at=at, split="rows")
    shapes.add(f"{base}.rg_lru.recurrent_param", width, at=at, split="rows")
    for gate in ("input", "recurrent"):
        shapes.add(f"{base}.rg_lru.{gate}_gate_weight", heads, width // heads, width // heads, at=at, split="rows", parts=heads, role="unquantized")
        shapes.add(f"{base}.rg_lru.{gate}_gate_bias", heads, width // heads, at=at, split="rows", parts=heads)


def olmo_delta_net(shapes: Shapes, config: Config, hidden: int, at: At) -> None:
    """The Gated DeltaNet of OLMo Hybrid, whose projections stand apart (transformers 5.24.0, modeling_olmo_hybrid.py)."""
    key_heads, value_heads, key_width, value_width, kernel = config.sizes(
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim", "linear_conv_kernel_dim"
    )
    keys, values, base = key_heads * key_width, value_heads * value_width, "layers.*.linear_attn"
    for name, out, heads in (("q", keys, key_heads), ("k", keys, key_heads), ("v", values, value_heads), ("g", values, value_heads)):
        shapes.linear(f"{base}.{name}_proj", out, hidden, at=at, split="rows", parts=heads, role="recurrent")
    for name in ("a", "b"):
        shapes.linear(f"{base}.{name}_proj", value_heads, hidden, at=at, split="rows", parts=value_heads, role="recurrent")
    shapes.add(f"{base}.conv1d", 2 * keys + values, 1, kernel, at=at, split="rows", role="unquantized", parts=key_heads)
    for name in ("A_log", "dt_bias"):
        shapes.add(f"{base}.{name}", value_heads, at=at, split="rows", parts=value_heads)
    shapes.norm(f"{base}.o_norm", value_width, at=at)
    shapes.linear(f"{base}.o_proj", hidden, values, at=at, split="cols", parts=value_heads, role="recurrent")
