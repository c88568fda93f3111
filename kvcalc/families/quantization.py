"""The KV dtype that a checkpoint's quantization names, read as vLLM 0.33.0 reads it. How the weights are stored never decides it."""

from collections.abc import Mapping
from typing import Any

from kvcalc.families.config import Config


def kv_dtype(config: Config, text: Config, hf_quant_config: Mapping[str, Any] | None) -> str | None:
    """The packing that `auto` stands for, or None where the checkpoint names none (the model's own dtype then).

    quantization_config of config.json counts, or of its language model; only where it is absent does hf_quant_config.json, and only one that
    ModelOpt wrote (vllm/transformers_utils/config.py and model_executor/layers/quantization, 0.33.0).
    """
    section = config.section("quantization_config") or text.section("quantization_config")
    if section is None:
        if hf_quant_config is None:
            return None
        return _modelopt_file(Config(hf_quant_config, "hf_quant_config.json"))
    method = section.text("quant_method") or ""
    if method.startswith("modelopt"):
        return _modelopt(section)
    if method == "compressed-tensors" and section.get("kv_cache_scheme") is not None:
        return "fp8"
    return None


def brings_kv_scales(config: Config, text: Config, hf_quant_config: Mapping[str, Any] | None) -> bool:
    """Whether the checkpoint's quantization handles scales of an fp8 KV cache, which rules out fp8_e5m2 (vllm/model_executor/layers/attention.py 0.33.0)."""
    section = config.section("quantization_config") or text.section("quantization_config")
    if section is None:
        return hf_quant_config is not None and _is_modelopt(Config(hf_quant_config, "hf_quant_config.json"))
    method = section.text("quant_method") or ""
    return method == "fp8" or method.startswith("modelopt") or (method == "compressed-tensors" and section.get("kv_cache_scheme") is not None)


def stored_weights(config: Config, text: Config, hf_quant_config: Mapping[str, Any] | None) -> str | None:
    """How the checkpoint's quantization stores most of its weights: a packing, or the method's own name where that alone does not tell. None: as `dtype`."""
    section = config.section("quantization_config") or text.section("quantization_config")
    if section is None:
        return "modelopt" if hf_quant_config is not None and _is_modelopt(Config(hf_quant_config, "hf_quant_config.json")) else None
    method = section.text("quant_method") or "quantized"
    if config.text("expert_dtype") == "fp4" or section.text("expert_dtype") == "fp4":
        return f"{method} with fp4 experts"
    return "fp8" if method == "fbgemm_fp8" else method


def asks_for_quant_file(fields: Mapping[str, Any]) -> bool:
    """Whether hf_quant_config.json can matter beside this config."""
    return fields.get("quantization_config") is None


def _modelopt_file(config: Config) -> str | None:
    section = config.section("quantization")
    return _modelopt(section) if section is not None and _is_modelopt(config) else None


def _is_modelopt(config: Config) -> bool:
    producer = config.get("producer")
    return isinstance(producer, Mapping) and producer.get("name") == "modelopt"


def _modelopt(section: Config) -> str | None:
    """kv_cache_scheme, else kv_cache_quant_algo; a value of another form counts as none."""
    scheme = section.get("kv_cache_scheme")
    if isinstance(scheme, Mapping):
        match scheme.get("num_bits"), scheme.get("type"), scheme.get("dynamic"):
            case 8, "float", False:
                return "fp8_e4m3"
            case 4, "float", _:
                return "nvfp4"
            case _:
                return None
    algorithm = section.get("kv_cache_quant_algo")
    return {"FP8": "fp8_e4m3", "NVFP4": "nvfp4"}.get(algorithm) if isinstance(algorithm, str) else None
