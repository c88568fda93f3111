"""What `vllm serve` is told: batch sizes by default, and the command line that realises a plan."""

import json
import shlex
from typing import Final, NamedTuple

from kvcalc.engines.base import Options
from kvcalc.engines.vllm.versions import Version
from kvcalc.errors import KvcalcError
from kvcalc.layers import Facts
from kvcalc.units import BINARY_UNITS

GIB: Final = BINARY_UNITS["GiB"]
GEMMA4_ITEM_TOKENS: Final = 2496
"""Tokens of one multimodal item of Gemma 4 (32 video frames of 78): a batch must hold one (vllm/model_executor/models/gemma4_mm.py)."""


class BatchSizes(NamedTuple):
    """`tokens` in a batch (max_num_batched_tokens) and `seqs` requests running (max_num_seqs)."""

    tokens: int
    seqs: int


def batch_sizes(options: Options, facts: Facts, version: Version) -> BatchSizes:
    """The user's, else the server's defaults for the GPU (EngineArgs.get_batch_defaults, vllm/engine/arg_utils.py)."""
    default = _by_device(options, version)
    both_ways = facts.image_prefix and facts.model_type == "gemma4"
    tokens = default.tokens if not both_ways else max(default.tokens, GEMMA4_ITEM_TOKENS)
    if options.max_batched_tokens is not None:
        tokens = options.max_batched_tokens
        if both_ways and tokens < GEMMA4_ITEM_TOKENS:
            raise KvcalcError(
                f"vLLM: an image or video of this model takes {GEMMA4_ITEM_TOKENS:,} tokens, more than --max-batched-tokens {tokens:,}",
                hint=f"use --max-batched-tokens {GEMMA4_ITEM_TOKENS} or more",
            )
    seqs = default.seqs if options.max_seqs is None else options.max_seqs
    return BatchSizes(tokens, min(seqs, tokens))


def _by_device(options: Options, version: Version) -> BatchSizes:
    if not version.batches_by_device:
        return BatchSizes(2048, 256)
    if options.device is None:
        return BatchSizes(2048, 128)
    name = options.device.name.lower()
    if ("a100" in name and version.spares_a100) or "gb10" in name:
        return BatchSizes(2048, 256)
    if options.max_batched_tokens is not None and options.max_seqs is not None:
        return BatchSizes(options.max_batched_tokens, options.max_seqs)
    found = {_by_memory(memory, version) for memory in options.device.memory_sizes}
    if len(found) != 1:
        raise KvcalcError(f"vLLM's batch sizes depend on how much memory {options.device.name} has, which is not known", hint="state it with --gpu-mem")
    return found.pop()


def _by_memory(memory: int, version: Version) -> BatchSizes:
    if memory >= 160 * GIB and version.has_large_tier:
        return BatchSizes(16384, 1024)
    return BatchSizes(8192, 1024) if memory >= 70 * GIB else BatchSizes(2048, 256)


def serve_command(version: Version, options: Options, model: str, context: int, *, kv_bytes: int | None, utilization: str | None) -> str:
    """A `vllm serve` line. Raises KvcalcError for what this release has no flag for."""
    words = ["vllm", "serve", shlex.quote(model), "--max-model-len", str(context)]
    numbers = {
        "--tensor-parallel-size": options.tp if options.tp > 1 else None,
        "--pipeline-parallel-size": options.pp if options.pp > 1 else None,
        "--data-parallel-size": options.dp if options.dp > 1 else None,
        "--decode-context-parallel-size": options.dcp if options.dcp > 1 else None,
        "--kv-cache-dtype": None if options.kv_dtype.k == "auto" else _dtype_word(options.kv_dtype.k),
        "--kv-cache-memory-bytes": kv_bytes,
        "--gpu-memory-utilization": utilization,
        "--block-size": options.block_size,
        "--max-num-batched-tokens": options.max_batched_tokens,
        "--max-num-seqs": options.max_seqs,
        "--mamba-ssm-cache-dtype": None if options.state_dtype is None else _STATE_WORDS[options.state_dtype],
        "--speculative-config": _speculative(options),
        "--max-loras": options.max_loras or None,
        "--max-lora-rank": options.max_lora_rank if options.max_loras else None,
    }
    switches = {
        "--enable-lora": options.max_loras > 0,
        "--enable-expert-parallel": options.expert_parallel,
        "--language-model-only": not options.towers,
        "--enforce-eager": options.enforce_eager,
        "--no-enable-prefix-caching": not options.prefix_caching,
        "--disable-hybrid-kv-cache-manager": not options.hybrid_manager,
        "--no-async-scheduling": not options.async_scheduling,
    }
    if kv_bytes is not None and not version.has_flag("--kv-cache-memory-bytes"):
        del numbers["--kv-cache-memory-bytes"]  # a release that takes its budget only as a part of the GPU's memory
    for flag, value in numbers.items():
        if value is not None:
            version.check_flag(flag)
            words += [flag, str(value)]
    for flag, wanted in switches.items():
        if wanted:
            version.check_flag(flag)
            words.append(flag)
    return " ".join(words)


def _speculative(options: Options) -> str | None:
    """The JSON of the drafter, quoted for a shell."""
    if options.draft is not None:
        return shlex.quote(json.dumps({"model": options.draft_served_as, "num_speculative_tokens": options.speculative_tokens}))
    return shlex.quote(json.dumps({"method": "mtp", "num_speculative_tokens": options.speculative_tokens})) if options.draft_layers else None


_STATE_WORDS: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def _dtype_word(name: str) -> str:
    return _STATE_WORDS.get(name, name)
