"""Completion as each shell asks for it: through the environment, with the words so far."""

import os
import sys
from pathlib import Path

import pytest

from kvcalc.cli import COMMANDS
from kvcalc.gpus import find_gpu, gpus, short_names
from tests.command import in_shell, kvcalc

COMPLETED = [
    ("e", ["estimate", "explain"]),
    ("s", ["sweep", "speed", "schema"]),
    ("estimate --model llama-3-8", ["llama-3-8b"]),
    ("estimate -m llama-3-8", ["llama-3-8b"]),
    ("fit --draft llama-3-8", ["llama-3-8b"]),
    ("compare gemma-3-27b llama-3-8", ["llama-3-8b"]),
    ("estimate --gpu h100-s", ["h100-sxm5-80gb"]),
    ("speed --gpu rtx-4090-l", ["rtx-4090-laptop"]),
    ("fit --engine v", ["vllm"]),
    ("compare llama-3-8b --engine vllm,s", ["vllm,sglang"]),
    ("sweep --engine vllm,s", ["vllm,sglang"]),
    ("sweep --gpu h200,h100-s", ["h200,h100-sxm5-80gb"]),
    ("verify --engine oll", ["ollama"]),
    ("replay --engine trt", ["trtllm"]),
    ("fit --kv-dtype q4_", ["q4_1", "q4_0"]),
    ("fit --kv-dtype k=q8_0,v=q4_", ["k=q8_0,v=q4_1", "k=q8_0,v=q4_0"]),
    ("fit --quantization nv", ["nvfp4"]),
    ("schema rep", ["replay"]),
    ("explain pag", ["paging"]),
    ("estimate --enf", ["--enforce-eager"]),
    ("nonsense --model l", []),
]


@pytest.mark.parametrize(("line", "words"), COMPLETED, ids=[line for line, _ in COMPLETED])
def test_words_in_bash(line: str, words: list[str]) -> None:
    done = kvcalc(env={"_KVCALC_COMPLETE": "complete_bash", "COMP_WORDS": f"kvcalc {line}", "COMP_CWORD": str(len(line.split()))})
    assert (done.code, done.out.split(), done.err) == (0, words, "")


@pytest.mark.parametrize(("line", "words"), COMPLETED[2:18:5], ids=[line for line, _ in COMPLETED[2:18:5]])
def test_words_in_zsh_and_fish(line: str, words: list[str]) -> None:
    zsh = kvcalc(env={"_KVCALC_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": f"kvcalc {line}"})
    assert zsh.out == "_arguments '*: :((" + "\n".join(f'"{word}"' for word in words) + "))'\n"
    fish = {"_KVCALC_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": f"kvcalc {line}"}
    assert kvcalc(env={**fish, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}).out.split() == words
    assert kvcalc(env={**fish, "_TYPER_COMPLETE_FISH_ACTION": "is-args"}).code == 0


def test_commands_come_with_what_they_do() -> None:
    fish = {"_KVCALC_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "kvcalc ", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    assert [line.partition("\t")[0] for line in kvcalc(env=fish).out.splitlines()] == list(COMMANDS)
    assert "estimate\tKV-cache bytes of a request and a batch." in kvcalc(env=fish).out


def test_each_gpu_has_a_word_that_means_it_alone() -> None:
    for word, gpu in zip(short_names(), gpus(), strict=True):
        assert [each.name for each in find_gpu(word).gpus] == [gpu.name]


def test_a_real_bash_completes(tmp_path: Path) -> None:
    """With the script that --show-completion prints, and a `kvcalc` on the PATH."""
    command = tmp_path / "kvcalc"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m kvcalc "$@"\n')
    command.chmod(0o755)
    line = """eval "$(kvcalc --show-completion)"; complete -p kvcalc
COMP_WORDS=(kvcalc estimate --gpu h100-s) COMP_CWORD=3; _kvcalc_completion kvcalc; printf '%s\\n' "${COMPREPLY[@]}" """
    done = in_shell(line, folder=tmp_path, env={"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    assert done.out == "complete -o default -F _kvcalc_completion kvcalc\nh100-sxm5-80gb\n", done.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell: str) -> None:
    assert "_KVCALC_COMPLETE=complete_" + shell in kvcalc(env={"_KVCALC_COMPLETE": f"source_{shell}"}).out


def test_a_home_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = in_shell('"$@"; exit $?', ("--install-completion",), tmp_path, {"HOME": str(tmp_path / "file" / "none")})
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("error: ")
    assert "Not a directory" in done.err
