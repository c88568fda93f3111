"""Cells a second of a grid on one core: `.venv/bin/python tests/bench_sweep.py`. Printed for a reader, gates nothing."""

import time
from collections.abc import Iterator, Sequence
from itertools import product

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.gpus import find_gpu
from kvcalc.packing import parse_kv_dtype
from kvcalc.results.fit import GpuInfo
from kvcalc.results.sweep import SweptFit
from kvcalc.sweep import Point, sweep

GPUS = ("h100", "h200", "b200", "a100 80gb", "l40s", "l4", "rtx4090", "rtx5090")
CONTEXTS = range(512, 512 * 257, 512)
CASES = [
    ("llama-3-8b", "vllm", ("auto", "bf16", "fp8", "fp8_e4m3"), (1, 2, 4, 8)),
    ("llama-3.1-70b", "vllm", ("auto", "bf16", "fp8", "fp8_e4m3"), (1, 2, 4, 8)),
    ("gpt-oss-20b", "vllm", ("auto", "fp8"), (1, 2, 4, 8)),
    ("qwen3.5-27b", "vllm", ("auto", "fp8"), (1, 2, 4)),
    ("llama-3-8b", "ideal", ("auto", "fp8"), (1, 2, 4, 8)),
    ("llama-3-8b", "transformers", ("auto", "bf16"), (1,)),
    ("llama-3-8b", "sglang", ("auto", "fp8_e4m3"), (1, 2, 4, 8)),
    ("llama-3-8b", "trtllm", ("auto", "fp8"), (1, 2, 4, 8)),
    ("llama-3-8b", "llama.cpp", ("fp16", "q8_0"), (1,)),
    ("llama-3-8b", "ollama", ("fp16", "q8_0"), (1,)),
]


def points(model: str, engine: str, dtypes: Sequence[str], tps: Sequence[int]) -> Iterator[Point]:
    """Deployments of one model."""
    spec = load_model(model).weighed()
    for dtype, tp, name in product(dtypes, tps, GPUS):
        card = find_gpu(name)
        options = Options(kv_dtype=parse_kv_dtype(dtype), tp=tp, device=card.device())
        info = GpuInfo(name=card.name, memory_bytes=card.memory()[0])
        yield Point({"kv_dtype": dtype, "tp": str(tp), "gpu": name}, Question(spec, find_engine(engine), options, Asked(model, "preset", model, 8192, 1), info))


def main() -> None:
    """CPU time, the plans of all deployments included."""
    for model, engine, dtypes, tps in CASES:
        start, cells, answered = time.process_time(), 0, 0
        for row in sweep(points(model, engine, dtypes, tps), CONTEXTS):
            cells += 1
            answered += isinstance(row, SweptFit)
        spent = time.process_time() - start
        print(f"{cells / spent:8,.0f} cells/s  {model} {engine}: {answered:,} of {cells:,} answered, {len(dtypes) * len(tps) * len(GPUS)} deployments")


if __name__ == "__main__":
    main()
