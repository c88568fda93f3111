"""`import kvcalc`: what the commands answer, without a command."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.main import get_command

import kvcalc
from kvcalc import library
from kvcalc.catalog import preset_names
from kvcalc.cli.compare import compare as compare_command
from kvcalc.cli.estimate import estimate as estimate_command
from kvcalc.cli.fit import fit as fit_command
from kvcalc.cli.speed import speed as speed_command
from tests.command import kvcalc as command

ROOT = Path(__file__).parents[1]
CONFIG = json.loads((ROOT / "tests/configs/llama-3-8b.json").read_text())["config"]
GIB = 1 << 30

SAME = [
    (lambda: kvcalc.estimate("llama-3-8b"), ("estimate", "-m", "llama-3-8b")),
    (lambda: kvcalc.estimate(model="gemma-3-27b", context="32K", batch=2, tp=2), ("estimate", "-m", "gemma-3-27b", "-c", "32K", "-b", "2", "--tp", "2")),
    (lambda: kvcalc.estimate(layers=2, kv_heads=2, head_dim=8), ("estimate", "--layers", "2", "--kv-heads", "2", "--head-dim", "8")),
    (lambda: kvcalc.fit("llama-3-8b", gpu="h100", kv_dtype="fp8"), ("fit", "-m", "llama-3-8b", "--gpu", "h100", "--kv-dtype", "fp8")),
    (lambda: kvcalc.fit("llama-3-8b", gpu_mem=80 * GIB, utilization=0.9), ("fit", "-m", "llama-3-8b", "--gpu-mem", "80GiB", "--utilization", "0.9")),
    (
        lambda: kvcalc.fit("qwen3-32b", gpu="rtx4090", context=32_768, batch=4, engine="vllm@0.11"),
        ("fit", "-m", "qwen3-32b", "--gpu", "rtx4090", "-c", "32K", "-b", "4", "--engine", "vllm@0.11"),
    ),
    (lambda: kvcalc.fit("llama-3.1-70b", gpu="h100", min_gpus=True), ("fit", "-m", "llama-3.1-70b", "--gpu", "h100", "--min-gpus")),
    (
        lambda: kvcalc.fit("llama-3-8b", gpu="l40s", draft="llama-3.2-1b", draft_tokens=3, ttft="2s", output=100),
        ("fit", "-m", "llama-3-8b", "--gpu", "l40s", "--draft", "llama-3.2-1b", "--draft-tokens", "3", "--ttft", "2s", "-o", "100"),
    ),
    (lambda: kvcalc.fit_presets(gpu_mem="24GiB", name_filter="qwen"), ("fit", "--gpu-mem", "24GiB", "--filter", "qwen")),
    (lambda: kvcalc.speed("gemma-3-27b", gpu="h200", context="32K", batch=8), ("speed", "-m", "gemma-3-27b", "--gpu", "h200", "-c", "32K", "-b", "8")),
    (lambda: kvcalc.compare(["llama-3-8b", "gemma-3-27b"], kv_mem="20GiB"), ("compare", "llama-3-8b", "gemma-3-27b", "--kv-mem", "20GiB")),
    (lambda: kvcalc.compare(["llama-3-8b"]), ("compare", "llama-3-8b")),
]


@pytest.mark.parametrize(("ask", "words"), SAME, ids=[" ".join(words) for _, words in SAME])
def test_the_same_answer_as_the_command(ask: Callable[[], kvcalc.Fit], words: tuple[str, ...], capfd: pytest.CaptureFixture[str]) -> None:
    """And nothing is printed."""
    answer = ask()
    assert capfd.readouterr() == ("", "")
    assert json.loads(answer.to_json()) == command(*words, "--json").json


def test_the_first_numbers_by_hand() -> None:
    """32 layers x 8 heads x 128 x 2 (K, V) x 2 bytes = 131,072 a token, of 8,192."""
    assert kvcalc.estimate("llama-3-8b").total_bytes == 131_072 * 8192 == GIB
    assert kvcalc.fit("llama-3-8b", kv_mem=20 * GIB).held == 19  # vLLM: 10,240 blocks, of which one is null, 512 a request


def test_a_model_may_be_a_path_or_a_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    sizes = {kvcalc.estimate(source, context=8192).total_bytes for source in ("llama-3-8b", tmp_path, tmp_path / "config.json", str(tmp_path), CONFIG)}
    assert sizes == {GIB}
    answer = kvcalc.fit(CONFIG, gpu="h100")
    assert (answer.model.name, answer.model.source, answer.model.parameters) == ("llama", "a config", 8_030_261_248)
    assert kvcalc.compare([CONFIG, {**CONFIG, "num_hidden_layers": 16}]).rows[1].token_bytes == 65_536
    assert kvcalc.fit(CONFIG, gpu="h100", draft={**CONFIG, "num_hidden_layers": 1}, draft_tokens=2).held > 0


def test_lengths_may_be_numbers(tmp_path: Path) -> None:
    (tmp_path / "lengths").write_text("100\n200\n200\n")
    of_numbers = kvcalc.fit("llama-3-8b", kv_mem="20GiB", lengths=[200, 100, 200])
    of_file = kvcalc.fit("llama-3-8b", kv_mem="20GiB", lengths=tmp_path / "lengths")
    assert of_numbers.mix is not None
    assert of_file.mix is not None
    assert of_numbers.mix == of_file.mix.model_copy(update={"source": "the list of lengths"})


def test_an_answer_is_frozen() -> None:
    answer = kvcalc.estimate("llama-3-8b")
    assert isinstance(answer, kvcalc.Estimate)
    with pytest.raises(ValueError, match="frozen"):
        answer.total_bytes = 0  # type: ignore[misc]  # what must fail
    assert hash(answer)


REFUSED: list[tuple[Callable[[], Any], int, str]] = [
    (lambda: kvcalc.estimate("lama-3-8b"), 3, "no preset, file or folder 'lama-3-8b'"),
    (kvcalc.estimate, 2, "give --model MODEL"),
    (lambda: kvcalc.estimate("llama-3-8b", context=0), 2, "context: '0' is not a whole number of at least 1"),
    (lambda: kvcalc.estimate("llama-3-8b", context=-5), 2, "context: '-5' is not a count"),
    (lambda: kvcalc.estimate("llama-3-8b", context=1.5), 2, "context: 1.5 is neither a whole number nor text"),  # type: ignore[arg-type]  # what must fail
    (lambda: kvcalc.estimate("llama-3-8b", batch=True), 2, "batch: True is neither"),
    (lambda: kvcalc.estimate("llama-3-8b", context=10**5000), 2, "context: a whole number of more than 30 digits"),
    (lambda: kvcalc.estimate("llama-3-8b", kv_dtype="fp7"), 2, "kv_dtype: unknown KV dtype 'fp7'"),
    (lambda: kvcalc.estimate("llama-3-8b", engine="vllmm"), 2, "unknown engine 'vllmm'"),
    (lambda: kvcalc.estimate("llama-3-8b", swa_full=True), 2, "--swa-full is an option of llama.cpp, not of ideal"),
    (lambda: kvcalc.estimate("llama-3-8b", encoder_tokens=-1), 2, "encoder_tokens: -1 is not in the range 0 to"),
    (lambda: kvcalc.estimate(Path("llama-3-8b")), 3, "no file or folder './llama-3-8b'"),
    (lambda: kvcalc.estimate(3), 2, "model: 3 is neither the name of a model, nor a path, nor a config"),  # type: ignore[arg-type]  # what must fail
    (lambda: kvcalc.estimate({}), 3, "needs model_type"),
    (lambda: kvcalc.estimate({"model_type": {1}}), 2, "the config holds what JSON does not"),
    (lambda: kvcalc.estimate(CONFIG, revision="main"), 2, "--revision goes with a Hub id"),
    (lambda: kvcalc.fit(gpu="h100"), 2, "fit is about one model: name it"),
    (lambda: kvcalc.fit("llama-3-8b", gpu_mem="80G"), 2, "gpu_mem: '80G' can be read as 80GiB or 80GB"),
    (lambda: kvcalc.fit("llama-3-8b", gpu_mem=-1), 2, "gpu_mem: '-1B' is not a size"),
    (lambda: kvcalc.fit("llama-3-8b", gpu_mem="80GiB", utilization=float("nan")), 2, "utilization: 'nan' is not above 0 and up to 1"),
    (lambda: kvcalc.fit("llama-3-8b", kv_mem="20GiB", reserve=GIB), 2, "--reserve has nothing to say"),
    (lambda: kvcalc.fit("llama-3-8b", kv_mem="20GiB", lengths=[0]), 2, "lengths: 0 is no length of a request"),
    (lambda: kvcalc.fit("llama-3-8b", kv_mem="20GiB", lengths=[]), 3, "lengths: the list of lengths holds no request"),
    (lambda: kvcalc.fit("llama-3-8b", kv_mem="20GiB", ttft=2), 2, "ttft: 2 is no text"),  # type: ignore[arg-type]  # what must fail
    (lambda: kvcalc.fit("llama-3-8b", gpu="h100", tp=2, min_gpus=True), 2, "leave out --gpus, --tp and --pp"),
    (lambda: kvcalc.fit("llama-3-8b", gpu="h100", enforce_eager="no"), 2, "enforce_eager: 'no' is neither True nor False"),  # type: ignore[arg-type]  # as above
    (lambda: kvcalc.fit("llama-3-8b"), 4, "cannot be asked for"),
    (lambda: kvcalc.speed("llama-3-8b", gpu="h100"), 3, "h100 may be"),
    (lambda: kvcalc.compare("llama-3-8b"), 2, "models: compare is about a list of models"),
    (lambda: kvcalc.compare(["llama-3-8b"], engine="vllm"), 2, "nothing to be compared with"),
    (lambda: kvcalc.fit_presets(gpu_mem="80GiB", name_filter="no such"), 3, "no preset is left"),
]


@pytest.mark.parametrize(("ask", "code", "said"), REFUSED, ids=[said for *_, said in REFUSED])
def test_refused(ask: Callable[[], Any], code: int, said: str) -> None:
    with pytest.raises(kvcalc.KvcalcError) as caught:
        ask()
    assert said in caught.value.message
    assert caught.value.code is kvcalc.ExitCode(code)
    assert len(caught.value.message) < 400


def test_a_keyword_that_there_is_not_is_a_type_error() -> None:
    with pytest.raises(TypeError, match="no keyword 'contxt': did you mean 'context'"):
        kvcalc.estimate("llama-3-8b", contxt=1)  # type: ignore[call-arg]  # what must fail
    with pytest.raises(TypeError, match="no keyword 'gpu_mem'"):
        kvcalc.estimate("llama-3-8b", gpu_mem="80GiB")  # type: ignore[call-arg]  # as above


COMMANDS = [
    (estimate_command, library.EstimateOptions, "ideal"),
    (fit_command, library.FitOptions, "vllm"),
    (speed_command, library.SpeedOptions, "vllm"),
    (compare_command, library.CompareOptions, None),
]
NOT_OF_PYTHON = {"call", "as_json", "quiet", "plot", "save", "name_filter", "names"}
WORDS = ["1", "0", "2", "64", "8K", "0.5", "80GiB", "80G", "auto", "fp8", "k=q8_0,v=q4_0", "float32", "on", "off", "2s", "50ms", "", "nan", "9" * 50]


@pytest.mark.parametrize(("function", "options", "engine"), COMMANDS, ids=["estimate", "fit", "speed", "compare"])
def test_keywords_are_the_options(function: Callable[..., Any], options: type, engine: str | None) -> None:
    """The same names, the same defaults, and of each word the same value or a refusal."""
    parameters = set(signature(function).parameters) - NOT_OF_PYTHON
    stated = {"context": None, "batch": 1, "engine": engine} | ({} if function is compare_command else {"model": None})
    typed = library._typed(options, {}, engine, **stated)  # noqa: SLF001 (what both sides become)
    assert set(typed) == parameters
    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(function)
    parsed = get_command(app)
    with parsed.make_context("", ["a"] if function is compare_command else []) as context:
        assert {name: context.params[name] for name in parameters} == typed
    flags = {each.name: each for each in parsed.params if each.name in parameters}
    for name in set(typed) - {"model", "draft", "lengths"}:
        for word in WORDS:
            if isinstance(typed[name], bool) or name == "kv_unified":
                break
            assert read_by_command(parsed, flags[name].opts[0], name, word, function) == read_by_library(options, name, word), (name, word)


def read_by_command(parsed: Any, flag: str, name: str, word: str, function: Callable[..., Any]) -> object:
    try:
        with parsed.make_context("", [*(["a"] if function is compare_command else []), f"{flag}={word}"]) as context:
            return context.params[name]
    except typer.TyperException:
        return "refused"


def read_by_library(options: type, name: str, word: str) -> object:
    try:
        stated = {"engine": word if name == "engine" else "ideal"}
        if name in ("context", "batch"):
            stated[name] = word
            return library._typed(options, {}, None, **stated)[name]  # noqa: SLF001 (as above)
        return library._typed(options, {} if name == "engine" else {name: word}, None, **stated)[name]  # noqa: SLF001 (as above)
    except kvcalc.KvcalcError:
        return "refused"


def test_numbers_are_what_they_are() -> None:
    numpy = pytest.importorskip("numpy", reason="numpy is not installed")
    assert kvcalc.estimate("llama-3-8b", context=numpy.int64(8192)).total_bytes == GIB
    assert kvcalc.fit("llama-3-8b", gpu_mem="80GiB", utilization=Decimal("0.9")) == kvcalc.fit("llama-3-8b", gpu_mem="80GiB", utilization="0.9")


THREADS = """
import sys, threading
from concurrent.futures import ThreadPoolExecutor
import kvcalc
names = sys.argv[1:]
start = threading.Barrier(16)
def ask(number):
    if number < 16:
        start.wait()
    name = names[number % len(names)]
    engine = ("vllm", "sglang", "trtllm", "llama.cpp", "transformers")[number % 5]
    return [
        said(lambda: kvcalc.fit(name, gpu_mem="80GiB", engine=engine, context=4096)),
        said(lambda: kvcalc.estimate(name, context=1024 + number)),
        said(lambda: kvcalc.speed(name, gpu="l40s", context=4096)),
    ]
def said(ask):
    try:
        return ask().to_json()
    except kvcalc.KvcalcError as error:
        return error.message
with ThreadPoolExecutor(16) as pool:
    together = list(pool.map(ask, range(48)))
start = threading.Barrier(1)
assert together == [ask(number) for number in range(48)]
print("equal", sum(each.startswith("{") for answers in together for each in answers) > 120)
"""


def test_threads_that_begin_at_once_get_what_one_gets() -> None:
    """In a process of its own, so that all 16 meet modules, schemas and caches that nobody has used before."""
    names = [name for name in preset_names() if name.startswith(("llama-3", "gemma-3-", "qwen3-", "gpt-oss"))][:20]
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", THREADS, *names], capture_output=True, text=True, timeout=300, check=False)
        assert (done.stdout, done.stderr) == ("equal True\n", "")


def test_it_is_the_function_whatever_was_imported_before() -> None:
    """`kvcalc.fit` is a module too, to which Python would set the name once it is loaded."""
    code = "import kvcalc.fit, kvcalc.speed, kvcalc; import kvcalc.compare, kvcalc.estimate; print(kvcalc.fit.__name__, kvcalc.estimate('llama-3-8b').batch)"
    for before in ("", "import kvcalc; kvcalc.estimate; ", "from kvcalc import estimate, fit, KvcalcError; "):
        done = subprocess.run([sys.executable, "-c", before + code], capture_output=True, text=True, check=False)
        assert (done.stdout, done.stderr) == ("fit 1\n", "")


def test_import_loads_nothing_and_lists_what_there_is() -> None:
    code = "import sys; before = set(sys.modules); import kvcalc; print(sorted(set(sys.modules) - before)); print(set(kvcalc.__all__) <= set(dir(kvcalc)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(eval(done.stdout.splitlines()[0])) <= {"kvcalc", "types", "_types"}
    assert done.stdout.splitlines()[1] == "True"
    for name in kvcalc.__all__:
        assert getattr(kvcalc, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'estimat'"):
        kvcalc.estimat  # type: ignore[attr-defined]  # noqa: B018 (what must fail)


USER = """
from pathlib import Path

import kvcalc


def largest(gpu: str) -> kvcalc.Fits:
    return kvcalc.fit_presets(gpu=gpu, context="8K")


size: int = kvcalc.estimate("llama-3-8b", context=8192, kv_dtype="fp8").total_bytes
held: int = kvcalc.fit(Path("config.json"), gpu="h100", tp=2, utilization=0.9).held
rows = kvcalc.compare(["a", {"model_type": "llama"}]).rows
try:
    seconds: float = kvcalc.speed("a", gpu="h200").decode.bandwidth_s
except kvcalc.KvcalcError as error:
    code: kvcalc.ExitCode = error.code
"""
WRONG = {
    'kvcalc.estimate("a", contxt=1)': "call-arg",
    'kvcalc.estimate("a", gpu_mem="1GiB")': "call-arg",
    'kvcalc.estimate("a", tp=1.5)': "arg-type",
    'kvcalc.fit("a", flash_attn="maybe")': "arg-type",
    'kvcalc.fit("a").total_byte': "attr-defined",
    "kvcalc.nonsense": "attr-defined",
}


def test_a_user_s_program_is_typed(tmp_path: Path) -> None:
    """By mypy --strict, with no plugin."""
    (tmp_path / "good.py").write_text(USER)
    (tmp_path / "wrong.py").write_text("import kvcalc\n" + "".join(f"{line}\n" for line in WRONG))
    mypy = [sys.executable, "-m", "mypy", "--strict", "--config-file", os.devnull, "--follow-imports=silent"]
    for name, expected in (("good.py", []), ("wrong.py", list(WRONG.values()))):
        done = subprocess.run([*mypy, name], capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, timeout=300, check=False)
        found = [line.rpartition("[")[2].removesuffix("]") for line in done.stdout.splitlines() if line.startswith(name) and ": error: " in line]
        assert found == expected, done.stdout


def test_a_wheel_says_that_it_is_typed(tmp_path: Path) -> None:
    pytest.importorskip("hatchling", reason="hatchling is not installed: a wheel is not built without the network")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path), str(ROOT)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {"kvcalc/py.typed", "kvcalc/library.py", "kvcalc/schemas.py", "kvcalc/model_presets/llama-3-8b.yaml", "kvcalc/gpus.yaml"} <= names


def test_threads_in_one_process_share_what_was_read() -> None:
    with ThreadPoolExecutor(16) as pool:
        sizes = list(pool.map(lambda number: kvcalc.estimate("llama-3-8b", context=number + 1).total_bytes, range(200)))
    assert sizes == [131_072 * (number + 1) for number in range(200)]
