"""Language models whose tensors follow no common recipe, and what only one type adds to it."""

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from kvcalc.families.config import Config
from kvcalc.families.weights.feedforward import Moe, every, holds, mlp, typed_or_first
from kvcalc.families.weights.mixers import Attention, attention
from kvcalc.families.weights.shapes import At, Shapes
from kvcalc.layers import Cache, Layer


def attended(layers: tuple[Layer, ...]) -> dict[tuple[Cache, bool], At]:
    """Layers by the shape of their first cache, their own or that of the layer they read; the flag says which."""
    found: dict[tuple[Cache, bool], list[int]] = {}
    for index, layer in enumerate(layers):
        reads = layer.reads is not None
        caches = layers[layer.reads].caches if layer.reads is not None else layer.caches
        if caches:
            found.setdefault((caches[0], reads), []).append(index)
    return {key: tuple(at) for key, at in found.items()}


def gemma4(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """Gemma 4: one matrix for K and V in layers that keep all, wider MLPs in layers that share, experts beside the MLP, an embedding for each layer
    (transformers 5.24.0, modeling_gemma4.py).
    """
    count, how = len(layers), Attention(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head")
    merged = config.flag("attention_k_eq_v", absent=False)
    for (cache, reads), at in attended(layers).items():
        attention(shapes, config, how, cache, hidden=hidden, at=at, reads=reads, v_is_k=merged and cache.retention.kind == "grows")
    width, shared = config.size("intermediate_size"), tuple(index for index, layer in enumerate(layers) if layer.reads is not None)
    wide = shared if config.flag("use_double_wide_mlp", absent=False) else ()
    for at, size in ((tuple(index for index in range(count) if index not in set(wide)), width), (wide, 2 * width)):
        if at:
            mlp(shapes, "layers.*.mlp", hidden, size, at=at)
    whole = every(config, count)
    shapes.add("layers.*.layer_scalar", 1, at=whole, role="buffer")
    if config.flag("enable_moe_block", absent=False):
        for name in ("post_feedforward_layernorm_1", "post_feedforward_layernorm_2", "pre_feedforward_layernorm_2"):
            shapes.norm(f"layers.*.{name}", hidden, at=whole)
        experts = config.size("num_experts")
        shapes.norm("layers.*.router.scale", hidden, at=whole)
        shapes.norm("layers.*.router.per_expert_scale", experts, at=whole)
        shapes.linear("layers.*.router.proj", experts, hidden, at=whole, role="router")
        expert_width = config.size("moe_intermediate_size", "expert_intermediate_size")
        mlp(shapes, "layers.*.experts.*", hidden, expert_width, at=whole, role="expert", copies=experts, used=config.size("top_k_experts"))
    _per_layer_embedding(shapes, config, hidden, whole)


def _per_layer_embedding(shapes: Shapes, config: Config, hidden: int, at: At) -> None:
    """Gemma 3n and 4: a narrow embedding for each layer, gated in behind it; none where its width is 0."""
    width = config.optional("hidden_size_per_layer_input", minimum=0)
    if width is None:
        raise config.missing("hidden_size_per_layer_input")
    if width:
        shapes.linear("layers.*.per_layer_input_gate", width, hidden, at=at)
        shapes.linear("layers.*.per_layer_projection", hidden, width, at=at)
        shapes.norm("layers.*.post_per_layer_input_norm", hidden, at=at)
        shapes.add("embed_tokens_per_layer", config.size("vocab_size_per_layer_input"), len(at) * width, split="vocab", role="embedding")
        shapes.linear("per_layer_model_projection", len(at) * width, hidden)
        shapes.norm("per_layer_projection_norm", width)


def gemma3n(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """Gemma 3n: alternating updates of several residual streams, a low-rank path beside attention (transformers 5.24.0, modeling_gemma3n.py). A layer
    that reads another's cache has projections to K and V all the same, which no token passes.
    """
    whole, how = every(config, len(layers)), Attention(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head")
    for (cache, reads), at in attended(layers).items():
        attention(shapes, config, how, cache, hidden=hidden, at=at, passes_kv=not reads)
    widths = config.numbers("intermediate_size") if isinstance(config.get("intermediate_size"), list) else (config.size("intermediate_size"),) * len(layers)
    if widths is None or len(widths) != len(layers):
        raise config.error(f"contradictory numbers: intermediate_size does not name a width for each of {len(layers)} layers")
    for width in sorted(set(widths)):
        mlp(shapes, "layers.*.mlp", hidden, width, at=tuple(index for index, each in enumerate(widths) if each == width))
    streams, rank = config.size("altup_num_inputs"), config.size("laurel_rank")
    shapes.add("layers.*.altup.correct_output_scale", hidden, at=whole)
    shapes.linear("layers.*.altup.correction_coefs", streams, streams, at=whole, role="unquantized")
    shapes.linear("layers.*.altup.prediction_coefs", streams**2, streams, at=whole, role="unquantized")
    shapes.linear("layers.*.altup.modality_router", streams, hidden, at=whole, role="router", used=2)  # to predict, and to correct
    shapes.norm("layers.*.altup.router_norm", hidden, at=whole)
    shapes.linear("layers.*.laurel.linear_left", rank, hidden, at=whole)
    shapes.linear("layers.*.laurel.linear_right", hidden, rank, at=whole)
    shapes.norm("layers.*.laurel.post_laurel_norm", hidden, at=whole)
    _per_layer_embedding(shapes, config, hidden, whole)
    for side in ("altup_projections", "altup_unembed_projections"):
        shapes.linear(f"{side}.*", hidden, hidden, copies=streams - 1)


def deepseek_v4(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """DeepSeek-V4: one vector for K and V, a grouped low-rank output, compressors and indexers, several residual streams (transformers 5.24.0,
    modeling_deepseek_v4.py).
    """
    whole, base = every(config, len(layers)), "layers.*.attn"
    heads, width, q_rank, groups, o_rank = config.size("num_attention_heads"), *config.sizes("head_dim", "q_lora_rank", "o_groups", "o_lora_rank")
    index_heads, index_width = config.sizes("index_n_heads", "index_head_dim")
    shapes.add(f"{base}.sinks", heads, at=whole, split="rows", parts=heads, dtype="fp32")
    shapes.linear(f"{base}.q_a_proj", q_rank, hidden, at=whole, role="attention")
    shapes.norm(f"{base}.q_a_norm", q_rank, at=whole)
    shapes.linear(f"{base}.q_b_proj", heads * width, q_rank, at=whole, split="rows", parts=heads, role="attention")
    shapes.linear(f"{base}.kv_proj", width, hidden, at=whole, role="attention")
    shapes.norm(f"{base}.kv_norm", width, at=whole)
    shapes.linear(f"{base}.o_a_proj", groups * o_rank, heads * width // groups, at=whole, split="rows", parts=groups, role="attention")
    shapes.linear(f"{base}.o_b_proj", hidden, groups * o_rank, at=whole, split="cols", parts=groups, role="attention")
    strides = {
        index: max((cache.retention.stride for cache in layer.caches if cache.retention.kind == "grows"), default=0) for index, layer in enumerate(layers)
    }
    for stride in sorted(set(strides.values()) - {0}):
        at = tuple(index for index, each in strides.items() if each == stride)
        indexed = any(cache.kernel == "indexer" for cache in layers[at[0]].caches)
        wide = width * (2 if indexed else 1)
        _compressor(shapes, f"{base}.compressor", hidden, at, rows=stride, wide=wide, width=width)
        if indexed:
            name = f"{base}.compressor.indexer"
            _compressor(shapes, name, hidden, at, rows=stride, wide=2 * index_width, width=index_width)
            shapes.linear(f"{name}.q_b_proj", index_heads * index_width, q_rank, at=at, role="attention")
            shapes.linear(f"{name}.weights_proj", index_heads, hidden, at=at, role="router")
    DEEPSEEK_V4_MOE.add(shapes, config, hidden, whole)
    hyper_connections(shapes, config, hidden, whole)
    streams = config.size("hc_mult")
    for name, shape in (("fn", (streams, streams * hidden)), ("base", (streams,)), ("scale", (1,))):
        shapes.add(f"hc_head.{name}", *shape, role="unquantized" if name == "fn" else "other", dtype="fp32")


def _compressor(shapes: Shapes, name: str, hidden: int, at: At, *, rows: int, wide: int, width: int) -> None:
    shapes.add(f"{name}.position_bias", rows, wide, at=at, dtype="fp32")
    shapes.linear(f"{name}.kv_proj", wide, hidden, at=at, role="unquantized")
    shapes.linear(f"{name}.gate_proj", wide, hidden, at=at, role="unquantized")
    shapes.norm(f"{name}.kv_norm", width, at=at)


DEEPSEEK_V4_MOE = Moe(
    experts=("n_routed_experts",),
    width=("moe_intermediate_size",),
    shared=lambda config, width: config.size("n_shared_experts") * width,
    correction=True,
    name="ffn",
)


def hyper_connections(shapes: Shapes, config: Config, hidden: int, at: At) -> None:
    """What mixes several residual streams before and behind attention and MLP (mHC)."""
    streams = config.size("hc_mult")
    for block in ("attn_hc", "ffn_hc"):
        for name, shape in (("fn", ((2 + streams) * streams, streams * hidden)), ("base", ((2 + streams) * streams,)), ("scale", (3,))):
            shapes.add(f"layers.*.{block}.{name}", *shape, at=at, role="unquantized" if name == "fn" else "other", dtype="fp32")


def pooled_indexer(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """GLM-5.3-Flash: its indexer pools index_kpool keys by a learned weight (transformers 5.24.0, modeling_glm5_next.py)."""
    types = config.strings("layer_types") or ()
    at = tuple(index for index, kind in enumerate(types[:count]) if kind != "linear_attention")
    width, pooled = config.sizes("index_head_dim", "index_kpool")
    shapes.add("layers.*.self_attn.indexer.index_kpool_compress_ape", pooled, width, at=at, dtype="fp32")
    shapes.linear("layers.*.self_attn.indexer.index_kpool_compress_gate", width, hidden, at=at, role="unquantized")


def falcon(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """Falcon: attention and MLP side by side behind one norm, or two with the new architecture (transformers 5.24.0, modeling_falcon.py)."""
    whole, bias = every(config, len(layers)), "bias"
    for (cache, _), at in attended(layers).items():
        attention(shapes, config, Attention(qkv_bias=bias, o_bias=bias, name="self_attention"), cache, hidden=hidden, at=at)
    stated = config.optional("ffn_hidden_size")
    mlp(shapes, "layers.*.mlp", hidden, 4 * hidden if stated is None else stated, at=whole, gated=False, bias=holds(config, bias))
    grouped = layers[0].caches[0].planes[0].heads > 1 and config.get("multi_query") is not False
    modern = config.flag("new_decoder_architecture", absent=grouped)
    stated_norms = config.optional("num_ln_in_parallel_attn")
    if modern and (stated_norms is None or stated_norms == 2):
        names: tuple[str, ...] = ("ln_attn", "ln_mlp")
    else:
        names = ("input_layernorm",) if modern or config.flag("parallel_attn", absent=True) else ("input_layernorm", "post_attention_layernorm")
    for name in names:
        shapes.norm(f"layers.*.{name}", hidden, at=whole, bias=True)


def llama4(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Llama 4: experts in each interleave_moe_layer_step-th layer or those of moe_layers, wider MLPs in the others (modeling_llama4.py)."""
    listed, step = config.numbers("moe_layers"), config.optional("interleave_moe_layer_step")
    every_step = 1 if step is None else step
    sparse = tuple(range(every_step - 1, count, every_step)) if listed is None else listed
    dense = tuple(layer for layer in range(count) if layer not in set(sparse))
    if dense:
        mlp(shapes, "layers.*.feed_forward", hidden, config.size("intermediate_size_mlp"), at=dense)
    if sparse:
        LLAMA4_MOE.add(shapes, config, hidden, sparse)


LLAMA4_MOE = Moe(
    experts=("num_local_experts",),
    width=("intermediate_size",),
    shared=lambda _config, width: width,
    name="feed_forward",
    router="router",
    shared_name="shared_expert",
)


def nemotron_h(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Nemotron-H: a layer is a mixer, an MLP or experts alone, as a word of M, *, - and E says, or a list of names; experts of the larger models read
    a latent of moe_latent_size (transformers 5.24.0, modeling_nemotron_h.py).
    """
    pattern, names = config.text("hybrid_override_pattern"), config.strings("layers_block_type") or config.strings("layer_types")
    kinds = list(pattern) if pattern is not None else [{"mlp": "-", "moe": "E"}.get(name, name) for name in names or ()]
    config.check_per_layer("hybrid_override_pattern", len(kinds), count)
    plain = tuple(index for index, kind in enumerate(kinds) if kind == "-")
    sparse = tuple(index for index, kind in enumerate(kinds) if kind == "E")
    if plain:
        mlp(shapes, "layers.*.mixer", hidden, config.size("intermediate_size"), at=plain, gated=False, bias=holds(config, "mlp_bias"))
    if sparse:
        latent = config.optional("moe_latent_size")
        NEMOTRON_MOE.add(shapes, config, hidden, sparse, width_into=latent)
        if latent is not None:
            shapes.linear("layers.*.mixer.fc1_latent_proj", latent, hidden, at=sparse)
            shapes.linear("layers.*.mixer.fc2_latent_proj", hidden, latent, at=sparse)


NEMOTRON_MOE = Moe(
    experts=("n_routed_experts",),
    width=("moe_intermediate_size",),
    shared=lambda config, _width: config.size("moe_shared_expert_intermediate_size") * config.size("n_shared_experts"),
    gated=False,
    correction=True,
    name="mixer",
)


def lfm2_width(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """LFM2 states a width that it shrinks to two thirds and rounds up (transformers 5.24.0, modeling_lfm2.py); its Moe kin does not."""
    width = config.size("intermediate_size", "block_ff_dim")
    if config.flag("block_auto_adjust_ff_dim", absent=True):
        width = 2 * width // 3
        factor, multiple = config.get("block_ffn_dim_multiplier"), config.optional("block_multiple_of")
        width = int(width * (1 if factor is None else factor))
        step = 256 if multiple is None else multiple
        width = -(-width // step) * step
    mlp(shapes, "layers.*.feed_forward", hidden, width, at=every(config, count))


def mllama(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """Llama-3.2-Vision: cross-attention layers with norms of Q and K and two gates; eight more rows of the embedding (modeling_mllama.py)."""
    whole = every(config, len(layers))
    for (cache, _), at in attended(layers).items():
        crossed = cache.retention.kind == "encoder"
        how = Attention(qk_norm="head" if crossed else "", name="cross_attn" if crossed else "self_attn")
        attention(shapes, config, how, cache, hidden=hidden, at=at, passes_kv=not crossed)
        if crossed:
            shapes.add("layers.*.cross_attn_attn_gate", 1, at=at)
            shapes.add("layers.*.cross_attn_mlp_gate", 1, at=at)
    mlp(shapes, "layers.*.mlp", hidden, config.size("intermediate_size"), at=whole)
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes.norm(f"layers.*.{name}", hidden, at=whole)
    shapes.add("embed_tokens", config.size("vocab_size") + 8, hidden, split="vocab", role="embedding")
    shapes.norm("norm", hidden)


def t5(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """T5 and its kin: an encoder and a decoder over one embedding, relative positions once a side, or in each layer for umT5 (modeling_t5.py)."""
    heads, width, inner = config.sizes("num_heads", "d_kv", "d_ff")
    gated = (config.text("feed_forward_proj") or "relu").startswith("gated-")
    buckets = config.optional("relative_attention_num_buckets")
    for side, count, blocks in (("encoder", config.size("num_layers"), ("self",)), ("decoder", len(layers), ("self", "cross"))):
        decodes = side == "decoder"
        at = every(config, count) if decodes else ()
        copies = 1 if decodes else count
        name = "layers.*" if decodes else "encoder.*"
        for block in blocks:
            for part in ("q", "k", "v"):
                shapes.linear(f"{name}.{block}.{part}", heads * width, hidden, at=at, split="rows", parts=heads, copies=copies, role="attention")
            shapes.linear(f"{name}.{block}.o", hidden, heads * width, at=at, split="cols", parts=heads, copies=copies, role="attention")
            shapes.norm(f"{name}.{block}.layer_norm", hidden, at=at, copies=copies)
        mlp(shapes, f"{name}.ff", hidden, inner, at=at, gated=gated, copies=copies, used=copies)
        shapes.norm(f"{name}.ff.layer_norm", hidden, at=at, copies=copies)
        biased = count if config.text("model_type") == "umt5" else 1
        shapes.add(f"{side}.relative_attention_bias", 32 if buckets is None else buckets, heads, copies=biased)
        shapes.norm(f"{side}.final_layer_norm", hidden)


def step_gate(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Experts of Step 3.5 in all layers but the first ones, or in those of moe_layers_enum (a word of numbers)."""
    listed = config.text("moe_layers_enum")
    first = config.optional("first_k_dense_replace", minimum=0)
    try:
        sparse = tuple(int(part) for part in listed.split(",")) if listed else tuple(range(3 if first is None else first, count))
    except ValueError:
        raise config.error(f"moe_layers_enum {str(listed)[:40]!r} is not a list of layers") from None
    sparse = tuple(layer for layer in sparse if layer < count)
    dense = tuple(layer for layer in range(count) if layer not in set(sparse))
    if dense:
        mlp(shapes, "layers.*.mlp", hidden, config.size("intermediate_size"), at=dense)
    if sparse:
        STEP_MOE.add(shapes, config, hidden, sparse)


STEP_MOE = Moe(
    experts=("moe_num_experts", "num_experts"),
    used=("moe_top_k", "num_experts_per_tok"),
    width=("moe_intermediate_size",),
    shared=lambda config, _width: config.optional("share_expert_dim", "share_expert_dims", minimum=0) or 0,
    correction="use_moe_router_bias",
)


def windowed_sinks(shapes: Shapes, config: Config, _hidden: int, count: int) -> None:
    """MiMo-V2: a sink for each query head, in the layers that slide, in the others, in both or in none."""
    pattern = config.numbers("hybrid_layer_pattern") or (0,) * count
    for key, kind, heads in (("add_swa_attention_sink_bias", 1, "swa_num_attention_heads"), ("add_full_attention_sink_bias", 0, "num_attention_heads")):
        at = tuple(index for index, each in enumerate(pattern[:count]) if each == kind)
        if at and config.flag(key, absent=False):
            number = config.size(heads)
            shapes.add("layers.*.self_attn.sinks", number, at=at, split="rows", parts=number)


def by_period(period: str, offset: str) -> Callable[[Config, int], At]:
    """Jamba: the layers without experts, which stand in each `period`-th layer from `offset` on."""

    def layers(config: Config, count: int) -> At:
        step, first = config.size(period), config.size(offset, minimum=0)
        return tuple(layer for layer in range(count) if layer % step != first)

    return layers


def jamba(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Jamba: experts where there is more than one."""
    if config.size("num_experts") > 1:
        JAMBA_MOE(shapes, config, hidden, count)
    else:
        mlp(shapes, "layers.*.feed_forward", hidden, config.size("intermediate_size"), at=every(config, count))


JAMBA_MOE = Moe(
    experts=("num_experts",),
    width=("intermediate_size",),
    dense=by_period("expert_layer_period", "expert_layer_offset"),
    name="feed_forward",
    router="router",
)


def granite_experts(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Granite 4: experts where there are any, and an MLP that every token passes where it has a width (transformers 5.24.0, modeling_granitemoehybrid.py)."""
    if config.size("num_local_experts", minimum=0):
        GRANITE_MOE(shapes, config, hidden, count)
    if shared := config.optional("shared_intermediate_size", minimum=0):
        mlp(shapes, "layers.*.shared_mlp", hidden, shared, at=every(config, count), role="shared")


GRANITE_MOE = Moe(experts=("num_local_experts",), width=("intermediate_size",), name="block_sparse_moe", router="router.layer")


def longcat(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """LongCat-Flash: two MLPs in each layer beside experts, some of which compute nothing (transformers 5.24.0, modeling_longcat_flash.py)."""
    at = every(config, count)
    experts, empty = config.size("n_routed_experts"), config.size("zero_expert_num", minimum=0)
    mlp(shapes, "layers.*.mlps.*", hidden, config.size("ffn_hidden_size"), at=at, copies=2, used=2)
    width, used = config.size("expert_ffn_hidden_size"), config.size("moe_topk")
    mlp(shapes, "layers.*.mlp.experts.*", hidden, width, at=at, role="expert", copies=experts, used=used, empty=empty)
    shapes.linear("layers.*.mlp.router.classifier", experts + empty, hidden, at=at, role="router")
    shapes.add("layers.*.mlp.router.e_score_correction_bias", experts + empty, at=at, role="buffer", dtype="fp32")


def dbrx(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """DBRX: ffn_config states its experts (transformers 5.24.0, modeling_dbrx.py)."""
    section = config.section("ffn_config")
    if section is None:
        raise config.missing("ffn_config")
    experts, used, width = section.sizes("moe_num_experts", "moe_top_k", "ffn_hidden_size")
    at = every(config, count)
    shapes.linear("layers.*.ffn.router.layer", experts, hidden, at=at, role="router")
    mlp(shapes, "layers.*.ffn.experts.*", hidden, width, at=at, role="expert", copies=experts, used=used)


def qwen1(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Qwen of the first generation states the width of gate and up together (modeling_qwen.py of its repositories)."""
    mlp(shapes, "layers.*.mlp", hidden, config.size("intermediate_size") // 2, at=every(config, count))


def searched(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Nemotron-NAS: block_configs gives each MLP's width as a multiple of the hidden size, or leaves it out; so with attention, whose norm goes with it
    (modeling_decilm.py).
    """
    blocks = config.get("block_configs")
    listed = blocks if isinstance(blocks, list) else []
    config.check_per_layer("block_configs", len(listed), count)
    sections = [Config({"block": block}, config.where).section("block") or Config({}) for block in listed]
    attends = tuple(index for index, block in enumerate(sections) if not _left_out(block, "attention"))
    shapes.norm("layers.*.input_layernorm", hidden, at=attends)
    by_width: dict[int, list[int]] = {}
    for index, block in enumerate(sections):
        ffn = block.section("ffn")
        if ffn is None:
            raise config.error(f"block_configs[{index}] needs ffn")
        multiple = ffn.get("ffn_mult")
        if _left_out(block, "ffn"):
            continue
        if ffn.flag("replace_with_linear", absent=False) or isinstance(multiple, bool) or not isinstance(multiple, int | Decimal):
            raise config.error(f"block_configs[{index}].ffn is not known")
        width = int(2 * multiple * hidden / 3)
        by_width.setdefault(-(-width // 256) * 256, []).append(index)
    for width, at in sorted(by_width.items()):
        mlp(shapes, "layers.*.mlp", hidden, width, at=tuple(at))
        shapes.norm("layers.*.post_attention_layernorm", hidden, at=tuple(at))


def _left_out(block: Config, part: str) -> bool:
    section = block.section(part)
    return section is not None and section.flag("no_op", absent=False)


@dataclass(frozen=True, slots=True)
class EncoderDecoder:
    """BART and its kin: what differs between them."""

    offset: int = 2
    k_bias: bool = True
    embedding_norm: bool = True
    final_norm: bool = False

    def __call__(self, shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
        """Encoder and decoder over one embedding, with learned positions."""
        positions = config.size("max_position_embeddings") + self.offset
        for side, count in (("encoder", config.size("encoder_layers")), ("decoder", len(layers))):
            self.side(shapes, config, hidden, side, count)
            shapes.add(f"{side}.embed_positions", positions, hidden)
            if self.embedding_norm:
                shapes.norm(f"{side}.layernorm_embedding", hidden, bias=True)
            if self.final_norm:
                shapes.norm(f"{side}.layer_norm", hidden, bias=True)

    def side(self, shapes: Shapes, config: Config, hidden: int, side: str, count: int) -> None:
        """The layers of one side: attention to itself, in the decoder also to the encoder, and a plain MLP."""
        decodes = side == "decoder"
        at, copies = (every(config, count), 1) if decodes else ((), count)
        name, heads = ("layers.*" if decodes else "encoder.*"), config.size(f"{side}_attention_heads")
        for block in ("self_attn", "encoder_attn") if decodes else ("self_attn",):
            for part in ("q", "k", "v"):
                bias = part != "k" or self.k_bias
                shapes.linear(f"{name}.{block}.{part}_proj", hidden, hidden, at=at, split="rows", parts=heads, bias=bias, copies=copies, role="attention")
            shapes.linear(f"{name}.{block}.out_proj", hidden, hidden, at=at, split="cols", parts=heads, bias=True, copies=copies, role="attention")
            shapes.norm(f"{name}.{block}_layer_norm", hidden, at=at, bias=True, copies=copies)
        mlp(shapes, name, hidden, config.size(f"{side}_ffn_dim"), at=at, gated=False, bias=True, copies=copies, used=copies)
        shapes.norm(f"{name}.final_layer_norm", hidden, at=at, bias=True, copies=copies)


def whisper(shapes: Shapes, config: Config, hidden: int, layers: tuple[Layer, ...]) -> None:
    """Whisper: two convolutions over the mel bands, fixed positions of the audio, learned ones of the text (modeling_whisper.py)."""
    build = EncoderDecoder(k_bias=False)
    for side, count in (("encoder", config.size("encoder_layers")), ("decoder", len(layers))):
        build.side(shapes, config, hidden, side, count)
        shapes.norm(f"{side}.layer_norm", hidden, bias=True)
    for name, into in (("conv1", config.size("num_mel_bins")), ("conv2", hidden)):
        shapes.add(f"encoder.{name}", hidden, into, 3)
        shapes.add(f"encoder.{name}.bias", hidden)
    shapes.add("encoder.embed_positions", config.size("max_source_positions"), hidden)
    shapes.add("decoder.embed_positions", config.size("max_target_positions"), hidden)


def xielu(shapes: Shapes, config: Config, _hidden: int, count: int) -> None:
    """Apertus: two scalars of its activation in each layer."""
    for name in ("alpha_p", "alpha_n"):
        shapes.add(f"layers.*.mlp.act_fn.{name}", 1, at=every(config, count))


def kimi_experts(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """Kimi Linear and Kimi K3: experts as DeepSeek's; those of K3 read a latent of routed_expert_hidden_size, and each block weighs the earlier ones
    (attn_res_block_size) by a norm and a vector (vLLM 0.33.0, models/kimi_k3/nvidia/model.py).
    """
    dense = typed_or_first(config, count)
    if dense:
        mlp(shapes, "layers.*.mlp", hidden, config.size("intermediate_size"), at=dense)
    sparse = tuple(layer for layer in range(count) if layer not in set(dense))
    latent = config.optional("routed_expert_hidden_size")
    KIMI_MOE.add(shapes, config, hidden, sparse, width_into=latent)
    if latent is not None:
        shapes.linear("layers.*.mlp.routed_expert_down_proj", latent, hidden, at=sparse, role="router")
        shapes.linear("layers.*.mlp.routed_expert_up_proj", hidden, latent, at=sparse, role="router")
        if config.flag("latent_moe_use_norm", absent=False):
            shapes.norm("layers.*.mlp.routed_expert_norm", latent, at=sparse)
    if config.optional("attn_res_block_size") is not None:
        for name in ("layers.*.self_attention_res", "layers.*.mlp_res", "output_attn_res"):
            at = every(config, count) if name.startswith("layers") else ()
            shapes.norm(f"{name}_norm", hidden, at=at)
            shapes.linear(f"{name}_proj", 1, hidden, at=at, role="router")


KIMI_MOE = Moe(
    experts=("num_experts", "n_routed_experts"),
    used=("num_experts_per_token", "num_experts_per_tok"),
    width=("moe_intermediate_size",),
    shared=lambda config, width: (config.optional("num_shared_experts", "n_shared_experts", minimum=0) or 0) * width,
    correction=True,
)


def olmo_norms(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """OLMo Hybrid: a norm before linear attention, and one behind the MLP of the layers with full attention."""
    types = config.strings("layer_types")
    linear = tuple(layer for layer in range(count) if (types[layer] == "linear_attention" if types else (layer + 1) % 4))
    shapes.norm("layers.*.input_layernorm", hidden, at=linear)
    shapes.norm("layers.*.post_feedforward_layernorm", hidden, at=tuple(layer for layer in range(count) if layer not in set(linear)))
