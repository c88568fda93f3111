"""What a script relies on: the exit code of each command, and that its --json is what `kvcalc schema` says. One table of both."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from kvcalc.cli import COMMANDS
from kvcalc.schemas import ANSWERS, schema_of
from tests.command import kvcalc
from tests.lines import LINES

CAN: dict[str, set[int]] = {
    "estimate": {0, 2, 3, 4},  # a size is neither yes nor no
    "fit": {0, 1, 2, 3, 4},
    "sweep": {0, 1, 2, 3, 4},
    "speed": {0, 2, 3, 4},
    "compare": {0, 2, 3, 4},
    "explain": {0, 2, 3, 4},
    "replay": {0, 1, 2, 3, 4},
    "prefix": {0, 1, 2, 3, 4},
    "verify": {0, 1, 2, 3, 4},
    "models": {0, 2, 3},  # nothing outside is asked
    "gpus": {0, 2},  # a list may be empty
    "schema": {0, 2},
}
"""The exit codes that each command has."""
SERVE = ("--gpu", "l40s", "--context", "4K")
IN_A_LINE: list[tuple[str, ...]] = [
    ("fit", "-m", "llama-3.1-405b", "--gpu-mem", "8GiB", "--min-gpus"),
    ("replay", "trace.csv", "-m", "llama-3-8b", "--gpu", "l40s", "--kv-mem", "64KiB"),
    ("prefix", "prompts.txt", "--format", "text", "-m", "llama-3-8b", "--gpu-mem", "8GiB"),
]
"""1, and there is nothing to show: no number of these GPUs serves it, or no memory is left for a cache."""
EXITS: list[tuple[tuple[str, ...], int]] = [
    *((words, 0) for words in LINES.values()),
    *((words, 1) for words in IN_A_LINE),
    (("estimate", "-m", "jamba-v0.1", "--engine", "vllm", "--gpu", "h100", "-c", "8K"), 0),
    (("estimate", "-m", "gemma-3-27b", "--engine", "llama.cpp", "-c", "8K"), 0),
    (("estimate", "-m", "whisper-large-v3"), 0),
    (("estimate", "--layers", "2", "--kv-heads", "2", "--head-dim", "8"), 0),
    (("estimate",), 2),
    (("estimate", "-m", "lama-3-8b"), 3),
    (("estimate", "-m", "org/model"), 4),
    (("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--shared-prefix", "64", "--lengths", "trace.csv"), 0),
    (("fit", "-m", "llama-3-8b", "--gpu", "h100 sxm", "--ttft", "2s", "--tpot", "50ms", "--output", "200"), 0),
    (("fit", "-m", "gemma-3-27b", "--gpu", "h100", "--engine", "llama.cpp", "-np", "2", "-c", "32K"), 0),
    (("fit", "-m", "qwen3-32b", "--gpu", "rtx4090", "-c", "32K", "-b", "4"), 1),
    (("fit", "--gpu-mem", "8GiB", "--filter", "70b"), 1),
    (("fit", "-m", "llama-3-8b", "--gpu-mem", "80G"), 2),
    (("fit", "-m", "llama-3-8b", "--gpu", "h1oo"), 3),
    (("fit", "-m", "llama-3-8b"), 4),
    (("sweep", "-m", "llama-3-8b", "--kv-mem", "1GiB", "--tp", "1..3+1", "-c", "1K,8K"), 0),
    (("sweep", "-m", "llama-3-8b", "--kv-mem", "1MiB,2MiB"), 1),
    (("sweep", "-m", "llama-3-8b", "--kv-mem", "1GiB", "--tp", "4..1"), 2),
    (("sweep", "-m", "llama-3-8b", "--gpu", "h1oo,h200"), 3),
    (("sweep", "-m", "org/model", "--kv-mem", "1GiB"), 4),
    (("speed", "-m", "gpt-oss-20b", "--gpu", "l40s", "-c", "8K", "-o", "200", "--no-cache", "--tp", "2"), 0),
    (("speed", "-m", "llama-3-8b", "--gpu-mem", "80GiB"), 2),
    (("speed", "-m", "llama-3-8b", "--gpu", "h100"), 3),
    (("speed", "-m", "llama-3-8b"), 4),
    (("compare", "llama-3-8b", "gemma-3-27b", *SERVE), 0),
    (("compare", "llama-3-8b"), 0),
    (("compare", "llama-3-8b", "--engine", "vllm"), 2),
    (("compare", "llama-3-8b", "lama-3-8b"), 3),
    (("compare", "llama-3-8b", "org/model"), 4),
    (("explain",), 0),
    (("explain", "all", "-m", "deepseek-v3", "--gpu", "h200", "--tp", "8"), 0),
    (("explain", "pagin"), 2),
    (("explain", "-m", "lama-3-8b"), 3),
    (("explain", "-m", "org/model"), 4),
    (("replay", "--synthetic", "prompt=constant(100) output=constant(20) rate=5/s requests=50", "-m", "llama-3-8b", *SERVE, "--dp", "2"), 0),
    (("replay", "trace.csv", "-m", "llama-3-8b", "--gpu", "l40s", "--kv-mem", "20MiB"), 1),
    (("replay", "-m", "llama-3-8b", *SERVE), 2),
    (("replay", "no.csv", "-m", "llama-3-8b", *SERVE), 3),
    (("replay", "trace.csv", "-m", "llama-3-8b"), 4),
    (("prefix", "prompts.txt", "--format", "text", "-m", "llama-3-8b", *SERVE), 0),
    (("prefix", "prompts.txt", "--format", "text", "--tp", "2"), 2),
    (("prefix", "no.txt"), 3),
    (("prefix", "prompts.txt", "--format", "text", "-m", "org/model"), 4),
    (("verify", "--log", "start.log", "-m", "llama-3.2-1b"), 1),
    (("verify", "--log", "start.log", "--device", "cpu"), 2),
    (("verify", "--log", "no.log"), 3),
    (("verify", "--server", "http://127.0.0.1:9"), 4),
    (("models", "llama", "--family", "Llama"), 0),
    (("models", "--nonsense"), 2),
    (("models", "--family", "lama"), 3),
    (("gpus", "h100"), 0),
    (("gpus", "a", "b"), 2),
    (("schema",), 0),
    (("schema", "estimat"), 2),
]


@cache
def validator(command: str) -> Draft202012Validator:
    schema = schema_of(command)
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


def test_the_table_has_every_code_of_every_command() -> None:
    assert list(CAN) == list(COMMANDS)
    assert {name: {code for words, code in EXITS if words[0] == name} for name in COMMANDS} == CAN


@pytest.mark.parametrize(("words", "code"), EXITS, ids=[" ".join(words) for words, _ in EXITS])
def test_exit_codes_and_json(words: tuple[str, ...], code: int, folder: Path) -> None:
    """0 and 1 come with the whole answer as JSON, but where there is nothing to show; the others with nothing on stdout."""
    as_json = words[0] in ANSWERS
    done = kvcalc(*words, *["--json"] * as_json, cwd=folder)
    assert done.code == code, done.err
    if code > 1 or words in IN_A_LINE:
        assert done.out == ""
        assert done.err.startswith("error: ")
        return
    assert done.err == ""
    if as_json:
        errors = [f"{'/'.join(map(str, error.path))}: {error.message[:200]}" for error in validator(words[0]).iter_errors(done.json)]
        assert errors == []


def test_every_command_with_json_has_a_schema() -> None:
    for command in COMMANDS:
        assert (command in ANSWERS) == ("\n  --json" in kvcalc(command, "--help").out)
    assert kvcalc("schema").out.split() == list(ANSWERS)


@pytest.mark.parametrize("command", ANSWERS)
def test_a_schema_is_printed_as_it_is_and_takes_nothing_else(command: str) -> None:
    """Every object of kvcalc's own lists all its fields as required, and no others are taken."""
    schema = kvcalc("schema", command).json
    assert schema == schema_of(command)
    assert (schema["$schema"], schema["$id"]) == ("https://json-schema.org/draft/2020-12/schema", f"urn:kvcalc:{command}:1")
    objects = [part for part in parts(schema) if "properties" in part]
    assert objects
    for each in objects:
        assert each["additionalProperties"] is False
        assert each["required"] == list(each["properties"])
        assert "\n" not in each.get("description", "")


def parts(schema: Any) -> list[dict[str, Any]]:
    if isinstance(schema, dict):
        return [schema, *(each for value in schema.values() for each in parts(value))]
    return [each for value in schema for each in parts(value)] if isinstance(schema, list) else []


def test_a_schema_refuses_what_is_no_answer() -> None:
    answer = json.loads(kvcalc("estimate", "-m", "llama-3-8b", "--json").out)
    assert validator("estimate").is_valid(answer)
    for key in answer:
        assert not validator("estimate").is_valid({name: value for name, value in answer.items() if name != key})
    changes: tuple[dict[str, Any], ...] = ({"schema": 2}, {"total_bytes": "1 GiB"}, {"total_bytes": 1.5}, {"totalbytes": 1}, {"layers": [{}]}, {"model": None})
    for wrong in changes:
        assert not validator("estimate").is_valid({**answer, **wrong})


def test_a_command_without_a_schema_is_told_which_have_one() -> None:
    assert kvcalc("schema", "estimat") == (2, "", "error: no command 'estimat' with --json\nhint: did you mean estimate?\n")
    assert "there are estimate, fit, sweep" in kvcalc("schema", "\x1b[31m").err
