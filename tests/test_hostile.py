"""Hostile input, by hand: what tests/fuzz.py met and what it cannot do, such as pipes and devices. Each is refused in a line, within seconds."""

import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc import files, prompts, traces
from kvcalc.catalog import find_checkpoint, load_model
from kvcalc.cli.options import RATIO
from kvcalc.engines import ENGINES, find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import estimate
from kvcalc.families.weights.shapes import Shapes
from kvcalc.gpus import LONGEST_NAME, find_gpu
from kvcalc.layers import MAX_SIZE
from kvcalc.prompts import PromptFile
from kvcalc.replay.synthetic import parse_synthetic
from kvcalc.traces import open_trace, read_lengths
from kvcalc.units import MAX_DIGITS, exact_decimal, exact_int, parse_count
from kvcalc.verify import log
from kvcalc.verify.log import read_log
from tests.command import Done, in_shell, kvcalc
from tests.gguf_files import file as gguf_file
from tests.gguf_files import llama, llama_tensors
from tests.mutations import Mutator, dumped

LONG = "9" * 1_000_000
"""A number that Python itself does not read: its own limit has 4,300 digits."""
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_hidden_layers": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "max_position_embeddings": 2048,
}
GPU = ("-m", "llama-3-8b", "--gpu", "h100-sxm")
READERS: dict[str, tuple[str, ...]] = {
    "replay": ("replay", "{}", *GPU),
    "prefix": ("prefix", "{}"),
    "verify": ("verify", "--log", "{}", "-m", "llama-3-8b"),
    "lengths": ("fit", *GPU, "--lengths", "{}"),
}
"""Commands that read a file which may be piped in."""
EVERY: dict[str, tuple[str, ...]] = {"estimate": ("estimate", "-m", "{}"), **READERS}


def asked(words: tuple[str, ...], name: str) -> tuple[str, ...]:
    return tuple(name if word == "{}" else word for word in words)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(KvcalcError) as error:
        call()
    assert "\n" not in error.value.message
    assert len(error.value.message) < 600
    return error.value.message


def one_line(done: Done, code: ExitCode = ExitCode.UNANSWERABLE) -> str:
    """The error of a command that printed nothing else, its hint left out."""
    lines = done.err.splitlines()
    assert (done.code, done.out) == (code, "")
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    return lines[0].removeprefix("error: ")


def of_config(path: Path, text: str | bytes, engine: str = "ideal") -> Any:
    (path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
    return answered(path / "config.json", engine)


def answered(path: Path, engine: str = "ideal") -> Any:
    found = load_model(str(path))
    length = found.spec.facts.max_context or 1
    text = estimate(found.spec, find_engine(engine), Options(), name=found.name, source=found.source, context=length, batch=1).to_json()
    return json.loads(text, parse_constant=pytest.fail)


def with_field(name: str, value: str) -> str:
    """The small config with a field as it is written, in front of those that it has."""
    return f'{{"{name}": {value}, ' + json.dumps({key: each for key, each in LLAMA.items() if key != name})[1:]


# config.json


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (with_field("vocab_size", LONG), "a number of 1,000,000 digits, where at most 400 are read"),
        (with_field("vocab_size", "1e999999999999999999999"), "is beyond those that are read"),
        (with_field("vocab_size", "1e400000"), "is beyond those that are read"),
        (with_field("rms_norm_eps", "1e-999999999"), "is beyond those that are read"),
        (with_field("rms_norm_eps", "0." + "3" * 20_000), "is beyond those that are read"),
        (with_field("num_hidden_layers", "1000000000000"), "num_hidden_layers is 1000000000000; a number from 1 to 2,147,483,648 is needed"),
        (with_field("num_hidden_layers", "10001"), "10,001 layers are more than any model has"),
        (with_field("num_nextn_predict_layers", "131072"), "131,072 layers are more than any model has"),
        (with_field("num_hidden_layers", "NaN"), "num_hidden_layers is nan; a whole number is needed"),
        (with_field("num_hidden_layers", "Infinity"), "num_hidden_layers is inf; a whole number is needed"),
        (with_field("num_hidden_layers", "-0"), "num_hidden_layers is 0; a number from 1"),
        (with_field("num_hidden_layers", "1e3"), "num_hidden_layers is 1E+3; a whole number is needed"),
        (with_field("num_hidden_layers", '"' + "x" * 1_000_000 + '"'), "num_hidden_layers is 'xxx"),
        ('{"num_hidden_layers": 4, ' + json.dumps(LLAMA)[1:], "the key 'num_hidden_layers' stands in it twice, with different values"),
        ("[" * 100_000 + "]" * 100_000, "is nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "is nested too deeply"),
        (b"\xff\xfe\x00", "is not a text file"),
        (b"\x80abc", "is not a text file"),
        (b"\x00" * 1000, "is not valid JSON"),
        ("null", "does not hold a JSON object"),
        ("[]", "does not hold a JSON object"),
        ("NaN", "does not hold a JSON object"),
        ('{"model_type": "' + "x" * 1_000_000 + '"}', "what model_type 'xxx"),
        ('{"model_type": "\\ud800"}', "what model_type '\\ud800' keeps is not known"),
    ],
    ids=lambda each: str(each)[:40] if isinstance(each, str) else None,
)
def test_a_config_is_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    began = time.process_time()
    assert said in refused(lambda: of_config(tmp_path, text))
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "text",
    [
        json.dumps(LLAMA),
        '{"num_hidden_layers": 2, ' + json.dumps(LLAMA)[1:],
        with_field("time_step_limit", "[0.0, Infinity]"),
        with_field("layer_norm_eps", "1e-300"),
        "\ufeff" + json.dumps(LLAMA),
        json.dumps(LLAMA).encode("utf-16"),
        json.dumps(LLAMA).encode("utf-32"),
    ],
    ids=["plain", "a key twice that agrees", "infinity where nothing reads it", "a small number", "BOM", "UTF-16", "UTF-32"],
)
def test_a_config_is_read(tmp_path: Path, text: str | bytes) -> None:
    """2 layers x 2 heads x 16 wide x K and V x 2 B = 256 B a token, at 2,048 tokens."""
    assert of_config(tmp_path, text)["total_bytes"] == 256 * 2048


@pytest.mark.parametrize(
    ("model_type", "name"), [("whisper", "decoder_layers"), ("bart", "decoder_layers"), ("t5", "num_decoder_layers"), ("t5", "num_layers")]
)
def test_layers_of_decoders_beside_encoders_are_bounded_too(tmp_path: Path, model_type: str, name: str) -> None:
    fields = {"model_type": model_type, name: 1 << 31, "decoder_attention_heads": 2, "d_model": 4, "num_heads": 2, "d_kv": 2}
    assert "2,147,483,648 layers are more than any model has" in refused(lambda: of_config(tmp_path, json.dumps(fields)))


def test_a_tensor_has_a_width() -> None:
    """Positions of an image that is smaller than one patch of it, or a layer of ffn_mult -1."""
    for width in (0, -5376):
        assert refused(lambda width=width: Shapes("text").add("x", 4, width)).endswith(f"x would have a width of {width}")  # type: ignore[misc]  # of this turn


def test_a_config_of_200_mb_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(200 << 20)
    assert "is larger than 8.00 MiB: this is no model description" in refused(lambda: load_model(str(tmp_path)))


# Spec YAML

SPEC = """name: tiny
kinds: {full: {caches: [{kind: attention, kv_heads: 2, head_dim: 16}]}}
layers: [{repeat: 2, of: [full]}]
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SPEC + f"max_context: {LONG}", "holds a value that cannot be read"),
        (SPEC + "max_context: 0x" + "f" * 5000, "holds a number beyond those that are read"),
        (SPEC + "max_context: " + "1:" * 5000 + "1", "holds a number beyond those that are read"),
        (SPEC + "max_context: " + "9" * 50, "max_context: Input should be less than or equal to"),
        (SPEC + "checked: 2024-13-45", "holds a value that cannot be read: month must be in 1..12"),
        (SPEC + "config: {a: " + "[" * 300 + "]" * 300 + "}", "holds a value that cannot be read"),
        (SPEC + "config: {a: " + "[" * 30_000 + "]" * 30_000 + "}", "is not valid YAML: while increasing flow level exceeded maximum nesting depth"),
        (SPEC + "name: other", "a key stands twice"),
        (SPEC.replace("kv_heads: 2", "kv_heads: 2, kv_heads: 3"), "a key stands twice"),
        (SPEC + "a: &a [1]\nb: *a", "YAML aliases (*name) are not taken"),
        ("a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\n" + SPEC, "YAML aliases (*name) are not taken"),
        (SPEC.replace("kind: attention", "kind: [attention]"), "kind ['attention'] is not known"),
        (SPEC.replace("kind: attention", "kind: " + "x" * 9000), "kind 'xxx"),
        (SPEC.replace("of: [full]", "of: [" + "x" * 9000 + "]"), "layers name the kind 'xxx"),
        (SPEC.replace("repeat: 2", f"repeat: {10**12}"), "layers.0.repeat: Input should be less than or equal to 10000"),
        (SPEC + "dtype: " + "b" * 9000, "dtype 'bbb"),
        (SPEC + "model_type: " + "b" * 9000, "model_type: String should have at most 100 characters"),
        (SPEC.replace("kind: attention, kv_heads: 2, head_dim: 16", "kind: ring, rows: 1, width: 2, dtype: fp99"), "dtype 'fp99' is not known"),
        (SPEC + "x" * 900 + ": 1", "x: unknown field"),
        (SPEC + "? [a]\n: 1", "is not valid YAML: while constructing a mapping"),
        ("!!python/object/apply:os.system [ls]", "is not valid YAML"),
        (SPEC.encode("utf-16")[:-1], "is not valid YAML"),
    ],
    ids=range(22),
)
def test_a_spec_is_refused(tmp_path: Path, text: str | bytes, said: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.process_time()
    assert said in refused(lambda: answered(path))
    assert time.process_time() - began < 5


def test_numbers_that_are_none_do_not_reach_the_weights(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC + "model_type: llama\nconfig: {hidden_size: 64, intermediate_size: .nan, vocab_size: 100}\n")
    assert refused(lambda: load_model(str(path)).weighed()) == "config: nan is no number"


@pytest.mark.parametrize("engine", ENGINES)
def test_only_vllm_refuses_a_model_without_any_cache(tmp_path: Path, engine: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC.replace("[{kind: attention, kv_heads: 2, head_dim: 16}]", "[]") + "max_context: 8\nmodel_type: llama\n")
    if engine == "vllm":
        assert "keeps no KV cache" in refused(lambda: answered(path, engine))
    else:
        assert answered(path, engine)["total_bytes"] == 0


def test_llama_cpp_shows_sizes_of_any_length(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SPEC + f"max_context: {MAX_SIZE}\nmodel_type: llama\n")
    assert answered(path, "llama.cpp")["context"] == MAX_SIZE


# GGUF and safetensors: damaged bytes of each kind stand in test_gguf.py and test_checkpoint.py


@pytest.mark.parametrize(("name", "value"), [("llama.block_count", 10**12), ("llama.block_count", 0), ("llama.attention.head_count", (1 << 64) - 1)])
def test_absurd_numbers_in_a_gguf_file_are_refused(tmp_path: Path, name: str, value: int) -> None:
    from tests.gguf_files import U64, Of

    (tmp_path / "m.gguf").write_bytes(gguf_file({**llama(), name: Of(U64, value)}, llama_tensors()))
    assert name.rpartition(".")[2] in refused(lambda: answered(tmp_path / "m.gguf")) or "layers" in refused(lambda: answered(tmp_path / "m.gguf"))


@pytest.mark.parametrize("total", [LONG, "1e400", "1e999999999999999999999", "NaN", "-1", '"1"', "[" * 100_000])
def test_an_absurd_index_is_refused_or_noted(tmp_path: Path, total: str) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors.index.json").write_text(f'{{"metadata": {{"total_size": {total}}}, "weight_map": {{"a": "a.safetensors"}}}}')
    model = load_model(str(tmp_path))
    try:
        found, notes = find_checkpoint(model)
    except KvcalcError as error:
        assert "index.json" in error.message  # noqa: PT017 (either will do)
    else:
        assert found is None
        assert notes


@pytest.mark.parametrize("shape", [LONG, "1e400", "NaN", "-1", "[[[[1]]]]", str(1 << 64)])
def test_an_absurd_header_of_safetensors_is_refused(tmp_path: Path, shape: str) -> None:
    header = f'{{"a": {{"dtype": "U8", "shape": [{shape}], "data_offsets": [0, 1]}}}}'.encode()
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"x")
    assert "model.safetensors" in refused(lambda: find_checkpoint(load_model(str(tmp_path))))


# Traces, prompts, logs


def test_a_column_twice_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("arrival,prompt,output,prompt\n0,1,2,3\n")
    assert refused(lambda: read_lengths(str(path))).endswith("has the column prompt twice")
    path.write_text("note,arrival,note,prompt,output\na,0,b,1,2\n")
    assert read_lengths(str(path)).counts == ((3, 1),)


@pytest.mark.parametrize("line", [f"{LONG},1,1", f"0,{LONG},1", "0,1e400,1", "-0,NaN,1", "Infinity,1,1", "\ud800,1,1", "\x00,1,1", '"' * 99_999])
def test_a_hostile_line_of_a_trace_is_counted(tmp_path: Path, line: str) -> None:
    path = tmp_path / "t.csv"
    path.write_bytes(f"arrival,prompt,output\n{line}\n1,2,3\n".encode(errors="surrogatepass"))
    with open_trace(str(path)) as trace:
        assert [(row.prompt, row.output) for row in trace.rows] == [(2, 3)]
        assert trace.reading.malformed == 1


def test_a_hostile_object_of_a_trace_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    lines = [f'{{"arrival": 0, "prompt": {value}, "output": 1}}' for value in (2, LONG, "1e400", "NaN", "[" * 90_000, "true", '"\\ud800"')]
    path.write_text("\n".join(lines))
    with open_trace(str(path)) as trace:
        assert len(list(trace.rows)) == 1
        assert trace.reading.malformed == 6


def test_a_trace_without_requests_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traces, "MOST_UNREADABLE", 10)
    path = tmp_path / "t.csv"
    path.write_text("arrival,prompt,output\n" + "x\n" * 20)
    assert refused(lambda: read_lengths(str(path))).startswith("none of the first 10 lines of ")
    path.write_text("\n" * 20)
    assert refused(lambda: read_lengths(str(path))).endswith("has 10 empty lines before anything else")
    path.write_text("arrival,prompt,output\n0,1,1\n" + "x\n" * 20)
    assert read_lengths(str(path)).number == 1


def test_a_line_without_end_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MOST_SKIPPED_BYTES", 100)
    path = tmp_path / "t.csv"
    path.write_text('{"arrival":0,"prompt":1,"output":1}\n' + "x" * 200)
    monkeypatch.setattr(traces, "MOST_LINE_BYTES", 40)
    assert refused(lambda: read_lengths(str(path))) == "line 2 does not end within 100 B"
    monkeypatch.setattr(prompts, "MOST_LINE_BYTES", 10)
    monkeypatch.setattr(files, "MOST_SKIPPED_BYTES", 1 << 20)
    path.write_text("x" * (5 << 20))
    assert refused(lambda: list(PromptFile(str(path), form=None, strict=False).read())) == "line 1 does not end within 1.00 MiB"


def test_a_file_without_prompts_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MOST_UNREADABLE", 10)
    path = tmp_path / "p.jsonl"
    for text in ("{}\n" * 20, "\n" * 20):
        path.write_text(text)
        assert refused(lambda: list(PromptFile(str(path), form=None, strict=False).read())).startswith("none of the first 10 lines of ")
    path.write_text('"a"\n' + "{}\n" * 20)
    assert len(list(PromptFile(str(path), form=None, strict=False).read())) == 1


def test_more_lines_than_a_log_has_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MOST_LINES", 3)
    found = read_log(b"x\nGPU KV cache size: 16 tokens\nx\nGPU KV cache size: 32 tokens\nx\n")
    assert [figure.text for figure in found.figures] == ["16"]
    assert [note.text for note in found.notes] == ["the log has 5 lines: its first 3 are read"]


@pytest.mark.parametrize(
    "data", [b"\n" * (16 << 20), b"a\n" * (8 << 20), b"\r" * (16 << 20), b"1 gib\n" * (2 << 20), b"a" * (16 << 20)], ids=lambda data: repr(data[:4])
)
def test_a_log_of_nothing_is_refused_within_seconds(data: bytes) -> None:
    began = time.process_time()
    assert "no line in this log tells a memory figure" in refused(lambda: read_log(data))
    assert time.process_time() - began < 10


# Words


@pytest.mark.parametrize("text", [LONG, f"1.{LONG}", f"{LONG}k", "1e400", "NaN", "-0", "\ud800", "\x00", "²", "٣"])
def test_a_hostile_count_is_refused(text: str) -> None:
    assert "is not a count" in refused(lambda: parse_count(text))


@pytest.mark.parametrize("text", ["nan", "sNaN", "inf", "-inf", "0", "-1", "1e400", "101", "1e999999999999999999999"])
def test_a_ratio_is_a_number(text: str) -> None:
    import typer

    with pytest.raises(typer.BadParameter, match="is not"):
        RATIO["parser"](text)


def test_a_long_name_of_a_gpu_is_refused_at_once() -> None:
    began = time.process_time()
    for text in ("9" * 100_000, "9gi" * 50_000, "rtx " * 50_000, "x" * (LONGEST_NAME + 1)):
        assert "is not in the catalogue" in refused(lambda text=text: find_gpu(text))  # type: ignore[misc]  # of this turn
    assert time.process_time() - began < 2


def test_requests_are_drawn_within_reason() -> None:
    words = "prompt=constant(1) output=constant(1) rate=1/s requests="
    assert parse_synthetic(f"{words}1m").requests == 10**6
    assert refused(lambda: parse_synthetic(f"{words}1000001")) == "requests=1000001 are more than 1,000,000, the most that are drawn"


def test_numbers_of_json_are_bounded() -> None:
    assert exact_int("9" * MAX_DIGITS) == 10**MAX_DIGITS - 1
    assert str(exact_decimal("1.5e-300")) == "1.5E-300"
    for call in (lambda: exact_int("9" * (MAX_DIGITS + 1)), lambda: exact_decimal("1e401"), lambda: exact_decimal("1e99999999999999999999")):
        with pytest.raises(ValueError, match="read"):
            call()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("estimate", "-m", "llama-3-8b", f"--context={'9' * 100_000}"), 2),
        (("estimate", "-m", "x" * 100_000), 3),
        (("estimate", "-m", "x" * 100_000 + ".json"), 3),
        (("estimate", "-m", "llama-3-8b", "--engine", "x" * 100_000), 2),
        (("estimate", "-m", "llama-3-8b", "--mtp", "1000000000000"), 3),
        (("estimate", "x" * 100_000), 2),
        (("x" * 100_000,), 2),
        (("estimate", "--" + "x" * 100_000), 2),
        (("estimate", "-m", "~nobody-of-that-name/x"), 3),
        (("sweep", *GPU, "--context", "1..1000000000000+1"), 2),
        (("replay", "--synthetic", f"prompt=constant({'9' * 5000}) output=constant(1) rate=1/s", *GPU), 2),
    ],
    ids=range(11),
)
def test_hostile_words_are_refused_in_a_line(words: tuple[str, ...], code: int) -> None:
    assert len(one_line(kvcalc(*words), ExitCode(code))) <= 1000


# What stands in the file system


@pytest.mark.parametrize("command", EVERY)
def test_what_is_no_file_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    (tmp_path / "zero").symlink_to("/dev/zero")
    for name in ("zero", "loop", "none", "/proc/self/mem", "~nobody-of-that-name/x", "", "x" * 5_000, "a\nb", "\x1b[31mred", os.fsdecode(b"\xff")):
        path = name if name.startswith(("/", "~")) or not name else str(tmp_path / name)
        said = one_line(kvcalc(*asked(EVERY[command], path), timeout_s=20))
        assert said.isprintable()
    one_line(kvcalc(*asked(EVERY[command], str(tmp_path))))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
@pytest.mark.parametrize("command", EVERY)
def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, command: str) -> None:
    (tmp_path / "a.json").touch(mode=0)
    assert "cannot be read: Permission denied" in one_line(kvcalc(*asked(EVERY[command], str(tmp_path / "a.json"))))


@pytest.mark.parametrize("command", READERS)
def test_a_pipe_into_which_nobody_writes_is_left(tmp_path: Path, command: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    said = one_line(kvcalc(*asked(READERS[command], str(tmp_path / "pipe")), timeout_s=30))
    assert said == f"nobody writes into the pipe {tmp_path / 'pipe'}"[:224]


def test_a_pipe_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen([sys.executable, "-c", f"import time; time.sleep(0.5); open({str(tmp_path / 'pipe')!r}, 'w').write('7\\n8\\n')"]):
        assert read_lengths(str(tmp_path / "pipe")).counts == ((7, 1), (8, 1))
    monkeypatch.setattr(files, "WAIT_FOR_WRITER_S", 0.1)
    assert "nobody writes into the pipe" in refused(lambda: read_lengths(str(tmp_path / "pipe")))


@pytest.mark.parametrize(
    ("writer", "words"),
    [
        ("cat /dev/zero", "prefix -"),
        ("cat /dev/zero", f"replay - {' '.join(GPU)}"),
        ("yes ''", "prefix -"),
        ("yes ''", f"replay - {' '.join(GPU)}"),
        ("yes '{}'", "prefix -"),
        ("(echo arrival,prompt,output; yes x)", f"fit {' '.join(GPU)} --lengths -"),
        ("yes x", "verify --log - -m llama-3-8b"),
    ],
)
def test_a_pipe_without_end_is_left(writer: str, words: str) -> None:
    one_line(in_shell(f'{writer} 2>/dev/null | "$@"', tuple(words.split())))


def test_an_endless_writer_of_a_pipe_is_left(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["bash", "-c", f"exec cat /dev/zero > {tmp_path / 'pipe'}"], stderr=subprocess.DEVNULL) as writer:
        one_line(kvcalc("verify", "--log", str(tmp_path / "pipe"), "-m", "llama-3-8b"))
        writer.wait(10)


NAMES = (b"a\nb.json", b"\x1b[31mred.json", b"\xff.json", b"[red]x.json", "\u202e\u00e9.json".encode())


@pytest.mark.parametrize("name", [*NAMES, b"[/].json"], ids=repr)
def test_a_hostile_name_is_shown_harmlessly(tmp_path: Path, name: bytes) -> None:
    """In text, in JSON and as a word of a sweep, on a terminal that has letters beyond ASCII and on one that has not."""
    path = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 (pathlib takes no bytes)
    Path(os.fsdecode(path)).parent.mkdir(exist_ok=True)
    Path(os.fsdecode(path)).write_text(json.dumps(LLAMA))
    shown = os.fsdecode(path)
    for env in ({}, {"PYTHONIOENCODING": "ascii"}):
        done = kvcalc("estimate", "-m", shown, env=env)
        assert (done.code, done.err) == (0, "")
        assert all(line.isprintable() for line in done.out.splitlines())
        for words in (("estimate", "-m", shown), ("compare", shown, "llama-3-8b"), ("sweep", "-m", f"{shown},llama-3-8b", "--gpu-mem", "80GiB")):
            assert kvcalc(*words, "--json", env=env).json["schema"] == 1
        done = kvcalc("sweep", "-m", f"{shown},llama-3-8b", "--gpu-mem", "80GiB", env=env)
        assert done.code == 0
        assert all(line.isprintable() for line in done.out.splitlines())


def test_a_file_that_shrinks_while_it_is_read_is_cut_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = gguf_file(llama(), llama_tensors())
    path = tmp_path / "m.gguf"
    path.write_bytes(whole[:100])
    told = os.stat_result((0o100644, 0, 0, 1, 0, 0, len(whole), 0, 0, 0))
    monkeypatch.setattr(os, "fstat", lambda _: told)
    assert "is cut short" in refused(lambda: load_model(str(path)))


# At random, a little: tests/fuzz.py does a hundred thousand


@settings(max_examples=50, deadline=None)
@given(st.integers(0, (1 << 64) - 1), st.sampled_from(ENGINES))
def test_a_changed_config_is_answered_or_refused(tmp_path_factory: pytest.TempPathFactory, seed: int, engine: str) -> None:
    mutator = Mutator(Random(seed))
    text = dumped(mutator.tree(dict(LLAMA))).encode(errors="surrogatepass")
    with suppress(KvcalcError):
        of_config(tmp_path_factory.mktemp("c"), mutator.some(text), engine)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, (1 << 64) - 1))
def test_changed_files_are_answered_or_refused(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    """A spec YAML, a trace, prompts and a log, each changed in its own places."""
    mutator, folder = Mutator(Random(seed)), tmp_path_factory.mktemp("f")
    calls: dict[str, tuple[str, Callable[[str], Any]]] = {
        "s.yaml": (SPEC + "max_context: 8\n", lambda name: answered(Path(name))),
        "t.csv": ("session,arrival,output,prompt\na,10,5,100\nb,10.5,6,200\n", read_lengths),
        "p.jsonl": ('{"messages": [{"role": "user", "content": "x 1 2"}]}\n' * 3, lambda name: list(PromptFile(name, form=None, strict=False).read())),
        "a.log": ("Available KV cache memory: 13.84 GiB\nGPU KV cache size: 151,216 tokens\n", lambda name: read_log(Path(name).read_bytes())),
    }
    for name, (text, call) in calls.items():
        path = folder / name
        path.write_bytes(mutator.data(mutator.figures(text).encode(errors="surrogatepass")))
        with suppress(KvcalcError):
            call(str(path))
