"""The command as a user meets it: exit codes, streams, JSON, widths, completion."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvcalc import __version__
from kvcalc.catalog import preset_names
from tests.command import kvcalc, on_a_terminal

SHAPE = ("--layers", "32", "--kv-heads", "32", "--head-dim", "128", "--kv-dtype", "fp16")

ANSWERED = [
    (("estimate", *SHAPE, "--context", "4096"), 2 << 30),
    (("estimate", *SHAPE, "--context", "4096", "--batch", "8"), 16 << 30),
    (("estimate", *SHAPE, "--context", "8192", "--batch", "8"), 32 << 30),
    (("estimate", *SHAPE, "-c", "4K", "-b", "1"), 2 << 30),
    (("estimate", *SHAPE), 4 << 30),
    (("estimate", "--model", "llama-3-8b"), 1 << 30),
    (("estimate", "-m", "llama-3-8b", "--max-model-len", "4096"), 1 << 29),
    (("estimate", "-m", "llama-3-8b", "--kv-cache-dtype", "fp8"), 1 << 29),
    (("estimate", "-m", "llama-3-8b", "--tensor-parallel-size", "16"), 2 << 30),
    (("estimate", "-m", "llama-3-8b", "--dp", "2"), 2 << 30),
    (("estimate", "-m", "llama-3-8b", "--engine", "ideal"), 1 << 30),
    (("estimate", "-m", "deepseek-v3", "-c", "1", "--kv-dtype", "bf16"), 61 * 576 * 2),
    (("estimate", "-m", "deepseek-v3", "-c", "1", "--kv-dtype", "bf16", "--mtp", "3"), 62 * 576 * 2),
    (("estimate", "-m", "whisper-large-v3", "-c", "448", "--kv-dtype", "bf16"), 319_160_320),
    (("estimate", "-m", "whisper-large-v3", "-c", "448", "--kv-dtype", "bf16", "--encoder-tokens", "0"), 448 * 2 * 32 * 20 * 64 * 2),
]
REFUSED = [
    (("estimate",), 2, "give --model"),
    (("estimate", "--layers", "32"), 2, "give --model"),
    (("estimate", "-m", "llama-3-8b", "--layers", "32"), 2, "give --model"),
    (("estimate", "-m", "llama-3-8b", "--context", "-5"), 2, "'-5' is not a count"),
    (("estimate", "-m", "llama-3-8b", "--context", "0"), 2, "at least 1"),
    (("estimate", "-m", "llama-3-8b", "--context", "1e400"), 2, "is not a count"),
    (("estimate", "-m", "llama-3-8b", "--context", "9" * 5000), 2, "is not a count"),
    (("estimate", "-m", "llama-3-8b", "--batch", "two"), 2, "'two' is not a count"),
    (("estimate", "-m", "llama-3-8b", "--kv-dtype", "fp7"), 2, "unknown KV dtype 'fp7'"),
    (("estimate", "-m", "llama-3-8b", "--engine", "vllmm"), 2, "unknown engine 'vllmm'"),
    (("estimate", "-m", "llama-3-8b", "--encoder-tokens", "-1"), 2, "--encoder-tokens"),
    (("estimate", "-m", "llama-3-8b", "--json", "--quiet"), 2, "give one of them"),
    (("estimate", "-m", "llama-3-8b", "--no-such-flag"), 2, "--no-such-flag"),
    (("estimate", "-m", "llama-3-8b", "--as", "llama"), 2, "--as goes with a config.json"),
    (("estimate", "-m", "llama-3-8b", "--mtp", "0"), 2, "at least 1"),
    (("estimate", "-m", "llama-3-8b", "--mtp", "1"), 3, "no draft (MTP) layers"),
    (("estimate", "-m", "llama-3-8b", "--revision", "main"), 2, "--revision goes with a Hub id"),
    (("estimate", *SHAPE[:4], "--head-dim", "128", "--layers", "20000"), 2, "more than any model has"),
    (("nonsense",), 2, "nonsense"),
    (("estimate", "-m", "lama-3-8b"), 3, "llama-3-8b"),
    (("estimate", "-m", "./nothing"), 3, "no file or folder"),
    (("estimate", "-m", "llama-3-8b", "--tp", "3"), 3, "neither divides the 8 KV heads"),
    (("estimate", "-m", "llama-3-8b", "--pp", "33"), 3, "more than the 32 layers"),
    (("estimate", "-m", "llama-3-8b", "--dcp", "2"), 3, "--dcp 2"),
    (("estimate", "-m", "llama-3-8b", "--kv-dtype", "int4_per_token_head"), 3, "depends on the engine"),
    (("estimate", "-m", "llama-3-8b", "--engine", "vllm@0.3"), 3, "vLLM 0.3 is not modelled"),
    (("estimate", "-m", "llama-3-8b", "--engine", "vllm", "--gpu", "h1oo"), 3, "H100"),
    (("estimate", "-m", "llama-3-8b", "--mamba-ssm-cache-dtype", "int8"), 2, "unknown state dtype"),
    (("fit", "-m", "llama-3-8b"), 4, "--gpu-mem"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--min-gpus", "--tp", "2"), 2, "leave out --gpus, --tp and --pp"),
    (("fit", "--gpu-mem", "80GiB", "--min-gpus"), 2, "--min-gpus goes with one model"),
    (("fit", "-m", "llama-3.1-405b", "--gpu-mem", "8GiB", "--min-gpus"), 1, "up to 64 of these GPUs"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--quantization", "int3"), 2, "known: awq"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--weights-per-gpu", "9GiB", "--weights", "9GiB"), 2, "--weights has nothing to say"),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--reserve", "1GiB"), 2, "--reserve has nothing to say"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--draft", "llama-3.2-1b"), 2, "--draft-tokens"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--draft-tokens", "3"), 2, "goes with --draft"),
    (("fit", "-m", "deepseek-v3", "--gpu-mem", "80GiB", "--mtp", "1", "--draft", "llama-3.2-1b", "--draft-tokens", "3"), 2, "give it, or --draft"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--draft", "llama-3.2-1x", "--draft-tokens", "3"), 3, "llama-3.2-1b"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--max-loras", "-1"), 2, "--max-loras"),
    (("fit", "-m", "llama-3-8b", "--gpu", "h1oo"), 3, "did you mean"),
    (("fit", "--gpu-mem", "80GiB", "--weights", "9GiB"), 2, "--weights goes with one model"),
    (("fit", "--gpu-mem", "80GiB", "--as", "llama"), 2, "--as goes with one model"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--filter", "llama"), 2, "--filter goes with all presets"),
    (("fit", "--gpu-mem", "80GiB", "--filter", "no such name"), 3, "no preset"),
    (("fit", "--gpu-mem", "80GiB", "--layers", "2"), 2, "give --model"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--gpus", "8", "--tp", "4"), 2, "--gpus 8 are not --tp 4 x --pp 1 x --dp 1 = 4"),
    (("fit", "-m", "phi-4", "--gpu-mem", "80GiB", "--gpus", "4"), 3, "neither divides the 10 KV heads"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80G"), 2, "80GiB or 80GB"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--utilization", "0"), 2, "above 0"),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--utilization", "1.2"), 2, "above 0"),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--utilization", "0.9"), 2, "--utilization has nothing to say"),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--weights", "9GiB"), 2, "--weights has nothing to say"),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--block-size", "0"), 2, "at least 1"),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--block-size", "-16"), 2, "is not a count"),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--json", "--quiet"), 2, "give one of them"),
    (("fit", "-m", "llama-3-8b", "--gpu", "a100"), 3, "name the one you mean"),
    (("fit", "-m", "llama-3-8b", "--gpu", "h100 nvl"), 3, "state it with --gpu-mem"),
    (("fit", "-m", "mamba-2.8b", "-c", "8", "--kv-mem", "20GiB", "--engine", "vllm@0.6"), 3, "outside its KV pool"),
    (("fit", *SHAPE, "--gpu-mem", "80GiB"), 3, "--weights"),
    (("models", "--family", "lama"), 3, "no preset is of the family"),
    (("estimate", "-m", "org/model"), 4, "HF_HUB_OFFLINE"),
]


@pytest.mark.parametrize(("words", "size"), ANSWERED, ids=lambda value: " ".join(value) if isinstance(value, tuple) else "")
def test_answered(words: tuple[str, ...], size: int) -> None:
    done = kvcalc(*words, "--quiet")
    assert (done.code, done.out, done.err) == (0, f"{size}\n", "")


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "")
def test_refused_in_one_clear_line(words: tuple[str, ...], code: int, said: str) -> None:
    done = kvcalc(*words)
    assert done.code == code, done.err
    assert done.out == ""
    assert done.err.startswith("error: ")
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


def test_help_names_every_command_and_every_option() -> None:
    whole = kvcalc("--help")
    assert whole.code == 0
    for command in ("estimate", "fit", "models", "gpus"):
        assert command in whole.out
        assert kvcalc(command, "--help").code == 0
    for option in ("--model", "--context", "--batch", "--kv-dtype", "--tp", "--pp", "--dp", "--dcp", "--encoder-tokens", "--revision", "--json", "--quiet"):
        assert option in kvcalc("estimate", "--help").out
    for option in ("--gpu-mem", "--kv-mem", "--utilization", "--weights", "--gpu", "--block-size", "--max-seqs", "--max-batched-tokens", "--quiet"):
        assert option in kvcalc("fit", "--help").out
    assert kvcalc().code == 2
    assert kvcalc().err == whole.out


def test_version() -> None:
    for words in (("--version",), ("--version", "estimate")):
        assert kvcalc(*words).out == f"kvcalc {__version__}\n"


def test_json_is_the_contract() -> None:
    answer = kvcalc("estimate", "-m", "llama-3-8b", "--json").json
    assert answer["schema"] == 1
    assert answer["model"]["name"] == "llama-3-8b"
    assert answer["model"]["parameters"] == 8_030_261_248
    assert answer["engine"] == "ideal"
    assert answer["kv_dtype"] == "bf16"
    assert answer["parallel"] == {"tp": 1, "pp": 1, "dp": 1, "dcp": 1}
    assert (answer["total_bytes"], answer["bytes_per_gpu"], answer["request_bytes"]) == (1 << 30,) * 3
    assert (answer["token_bytes"], answer["fixed_bytes"]) == (131_072, 0)
    assert answer["formula"] == "2 x 32 x 8,192 x 8 x 128 x 2 x 1"
    row = {"kind": "full", "kernel": "gqa", "count": 32, "kv_heads": 8, "k_dim": 128, "v_dim": 128, "window": None, "stride": 1, "rows": 8192, "bytes": 1 << 30}
    assert answer["layers"] == [row]
    assert answer["notes"] == []


def test_fit_is_the_contract() -> None:
    """Llama-3-8B in 20 GiB: vLLM 0.33.0 itself plans 10,240 blocks, 163,840 tokens, 20.00x."""
    done = kvcalc("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--gpu", "h100", "--json")
    assert done.code == 0
    answer = done.json
    assert (answer["schema"], answer["engine"], answer["engine_version"]) == (1, "vllm", "0.33.0")
    assert answer["gpu"] == {"name": "h100", "memory_bytes": None, "memory_by": None, "used_bytes": None}
    assert answer["memory"]["kv_bytes"] == 20 << 30
    assert answer["memory_range"] == {}
    assert answer["capacity"] == {
        "requests": 20.0,
        "tokens": 163_840,
        "max_context": 8192,
        "blocks": 10_240,
        "block_tokens": 16,
        "block_bytes": 2 << 20,
        "request_bytes": 1 << 30,
        "slots": None,
    }
    assert (answer["fits"], answer["limited_by"], answer["gpus"], answer["batch"]) == (True, "kv_bytes", 1, 1)
    assert [row["context"] for row in answer["lengths"]] == [1024, 4096, 8192]
    assert answer["division"]["differences"] == []
    assert answer["commands"] == {"vllm": "vllm serve meta-llama/Meta-Llama-3-8B --max-model-len 8192 --kv-cache-memory-bytes 21474836480"}


def test_fit_of_a_gpu_is_the_contract() -> None:
    answer = kvcalc("fit", "-m", "llama-3-8b", "--gpu", "h100", "--json").json
    memory = answer["memory"]
    assert memory["weights_bytes"] == 16_060_522_496
    assert memory["weights_from"] == "tensors of preset llama-3-8b"
    names = ("weights_bytes", "activation_bytes", "graph_bytes", "runtime_bytes", "reserve_bytes", "kv_bytes")
    assert sum(memory[name] for name in names) == memory["usable_bytes"]
    assert {"activation_bytes", "graph_bytes", "runtime_bytes", "kv_bytes"} == set(answer["memory_range"])
    assert all(bounds["low"] <= memory[name] <= bounds["high"] for name, bounds in answer["memory_range"].items())
    assert answer["totals"] == {"requests": int(answer["capacity"]["requests"]), "tokens": int(answer["capacity"]["requests"]) * 8192}
    assert answer["advice"] == []


def test_weights_larger_than_the_card_say_by_how_much_and_what_would_help() -> None:
    done = kvcalc("fit", "-m", "llama-3.1-70b", "--gpu", "rtx4090", "--context", "8192")
    assert done.code == 1
    assert "131.42 GiB, are 109.67 GiB" in " ".join(done.out.split())
    assert "--tp 8" in done.out
    answer = kvcalc("fit", "-m", "llama-3.1-70b", "--gpu", "rtx4090", "--context", "8192", "--json").json
    assert (answer["fits"], answer["limited_by"]) == (False, "weights")
    assert {"text", "options", "requests", "context", "gpus"} == set(answer["advice"][0])


def test_min_gpus_finds_a_layout() -> None:
    answer = kvcalc("fit", "-m", "llama-3.1-70b", "--gpu", "h100", "--context", "8192", "--min-gpus", "--json").json
    assert (answer["fits"], answer["gpus"], answer["parallel"]["tp"]) == (True, 2, 2)


def test_all_replicas_and_one_are_told_apart() -> None:
    done = kvcalc("fit", "-m", "llama-3-8b", "--gpu", "h100", "--gpus", "8", "--tp", "4", "--dp", "2")
    assert "8 GPUs: tp 4 x dp 2; the figures below are of one replica unless they say all" in " ".join(done.out.split())
    assert "all 2 replicas: requests" in done.out


def test_fit_of_every_preset_is_ranked() -> None:
    done = kvcalc("fit", "--gpu-mem", "80GiB", "--json")
    assert done.code == 0
    rows = done.json["rows"]
    (left_out,) = [[note for note in done.json["notes"] if note["code"] == "unanswered"]]
    named = {name for note in left_out for name in note["text"].partition(": ")[2].split(", ")}
    assert {row["model"]["name"] for row in rows} | named == set(preset_names())
    assert not {row["model"]["name"] for row in rows} & named
    fits = [row["fits"] for row in rows]
    assert fits == sorted(fits, reverse=True)
    assert [row["lacking_bytes"] for row in rows] == sorted(row["lacking_bytes"] for row in rows)
    weights = [row["memory"]["weights_bytes"] for row in rows if row["fits"]]
    assert weights == sorted(weights, reverse=True)
    one = kvcalc("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--json").json
    assert next(row for row in rows if row["model"]["name"] == "llama-3-8b") == one


def test_fit_of_presets_by_name_and_at_a_length() -> None:
    assert kvcalc("fit", "--kv-mem", "1GiB", "--filter", "llama-3.2", "--context", "4096", "--quiet").out.split() == [
        "llama-3.2-11b-vision",
        "llama-3.2-3b",
        "llama-3.2-1b",
    ]
    done = kvcalc("fit", "--gpu-mem", "80GiB", "--filter", "70b")
    assert done.code == 1
    assert "0 of 4 presets fit" in done.out


def test_fit_exits_1_where_it_does_not_fit_and_still_answers() -> None:
    done = kvcalc("fit", "-m", "llama-3.1-8b", "--kv-mem", "4GiB", "--json")
    assert done.code == 1
    assert (done.json["fits"], done.json["capacity"]["max_context"]) == (False, 32_752)
    screen = kvcalc("fit", "-m", "llama-3.1-8b", "--kv-mem", "4GiB")
    assert screen.code == 1
    assert "does not fit" in screen.out
    assert "--context 32752" in screen.out


def test_gpus_alone_share_the_heads() -> None:
    alone = kvcalc("fit", "-m", "llama-3.1-70b", "--gpu-mem", "80GiB", "--gpus", "4", "--json").json
    assert alone == kvcalc("fit", "-m", "llama-3.1-70b", "--gpu-mem", "80GiB", "--tp", "4", "--json").json
    assert (alone["gpus"], alone["parallel"]["tp"]) == (4, 4)
    replicas = kvcalc("fit", "-m", "llama-3.1-70b", "--gpu-mem", "80GiB", "--gpus", "8", "--tp", "4", "--dp", "2", "--json").json
    assert (replicas["gpus"], replicas["capacity"]) == (8, alone["capacity"])


def test_fit_quiet_is_whole_requests() -> None:
    """20.00x by vLLM's own count, of which the null block takes one."""
    assert kvcalc("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--quiet").out == "19\n"


def test_a_serve_command_can_be_pasted() -> None:
    words = "--max-model-len 8192 --tensor-parallel-size 2 --gpu-memory-utilization 0.9 --max-num-seqs 64 --max-num-batched-tokens 4096 --enforce-eager"
    answer = kvcalc("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", *words.split(), "--no-enable-prefix-caching", "--kv-cache-dtype", "fp8", "--json").json
    assert answer["commands"]["vllm"].split()[3:] == [
        *("--max-model-len", "8192", "--tensor-parallel-size", "2", "--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.9"),
        *("--max-num-batched-tokens", "4096", "--max-num-seqs", "64", "--enforce-eager", "--no-enable-prefix-caching"),
    ]


def test_estimate_counts_blocks_for_an_engine_that_has_them() -> None:
    answer = kvcalc("estimate", "-m", "gemma-3-27b", "--engine", "vllm", "--gpu", "h100", "--context", "8192", "--json").json
    assert answer["formula"] == "3,590 x 1,310,720 x 1"
    assert answer["request_bytes"] == 3590 * 1_310_720
    assert sum(row["bytes"] for row in answer["layers"]) == 3590 * 1_310_720
    assert {note["code"] for note in answer["notes"]} == {"engine"}


def test_an_option_that_the_engine_has_not_is_named() -> None:
    answer = kvcalc("estimate", "-m", "llama-3-8b", "--block-size", "32", "--gpu", "l4", "--json").json
    assert [note["text"] for note in answer["notes"]] == ["ideal does not use --gpu, --block-size"]


def test_models_as_json_as_names_and_for_a_reader() -> None:
    assert [row["name"] for row in kvcalc("models", "--json").json["models"]] == preset_names()
    assert kvcalc("models", "--quiet").out.split() == preset_names()
    assert "llama-3-8b" in kvcalc("models", "--family", "llama").out
    assert kvcalc("models", "no such thing", "--quiet").out == ""


def test_gpus_as_json_as_names_and_for_a_reader() -> None:
    names = kvcalc("gpus", "--quiet").out.splitlines()
    assert [row["name"] for row in kvcalc("gpus", "--json").json["gpus"]] == names
    assert kvcalc("gpus", "h100", "--quiet").out.splitlines() == ["NVIDIA H100 PCIe 80GB", "NVIDIA H100 SXM5 80GB", "NVIDIA H100 NVL 94GB"]
    assert "139.80" in kvcalc("gpus", "h200").out
    assert kvcalc("gpus", "--json", "--quiet").code == 2


def test_memory_that_nvidia_smi_showed_is_noted() -> None:
    answer = kvcalc("fit", "-m", "llama-3-8b", "--gpu", "a100 80gb pcie", "--json").json
    assert answer["gpu"]["memory_bytes"] == 81920 << 20
    assert "gpu-memory" in {note["code"] for note in answer["notes"]}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for words in (
        ("estimate", "-m", "gpt-oss-20b", "--context", "32768"),
        ("fit", "-m", "gpt-oss-20b", "--kv-mem", "20GiB"),
        ("models", "--family", "qwen"),
        ("gpus", "nvidia"),
    ):
        done = kvcalc(*words, env={"COLUMNS": str(width)})
        assert done.code == 0
        assert max(map(len, (line for line in done.out.splitlines() if not line.startswith(("  = ", "vllm serve"))))) <= width
        assert "\x1b" not in done.out


def test_a_terminal_gets_bold_unless_it_asks_for_none() -> None:
    words = ("estimate", "-m", "llama-3-8b")
    assert b"\x1b[1m" in on_a_terminal(words)
    assert b"\x1b[" not in on_a_terminal(words, env={"NO_COLOR": "1", "TERM": "dumb"})


def test_a_locale_without_utf_8_is_no_reason_to_fail() -> None:
    done = kvcalc("estimate", "-m", "llama-3-8b", env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert done.code == 0
    assert done.out.isascii()


@pytest.mark.parametrize(
    "words",
    [("models", "--json"), ("estimate", "--model", "llama-3-8b", "--quiet"), ("estimate", "--model", "llama-3-8b")],
    ids=["a large answer", "a small one", "a rendered one"],
)
def test_a_reader_that_goes_away_is_no_error(words: tuple[str, ...]) -> None:
    """A large answer fails while it is printed, a small one when it is flushed."""
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-m", "kvcalc", *words], stdout=writing, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_shell_completes_preset_names() -> None:
    env = {"_KVCALC_COMPLETE": "complete_bash", "COMP_WORDS": "kvcalc estimate --model llama-3-", "COMP_CWORD": "3"}
    assert "llama-3-8b" in kvcalc(env=env).out.split()


def test_it_runs_in_any_folder_without_a_home(tmp_path: Path) -> None:
    done = kvcalc("estimate", "-m", "llama-3-8b", "--quiet", cwd=tmp_path, env={"HOME": str(tmp_path / "none")})
    assert done.out == f"{1 << 30}\n"


def test_what_comes_from_outside_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    evil = tmp_path / "\x1b[31m[bold]red"
    evil.mkdir()
    (evil / "config.json").write_text('{"model_type": "\\u001b[31mred"}')
    done = kvcalc("estimate", "-m", str(evil))
    assert done.code == 3
    assert "\x1b" not in done.err
    (evil / "config.json").write_text('{"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 8}')
    done = kvcalc("estimate", "-m", str(evil))
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "[bold]" in done.out


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--engine", "vllm", "--swa-full"), 2, "--swa-full is an option of llama.cpp, not of vllm"),
        (("--engine", "vllm", "--mem-fraction-static", "0.9"), 2, "--mem-fraction-static is an option of sglang, not of vllm"),
        (("--engine", "llama.cpp", "--cache", "static"), 2, "--cache is an option of transformers, not of llama.cpp"),
        (("--engine", "ideal", "--enable-dp-attention"), 2, "--enable-dp-attention is an option of sglang and trtllm, not of ideal"),
        (("--engine", "sglang", "--mem-fraction-static", "0.9", "--utilization", "0.8"), 2, "give one of them"),
        (("--engine", "llama.cpp", "--flash-attn", "maybe"), 2, "'maybe' is neither on nor off"),
        (("--engine", "sglang", "--mamba-full-memory-ratio", "0"), 2, "0 is not above 0 and up to 100"),
        (("--engine", "sglang", "--gpus", "8", "--tp", "4", "--dp", "2", "--enable-dp-attention"), 2, "--gpus 8 are not --tp 4 x --pp 1 = 4"),
        (
            (
                "--engine",
                "llama.cpp@1",
            ),
            2,
            "llama.cpp has no releases to choose from here",
        ),
        (("--engine", "llama.cpp", "--kv-dtype", "k=fp16,v=q8_0", "--flash-attn", "off"), 3, "wants flash attention for a V of type"),
        (("--engine", "llama.cpp", "--batch", "9"), 3, "9 requests at once want as many slots"),
        (("--engine", "trtllm", "--block-size", "48"), 3, "a power of two above 1"),
    ],
)
def test_options_of_one_engine(words: tuple[str, ...], code: int, said: str) -> None:
    done = kvcalc("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", *words)
    assert done.code == code
    assert said in done.err


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (("--engine", "llama.cpp", "-np", "2", "--gpu", "4090"), {"slots": 2, "requests": 2.0, "tokens": 4096}),
        (("--engine", "ollama", "-np", "2", "--gpu", "4090"), {"slots": 2, "requests": 2.0, "tokens": 8192}),
        (("--engine", "sglang", "--kv-mem", "10GiB"), {"slots": None, "requests": pytest.approx(20.0, rel=0.01)}),
        (("--engine", "trtllm", "--kv-mem", "10GiB"), {"slots": None, "requests": 20.0, "tokens": 81_920}),
    ],
)
def test_each_engine_counts_in_its_own_way(words: tuple[str, ...], rows: dict[str, Any]) -> None:
    """Llama-3-8B, 4,096 tokens: half a GiB. llama.cpp's context is that of all slots, Ollama's that of one."""
    capacity = kvcalc("fit", "-m", "llama-3-8b", "--context", "4096", *words, "--json").json["capacity"]
    assert {name: capacity[name] for name in rows} == rows


def test_ollama_takes_its_context_from_the_memory() -> None:
    """32,768 from 23 GiB on (a 4090 reports 23.6), 4,096 below; without a GPU it is asked for."""
    assert kvcalc("fit", "-m", "llama-3.1-8b", "--engine", "ollama", "--gpu", "4090", "--json").json["context"] == 32_768
    assert kvcalc("estimate", "-m", "llama-3.1-8b", "--engine", "ollama", "--gpu", "l4", "--json").json["context"] == 4096
    done = kvcalc("estimate", "-m", "llama-3.1-8b", "--engine", "ollama")
    assert done.code == 3
    assert "state --context, or --gpu" in done.err
