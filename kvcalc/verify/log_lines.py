"""The lines of start-up logs that say something about memory, engine by engine.

Patterns are searched in lines that contain their anchor. None repeats a repetition, and every repetition is bounded, so that a hostile line costs no more
than its length.
"""

import re
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple

from kvcalc.units import BINARY_UNITS, DECIMAL_UNITS

EngineName = Literal["vllm", "sglang", "trtllm", "llama.cpp"]

UNIT_BYTES: Final[Mapping[str, int]] = {"bytes": 1, **BINARY_UNITS, "GB": DECIMAL_UNITS["GB"]}
"""Bytes of what a figure counts, where it counts memory."""

UNITS: Final[Mapping[str, str]] = {
    "requests": "x",
    "utilization": "of the GPU",
    **dict.fromkeys(("page_padding", "padding_layers"), "%"),
    **dict.fromkeys(("tokens", "context", "max_seq_len", "estimated_length", "stored_tokens", "block_tokens", "pool_tokens"), "tokens"),
    **dict.fromkeys(("full_tokens", "window_tokens", "swa_cells", "full_cells", "cells"), "tokens"),
    **dict.fromkeys(("blocks", "cpu_blocks"), "blocks"),
    **dict.fromkeys(("state_slots", "slots"), "requests"),
    **dict.fromkeys(("cache_layers", "state_layers"), "layers"),
    **dict.fromkeys(("in_use_bytes",), "bytes"),
    **dict.fromkeys(("kv_size_mib", "k_size_mib", "v_size_mib", "states_size_mib", "r_size_mib", "s_size_mib"), "MiB"),
    **dict.fromkeys(("model_buffer_mib", "kv_buffer_mib", "compute_buffer_mib", "host_buffer_mib"), "MiB"),
    **dict.fromkeys(("kv_budget_gb", "model_memory_gb"), "GB"),
}
"""Of the figures that are not GiB. What SGLang and old releases of vLLM print as GB is 2**30 bytes (facts of both: they divide by 1 << 30)."""


class LogLine(NamedTuple):
    """Text that a line contains in lower case, and where its figures stand: groups are named as the figures are."""

    engine: EngineName
    anchor: str
    pattern: re.Pattern[str]


_N: Final = r"\d[\d,]{0,18}"
_F: Final = r"-?\d{1,9}(?:\.\d{1,9})?"


def _line(engine: EngineName, anchor: str, pattern: str) -> LogLine:
    """In a pattern, N(name) is a count and F(name) a number with decimals."""
    named = re.sub(r"([NF])\((\w+)\)", lambda at: f"(?P<{at[2]}>{_N if at[1] == 'N' else _F})", pattern)
    return LogLine(engine, anchor, re.compile(named, re.IGNORECASE | re.ASCII))


# Figures without a prediction tell which engine a log is of.

# vLLM: vllm/v1/worker/gpu_worker.py, vllm/v1/core/kv_cache_utils.py (0.8 to 0.33); vllm/worker/worker.py, vllm/executor/ (0.6 to 0.8, the old engine).
_VLLM: Final = (
    _line("vllm", "model loading took", r"model loading took F(weights) GiB"),
    _line("vllm", "loading model weights took", r"loading model weights took F(weights) GB"),
    _line("vllm", "model load:", r"model load: F(weights) GiB"),
    _line("vllm", "model weights take", r"model weights take F(weights) ?GiB"),
    _line("vllm", "gib", r"\bweights F(weights) ?GiB"),
    _line("vllm", "gib weights", r"F(weights) GiB weights"),
    _line("vllm", "estimated cuda graph memory", r"estimated CUDA graph memory: F(graphs_estimated) GiB"),
    _line("vllm", "graph capturing", r"graph capturing (?:finished in \d{1,9} secs?, )?took F(graphs) GiB"),
    _line("vllm", "available kv cache memory", r"available KV cache memory: F(available) GiB"),
    _line("vllm", "available_kv_cache_memory", r"available_kv_cache_memory\W{1,3}F(available) ?GiB"),
    _line("vllm", "kv cache is", r"KV cache is F(available) ?GiB"),
    _line("vllm", "kv_cache_size=", r"kv_cache_size=F(available)GiB"),
    _line("vllm", "gpu kv cache size", r"GPU KV cache size: N(tokens) tokens"),
    _line("vllm", "pool size", r"pool size: N(tokens) tokens \(N(blocks) GPU blocks of N(block_tokens) tokens\)"),
    _line("vllm", "maximum concurrency for", r"maximum concurrency for N(context) tokens[^:]{0,20}: F(requests)x"),
    _line("vllm", "max concurrency", r"max concurrency F(requests)x at N(context)"),
    _line("vllm", "gpu blocks", r"# GPU blocks: N(blocks)"),
    _line("vllm", "cuda blocks", r"# CUDA blocks: N(blocks)"),
    _line("vllm", "num_gpu_blocks", r"num_gpu_blocks\W{1,3}N(blocks)"),
    _line("vllm", "cpu blocks", r"# CPU blocks: N(cpu_blocks)"),
    _line("vllm", "block size to", r"setting (?:kv cache|attention) block size to N(block_tokens)"),
    _line("vllm", "padding mamba page size", r"padding mamba page size by F(page_padding)%"),
    _line("vllm", "padding layers", r"may waste at most F(padding_layers)%"),
    _line("vllm", "total_gpu_memory", r"total_gpu_memory\W{1,3}F(total) ?GiB(?:\) x (?:gpu_memory_utilization )?\(?F(utilization)\)? = F(usable) ?GiB)?"),
    _line("vllm", "gpu_memory_utilization ", r"gpu_memory_utilization F(utilization)"),
    _line("vllm", "can use", r"can use F(usable) ?GiB"),
    _line("vllm", "non_torch_memory", r"non_torch_memory(?: takes|=)? ?F(non_torch) ?GiB"),
    _line("vllm", "gib for non-torch", r"F(non_torch) GiB for non-torch"),
    _line("vllm", "activation peak", r"activation peak (?:memory )?(?:takes )?F(activation) ?GiB"),
    _line("vllm", "peak activation", r"F(activation) GiB (?:for )?peak activation"),
    _line("vllm", "consumed", r"F(consumed) GiB (?:for )?consumed"),
    _line("vllm", "cudagraph", r"F(graphs) GiB (?:for )?CUDAGraph"),
    _line("vllm", "free memory on device", r"free memory on device[^(]{0,80}\(F(free)/F(total) GiB\)"),
    _line("vllm", "on startup", r"^\(F(free)/F(total) GiB\) on startup"),
    _line("vllm", "desired", r"desired[^(]{0,80}\(F(utilization), F(usable) GiB\)"),
    _line("vllm", "kv cache memory in use is", r"kv cache memory in use is N(in_use_bytes) bytes"),
    _line("vllm", "kv cache memory in use is", r"kv cache memory in use is F(in_use) GiB"),
    _line("vllm", "max seq len", r"max seq len \(N(max_seq_len)\)"),
    _line("vllm", "kv cache is needed", r"F(needed) GiB KV cache is needed"),
    _line("vllm", "kv cache is needed", r"KV cache is needed[^()]{0,200}\(F(available_for_requests) GiB\)"),
    _line("vllm", "estimated maximum model length", r"estimated maximum model length is N(estimated_length)"),
    _line("vllm", "stored in kv cache", r"stored in KV cache \(N(stored_tokens)\)"),
    _line("vllm", "max_tokens_cached", r"model_memory=F(model_memory_gb)GB"),
    _line("vllm", "max_tokens_cached", r"kv_budget=F(kv_budget_gb)GB, num_blocks=N(blocks), max_tokens_cached=N(tokens)"),
)

# SGLang: sglang/srt/mem_cache/, sglang/srt/model_executor/, sglang/srt/managers/scheduler.py (0.5.23).
_SGLANG: Final = (
    _line("sglang", "load weight", r"load weight begin\. avail mem=F(free) GB"),
    _line("sglang", "mem usage=", r"^(?!.{0,400}(?:capture|init torch)).{0,400}?mem usage=F(weights) GB"),
    _line("sglang", "capture", r"capture [^=]{0,120}mem usage=F(graphs) GB"),
    _line("sglang", "#tokens", r"#tokens: N(pool_tokens), K (?:size: )?F(k_size) GB, V (?:size: )?F(v_size) GB"),
    _line("sglang", "#tokens", r"#tokens: N(pool_tokens), KV size: F(kv_size) GB"),
    _line("sglang", "draft k", r"draft K F(draft_k_size) GB, V F(draft_v_size) GB"),
    _line("sglang", "full_layer_tokens", r"full_layer_tokens=N(full_tokens)"),
    _line("sglang", "swa_layer_tokens", r"swa_layer_tokens=N(window_tokens)"),
    _line(
        "sglang",
        "max_mamba_cache_size",
        r"max_mamba_cache_size: N(state_slots), conv(?:_state size:)? F(conv_size) ?GB, ssm(?:_state size:)? F(state_size) ?GB",
    ),
    _line("sglang", "max_total_num_tokens", r"max_total_num_tokens=N(tokens)"),
    _line("sglang", "max_running_requests", r"max_running_requests=N(slots)"),
    _line("sglang", "context_len", r"context_len=N(context)"),
    _line("sglang", "available_gpu_mem", r"available_gpu_mem=F(left) GB"),
)

# TensorRT-LLM: tensorrt_llm/_torch/pyexecutor/_util.py and the C++ KV cache manager.
_TRTLLM: Final = (
    _line("trtllm", "paged kv cache", r"allocated F(allocated) GiB for max tokens in paged KV cache \(N(tokens)\)"),
    _line("trtllm", "number of blocks in kv cache primary pool", r"number of blocks in KV cache primary pool: N(blocks)"),
    _line("trtllm", "primary blocks=", r"primary blocks=N(blocks)"),
    _line("trtllm", "tokens per block", r"tokens per block[:=] ?N(block_tokens)"),
    _line("trtllm", "for model weights", r"use F(weights) GB for model weights"),
    _line("trtllm", "peak memory", r"peak memory [^:]{0,80}: F(peak) GiB"),
    _line("trtllm", "peak memory", r"available KV cache memory[^:]{0,60}: F(available) GiB"),
    _line("trtllm", "device total memory", r"device total memory F(total) GiB"),
    _line("trtllm", "of total memory", r"free memory F(free) ?GiB of total memory F(total) ?GiB"),
    _line("trtllm", "fraction", r"fraction (?:is set )?F(utilization)\b"),
    _line("trtllm", "estimated max memory in kv cache", r"estimated max memory in KV cache ?: F(available) GiB"),
    _line("trtllm", "inside torch", r"memory used after loading model weights \(inside torch\)[^\d]{0,40}F(weights) GiB"),
    _line("trtllm", "inside torch", r"during inference \(inside torch\): F(activation) GiB"),
    _line("trtllm", "memory used outside torch", r"memory used outside torch: F(non_torch) GiB"),
)

# llama.cpp: src/llama-kv-cache.cpp, src/llama-memory-recurrent.cpp, src/llama-context.cpp (0c1e57098), and its forks and older names.
_DEVICE: Final = r"\b(?:CUDA|ROCm|HIP|Vulkan|SYCL|Metal|MTL|MUSA|CANN)[\d.]{0,6}"
"""A device of ggml's that is no CPU."""
_LLAMACPP: Final = (
    _line("llama.cpp", "n_ctx ", r"\bn_ctx {1,12}= N(context)"),
    _line("llama.cpp", "n_seq_max", r"\bn_seq_max {1,12}= N(slots)"),
    _line("llama.cpp", "kv self size", r"KV self size {1,4}= {0,8}F(kv_size_mib) MiB"),
    _line("llama.cpp", "size =", r"(?:llama_kv_cache\w{0,20}: |^)size = {0,8}F(kv_size_mib) MiB(?: \( {0,8}N(cells) cells, {1,4}N(cache_layers) layers)?"),
    _line("llama.cpp", "size =", r"recurrent\w{0,20}:? size = {0,8}F(states_size_mib) MiB(?: \( {0,8}N(state_slots) cells, {1,4}N(state_layers) layers)?"),
    _line("llama.cpp", " mib", r"\b(?:K|c\^KV) ?(?:\(\w{1,12}\): {0,8}F(k_size_mib) MiB)"),
    _line("llama.cpp", " mib", r"\bV \(\w{1,12}\): {0,8}F(v_size_mib) MiB"),
    _line("llama.cpp", "r (", r"\bR \(\w{1,12}\): {0,8}F(r_size_mib) MiB"),
    _line("llama.cpp", "s (", r"\bS \(\w{1,12}\): {0,8}F(s_size_mib) MiB"),
    _line("llama.cpp", "cells, ", r"layers\), K F(k_size_mib), V F(v_size_mib)$"),
    _line("llama.cpp", "creating non-swa", r"creating non-SWA KV cache, size = N(full_cells) cells"),
    _line("llama.cpp", "creating ", r"creating {1,8}SWA KV cache, size = N(swa_cells) cells"),
    _line("llama.cpp", "model buffer size", rf"{_DEVICE} model buffer size = {{0,8}}F(model_buffer_mib) MiB"),
    _line("llama.cpp", "kv buffer size", rf"{_DEVICE} KV buffer size = {{0,8}}F(kv_buffer_mib) MiB"),
    _line("llama.cpp", "compute buffer size", rf"{_DEVICE} compute buffer size = {{0,8}}F(compute_buffer_mib) MiB"),
    _line("llama.cpp", "buffer size", r"(?:CPU\w{0,12}|_Host|host) (?:model|KV|compute|output) buffer size = {0,8}F(host_buffer_mib) MiB"),
    # as people retell them
    _line("llama.cpp", "kv ", r"^KV F(kv_size_mib) MiB$"),
    _line("llama.cpp", "keys ", r"^Keys F(k_size_mib) MiB$"),
    _line("llama.cpp", "values ", r"^Values F(v_size_mib) MiB at N(context) ctx$"),
    _line("llama.cpp", "slots allocates", r"ctx N(context) with N(slots) slots allocates N(cells) cells / F(kv_size_mib) MiB"),
)

LINES: Final = (*_VLLM, *_SGLANG, *_TRTLLM, *_LLAMACPP)

LOOKED_FOR: Final = (
    "'GPU KV cache size: ... tokens' or '# GPU blocks: ...' (vLLM), 'KV Cache is allocated. ... #tokens: ...' (SGLang), "
    "'Allocated ... GiB for max tokens in paged KV cache' (TensorRT-LLM), 'llama_kv_cache: size = ... MiB' (llama.cpp)"
)

Failed = Literal["length", "none_left", "occupied", "out_of_memory"]
FAILURES: Final[tuple[tuple[str, Failed], ...]] = (
    ("kv cache is needed", "length"),
    ("tokens that can be stored in kv cache", "length"),
    ("stored in kv cache (", "length"),
    ("no available memory for the cache blocks", "none_left"),
    ("cannot auto-fit max_model_len", "none_left"),
    ("not enough memory. please try to increase --mem-fraction-static", "none_left"),
    ("is less than desired gpu memory utilization", "occupied"),
    ("cuda out of memory", "out_of_memory"),
    ("outofmemoryerror", "out_of_memory"),
    ("failed to allocate buffer for kv cache", "out_of_memory"),
    ("cudamalloc failed: out of memory", "out_of_memory"),
)
"""Text of lines, in lower case, that say why an engine did not start."""

STARTS: Final = ("vllm api server version", "server_args=serverargs(", "[tensorrt-llm] tensorrt-llm version", "build_info: b")
"""Lines with which a server begins, in lower case: what stands before the last of them is another start."""

RELEASES: Final[tuple[tuple[EngineName, re.Pattern[str]], ...]] = (
    ("vllm", re.compile(r"vLLM API server version v?(\d{1,3}\.\d{1,3}[\w.+]{0,60})")),
    ("vllm", re.compile(r"LLM engine \(v?(\d{1,3}\.\d{1,3}[\w.+]{0,60})\)")),
    ("sglang", re.compile(r"\bsglang[ =]{1,2}v?(\d\.\d{1,3}[\w.+]{0,40})")),
    ("trtllm", re.compile(r"TensorRT-LLM version: (\d{1,3}\.\d{1,3}[\w.+]{0,40})")),
    ("llama.cpp", re.compile(r"\bbuild(?:_info)?: (b?\d{1,7}(?:[ -]\(?[0-9a-f]{7,12}\)?)?)")),
)
