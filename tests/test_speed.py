"""Prefill and decode: FLOPs and bytes by hand, times against published measurements, and what the command says and refuses."""

import re
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kvcalc.budget import Asked, Question, StatedWeights
from kvcalc.catalog import load_model
from kvcalc.efficiency import COMPUTING, COMPUTING_LLAMA_CPP, MOVING, Stack
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options, model_packing
from kvcalc.engines.work import Costs, costs, decode, prefill
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.fit import answer as fit
from kvcalc.gpus import find_gpu
from kvcalc.latency import clock
from kvcalc.machine import Machine, Rates
from kvcalc.packing import KvDtype
from kvcalc.quantizations import BY_NAME, MXFP4, Q8_0, Named
from kvcalc.results.fit import GpuInfo
from kvcalc.results.speed import Speed
from kvcalc.speed import SpeedQuestion, speed
from kvcalc.tensors import Quantization
from kvcalc.timing import Times
from kvcalc.weights import checkpoint_bytes
from tests.command import kvcalc

BF16: Final = KvDtype("bf16", "bf16")
H100: Final = "H100 SXM5 80GB"


def costs_of(model: str, **choices: Any) -> Costs:
    return costs(load_model(model).weighed(), BF16, Options(**choices))


def pairs(tokens: int, most: int | None = None) -> int:
    """A query and every token up to its own, or up to `most` of the last ones, one by one."""
    return sum(min(token, most or token) for token in range(1, tokens + 1))


# FLOPs and bytes by hand, from the numbers of each config.json


def test_llama_3_8b_by_hand() -> None:
    """32 layers, hidden 4096, 32 query and 8 KV heads of 128, MLP 14336, vocabulary 128256, head apart from the embedding."""
    layer = 4096 * (32 * 128 + 2 * 8 * 128) + 32 * 128 * 4096 + 3 * 4096 * 14336
    head, norms, n = 128256 * 4096, 65 * 4096, 8192
    done = prefill(costs_of("llama-3-8b"), n)
    assert done.linear_flops == {"bf16": 2 * 32 * layer * n + 2 * head}
    assert done.attention_flops == 32 * 4 * 32 * 128 * pairs(n)
    assert (done.recurrence_flops, done.state_bytes, done.kv_read_bytes) == (0, 0, 0)
    assert done.weight_bytes == 2 * (32 * layer + head + norms) + 2 * 4096 * n
    assert done.kv_write_bytes == 131_072 * n
    step = decode(costs_of("llama-3-8b"), n, 16)
    assert step.linear_flops == {"bf16": 16 * 2 * (32 * layer + head)}
    assert step.attention_flops == 16 * 32 * 4 * 32 * 128 * n
    assert step.weight_bytes == 2 * (32 * layer + head + norms) + 16 * 2 * 4096
    assert (step.kv_read_bytes, step.kv_write_bytes) == (16 * 131_072 * n, 16 * 131_072)


def test_mixtral_reads_the_experts_that_a_batch_is_expected_to_use() -> None:
    """8 experts, 2 a token: one token reads 2, four read 8 x (1 - (3/4)^4) = 5.46875 in the mean, many read all."""
    expert, router = 3 * 4096 * 14336, 8 * 4096
    attention = 4096 * (32 * 128 + 2 * 8 * 128) + 32 * 128 * 4096
    head, norms, n = 32000 * 4096, 65 * 4096, 4096
    always = 2 * (32 * (attention + router) + head + norms)
    for batch, experts_read in ((1, 2.0), (4, 5.46875)):
        step = decode(costs_of("mixtral-8x7b"), n, batch)
        assert step.linear_flops == {"bf16": batch * 2 * (32 * (attention + router + 2 * expert) + head)}
        assert step.weight_bytes == always + batch * 2 * 4096 + experts_read * 32 * 2 * expert
        assert step.kv_read_bytes == batch * n * 131_072
    done = prefill(costs_of("mixtral-8x7b"), n)
    assert done.linear_flops == {"bf16": n * 2 * 32 * (attention + router + 2 * expert) + 2 * head}
    assert done.weight_bytes == always + n * 2 * 4096 + 8 * 32 * 2 * expert


def test_the_experts_that_a_step_reads_are_told() -> None:
    found = answer("mixtral-8x7b", gpu="h200 sxm", context=4096, batch=4)
    assert found.experts is not None
    assert (found.experts.experts, found.experts.used, found.experts.distinct) == (8, 2, 5.46875)
    assert answer("llama-3-8b").experts is None


def test_deepseek_v3_expands_its_latents_for_a_prompt_and_not_for_a_step() -> None:
    """61 layers, 3 of them dense; 128 heads whose K has 128 + 64 and V 128 elements, latent 512 + 64; 8 of 256 experts and a shared one; FP8 in blocks of
    128 x 128 with a scale of 4 bytes, routers and head in bf16.
    """
    attention = 1536 * 7168 + 24576 * 1536 + 576 * 7168 + 32768 * 512 + 7168 * 16384
    scales = 4 * (12 * 56 + 192 * 12 + 5 * 56 + 256 * 4 + 56 * 128)
    dense, dense_scales = 3 * 7168 * 18432, 4 * 3 * 56 * 144
    expert, expert_scales = 3 * 7168 * 2048, 4 * 3 * 16 * 56
    router, head, n = 256 * 7168, 129280 * 7168, 8192
    token_fp8, token_bf16 = 61 * attention + 3 * dense + 58 * 9 * expert, 58 * router
    done = prefill(costs_of("deepseek-v3"), n)
    assert done.linear_flops == {"fp8": 2 * token_fp8 * n, "bf16": 2 * token_bf16 * n + 2 * head}
    assert done.attention_flops == 61 * 2 * 128 * (192 + 128) * pairs(n)
    assert done.kv_write_bytes == n * 61 * 576 * 2
    step = decode(costs_of("deepseek-v3"), n, 1)
    assert step.attention_flops == 61 * 2 * 128 * (576 + 512) * n
    norms = 61 * (2 * 7168 + 1536 + 512) + 7168
    always = 61 * (attention + scales) + 3 * (dense + dense_scales) + 58 * (expert + expert_scales) + 2 * (58 * router + head + norms)
    corrections = 58 * 256 * 4
    assert step.weight_bytes == always + corrections + 2 * 7168 + 58 * 8 * (expert + expert_scales)
    assert step.kv_read_bytes == n * 61 * 576 * 2


def test_gemma_3_attends_to_windows_in_52_of_62_layers() -> None:
    """Hidden 5376, 32 query and 16 KV heads of 128, MLP 21504, windows of 1024; the head is the embedding, padded to 262208 rows."""
    layer = 5376 * (32 * 128 + 2 * 16 * 128) + 32 * 128 * 5376 + 3 * 5376 * 21504
    head, n = 262208 * 5376, 8192
    done = prefill(costs_of("gemma-3-27b"), n)
    assert done.linear_flops == {"bf16": 2 * 62 * layer * n + 2 * head}
    assert done.attention_flops == 4 * 32 * 128 * (10 * pairs(n) + 52 * pairs(n, 1024))
    step = decode(costs_of("gemma-3-27b"), n, 1)
    assert step.kv_read_bytes == 2 * 2 * 16 * 128 * (10 * n + 52 * 1024)
    norms = 62 * (4 * 5376 + 2 * 128) + 5376
    assert step.weight_bytes == 2 * (62 * layer + head + norms) + 2 * 5376


def test_qwen3_next_has_states_in_36_of_48_layers() -> None:
    """Hidden 2048; 16 query heads of 256 with a gate as wide, 2 KV heads; 16 key and 32 value heads of 128, convolution of 4; 10 of 512 experts of 512 and
    a shared one with a gate. The delta rule multiplies each element of its state three times a token.
    """
    full = 2048 * (2 * 16 * 256 + 2 * 2 * 256) + 16 * 256 * 2048
    linear = 2048 * (2 * 2048 + 2 * 4096 + 2 * 32) + (2 * 2048 + 4096) * 4 + 4096 * 2048
    moe = 512 * 2048 + 2048 + 11 * 3 * 2048 * 512
    head, n = 151936 * 2048, 8192
    state = 36 * 32 * 128 * 128
    done = prefill(costs_of("qwen3-next-80b-a3b"), n)
    assert done.linear_flops == {"bf16": 2 * (12 * full + 36 * linear + 48 * moe) * n + 2 * head}
    assert done.attention_flops == 12 * 4 * 16 * 256 * pairs(n)
    assert done.recurrence_flops == 2 * 3 * state * n
    step = decode(costs_of("qwen3-next-80b-a3b"), n, 1)
    convolved = 36 * (2 * 2048 + 4096) * 3
    assert step.state_bytes == 2 * 2 * (state + convolved)
    assert step.kv_read_bytes == 12 * 2 * 2 * 256 * 2 * n


def test_gpus_share_matrices_heads_and_experts_and_sum_what_each_has() -> None:
    """Llama-3-8B on two: half of all matrices and heads; two sums of 4096 elements in each of 32 layers a token."""
    whole, half = costs_of("llama-3-8b"), costs_of("llama-3-8b", tp=2)
    assert half.token_flops == {"bf16": whole.token_flops["bf16"] // 2}
    one, two = prefill(whole, 1000), prefill(half, 1000)
    assert two.attention_flops == one.attention_flops // 2
    assert two.kv_write_bytes == one.kv_write_bytes // 2
    assert two.reduced_bytes == 1000 * 2 * 32 * 4096 * 2
    assert one.reduced_bytes == 0
    assert costs_of("mixtral-8x7b", tp=2).experts[0].size_bytes == costs_of("mixtral-8x7b", tp=2, expert_parallel=True).experts[0].size_bytes


def test_an_indexer_picks_the_rows_that_are_attended_to() -> None:
    """DeepSeek-V3.2: 64 heads of 128 score every key, 2048 latents are read."""
    n = 100_000
    step = decode(costs_of("deepseek-v3.2"), n, 1)
    assert step.attention_flops == 61 * (2 * 64 * 128 * n + 2 * 128 * (576 + 512) * 2048)
    assert step.kv_read_bytes == 61 * 2 * (128 * n + 576 * 2048)


# Published measurements

ROWS: Final[list[dict[str, Any]]] = yaml.safe_load(Path(__file__).with_name("speed.yaml").read_text())


def named(quantization: str) -> Named:
    if quantization == "mxfp4-gguf":
        return Named(Quantization(method="gguf", scheme=Q8_0, experts=MXFP4, whole=True))
    return BY_NAME[quantization]


def stated(machine: Machine, row: dict[str, Any]) -> Machine:
    if "tflops" in row:
        flops: Rates = (("fp16", row["tflops"] * 10**12),)
        machine = machine._replace(rates=flops, ceilings=flops)
    return machine._replace(link_bytes_s=row["link_gb"] * 10**9) if "link_gb" in row else machine


def requests_in_memory(question: Question, gpu: str) -> int:
    """Under vLLM's rules, with 0.95 of a GPU whose memory is 2 % less than it is sold with where no report of it is known."""
    card = find_gpu(gpu)
    memory = card.gpus[0].memory_bytes or int(0.98e9 * (card.gpus[0].memory_gb or 0))
    options = question.options._replace(device=card.device(memory))
    held = question._replace(engine=find_engine("vllm"), options=options, gpu=GpuInfo(name=None, memory_bytes=memory), utilization=Decimal("0.95"))
    return int(fit(held).capacity.requests)


def measured(row: dict[str, Any]) -> list[tuple[str, Times, float]]:
    """What a row measured: its name, kvcalc's times for it, and the seconds that were published."""
    spec = load_model(row["model"]).weighed()
    weights = None
    if ("quantization" in row and spec.quantization is None) or row.get("quantization") == "mxfp4-gguf":
        spec = spec.model_copy(update={"quantization": named(row["quantization"]).of(spec)[0]})
    if "weights_gib" in row:
        weights = StatedWeights(int(row["weights_gib"] * (1 << 30)), "checkpoint", "the source")
    options = Options(
        tp=row.get("tp", 1), pp=row.get("pp", 1), kv_dtype=KvDtype(*(2 * [row.get("kv_dtype", "auto")])), max_batched_tokens=row.get("chunk", 8192)
    )
    prompt, output, batch = row["prompt"], row.get("output", 0), row.get("batch", 1)
    asked = Asked("m", "a preset", "m", prompt + output, 1)
    question = Question(spec, find_engine("ideal"), options, asked, GpuInfo(name=None, memory_bytes=None), weights=weights)
    if batch == "memory":
        batch = requests_in_memory(question, row["gpu"])
    stack: Stack = "llama.cpp" if row["engine"] == "llama.cpp" else "server"
    timed = clock(question, stated(find_gpu(row["gpu"]).machine(), row))._replace(stack=stack)
    found = []
    if "tpot_ms" in row:
        found.append(("tpot", timed.step(prompt + output // 2, 1), row["tpot_ms"] / 1e3))
    if "decode_tokens_s" in row:
        found.append(("tpot", timed.step(prompt + output // 2, 1), 1 / row["decode_tokens_s"]))
    if "ttft_ms" in row:
        found.append(("ttft", timed.prompt(prompt), row["ttft_ms"] / 1e3))
    if "prefill_tokens_s" in row:
        found.append(("ttft", timed.prompt(prompt), prompt / row["prefill_tokens_s"]))
    if "served_tokens_s" in row:
        found.append(("served", timed.turnover(prompt, output, batch), batch * output / row["served_tokens_s"]))
    return [each for each in found if each[0] != "ttft" or each[1].compute is not None]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['gpu']}-{row['engine']}")
def test_nothing_published_beats_the_bound(row: dict[str, Any]) -> None:
    """Drafted tokens do: a step then gives several."""
    times = measured(row)
    assert times
    beaten = [what for what, bound, seconds in times if seconds < bound.lower]
    assert beaten == (["tpot"] if row.get("drafted") else [])


def test_most_of_what_is_published_is_likely() -> None:
    """And what is not has a reason beside it. A range that held everything would say nothing: half of them are narrower than a factor of 2.2."""
    inside, widths, unexplained = [], [], []
    for row in ROWS:
        for _, times, seconds in measured(row):
            if not row.get("drafted"):
                inside.append(times.low <= seconds <= times.high)
                widths.append(times.high / times.low)
                if not inside[-1] and "outside" not in row:
                    unexplained.append((row["model"], row["gpu"]))
    assert len(inside) >= 100
    assert sum(inside) >= 0.85 * len(inside)
    assert sorted(widths)[len(widths) // 2] < 2.2
    assert unexplained == []


def test_every_part_has_a_source() -> None:
    assert all(each.source for each in MOVING.values())
    assert all(each.source for each in COMPUTING.values())


def test_the_sources_count_what_is_held() -> None:
    held: Counter[object] = Counter()
    for row in ROWS:
        gpu = find_gpu(row["gpu"]).machine()
        stack = {"llama.cpp": "llama.cpp", "vllm": "server"}.get(row["engine"])  # whole batches of TensorRT-LLM rest on other parts
        decodes = bool({"tpot_ms", "decode_tokens_s", "served_tokens_s"} & set(row))
        held[gpu.memory, stack] += decodes and not row.get("drafted", False)
        if stack == "llama.cpp" and gpu.memory != "unified":
            held["geforce" if gpu.geforce else "other"] += row["prompt"] == 512 and "prefill_tokens_s" in row
    told: dict[object, str] = {key: each.source for key, each in MOVING.items()}
    told |= {key: each.source for key, each in COMPUTING_LLAMA_CPP.items()}
    counts = {key: int(source.split()[0]) for key, source in told.items() if re.match(r"\d+ (runs|prompts) ", source)}
    assert len(counts) == 7
    assert counts == {key: held[key] for key in counts}


# Times


def answer(model: str, gpu: str = H100, context: int = 8192, batch: int = 1, output: int = 0, *, no_cache: bool = False, **choices: Any) -> Speed:
    found, card = load_model(model), find_gpu(gpu)
    about = Asked(found.name, found.source, found.served_as, context, batch)
    memory, _ = card.memory()
    question = Question(found.weighed(), find_engine("vllm"), Options(device=card.device(), **choices), about, GpuInfo(name=card.name, memory_bytes=memory))
    return speed(SpeedQuestion(question, card.machine(), output, no_cache))


def test_bounds_are_work_over_the_data_sheet() -> None:
    """An H100 SXM: 3,350 GB/s, and 989 TFLOP/s with 5 % of headroom."""
    found = answer("llama-3-8b")
    assert found.decode.bandwidth_s == pytest.approx(found.decode.moved_bytes / 3.35e12)
    assert found.prefill.compute_s == pytest.approx(found.prefill.flops / (1.05 * 989e12))
    assert found.prefill.bound_by == "compute"
    assert found.decode.bound_by == "bandwidth"
    assert found.decode.seconds is not None
    assert found.decode.seconds.lower == found.decode.bandwidth_s
    assert found.decode.seconds.lower < found.decode.seconds.low < found.decode.seconds.likely < found.decode.seconds.high
    assert found.decode_tokens_s.upper == pytest.approx(1 / found.decode.bandwidth_s)
    assert found.kv_share == found.decode.kv_read_bytes / found.decode.moved_bytes


def test_a_batch_turns_decode_from_bandwidth_to_arithmetic() -> None:
    """With nothing cached, Llama-3-8B turns where 2 x 7.5e9 x B / 1038e12 = 15.0e9 / 3.35e12 bytes: near a batch of 310. At 8,192 tokens reading the cache of
    each request alone takes longer than its FLOPs.
    """
    found = answer("llama-3-8b")
    assert found.turning_batch is None
    assert found.turning_batch_uncached is not None
    assert abs(found.turning_batch_uncached - 310) <= 2
    short = answer("llama-3-8b", context=128)
    assert short.turning_batch is not None
    assert short.turning_batch > found.turning_batch_uncached


def test_what_doubles_is_this_model_s_own() -> None:
    factors = {row.what: row for row in answer("llama-3-8b", context=65_536).doubling}
    assert factors["KV read"].context == 2
    assert factors["prefill attention"].context == pytest.approx(4, rel=1e-4)
    assert factors["prefill matrices"].context == pytest.approx(2, rel=1e-4)
    windowed = {row.what: row for row in answer("gemma-3-27b", context=65_536).doubling}
    kept, doubled = 10 * 65_536 + 52 * 1024, 10 * 131_072 + 52 * 1024
    assert windowed["KV read"].context == pytest.approx(doubled / kept)
    assert windowed["prefill attention"].context < 3.9
    assert windowed["decode step"].context < windowed["decode step"].plain_context
    assert factors["decode step"].context == pytest.approx(factors["decode step"].plain_context)


def test_without_a_cache_attention_grows_with_the_cube() -> None:
    rows = {row.tokens: row for row in answer("llama-3-8b", no_cache=True).recomputed}
    assert set(rows) == {256, 1024, 4096}
    for tokens, row in rows.items():
        assert row.cached_attention_flops == 32 * 4 * 32 * 128 * pairs(tokens)
        assert row.recomputed_attention_flops == 32 * 4 * 32 * 128 * sum(pairs(length) for length in range(1, tokens + 1))
    assert rows[4096].cached_attention_flops / rows[1024].cached_attention_flops == pytest.approx(16, rel=0.01)
    assert rows[4096].recomputed_attention_flops / rows[1024].recomputed_attention_flops == pytest.approx(64, rel=0.01)


def test_served_tokens_are_fewer_than_decoded_ones() -> None:
    found = answer("llama-3-8b", batch=16, output=1024)
    assert found.prompt == 8192 - 1024
    assert found.served_tokens_s is not None
    assert found.served_tokens_s.upper < found.decode_tokens_s.upper * 1.1  # that of the last step, when requests are longest
    assert found.served_tokens_s.likely < found.decode_tokens_s.likely


def test_experts_that_replicas_share_are_not_timed() -> None:
    with pytest.raises(KvcalcError, match="replicas share"):
        answer("mixtral-8x7b", dp=2, expert_parallel=True)


def test_a_stage_without_requests_serves_none() -> None:
    found = answer("llama-3-8b", pp=2, batch=1, output=1024)
    assert found.served_tokens_s is not None
    assert found.served_tokens_s.likely < found.decode_tokens_s.likely


def test_levers_are_answers_to_other_questions() -> None:
    """What a lever promises is what kvcalc answers where it is pulled."""
    levers = {lever.options: lever for lever in answer("llama-3-8b").levers}
    fp8 = answer("llama-3-8b", kv_dtype=KvDtype("fp8", "fp8"))
    assert fp8.decode.seconds is not None
    assert levers["--kv-dtype fp8"].tpot_s == pytest.approx(fp8.decode.seconds.likely)
    two = answer("llama-3-8b", tp=2)
    assert two.prefill.seconds is not None
    assert levers["--tp 2"].ttft_s == pytest.approx(two.prefill.seconds.likely)
    batch = answer("llama-3-8b", batch=2)
    assert levers["--batch 2"].tokens_s == pytest.approx(batch.decode_tokens_s.likely)


def test_a_batch_that_memory_does_not_hold_is_said() -> None:
    found = answer("llama-3-8b", batch=1000)
    assert found.memory_requests is not None
    assert found.memory_requests < 1000
    assert any(f"memory holds {found.memory_requests:,} requests" in note.text for note in found.notes)


def test_stages_work_one_after_the_other_for_one_request() -> None:
    """Four stages decode one request no faster than one GPU would; for four requests each stage has one of its own."""
    one, four = answer("llama-3-8b"), answer("llama-3-8b", pp=4)
    assert four.decode.bandwidth_s == one.decode.bandwidth_s
    many = answer("llama-3-8b", pp=4, batch=4)
    assert many.decode.bandwidth_s == one.decode.bandwidth_s
    assert many.decode_tokens_s.upper == pytest.approx(4 * one.decode_tokens_s.upper)


def test_weights_are_scaled_to_the_file() -> None:
    spec = load_model("llama-3-8b").weighed()
    whole = checkpoint_bytes(spec, model_packing(spec.facts)[0])
    asked = Asked("m", "a preset", "m", 1024, 1)
    question = Question(
        spec, find_engine("ideal"), Options(), asked, GpuInfo(name=None, memory_bytes=None), weights=StatedWeights(whole // 2, "checkpoint", "a file")
    )
    assert clock(question, find_gpu(H100).machine()).scale == pytest.approx(0.5)


# What is refused


def refuse(*words: str) -> tuple[int, str]:
    done = kvcalc("speed", *words)
    assert done.out == ""
    return done.code, done.err


REFUSED: Final = {
    "a name of several cards": (["-m", "llama-3-8b", "--gpu", "a100"], ExitCode.UNANSWERABLE, "A100 40GB PCIe or"),
    "no such card": (["-m", "llama-3-8b", "--gpu", "h1oo"], ExitCode.UNANSWERABLE, "did you mean"),
    "memory tells no speed": (["-m", "llama-3-8b", "--gpu-mem", "80GiB"], ExitCode.USAGE, "--gpu-mem tells no speed"),
    "a card without its bandwidth": (["-m", "llama-3-8b", "--gpu", "b100"], ExitCode.UNANSWERABLE, "--bandwidth"),
    "nothing left for the prompt": (["-m", "llama-3-8b", "--gpu", "l4", "-o", "8192"], ExitCode.UNANSWERABLE, "leave none of 8,192"),
    "a rate that is none": (["-m", "llama-3-8b", "--gpu", "l4", "--tflops", "fast"], ExitCode.USAGE, "--tflops"),
    "a rate of nothing": (["-m", "llama-3-8b", "--gpu", "l4", "--tflops", "0"], ExitCode.USAGE, "--tflops"),
    "no weights": (["--layers", "2", "--kv-heads", "1", "--head-dim", "8", "--gpu", "l4"], ExitCode.UNANSWERABLE, "not known tensor by tensor"),
    "an encoder": (["-m", "whisper-large-v3", "--gpu", "l4"], ExitCode.UNANSWERABLE, "the work of an encoder is not counted"),
    "layers on the CPU": (["-m", "llama-3-8b", "--gpu", "l4", "--engine", "llama.cpp", "-ngl", "4"], ExitCode.UNANSWERABLE, "layers on the CPU"),
    "an option of another engine": (["-m", "llama-3-8b", "--gpu", "l4", "--swa-full"], ExitCode.USAGE, "--swa-full is an option of llama.cpp"),
    "heads that do not divide": (["-m", "llama-3-8b", "--gpu", "l4", "--tp", "3"], ExitCode.UNANSWERABLE, "--tp 3"),
}


@pytest.mark.parametrize(("words", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_is_refused(words: list[str], code: ExitCode, text: str) -> None:
    found, err = refuse(*words)
    assert (found, text in err) == (code, True), err
    assert len(err.strip().splitlines()) <= 2


def test_an_indexer_that_is_not_told_is_refused() -> None:
    spec = load_model("deepseek-v3.2").weighed()
    layers = tuple(layer.model_copy(update={"caches": tuple(cache.model_copy(update={"scorers": None}) for cache in layer.caches)}) for layer in spec.layers)
    with pytest.raises(KvcalcError, match="indexer"):
        costs(spec.model_copy(update={"layers": layers}), BF16, Options())


# What is shown


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_screen_says_which_side_is_slow(columns: str) -> None:
    done = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "h100 sxm", "-o", "512", "--no-cache", env={"COLUMNS": columns})
    assert done.code == ExitCode.YES
    text = " ".join(done.out.split())
    for said in (
        "first token after ~",
        "ms a token",
        "Prefill is bound by arithmetic",
        "Decode is bound by memory bandwidth",
        "prefill attention",
        "without a cache",
    ):
        assert said in text
    assert all(len(line) <= int(columns) for line in done.out.splitlines())


def test_a_card_whose_arithmetic_is_not_known_times_decode_alone() -> None:
    done = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "m2 ultra", "--engine", "llama.cpp", "-c", "4096")
    assert done.code == ExitCode.YES
    assert "state it with --tflops" in done.out
    assert kvcalc("speed", "-m", "llama-3-8b", "--gpu", "m2 ultra", "--engine", "llama.cpp", "-c", "4096", "--tflops", "27.2", "--json").json["prefill"][
        "seconds"
    ]


def test_links_are_those_of_the_board_or_stated() -> None:
    bridged = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "h100 sxm", "--tp", "2", "--json").json
    assert (bridged["gpu"]["link"], bridged["gpu"]["link_bytes_s"]) == ("NVLink4", 450_000_000_000)
    assert bridged["prefill"]["link_s"] > 0
    plain = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "l40s", "--tp", "2", "--json").json
    assert plain["prefill"]["link_s"] == 0
    assert any(note["code"] == "link" for note in plain["notes"])
    told = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "l40s", "--tp", "2", "--link", "16GB", "--json").json
    assert told["gpu"]["link_bytes_s"] == 16_000_000_000


# Requests that are served in time


def in_time(ttft: str | None = None, tpot: str | None = None, **choices: str) -> dict[str, Any]:
    words = [word for name, value in {"ttft": ttft, "tpot": tpot, "context": "8192", **choices}.items() if value is not None for word in (f"--{name}", value)]
    return kvcalc("fit", "-m", "llama-3.1-8b", "--gpu", "h100 sxm", *words, "--json").json


def test_requests_are_the_fewer_of_those_that_memory_holds_and_those_in_time() -> None:
    plain = in_time()
    held = next(row["requests"] for row in plain["lengths"] if row["context"] == 8192)
    assert plain["latency"] is None
    slow = in_time(tpot="1s")
    assert (slow["limited_by"], slow["latency"]["memory_requests"], slow["capacity"]) == ("kv_bytes", held, plain["capacity"])
    quick = in_time(tpot="15ms")
    assert quick["limited_by"] == "tpot"
    assert quick["capacity"]["requests"] == quick["latency"]["requests"] < held
    assert quick["capacity_range"] == quick["latency"]["requests_range"]
    assert in_time(ttft="300ms", tpot="1s")["limited_by"] == "ttft"


@pytest.mark.parametrize("tpot_ms", [8, 12, 15, 20])
def test_one_more_request_would_be_too_late(tpot_ms: int) -> None:
    """The definition of the answer: what `speed` says of so many requests is within the limit, and of one more is not."""
    found = in_time(tpot=f"{tpot_ms}ms")["latency"]
    last, more = (answer("llama-3.1-8b", batch=found["requests"] + extra).decode.seconds for extra in (0, 1))
    assert last is not None
    assert more is not None
    assert last.likely * 1e3 <= tpot_ms < more.likely * 1e3
    assert last.likely == pytest.approx(found["tpot"]["likely"])


def test_the_prompt_is_what_is_not_generated() -> None:
    whole, part = in_time(ttft="1s"), in_time(ttft="1s", output="4096")
    assert part["latency"]["requests"] > whole["latency"]["requests"]


def test_what_would_answer_in_time_is_advised() -> None:
    found = in_time(ttft="200ms")
    assert (found["fits"], found["limited_by"], found["lacking_bytes"]) == (False, "ttft", 0)
    assert any(change["options"] == "--tp 2" for change in found["advice"])
    for change in found["advice"]:
        words = change["options"].split()
        pairs_of = dict(zip((word.removeprefix("--") for word in words[::2]), words[1::2], strict=True))
        assert in_time(ttft="200ms", **pairs_of)["fits"], change["options"]


def test_the_screen_says_which_binds() -> None:
    done = kvcalc("fit", "-m", "llama-3.1-8b", "--gpu", "h100 sxm", "-c", "8192", "--tpot", "15ms")
    assert "The time for each token binds: ~" in done.out
    assert "keeps them in time" in " ".join(done.out.split())
    assert "Memory binds" in kvcalc("fit", "-m", "llama-3.1-8b", "--gpu", "h100 sxm", "-c", "8192", "--tpot", "1s").out


TOO_LATE: Final = {
    "no unit": (["--ttft", "200"], ExitCode.USAGE, "write it like 2s or 50ms"),
    "no time": (["--tpot", "0ms"], ExitCode.USAGE, "not above 0"),
    "a link without a time": (["--link", "3GB"], ExitCode.USAGE, "--link goes with --ttft or --tpot"),
    "an output without a first token": (["--tpot", "1s", "-o", "100"], ExitCode.USAGE, "--output goes with --ttft"),
    "no prompt": (["--ttft", "1s", "-o", "8192", "-c", "8192"], ExitCode.UNANSWERABLE, "leave none of 8,192"),
    "several cards": (["--gpu", "h100", "--ttft", "1s"], ExitCode.UNANSWERABLE, "H100 PCIe 80GB or"),
    "no arithmetic": (["--gpu", "m2 ultra", "--gpu-mem", "192GiB", "--ttft", "1s"], ExitCode.UNANSWERABLE, "state it with --tflops"),
}


@pytest.mark.parametrize(("words", "code", "text"), TOO_LATE.values(), ids=TOO_LATE)
def test_a_time_that_cannot_be_kept_or_told_is_refused(words: list[str], code: ExitCode, text: str) -> None:
    done = kvcalc("fit", "-m", "llama-3.1-8b", *([] if "--gpu" in words else ["--gpu", "h100 sxm"]), *words)
    assert (done.code, text in done.err, done.out) == (code, True, ""), done.err
