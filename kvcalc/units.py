"""Sizes and token counts: text to int and back. No float is involved anywhere."""

import re
from decimal import Decimal, InvalidOperation

from kvcalc.errors import ExitCode, KvcalcError

BINARY_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40, "PiB": 1 << 50}
DECIMAL_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "PB": 10**15}
TOKEN_SUFFIXES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""vLLM's habit (`--max-model-len`): lower case counts in thousands, upper case in powers of 1,024."""

MAX_TOKENS = 10**12
"""The largest count of tokens, requests or GPUs that a command takes: far beyond any model, small enough to compute with."""
MAX_BYTES = 1 << 70
"""The largest size that a command takes (one zebibyte)."""

MAX_DIGITS = 400
"""Of a number in a file, before or behind the point: a float of 64 bits reaches from 1e-324 to 1e308."""

_NUMBER = re.compile(r"(?P<whole>[0-9](?:_?[0-9]){0,39})(?:\.(?P<part>[0-9]{1,20}))?\s*(?P<unit>[A-Za-z]*)", re.ASCII)
_UNITS = {name.lower(): size for name, size in (BINARY_UNITS | DECIMAL_UNITS).items()}


def _split(text: str, kind: str) -> tuple[int, int, str]:
    """A number in text as `digits / scale` and its unit: "1.5GiB" is (15, 10, "GiB")."""
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise KvcalcError(f"{shorten(text)!r} is not a {kind}", code=ExitCode.USAGE)
    part = match["part"] or ""
    return int(match["whole"].replace("_", "") + part), int(10 ** len(part)), match["unit"]


def shorten(text: str, limit: int = 60) -> str:
    """Text from outside, cut so that it fits into a one-line message."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def parse_bytes(text: str) -> int:
    """The bytes that `text` names: "80GiB", "80GB", "1.5 GiB", "80B". A part of a byte, as in the "79.18GiB" of a log, is dropped.

    Raises KvcalcError (usage) for a missing unit, for "80G" (which is read both ways), for a part of a single byte.
    """
    digits, scale, unit = _split(text, "size; write it like 80GiB or 80GB")
    size = _UNITS.get(unit.lower())
    if size is None:
        number = text.strip()[: len(text.strip()) - len(unit)].strip()
        letter = unit[:1].upper()
        if unit == "" or (len(unit) == 1 and f"{letter}iB" in BINARY_UNITS):
            letter = letter or "G"
            message = f"{shorten(text)!r} can be read as {number}{letter}iB or {number}{letter}B; write which one"
        else:
            message = f"{shorten(text)!r}: unknown unit {shorten(unit, 20)!r}; use one of {', '.join(BINARY_UNITS | DECIMAL_UNITS)}"
        raise KvcalcError(message, code=ExitCode.USAGE)
    value, rest = divmod(digits * size, scale)
    if rest and size == 1:
        raise KvcalcError(f"{shorten(text)!r} is not a whole number of bytes", code=ExitCode.USAGE)
    if value > MAX_BYTES:
        raise KvcalcError(f"{shorten(text)!r} is larger than 1 ZiB, the largest size that is taken", code=ExitCode.USAGE)
    return value


def parse_count(text: str) -> int:
    """A count of at least 1: "8192", "8_192", "32k" (32,000), "32K" (32,768), "1.5k" (1,500).

    Raises KvcalcError (usage) for anything else, and above MAX_TOKENS.
    """
    digits, scale, unit = _split(text, "count; write it like 8192, 8_192, 32k (32,000) or 32K (32,768)")
    if unit not in TOKEN_SUFFIXES:
        raise KvcalcError(f"{shorten(text)!r}: unknown suffix {shorten(unit, 20)!r}; k, m, g count in thousands, K, M, G in 1,024s", code=ExitCode.USAGE)
    value, rest = divmod(digits * TOKEN_SUFFIXES[unit], scale)
    if rest or value < 1:
        raise KvcalcError(f"{shorten(text)!r} is not a whole number of at least 1", code=ExitCode.USAGE)
    if value > MAX_TOKENS:
        raise KvcalcError(f"{shorten(text)!r} is larger than {MAX_TOKENS:,}, the largest count that is taken", code=ExitCode.USAGE)
    return value


def exact_int(text: str) -> int:
    """A whole number of a JSON file. Raises ValueError for one that is longer than any."""
    if len(text) > MAX_DIGITS:
        raise ValueError(f"a number of {len(text):,} digits, where at most {MAX_DIGITS} are read")
    return int(text)


def exact_decimal(text: str) -> Decimal:
    """A JSON number with a point or an exponent. Raises ValueError for one that is beyond any."""
    number = Decimal(text) if len(text) <= 2 * MAX_DIGITS and len(text.lower().partition("e")[2]) <= 6 else None
    if number is None or abs(number.adjusted()) > MAX_DIGITS:
        raise ValueError(f"the number {shorten(text, 30)} is beyond those that are read")
    return number


TIME_UNITS = {"s": 10**6, "ms": 10**3, "us": 1}
"""In microseconds, the largest first."""
MAX_SECONDS = 10**6
"""The longest time that a command takes: more than a week."""


def parse_duration(text: str) -> int:
    """Microseconds: "2s", "1.5s", "50ms", "800us". Raises KvcalcError (usage) for a missing unit, for nothing, and above MAX_SECONDS."""
    digits, scale, unit = _split(text, "time; write it like 2s or 50ms")
    if unit not in TIME_UNITS:
        raise KvcalcError(f"{shorten(text)!r} has no unit that is known: write it like 2s or 50ms", code=ExitCode.USAGE)
    value = digits * TIME_UNITS[unit] // scale
    if not 0 < value <= MAX_SECONDS * 10**6:
        raise KvcalcError(f"{shorten(text)!r} is not above 0 and up to {MAX_SECONDS:,} seconds", code=ExitCode.USAGE)
    return value


MOST_RATIO = 100
"""No setting of an engine is a larger multiple."""
LEAST_RATIO = Decimal("1e-6")
"""Nor is one a smaller part, and what is far smaller is 0 as a float."""
MOST_TFLOPS = 10**6
"""A thousand times what a GPU reaches."""


def parse_ratio(text: str) -> Decimal:
    """A part that may be more than the whole. Raises KvcalcError (usage) for what is not above 0, below LEAST_RATIO, and above MOST_RATIO."""
    ratio = _parse_above_zero(text, MOST_RATIO)
    if ratio < LEAST_RATIO:
        raise KvcalcError(f"{shorten(text)} is below {LEAST_RATIO:f}, the least that is taken", code=ExitCode.USAGE)
    return ratio


def parse_tflops(text: str) -> Decimal:
    """A rate in TFLOP/s. Raises KvcalcError (usage) for what is not above 0, and above MOST_TFLOPS."""
    return _parse_above_zero(text, MOST_TFLOPS)


def _parse_above_zero(text: str, most: int) -> Decimal:
    try:
        number = Decimal(text)
    except InvalidOperation:
        raise KvcalcError(f"{shorten(text)!r} is not a number", code=ExitCode.USAGE) from None
    if not (number.is_finite() and 0 < number <= most):
        raise KvcalcError(f"{shorten(text)} is not above 0 and up to {most:,}", code=ExitCode.USAGE)
    return number


def parse_switch(text: str) -> str:
    """On or off, as llama.cpp takes them. Raises KvcalcError (usage) for anything else."""
    if text not in ("on", "off"):
        raise KvcalcError(f"{shorten(text)!r} is neither on nor off", code=ExitCode.USAGE)
    return text


def parse_part(text: str) -> Decimal:
    """A part above 0 and up to 1. Raises KvcalcError (usage) for anything else."""
    try:
        part = Decimal(text.strip())
    except InvalidOperation:
        raise KvcalcError(f"{shorten(text)!r} is not a number", hint="write a part such as 0.9", code=ExitCode.USAGE) from None
    if not (part.is_finite() and 0 < part <= 1):
        raise KvcalcError(f"{shorten(text)!r} is not above 0 and up to 1", hint="write a part such as 0.9", code=ExitCode.USAGE)
    return part


def counted(number: int, what: str) -> str:
    """A number of things: 1 layer, 32 layers."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def binary_unit(size_bytes: int) -> str:
    """The largest binary unit in which `size_bytes`, rounded to two decimals, is at least 1 (and still reads as it)."""
    best = "B"
    for name, unit_bytes in BINARY_UNITS.items():
        if unit_bytes == 1 or _hundredths(size_bytes, unit_bytes) >= 100:
            best = name
    return best


def format_bytes(size_bytes: int, unit: str | None = None) -> str:
    """`size_bytes` in a binary unit with two decimals ("1.00 GiB"), bytes whole ("512 B"); the unit is chosen where none is given."""
    name = binary_unit(size_bytes) if unit is None else unit
    if name == "B":
        return f"{size_bytes:,} B"
    whole, part = divmod(_hundredths(size_bytes, BINARY_UNITS[name]), 100)
    return f"{whole:,}.{part:02d} {name}"


def _hundredths(size_bytes: int, unit_bytes: int) -> int:
    """`size_bytes` in hundredths of a unit, rounded half up, so that rounding carries into the next unit."""
    return (200 * size_bytes + unit_bytes) // (2 * unit_bytes)


def format_ratio(numerator: int, denominator: int) -> str:
    """A factor of at least 0 with two significant decimals below 10, one below 100, else none: "5.33x", "71.1x", "128x"."""
    for decimals, limit in ((2, 10), (1, 100)):
        scaled = (2 * numerator * 10**decimals + denominator) // (2 * denominator)
        if scaled < limit * 10**decimals:
            return f"{scaled // 10**decimals}.{scaled % 10**decimals:0{decimals}d}x"
    return f"{(2 * numerator + denominator) // (2 * denominator):,}x"
