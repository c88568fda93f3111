"""config.json -> ModelSpec: one table keyed by the model_type of Hugging Face.

A new architecture is one entry in FAMILIES, and a file of its own only when its rules are its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from typing import Any, Final

from kvcalc.errors import KvcalcError
from kvcalc.families.class_defaults import NESTED_DEFAULTS
from kvcalc.families.config import Config
from kvcalc.families.decoder import (
    Decoder,
    all_but_every,
    all_when_switched_on,
    always,
    chatglm,
    decoder,
    falcon,
    jetmoe,
    lettered,
    multi_query,
    nested_attention,
    when_switched_on,
)
from kvcalc.families.latent import double_mla, mla, mla_with_indexer, mla_with_shared_indexers
from kvcalc.families.quantization import kv_dtype
from kvcalc.layers import Facts, ModelSpec, Note


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
    """A multimodal config: the language model stands under `path`, as `model_type` where it does not name its own. With `flat` set, older files
    without that object are read as that type.
    """

    path: str
    model_type: str
    flat: str | None = None


EVERY_HEAD: Final = Family(decoder)
"""Attention that keeps everything; KV heads that are not stated are as many as query heads."""
GROUPED: Final = Family(partial(decoder, absent_kv_heads_means_all=False))
"""The same, but the KV heads must be stated."""
QWEN2: Final = Family(partial(decoder, slides=when_switched_on, absent_kv_heads_means_all=False))

FAMILIES: Final[dict[str, Family | Wrapper]] = {
    "PanguEmbedded": GROUPED,
    "RefinedWeb": Family(falcon),
    "RefinedWebModel": Family(falcon),
    "apertus": EVERY_HEAD,
    "arcee": EVERY_HEAD,
    "baichuan": EVERY_HEAD,
    "bailing_moe": GROUPED,
    "bailingmm": Wrapper("llm_config", "bailing_moe"),
    "biogpt": EVERY_HEAD,
    "bloom": EVERY_HEAD,
    "chatglm": Family(chatglm),
    "codegen": EVERY_HEAD,
    "cohere": EVERY_HEAD,
    "cohere2": Family(partial(decoder, slides=all_but_every(4, "sliding_window_pattern")), {"sliding_window": 4096}),
    "dbrx": Family(nested_attention),
    "deepseek": GROUPED,
    "deepseek_v2": Family(mla),
    "deepseek_v3": Family(mla),
    "deepseek_v32": Family(mla_with_indexer),
    "deepseek_vl_v2": Wrapper("language_config", "deepseek_v2"),
    "DeepseekOCR": Wrapper("language_config", "deepseek_v2"),
    "ernie4_5": GROUPED,
    "ernie4_5_moe": GROUPED,
    "exaone": EVERY_HEAD,
    "exaone4": Family(partial(decoder, slides=lettered, absent_kv_heads_means_all=False)),
    "exaone4_5": Wrapper("text_config", "exaone4_5_text"),
    "exaone4_5_text": Family(partial(decoder, slides=lettered, absent_kv_heads_means_all=False)),
    "falcon": Family(falcon),
    "gemma": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 256}),
    "gemma2": Family(partial(decoder, slides=all_but_every(2), absent_kv_heads_means_all=False), {"head_dim": 256, "sliding_window": 4096}),
    "gemma3": Wrapper("text_config", "gemma3_text"),
    "gemma3_text": Family(
        partial(decoder, slides=all_but_every(6, "sliding_window_pattern", "_sliding_window_pattern"), absent_kv_heads_means_all=False),
        {"head_dim": 256, "sliding_window": 4096},
        scaled_context=False,
    ),
    "glm": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "glm4": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "glm4_moe": GROUPED,
    "glm4_moe_lite": Family(mla),
    "glm4v": Wrapper("text_config", "glm4v_text"),
    "glm4v_moe": Wrapper("text_config", "glm4v_moe_text"),
    "glm4v_moe_text": GROUPED,
    "glm4v_text": GROUPED,
    "glm_moe_dsa": Family(mla_with_shared_indexers),
    "gpt2": EVERY_HEAD,
    "gpt_bigcode": Family(multi_query),
    "gpt_neox": EVERY_HEAD,
    "gpt_oss": Family(partial(decoder, slides=all_but_every(2), absent_kv_heads_means_all=False), {"head_dim": 64, "sliding_window": 128}),
    "gptj": EVERY_HEAD,
    "granite": EVERY_HEAD,
    "granitemoe": EVERY_HEAD,
    "granitemoeshared": EVERY_HEAD,
    "helium": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "hunyuan_v1_dense": EVERY_HEAD,
    "hunyuan_v1_moe": EVERY_HEAD,
    "idefics3": Wrapper("text_config", "llama"),
    "internlm": EVERY_HEAD,
    "internlm2": GROUPED,
    "internlm3": Family(partial(decoder, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "internvl": Wrapper("text_config", "qwen2"),
    "internvl_chat": Wrapper("llm_config", "internlm2"),
    "jetmoe": Family(jetmoe),
    "kimi_k2": Family(mla),
    "kimi_k25": Wrapper("text_config", "kimi_k2"),
    "llama": EVERY_HEAD,
    "llama3v": EVERY_HEAD,
    "llava": Wrapper("text_config", "llama", flat="llama"),
    "llava_next": Wrapper("text_config", "llama"),
    "llava_onevision": Wrapper("text_config", "qwen2"),
    "logics": QWEN2,
    "longcat_flash": Family(double_mla),
    "mimo": QWEN2,
    "minicpm": EVERY_HEAD,
    "minicpm3": Family(mla),
    "minicpmv": EVERY_HEAD,
    "minimax_m2": GROUPED,
    "ministral": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False), {"sliding_window": 4096}),
    "ministral3": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False), {"head_dim": 128}),
    "mistral": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False), {"sliding_window": 4096}),
    "mistral3": Wrapper("text_config", "mistral"),
    "mixformer-sequential": EVERY_HEAD,
    "mixtral": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False)),
    "molmo": EVERY_HEAD,
    "mpt": Family(nested_attention),
    "muse_glimmer": Wrapper("text_config", "muse_glimmer_text"),
    "muse_glimmer_text": GROUPED,
    "nemotron": EVERY_HEAD,
    "olmo": EVERY_HEAD,
    "olmo2": EVERY_HEAD,
    "olmo3": Family(partial(decoder, slides=all_but_every(4)), {"sliding_window": 4096}),
    "olmoe": EVERY_HEAD,
    "openmoe": EVERY_HEAD,
    "opt": EVERY_HEAD,
    "orion": EVERY_HEAD,
    "paligemma": Wrapper("text_config", "gemma"),
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
    "qwen3_asr": Wrapper("thinker_config", "qwen3_asr_thinker"),
    "qwen3_asr_text": GROUPED,
    "qwen3_asr_thinker": Wrapper("text_config", "qwen3_asr_text"),
    "qwen3_moe": Family(partial(decoder, slides=all_when_switched_on, absent_kv_heads_means_all=False)),
    "qwen3_omni_moe": Wrapper("thinker_config", "qwen3_omni_moe_thinker"),
    "qwen3_omni_moe_text": GROUPED,
    "qwen3_omni_moe_thinker": Wrapper("text_config", "qwen3_omni_moe_text"),
    "qwen3_vl": Wrapper("text_config", "qwen3_vl_text"),
    "qwen3_vl_moe": Wrapper("text_config", "qwen3_vl_moe_text"),
    "qwen3_vl_moe_text": GROUPED,
    "qwen3_vl_text": Family(GROUPED.read, {"head_dim": 128}),
    "seed_oss": Family(GROUPED.read, {"head_dim": 128}),
    "smollm3": GROUPED,
    "stablelm": GROUPED,
    "starcoder2": Family(partial(decoder, slides=always, absent_kv_heads_means_all=False)),
    "telechat": EVERY_HEAD,
    "voxtral": Wrapper("text_config", "llama"),
    "xverse": EVERY_HEAD,
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


def read_config(fields: Mapping[str, Any], *, hf_quant_config: Mapping[str, Any] | None = None) -> ModelSpec:
    """The model that a config.json describes (`fields`, parsed; numbers with a point as Decimal).

    `hf_quant_config` is the file of that name beside it, where there is one. Raises KvcalcError that names the key for an unknown model type, a
    missing or contradictory key, and a model that keeps no KV cache.
    """
    notes: list[Note] = []
    config = Config(fields)
    model_type = config.text("model_type")
    if model_type is None:
        model_type = _by_architecture(config, notes)
    text, family = _language_model(config, model_type)
    read = family.read(text)
    if text.get("is_causal") is False:
        notes.append(Note(code="not-causal", text="is_causal is false: an embedding model on a decoder; engines that run it both ways keep no cache at all"))
    facts = Facts(
        model_type=model_type,
        dtype=text.dtype() or config.dtype(),
        kv_dtype=kv_dtype(config, text, hf_quant_config),
        max_context=text.max_context(scaled=family.scaled_context),
        encoder_tokens=read.encoder_tokens,
        formula=read.formula,
    )
    return ModelSpec(layers=read.layers, draft_layers=read.draft_layers, facts=facts, notes=tuple(notes))


def _by_architecture(config: Config, notes: list[Note]) -> str:
    names = config.strings("architectures") or ()
    found = next((ARCHITECTURES[name] for name in names if name in ARCHITECTURES), None)
    if found is None:
        raise config.error(f"needs model_type, which is absent, and architectures ({', '.join(names)[:60] or 'absent too'}) does not tell it")
    notes.append(Note(code="model-type", text=f"the config names no model_type: read as {found} because of its architectures"))
    return found


def _language_model(config: Config, model_type: str) -> tuple[Config, Family]:
    """The object that describes the language model, and its family, through any number of wrappers."""
    while True:
        family = FAMILIES.get(model_type)
        if family is None:
            raise _unknown(config, model_type)
        if isinstance(family, Family):
            return Config(config.fields, config.where, {**config.class_defaults, **family.filled_in}), family
        inner = config.section(family.path)
        if inner is None:
            if family.flat is None:
                raise config.missing(family.path)
            model_type = family.flat
            continue
        model_type = inner.text("model_type") or family.model_type
        config = Config(inner.fields, inner.where, NESTED_DEFAULTS.get(model_type))


def _unknown(config: Config, model_type: str) -> KvcalcError:
    if model_type in NO_KV_CACHE:
        return config.error(f"model_type {model_type} is {NO_KV_CACHE[model_type]}")
    near = get_close_matches(model_type, FAMILIES, n=3)
    hint = f"near: {', '.join(near)}" if near else "a spec YAML can describe it: see 'Add a model' in the README"
    return config.error(f"model_type {model_type[:60]!r} is not known", hint)
