"""From what a user types as a model to its ModelSpec: preset, file, folder or Hub id. The only place that reads model files or the network."""

import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final, NamedTuple

from pydantic import ValidationError

from kvcalc.caches import attention
from kvcalc.errors import POINTER, ExitCode, KvcalcError, printable, without_halves
from kvcalc.files import opened, path_named
from kvcalc.layers import MAX_LAYERS, Facts, Layer, ModelSpec, Note
from kvcalc.presets import SpecFile, first_error
from kvcalc.units import exact_decimal, exact_int, format_bytes, shorten

if TYPE_CHECKING:  # a preset does without
    from kvcalc.gguf import Header as GgufHeader
    from kvcalc.hub import SmallFile
    from kvcalc.safetensors import Header
    from kvcalc.tensors import WeighedModel

MAX_FILE_BYTES: Final = 8 << 20
"""No config.json or spec YAML of a real model comes near this size."""
MAX_INDEX_BYTES: Final = 64 << 20
"""An index has a line of about 100 bytes for each tensor: those of the largest mixtures of experts take some 15 MB."""

HUB_ID: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
"""A repository on the Hub, as a whole: owner/name."""
_HUB_GGUF: Final = re.compile(rf"(?P<repo>{HUB_ID.pattern}):(?P<file>(?!/)[\w. +/-]{{1,200}}\.gguf)", re.ASCII)
_SPEC_SUFFIXES: Final = (".yaml", ".yml")


class HubRevision(NamedTuple):
    """A repository at one commit, and the folder in the Hub's cache that holds what is there of it."""

    repo: str
    commit: str
    folder: Path


class Model(NamedTuple):
    """A model that was found: what to call it, where it was read, its layers, what a server takes as its name, where its weights can be looked for,
    what decides about them, and its config.json (None where there is none).
    """

    name: str
    source: str
    spec: ModelSpec
    served_as: str
    weights_at: Path | HubRevision | None = None
    weight_fields: Mapping[str, Any] | None = None
    config: Mapping[str, Any] | None = None

    def weighed(self) -> "WeighedModel":
        """The model with its tensors, where a config.json told them, or a preset or spec YAML states in `weight_fields` what decides about them.

        Raises KvcalcError where that is wrong.
        """
        from kvcalc.families import with_weights  # a question about the cache alone does without
        from kvcalc.tensors import weighed

        return weighed(self.spec) if self.weight_fields is None else with_weights(self.spec, self.weight_fields)


def load_model(text: str, revision: str | None = None, as_model_type: str | None = None) -> Model:
    """The model that `text` names: a preset or alias, a file or folder, a Hub id, or a GGUF file on the Hub (`revision` counts for these two alone).

    `as_model_type` reads a config.json as if it named that model type.

    Raises KvcalcError: not found, unreadable, unknown architecture (exit 3); gated or unreachable (exit 4).
    """
    if "://" in text:  # not repeated: there may be a token in it
        raise KvcalcError(
            "a URL does not name a model", hint="a model on the Hub is written owner/name, and HF_ENDPOINT names another Hub", code=ExitCode.USAGE
        )
    on_hub = _HUB_GGUF.fullmatch(text)
    if revision is not None and on_hub is None and HUB_ID.fullmatch(text) is None:
        raise KvcalcError(f"--revision goes with a Hub id, not with {text[:60]!r}", code=ExitCode.USAGE)
    preset = find_preset(text)
    if as_model_type is not None and (preset is not None or text.endswith((*_SPEC_SUFFIXES, ".gguf"))):
        raise KvcalcError(f"--as goes with a config.json, not with {text[:60]!r}", code=ExitCode.USAGE)
    if preset is not None:
        return model_of(preset)
    path = path_named(text)
    if revision is None and _exists(path):
        found = _from_path(path, as_model_type)
        return found._replace(name=without_halves(found.name), source=without_halves(found.source), served_as=without_halves(found.served_as))
    if on_hub is not None:
        return _gguf_from_hub(on_hub["repo"], on_hub["file"], revision)
    if HUB_ID.fullmatch(text) and not text.endswith(".gguf"):
        return _from_hub(text, revision, as_model_type)
    if text.startswith((".", "/", "~")) or text.endswith((".gguf", ".json", *_SPEC_SUFFIXES)):
        raise KvcalcError(f"no file or folder {text[:200]!r}", hint="a GGUF file on the Hub is written owner/name:file.gguf" if text.endswith(".gguf") else "")
    raise _unknown(text)


def model_from_shape(layers: int, kv_heads: int, head_dim: int) -> Model:
    """A model of which only the three numbers of the formula are known."""
    if layers > MAX_LAYERS:
        raise KvcalcError(f"--layers {layers:,} is more than any model has ({MAX_LAYERS:,} at most)", code=ExitCode.USAGE)
    layer = Layer(caches=(attention(kv_heads=kv_heads, head_dim=head_dim),))
    name = f"{layers} layers x {kv_heads} KV heads x {head_dim}"
    return Model(name, "the command line", ModelSpec(layers=(layer,) * layers, facts=Facts()), "MODEL")


def model_from_config(config: Mapping[str, Any], revision: str | None = None, as_model_type: str | None = None) -> Model:
    """The model that a config.json describes, of which no file is at hand. Raises KvcalcError for what JSON does not hold."""
    import json
    from decimal import Decimal

    from kvcalc.families import read_config

    if revision is not None:
        raise KvcalcError("--revision goes with a Hub id, not with a config", code=ExitCode.USAGE)
    try:
        fields = json.loads(json.dumps(config), parse_float=Decimal)  # as it is read from a file, and what becomes of `config` later does not matter
    except RecursionError:
        raise KvcalcError("the config is nested too deeply", code=ExitCode.USAGE) from None
    except (TypeError, ValueError) as error:
        raise KvcalcError(f"the config holds what JSON does not: {str(error)[:120]}", code=ExitCode.USAGE) from None
    name = fields.get("_name_or_path") or fields.get("model_type") or "config"
    spec = read_config(fields, as_model_type=as_model_type)
    return Model(printable(str(name))[:100], "a config", spec, "MODEL", config=fields)


# Presets


@cache
def preset_folder() -> Path:
    """Where the presets are: inside an installed package, else beside it in a checkout."""
    package = Path(__file__).resolve().parent
    return next(folder for folder in (package / "model_presets", package.parent / "model_presets") if folder.is_dir())


def model_of(preset: SpecFile) -> Model:
    """A preset as a model."""
    return Model(preset.name, f"preset {preset.name}", preset.spec(), preset.hub[0] if preset.hub else preset.name, weight_fields=preset.config)


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
            hint = _gguf_hint(sorted(str(file) for file in path.glob("*.gguf"))) or "name the folder that holds the model's config.json, or a spec YAML"
            raise KvcalcError(f"folder {str(path)!r} has no config.json", hint=hint)
        return _from_config(config, path.resolve().name, as_model_type)
    if path.suffix in _SPEC_SUFFIXES:
        return model_of(_read_spec(path))._replace(source=str(path))
    if path.suffix == ".gguf" or _begins_as_gguf(path):
        if as_model_type is not None:
            raise KvcalcError(f"--as goes with a config.json, not with {str(path)[:60]!r}", code=ExitCode.USAGE)
        return _from_gguf(path)
    return _from_config(path, path.resolve().parent.name if path.name == "config.json" else path.stem, as_model_type)


def _from_config(path: Path, name: str, as_model_type: str | None) -> Model:
    from kvcalc.families import read_config  # a preset does without
    from kvcalc.families.quantization import asks_for_quant_file

    fields = _read_json(path, str(path))
    beside = path.with_name("hf_quant_config.json")
    quant = _read_json(beside, str(beside)) if asks_for_quant_file(fields) and _exists(beside) else None
    spec = read_config(fields, hf_quant_config=quant, as_model_type=as_model_type)
    return Model(name, str(path), spec, str(path.resolve().parent), path.parent if path.name == "config.json" else None, config=fields)


@contextmanager
def _opened(path: Path, shown: str) -> Iterator[BinaryIO]:
    """A file for reading. Raises KvcalcError for what is no regular file or cannot be read, then or later."""
    try:
        with opened(path, shown) as file:
            yield file
    except OSError as error:
        raise KvcalcError(f"{shown} cannot be read: {error.strerror}") from None


def _read_bytes(path: Path, shown: str, max_bytes: int = MAX_FILE_BYTES) -> bytes:
    """A whole small file. Raises KvcalcError for what is no regular file, is too large, or cannot be read."""
    with _opened(path, shown) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise KvcalcError(f"{shown} is larger than {format_bytes(max_bytes)}: this is no model description")
    return data


def _read_json(path: Path, shown: str, max_bytes: int = MAX_FILE_BYTES) -> Mapping[str, Any]:
    """A JSON object. Numbers with a point become Decimal, so that nothing passes through a float.

    Raises KvcalcError for what is none, for one that is nested too deeply, for numbers beyond all reason, and for a key that stands twice with two values.
    """
    return _parse_json(_read_bytes(path, shown, max_bytes), shown)


def _parse_json(data: bytes, shown: str) -> Mapping[str, Any]:
    import json  # a preset does without

    if data.lstrip()[:1] == b"<":
        raise KvcalcError(f"{shown} is a web page, not JSON", hint="a proxy or a login page may stand between you and the Hub", code=ExitCode.ENVIRONMENT)
    if data.startswith(b"version https://git-lfs"):  # git-lfs docs/spec.md, "The Pointer"
        raise KvcalcError(f"{shown} is a Git LFS pointer, not the file itself", hint=POINTER)
    try:
        fields = json.loads(data, parse_int=exact_int, parse_float=exact_decimal, object_pairs_hook=_agreeing)
    except RecursionError:
        raise KvcalcError(f"{shown} is nested too deeply") from None
    except UnicodeDecodeError:
        raise KvcalcError(f"{shown} is not a text file") from None
    except ValueError as error:
        raise KvcalcError(f"{shown} is not valid JSON: {str(error)[:120]}", hint="the file may be cut short") from None
    if not isinstance(fields, dict):
        raise KvcalcError(f"{shown} does not hold a JSON object")
    return fields


def _agreeing(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. A key that stands twice with the same value is no harm; with two, whoever reads the file takes one and means it."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = next((name for name, value in pairs if fields[name] != value), None)
        if twice is not None:
            raise ValueError(f"the key {shorten(twice)!r} stands in it twice, with different values")
    return fields


@cache
def _spec_loader() -> Any:  # noqa: ANN401 (PyYAML's loaders have no common type)
    """A safe loader of YAML that refuses a key which stands twice."""
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # one of two classes
        def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: ANN401, FBT001, FBT002 (PyYAML's own signature)
            fields = super().construct_mapping(node, deep)
            if len(fields) < len(node.value):
                raise yaml.constructor.ConstructorError(None, None, "a key stands twice", node.start_mark)
            return fields

    return Loader


def _read_spec(path: Path) -> SpecFile:
    """A preset or a spec YAML. YAML aliases are refused: expanded, a short file of them can fill the memory."""
    import yaml  # a config.json does without
    from pydantic_core import to_json

    loader = _spec_loader()
    data = _read_bytes(path, str(path))
    try:
        if b"*" in data and any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(data, Loader=loader)):
            raise KvcalcError(f"{path}: YAML aliases (*name) are not taken", hint="write the values out")
        fields = yaml.load(data, Loader=loader)  # noqa: S506 (it is a safe one)
        return SpecFile.model_validate_json(to_json(fields))
    except yaml.YAMLError as error:
        raise KvcalcError(f"{path} is not valid YAML: {' '.join(str(error).split())[:160]}") from None
    except RecursionError:
        raise KvcalcError(f"{path} is nested too deeply") from None
    except ValidationError as error:
        raise KvcalcError(f"{path}: {first_error(error)}") from None
    except ValueError as error:  # a date or a number that is none, half of a character, nesting that YAML takes and JSON does not
        raise KvcalcError(f"{path} holds a value that cannot be read: {shorten(' '.join(str(error).split()), 120)}") from None


# The Hub


def _from_hub(repo: str, revision: str | None, as_model_type: str | None) -> Model:
    from kvcalc.families import read_config
    from kvcalc.families.quantization import asks_for_quant_file
    from kvcalc.hub.faults import GatedError

    try:
        found = _hub_json(repo, "config.json", revision)
    except GatedError:
        preset = next((preset for preset in presets() if repo.lower() in map(str.lower, preset.hub)), None)
        if preset is None or revision is not None or as_model_type is not None:
            raise
        note = Note(
            code="gated",
            text=f"{repo} is gated and could not be read: answered from the preset {preset.name}, checked {preset.checked} against {preset.source}",
        )
        spec = preset.spec()
        return model_of(preset)._replace(name=repo, spec=spec.model_copy(update={"notes": (*spec.notes, note)}), served_as=repo)
    if found is None:
        hint = _gguf_hint([f"{repo}:{name}" for name in _first_parts(repo, revision)])
        raise KvcalcError(f"{repo} has no config.json", hint=hint or "a GGUF or adapter repository has none: name the base model")
    quant, notes = _quant_file(repo, found.commit) if asks_for_quant_file(found.content) else (None, ())
    if found.instead:
        text = f"answered from the Hub's cache, as {repo} was at commit {found.commit[:7]}: {found.instead}"
        notes = (*notes, Note(code="cached", text=text))
    at = "" if revision is None else f"@{revision}"
    spec = read_config(found.content, hf_quant_config=quant, as_model_type=as_model_type)
    weights_at = HubRevision(repo, found.commit, found.folder)
    return Model(repo, f"Hub {repo}{at}", spec.model_copy(update={"notes": (*spec.notes, *notes)}), repo, weights_at, config=found.content)


def _hub_json(repo: str, name: str, revision: str | None) -> "SmallFile[Mapping[str, Any]] | None":
    from kvcalc.hub import fetch

    return fetch(repo, name, revision, lambda data: _parse_json(data, f"{name} of {repo}"), max_bytes=MAX_FILE_BYTES)


def _quant_file(repo: str, commit: str) -> tuple[Mapping[str, Any] | None, tuple[Note, ...]]:
    """hf_quant_config.json of the same commit, where there is one; a note where that cannot be found out."""
    try:
        found = _hub_json(repo, "hf_quant_config.json", commit)
    except KvcalcError as error:
        if error.code != ExitCode.ENVIRONMENT:
            raise
        text = f"whether {repo} has a hf_quant_config.json, which can name a KV dtype, could not be found out: {error.message}"
        return None, (Note(code="quant-file", text=text),)
    return (None if found is None else found.content), ()


# GGUF files

_GGUF_PART: Final = re.compile(r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.DOTALL)
_FIRST_READ_BYTES: Final = 1 << 20
"""What is read first of a GGUF file: the vocabulary makes most headers longer, so twice as much follows until one is whole."""
_PART_READ_BYTES: Final = 64 << 10
"""The same of the parts behind the first one, which have no vocabulary."""
_MOST_ASKED_BYTES: Final = 4 << 20
"""What one request to the Hub is for at most: it must be answered within seconds."""
_GGUF_S: Final = 120
"""For the headers of all parts together. The first takes some 10 MB for the largest vocabularies, and each of the others a single request."""
_MAX_PARTS: Final = 512
"""More parts than any model has: Kimi-K2 in 16 bits has 45."""


def _begins_as_gguf(path: Path) -> bool:
    """Whether a file is one in spite of its name (Ollama's blobs have none)."""
    from kvcalc.gguf import MAGIC

    if path.suffix == ".json":
        return False
    with _opened(path, str(path)) as file:
        return file.read(len(MAGIC)) == MAGIC


def _from_gguf(path: Path) -> Model:
    from kvcalc.families.gguf import read_gguf

    shown = str(path)
    headers: list[GgufHeader] = []
    absent = 0
    for number, name in enumerate(_gguf_parts(path.name, shown, headers)):
        part = path.with_name(name)
        if number and not _exists(part):
            absent += 1
            continue
        headers.append(_local_gguf(part, _PART_READ_BYTES if number else _FIRST_READ_BYTES))
    return Model(_gguf_stem(path.name), shown, read_gguf(headers, shown, absent), shown)


def _gguf_parts(name: str, shown: str, headers: "list[GgufHeader]") -> Iterator[str]:
    """The names of all parts of a GGUF file, first its own: how many there are is asked once the first one stands in `headers`.

    Raises KvcalcError where `name` is not the first of them, or is not named so that the others can be found.
    """
    yield name
    keys = headers[0].keys
    number, count = keys.get("split.no", 0), keys.get("split.count", 0)
    if not isinstance(number, int) or not isinstance(count, int) or not 0 <= count <= _MAX_PARTS:
        raise KvcalcError(f"{shown}: split.no and split.count are no numbers of parts")
    if count <= 1:
        return
    match = _GGUF_PART.fullmatch(name)
    if number:
        first = f": name the first, {match['stem']}-00001-of-{match['count']}.gguf" if match else ""
        raise KvcalcError(f"{shown} is part {number + 1} of {count}", hint=f"only the first part describes the model{first}")
    if match is None or int(match["number"]) != 1 or int(match["count"]) != count:
        raise KvcalcError(f"{shown} is the first of {count} parts, and its name does not tell theirs", hint=f"name it NAME-00001-of-{count:05}.gguf again")
    yield from (f"{match['stem']}-{each:05}-of-{count:05}.gguf" for each in range(2, count + 1))


def _gguf_stem(name: str) -> str:
    match = _GGUF_PART.fullmatch(name)
    return name.removesuffix(".gguf") if match is None else match["stem"]


def _local_gguf(path: Path, first: int) -> "GgufHeader":
    from kvcalc.gguf import grown

    shown = str(path)
    with _opened(path, shown) as file:
        file_bytes = os.fstat(file.fileno()).st_size
        held = bytearray()

        def read(length: int) -> tuple[bytes, int]:
            held.extend(file.read(length - len(held)))
            return bytes(held), file_bytes

        return grown(read, first, shown)


def _gguf_from_hub(repo: str, name: str, revision: str | None) -> Model:
    """The header of a GGUF file, or of all parts, by requests for their beginnings; a file in the cache is read there."""
    from kvcalc.families.gguf import read_gguf
    from kvcalc.hub import Located, locate

    found = locate(repo, name, revision)
    if isinstance(found, Path):
        try:
            return _from_gguf(found)._replace(source=f"{repo}:{name} in the Hub's cache", served_as=f"{repo}:{name}")
        except KvcalcError as error:
            try:  # the copy may be damaged
                found = locate(repo, name, revision, damaged=True)
            except KvcalcError:
                raise error from None
    if not isinstance(found, Located):
        hint = _gguf_hint([f"{repo}:{file}" for file in _first_parts(repo, revision)])
        raise KvcalcError(f"{repo} has no file {name}", hint=hint or "check the spelling")
    shown, folder = f"{repo}:{name}", name.rpartition("/")[0]
    headers: list[GgufHeader] = []
    deadline = time.monotonic() + _GGUF_S
    for number, part in enumerate(_gguf_parts(name.rpartition("/")[2], shown, headers)):
        first = _PART_READ_BYTES if number else _FIRST_READ_BYTES
        headers.append(_hub_gguf(repo, f"{folder}/{part}" if folder else part, found.commit, first, deadline))
    return Model(_gguf_stem(name.rpartition("/")[2]), f"{shown} at {found.commit[:7]}", read_gguf(headers, shown), shown)


def _hub_gguf(repo: str, name: str, commit: str, first: int, deadline: float) -> "GgufHeader":
    from kvcalc.gguf import grown
    from kvcalc.hub import fetch_part

    shown = f"{repo}:{name}"
    held = bytearray()

    def read(length: int) -> tuple[bytes, int | None]:
        while True:
            if time.monotonic() > deadline:
                message = f"the header of {shown} takes too long to read: more than {_GGUF_S} s"
                raise KvcalcError(message, hint="download the file, and name it", code=ExitCode.ENVIRONMENT)
            wanted = min(length - len(held), _MOST_ASKED_BYTES)
            part = fetch_part(repo, name, commit, start=len(held), length=wanted)
            if part is None:
                raise KvcalcError(f"{repo} has no file {name}", hint="it is a part of a split model, which is not there whole")
            held.extend(part.data)
            if len(held) == length or len(part.data) < wanted:
                return bytes(held), part.file_bytes

    return grown(read, first, shown)


def _first_parts(repo: str, revision: str | None) -> list[str]:
    """The GGUF files of a repository that describe a model: those that are not split, and the first part of those that are."""
    from kvcalc.hub import list_files

    names = list_files(repo, revision, ".gguf")
    return [name for name in names if (match := _GGUF_PART.fullmatch(name)) is None or int(match["number"]) == 1]


def _gguf_hint(names: list[str]) -> str:
    """What to type where there are GGUF files, up to five of them; empty where there are none."""
    models = [name for name in names if "mmproj" not in name.lower()] or names
    more = f" and {len(models) - 5} more" if len(models) > 5 else ""
    return f"it has GGUF files, name one: {', '.join(models[:5])}{more}" if models else ""


# Checkpoint sizes


class Checkpoint(NamedTuple):
    """Bytes of all weights as they are stored, where that was read, and elements by safetensors' name of the dtype (None where no header was read)."""

    size_bytes: int
    source: str
    elements: dict[str, int] | None


def find_checkpoint(model: Model) -> tuple[Checkpoint | None, tuple[Note, ...]]:
    """How large the weights of `model` are, from their headers or index, and what was noted on the way. None where nothing tells.

    Of the Hub, little is read and no failure counts: a note says why there is no size. Raises KvcalcError for a local checkpoint that is damaged.
    """
    match model.weights_at:
        case None:
            return None, ()
        case Path() as folder:
            found, notes = _local_checkpoint(folder)
            said = tuple(Note(code=note.code, text=without_halves(note.text)) for note in notes)
            return (None if found is None else found._replace(source=without_halves(found.source))), said
        case HubRevision() as place:
            cached = None
            with suppress(KvcalcError):  # a copy in the cache that is damaged
                cached, _ = _named_checkpoint(place.folder)
            try:
                return cached or _hub_checkpoint(place.repo, place.commit), ()
            except KvcalcError as error:
                return None, (Note(code="checkpoint", text=f"how large the weights of {place.repo} are could not be looked up: {error.message}"),)


_INDEXES: Final = ("model.safetensors.index.json", "consolidated.safetensors.index.json")
_FILES: Final = ("model.safetensors", "consolidated.safetensors")
"""What transformers writes, and what Mistral does; where both are there, they hold the same weights twice."""
_BIN_INDEX: Final = "pytorch_model.bin.index.json"
_PART_OF: Final = re.compile(r"(?P<stem>.+)-[0-9]+-of-(?P<count>[0-9]{1,6})\.safetensors")


def _local_checkpoint(folder: Path) -> tuple[Checkpoint | None, tuple[Note, ...]]:
    """The checkpoint in a folder of the user's own: files of any name count where none has a usual one."""
    found, notes = _named_checkpoint(folder)
    if found is not None or notes:
        return found, notes
    files = sorted(path for path in folder.glob("*.safetensors") if not path.name.startswith("adapter_"))  # an adapter is no part of the model
    files = [path for path in files if not path.name.startswith("consolidated")] or files
    parts = Counter((match["stem"], int(match["count"])) for path in files if (match := _PART_OF.fullmatch(path.name)))
    for (stem, count), there in parts.items():
        if there != count:
            return None, (Note(code="checkpoint", text=f"{folder} holds {there} of {count} files {stem}-*: how large all weights are is not known"),)
    if files:
        return _sum_of([_read_header(path) for path in files], folder), ()
    return None, ()


def _named_checkpoint(folder: Path) -> tuple[Checkpoint | None, tuple[Note, ...]]:
    """The checkpoint in a folder, by the names that libraries look for."""
    for name in _INDEXES:
        if os.path.lexists(folder / name):
            return _indexed_checkpoint(folder, folder / name)
    for name in _FILES:
        if os.path.lexists(folder / name):
            return _sum_of([_read_header(folder / name)], folder), ()
    if os.path.lexists(folder / _BIN_INDEX):
        return _stated(_read_json(folder / _BIN_INDEX, str(folder / _BIN_INDEX), MAX_INDEX_BYTES), folder / _BIN_INDEX)
    return None, ()


def _indexed_checkpoint(folder: Path, path: Path) -> tuple[Checkpoint | None, tuple[Note, ...]]:
    """The sum of the files that an index names. Where not all are there, the index's own word."""
    from kvcalc.safetensors import PointerError, shard_names

    index = _read_json(path, str(path), MAX_INDEX_BYTES)
    names = shard_names(index, str(path))
    headers = []
    for name in names:
        if _exists(folder / name):
            try:
                headers.append(_read_header(folder / name))
            except PointerError:
                continue
    if len(headers) == len(names):
        return _sum_of(headers, folder), ()
    found, notes = _stated(index, path)
    if headers:
        text = f"{len(names) - len(headers)} of the {len(names)} files that {path} names are not there: the size of the weights is its total_size"
        notes = (*notes, Note(code="checkpoint", text=text))
    return found, notes


def _stated(index: Mapping[str, Any], path: Path) -> tuple[Checkpoint | None, tuple[Note, ...]]:
    """What an index says of itself, or a note that it says nothing of use."""
    from kvcalc.safetensors import total_size

    try:
        return Checkpoint(total_size(index.get("metadata"), str(path)), f"total_size of {path}", None), ()
    except KvcalcError as error:
        return None, (Note(code="checkpoint", text=f"how large the weights are is not known: {error.message}"),)


def _sum_of(headers: Iterable["Header"], folder: Path) -> Checkpoint:
    elements = Counter[str]()
    size_bytes = 0
    for header in headers:
        size_bytes += header.data_bytes
        elements.update(header.elements)
    if size_bytes == 0:
        raise KvcalcError(f"the safetensors files in {folder} hold no weights")
    return Checkpoint(size_bytes, f"the safetensors headers in {folder}", dict(elements))


def _read_header(path: Path) -> "Header":
    """The header of a safetensors file, and nothing behind it. Raises KvcalcError for a damaged one, PointerError for a Git LFS pointer."""
    from kvcalc.safetensors import LENGTH_BYTES, header_bytes, read_header

    shown = str(path)
    with _opened(path, shown) as file:
        length = header_bytes(file.read(LENGTH_BYTES), shown)
        file_bytes = os.fstat(file.fileno()).st_size
        if file_bytes < LENGTH_BYTES + length:
            raise KvcalcError(f"{shown} is cut short: it has {file_bytes:,} bytes, and a header of {length:,}", hint="fetch the file again")
        return read_header(file.read(length), file_bytes, shown)


_HEAD_BYTES: Final = 64 << 10
"""What is read of an index for its `metadata`, which transformers and huggingface_hub write first."""
_TAIL_BYTES: Final = 16 << 10
"""What is read of its end where it does not stand there."""
_HUB_HEADER_BYTES: Final = 100_000
"""The longest header that is fetched: of a longer one, the size of the file tells the size of the tensors too."""


def _hub_checkpoint(repo: str, commit: str) -> Checkpoint | None:
    """The checkpoint of a repository, by a few requests for parts of its files. None where it has none of the usual names."""
    for name in (_INDEXES[0], *_FILES, _INDEXES[1], _BIN_INDEX):
        found = _hub_index(repo, commit, name) if name.endswith(".json") else _hub_header(repo, commit, name)
        if found is not None:
            return found
    return None


def _hub_index(repo: str, commit: str, name: str) -> Checkpoint | None:
    from kvcalc.hub import fetch_part
    from kvcalc.safetensors import metadata_in_head, metadata_in_tail, total_size

    shown = f"{name} of {repo}"
    head = fetch_part(repo, name, commit, start=0, length=_HEAD_BYTES)
    if head is None:
        return None
    metadata = metadata_in_head(head.data, shown)
    if metadata is None and head.file_bytes != len(head.data):
        tail = fetch_part(repo, name, commit, start=None, length=_TAIL_BYTES)
        metadata = None if tail is None else metadata_in_tail(tail.data)
    return Checkpoint(total_size(metadata, shown), f"total_size of {shown}", None)


def _hub_header(repo: str, commit: str, name: str) -> Checkpoint | None:
    from kvcalc.hub import fetch_part
    from kvcalc.safetensors import LENGTH_BYTES, header_bytes, read_header

    shown = f"{name} of {repo}"
    start = fetch_part(repo, name, commit, start=0, length=LENGTH_BYTES)
    if start is None:
        return None
    length = header_bytes(start.data, shown)
    if length > _HUB_HEADER_BYTES:
        if start.file_bytes is None or start.file_bytes <= LENGTH_BYTES + length:
            raise KvcalcError(f"{shown} has a header of {length:,} bytes, of which at most {_HUB_HEADER_BYTES:,} are fetched")
        return Checkpoint(start.file_bytes - LENGTH_BYTES - length, f"the size of {shown}", None)
    rest = fetch_part(repo, name, commit, start=LENGTH_BYTES, length=length)
    header = read_header(b"" if rest is None else rest.data, start.file_bytes, shown)
    if header.data_bytes == 0:
        raise KvcalcError(f"{shown} holds no weights")
    return Checkpoint(header.data_bytes, f"the header of {shown}", header.elements)
