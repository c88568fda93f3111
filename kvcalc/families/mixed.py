"""Decoders whose layers keep K and V of different shapes or for different spans: chunks, heads and widths by layer, layers that read another's."""

from collections.abc import Callable, Mapping
from typing import Any

from kvcalc.caches import attention
from kvcalc.families.config import Config
from kvcalc.families.decoder import Decoder, attention_of, draft_count, grouped, listed_windows, stated_numbers
from kvcalc.layers import Cache, Layer


def chunked(config: Config) -> Decoder:
    """Llama 4: a layer with rotary positions sees only its chunk of attention_chunk_size tokens, one without sees all. Each fourth layer has none
    where no_rope_layers does not say otherwise (transformers 5.24.0, configuration_llama4.py; the key is 1 for layers that do rotate).
    """
    count = config.layer_count()
    types = config.per_layer("layer_types", count)
    if types is None:
        rotates = config.numbers("no_rope_layers") or tuple(int((layer + 1) % 4 != 0) for layer in range(count))
        config.check_per_layer("no_rope_layers", len(rotates), count)
        types = tuple("chunked_attention" if rotated else "full_attention" for rotated in rotates)
    chunk = config.optional("attention_chunk_size")
    caches = {
        "full_attention": grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim()),
        "chunked_attention": grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim(), chunk=chunk),
    }
    return Decoder(layers_of(config, types, caches))


def layers_of(config: Config, types: tuple[str, ...], caches: Mapping[str, Cache | tuple[Cache, ...]]) -> tuple[Layer, ...]:
    """Layers by the names of their types. Raises KvcalcError for a type that has no caches here."""
    built = {name: Layer(caches=held if isinstance(held, tuple) else (held,)) for name, held in caches.items()}
    if unknown := sorted(set(types) - set(built)):
        raise config.error(f"layer type {unknown[0][:40]!r} is not known for this model type")
    return tuple(built[name] for name in types)


def gemma3n(config: Config) -> Decoder:
    """Gemma 3n: four sliding layers to one that keeps all; the last num_kv_shared_layers read the cache of the last layer of their kind before
    them (transformers 5.24.0, configuration_gemma3n.py and modeling_gemma3n.py).
    """
    count = config.layer_count()
    windows = listed_windows(config, count) or [None if (layer + 1) % 5 == 0 else config.size("sliding_window") for layer in range(count)]
    cache = attention_of(config, config.kv_heads())
    layers = [Layer(caches=(cache(window),)) for window in windows]
    return Decoder(sharing(config, layers, windows), formula=stated_numbers(config))


def gemma4(config: Config) -> Decoder:
    """Gemma 4: layers that keep all have heads of their own width and, with attention_k_eq_v, their own number of KV heads; the last layer always
    keeps all, and the last num_kv_shared_layers share as in Gemma 3n (transformers 5.24.0, configuration_gemma4.py). Files saved by transformers 5
    state the widths of single layers in per_layer_config instead.
    """
    count = config.layer_count()
    windows = listed_windows(config, count) or [config.size("sliding_window") if (layer + 1) % 6 else None for layer in range(count)]
    windows[-1] = None
    own = _per_layer_config(config, count)
    local = grouped(config, kv_heads=config.kv_heads(), head_dim=config.size("head_dim"), window=next((window for window in windows if window), None))
    layers = [Layer(caches=(local if window is not None else own(layer),)) for layer, window in enumerate(windows)]
    return Decoder(sharing(config, layers, windows), formula=stated_numbers(config))


def _per_layer_config(config: Config, count: int) -> Callable[[int], Cache]:
    """The cache of a layer that keeps all, by its index."""
    stated = config.optional("num_global_key_value_heads") if config.flag("attention_k_eq_v", absent=False) else None
    kv_heads, width = config.kv_heads() if stated is None else stated, config.size("global_head_dim")
    section = config.section("per_layer_config") or Config({}, config.where)
    by_layer = {_layer_index(section, name, count): section.section(name) or section for name in section.fields}

    def cache(layer: int) -> Cache:
        own = by_layer.get(layer, section)
        return grouped(config, kv_heads=_or(own.optional("num_key_value_heads"), kv_heads), head_dim=_or(own.optional("head_dim"), width))

    return cache


def _layer_index(section: Config, name: str, count: int) -> int:
    if not (name.isascii() and name.isdigit()) or int(name[:9]) >= count:
        raise section.error(f"{name[:20]!r} is not the index of a layer")
    return int(name)


def sharing(config: Config, layers: list[Layer], windows: list[int | None]) -> tuple[Layer, ...]:
    """The same layers, the last num_kv_shared_layers of them without caches of their own."""
    shared = config.optional("num_kv_shared_layers", minimum=0) or 0
    first = len(layers) - shared
    own = {window is None: layer for layer, window in enumerate(windows[: max(first, 0)])}
    if first < 1 or {window is None for window in windows[first:]} - set(own):
        raise config.error(f"contradictory numbers: of {len(layers)} layers, {shared} read the cache of an earlier layer of their kind, and there is none")
    return tuple(layers[:first]) + tuple(Layer(reads=own[window is None]) for window in windows[first:])


def mimo_v2(config: Config) -> Decoder:
    """MiMo-V2-Flash: K wider than V, and other heads in the layers that slide (hybrid_layer_pattern: 1 slides). Files saved by transformers do not
    state these: they are twice as many (transformers 5.24.0, modeling_mimo_v2_flash.py).
    """
    count = config.layer_count()
    pattern = config.numbers("hybrid_layer_pattern")
    if pattern is None:
        windows = listed_windows(config, count)
        if windows is None:
            raise config.missing("hybrid_layer_pattern", "layer_types")
        slides = [window is not None for window in windows]
    else:
        config.check_per_layer("hybrid_layer_pattern", len(pattern), count, drafts=draft_count(config))
        slides = [kind == 1 for kind in pattern[:count]]
    k_dim, v_dim, kv_heads = config.size("head_dim"), config.size("v_head_dim"), config.kv_heads()
    full = grouped(config, kv_heads=kv_heads, k_dim=k_dim, v_dim=v_dim)
    local_heads = _or(config.optional("swa_num_key_value_heads"), 2 * kv_heads)
    query_heads = _or(config.optional("swa_num_attention_heads"), config.query_heads())
    if query_heads % local_heads:
        raise config.error(f"contradictory numbers: {query_heads} query heads cannot share the {local_heads} KV heads of a sliding layer evenly")
    local = attention(
        kv_heads=local_heads,
        query_heads=query_heads,
        k_dim=_or(config.optional("swa_head_dim"), k_dim),
        v_dim=_or(config.optional("swa_v_head_dim"), v_dim),
        window=config.size("sliding_window"),
    )
    return Decoder(tuple(Layer(caches=(local if sliding else full,)) for sliding in slides), formula=stated_numbers(config))


def step(config: Config) -> Decoder:
    """Step 3.5 and 3.7: layer_types, and other query heads in the layers that slide (transformers 5.24.0, configuration_step3p7.py)."""
    count, kv_heads, width = config.layer_count(), config.kv_heads(), config.head_dim()
    other = config.section("attention_other_setting")
    sliding_heads = config.optional("num_sliding_attention_heads") if other is None else other.optional("num_attention_heads")
    full = Layer(caches=(grouped(config, kv_heads=kv_heads, head_dim=width),))
    layers = []
    for window in listed_windows(config, count) or [None] * count:
        if window is None:
            layers.append(full)
        else:
            layers.append(Layer(caches=(attention(kv_heads=kv_heads, query_heads=_or(sliding_heads, config.query_heads()), head_dim=width, window=window),)))
    return Decoder(tuple(layers))


def laguna(config: Config) -> Decoder:
    """Laguna: layer_types, and the query heads of each layer in num_attention_heads_per_layer (vLLM 0.33.0, laguna.py)."""
    count, kv_heads, width = config.layer_count(), config.kv_heads(), config.head_dim()
    heads = config.numbers("num_attention_heads_per_layer", 1) or (config.query_heads(),) * count
    config.check_per_layer("num_attention_heads_per_layer", len(heads), count)
    windows = listed_windows(config, count) or [None] * count
    if uneven := next((number for number in heads if number % kv_heads), None):
        raise config.error(f"contradictory numbers: {uneven} query heads cannot share {kv_heads} KV heads evenly")
    built = {
        (number, window): attention(kv_heads=kv_heads, query_heads=number, head_dim=width, window=window) for number, window in zip(heads, windows, strict=True)
    }
    return Decoder(tuple(Layer(caches=(built[key],)) for key in zip(heads, windows, strict=True)), formula=stated_numbers(config))


def searched(config: Config) -> Decoder:
    """Nemotron-NAS: block_configs says for each layer how many query heads share a KV head (n_heads_in_group), or that it has no attention."""
    count, query_heads = config.layer_count(), config.query_heads()
    blocks = config.get("block_configs")
    if not isinstance(blocks, list):
        raise config.missing("block_configs")
    config.check_per_layer("block_configs", len(blocks), count)
    return Decoder(tuple(_searched_layer(config, index, block, query_heads) for index, block in enumerate(blocks)), formula=stated_numbers(config))


def _searched_layer(config: Config, index: int, block: Any, query_heads: int) -> Layer:  # noqa: ANN401 (a JSON value can be anything)
    attends = (Config({"block": block}, config.where).section("block") or Config({})).section("attention")
    if attends is None:
        raise config.error(f"block_configs[{index}] needs attention")
    if attends.flag("no_op", absent=False) or attends.flag("replace_with_linear", absent=False):
        return Layer()
    group = attends.size("n_heads_in_group")
    if query_heads % group:
        raise config.error(f"contradictory numbers: block_configs[{index}] has groups of {group} of {query_heads} heads")
    return Layer(caches=(grouped(config, kv_heads=query_heads // group, head_dim=config.head_dim(), window=attends.optional("window_length")),))


def _or(stated: int | None, otherwise: int) -> int:
    return otherwise if stated is None else stated
