"""From what a user types as a model to its ModelSpec: preset, file, folder or Hub id. The only place that reads model files or the network."""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from kvcalc.caches import attention
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.layers import MAX_LAYERS, Facts, Layer, ModelSpec, Note
from kvcalc.presets import SpecFile, first_error
from kvcalc.units import format_bytes

MAX_FILE_BYTES: Final = 8 << 20
"""No config.json or spec YAML of a real model comes near this size."""

_HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_SPEC_SUFFIXES: Final = (".yaml", ".yml")


class Model(NamedTuple):
    """A model that was found: what to call it, where it was read, its layers, and what a server takes as its name."""

    name: str
    source: str
    spec: ModelSpec
    served_as: str


def load_model(text: str, revision: str | None = None, as_model_type: str | None = None) -> Model:
    """The model that `text` names: a preset or alias, a file or folder, or a Hub id (`revision` counts for that alone).

    `as_model_type` reads a config.json as if it named that model type.

    Raises KvcalcError: not found, unreadable, unknown architecture (exit 3); gated or unreachable (exit 4).
    """
    if revision is not None and _HUB_ID.fullmatch(text) is None:
        raise KvcalcError(f"--revision goes with a Hub id, not with {text[:60]!r}", code=ExitCode.USAGE)
    preset = find_preset(text)
    if as_model_type is not None and (preset is not None or text.endswith(_SPEC_SUFFIXES)):
        raise KvcalcError(f"--as goes with a config.json, not with {text[:60]!r}", code=ExitCode.USAGE)
    if preset is not None:
        return model_of(preset)
    path = Path(text).expanduser()
    if revision is None and _exists(path):
        return _from_path(path, as_model_type)
    if _HUB_ID.fullmatch(text):
        return _from_hub(text, revision, as_model_type)
    if text.startswith((".", "/", "~")) or text.endswith((".json", *_SPEC_SUFFIXES)):
        raise KvcalcError(f"no file or folder {text[:200]!r}")
    raise _unknown(text)


def model_from_shape(layers: int, kv_heads: int, head_dim: int) -> Model:
    """A model of which only the three numbers of the formula are known."""
    if layers > MAX_LAYERS:
        raise KvcalcError(f"--layers {layers:,} is more than any model has ({MAX_LAYERS:,} at most)", code=ExitCode.USAGE)
    layer = Layer(caches=(attention(kv_heads=kv_heads, head_dim=head_dim),))
    name = f"{layers} layers x {kv_heads} KV heads x {head_dim}"
    return Model(name, "the command line", ModelSpec(layers=(layer,) * layers, facts=Facts()), "MODEL")


# Presets


@cache
def preset_folder() -> Path:
    """Where the presets are: inside an installed package, else beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return next(folder for folder in (package / "model_presets", package.parent / "model_presets") if folder.is_dir())


def model_of(preset: SpecFile) -> Model:
    """A preset as a model."""
    return Model(preset.name, f"preset {preset.name}", preset.spec(), preset.hub[0] if preset.hub else preset.name)


def preset_names() -> list[str]:
    """The names of all presets, sorted. Reads no file."""
    return sorted(path.stem for path in preset_folder().glob("*.yaml"))


def presets() -> Iterator[SpecFile]:
    """All presets in the order of their names."""
    for name in preset_names():
        yield _read_spec(preset_folder() / f"{name}.yaml")


def find_preset(text: str) -> SpecFile | None:
    """The preset of that name or alias, in any case, with - and _ alike. None where there is none."""
    wanted = _plain_name(text)
    if not re.fullmatch(r"[a-z0-9][a-z0-9.-]{0,99}", wanted):
        return None
    path = preset_folder() / f"{wanted}.yaml"
    if path.is_file():
        return _read_spec(path)
    return next((preset for preset in presets() if wanted in map(_plain_name, preset.aliases)), None)


def _plain_name(text: str) -> str:
    return text.strip().lower().replace("_", "-")


def _unknown(text: str) -> KvcalcError:
    from difflib import get_close_matches  # only a typo needs it

    near = get_close_matches(_plain_name(text), [name for preset in presets() for name in (preset.name, *preset.aliases)], n=3)
    hint = f"did you mean {', '.join(near)}? " if near else ""
    return KvcalcError(f"no preset, file or folder {text[:60]!r}", hint=f"{hint}`kvcalc models` lists the presets; a Hub model is written owner/name")


# Files


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long, or holds a NUL
        return False


def _from_path(path: Path, as_model_type: str | None) -> Model:
    if path.is_dir():
        config = path / "config.json"
        if not _exists(config):
            raise KvcalcError(f"folder {str(path)!r} has no config.json", hint="name the folder that holds the model's config.json, or a spec YAML")
        return _from_config(config, path.resolve().name, as_model_type)
    if path.suffix in _SPEC_SUFFIXES:
        spec = _read_spec(path)
        return Model(spec.name, str(path), spec.spec(), spec.hub[0] if spec.hub else spec.name)
    return _from_config(path, path.resolve().parent.name if path.name == "config.json" else path.stem, as_model_type)


def _from_config(path: Path, name: str, as_model_type: str | None) -> Model:
    from kvcalc.families import read_config  # a preset does without
    from kvcalc.families.quantization import asks_for_quant_file

    fields = _read_json(path, str(path))
    beside = path.with_name("hf_quant_config.json")
    quant = _read_json(beside, str(beside)) if asks_for_quant_file(fields) and _exists(beside) else None
    return Model(name, str(path), read_config(fields, hf_quant_config=quant, as_model_type=as_model_type), str(path.resolve().parent))


def _read_bytes(path: Path, shown: str) -> bytes:
    """A whole small file. Raises KvcalcError for what is no regular file, is too large, or cannot be read."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0))) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise KvcalcError(f"{shown} is not a regular file")
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise KvcalcError(f"{shown} cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise KvcalcError(f"{shown} is larger than {format_bytes(MAX_FILE_BYTES)}: this is no model description")
    return data


def _read_json(path: Path, shown: str) -> Mapping[str, Any]:
    """A JSON object. Numbers with a point become Decimal, so that nothing passes through a float."""
    import json  # a preset does without
    from decimal import Decimal

    data = _read_bytes(path, shown)
    if data.lstrip()[:1] == b"<":
        raise KvcalcError(f"{shown} is a web page, not JSON", hint="a proxy or a login page may stand between you and the Hub", code=ExitCode.ENVIRONMENT)
    try:
        fields = json.loads(data, parse_float=Decimal)
    except RecursionError:
        raise KvcalcError(f"{shown} is nested too deeply") from None
    except UnicodeDecodeError:
        raise KvcalcError(f"{shown} is not a text file") from None
    except ValueError as error:
        raise KvcalcError(f"{shown} is not valid JSON: {str(error)[:120]}", hint="the file may be cut short") from None
    if not isinstance(fields, dict):
        raise KvcalcError(f"{shown} does not hold a JSON object")
    return fields


def _read_spec(path: Path) -> SpecFile:
    """A preset or a spec YAML. YAML aliases are refused: expanded, a short file of them can fill the memory."""
    import yaml  # a config.json does without
    from pydantic_core import to_json

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    data = _read_bytes(path, str(path))
    try:
        if b"*" in data and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=loader)):
            raise KvcalcError(f"{path}: YAML aliases (*name) are not taken", hint="write the values out")
        fields = yaml.load(data, Loader=loader)  # noqa: S506 (both loaders are safe ones)
        return SpecFile.model_validate_json(to_json(fields))
    except yaml.YAMLError as error:
        raise KvcalcError(f"{path} is not valid YAML: {' '.join(str(error).split())[:160]}") from None
    except RecursionError:
        raise KvcalcError(f"{path} is nested too deeply") from None
    except ValidationError as error:
        raise KvcalcError(f"{path}: {first_error(error)}") from None


# The Hub


def _from_hub(repo: str, revision: str | None, as_model_type: str | None) -> Model:
    from kvcalc.families import read_config
    from kvcalc.families.quantization import asks_for_quant_file
    from kvcalc.hub import GatedError, fetch

    try:
        path = fetch(repo, "config.json", revision, max_bytes=MAX_FILE_BYTES)
    except GatedError:
        preset = next((preset for preset in presets() if repo.lower() in map(str.lower, preset.hub)), None)
        if preset is None or revision is not None or as_model_type is not None:
            raise
        note = Note(
            code="gated",
            text=f"{repo} is gated and could not be read: answered from the preset {preset.name}, checked {preset.checked} against {preset.source}",
        )
        spec = preset.spec()
        return Model(repo, f"preset {preset.name}", spec.model_copy(update={"notes": (*spec.notes, note)}), repo)
    if path is None:
        raise KvcalcError(f"{repo} has no config.json", hint="a GGUF or adapter repository has none: name the base model")
    fields = _read_json(path, f"config.json of {repo}")
    quant, notes = _quant_file(repo, commit=path.parent.name) if asks_for_quant_file(fields) else (None, ())
    at = "" if revision is None else f"@{revision}"
    spec = read_config(fields, hf_quant_config=quant, as_model_type=as_model_type)
    return Model(repo, f"Hub {repo}{at}", spec.model_copy(update={"notes": (*spec.notes, *notes)}), repo)


def _quant_file(repo: str, commit: str) -> tuple[Mapping[str, Any] | None, tuple[Note, ...]]:
    """hf_quant_config.json of the same commit, where there is one; a note where that cannot be found out."""
    from kvcalc.hub import fetch

    try:
        path = fetch(repo, "hf_quant_config.json", commit, max_bytes=MAX_FILE_BYTES)
    except KvcalcError as error:
        if error.code != ExitCode.ENVIRONMENT:
            raise
        text = f"whether {repo} has a hf_quant_config.json, which can name a KV dtype, could not be found out: {error.message}"
        return None, (Note(code="quant-file", text=text),)
    return (None if path is None else _read_json(path, f"hf_quant_config.json of {repo}")), ()
