"""Pictures: charts hold the figures of the answer, and are drawn so that they can be read anywhere."""

import re
import struct
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from kvcalc.advice import advised
from kvcalc.budget import Asked, Question
from kvcalc.catalog import load_model, preset_names
from kvcalc.charts import Work, axis, capacity_chart, roofline_chart, sweep_chart
from kvcalc.cli import pictures
from kvcalc.engines import find_engine
from kvcalc.engines.base import Options
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.fit import answer, held_at
from kvcalc.gpus import find_gpu
from kvcalc.packing import parse_kv_dtype
from kvcalc.render.axes import Ends, axis_name, ends, fraction, ticks
from kvcalc.render.picture import DOTS_AN_INCH, FILLS, PENS, picture
from kvcalc.render.plot import draw
from kvcalc.render.report import fit_page
from kvcalc.results.fit import GpuInfo
from kvcalc.results.plot import Axis, Bar, Chart, Mark, Part, Series, memory_chart
from kvcalc.results.sweep import Sweep
from kvcalc.sweep import Point, sweep
from tests.command import Done, kvcalc
from tests.test_startup import loaded

GIB = 1 << 30
WIDTHS = (40, 80, 120, 200)
SVG = "{http://www.w3.org/2000/svg}"


def question(
    model: str = "llama-3-8b", context: int = 8192, engine: str = "vllm", kv_bytes: int | None = 20 * GIB, name: str | None = None, **choices: Any
) -> Question:
    """With a stated budget, or without one on an H100 of 80 GiB."""
    found = load_model(model)
    choices["kv_dtype"] = parse_kv_dtype(choices.get("kv_dtype", "auto"))
    asked = Asked(name or model, f"preset {model}", "org/m", context, 1)
    gpu = GpuInfo(name=None, memory_bytes=None) if kv_bytes is not None else GpuInfo(name="H100", memory_bytes=80 * GIB)
    device = None if kv_bytes is not None else find_gpu("h100").device(80 * GIB)
    spec = found.spec if kv_bytes is not None else found.weighed()
    return Question(spec, find_engine(engine), Options(device=device, **choices), asked, gpu, kv_bytes=kv_bytes)


def drawn(asked: Question) -> Chart:
    chart = capacity_chart(asked)
    assert chart is not None
    return chart


def points(chart: Chart) -> dict[str, dict[float, float]]:
    return {series.name: dict(series.points) for series in chart.series}


ROOF = roofline_chart("m on g", 1000e12, 2e12, [Work("prefill", 4000.0), Work("decode, batch 1", 1.0)])
BAR = Bar(
    title="Memory of the g",
    parts=(
        Part(name="weights", bytes=30 * GIB, estimated=False),
        Part(name="activations", bytes=2 * GIB, estimated=True),
        Part(name="graphs and runtime", bytes=1 * GIB, estimated=True),
        Part(name="kept back", bytes=0, estimated=False),
        Part(name="KV cache", bytes=39 * GIB, estimated=True),
    ),
    total_bytes=80 * GIB,
    usable_bytes=72 * GIB,
)
SLOTS = drawn(question("gemma-3-27b", 32768, "llama.cpp"))
CHARTS = {
    "requests": drawn(question()),
    "windows, estimated": drawn(question("gpt-oss-20b", 32768, kv_bytes=None)),
    "linear": drawn(question("whisper-large-v3", 448)),
    "slots": SLOTS,
    "roofline": ROOF,
}


# What is drawn


def test_requests_of_llama_3_8b_by_hand() -> None:
    """20 GiB are 10,240 blocks of 16 tokens x 131,072 bytes, one of them not for requests; in fp8 twice as many of half the size."""
    held = points(drawn(question()))
    assert held == {
        "bf16": {tokens: 10_239 // (tokens // 16) for tokens in (1024, 2048, 4096, 8192)},
        "fp8": {tokens: 20_479 // (tokens // 16) for tokens in (1024, 2048, 4096, 8192)},
    }


def test_the_asked_length_and_what_it_holds_are_said() -> None:
    chart = drawn(question(context=5000))
    assert [(mark.axis, mark.name, mark.value) for mark in chart.marks if mark.axis == "x"] == [("x", "asked, 5,000 tokens", 5000)]
    assert 5000 in points(chart)["bf16"]
    assert chart.captions == (f"Of 5,000 tokens: bf16 {10_239 // 313}; fp8 {20_479 // 313}.",)  # 313 blocks of 16


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        (question(kv_dtype="fp8"), ["fp8", "bf16"]),
        (question(kv_dtype="fp8_e4m3"), ["fp8_e4m3", "bf16"]),  # fp8 would hold the same
        (question(engine="llama.cpp"), ["fp16", "q8_0"]),
        (question(engine="llama.cpp", kv_dtype="k=q8_0,v=q4_0"), ["k=q8_0,v=q4_0", "fp16", "q8_0"]),
        (question("mamba-2.8b", 2048), ["bf16"]),  # states know no KV dtype
        (question(engine="transformers"), ["bf16"]),  # what is cast to fp8 is another kind of cache there
    ],
    ids=["fp8", "e4m3", "llama.cpp", "k and v", "states", "transformers"],
)
def test_the_asked_dtype_comes_first_and_others_hold_something_else(asked: Question, names: list[str]) -> None:
    assert [series.name for series in drawn(asked).series] == names


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(preset_names()),
    st.integers(1, 1 << 17),
    st.sampled_from(["vllm", "sglang", "trtllm", "ideal", "llama.cpp"]),
    st.sampled_from([1 << 20, GIB, 20 * GIB, None]),
)
def test_every_point_is_an_answer_of_fit(model: str, context: int, engine: str, kv_bytes: int | None) -> None:
    """With the budget of the question, which `--kv-mem` states."""
    try:
        asked = question(model, context, engine, kv_bytes)
        result, chart = answer(asked), capacity_chart(asked)
    except KvcalcError:
        return
    if chart is None:
        assert not result.fits
        return
    series = chart.series[0]
    for tokens, value in series.points:
        stated = asked._replace(kv_bytes=result.memory.kv_bytes, asked=asked.asked._replace(context=int(tokens)))
        try:
            row = next(row for row in answer(stated).lengths if row.context == tokens)
        except KvcalcError:  # no server of this length starts
            assert not value
            continue
        assert value == (row.requests if result.capacity.slots is None else row.request_bytes)
    if chart.y.scale != "linear":
        assert all(value > 0 for each in chart.series for _, value in each.points)
    for low_high, (_, value) in zip(series.band, series.points, strict=False):
        assert low_high[0] <= value <= low_high[1]
    assert context in dict(series.points) or not next(row.requests for row in result.lengths if row.context == context)


def test_a_length_for_which_no_server_starts_holds_nothing() -> None:
    """SGLang's pool for windows must hold more than a window, however short requests are."""
    asked = question("gemma-4-e4b", 8, "sglang", 1 << 20)
    with pytest.raises(KvcalcError, match="cannot hold even one request"):
        answer(asked)
    assert [row.requests for row in held_at(asked, 1 << 20, [8])] == [0]


def test_where_lines_end_is_said() -> None:
    """4 GiB hold 2,047 blocks of 16 tokens in bf16, 4,095 in fp8."""
    chart = drawn(question("llama-3.1-8b", 131_072, kv_bytes=4 * GIB))
    assert chart.captions[1:] == (f"bf16: up to {2047 * 16:,} tokens fit.", f"fp8: up to {4095 * 16:,} tokens fit.")
    assert max(points(chart)["bf16"]) == 16384


def test_short_requests_are_drawn_where_no_others_fit() -> None:
    """3 MiB are one block of 2 MiB, which no request may have, or three of 1 MiB for two requests of 16 tokens or one of 32."""
    chart = drawn(question(kv_bytes=3 << 20))
    assert points(chart)["fp8"][16] == 2
    assert points(chart)["fp8"][32] == 1
    assert chart.captions == ("Of 8,192 tokens: bf16 0; fp8 0.", "bf16: no length fits.", "fp8: up to 32 tokens fit.")
    assert capacity_chart(question(kv_bytes=1)) is None


def test_estimates_are_told_from_exact_figures() -> None:
    chart = drawn(question(kv_bytes=None))
    assert [series.name for series in chart.series] == ["bf16 (~ estimated)", "fp8 (~ estimated)"]
    assert all(len(series.band) == len(series.points) for series in chart.series)
    result = answer(question(kv_bytes=None))
    (held,) = (row.requests for row in result.lengths if row.context == 8192)
    assert f"bf16 ~{held} ({result.capacity_range.low} to {result.capacity_range.high})" in chart.captions[0]
    assert all(series.band == () for series in CHARTS["requests"].series)


def test_the_scheduler_is_drawn_where_it_binds_some() -> None:
    """Of 20 GiB 159 requests of 1,024 tokens, 19 of 8,192."""
    limits = [(mark.name, mark.value) for mark in drawn(question(max_seqs=100)).marks if mark.axis == "y"]
    assert limits == [("the scheduler's limit, 100 requests", 100)]
    assert not [mark for mark in drawn(question(max_seqs=2)).marks if mark.axis == "y"]


def test_slots_are_drawn_beside_their_budget() -> None:
    """All cells of all slots are allocated at once: bytes, and no number of requests."""
    assert (SLOTS.y.quantity, SLOTS.y.unit) == ("bytes", "GiB")
    assert [(mark.axis, mark.value) for mark in SLOTS.marks] == [("x", 32768), ("y", 20 * GIB)]


def test_memory_is_that_of_the_answer() -> None:
    result = answer(question(kv_bytes=None))
    bar = memory_chart(result)
    assert bar is not None
    assert sum(part.bytes for part in bar.parts) == result.memory.usable_bytes == bar.usable_bytes
    assert {part.name for part in bar.parts if part.estimated} == {"activations", "graphs and runtime", "KV cache"}
    assert memory_chart(answer(question())) is None


def test_the_roofline_by_hand() -> None:
    """1,000 TFLOP/s at 2 TB/s: the ridge is at 500 FLOP/byte; left of it 1 FLOP/byte allows 2 TFLOP/s."""
    held = points(ROOF)
    assert held["decode, batch 1"] == {1.0: 2e12}
    assert held["prefill"] == {4000.0: 1000e12}
    assert held["the roof"][500.0] == 1000e12
    assert [(mark.axis, mark.value, mark.name) for mark in ROOF.marks] == [("x", 500.0, "ridge, 500 FLOP/byte")]
    assert ROOF.captions == ("prefill: 4,000.0 FLOP/byte, arithmetic binds.", "decode, batch 1: 1.0 FLOP/byte, bandwidth binds.")


# Axes


TOKENS = Axis(label="a", quantity="tokens", unit="tokens", scale="log2")
COUNT = Axis(label="a", quantity="count", unit="requests", scale="log10")
SIZES = Axis(label="a", quantity="bytes", unit="GiB", scale="linear")
RATES = Axis(label="a", quantity="FLOP/s", unit="FLOP/s", scale="log10")


@pytest.mark.parametrize(
    ("values", "quantity", "scale"),
    [
        ((1024, 131_072), "tokens", "log2"),
        ((1024, 8191), "tokens", "linear"),
        ((1, 1000), "count", "log10"),
        ((0, 1000), "count", "linear"),
        ((3, 3), "count", "linear"),
    ],
)
def test_a_scale_is_what_the_range_asks_for(values: tuple[int, int], quantity: Any, scale: str) -> None:
    assert axis("a", quantity, "u", values).scale == scale


@pytest.mark.parametrize(
    ("along", "span", "most", "texts"),
    [
        (TOKENS, Ends(1024, 131_072), 8, ["1K", "2K", "4K", "8K", "16K", "32K", "64K", "128K"]),
        (TOKENS, Ends(1024, 131_072), 4, ["1K", "4K", "16K", "64K"]),
        (TOKENS, Ends(1 << 19, 10 << 20), 9, ["512K", "1M", "2M", "4M", "8M"]),
        (
            TOKENS.model_copy(update={"scale": "linear"}),
            Ends(64, 448),
            8,
            ["64", "128", "192", "256", "320", "384", "448"],
        ),
        (COUNT, Ends(5, 1000), 9, ["5", "10", "20", "50", "100", "200", "500", "1,000"]),
        (COUNT, Ends(5, 1000), 4, ["5", "10", "100", "1,000"]),
        (COUNT.model_copy(update={"scale": "linear"}), Ends(0, 3), 9, ["0", "1", "2", "3"]),
        (SIZES, Ends(0, 80 * GIB), 5, ["0", "20", "40", "60", "80"]),
        (SIZES, Ends(0, GIB // 2), 6, ["0", "0.1", "0.2", "0.3", "0.4", "0.5"]),
        (SIZES.model_copy(update={"scale": "log10"}), Ends(GIB // 10, 10 * GIB), 3, ["0.1", "1", "10"]),
        (RATES, Ends(1e12, 1e15), 4, ["1T", "10T", "100T", "1P"]),
    ],
)
def test_ticks_are_round_and_in_the_unit(along: Axis, span: Ends, most: int, texts: list[str]) -> None:
    assert [tick.text for tick in ticks(along, span, most)] == texts


@given(st.integers(1, 10**9), st.integers(1, 10**9), st.sampled_from([TOKENS, COUNT, RATES, SIZES]), st.integers(2, 12))
def test_ticks_lie_on_the_axis(one: int, other: int, along: Axis, most: int) -> None:
    span = Ends(min(one, other), max(one, other) + 1)
    found = ticks(along, span, most)
    assert len(found) <= most + 2
    assert all(-1e-6 <= fraction(along, span, tick.value) <= 1 + 1e-6 for tick in found)
    assert [tick.value for tick in found] == sorted({tick.value for tick in found})
    assert len({tick.text for tick in found}) == len(found)


@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_all_that_is_drawn_lies_between_the_ends(chart: Chart) -> None:
    for series in chart.series:
        for x, y in series.points:
            assert 0 <= fraction(chart.x, ends(chart, "x"), x) <= 1
            assert 0 <= fraction(chart.y, ends(chart, "y"), y) <= 1


def test_an_axis_of_one_value_has_two_ends() -> None:
    one = Chart(title="t", x=TOKENS, y=COUNT, series=(Series(name="s", points=((1.0, 1.0),)),))
    assert [fraction(TOKENS, ends(one, "x"), 1.0), ends(one, "y").low] == [0, 1]
    zero = one.model_copy(update={"y": COUNT.model_copy(update={"scale": "linear"}), "series": (Series(name="s", points=((1.0, 0.0),)),)})
    assert ends(zero, "y") == (0, 1)


# On a terminal


class _Ascii(StringIO):
    encoding = "ascii"


class _Utf8(StringIO):
    encoding = "utf-8"


def screen(drawing: Chart | Bar, width: int, *, ascii_only: bool = False) -> str:
    """What a pipe of that width gets."""
    out = _Ascii() if ascii_only else _Utf8()
    draw(drawing, Console(file=out, width=width, emoji=False))
    return out.getvalue()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("chart", CHARTS.values(), ids=CHARTS)
def test_a_chart_fits_a_terminal_and_says_what_it_shows(chart: Chart, width: int) -> None:
    for ascii_only in (True, False):
        text = screen(chart, width, ascii_only=ascii_only)
        assert "\x1b" not in text
        assert text.isascii() or not ascii_only
        assert max(len(line) for line in text.splitlines()) <= width
        words = " ".join(text.split())
        for said in (chart.title, axis_name(chart.x), axis_name(chart.y), *(series.name for series in chart.series), *(mark.name for mark in chart.marks)):
            assert said in words


def test_series_are_told_apart_without_colour() -> None:
    lines = screen(CHARTS["requests"], 80, ascii_only=True).splitlines()
    plot = "\n".join(line.partition("|")[2] or line.partition("+")[2] for line in lines[2:18])
    assert (plot.count("o"), plot.count("*")) == (4, 4)
    assert [line for line in lines if line.startswith("o bf16   * fp8")]


def test_a_point_stands_above_its_tick() -> None:
    """Four lengths that double: the first at the axis, the last at the right end, each above a figure."""
    lines = screen(CHARTS["requests"], 80, ascii_only=True).splitlines()
    columns = sorted(match.start() for line in lines[2:18] for match in re.finditer("o", line))
    marked = [match.start() for match in re.finditer(r"\+", lines[18])][1:]
    assert columns[1:] == marked[-3:]
    assert lines[18].startswith(f"{' ' * (columns[0] - 1)}++")
    assert lines[19].split() == ["1K", "2K", "4K", "8K"]


def test_colour_is_only_added() -> None:
    out = StringIO()
    draw(CHARTS["requests"], Console(file=out, width=80, force_terminal=True, color_system="standard", emoji=False))
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    assert out.getvalue() != plain
    assert plain == screen(CHARTS["requests"], 80)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 10**7), st.integers(1, 10**9)), min_size=1, max_size=12), st.integers(20, 130), st.booleans())
def test_any_chart_is_drawn_within_its_width(values: list[tuple[int, int]], width: int, ascii_only: bool) -> None:  # noqa: FBT001 (hypothesis passes it)
    some = sorted(dict(values).items())
    chart = Chart(
        title="t",
        x=axis("x", "tokens", "tokens", [x for x, _ in some]),
        y=axis("y", "count", "requests", [y for _, y in some]),
        series=(Series(name="s", points=tuple(some)),),
        marks=(Mark(name="m", axis="x", value=some[0][0]),),
    )
    assert max(len(line) for line in screen(chart, width, ascii_only=ascii_only).splitlines()) <= width


# As a file


def svg(data: bytes) -> tuple[ET.Element, list[str]]:
    root = ET.fromstring(data)
    return root, ["".join(node.itertext()).strip() for node in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("width_in", [3.4, 4.2, 8.0])
@pytest.mark.parametrize("drawing", [*CHARTS.values(), BAR], ids=[*CHARTS, "memory"])
def test_an_svg_holds_its_words_within_its_width(drawing: Chart | Bar, width_in: float) -> None:
    data = picture([drawing], "svg", width_in=width_in)
    root, texts = svg(data)
    assert root.get("width") == f"{72 * width_in:g}pt"
    words = " ".join(texts)
    assert drawing.title in words
    if isinstance(drawing, Chart):
        for said in (axis_name(drawing.x), axis_name(drawing.y), *(series.name for series in drawing.series), *(mark.name for mark in drawing.marks)):
            assert said in texts
        for caption in drawing.captions:
            assert caption in words
    else:
        assert {"weights 30.00 GiB", "activations ~2.00 GiB", "KV cache ~39.00 GiB", "the engine takes 72.00 GiB", "all memory 80.00 GiB"} <= set(texts)
    assert data == picture([drawing], "svg", width_in=width_in)
    assert b"<dc:date>" not in data


def test_series_of_a_file_differ_in_dashes_and_lightness() -> None:
    def lightness(colour: str) -> float:
        red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
        return 0.299 * red + 0.587 * green + 0.114 * blue

    assert len({(pen.dashes, pen.point) for pen in PENS}) == len(PENS)
    for colours in ([pen.colour for pen in PENS], [fill.colour for fill in FILLS]):
        for one, other in pairwise(colours):
            assert abs(lightness(one) - lightness(other)) > 25


def test_a_png_has_the_size_that_is_asked_for() -> None:
    for width_in in (4.2, 8.0):
        data = picture([CHARTS["requests"], BAR], "png", width_in=width_in)
        assert data.startswith(b"\x89PNG\r\n\x1a\n")
        width, height = struct.unpack(">II", data[16:24])
        assert width == round(width_in * DOTS_AN_INCH)
        assert height > width / 2


def test_names_are_drawn_as_they_are() -> None:
    """Neither formulas nor letters that the font lacks."""
    hostile = "$x^2$ <script>alert(1)</script> 模型\x1b[31m"
    chart = drawn(question(name=hostile))
    _, texts = svg(picture([chart], "svg"))
    assert "$x^2$ <script>alert(1)</script> 模型?[31m" in " ".join(texts)
    assert picture([chart], "png")


# As a page


class _Page(HTMLParser):
    """The tags of a page with their attributes, whether they are closed, and its words."""

    VOID = ("meta", "br", "hr", "img", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def report(asked: Question) -> str:
    return fit_page(advised(asked), capacity_chart(asked))


PAGES = {
    "budget": question("gpt-oss-20b", 32768, kv_bytes=None),
    "stated": question(),
    "does not fit": question("qwen3-32b", 32768, kv_bytes=None)._replace(gpu=GpuInfo(name="small", memory_bytes=24 * GIB)),
    "slots": question("gemma-3-27b", 32768, "llama.cpp"),
    "replicas": question("llama-3.1-70b", 8192, kv_bytes=None, tp=4, dp=2),
    "hostile": question(name='"><script>alert(1)</script>\\1 & co'),
}


@pytest.mark.parametrize("asked", PAGES.values(), ids=PAGES)
def test_a_page_stands_alone_and_is_whole(asked: Question) -> None:
    text = report(asked)
    page = _Page(text)
    assert page.open == []
    assert not re.search(r"https?:|//\w|@import|url\((?!#)", text)
    assert not [tag for tag, values in page.tags if {"src", "srcset", "data", "action"} & set(values) or tag in ("link", "iframe", "img", "object")]
    names = [values["id"] for _, values in page.tags if "id" in values]
    assert len(set(names)) == len(names)
    pointed = {*re.findall(r"url\(#([^)]*)\)", text), *re.findall(r'href="#([^"]*)"', text)}
    assert pointed <= set(names)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert text == report(asked)


def test_a_page_says_all_that_the_terminal_says() -> None:
    asked = PAGES["budget"]
    words = " ".join(" ".join(_Page(report(asked)).words).split())
    for said in ("tokens fit", "as vllm says: tokens", "- windows", "The same in figures", "vllm serve org/m --max-model-len 32768"):
        assert said in words
    result = answer(asked)
    for figure in (f"{result.capacity.tokens:,}", f"~{result.memory.kv_bytes:,}", *(f"{row.requests:,}" for row in result.lengths)):
        assert figure in words
    for note in result.notes:
        assert note.text in words


def test_a_page_escapes_what_comes_from_outside() -> None:
    text = report(PAGES["hostile"])
    assert "<script>alert" not in text
    assert "&quot;&gt;&lt;script&gt;alert(1)&lt;/script&gt;\\1 &amp; co" in text


# The command


ASK = ("fit", "-m", "llama-3-8b", "--kv-mem", "20GiB")


@pytest.mark.parametrize("kind", ["svg", "png", "html", "SVG"])
def test_a_file_is_written_beside_the_answer(tmp_path: Path, kind: str) -> None:
    plain = kvcalc(*ASK, "--json")
    done = kvcalc(*ASK, "--json", "--save", f"out.{kind}", cwd=tmp_path)
    assert (done.code, done.out) == (0, plain.out)
    data = (tmp_path / f"out.{kind}").read_bytes()
    assert done.err.splitlines()[-1] == f"wrote out.{kind} ({len(data):,} bytes)"
    assert data.startswith({"png": b"\x89PNG", "html": b"<!DOCTYPE html>"}.get(kind, b"<?xml"))
    assert [path.name for path in tmp_path.iterdir()] == [f"out.{kind}"]


def test_a_plot_stands_below_the_answer() -> None:
    plain, done = kvcalc(*ASK), kvcalc(*ASK, "--plot")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(plain.out)
    assert "requests that fit" in done.out[len(plain.out) :]
    ascii_only = kvcalc(*ASK, "--plot", env={"PYTHONIOENCODING": "ascii", "TERM": "dumb"})
    assert ascii_only.out.isascii()
    assert "o bf16   * fp8" in ascii_only.out


def test_nothing_is_drawn_where_nothing_fits(tmp_path: Path) -> None:
    none = ("fit", "-m", "llama-3-8b", "--kv-mem", "1B")
    done = kvcalc(*none, "--plot", "--save", str(tmp_path / "out.svg"))
    assert done.code == 1
    assert done.out.endswith("nothing fits at any length: there is nothing to draw.\n")
    assert "out.svg is not written" in done.err
    assert list(tmp_path.iterdir()) == []
    assert kvcalc(*none, "--save", str(tmp_path / "out.html")).code == 1
    assert "does not fit" in (tmp_path / "out.html").read_text()


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    target, link = tmp_path / "real.svg", tmp_path / "link.svg"
    target.write_text("old")
    link.symlink_to(target)
    assert kvcalc(*ASK, "--quiet", "--save", str(link)).out == "19\n"
    assert link.is_symlink()
    assert target.read_text().startswith("<?xml")


def test_nothing_half_written_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full after some bytes."""
    target = tmp_path / "out.svg"
    target.write_text("old")

    def fail(path: Path, content: bytes) -> int:
        with path.open("wb") as half:
            half.write(content[:10])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fail)
    with pytest.raises(KvcalcError, match="No space left on device"):
        pictures.save_as(target, [BAR], lambda: "", pictures.NOTHING_FITS)
    assert [path.name for path in tmp_path.iterdir()] == ["out.svg"]
    assert target.read_text() == "old"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((*ASK, "--save", "out.pdf"), 2, "'out.pdf' does not end in .svg, .png or .html"),
        ((*ASK, "--save", "svg"), 2, "does not end in"),
        ((*ASK, "--save", ""), 2, "does not end in"),
        ((*ASK, "--save", "no-such-folder/out.svg"), 4, "there is no folder no-such-folder"),
        ((*ASK, "--save", "{folder}"), 4, "is a folder"),
        ((*ASK, "--plot", "--json"), 2, "leave out --json"),
        ((*ASK, "--plot", "--quiet"), 2, "leave out --quiet"),
        (("fit", "--kv-mem", "20GiB", "--plot"), 2, "--plot goes with one model"),
        (("fit", "--kv-mem", "20GiB", "--save", "out.svg"), 2, "--save goes with one model"),
    ],
)
def test_it_refuses(tmp_path: Path, words: tuple[str, ...], code: int, said: str) -> None:
    (tmp_path / "dir.svg").mkdir()
    done = kvcalc(*(word.replace("{folder}", str(tmp_path / "dir.svg")) for word in words))
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) <= 2


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    """Missing, or broken in a way that shows only when it is loaded; the terminal needs none."""
    env = {"PYTHONPATH": str(tmp_path)}
    (tmp_path / "matplotlib").mkdir()
    (tmp_path / "matplotlib" / "__init__.py").write_text("raise ImportError('numpy is of another release')")
    done = kvcalc(*ASK, "--save", str(tmp_path / "out.png"), env=env)
    assert (done.code, done.out) == (4, "")
    assert "numpy is of another release" in done.err
    assert "hint: pip install 'kvcalc[plot]'" in done.err
    assert kvcalc(*ASK, "--plot", env=env).code == 0


def test_a_setting_that_matplotlib_does_not_know_is_named(tmp_path: Path) -> None:
    done = kvcalc(*ASK, "--save", str(tmp_path / "out.png"), env={"MPLBACKEND": "nonsense"})
    assert (done.code, done.out) == (4, "")
    assert "'nonsense'" in done.err
    assert "hint: unset MPLBACKEND" in done.err


def test_a_missing_matplotlib_is_told_before_anything_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "find_spec", lambda _: None)
    with pytest.raises(KvcalcError, match="not installed") as refused:
        pictures.check_pictures(plot=False, save=tmp_path / "out.svg", form=None)
    assert (refused.value.code, refused.value.hint) == (4, "pip install 'kvcalc[plot]'")


def test_pictures_are_loaded_only_when_one_is_asked_for(tmp_path: Path) -> None:
    assert "matplotlib" not in loaded(*ASK, "--plot")
    assert "kvcalc.render.picture" not in loaded(*ASK, "--plot")
    assert {"kvcalc.charts", "matplotlib"} & loaded(*ASK, "--json") == set()
    assert "matplotlib" in loaded(*ASK, "--quiet", "--save", str(tmp_path / "out.svg"))
    assert "matplotlib.pyplot" not in loaded(*ASK, "--quiet", "--save", str(tmp_path / "out.svg"))


# A grid and a roofline


def swept(*words: str) -> Done:
    return kvcalc("sweep", "-m", "llama-3-8b", "--kv-mem", "20GiB", *words)


def test_a_grid_is_drawn_along_its_numbers(tmp_path: Path) -> None:
    """20 GiB are 160, 80, 40 and 20 requests of 1K to 8K tokens of 128 KiB; of the last in each vLLM keeps one block for itself."""
    done = swept("--context", "1K..8K", "--kv-dtype", "bf16,fp8", "--plot", "--save", str(tmp_path / "grid.svg"))
    assert done.code == ExitCode.YES
    for said in ("Requests that fit against context", "kv-dtype bf16", "kv-dtype fp8", "context (tokens, log scale)"):
        assert said in done.out
        assert said in (tmp_path / "grid.svg").read_text()
    result = sweep([Point({}, question("llama-3-8b"))], [1024, 2048, 4096, 8192])
    chart = sweep_chart(Sweep(rows=tuple(result), notes=()))
    assert chart is not None
    assert chart.series[0].points == ((1024, 159), (2048, 79), (4096, 39), (8192, 19))


def test_a_grid_without_numbers_or_with_too_many_lines_is_not_drawn() -> None:
    refused = swept("--context", "4K", "--kv-dtype", "bf16,fp8", "--plot")
    assert (refused.code, "no option has several numbers" in refused.err) == (ExitCode.UNANSWERABLE, True)
    crowd = swept("--context", "1K..4K", "--kv-dtype", "bf16,fp8", "--block-size", "16,32", "--tp", "1,2", "--plot")
    assert (crowd.code, "8 lines cannot be told apart" in crowd.err) == (ExitCode.UNANSWERABLE, True)
    both = swept("--context", "1K..4K", "--csv", "--save", "grid.png")
    assert (both.code, "--save writes the picture of a table" in both.err) == (ExitCode.USAGE, True)


def test_a_roofline_shows_where_a_prompt_and_steps_lie(tmp_path: Path) -> None:
    done = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "h100 sxm", "-b", "8", "--plot", "--save", str(tmp_path / "speed.html"))
    assert done.code == ExitCode.YES
    for said in ("fp16: roofline", "ridge, 295 FLOP/byte", "prefill: ", "decode, batch 8: ", "bandwidth binds."):
        assert said in done.out
    page = (tmp_path / "speed.html").read_text()
    assert "<svg" in page
    assert "What doubles" in page
    assert "http://" not in re.sub(r"http://www\.w3\.org/\S+", "", page)


def test_a_gpu_whose_arithmetic_is_not_known_has_no_roof(tmp_path: Path) -> None:
    done = kvcalc("speed", "-m", "llama-3-8b", "--gpu", "m2 ultra", "--engine", "llama.cpp", "-c", "4096", "--plot", "--save", str(tmp_path / "speed.svg"))
    assert done.code == ExitCode.YES
    assert "there is nothing to draw" in done.out
    assert not (tmp_path / "speed.svg").exists()
