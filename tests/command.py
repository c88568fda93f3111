"""Runs the `kvcalc` command as a user does: in a process of its own."""

import json
import os
import pty
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, Final, NamedTuple

COMMAND: Final = (sys.executable, "-m", "kvcalc")


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


def environment(env: Mapping[str, str] | None = None) -> dict[str, str]:
    """Knows no Hub, no colour and no width; with `env` on top."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "COLUMNS", "TERM", "PYTHONUNBUFFERED"))}
    return {**kept, "HF_HUB_OFFLINE": "1", **(env or {})}


def kvcalc(*words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 60) -> Done:
    """The command in a process without a terminal."""
    return _ended([*COMMAND, *words], env, cwd, timeout_s)


def in_shell(line: str, words: tuple[str, ...] = (), folder: Path | None = None, env: Mapping[str, str] | None = None) -> Done:
    """`line` in bash, with the command as "$@": what scripts do with streams."""
    done = _ended(["bash", "-c", f"set -o pipefail; {line}", "bash", *COMMAND, *words], env, folder, 60)
    assert "Exception ignored" not in done.err, done.err
    return done


def _ended(command: list[str], env: Mapping[str, str] | None, folder: Path | None, timeout_s: float) -> Done:
    done = subprocess.run(command, capture_output=True, text=True, env=environment(env), cwd=folder, timeout=timeout_s, stdin=subprocess.DEVNULL, check=False)
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def on_a_terminal(words: tuple[str, ...], folder: Path | None = None, env: Mapping[str, str] | None = None, out: IO[bytes] | None = None) -> bytes:
    """What a command writes to a terminal of its own, stderr too; its answer goes to `out` where that is given."""
    ours, theirs = pty.openpty()
    settings = environment({"TERM": "xterm-256color", "COLUMNS": "80", **(env or {})})
    said = b""
    with subprocess.Popen([*COMMAND, *words], stdout=out or theirs, stderr=theirs, stdin=subprocess.DEVNULL, env=settings, cwd=folder) as child:
        os.close(theirs)
        try:
            while part := os.read(ours, 1 << 16):
                said += part
        except OSError:  # how the end of a terminal reads on Linux
            pass
        assert child.wait(60) == 0
    os.close(ours)
    assert said
    return said
