"""The command line that starts an SGLang server (flags: sglang/srt/arg_groups/fields 0.5.23)."""

import shlex
from typing import Final

from kvcalc.engines.base import Options

STATE_WORDS: Final = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def serve_command(options: Options, model: str, context: int, *, max_tokens: int | None, part: str | None) -> str:
    """A `python -m sglang.launch_server` line, with the pool stated in tokens, or with another part of the memory than the default."""
    words = ["python", "-m", "sglang.launch_server", "--model-path", shlex.quote(model), "--context-length", str(context)]
    drafted = options.speculative_tokens if options.draft_layers or options.draft is not None else 0
    dtype = "fp8_e4m3" if options.kv_dtype.k == "fp8" else options.kv_dtype.k
    values = {
        "--tp-size": options.tp if options.tp > 1 else None,
        "--pp-size": options.pp if options.pp > 1 else None,
        "--dp-size": options.dp if options.dp > 1 else None,
        "--dcp-size": options.dcp if options.dcp > 1 else None,
        "--ep-size": options.tp if options.expert_parallel else None,
        "--mem-fraction-static": part,
        "--max-total-tokens": max_tokens,
        "--kv-cache-dtype": None if dtype == "auto" else dtype,
        "--page-size": options.block_size,
        "--swa-full-tokens-ratio": options.swa_ratio,
        "--mamba-full-memory-ratio": options.mamba_ratio,
        "--mamba-ssm-dtype": None if options.state_dtype is None else STATE_WORDS[options.state_dtype],
        "--chunked-prefill-size": options.max_batched_tokens,
        "--max-running-requests": options.max_seqs,
        "--speculative-algorithm": None if not drafted else "STANDALONE" if options.draft is not None else "NEXTN",
        "--speculative-draft-model-path": shlex.quote(options.draft_served_as) if options.draft is not None else None,
        "--speculative-num-steps": drafted or None,
        "--speculative-eagle-topk": 1 if drafted else None,
        "--speculative-num-draft-tokens": drafted + 1 if drafted else None,
        "--max-loras-per-batch": options.max_loras or None,
        "--max-lora-rank": options.max_lora_rank if options.max_loras else None,
    }
    switches = {
        "--enable-dp-attention": options.dp_attention,
        "--disable-radix-cache": not options.prefix_caching,
        "--cuda-graph-backend-decode disabled --cuda-graph-backend-prefill disabled": options.enforce_eager,
        "--language-model-only": not options.towers,
        "--enable-lora": options.max_loras > 0,
    }
    words += [f"{flag} {value}" for flag, value in values.items() if value is not None]
    words += [flag for flag, wanted in switches.items() if wanted]
    return " ".join(words)
