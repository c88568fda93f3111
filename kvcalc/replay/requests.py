"""The requests of a trace: what a line says, and which prefixes and conversations it names."""

from collections import Counter, OrderedDict
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from kvcalc.results.replay import Identity, TraceKind

ID_TOKENS: Final = 512
"""Tokens that one of a Mooncake trace's `hash_ids` stands for; the last stands for what is left (FAST25-release/traces of kvcache-ai/Mooncake)."""
MOST_TOKENS: Final = 10**8
"""A length beyond that of any model: none is drawn, and a line that has one is damaged."""
MOST_CONVERSATIONS: Final = 1 << 20
"""Conversations that are remembered, those that spoke last, so that memory is bounded."""
MOST_MAPPED: Final = 1 << 31
"""Block ids below this are remembered as bits (at most 256 MiB): public traces number blocks as they come."""
MOST_LISTED: Final = 1 << 22
"""Larger ids that are remembered one by one."""


class Row(NamedTuple):
    """One request as a trace tells it: seconds from its first request, tokens, and by which block ids or which session its prefix is known."""

    arrival_s: float
    prompt: int
    output: int
    ids: tuple[int, ...] = ()
    session: str | None = None


@dataclass(slots=True)
class Reading:
    """What was met while a trace was read, which whoever reads it counts as it goes. `malformed_lines`: the first few, with their number and what is wrong.
    `empty`: requests without a prompt or an answer, which failed. `unordered`: lines that were put in order.
    """

    source: str
    kind: TraceKind
    identity: Identity | None = None
    malformed: int = 0
    malformed_lines: list[str] = field(default_factory=list)
    empty: int = 0
    unordered: int = 0


class Request(NamedTuple):
    """What a server is sent. `keys` name the parts of its prefix in order, each reaching up to the token in `ends`; equal keys are equal tokens behind equal
    tokens. The last part may reach into the answer. `tail` is the part behind which its conversation goes on. `conversation`: which one that is, None where
    the trace does not tell.
    """

    arrival_s: float
    prompt: int
    output: int
    keys: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    tail: int = -1
    conversation: int | None = None


class Seen:
    """The ids that a cache without end would know."""

    def __init__(self) -> None:
        self._bits = bytearray()
        self._listed: set[int] = set()
        self.full = False

    def leading(self, keys: tuple[int, ...]) -> int:
        """How many of them, from the first on, are known; all are from now on."""
        known = 0
        for key in keys:
            if not self._has(key):
                break
            known += 1
        for key in keys[known:]:
            self._add(key)
        return known

    def _has(self, key: int) -> bool:
        if key >= MOST_MAPPED:
            return key in self._listed
        byte = key >> 3
        return byte < len(self._bits) and bool(self._bits[byte] >> (key & 7) & 1)

    def _add(self, key: int) -> None:
        if key >= MOST_MAPPED:
            if len(self._listed) < MOST_LISTED:
                self._listed.add(key)
            else:
                self.full = True
            return
        byte = key >> 3
        if byte >= len(self._bits):
            self._bits.extend(bytes(max(1 << 16, len(self._bits), byte + 1 - len(self._bits))))
        self._bits[byte] |= 1 << (key & 7)


class _Turn(NamedTuple):
    """Where a session stands: the parts of its prefix, up to the last token that was answered."""

    number: int
    keys: tuple[int, ...]
    ends: tuple[int, ...]


class Prefixes:
    """Names prefixes and conversations, and counts what a cache without end would find again.

    A trace of block ids names prefixes itself; a request whose blocks go on behind all whole blocks of an earlier one goes on with its conversation. A trace
    of sessions names conversations: a prompt at least as long as the turn before it, answer included, is taken to begin with it, a shorter one with nothing.
    """

    def __init__(self) -> None:
        self._seen = Seen()
        self._sessions: OrderedDict[str, _Turn] = OrderedDict()
        self._tails: OrderedDict[int, int] = OrderedDict()
        self._next_key = 0
        self._next_conversation = 0
        self.found: Counter[str] = Counter()

    @property
    def complete(self) -> bool:
        """Whether every id was remembered, so that what was counted is all."""
        return not self._seen.full

    def request(self, row: Row) -> Request:
        self.found["prompt_tokens"] += row.prompt
        if row.ids:
            return self._by_ids(row)
        if row.session is not None:
            return self._by_session(row, row.session)
        return Request(row.arrival_s, row.prompt, row.output)

    def _by_ids(self, row: Row) -> Request:
        ends = (*range(ID_TOKENS, row.prompt, ID_TOKENS), row.prompt)
        known = self._seen.leading(row.ids)
        self.found["ids"] += len(row.ids)
        self.found["known_ids"] += known
        self.found["known_tokens"] += ends[known - 1] if known else 0
        whole = row.ids[: row.prompt // ID_TOKENS]
        tail = next((key for key in reversed(whole) if key in self._tails), None)
        conversation = self._new() if tail is None else self._tails.pop(tail)
        if whole:
            self._tails[whole[-1]] = conversation
        if len(self._tails) > MOST_CONVERSATIONS:
            self._tails.popitem(last=False)
        return Request(row.arrival_s, row.prompt, row.output, row.ids, ends, whole[-1] if whole else -1, conversation)

    def _by_session(self, row: Row, session: str) -> Request:
        before = self._sessions.pop(session, None)
        number = self._new() if before is None else before.number
        goes_on = before is not None and row.prompt >= before.ends[-1]
        keys, ends = (before.keys, before.ends) if before is not None and goes_on else ((), ())
        self.found["known_tokens"] += ends[-1] if ends else 0
        keys, ends = (*keys, self._next_key), (*ends, row.prompt + row.output - 1)
        self._next_key += 1
        self._sessions[session] = _Turn(number, keys, ends)
        if len(self._sessions) > MOST_CONVERSATIONS:
            self._sessions.popitem(last=False)
        return Request(row.arrival_s, row.prompt, row.output, keys, ends, keys[-1], number)

    def _new(self) -> int:
        self._next_conversation += 1
        return self._next_conversation
