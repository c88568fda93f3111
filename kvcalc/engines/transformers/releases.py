"""The releases of transformers that are modelled, and the model types that each has code for."""

from typing import Final, Literal, NamedTuple

from kvcalc.errors import KvcalcError

_SINCE_4: Final = frozenset(
    """
    apertus arcee bamba bart biogpt bloom codegen cohere cohere2 dbrx deepseek_v2 deepseek_v3 ernie4_5 ernie4_5_moe exaone4 falcon falcon_h1 falcon_mamba
    gemma gemma2 gemma3 gemma3_text gemma3n gemma3n_text glm glm4 glm4_moe glm4v glm4v_moe glm4v_moe_text glm4v_text gpt2 gpt_bigcode gpt_neox gpt_oss
    gptj granite granitemoe granitemoehybrid granitemoeshared helium hunyuan_v1_dense hunyuan_v1_moe idefics3 internvl jamba jetmoe lfm2 lfm2_vl llama
    llama4 llama4_text llava llava_next llava_onevision longcat_flash mamba mamba2 mbart minimax ministral mistral mistral3 mixtral mllama
    mllama_text_model mpt mt5 nemotron olmo olmo2 olmo3 olmoe opt paligemma pegasus persimmon phi phi3 phimoe pixtral qwen2 qwen2_5_omni qwen2_5_omni_text
    qwen2_5_omni_thinker qwen2_5_vl qwen2_5_vl_text qwen2_moe qwen2_vl qwen2_vl_text qwen3 qwen3_moe qwen3_next qwen3_omni_moe qwen3_omni_moe_text
    qwen3_omni_moe_thinker qwen3_vl qwen3_vl_moe qwen3_vl_moe_text qwen3_vl_text recurrent_gemma seed_oss smollm3 stablelm starcoder2 t5 umt5 voxtral
    whisper zamba2
    """.split()  # noqa: SIM905 (a list of words is read as such)
)
_SINCE_5: Final = frozenset(
    """
    afmoe deepseek_v32 deepseek_v4 exaone exaone4_5 gemma4 gemma4_text glm4_moe_lite glm5_next glm5_next_text glm_moe_dsa granite_swa inkling_text
    internlm3 kimi_k25 kimi_linear laguna lfm2_moe mimo_v2_flash minicpm3 minicpmv4_6 minimax_m2 minimax_m3_vl minimax_m3_vl_text ministral3 muse_glimmer
    muse_glimmer_text nemotron_h olmo_hybrid qwen3_5 qwen3_5_moe qwen3_5_moe_text qwen3_5_text qwen3_asr solar_open step3p5 step3p7 zaya
    """.split()  # noqa: SIM905 (a list of words is read as such)
)


class Release(NamedTuple):
    """`number` stands for its whole `line`. `model_types` are those that it has code for (models/auto/configuration_auto.py)."""

    number: str
    line: Literal[4, 5]
    model_types: frozenset[str]


TRANSFORMERS_5: Final = Release("5.24.0", 5, _SINCE_4 | _SINCE_5)
TRANSFORMERS_4: Final = Release("4.57.6", 4, _SINCE_4)
"""The last of line 4. It caches K and V of every head where later releases keep the latent of MLA."""

_BY_WORD: Final = {"5": TRANSFORMERS_5, "5.24": TRANSFORMERS_5, "5.24.0": TRANSFORMERS_5, "4": TRANSFORMERS_4, "4.57": TRANSFORMERS_4, "4.57.6": TRANSFORMERS_4}


def find_release(text: str) -> Release:
    """The release of that name. Raises KvcalcError for one that is not modelled."""
    if text not in _BY_WORD:
        raise KvcalcError(
            f"transformers {text[:20]!r} is not modelled", hint=f"known: transformers ({TRANSFORMERS_5.number}), transformers@4 ({TRANSFORMERS_4.number})"
        )
    return _BY_WORD[text]
