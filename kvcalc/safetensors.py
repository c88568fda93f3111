"""Sizes from the header of a safetensors file and from the index of a sharded checkpoint. Parses bytes, and reads no file itself.

A safetensors file is the length of its header (8 bytes, little-endian), the header (JSON: for each tensor dtype, shape and data_offsets), and the
tensors without a gap (huggingface/safetensors README.md, "Format"). An index is JSON: `metadata.total_size`, and `weight_map` from tensors to files.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from kvcalc.errors import POINTER, KvcalcError
from kvcalc.units import shorten

LENGTH_BYTES: Final = 8
MAX_HEADER_BYTES: Final = 100_000_000
"""safetensors reads no longer header (safetensors/src/tensor.rs, MAX_HEADER_SIZE)."""

_BITS: Final = {
    "BOOL": 8,
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "U8": 8,
    "I8": 8,
    "F8_E4M3": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2": 8,
    "F8_E5M2FNUZ": 8,
    "F8_E8M0": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
"""Bits of one element (safetensors/src/tensor.rs, Dtype::bitsize). A dtype that is not here is counted all the same: the offsets tell its bytes."""
_DTYPE: Final = re.compile(r"[A-Z][A-Z0-9_]{0,31}", re.ASCII)
_MAX_SIZE: Final = (1 << 63) - 1
_LFS: Final = b"version "
"""How a Git LFS pointer begins (git-lfs docs/spec.md). As the length of a header it would be absurd."""


class PointerError(KvcalcError):
    """The file is a Git LFS pointer: the real one has not been fetched."""


class Header(NamedTuple):
    """What the header of one file tells: bytes of all its tensors, and elements by the name of the dtype."""

    data_bytes: int
    elements: dict[str, int]


class _Tensor(NamedTuple):
    start: int
    end: int
    dtype: str
    elements: int
    name: str


def header_bytes(start: bytes, shown: str) -> int:
    """The length of the header, from the first 8 bytes of a file.

    Raises PointerError for a Git LFS pointer, KvcalcError for a file that is shorter or says a length that no header has.
    """
    if start.startswith(_LFS):
        raise PointerError(f"{shown} is a Git LFS pointer, not the file itself", hint=POINTER)
    if len(start) < LENGTH_BYTES:
        raise KvcalcError(f"{shown} is no safetensors file: it has {len(start)} bytes", hint="the file may be cut short")
    length = int.from_bytes(start[:LENGTH_BYTES], "little")
    if not len("{}") <= length <= MAX_HEADER_BYTES and start.lstrip()[:1] == b"<":
        raise KvcalcError(f"{shown} is a web page, no safetensors file", hint="a proxy or a login page may stand between you and the Hub")
    if not len("{}") <= length <= MAX_HEADER_BYTES:
        raise KvcalcError(f"{shown} is no safetensors file: its header would have {length:,} bytes")
    return length


def read_header(header: bytes, file_bytes: int | None, shown: str) -> Header:
    """What a header tells. `file_bytes` is the size of the whole file, None where it is not known.

    Raises KvcalcError for what safetensors does not load either: no JSON object of tensors, a name twice, tensors that overlap, leave a gap or
    disagree with their shape, and a file that is shorter or longer than they are.
    """
    fields = _parse(header, shown)
    end, elements = 0, dict[str, int]()
    for tensor in sorted(_tensor(name, entry, shown) for name, entry in fields.items() if name != "__metadata__"):
        if tensor.start != end:
            raise KvcalcError(f"{shown}: tensor {shorten(tensor.name)!r} starts at byte {tensor.start:,}, where {end:,} follows from the others")
        end = tensor.end
        elements[tensor.dtype] = elements.get(tensor.dtype, 0) + tensor.elements
    whole = LENGTH_BYTES + len(header) + end
    if file_bytes is not None and file_bytes != whole:
        what = "is cut short" if file_bytes < whole else "is longer than its header says"
        raise KvcalcError(f"{shown} {what}: it has {file_bytes:,} bytes, where {whole:,} are wanted", hint="fetch the file again")
    return Header(end, elements)


def _parse(header: bytes, shown: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(header.decode(), object_pairs_hook=_unique, parse_float=_refuse, parse_constant=_refuse)
    except RecursionError:
        raise KvcalcError(f"the header of {shown} is nested too deeply") from None
    except ValueError as error:
        raise KvcalcError(f"the header of {shown} is not valid JSON: {shorten(str(error), 120)}") from None
    if not isinstance(fields, dict):
        raise KvcalcError(f"the header of {shown} is no JSON object")
    return fields


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. The format forbids a name that stands twice, of which json would silently take the last."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"the name {shorten(twice)!r} stands in it twice")
    return fields


def _refuse(number: str) -> NoReturn:
    raise ValueError(f"{shorten(number, 20)} is not a whole number")


def _tensor(name: str, entry: object, shown: str) -> _Tensor:
    where = f"{shown}: tensor {shorten(name)!r}"
    match entry:
        case {"dtype": str(dtype), "shape": list(shape), "data_offsets": [start, end]} if _DTYPE.fullmatch(dtype) and all(map(_is_size, (*shape, start, end))):
            pass
        case _:
            raise KvcalcError(f"{where} does not say its dtype, shape and data_offsets")
    elements = 1
    for width in shape:
        elements *= width
        if elements > _MAX_SIZE:
            raise KvcalcError(f"{where} has a shape larger than any file")
    if end < start or (dtype in _BITS and elements * _BITS[dtype] != 8 * (end - start)):
        raise KvcalcError(f"{where} has {elements:,} elements of {dtype}, which do not fill the bytes from {start:,} to {end:,}")
    return _Tensor(start, end, dtype, elements, name)


def _is_size(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_SIZE


# The index of a sharded checkpoint


def total_size(metadata: object, shown: str) -> int:
    """Bytes of all tensors, as an index states them in its `metadata`. Raises KvcalcError where it states none, 0, or no whole number: all occur."""
    size = metadata.get("total_size") if isinstance(metadata, Mapping) else None
    if size is None:
        raise KvcalcError(f"{shown} states no total_size")
    if not _is_size(size) or size == 0:
        raise KvcalcError(f"{shown} states the total_size {shorten(str(size), 30)}, which is no number of bytes")
    return int(size)


def shard_names(index: Mapping[str, Any], shown: str) -> list[str]:
    """The files that an index names, sorted. Raises KvcalcError where it names none, or one outside its own folder."""
    match index.get("weight_map"):
        case dict(named) if named and all(isinstance(name, str) for name in named.values()):
            pass
        case _:
            raise KvcalcError(f"{shown} has no weight_map that names files")
    for name in (names := sorted(set(named.values()))):
        parts = re.split(r"[/\\]", name)
        if "\0" in name or ":" in parts[0] or parts[0] == "" or ".." in parts:
            raise KvcalcError(f"{shown} names the file {shorten(name)!r}, which is not beside it")
    return names


def metadata_in_head(head: bytes, shown: str) -> object:
    """`metadata` of an index of which `head` is the beginning, None where it does not stand there whole. Raises KvcalcError for what is no JSON object."""
    text = head.decode("utf-8-sig", errors="replace")
    at = _skip(text, 0)
    if text[at : at + 1] != "{":
        if text.startswith(_LFS.decode()):
            raise PointerError(f"{shown} is a Git LFS pointer, not the file itself", hint=POINTER)
        raise KvcalcError(f"{shown} is {'a web page' if text[at : at + 1] == '<' else 'no index'}")
    try:
        while text[at : at + 1] in ("{", ","):
            name, at = _DECODER.raw_decode(text, _skip(text, at + 1))
            if text[(at := _skip(text, at)) : at + 1] != ":":
                return None
            value, at = _DECODER.raw_decode(text, _skip(text, at + 1))
            if name == "metadata":
                return value
            at = _skip(text, at)
    except (ValueError, RecursionError):  # the head ends within a value, or is damaged
        return None
    return None


def metadata_in_tail(tail: bytes) -> object:
    """`metadata` of an index of which `tail` is the end, None where it does not stand there whole."""
    text = tail.decode(errors="replace")
    for found in reversed(list(re.finditer(r'"metadata"\s*:\s*(?=\{)', text))):
        try:
            value, at = _DECODER.raw_decode(text, found.end())
        except (ValueError, RecursionError):
            continue
        if text[_skip(text, at) :][:1] in ("}", ","):
            return value
    return None


_DECODER: Final = json.JSONDecoder(object_pairs_hook=_unique)
_SPACE: Final = re.compile(r"[ \t\r\n]*")


def _skip(text: str, at: int) -> int:
    """Where the next character stands that is no space."""
    match = _SPACE.match(text, at)
    return at if match is None else match.end()
