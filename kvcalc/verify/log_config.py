"""The configuration that a start-up log states: the engine's words, and what the command line calls them."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kvcalc.engines.vllm.versions import modelled_engine
from kvcalc.errors import KvcalcError, printable
from kvcalc.packing import parse_kv_dtype, parse_state_dtype
from kvcalc.units import parse_count, parse_part, parse_ratio

_VALUE: Final = r"""(?=('[^']{0,400}'|"[^"]{0,400}"|[\w.+/:~-]{1,400}))"""
_SWITCH: Final = re.compile(r"--([a-z][a-z-]{1,50})(?=\s|$)", re.ASCII)
_SHORT: Final = re.compile(r"(?<!\S)-(tp|pp|dp|dcp|np|c|m|ctk|ctv|ub|fa)\s{1,3}([\w./:-]{1,400})", re.ASCII)
_SERVED: Final = re.compile(r"vllm serve ([\w./:~-]{1,400})", re.ASCII)
_MTP: Final = re.compile(r"method['\"]?\s?[=:]\s?['\"]?(\w{0,40})['\"]?,[^)}]{0,400}?num_spec(?:ulative)?_tokens['\"]?\s?[=:]\s?(\d{1,3})", re.ASCII)

# What the lines of an engine's configuration contain, in lower case: vLLM's API server (log_non_default_args, vllm/entrypoints/utils.py) and engine core
# (vllm/v1/engine/core.py), both as logs of 0.11.2 print them; what other engines print of their arguments; and the command lines that start them.
_CONFIG_LINES: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": (
        "llm engine (v",
        "non-default args",
        "args: namespace(",
        "initializing an llm engine",
        "vllm serve ",
        "vllm.entrypoints",
        "max_num_batched_tokens=",
        "tensor_parallel_size=",
    ),
    "sglang": ("server_args=", "sglang.launch_server", "launch_server ", "sglang serve"),
    "trtllm": ("trtllm-serve", "trtllm-bench", "llmargs(", "torchllmargs(", "kvcacheconfig("),
    "llama.cpp": ("llama-server ", "llama-cli "),
}

_NAMES: Final[Mapping[str, Mapping[str, str]]] = {
    "vllm": {
        "model": "model",
        "model_tag": "model",
        "max_seq_len": "context",
        "max_model_len": "context",
        "tensor_parallel_size": "tp",
        "pipeline_parallel_size": "pp",
        "data_parallel_size": "dp",
        "decode_context_parallel_size": "dcp",
        "kv_cache_dtype": "kv_dtype",
        "gpu_memory_utilization": "utilization",
        "max_num_batched_tokens": "max_batched_tokens",
        "max_num_seqs": "max_seqs",
        "block_size": "block_size",
        "enforce_eager": "enforce_eager",
        "enable_prefix_caching": "prefix_caching",
        "no_enable_prefix_caching": "no_prefix_caching",
        "disable_hybrid_kv_cache_manager": "disable_hybrid_kv_cache_manager",
        "mamba_ssm_cache_dtype": "mamba_ssm_cache_dtype",
        "enable_expert_parallel": "expert_parallel",
        "language_model_only": "language_model_only",
        "quantization": "quantization",
    },
    "sglang": {
        "model_path": "model",
        "model": "model",
        "context_length": "context",
        "tp_size": "tp",
        "tensor_parallel_size": "tp",
        "pp_size": "pp",
        "dp_size": "dp",
        "kv_cache_dtype": "kv_dtype",
        "mem_fraction_static": "mem_fraction_static",
        "chunked_prefill_size": "max_batched_tokens",
        "max_running_requests": "max_seqs",
        "page_size": "page_size",
        "disable_cuda_graph": "enforce_eager",
        "disable_radix_cache": "no_prefix_caching",
        "swa_full_tokens_ratio": "swa_full_tokens_ratio",
        "mamba_full_memory_ratio": "mamba_full_memory_ratio",
        "mamba_ssm_dtype": "mamba_ssm_cache_dtype",
        "enable_dp_attention": "enable_dp_attention",
        "quantization": "quantization",
    },
    "trtllm": {
        "model": "model",
        "tensor_parallel_size": "tp",
        "tp_size": "tp",
        "pipeline_parallel_size": "pp",
        "pp_size": "pp",
        "max_seq_len": "context",
        "max_num_tokens": "max_batched_tokens",
        "max_batch_size": "max_seqs",
        "tokens_per_block": "block_size",
        "free_gpu_memory_fraction": "utilization",
        "kv_cache_free_gpu_memory_fraction": "utilization",
        "enable_attention_dp": "enable_dp_attention",
    },
    "llama.cpp": {
        "model": "model",
        "hf": "model",
        "ctx_size": "context",
        "parallel": "max_seqs",
        "ubatch_size": "ubatch_size",
        "cache_type_k": "k",
        "cache_type_v": "v",
    },
}
"""The engine's word for an option, and the command line's name for it: EngineArgs (vllm/engine/arg_utils.py) and the engine's own attributes as it prints
them, ServerArgs (sglang/srt/server_args.py 0.5.23), LlmArgs (tensorrt_llm/llmapi/llm_args.py), and common/arg.cpp of llama.cpp (0c1e57098).
"""


def _either(names: Iterable[str]) -> str:
    """The longest first: the first that matches is taken."""
    return "|".join(name.replace("_", "[-_]") for name in sorted(names, key=len, reverse=True))


_SETTINGS: Final = {
    engine: re.compile(
        rf"""(?:--|(?<![\w-])['"]?)({_either(names)})['"]?\s{{0,3}}[=: ]\s{{0,3}}{_VALUE}""",
        re.ASCII,
    )
    for engine, names in _NAMES.items()
}
"""A setting and its value, which is looked at without taking it, so that a value may begin with a setting."""

_SHORT_NAMES: Final = {"ctk": "k", "ctv": "v", "c": "context", "m": "model", "np": "max_seqs", "ub": "ubatch_size", "fa": "flash_attn"}
_LLAMACPP_LINES: Final = (
    ("n_ubatch", "ubatch_size", re.compile(r"\bn_ubatch\s{1,12}= (\d{1,9})", re.ASCII)),
    ("kv_unified", "kv_unified", re.compile(r"\bkv_unified\s{1,12}= (true|false|0|1)", re.ASCII)),
    ("flash_attn", "flash_attn", re.compile(r"\bflash_attn\s{1,12}= (\w{1,9})", re.ASCII)),
    ("(version gguf", "model", re.compile(r"tensors from (.{1,300}?\.gguf) \(version GGUF")),
    ("k (", "k", re.compile(r"(?:\bK|c\^KV) \((\w{1,12})\):", re.ASCII)),
    ("v (", "v", re.compile(r"\bV \((\w{1,12})\):", re.ASCII)),
)

_QUANTIZATIONS: Final = {
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "fp8": "fp8",
    "modelopt_fp4": "nvfp4",
    "mxfp4": "mxfp4",
    "bitsandbytes": "bnb-4bit",
}
"""Names of vLLM and SGLang for how weights are stored (compressed-tensors does not say)."""


def settings_in(engine: str, line: str, low: str) -> dict[str, str]:
    """Settings on a line of the log, by the command line's names; of several of one name the first counts: later ones are of a drafter."""
    found: dict[str, str] = {}
    if engine == "llama.cpp":
        found = {name: match.group(1) for anchor, name, pattern in _LLAMACPP_LINES if anchor in low and (match := pattern.search(line)) is not None}
    if not any(text in low for text in _CONFIG_LINES[engine]):
        return found
    names = _NAMES[engine]
    for word, value in _SETTINGS[engine].findall(line):
        name = names[word.replace("-", "_")]
        text = value.strip("'\"").rstrip(",.")
        if text not in ("None", "", "null"):
            found.setdefault(name, text)
    for word in _SWITCH.findall(line):
        name = names.get(word.replace("-", "_"), "")
        if name in _FLAGS:
            found[name] = "True"
    for word, value in _SHORT.findall(line) if "-" in line else ():
        found.setdefault(_SHORT_NAMES.get(word, word), value)
    if engine == "vllm" and (served := _SERVED.search(line)) is not None:
        found["model"] = served.group(1)
    if (drafted := _MTP.search(line)) is not None and "mtp" in drafted.group(1).lower():
        found["mtp"] = drafted.group(2)
    return found


_FLAGS: Final = (
    "enforce_eager",
    "no_prefix_caching",
    "disable_hybrid_kv_cache_manager",
    "expert_parallel",
    "language_model_only",
    "enable_dp_attention",
)
_COUNTS: Final = ("tp", "pp", "dp", "dcp", "context", "max_batched_tokens", "max_seqs", "block_size", "page_size", "ubatch_size", "mtp")
_PARTS: Final = ("utilization", "mem_fraction_static", "swa_full_tokens_ratio")
_TRUE: Final = ("true", "1", "on", "enabled")
_FALSE: Final = ("false", "0", "off", "disabled")


def parsed(engine: str, release: str | None, settings: Mapping[str, str]) -> dict[str, Any]:
    """The settings as the command line parses them. Words that it does not know are left out: the model's own then count."""
    found: dict[str, Any] = {"engine": (modelled_engine(release) if engine == "vllm" else None) or engine}
    for names, parse in ((_COUNTS, parse_count), (_PARTS, parse_part), (("mamba_ssm_cache_dtype",), parse_state_dtype)):
        for name in names:
            _keep(found, name, settings.get(name), parse)
    _keep(found, "mamba_full_memory_ratio", settings.get("mamba_full_memory_ratio"), parse_ratio)
    _keep(found, "kv_dtype", _kv_dtype(settings), parse_kv_dtype)
    for name in _FLAGS:
        _keep(found, name, settings.get(name), _switch)
    _keep(found, "kv_unified", settings.get("kv_unified"), _switch)
    if settings.get("prefix_caching", "").lower() in _FALSE:
        found["no_prefix_caching"] = True
    if settings.get("flash_attn", "").lower() in (*_TRUE, *_FALSE):
        found["flash_attn"] = "on" if settings["flash_attn"].lower() in _TRUE else "off"
    if (stored := _QUANTIZATIONS.get(settings.get("quantization", "").lower())) is not None:
        found["quantization"] = stored
    if settings.get("model"):
        found["model"] = printable(settings["model"])
    return found


def _keep(found: dict[str, Any], name: str, text: str | None, parse: Callable[[str], Any]) -> None:
    if text is None:
        return
    try:
        found[name] = parse(text)
    except KvcalcError:
        return  # a word of the engine that is no number here, such as -1 or auto


def _switch(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise KvcalcError(f"{text[:40]!r} is neither on nor off")


def _kv_dtype(settings: Mapping[str, str]) -> str | None:
    if "k" in settings or "v" in settings:
        k = settings.get("k", settings.get("v", ""))
        return f"k={k},v={settings.get('v', k)}"
    text = settings.get("kv_dtype")
    return None if text is None else _ASKED_FOR.get(text, text.removeprefix("torch."))


_ASKED_FOR: Final = {"fp8_ds_mla": "fp8"}
"""What vLLM makes of an option by itself, and prints."""
