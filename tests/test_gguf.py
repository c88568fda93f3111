"""GGUF files: the reader against damaged and hostile bytes, architectures against the config.json of the same models, and what a user sees."""

import json
import struct
import time
import tracemalloc
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.catalog import find_preset, load_model
from kvcalc.errors import KvcalcError
from kvcalc.families import FAMILIES, read_config
from kvcalc.families.class_defaults import NESTED_DEFAULTS
from kvcalc.families.gguf import ARCHITECTURES, NO_KV_CACHE, read_gguf
from kvcalc.gguf import BLOCKS, MAX_HEADER_BYTES, Header, MoreError, Passed, grown, read_header
from kvcalc.layers import Layer, ModelSpec
from kvcalc.packing import PACKINGS
from kvcalc.tensors import WeighedModel
from kvcalc.weights import Share, checkpoint_bytes, share_bytes
from tests.command import Done, kvcalc
from tests.gguf_files import ARRAY, I32, STRING, TYPES, U8, U16, U32, U64, Of, converted, file, header, llama, llama_tensors, string

WRITTEN = Path(__file__).parent / "gguf" / "written-by-gguf-py.gguf"
"""A file that gguf-py 0.19.0 wrote (GGUFWriter), with an array of arrays among its keys; its own reader counts the bytes and elements below."""
WRITTEN_BYTES, WRITTEN_ELEMENTS = 49_808, 80_512
CONFIGS = Path(__file__).parent / "configs"
SMALL = file(llama(), llama_tensors())
HEADER_BYTES = len(header(llama(), llama_tensors(), align=1)[0])
"""Of the small file, without the padding behind it."""


def read(data: bytes, **keys: Any) -> Header:
    return read_header(data, keys.get("file_bytes", len(data)), "x.gguf")


def model(keys: dict[str, Any], tensors: dict[str, tuple[tuple[int, ...], str]] | None = None) -> WeighedModel:
    """The model of a file with these keys, and one tensor where nothing is said of them."""
    start, _ = header(keys, {"token_embd.weight": ((1000, 256), "F16")} if tensors is None else tensors)
    return read_gguf([read_header(start, None, "x.gguf")], "x.gguf")


# The reader


def test_a_file_of_gguf_py_is_read() -> None:
    found = read(WRITTEN.read_bytes())
    assert len(found.tensors) == 24
    assert sum(tensor.size_bytes for tensor in found.tensors) == WRITTEN_BYTES
    assert sum(tensor.elements for tensor in found.tensors) == WRITTEN_ELEMENTS
    assert found.keys["qwen3.attention.key_length"] == 16
    assert found.keys["general.some_u64"] == 5
    assert found.keys["tokenizer.ggml.add_bos_token"] is False
    assert found.keys["general.name"] == "Tiny"
    assert found.keys["tokenizer.ggml.tokens"] == Passed("an array of texts", 100)
    assert found.keys["nested.example"] == Passed("an array of arrays", 2)
    assert next(tensor.shape for tensor in found.tensors if tensor.name == "blk.0.attn_k.weight") == (32, 64)


@pytest.mark.parametrize("version", [2, 3])
def test_versions_2_and_3_are_read_alike(version: int) -> None:
    start, size = header(llama(), llama_tensors(), version=version)
    assert read(start + bytes(size)) == read(SMALL)


def test_an_alignment_of_its_own_is_taken() -> None:
    start, size = header({**llama(), "general.alignment": 256}, llama_tensors(), align=256)
    assert read(start + bytes(size)).tensors == read(SMALL).tensors


def test_the_size_of_each_type_is_that_of_ggml() -> None:
    """Bytes of a block, from the sums of gguf-py/gguf/constants.py (GGML_QUANT_SIZES): scales, then quants."""
    sums = {
        "Q4_0": (32, 2 + 16),
        "Q4_1": (32, 2 + 2 + 16),
        "Q5_0": (32, 2 + 4 + 16),
        "Q5_1": (32, 2 + 2 + 4 + 16),
        "Q8_0": (32, 2 + 32),
        "Q8_1": (32, 2 + 2 + 32),
        "Q2_K": (256, 2 + 2 + 256 // 16 + 256 // 4),
        "Q3_K": (256, 2 + 256 // 4 + 256 // 8 + 12),
        "Q4_K": (256, 2 + 2 + 256 // 2 + 12),
        "Q5_K": (256, 2 + 2 + 256 // 2 + 256 // 8 + 12),
        "Q6_K": (256, 2 + 256 // 2 + 256 // 4 + 256 // 16),
        "Q8_K": (256, 4 + 256 + 256 // 8),
        "IQ2_XXS": (256, 2 + 256 // 4),
        "IQ2_XS": (256, 2 + 256 // 4 + 256 // 32),
        "IQ3_XXS": (256, 2 + 256 // 4 + 256 // 8),
        "IQ1_S": (256, 2 + 256 // 8 + 256 // 16),
        "IQ4_NL": (32, 2 + 16),
        "IQ3_S": (256, 2 + 256 // 4 + 256 // 8 + 256 // 32 + 4),
        "IQ2_S": (256, 2 + 256 // 4 + 256 // 16),
        "IQ4_XS": (256, 2 + 2 + 256 // 2 + 256 // 64),
        "IQ1_M": (256, 256 // 8 + 256 // 16 + 256 // 32),
        "TQ1_0": (256, 2 + 4 * 13),
        "TQ2_0": (256, 2 + 64),
        "MXFP4": (32, 1 + 16),
        "NVFP4": (64, 4 + 32),
        "Q1_0": (128, 2 + 16),
        "Q2_0": (64, 2 + 16),
    }
    assert {block.name: (block.elements, block.size_bytes) for block in BLOCKS.values() if block.elements > 1} == sums
    assert {block.name: block.size_bytes for block in BLOCKS.values() if block.elements == 1} == {
        **dict.fromkeys(("F64", "I64"), 8),
        **dict.fromkeys(("F32", "I32"), 4),
        **dict.fromkeys(("F16", "BF16", "I16"), 2),
        "I8": 1,
    }


def refusal(action: Callable[[], object]) -> str:
    """What an action is refused with, empty where it is not. Any other exception passes."""
    try:
        action()
    except KvcalcError as error:
        return error.message
    return ""


def keyed(*pairs: tuple[str, Any]) -> bytes:
    return header(pairs)[0]


def with_value(kind: int, body: bytes) -> bytes:
    """A file whose one key has a value of those bytes."""
    return struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + string("a.key") + struct.pack("<I", kind) + body


def with_tensor(body: bytes) -> bytes:
    return struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + body + bytes(64)


HUGE = (1 << 64) - 1
REFUSED = {
    "no file": (b"", "is no GGUF file"),
    "a text": (b"hello\n", "does not begin with the letters GGUF"),
    "three letters": (b"GGU", "is no GGUF file"),
    "an LFS pointer": (b"version https://git-lfs.github.com/spec/v1\n", "is a Git LFS pointer"),
    "big-endian": (struct.pack(">4sIQQ", b"GGUF", 3, 0, 0), "it is big-endian"),
    "version 1": (struct.pack("<4sIII", b"GGUF", 1, 0, 0), "GGUF version 1"),
    "version 4": (struct.pack("<4sIQQ", b"GGUF", 4, 0, 0), "GGUF version 4"),
    "too many keys": (struct.pack("<4sIQQ", b"GGUF", 3, 0, HUGE), "18,446,744,073,709,551,615 keys"),
    "too many tensors": (struct.pack("<4sIQQ", b"GGUF", 3, HUGE, 0), "18,446,744,073,709,551,615 tensors"),
    "more keys than bytes": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 60_000), "is cut short or damaged"),
    "a key twice": (keyed(("a.b", 1), ("a.b", 2)), "the key 'a.b' stands in it twice"),
    "a key without name": (keyed(("", 1)), "a key has no name"),
    "a long key": (struct.pack("<4sIQQ", b"GGUF", 3, 0, 1) + struct.pack("<Q", 1 << 40) + bytes(99), "the name of a key would have 1,099,511,627,776 bytes"),
    "a value of no type": (with_value(13, bytes(8)), "has a value of type 13"),
    "a string beyond the file": (with_value(STRING, struct.pack("<Q", HUGE)), "is cut short or damaged"),
    "an array beyond the file": (with_value(ARRAY, struct.pack("<IQ", U64, HUGE)), "is cut short or damaged"),
    "strings beyond the file": (with_value(ARRAY, struct.pack("<IQ", STRING, 1 << 60)), "is cut short or damaged"),
    "a string in an array beyond the file": (with_value(ARRAY, struct.pack("<IQ", STRING, 2) + struct.pack("<QQ", 0, HUGE)), "is cut short or damaged"),
    "an array of no type": (with_value(ARRAY, struct.pack("<IQ", 77, 0)), "has values of type 77"),
    "arrays too deep": (with_value(ARRAY, struct.pack("<IQ", ARRAY, 1) * 9 + bytes(64)), "is nested too deeply"),
    "arrays beyond the file": (with_value(ARRAY, struct.pack("<IQ", ARRAY, 1 << 60)), "is cut short or damaged"),
    "an alignment of 0": (keyed(("general.alignment", 0)), "general.alignment is 0, which is no power of 2"),
    "an alignment of 48": (keyed(("general.alignment", 48)), "general.alignment is 48"),
    "a long name": (with_tensor(string("n" * 64)), "the name of a tensor would have 64 bytes"),
    "five dimensions": (with_tensor(string("t") + struct.pack("<I", 5)), "has 5 dimensions"),
    "a type of no tensor": (with_tensor(string("t") + struct.pack("<IQI", 1, 32, 99)), "is of type 99"),
    "a shape too large": (with_tensor(string("t") + struct.pack("<I4QI", 4, *[1 << 40] * 4, 0)), "has a shape larger than any file"),
    "a block that is not filled": (with_tensor(string("t") + struct.pack("<IQI", 1, 33, 2)), "rows of 33 elements, which blocks of 32 (Q4_0)"),
    "an offset of its own": (with_tensor(string("t") + struct.pack("<IQIQ", 1, 32, 0, 32)), "starts at byte 32, where 0 follows"),
    "no data": (header({}, {"t": ((32,), "F32")})[0], "is cut short: it has"),
    "data cut short": (SMALL[:-1], "is cut short: it has"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_damaged_header_is_refused_in_one_line(name: str) -> None:
    data, said = REFUSED[name]
    with pytest.raises(KvcalcError) as caught:
        read(data)
    assert said in caught.value.message
    assert caught.value.code == 3
    assert "\n" not in caught.value.message
    assert len(caught.value.message) < 300


def test_a_tensor_twice_is_refused() -> None:
    one = string("t") + struct.pack("<IQIQ", 1, 8, 0, 0)
    two = string("t") + struct.pack("<IQIQ", 1, 8, 0, 32)
    with pytest.raises(KvcalcError, match="the tensor 't' stands in it twice"):
        read(struct.pack("<4sIQQ", b"GGUF", 3, 2, 0) + one + two + bytes(128))


@given(st.integers(0, HEADER_BYTES - 1))
@settings(max_examples=300, deadline=None)
def test_every_beginning_of_a_header_wants_more_or_is_cut_short(length: int) -> None:
    start = SMALL[:length]
    with pytest.raises(KvcalcError):
        read(start)
    with pytest.raises((MoreError, KvcalcError)) as caught:
        read_header(start, None, "x.gguf")
    if isinstance(caught.value, MoreError):
        assert length < caught.value.wanted <= len(SMALL)


@given(st.lists(st.tuples(st.integers(0, HEADER_BYTES - 1), st.integers(0, 255)), min_size=1, max_size=4))
@settings(max_examples=500, deadline=None)
def test_changed_bytes_are_read_or_refused(changes: list[tuple[int, int]]) -> None:
    data = bytearray(SMALL)
    for at, byte in changes:
        data[at] = byte
    assert len(refusal(lambda: read_gguf([read(bytes(data))], "x.gguf"))) < 400


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for start in (data, b"GGUF\x03\0\0\0" + data):
        assert len(refusal(partial(read, start))) < 400


HOSTILE = {
    "strings of no length": with_value(ARRAY, struct.pack("<IQ", STRING, 1_048_000)) + bytes(8 << 20),
    "arrays of no length": with_value(ARRAY, struct.pack("<IQ", ARRAY, 690_000)) + bytes(8 << 20),
    "one long string": with_value(STRING, struct.pack("<Q", 8 << 20)) + bytes(8 << 20),
    "numbers": with_value(ARRAY, struct.pack("<IQ", U8, 8 << 20)) + bytes(8 << 20),
    "keys of 8 bytes": struct.pack("<4sIQQ", b"GGUF", 3, 0, 65_536) + b"".join(string(f"{key:08}") + struct.pack("<IB", 0, 1) for key in range(65_536)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_time_and_memory_do_not_follow_what_a_file_states(name: str) -> None:
    data = HOSTILE[name]
    tracemalloc.start()
    begun = time.process_time()
    try:
        read(data)
    finally:
        spent, (_, peak) = time.process_time() - begun, tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert spent < 20
    assert peak < 32 << 20


def test_a_header_is_read_in_steps_that_double() -> None:
    asked: list[int] = []

    def from_start(length: int) -> tuple[bytes, int | None]:
        asked.append(length)
        return SMALL[:length], len(SMALL)

    assert grown(from_start, 512, "x.gguf") == read(SMALL)
    assert asked[0] == 512
    assert all(later >= 2 * earlier for earlier, later in pairwise(asked))


def test_a_header_without_end_is_given_up() -> None:
    endless = with_value(STRING, struct.pack("<Q", MAX_HEADER_BYTES))
    with pytest.raises(KvcalcError, match=r"its header is larger than 64\.00 MiB"):
        grown(lambda length: (endless[:length], None), 1024, "x.gguf")


def test_a_server_that_sends_no_more_is_not_asked_for_ever() -> None:
    with pytest.raises(KvcalcError, match="its header does not end within 600 bytes"):
        grown(lambda length: (SMALL[: min(length, 600)], None), 1024, "x.gguf")


# Architectures, against the config.json of the same model

SAME = {
    "deepseek-v2-lite": "deepseek2",
    "deepseek-v3": "deepseek2",
    "deepseek-v3.2": "deepseek32",
    "deepseek-v4-flash": "deepseek4",
    "exaone-4-32b": "exaone4",
    "falcon-h1-7b": "falcon-h1",
    "gemma-2-9b": "gemma2",
    "gemma-2b": "gemma",
    "gemma-3-1b": "gemma3",
    "gemma-3-27b": "gemma3",
    "gemma-3n-e4b": "gemma3n",
    "gemma-4-26b-a4b": "gemma4",
    "gemma-4-31b": "gemma4",
    "gemma-4-e2b": "gemma4",
    "gemma-4-e4b": "gemma4",
    "glm-4.5": "glm4moe",
    "glm-5": "glm-dsa",
    "glm-5.2": "glm-dsa",
    "glm-5.3": "glm-dsa",
    "glm-5.3-flash": "glm5-next",
    "gpt-oss-120b": "gpt-oss",
    "gpt-oss-20b": "gpt-oss",
    "granite-4.0-h-tiny": "granitehybrid",
    "jamba-v0.1": "jamba",
    "kimi-k2": "deepseek2",
    "kimi-k3": "kimi-k3",
    "kimi-linear-48b-a3b": "kimi-linear",
    "lfm2.5-vl-1.6b": "lfm2",
    "llama-3.1-8b": "llama",
    "llama-4-scout-17b-16e": "llama4",
    "mamba-2.8b": "mamba",
    "mimo-v2-flash": "mimo2",
    "minicpm3-4b": "minicpm3",
    "minimax-m2.5": "minimax-m2",
    "minimax-m3": "minimax-m3",
    "ministral-3-3b": "mistral3",
    "muse-glimmer-30b": "muse-glimmer",
    "nemotron-3-nano-30b-a3b": "nemotron_h_moe",
    "olmo-3.1-32b": "olmo2",
    "phi-2": "phi2",
    "phi-3-mini-4k": "phi3",
    "qwen2-7b": "qwen2",
    "qwen3-30b-a3b": "qwen3moe",
    "qwen3-8b": "qwen3",
    "qwen3-next-80b-a3b": "qwen3next",
    "qwen3.5-27b": "qwen35",
    "qwen3.5-35b-a3b": "qwen35moe",
}


def published(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((CONFIGS / f"{name}.json").read_text(), parse_float=Decimal)["config"]
    return loaded


def of_the_language_model(fields: dict[str, Any]) -> dict[str, Any]:
    """The config as the converter sees it: what describes the language model, its class defaults filled in, on top of the rest."""
    flat = {**fields, **fields.get("text_config", {})}
    return {**NESTED_DEFAULTS.get(str(flat.get("model_type")), {}), **flat}


@pytest.mark.parametrize("name", SAME)
def test_a_file_keeps_what_the_config_of_the_same_model_keeps(name: str) -> None:
    fields = published(name)
    of_config, of_file = read_config(fields), model(converted(of_the_language_model(fields), SAME[name]))
    assert of_file.layers == of_config.layers
    if name != "deepseek-v3":  # its converter leaves the draft layer out
        assert of_file.draft_layers == of_config.draft_layers
    if "max_position_embeddings" in of_the_language_model(fields) and "rope_scaling" not in of_the_language_model(fields):
        assert of_file.facts.max_context == of_config.facts.max_context
    assert of_file.notes == ()


def test_hugging_face_knows_most_of_the_types_by_the_same_name() -> None:
    ours = {known.model_type for known in ARCHITECTURES.values()}
    assert len(ours & set(FAMILIES)) >= 75
    assert not set(ARCHITECTURES) & set(NO_KV_CACHE)


def described(spec: ModelSpec) -> list[str]:
    """Each layer in short: heads x width of K, "/" and the window or chunk, "->" the layer that it reads, and the kernel of what is no attention."""
    return [_described(layer) for layer in spec.layers]


def _described(layer: Layer) -> str:
    if layer.reads is not None:
        return f"->{layer.reads}"
    texts = []
    for cache in layer.caches:
        size = getattr(cache.retention, "size", None)
        plane = cache.planes[0]
        texts.append((f"{plane.heads}x{plane.width}" if plane.role == "k" else cache.kernel) + ("" if size is None else f"/{size}"))
    return " ".join(texts)


def test_gemma3_without_a_pattern_slides_but_every_sixth() -> None:
    keys = converted({**GEMMA3, "num_hidden_layers": 7}, "gemma3")
    assert described(model(keys)) == ["2x32/8"] * 5 + ["2x32", "2x32/8"]


GEMMA3 = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 32, "sliding_window": 8}


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [(2, ["2x32/8", "2x32", "2x32/8", "2x32"]), (0, ["2x32/8"] * 4), (1, ["2x32"] * 4), ([True, False, False, True], ["2x32/8", "2x32", "2x32", "2x32/8"])],
)
def test_a_pattern_of_the_file_counts(pattern: int | list[bool], layers: list[str]) -> None:
    keys = {**converted(GEMMA3, "gemma3"), "gemma3.attention.sliding_window_pattern": pattern}
    assert described(model(keys)) == layers


def test_gemma3_without_a_window_keeps_everything() -> None:
    keys = converted(GEMMA3, "gemma3")
    del keys["gemma3.attention.sliding_window"]
    assert described(model(keys)) == ["2x32"] * 4


def test_gemma3n_without_a_number_shares_behind_the_twentieth() -> None:
    keys = converted({**GEMMA3, "num_hidden_layers": 22}, "gemma2")
    keys = {name.replace("gemma2", "gemma3n"): "gemma3n" if value == "gemma2" else value for name, value in keys.items()}
    assert described(model(keys))[18:] == ["2x32/8", "2x32", "->18", "->18"]


@pytest.mark.parametrize(("stated", "layers"), [(0, ["2x32"] * 4), (4096, ["2x32/8192"] * 3 + ["2x32"]), (None, ["2x32/8192"] * 3 + ["2x32"])])
def test_llama4_has_chunks_unless_the_file_states_none(stated: int | None, layers: list[str]) -> None:
    keys = converted(GEMMA3, "llama4")
    if stated is not None:
        keys["llama4.attention.sliding_window"] = stated
    assert described(model(keys)) == layers


def test_a_window_that_llama_cpp_does_not_heed_is_noted() -> None:
    found = model(llama(llama__attention__sliding_window=4096))
    assert described(found) == ["2x32"] * 2
    assert [note.code for note in found.notes] == ["window"]


def test_heads_of_each_layer_and_layers_without() -> None:
    """OpenELM and DeciLM: arrays of heads, of which 0 stands for a layer without attention."""
    keys = llama(
        llama__attention__head_count=[8, 8], llama__attention__head_count_kv=[4, 0], llama__attention__key_length=32, llama__attention__value_length=32
    )
    assert described(model(keys)) == ["4x32", ""]


def test_absent_kv_heads_are_as_many_as_query_heads() -> None:
    assert described(model(llama(llama__attention__head_count_kv=...))) == ["8x32"] * 2


def test_k_and_v_of_different_widths() -> None:
    found = model(llama(llama__attention__key_length=48, llama__attention__value_length=16))
    assert [plane.width for plane in found.layers[0].caches[0].planes] == [48, 16]


def test_a_latent_of_before_it_was_kept_is_what_llama_cpp_keeps_of_it() -> None:
    """Files from before key_length_mla (April 2025): K and V of every head (src/llama-hparams.cpp, is_mla)."""
    keys = converted(of_the_language_model(published("deepseek-v2-lite")), "deepseek2")
    old = {name: value for name, value in keys.items() if not name.endswith("_mla")}
    old |= {"deepseek2.attention.head_count_kv": 16, "deepseek2.attention.key_length": 192, "deepseek2.attention.value_length": 128}
    caches = model(old).layers[0].caches
    assert [(plane.heads, plane.width) for cache in caches for plane in cache.planes] == [(16, 192), (16, 128)]


def test_a_long_glm_that_lists_no_indexers_has_those_of_5_2() -> None:
    keys = {**converted(of_the_language_model(published("glm-5")), "glm-dsa"), "glm-dsa.context_length": 1 << 20}
    indexed = [len(layer.caches) == 2 for layer in model(keys).layers]
    assert indexed[:11] == [True, True, True, False, False, False, True, False, False, False, True]


def test_t5_keeps_its_decoder() -> None:
    fields = {"block_count": 6, "decoder_block_count": 3, "context_length": 512, "embedding_length": 256, "attention.head_count": 8}
    keys = {"general.architecture": "t5", **{f"t5.{name}": value for name, value in fields.items()}}
    assert described(model({**keys, "t5.attention.key_length": 32})) == ["8x32 8x32"] * 3


def test_rwkv_keeps_a_matrix_a_head() -> None:
    keys = {"general.architecture": "rwkv7", "rwkv7.block_count": 2, "rwkv7.context_length": 512, "rwkv7.embedding_length": 128, "rwkv7.wkv.head_size": 64}
    found = model(keys)
    assert [(plane.heads, plane.width) for plane in found.layers[0].caches[0].planes] == [(2, 64 * 64), (2, 128)]


def test_minimax_01_attends_in_each_eighth_layer() -> None:
    keys = converted({**GEMMA3, "num_hidden_layers": 8}, "minimax-01")
    assert described(model(keys)) == ["lightning"] * 7 + ["2x32"]


def test_what_the_keys_contradict_or_lack_is_refused_by_name() -> None:
    for changes, said in (
        ({"llama__block_count": ...}, "needs llama.block_count"),
        ({"llama__attention__head_count": ...}, "needs llama.attention.head_count"),
        ({"llama__embedding_length": ...}, "needs llama.embedding_length"),
        ({"llama__embedding_length": 257}, "no llama.attention.key_length, and an embedding length of 257 does not divide into 8 heads"),
        ({"llama__block_count": 20_000}, "20,000 layers are more than any model has"),
        ({"llama__block_count": 1.5}, "llama.block_count is a number with a point; a whole number is needed"),
        ({"llama__block_count": [0] * 2000}, "llama.block_count is a long array; a whole number is needed"),
        ({"llama__nextn_predict_layers": 2}, "of 2 blocks, 2 only draft tokens"),
        ({"llama__attention__head_count_kv": 3}, "8 query heads cannot share 3 KV heads evenly"),
        ({"llama__attention__head_count_kv": [2, 2, 2]}, "llama.attention.head_count_kv has 3 entries for 2 layers"),
        ({"llama__block_count": 3, "llama__nextn_predict_layers": 1, "llama__attention__head_count_kv": [2, 2]}, "has 2 entries for 3 layers"),
        ({"llama__attention__head_count": 0}, "every layer has no heads"),
        ({"llama__attention__head_count_kv": [0, 0]}, "every layer has no heads"),
        ({"general__architecture": ...}, "needs general.architecture"),
        ({"general__architecture": "lama3"}, "what architecture 'lama3' keeps is not known"),
        ({"general__type": "adapter"}, "it is an adapter"),
        ({"general__type": "imatrix"}, "it is an importance matrix"),
        ({"general__type": "mmproj"}, "it is a vision or audio projector"),
        ({"general__architecture": "clip"}, "architecture clip is a vision or audio projector"),
        ({"general__architecture": "bert"}, "architecture bert is an encoder"),
        ({"general__architecture": "eagle3"}, "architecture eagle3 is a drafter"),
    ):
        with pytest.raises(KvcalcError) as caught:
            model(llama(**changes))
        assert said in caught.value.message
        assert caught.value.message.startswith("x.gguf: ")


def test_a_layer_that_others_read_keeps_something() -> None:
    keys = converted(of_the_language_model(published("gemma-4-e2b")), "gemma4")
    with pytest.raises(KvcalcError, match="a layer has no heads"):
        model({**keys, "gemma4.attention.head_count_kv": [1] * 34 + [0]})


def test_a_convolution_that_looks_back_at_nothing_is_refused() -> None:
    keys = converted(of_the_language_model(published("lfm2.5-vl-1.6b")), "lfm2")
    with pytest.raises(KvcalcError, match=r"lfm2\.shortconv\.l_cache is 1; a number from 2"):
        model({**keys, "lfm2.shortconv.l_cache": 1})


@pytest.mark.parametrize("name", ["cohere2moe", "laguna", "smallthinker"])
def test_the_first_layer_of_each_four_keeps_everything(name: str) -> None:
    keys = {**converted({**GEMMA3, "num_hidden_layers": 5}, name), f"{name}.attention.sliding_window": 8}
    assert described(model(keys)) == ["2x32", "2x32/8", "2x32/8", "2x32/8", "2x32"]


def test_a_window_without_a_pattern_where_it_must_be_listed() -> None:
    fields = {"block_count": 2, "embedding_length": 256, "attention.head_count": 8, "attention.sliding_window": 8}
    with pytest.raises(KvcalcError, match=r"needs mimo2\.attention\.sliding_window_pattern"):
        model({"general.architecture": "mimo2", **{f"mimo2.{name}": value for name, value in fields.items()}})


def test_the_nearest_architectures_are_named() -> None:
    with pytest.raises(KvcalcError) as caught:
        model(llama(general__architecture="qwen3_next"))
    assert "near: qwen3next" in caught.value.hint


# Weights


def test_weights_are_the_tensors_as_they_are_stored() -> None:
    found, tensors = model(llama(), llama_tensors()), read(SMALL).tensors
    assert checkpoint_bytes(found, PACKINGS["bf16"]) == sum(tensor.size_bytes for tensor in tensors)
    assert found.facts.parameters == sum(tensor.elements for tensor in tensors)
    assert found.untold is None


@pytest.mark.parametrize("kind", TYPES)
def test_every_type_is_weighed_to_the_byte(kind: str) -> None:
    found, tensors = model(llama(), llama_tensors(kind=kind)), read(file(llama(), llama_tensors(kind=kind))).tensors
    assert checkpoint_bytes(found, PACKINGS["bf16"]) == sum(tensor.size_bytes for tensor in tensors)


def test_the_file_of_gguf_py_is_weighed_as_it_says() -> None:
    found = load_model(str(WRITTEN)).weighed()
    assert checkpoint_bytes(found, PACKINGS["bf16"]) == WRITTEN_BYTES
    assert found.facts.parameters == WRITTEN_ELEMENTS


def test_two_gpus_hold_half_of_what_is_divided() -> None:
    found = model(llama(), llama_tensors())
    norms = sum(tensor.size_bytes for tensor in read(SMALL).tensors if "norm" in tensor.name)
    whole, half = (share_bytes(found, PACKINGS["bf16"], Share(tp=tp)) for tp in (1, 2))
    assert 2 * half - norms == pytest.approx(whole, rel=0.02)  # the vocabulary is padded to a multiple of 64


QWEN3_MOE = {
    "model_type": "qwen3_moe",
    "hidden_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 2048,
    "intermediate_size": 512,
    "vocab_size": 1000,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "tie_word_embeddings": False,
}


def qwen3_moe_tensors() -> dict[str, tuple[tuple[int, ...], str]]:
    tensors = {name: shape for name, shape in llama_tensors(kind="BF16").items() if ".ffn_" not in name or "norm" in name}
    tensors |= dict.fromkeys(("token_embd.weight", "output.weight"), ((1000, 256), "BF16"))
    for layer in range(2):
        tensors |= {f"blk.{layer}.attn_{each}_norm.weight": ((32,), "F32") for each in "qk"}
        tensors[f"blk.{layer}.ffn_gate_inp.weight"] = ((4, 256), "F32")
        tensors |= {f"blk.{layer}.ffn_{each}_exps.weight": ((4, 64, 256), "BF16") for each in ("gate", "up")}
        tensors[f"blk.{layer}.ffn_down_exps.weight"] = ((4, 256, 64), "BF16")
    return tensors


def test_experts_are_counted_and_divided_as_those_of_the_config() -> None:
    keys = {**converted(QWEN3_MOE, "qwen3moe"), "qwen3moe.expert_count": 4, "qwen3moe.expert_used_count": 2}
    of_config, of_file = read_config(QWEN3_MOE), model(keys, qwen3_moe_tensors())
    assert of_file.facts.parameters == of_config.facts.parameters
    assert of_file.layers == of_config.layers
    experts = {(tensor.shape, tensor.copies, tensor.used, tensor.split) for tensor in of_file.tensors if tensor.role == "expert"}
    assert experts == {((64, 256), 4, 2, "rows"), ((256, 64), 4, 2, "cols")}
    small = 2 * (4 * 256 + 2 * 256 + 2 * 32) + 256  # norms and routers are fp32 in the file
    for share in (Share(), Share(tp=2), Share(tp=2, ep=2)):
        assert share_bytes(of_file, PACKINGS["bf16"], share) == share_bytes(of_config, PACKINGS["bf16"], share) + 2 * small
    assert of_file.facts.dtype is None


def test_draft_blocks_are_apart() -> None:
    keys = llama(llama__block_count=3, llama__nextn_predict_layers=1)
    tensors = {**llama_tensors(3), "blk.2.nextn.eh_proj.weight": ((256, 512), "Q4_0")}
    found = model(keys, tensors)
    assert (len(found.layers), len(found.draft_layers)) == (2, 1)
    drafts = {tensor.name for tensor in found.tensors if tensor.part == "draft"}
    assert {"blk.*.nextn.eh_proj", "blk.*.attn_q"} <= drafts
    assert found.facts.parameters == model(llama(), llama_tensors()).facts.parameters


def test_what_attends_in_a_recurrent_layer_is_of_its_mixer() -> None:
    keys = converted(of_the_language_model(published("qwen3-next-80b-a3b")), "qwen3next")
    found = model(keys, {"blk.0.attn_qkv.weight": ((8192, 2048), "Q4_K"), "blk.3.attn_q.weight": ((8192, 2048), "Q4_K")})
    assert {tensor.name: tensor.role for tensor in found.tensors} == {"blk.*.attn_qkv": "recurrent", "blk.*.attn_q": "attention"}


def test_buffers_are_stored_and_are_no_parameters() -> None:
    found = model(llama(), {**llama_tensors(), "rope_freqs.weight": ((16,), "F32")})
    assert found.facts.parameters == model(llama(), llama_tensors()).facts.parameters
    assert checkpoint_bytes(found, PACKINGS["bf16"]) == checkpoint_bytes(model(llama(), llama_tensors()), PACKINGS["bf16"]) + 64


@pytest.mark.parametrize(("kind", "dtype"), [("F16", "fp16"), ("BF16", "bf16"), ("F32", "fp32"), ("Q4_0", None)])
def test_the_dtype_is_that_of_all_matrices(kind: str, dtype: str | None) -> None:
    tensors = {name: (shape, kind if len(shape) > 1 else "F32") for name, (shape, _) in llama_tensors().items()}
    assert model(llama(), tensors).facts.dtype == dtype


@pytest.mark.parametrize(
    ("name", "said"),
    [("blk.7.attn_q.weight", "is of block 7 of 2"), ("re:(a+)+$", "has a name that is none"), ("blk.*.attn_q.weight", "has a name that is none")],
)
def test_a_tensor_of_no_layer_or_name_is_refused(name: str, said: str) -> None:
    with pytest.raises(KvcalcError, match=r"x\.gguf") as caught:
        model(llama(), {name: ((64, 256), "Q4_0")})
    assert said in caught.value.message


def test_a_vocabulary_is_no_model() -> None:
    with pytest.raises(KvcalcError, match="it holds no tensors: a vocabulary, not a model"):
        model(llama(), {})


def test_a_tensor_without_elements_takes_nothing() -> None:
    start, _ = header(llama(), llama_tensors())
    assert read_gguf([read_header(start, None, "x.gguf")], "x.gguf").tensors
    empty = struct.pack("<4sIQQ", b"GGUF", 3, 1, 0) + string("t") + struct.pack("<IQIQ", 1, 0, 0, 0)
    assert read(empty + bytes(64)).tensors[0].size_bytes == 0


# Files


@pytest.fixture
def small(tmp_path: Path) -> Path:
    path = tmp_path / "small-q4_0.gguf"
    path.write_bytes(SMALL)
    return path


def failed(done: Done, said: str) -> None:
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: ")
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


def test_estimate_and_fit_of_a_file(small: Path) -> None:
    done = kvcalc("estimate", "--json", "-m", str(small))
    assert done.json["total_bytes"] == 2 * 2048 * 2 * (32 + 32) * 2
    assert done.json["model"]["name"] == "small-q4_0"
    assert done.json["model"]["source"] == str(small)
    assert done.json["model"]["parameters"] == sum(tensor.elements for tensor in read(SMALL).tensors)
    fitted = kvcalc("fit", "--json", "-m", small.name, "--gpu", "4090", cwd=small.parent).json
    assert fitted["fits"]
    assert fitted["memory"]["weights_from"] == "tensors of small-q4_0.gguf"
    padded = 2 * 24 * 256 // 32 * 34  # vLLM pads the 1,000 rows of embedding and head to 1,024
    assert fitted["memory"]["weights_bytes"] == sum(tensor.size_bytes for tensor in read(SMALL).tensors) + padded
    assert fitted["commands"]["vllm"].startswith("vllm serve CHECKPOINT ")
    assert "CHECKPOINT stands for the model of small-q4_0.gguf in a form that vllm loads" in [note["text"] for note in fitted["notes"]]
    served = kvcalc("fit", "--json", "-m", small.name, "-c", "1024", "--engine", "llama.cpp", "--gpu", "4090", cwd=small.parent).json
    assert served["commands"]["llama.cpp"].startswith("llama-server -m small-q4_0.gguf ")


def test_a_file_is_known_by_its_first_letters_too(small: Path) -> None:
    blob = small.rename(small.with_name("sha256-6a0746a1ec1a"))
    assert kvcalc("estimate", "-q", "-m", str(blob)).out == f"{1 << 20}\n"


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("cut.gguf", SMALL[:-1000], "is cut short: it has"),
        ("cut.gguf", SMALL[:700], "its header ends behind its 700 bytes"),
        ("text.gguf", b"hello\n", "does not begin with the letters GGUF"),
        ("text", b"hello\n", "is not valid JSON"),
        ("mmproj.gguf", file({"general.architecture": "clip", "general.type": "mmproj"}, {"v": ((32, 32), "F32")}), "projector (mmproj)"),
    ],
)
def test_what_is_no_model_is_refused(tmp_path: Path, name: str, data: bytes, said: str) -> None:
    (tmp_path / name).write_bytes(data)
    failed(kvcalc("estimate", "-m", str(tmp_path / name)), said)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    failed(kvcalc("estimate", "-m", str(tmp_path / "no.gguf")), "no file or folder")
    failed(kvcalc("estimate", "-m", "folder/no.gguf"), "a GGUF file on the Hub is written owner/name:file.gguf")


def test_a_folder_of_files_names_them(small: Path) -> None:
    (small.parent / "mmproj-small.gguf").write_bytes(b"")
    done = kvcalc("estimate", "-m", str(small.parent))
    failed(done, "has no config.json")
    assert str(small) in done.err
    assert "mmproj" not in done.err


def test_as_goes_with_a_config_alone(small: Path) -> None:
    for path in (small, small.rename(small.with_name("blob"))):
        done = kvcalc("estimate", "-m", str(path), "--as", "llama")
        assert done.code == 2
        assert "--as goes with a config.json" in done.err


def parts(folder: Path, *, count: int = 3) -> list[Path]:
    """The small model in three files, as llama-gguf-split writes them."""
    tensors = list(llama_tensors().items())
    paths = []
    for number in range(3):
        split = {"split.no": Of(U16, number), "split.count": Of(U16, count), "split.tensors.count": Of(I32, len(tensors))}
        keys = {**llama(), **split} if number == 0 else {"general.architecture": "llama", **split}
        own = dict(tensors[number * len(tensors) // 3 : (number + 1) * len(tensors) // 3])
        paths.append(folder / f"small-{number + 1:05}-of-00003.gguf")
        paths[-1].write_bytes(file(keys, own))
    return paths


def test_all_parts_of_a_split_file_are_one_model(tmp_path: Path) -> None:
    first, *_ = parts(tmp_path)
    found = load_model(str(first))
    assert found.name == "small"
    assert found.spec.facts.parameters == model(llama(), llama_tensors()).facts.parameters
    assert checkpoint_bytes(found.weighed(), PACKINGS["bf16"]) == sum(tensor.size_bytes for tensor in read(SMALL).tensors)


def test_parts_that_are_not_there_are_noted_and_their_weights_not_known(tmp_path: Path) -> None:
    first, second, _ = parts(tmp_path)
    second.unlink()
    done = kvcalc("estimate", "--json", "-m", str(first)).json
    assert done["total_bytes"] == 1 << 20
    assert done["model"]["parameters"] is None
    assert "1 of 3 parts" in next(note["text"] for note in done["notes"] if note["code"] == "parameters")
    failed(kvcalc("fit", "-m", str(first), "--gpu", "4090"), "1 of 3 parts of")
    assert kvcalc("fit", "-m", str(first), "--gpu", "4090", "--weights", "1MiB").code == 0


def test_another_part_than_the_first_is_refused(tmp_path: Path) -> None:
    _, second, _ = parts(tmp_path)
    done = kvcalc("estimate", "-m", str(second))
    failed(done, "is part 2 of 3")
    assert "small-00001-of-00003.gguf" in done.err


def test_parts_under_other_names_are_refused(tmp_path: Path) -> None:
    first, *_ = parts(tmp_path)
    failed(kvcalc("estimate", "-m", str(first.rename(tmp_path / "small.gguf"))), "its name does not tell theirs")
    odd = parts(tmp_path, count=4)[0]
    failed(kvcalc("estimate", "-m", str(odd)), "its name does not tell theirs")


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first, second, third = parts(tmp_path)
    third.write_bytes(second.read_bytes())
    failed(kvcalc("estimate", "-m", str(first)), "stands in two parts")


def test_a_preset_and_a_file_of_the_same_name_are_told_apart(tmp_path: Path) -> None:
    assert find_preset("llama-3-8b") is not None
    (tmp_path / "llama-3-8b.gguf").write_bytes(SMALL)
    assert kvcalc("estimate", "-q", "-m", "llama-3-8b.gguf", cwd=tmp_path).out == f"{1 << 20}\n"


def test_types_of_numbers_are_read_alike() -> None:
    for kind in (U8, U16, U32, I32, U64):
        assert described(model(llama(llama__block_count=Of(kind, 2)))) == ["2x32"] * 2
