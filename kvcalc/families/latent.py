"""Multi-head latent attention (MLA), with and without a sparse indexer."""

from kvcalc.caches import index_keys, latent
from kvcalc.families.config import KV_HEADS, Config
from kvcalc.families.decoder import Decoder, decoder, draft_count
from kvcalc.layers import Cache, Layer, PlainFormula


def mla(config: Config) -> Decoder:
    """DeepSeek V2, V3 and the models built like them: one latent a layer, also in the draft layers.

    A null kv_lora_rank, or use_mla false, means ordinary attention (DeepSeek-VL2-tiny, DeepSeek-OCR).
    """
    if (config.get("kv_lora_rank") is None and "kv_lora_rank" in config.fields) or not config.flag("use_mla", absent=True):
        return decoder(config)
    return _decoder(config, [()] * config.layer_count(), ())


def mla_with_indexer(config: Config) -> Decoder:
    """DeepSeek-V3.2: beside the latent each layer keeps the keys of its indexer."""
    keys = _index_keys(config)
    return _decoder(config, [(keys,)] * config.layer_count(), (keys,), picks=config.optional("index_topk"))


def mla_with_shared_indexers(config: Config) -> Decoder:
    """GLM-5: only layers whose indexer is "full" keep index keys; a "shared" one takes the picks of the layer before
    (transformers 5.24.0, configuration_glm_moe_dsa.py, for the keys and what stands for them when they are absent).
    """
    count, keys = config.layer_count(), _index_keys(config)
    return _decoder(config, [(keys,) if kind == "full" else () for kind in indexer_types(config, count)], (keys,), picks=config.optional("index_topk"))


def double_mla(config: Config) -> Decoder:
    """LongCat-Flash: two attention blocks, and so two latents, in each layer (transformers 5.24.0, modeling_longcat_flash.py)."""
    cache = latent_of(config)
    return Decoder((Layer(caches=(cache, cache)),) * config.layer_count(), formula=plain_numbers(config))


def latent_of(config: Config, picks: int | None = None) -> Cache:
    """The latent and the rotary key of one token in one layer, and the widths that each head expands them to."""
    rope = config.size("qk_rope_head_dim", minimum=0)
    nope, query_heads = config.size("qk_nope_head_dim", minimum=0), config.query_heads()
    v_dim = config.optional("v_head_dim")
    v_dim = config.derived_head_dim() if v_dim is None else v_dim
    return latent(rank=config.size("kv_lora_rank"), rope=rope, query_heads=query_heads, k_dim=nope + rope, v_dim=v_dim, picks=picks)


def plain_numbers(config: Config) -> PlainFormula | None:
    """The L, H_kv and d_h that a reader of an MLA config would use: its KV heads and hidden size over heads, both decoys.

    None where the hidden size does not divide into the heads.
    """
    hidden, heads = config.size("hidden_size"), config.query_heads()
    if hidden % heads:
        return None
    kv_heads = config.optional(*KV_HEADS)
    return PlainFormula(layers=config.layer_count(), kv_heads=heads if kv_heads is None else kv_heads, head_dim=hidden // heads)


def _decoder(config: Config, beside: list[tuple[Cache, ...]], beside_draft: tuple[Cache, ...], picks: int | None = None) -> Decoder:
    cache = latent_of(config, picks)
    draft = Layer(caches=(cache, *beside_draft))
    return Decoder(tuple(Layer(caches=(cache, *extra)) for extra in beside), (draft,) * draft_count(config), plain_numbers(config))


def _index_keys(config: Config) -> Cache:
    return index_keys(width=config.size("index_head_dim"), scorers=config.optional("index_n_heads"))


def indexer_types(config: Config, count: int) -> tuple[str, ...]:
    """For the indexer of each layer "full" or "shared", from a list, a word of F and S, or a period."""
    types = config.per_layer("indexer_types", count, drafts=draft_count(config))
    pattern = config.get("index_topk_pattern")
    if types is None and isinstance(pattern, str):
        config.check_per_layer("index_topk_pattern", len(pattern), count)
        types = tuple({"F": "full", "S": "shared"}.get(letter, letter) for letter in pattern)
    if types is None:
        period = config.optional("index_topk_freq")
        offset = config.optional("index_skip_topk_offset", minimum=0)
        every, skipped = 1 if period is None else period, 2 if offset is None else offset
        types = tuple("full" if max(layer - skipped + 1, 0) % every == 0 else "shared" for layer in range(count))
    if unknown := sorted(set(types) - {"full", "shared"}):
        raise config.error(f"indexer type {unknown[0][:40]!r} is not known")
    return types
