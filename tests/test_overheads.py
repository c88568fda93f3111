"""What vLLM keeps beside weights and cache: each term by hand, and all of them against public start-up logs."""

from decimal import Decimal
from typing import Any, NamedTuple

import pytest

from kvcalc.budget import Asked, Question, StatedWeights
from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.engines.vllm.overheads import UNKNOWN_WIDTHS, Deployment, Experts, Tower, Widths, overheads, widths_of
from kvcalc.fit import answer
from kvcalc.gpus import find_gpu
from kvcalc.packing import parse_kv_dtype
from kvcalc.results.fit import GpuInfo
from kvcalc.tensors import WeighedModel

GIB = 1 << 30


def weighed(model: str) -> WeighedModel:
    return load_model(model).weighed()


WIDTHS = {
    "llama-3-8b": Widths(hidden=4096, vocabulary=128_256, intermediate=14_336, attention=6144),
    "qwen3-30b-a3b": Widths(hidden=2048, vocabulary=151_936, intermediate=0, attention=5120, experts=Experts(per_token=8, width=768, shared=0)),
    "qwen3.5-27b": Widths(hidden=5120, vocabulary=248_320, intermediate=17_408, attention=14_336, recurrent=16_480, tower=Tower(1152, 4304, 65_536, 16_384)),
    "gemma-4-26b-a4b": Widths(
        hidden=2816, vocabulary=262_144, intermediate=2112, attention=9216, experts=Experts(8, 704, 2112), tower=Tower(1152, 4304, 20_160, 2496)
    ),
    "gemma-4-e2b": Widths(hidden=1536, vocabulary=262_144, intermediate=12_288, attention=5120, tower=Tower(768, 3072, 20_160, 2496)),
}


@pytest.mark.parametrize(("model", "widths"), WIDTHS.items())
def test_widths_are_read_off_the_tensors(model: str, widths: Widths) -> None:
    assert widths_of(weighed(model), towers=True) == widths


def test_deepseek_v4_has_four_residual_streams() -> None:
    assert widths_of(weighed("deepseek-v4-flash"), towers=True).streams == 4


# Llama-3-8B by hand: the layers' pass is tokens x (3 x 14336 + 3 x 4096) x 2 bytes, the sampler's requests x 128,256 x bytes a logit.
LLAMA = WIDTHS["llama-3-8b"]
ACTIVATIONS = [
    ({"minor": 11, "batched_tokens": 2048, "sequences": 256}, max(2048 * 3 * (14_336 + 4096) * 2, 256 * 128_256 * 38)),
    ({"minor": 11, "batched_tokens": 8192, "sequences": 64}, 8192 * 3 * (14_336 + 4096) * 2),
    ({"minor": 11, "batched_tokens": 8192, "sequences": 64, "tp": 4}, 8192 * (3 * 14_336 // 4 + 3 * 4096) * 2),
    ({"minor": 17, "batched_tokens": 2048, "sequences": 1024}, 1024 * 128_256 * 14),
    ({"minor": 25, "batched_tokens": 2048, "sequences": 1024}, 1024 * 128_256 * 2),
    ({"minor": 33, "batched_tokens": 2048, "sequences": 1024}, 1024 * 128_256 * 10),
    ({"minor": 6, "batched_tokens": 512, "sequences": 1, "context": 8192}, 8192 * 3 * (14_336 + 4096) * 2),
]


@pytest.mark.parametrize(("deployed", "size_bytes"), ACTIVATIONS)
def test_activations_by_hand(deployed: dict[str, Any], size_bytes: int) -> None:
    assert overheads(LLAMA, Deployment(**{"context": 8192, **deployed})).activation.likely == size_bytes


def test_before_0_8_a_whole_prompt_is_profiled() -> None:
    """Up to 32,768 tokens from 0.5 to 0.7, of any length in 0.4. By hand: tokens x (3 x 14336 + 3 x 4096) x 2 bytes, above 256 x 128,256 x 38."""
    of = {(minor, context): overheads(LLAMA, Deployment(minor, 2048, 256, context)).activation.likely for minor in (4, 7, 8) for context in (20_000, 40_000)}
    whole = {context: context * (3 * 14_336 + 3 * 4096) * 2 for context in (20_000, 40_000)}
    sorting = 256 * 128_256 * 38
    assert of == {
        (4, 20_000): whole[20_000],
        (4, 40_000): whole[40_000],
        (7, 20_000): whole[20_000],
        (7, 40_000): sorting,
        (8, 20_000): sorting,
        (8, 40_000): sorting,
    }


def test_experts_bring_a_workspace() -> None:
    """Qwen3-30B-A3B, 8,192 tokens: rows of 2,048 and 768 features for each of eight experts up to 0.13, twice 2,048 from 0.14."""
    layer = 8192 * (2 * 5120 + 3 * 2048) * 2
    older = 8192 * 8 * (2048 + 768) * 2 + layer
    newer = 8192 * 8 * (2048 + 2048) * 2 + layer
    of = {minor: overheads(WIDTHS["qwen3-30b-a3b"], Deployment(minor, 8192, 16, 8192)).activation.likely for minor in (13, 18)}
    assert of == {13: older, 18: newer}


def test_a_tower_is_profiled_with_its_largest_item() -> None:
    """65,536 patches of 2 x 1152 + 2 x 4304 features beside the 1,536 values of the patch, in 16 bits; no item is longer than a request."""
    widths = WIDTHS["qwen3.5-27b"]
    rows = (2 * 1152 + 2 * 4304 + 1536) * 2
    assert overheads(widths, Deployment(22, 2048, 32, 262_144)).activation.likely == 65_536 * rows
    assert overheads(widths._replace(tower=None), Deployment(22, 2048, 32, 262_144)).activation.likely < 65_536 * rows
    short = overheads(widths, Deployment(22, 64, 1, 4096)).activation.likely
    assert short == 16_384 * rows


def test_graphs_are_charged_from_0_20_on() -> None:
    charged = {minor: overheads(LLAMA, Deployment(minor, 2048, 256, 8192)).graphs.likely for minor in (11, 18, 20, 25, 30, 33)}
    assert charged == {11: 0, 18: 0, 20: charged[20], 25: 0, 30: charged[30], 33: charged[30]}
    assert GIB // 4 < charged[20] < GIB
    assert overheads(LLAMA, Deployment(33, 2048, 256, 8192, eager=True)).graphs.likely == 0


def test_runtime_grows_with_gpus_and_shared_memory() -> None:
    alone, eight, unified = (overheads(LLAMA, Deployment(33, 2048, 256, 8192, **more)).runtime.likely for more in ({}, {"tp": 8}, {"unified": True}))
    assert alone < eight
    assert unified - alone == pytest.approx(1.8 * GIB, abs=1)


def test_bounds_enclose_what_is_likely_and_do_not_add_up() -> None:
    kept = overheads(LLAMA, Deployment(33, 8192, 1024, 8192))
    parts = (kept.activation, kept.graphs, kept.runtime)
    assert all(part.low <= part.likely <= part.high for part in (*parts, kept.total))
    assert kept.total.likely == sum(part.likely for part in parts)
    assert sum(part.low for part in parts) < kept.total.low
    assert kept.total.high < sum(part.high for part in parts)


def test_a_model_of_unknown_widths_has_a_flat_sum() -> None:
    spec = weighed("llama-3-8b").model_copy(update={"tensors": ()})
    assert find_engine("vllm").overheads(spec, Options(), 8192) == UNKNOWN_WIDTHS


class Log(NamedTuple):
    """What a public start-up log says of one GPU, in GiB, and how the server was started."""

    model: str
    engine: str
    gpu: str
    total: str
    utilization: str
    weights: str
    kv: str
    context: int
    options: dict[str, Any]


LOGS = [
    Log("llama-3-8b", "vllm@0.11", "h200", "139.801", "0.9", "14.9596", "105.97", 1024, {"max_batched_tokens": 2048}),
    Log("qwen3-30b-a3b", "vllm@0.10", "h100", "79.18", "0.9", "56.9342", "8.68", 6144, {"max_batched_tokens": 8192}),
    Log("qwen3-30b-a3b", "vllm@0.22", "h100", "79.18", "0.92", "29.08", "42.54", 8192, {"max_batched_tokens": 8192, "max_seqs": 64}),
    Log("llama-3.1-8b", "vllm@0.11", "l4", "22.161", "0.92", "14.9889", "4.75", 32_000, {"max_batched_tokens": 2048, "max_seqs": 128}),
    Log("gemma-4-26b-a4b", "vllm@0.25", "NVIDIA GB10", "121.628", "0.85", "16.63", "83.89", 262_144, {"max_batched_tokens": 2496, "max_seqs": 32}),
    Log("qwen3.6-35b-a3b", "vllm@0.19", "NVIDIA GB10", "121.628", "0.95", "64.69", "47.55", 131_072, {}),
    Log(
        "qwen3.5-27b", "vllm@0.25", "NVIDIA GB10", "121.628", "0.85", "18.5", "80.17", 262_144, {"max_seqs": 32, "draft_layers": True, "speculative_tokens": 3}
    ),
    Log("deepseek-v3", "vllm@0.11", "h200", "139.801", "0.9", "79.739", "41.60", 8192, {"tp": 8}),
    Log("llama-3-70b", "vllm@0.16", "l40s", "44.39", "0.9", "18.55", "20.16", 8192, {"tp": 2}),
]


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.model} {log.engine} {log.gpu}")
def test_the_cache_is_what_the_log_says(log: Log) -> None:
    """Within 3 %, and inside the range."""
    memory_bytes = int(Decimal(log.total) * GIB)
    options = Options(kv_dtype=parse_kv_dtype("auto"), device=find_gpu(log.gpu).device(memory_bytes), **log.options)
    asked = Asked("m", "s", "m", log.context, 1)
    stated = StatedWeights(int(Decimal(log.weights) * GIB), "gpu", "log")
    question = Question(weighed(log.model), find_engine(log.engine), options, asked, GpuInfo(name=log.gpu, memory_bytes=memory_bytes))
    result = answer(question._replace(utilization=Decimal(log.utilization), weights=stated))
    kv_bytes = float(Decimal(log.kv) * GIB)
    assert result.memory.kv_bytes == pytest.approx(kv_bytes, rel=0.03)
    assert result.memory_range["kv_bytes"].low <= kv_bytes <= result.memory_range["kv_bytes"].high
