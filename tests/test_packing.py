"""Element types: bytes of a row, and the KV dtypes that are read and refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.packing import ENGINE_DTYPES, PACKINGS, KvDtype, parse_kv_dtype, parse_state_dtype

# Bytes of 4,096 elements, from bytes an element: llama.cpp's block_* structs (q8_0 1.0625, q5_1 0.75, q5_0 0.6875, q4_1 0.625, q4_0 and iq4_nl
# 0.5625), nvfp4 0.5625 (4 bits and an fp8 scale for 16), mxfp4 0.53125 (4 bits and 8 for 32).
ROWS = {
    "fp32": 16_384,
    "bf16": 8_192,
    "fp16": 8_192,
    "fp8": 4_096,
    "fp8_e4m3": 4_096,
    "fp8_e5m2": 4_096,
    "int8": 4_096,
    "int4": 2_048,
    "nvfp4": 2_304,
    "mxfp4": 2_176,
    "q8_0": 4_352,
    "q5_1": 3_072,
    "q5_0": 2_816,
    "q4_1": 2_560,
    "q4_0": 2_304,
    "iq4_nl": 2_304,
}


def test_every_packing_is_in_the_table() -> None:
    assert set(ROWS) == set(PACKINGS)


@pytest.mark.parametrize("name", PACKINGS)
def test_bytes_of_a_row(name: str) -> None:
    assert PACKINGS[name].row_bytes(4096) == ROWS[name]


@pytest.mark.parametrize(("name", "width", "size"), [("q8_0", 80, 102), ("q4_0", 1, 18), ("int4", 3, 2), ("nvfp4", 17, 18), ("bf16", 80, 160)])
def test_a_block_filled_in_part_is_stored_whole(name: str, width: int, size: int) -> None:
    assert PACKINGS[name].row_bytes(width) == size
    assert PACKINGS[name].fills(width) == (name == "bf16")


@given(st.sampled_from(sorted(PACKINGS)), st.integers(1, 10_000), st.integers(1, 10_000))
def test_rows_grow_with_their_width_and_joining_them_never_costs_more(name: str, one: int, other: int) -> None:
    size = PACKINGS[name].row_bytes
    assert size(one) <= size(one + other) <= size(one) + size(other)
    assert isinstance(size(one), int)


@pytest.mark.parametrize(
    ("text", "dtype"),
    [
        ("auto", KvDtype("auto", "auto")),
        ("fp8", KvDtype("fp8", "fp8")),
        ("BF16", KvDtype("bf16", "bf16")),
        ("bfloat16", KvDtype("bf16", "bf16")),
        ("f16", KvDtype("fp16", "fp16")),
        ("k=q8_0,v=q4_0", KvDtype("q8_0", "q4_0")),
        ("v=q4_0, k=f16", KvDtype("fp16", "q4_0")),
        ("k=auto,v=fp8", KvDtype("auto", "fp8")),
    ],
)
def test_kv_dtype_is_read(text: str, dtype: KvDtype) -> None:
    assert parse_kv_dtype(text) == dtype


@pytest.mark.parametrize("text", ["fp7", "", "k=q8_0", "k=q8_0,k=q4_0", "q=fp8,v=fp8", "k=,v=fp8", "k=fp7,v=fp8", "k=fp8,v=fp8,v=fp8", "fp8,fp8"])
def test_kv_dtype_is_refused(text: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        parse_kv_dtype(text)
    assert refused.value.code == ExitCode.USAGE


def test_both_sides_alike_are_written_as_one() -> None:
    assert str(parse_kv_dtype("fp8")) == "fp8"
    assert str(parse_kv_dtype("k=q8_0,v=q4_0")) == "k=q8_0,v=q4_0"
    assert parse_kv_dtype("k=auto,v=fp8").resolved("bf16") == KvDtype("bf16", "fp8")


@pytest.mark.parametrize(("name", "k_bytes", "v_bytes"), [("int4_per_token_head", 64, 64), ("turboquant_k8v4", 128, 64), ("turboquant_3bit_nc", 48, 48)])
def test_types_of_one_engine_have_elements_of_their_own(name: str, k_bytes: int, v_bytes: int) -> None:
    """128 elements of K and of V, by the bits in the name, without scales."""
    assert name in ENGINE_DTYPES
    k, v = parse_kv_dtype(name).elements()
    assert (k.row_bytes(128), v.row_bytes(128)) == (k_bytes, v_bytes)


@pytest.mark.parametrize(("text", "name"), [("float32", "fp32"), ("bfloat16", "bf16"), ("FP16", "fp16"), ("auto", None)])
def test_state_dtype_is_read(text: str, name: str | None) -> None:
    assert parse_state_dtype(text) == name


@pytest.mark.parametrize("text", ["fp8", "q8_0", ""])
def test_state_dtype_is_refused(text: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        parse_state_dtype(text)
    assert refused.value.code == ExitCode.USAGE
