"""Layers with a state of fixed size: SSMs, linear attention and short convolutions, alone and beside attention.

State shapes: vllm/model_executor/layers/mamba/mamba_utils.py 0.33.0. The dtype of a recurrent state is the config's own key, else the default of
vLLM 0.33.0 for the model type: fp32 for Nemotron-H and KDA, the model's for the rest.
"""

from collections.abc import Sequence

from kvcalc.caches import attention, cca, delta_net, index_keys, lightning, mamba1, mamba2, rglru, ring, rwkv, short_conv
from kvcalc.families.config import LAYERS, Config
from kvcalc.families.decoder import Decoder, draft_count, grouped, stated_numbers
from kvcalc.families.latent import indexer_types, latent_of, plain_numbers
from kvcalc.families.mixed import layers_of
from kvcalc.layers import Cache, Layer
from kvcalc.packing import packing_name


def gated_delta_net(config: Config) -> Decoder:
    """Qwen3-Next, Qwen3.5 and OLMo Hybrid: linear attention, and full attention in each full_attention_interval-th layer unless layer_types says
    otherwise. The draft layers are full attention (vLLM 0.33.0, qwen3_5_mtp.py).
    """
    count = config.layer_count()
    types = config.per_layer("layer_types", count, drafts=draft_count(config)) or _every(config, count, "full_attention_interval", 4)
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    linear = delta_net(
        kernel="gdn",
        key_heads=config.size("linear_num_key_heads"),
        value_heads=config.size("linear_num_value_heads"),
        key_dim=config.size("linear_key_head_dim"),
        value_dim=config.size("linear_value_head_dim"),
        conv_kernel=config.size("linear_conv_kernel_dim"),
        state_dtype=state_dtype(config, "mamba_ssm_dtype", otherwise="model"),
    )
    layers = layers_of(config, types, {"full_attention": full, "linear_attention": linear})
    return Decoder(layers, (Layer(caches=(full,)),) * draft_count(config), stated_numbers(config))


def qwen4_exp(config: Config) -> Decoder:
    """Qwen4-Exp: Qwen3.5's layers, full ones also named indexed_attention (transformers 5.24.0, configuration_qwen4_exp.py). What its token indexer (QSA)
    keeps beside them is not modelled: transformers keeps a key a token, vLLM 0.33.0 averaged keys and a ring of those not averaged yet.
    """
    if config.optional("indexer_n_heads") is not None:
        raise config.error("the index keys of Qwen4-Exp (QSA, indexer_n_heads) are not modelled", "leave the indexer_ keys out to count K and V without them")
    types = config.strings("layer_types")
    renamed = None if types is None else ["full_attention" if kind == "indexed_attention" else kind for kind in types]
    return gated_delta_net(Config({**config.fields, "layer_types": renamed}, config.where, config.class_defaults))


def gated_delta_net_in_model_dtype(config: Config) -> Decoder:
    """MiniCPM-V 4.6: the language model is Qwen3.5, but vLLM 0.33.0 heeds mamba_ssm_dtype only for Qwen3.5's own architectures."""
    return gated_delta_net(Config({**config.fields, "mamba_ssm_dtype": None}, config.where, config.class_defaults))


def kimi_linear(config: Config) -> Decoder:
    """Kimi Linear and Kimi K3: Kimi Delta Attention, and MLA in the layers of linear_attn_config.full_attn_layers, which counts from 1 (transformers
    5.24.0, configuration_kimi_linear.py).
    """
    count = config.layer_count()
    section = config.section("linear_attn_config")
    types = config.per_layer("layer_types", count)
    if types is None:
        if section is None:
            raise config.missing("linear_attn_config", "layer_types")
        types = _listed(section, count, first=1)
    caches: dict[str, Cache | tuple[Cache, ...]] = {"full_attention": latent_of(config), "linear_attention": _kda(config, section)}
    return Decoder(layers_of(config, types, caches), formula=plain_numbers(config))


def glm5_next(config: Config) -> Decoder:
    """GLM-5.3-Flash: Kimi Delta Attention, and MLA whose indexer keeps one key for index_kpool tokens and a ring of the last ones (vLLM 0.33.0,
    glm5_next.py). linear_attn_config counts its layers from 0 here.
    """
    count, section = config.layer_count(), config.section("linear_attn_config")
    types = config.per_layer("layer_types", count, drafts=draft_count(config))
    if types is None:
        if section is None:
            raise config.missing("layer_types")
        types = _listed(section, count, first=0)
    latent, pooled = latent_of(config, config.optional("index_topk")), config.size("index_kpool")
    width, scorers = config.size("index_head_dim"), config.optional("index_n_heads")
    indexed = (latent, index_keys(width=width, stride=pooled, scorers=scorers), ring(rows=pooled, width=2 * width, dtype="bf16"))
    indexers = indexer_types(config, count)
    names = tuple(kind if kind == "linear_attention" else f"{kind}, {indexer}" for kind, indexer in zip(types, indexers, strict=True))
    caches: dict[str, Cache | tuple[Cache, ...]] = {"linear_attention": _kda(config, section)}
    for kind in ("deepseek_sparse_attention", "indexed_attention", "full_attention"):
        caches |= {f"{kind}, full": indexed, f"{kind}, shared": latent}
    return Decoder(layers_of(config, names, caches), formula=plain_numbers(config))


def _kda(config: Config, section: Config | None) -> Cache:
    """Kimi Delta Attention, stated in linear_attn_config, or by transformers 5 in keys of the config itself."""
    names = ("linear_num_heads", "linear_head_dim", "linear_conv_kernel_dim") if section is None else ("num_heads", "head_dim", "short_conv_kernel_size")
    heads, width, conv_kernel = (config if section is None else section).sizes(*names)
    return delta_net(kernel="kda", key_heads=heads, value_heads=heads, key_dim=width, value_dim=width, conv_kernel=conv_kernel, state_dtype="fp32")


def _listed(section: Config, count: int, first: int) -> tuple[str, ...]:
    """Types from two lists of layer numbers, which must name each layer once."""
    full, linear = section.numbers("full_attn_layers"), section.numbers("kda_layers")
    if full is None or linear is None:
        raise section.missing("full_attn_layers" if full is None else "kda_layers")
    if sorted((*full, *linear)) != list(range(first, first + count)):
        raise section.error(f"contradictory numbers: full_attn_layers and kda_layers do not name each of {count} layers once, from {first}")
    return tuple("full_attention" if layer in set(full) else "linear_attention" for layer in range(first, first + count))


def _every(config: Config, count: int, key: str, period: int) -> tuple[str, ...]:
    """Full attention in each `period`-th layer, or as often as `key` says."""
    stated = config.optional(key)
    every = period if stated is None else stated
    return tuple("linear_attention" if (layer + 1) % every else "full_attention" for layer in range(count))


def jamba(config: Config) -> Decoder:
    """Jamba: attention in one layer of each attn_layer_period, Mamba-1 in the others (transformers 5.24.0, configuration_jamba.py)."""
    count = config.layer_count()
    period, offset = config.size("attn_layer_period"), config.size("attn_layer_offset", minimum=0)
    types = tuple("attention" if layer % period == offset else "mamba" for layer in range(count))
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    channels = config.size("mamba_expand") * config.size("hidden_size")
    state = mamba1(channels=channels, state=config.size("mamba_d_state"), conv_kernel=config.size("mamba_d_conv"))
    return Decoder(layers_of(config, types, {"attention": full, "mamba": state}), formula=stated_numbers(config))


def nemotron_h(config: Config) -> Decoder:
    """Nemotron-H: a letter for each layer, M for Mamba-2, * for attention, - and E for an MLP or experts, which keep nothing; or the same as a list
    (transformers 5.24.0, configuration_nemotron_h.py). The draft layers have a pattern of their own.
    """
    letters = config.text("hybrid_override_pattern")
    names = config.strings("layers_block_type") or config.strings("layer_types")
    if letters is not None:
        names = tuple(letters)
    if names is None:
        raise config.missing("hybrid_override_pattern", "layers_block_type")
    if config.optional(*LAYERS) is not None:
        config.check_per_layer("hybrid_override_pattern" if letters is not None else "layers_block_type", len(names), config.layer_count())
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    state = mamba2(
        heads=config.size("mamba_num_heads"),
        head_dim=config.size("mamba_head_dim"),
        state=config.size("ssm_state_size"),
        groups=config.size("n_groups", "mamba_n_groups"),
        conv_kernel=config.size("conv_kernel", "mamba_d_conv"),
        state_dtype=state_dtype(config, "mamba_ssm_cache_dtype", otherwise="fp32"),
    )
    caches: dict[str, Cache | tuple[Cache, ...]] = {
        **dict.fromkeys(("*", "attention", "full_attention"), full),
        **dict.fromkeys(("M", "mamba", "linear_attention"), state),
        **dict.fromkeys(("-", "E", "mlp", "moe"), ()),
    }
    layers = layers_of(config, names, caches)
    counted = Config({**config.fields, "num_hidden_layers": len(layers)}, config.where, config.class_defaults)
    draft_letters = config.text("mtp_hybrid_override_pattern")
    draft_names = tuple(draft_letters) if draft_letters is not None else config.strings("mtp_layers_block_type") or ()
    return Decoder(layers, layers_of(config, draft_names * draft_count(config), caches), stated_numbers(counted))


def mamba2_beside_attention(config: Config) -> Decoder:
    """Falcon-H1: attention and Mamba-2 in every layer."""
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    return Decoder((Layer(caches=(full, _mamba2(config))),) * config.layer_count(), formula=stated_numbers(config))


def granite_hybrid(config: Config) -> Decoder:
    """Granite 4: Mamba-2 or attention by layer_types, which older files call layers_block_type."""
    count = config.layer_count()
    types = config.per_layer("layer_types", count) or config.per_layer("layers_block_type", count)
    if types is None:
        raise config.missing("layer_types")
    return _mamba2_or_attention(config, types)


def bamba(config: Config) -> Decoder:
    """Bamba: attention in the layers of attn_layer_indices, Mamba-2 in the others."""
    indices = config.numbers("attn_layer_indices") or ()
    count = config.layer_count()
    if any(index >= count for index in indices):
        raise config.error(f"contradictory numbers: attn_layer_indices names layer {max(indices)} of {count}")
    return _mamba2_or_attention(config, tuple("attention" if layer in indices else "mamba" for layer in range(count)))


def _mamba2_or_attention(config: Config, types: tuple[str, ...]) -> Decoder:
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    state: Cache | tuple[Cache, ...] = _mamba2(config) if set(types) & {"mamba", "linear_attention"} else ()
    caches = {**dict.fromkeys(("attention", "full_attention"), full), **dict.fromkeys(("mamba", "linear_attention"), state)}
    return Decoder(layers_of(config, types, caches), formula=stated_numbers(config))


def _mamba2(config: Config) -> Cache:
    """Mamba-2 under the keys mamba_*. The inner width is heads x head width; where it is stated too, it must agree. A head width of "auto" is the
    inner width (mamba_d_ssm, else mamba_expand x hidden size) over the heads.
    """
    heads = config.size("mamba_n_heads")
    stated = config.optional("mamba_d_ssm")
    if config.get("mamba_d_head") == "auto":
        inner = config.size("mamba_expand") * config.size("hidden_size") if stated is None else stated
        if inner % heads:
            raise config.error(f"contradictory numbers: an inner width of {inner} does not divide into {heads} Mamba heads")
        width = inner // heads
    else:
        width = config.size("mamba_d_head")
    if stated is not None and stated != heads * width:
        raise config.error(f"contradictory numbers: mamba_d_ssm is {stated}, {heads} heads of {width} are {heads * width}")
    groups, state, conv_kernel = config.sizes("mamba_n_groups", "mamba_d_state", "mamba_d_conv")
    return mamba2(heads=heads, head_dim=width, state=state, groups=groups, conv_kernel=conv_kernel)


def zamba2(config: Config) -> Decoder:
    """Zamba2: Mamba-2 in every layer, and the shared attention block, as wide as twice the hidden size, in the hybrid ones (transformers 5.24.0,
    configuration_zamba2.py, which also saves the head width of a plain block under kv_channels: nothing is that wide).
    """
    count, hidden, heads = config.layer_count(), config.size("hidden_size"), config.query_heads()
    types = config.per_layer("layers_block_type", count)
    if types is None:
        raise config.missing("layers_block_type")
    if 2 * hidden % heads:
        raise config.error(f"contradictory numbers: twice the hidden size of {hidden} does not divide into {heads} heads")
    width = config.optional("attention_head_dim")
    kv_heads = config.optional("num_key_value_heads")
    full = attention(kv_heads=heads if kv_heads is None else kv_heads, query_heads=heads, head_dim=2 * hidden // heads if width is None else width)
    mamba_heads, state, groups, conv_kernel = config.sizes("n_mamba_heads", "mamba_d_state", "mamba_ngroups", "mamba_d_conv")
    inner = config.size("mamba_expand") * hidden
    if inner % mamba_heads:
        raise config.error(f"contradictory numbers: an inner width of {inner} does not divide into {mamba_heads} Mamba heads")
    recurrent = mamba2(heads=mamba_heads, head_dim=inner // mamba_heads, state=state, groups=groups, conv_kernel=conv_kernel)
    caches: dict[str, Cache | tuple[Cache, ...]] = {"hybrid": (full, recurrent), **dict.fromkeys(("mamba", "linear_attention"), recurrent)}
    shared = Config({key: value for key, value in config.fields.items() if key != "kv_channels"}, config.where, config.class_defaults)
    return Decoder(layers_of(config, types, caches), formula=stated_numbers(shared))


def lfm2(config: Config) -> Decoder:
    """LFM2: short convolutions, and attention in the layers of layer_types or, in older files, of full_attn_idxs."""
    count = config.layer_count()
    types = config.per_layer("layer_types", count)
    if types is None:
        indices = config.numbers("full_attn_idxs")
        if indices is None:
            raise config.missing("layer_types", "full_attn_idxs")
        types = tuple("full_attention" if layer in indices else "conv" for layer in range(count))
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    channels = config.optional("conv_dim")
    conv = short_conv(channels=config.size("hidden_size") if channels is None else channels, conv_kernel=config.size("conv_L_cache"))
    return Decoder(layers_of(config, types, {"full_attention": full, "conv": conv}), formula=stated_numbers(config))


def minimax(config: Config) -> Decoder:
    """MiniMax-Text-01: lightning attention, and full attention where attn_type_list is 1 (layer_types in transformers 5)."""
    count = config.layer_count()
    types = config.per_layer("layer_types", count)
    if types is None:
        pattern = config.numbers("attn_type_list")
        if pattern is None:
            raise config.missing("attn_type_list", "layer_types")
        config.check_per_layer("attn_type_list", len(pattern), count)
        types = tuple("full_attention" if kind == 1 else "linear_attention" for kind in pattern)
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    linear = lightning(heads=config.query_heads(), head_dim=config.head_dim())
    return Decoder(layers_of(config, types, {"full_attention": full, "linear_attention": linear}), formula=stated_numbers(config))


def recurrent_gemma(config: Config) -> Decoder:
    """RecurrentGemma: a pattern of recurrent and windowed attention layers, repeated (transformers 5.24.0, configuration_recurrent_gemma.py)."""
    count = config.layer_count()
    pattern = config.strings("block_types") or config.strings("_block_types")
    if not pattern:
        raise config.missing("block_types", "_block_types")
    width = config.optional("lru_width")
    local = grouped(config, kv_heads=config.kv_heads(), head_dim=config.derived_head_dim(), window=config.size("attention_window_size"))
    recurrent = rglru(width=config.size("hidden_size") if width is None else width, conv_kernel=config.size("conv1d_width"))
    types = tuple(pattern[layer % len(pattern)] for layer in range(count))
    return Decoder(layers_of(config, types, {"recurrent": recurrent, "attention": local}), formula=stated_numbers(config))


def pure_mamba1(config: Config) -> Decoder:
    """Mamba and Falcon-Mamba: no attention at all."""
    channels = config.optional("intermediate_size")
    if channels is None:
        channels = config.size("expand") * config.size("hidden_size")
    cache = mamba1(channels=channels, state=config.size("state_size"), conv_kernel=config.size("conv_kernel"))
    return Decoder((Layer(caches=(cache,)),) * config.layer_count())


def pure_mamba2(config: Config) -> Decoder:
    """Mamba-2 and Codestral-Mamba: no attention at all."""
    heads, width, state, groups, conv_kernel = config.sizes("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel")
    cache = mamba2(heads=heads, head_dim=width, state=state, groups=groups, conv_kernel=conv_kernel)
    return Decoder((Layer(caches=(cache,)),) * config.layer_count())


def rwkv5(config: Config) -> Decoder:
    """RWKV-5 (Eagle): a matrix for each head of head_size, and two hidden rows (modeling_rwkv5.py of the published repository)."""
    hidden, width = config.size("hidden_size"), config.size("head_size")
    attends = config.optional("attention_hidden_size")
    attends = hidden if attends is None else attends
    if attends % width:
        raise config.error(f"contradictory numbers: an attention size of {attends} does not divide into heads of {width}")
    return Decoder((Layer(caches=(rwkv(heads=attends // width, head_dim=width, hidden=hidden),)),) * config.layer_count())


def yuan(config: Config) -> Decoder:
    """Yuan 2: attention in every layer, filtered over the two hidden rows before it, which are kept (yuan_hf_model.py of the published repository)."""
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    return Decoder(
        (Layer(caches=(full, short_conv(channels=config.size("hidden_size"), conv_kernel=3))),) * config.layer_count(), formula=stated_numbers(config)
    )


def zaya(config: Config) -> Decoder:
    """Zaya: attention on convolved queries and keys, whose last inputs are kept, and one delayed half of V (transformers 5.24.0,
    modeling_zaya.py: cca_time0 and cca_time1 are the widths of two convolutions in a row).
    """
    count, width = config.layer_count(), config.size("head_dim")
    kv_heads, query_heads = config.kv_heads(), config.query_heads()
    columns = sum(config.sizes("cca_time0", "cca_time1")) - 2
    conv = cca(channels=(kv_heads + query_heads) * width, columns=columns, delayed=kv_heads * width // 2)
    full = grouped(config, kv_heads=kv_heads, head_dim=width)
    types = config.per_layer("layer_types", count) or ("hybrid",) * count
    caches: dict[str, Cache | tuple[Cache, ...]] = {"hybrid": (full, conv)}
    if "hybrid_sliding" in types:
        caches["hybrid_sliding"] = (grouped(config, kv_heads=kv_heads, head_dim=width, window=config.size("sliding_window")), conv)
    return Decoder(layers_of(config, types, caches), formula=stated_numbers(config))


def inkling(config: Config) -> Decoder:
    """Inkling: windowed attention with heads of its own in all but each sixth layer, and fp32 short convolutions over K, V and the inputs of
    attention and MLP (transformers 5.24.0, configuration_inkling.py and modeling_inkling.py).
    """
    count, hidden, kernel = config.layer_count(), config.size("hidden_size"), config.size("conv_kernel_size", "sconv_kernel_size")
    types = config.per_layer("layer_types", count)
    if types is None:
        listed = config.numbers("local_layer_ids")
        local = {layer for layer in range(count) if (layer + 1) % 6} if listed is None else set(listed)
        types = tuple("hybrid_sliding" if layer in local else "hybrid" for layer in range(count))
    wide = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    query_heads, kv_heads, width, window = config.sizes("swa_num_attention_heads", "swa_num_key_value_heads", "swa_head_dim", "sliding_window_size")
    narrow = attention(kv_heads=kv_heads, query_heads=query_heads, head_dim=width, window=window)

    def with_convs(cache: Cache) -> tuple[Cache, ...]:
        channels: Sequence[int] = (*(plane.heads * plane.width for plane in cache.planes), hidden, hidden)
        return (cache, *(short_conv(channels=each, conv_kernel=kernel, dtype="fp32") for each in channels))

    return Decoder(layers_of(config, types, {"hybrid": with_convs(wide), "hybrid_sliding": with_convs(narrow)}), formula=stated_numbers(config))


def state_dtype(config: Config, key: str, *, otherwise: str) -> str:
    """The packing of a recurrent state that `key` names, else `otherwise`."""
    text = config.text(key)
    if text is None or text == "auto":
        return otherwise
    name = packing_name(text.removeprefix("torch."))
    if name is None:
        raise config.error(f"{key} {text[:40]!r} is not known")
    return name
