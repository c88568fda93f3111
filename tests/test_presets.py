"""Presets against the published configs: two independent routes to the same layers.

`tests/configs/NAME.json` holds the keys that matter of a published config.json and where it is from. It is written from that file, never from the
preset, and the preset is never written from what kvcalc prints.
"""

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from kvcalc.catalog import find_preset, model_of, preset_folder, preset_names, presets
from kvcalc.families import FAMILIES, read_config
from kvcalc.packing import PACKINGS
from kvcalc.weights import Share, share_bytes

CONFIGS = Path(__file__).parent / "configs"
NAMES = preset_names()
COMPARED = ("model_type", "dtype", "kv_dtype", "max_context", "encoder_tokens", "image_prefix", "quantized_kv_scales", "sharded_tower")


def fixture(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(), parse_float=Decimal)
    return loaded


def test_there_are_presets_and_each_has_its_config() -> None:
    assert len(NAMES) >= 40
    assert {path.stem for path in CONFIGS.glob("*.json")} == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_preset_equals_published_config(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    published = fixture(name)
    assert set(published) <= {"repository", "copy", "config", "hf_quant_config"}
    written, read = preset.spec(), read_config(published["config"], hf_quant_config=published.get("hf_quant_config"))
    assert written.layers == read.layers
    assert written.draft_layers == read.draft_layers
    assert written.plain_formula == read.plain_formula
    assert {field: getattr(written.facts, field) for field in COMPARED} == {field: getattr(read.facts, field) for field in COMPARED}


UNTOLD = {"deepseek-v4.1-flash"}
"""Presets whose tensors no recipe tells."""


@pytest.mark.parametrize("name", NAMES)
def test_preset_has_the_tensors_of_its_published_config(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    published = fixture(name)
    written, read = model_of(preset).weighed(), read_config(published["config"], hf_quant_config=published.get("hf_quant_config"))
    assert bool(written.tensors) == (name not in UNTOLD)
    assert written.tensors == read.tensors
    if written.tensors:
        assert written.untold == read.untold
    for tp in (1, 2):
        assert share_bytes(written, PACKINGS["bf16"], Share(tp=tp)) == share_bytes(read, PACKINGS["bf16"], Share(tp=tp))


@pytest.mark.parametrize("name", NAMES)
def test_preset_counts_its_parameters(name: str) -> None:
    """The number was copied from a published count, or is that of the config; the tensors are summed here."""
    preset = find_preset(name)
    assert preset is not None
    spec = model_of(preset).weighed()
    counted = [tensor for tensor in spec.tensors if tensor.role != "buffer" and tensor.part != "draft"]
    if preset.parameters is not None:
        assert sum(tensor.elements * tensor.number for tensor in counted) == preset.parameters
    if preset.parameters_text is not None:
        assert sum(tensor.elements * tensor.number for tensor in counted if tensor.part == "text") == preset.parameters_text


@pytest.mark.parametrize("name", NAMES)
def test_preset_names_its_source(name: str) -> None:
    preset = find_preset(name)
    assert preset is not None
    assert preset.name == name
    assert preset.family
    assert preset.source
    assert preset.checked is not None
    assert preset.hub
    assert preset.model_type in FAMILIES
    published = fixture(name)
    assert published["repository"] in preset.hub
    assert published["copy"]


def test_names_and_repositories_are_unique() -> None:
    seen: dict[str, str] = {}
    for preset in presets():
        for name in (preset.name, *preset.aliases, *(hub.lower() for hub in preset.hub)):
            assert name == name.lower()
            assert seen.setdefault(name, preset.name) == preset.name, f"{name} is claimed twice"
    assert seen


def test_files_are_named_after_their_preset() -> None:
    assert {path.name for path in preset_folder().iterdir()} == {f"{name}.yaml" for name in NAMES}
