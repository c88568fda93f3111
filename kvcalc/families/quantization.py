"""The KV dtype that a checkpoint's quantization names, read as vLLM 0.33.0 reads it. How the weights are stored never decides it."""

from collections.abc import Mapping
from typing import Any

from kvcalc.families.config import MAX_SIZE, Config
from kvcalc.quantizations import BNB_4BIT, FP8_ROW, FP8_STATIC, FP8_TENSOR, INT8_ROW, MXFP4, NVFP4, fp8_block, grouped_int
from kvcalc.tensors import Quantization, Scheme


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


# How the weights are stored


def quantization(config: Config, text: Config, hf_quant_config: Mapping[str, Any] | None) -> Quantization | None:
    """How the checkpoint stores its matrices; None where it is not quantized. A method that is not known here has no schemes."""
    section = config.section("quantization_config") or text.section("quantization_config")
    if section is None:
        file = None if hf_quant_config is None else Config(hf_quant_config, "hf_quant_config.json")
        stated = None if file is None or not _is_modelopt(file) else file.section("quantization")
        return None if stated is None else _modelopt_weights(stated)
    skipped = (section.strings(name) for name in ("modules_to_not_convert", "ignore", "llm_int8_skip_modules"))
    kept = tuple((name, None) for name in next((names for names in skipped if names), ()))
    return _by_method(section, kept, fp4_experts="fp4" in (config.text("expert_dtype"), section.text("expert_dtype")))


def _by_method(section: Config, kept: tuple[tuple[str, None], ...], *, fp4_experts: bool) -> Quantization:
    match section.text("quant_method"):
        case "fp8" if section.get("moe_quant_algo") == "NVFP4":
            return Quantization(method="fp8", scheme=fp8_block(128, 128, 1), experts=NVFP4)
        case "fp8":
            return Quantization(method="fp8", scheme=_fp8(section, fp4_experts=fp4_experts), experts=MXFP4 if fp4_experts else None, named=kept)
        case "fbgemm_fp8":
            return Quantization(method="fbgemm_fp8", scheme=FP8_ROW, named=kept)
        case ("awq" | "gptq") as method:
            return Quantization(method=method, scheme=_grouped(section, method), named=kept)
        case "mxfp4":
            return Quantization(method="mxfp4", experts=MXFP4, named=kept)
        case "bitsandbytes":
            eight = section.flag("load_in_8bit", absent=section.flag("_load_in_8bit", absent=False))
            return Quantization(method="bitsandbytes", scheme=INT8_ROW if eight else BNB_4BIT, named=kept)
        case "compressed-tensors":
            return _compressed_tensors(section, kept)
        case None if section.get("bits") is not None and section.get("group_size") is not None:
            scheme = grouped_int(section.size("bits"), section.size("group_size"), zeros=False, name="mlx")
            return Quantization(method="mlx", scheme=scheme.model_copy(update={"scale_bytes": 4}), whole=True)
        case method if method is not None and method.startswith("modelopt"):
            return _modelopt_weights(section)
        case method:
            return Quantization(method=method or "quantized")


def _grouped(section: Config, method: str) -> Scheme:
    """AWQ and GPTQ: a group size of -1 is the whole row."""
    bits, group = section.optional("bits", "w_bit"), section.get("group_size")
    size = group if isinstance(group, int) and not isinstance(group, bool) and group > 0 else MAX_SIZE
    return grouped_int(4 if bits is None else bits, size, zeros=True, name=method)


def _fp8(section: Config, *, fp4_experts: bool) -> Scheme:
    """By block where the config states its size, else by tensor. Scales beside FP4 experts are of one byte (DeepSeek-V4)."""
    block = section.numbers("weight_block_size", 1)
    if block is not None and len(block) == 2:
        return fp8_block(block[0], block[1], 1 if fp4_experts else 4)
    return FP8_STATIC if section.text("activation_scheme") == "static" else FP8_TENSOR


def _modelopt_weights(section: Config) -> Quantization:
    """One algorithm for all but the excluded modules, or one for each of `quantized_layers` and none for the rest."""
    algorithm, excluded = section.text("quant_algo"), section.strings("exclude_modules") or section.strings("ignore") or ()
    schemes = {
        "FP8": FP8_STATIC,
        "NVFP4": NVFP4,
        "W4A16_NVFP4": NVFP4,
        "FP8_PB_WO": fp8_block(128, 128),
        "W4A16_AWQ": grouped_int(4, 128, zeros=True, name="awq"),
    }
    listed = section.get("quantized_layers")
    if algorithm == "MIXED_PRECISION" and isinstance(listed, Mapping):
        algorithms = {name: each.get("quant_algo") if isinstance(each, Mapping) else None for name, each in listed.items()}
        return Quantization(method="modelopt", named=tuple((name, schemes.get(found)) for name, found in algorithms.items() if isinstance(found, str)))
    return Quantization(method="modelopt", scheme=schemes.get(algorithm or ""), named=tuple((name, None) for name in excluded))


def _compressed_tensors(section: Config, kept: tuple[tuple[str, None], ...]) -> Quantization:
    """The scheme of each group of targets; a group that targets Linear is for all."""
    groups = section.section("config_groups")
    everything: Scheme | None = None
    named: list[tuple[str, Scheme | None]] = list(kept)
    for name in groups.fields if groups is not None else ():
        group = groups.section(name) if groups is not None else None
        weights = None if group is None else group.section("weights")
        if group is None or weights is None:
            continue
        scheme = _of_weights(weights, group.text("format") or section.text("format") or "")
        targets = group.strings("targets") or ()
        if "Linear" in targets:
            everything = scheme
        named += [(target, scheme) for target in targets if target != "Linear"]
    return Quantization(method="compressed-tensors", scheme=everything, named=tuple(named))


def _of_weights(weights: Config, form: str) -> Scheme | None:
    """The scheme of one group (compressed-tensors, quantization/quant_args.py)."""
    bits, kind, strategy, group = weights.optional("num_bits"), weights.text("type"), weights.text("strategy"), weights.optional("group_size")
    match kind, bits, strategy or ("group" if group else "tensor"):
        case "float", 4, _ if form.startswith("mxfp4") or group == 32:
            return MXFP4
        case "float", 4, _:
            return NVFP4
        case "float", 8, "block":
            block = weights.numbers("block_structure", 1) or (128, 128)
            return fp8_block(block[0], block[-1])
        case "float", 8, "channel":
            return FP8_ROW
        case "float", 8, _:
            return FP8_TENSOR
        case "int", 8, "channel":
            return INT8_ROW
        case "int", int(), "group" if group is not None:
            return grouped_int(bits, group, zeros=not weights.flag("symmetric", absent=True), name=f"int{bits}")
        case "int", int(), "channel":
            return Scheme(name=f"int{bits}", bits=bits, per="row", scale_bytes=2)
        case _:
            return None
