"""Runs the `kvcalc` command as a user does: in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Done(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        loaded: dict[str, Any] = json.loads(self.out)
        return loaded


def kvcalc(*words: str, env: Mapping[str, str] | None = None, cwd: Path | None = None, timeout_s: float = 60) -> Done:
    """The command in a process without a terminal; `env` is added to an environment that knows no Hub and no colour."""
    settings = {**{key: value for key, value in os.environ.items() if not key.startswith(("HF_", "COLUMNS", "TERM"))}, "HF_HUB_OFFLINE": "1", **(env or {})}
    done = subprocess.run(
        [sys.executable, "-m", "kvcalc", *words],
        capture_output=True,
        text=True,
        env=settings,
        cwd=cwd,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        check=False,
    )
    assert "Traceback" not in done.stderr, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)
