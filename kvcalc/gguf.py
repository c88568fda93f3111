"""Keys and tensors from the header of a GGUF file. Parses bytes, and reads no file itself.

A GGUF file is a magic, a version, the numbers of tensors and of keys, the keys with their values, name, shape, type and offset of each tensor, and the
tensors themselves at a multiple of `general.alignment` (ggml docs/gguf.md; ggml/src/gguf.cpp of llama.cpp, as vendored by llama-cpp-python 0.3.36, for
what is refused). What is not needed is passed over: nothing is allocated by a length that a file states.
"""

from collections.abc import Callable
from math import prod
from struct import Struct
from typing import Final, NamedTuple

from kvcalc.errors import POINTER, ExitCode, KvcalcError
from kvcalc.units import format_bytes, shorten

MAGIC: Final = b"GGUF"
MAX_HEADER_BYTES: Final = 64 << 20
"""No header of a real model comes near this size: vocabulary and merges of the largest ones take some 15 MB."""

MAX_ENTRIES: Final = 65_536
"""More keys, or tensors, than any model has: DeepSeek-V3 with each expert apart has 46,000."""
MAX_KEPT_VALUES: Final = 1_024
"""Longer arrays are passed over: those with a value for each layer are kept, vocabularies are not. llama.cpp takes at most 512 layers."""
MAX_KEPT_TEXT: Final = 1_024
"""Longer strings are passed over, such as chat templates."""
_MAX_KEY_BYTES: Final = 65_535
_MAX_NAME_BYTES: Final = 63
_MAX_DIMENSIONS: Final = 4
_MAX_DEPTH: Final = 8
_MAX_SIZE: Final = (1 << 63) - 1
_DEFAULT_ALIGNMENT: Final = 32
_LFS: Final = b"version "
"""How a Git LFS pointer begins (git-lfs docs/spec.md)."""


class Block(NamedTuple):
    """A type of tensors: `elements` of a row are stored together in `size_bytes` bytes."""

    name: str
    elements: int
    size_bytes: int


BLOCKS: Final = {
    0: Block("F32", 1, 4),
    1: Block("F16", 1, 2),
    2: Block("Q4_0", 32, 18),
    3: Block("Q4_1", 32, 20),
    6: Block("Q5_0", 32, 22),
    7: Block("Q5_1", 32, 24),
    8: Block("Q8_0", 32, 34),
    9: Block("Q8_1", 32, 36),
    10: Block("Q2_K", 256, 84),
    11: Block("Q3_K", 256, 110),
    12: Block("Q4_K", 256, 144),
    13: Block("Q5_K", 256, 176),
    14: Block("Q6_K", 256, 210),
    15: Block("Q8_K", 256, 292),
    16: Block("IQ2_XXS", 256, 66),
    17: Block("IQ2_XS", 256, 74),
    18: Block("IQ3_XXS", 256, 98),
    19: Block("IQ1_S", 256, 50),
    20: Block("IQ4_NL", 32, 18),
    21: Block("IQ3_S", 256, 110),
    22: Block("IQ2_S", 256, 82),
    23: Block("IQ4_XS", 256, 136),
    24: Block("I8", 1, 1),
    25: Block("I16", 1, 2),
    26: Block("I32", 1, 4),
    27: Block("I64", 1, 8),
    28: Block("F64", 1, 8),
    29: Block("IQ1_M", 256, 56),
    30: Block("BF16", 1, 2),
    34: Block("TQ1_0", 256, 54),
    35: Block("TQ2_0", 256, 66),
    39: Block("MXFP4", 32, 17),
    40: Block("NVFP4", 64, 36),
    41: Block("Q1_0", 128, 18),
    42: Block("Q2_0", 64, 18),
}
"""By their numbers in a file (gguf-py/gguf/constants.py, GGMLQuantizationType and GGML_QUANT_SIZES)."""


class Passed(NamedTuple):
    """A value that is not kept: what it is, and how many values an array or bytes a string has."""

    what: str
    length: int = 1

    def __str__(self) -> str:
        return self.what


Value = int | bool | str | list[int] | Passed
"""What is kept of a value: no floats, no arrays of strings, and booleans in an array as 0 and 1."""


class StoredTensor(NamedTuple):
    """A tensor: its shape, the features that a row reads last, and how it is stored."""

    name: str
    shape: tuple[int, ...]
    stored: Block

    @property
    def elements(self) -> int:
        return prod(self.shape)

    @property
    def size_bytes(self) -> int:
        return self.elements // self.stored.elements * self.stored.size_bytes


class Header(NamedTuple):
    """What the header of one file tells."""

    keys: dict[str, Value]
    tensors: tuple[StoredTensor, ...]


class MoreError(Exception):
    """The beginning of the file that was given ends within the header. `wanted` bytes of the file are needed at least."""

    def __init__(self, wanted: int) -> None:
        super().__init__(wanted)
        self.wanted = wanted


def read_header(start: bytes, file_bytes: int | None, shown: str) -> Header:
    """What the header tells of a file that begins with `start`. `file_bytes` is the size of the whole file, None where it is not known.

    Raises MoreError where `start` ends within the header, and KvcalcError for what is no GGUF file, is one of another byte order or version, or
    contradicts itself: lengths beyond the file, a key or tensor twice, a shape that its type does not fill, tensors that do not follow each other.
    """
    cursor = _Cursor(start, file_bytes, shown)
    tensor_count = _begin(cursor)
    key_count = cursor.number(_U64)
    cursor.check_count(key_count, "keys", least=8 + 4 + 1)
    cursor.check_count(tensor_count, "tensors", least=8 + 4 + 4 + 8)
    keys: dict[str, Value] = {}
    for _ in range(key_count):
        name = cursor.text(_MAX_KEY_BYTES, "the name of a key")
        if not name or name in keys:
            raise cursor.error(f"the key {shorten(name)!r} stands in it twice" if name else "a key has no name")
        keys[name] = _value(cursor, name)
    alignment = keys.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
        raise cursor.error(f"general.alignment is {shorten(str(alignment), 30)}, which is no power of 2")
    tensors: dict[str, StoredTensor] = {}
    end = next_offset = 0
    for _ in range(tensor_count):
        tensor = _tensor(cursor)
        if tensor.name in tensors:
            raise cursor.error(f"the tensor {shorten(tensor.name)!r} stands in it twice")
        tensors[tensor.name] = tensor
        offset = cursor.number(_U64)
        if offset != next_offset:
            raise cursor.error(f"tensor {shorten(tensor.name)!r} starts at byte {offset:,}, where {next_offset:,} follows from the others")
        end = offset + tensor.size_bytes
        next_offset = -(-end // alignment) * alignment
    whole = -(-cursor.at // alignment) * alignment + end
    if tensors and file_bytes is not None and file_bytes < whole:
        raise KvcalcError(f"{shown} is cut short: it has {file_bytes:,} bytes, where {whole:,} are wanted", hint="fetch the file again")
    return Header(keys, tuple(tensors.values()))


def _begin(cursor: "_Cursor") -> int:
    """Magic and version; the number of tensors, which follows them."""
    if cursor.start.startswith(_LFS):
        raise KvcalcError(f"{cursor.shown} is a Git LFS pointer, not the file itself", hint=POINTER)
    if cursor.start.lstrip()[:1] == b"<":
        hint = "a proxy or a login page may stand between you and the Hub"
        raise KvcalcError(f"{cursor.shown} is a web page, no GGUF file", hint=hint, code=ExitCode.ENVIRONMENT)
    magic = cursor.start[:4]
    if not MAGIC.startswith(magic) or (len(magic) < 4 and cursor.file_bytes == len(magic)):
        raise KvcalcError(f"{cursor.shown} is no GGUF file: it does not begin with the letters GGUF", hint="name a GGUF file, or a folder with a config.json")
    cursor.skip(4)
    version = cursor.number(_U32)
    if version and not version & 0xFFFF:
        raise cursor.error("it is big-endian, which is not read", "convert it with gguf-py's gguf_convert_endian.py")
    if version not in (2, 3):
        hint = "convert the model again with a newer llama.cpp" if version == 1 else ""
        raise cursor.error(f"it is of GGUF version {version:,}; 2 and 3 are read", hint)
    return cursor.number(_U64)


_U32, _U64 = Struct("<I"), Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS: Final = {
    0: Struct("<B"),
    1: Struct("<b"),
    2: Struct("<H"),
    3: Struct("<h"),
    4: _U32,
    5: Struct("<i"),
    6: Struct("<f"),
    _BOOL: Struct("<?"),
    10: _U64,
    11: Struct("<q"),
    12: Struct("<d"),
}
"""Types of values by their numbers (ggml docs/gguf.md, gguf_metadata_value_type)."""
_FLOATS: Final = (6, 12)


def _value(cursor: "_Cursor", name: str) -> Value:
    kind = cursor.number(_U32)
    if kind == _STRING:
        length = cursor.number(_U64)
        begin = cursor.skip(length)
        return Passed("a long text", length) if length > MAX_KEPT_TEXT else cursor.start[begin : cursor.at].decode(errors="replace")
    if kind == _ARRAY:
        return _array(cursor, name)
    if kind not in _SCALARS:
        raise cursor.error(f"the key {shorten(name)!r} has a value of type {kind:,}, which is not known")
    value = cursor.scalar(_SCALARS[kind])
    return Passed("a number with a point") if kind in _FLOATS else value


def _array(cursor: "_Cursor", name: str) -> Value:
    kind, count = cursor.number(_U32), cursor.number(_U64)
    if kind in _SCALARS:
        begin = cursor.skip(count * _SCALARS[kind].size)
        if count > MAX_KEPT_VALUES or kind in _FLOATS:
            return Passed("a long array" if count > MAX_KEPT_VALUES else "an array of numbers with a point", count)
        return [int(each) for (each,) in _SCALARS[kind].iter_unpack(cursor.start[begin : cursor.at])]
    _pass_over(cursor, name, kind, count, depth=1)
    return Passed("an array of texts" if kind == _STRING else "an array of arrays", count)


def _pass_over(cursor: "_Cursor", name: str, kind: int, count: int, depth: int) -> None:
    """Goes behind an array. Each of its values takes bytes, so that no count takes more time than the bytes that are there."""
    if kind in _SCALARS:
        cursor.skip(count * _SCALARS[kind].size)
    elif kind == _STRING:
        cursor.check_room(count * 8)
        cursor.skip_strings(count)
    elif kind == _ARRAY and depth < _MAX_DEPTH:
        cursor.check_room(count * 12)
        for _ in range(count):
            inner, length = cursor.number(_U32), cursor.number(_U64)
            _pass_over(cursor, name, inner, length, depth + 1)
    else:
        what = "is nested too deeply" if kind == _ARRAY else f"has values of type {kind:,}, which is not known"
        raise cursor.error(f"the key {shorten(name)!r} {what}")


def _tensor(cursor: "_Cursor") -> StoredTensor:
    name = cursor.text(_MAX_NAME_BYTES, "the name of a tensor")
    dimensions = cursor.number(_U32)
    if dimensions > _MAX_DIMENSIONS:
        raise cursor.error(f"tensor {shorten(name)!r} has {dimensions:,} dimensions, more than {_MAX_DIMENSIONS}")
    shape = tuple(cursor.number(_U64) for _ in range(dimensions))[::-1] or (1,)  # a file states first the features that a row reads
    kind = cursor.number(_U32)
    if kind not in BLOCKS:
        raise cursor.error(f"tensor {shorten(name)!r} is of type {kind:,}, which is not known", "convert the model again with a newer llama.cpp")
    stored = BLOCKS[kind]
    if max(shape) > _MAX_SIZE or prod(shape) > _MAX_SIZE:
        raise cursor.error(f"tensor {shorten(name)!r} has a shape larger than any file")
    if shape[-1] % stored.elements:
        raise cursor.error(f"tensor {shorten(name)!r} has rows of {shape[-1]:,} elements, which blocks of {stored.elements} ({stored.name}) do not fill")
    return StoredTensor(name, shape, stored)


class _Cursor:
    """A place in the beginning of a file, and what the file can still hold behind it."""

    def __init__(self, start: bytes, file_bytes: int | None, shown: str) -> None:
        self.start = start
        self.file_bytes = file_bytes
        self.limit = MAX_HEADER_BYTES if file_bytes is None else min(file_bytes, MAX_HEADER_BYTES)
        self.shown = shown
        self.at = 0

    def error(self, message: str, hint: str = "") -> KvcalcError:
        return KvcalcError(f"{self.shown}: {message}", hint=hint)

    def check_room(self, length: int) -> None:
        """Raises where so many bytes more would end behind the file, or behind any header."""
        if self.at + length <= self.limit:
            return
        if self.file_bytes is not None and self.at + length > self.file_bytes:
            raise KvcalcError(f"{self.shown} is cut short or damaged: its header ends behind its {self.file_bytes:,} bytes", hint="fetch the file again")
        raise self.error(f"its header is larger than {format_bytes(MAX_HEADER_BYTES)}: it is damaged")

    def check_count(self, count: int, what: str, least: int) -> None:
        if count > MAX_ENTRIES:
            raise self.error(f"it says that it has {count:,} {what}: it is damaged")
        self.check_room(count * least)

    def skip(self, length: int) -> int:
        """Goes on by so many bytes; where they begin."""
        begin, end = self.at, self.at + length
        self.check_room(length)
        if end > len(self.start):
            raise MoreError(end)
        self.at = end
        return begin

    def skip_strings(self, count: int) -> None:
        """Goes on by so many strings. Without the checks of `skip` for each, since a vocabulary has hundreds of thousands."""
        at, last, read = self.at, len(self.start) - 8, _U64.unpack_from
        for _ in range(count):
            if at > last:
                break
            at += 8 + read(self.start, at)[0]
        else:
            self.skip(at - self.at)
            return
        self.skip(at - self.at + 8)

    def scalar(self, kind: Struct) -> int | bool:
        begin = self.skip(kind.size)
        value: int | bool = kind.unpack_from(self.start, begin)[0]
        return value

    def number(self, kind: Struct) -> int:
        return self.scalar(kind)

    def text(self, longest: int, what: str) -> str:
        length = self.number(_U64)
        if length > longest:
            raise self.error(f"{what} would have {length:,} bytes: it is damaged")
        begin = self.skip(length)
        return self.start[begin : self.at].decode(errors="replace")


def grown(read: Callable[[int], tuple[bytes, int | None]], first: int, shown: str) -> Header:
    """The header of a file of which `read` gives the first so many bytes, and the size of all: `first` bytes, and twice as many as long as they do not
    hold it whole. Raises KvcalcError as read_header does, and for a header that is larger than any.
    """
    length = first
    while True:
        start, file_bytes = read(length)
        try:
            return read_header(start, file_bytes, shown)
        except MoreError as error:
            if len(start) < length or length >= MAX_HEADER_BYTES:
                raise KvcalcError(f"{shown} is cut short: its header does not end within {len(start):,} bytes", hint="fetch the file again") from None
            length = min(max(2 * length, error.wanted), MAX_HEADER_BYTES)
