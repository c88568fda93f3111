"""What part of its data sheet a GPU reaches: the bounds between which four of five servers fall, each with what it rests on.

A step takes what it moves over a part of the bandwidth, or what it computes over a part of the arithmetic rate, and a fixed time a layer beside it
(launches, small kernels, waiting). The parts were chosen with the public measurements in view that tests/speed.yaml holds.
"""

from typing import Final, Literal, NamedTuple

Memory = Literal["gddr", "hbm", "unified"]
Stack = Literal["server", "llama.cpp", "eager"]
Rate = Literal["fp16", "fp8", "fp4", "int8"]


class Part(NamedTuple):
    """The bounds of a fraction, or of a time in microseconds."""

    low: float
    high: float


class Moving(NamedTuple):
    """Parts of the memory's bandwidth, and microseconds a layer and step."""

    bandwidth: Part
    layer_us: Part
    source: str


class Computing(NamedTuple):
    """Parts of the arithmetic rate that a prompt reaches."""

    rate: Part
    source: str


class Exchanging(NamedTuple):
    """Parts of a link's rate, and microseconds for each sum over the GPUs that share the heads."""

    rate: Part
    reduction_us: Part
    source: str


_LLAMA_CPP_2024: Final = "llama.cpp b2824 to b2843 (XiongjieDai/GPU-Benchmarks-on-LLM-Inference, May 2024)"
_EAGER: Final = "an eager step of Llama-3.1-8B on an H100 takes 8.4 ms, 5.1 with CUDA graphs; Python between kernels adds to it"

MOVING: Final[dict[tuple[Memory, Stack], Moving]] = {
    ("gddr", "llama.cpp"): Moving(Part(0.80, 0.92), Part(20, 110), f"18 runs on GeForce, RTX, A40 and L40S cards, {_LLAMA_CPP_2024}"),
    ("hbm", "llama.cpp"): Moving(Part(0.45, 0.70), Part(40, 150), f"10 runs on A100 and H100 PCIe, {_LLAMA_CPP_2024}"),
    ("unified", "llama.cpp"): Moving(Part(0.75, 0.92), Part(15, 270), "17 runs of llama.cpp on Apple M1 to M3, Strix Halo and GB10 (2024 to 2026)"),
    ("gddr", "server"): Moving(Part(0.80, 0.92), Part(20, 110), "7 runs of vLLM 0.23 and 0.24 on RTX 3090 (LottoLottoLotto/4x3090-llm-benchmarks)"),
    ("hbm", "server"): Moving(
        Part(0.70, 0.92), Part(4, 100), "Llama-3.1-8B in vLLM 0.23 on an A100 40GB (75 tokens/s) and with CUDA graphs on an H100 (5.1 ms)"
    ),
    ("unified", "server"): Moving(Part(0.75, 0.92), Part(20, 270), "8 runs of vLLM 0.26 on GB10 (djangodevreng/dgx-spark-benchmarks)"),
    ("gddr", "eager"): Moving(Part(0.70, 0.92), Part(100, 800), _EAGER),
    ("hbm", "eager"): Moving(Part(0.70, 0.92), Part(100, 800), _EAGER),
    ("unified", "eager"): Moving(Part(0.70, 0.92), Part(100, 800), _EAGER),
}

_SERVERS: Final = "what simulators calibrate with (inference-sim: H100 0.45, A100 0.38, L40S 0.32; InferSim: 0.35 to 0.60)"
COMPUTING: Final[dict[Rate, Computing]] = {
    "fp16": Computing(Part(0.30, 0.65), _SERVERS),
    "fp8": Computing(Part(0.25, 0.60), "TensorRT-LLM's published FP8 throughput on H100 and H200: 0.24 to 0.37 of the peak with the decoding between"),
    "fp4": Computing(
        Part(0.14, 0.45), "TensorRT-LLM's published NVFP4 throughput on B200 and RTX PRO 6000: 0.14 to 0.26 of the peak with the decoding between"
    ),
    "int8": Computing(Part(0.25, 0.60), "as fp8; one run of int8 weights and activations on two RTX 3090"),
}
"""Of the dense rate with fp32 accumulation, in servers."""
COMPUTING_LLAMA_CPP: Final[dict[Literal["geforce", "other"], Computing]] = {
    "geforce": Computing(Part(0.65, 1.05), f"8 prompts of 512 tokens on GeForce cards, which accumulate in fp16 at twice the rate, {_LLAMA_CPP_2024}"),
    "other": Computing(Part(0.17, 0.45), f"20 prompts of 512 tokens on other cards, {_LLAMA_CPP_2024}"),
}
"""Of the fp16 rate with fp32 accumulation, however the weights are stored."""

EXCHANGING: Final[dict[Literal["nvlink", "pcie"], Exchanging]] = {
    "nvlink": Exchanging(Part(0.35, 0.80), Part(5, 20), "InferSim's 0.8 of NVLink; small sums take the time of a kernel launch or more"),
    "pcie": Exchanging(Part(0.20, 0.70), Part(10, 60), "7 runs of vLLM on two and four RTX 3090 without NVLink (LottoLottoLotto/4x3090-llm-benchmarks)"),
}

SERVING_MS: Final = Part(2, 60)
"""Before and behind a prompt's own work: receiving it, tokens, scheduling, sampling (the same runs, where prompts of 512 tokens take 50 to 150 ms)."""

HEADROOM: Final = {"consumer": 1.25, "laptop": 1.25, "workstation": 1.25}
"""How far a card can be above its rated arithmetic, by kind: the rating is for a clock that cards exceed. BF16 products on an RTX 5090 reach 254 TFLOP/s
of 210 rated, on an RTX 4090 179 of 165 (xzwgit/gpu-flops-bench)."""
HEADROOM_OTHERS: Final = 1.05
"""853 TFLOP/s of 835 rated on an H200 NVL (the same); other data centre cards stay below (stas00/ml-engineering)."""
