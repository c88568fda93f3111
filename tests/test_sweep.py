"""A grid of fits: each row is what fit answers, each option takes what its help says, each form says the same."""

import csv
import io
import json
import re
import subprocess
import sys
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model, preset_names
from kvcalc.cli.sweep import LISTS
from kvcalc.engines import ENGINES, find_engine
from kvcalc.engines.base import Engine, Options
from kvcalc.engines.vllm import NEWEST_VLLM, VllmEngine, VllmPlan
from kvcalc.errors import KvcalcError
from kvcalc.fit import answer
from kvcalc.gpus import find_gpu
from kvcalc.layers import ModelSpec
from kvcalc.packing import KvDtype, parse_kv_dtype
from kvcalc.render import progress
from kvcalc.render import rows as rendered_rows
from kvcalc.results.fit import Fit, GpuInfo
from kvcalc.results.sweep import Refused, Row, Sweep, SweptFit
from kvcalc.sweep import Point, Said, sweep
from tests.command import kvcalc

GIB = 1 << 30
RELEASES = (*ENGINES, "vllm@0.6", "vllm@0.11", "transformers@4")
LLAMA = ("sweep", "-m", "llama-3-8b")


def question(model: str = "llama-3-8b", engine: Engine = NEWEST_VLLM, *, gib: int | None = 80, kv_gib: int | None = None, **choices: Any) -> Question:
    """A model on a GPU of so much memory, or with a KV budget of so much."""
    found = load_model(model)
    info = GpuInfo(name=None, memory_bytes=None if gib is None else gib * GIB)
    options = Options(device=find_gpu("h200").device(gib * GIB) if gib else None, **choices)
    return Question(
        found.weighed(), engine, options, Asked(model, f"preset {model}", "org/m", 8192, 1), info, kv_bytes=None if kv_gib is None else kv_gib * GIB
    )


# Each row is what fit answers


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(preset_names()),
    st.sampled_from(RELEASES),
    st.fixed_dictionaries(
        {
            "kv_dtype": st.sampled_from(["auto", "bf16", "fp8", "q8_0"]).map(parse_kv_dtype),
            "tp": st.sampled_from([1, 2, 3, 8]),
            "pp": st.sampled_from([1, 2]),
            "dp": st.sampled_from([1, 2]),
            "max_seqs": st.sampled_from([None, 2]),
        }
    ),
    st.sampled_from([None, 16, 80, 640]),
    st.tuples(st.lists(st.integers(1, 1 << 18), min_size=1, max_size=5), st.lists(st.integers(1, 300), min_size=1, max_size=3)),
)
def test_a_row_is_what_fit_answers(model: str, release: str, choices: dict[str, Any], gib: int | None, grid: tuple[list[int], list[int]]) -> None:
    asked = question(model, find_engine(release), gib=gib, kv_gib=24 if gib is None else None, **choices)
    singly = [_one(asked._replace(asked=asked.asked._replace(context=context, batch=batch))) for context in grid[0] for batch in grid[1]]
    if all(isinstance(each, str) for each in singly):
        with pytest.raises(KvcalcError) as refused:
            list(sweep([Point({}, asked)], *grid))
        assert refused.value.message == singly[0]
        return
    for row, single in zip(sweep([Point({}, asked)], *grid), singly, strict=True):
        if isinstance(row, Refused):
            assert row.refused == single
        else:
            assert isinstance(single, Fit)
            assert _shared(row) == _shared(single)


def _shared(answered: Fit | SweptFit) -> dict[str, Any]:
    """The fields that a row has of an answer."""
    return {name: getattr(answered, name) for name in Fit.model_fields if name in SweptFit.model_fields and name != "notes"}


def _one(asked: Question) -> Fit | str:
    try:
        return answer(asked)
    except KvcalcError as error:
        return error.message


@pytest.mark.parametrize("release", RELEASES)
def test_overheads_are_the_same_from_the_length_that_they_say(release: str) -> None:
    """Models of all kinds of overheads: plain, experts, states, a tower."""
    engine, settled = find_engine(release), 0
    for model in ("llama-3-8b", "gpt-oss-20b", "qwen3.5-27b", "mamba-2.8b", "gemma-3-27b"):
        asked = question(model)
        try:
            kept = engine.overheads(asked.spec, asked.options, 8192)  # type: ignore[arg-type]  # weighed above
        except KvcalcError:
            continue
        if kept.same_from is not None:
            settled += 1
            lengths = (max(1, kept.same_from), kept.same_from + 1, kept.same_from + 100_000, 1 << 20)
            assert len({engine.overheads(asked.spec, asked.options, length) for length in lengths}) == 1  # type: ignore[arg-type]  # as above
    assert settled or release in ("llama.cpp", "ollama")


class _Counting(VllmEngine):
    """VLLM that counts what is asked of it."""

    def __init__(self) -> None:
        super().__init__(NEWEST_VLLM.release)
        self.asked = {"plan": 0, "loaded": 0, "overheads": 0}

    def plan(self, spec: ModelSpec, options: Options) -> VllmPlan:
        self.asked["plan"] += 1
        return super().plan(spec, options)

    def loaded(self, *question: Any) -> Any:
        self.asked["loaded"] += 1
        return super().loaded(*question)

    def overheads(self, *question: Any) -> Any:
        self.asked["overheads"] += 1
        return super().overheads(*question)


def test_many_lengths_of_one_deployment_make_one_plan() -> None:
    engine = _Counting()
    assert len(list(sweep([Point({}, question(engine=engine))], range(1, 2001), (1, 8)))) == 4000
    assert engine.asked["plan"] == engine.asked["loaded"] == 1
    assert engine.asked["overheads"] <= 2


def test_requests_by_hand() -> None:
    """20 GiB are 10,240 blocks of 16 tokens x 131,072 bytes, one of them kept back; a request of n tokens takes n / 16."""
    rows = list(sweep([Point({}, question(gib=None, kv_gib=20))], [1024, 2048, 4096, 8192], [1, 40]))
    answered = [row for row in rows if isinstance(row, SweptFit)]
    assert [row.totals.requests for row in answered[::2]] == [10_239 // 64, 10_239 // 128, 10_239 // 256, 10_239 // 512] == [159, 79, 39, 19]
    assert [row.fits for row in answered] == [True, True, True, True, True, False, True, False]
    assert rows[5].options == {"context": "4096", "batch": "40"}


def test_what_cannot_be_answered_is_a_row_unless_nothing_can() -> None:
    points = [Point({"tp": str(tp)}, question(tp=tp)) for tp in (3, 1, 5)]
    first, second, third = sweep(points)
    assert isinstance(first, Refused)
    assert isinstance(second, SweptFit)
    assert isinstance(third, Refused)
    assert "must be divisible by --tp 3" in first.refused
    with pytest.raises(KvcalcError, match="--tp 3"):
        list(sweep([points[0], points[2]]))


def test_notes_are_said_once_with_how_many_rows_they_are_about() -> None:
    """The bare formula has no use for a GPU, and 16,384 tokens are beyond Llama-3's own 8,192."""
    points = [Point({"engine": name}, question(engine=find_engine(name))) for name in ("vllm", "ideal")]
    said = Said()
    assert len(list(said.listening(sweep(points, [4096, 8192, 16384])))) == 6
    assert said.fits
    assert {note.code: note.text for note in said.notes()} == {
        "unused": "of 3 of 6 rows: ideal does not use --gpu",
        "context": "of 2 of 6 rows: more tokens are asked for than the 8,192 that llama-3-8b is made for",
    }


# What an option takes

VALUES = [
    ("--tp", "1,2,8", [1, 2, 8]),
    ("--tp", "1..8", [1, 2, 4, 8]),
    ("--tp", "3..20", [3, 6, 12, 20]),
    ("--tp", "4..4", [4]),
    ("--tp", "1, 2 ,1", [1, 2]),
    ("--context", "1K..8K", [1024, 2048, 4096, 8192]),
    ("--context", "1K,1024,2k", [1024, 2000]),
    ("--context", "8K..64K+16K", [8192, 24576, 40960, 57344, 65536]),
    ("--context", "1K..2K,8K", [1024, 2048, 8192]),
    ("--max-model-len", "1K..2K", [1024, 2048]),
    ("--encoder-tokens", "0..3+1", [0, 1, 2, 3]),
    ("--gpu-mem", "24GiB,80GB", [24 * GIB, 80 * 10**9]),
    ("--gpu-mem", "24GiB..96GiB", [24 * GIB, 48 * GIB, 96 * GIB]),
    ("--kv-dtype", "bf16,fp8", [KvDtype("bf16", "bf16"), KvDtype("fp8", "fp8")]),
    ("--kv-dtype", "k=q8_0,v=q4_0", [KvDtype("q8_0", "q4_0")]),
    ("--kv-dtype", "bf16,k=q8_0,v=q4_0,v=fp8, k=bf16,fp8", [KvDtype(*pair) for pair in (("bf16", "bf16"), ("q8_0", "q4_0"), ("bf16", "fp8"), ("fp8", "fp8"))]),
    ("--quantization", "none,fp8", [None, "fp8"]),
    ("--max-seqs", "none,64", [None, 64]),
    ("--gpu", "h100,a100 80gb", ["h100", "a100 80gb"]),
]


def _axis(*words: str) -> list[Any]:
    """What is made of one option as it is typed."""
    import typer
    from typer.main import get_command

    from kvcalc.cli.sweep import sweep as command

    app = typer.Typer(rich_markup_mode=None, add_completion=False)
    app.command()(command)
    typed = get_command(app).make_context("sweep", list(words)).params
    (varied,) = [axis for name, axis in LISTS.axes(typed, 1000).items() if typed[name]]
    return [(each.word, each.value) for each in varied]


@pytest.mark.parametrize(("flag", "text", "values"), VALUES, ids=lambda value: value if isinstance(value, str) else "")
def test_an_option_takes_lists_and_ranges(flag: str, text: str, values: list[Any]) -> None:
    assert [value for _, value in _axis(flag, text)] == values


def test_parts_go_in_steps_too() -> None:
    assert [(word, str(value)) for word, value in _axis("--utilization", "0.8..0.92+0.05")] == [
        ("0.8", "0.8"),
        ("0.85", "0.85"),
        ("0.9", "0.90"),
        ("0.92", "0.92"),
    ]


def test_models_may_be_named_in_turn_and_in_lists() -> None:
    assert [value for _, value in _axis("-m", "a", "-m", "../b,c")] == ["a", "../b", "c"]


@pytest.mark.parametrize(("low", "times", "plus"), [(1, 1, 0), (1, 1000, 7), (24, 3, 5), (1000, 17, 1)], ids=str)
def test_a_range_holds_both_ends_and_doubles_between(low: int, times: int, plus: int) -> None:
    high = low * times + plus
    values = [value for _, value in _axis("--context", f"{low}..{high}")]
    assert (values[0], values[-1]) == (low, high)
    assert all(later == 2 * earlier for earlier, later in pairwise(values[:-1]))
    assert values[-1] <= 2 * values[:-1][-1] if high > low else len(values) == 1


@pytest.mark.parametrize("flag", ["--gpu-mem", "--context", "--tp"])
def test_the_word_for_a_value_is_taken_again(flag: str) -> None:
    text = "1000MiB..5GiB" if flag == "--gpu-mem" else "3..1000"
    for word, value in _axis(flag, text):
        assert _axis(flag, word) == [(word, value)]


def test_every_option_of_fit_but_its_forms_is_swept() -> None:
    of_fit, swept = (set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", kvcalc(name, "--help", env={"COLUMNS": "300"}).out)) for name in ("fit", "sweep"))
    assert of_fit - swept == {"--min-gpus", "--filter", "--quiet", "-q"}
    assert swept - of_fit == {"--csv", "--markdown"}


REFUSED = [
    ((*LLAMA, "--gpu", "h100", "--context", "8K..1K"), 2, "'8K..1K' runs backwards: write 1K..8K"),
    ((*LLAMA, "--gpu", "h100", "--context", "8K..1K+1K"), 2, "write 1K..8K+1K"),
    ((*LLAMA, "--gpu", "h100", "--context", "1K..x"), 2, "'x' is not a count"),
    ((*LLAMA, "--gpu", "h100", "--context", "1K.."), 2, "'' is not a count"),
    ((*LLAMA, "--gpu", "h100", "--context", "0..8K"), 2, "at least 1"),
    ((*LLAMA, "--gpu", "h100", "--context", "none,4K"), 2, "stands alone"),
    ((*LLAMA, "--gpu", "h100", "--tp", "1,,2"), 2, "for '--tp' / '--tensor-parallel-size': '1,,2' has an empty element"),
    ((*LLAMA, "--gpu", "h100", "--tp", ""), 2, "empty element"),
    ((*LLAMA, "--gpu", "h100", "--tp", "1,x"), 2, "for '--tp' / '--tensor-parallel-size': 'x' is not a count"),
    ((*LLAMA, "--gpu", "h100", "--encoder-tokens", "5,-3"), 2, "for '--encoder-tokens': '-3'"),
    ((*LLAMA, "--gpu", "h100", "--encoder-tokens", "0..5"), 2, "cannot double from 0"),
    ((*LLAMA, "--gpu", "h100", "--reserve", "1GiB..2GiB+0B"), 2, "a step of 0"),
    ((*LLAMA, "--gpu", "h100", "--gpu-mem", "24GiB,80G"), 2, "for '--gpu-mem': '80G' can be read as"),
    ((*LLAMA, "--gpu", "h100", "--kv-dtype", "k=q8_0,fp8"), 2, "names only one of k and v"),
    ((*LLAMA, "--gpu", "h100", "--kv-dtype", "bf16,fp7"), 2, "unknown KV dtype 'fp7'"),
    ((*LLAMA, "--gpu", "h100", "--quantization", "none,fp9"), 2, "'fp9' is not known"),
    ((*LLAMA, "--gpu", "h100", "--engine", "vllm,vlm"), 2, "unknown engine 'vlm'"),
    ((*LLAMA, "--gpu", "h100", "--page-size", "1,64"), 2, "--page-size is an option of sglang, not of vllm"),
    ((*LLAMA, "--gpu", "h100", "--csv", "--json"), 2, "--csv and --json are forms of one answer"),
    ((*LLAMA, "--gpu", "h100", "--context", "1..8g+1"), 2, "has more than 1,000,000 values"),
    (
        (*LLAMA, "--gpu", "h100", "--context", "1..900000+1", "--tp", "1,2"),
        2,
        "900,000 of --context x 2 of --tp are 1,800,000 cells, and a grid has at most 1,000,000: give fewer values of --context",
    ),
    ((*LLAMA, "--kv-mem", "20GiB", "--utilization", "0.8,0.9"), 2, "--utilization has nothing to say"),
    ((*LLAMA, "--gpu", "h100,h1oo"), 3, "GPU 'h1oo' is not in the catalogue"),
    (("sweep", "-m", "llama-3-8b,lama-3-8b", "--gpu", "h100"), 3, "did you mean llama-3-8b"),
    ((*LLAMA, "--gpu", "h100", "--tp", "3,5", "--json"), 3, "must be divisible by --tp 3"),
    (("sweep", "--gpu", "h100,h200"), 2, "give --model MODEL"),
    (("sweep",), 2, "give --model MODEL"),
    (("sweep", "-m", "llama-3-8b", "--layers", "32,16", "--gpu", "h100"), 2, "give --model MODEL"),
    ((*LLAMA, "--context", "1K,2K"), 4, "--gpu-mem"),
]


@pytest.mark.parametrize(("words", "code", "said"), REFUSED, ids=lambda value: " ".join(value)[-50:] if isinstance(value, tuple) else "")
def test_it_refuses_before_the_first_row(words: tuple[str, ...], code: int, said: str) -> None:
    done = kvcalc(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


# The command


def test_a_row_of_the_command_is_what_the_command_fit_answers() -> None:
    """Options of all kinds, each row asked again by the words that it gives."""
    varied = (
        "--gpu",
        "l40s,h100",
        "--kv-dtype",
        "auto,fp8",
        "--context",
        "4K..8K",
        "--utilization",
        "none,0.8",
        "--max-seqs",
        "64",
        "--quantization",
        "none,fp8",
    )
    rows = kvcalc("sweep", "-m", "qwen3-8b", *varied, "--json").json["rows"]
    assert len(rows) == 32
    for row in rows[::5]:
        words = [f"--{name.replace('_', '-')}={word}" for name, word in row["options"].items() if word != "none"]
        single = kvcalc("fit", "-m", "qwen3-8b", "--max-seqs", "64", *words, "--json").json
        assert {name: row[name] for name in row if name in single} == {name: single[name] for name in single if name in row}
        assert {"memory", "capacity", "parallel", "limited_by", "gpu", "engine"} <= set(row)


def test_exit_codes() -> None:
    assert kvcalc(*LLAMA, "--gpu", "l4", "--batch", "1,100", "--context", "8K").code == 0
    assert kvcalc(*LLAMA, "--gpu", "l4", "--batch", "100,200", "--context", "8K").code == 1


def test_each_gpu_has_its_own_memory_and_one_without_has_a_reason() -> None:
    rows = kvcalc(*LLAMA, "--gpu", "h100 nvl,h200,l4", "--json").json["rows"]
    assert rows[0]["refused"].startswith("how much memory")
    assert [row["gpu"]["memory_bytes"] >> 30 for row in rows[1:]] == [139, 22]


def test_gpus_alone_share_the_heads() -> None:
    rows = kvcalc(*LLAMA, "--gpu", "h100", "--gpus", "1..8", "--json").json["rows"]
    assert [row["parallel"]["tp"] for row in rows] == [1, 2, 4, 8]


def test_all_engines_by_one_word() -> None:
    rows = kvcalc(*LLAMA, "--kv-mem", "20GiB", "--context", "8K", "--engine", "all", "--json").json["rows"]
    assert [row["engine"] for row in rows] == list(ENGINES)


def test_an_option_that_an_engine_has_not_makes_one_row_of_it() -> None:
    rows = kvcalc(*LLAMA, "--gpu", "h100", "--engine", "vllm,sglang", "--page-size", "1,64", "--json").json["rows"]
    assert [row["options"] for row in rows] == [
        {"engine": "vllm", "page_size": "none"},
        {"engine": "sglang", "page_size": "1"},
        {"engine": "sglang", "page_size": "64"},
    ]


def test_all_forms_say_the_same() -> None:
    words = (*LLAMA, "--gpu", "l4,h100", "--tp", "1,3", "--context", "4K,8K")
    answered = kvcalc(*words, "--json").json
    assert answered["schema"] == 1
    table = list(csv.DictReader(io.StringIO(kvcalc(*words, "--csv").out, newline="")))
    assert len(table) == len(answered["rows"]) == 8
    for line, row in zip(table, answered["rows"], strict=True):
        for path, text in line.items():
            assert text == _as_csv(row, path), path
    lines = kvcalc(*words, "--markdown").out.splitlines()
    pipes = [line for line in lines if line.startswith("|")]
    assert len(pipes) == 2 + 8
    assert len({line.count("|") for line in pipes}) == 1
    screen = kvcalc(*words).out
    assert "8 cells: 4 fit, 0 do not, 4 cannot be answered" in screen
    assert "(1) vLLM: total number of attention heads (32) must be divisible by --tp 3" in screen
    for row in answered["rows"]:
        if row["refused"] is None:
            assert f"~{row['totals']['tokens']:,}" in screen


def _as_csv(row: Any, path: str) -> str:
    """A field of a JSON row as CSV has it."""
    found = row
    for name in path.split("."):
        found = found.get(name) if isinstance(found, dict) else None
    return {None: "", True: "true", False: "false"}.get(found, str(found)) if isinstance(found, bool | None) else str(found)


def test_csv_ends_lines_as_the_standard_says() -> None:
    done = subprocess.run([sys.executable, "-m", "kvcalc", *LLAMA, "--kv-mem", "1GiB,2GiB", "--csv"], capture_output=True, check=True)
    assert done.stdout.count(b"\r\n") == 3 == done.stdout.count(b"\n")


def test_streamed_json_is_that_of_the_whole() -> None:
    said = Said()
    rows = list(said.listening(sweep([Point({"tp": "3"}, question(tp=3)), Point({"tp": "1"}, question())], [1024, 1 << 20])))
    pieces = "".join(rendered_rows.json_pieces(rows, said.notes))
    assert json.loads(pieces) == json.loads(Sweep(rows=tuple(rows), notes=said.notes()).to_json())
    assert pieces.endswith("}\n")


@pytest.mark.parametrize("form", [["--csv"], ["--json"], ["--markdown"], []], ids=str)
def test_a_reader_may_leave(form: list[str]) -> None:
    words = [sys.executable, "-m", "kvcalc", *LLAMA, "--kv-mem", "20GiB", "--context", "1..3000+1", *form]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1000)
        process.stdout.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("columns", [40, 80, 200])
def test_nothing_is_cut_off_at_any_width(columns: int) -> None:
    done = kvcalc("sweep", "-m", "qwen3-235b-a22b,llama-3-8b", "--gpu", "h100", "--tp", "4,8", "--context", "8K", env={"COLUMNS": str(columns)})
    assert max(map(len, done.out.splitlines())) <= columns
    assert done.out.count("qwen3-235b-a22b") >= 2
    assert "…" not in done.out


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_shown_on_a_terminal_alone_and_only_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[Row] = [Refused(options={}, context=length, batch=1, refused="no") for length in range(1000)]

    def shown(patience_s: float, stream: io.StringIO) -> str:
        monkeypatch.setattr(progress, "PATIENCE_S", patience_s)
        monkeypatch.setattr(sys, "stderr", stream)
        assert list(rendered_rows.watched(iter(rows), 1000, streamed=False)) == rows
        return stream.getvalue()

    monkeypatch.setenv("TERM", "xterm")
    assert "%" in shown(-1.0, _Terminal())
    assert shown(60.0, _Terminal()) == ""
    assert shown(-1.0, io.StringIO()) == ""


def test_what_is_held_but_served_too_late_lacks_nothing() -> None:
    done = kvcalc("sweep", "-m", "llama-3-8b", "--gpu", "h100-sxm5-80gb", "-c", "1K,8K", "-b", "4", "--tpot", "1us")
    assert (done.code, done.out.count("too late")) == (1, 2)
    assert "-0.00" not in done.out
