"""Every published config of a collection beside the checkout, against layers that come from engines' own code. Skips where it is missing."""

import json
from decimal import Decimal
from functools import cache
from typing import Any

import pytest

from kvcalc.engines.base import Options
from kvcalc.engines.ideal import IDEAL
from kvcalc.engines.vllm import NEWEST_VLLM
from kvcalc.errors import KvcalcError
from kvcalc.families import read_config
from kvcalc.gpus import find_gpu
from kvcalc.packing import parse_kv_dtype, parse_state_dtype
from kvcalc.tensors import WeighedModel
from tests.collection import COLLECTION

GEOMETRY = COLLECTION / "golden" / "geometry.jsonl"
ROWS = [json.loads(line) for line in GEOMETRY.read_text().splitlines()] if GEOMETRY.is_file() else []
BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "model dtype": 2}

pytestmark = pytest.mark.skipif(not ROWS, reason="no collection of configs beside the checkout")


def held(row: dict[str, Any], tokens: int) -> int:
    """Bytes of one request in bf16, by the groups of the table."""
    total = 0
    for group in row["groups"]:
        kind, count = group["kind"], group["count"]
        kept = min(tokens, group.get("window") or group.get("chunk") or tokens) // group.get("tokens_per_entry", 1)
        if kind in ("full", "sliding", "chunked", "mla"):
            total += count * kept * group["kv_heads"] * (group["k_dim"] + group["v_dim"]) * 2
        elif kind == "indexer":
            total += count * kept * group["index_dim"] * 2
        elif kind == "state":
            total += count * sum(state["elements"] * BYTES[state["dtype"]] for state in group["states"])
    return total


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["config_dir"])
def test_every_config_is_answered_right_or_refused_for_a_reason(row: dict[str, Any]) -> None:
    folder = COLLECTION / "corpus" / "configs" / row["config_dir"]
    fields = json.loads((folder / "config.json").read_bytes(), parse_float=Decimal)
    if row["source"] == "none":
        with pytest.raises(KvcalcError, match="keeps no KV cache"):
            read_config(fields)
        return
    plan = IDEAL.plan(read_config(fields), Options(kv_dtype=parse_kv_dtype("bf16"), encoder_tokens=0))
    windows = [group.get("window") or group["chunk"] for group in row["groups"] if group["kind"] in ("sliding", "chunked")]
    compressed = any(group.get("tokens_per_entry", 1) != 1 or "role" in group for group in row["groups"])
    if compressed:  # windows of compressors and rings are the engines' matter: growth alone is compared
        assert plan.need(2 << 20)[0] - plan.need(1 << 20)[0] == held(row, 2 << 20) - held(row, 1 << 20)
        return
    for tokens in {8, 1 << 20, *(window + more for window in windows for more in (-1, 0, 1))}:
        assert plan.need(tokens) == (held(row, tokens),)


# Plans that vLLM's own code made for the same configs.

PLANS_FILE = COLLECTION / "golden" / "vllm.jsonl"
PLANS = [json.loads(line) for line in PLANS_FILE.read_text().splitlines()] if PLANS_FILE.is_file() else []


@pytest.mark.skipif(not PLANS, reason="no collection of plans beside the checkout")
@pytest.mark.parametrize("folder", sorted({row["config_dir"] for row in PLANS}))
def test_every_plan_is_that_of_vllm(folder: str) -> None:
    spec = read(folder)
    for row in (row for row in PLANS if row["config_dir"] == folder):
        plan = NEWEST_VLLM.plan(spec, vllm_options(row["args"], row["max_num_batched_tokens"], row["max_num_seqs"]))
        blocks = row["available_bytes"] // plan.pools[0].unit_bytes
        held = plan.capacity(blocks, row["max_model_len"])
        assert (blocks, held.tokens) == (row["num_blocks"], row["kv_cache_size_tokens"]), row["args"]
        assert held.requests == pytest.approx(row["max_concurrency"], rel=1e-6), row["args"]
        if row["args"].get("pp", 1) == 1:
            assert plan.pools[0].unit_bytes == row["bytes_per_block"], row["args"]


# Parameters that each model's own code has, and what vLLM's own code holds of them on one GPU.

PARAMETERS_FILE = COLLECTION / "golden" / "params.jsonl"
FROM_CLASS_DEFAULTS = {"Qwen__Qwen3-ASR-0.6B", "stepfun-ai__Step-3.7-Flash", "Qwen__Qwen2.5-Omni-7B"}
"""Counted with the defaults of a configuration class in place of the config's own numbers, or with a talker and a vocoder as text."""
PARAMETERS = [json.loads(line) for line in PARAMETERS_FILE.read_text().splitlines()] if PARAMETERS_FILE.is_file() else []


@pytest.mark.parametrize("row", [row for row in PARAMETERS if row["config_dir"] not in FROM_CLASS_DEFAULTS], ids=lambda row: row["config_dir"])
def test_parameters_are_those_of_the_models_own_code(row: dict[str, Any]) -> None:
    facts = read(row["config_dir"]).facts
    assert facts.parameters_text == row["params_text"]
    assert facts.parameters in (None, row["parameters"])


LAYOUT_FILE = COLLECTION / "golden" / "vllm_weights.jsonl"
LAYOUTS = [json.loads(line) for line in LAYOUT_FILE.read_text().splitlines()] if LAYOUT_FILE.is_file() else []


@pytest.mark.skipif(not LAYOUTS, reason="no collection of layouts beside the checkout")
def test_a_gpus_share_is_what_vllm_lays_out() -> None:
    """19 of 20 within half a percent."""
    near = 0
    for row in LAYOUTS:
        loaded = NEWEST_VLLM.loaded(read(row["config_dir"]), Options(tp=row["tp"]))
        near += loaded.weights == pytest.approx(row["weight_bytes_per_gpu"], rel=0.005)
    assert near >= 0.95 * len(LAYOUTS)


@cache
def read(folder: str) -> WeighedModel:
    path = COLLECTION / "corpus" / "configs" / folder
    beside = path / "hf_quant_config.json"
    quant = json.loads(beside.read_bytes()) if beside.is_file() else None
    return read_config(json.loads((path / "config.json").read_bytes(), parse_float=Decimal), hf_quant_config=quant)


def vllm_options(args: dict[str, Any], batched_tokens: int, seqs: int) -> Options:
    return Options(
        kv_dtype=parse_kv_dtype(args.get("kv_dtype", "auto")),
        tp=args.get("tp", 1),
        pp=args.get("pp", 1),
        dcp=args.get("dcp", 1),
        device=find_gpu(args["gpu"]).device(),
        max_batched_tokens=batched_tokens,
        max_seqs=seqs,
        block_size=args.get("block_size"),
        state_dtype=parse_state_dtype(args.get("mamba_ssm_cache_dtype", "auto")),
        prefix_caching=not args.get("no_prefix_caching"),
        hybrid_manager=not args.get("no_hybrid_manager"),
        async_scheduling=not args.get("no_async"),
    )
