"""Attention that keeps fewer rows than tokens (DeepSeek-V4), and index keys beside ordinary attention (MiniMax-M3)."""

from kvcalc.caches import compressor, index_keys, latent, ring
from kvcalc.families.config import Config
from kvcalc.families.decoder import Decoder, draft_count, grouped, stated_numbers
from kvcalc.layers import Cache, Layer

_TYPES = {"sliding_attention": 0, "compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
"""Tokens a row, by the layer types of transformers 5.24.0 (configuration_deepseek_v4.py)."""


def deepseek_v4(config: Config) -> Decoder:
    """DeepSeek-V4: every layer keeps a window of latents, and one latent for each 4 or 128 tokens, with the fp32 inputs of the next one; a layer of
    ratio 4 has an indexer whose keys are compressed alike (vLLM 0.33.0, deepseek_v4.py).
    """
    count = config.layer_count()
    ratios = config.numbers("compress_ratios")
    if ratios is None:
        types = config.per_layer("layer_types", count, drafts=draft_count(config))
        if types is None:
            raise config.missing("compress_ratios")
        if unknown := sorted(set(types) - set(_TYPES)):
            raise config.error(f"layer type {unknown[0][:40]!r} is not known for this model type")
        ratios = tuple(_TYPES[kind] for kind in types)
    config.check_per_layer("compress_ratios", len(ratios), count, drafts=draft_count(config))
    width, index_width, scorers = config.size("head_dim"), config.size("index_head_dim"), config.optional("index_n_heads")
    built = {
        0: (_latent(config, window=True),),
        4: (
            _latent(config, window=True),
            _latent(config, stride=4, picks=config.optional("index_topk")),
            compressor(width=4 * width, rows=8),
            index_keys(width=index_width, stride=4, scorers=scorers),
            compressor(width=4 * index_width, rows=8),
        ),
        128: (_latent(config, window=True), _latent(config, stride=128), compressor(width=2 * width, rows=128)),
    }
    if unknown_ratios := sorted(set(ratios) - set(built)):
        raise config.error(f"a compress ratio of {unknown_ratios[0]} is not known")
    return Decoder(tuple(Layer(caches=built[ratio]) for ratio in ratios[:count]), formula=stated_numbers(config))


def deepseek_v41(config: Config) -> Decoder:
    """DeepSeek-V4.1: every layer keeps a window of latents; only the layers of kv_source_layer_ids keep latents and index keys of the whole request,
    which the layers up to the next source read (vLLM 0.33.0, deepseek_v41.py).
    """
    count = config.layer_count()
    ratios, sources = config.numbers("compress_ratios"), config.numbers("kv_source_layer_ids")
    if ratios is None or sources is None:
        raise config.missing("compress_ratios" if ratios is None else "kv_source_layer_ids")
    config.check_per_layer("compress_ratios", len(ratios), count, drafts=draft_count(config))
    window = _latent(config, window=True)
    layers: list[Layer] = []
    source: int | None = None
    for layer, ratio in enumerate(ratios[:count]):
        if layer in sources:
            source = layer
            layers.append(Layer(caches=(window, *_source(config, ratio))))
        elif ratio == 0:
            layers.append(Layer(caches=(window,)))
        elif source is None:
            raise config.error(f"contradictory numbers: layer {layer} reads a source, and kv_source_layer_ids names none before it")
        else:
            layers.append(Layer(caches=(window,), reads=source))
    return Decoder(tuple(layers), formula=stated_numbers(config))


def _source(config: Config, ratio: int) -> tuple[Cache, ...]:
    keys = index_keys(width=config.size("index_head_dim"), stride=max(ratio, 1), scorers=config.optional("index_n_heads"))
    picks = config.optional("index_topk")
    match ratio:
        case 1:
            return (_latent(config, picks=picks), keys)
        case 2:
            return (_latent(config, stride=2, picks=picks), keys, ring(rows=8, width=2 * config.size("head_dim"), dtype="fp32"))
        case _:
            raise config.error(f"a compress ratio of {ratio} is not known for a source layer")


def _latent(config: Config, *, stride: int = 1, window: bool = False, picks: int | None = None) -> Cache:
    """One vector of head_dim elements, its last qk_rope_head_dim rotated, which is K and V at once."""
    rope = config.size("qk_rope_head_dim", minimum=0)
    width = config.size("head_dim")
    if rope >= width:
        raise config.error(f"contradictory numbers: qk_rope_head_dim is {rope}, head_dim is {width}")
    kept = config.size("sliding_window") if window else None
    return latent(rank=width - rope, rope=rope, query_heads=config.query_heads(), stride=stride, window=kept, picks=picks)


def minimax_m3(config: Config) -> Decoder:
    """MiniMax-M3: index keys beside K and V in the layers whose attention is sparse (transformers 5.24.0, configuration_minimax_m3_vl.py)."""
    count = config.layer_count()
    section = config.section("sparse_attention_config")
    types = config.per_layer("layer_types", count, drafts=draft_count(config))
    if types is None:
        frequency = None if section is None else section.numbers("sparse_attention_freq")
        if frequency is not None:
            config.check_per_layer("sparse_attention_freq", len(frequency), count, drafts=draft_count(config))
        types = tuple("minimax_m3_sparse" if sparse else "full_attention" for sparse in (frequency or (0,) * count)[:count])
    numbers = _minimax_m3_indexer(config, section) if any(kind == "minimax_m3_sparse" for kind in types) else None
    full = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim())
    layers = []
    for kind in types:
        match kind:
            case "full_attention":
                layers.append(Layer(caches=(full,)))
            case "minimax_m3_sparse" if numbers is not None:
                width, scorers, picks = numbers
                sparse = grouped(config, kv_heads=config.kv_heads(), head_dim=config.head_dim(), picks=picks)
                layers.append(Layer(caches=(sparse, index_keys(width=width, scorers=scorers))))
            case _:
                raise config.error(f"layer type {kind[:40]!r} is not known for this model type")
    return Decoder(tuple(layers), formula=stated_numbers(config))


def _minimax_m3_indexer(config: Config, section: Config | None) -> tuple[int, int | None, int | None]:
    """The width of index keys, the heads that score them, and the rows of the blocks that they pick."""
    if section is None:
        width, names = config.size("index_head_dim"), ("index_n_heads", "index_topk_blocks", "index_block_size")
    else:
        width, names = section.size("sparse_index_dim"), ("sparse_num_index_heads", "sparse_topk_blocks", "sparse_block_size")
    scorers, blocks, rows = ((config if section is None else section).optional(name) for name in names)
    return width, scorers, None if blocks is None or rows is None else blocks * rows
