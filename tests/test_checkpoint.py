"""How large a checkpoint is: safetensors headers and indexes, in a folder and on a Hub on loopback, whole and broken in each way."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.catalog import Checkpoint, find_checkpoint, load_model, model_from_shape
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.layers import Note
from kvcalc.safetensors import MAX_HEADER_BYTES, header_bytes, metadata_in_head, metadata_in_tail, read_header, shard_names, total_size
from tests.loopback import COMMIT, Hub, serving

CONFIG = {"model_type": "llama", "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2}
INDEX = "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 4976698672\n"
TOKEN = "hf_" + "secretsecretsecret"


def entry(dtype: str, shape: list[Any], start: Any, end: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def packed(header: Any, data: bytes = b"") -> bytes:
    """A safetensors file, its header padded as the library pads it."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def shard(*bf16: int) -> bytes:
    """A file with tensors of so many bf16 elements each."""
    ends = [2 * sum(bf16[: index + 1]) for index in range(len(bf16))]
    header = {f"layer.{index}.weight": entry("BF16", [size], end - 2 * size, end) for index, (size, end) in enumerate(zip(bf16, ends, strict=True))}
    return packed({"__metadata__": {"format": "pt"}, **header}, bytes(ends[-1]))


def index_of(total: Any, *names: str) -> bytes:
    return json.dumps({"metadata": {"total_size": total}, "weight_map": {f"layer.{place}.weight": name for place, name in enumerate(names)}}).encode()


class Folder(NamedTuple):
    """A model's folder in a test."""

    path: Path

    def add(self, name: str, data: bytes) -> None:
        (self.path / name).write_bytes(data)

    def find(self) -> tuple[Checkpoint | None, tuple[Note, ...]]:
        return find_checkpoint(load_model(str(self.path)))

    def size(self) -> int:
        found, notes = self.find()
        assert found is not None
        assert notes == ()
        return found.size_bytes

    def refused(self) -> KvcalcError:
        with pytest.raises(KvcalcError) as error:
            self.find()
        assert error.value.code == ExitCode.UNANSWERABLE
        assert "\n" not in error.value.message
        assert len(error.value.message) < 600
        return error.value


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return Folder(tmp_path)


# A folder


def test_headers_tell_the_size_and_the_elements(folder: Folder) -> None:
    header = {"a": entry("BF16", [3, 5], 0, 30), "b": entry("F32", [], 30, 34), "c": entry("F4", [2, 4], 34, 38), "d": entry("BF16", [0], 38, 38)}
    folder.add("model.safetensors", packed(header, bytes(38)))
    expected = Checkpoint(38, f"the safetensors headers in {folder.path}", {"BF16": 15, "F32": 1, "F4": 8})
    assert folder.find() == (expected, ())
    assert find_checkpoint(load_model(str(folder.path / "config.json"))) == (expected, ())


def test_the_data_is_never_read(folder: Folder) -> None:
    size = 1 << 42
    with (folder.path / "model.safetensors").open("wb") as file:
        file.write(packed({"a": entry("U8", [size], 0, size)}))
        file.truncate(file.tell() + size)  # a hole: reading it would take hours
    assert folder.size() == size


@pytest.mark.parametrize(
    ("files", "size"),
    [
        ({"model-00001-of-00002.safetensors": shard(10), "model-00002-of-00002.safetensors": shard(7)}, 34),
        ({"consolidated.safetensors": shard(6)}, 12),
        ({"consolidated-1.safetensors": shard(6), "model-00001-of-00001.safetensors": shard(5)}, 10),
        ({"consolidated-00001-of-00002.safetensors": shard(6), "consolidated-00002-of-00002.safetensors": shard(1)}, 14),
        ({"gptq_model-4bit-128g.safetensors": shard(4)}, 8),
        ({"model.safetensors": shard(4), "model.fp16.safetensors": shard(4)}, 8),
        ({"model.safetensors": shard(4), "adapter_model.safetensors": shard(1)}, 8),
        ({"pytorch_model.bin.index.json": index_of(77, "pytorch_model-00001-of-00001.bin")}, 77),
        ({"pytorch_model.bin.index.json": index_of(77, "x.bin"), "model.safetensors": shard(4)}, 8),
        ({INDEX: index_of(99, "a.safetensors"), "a.safetensors": shard(3), "left-over.safetensors": shard(8)}, 6),
        ({INDEX: index_of(13731385408.0, "a.safetensors"), "a.safetensors": shard(3)}, 6),
        ({INDEX: index_of(99, "a.safetensors", "b.safetensors")}, 99),
        ({INDEX: index_of(99, "a.safetensors"), "a.safetensors": POINTER}, 99),
        ({"consolidated.safetensors.index.json": index_of(55, "consolidated-00001-of-00002.safetensors")}, 55),
    ],
)
def test_each_layout_of_a_folder(folder: Folder, files: dict[str, bytes], size: int) -> None:
    for name, data in files.items():
        folder.add(name, data)
    assert folder.size() == size


def test_a_folder_without_weights_tells_nothing(folder: Folder) -> None:
    folder.add("tokenizer.json", b"{}")
    folder.add("adapter_model.safetensors", shard(1))
    assert folder.find() == (None, ())


def test_only_a_folder_of_its_own_is_looked_into(folder: Folder) -> None:
    folder.add("model.safetensors", shard(4))
    (folder.path / "llama.json").write_text(json.dumps(CONFIG))
    for model in (load_model(str(folder.path / "llama.json")), load_model("llama-3-8b"), model_from_shape(layers=1, kv_heads=1, head_dim=1)):
        assert find_checkpoint(model) == (None, ())


NOTED = {
    "a file of an index is missing": ({INDEX: index_of(99, "a.safetensors", "b.safetensors"), "a.safetensors": shard(1)}, 99, "1 of the 2 files"),
    "a file of an index is a pointer": (
        {INDEX: index_of(99, "a.safetensors", "b.safetensors"), "a.safetensors": shard(1), "b.safetensors": POINTER},
        99,
        "1 of the 2 files",
    ),
    "a file is missing and there is no index": ({"model-00002-of-00003.safetensors": shard(1)}, None, "holds 1 of 3 files model-*"),
    "total_size is a float": ({INDEX: index_of(13731385408.0, "a.safetensors")}, None, "the total_size 13731385408.0"),
    "total_size is 0": ({INDEX: index_of(0, "a.safetensors")}, None, "the total_size 0"),
    "total_size is negative": ({INDEX: index_of(-1, "a.safetensors")}, None, "the total_size -1"),
    "total_size is text": ({INDEX: index_of("99", "a.safetensors")}, None, "the total_size 99"),
    "total_size is true": ({INDEX: b'{"metadata": {"total_size": true}, "weight_map": {"a": "a.safetensors"}}'}, None, "the total_size True"),
    "total_size is enormous": ({INDEX: index_of(10**399, "a.safetensors")}, None, "the total_size 1000"),
    "total_size is missing": ({INDEX: b'{"metadata": {}, "weight_map": {"a": "a.safetensors"}}'}, None, "states no total_size"),
    "metadata is missing": ({"pytorch_model.bin.index.json": b'{"weight_map": {"a": "a.bin"}}'}, None, "states no total_size"),
}


@pytest.mark.parametrize("case", NOTED)
def test_what_is_noted(folder: Folder, case: str) -> None:
    files, size, said = NOTED[case]
    for name, data in files.items():
        folder.add(name, data)
    found, notes = folder.find()
    assert (found.size_bytes if found else None) == size
    assert [note.code for note in notes] == ["checkpoint"]
    assert said in notes[0].text


ONE = entry("BF16", [4], 0, 8)
BROKEN_FILES = {
    "empty": (b"", "it has 0 bytes"),
    "shorter than the length of its header": (b"\x40\0\0", "it has 3 bytes"),
    "a Git LFS pointer": (POINTER, "is a Git LFS pointer"),
    "a web page": (b"<!DOCTYPE html><html>", "is a web page"),
    "a header of 0 bytes": (bytes(16), "its header would have 0 bytes"),
    "a header longer than any": ((MAX_HEADER_BYTES + 1).to_bytes(8, "little") + b"{}", "its header would have 100,000,001 bytes"),
    "a header longer than the file": ((1000).to_bytes(8, "little") + b"{}", "is cut short"),
    "cut short within the data": (shard(100)[:-1], "is cut short"),
    "cut short within the header": (shard(100)[:40], "is cut short"),
    "longer than its header says": (shard(100) + b"\0", "is longer than its header says"),
    "not text": (packed(b"\xff\xfe\x80\x81"), "is not valid JSON"),
    "not JSON": (packed(b"{'a': 1}"), "is not valid JSON"),
    "JSON with more behind it": (packed(b'{} {"a": 1}'), "is not valid JSON"),
    "a list": (packed([1, 2]), "is no JSON object"),
    "nested too deeply": (packed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "nested too deeply"),
    "a number of a million digits": (packed(b'{"a": ' + b"9" * 1_000_000 + b"}"), "is not valid JSON"),
    "a float": (packed(b'{"a": {"dtype": "U8", "shape": [1.0], "data_offsets": [0, 1]}}', b"\0"), "1.0 is not a whole number"),
    "NaN": (packed(b'{"a": {"dtype": "U8", "shape": [NaN], "data_offsets": [0, 1]}}', b"\0"), "NaN is not a whole number"),
    "a name twice": (packed(b'{"a": {}, "b": {}, "a": {}}'), "the name 'a' stands in it twice"),
    "a field twice": (packed(b'{"a": {"dtype": "U8", "dtype": "I8", "shape": [], "data_offsets": [0, 1]}}', b"\0"), "'dtype' stands in it twice"),
    "a tensor that is no object": (packed({"a": 7}), "does not say its dtype, shape and data_offsets"),
    "no dtype": (packed({"a": {"shape": [1], "data_offsets": [0, 1]}}, b"\0"), "does not say its dtype"),
    "a dtype that is none": (packed({"a": entry("bf\n16", [1], 0, 2)}, b"\0\0"), "does not say its dtype"),
    "a shape that is a number": (packed({"a": {**ONE, "shape": 4}}, bytes(8)), "does not say its dtype"),
    "a shape with true": (packed({"a": entry("U8", [True], 0, 1)}, b"\0"), "does not say its dtype"),
    "a negative shape": (packed({"a": entry("BF16", [-2, -2], 0, 8)}, bytes(8)), "does not say its dtype"),
    "a shape that overflows": (packed({"a": entry("U8", [2**40, 2**40, 0], 0, 0)}), "a shape larger than any file"),
    "a width that overflows": (packed({"a": entry("U8", [2**63], 0, 2**63)}), "does not say its dtype"),
    "three offsets": (packed({"a": {**ONE, "data_offsets": [0, 4, 8]}}, bytes(8)), "does not say its dtype"),
    "offsets that are text": (packed({"a": entry("BF16", [4], "0", "8")}, bytes(8)), "does not say its dtype"),
    "a negative offset": (packed({"a": entry("BF16", [4], -8, 0)}), "does not say its dtype"),
    "offsets in reverse": (packed({"a": ONE, "b": entry("X9", [0], 8, 4)}, bytes(8)), "do not fill the bytes from 8 to 4"),
    "offsets that disagree with the shape": (packed({"a": entry("BF16", [4], 0, 9)}, bytes(9)), "has 4 elements of BF16"),
    "half a byte": (packed({"a": entry("F4", [3], 0, 1)}, b"\0"), "has 3 elements of F4"),
    "tensors that overlap": (packed({"a": ONE, "b": entry("BF16", [4], 4, 12)}, bytes(12)), "'b' starts at byte 4, where 8 follows"),
    "the same bytes twice": (packed({"a": ONE, "b": ONE}, bytes(8)), "'b' starts at byte 0, where 8 follows"),
    "a gap between tensors": (packed({"a": ONE, "b": entry("BF16", [4], 16, 24)}, bytes(24)), "'b' starts at byte 16, where 8 follows"),
    "a gap before the first": (packed({"a": entry("BF16", [4], 8, 16)}, bytes(16)), "'a' starts at byte 8, where 0 follows"),
    "no tensors": (packed({"__metadata__": {"format": "pt"}}), "hold no weights"),
}


@pytest.mark.parametrize("case", BROKEN_FILES)
def test_a_broken_file_is_refused_in_one_line(folder: Folder, case: str) -> None:
    data, said = BROKEN_FILES[case]
    folder.add("model.safetensors", data)
    assert said in folder.refused().message


BROKEN_INDEXES = {
    "cut short": (index_of(99, "a.safetensors")[:-20], "is not valid JSON"),
    "a Git LFS pointer": (POINTER, "is a Git LFS pointer"),
    "a list": (b"[]", "does not hold a JSON object"),
    "nested too deeply": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    "a number of a million digits": (b'{"metadata": {"total_size": ' + b"9" * 1_000_000 + b"}}", "is not valid JSON"),
    "without a weight_map": (b'{"metadata": {"total_size": 1}}', "no weight_map that names files"),
    "a weight_map that is empty": (b'{"metadata": {"total_size": 1}, "weight_map": {}}', "no weight_map that names files"),
    "a weight_map of numbers": (b'{"weight_map": {"a": 1}}', "no weight_map that names files"),
    "a file in another folder": (index_of(1, "../other/a.safetensors"), "which is not beside it"),
    "a file at an absolute path": (index_of(1, "/etc/passwd"), "which is not beside it"),
    "a file name with NUL": (index_of(1, "a\0b"), "which is not beside it"),
    "a file name of nothing": (index_of(1, ""), "which is not beside it"),
}


@pytest.mark.parametrize("case", BROKEN_INDEXES)
def test_a_broken_index_is_refused_in_one_line(folder: Folder, case: str) -> None:
    data, said = BROKEN_INDEXES[case]
    folder.add(INDEX, data)
    error = folder.refused()
    assert said in error.message


@pytest.mark.parametrize("name", ["model.safetensors", INDEX, "other.safetensors"])
def test_what_is_no_regular_file_is_refused(folder: Folder, name: str) -> None:
    path = folder.path / name
    path.mkdir()
    assert "cannot be read" in folder.refused().message
    path.rmdir()
    os.mkfifo(path)
    assert "is not a regular file" in folder.refused().message
    path.unlink()
    path.symlink_to(path)
    assert "cannot be read" in folder.refused().message
    path.unlink()
    path.symlink_to("/dev/zero")
    assert "is not a regular file" in folder.refused().message


def test_a_pipe_among_the_files_of_an_index_is_refused(folder: Folder) -> None:
    folder.add(INDEX, index_of(9, "a.safetensors"))
    os.mkfifo(folder.path / "a.safetensors")
    assert "is not a regular file" in folder.refused().message


def test_a_file_name_that_is_too_long_counts_as_missing(folder: Folder) -> None:
    folder.add(INDEX, index_of(9, "x" * 5000))
    assert folder.size() == 9


# Headers and indexes as bytes

BITS = {"BOOL": 8, "F4": 4, "F8_E4M3": 8, "BF16": 16, "F32": 32, "I64": 64}
TENSORS = st.lists(st.tuples(st.text(), st.sampled_from(sorted(BITS)), st.lists(st.integers(0, 9), max_size=4).map(lambda shape: [*shape, 2])), max_size=8)


def header_of(tensors: list[tuple[str, str, list[int]]]) -> tuple[dict[str, Any], int, dict[str, int]]:
    """A header with these tensors, the bytes of them all, and the elements of each dtype."""
    header: dict[str, Any] = {}
    end, elements = 0, dict[str, int]()
    for name, dtype, shape in tensors:
        if name in header or name == "__metadata__":
            continue
        count = 1
        for width in shape:
            count *= width
        header[name] = entry(dtype, shape, end, end + count * BITS[dtype] // 8)
        end += count * BITS[dtype] // 8
        elements[dtype] = elements.get(dtype, 0) + count
    return header, end, elements


@given(TENSORS, st.randoms(use_true_random=False))
def test_what_is_written_is_read(tensors: list[tuple[str, str, list[int]]], random: Any) -> None:
    header, size, elements = header_of(tensors)
    shuffled = list(header.items())
    random.shuffle(shuffled)
    data = packed(dict(shuffled), bytes(size))
    length = header_bytes(data[:8], "x")
    assert read_header(data[8 : 8 + length], len(data), "x") == (size, elements)


@given(TENSORS, st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), min_size=1, max_size=6), st.integers(0, 2000))
def test_mutated_bytes_are_read_or_refused(tensors: list[tuple[str, str, list[int]]], changes: list[tuple[int, int]], cut: int) -> None:
    header, size, _ = header_of(tensors)
    data = bytearray(packed(header, bytes(size)))
    for place, value in changes:
        data[place % len(data)] = value
    broken = bytes(data[: max(cut, 1)])
    with suppress(KvcalcError):
        length = header_bytes(broken[:8], "x")
        assert read_header(broken[8 : 8 + length], len(broken), "x").data_bytes <= len(broken)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    metadata_in_tail(data)
    with suppress(KvcalcError):
        metadata_in_head(data, "x")
    with suppress(KvcalcError):
        read_header(data, None, "x")
    with suppress(KvcalcError):
        header_bytes(data, "x")


META = {"total_size": 7}
HEADS = {
    '{"metadata": {"total_size": 7}, "weight_map": {"a": "b"}}': META,
    '\ufeff { "metadata" : {"total_size": 7}, "weight_map": {"a": "b': META,
    '{"weight_map": {"metadata": {"total_size": 8}}, "metadata": {"total_size": 7}}': META,
    '{"a": 1, "b": [2], "metadata": {"total_size": 7}': META,
    '{"metadata": {"total_size": 7': None,
    '{"weight_map": {"a": "b", "metadata": {"total_size": 8}': None,
    '{"metadata" "x"}': None,
    '{"metadata"': None,
    "{7: 8}": None,
    "{}": None,
    '{"metadata": {"total_size": 7, "total_size": 8}}': None,
    '{"metadata": ' + '{"a":' * 5000: None,
    '{"metadata": {"total_size": ' + "9" * 60_000 + "}}": None,
}


@pytest.mark.parametrize("text", HEADS, ids=lambda text: text[:40])
def test_metadata_in_the_head_of_an_index(text: str) -> None:
    assert metadata_in_head(text.encode(), "x") == HEADS[text]


TAILS = {
    '"a": "b"}, "metadata": {"total_size": 7}}\n': META,
    '"a": "b"}, "metadata" : {"total_size": 7} , "format": "pt"}': META,
    '"metadata": {"total_size": 8}, "b": "c"}, "metadata": {"total_size": 7}}': META,
    '"metadata": {"total_size": 7}}, "c": "metadata"}': META,
    '"metadata": {"total_size": 7': None,
    '"metadata": {"total_size": 7} x': None,
    '"metadata": "model-00001.safetensors"}}': None,
    '"metadata": ' + '{"a":' * 3000: None,
    "": None,
}


@pytest.mark.parametrize("text", TAILS, ids=lambda text: text[:40])
def test_metadata_in_the_tail_of_an_index(text: str) -> None:
    assert metadata_in_tail(text.encode()) == TAILS[text]


@pytest.mark.parametrize(
    ("head", "said"), [(b"", "no index"), (b"<html>", "a web page"), (b"[]", "no index"), (POINTER, "a Git LFS pointer"), (b"\xff\xfe\0", "no index")]
)
def test_a_head_that_is_no_index_is_refused(head: bytes, said: str) -> None:
    with pytest.raises(KvcalcError, match=said):
        metadata_in_head(head, "x")


def test_what_an_index_states_is_taken_as_it_is() -> None:
    assert total_size({"total_size": 755_632_050_320, "total_parameters": 1}, "x") == 755_632_050_320
    assert shard_names({"weight_map": {"a": "2.safetensors", "b": "sub/1.safetensors", "c": "2.safetensors"}}, "x") == ["2.safetensors", "sub/1.safetensors"]


# The Hub

ASK = """
import json, sys
from kvcalc.catalog import find_checkpoint, load_model
found, notes = find_checkpoint(load_model(sys.argv[1]))
print(json.dumps({"found": found, "notes": [note.text for note in notes]}))
"""


class Said(NamedTuple):
    """An answer of find_checkpoint in a process of its own (huggingface_hub reads the environment when it is imported)."""

    size: int | None
    source: str
    elements: dict[str, int] | None
    notes: list[str]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serving() as running:
        running.add("org/model", CONFIG)
        running.add("org/model", {}, "hf_quant_config.json")
        yield running


def ask(hub: Hub, home: Path, **env: str) -> Said:
    settings = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    settings |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_HUB_ETAG_TIMEOUT": "2", "HF_HUB_DOWNLOAD_TIMEOUT": "2", **env}
    done = subprocess.run([sys.executable, "-c", ASK, "org/model"], capture_output=True, text=True, env=settings, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert TOKEN not in done.stdout
    said = json.loads(done.stdout)
    assert all("\n" not in note for note in said["notes"])
    size, source, elements = said["found"] or (None, "", None)
    return Said(size, source, elements, said["notes"])


def asked_for_weights(hub: Hub) -> list[str]:
    """The files that were asked for beside the description of the model, in order."""
    names = [name.removeprefix(f"org/model@{COMMIT}/") for method, name in hub.asked if method == "GET"]
    return [name for name in names if "config.json" not in name]


def large_index(*, metadata_first: bool) -> bytes:
    """An index of more than 5 MB, as a large mixture of experts has."""
    weight_map = {f"model.layers.{place // 1000}.mlp.experts.{place % 1000}.down_proj.weight": "model-00001-of-00163.safetensors" for place in range(60_000)}
    metadata = {"total_size": 688_586_727_753}
    ordered = {"metadata": metadata, "weight_map": weight_map} if metadata_first else {"weight_map": weight_map, "metadata": metadata}
    text = json.dumps(ordered, indent=2).encode()
    assert len(text) > 5_000_000
    return text


@pytest.mark.parametrize(("first", "requests"), [(True, 1), (False, 2)])
def test_of_a_large_index_only_the_ends_are_fetched(hub: Hub, tmp_path: Path, first: bool, requests: int) -> None:  # noqa: FBT001
    hub.add("org/model", large_index(metadata_first=first), INDEX)
    before = sum(len(file.body) for name, file in hub.files.items() if "config.json" in name)
    said = ask(hub, tmp_path)
    assert said == Said(688_586_727_753, f"total_size of {INDEX} of org/model", None, [])
    assert asked_for_weights(hub) == [INDEX] * requests
    assert requests <= 3
    assert hub.sent_bytes - before <= 100_000


def test_a_small_index_takes_one_request(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", index_of(16_060_522_496, "model-00001-of-00004.safetensors"), INDEX)
    assert ask(hub, tmp_path).size == 16_060_522_496
    assert asked_for_weights(hub) == [INDEX]


@pytest.mark.parametrize("name", ["model.safetensors", "consolidated.safetensors"])
def test_without_an_index_the_header_and_no_more_is_fetched(hub: Hub, tmp_path: Path, name: str) -> None:
    data = shard(300, 5000)
    hub.add("org/model", data, name)
    before = sum(len(file.body) for key, file in hub.files.items() if "config.json" in key)
    assert ask(hub, tmp_path) == Said(10_600, f"the header of {name} of org/model", {"BF16": 5300}, [])
    assert asked_for_weights(hub).count(name) == 2
    assert hub.sent_bytes - before == len(data) - 10_600


def test_of_a_long_header_only_the_length_is_fetched(hub: Hub, tmp_path: Path) -> None:
    header = {f"model.layers.{place}.weight": entry("I32", [8], 32 * place, 32 * place + 32) for place in range(1500)}
    hub.add("org/model", packed(header, bytes(48_000)), "model.safetensors")
    assert ask(hub, tmp_path) == Said(48_000, "the size of model.safetensors of org/model", None, [])
    assert asked_for_weights(hub) == [INDEX, "model.safetensors"]


def test_pytorch_files_are_the_last_resort(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", index_of(77, "pytorch_model-00001-of-00002.bin"), "pytorch_model.bin.index.json")
    assert ask(hub, tmp_path).size == 77
    hub.add("org/model", shard(4), "model.safetensors")
    assert ask(hub, tmp_path).size == 8


def test_a_repository_without_weights_tells_nothing(hub: Hub, tmp_path: Path) -> None:
    assert ask(hub, tmp_path) == Said(None, "", None, [])
    assert len(asked_for_weights(hub)) == 5


def snapshot(home: Path) -> Path:
    (folder,) = home.glob("hub/models--org--model/snapshots/*")
    return folder


def test_offline_only_the_cache_counts(hub: Hub, tmp_path: Path) -> None:
    assert ask(hub, tmp_path).size is None
    hub.asked.clear()
    said = ask(hub, tmp_path, HF_HUB_OFFLINE="1")
    assert said.size is None
    assert "HF_HUB_OFFLINE is set" in said.notes[0]
    (snapshot(tmp_path) / INDEX).write_bytes(index_of(40, "a.safetensors", "b.safetensors"))
    (snapshot(tmp_path) / "a.safetensors").write_bytes(shard(4))
    assert ask(hub, tmp_path, HF_HUB_OFFLINE="1") == Said(40, f"total_size of {snapshot(tmp_path) / INDEX}", None, [])
    (snapshot(tmp_path) / "b.safetensors").write_bytes(shard(5))
    assert ask(hub, tmp_path, HF_HUB_OFFLINE="1").elements == {"BF16": 9}
    assert hub.asked == []


def test_a_lone_shard_in_the_cache_is_not_taken_for_the_whole(hub: Hub, tmp_path: Path) -> None:
    assert ask(hub, tmp_path).size is None
    (snapshot(tmp_path) / "weights.safetensors").write_bytes(shard(4))
    hub.add("org/model", index_of(40, "weights.safetensors"), INDEX)
    assert ask(hub, tmp_path).size == 40


def test_a_token_goes_to_the_hub_and_not_where_it_points(hub: Hub, tmp_path: Path) -> None:
    with serving() as elsewhere:
        elsewhere.add("org/model", index_of(50, "a.safetensors"), INDEX)
        hub.add("org/model", b"", INDEX, status=302, headers={"Location": f"{elsewhere.url}/org/model/resolve/{COMMIT}/{INDEX}"})
        assert ask(hub, tmp_path, HF_TOKEN=TOKEN).size == 50
        assert elsewhere.tokens == {None}
    assert hub.tokens == {f"Bearer {TOKEN}"}


HUB_FAILURES: dict[str, tuple[dict[str, Any], str]] = {
    "not found": ({"status": 404}, ""),
    "no answer in time": ({"delay_s": 30}, "did not answer in time"),
    "a byte now and then": ({"body": b" " * 50_000, "pause_s": 0.4}, "did not answer in time"),
    "gated": ({"status": 403, "headers": {"X-Error-Code": "GatedRepo"}}, "org/model is gated"),
    "a token that is refused": ({"status": 401}, "refused the token"),
    "an empty file": ({"body": b""}, "is no index"),
    "too many requests": ({"status": 429}, "no more requests"),
    "an error": ({"status": 500, "body": b"x" * 10_000_000}, "answered 500"),
    "redirects without end": ({"status": 302, "headers": {"Location": "/org/model/resolve/main/" + INDEX}}, "redirects without end"),
    "a web page": ({"body": b"<html>log in</html>"}, "is a web page"),
    "a web page in place of a part": ({"body": b"<html>log in</html>", "ranges": False, "hub_headers": False}, "is a web page"),
    "another part than asked for": ({"body": b"{}", "status": 206, "headers": {"Content-Range": "bytes 5-6/9"}}, "does not answer to a range"),
    "a part without its place": ({"body": b"{}", "status": 206}, "does not answer to a range"),
    "cut short": ({"body": b'{"metadata": {"total_si'}, "states no total_size"),
    "a body that ends early": ({"body": b'{"metadata": {"total_size": 7}}', "length": 50_000}, "does not answer to a range"),
    "total_size is a float": ({"body": index_of(13731385408.0, "a")}, "the total_size 13731385408.0"),
    "total_size is 0": ({"body": index_of(0, "a")}, "the total_size 0"),
    "no total_size": ({"body": b'{"metadata": {}, "weight_map": {}}'}, "states no total_size"),
}


@pytest.mark.parametrize("case", HUB_FAILURES)
def test_no_failure_of_the_hub_counts(hub: Hub, tmp_path: Path, case: str) -> None:
    how, said = HUB_FAILURES[case]
    hub.add("org/model", how.get("body", b"{}"), INDEX, **{key: value for key, value in how.items() if key != "body"})
    found = ask(hub, tmp_path, HF_TOKEN=TOKEN, HF_HUB_DOWNLOAD_TIMEOUT="1")
    assert found.size is None
    assert said in " ".join(found.notes)
    assert len(found.notes) == (1 if said else 0)
    assert hub.sent_bytes < 9_000_000


def test_no_network(tmp_path: Path, hub: Hub) -> None:
    assert ask(hub, tmp_path).size is None
    with serving() as gone:
        gone.add("org/model", CONFIG)
    said = ask(gone, tmp_path)
    assert said.size is None
    assert "the Hub cannot be reached" in said.notes[0]


@pytest.mark.parametrize("first", [True, False])
def test_a_server_without_ranges_is_not_read_to_its_end(hub: Hub, tmp_path: Path, first: bool) -> None:  # noqa: FBT001
    hub.add("org/model", large_index(metadata_first=first) + b" " * 50_000_000, INDEX, ranges=False)
    said = ask(hub, tmp_path)
    assert said.size == (688_586_727_753 if first else None)
    assert [("does not answer to a range" in note) for note in said.notes] == ([] if first else [True])
    assert hub.sent_bytes < 2 * 15_000_000  # what the buffers between the two take


def test_a_server_without_ranges_still_shows_a_header(hub: Hub, tmp_path: Path) -> None:
    hub.add("org/model", shard(300), "model.safetensors", ranges=False)
    assert ask(hub, tmp_path).elements == {"BF16": 300}


BROKEN_ON_HUB = {
    "a pointer": (POINTER, "is a Git LFS pointer"),
    "a web page": (b"<!DOCTYPE html><html>log in</html>", "is a web page"),
    "cut short": (shard(300)[:-1], "is cut short"),
    "cut short within the header": (shard(300)[:30], "is not valid JSON"),
    "not JSON": (packed(b"{]"), "is not valid JSON"),
    "a long header that is cut short": ((200_000).to_bytes(8, "little") + b"{}", "a header of 200,000 bytes"),
    "no tensors": (packed({}), "holds no weights"),
}


@pytest.mark.parametrize("case", BROKEN_ON_HUB)
def test_a_broken_file_on_the_hub_is_noted(hub: Hub, tmp_path: Path, case: str) -> None:
    data, said = BROKEN_ON_HUB[case]
    hub.add("org/model", data, "model.safetensors")
    found = ask(hub, tmp_path)
    assert found.size is None
    assert said in found.notes[0]
