"""Request traces as files: the place that opens them. A trace is read line by line, however long it is."""

import csv
import heapq
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from math import inf, isfinite
from typing import Any, Final, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.files import MOST_UNREADABLE, Line, Progress, opened_lines, source_of
from kvcalc.replay.requests import ID_TOKENS, MOST_TOKENS, Reading, Row
from kvcalc.results.replay import Identity, TraceKind
from kvcalc.units import exact_int, shorten
from kvcalc.workload import Lengths

MOST_LINE_BYTES: Final = 1 << 22
"""A longer line is no request: a million block ids are shorter."""
MOST_SECONDS: Final = 10**10
WINDOW: Final = 4096
"""Lines among which requests are put in the order of their arrival."""
SHOWN: Final = 5
"""Malformed lines that are told."""


class Schema(NamedTuple):
    """The columns of a kind of trace. `per_second`: units of its time stamps in a second, None where they are a date. `optional` names a session."""

    kind: TraceKind
    arrival: str
    prompt: str
    output: str
    per_second: int | None = 1
    ids: str | None = None
    session: str | None = None

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(name for name in (self.arrival, self.prompt, self.output, self.ids) if name is not None)


SCHEMAS: Final = (
    Schema("azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", per_second=None),
    Schema("burstgpt", "Timestamp", "Request tokens", "Response tokens", session="Session ID"),
    Schema("mooncake", "timestamp", "input_length", "output_length", per_second=1000, ids="hash_ids"),
    Schema("kvcalc", "arrival", "prompt", "output", session="session"),
)
"""Azure/AzurePublicDataset, HPMLL/BurstGPT (the third file has two columns more), kvcache-ai/Mooncake (milliseconds), and kvcalc's own plain names
(seconds)."""


class _MalformedError(Exception):
    """What is wrong with a line."""


class Trace(NamedTuple):
    """An open trace: `rows` in the order of arrival, from 0 seconds on, and what was met, which grows while they are taken."""

    rows: Iterator[Row]
    reading: Reading


@contextmanager
def open_trace(name: str, *, strict: bool = False, progress: Progress | None = None) -> Iterator[Trace]:
    """A trace from a file, gzipped or not, or from standard input (`-`). The header, or the names of the first object, tell what it is.

    Raises KvcalcError for a file that cannot be read or is no trace, and where `strict` for the first malformed line; while rows are taken also for a header
    of another kind of trace among them.
    """
    source = source_of(name)
    with opened_lines(name, MOST_LINE_BYTES, progress) as read:
        lines = _decoded(read)
        yield _trace(_first(lines, source), lines, source, strict=strict)


def _trace(first: tuple[int, str] | None, lines: Iterator[tuple[int, str]], source: str, *, strict: bool) -> Trace:
    """The trace that begins with `first` and goes on with `lines`."""
    if first is None:
        raise KvcalcError(f"{shorten(source)} is empty", hint="a trace has a header (CSV) or an object a line (JSONL)")
    parse, reading = _parser(first[1], source)
    wanted = chain([first], lines) if first[1].lstrip().startswith("{") else lines
    return Trace(_from_zero(_in_order(_rows(wanted, parse, reading, strict=strict), reading, strict=strict)), reading)


MOST_LENGTHS: Final = 1 << 20
"""Different lengths that are told apart."""


def read_lengths(name: str) -> Lengths:
    """Tokens of each request, prompt and output together, of a trace or of a file with a number a line. Raises KvcalcError as `open_trace` does, and for a file
    without any. It is opened once: a pipe does not begin again.
    """
    counts: Counter[int] = Counter()
    source = source_of(name)
    with opened_lines(name, MOST_LINE_BYTES) as read:
        lines = _decoded(read)
        first = _first(lines, source)
        if first is not None and first[1].strip().isdecimal():
            for number, line in chain([first], lines):
                word = line.strip()
                if not word:
                    continue
                if not (word.isascii() and word.isdecimal() and len(word) <= 20 and 0 < int(word) <= MOST_TOKENS):
                    raise KvcalcError(f"line {number} of {shorten(name)} is no length", hint="write a whole number of tokens a line, or name a trace")
                counts[int(word)] += 1
            return _lengths(counts, source)
        rows, reading = _trace(first, lines, source, strict=False)
        for row in rows:
            counts[row.prompt + row.output] += 1
    return _lengths(counts, f"{source}, {reading.malformed:,} malformed lines left out" if reading.malformed else source)


def lengths_of(numbers: Iterable[object]) -> Lengths:
    """The same of lengths that are at hand. Raises KvcalcError (usage) for what is no length, and for none."""
    counts: Counter[int] = Counter()
    for number in numbers:
        if isinstance(number, bool) or not isinstance(number, int) or not 0 < number <= MOST_TOKENS:
            raise KvcalcError(f"{shorten(repr(number))} is no length of a request", hint="whole numbers of tokens are", code=ExitCode.USAGE)
        counts[number] += 1
    return _lengths(counts, "the list of lengths")


def _first(lines: Iterator[tuple[int, str]], source: str) -> tuple[int, str] | None:
    """The first line that says something, None where there is none. Raises KvcalcError where it does not come."""
    for number, line in lines:
        if line.strip():
            return number, line
        if number >= MOST_UNREADABLE:
            raise KvcalcError(
                f"{shorten(source)} has {number:,} empty lines before anything else", hint="a trace has a header (CSV) or an object a line (JSONL)"
            )
    return None


def _lengths(counts: Counter[int], source: str) -> Lengths:
    if not counts:
        raise KvcalcError(f"{shorten(source)} holds no request", hint="name a trace, or a file with a number a line")
    if len(counts) > MOST_LENGTHS:
        raise KvcalcError(f"{shorten(source)} has more than {MOST_LENGTHS:,} different lengths", hint="name a part of it")
    return Lengths(tuple(sorted(counts.items())), source)


def _decoded(lines: Iterator[Line]) -> Iterator[tuple[int, str]]:
    for number, text, _ in lines:
        yield number, text.decode(errors="replace")


def _parser(first: str, source: str) -> tuple[Callable[[str], Row], Reading]:
    """What reads a line of the trace that begins so."""
    if first.lstrip().startswith("{"):
        try:
            names = set(_object(first))
        except _MalformedError as error:
            raise KvcalcError(f"{shorten(source)} is no trace: its first line is {error}", hint=_known()) from None
        schema = _schema(names, source)
        identity: Identity | None = "blocks" if schema.ids is not None else "sessions" if schema.session in names else None
        return _json_parser(schema, names), Reading(source, schema.kind, identity)
    try:
        columns = [name.strip() for name in _cells(first)]
    except _MalformedError:
        columns = []
    schema = _schema(set(columns), source)
    if schema.ids is not None:
        raise KvcalcError(f"{shorten(source)} has the columns of a Mooncake trace, which is JSONL", hint="one object a line, hash_ids a list of numbers")
    twice = next((name for name in (*schema.needs, schema.session) if columns.count(name or "") > 1), None)
    if twice is not None:
        raise KvcalcError(f"{shorten(source)} has the column {twice} twice", hint="leave one of them out")
    return _csv_parser(schema, columns), Reading(source, schema.kind, "sessions" if schema.session in columns else None)


def _schema(names: set[str], source: str) -> Schema:
    for schema in SCHEMAS:
        if names.issuperset(schema.needs):
            return schema
    shown = shorten(printable(", ".join(sorted(names))), 120)
    raise KvcalcError(f"{shorten(source)} has the columns of no trace that is known: {shown}", hint=_known())


def _known() -> str:
    return "known are " + "; ".join(f"{schema.kind}: {', '.join(schema.needs)}" for schema in SCHEMAS)


def _csv_parser(schema: Schema, columns: list[str]) -> Callable[[str], Row]:
    positions = {name: index for index, name in enumerate(columns)}
    arrival, prompt, output = (positions[name] for name in (schema.arrival, schema.prompt, schema.output))
    session = None if schema.session is None else positions.get(schema.session)
    width = len(columns)
    seconds = _date if schema.per_second is None else _number

    def parse(line: str) -> Row:
        cells = _cells(line)
        if len(cells) != width:
            names = {cell.strip() for cell in cells}
            _check_header(names)
            raise _MalformedError(f"{len(cells)} columns, not {width}")
        try:
            lengths = _length(cells[prompt], schema.prompt), _length(cells[output], schema.output)
        except _MalformedError:
            _check_header({cell.strip() for cell in cells}, own=schema)
            raise
        named = cells[session].strip() if session is not None else ""
        return Row(seconds(cells[arrival]), *lengths, session=named or None)

    return parse


def _cells(line: str) -> list[str]:
    if '"' not in line:
        return line.rstrip("\r\n").split(",")
    try:
        return next(csv.reader([line]), [])
    except csv.Error:
        raise _MalformedError("no line of a CSV file") from None


class _RepeatedHeaderError(Exception):
    """The header again, as where files were put one behind the other."""


def _check_header(names: set[str], own: Schema | None = None) -> None:
    """Raises KvcalcError where a line is the header of another trace."""
    for schema in SCHEMAS:
        if names.issuperset(schema.needs):
            if schema == own:
                raise _RepeatedHeaderError
            raise KvcalcError(f"the header of another trace ({schema.kind}) stands among the lines", hint="replay one trace at a time")


def _json_parser(schema: Schema, first: set[str]) -> Callable[[str], Row]:
    def parse(line: str) -> Row:
        found = _object(line)
        missing = [name for name in schema.needs if name not in found]
        if missing:
            if others := [other.kind for other in SCHEMAS if found.keys() >= set(other.needs)]:
                raise KvcalcError(f"a request of another trace ({others[0]}) stands among the lines", hint="replay one trace at a time")
            raise _MalformedError(f"no {missing[0]}")
        stamp = found[schema.arrival]
        if schema.per_second is None:
            arrival = _date(stamp)
        elif isinstance(stamp, int | float) and not isinstance(stamp, bool):
            arrival = _seconds(stamp / schema.per_second if abs(stamp) <= MOST_SECONDS * schema.per_second else inf)  # no float holds every whole number
        else:
            raise _MalformedError(f"{schema.arrival} is no number")
        prompt, output = _length(found[schema.prompt], schema.prompt), _length(found[schema.output], schema.output)
        session = found.get(schema.session) if schema.session in first else None
        return Row(arrival, prompt, output, _ids(found[schema.ids], prompt) if schema.ids else (), None if session is None else str(session)[:200])

    return parse


def _object(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line, parse_int=exact_int)
    except (ValueError, RecursionError):
        raise _MalformedError("no JSON object") from None
    if not isinstance(found, dict):
        raise _MalformedError("no JSON object")
    return found


def _length(value: object, name: str) -> int:
    """Tokens of a prompt or an answer."""
    if isinstance(value, str):
        text = value.strip()
        whole = text.removesuffix(".0")
        if not whole.removeprefix("-").isdecimal() or len(whole) > 30:
            raise _MalformedError(f"{name} is no whole number")
        number = int(whole)
    elif isinstance(value, int) and not isinstance(value, bool):
        number = value
    else:
        raise _MalformedError(f"{name} is no whole number")
    if number < 0:
        raise _MalformedError(f"{name} is below 0")
    if number > MOST_TOKENS:
        raise _MalformedError(f"{name} is above {MOST_TOKENS:,}")
    return number


def _ids(value: object, prompt: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < 1 << 63 for each in value):
        raise _MalformedError("hash_ids is no list of numbers")
    if len(value) != -(-prompt // ID_TOKENS):
        raise _MalformedError(f"{len(value)} hash_ids, not one for each {ID_TOKENS} of {prompt:,} tokens")
    return tuple(value)


def _number(text: str) -> float:
    try:
        return _seconds(float(text))
    except ValueError:
        raise _MalformedError("the time stamp is no number") from None


def _seconds(number: float) -> float:
    if not isfinite(number) or abs(number) > MOST_SECONDS:
        raise _MalformedError("the time stamp is absurd")
    return number


def _date(value: object) -> float:
    """A date and time; digits of a second behind the sixth are dropped, as Azure's seventh."""
    text = str(value).strip()
    head, dot, part = text.partition(".")
    digits = len(part) - len(part.lstrip("0123456789"))
    try:
        stamp = datetime.fromisoformat(head + dot + part[: min(digits, 6)].ljust(6, "0") + part[digits:] if dot else text)
    except ValueError:
        raise _MalformedError("the time stamp is no date") from None
    return (stamp if stamp.tzinfo is not None else stamp.replace(tzinfo=UTC)).timestamp()


def _rows(lines: Iterator[tuple[int, str]], parse: Callable[[str], Row], reading: Reading, *, strict: bool) -> Iterator[tuple[int, Row]]:
    told = False
    for number, line in lines:
        if not told and number > MOST_UNREADABLE:
            why = f": {reading.malformed_lines[0]}" if reading.malformed_lines else ""
            raise KvcalcError(f"none of the first {MOST_UNREADABLE:,} lines of {shorten(reading.source)} is a request{why}", hint=_known())
        if not line.strip():
            continue
        try:
            row = parse(line)
        except _RepeatedHeaderError:
            continue
        except _MalformedError as error:
            _refuse(number, str(error), reading, strict=strict)
            continue
        except KvcalcError as error:
            raise KvcalcError(f"line {number:,}: {error.message}", hint=error.hint) from None
        told = True
        if row.prompt and row.output:
            yield number, row
        else:
            reading.empty += 1


def _refuse(number: int, why: str, reading: Reading, *, strict: bool) -> None:
    if strict:
        raise KvcalcError(f"line {number:,}: {why}", hint="leave out --strict to count such lines and go on")
    reading.malformed += 1
    if len(reading.malformed_lines) < SHOWN:
        reading.malformed_lines.append(f"line {number:,}: {why}")


def _in_order(rows: Iterator[tuple[int, Row]], reading: Reading, *, strict: bool) -> Iterator[Row]:
    """Rows by their arrival. One that comes too late to be put in order is malformed."""
    ahead: list[tuple[float, int, Row]] = []
    newest = last = -inf
    for number, row in rows:
        if len(ahead) < WINDOW:
            heapq.heappush(ahead, (row.arrival_s, number, row))
        else:
            arrival, _, least = heapq.heappushpop(ahead, (row.arrival_s, number, row))
            if arrival < last:
                _refuse(number, "earlier than requests long before it", reading, strict=strict)
                continue
            last = arrival
            yield least
        reading.unordered += row.arrival_s < newest
        newest = max(newest, row.arrival_s)
    while ahead:
        yield heapq.heappop(ahead)[2]


def _from_zero(rows: Iterator[Row]) -> Iterator[Row]:
    first = next(rows, None)
    if first is None:
        return
    yield first._replace(arrival_s=0.0)
    for row in rows:
        yield row._replace(arrival_s=row.arrival_s - first.arrival_s)
