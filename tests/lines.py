"""A line of each command that can be answered anywhere, for what must hold of all of them."""

from pathlib import Path

from tests.test_verify_log import VLLM

BEGIN = "You are a helpful assistant. Answer in one sentence. "


def write_files(folder: Path) -> None:
    """What some of the lines read."""
    (folder / "start.log").write_bytes(VLLM)
    (folder / "prompts.txt").write_text("".join(f"{BEGIN}Question {number}?\n" for number in range(20)))
    (folder / "trace.csv").write_text("arrival,prompt,output\n0,100,20\n1.5,200,30\n2,100,5\n")


LINES = {
    "estimate": ("estimate", "-m", "gpt-oss-20b"),
    "fit": ("fit", "-m", "gpt-oss-20b", "--gpu", "l40s"),
    "fit of presets": ("fit", "--gpu-mem", "80GiB", "--filter", "llama"),
    "sweep": ("sweep", "-m", "llama-3-8b", "--gpu", "l40s,h100", "--tp", "1,2"),
    "speed": ("speed", "-m", "llama-3-8b", "--gpu", "l40s"),
    "compare": ("compare", "llama-3-8b", "gemma-3-27b"),
    "explain": ("explain", "cache"),
    "replay": ("replay", "trace.csv", "-m", "llama-3-8b", "--gpu", "l40s"),
    "prefix": ("prefix", "prompts.txt", "--format", "text"),
    "verify": ("verify", "--log", "start.log", "-m", "llama-3-8b"),
    "models": ("models",),
    "gpus": ("gpus",),
    "schema": ("schema", "fit"),
}
"""Each exits with 0, from a folder with these files."""
