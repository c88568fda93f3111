"""Sizes and counts: what is read, what is refused, and that nothing is lost on the way."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import BINARY_UNITS, DECIMAL_UNITS, MAX_BYTES, MAX_TOKENS, binary_unit, format_bytes, format_ratio, parse_bytes, parse_count, parse_part

SIZES = [
    ("80GiB", 85_899_345_920),
    ("80GB", 80_000_000_000),
    ("80 GiB", 85_899_345_920),
    ("80gib", 85_899_345_920),
    ("80MiB", 83_886_080),
    ("80B", 80),
    ("1.5GiB", 1_610_612_736),
    ("0.5KiB", 512),
    ("1_000MB", 1_000_000_000),
    ("1.1GB", 1_100_000_000),
    ("0B", 0),
    ("1024PiB", 1 << 60),
]
BAD_SIZES = [
    ("80G", "80GiB or 80GB"),
    ("80", "80GiB or 80GB"),
    ("80M", "80MiB or 80MB"),
    ("1.5T", "1.5TiB or 1.5TB"),
    ("-80GiB", "is not a size"),
    ("GiB", "is not a size"),
    ("", "is not a size"),
    ("80GiBs", "unknown unit"),
    ("80XB", "unknown unit"),
    ("1e3GiB", "is not a size"),
    ("1.5B", "whole number of bytes"),
    ("1,5GiB", "is not a size"),
    ("inf", "is not a size"),
    ("nanGiB", "is not a size"),
    ("9" * 50 + "GiB", "is not a size"),
    ("9999999PiB", "larger than 1 ZiB"),
    ("\u0663GiB", "is not a size"),
]
COUNTS = [
    ("8192", 8192),
    ("8_192", 8192),
    ("32k", 32_000),
    ("32K", 32_768),
    ("1m", 1_000_000),
    ("1M", 1_048_576),
    ("1.5k", 1_500),
    ("25.6k", 25_600),
    ("1", 1),
    (" 7 ", 7),
    ("1000000000000", MAX_TOKENS),
]
BAD_COUNTS = [
    ("-5", "is not a count"),
    ("0", "at least 1"),
    ("1.5", "at least 1"),
    ("0.0001k", "at least 1"),
    ("32kk", "unknown suffix"),
    ("32KiB", "unknown suffix"),
    ("", "is not a count"),
    ("ten", "is not a count"),
    ("1e3", "is not a count"),
    ("1000000000001", "is larger than"),
    ("9" * 60, "is not a count"),
    ("0x10", "is not a count"),
    ("1__0", "is not a count"),
]


@pytest.mark.parametrize(("text", "size"), SIZES)
def test_size_is_read_exactly(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(("text", "said"), BAD_SIZES)
def test_size_is_refused(text: str, said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        parse_bytes(text)
    assert refused.value.code == ExitCode.USAGE
    assert said in refused.value.message
    assert len(refused.value.message) < 200


def test_a_part_of_a_byte_in_the_figure_of_a_log_is_dropped() -> None:
    assert parse_bytes("79.2GiB") == 79 * (1 << 30) + 214_748_364
    assert parse_bytes("0.3KiB") == 307


PARTS = [("0.9", "0.9"), ("1", "1"), (" .5 ", "0.5"), ("1e-1", "0.1")]
BAD_PARTS = [
    ("0", "above 0"),
    ("1.01", "above 0"),
    ("-0.5", "above 0"),
    ("nan", "above 0"),
    ("inf", "above 0"),
    ("ninety", "not a number"),
    ("", "not a number"),
]


@pytest.mark.parametrize(("text", "part"), PARTS)
def test_part_is_read(text: str, part: str) -> None:
    assert parse_part(text) == Decimal(part)


@pytest.mark.parametrize(("text", "said"), BAD_PARTS)
def test_part_is_refused(text: str, said: str) -> None:
    with pytest.raises(KvcalcError, match=said) as refused:
        parse_part(text)
    assert refused.value.code == ExitCode.USAGE


@pytest.mark.parametrize(("text", "count"), COUNTS)
def test_count_is_read(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize(("text", "said"), BAD_COUNTS)
def test_count_is_refused(text: str, said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        parse_count(text)
    assert refused.value.code == ExitCode.USAGE
    assert said in refused.value.message


@given(st.integers(0, 10**6), st.sampled_from(sorted(BINARY_UNITS | DECIMAL_UNITS)))
def test_size_is_number_times_unit(number: int, unit: str) -> None:
    size = number * (BINARY_UNITS | DECIMAL_UNITS)[unit]
    if size <= MAX_BYTES:
        assert parse_bytes(f"{number}{unit}") == size
        assert parse_bytes(f" {number} {unit.lower()} ") == size


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_refused_in_one_line(text: str) -> None:
    for parse in (parse_bytes, parse_count):
        try:
            number, code = parse(text), ExitCode.USAGE
        except KvcalcError as refused:
            number, code = 0, refused.code
        assert number >= 0
        assert code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1018, "1,018 B"),
        (1023, "1.00 KiB"),
        (1024, "1.00 KiB"),
        (1_048_575, "1.00 MiB"),
        (1_073_741_824, "1.00 GiB"),
        (808_452_096, "771.00 MiB"),
        (2_814_377_984, "2.62 GiB"),
        (85_899_345_920, "80.00 GiB"),
        ((1 << 40) - 1, "1.00 TiB"),
    ],
)
def test_rounding_carries_into_the_next_unit(size: int, text: str) -> None:
    assert format_bytes(size) == text


def test_a_stated_unit_is_kept() -> None:
    assert format_bytes(1 << 20, "GiB") == "0.00 GiB"
    assert format_bytes(1 << 40, "GiB") == "1,024.00 GiB"


@given(st.integers(0, MAX_BYTES))
def test_figure_is_within_half_a_hundredth(size: int) -> None:
    unit = binary_unit(size)
    figure = format_bytes(size, unit).rpartition(" ")[0].replace(",", "").replace(".", "")
    shown = int(figure) * BINARY_UNITS[unit] * (100 if unit == "B" else 1)
    assert abs(shown - 100 * size) * 2 <= BINARY_UNITS[unit] * (1 if unit != "B" else 0)


@pytest.mark.parametrize(
    ("numerator", "denominator", "text"),
    [
        (4, 1, "4.00x"),
        (16, 3, "5.33x"),
        (711, 10, "71.1x"),
        (128, 1, "128x"),
        (9996, 1000, "10.0x"),
        (99_96, 100, "100x"),
        (1, 3, "0.33x"),
        (5000, 1, "5,000x"),
    ],
)
def test_ratio(numerator: int, denominator: int, text: str) -> None:
    assert format_ratio(numerator, denominator) == text
