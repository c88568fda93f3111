"""Which engines keep what a prompt begins with for the next one, and in what pieces."""

from math import lcm
from typing import Final

from kvcalc.engines.base import Plan
from kvcalc.errors import KvcalcError
from kvcalc.search import largest

NO_REUSE: Final = {
    "ideal": "the bare formula keeps nothing from one request to the next",
    "transformers": "transformers keeps nothing from one request to the next",
    "llama.cpp": "llama.cpp keeps the last prompt of each slot and a store of past ones in CPU memory, and which slot a prompt gets is not modelled",
    "ollama": "Ollama keeps the last prompt of each slot, and which slot a prompt gets is not modelled",
}
"""Engines of which the question has no answer here."""
REUSING: Final = "vllm, sglang and trtllm"
MOST_BLOCK: Final = 1 << 16
"""Tokens: larger than any block."""


def check_reuse(engine: str, *, prefix_caching: bool) -> None:
    """Raises KvcalcError for an engine that reuses no prefix, or is told not to."""
    if engine in NO_REUSE:
        raise KvcalcError(NO_REUSE[engine], hint=f"--engine takes {REUSING} here")
    if not prefix_caching:
        raise KvcalcError(f"{engine} is told to reuse no prefix", hint="leave out --no-prefix-caching")


def block_tokens(plan: Plan) -> int:
    """Tokens after which all of a prefix can be reused: a block of every group of layers, on all GPUs that share its tokens (vllm/v1/core/kv_cache_utils.py
    0.33.0, resolve_kv_cache_block_sizes). Raises KvcalcError where nothing grows.
    """
    first = plan.need(1)
    block = largest(lambda tokens: plan.need(tokens) == first, MOST_BLOCK)
    if block == MOST_BLOCK:
        raise KvcalcError("the model keeps a state and no tokens, so that there are no blocks to share", hint="`kvcalc estimate` says what it keeps")
    return lcm(block, plan.pools[0].unit_rows)
