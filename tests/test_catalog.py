"""Finding a model: presets, files, folders, spec YAMLs, and what is refused without a traceback."""

import os
import shutil
from pathlib import Path

import pytest

from kvcalc.catalog import MAX_FILE_BYTES, find_preset, load_model, preset_folder, preset_names, presets
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.listing import list_models

CONFIG = '{"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}'
SPEC = """
name: tiny
max_context: 1024
dtype: bf16
kinds:
  local: {caches: [{kind: attention, query_heads: 8, kv_heads: 2, head_dim: 32, window: 16}]}
  global: {caches: [{kind: attention, query_heads: 8, kv_heads: 2, head_dim: 32}]}
layers: [{repeat: 2, of: [local, local, global]}, {of: [local]}]
"""


def refused(text: str) -> KvcalcError:
    with pytest.raises(KvcalcError) as error:
        load_model(text)
    assert error.value.code in (ExitCode.UNANSWERABLE, ExitCode.ENVIRONMENT)
    assert "\n" not in error.value.message
    return error.value


@pytest.mark.parametrize("text", ["llama-3-8b", "Llama-3-8B", "LLAMA_3_8B", "llama3-8b", " llama-3-8b "])
def test_a_preset_by_name_and_alias_in_any_spelling(text: str) -> None:
    assert load_model(text).name == "llama-3-8b"


def test_a_typo_is_refused_with_the_nearest_names() -> None:
    error = refused("lama-3-8b")
    assert "llama-3-8b" in error.hint
    assert "kvcalc models" in error.hint


def test_a_folder_a_config_and_a_spec_are_read(tmp_path: Path) -> None:
    folder = tmp_path / "my-model"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    (folder / "tiny.yaml").write_text(SPEC)
    assert load_model(str(folder)).name == "my-model"
    assert load_model(str(folder / "config.json")).name == "my-model"
    assert load_model(str(folder)).spec == load_model(str(folder / "config.json")).spec
    spec = load_model(str(folder / "tiny.yaml"))
    assert spec.name == "tiny"
    assert len(spec.spec.layers) == 7


def test_the_name_of_a_folder_never_decides_what_it_holds(tmp_path: Path) -> None:
    folder = tmp_path / "gemma-7b"
    folder.mkdir()
    (folder / "config.json").write_text(CONFIG)
    assert len(load_model(str(folder)).spec.layers) == 4


def test_a_quant_file_beside_counts_where_the_config_has_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG)
    (tmp_path / "hf_quant_config.json").write_text('{"producer": {"name": "modelopt"}, "quantization": {"kv_cache_quant_algo": "FP8"}}')
    assert load_model(str(tmp_path)).spec.facts.kv_dtype == "fp8_e4m3"


def test_bom_and_utf16_are_read(tmp_path: Path) -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        (tmp_path / "config.json").write_bytes(CONFIG.encode(encoding))
        assert len(load_model(str(tmp_path)).spec.layers) == 4


def test_infinity_where_it_is_not_needed_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(CONFIG[:-1] + ', "time_step_limit": [0.0, Infinity]}')
    assert len(load_model(str(tmp_path)).spec.layers) == 4


BROKEN_CONFIGS = {
    "binary": (b"\x80\x81\xfe\xff" * 100, "is not"),
    "a picture": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)), "is not"),
    "empty": (b"", "is not valid JSON"),
    "cut short": (CONFIG[:40].encode(), "is not valid JSON"),
    "a list": (b"[1, 2]", "does not hold a JSON object"),
    "a number": (b"7", "does not hold a JSON object"),
    "too large": (b'{"a": "' + b"x" * MAX_FILE_BYTES + b'"}', "is larger than 8.00 MiB"),
    "50 MB": (b" " * 50_000_000, "is larger than 8.00 MiB"),
    "nested too deeply": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    "a number of a million digits": (CONFIG.replace("256", "9" * 1_000_000).encode(), "is not valid JSON"),
    "a web page": (b"<!DOCTYPE html><html>log in</html>", "is a web page"),
    "Infinity where a number is needed": (CONFIG.replace("256", "Infinity").encode(), "hidden_size is inf"),
    "NaN where a number is needed": (CONFIG.replace("256", "NaN").encode(), "hidden_size is nan"),
    "1e400 where a number is needed": (CONFIG.replace("256", "1e400").encode(), "hidden_size is 1E+400"),
}


@pytest.mark.parametrize("case", BROKEN_CONFIGS)
def test_a_broken_config_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    data, said = BROKEN_CONFIGS[case]
    (tmp_path / "config.json").write_bytes(data)
    assert said in refused(str(tmp_path)).message


BROKEN_SPECS = {
    "unknown field": (SPEC + "heads: 3\n", "heads: unknown field"),
    "unknown cache kind": (SPEC.replace("kind: attention", "kind: magic", 1), "kind 'magic' is not known"),
    "unknown cache field": (SPEC.replace("window: 16", "windows: 16"), "windows: unknown field"),
    "cache field missing": (SPEC.replace("kv_heads: 2, ", "", 1), "kv_heads: is missing"),
    "cache field of the wrong type": (SPEC.replace("kv_heads: 2", "kv_heads: two", 1), "kv_heads: Input should be a valid integer"),
    "cache field zero": (SPEC.replace("head_dim: 32", "head_dim: 0", 1), "head_dim: Input should be greater than 0"),
    "heads that do not divide": (SPEC.replace("kv_heads: 2", "kv_heads: 3", 1), "cannot share 3 KV heads"),
    "two widths": (SPEC.replace("head_dim: 32", "head_dim: 32, k_dim: 16", 1), "wants head_dim, or both k_dim and v_dim"),
    "two retentions": (SPEC.replace("window: 16", "window: 16, chunk: 8"), "not several of them"),
    "layer kind unknown": (SPEC.replace("of: [local]", "of: [locl]"), "the kind 'locl', which is not among kinds"),
    "reads a later layer": (
        SPEC.replace("global: {caches", "shared: {reads: 9}\n  global: {caches").replace("of: [local]", "of: [shared]"),
        "reads the cache of layer 9",
    ),
    "dtype unknown": (SPEC.replace("bf16", "bf17"), "dtype 'bf17' is not known"),
    "layers missing": (SPEC[: SPEC.index("layers:")], "layers: is missing"),
    "too many layers": (SPEC.replace("repeat: 2", "repeat: 9999"), "more than 10,000 layers"),
    "not YAML": ("a: [1,", "is not valid YAML"),
    "not a mapping": ("- 1\n- 2\n", "Input should be"),
    "empty": ("", "Input should be"),
    "aliases": ("a: &x [1]\nb: *x\n", "YAML aliases"),
    "a tag that would run code": ("!!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    "name with capitals": (SPEC.replace("name: tiny", "name: Tiny!"), "name: String should match"),
}


@pytest.mark.parametrize("case", BROKEN_SPECS)
def test_a_broken_spec_is_refused_in_one_line(case: str, tmp_path: Path) -> None:
    text, said = BROKEN_SPECS[case]
    path = tmp_path / "model.yaml"
    path.write_text(text)
    assert said in refused(str(path)).message


def test_what_is_no_regular_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "folder" / "config.json").mkdir(parents=True)
    assert "cannot be read" in refused(str(tmp_path / "folder")).message
    os.mkfifo(tmp_path / "pipe.json")
    assert "is not a regular file" in refused(str(tmp_path / "pipe.json")).message
    assert "is not a regular file" in refused("/dev/zero").message
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    assert "no file or folder" in refused(str(tmp_path / "loop.json")).message


def test_a_folder_without_config_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    assert "has no config.json" in refused(str(tmp_path)).message
    assert "no file or folder" in refused(str(tmp_path / "config.json")).message
    assert "no file or folder" in refused("./nothing").message
    assert "no preset" in refused("x" * 5000).message
    assert "no preset" in refused("a\0b").message


def test_revision_goes_with_a_hub_id_alone() -> None:
    with pytest.raises(KvcalcError, match="--revision goes with a Hub id") as error:
        load_model("llama-3-8b", "main")
    assert error.value.code == ExitCode.USAGE


def test_presets_are_found_beside_the_package() -> None:
    assert preset_folder().name == "model_presets"
    assert "llama-3-8b" in preset_names()
    assert find_preset("../llama-3-8b") is None
    assert find_preset("") is None


def test_the_catalogue_filters_by_text_and_family() -> None:
    whole = list_models(presets(), None, None).models
    assert {row.name for row in whole} == set(preset_names())
    llamas = list_models(presets(), None, "llama").models
    assert llamas
    assert {row.family for row in llamas} == {"Llama"}
    assert [row.name for row in list_models(presets(), "META-LLAMA-3-8B", None).models] == ["llama-3-8b"]
    assert list_models(presets(), "no such thing", None).models == ()
    with pytest.raises(KvcalcError, match="no preset is of the family") as error:
        list_models(presets(), None, "lama")
    assert "Llama" in error.value.hint


def test_a_copied_preset_is_a_spec_of_its_own(tmp_path: Path) -> None:
    shutil.copy(preset_folder() / "llama-3-8b.yaml", tmp_path / "mine.yaml")
    assert load_model(str(tmp_path / "mine.yaml")).spec == load_model("llama-3-8b").spec
