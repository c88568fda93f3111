"""config.json -> ModelSpec: one table keyed by the model_type of Hugging Face.

A new architecture is one entry in FAMILIES, and a file of its own only when its rules are its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from difflib import get_close_matches
from functools import partial
from math import isfinite
from typing import Any, Final

from kvcalc.errors import KvcalcError
from kvcalc.families.class_defaults import NESTED_DEFAULTS
from kvcalc.families.compressed import deepseek_v4, deepseek_v41, minimax_m3
from kvcalc.families.config import Config
from kvcalc.families.crossed import bart, mllama, t5, whisper
from kvcalc.families.decoder import (
    Decoder,
    all_but_every,
    all_when_switched_on,
    always,
    chatglm,
    decoder,
    falcon,
    first_of_every,
    jetmoe,
    lettered,
    multi_query,
    nested_attention,
    when_switched_on,
)
from kvcalc.families.latent import double_mla, mla, mla_with_indexer, mla_with_shared_indexers
from kvcalc.families.mixed import chunked, gemma3n, gemma4, laguna, mimo_v2, searched, step
from kvcalc.families.quantization import brings_kv_scales, kv_dtype, quantization
from kvcalc.families.recurrent import (
    bamba,
    gated_delta_net,
    gated_delta_net_in_model_dtype,
    glm5_next,
    granite_hybrid,
    inkling,
    jamba,
    kimi_linear,
    lfm2,
    mamba2_beside_attention,
    minimax,
    nemotron_h,
    pure_mamba1,
    pure_mamba2,
    qwen4_exp,
    recurrent_gemma,
    rwkv5,
    yuan,
    zamba2,
    zaya,
)
from kvcalc.families.weights import Holder, Weighed, weigh
from kvcalc.layers import Facts, Layer, ModelSpec, Note
from kvcalc.tensors import WeighedModel, weighed


@dataclass(frozen=True, slots=True)
class Family:
    """How the config of one model type is read, and what its config class fills in for keys that published files may lack.

    `scaled_context`: whether rotary scaling by a factor makes the stated context longer.
    """

    read: Callable[[Config], Decoder]
    filled_in: Mapping[str, Any] = field(default_factory=dict)
    scaled_context: bool = True


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A multimodal config: the language model stands under `path`, as `model_type` where it does not name its own, or always with `renames`. With
    `flat` set, older files without that object are read as that type.
    """

    path: str
    model_type: str
    flat: str | None = None
    renames: bool = False


EVERY_HEAD: Final = Family(decoder)
"""Attention that keeps everything; KV heads that are not stated are as many as query heads."""
GROUPED: Final = Family(partial(decoder, absent_kv_heads_means_all=False))
"""The same, but the KV heads must be stated."""
QWEN2: Final = Family(partial(decoder, slides=when_switched_on, absent_kv_heads_means_all=False))

FAMILIES: Final[dict[str, Family | Wrapper]] = {
    "afmoe": Family(partial(decoder, slides=all_but_every(4, "global_attn_every_n_layers")), {"head_dim": 128, "sliding_window": 1024}),
    "apertus": EVERY_HEAD,
    "arcee": EVERY_HEAD,
    "baichuan": EVERY_HEAD,
    "bailing_moe": GROUPED,
    "bailingmm": Wrapper("llm_config", "bailing_moe"),
    "bamba": Family(bamba),
    "bart": Family(bart),
    "biogpt": EVERY_HEAD,
    "bloom": EVERY_HEAD,
    "chatglm": Family(chatglm),
    "codegen": EVERY_HEAD,
    "cohere": EVERY_HEAD,
    "cohere2": Family(partial(decoder, slides=all_but_every(4, "sliding_window_pattern")), {"sliding_window": 4096}),
    "dbrx": Family(nested_attention),
    "deepseek": GROUPED,
    "deepseek_ref": Family(deepseek_v4),
    "deepseek_v2": Family(mla),
    "deepseek_v3": Family(mla),
    "deepseek_v32": Family(mla_with_indexer),
    "deepseek_v4": Family(deepseek_v4, {"head_dim": 512}),
    "deepseek_v41": Wrapper("text_config", "deepseek_v41_text"),
    "deepseek_v41_text": Family(deepseek_v41),
    "deepseek_vl_v2": Wrapper("language_config", "deepseek_v2"),
    "DeepseekOCR": Wrapper("language_config", "deepseek_v2"),
    "dots_ocr": QWEN2,
    "ernie4_5": GROUPED,
    "ernie4_5_moe": GROUPED,
    "exaone": EVERY_HEAD,
    "exaone4": Family(partial(decoder, slides=lettered, absent_kv_heads_means_all=False)),
    "exaone4_5": Wrapper("text_config", "exaone4_5_text"),
    "exaone4_5_text": Family(partial(decoder, slides=lettered, absent_kv_heads_means_all=False)),
    "falcon": Family(falcon),
    "falcon_h1": Family(mamba2_beside_attention),
    "falcon_mamba": Family(pure_mamba1),
    "gemma": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 256}),
    "gemma2": Family(partial(decoder, slides=all_but_every(2), absent_kv_heads_means_all=False), {"head_dim": 256, "sliding_window": 4096}),
    "gemma3": Wrapper("text_config", "gemma3_text"),
    "gemma3_text": Family(
        partial(decoder, slides=all_but_every(6, "sliding_window_pattern", "_sliding_window_pattern"), absent_kv_heads_means_all=False),
        {"head_dim": 256, "sliding_window": 4096},
        scaled_context=False,
    ),
    "gemma3n": Wrapper("text_config", "gemma3n_text"),
    "gemma3n_text": Family(gemma3n, {"head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15}),
    "gemma4": Wrapper("text_config", "gemma4_text"),
    "gemma4_text": Family(gemma4, {"head_dim": 256, "global_head_dim": 512, "sliding_window": 512}),
    "glm": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "glm4": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "glm4_moe": GROUPED,
    "glm4_moe_lite": Family(mla),
    "glm4v": Wrapper("text_config", "glm4v_text"),
    "glm4v_moe": Wrapper("text_config", "glm4v_moe_text"),
    "glm4v_moe_text": GROUPED,
    "glm4v_text": GROUPED,
    "glm5_next": Wrapper("text_config", "glm5_next_text"),
    "glm5_next_text": Family(glm5_next),
    "glm_moe_dsa": Family(mla_with_shared_indexers),
    "gpt2": EVERY_HEAD,
    "gpt_bigcode": Family(multi_query),
    "gpt_neox": EVERY_HEAD,
    "gpt_oss": Family(partial(decoder, slides=all_but_every(2), absent_kv_heads_means_all=False), {"head_dim": 64, "sliding_window": 128}),
    "gptj": EVERY_HEAD,
    "granite": EVERY_HEAD,
    "granite_swa": Family(partial(decoder, slides=first_of_every(4)), {"sliding_window": 128}),
    "granitemoe": EVERY_HEAD,
    "granitemoehybrid": Family(granite_hybrid),
    "granitemoeshared": EVERY_HEAD,
    "helium": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "hunyuan_v1_dense": EVERY_HEAD,
    "hunyuan_v1_moe": EVERY_HEAD,
    "idefics3": Wrapper("text_config", "llama"),
    "inkling": Wrapper("text_config", "inkling_text"),
    "inkling_text": Family(inkling),
    "internlm": EVERY_HEAD,
    "internlm2": GROUPED,
    "internlm3": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "internvl": Wrapper("text_config", "qwen2"),
    "internvl_chat": Wrapper("llm_config", "internlm2"),
    "jamba": Family(jamba, {"attn_layer_period": 8, "attn_layer_offset": 4, "mamba_expand": 2, "mamba_d_state": 16, "mamba_d_conv": 4}),
    "jetmoe": Family(jetmoe),
    "kimi_k2": Family(mla),
    "kimi_k25": Wrapper("text_config", "kimi_k2"),
    "kimi_k3": Wrapper("text_config", "kimi_linear"),
    "kimi_linear": Family(kimi_linear),
    "laguna": Family(laguna),
    "lfm2": Family(lfm2),
    "lfm2_moe": Family(lfm2),
    "lfm2_vl": Wrapper("text_config", "lfm2"),
    "llama": EVERY_HEAD,
    "llama3v": EVERY_HEAD,
    "llama4": Wrapper("text_config", "llama4_text"),
    "llama4_text": Family(chunked, {"head_dim": 128, "attention_chunk_size": 8192}),
    "llava": Wrapper("text_config", "llama", flat="llama"),
    "llava_next": Wrapper("text_config", "llama"),
    "llava_onevision": Wrapper("text_config", "qwen2"),
    "logics": QWEN2,
    "longcat_flash": Family(double_mla),
    "mamba": Family(pure_mamba1, {"expand": 2, "state_size": 16, "conv_kernel": 4}),
    "mamba2": Family(pure_mamba2),
    "mbart": Family(bart),
    "mimo": QWEN2,
    "mimo_v2_flash": Family(mimo_v2),
    "minicpm": EVERY_HEAD,
    "minicpm3": Family(mla),
    "minicpmv": EVERY_HEAD,
    "minicpmv4_6": Wrapper("text_config", "minicpmv4_6_text", renames=True),
    "minicpmv4_6_text": Family(gated_delta_net_in_model_dtype, {"head_dim": 256}),
    "minimax": Family(minimax),
    "minimax_m2": GROUPED,
    "minimax_m3": Family(minimax_m3),
    "minimax_m3_vl": Wrapper("text_config", "minimax_m3_vl_text"),
    "minimax_m3_vl_text": Family(minimax_m3, {"head_dim": 128}),
    "minimax_text_01": Family(minimax),
    "ministral": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False), {"sliding_window": 4096}),
    "ministral3": Wrapper("text_config", "ministral3_text", flat="ministral3_text", renames=True),
    "ministral3_text": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "mistral": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False), {"sliding_window": 4096}),
    "mistral3": Wrapper("text_config", "mistral"),
    "mixformer-sequential": EVERY_HEAD,
    "mixtral": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False)),
    "mllama": Wrapper("text_config", "mllama_text_model"),
    "mllama_text_model": Family(mllama),
    "molmo": EVERY_HEAD,
    "mpt": Family(nested_attention),
    "mt5": Family(t5),
    "muse_glimmer": Wrapper("text_config", "muse_glimmer_text"),
    "muse_glimmer_text": GROUPED,
    "nemotron": EVERY_HEAD,
    "nemotron-nas": Family(searched),
    "nemotron_h": Family(nemotron_h, {"head_dim": 128, "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128}),
    "olmo": EVERY_HEAD,
    "olmo2": EVERY_HEAD,
    "olmo3": Family(partial(decoder, slides=all_but_every(4)), {"sliding_window": 4096}),
    "olmo_hybrid": Family(gated_delta_net),
    "olmoe": EVERY_HEAD,
    "openmoe": EVERY_HEAD,
    "opt": EVERY_HEAD,
    "orion": EVERY_HEAD,
    "ov_mamba": Family(pure_mamba1),
    "paligemma": Wrapper("text_config", "gemma"),
    "PanguEmbedded": GROUPED,
    "pegasus": Family(bart),
    "persimmon": EVERY_HEAD,
    "phi": EVERY_HEAD,
    "phi-msft": EVERY_HEAD,
    "phi3": Family(partial(decoder, slides=always)),
    "phi3_v": Family(partial(decoder, slides=always)),
    "phi3small": GROUPED,
    "phi4": Family(partial(decoder, slides=always)),
    "phi4mm": Family(partial(decoder, slides=always)),
    "phimoe": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False)),
    "pixtral": Wrapper("text_config", "mistral"),
    "qwen": EVERY_HEAD,
    "qwen2": QWEN2,
    "qwen2_5_omni": Wrapper("thinker_config", "qwen2_5_omni_thinker"),
    "qwen2_5_omni_text": QWEN2,
    "qwen2_5_omni_thinker": Wrapper("text_config", "qwen2_5_omni_text"),
    "qwen2_5_vl": Wrapper("text_config", "qwen2_5_vl_text", flat="qwen2"),
    "qwen2_5_vl_text": QWEN2,
    "qwen2_moe": QWEN2,
    "qwen2_vl": Wrapper("text_config", "qwen2_vl_text", flat="qwen2"),
    "qwen2_vl_text": QWEN2,
    "qwen3": Family(QWEN2.read, {"head_dim": 128}),
    "qwen3_5": Wrapper("text_config", "qwen3_5_text"),
    "qwen3_5_moe": Wrapper("text_config", "qwen3_5_moe_text"),
    "qwen3_5_moe_text": Family(gated_delta_net, {"head_dim": 256}),
    "qwen3_5_text": Family(gated_delta_net, {"head_dim": 256}),
    "qwen3_asr": Wrapper("thinker_config", "qwen3_asr_thinker"),
    "qwen3_asr_text": GROUPED,
    "qwen3_asr_thinker": Wrapper("text_config", "qwen3_asr_text"),
    "qwen3_moe": Family(partial(decoder, slides=all_when_switched_on, absent_kv_heads_means_all=False)),
    "qwen3_next": Family(gated_delta_net, {"head_dim": 256}),
    "qwen3_omni_moe": Wrapper("thinker_config", "qwen3_omni_moe_thinker"),
    "qwen3_omni_moe_text": GROUPED,
    "qwen3_omni_moe_thinker": Wrapper("text_config", "qwen3_omni_moe_text"),
    "qwen3_vl": Wrapper("text_config", "qwen3_vl_text"),
    "qwen3_vl_moe": Wrapper("text_config", "qwen3_vl_moe_text"),
    "qwen3_vl_moe_text": GROUPED,
    "qwen3_vl_text": Family(GROUPED.read, {"head_dim": 128}),
    "qwen4_exp": Wrapper("text_config", "qwen4_exp_text"),
    "qwen4_exp_text": Family(qwen4_exp, {"head_dim": 256}),
    "recurrent_gemma": Family(recurrent_gemma, {"attention_window_size": 2048, "conv1d_width": 4}),
    "RefinedWeb": Family(falcon),
    "RefinedWebModel": Family(falcon),
    "rwkv5": Family(rwkv5),
    "seed_oss": Family(GROUPED.read, {"head_dim": 128}),
    "smollm3": GROUPED,
    "solar_open": Family(GROUPED.read, {"head_dim": 128}),
    "stablelm": GROUPED,
    "starcoder2": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False)),
    "step3p5": Family(step),
    "step3p7": Wrapper("text_config", "step3p5", flat="step3p5"),
    "t5": Family(t5),
    "telechat": EVERY_HEAD,
    "umt5": Family(t5),
    "voxtral": Wrapper("text_config", "llama"),
    "whisper": Family(whisper),
    "xverse": EVERY_HEAD,
    "yuan": Family(yuan),
    "zamba2": Family(zamba2),
    "zaya": Family(zaya),
}

NO_KV_CACHE: Final = {
    **dict.fromkeys(
        (
            "albert",
            "bert",
            "camembert",
            "deberta",
            "deberta-v2",
            "distilbert",
            "electra",
            "eurobert",
            "gte",
            "ibert",
            "longformer",
            "modernbert",
            "mpnet",
            "new",
            "nomic_bert",
            "roberta",
            "roformer",
            "squeezebert",
            "xlm-roberta",
            "xlm-roberta-xl",
        ),
        "an encoder, which reads its whole input at once and keeps no KV cache",
    ),
    **dict.fromkeys(
        (
            "beit",
            "clip",
            "clip_vision_model",
            "convnext",
            "convnextv2",
            "deit",
            "dinov2",
            "dinov3_vit",
            "resnet",
            "siglip",
            "siglip_vision_model",
            "swin",
            "vit",
        ),
        "a vision encoder, which keeps no KV cache",
    ),
    **dict.fromkeys(("hubert", "wav2vec2", "wavlm"), "an audio encoder, which keeps no KV cache"),
}
"""Model types that keep no KV cache, and why."""

ARCHITECTURES: Final = {
    "BaichuanForCausalLM": "baichuan",
    "BloomForCausalLM": "bloom",
    "ChatGLMModel": "chatglm",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "FalconForCausalLM": "falcon",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoXForCausalLM": "gpt_neox",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GemmaForCausalLM": "gemma",
    "LlamaForCausalLM": "llama",
    "MiniCPM4ForCausalLM": "minicpm",
    "MiniCPMForCausalLM": "minicpm",
    "MiniCPM3ForCausalLM": "minicpm3",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "OPTForCausalLM": "opt",
    "OpenMoeForCausalLM": "openmoe",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}
"""The model type of a config that names none, by its architecture."""


def read_config(fields: Mapping[str, Any], *, hf_quant_config: Mapping[str, Any] | None = None, as_model_type: str | None = None) -> WeighedModel:
    """The model that a config.json describes (`fields`, parsed; numbers with a point as Decimal).

    `hf_quant_config` is the file of that name beside it, where there is one. `as_model_type` reads the config as if it named that type. Raises
    KvcalcError that names the key for an unknown model type, a missing or contradictory key, and a model that keeps no KV cache.
    """
    notes: list[Note] = []
    config = Config(fields)
    model_type = config.text("model_type")
    if as_model_type is not None:
        notes.append(Note(code="as", text=f"read as {as_model_type} because you say so; the config says {model_type or 'nothing'}"))
        model_type = as_model_type
    elif model_type is None:
        model_type = _by_architecture(config, notes)
    text, family, holders = _language_model(config, model_type)
    read = family.read(text)
    found = _tensors(config, text, holders, read.layers, read.draft_layers)
    if found.missing is not None:
        notes.append(Note(code="parameters", text=f"not all parameters are counted: {found.missing}"))
    if text.get("is_causal") is False:
        notes.append(Note(code="not-causal", text="is_causal is false: an embedding model on a decoder; engines that run it both ways keep no cache at all"))
    facts = Facts(
        model_type=model_type,
        dtype=text.dtype() or config.dtype(),
        kv_dtype=kv_dtype(config, text, hf_quant_config),
        max_context=text.max_context(scaled=family.scaled_context),
        encoder_tokens=read.encoder_tokens,
        parameters=found.parameters,
        parameters_text=found.parameters_text,
        formula=read.formula,
        image_prefix=_reads_images_both_ways(config, text, model_type),
        pooling=_pools(config, model_type),
        quantized_kv_scales=brings_kv_scales(config, text, hf_quant_config),
        sharded_tower=_sharded_tower(config, model_type),
    )
    return WeighedModel(
        layers=read.layers,
        draft_layers=read.draft_layers,
        tensors=found.tensors,
        untold=found.untold,
        quantization=quantization(config, text, hf_quant_config),
        facts=facts,
        notes=tuple(notes),
    )


def with_weights(spec: ModelSpec, fields: Mapping[str, Any]) -> WeighedModel:
    """A model whose layers are known, with the tensors and the quantization that `fields` tell: those of its config.json that decide about weights.

    Raises KvcalcError where they do not tell them.
    """
    config = Config(_with_decimals(fields), "config")
    text, _, holders = _language_model(config, spec.facts.model_type or "")
    found = _tensors(config, text, holders, spec.layers, spec.draft_layers)
    if not found.tensors:
        raise config.error(found.missing or "tells no tensors")
    return weighed(spec).model_copy(update={"tensors": found.tensors, "untold": found.untold, "quantization": quantization(config, text, None)})


def _with_decimals(value: Any) -> Any:  # noqa: ANN401 (a YAML value can be anything)
    """Numbers with a point as Decimal, as they are read from a config.json."""
    match value:
        case float():
            if not isfinite(value):
                raise KvcalcError(f"config: {value} is no number")
            return Decimal(repr(value))
        case Mapping():
            return {name: _with_decimals(each) for name, each in value.items()}
        case list():
            return [_with_decimals(each) for each in value]
        case _:
            return value


def _tensors(config: Config, text: Config, holders: tuple[Holder, ...], layers: tuple[Layer, ...], draft_layers: tuple[Layer, ...]) -> Weighed:
    return weigh(holders[:-1], Holder(holders[-1].model_type, text), layers, draft_layers, config.strings("architectures") or ())


_IMAGE_PREFIX: Final = frozenset({"bagel", "gemma3", "molmo2", "moondream3", "paligemma"})
_SHARDED_TOWERS: Final = frozenset({"glm4v", "glm4v_moe", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl", "qwen3_vl_moe"})


def _reads_images_both_ways(config: Config, text: Config, model_type: str) -> bool:
    """Whether attention over image tokens is bidirectional (vllm/config/model.py 0.33.0, is_mm_prefix_lm)."""
    if config.flag("is_mm_prefix_lm", absent=False) or model_type in _IMAGE_PREFIX:
        return True
    return model_type == "gemma4" and text.text("use_bidirectional_attention") == "vision"


def _pools(config: Config, model_type: str) -> bool:
    """Whether the checkpoint is for embedding, reward or classification. Gemma 4 without architectures is taken as its bare model, which pools."""
    names = config.strings("architectures") or ()
    return any(name.endswith(("ForSequenceClassification", "ForTokenClassification", "RewardModel")) for name in names) or (
        not names and model_type in ("gemma4", "gemma4_text")
    )


def _sharded_tower(config: Config, model_type: str) -> tuple[int, ...]:
    """Heads and MLP width of a vision tower that vLLM 0.33.0 divides by tensor parallelism; empty where it does not, or where they are not stated."""
    tower = config.section("vision_config") if model_type in _SHARDED_TOWERS else None
    if tower is None:
        return ()
    return tuple(number for name in ("num_heads", "intermediate_size") if (number := tower.optional(name)) is not None)


def _by_architecture(config: Config, notes: list[Note]) -> str:
    names = config.strings("architectures") or ()
    found = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if found is None:
        raise config.error(f"needs model_type, which is absent, and architectures ({', '.join(names)[:60] or 'absent too'}) does not tell it")
    notes.append(Note(code="model-type", text=f"the config names no model_type: read as {found} because of its architectures"))
    return found


def _language_model(config: Config, model_type: str) -> tuple[Config, Family, tuple[Holder, ...]]:
    """The object that describes the language model and its family, through any number of wrappers: these as they were met, and that object last."""
    holders: list[Holder] = []
    while True:
        holders.append(Holder(model_type, config))
        family = FAMILIES.get(model_type)
        if family is None:
            raise _unknown(config, model_type)
        if isinstance(family, Family):
            return Config(config.fields, config.where, {**config.class_defaults, **family.filled_in}), family, tuple(holders)
        inner = config.section(family.path)
        if inner is None:
            if family.flat is None:
                raise config.missing(family.path)
            model_type = family.flat
            continue
        model_type = family.model_type if family.renames else inner.text("model_type") or family.model_type
        config = Config(inner.fields, inner.where, NESTED_DEFAULTS.get(model_type))


def _unknown(config: Config, model_type: str) -> KvcalcError:
    if model_type in NO_KV_CACHE:
        return config.error(f"model_type {model_type} is {NO_KV_CACHE[model_type]}")
    near = get_close_matches(model_type, FAMILIES, n=3)
    nearest = f"near: {', '.join(near)}; " if near else ""
    hint = f"{nearest}if it keeps what a known type keeps, --as TYPE reads it so; else a spec YAML can describe it (README, Add a model)"
    return config.error(f"what model_type {model_type[:60]!r} keeps is not known", hint)
