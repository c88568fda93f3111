"""The command inside a script: closed and broken streams, no colour, any width, any locale, no home, nothing that can be written."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from kvcalc.cli import COMMANDS
from tests.command import COMMAND, environment, in_shell, kvcalc, on_a_terminal
from tests.lines import LINES

EVERY = pytest.mark.parametrize("name", LINES)
MORE = {
    "help": ("--help",),
    "help of fit": ("fit", "--help"),
    "version": ("--version",),
    "commands with a schema": ("schema",),
    "JSON": ("estimate", "-m", "llama-3-8b", "--json"),
    "CSV": ("sweep", "-m", "llama-3-8b", "--gpu", "h100-sxm", "-c", "1K,2K", "--csv"),
}


def test_there_is_a_line_of_every_command() -> None:
    assert {words[0] for words in LINES.values()} == set(COMMANDS)


@pytest.mark.parametrize("name", [*LINES, *MORE])
def test_broken_streams(name: str, folder: Path) -> None:
    """A reader that has gone, before the first line or behind it; an output that is closed, or full; an input or errors that are closed."""
    words = {**LINES, **MORE}[name]
    whole = in_shell('"$@"', words, folder)
    assert (whole.code, whole.err) == (0, "")
    gone = in_shell('"$@" > >(exec <&-; sleep 0.1)', words, folder)
    assert (gone.code, gone.err) == (0, "")
    first = in_shell('"$@" | head -1', words, folder)
    assert (first.code, first.out, first.err) == (0, whole.out.splitlines(keepends=True)[0], "")
    assert in_shell('"$@" >&-', words, folder) == (0, "", "")
    assert in_shell('"$@" <&- 2>&-', words, folder) == whole
    for env in ({}, {"PYTHONUNBUFFERED": "1"}):
        full = in_shell('"$@" >/dev/full', words, folder, env)
        assert (full.code, full.err) == (4, "error: the answer cannot be written: No space left on device\n")


@pytest.mark.parametrize("streams", ["2>&-", ">&- 2>&-", "<&- >&- 2>&-", "2>/dev/full"])
def test_an_error_keeps_its_exit_code_and_stays_out_of_stdout(streams: str, folder: Path) -> None:
    assert in_shell(f'"$@" {streams}', ("estimate", "-m", "lama-3-8b"), folder) == (3, "", "")
    assert in_shell(f'"$@" {streams}', ("nosuch",), folder) == (2, "", "")


@pytest.mark.parametrize(
    "words",
    [
        ("replay", "-", "-m", "llama-3-8b", "--gpu", "l40s"),
        ("prefix", "-"),
        ("verify", "--log", "-", "-m", "llama-3-8b"),
        ("fit", "-m", "llama-3-8b", "--gpu", "l40s", "--lengths", "-"),
    ],
)
@pytest.mark.parametrize(("stdin", "code"), [("<&-", 4), ("</dev/null", 3)])  # no stream at all is the caller's environment
def test_an_input_with_nothing_in_it_is_refused(words: tuple[str, ...], stdin: str, code: int, folder: Path) -> None:
    done = in_shell(f'"$@" {stdin}', words, folder)
    assert (done.code, done.out) == (code, "")
    first, *hint = done.err.splitlines()
    assert len(hint) <= 1
    assert first == "error: standard input is closed" if code == 4 else first.startswith("error: ")


@EVERY
def test_widths_and_plain_text(name: str, folder: Path) -> None:
    """No line is wider than the terminal but those that are copied: commands, formulas, JSON. Nothing but text goes to a pipe."""
    for width in (40, 200):
        done = kvcalc(*LINES[name], cwd=folder, env={"COLUMNS": str(width)})
        assert done.code == 0
        assert "\x1b" not in done.out
        if name != "schema":
            assert [line for line in done.out.splitlines() if len(line) > width and not line.startswith(("  = ", "vllm serve "))] == []


@EVERY
def test_a_terminal_without_colour(name: str, folder: Path) -> None:
    """NO_COLOR: no colour, bold may be. TERM=dumb: not even that."""
    coloured = [f"\x1b[{code}".encode() for code in (*range(30, 50), *range(90, 108))]
    shown = on_a_terminal(LINES[name], folder, {"NO_COLOR": "1"})
    assert not any(code in shown for code in coloured)
    assert b"\x1b" not in on_a_terminal(LINES[name], folder, {"TERM": "dumb"})


@EVERY
def test_a_locale_that_is_not_utf_8(name: str, folder: Path) -> None:
    done = kvcalc(*LINES[name], cwd=folder, env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"})
    assert (done.code, done.err) == (0, "")
    assert done.out.isascii()


NAMES = {"letters that the locale may not have": "\u043c\u043e\u0434\u0435\u043b\u044c-\U0001f600".encode(), "bytes that are no text": b"\xff\xfe"}


@pytest.mark.parametrize("env", [{"LC_ALL": "C.UTF-8"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}])
@pytest.mark.parametrize("name", NAMES)
def test_a_name_that_cannot_be_written(name: str, env: dict[str, str], tmp_path: Path) -> None:
    """It is escaped, and --json stays JSON."""
    model = os.fsencode(tmp_path) + b"/" + NAMES[name]
    made = Path(os.fsdecode(model))
    made.mkdir()
    (made / "config.json").write_text(json.dumps({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": 8, "n_positions": 8}))
    for words in (["estimate"], ["fit", "--kv-mem", "1GiB"], ["sweep", "--kv-mem", "1GiB,2GiB"]):
        for form in ([], ["--json"]):
            command = [*map(os.fsencode, (*COMMAND, *words)), b"-m", model, *map(os.fsencode, form)]
            done = subprocess.run(command, capture_output=True, env=environment(env), cwd=tmp_path, timeout=60, check=False)
            assert (done.returncode, done.stderr) == (0, b"")
            if form:
                assert json.loads(done.stdout.decode(env.get("PYTHONIOENCODING", "utf-8")))["schema"] == 1


@EVERY
def test_no_home_and_nothing_that_can_be_written(name: str, folder: Path, tmp_path: Path) -> None:
    """HOME is not set, or is no folder; the Hub's cache and the folder for temporary files are not there and cannot be made."""
    whole = in_shell('"$@"', LINES[name], folder)
    assert in_shell('unset HOME; exec "$@"', LINES[name], folder) == whole
    locked = tmp_path / "a file"
    locked.touch()
    env = {name: str(locked / "none") for name in ("HOME", "HF_HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR", "MPLCONFIGDIR")}
    assert in_shell('"$@"', LINES[name], folder, env) == whole


def test_a_folder_that_is_gone(folder: Path) -> None:
    gone = 'mkdir gone && cd gone && rmdir ../gone && "$@"'
    assert in_shell(gone, ("estimate", "-m", "llama-3-8b", "--quiet"), folder) == (0, f"{1 << 30}\n", "")
    assert in_shell(gone, ("estimate", "-m", "./x"), folder).code == 3
    words = ("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB", "--save", "x.svg", "--quiet")
    assert in_shell(gone, words, folder) == (4, "", "error: the folder that this runs in is not there any more\n")


def test_a_hub_cache_that_cannot_be_written_is_named(folder: Path, tmp_path: Path) -> None:
    locked = tmp_path / "a file"
    locked.touch()
    done = in_shell('"$@"', ("estimate", "-m", "org/model"), folder, {"HF_HOME": str(locked / "none")})
    assert (done.code, done.out) == (4, "")
    assert done.err.startswith("error: ")
