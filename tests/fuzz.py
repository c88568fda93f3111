"""Hostile input at random: `python tests/fuzz.py --inputs 100000 --seed 1`. Each input must be answered or refused as a user can bear it, within seconds and
a bounded memory.

What is not: an exception that is no refusal, a refusal of more than a line, JSON that a strict parser does not take, a size below 0, more than LONGEST_S
seconds of work, more than MOST_BYTES of memory. The same seed gives the same inputs. Exit code 1: something was found.
"""

import argparse
import contextlib
import faulthandler
import gzip
import io
import json
import os
import resource
import shutil
import signal
import struct
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from itertools import repeat
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any, Final, NamedTuple, NoReturn
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="80")
for name in ("HF_TOKEN", "KVCALC_API_KEY"):
    os.environ.pop(name, None)

from kvcalc.catalog import find_checkpoint, find_preset, load_model, preset_folder  # noqa: E402 (its environment comes first)
from kvcalc.cli import run  # noqa: E402 (as above)
from kvcalc.engines import ENGINES, find_engine  # noqa: E402 (as above)
from kvcalc.engines.base import Options  # noqa: E402 (as above)
from kvcalc.errors import ExitCode, KvcalcError, printable  # noqa: E402 (as above)
from kvcalc.estimate import estimate  # noqa: E402 (as above)
from kvcalc.gpus import find_gpu, gpus  # noqa: E402 (as above)
from kvcalc.packing import ENGINE_DTYPES, PACKINGS, parse_kv_dtype, parse_state_dtype  # noqa: E402 (as above)
from kvcalc.prompts import PromptFile  # noqa: E402 (as above)
from kvcalc.replay.synthetic import parse_synthetic  # noqa: E402 (as above)
from kvcalc.safetensors import metadata_in_head, metadata_in_tail  # noqa: E402 (as above)
from kvcalc.traces import open_trace, read_lengths  # noqa: E402 (as above)
from kvcalc.units import parse_bytes, parse_count, parse_duration, parse_part  # noqa: E402 (as above)
from kvcalc.verify import server, web  # noqa: E402 (as above)
from kvcalc.verify.log import options_from, read_log  # noqa: E402 (as above)
from tests import gguf_files, test_traces, test_verify_log, test_verify_server  # noqa: E402 (as above)
from tests.mutations import NUMBERS, TEXTS, WRITTEN, Mutator, dumped  # noqa: E402 (as above)

LONGEST_S: Final = 5
"""Of a processor."""
MOST_BYTES: Final = 2 << 30
GREW_BYTES: Final = 300 << 20
"""What one input may add to the peak: the largest header that is read, a few times over."""
LONGEST_LINE: Final = 1_000

HERE: Final = Path(__file__).parent
SHARED: Final = HERE.parents[1] / "shared"


class Found(Exception):  # noqa: N818 (what is found is no error of this program)
    """Something that no user should meet."""


class _HangError(BaseException):
    """Not an Exception: nothing that an input runs through may catch it."""


def _ring(_number: int, _frame: object) -> NoReturn:
    raise _HangError


# What an answer may be


def answered(*words: str) -> None:
    """A whole command in this process. Raises Found where its answer is none."""
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.StringIO()
    with patch.object(sys, "argv", ["kvcalc", *words]), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = run()
        out.flush()
    said = err.getvalue()
    told = out.buffer.getvalue().decode()
    if code not in list(ExitCode):
        raise Found(f"exit code {code}")
    if code not in (ExitCode.YES, ExitCode.NO) or (code == ExitCode.NO and not told):  # it may be all there is to say that nothing is left for a cache
        lines = said.splitlines()
        if not lines or not lines[0].startswith("error: ") or len(lines) > 2 or max(map(len, lines)) > LONGEST_LINE:
            raise Found(f"no error of a line: {said[:300]!r}")
        if told:
            raise Found(f"an answer beside an error: {told[:300]!r}")
    elif "--json" in words and "--" not in words:
        checked_json(told)


def checked_json(text: str) -> None:
    """Raises Found for what a strict parser does not take, and for sizes below 0."""

    def refuse(name: str) -> NoReturn:
        raise Found(f"{name} in JSON")

    _no_negative(json.loads(text, parse_constant=refuse), "")


SIGNED: Final = ("left", "spare", "difference", "measured", "predicted")
"""Names, or what they begin with, of what may be below 0."""


def _no_negative(value: Any, name: str) -> None:
    match value:
        case dict():
            for key, each in value.items():
                _no_negative(each, key)
        case list():
            for each in value:
                _no_negative(each, name)
        case int() | float() if value < 0 and name.endswith(("_bytes", "_tokens", "requests", "tokens", "context", "blocks")) and not name.startswith(SIGNED):
            raise Found(f"{name} is {value}")


def refusable(call: Callable[[], Any]) -> None:
    """Something that may be refused in a line."""
    try:
        call()
    except KvcalcError as error:
        if not error.message or max(len(error.message), len(error.hint)) > LONGEST_LINE:
            raise Found(f"no error of a line: {error.message[:300]!r}") from None
        printable(error.message).encode()


# Kinds of input: each makes bytes or words, and takes them


class Kind(NamedTuple):
    """`share`: how many of a hundred inputs are of it."""

    share: int
    make: Callable[[Mutator], Any]
    take: Callable[[Any, Path], None]


def _estimated(path: Path, engine: str) -> None:
    found = load_model(str(path))
    length = found.spec.facts.max_context or 8192
    checked_json(estimate(found.spec, find_engine(engine), Options(), name=found.name, source=found.source, context=length, batch=1).to_json())


CONFIGS: Final = [json.dumps(json.loads(path.read_text())["config"]) for path in sorted((HERE / "configs").glob("*.json"))] + [
    path.read_text() for path in sorted((SHARED / "corpus" / "configs").glob("*/config.json")) if path.stat().st_size < 1 << 16
]
INDEX: Final = "model.safetensors.index.json"


def make_config(mutator: Mutator) -> tuple[bytes, str, bool]:
    fields = mutator.tree(json.loads(mutator.random.choice(CONFIGS)))
    return mutator.some(dumped(fields).encode(errors="surrogatepass"), 0.15), mutator.random.choice(ENGINES), mutator.random.random() < 0.15


def take_config(made: tuple[bytes, str, bool], folder: Path) -> None:
    data, engine, whole = made
    (folder / "config.json").write_bytes(data)
    if not whole:
        refusable(lambda: _estimated(folder / "config.json", engine))
        return
    command = "fit" if engine not in ("ideal", "transformers") else "estimate"
    gpu = ("--gpu", "h100-sxm") if command == "fit" else ()
    answered(command, "-m", str(folder), "--engine", engine, *gpu, *(("--json",) if len(data) % 2 else ()))


METADATA: Final = [
    {name: value for name, value in json.loads(path.read_text())["kv"].items() if not name.startswith("GGUF.") and isinstance(value, int | str)}
    for path in sorted((SHARED / "corpus" / "gguf_metadata").glob("*.json"))
] or [gguf_files.llama()]
GGUF: Final = [(HERE / "gguf" / "written-by-gguf-py.gguf").read_bytes(), gguf_files.file(gguf_files.llama(), gguf_files.llama_tensors())]


def make_gguf(mutator: Mutator) -> bytes:
    if mutator.random.random() < 0.5:
        return mutator.data(mutator.random.choice(GGUF)[: mutator.random.choice((64, 4_000, 1 << 30))])
    keys = {**gguf_files.llama(), **mutator.random.choice(METADATA)}
    for name in mutator.random.sample(sorted(keys), min(len(keys), mutator.few())):
        value = mutator.value()
        width = mutator.random.choice((gguf_files.U8, gguf_files.U32, gguf_files.I32, gguf_files.U64))
        if isinstance(value, int) and not isinstance(value, bool):
            keys[name] = gguf_files.Of(width, value % (1 << {gguf_files.U8: 8, gguf_files.U32: 32, gguf_files.I32: 31, gguf_files.U64: 64}[width]))
        elif isinstance(value, bool) or (isinstance(value, str) and "\ud800" not in value):
            keys[name] = str(value) if isinstance(value, str) else value
        elif isinstance(value, list) and value and all(isinstance(each, int) for each in value):
            keys[name] = [gguf_files.Of(gguf_files.U64, abs(each) % (1 << 64)) for each in value]
        else:
            del keys[name]
    with contextlib.suppress(struct.error):
        return mutator.some(gguf_files.file(keys, {**gguf_files.llama_tensors()}))
    return GGUF[0]


def take_gguf(data: bytes, folder: Path) -> None:
    (folder / "m.gguf").write_bytes(data)
    refusable(lambda: _estimated(folder / "m.gguf", ENGINES[len(data) % len(ENGINES)]))


def make_safetensors(mutator: Mutator) -> tuple[bytes, bytes]:
    header = {"__metadata__": {"format": "pt"}, "a": {"dtype": "BF16", "shape": [3, 5], "data_offsets": [0, 30]}}
    header["b"] = {"dtype": "F4", "shape": [2, 4], "data_offsets": [30, 34]}
    text = mutator.some(dumped(mutator.tree(header)).encode(errors="surrogatepass"))
    length = len(text) if mutator.random.random() < 0.9 else mutator.random.choice(NUMBERS) % (1 << 64)
    index = {"metadata": {"total_size": 34}, "weight_map": {"a": "model.safetensors", "b": "model.safetensors"}}
    return struct.pack("<Q", length) + text + bytes(34), mutator.some(dumped(mutator.tree(index)).encode(errors="surrogatepass"))


def take_safetensors(made: tuple[bytes, bytes], folder: Path) -> None:
    data, index = made
    (folder / "config.json").write_text(CONFIGS[0])
    (folder / "model.safetensors").write_bytes(data)
    if len(index) % 2:
        (folder / INDEX).write_bytes(index)
    refusable(lambda: find_checkpoint(load_model(str(folder))))
    refusable(lambda: metadata_in_head(index, "index"))
    refusable(lambda: metadata_in_tail(index))


SPECS: Final = [path.read_bytes() for path in sorted(preset_folder().glob("*.yaml"))]


def make_spec(mutator: Mutator) -> tuple[bytes, str]:
    import yaml

    data, engine = mutator.random.choice(SPECS), mutator.random.choice(ENGINES)
    if mutator.random.random() < 0.5:
        return mutator.data(mutator.figures(data.decode()).encode(errors="surrogatepass")), engine
    fields = json.loads(json.dumps(yaml.load(data, Loader=yaml.CSafeLoader), default=str))
    return mutator.some(dumped(mutator.tree(fields)).encode(errors="surrogatepass"), 0.2), engine  # JSON is YAML


def take_spec(made: tuple[bytes, str], folder: Path) -> None:
    (folder / "spec.yaml").write_bytes(made[0])
    refusable(lambda: _estimated(folder / "spec.yaml", made[1]))
    if len(made[0]) % 10 == 0:
        answered("fit", "-m", str(folder / "spec.yaml"), "--gpu-mem", "80GiB", "--json")


LOGS: Final = [
    test_verify_log.VLLM,
    test_verify_log.VLLM_V0,
    test_verify_log.REFUSED,
    test_verify_log.TRTLLM,
    test_verify_log.SGLANG,
    test_verify_log.LLAMACPP,
] + [row["log_text"].encode() for row in test_verify_log.ROWS if "log_text" in row]


def make_log(mutator: Mutator) -> bytes:
    data = mutator.random.choice(LOGS)
    if mutator.random.random() < 0.2:
        data += mutator.random.choice(LOGS)
    return mutator.some(mutator.figures(data.decode(errors="replace")).encode(errors="surrogatepass"), 0.5)


def take_log(data: bytes, folder: Path) -> None:
    refusable(lambda: options_from(read_log(data)))
    if len(data) % 5 == 0:
        (folder / "a.log").write_bytes(data)
        answered("verify", "--log", str(folder / "a.log"), "-m", "qwen3-next-80b-a3b" if len(data) % 2 else "llama-3.1-8b", "--json")


PAGES: Final = (
    {
        "/metrics": test_verify_server.VLLM_CONFIG + test_verify_server.VLLM_LIVE + test_verify_server.VLLM_USED,
        "/v1/models": test_verify_server.models_of_vllm(max_model_len=32768),
        "/version": {"version": "0.28.0"},
    },
    {"/server_info": test_verify_server.SGLANG_INFO, "/metrics": test_verify_server.SGLANG_METRICS},
    {"/props": test_verify_server.LLAMA_PROPS, "/v1/models": test_verify_server.LLAMA_MODELS, "/slots": test_verify_server.LLAMA_SLOTS},
)


def make_pages(mutator: Mutator) -> dict[str, bytes]:
    pages = {}
    for path, page in json.loads(json.dumps(mutator.random.choice(PAGES))).items():
        if isinstance(page, str):
            text = mutator.figures(page) if mutator.random.random() < 0.7 else page
            pages[path] = mutator.some(text.encode(errors="surrogatepass"))
        else:
            pages[path] = mutator.some(dumped(mutator.tree(page) if mutator.random.random() < 0.8 else page).encode(errors="surrogatepass"), 0.1)
    return pages


def take_pages(pages: dict[str, bytes], _folder: Path) -> None:
    class Told(web.Site):
        def get(self, path: str) -> bytes | None:
            return pages.get(path)

    with patch.object(server, "Site", Told):
        refusable(lambda: server.options_from(server.read_server("http://localhost:1", None)))
        if sum(map(len, pages.values())) % 3 == 0:
            answered("verify", "--server", "http://localhost:1", "-m", "qwen3.5-27b", "--json")


TRACES: Final = [test_traces.AZURE, test_traces.BURST, test_traces.BURST_3, test_traces.MOONCAKE, test_traces.PLAIN] + [
    "".join(path.read_text().splitlines(keepends=True)[:30]) for path in sorted((SHARED / "traces").glob("*first*"))
]


def make_trace(mutator: Mutator) -> bytes:
    text = mutator.random.choice(TRACES)
    if mutator.random.random() < 0.6:
        text = mutator.figures(text)
    data = mutator.some(text.encode(errors="surrogatepass"), 0.6)
    return mutator.some(gzip.compress(data, mtime=0), 0.5) if mutator.random.random() < 0.1 else data


def take_trace(data: bytes, folder: Path) -> None:
    path = folder / "trace"
    path.write_bytes(data)

    def rows() -> None:
        with open_trace(str(path)) as trace:
            for row in trace.rows:
                if not row.arrival_s >= 0:
                    raise Found(f"a request at {row.arrival_s}")

    refusable(rows)
    refusable(lambda: read_lengths(str(path)))
    if len(data) % 10 == 0:
        answered("replay", str(path), "-m", "llama-3.1-8b", "--gpu", "h100-sxm", "--context", "8192", "--json")


SHOP: Final = HERE / "prompts" / "shop.jsonl"
PROMPTS: Final = [
    *SHOP.read_text().splitlines()[:20],
    '{"prompt": "a b c"}',
    '{"prompt": [[1, 2, 3], [1, 2, 4]], "model": "m"}',
    '{"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}], "instructions": "be kind"}',
    '{"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": {"messages": [{"role": "user", "content": "x"}], "tools": [{"a": 1}]}}',
    '["a"]',
    '"text"',
    "plain text",
]


def make_prompts(mutator: Mutator) -> bytes:
    lines = []
    for line in mutator.random.sample(PROMPTS, 5):
        try:
            lines.append(dumped(mutator.tree([json.loads(line)])[0:1])[1:-1])
        except (ValueError, TypeError):
            lines.append(line)
    data = mutator.some("\n".join(lines).encode(errors="surrogatepass"))
    return mutator.some(gzip.compress(data, mtime=0), 0.5) if mutator.random.random() < 0.1 else data


def take_prompts(data: bytes, folder: Path) -> None:
    path = folder / "prompts.jsonl"
    path.write_bytes(data)
    refusable(lambda: list(PromptFile(str(path), form=None, strict=False).read()))
    if len(data) % 5 == 0:
        answered("prefix", str(path), "--json")


SIZES: Final = ("80GiB", "80GB", "1.5 GiB", "80B", "80", "80G", "0.1KiB", "1_0GiB", "9" * 40 + "PiB", "1e3GiB", "-1GiB", "+1GiB", "٣GiB", "1ZiB", "1024PiB")
COUNTS: Final = (
    "8192",
    "8_192",
    "32k",
    "32K",
    "1.5k",
    "0",
    "-1",
    "1e6",
    "8k-1",
    "1" * 39,
    "1" * 5_000,
    "10**12",
    "1000000000000",
    "1g",
    "1024G",
    "²",
    "1__0",
    "0x10",
)
RANGES: Final = (
    "1K..64K",
    "8K..64K+8K",
    "1..1",
    "64K..1K",
    "1..",
    "..",
    "1..2..3",
    "1K,2K,none",
    "1,,2",
    ",",
    "none",
    "1..1000000000000",
    "1..1000000000000+1",
    "0..4+0",
)
DRAWN: Final = (
    "prompt=lognormal(512,1.0) output=geometric(200) rate=5/s requests=50 seed=0",
    "prompt=constant(1) output=normal(10,5) rate=1/h requests=3",
    "prompt=uniform(1,10) output=exponential(1) rate=1000000/s requests=20",
)
DTYPES: Final = ("auto", *PACKINGS, *ENGINE_DTYPES, "k=q8_0,v=q4_0", "k=,v=", "k=fp8", "=", "k=fp8,k=fp8", "kv=1,v=2")
PARTS: Final = ("0.9", "1", "0", "1e-400", "1e400", "nan", "inf", "-0", "0.9999999999999999999999999", "1e-999999999", "sNaN", ".5", "1_0", "\u0660.\u0669")
DURATIONS: Final = ("2s", "50ms", "0s", "1e3s", "800us", "1000001s", "0.0000001us")
MODELS: Final = (
    "llama-3-8b",
    "qwen3-next-80b-a3b",
    "gemma-3-27b",
    "deepseek-v3",
    "whisper-large-v3",
    "mamba-2.8b",
    "gpt-oss-20b",
    "t5-base",
    "llama-4-scout-17b-16e",
)
PARSERS: Final = (parse_bytes, parse_count, parse_duration, parse_part, parse_kv_dtype, parse_state_dtype, parse_synthetic, find_gpu, find_preset, find_engine)
PARSED: Final = (*SIZES, *COUNTS, *RANGES, *DRAWN, *DTYPES, *PARTS, *DURATIONS, *MODELS, *(gpu.name for gpu in gpus()), "http://localhost:8000/v1", "vllm@0.11")
FLAGS: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    *((flag, COUNTS) for flag in ("--context", "--batch", "--tp", "--pp", "--dp", "--dcp", "--max-batched-tokens", "--max-seqs", "--block-size", "--mtp")),
    *((flag, COUNTS) for flag in ("--layers", "--kv-heads", "--head-dim", "--encoder-tokens", "--ubatch-size", "--n-gpu-layers", "--page-size")),
    ("--kv-dtype", DTYPES),
    ("--engine", (*ENGINES, "vllm@0.11", "vllm@0", "vllm@" + "9" * 5_000, "@", "transformers@4")),
    ("--gpu", ("h100-sxm", "a100", "rtx 4090", "m3 max", "", "h" * 5_000, "gb200")),
    ("--swa-full-tokens-ratio", PARTS),
    ("--mamba-full-memory-ratio", (*PARTS, "100", "101")),
    ("--cache", ("dynamic", "static", "quanto-4", "", "offloaded", "x" * 5_000)),
    ("--flash-attn", ("on", "off", "auto")),
    ("--mamba-ssm-cache-dtype", ("auto", "float32", "fp8")),
    ("--as", ("llama", "mamba", "", "x" * 5_000)),
    ("--revision", ("main", "", "../x")),
)
OF_FIT: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    *((flag, SIZES) for flag in ("--gpu-mem", "--kv-mem", "--weights", "--weights-per-gpu", "--reserve", "--bandwidth")),
    *((flag, PARTS) for flag in ("--utilization", "--mem-fraction-static")),
    *((flag, COUNTS) for flag in ("--gpus", "--max-loras", "--max-lora-rank", "--shared-prefix", "--draft-tokens")),
    *((flag, DURATIONS) for flag in ("--ttft", "--tpot")),
    ("--draft", ("llama-3.2-1b", "qwen3-0.6b", "")),
    ("--quantization", ("awq", "fp8", "nvfp4", "", "x")),
)
SWITCHES: Final = (
    "--json",
    "--no-prefix-caching",
    "--enforce-eager",
    "--swa-full",
    "--kv-unified",
    "--enable-dp-attention",
    "--ep",
    "--quiet",
    "--min-gpus",
    "--csv",
    "--markdown",
    "--x",
)


def make_parsed(mutator: Mutator) -> tuple[int, str]:
    text = mutator.random.choice(PARSED)
    if mutator.random.random() < 0.8:
        text = mutator.random.choice((mutator.figures(text), mutator.data(text.encode(errors="surrogatepass")).decode(errors="surrogateescape")))
    return mutator.random.randrange(len(PARSERS) + 1), text


def take_parsed(made: tuple[int, str], _folder: Path) -> None:
    number, text = made
    parse: Callable[[str], Any] = PARSERS[number] if number < len(PARSERS) else web.parse_address
    refusable(lambda: parse(text))


def make_words(mutator: Mutator) -> list[str]:
    choice = mutator.random.choice
    command = choice(
        ("estimate", "estimate", "fit", "fit", "speed", "sweep", "compare", "explain", "replay", "prefix", "models", "gpus", "schema", "verify", "nonsense")
    )
    words = [command]
    if command in ("models", "gpus", "schema", "nonsense"):
        return [*words, *(choice(("--json", "--filter", "h100", "fit", choice(TEXTS[:-12]), choice(SIZES), "--")) for _ in range(choice((0, 1, 2))))]
    if command == "verify":
        return [*words, "--log", choice(("/dev/null", "", ".", "\x00", "~nobody/x", "x" * 5_000, "/proc/self/mem")), "-m", choice(MODELS)]
    if command == "explain":
        words += choice(([], ["all"], ["paging", "dtype"], ["pagin"], [choice(TEXTS)]))
    if command == "prefix":
        words += [choice((str(SHOP), str(SHOP), "/dev/null", "", "~nobody/x"))]
    if command == "replay":
        words += ["--synthetic", mutator.figures(choice(DRAWN)).replace("requests=", "requests=" if mutator.random.random() < 0.5 else "requests=1")]
    models = (
        choice(MODELS) if mutator.random.random() < 0.9 else choice((*TEXTS[:12], "~nobody/x", "a/b", "x/y:z.gguf", ".", "/", "/dev/null", "/proc/self/mem"))
    )
    words += [models, "llama-3-8b"] if command == "compare" else ["-m", models]
    if command in ("fit", "speed", "sweep", "compare", "replay", "prefix"):
        words += choice((["--gpu", "h100-sxm"], ["--gpu-mem", "80GiB"], ["--kv-mem", "10GiB"], []))
    known = FLAGS if command == "estimate" else (*FLAGS, *OF_FIT)
    for _ in range(choice((0, 1, 1, 2, 2, 3, 6))):
        flag, values = choice(known)
        value = choice(values) if mutator.random.random() < 0.7 else choice((*map(str, NUMBERS), *TEXTS, *WRITTEN[:-1]))
        if command == "sweep" and mutator.random.random() < 0.5:
            value = choice(RANGES) if flag not in ("--context", "--batch") else "1K..64K"
        words.append(f"{flag}={value}")
    words += [switch for switch in SWITCHES if mutator.random.random() < (0.5 if switch == "--json" else 0.05)]
    return [word.replace("\x00", "?") if mutator.random.random() < 0.9 else word for word in words]


def take_words(words: list[str], _folder: Path) -> None:
    answered(*words)


KINDS: Final[dict[str, Kind]] = {
    "config.json": Kind(30, make_config, take_config),
    "GGUF": Kind(12, make_gguf, take_gguf),
    "safetensors": Kind(10, make_safetensors, take_safetensors),
    "spec YAML": Kind(8, make_spec, take_spec),
    "logs": Kind(7, make_log, take_log),
    "server pages": Kind(8, make_pages, take_pages),
    "traces": Kind(7, make_trace, take_trace),
    "prompts": Kind(6, make_prompts, take_prompts),
    "single words": Kind(7, make_parsed, take_parsed),
    "command lines": Kind(5, make_words, take_words),
}


# A run


class Find(NamedTuple):
    """The first input that showed it."""

    kind: str
    number: int
    what: str
    where: str


def met(kind: Kind, made: Any, folder: Path) -> tuple[str, str] | None:
    """What an input shows that it should not, and where in kvcalc; None where all is well."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    faulthandler.dump_traceback_later(12 * LONGEST_S, exit=True)  # what an alarm does not reach, such as one long step of a C library
    signal.setitimer(signal.ITIMER_PROF, LONGEST_S)
    signal.setitimer(signal.ITIMER_REAL, 6 * LONGEST_S)  # of the clock: other programs may have the processor
    try:
        kind.take(made, folder)
    except (_HangError, Exception) as error:  # noqa: BLE001 (what is looked for)
        signal.setitimer(signal.ITIMER_PROF, 0)
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/kvcalc/" in frame.filename]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in reversed(frames[-3:]))
        text = f"{type(error).__name__}: {error}"
        return (f"no answer in {LONGEST_S} s" if isinstance(error, _HangError) else text)[:400], where
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10
    return (f"{grown >> 20} MiB of memory", "") if grown > GREW_BYTES else None


def inputs(seed: str, only: str | None) -> Iterator[tuple[str, Any]]:
    """Endless."""
    random = Random(seed)
    names = [only] if only is not None else [name for name, kind in KINDS.items() for _ in range(kind.share)]
    while True:
        name = random.choice(names)
        yield name, KINDS[name].make(Mutator(Random(random.getrandbits(64))))


PART: Final = 5_000
"""Inputs of one process: what libraries keep of a command for good is no matter to a program that answers one."""


class Told(NamedTuple):
    """Of one part: inputs by their kind, what was found and how often anything was, the slowest input, and memory."""

    counts: Counter[str]
    finds: dict[tuple[str, str], Find]
    met: int
    slowest: tuple[float, str]
    peak_bytes: int


def run_part(seed: int, part: int, number: int, only: str | None, keep: Path | None) -> Told:
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    signal.signal(signal.SIGALRM, _ring)
    signal.signal(signal.SIGPROF, _ring)
    counts, finds, again, slowest = Counter[str](), dict[tuple[str, str], Find](), 0, (0.0, "")
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as scratch:
        for index, (name, made) in zip(range(number), inputs(f"{seed}:{part}", only), strict=False):
            folder = Path(scratch) / "f"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            counts[name] += 1
            began = time.process_time()
            shown = met(KINDS[name], made, folder)
            slowest = max(slowest, (time.process_time() - began, f"{name} {part * PART + index}"))
            if shown is None:
                continue
            again += 1
            key = (shown[0].partition(":")[0], shown[1] or shown[0])
            if key not in finds:
                finds[key] = Find(name, part * PART + index, *shown)
                if keep is not None:
                    keep.mkdir(parents=True, exist_ok=True)
                    (keep / f"{part * PART + index}.txt").write_text(f"{finds[key]}\n{made!r}\n", errors="backslashreplace")
    return Told(counts, finds, again, slowest, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10)


def main() -> int:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--inputs", type=int, default=1_000)
    words.add_argument("--seed", type=int, default=1)
    words.add_argument("--jobs", type=int, default=os.cpu_count())
    words.add_argument("--only", choices=list(KINDS))
    words.add_argument("--keep", type=Path, help="a folder for the first input of each find")
    asked = words.parse_args()
    started, parts = time.monotonic(), -(-asked.inputs // PART)
    with ProcessPoolExecutor(asked.jobs, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        sizes = [min(PART, asked.inputs - part * PART) for part in range(parts)]
        told = list(pool.map(run_part, repeat(asked.seed), range(parts), sizes, repeat(asked.only), repeat(asked.keep)))
    finds = {key: find for part in reversed(told) for key, find in part.finds.items()}
    for find in finds.values():
        print(json.dumps(find._asdict()))
    slowest = max(part.slowest for part in told)
    answer = {
        "seed": asked.seed,
        "inputs": asked.inputs,
        "kinds": dict(sum((part.counts for part in told), Counter[str]())),
        "finds": len(finds),
        "met": sum(part.met for part in told),
        "seconds": round(time.monotonic() - started),
        "slowest_s": round(slowest[0], 2),
        "slowest": slowest[1],
        "peak_bytes": max(part.peak_bytes for part in told),
    }
    print(json.dumps(answer, indent=1))
    return ExitCode.NO if finds else ExitCode.YES


if __name__ == "__main__":
    sys.exit(main())
