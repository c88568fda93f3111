"""GGUF header -> ModelSpec: one table keyed by general.architecture.

The keys of a GGUF file mean the same for every architecture, so one reader serves them all, and an entry says what only the code of llama.cpp knows: which
layers slide or recur where the file does not list them, and how a recurrent layer is built. Keys: gguf-py/gguf/constants.py; what stands for absent ones:
src/llama-model.cpp and src/models/*.cpp; what a converter writes: conversion/*.py (llama.cpp as vendored by llama-cpp-python 0.3.36).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final, NamedTuple

from kvcalc.caches import attention, delta_net, index_keys, latent, lightning, mamba1, mamba2, rwkv, short_conv
from kvcalc.families.compressed import deepseek_v4
from kvcalc.families.config import Config
from kvcalc.families.crossed import t5
from kvcalc.families.decoder import Decoder
from kvcalc.families.latent import mla
from kvcalc.families.mixed import sharing
from kvcalc.families.recurrent import glm5_next
from kvcalc.families.weights.gguf import stored_tensors
from kvcalc.gguf import Header
from kvcalc.layers import MAX_LAYERS, Cache, Facts, Layer, Note, PlainFormula
from kvcalc.tensors import WeighedModel


class Blocks(NamedTuple):
    """The blocks of a file: the decoder layers of the model, and behind them those that draft tokens."""

    config: Config
    name: str
    layers: int
    drafts: int

    @property
    def total(self) -> int:
        return self.layers + self.drafts

    def key(self, name: str) -> str:
        return f"{self.name}.{name}"

    def size(self, name: str, minimum: int = 1) -> int:
        return self.config.size(self.key(name), minimum=minimum)

    def optional(self, name: str, minimum: int = 1) -> int | None:
        return self.config.optional(self.key(name), minimum=minimum)

    def each(self, name: str, *, whole: bool = False) -> tuple[int, ...] | None:
        """A number for each block, where a file may state one for all of them; None where it states none. A list that ends with the decoder layers says 0
        of the drafts; with `whole` it must name these too.
        """
        key = self.key(name)
        value = self.config.get(key)
        if value is None:
            return None
        if isinstance(value, bool):
            return (int(value),) * self.total
        if isinstance(value, int):
            return (self.size(name, minimum=0),) * self.total
        numbers = self.config.numbers(key) or ()
        self.config.check_per_layer(key, len(numbers), self.total if whole else self.layers, 0 if whole else self.drafts)
        return numbers + (0,) * (self.total - len(numbers))


@dataclass(frozen=True, slots=True)
class Windows:
    """Which layers slide where a file lists them not: all but the last of each `period` (with `full_first`: but the first); all for a period of 0; None:
    it must list them. `size`: the window where it states none; None: no layer slides then. `chunked`: it is the length of a chunk, which `size` states
    whatever the file does, unless that is 0.
    """

    period: int | None = None
    size: int | None = None
    full_first: bool = False
    chunked: bool = False


Recurs = Callable[[Blocks], tuple[bool, ...]]
"""Which blocks are recurrent."""
State = Callable[[Blocks], Cache]
"""What a recurrent layer keeps."""


@dataclass(frozen=True, slots=True)
class Architecture:
    """How the layers of one architecture follow from the keys of a file. `model_type` is that of Hugging Face.

    `recurs` and `state`: which layers are recurrent, and what these keep; with `beside` they attend too. `shared`: as many last layers read the cache of an
    earlier one where the file does not say how many. `indexer`: sparse attention by index keys. `read` reads the layers in a way of its own.
    """

    model_type: str
    windows: Windows | None = None
    recurs: Recurs | None = None
    state: State | None = None
    beside: bool = False
    shared: Callable[[Blocks], int] | None = None
    indexer: Callable[[Blocks], tuple[bool, ...]] | None = None
    read: Callable[[Blocks], Decoder] | None = None


def read_gguf(parts: Sequence[Header], shown: str, absent: int = 0) -> WeighedModel:
    """The model that the headers of a GGUF file, or of all parts of a split one, describe. `absent` parts could not be read: only tensors are missing then.

    Raises KvcalcError that names the key for an unknown architecture, a missing or contradictory key, and a file that holds no language model.
    """
    keys = parts[0].keys
    config = Config(keys, shown)
    name, known = _architecture(config)
    blocks = _blocks(config, name)
    read = _decoder(known, blocks) if known.read is None else known.read(blocks)
    stored = stored_tensors(config, name, [tensor for part in parts for tensor in part.tensors], read.layers, blocks.drafts)
    if not stored.tensors and not absent:
        raise config.error("it holds no tensors: a vocabulary, not a model")
    untold = f"{absent} of {absent + len(parts)} parts of {shown} are not there" if absent else None
    notes = _notes(known, blocks)
    if untold is not None:
        notes.append(Note(code="parameters", text=f"parameters and weights are not counted: {untold}"))
    parameters = None if absent else stored.parameters
    facts = Facts(
        model_type=known.model_type,
        dtype=stored.dtype,
        max_context=config.number(f"{name}.context_length", 1, 1 << 40),
        encoder_tokens=read.encoder_tokens,
        parameters=parameters,
        parameters_text=parameters,
        formula=read.formula,
        pooling=blocks.optional("pooling_type", minimum=0) not in (None, 0),
    )
    return WeighedModel(
        layers=read.layers,
        draft_layers=read.draft_layers,
        tensors=stored.tensors,
        untold=untold,
        quantization=stored.quantization,
        facts=facts,
        notes=tuple(notes),
    )


def _architecture(config: Config) -> tuple[str, Architecture]:
    kind, name = config.text("general.type"), config.text("general.architecture")
    if kind in NO_MODEL:
        raise config.error(f"it is {NO_MODEL[kind]}", "name the GGUF file of the model itself")
    if name is None:
        raise config.missing("general.architecture")
    if name in NO_KV_CACHE:
        raise config.error(f"architecture {name} is {NO_KV_CACHE[name]}")
    if name not in ARCHITECTURES:
        near = get_close_matches(name, ARCHITECTURES, n=3)
        hint = f"near: {', '.join(near)}; " if near else ""
        raise config.error(f"what architecture {name[:60]!r} keeps is not known", f"{hint}name the config.json of the model, or describe it in a spec YAML")
    return name, ARCHITECTURES[name]


def _blocks(config: Config, name: str) -> Blocks:
    count = config.size(f"{name}.block_count")
    drafts = config.optional(f"{name}.nextn_predict_layers", minimum=0) or 0
    if count > MAX_LAYERS:
        raise config.error(f"{count:,} layers are more than any model has")
    if drafts >= count:
        raise config.error(f"contradictory numbers: of {count} blocks, {drafts} only draft tokens")
    return Blocks(config, name, count - drafts, drafts)


def _notes(known: Architecture, blocks: Blocks) -> list[Note]:
    notes = []
    if known.windows is None and known.read is None and (window := blocks.optional("attention.sliding_window", minimum=0)):
        text = f"the file states a window of {window:,} tokens, of which llama.cpp takes no notice for {blocks.name}: every layer keeps everything"
        notes.append(Note(code="window", text=text))
    if not blocks.config.flag(blocks.key("attention.causal"), absent=True):
        notes.append(Note(code="not-causal", text="attention is not causal: an embedding model on a decoder; engines that run it so keep no cache at all"))
    return notes


# Layers


def _decoder(known: Architecture, blocks: Blocks) -> Decoder:
    """Layer by layer. Blocks that draft are read like the others; where those slide by a rule, it says nothing of drafts, and they are left out."""
    windows, listed = _windows(known.windows, blocks)
    recurrent = (False,) * blocks.total if known.recurs is None else known.recurs(blocks)
    state = known.state(blocks) if known.state is not None and any(recurrent) else None
    attends = _attention(known, blocks)
    layers = []
    for block in range(blocks.total):
        caches = () if recurrent[block] and not known.beside else attends(block, windows[block])
        layers.append(Layer(caches=(*caches, state) if state is not None and recurrent[block] else caches))
    own, drafts = tuple(layers[: blocks.layers]), tuple(layers[blocks.layers :])
    keeping = sum(bool(layer.caches) for layer in own)
    if not keeping or (known.shared is not None and keeping < len(own)):
        which = "a layer" if keeping else "every layer"
        raise blocks.config.error(f"contradictory numbers: {which} has no heads ({blocks.key('attention.head_count')} and head_count_kv), nor a state")
    if known.shared is not None:
        shared = blocks.optional("attention.shared_kv_layers", minimum=0)
        config = Config({"num_kv_shared_layers": known.shared(blocks) if shared is None else shared}, blocks.config.where)
        own = sharing(config, list(own), windows[: blocks.layers])
    return Decoder(own, drafts if listed or set(windows) == {None} else (), _formula(blocks))


def _windows(rule: Windows | None, blocks: Blocks) -> tuple[list[int | None], bool]:
    """The window of each block, and whether the file lists those that slide (llama-model.cpp, load_swa_pattern; llama-hparams.cpp, set_swa_pattern)."""
    size = None if rule is None else blocks.optional("attention.sliding_window", minimum=0)
    if rule is not None and (size is None or (rule.chunked and size)):
        size = rule.size
    if rule is None or not size:
        return [None] * blocks.total, False
    pattern = blocks.config.get(blocks.key("attention.sliding_window_pattern"))
    if isinstance(pattern, list):
        slides = blocks.each("attention.sliding_window_pattern") or ()
        return [size if sliding else None for sliding in slides], True
    period = rule.period if pattern is None else blocks.size("attention.sliding_window_pattern", minimum=0)
    if period is None:
        raise blocks.config.missing(blocks.key("attention.sliding_window_pattern"))
    full = 0 if rule.full_first else period - 1
    return [None if block >= blocks.layers or (period and block % period == full) else size for block in range(blocks.total)], False


def _attention(known: Architecture, blocks: Blocks) -> Callable[[int, int | None], tuple[Cache, ...]]:
    """The caches of a block that attends, by its window; none for one without KV heads."""
    query_heads = blocks.each("attention.head_count", whole=True)
    if query_heads is None:
        raise blocks.config.missing(blocks.key("attention.head_count"))
    kv_heads = blocks.each("attention.head_count_kv", whole=True) or query_heads
    indexed = (False,) * blocks.total if known.indexer is None else known.indexer(blocks)
    latents = blocks.optional("attention.key_length_mla") is not None
    chunked = known.windows is not None and known.windows.chunked
    built: dict[tuple[int, int, int | None, bool], tuple[Cache, ...]] = {}

    def caches(block: int, window: int | None) -> tuple[Cache, ...]:
        key = (query_heads[block], kv_heads[block], window, indexed[block])
        if 0 in key[:2]:
            return ()
        if key not in built:
            if latents:
                cache = _latent(blocks, query_heads[block], None if known.indexer is None else blocks.optional("attention.indexer.top_k"))
            else:
                k, v = (_width(blocks, name, query_heads[block], sliding=window is not None) for name in ("key_length", "value_length"))
                cache = _grouped(blocks, query_heads[block], kv_heads[block], k, v, None if chunked else window, window if chunked else None)
                if indexed[block]:
                    picked, rows = blocks.optional("attention.indexer.top_k"), blocks.optional("attention.indexer.block_size")
                    cache = cache.model_copy(update={"picks": None if picked is None or rows is None else picked * rows})
            built[key] = (cache, *((_index_keys(blocks),) if indexed[block] else ()))
        return built[key]

    return caches


def _grouped(  # noqa: PLR0917 (the numbers of one cache, in the order of attention())
    blocks: Blocks, query_heads: int, kv_heads: int, k: int, v: int, window: int | None, chunk: int | None
) -> Cache:
    try:
        return attention(kv_heads=kv_heads, query_heads=query_heads, k_dim=k, v_dim=v, window=window, chunk=chunk)
    except ValueError as error:
        raise blocks.config.error(f"contradictory numbers: {error}") from None


def _index_keys(blocks: Blocks) -> Cache:
    return index_keys(width=blocks.size("attention.indexer.key_length"), scorers=blocks.optional("attention.indexer.head_count"))


def _latent(blocks: Blocks, query_heads: int, picks: int | None) -> Cache:
    """K of one head is the latent with the rotary key behind it (conversion/deepseek.py)."""
    rank, width = blocks.size("attention.kv_lora_rank"), blocks.size("attention.key_length")
    if width < rank:
        raise blocks.config.error(f"contradictory numbers: {blocks.key('attention.key_length')} is {width}, and the latent in it has {rank}")
    k_dim, v_dim = blocks.size("attention.key_length_mla"), blocks.size("attention.value_length_mla")
    return latent(rank=rank, rope=width - rank, query_heads=query_heads, k_dim=k_dim, v_dim=v_dim, picks=picks)


def _width(blocks: Blocks, name: str, query_heads: int, *, sliding: bool = False) -> int:
    """Width of K or V in a head: stated, else embedding length over query heads (llama-model.cpp, load_hparams)."""
    stated = blocks.optional(f"attention.{name}_swa") if sliding else None
    stated = blocks.optional(f"attention.{name}") if stated is None else stated
    if stated is not None:
        return stated
    hidden = blocks.size("embedding_length")
    if hidden % query_heads:
        message = f"no {blocks.key('attention.' + name)}, and an embedding length of {hidden} does not divide into {query_heads} heads"
        raise blocks.config.error(message)
    return hidden // query_heads


def _formula(blocks: Blocks) -> PlainFormula | None:
    """The L, H_kv and d_h that a reader of the keys would use; None where no layer attends. Of a latent, as in its config.json: KV heads and widths that
    are decoys.
    """
    query_heads = max(blocks.each("attention.head_count") or (0,))
    kv_heads = max(blocks.each("attention.head_count_kv") or (query_heads,))
    if not query_heads or not kv_heads:
        return None
    if blocks.optional("attention.key_length_mla") is not None:
        hidden = blocks.size("embedding_length")
        return None if hidden % query_heads else PlainFormula(layers=blocks.layers, kv_heads=query_heads, head_dim=hidden // query_heads)
    return PlainFormula(layers=blocks.layers, kv_heads=kv_heads, head_dim=_width(blocks, "key_length", query_heads))


# Which layers recur


def _always(blocks: Blocks) -> tuple[bool, ...]:
    return (True,) * blocks.total


def _without_kv_heads(blocks: Blocks) -> tuple[bool, ...]:
    """A layer recurs where it has no KV heads (src/models/jamba.cpp and others)."""
    heads = blocks.each("attention.head_count_kv")
    if heads is None:
        raise blocks.config.missing(blocks.key("attention.head_count_kv"))
    return tuple(not number and block < blocks.layers for block, number in enumerate(heads))


def _without_anything_else(blocks: Blocks) -> tuple[bool, ...]:
    """A layer recurs where it has neither KV heads nor an MLP (src/models/nemotron-h.cpp)."""
    widths = blocks.each("feed_forward_length")
    if widths is None:
        raise blocks.config.missing(blocks.key("feed_forward_length"))
    return tuple(recurs and not width for recurs, width in zip(_without_kv_heads(blocks), widths, strict=True))


def _but_every(period: int) -> Recurs:
    """All but each full_attention_interval-th layer (or each `period`-th), unless the file lists them; drafts attend."""

    def recurs(blocks: Blocks) -> tuple[bool, ...]:
        listed = blocks.each("attention.recurrent_layers")
        if listed is not None:
            return tuple(map(bool, listed))
        stated = blocks.optional("full_attention_interval")
        every = period if stated is None else stated
        return tuple(block < blocks.layers and (block + 1) % every != 0 for block in range(blocks.total))

    return recurs


# What a recurrent layer keeps


def _inner(blocks: Blocks) -> tuple[int, int]:
    """Heads of a recurrent layer, and the width of one."""
    heads, inner = blocks.size("ssm.time_step_rank"), blocks.size("ssm.inner_size")
    if inner % heads:
        raise blocks.config.error(f"contradictory numbers: {blocks.key('ssm.inner_size')} is {inner}, which does not divide into {heads} heads")
    return heads, inner // heads


def _mamba1(blocks: Blocks) -> Cache:
    return mamba1(channels=blocks.size("ssm.inner_size"), state=blocks.size("ssm.state_size"), conv_kernel=blocks.size("ssm.conv_kernel"))


def _mamba2(state_dtype: str) -> State:
    def state(blocks: Blocks) -> Cache:
        heads, width = _inner(blocks)
        return mamba2(
            heads=heads,
            head_dim=width,
            state=blocks.size("ssm.state_size"),
            groups=blocks.size("ssm.group_count"),
            conv_kernel=blocks.size("ssm.conv_kernel"),
            state_dtype=state_dtype,
        )

    return state


def _delta_net(state_dtype: str) -> State:
    """Key heads are the groups, value heads the time steps, and a key is as wide as the state (conversion/qwen.py)."""

    def state(blocks: Blocks) -> Cache:
        heads, width = _inner(blocks)
        return delta_net(
            kernel="gdn",
            key_heads=blocks.size("ssm.group_count"),
            value_heads=heads,
            key_dim=blocks.size("ssm.state_size"),
            value_dim=width,
            conv_kernel=blocks.size("ssm.conv_kernel"),
            state_dtype=state_dtype,
        )

    return state


def _heads(blocks: Blocks) -> int:
    return max(blocks.each("attention.head_count") or (0,)) or blocks.size("attention.head_count")


def _kda(blocks: Blocks) -> Cache:
    heads, width = _heads(blocks), blocks.size("kda.head_dim")
    return delta_net(
        kernel="kda",
        key_heads=heads,
        value_heads=heads,
        key_dim=width,
        value_dim=width,
        conv_kernel=blocks.size("ssm.conv_kernel"),
        state_dtype="fp32",
    )


def _lightning(blocks: Blocks) -> Cache:
    return lightning(heads=_heads(blocks), head_dim=_width(blocks, "key_length", _heads(blocks)))


def _short_conv(blocks: Blocks) -> Cache:
    return short_conv(channels=blocks.size("embedding_length"), conv_kernel=blocks.size("shortconv.l_cache", minimum=2))


def _rwkv(blocks: Blocks) -> Decoder:
    """RWKV-6 and 7: a matrix for each head, and token_shift_count hidden rows, 2 where the file does not say (llama-hparams.h)."""
    hidden, width = blocks.size("embedding_length"), blocks.size("wkv.head_size")
    if hidden % width:
        raise blocks.config.error(f"contradictory numbers: an embedding length of {hidden} does not divide into heads of {width}")
    if (rows := blocks.optional("token_shift_count")) not in (None, 2):
        raise blocks.config.error(f"{blocks.key('token_shift_count')} is {rows}; 2 is needed")
    return Decoder((Layer(caches=(rwkv(heads=hidden // width, head_dim=width, hidden=hidden),)),) * blocks.layers)


# Sparse attention


def _every_layer(blocks: Blocks) -> tuple[bool, ...]:
    return (True,) * blocks.total


def _behind_dense(blocks: Blocks) -> tuple[bool, ...]:
    """MiniMax-M3: the layers with experts are those whose attention is sparse (src/models/minimax-m3.cpp)."""
    dense = blocks.optional("leading_dense_block_count", minimum=0) or 0
    return tuple(block >= dense for block in range(blocks.total))


LONGEST_WITH_ALL_INDEXERS: Final = (1 << 20) - 1
"""Up to this context a GLM-5 that lists no indexers has one in every layer: 5 and 5.1, before some were shared (src/models/glm-dsa.cpp)."""


def _own_indexers(blocks: Blocks) -> tuple[bool, ...]:
    """GLM-5: the layers with an indexer of their own; where a long one lists none, the first two and every fourth from the third on (the same)."""
    listed = blocks.each("attention.indexer.types")
    if listed is not None:
        return tuple(bool(own) or block >= blocks.layers for block, own in enumerate(listed))
    if blocks.config.size(blocks.key("context_length")) <= LONGEST_WITH_ALL_INDEXERS:
        return (True,) * blocks.total
    return tuple(block < 2 or block % 4 == 2 or block >= blocks.layers for block in range(blocks.total))


# Architectures whose rules stand in a family of their own


def _deepseek4(blocks: Blocks) -> Decoder:
    ratios = blocks.config.numbers(blocks.key("attention.compress_ratios"))
    if ratios is None:
        raise blocks.config.missing(blocks.key("attention.compress_ratios"))
    return deepseek_v4(
        Config(
            {
                "num_hidden_layers": blocks.layers,
                "num_nextn_predict_layers": blocks.drafts,
                "num_attention_heads": blocks.size("attention.head_count"),
                "head_dim": blocks.size("attention.key_length"),
                "qk_rope_head_dim": blocks.size("rope.dimension_count"),
                "index_head_dim": blocks.size("attention.indexer.key_length"),
                "index_n_heads": blocks.optional("attention.indexer.head_count"),
                "index_topk": blocks.optional("attention.indexer.top_k"),
                "sliding_window": blocks.size("attention.sliding_window"),
                "compress_ratios": list(ratios[: blocks.total]),
            },
            blocks.config.where,
        )
    )


def _glm5_next(blocks: Blocks) -> Decoder:
    recurrent, own = _without_kv_heads(blocks), blocks.each("attention.indexer.types")
    rank, rope = blocks.size("attention.kv_lora_rank"), blocks.size("attention.key_length") - blocks.size("attention.kv_lora_rank")
    return glm5_next(
        Config(
            {
                "num_hidden_layers": blocks.layers,
                "hidden_size": blocks.size("embedding_length"),
                "num_attention_heads": _heads(blocks),
                "kv_lora_rank": rank,
                "qk_rope_head_dim": rope,
                "qk_nope_head_dim": blocks.size("attention.key_length_mla") - rope,
                "v_head_dim": blocks.size("attention.value_length_mla"),
                "index_head_dim": blocks.size("attention.indexer.key_length"),
                "index_n_heads": blocks.optional("attention.indexer.head_count"),
                "index_topk": blocks.optional("attention.indexer.top_k"),
                "index_kpool": blocks.size("attention.indexer.kpool"),
                "layer_types": ["linear_attention" if recurs else "full_attention" for recurs in recurrent[: blocks.layers]],
                "indexer_types": ["full" if own is None or own[block] else "shared" for block in range(blocks.layers)],
                "linear_num_heads": _heads(blocks),
                "linear_head_dim": blocks.size("kda.head_dim"),
                "linear_conv_kernel_dim": blocks.size("ssm.conv_kernel"),
            },
            blocks.config.where,
        )
    )


def _minicpm3(blocks: Blocks) -> Decoder:
    """A file states no width of V: it is that of a head."""
    rope = blocks.size("rope.dimension_count")
    return mla(
        Config(
            {
                "num_hidden_layers": blocks.layers,
                "hidden_size": blocks.size("embedding_length"),
                "num_attention_heads": _heads(blocks),
                "kv_lora_rank": blocks.size("attention.kv_lora_rank"),
                "qk_rope_head_dim": rope,
                "qk_nope_head_dim": blocks.size("attention.key_length") - rope,
            },
            blocks.config.where,
        )
    )


def _t5(blocks: Blocks) -> Decoder:
    stated = blocks.optional("decoder_block_count")
    heads = blocks.size("attention.head_count")
    fields = {"num_layers": blocks.layers if stated is None else stated, "num_heads": heads, "d_kv": _width(blocks, "key_length", heads)}
    return t5(Config(fields, blocks.config.where))


_LISTED: Final = Windows()
_SLIDING: Final = Windows(period=0)

ARCHITECTURES: Final = {
    "afmoe": Architecture("afmoe", Windows(period=4)),
    "apertus": Architecture("apertus"),
    "arcee": Architecture("arcee"),
    "arctic": Architecture("arctic"),
    "baichuan": Architecture("baichuan"),
    "bailingmoe": Architecture("bailing_moe"),
    "bailingmoe2": Architecture("bailing_moe_v2"),
    "bitnet": Architecture("bitnet"),
    "bloom": Architecture("bloom"),
    "chameleon": Architecture("chameleon"),
    "chatglm": Architecture("chatglm"),
    "codeshell": Architecture("codeshell"),
    "cogvlm": Architecture("cogvlm"),
    "cohere2": Architecture("cohere2", Windows(period=4)),
    "cohere2moe": Architecture("cohere2_moe", Windows(period=4, full_first=True)),
    "command-r": Architecture("cohere"),
    "dbrx": Architecture("dbrx"),
    "deci": Architecture("nemotron-nas"),
    "deepseek": Architecture("deepseek"),
    "deepseek2": Architecture("deepseek_v2"),
    "deepseek2-ocr": Architecture("DeepseekOCR"),
    "deepseek32": Architecture("deepseek_v32", indexer=_every_layer),
    "deepseek4": Architecture("deepseek_v4", read=_deepseek4),
    "dots1": Architecture("dots1"),
    "ernie4_5": Architecture("ernie4_5"),
    "ernie4_5-moe": Architecture("ernie4_5_moe"),
    "exaone": Architecture("exaone"),
    "exaone-moe": Architecture("exaone_moe", Windows(period=4, size=128)),
    "exaone4": Architecture("exaone4", Windows(period=4)),
    "falcon": Architecture("falcon"),
    "falcon-h1": Architecture("falcon_h1", recurs=_always, state=_mamba2("model"), beside=True),
    "gemma": Architecture("gemma"),
    "gemma2": Architecture("gemma2", Windows(period=2, size=4096)),
    "gemma3": Architecture("gemma3_text", Windows(period=6)),
    "gemma3n": Architecture("gemma3n_text", Windows(period=5), shared=lambda blocks: blocks.layers - 20),
    "gemma4": Architecture("gemma4_text", _LISTED, shared=lambda _: 0),
    "glm-dsa": Architecture("glm_moe_dsa", indexer=_own_indexers),
    "glm4": Architecture("glm4"),
    "glm4moe": Architecture("glm4_moe"),
    "glm5-next": Architecture("glm5_next", read=_glm5_next),
    "gpt-oss": Architecture("gpt_oss", Windows(period=2)),
    "gpt2": Architecture("gpt2"),
    "gptj": Architecture("gptj"),
    "gptneox": Architecture("gpt_neox"),
    "granite": Architecture("granite"),
    "granite_swa": Architecture("granite_swa", _LISTED),
    "granitehybrid": Architecture("granitemoehybrid", recurs=_without_kv_heads, state=_mamba2("model")),
    "granitemoe": Architecture("granitemoe"),
    "grok": Architecture("grok-1"),
    "grovemoe": Architecture("grove_moe"),
    "hunyuan-dense": Architecture("hunyuan_v1_dense"),
    "hunyuan-moe": Architecture("hunyuan_v1_moe"),
    "hunyuan_vl": Architecture("hunyuan_vl"),
    "hy_v3": Architecture("hy_v3"),
    "internlm2": Architecture("internlm2"),
    "jais": Architecture("jais"),
    "jais2": Architecture("jais2"),
    "jamba": Architecture("jamba", recurs=_without_kv_heads, state=_mamba1),
    "kimi-k3": Architecture("kimi_k3", recurs=_without_kv_heads, state=_kda),
    "kimi-linear": Architecture("kimi_linear", recurs=_without_kv_heads, state=_kda),
    "laguna": Architecture("laguna", Windows(period=4, full_first=True)),
    "lfm2": Architecture("lfm2", _SLIDING, recurs=_without_kv_heads, state=_short_conv),
    "lfm2moe": Architecture("lfm2_moe", recurs=_without_kv_heads, state=_short_conv),
    "llama": Architecture("llama"),
    "llama4": Architecture("llama4_text", Windows(period=4, size=8192, chunked=True)),
    "maincoder": Architecture("maincoder"),
    "mamba": Architecture("mamba", recurs=_always, state=_mamba1),
    "mamba2": Architecture("mamba2", recurs=_always, state=_mamba2("model")),
    "mellum": Architecture("mellum", Windows(period=4)),
    "mimo2": Architecture("mimo_v2_flash", _LISTED),
    "minicpm": Architecture("minicpm"),
    "minicpm3": Architecture("minicpm3", read=_minicpm3),
    "minimax-01": Architecture("minimax_text_01", recurs=_but_every(8), state=_lightning),
    "minimax-m2": Architecture("minimax_m2"),
    "minimax-m3": Architecture("minimax_m3_vl_text", indexer=_behind_dense),
    "mistral3": Architecture("ministral3_text"),
    "mistral4": Architecture("mistral4"),
    "mpt": Architecture("mpt"),
    "muse-glimmer": Architecture("muse_glimmer_text", Windows(period=4)),
    "nemotron": Architecture("nemotron"),
    "nemotron_h": Architecture("nemotron_h", recurs=_without_anything_else, state=_mamba2("fp32")),
    "nemotron_h_moe": Architecture("nemotron_h", recurs=_without_anything_else, state=_mamba2("fp32")),
    "olmo": Architecture("olmo"),
    "olmo2": Architecture("olmo2", Windows(period=4)),
    "olmoe": Architecture("olmoe"),
    "openelm": Architecture("openelm"),
    "orion": Architecture("orion"),
    "paddleocr": Architecture("paddleocr_vl"),
    "pangu-embedded": Architecture("PanguEmbedded"),
    "phi2": Architecture("phi"),
    "phi3": Architecture("phi3", _SLIDING),
    "phimoe": Architecture("phimoe"),
    "plamo": Architecture("plamo"),
    "plamo3": Architecture("plamo3", Windows(period=8)),
    "qwen": Architecture("qwen"),
    "qwen2": Architecture("qwen2"),
    "qwen2moe": Architecture("qwen2_moe"),
    "qwen2vl": Architecture("qwen2_vl_text"),
    "qwen3": Architecture("qwen3"),
    "qwen35": Architecture("qwen3_5_text", recurs=_but_every(4), state=_delta_net("fp32")),
    "qwen35moe": Architecture("qwen3_5_moe_text", recurs=_but_every(4), state=_delta_net("fp32")),
    "qwen3moe": Architecture("qwen3_moe"),
    "qwen3next": Architecture("qwen3_next", recurs=_but_every(4), state=_delta_net("model")),
    "qwen3vl": Architecture("qwen3_vl_text"),
    "qwen3vlmoe": Architecture("qwen3_vl_moe_text"),
    "refact": Architecture("gpt_refact"),
    "rwkv6": Architecture("rwkv6", read=_rwkv),
    "rwkv7": Architecture("rwkv7", read=_rwkv),
    "seed_oss": Architecture("seed_oss"),
    "smallthinker": Architecture("smallthinker", Windows(period=4, full_first=True)),
    "smollm3": Architecture("smollm3"),
    "stablelm": Architecture("stablelm"),
    "starcoder": Architecture("gpt_bigcode"),
    "starcoder2": Architecture("starcoder2"),
    "step35": Architecture("step3p5", _LISTED),
    "t5": Architecture("t5", read=_t5),
    "xverse": Architecture("xverse"),
}
"""Recurrent states: Qwen3.5 and Nemotron-H name fp32 in every published config.json, which a GGUF file does not repeat."""

NO_MODEL: Final = {
    "adapter": "an adapter, which changes a model and is none itself",
    "imatrix": "an importance matrix, from which a model is quantized",
    "mmproj": "a vision or audio projector (mmproj), which goes with a model and keeps no KV cache",
    "vocab": "a vocabulary, not a model",
}
"""What general.type says of files that hold no model."""

NO_KV_CACHE: Final = {
    **dict.fromkeys(
        (
            "bert",
            "eurobert",
            "gemma-embedding",
            "jina-bert-v2",
            "jina-bert-v3",
            "llama-embed",
            "modern-bert",
            "neo-bert",
            "nomic-bert",
            "nomic-bert-moe",
            "t5encoder",
        ),
        "an encoder, which reads its whole input at once and keeps no KV cache",
    ),
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "a diffusion model, which reads its whole text at each step and keeps no KV cache"),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), "a drafter, which proposes tokens to another model and cannot be asked about by itself"),
    "clip": "a vision or audio projector (mmproj), which goes with a model and keeps no KV cache",
    "wavtokenizer-dec": "an audio decoder, which keeps no KV cache",
}
"""Architectures that keep no KV cache of their own, and why."""
