"""`kvcalc verify` as a user types it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.command import kvcalc
from tests.test_verify_log import REFUSED, VLLM
from tests.test_verify_server import Server, server, vllm  # noqa: F401 (fixtures)

MODEL = ("--model", "llama-3-8b")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "start.log"
    path.write_bytes(VLLM)
    return path


def test_a_log_that_agrees(log: Path) -> None:
    """868,080 tokens and 847.73x of 105.97 GiB, as vLLM 0.11.2 logged them: the release, context and dtype are read from the log."""
    answer = kvcalc("verify", "--log", str(log), *MODEL, "--json").json
    checks = {check["name"]: check for check in answer["checks"]}
    assert answer["ok"]
    assert checks["tokens"]["measured"] == 868_080
    assert checks["concurrency"]["measured"] == 847.73
    screen = kvcalc("verify", "--log", str(log), *MODEL)
    assert screen.code == 0
    assert "figures agree" in screen.out.splitlines()[0]


def test_a_log_that_does_not_agree(log: Path) -> None:
    log.write_bytes(VLLM.replace(b"868,080", b"768,080"))
    done = kvcalc("verify", "--log", str(log), *MODEL)
    assert done.code == 1
    assert "disagree" in done.out.splitlines()[0]
    assert "NO" in done.out


def test_a_log_that_is_piped() -> None:
    command = [sys.executable, "-m", "kvcalc", "verify", "--log", "-", *MODEL, "--json"]
    done = subprocess.run(command, input=VLLM, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert b'"ok":true' in done.stdout


def test_a_server_that_did_not_start(tmp_path: Path) -> None:
    """What would have let it start is asked of the solver: 3.97 GiB hold 32,496 tokens of Llama-3.1-8B (the log: 32,512, of a figure that was rounded)."""
    (tmp_path / "start.log").write_bytes(REFUSED)
    done = kvcalc("verify", "--log", "start.log", "--model", "llama-3.1-8b", "--gpu", "a10g", cwd=tmp_path)
    assert "12.03 GiB too little" in " ".join(done.out.split())
    assert "--context 32496" in done.out


def test_a_server(vllm: Server) -> None:  # noqa: F811 (the fixture)
    """208 blocks of 784 tokens, 141,994 tokens, 4.33 requests: as a public server of vLLM 0.28 told them; its options are its own."""
    done = kvcalc("verify", "--server", vllm.url, "--model", "qwen3.5-27b", "--json", env={"KVCALC_API_KEY": "sk-secret"})
    assert done.code == 0
    measured = {check["name"]: check["measured"] for check in done.json["checks"] if check["predicted"] is not None}
    assert (measured["block"], measured["blocks"], measured["tokens"]) == (784, 208, 141_994)
    assert "sk-secret" not in done.out + done.err


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--log", "x.log", "--server", "http://127.0.0.1"), 2, "give one of them"),
        (("--log", "x.log", "--all"), 2, "--all and --max-mem go with --device"),
        (("--device", "cpu", "--all", "--model", "llama-3-8b"), 2, "leave out --model"),
        (("--device", "cpu", "--engine", "vllm"), 2, "what a server is told (engine) goes with"),
        (("--device", "cpu", "--layers", "2"), 2, "what a server is told (layers) goes with"),
        (("--log", "x.log", "--kv-mem", "1GiB", "--utilization", "0.5"), 3, "x.log cannot be read"),
        (("--device", "cpu", "--tp", "2"), 2, "what a server is told (tp) goes with --server or --log"),
        (("--log", "nowhere.log"), 3, "nowhere.log cannot be read"),
        (("--server", "ftp://127.0.0.1"), 2, "http"),
        (("--server", "http://127.0.0.1:9"), 4, "127.0.0.1"),
    ],
)
def test_it_refuses(words: tuple[str, ...], code: int, said: str) -> None:
    done = kvcalc("verify", *words)
    assert done.code == code
    assert said in done.err


def test_a_log_of_nothing_and_a_log_without_a_model(tmp_path: Path) -> None:
    (tmp_path / "nothing.log").write_text("hello\n")
    (tmp_path / "nameless.log").write_bytes(VLLM.replace(b"org/m-8b", b"/data/m"))
    nothing, nameless = (kvcalc("verify", "--log", str(tmp_path / name)) for name in ("nothing.log", "nameless.log"))
    assert nothing.code == nameless.code == 3
    assert "lines that are looked for" in nothing.err
    assert "name it with --model" in nameless.err
