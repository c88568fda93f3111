"""What a start-up log says: the engine, every memory figure, the configuration, and why a server did not start. Pure; nothing is predicted here."""

import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, NamedTuple

from kvcalc.errors import KvcalcError, printable
from kvcalc.layers import Note
from kvcalc.units import MAX_BYTES, MAX_TOKENS
from kvcalc.verify.log_config import settings_in
from kvcalc.verify.log_lines import FAILURES, LINES, LOOKED_FOR, RELEASES, STARTS, UNIT_BYTES, UNITS, EngineName, Failed

MOST_BYTES: Final = 16 << 20
"""What is read of a log: servers start within it."""
LONGEST_LINE: Final = 32_000
"""Characters that are read of a line. vLLM's longest, its configuration, has some thousands."""
MOST_LINES: Final = 200_000
"""Lines that are read: more than so many bytes of a real log have."""
MOST_OVERWRITTEN: Final = 1_000
"""States of one progress bar, which overwrites itself."""
MOST_FIGURES: Final = 20_000
ENGINES: Final[tuple[EngineName, ...]] = ("vllm", "sglang", "trtllm", "llama.cpp")

_ANSI: Final = re.compile(r"\x1b(?:\[[0-9;:?]{0,64}[ -/]{0,8}[@-~]|[@-Z\\^_]|\][^\x07\x1b]{0,200}\x07)")
_WORKER: Final = re.compile(r"\((\w{1,40}(?: rank=\d{1,5})?) {0,2}pid=(\d{1,10})[^)]{0,60}\)", re.ASCII)
_RANK: Final = re.compile(r"^\[[^\]]{0,40}?((?: (?:DP|TP|PP|EP)\d{1,4}){1,4})\]", re.ASCII)


class Figure(NamedTuple):
    """One number of a log: what it is of, as printed, its unit, the line that it stands on (from 1) and who printed it (empty where nothing says)."""

    name: str
    text: str
    unit: str
    line: int
    rank: str

    @property
    def number(self) -> Decimal:
        return Decimal(self.text)

    @property
    def half_digit(self) -> Decimal:
        """How far the number may lie from what was printed: half of its last digit, 0 for a count. Zeros at the end are dropped by engines that round to two
        digits.
        """
        if self.unit in ("tokens", "blocks", "requests", "layers", "bytes"):
            return Decimal(0)
        _, _, decimals = self.text.partition(".")
        return Decimal(1).scaleb(-max(2, len(decimals))) / 2

    @property
    def size_bytes(self) -> int:
        """Of a size: bytes, a part of one dropped."""
        return int(self.number * UNIT_BYTES[self.unit])

    @property
    def half_digit_bytes(self) -> int:
        return int(self.half_digit * UNIT_BYTES[self.unit])


class Failure(NamedTuple):
    """Why the server did not start, and the line that says so: a request of the context is longer than the cache, nothing is left for one, others hold the
    GPU, or an allocation failed.
    """

    why: Failed
    line: int


class LogFacts(NamedTuple):
    """A log as read. `release` is None where none is printed. `settings`: options by kvcalc's own names for them, as text. `failure` is None for a server that
    started as far as the log goes.
    """

    engine: EngineName
    release: str | None
    figures: tuple[Figure, ...]
    settings: Mapping[str, str]
    failure: Failure | None
    notes: tuple[Note, ...]

    def all(self, *names: str) -> tuple[Figure, ...]:
        return tuple(figure for figure in self.figures if figure.name in names)

    def last(self, *names: str) -> Figure | None:
        """The last of these figures that was printed: engines repeat a figure once it is better known."""
        found = self.all(*names)
        return found[-1] if found else None

    def least(self, *names: str) -> Figure | None:
        """The smallest of the ranks' last ones: that GPU binds."""
        by_rank = {figure.rank: figure for figure in self.all(*names)}
        return min(by_rank.values(), key=lambda figure: figure.number, default=None)

    def most(self, *names: str) -> Figure | None:
        """The largest of the ranks' last ones."""
        by_rank = {figure.rank: figure for figure in self.all(*names)}
        return max(by_rank.values(), key=lambda figure: figure.number, default=None)

    def beside(self, figure: Figure, name: str) -> Figure | None:
        """Another figure of the same line."""
        return next((other for other in self.figures if (other.name, other.line) == (name, figure.line)), None)


class _Read(NamedTuple):
    """One start as it is read, for each engine that its lines may be of."""

    figures: dict[EngineName, list[Figure]]
    releases: dict[EngineName, str]
    settings: dict[EngineName, dict[str, str]]
    failures: list[Failure]


def read_log(data: bytes, engine: str | None = None) -> LogFacts:
    """The last start that a log tells of, by that `engine` where its lines are known, else by the one that most of its lines are of.

    Raises KvcalcError where no line is known.
    """
    notes = []
    if len(data) > MOST_BYTES:
        notes.append(Note(code="log-cut", text=f"the log has more than {MOST_BYTES:,} bytes: its first {MOST_BYTES:,} are read"))
    elif (lines := data.count(b"\n")) > MOST_LINES:
        notes.append(Note(code="log-cut", text=f"the log has {lines:,} lines: its first {MOST_LINES:,} are read"))
    starts = 0
    read = _empty()
    for number, line in _lines(data[:MOST_BYTES]):
        low = line.lower()
        if any(start in low for start in STARTS) and any(read.figures.values()):
            starts += 1
            read = _empty()
        _read_line(read, number, line, low)
    if starts:
        notes.append(Note(code="log-starts", text=f"the log tells of {starts + 1} starts: the last one is read"))
    found = next((name for name in ENGINES if name == engine), None) or _engine_of(read)
    if found is None or not (read.figures[found] or read.failures):
        raise KvcalcError(
            f"no line{'' if found is None else f' of {found}'} in this log tells a memory figure", hint=f"lines that are looked for: {LOOKED_FOR}"
        )
    figures = read.figures[found]
    planned = max((figure.line for figure in figures if figure.name in ("tokens", "requests")), default=0)
    failures = [failure for failure in read.failures if failure.line >= planned or failure.why == "out_of_memory"]
    failure = failures[-1] if failures else _failure_by_figures(figures)
    return LogFacts(found, read.releases.get(found), tuple(figures), dict(read.settings[found]), failure, tuple(notes))


def _engine_of(read: _Read) -> EngineName | None:
    """The engine that most figures are of; settings count where there is none, and failures that no engine is named with are vLLM's."""
    scores = {name: (len(read.figures[name]), len(read.settings[name]), name in read.releases) for name in ENGINES}
    best = max(ENGINES, key=lambda name: scores[name])
    if any(scores[best]):
        return best
    return "vllm" if read.failures else None


def _empty() -> _Read:
    return _Read({name: [] for name in ENGINES}, {}, {name: {} for name in ENGINES}, [])


def _lines(data: bytes) -> Iterator[tuple[int, str]]:
    """Lines as numbered by an editor, without colours; a progress bar that overwrites itself is several of one number."""
    wide = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    text = data.decode("utf-16" if wide else "utf-8", "replace")
    for number, whole in enumerate(text.split("\n", MOST_LINES)[:MOST_LINES], 1):
        for part in whole.split("\r", MOST_OVERWRITTEN)[:MOST_OVERWRITTEN]:
            line = _ANSI.sub("", part[:LONGEST_LINE]).strip().removeprefix("\ufeff")
            if line:
                yield number, line


def _read_line(read: _Read, number: int, line: str, low: str) -> None:
    rank = _rank(line)
    found: list[tuple[int, EngineName, Figure]] = []
    for known in LINES:
        if known.anchor in low:
            for match in known.pattern.finditer(line):
                found += [(match.start(figure.name), known.engine, figure) for figure in _figures(match, number, rank)]
    for _, engine, figure in sorted(found, key=lambda each: each[0]):
        if len(read.figures[engine]) < MOST_FIGURES:
            read.figures[engine].append(figure)
    for engine, pattern in RELEASES:
        if (release := pattern.search(line)) is not None:
            read.releases[engine] = release.group(1)
    for engine in ENGINES:
        read.settings[engine].update(settings_in(engine, line, low))
    read.failures.extend(Failure(why, number) for text, why in FAILURES if text in low)


def _figures(match: re.Match[str], number: int, rank: str) -> Iterator[Figure]:
    for name, text in match.groupdict().items():
        if text is not None:
            yield Figure(name, text.replace(",", ""), UNITS.get(name, "GiB"), number, rank)


def _rank(line: str) -> str:
    if (worker := _WORKER.search(line)) is not None:
        return f"{worker.group(1)} {worker.group(2)}"
    rank = _RANK.match(line)
    return "" if rank is None else rank.group(1).strip()


def _failure_by_figures(figures: Iterable[Figure]) -> Failure | None:
    """A cache of less than nothing was not started, even where the line that says so is missing."""
    below = [figure for figure in figures if figure.name == "available" and figure.number <= 0]
    return Failure("none_left", below[-1].line) if below else None


def described(figure: Figure) -> str:
    """Where a figure stands, for an explanation."""
    return printable(f"line {figure.line}" + (f" ({figure.rank})" if figure.rank else ""))


def options_from(facts: LogFacts) -> dict[str, Any]:
    """Options that the log states, by the names of the command line's parameters and parsed as it does: `engine` (with its release), `model`, `tp`, `pp`,
    `dp`, `dcp`, `context`, `kv_dtype`, `max_batched_tokens`, `max_seqs`, `block_size`, `utilization`, `gpu_mem`, `enforce_eager`, `no_prefix_caching`,
    `quantization`, `mtp`, `mem_fraction_static` ... What it does not state, or states in words that are not known, is left out.
    """
    from kvcalc.verify.log_config import parsed

    found = parsed(facts.engine, facts.release, facts.settings)
    total, part, length = facts.least("total"), facts.last("utilization"), facts.last("max_seq_len") or facts.last("context")
    if total is not None and 0 < total.size_bytes <= MAX_BYTES:
        found.setdefault("gpu_mem", total.size_bytes)
    if part is not None and 0 < part.number <= 1 and "mem_fraction_static" not in found:
        found.setdefault("utilization", part.number)
    if length is not None and 0 < length.number <= MAX_TOKENS:
        found["context"] = int(length.number)
    slots = facts.last("slots")
    if slots is not None and 0 < slots.number <= MAX_TOKENS and facts.engine == "llama.cpp":
        found.setdefault("max_seqs", int(slots.number))
    return found
