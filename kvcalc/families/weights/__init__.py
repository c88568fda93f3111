"""config.json -> the tensors of a model: one table keyed by model_type beside the layers that the families read.

The widths of attention are those of the caches; a recipe says what stands around them. Shapes: transformers 5.24.0, models/*/modeling_*.py, and for
types that only remote code knows, that code; the counts are held against both in the tests.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from kvcalc.errors import KvcalcError
from kvcalc.families.config import HIDDEN, Config
from kvcalc.families.weights.feedforward import (
    FeedForward,
    Flag,
    Moe,
    by_sparse_step,
    by_types,
    dense,
    every,
    first_and_between,
    first_layers,
    holds,
    mlp,
    some_experts,
    stated_width,
    typed_or_first,
)
from kvcalc.families.weights.mixers import (
    Attention,
    Mamba1,
    Mamba2,
    attention,
    delta_net,
    indexer,
    kda,
    lightning,
    mla,
    olmo_delta_net,
    rglru,
    short_conv,
)
from kvcalc.families.weights.shapes import At, Shapes
from kvcalc.families.weights.special import (
    EncoderDecoder,
    dbrx,
    deepseek_v4,
    falcon,
    gemma3n,
    gemma4,
    granite_experts,
    hyper_connections,
    jamba,
    kimi_experts,
    lfm2_width,
    llama4,
    longcat,
    mllama,
    nemotron_h,
    olmo_norms,
    pooled_indexer,
    qwen1,
    searched,
    step_gate,
    t5,
    whisper,
    windowed_sinks,
    xielu,
)
from kvcalc.families.weights.towers import TOWERS
from kvcalc.layers import Cache, Kernel, Layer, Plane
from kvcalc.tensors import Tensor

Extra = Callable[[Shapes, Config, int, int], None]
"""Adds what else a type has: hidden size, number of layers."""
Mixer = Callable[[Shapes, Config, int, At], None]
Whole = Callable[[Shapes, Config, int, tuple[Layer, ...]], None]
"""Adds all projections of the layers, and what stands between them: hidden size, layers."""


class Recipe(NamedTuple):
    """What stands around the caches of one type of model.

    `norms` are those of every layer, `final` the one behind the last. `tied`: whether embedding and head are one matrix where the config does not say.
    `vocabulary`: the keys of its size. `mixer` replaces the projections of recurrent layers, `whole` all that the caches show; `extra` adds what no
    other type has. `as_draft` is the config read as that of the draft layers.
    """

    attention: Attention = Attention()
    feed_forward: FeedForward | None = dense()
    norms: tuple[str, ...] = ("input_layernorm", "post_attention_layernorm")
    norm_bias: bool = False
    final: str = "norm"
    tied: bool = False
    head_bias: Flag = False
    vocabulary: tuple[str, ...] = ("vocab_size",)
    mixer: Mixer | None = None
    mla_bias: Flag = "attention_bias"
    extra: tuple[Extra, ...] = ()
    as_draft: Callable[[Config], Config] | None = None
    whole: Whole | None = None
    embeds: bool = True


class Weighed(NamedTuple):
    """The tensors of a model. `parameters` counts all of the checkpoint without drafts, `parameters_text` the language model; None where that is not
    known, and `missing` says why. `untold`: what is not among the tensors although a server loads it.
    """

    tensors: tuple[Tensor, ...] = ()
    parameters: int | None = None
    parameters_text: int | None = None
    missing: str | None = None
    untold: str | None = None


class Holder(NamedTuple):
    """An object of a config that holds a language model beside towers, and the model_type it is read as."""

    model_type: str
    config: Config


def weigh(holders: tuple[Holder, ...], text: Holder, layers: tuple[Layer, ...], draft_layers: tuple[Layer, ...], architectures: tuple[str, ...]) -> Weighed:
    """The tensors of a whole config: of its language model, its drafts and its towers. Never raises: what cannot be counted is said in `missing`."""
    recipe = FIRST_CHATGLM if text.model_type == "chatglm" and text.config.get("inner_hidden_size") is not None else RECIPES.get(text.model_type)
    if recipe is None:
        return _untold((), None, f"the tensors of model_type {text.model_type} are not known")
    try:
        tensors = decoder_tensors(recipe, text.config, layers, () if holders else architectures) + _draft_tensors(recipe, text.config, draft_layers)
    except KvcalcError as error:
        return _untold((), None, error.message)
    in_text = _count(tensors)
    more = next((CARRIES_MORE[holder.model_type] for holder in holders if holder.model_type in CARRIES_MORE), None)
    try:
        tower = _tower(holders, text)
    except KvcalcError as error:
        return _untold(tensors, in_text, error.message)
    if tower is None:
        return _untold(tensors, in_text, f"the tower of model_type {holders[0].model_type if holders else text.model_type} is not known")
    tensors += tower
    in_text += _count(tuple(tensor for tensor in tower if tensor.part == "text"))
    return Weighed(tensors, _count(tensors) if more is None else None, in_text, more and f"{more} are not counted")


def _untold(tensors: tuple[Tensor, ...], in_text: int | None, why: str) -> Weighed:
    return Weighed(tensors, None, in_text, missing=why, untold=why)


CARRIES_MORE: Final = {
    "qwen2_5_omni": "its talker and its vocoder, which vLLM does not load,",
    "qwen3_omni_moe": "its talker and its vocoder, which vLLM does not load,",
}
"""Types whose checkpoint holds more than towers and a language model."""


def _count(tensors: tuple[Tensor, ...]) -> int:
    return sum(tensor.elements * tensor.number for tensor in tensors if tensor.role != "buffer" and tensor.part != "draft")


def _tower(holders: tuple[Holder, ...], text: Holder) -> tuple[Tensor, ...] | None:
    """The tensors beside the language model; empty where there is nothing, None where they are not known."""
    known = next((holder for holder in (*holders, text) if holder.model_type in TOWERS), None)
    if known is not None:
        shapes = Shapes("tower")
        return tuple(shapes.found) if TOWERS[known.model_type](shapes, known.config, text.config.size(*HIDDEN)) else None
    sees = any(holder.config.get(key) is not None for holder in (*holders, text) for key in TOWER_KEYS)
    return None if sees or holders or text.model_type in FLAT_WITH_TOWER else ()


TOWER_KEYS: Final = ("vision_config", "audio_config", "visual", "mm_vision_tower", "vision_tower", "img_processor", "vit_config")
FLAT_WITH_TOWER: Final = frozenset({"llama3v", "logics", "minicpmv", "molmo", "phi3_v", "phi4mm"})
"""Types whose config describes the language model at its top and has a tower all the same."""


def decoder_tensors(recipe: Recipe, config: Config, layers: tuple[Layer, ...], architectures: tuple[str, ...]) -> tuple[Tensor, ...]:
    """The tensors of a language model whose `layers` are known. Raises KvcalcError for a width that is not stated."""
    shapes, hidden, count = Shapes(), config.size(*HIDDEN), len(layers)
    vocabulary = config.size(*recipe.vocabulary)
    narrow = config.optional("word_embed_proj_dim")
    embedded = hidden if narrow is None else narrow
    if recipe.embeds:
        shapes.add("embed_tokens", vocabulary, embedded, split="vocab", role="embedding")
    if recipe.whole is None:
        _mixers(shapes, config, recipe, layers, hidden)
    else:
        recipe.whole(shapes, config, hidden, layers)
    if recipe.feed_forward is not None:
        recipe.feed_forward(shapes, config, hidden, count)
    for name in recipe.norms:
        shapes.norm(f"layers.*.{name}", hidden, at=every(config, count), bias=recipe.norm_bias)
    if recipe.final:
        shapes.norm(recipe.final, hidden, bias=recipe.norm_bias)
    for extra in recipe.extra:
        extra(shapes, config, hidden, count)
    _head(shapes, config, recipe, architectures, vocabulary=vocabulary, hidden=hidden, embedded=embedded)
    return tuple(shapes.found)


def _draft_tensors(recipe: Recipe, config: Config, layers: tuple[Layer, ...]) -> tuple[Tensor, ...]:
    """A draft (MTP) layer: a layer like the last of the model, behind a matrix that joins hidden features and the embedding of the next token
    (vllm/model_executor/models/deepseek_mtp.py and qwen3_5_mtp.py 0.33.0); embedding and head are those of the model.
    """
    if not layers:
        return ()
    shapes, hidden, at = Shapes("draft"), config.size(*HIDDEN), tuple(range(len(layers)))
    config = config if recipe.as_draft is None else recipe.as_draft(config)
    _mixers(shapes, config, recipe, layers, hidden)
    if isinstance(recipe.feed_forward, Moe):
        recipe.feed_forward.add(shapes, config, hidden, at)
    elif recipe.feed_forward is not None:
        recipe.feed_forward(shapes, config, hidden, len(layers))
    for name in (*recipe.norms, "enorm", "hnorm", "final_norm"):
        shapes.norm(f"layers.*.{name}", hidden, at=at)
    shapes.linear("layers.*.eh_proj", hidden, 2 * hidden, at=at)
    return tuple(shapes.found)


def _head(shapes: Shapes, config: Config, recipe: Recipe, architectures: tuple[str, ...], *, vocabulary: int, hidden: int, embedded: int) -> None:
    """The head over the vocabulary, over the labels of a classifier, or none: a bare model, or one that shares its embedding."""
    first = architectures[0] if architectures else ""
    if first.endswith(("ForSequenceClassification", "ForTokenClassification")):
        labels = config.get("id2label")
        stated = config.optional("num_labels")
        number = len(labels) if isinstance(labels, Mapping) and labels else 2 if stated is None else stated
        shapes.linear("score", number, hidden, role="head", split="replicated")
        return
    bare = first.endswith("Model") and not first.endswith(("LMHeadModel", "ChatGLMModel"))
    if not bare and not config.flag("tie_word_embeddings", absent=recipe.tied):
        shapes.linear("lm_head", vocabulary, embedded, split="vocab", role="head", bias=holds(config, recipe.head_bias))


class _Mixed(NamedTuple):
    """What layers must have alike to have the same projections: all of a cache but how long it keeps its rows."""

    kernel: Kernel
    planes: tuple[Plane, ...]
    query_heads: int | None
    expanded: tuple[int, int] | None
    crossed: bool
    reads: bool


def _mixers(shapes: Shapes, config: Config, recipe: Recipe, layers: tuple[Layer, ...], hidden: int) -> None:
    found: dict[_Mixed, tuple[Cache, list[int]]] = {}
    for index, layer in enumerate(layers):
        reads = layer.reads is not None and not layer.caches
        for cache in layers[layer.reads].caches if layer.reads is not None and reads else layer.caches:
            key = _Mixed(cache.kernel, cache.planes, cache.query_heads, cache.expanded, cache.retention.kind == "encoder", reads)
            found.setdefault(key, (cache, []))[1].append(index)
    for key, (cache, indices) in found.items():
        _project(shapes, config, recipe, cache, hidden=hidden, at=tuple(indices), reads=key.reads)


def _project(shapes: Shapes, config: Config, recipe: Recipe, cache: Cache, *, hidden: int, at: At, reads: bool) -> None:
    """The projections around one kind of cache."""
    match cache.kernel:
        case "gqa":
            attention(shapes, config, recipe.attention, cache, hidden=hidden, at=at, reads=reads)
        case "mla":
            mla(shapes, config, cache, hidden, at, bias=recipe.mla_bias)
        case "indexer":
            indexer(shapes, config, cache, hidden, at)
        case "kda":
            kda(shapes, config, cache, hidden, at)
        case "shortconv":
            short_conv(shapes, config, cache, hidden, at)
        case "ring":
            pass  # it holds what the indexer beside it makes
        case _ if recipe.mixer is not None:
            recipe.mixer(shapes, config, hidden, at)
        case _:
            raise config.error(f"the tensors of its {cache.kernel} layers are not known")


def _positions(rows: tuple[str, ...], extra: int = 0) -> Extra:
    """Learned positions."""
    return lambda shapes, config, hidden, _count: shapes.add("embed_positions", config.size(*rows) + extra, hidden)


def _opt(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """OPT: learned positions, two matrices around an embedding that is narrower than the hidden features, and a last norm unless norms stand behind
    attention and MLP (transformers 5.24.0, modeling_opt.py).
    """
    _positions(("max_position_embeddings",), extra=2)(shapes, config, hidden, count)
    embedded = config.optional("word_embed_proj_dim")
    if embedded is not None and embedded != hidden:
        shapes.linear("project_in", hidden, embedded)
        shapes.linear("project_out", embedded, hidden)
    if config.flag("do_layer_norm_before", absent=True) and not config.flag("_remove_final_layer_norm", absent=False):
        shapes.norm("norm", hidden, bias=True)


def _embedding_norm(shapes: Shapes, _config: Config, hidden: int, _count: int) -> None:
    shapes.norm("embed_layernorm", hidden, bias=True)


def _expert_bias(shapes: Shapes, config: Config, _hidden: int, count: int) -> None:
    """AFMoE counts the bias of its router among the parameters."""
    dense_layers = config.optional("num_dense_layers", minimum=0) or 0
    shapes.add("layers.*.mlp.expert_bias", config.size("num_experts", "num_local_experts"), at=tuple(range(dense_layers, count)), dtype="fp32")


def _ernie_dense(config: Config, count: int) -> At:
    """ERNIE 4.5: the layers outside moe_layer_start_index to moe_layer_end_index, and between each moe_layer_interval-th one."""
    typed = by_types(config, count)
    if typed is not None:
        return typed
    first, last = config.optional("moe_layer_start_index", minimum=0), config.get("moe_layer_end_index")
    step = config.optional("moe_layer_interval")
    start, end = first or 0, count - 1 if last in (None, -1) else config.size("moe_layer_end_index")
    return tuple(layer for layer in range(count) if not start <= layer <= end or (layer + 1) % (1 if step is None else step))


def _moe_statics(shapes: Shapes, config: Config, _hidden: int, count: int) -> None:
    dense_layers = set(_ernie_dense(config, count))
    at = tuple(layer for layer in range(count) if layer not in dense_layers)
    shapes.add("layers.*.mlp.moe_statics.e_score_correction_bias", 1, config.size("moe_num_experts", "num_local_experts"), at=at, dtype="fp32")


def _falcon_h1_mamba(shapes: Shapes, config: Config, hidden: int, at: At) -> None:
    """Falcon-H1: the inner width is stated apart from the heads, and a norm is optional (transformers 5.24.0, modeling_falcon_h1.py)."""
    norm = config.flag("mamba_rms_norm", absent=False)
    Mamba2(
        "mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias", norm, "mamba", "mamba_d_ssm"
    )(shapes, config, hidden, at)


def _minicpm(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """MiniCPM: experts where num_experts is stated (modeling_minicpm.py of its repositories)."""
    if config.optional("num_experts", minimum=0):
        Moe(experts=("num_experts",), width=("intermediate_size",))(shapes, config, hidden, count)
    else:
        dense()(shapes, config, hidden, count)


def _nemotron_drafts(config: Config) -> Config:
    """Nemotron-H writes the layers of a draft step in a word, or a list, of their own."""
    steps = config.optional("num_nextn_predict_layers", minimum=0) or 0
    word, names = config.text("mtp_hybrid_override_pattern"), config.strings("mtp_layers_block_type") or ()
    drafted = {"hybrid_override_pattern": None if word is None else word * steps, "layers_block_type": list(names) * steps}
    return Config({**config.fields, **drafted}, config.where, config.class_defaults)


def _typed_or_listed(config: Config, count: int) -> At:
    """Laguna: mlp_layer_types, else mlp_only_layers."""
    typed = by_types(config, count)
    return by_sparse_step(config, count) if typed is None else typed


def _griffin_mlp(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """RecurrentGemma states the width of gate and up together, and has biases."""
    mlp(shapes, "layers.*.mlp_block", hidden, config.size("intermediate_size") // 2, at=every(config, count), bias=True)


def _telechat(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    """TeleChat: gate and up without bias, down with one (modeling_telechat.py of its repositories)."""
    width, at = config.size("ffn_hidden_size", "intermediate_size"), every(config, count)
    for name in ("gate_proj", "up_proj"):
        shapes.linear(f"layers.*.mlp.{name}", width, hidden, at=at, split="rows", role="mlp")
    shapes.linear("layers.*.mlp.down_proj", hidden, width, at=at, split="cols", bias=True, role="mlp")


def _m3_shared(config: Config, width: int) -> int:
    """MiniMax-M3: shared experts of a width of their own where it is stated."""
    number, stated = config.optional("n_shared_experts", minimum=0), config.optional("shared_intermediate_size")
    return (1 if number is None else number) * (width if stated is None else stated)


def _hyper_connections(shapes: Shapes, config: Config, hidden: int, count: int) -> None:
    if config.flag("mhc", absent=False):
        hyper_connections(shapes, config, hidden, every(config, count))


DELTA_NET: Final = partial(delta_net, fused=False)
LLAMA: Final = Recipe(attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias"), feed_forward=dense(bias="mlp_bias"))
QWEN2: Final = Recipe(attention=Attention(qkv_bias=True))
QWEN3: Final = Recipe(attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head"))
MISTRAL: Final = Recipe()
FOUR_NORMS: Final = ("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")
GEMMA: Final = Recipe(attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias"), tied=True)
DEEPSEEK_MOE: Final = Moe(
    experts=("n_routed_experts", "num_experts", "num_local_experts"),
    width=("moe_intermediate_size",),
    dense=typed_or_first,
    shared=some_experts("n_shared_experts"),
    correction=True,
)
DEEPSEEK: Final = Recipe(feed_forward=DEEPSEEK_MOE)
QWEN_MOE: Final = Moe(
    experts=("num_experts", "num_local_experts"),
    width=("moe_intermediate_size",),
    dense=by_sparse_step,
    shared=stated_width("shared_expert_intermediate_size"),
    shared_name="shared_expert",
)
QWEN_MOE_SHARED: Final = replace(QWEN_MOE, shared_gate=True)
QWEN35: Final = Recipe(attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head", gated="q"), mixer=DELTA_NET)
LAYER_NORM_PLAIN: Final = Recipe(
    attention=Attention(qkv_bias=True, o_bias=True), feed_forward=dense(gated=False, bias=True, otherwise=4), norm_bias=True, tied=True
)

BAMBA: Final = Mamba2("mamba_n_heads", "mamba_d_head", "mamba_d_state", "mamba_n_groups", "mamba_d_conv", "mamba_conv_bias", "mamba_proj_bias", name="mamba")
GRANITE_MAMBA: Final = BAMBA
MAMBA: Final = Mamba1("expand", "state_size", "conv_kernel")
MINIMAX_MOE: Final = Moe(experts=("num_local_experts",), width=("intermediate_size",), name="block_sparse_moe")
MINIMAX_M3: Final = Recipe(
    attention=QWEN3.attention,
    feed_forward=Moe(
        experts=("num_local_experts",),
        width=("intermediate_size",),
        dense=typed_or_first,
        dense_width=("dense_intermediate_size",),
        shared=_m3_shared,
        correction=True,
    ),
)
FIRST_CHATGLM: Final = LAYER_NORM_PLAIN._replace(tied=False)
"""ChatGLM-6B, before the second generation (modeling_chatglm.py of its repository)."""
PHI: Final = LAYER_NORM_PLAIN._replace(norms=("input_layernorm",), tied=False, head_bias=True)

RECIPES: Final[dict[str, Recipe]] = {
    "afmoe": Recipe(
        attention=Attention(qk_norm="head", gated="own"),
        feed_forward=Moe(
            experts=("num_experts", "num_local_experts"),
            dense=first_layers("num_dense_layers"),
            width=("moe_intermediate_size",),
            shared=some_experts("num_shared_experts"),
            router="router.gate",
        ),
        norms=("input_layernorm", "post_attention_layernorm", "pre_mlp_layernorm", "post_mlp_layernorm"),
        extra=(_expert_bias,),
    ),
    "apertus": Recipe(
        attention=QWEN3.attention, feed_forward=dense(gated=False, bias="mlp_bias"), norms=("attention_layernorm", "feedforward_layernorm"), extra=(xielu,)
    ),
    "bailing_moe": Recipe(
        attention=Attention(qkv_bias="use_qkv_bias", o_bias="use_bias"),
        feed_forward=Moe(experts=("num_experts",), width=("moe_intermediate_size",), dense=first_and_between, shared=some_experts("num_shared_experts")),
    ),
    "bamba": Recipe(norms=("input_layernorm", "pre_ff_layernorm"), mixer=BAMBA),
    "bart": Recipe(whole=EncoderDecoder(), feed_forward=None, norms=(), final="", tied=True),
    "biogpt": LAYER_NORM_PLAIN._replace(extra=(_positions(("max_position_embeddings",), extra=2),)),
    "chatglm": Recipe(
        attention=Attention(qkv_bias="add_qkv_bias", o_bias="add_bias_linear"),
        feed_forward=dense(bias="add_bias_linear", width=("ffn_hidden_size",)),
        vocabulary=("padded_vocab_size", "vocab_size"),
    ),
    "codegen": Recipe(feed_forward=dense(gated=False, bias=True, otherwise=4), norms=("ln_1",), norm_bias=True, head_bias=True),
    "cohere2": Recipe(attention=LLAMA.attention, norms=("input_layernorm",), tied=True),
    "dbrx": Recipe(feed_forward=dbrx, norms=("norm_1", "norm_2")),
    "deepseek": DEEPSEEK._replace(feed_forward=replace(DEEPSEEK_MOE, correction=False), attention=LLAMA.attention),
    "deepseek_ref": Recipe(whole=deepseek_v4, feed_forward=None),
    "dots_ocr": QWEN2,
    "ernie4_5": Recipe(attention=Attention(qkv_bias="use_bias", o_bias="use_bias"), feed_forward=dense(bias="use_bias"), tied=True),
    "ernie4_5_moe": Recipe(
        attention=Attention(qkv_bias="use_bias", o_bias="use_bias"),
        feed_forward=Moe(
            experts=("moe_num_experts", "num_local_experts"),
            used=("moe_k", "num_experts_per_tok"),
            width=("moe_intermediate_size",),
            dense=_ernie_dense,
            shared=some_experts("moe_num_shared_experts"),
        ),
        tied=True,
        extra=(_moe_statics,),
    ),
    "falcon_h1": Recipe(
        feed_forward=dense(bias="mlp_bias"),
        norms=("input_layernorm", "pre_ff_layernorm"),
        attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias"),
        mixer=_falcon_h1_mamba,
    ),
    "falcon_mamba": Recipe(feed_forward=None, norms=("norm",), final="norm_f", tied=True, mixer=MAMBA),
    "glm": Recipe(attention=Attention(qkv_bias="attention_bias")),
    "glm4": Recipe(
        attention=Attention(qkv_bias="attention_bias"),
        norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "glm4_moe_lite": DEEPSEEK,
    "glm4v_moe_text": Recipe(attention=Attention(qkv_bias="attention_bias"), feed_forward=DEEPSEEK_MOE),
    "glm4v_text": Recipe(
        attention=Attention(qkv_bias=True),
        norms=("input_layernorm", "post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    ),
    "granite_swa": LLAMA._replace(attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias", sinks=True), tied=True),
    "granitemoehybrid": Recipe(attention=LLAMA.attention, feed_forward=granite_experts, mixer=GRANITE_MAMBA),
    "granitemoeshared": Recipe(attention=LLAMA.attention, feed_forward=granite_experts),
    "helium": LLAMA,
    "hunyuan_v1_dense": QWEN3,
    "internlm": LLAMA._replace(attention=Attention(qkv_bias="bias", o_bias="bias")),
    "internlm3": LLAMA._replace(attention=Attention(qkv_bias="qkv_bias", o_bias="bias"), feed_forward=dense(bias="bias")),
    "jamba": Recipe(
        feed_forward=jamba,
        norms=("input_layernorm", "pre_ff_layernorm"),
        mixer=Mamba1("mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_dt_rank", "mamba_conv_bias", norms=True, name="mamba"),
    ),
    "kimi_linear": DEEPSEEK._replace(feed_forward=kimi_experts),
    "laguna": Recipe(
        attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="head", gated="head"),
        feed_forward=replace(QWEN_MOE, dense=_typed_or_listed, correction=True, shared_name="shared_experts"),
    ),
    "logics": QWEN2,
    "longcat_flash": Recipe(feed_forward=longcat, norms=("input_layernorm.0", "input_layernorm.1", "post_attention_layernorm.0", "post_attention_layernorm.1")),
    "mamba": Recipe(feed_forward=None, norms=("norm",), final="norm_f", tied=True, mixer=MAMBA),
    "mamba2": Recipe(
        feed_forward=None,
        norms=("norm",),
        final="norm_f",
        mixer=Mamba2("num_heads", "head_dim", "state_size", "n_groups", "conv_kernel", "use_conv_bias", "use_bias"),
    ),
    "mbart": Recipe(whole=EncoderDecoder(final_norm=True), feed_forward=None, norms=(), final="", tied=True),
    "mimo": QWEN2,
    "minicpm": Recipe(attention=LLAMA.attention, feed_forward=_minicpm, tied=True),
    "minimax": Recipe(feed_forward=MINIMAX_MOE, mixer=lightning),
    "minimax_m3": MINIMAX_M3,
    "minimax_m3_vl_text": MINIMAX_M3,
    "minimax_text_01": Recipe(feed_forward=MINIMAX_MOE, mixer=lightning),
    "ministral": MISTRAL,
    "mt5": Recipe(whole=t5, feed_forward=None, norms=(), final="", tied=True),
    "nemotron": Recipe(attention=LLAMA.attention, feed_forward=dense(gated=False, bias="mlp_bias"), norm_bias=True),
    "nemotron-nas": LLAMA._replace(feed_forward=searched, norms=()),
    "olmo_hybrid": Recipe(
        attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias", qk_norm="full"),
        norms=("post_attention_layernorm",),
        mixer=olmo_delta_net,
        extra=(olmo_norms,),
    ),
    "orion": LLAMA._replace(norm_bias=True),
    "ov_mamba": Recipe(feed_forward=None, norms=("norm",), final="norm_f", tied=True, mixer=MAMBA),
    "PanguEmbedded": LLAMA._replace(attention=Attention(qkv_bias="bias", o_bias="bias")),
    "pegasus": Recipe(whole=EncoderDecoder(offset=0, embedding_norm=False, final_norm=True), feed_forward=None, norms=(), final="", tied=True),
    "persimmon": LAYER_NORM_PLAIN._replace(attention=Attention(qkv_bias=True, o_bias=True, qk_norm="head", norm_bias=True), tied=False),
    "phi": PHI,
    "phi-msft": PHI,
    "mixformer-sequential": PHI,
    "phi3_v": MISTRAL,
    "phi4": MISTRAL,
    "qwen": QWEN2._replace(feed_forward=qwen1),
    "qwen3_omni_moe_text": QWEN3._replace(feed_forward=QWEN_MOE),
    "recurrent_gemma": Recipe(
        attention=Attention(qkv_bias="attention_bias", o_bias=True, name="temporal_block"),
        feed_forward=_griffin_mlp,
        norms=("temporal_pre_norm", "channel_pre_norm"),
        tied=True,
        mixer=rglru,
    ),
    "RefinedWeb": Recipe(whole=falcon, feed_forward=None, norms=(), norm_bias=True, tied=True),
    "RefinedWebModel": Recipe(whole=falcon, feed_forward=None, norms=(), norm_bias=True, tied=True),
    "seed_oss": LLAMA._replace(attention=Attention(qkv_bias="attention_bias", o_bias="attention_out_bias")),
    "smollm3": LLAMA._replace(tied=True),
    "solar_open": LLAMA._replace(feed_forward=DEEPSEEK_MOE),
    "telechat": Recipe(feed_forward=_telechat, attention=Attention(o_bias=True), tied=True),
    "umt5": Recipe(whole=t5, feed_forward=None, norms=(), final="", tied=True),
    "whisper": Recipe(whole=whisper, feed_forward=None, norms=(), final="", tied=True),
    "xverse": LLAMA,
    "arcee": LLAMA._replace(feed_forward=dense(gated=False, bias="mlp_bias")),
    "baichuan": MISTRAL,
    "bloom": LAYER_NORM_PLAIN._replace(extra=(_embedding_norm,)),
    "cohere": Recipe(attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias"), norms=("input_layernorm",), tied=True),
    "deepseek_v2": DEEPSEEK._replace(feed_forward=replace(DEEPSEEK_MOE, correction=False)),
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK,
    "deepseek_v4": Recipe(whole=deepseek_v4, feed_forward=None),
    "exaone": MISTRAL,
    "exaone4": QWEN3,
    "exaone4_5_text": QWEN3,
    "falcon": Recipe(whole=falcon, feed_forward=None, norms=(), norm_bias=True, tied=True),
    "gemma": GEMMA,
    "gemma2": GEMMA._replace(norms=FOUR_NORMS),
    "gemma3_text": GEMMA._replace(norms=FOUR_NORMS, attention=GEMMA.attention._replace(qk_norm="head")),
    "gemma3n_text": Recipe(whole=gemma3n, feed_forward=None, norms=FOUR_NORMS, tied=True),
    "gemma4_text": Recipe(whole=gemma4, feed_forward=None, norms=FOUR_NORMS, tied=True),
    "glm4_moe": QWEN3._replace(feed_forward=DEEPSEEK_MOE, attention=Attention(qkv_bias="attention_bias", qk_norm="head")),
    "glm5_next_text": DEEPSEEK._replace(extra=(pooled_indexer, _hyper_connections)),
    "glm_moe_dsa": DEEPSEEK,
    "gpt2": LAYER_NORM_PLAIN._replace(extra=(_positions(("n_positions", "max_position_embeddings")),)),
    "gpt_bigcode": LAYER_NORM_PLAIN._replace(extra=(_positions(("n_positions", "max_position_embeddings")),)),
    "gpt_neox": LAYER_NORM_PLAIN._replace(tied=False),
    "gpt_oss": Recipe(
        attention=Attention(qkv_bias=True, o_bias=True, sinks=True),
        feed_forward=Moe(experts=("num_local_experts",), width=("intermediate_size",), bias=True, router_bias=True, router="router"),
    ),
    "gptj": Recipe(feed_forward=dense(gated=False, bias=True, otherwise=4), norms=("ln_1",), norm_bias=True, head_bias=True),
    "granite": LLAMA,
    "granitemoe": MISTRAL._replace(
        feed_forward=Moe(experts=("num_local_experts",), width=("intermediate_size",), name="block_sparse_moe", router="router.layer")
    ),
    "internlm2": MISTRAL,
    "kimi_k2": DEEPSEEK,
    "lfm2": Recipe(feed_forward=lfm2_width, tied=True, norms=("operator_norm", "ffn_norm"), attention=Attention(qk_norm="head"), final="embedding_norm"),
    "llama": LLAMA,
    "llama4_text": Recipe(attention=LLAMA.attention, feed_forward=llama4),
    "mimo_v2_flash": Recipe(attention=Attention(qkv_bias="attention_bias"), feed_forward=DEEPSEEK_MOE, extra=(windowed_sinks,)),
    "minicpm3": Recipe(tied=True),
    "minimax_m2": Recipe(
        attention=Attention(qk_norm="full"),
        feed_forward=Moe(experts=("num_local_experts",), width=("intermediate_size",), correction=True, name="block_sparse_moe", router_dtype="fp32"),
    ),
    "mistral": MISTRAL,
    "mllama_text_model": Recipe(whole=mllama, feed_forward=None, norms=(), final="", embeds=False),
    "ministral3_text": MISTRAL,
    "mixtral": MISTRAL._replace(feed_forward=Moe(experts=("num_local_experts",), width=("intermediate_size",), name="block_sparse_moe")),
    "mpt": Recipe(feed_forward=dense(gated=False, otherwise=4), tied=True, norms=("norm_1", "norm_2")),
    "muse_glimmer_text": Recipe(attention=Attention(gated="own"), norms=FOUR_NORMS),
    "nemotron_h": Recipe(
        feed_forward=nemotron_h,
        norms=("norm",),
        final="norm_f",
        as_draft=_nemotron_drafts,
        mixer=Mamba2("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel", "use_conv_bias", "use_bias"),
    ),
    "olmo": MISTRAL._replace(norms=(), final=""),
    "olmo2": Recipe(attention=Attention(qk_norm="full"), norms=("post_attention_layernorm", "post_feedforward_layernorm")),
    "olmo3": Recipe(attention=Attention(qk_norm="full"), norms=("post_attention_layernorm", "post_feedforward_layernorm")),
    "olmoe": Recipe(attention=Attention(qk_norm="full"), feed_forward=Moe(experts=("num_experts",), width=("intermediate_size",))),
    "opt": LAYER_NORM_PLAIN._replace(final="", extra=(_opt,)),
    "phi3": MISTRAL,
    "phimoe": Recipe(
        attention=Attention(qkv_bias="attention_bias", o_bias="attention_bias"),
        feed_forward=Moe(experts=("num_local_experts",), width=("intermediate_size",), name="block_sparse_moe"),
        norm_bias=True,
        head_bias="lm_head_bias",
    ),
    "qwen2": QWEN2,
    "qwen2_5_omni_text": QWEN2,
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": QWEN2._replace(feed_forward=QWEN_MOE_SHARED),
    "qwen2_vl_text": QWEN2,
    "qwen3": QWEN3,
    "qwen3_5_moe_text": QWEN35._replace(feed_forward=QWEN_MOE_SHARED),
    "qwen3_5_text": QWEN35,
    "minicpmv4_6_text": QWEN35,
    "qwen3_asr_text": QWEN3,
    "qwen3_moe": QWEN3._replace(feed_forward=QWEN_MOE),
    "qwen3_next": QWEN35._replace(feed_forward=QWEN_MOE_SHARED, mixer=partial(delta_net, fused=True)),
    "qwen3_vl_moe_text": QWEN3._replace(feed_forward=QWEN_MOE),
    "qwen3_vl_text": QWEN3,
    "stablelm": Recipe(attention=Attention(qkv_bias="use_qkv_bias"), norm_bias=True),
    "step3p5": Recipe(attention=Attention(qk_norm="head", gated="head"), feed_forward=step_gate),
    "t5": Recipe(whole=t5, feed_forward=None, norms=(), final="", tied=True),
    "starcoder2": LAYER_NORM_PLAIN._replace(attention=Attention(qkv_bias="use_bias", o_bias="use_bias"), feed_forward=dense(gated=False, bias="use_bias")),
}
