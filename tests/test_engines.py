"""What holds for every engine and every preset: a plan that is consistent in itself, or one line that says why there is none."""

from functools import cache

import pytest

from kvcalc.catalog import load_model, preset_names
from kvcalc.engines import ENGINES, find_engine
from kvcalc.engines.base import Options, Plan
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.layers import ModelSpec

ANSWERED = {"ideal": 161, "transformers": 157, "vllm": 161, "sglang": 149, "trtllm": 120, "llama.cpp": 152, "ollama": 152}
"""At least so many of the presets have a plan."""


@cache
def spec_of(preset: str) -> ModelSpec:
    return load_model(preset).spec


def check(plan: Plan, tokens: int) -> None:
    """Needs grow with the length, uses sum to what is held, and what is held is a whole number of units."""
    (pool,) = plan.pools
    need, more = plan.need(tokens)[0], plan.need(2 * tokens)[0]
    assert 0 <= need <= more
    assert plan.total_bytes(tokens, 1) >= plan.resident_bytes(tokens, 1) >= 0
    assert plan.token_bytes(tokens) >= 0
    assert all(use.size_bytes >= 0 for use in plan.uses(tokens))
    if need:
        assert plan.capacity((1 << 40) // pool.unit_bytes, tokens).requests > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_every_preset_has_a_plan_or_a_reason(engine: str) -> None:
    rules, answered = find_engine(engine), 0
    refused: list[KvcalcError] = []
    for preset in preset_names():
        try:
            plan = rules.plan(spec_of(preset), Options())
        except KvcalcError as error:
            refused.append(error)
            continue
        for tokens in (1, 1000, 8192):
            check(plan, tokens)
        answered += 1
    assert answered >= ANSWERED[engine]
    assert all(error.code == ExitCode.UNANSWERABLE and len(error.message) < 250 and error.hint for error in refused)
