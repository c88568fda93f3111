"""The vllm engine against plans that vLLM's own code made, against what older releases logged, and by its definition."""

from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvcalc.catalog import load_model
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.engines.vllm import NEWEST_VLLM, VllmEngine
from kvcalc.engines.vllm.versions import FLAGS_SINCE, NEWEST, OLDEST, Version, find_version
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.families import read_config
from kvcalc.gpus import find_gpu
from kvcalc.layers import ModelSpec
from kvcalc.packing import parse_kv_dtype

GIB = 1 << 30
PLANS: list[dict[str, Any]] = yaml.safe_load((Path(__file__).parent / "vllm.yaml").read_text())
CHOICES = ("tp", "pp", "dcp", "block_size", "state_dtype", "prefix_caching", "hybrid_manager", "async_scheduling")


def options(row: dict[str, Any]) -> Options:
    """What a row of the table asks for."""
    return Options(
        kv_dtype=parse_kv_dtype(row.get("kv_dtype", "auto")),
        device=find_gpu(row.get("gpu", "h100")).device(),
        max_batched_tokens=row["batched"],
        max_seqs=1024,
        **{name: row[name] for name in CHOICES if name in row},
    )


@pytest.mark.parametrize("row", PLANS, ids=lambda row: " ".join(str(row[key]) for key in ("model", "gpu", "kv_dtype", "tp", "context") if key in row))
def test_plan_is_that_of_vllm(row: dict[str, Any]) -> None:
    plan = NEWEST_VLLM.plan(load_model(row["model"]).spec, options(row))
    blocks = int(Decimal(row["kv_gib"]) * GIB) // plan.pools[0].unit_bytes
    held = plan.capacity(blocks, row["context"])
    assert plan.need(row["context"]) == (row["request_blocks"],)
    assert blocks == row["blocks"]
    assert held.tokens == row["tokens"]
    assert held.requests == pytest.approx(row["requests"], abs=0.0006)
    if "pp" not in row:  # vLLM prints the first stage, a plan counts the fullest
        assert plan.pools[0].unit_bytes == row["block_bytes"]


def held_at(release: str, model: str, kv_gib: str, context: int, **choices: Any) -> tuple[int, float, int]:
    """Blocks, concurrency and tokens of a release for a budget. `gpu` and `kv_dtype` are names."""
    gpu, kv_dtype = choices.pop("gpu", "h100"), choices.pop("kv_dtype", "auto")
    asked = Options(kv_dtype=parse_kv_dtype(kv_dtype), device=find_gpu(gpu).device(), **choices)
    plan = VllmEngine(find_version(release)).plan(load_model(model).spec, asked)
    blocks = int(Decimal(kv_gib) * GIB) // plan.pools[0].unit_bytes
    held = plan.capacity(blocks, context)
    return blocks, held.requests, held.tokens


# What public start-up logs print: release, model, KV GiB (rounded by the log), context, options, concurrency, tokens.
LOGGED = [
    ("0.6", "llama-3-8b", "11.12", 8192, {"gpu": "A100 40GB"}, 11.12, 5691 * 16),
    ("0.11.2", "llama-3-8b", "105.97", 1024, {"gpu": "h200", "max_batched_tokens": 2048}, 847.73, 868_080),
    ("0.19.2", "qwen3.6-35b-a3b", "47.55", 131072, {"gpu": "NVIDIA GB10"}, 18.44, 623_040),
    ("0.25.1", "qwen3.6-35b-a3b", "74.22", 262144, {"gpu": "NVIDIA GB10", "draft_layers": True, "speculative_tokens": 3}, 12.84, 3_366_051),
    ("0.25.1", "qwen3.5-27b", "76.4", 262144, {"gpu": "GB10", "kv_dtype": "fp8", "draft_layers": True, "speculative_tokens": 3}, 8.36, 2_192_477),
    ("0.27.1", "qwen3.6-27b", "41.03", 4096, {"max_batched_tokens": 4096, "max_seqs": 32}, 71.42, 292_522),
    (
        "0.19.2",
        "nemotron-3-super-120b-a12b",
        "36.25",
        131072,
        {"gpu": "GB10", "kv_dtype": "fp8", "draft_layers": True, "speculative_tokens": 3},
        27.81,
        1_399_712,
    ),
    ("0.11", "gemma-3-27b", "20", 131072, {"max_batched_tokens": 8192}, None, 37_440),
]


@pytest.mark.parametrize("logged", LOGGED, ids=lambda logged: f"{logged[0]} {logged[1]}")
def test_older_releases_hold_what_they_logged(logged: tuple[str, str, str, int, dict[str, Any], float | None, int]) -> None:
    release, model, kv_gib, context, choices, requests, tokens = logged
    _, concurrency, printed = held_at(release, model, kv_gib, context, **choices)
    rounding = 0.006 / float(kv_gib) + 1e-5
    assert printed == pytest.approx(tokens, rel=rounding + 0.002)
    if requests is not None:
        assert concurrency == pytest.approx(requests, rel=rounding, abs=0.006)


def test_llama_4_cost_as_much_as_full_attention_before_its_chunks_were_kept() -> None:
    """A public start-up error: 240.00 GiB needed at 10,485,760 tokens on each of 8 GPUs, 88.38 GiB there, longest 3,861,424."""
    plan = VllmEngine(Version(11)).plan(load_model("llama-4-scout-17b-16e").spec, Options(tp=8))
    assert plan.need(10_485_760)[0] * plan.pools[0].unit_bytes == 240 * GIB
    blocks = int(Decimal("88.38") * GIB) // plan.pools[0].unit_bytes
    assert blocks * plan.pools[0].unit_rows == pytest.approx(3_861_424, abs=220)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("qwen2.5-7b", {"tp": 8}, "attention heads (28) must be divisible"),
    ("phi-4", {"tp": 4}, "neither divides the 10 KV heads"),
    ("llama-3-8b", {"pp": 33}, "more than the 32 layers"),
    ("llama-3-8b", {"tp": 8, "dcp": 2}, "wants --tp above the 8 KV heads"),
    ("llama-3-8b", {"tp": 16, "dcp": 3}, "must divide --tp 16"),
    ("gemma-3-1b", {"tp": 4, "dcp": 2}, "DCP not supported with sliding windows"),
    ("gemma-4-e2b", {"pp": 2}, "uses the cache of layer"),
    ("deepseek-v3.2", {"device": "a100"}, "sparse MLA has none below compute capability 9.0"),
    ("deepseek-v3.2", {"block_size": 16}, "multiple of 64"),
    ("deepseek-v3.2", {"tp": 8, "dcp": 8}, "wants packed fp8 rows"),
    ("deepseek-v3", {"kv_dtype": "fp8", "device": "a100"}, "takes fp8 from compute capability 8.9 on"),
    ("deepseek-v3", {"kv_dtype": "nvfp4"}, "not supported with MLA"),
    ("deepseek-v3", {"kv_dtype": "turboquant_4bit_nc"}, "MLA on CUDA takes"),
    ("deepseek-v3", {"kv_dtype": "fp8_e5m2"}, "not supported with fp8 checkpoints"),
    ("deepseek-v4-flash", {"kv_dtype": "bf16"}, "packed fp8 rows only"),
    ("deepseek-v4-flash", {"hybrid_manager": False}, "hybrid KV cache manager"),
    ("gpt-oss-20b", {"kv_dtype": "fp8", "device": "a100"}, "takes fp8 from compute capability 8.9 on"),
    ("gpt-oss-20b", {"kv_dtype": "turboquant_4bit_nc"}, "full causal attention"),
    ("gpt2", {"kv_dtype": "nvfp4"}, "nvfp4 takes no head size of 64"),
    ("mimo-v2-flash", {"kv_dtype": "fp8", "device": "a100"}, "compute capability 9.0 alone"),
    ("llama-3-8b", {"kv_dtype": "turboquant_4bit_nc", "device": "b200"}, "another cache layout"),
    ("llama-3-8b", {"kv_dtype": "q8_0"}, "vLLM has no KV dtype q8_0"),
    ("llama-3-8b", {"kv_dtype": "fp8_inc"}, "on Gaudi alone"),
    ("deepseek-v3.2", {"kv_dtype": "fp8_ds_mla"}, "by itself"),
    ("llama-3-8b", {"kv_dtype": "k=fp8,v=bf16"}, "stores K and V alike"),
    ("llama-3-8b", {"kv_dtype": "fp16"}, "the model's own dtype"),
    ("llama-3-8b", {"draft_layers": True}, "no draft (MTP) layers"),
    ("qwen3.5-35b-a3b", {"hybrid_manager": False}, "hybrid KV cache manager"),
    ("qwen3-vl-8b", {"tp": 32}, "width of the vision tower"),
    ("gemma-4-31b", {"max_batched_tokens": 2048}, "more than --max-batched-tokens 2,048"),
]


@pytest.mark.parametrize(("model", "choices", "said"), REFUSED, ids=lambda value: str(value)[:40])
def test_what_vllm_turns_down_is_refused_and_its_plain_form_is_not(model: str, choices: dict[str, Any], said: str) -> None:
    spec, asked = load_model(model).spec, dict(choices)
    asked["kv_dtype"] = parse_kv_dtype(asked.get("kv_dtype", "auto"))
    asked["device"] = find_gpu(asked.get("device", "h100")).device()
    with pytest.raises(KvcalcError) as refused:
        NEWEST_VLLM.plan(spec, Options(**asked))
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert said in refused.value.message
    NEWEST_VLLM.plan(spec, Options(device=find_gpu("h100").device()))


def test_releases_before_0_14_store_k_and_v_of_one_width() -> None:
    spec = load_model("mimo-v2-flash").spec
    with pytest.raises(KvcalcError, match="K and V of one width only"):
        VllmEngine(Version(11)).plan(spec, Options())
    VllmEngine(Version(14)).plan(spec, Options())


@pytest.mark.parametrize("release", ["0.6", "0.7.3", "0.11", "v0.11.2", "0.33.0", "0.14.0rc1"])
def test_releases_are_read(release: str) -> None:
    assert find_engine(f"vllm@{release}").version == find_version(release).number


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("vllm@0.3", ExitCode.UNANSWERABLE),
        ("vllm@0.34", ExitCode.UNANSWERABLE),
        ("vllm@1", ExitCode.USAGE),
        ("vllm@", ExitCode.USAGE),
        ("ideal@1", ExitCode.USAGE),
    ],
)
def test_other_releases_are_refused(text: str, code: ExitCode) -> None:
    with pytest.raises(KvcalcError) as refused:
        find_engine(text)
    assert refused.value.code == code


def test_the_newest_release_is_the_plain_name() -> None:
    assert find_engine("vllm").version == "0.33.0" == Version(NEWEST).number


@pytest.mark.parametrize("minor", range(OLDEST, NEWEST + 1))
def test_every_release_plans_a_plain_model_alike(minor: int) -> None:
    """A model with one kind of layer costs the same pool in every release; only what is printed changes."""
    plan = VllmEngine(Version(minor)).plan(load_model("llama-3-8b").spec, Options())
    assert plan.pools[0].unit_bytes == 2 * 32 * 16 * 8 * 128 * 2
    assert plan.capacity(1000, 4096).tokens == 16_000
    assert plan.capacity(1000, 4096).requests == pytest.approx(1000 / 256)


@pytest.mark.parametrize(("flag", "choices"), [("--data-parallel-size", {"dp": 2}), ("--decode-context-parallel-size", {"tp": 16, "dcp": 2})])
def test_a_flag_that_a_release_has_not_is_refused_with_the_one_that_has_it(flag: str, choices: dict[str, int]) -> None:
    since = FLAGS_SINCE[flag]
    spec = load_model("llama-3-8b").spec
    assert flag in VllmEngine(Version(since)).plan(spec, Options(**choices)).command("m", 8192, None, None)  # type: ignore[arg-type]  # ints only
    with pytest.raises(KvcalcError, match=f"has no {flag}") as refused:
        VllmEngine(Version(since - 1)).plan(spec, Options(**choices)).command("m", 8192, None, None)  # type: ignore[arg-type]  # as above
    assert f"vllm@0.{since}" in refused.value.hint


@pytest.mark.parametrize(
    ("model", "gpu", "kv_dtype", "named"),
    [
        ("llama-3-8b", "h100", "auto", "bf16"),
        ("llama-3-8b", "h100", "fp8", "fp8"),
        ("deepseek-v3.2", "h100", "fp8", "fp8"),
        ("deepseek-v4-flash", "h100", "auto", "fp8_ds_mla"),
        ("deepseek-v4.1-flash", "b200", "auto", "nvfp4_ds_mla"),
        ("falcon-7b", "h100", "fp8", "bf16"),
    ],
)
def test_kv_dtype_is_named_as_it_is_stored(model: str, gpu: str, kv_dtype: str, named: str) -> None:
    asked = Options(kv_dtype=parse_kv_dtype(kv_dtype), device=find_gpu(gpu).device())
    assert str(NEWEST_VLLM.plan(load_model(model).spec, asked).kv_dtype) == named


def test_command_names_what_is_not_the_default() -> None:
    spec = load_model("qwen3-next-80b-a3b").spec
    asked = Options(tp=4, kv_dtype=parse_kv_dtype("fp8"), prefix_caching=False, state_dtype="fp32", max_seqs=64, enforce_eager=True)
    assert NEWEST_VLLM.plan(spec, asked).command("a folder/m", 32768, 20 * GIB, None) == (
        "vllm serve 'a folder/m' --max-model-len 32768 --tensor-parallel-size 4 --kv-cache-dtype fp8 "
        "--kv-cache-memory-bytes 21474836480 --max-num-seqs 64 --mamba-ssm-cache-dtype float32 --enforce-eager --no-enable-prefix-caching"
    )
    assert NEWEST_VLLM.plan(spec, Options()).command("m", 8192, None, "0.9").endswith(" --gpu-memory-utilization 0.9")
    assert "--kv-cache-memory-bytes" not in VllmEngine(Version(9)).plan(load_model("llama-3-8b").spec, Options()).command("m", 8192, GIB, None)


def test_batch_sizes_follow_the_gpu() -> None:
    """--max-num-batched-tokens and --max-num-seqs of `vllm serve` by default (EngineArgs.get_batch_defaults)."""
    spec = load_model("llama-3-8b").spec
    for gpu, sizes in {"h100": (8192, 1024), "a100-80gb": (2048, 256), "l4": (2048, 256), "b200": (16384, 1024), "gb10": (2048, 256)}.items():
        assert NEWEST_VLLM.plan(spec, Options(device=find_gpu(gpu).device())).batch == sizes
    assert NEWEST_VLLM.plan(spec, Options()).batch == (2048, 128)
    thor = find_gpu("thor")  # 64 or 128 GB: on either side of 70 GiB
    with pytest.raises(KvcalcError, match="depend on how much memory thor has"):
        NEWEST_VLLM.plan(spec, Options(device=thor.device()))
    assert NEWEST_VLLM.plan(spec, Options(device=thor.device(64 * GIB))).batch == (2048, 256)
    assert NEWEST_VLLM.plan(spec, Options(device=thor.device(), max_batched_tokens=512, max_seqs=8)).batch == (512, 8)
    assert VllmEngine(Version(25)).plan(spec, Options(device=find_gpu("b200").device())).batch == (8192, 1024)
    assert VllmEngine(Version(8)).plan(spec, Options(device=find_gpu("a100-80gb").device())).batch == (8192, 1024)
    assert VllmEngine(Version(9)).plan(spec, Options(device=find_gpu("a100-80gb").device())).batch == (2048, 256)
    assert VllmEngine(Version(7)).plan(spec, Options(device=find_gpu("h100").device())).batch == (2048, 256)
    assert NEWEST_VLLM.plan(spec, Options(max_batched_tokens=64, max_seqs=256)).batch == (64, 64)
    assert NEWEST_VLLM.plan(load_model("gemma-4-31b").spec, Options()).batch == (2496, 128)


def test_a_plan_counts_whole_blocks_of_every_layer() -> None:
    spec: ModelSpec = read_config({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "dtype": "bfloat16"})
    plan = NEWEST_VLLM.plan(spec, Options())
    assert plan.need(17) == (2,)
    assert plan.resident_bytes(17, 3) == 3 * 2 * 2 * 16 * 2 * 64 * 2
    assert plan.total_bytes(17, 3) == plan.resident_bytes(17, 3)
    assert plan.token_bytes(17) == 2 * 2 * 64 * 2
    assert plan.fixed_bytes() == 0
    assert sum(use.size_bytes for use in plan.uses(17)) == plan.resident_bytes(17, 1)
