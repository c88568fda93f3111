"""Decoders that also attend to what an encoder or a vision tower made: T5, BART, Whisper, Llama-3.2-Vision."""

from kvcalc.caches import attention
from kvcalc.families.config import Config
from kvcalc.families.decoder import Decoder, grouped
from kvcalc.layers import Layer, PlainFormula


def t5(config: Config) -> Decoder:
    """T5: num_layers are the encoder's where num_decoder_layers is stated; heads of d_kv (transformers 5.24.0, configuration_t5.py)."""
    stated = config.stated_layers("num_decoder_layers", minimum=1)
    return _decoder(config.layers("num_layers") if stated is None else stated, config.size("num_heads"), config.size("d_kv"))


def bart(config: Config) -> Decoder:
    """BART and its kin: decoder_layers and decoder_attention_heads; num_hidden_layers is the encoder's."""
    return _decoder(config.layers("decoder_layers"), config.size("decoder_attention_heads"), _width(config))


def whisper(config: Config) -> Decoder:
    """Whisper: as BART; the encoder always gives max_source_positions rows, however short the audio."""
    read = _decoder(config.layers("decoder_layers"), config.size("decoder_attention_heads"), _width(config))
    return read._replace(encoder_tokens=config.size("max_source_positions"))


def mllama(config: Config) -> Decoder:
    """Llama-3.2-Vision: the layers of cross_attention_layers keep the image tokens alone (transformers 5.24.0, modeling_mllama.py); none without an image."""
    count, crossed = config.layer_count(), config.numbers("cross_attention_layers")
    if crossed is None:
        raise config.missing("cross_attention_layers")
    if any(layer >= count for layer in crossed):
        raise config.error(f"contradictory numbers: cross_attention_layers names layer {max(crossed)} of {count}")
    kv_heads, width = config.kv_heads(), config.head_dim()
    own = Layer(caches=(grouped(config, kv_heads=kv_heads, head_dim=width),))
    image = Layer(caches=(attention(kv_heads=kv_heads, query_heads=config.query_heads(), head_dim=width, cross=True),))
    return Decoder(tuple(image if layer in crossed else own for layer in range(count)), encoder_tokens=0)


def _width(config: Config) -> int:
    hidden, heads = config.size("d_model"), config.size("decoder_attention_heads")
    if hidden % heads:
        raise config.error(f"contradictory numbers: a d_model of {hidden} does not divide into {heads} heads")
    return hidden // heads


def _decoder(layers: int, heads: int, width: int) -> Decoder:
    """Self-attention and cross-attention in every layer, one KV head a query head."""
    own = attention(kv_heads=heads, query_heads=heads, head_dim=width)
    cross = attention(kv_heads=heads, query_heads=heads, head_dim=width, cross=True)
    return Decoder((Layer(caches=(own, cross)),) * layers, formula=PlainFormula(layers=layers, kv_heads=heads, head_dim=width))
