"""The README is true: its screens are real output, its recipe for a model works as it stands."""

import re
from pathlib import Path

import pytest

from kvcalc.catalog import load_model
from kvcalc.families import FAMILIES
from tests.command import kvcalc

README = (Path(__file__).parents[1] / "README.md").read_text()
SCREENS = re.findall(r"```console\n\$ kvcalc (.*?)\n(.*?)\n```", README, re.DOTALL)


def test_there_are_screens_and_the_first_is_the_main_one() -> None:
    assert SCREENS[0][0] == "estimate --model llama-3-8b"


@pytest.mark.parametrize(("words", "screen"), SCREENS, ids=[words for words, _ in SCREENS])
def test_a_screen_is_real_output(words: str, screen: str) -> None:
    assert kvcalc(*words.split()).out.rstrip("\n") == screen


def test_every_option_and_command_is_mentioned() -> None:
    for option in re.findall(r"(--[a-z-]+)", kvcalc("estimate", "--help").out):
        alias = option in ("--help", "--max-model-len", "--kv-cache-dtype", "--engine", "--batch") or option.endswith("-size")
        assert alias or option in README, option
    assert "kvcalc models" in README


def test_the_recipe_for_a_model_works_as_it_stands(tmp_path: Path) -> None:
    (recipe,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    (tmp_path / "tiny-2b.yaml").write_text(recipe)
    assert len(recipe.splitlines()) <= 12
    assert len(load_model(str(tmp_path / "tiny-2b.yaml")).spec.layers) == 26
    assert kvcalc("estimate", "--model", "./tiny-2b.yaml", "--quiet", cwd=tmp_path, env={"PYTHONPATH": str(Path(__file__).parents[1])}).code == 0


def test_the_recipe_for_an_architecture_names_what_there_is() -> None:
    assert '"llama": EVERY_HEAD' in README
    assert "llama" in FAMILIES
    for path in re.findall(r"`((?:kvcalc|tests|model_presets)/[\w/.]+\.\w+)`", README):
        if "tiny" not in path and "NAME" not in path:
            assert (Path(__file__).parents[1] / path).is_file(), path
