"""The README is true: its screens are real output, its recipe for a model works as it stands."""

import re
import shlex
from pathlib import Path

import pytest

from kvcalc.catalog import load_model
from kvcalc.cli import COMMANDS
from kvcalc.families import FAMILIES
from tests.command import kvcalc

README = (Path(__file__).parents[1] / "README.md").read_text()
SCREENS = re.findall(r"```console\n\$ kvcalc (.*?)\n(.*?)\n```", README, re.DOTALL)


def test_there_are_screens_and_the_first_is_the_main_one() -> None:
    assert SCREENS[0][0] == "estimate --model llama-3-8b"


@pytest.mark.parametrize(("words", "screen"), SCREENS, ids=[words for words, _ in SCREENS])
def test_a_screen_is_real_output(words: str, screen: str) -> None:
    """What is measured on a device is shown up to what its rows mean."""
    if words.startswith("verify"):
        pytest.importorskip("torch", reason="torch is not installed: nothing can be measured")
        assert kvcalc(*shlex.split(words)).out.startswith(screen)
        return
    assert kvcalc(*shlex.split(words)).out.rstrip("\n") == screen


def test_every_option_and_command_is_mentioned() -> None:
    """Long names of an engine are aliases, of which the README says so once."""
    for command in COMMANDS:
        helped = kvcalc(command, "--help", env={"COLUMNS": "200"}).out
        for line in (line.strip() for line in helped.splitlines()):
            if line.startswith("-") and (names := re.findall(r"--[a-z-]+", line.split("  ")[0])) and names != ["--help"]:
                assert names[0] in README or names == ["--batch"], names
        assert f"kvcalc {command}" in README


def test_the_python_examples_run(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("True 29 131072 ")
    assert "2 gpu_mem: '80G' can be read as 80GiB or 80GB; write which one " in said
    assert "vllm 32768" in said  # 16 layers x 8 heads x 64 x 2 x 2 bytes
    assert any(line.startswith("bandwidth lower=") for line in said)


def test_the_recipe_for_a_model_works_as_it_stands(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "tiny-2b.yaml").write_text(recipe)
    assert len(recipe.splitlines()) <= 12
    assert len(load_model(str(tmp_path / "tiny-2b.yaml")).spec.layers) == 26
    assert kvcalc("estimate", "--model", "./tiny-2b.yaml", "--quiet", cwd=tmp_path).code == 0


def test_the_recipe_for_an_architecture_names_what_there_is() -> None:
    assert '"llama": EVERY_HEAD' in README
    assert "llama" in FAMILIES
    for path in re.findall(r"`((?:kvcalc|tests|model_presets)/[\w/.]+\.\w+)`", README):
        if "tiny" not in path and "NAME" not in path:
            assert (Path(__file__).parents[1] / path).is_file(), path


def test_headings_and_screens_stand_apart() -> None:
    """A blank line around each heading and before each fence, and every fence is closed: without, a page shows them as one paragraph."""
    lines, fenced = README.splitlines(), False
    for number, line in enumerate(lines):
        if line.startswith("```"):
            assert fenced or not lines[number - 1], line
            fenced = not fenced
        elif line.startswith("#") and not fenced:
            assert not lines[number + 1], line
            assert number == 0 or not lines[number - 1], line
        elif line.startswith("$ kvcalc"):
            assert fenced, line
    assert not fenced
