"""Decoders whose layers keep K and V: MHA, GQA and MQA under all their key names, with and without windows."""

from collections.abc import Callable
from typing import NamedTuple

from kvcalc.caches import attention
from kvcalc.families.config import HEAD_DIM, HIDDEN, KV_HEADS, QUERY_HEADS, Config
from kvcalc.layers import Cache, Layer, PlainFormula


class Decoder(NamedTuple):
    """What a family reads from a config: the layers, those that only speculative decoding uses, the numbers of the plain formula where
    the layers do not show them, and the encoder's length where it is fixed.
    """

    layers: tuple[Layer, ...]
    draft_layers: tuple[Layer, ...] = ()
    formula: PlainFormula | None = None
    encoder_tokens: int | None = None


Slides = Callable[[Config, int], list[int | None]]
"""The window of each of a number of layers, in tokens; None for a layer that keeps everything."""


def never(_config: Config, count: int) -> list[int | None]:
    """No layer has a window."""
    return [None] * count


def always(config: Config, count: int) -> list[int | None]:
    """Every layer has the window of the config, if it states one."""
    return [config.optional("sliding_window")] * count


def when_switched_on(config: Config, count: int) -> list[int | None]:
    """Qwen 2 and its kin: a window counts only with use_sliding_window, and then from layer max_window_layers on
    (transformers 5.24.0, configuration_qwen2.py).
    """
    if not config.flag("use_sliding_window", absent=False):
        return [None] * count
    first = config.size("max_window_layers", minimum=0)
    return [window if layer >= first else None for layer, window in enumerate(always(config, count))]


def all_when_switched_on(config: Config, count: int) -> list[int | None]:
    """Qwen 3 MoE: with use_sliding_window, every layer (transformers 5.24.0, configuration_qwen3_moe.py)."""
    return always(config, count) if config.flag("use_sliding_window", absent=False) else [None] * count


def all_but_every(period: int, *keys: str) -> Slides:
    """All layers but each `period`-th one; a config may state another period under one of `keys`."""

    def slides(config: Config, count: int) -> list[int | None]:
        stated = config.optional(*keys) if keys else None
        every = period if stated is None else stated
        return [window if (layer + 1) % every else None for layer, window in enumerate(always(config, count))]

    return slides


def first_of_every(period: int) -> Slides:
    """The first layer of each `period` keeps everything, the others slide (transformers 5.24.0, configuration_granite_swa.py)."""
    return lambda config, count: [window if layer % period else None for layer, window in enumerate(always(config, count))]


def lettered(config: Config, count: int) -> list[int | None]:
    """EXAONE 4: the pattern is a period, or a word such as LLLG in which L slides and G does not; without a window nothing slides
    (transformers 5.24.0, configuration_exaone4.py; vLLM 0.33.0, exaone4.py).
    """
    pattern = config.get("sliding_window_pattern")
    if not isinstance(pattern, str):
        return all_but_every(4, "sliding_window_pattern")(config, count)
    if not pattern or set(pattern) - {"L", "G"}:
        raise config.error(f"sliding_window_pattern {pattern[:40]!r} is not made of the letters L and G")
    return [window if pattern[layer % len(pattern)] == "L" else None for layer, window in enumerate(always(config, count))]


def decoder(config: Config, *, slides: Slides = never, absent_kv_heads_means_all: bool = True) -> Decoder:
    """Attention in every layer. `layer_types`, where the config has it, says which layers slide; else `slides` does.

    The draft layers of a model without windows are like its others; of one with windows they are not known.
    """
    count = config.layer_count()
    cache = attention_of(config, config.kv_heads(absent_means_all=absent_kv_heads_means_all))
    windows = listed_windows(config, count) or slides(config, count)
    layers = tuple(Layer(caches=(cache(window),)) for window in windows)
    return Decoder(layers, draft_layers=layers[:1] * draft_count(config) if set(windows) == {None} else ())


def listed_windows(config: Config, count: int) -> list[int | None] | None:
    """The window of each layer by `layer_types`; None where the config has no such list. Raises for a layer type that is not attention."""
    types = config.per_layer("layer_types", count, drafts=draft_count(config))
    if types is None:
        return None
    if unknown := sorted(set(types) - {"full_attention", "sliding_attention"}):
        raise config.error(f"layer type {unknown[0][:40]!r} is not known for this model type")
    window = config.size("sliding_window") if "sliding_attention" in types else None
    return [window if kind == "sliding_attention" else None for kind in types]


def draft_count(config: Config) -> int:
    """Draft (MTP) layers that the checkpoint brings along, 0 where it declares none."""
    return config.stated_layers("num_nextn_predict_layers", "mtp_num_hidden_layers", "_num_mtp_layers") or 0


def attention_of(config: Config, kv_heads: int, head_dim: int | None = None) -> Callable[[int | None], Cache]:
    """The cache of a layer with the config's heads, as a function of its window."""
    width = config.head_dim() if head_dim is None else head_dim
    built: dict[int | None, Cache] = {}

    def cache(window: int | None) -> Cache:
        if window not in built:
            built[window] = grouped(config, kv_heads=kv_heads, head_dim=width, window=window)
        return built[window]

    return cache


def grouped(
    config: Config,
    *,
    kv_heads: int,
    head_dim: int | None = None,
    k_dim: int | None = None,
    v_dim: int | None = None,
    window: int | None = None,
    chunk: int | None = None,
    picks: int | None = None,
) -> Cache:
    """caches.attention for the config's query heads. Raises KvcalcError where the KV heads do not divide them."""
    query_heads = config.query_heads()
    try:
        return attention(kv_heads=kv_heads, query_heads=query_heads, head_dim=head_dim, k_dim=k_dim, v_dim=v_dim, window=window, chunk=chunk, picks=picks)
    except ValueError as error:
        raise config.error(f"contradictory numbers: {error}") from None


def stated_numbers(config: Config) -> PlainFormula | None:
    """The L, H_kv and d_h that a reader of the config would use, for models whose layers do not show them; None where it states none."""
    if config.optional(*QUERY_HEADS) is None:
        return None
    width = config.optional(*HEAD_DIM)
    hidden, heads = config.optional(*HIDDEN), config.query_heads()
    if width is None:
        width = None if hidden is None or hidden % heads else hidden // heads
    return None if width is None else PlainFormula(layers=config.layer_count(), kv_heads=config.kv_heads(), head_dim=width)


def multi_query(config: Config) -> Decoder:
    """GPT-BigCode: one KV head unless multi_query is false (transformers 5.24.0, configuration_gpt_bigcode.py)."""
    kv_heads = 1 if config.flag("multi_query", absent=True) else config.query_heads()
    return _uniform(config, kv_heads)


def falcon(config: Config) -> Decoder:
    """Falcon: with new_decoder_architecture the stated KV heads; else one if multi_query, which is the default, else all
    (transformers 5.24.0, modeling_falcon.py). The first files of the 40B (RefinedWeb) have no such flag and state n_head_kv.
    """
    stated = config.optional(*KV_HEADS)
    if config.flag("new_decoder_architecture", absent=stated is not None and "multi_query" not in config.fields):
        return _uniform(config, config.kv_heads())
    return _uniform(config, 1 if config.flag("multi_query", absent=True) else config.kv_heads())


def nested_attention(config: Config) -> Decoder:
    """MPT and DBRX: attn_config names the kind of attention, or only its KV heads (llm-foundry, attention.py)."""
    section = config.section("attn_config") or Config({}, config.where)
    kv_heads = section.optional("kv_n_heads")
    match section.text("attn_type"):
        case "multiquery_attention":
            kv_heads = 1
        case "multihead_attention":
            kv_heads = config.query_heads()
        case "grouped_query_attention" | None:
            kv_heads = config.query_heads() if kv_heads is None else kv_heads
        case other:
            raise config.error(f"attn_type {other[:40]!r} is not known")
    return _uniform(config, kv_heads)


def chatglm(config: Config) -> Decoder:
    """ChatGLM: from the second generation on, multi_query_attention with multi_query_group_num groups; before, every head."""
    if config.flag("multi_query_attention", absent=False):
        return _uniform(config, config.size("multi_query_group_num"))
    return _uniform(config, config.query_heads())


def jetmoe(config: Config) -> Decoder:
    """JetMoE: the router gives each token num_experts_per_tok sets of the KV heads as query heads (transformers 5.24.0)."""
    kv_heads = config.size("num_key_value_heads")
    cache = attention(kv_heads=kv_heads, query_heads=kv_heads * config.size("num_experts_per_tok"), head_dim=config.size("kv_channels"))
    return Decoder((Layer(caches=(cache,)),) * config.layer_count())


def _uniform(config: Config, kv_heads: int) -> Decoder:
    return Decoder((Layer(caches=(attention_of(config, kv_heads)(None),)),) * config.layer_count())
