"""What each command loads: modules are counted, not milliseconds."""

import subprocess
import sys

import pytest

LIBRARIES = {"typer", "pydantic", "rich", "yaml", "huggingface_hub", "httpx", "httpx2", "torch", "transformers", "numpy", "matplotlib"}
OURS = {"kvcalc.families", "kvcalc.engines.vllm", "kvcalc.tensors", "kvcalc.weights"}
HEAVY = LIBRARIES | OURS
LOADS = {
    ("--version",): set(),
    ("--help",): {"typer"},
    ("estimate", "--model", "llama-3-8b", "--json"): {"typer", "pydantic", "yaml"},
    ("estimate", "--model", "llama-3-8b", "--quiet"): {"typer", "pydantic", "yaml"},
    ("estimate", "--model", "llama-3-8b"): {"typer", "pydantic", "yaml", "rich"},
    ("fit", "--model", "llama-3-8b", "--kv-mem", "1GiB", "--json"): {"typer", "pydantic", "yaml", "kvcalc.engines.vllm", "kvcalc.tensors", "kvcalc.weights"},
    ("sweep", "--model", "llama-3-8b", "--kv-mem", "1GiB,2GiB", "--json"): {
        "typer",
        "pydantic",
        "yaml",
        "kvcalc.engines.vllm",
        "kvcalc.tensors",
        "kvcalc.weights",
    },
    ("explain", "--json"): {"typer", "pydantic", "yaml", "kvcalc.families", "kvcalc.engines.vllm", "kvcalc.tensors", "kvcalc.weights"},
    ("schema", "estimate"): {"typer", "pydantic"},
    ("estimate", "--layers", "1", "--kv-heads", "1", "--head-dim", "1", "--quiet"): {"typer", "pydantic"},
}


def loaded(*words: str) -> set[str]:
    """The modules that a command imports, by Python's own account."""
    return imported("-m", "kvcalc", *words)


def imported(*words: str) -> set[str]:
    """The same of any Python program."""
    done = subprocess.run([sys.executable, "-X", "importtime", *words], capture_output=True, text=True, timeout=60, check=False)
    return {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}


@pytest.mark.parametrize("words", LOADS, ids=" ".join)
def test_a_command_loads_no_more_than_it_needs(words: tuple[str, ...]) -> None:
    modules = loaded(*words)
    assert modules & HEAVY == LOADS[words]


PROGRAMS = {
    "import kvcalc": set(),
    "import kvcalc; kvcalc.KvcalcError": set(),
    "import kvcalc; kvcalc.estimate('llama-3-8b')": {"pydantic", "yaml"},
    "import kvcalc; kvcalc.fit('llama-3-8b', kv_mem='1GiB')": {"pydantic", "yaml", "kvcalc.engines.vllm", "kvcalc.tensors", "kvcalc.weights"},
}


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_loads_no_more_than_it_asks_for(program: str) -> None:
    assert imported("-c", program) & HEAVY == PROGRAMS[program]
