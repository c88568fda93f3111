"""Which models llama.cpp runs, and what it makes of their attention (commit 0c1e57098).

Names: src/llama-arch.cpp. Which config becomes which of them: the classes under conversion/ that register its `architectures`, for multimodal ones those
of the language model.
"""

from typing import Final, NamedTuple

from kvcalc.engines.base import Options
from kvcalc.errors import KvcalcError
from kvcalc.layers import ModelSpec

COMMIT: Final = "0c1e57098"
"""The commit that llama-cpp-python 0.3.36 carries, whose source the rules are read from."""

MODELS: Final = {
    "DeepseekOCR": "deepseek2-ocr",
    "PanguEmbedded": "pangu-embedded",
    "RefinedWeb": "falcon",
    "RefinedWebModel": "falcon",
    "afmoe": "afmoe",
    "apertus": "apertus",
    "arcee": "arcee",
    "baichuan": "baichuan",
    "bailing_moe": "bailingmoe",
    "bamba": "granitehybrid",
    "bloom": "bloom",
    "chatglm": "chatglm",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "dbrx": "dbrx",
    "deepseek": "deepseek",
    "deepseek_ref": "deepseek4",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "deepseek_v32": "deepseek32",
    "deepseek_v4": "deepseek4",
    "dots_ocr": "qwen2",
    "ernie4_5": "ernie4_5",
    "ernie4_5_moe": "ernie4_5-moe",
    "exaone": "exaone",
    "exaone4": "exaone4",
    "exaone4_5": "exaone4",
    "falcon": "falcon",
    "falcon_h1": "falcon-h1",
    "falcon_mamba": "mamba",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3n": "gemma3n",
    "gemma4": "gemma4",
    "glm": "chatglm",
    "glm4": "glm4",
    "glm4_moe": "glm4moe",
    "glm4_moe_lite": "deepseek2",
    "glm4v": "glm4",
    "glm4v_moe": "glm4moe",
    "glm5_next": "glm5-next",
    "glm_moe_dsa": "glm-dsa",
    "gpt2": "gpt2",
    "gpt_bigcode": "starcoder",
    "gpt_neox": "gptneox",
    "gpt_oss": "gpt-oss",
    "granite": "granite",
    "granite_swa": "granite_swa",
    "granitemoe": "granitemoe",
    "granitemoehybrid": "granitehybrid",
    "granitemoeshared": "granitemoe",
    "hunyuan_v1_dense": "hunyuan-dense",
    "hunyuan_v1_moe": "hunyuan-moe",
    "idefics3": "llama",
    "internlm2": "internlm2",
    "internlm3": "llama",
    "internvl": "qwen2",
    "internvl_chat": "internlm2",
    "jamba": "jamba",
    "kimi_k2": "deepseek2",
    "kimi_k25": "deepseek2",
    "kimi_k3": "kimi-k3",
    "kimi_linear": "kimi-linear",
    "laguna": "laguna",
    "lfm2": "lfm2",
    "lfm2_moe": "lfm2moe",
    "lfm2_vl": "lfm2",
    "llama": "llama",
    "llama4": "llama4",
    "llava": "llama",
    "llava_next": "llama",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "mimo_v2_flash": "mimo2",
    "minicpm": "minicpm",
    "minicpm3": "minicpm3",
    "minicpmv": "minicpm",
    "minicpmv4_6": "qwen35",
    "minimax": "minimax-01",
    "minimax_m2": "minimax-m2",
    "minimax_m3": "minimax-m3",
    "minimax_m3_vl": "minimax-m3",
    "minimax_text_01": "minimax-01",
    "ministral3": "mistral3",
    "mistral": "llama",
    "mistral3": "mistral3",
    "mixtral": "llama",
    "mpt": "mpt",
    "mt5": "t5",
    "muse_glimmer": "muse-glimmer",
    "nemotron": "nemotron",
    "nemotron-nas": "deci",
    "nemotron_h": "nemotron_h",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "olmo3": "olmo2",
    "olmoe": "olmoe",
    "orion": "orion",
    "ov_mamba": "mamba",
    "phi": "phi2",
    "phi-msft": "phi2",
    "phi3": "phi3",
    "phi4": "phi3",
    "phimoe": "phimoe",
    "pixtral": "llama",
    "qwen": "qwen",
    "qwen2": "qwen2",
    "qwen2_5_omni": "qwen2vl",
    "qwen2_5_vl": "qwen2vl",
    "qwen2_moe": "qwen2moe",
    "qwen2_vl": "qwen2vl",
    "qwen3": "qwen3",
    "qwen3_5": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_asr": "qwen3vl",
    "qwen3_moe": "qwen3moe",
    "qwen3_next": "qwen3next",
    "qwen3_omni_moe": "qwen3vlmoe",
    "qwen3_vl": "qwen3vl",
    "qwen3_vl_moe": "qwen3vlmoe",
    "seed_oss": "seed_oss",
    "smollm3": "smollm3",
    "solar_open": "glm4moe",
    "stablelm": "stablelm",
    "starcoder2": "starcoder2",
    "step3p5": "step35",
    "step3p7": "step35",
    "t5": "t5",
    "umt5": "t5",
    "voxtral": "llama",
    "xverse": "xverse",
}
"""llama.cpp's name of an architecture by the model type of a config."""

WINDOWED: Final = frozenset(
    {
        "afmoe",
        "cohere2",
        "deepseek4",
        "exaone4",
        "gemma2",
        "gemma3",
        "gemma3n",
        "gemma4",
        "gpt-oss",
        "granite_swa",
        "laguna",
        "llama4",
        "mimo2",
        "muse-glimmer",
        "olmo2",
        "step35",
    }
)
"""Architectures that set a swa_type (load_arch_hparams, src/models/): every other keeps all tokens in layers that slide (Mistral, Phi-3, StarCoder2)."""

EXPANDED: Final = frozenset({"minicpm3"})
"""MLA stored as K and V of every head: its converter writes no MLA widths, so that is_mla() is false (conversion/minicpm.py, src/llama-hparams.cpp)."""

PER_SEQUENCE: Final = frozenset({"deepseek4"})
"""Every slot has cells of its own, also where slots share one pool (src/llama-kv-cache-dsv4.cpp, unified_raw and unified_compressed)."""

INDEX_VALUES: Final = frozenset({"minimax-m3"})
"""The indexer's cache is an ordinary one of one head, whose V nobody reads (src/llama-kv-cache-msa.cpp: is_mla() is false, so V is allocated)."""

INDEX_TRIPLES: Final = frozenset({"glm5-next"})
"""The indexer keeps key, gate and pooled value of every token (src/llama-memory-hybrid-idx.cpp, indexer_kpool), and no ring."""

DRAFTS_OF_GGUF: Final = {"deepseek_ref": 0, "deepseek_v3": 0, "deepseek_v4": 0, "kimi_k2": 0, "kimi_k25": 0, "nemotron_h": 1}
"""Most draft layers of a converted model, where that is not all of them (conversion/deepseek.py, skip_mtp and mtp_only; conversion/nemotron.py, where one
block holds both). They count as layers, and hold no cache unless they draft.
"""
MORE_DRAFTS: Final = {"mimo_v2_flash": 3}
"""Draft layers of which the config says nothing (conversion/mimo.py)."""


def architecture(spec: ModelSpec) -> str | None:
    """llama.cpp's name of a model's architecture; None where the model names no type.

    Raises KvcalcError for a type that it does not know.
    """
    model_type = spec.facts.model_type
    if model_type is None:
        return None
    name = MODELS.get(model_type, MODELS.get(model_type.removesuffix("_text").removesuffix("_thinker")))
    if name is None:
        raise KvcalcError(
            f"llama.cpp does not know the architecture of {model_type} (src/llama-arch.cpp at {COMMIT})",
            hint="name an engine that does: --engine vllm or --engine transformers",
        )
    return name


class Placed(NamedTuple):
    """The layers on the CPU, those of each GPU, and the GPU that computes the output (None: the CPU does)."""

    cpu: tuple[int, ...]
    gpus: tuple[tuple[int, ...], ...]
    output: int | None


def placed(spec: ModelSpec, options: Options) -> Placed:
    """Where the layers are: `-ngl` takes the last ones, and GPUs of equal free memory share them evenly, with the output as one more layer behind the last
    (load_tensors, src/llama-model.cpp).
    """
    count = len(spec.layers) + _draft_blocks(spec)
    wanted = count + 1 if options.gpu_layers is None else min(options.gpu_layers, count + 1)
    first = count + 1 - wanted
    gpus: list[list[int]] = [[] for _ in range(options.pp)]
    for layer in range(first, len(spec.layers)):
        gpus[(layer - first) * options.pp // wanted].append(layer)
    output = (wanted - 1) * options.pp // wanted if wanted else None
    return Placed(tuple(range(min(first, len(spec.layers)))), tuple(map(tuple, gpus)), output)


def _draft_blocks(spec: ModelSpec) -> int:
    model_type, declared = spec.facts.model_type or "", len(spec.draft_layers)
    return min(declared, DRAFTS_OF_GGUF.get(model_type, declared)) + MORE_DRAFTS.get(model_type, 0)
