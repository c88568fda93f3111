"""Traces as files: what is recognised, what is counted and left out, what is refused."""

import gzip
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvcalc.errors import KvcalcError
from kvcalc.replay.requests import Reading, Row
from kvcalc.traces import open_trace, read_lengths
from tests.collection import COLLECTION

TRACES = COLLECTION / "traces"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n2023-11-16 18:17:04.0319600,3180,8\n"
BURST = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
BURST_3 = """\
Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type
5,s1,3.2,GPT-4,472,18,490,Conversation log
6.5,,1,GPT-4,10,2,12,API log
"""
MOONCAKE = """\
{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 512, "output_length": 5, "hash_ids": [0]}
"""
PLAIN = "session,arrival,output,prompt\na,10,5,100\nb,10.5,6,200\n"


def read(path: Path, content: str | bytes, **options: Any) -> tuple[list[Row], Reading]:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with open_trace(str(path), **options) as trace:
        return list(trace.rows), trace.reading


RECOGNISED = [
    (AZURE, "azure", None, [Row(0.0, 4808, 10), Row(0.052, 3180, 8)]),
    (BURST, "burstgpt", None, [Row(0.0, 472, 18), Row(40.0, 1087, 230)]),
    (BURST_3, "burstgpt", "sessions", [Row(0.0, 472, 18, session="s1"), Row(1.5, 10, 2)]),
    (MOONCAKE, "mooncake", "blocks", [Row(0.0, 600, 5, (0, 1)), Row(1.5, 512, 5, (0,))]),
    (PLAIN, "kvcalc", "sessions", [Row(0.0, 100, 5, session="a"), Row(0.5, 200, 6, session="b")]),
    ('{"arrival": 3, "prompt": 7, "output": 2}\n', "kvcalc", None, [Row(0.0, 7, 2)]),
    (PLAIN.replace("\n", "\r\n"), "kvcalc", "sessions", [Row(0.0, 100, 5, session="a"), Row(0.5, 200, 6, session="b")]),
    ("\ufeff" + AZURE, "azure", None, [Row(0.0, 4808, 10), Row(0.052, 3180, 8)]),
    ("\n\n" + AZURE.strip(), "azure", None, [Row(0.0, 4808, 10), Row(0.052, 3180, 8)]),
    ('arrival,prompt,output,note\n0,"1",2,"a, b"\n', "kvcalc", None, [Row(0.0, 1, 2)]),
]


@pytest.mark.parametrize(("content", "kind", "identity", "rows"), RECOGNISED)
def test_a_trace_is_told_by_its_names(tmp_path: Path, content: str, kind: str, identity: str | None, rows: list[Row]) -> None:
    for name, form in (("t", content.encode()), ("t.gz", gzip.compress(content.encode()))):
        found, reading = read(tmp_path / name, form)
        assert [row._replace(arrival_s=0) for row in found] == [row._replace(arrival_s=0) for row in rows]
        assert [row.arrival_s for row in found] == pytest.approx([row.arrival_s for row in rows], abs=1e-6)
        assert (reading.kind, reading.identity, reading.malformed) == (kind, identity, 0)


MALFORMED = [
    ("0,5", "line 2: 2 columns, not 3"),
    ("0,5,6,7", "line 2: 4 columns, not 3"),
    ("x,5,6", "line 2: the time stamp is no number"),
    ("nan,5,6", "line 2: the time stamp is absurd"),
    ("1e300,5,6", "line 2: the time stamp is absurd"),
    ("0,-5,6", "line 2: prompt is below 0"),
    ("0,5,-6", "line 2: output is below 0"),
    ("0,1e9,6", "line 2: prompt is no whole number"),
    ("0,5.5,6", "line 2: prompt is no whole number"),
    ("0,999999999999,6", "line 2: prompt is above 100,000,000"),
    ("0," + "9" * 5000 + ",6", "line 2: prompt is no whole number"),
    ("0,,6", "line 2: prompt is no whole number"),
    ('"0,5,6', "line 2: 1 columns, not 3"),
    ("\x00\x00", "line 2: 1 columns, not 3"),
]


@pytest.mark.parametrize(("line", "said"), MALFORMED)
def test_a_malformed_line_is_counted_and_told(tmp_path: Path, line: str, said: str) -> None:
    content = f"arrival,prompt,output\n{line}\n1,10,10\n"
    rows, reading = read(tmp_path / "t.csv", content)
    assert (len(rows), reading.malformed, reading.malformed_lines) == (1, 1, [said])
    with pytest.raises(KvcalcError, match=said[:20]):
        read(tmp_path / "t.csv", content, strict=True)


MALFORMED_OBJECTS = [
    ("nonsense", "no JSON object"),
    ("[1]", "no JSON object"),
    ('{"timestamp": 0}', "no input_length"),
    ('{"timestamp": "0", "input_length": 5, "output_length": 5, "hash_ids": [0]}', "timestamp is no number"),
    ('{"timestamp": 0, "input_length": 5.5, "output_length": 5, "hash_ids": [0]}', "input_length is no whole number"),
    ('{"timestamp": 0, "input_length": true, "output_length": 5, "hash_ids": [0]}', "input_length is no whole number"),
    ('{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0]}', "1 hash_ids, not one for each 512 of 600 tokens"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": ["a"]}', "hash_ids is no list of numbers"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [-1]}', "hash_ids is no list of numbers"),
    ('{"timestamp": 0, "input_length": 5, "output_length": 5, "hash_ids": [true]}', "hash_ids is no list of numbers"),
    ('{"timestamp": 1%s, "input_length": 5, "output_length": 5, "hash_ids": [0]}' % ("0" * 350), "the time stamp is absurd"),
    ("[" * 100_000, "no JSON object"),
]


@pytest.mark.parametrize(("line", "said"), MALFORMED_OBJECTS, ids=[said for _, said in MALFORMED_OBJECTS])
def test_a_malformed_object_is_counted_and_told(tmp_path: Path, line: str, said: str) -> None:
    rows, reading = read(tmp_path / "t.jsonl", MOONCAKE + line + "\n")
    assert (len(rows), reading.malformed_lines) == (2, [f"line 3: {said}"])


def test_only_the_first_five_are_told(tmp_path: Path) -> None:
    _, reading = read(tmp_path / "t.csv", "arrival,prompt,output\n" + "bad\n" * 7 + "0,1,1\n")
    assert (reading.malformed, len(reading.malformed_lines)) == (7, 5)


REFUSED = [
    (b"", "is empty"),
    (b"\n \n", "is empty"),
    (b"a,b,c\n1,2,3\n", "has the columns of no trace that is known: a, b, c"),
    (b"timestamp,ContextTokens,GeneratedTokens\n", "has the columns of no trace"),
    (b"\x89PNG\r\n\x1a\n\x00\x00", "has the columns of no trace"),
    (b"{nonsense\n", "is no trace: its first line is no JSON object"),
    (b'{"a": 1}\n', "has the columns of no trace that is known: a"),
    (b"PAR1....", "is a Parquet file"),
    (b"PK\x03\x04....", "is a zip file"),
    (b"timestamp,input_length,output_length,hash_ids\n", "has the columns of a Mooncake trace, which is JSONL"),
    ((AZURE + BURST).encode(), "line 4: the header of another trace (burstgpt)"),
    ((MOONCAKE + '{"arrival": 1, "prompt": 1, "output": 1}\n').encode(), "line 3: a request of another trace (kvcalc)"),
    (gzip.compress(AZURE.encode() * 100)[:60], "cannot be read"),
    (gzip.compress(b""), "is empty"),
]


@pytest.mark.parametrize(("content", "said"), REFUSED, ids=[said for _, said in REFUSED])
def test_what_is_no_trace_is_refused(tmp_path: Path, content: bytes, said: str) -> None:
    with pytest.raises(KvcalcError) as refused:
        read(tmp_path / "t", content)
    assert said in refused.value.message
    assert "\n" not in refused.value.message


def test_a_folder_and_a_missing_file_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(KvcalcError, match="cannot be read"), open_trace(str(path)):
            pass


def test_a_header_in_between_is_passed_over(tmp_path: Path) -> None:
    """As where shards of one trace were put one behind the other."""
    rows, reading = read(tmp_path / "t", BURST + BURST)
    assert (len(rows), reading.malformed) == (4, 0)


def test_failed_requests_are_counted(tmp_path: Path) -> None:
    rows, reading = read(tmp_path / "t", BURST + "50,ChatGPT,0,0,0,API log\n51,GPT-4,100,0,100,API log\n")
    assert (len(rows), reading.empty, reading.malformed) == (2, 2, 0)


def test_requests_are_put_in_order_within_a_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcalc.traces.WINDOW", 3)
    lines = [f"{at},1,1" for at in (0, 2, 1, 3, 4, 5, 6, 0.5, 7)]
    rows, reading = read(tmp_path / "t", "arrival,prompt,output\n" + "\n".join(lines))
    assert [row.arrival_s for row in rows] == [0, 1, 2, 3, 4, 5, 6, 7]
    assert reading.unordered == 1
    assert reading.malformed_lines == ["line 9: earlier than requests long before it"]


def test_a_line_without_end_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvcalc.traces.MOST_LINE_BYTES", 100)
    rows, reading = read(tmp_path / "t", f"arrival,prompt,output\n{'9' * 1000}\n1,2,3\n")
    assert (len(rows), reading.malformed) == (1, 1)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.one_of(st.text(max_size=40), st.binary(max_size=40)), max_size=8))
def test_any_lines_are_survived(tmp_path_factory: pytest.TempPathFactory, lines: list[str | bytes]) -> None:
    path = tmp_path_factory.mktemp("any") / "t"
    content = b"\n".join(line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass") for line in lines)
    for head in (b"", b"arrival,prompt,output\n", MOONCAKE.encode()):
        try:
            rows, _ = read(path, head + content)
        except KvcalcError as error:
            assert "\n" not in error.message  # noqa: PT017 (what is refused may be either)
        else:
            assert all(row.prompt > 0 and row.output > 0 and row.arrival_s >= 0 for row in rows)


@pytest.mark.parametrize("line", ["0" * 19 + "1" * 5000, "0", "x", "\u0663", "1" * 12])
def test_a_line_that_is_no_length_is_told(tmp_path: Path, line: str) -> None:
    (tmp_path / "t").write_text(f"7\n{line}\n")
    with pytest.raises(KvcalcError, match=r"line 2 of .* is no length"):
        read_lengths(str(tmp_path / "t"))


@pytest.mark.parametrize(("content", "counts"), [(AZURE, ((3188, 1), (4818, 1))), (MOONCAKE, ((517, 1), (605, 1))), ("7\n8\n7\n", ((7, 2), (8, 1)))])
def test_lengths_are_read_from_a_pipe(tmp_path: Path, content: str, counts: tuple[tuple[int, int], ...]) -> None:
    """Under a name, as a shell's <(...), and as standard input: neither begins again."""
    (tmp_path / "t").write_text(content)
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["cp", str(tmp_path / "t"), str(tmp_path / "pipe")]):
        assert read_lengths(str(tmp_path / "pipe")).counts == counts
    code = "from kvcalc.traces import read_lengths; print(*read_lengths('-'), sep='; ')"
    done = subprocess.run([sys.executable, "-c", code], input=content, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"{counts}; standard input\n"


SAMPLES = [
    ("azure_llm_2023_code.first2000.csv", "azure", 2000, 853),
    ("azure_llm_2023_conv.first2000.csv", "azure", 2000, 424),
    ("burstgpt_1.first3rows.csv", "burstgpt", 3, None),
    ("mooncake_fast25_conversation.first2000.jsonl", "mooncake", 2000, 669),
    ("mooncake_fast25_synthetic.first2000.jsonl", "mooncake", 2000, 533),
]


@pytest.mark.parametrize(("name", "kind", "number", "seconds"), SAMPLES)
def test_the_public_traces(name: str, kind: str, number: int, seconds: int | None) -> None:
    path = TRACES / name
    if not path.exists():
        pytest.skip("the public traces are not here")
    with open_trace(str(path), strict=True) as trace:
        rows = list(trace.rows)
    assert (trace.reading.kind, len(rows), trace.reading.empty) == (kind, number, 0)
    assert seconds is None or int(rows[-1].arrival_s) == pytest.approx(seconds, abs=1)


def test_gzip_progress_is_told_in_bytes_of_the_file(tmp_path: Path) -> None:
    path, told = tmp_path / "t.gz", list[int]()
    path.write_bytes(gzip.compress(("arrival,prompt,output\n" + "1,2,3\n" * 20_000).encode()))
    with open_trace(str(path), progress=told.append) as trace:
        assert len(list(trace.rows)) == 20_000
    assert told
    assert max(told) <= path.stat().st_size
