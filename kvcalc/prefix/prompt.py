"""A prompt as a file has it: what is read out of a record, and in which order it stands before the model."""

from array import array
from collections.abc import Iterator, Mapping
from hashlib import sha256
from json import dumps
from typing import Any, Final, NamedTuple

ROLES: Final = frozenset(("system", "developer", "user", "assistant", "tool", "function", "tools", "model"))
"""Roles that are named in an answer: any other word comes from the file."""
MOST_ID: Final = (1 << 32) - 1


NESTED: Final = "JSON with numbers or nesting beyond reason"


class RecordError(Exception):
    """A record that is no prompt. `reason` says why without a word of it."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Part(NamedTuple):
    """A message, the definitions of tools, or a plain text (`role` is then empty). It lies at `start` of the prompt's text, its own text at `content`."""

    role: str
    start: int
    content: int


class Prompt(NamedTuple):
    """A prompt's `text` with its parts, or the `ids` of its tokens (32 bits each) where the file has those. `kind` is the form that it was found in.
    `space` differs between prompts that share nothing whatever they say: those for another model or adapter, or with another cache_salt.
    """

    text: str
    parts: tuple[Part, ...]
    kind: str
    ids: bytes | None = None
    space: bytes = b""


def plain(text: str) -> Prompt:
    """Raises RecordError for an empty text, and one that no engine would take."""
    return Prompt(_unicode(text), (Part("", 0, 0),), "text")


def from_record(record: object) -> Iterator[Prompt]:
    """The prompts of one JSON value: several where a completion request has a list of them. Raises RecordError where it is none.

    Messages are joined as `<|role|>`, a line break, the content, a line break; definitions of tools stand before them, one a line, as chat templates place
    them. A picture or another medium is a mark with the hash of its record.
    """
    match record:
        case str():
            yield plain(record)
        case list():
            yield _chat(record, None)
        case {"body": dict() as body}:
            space = _space(body)
            for prompt in _of_object(body):
                yield prompt._replace(kind=f"batch of {prompt.kind}", space=space)
        case dict():
            space = _space(record)
            for prompt in _of_object(record):
                yield prompt._replace(space=space)
        case _:
            raise RecordError("neither an object, a list nor a text")


def _of_object(record: Mapping[str, Any]) -> Iterator[Prompt]:
    match record:
        case {"messages": messages, **rest}:
            yield _chat(messages, rest.get("tools", rest.get("functions")))
        case {"prompt": prompt, **rest} | {"input": prompt, **rest}:
            yield from _completion(prompt, rest)
        case {"text": str() as text}:
            yield plain(text)
        case _:
            raise RecordError("no messages, prompt, input or text in it")


def _space(record: Mapping[str, Any]) -> bytes:
    """A hash of what keeps prompts apart; empty where nothing does."""
    named = {key: record[key] for key in ("model", "cache_salt") if isinstance(record.get(key), str)}
    return sha256(_json(named).encode("utf-8", "surrogatepass")).digest()[:8] if named else b""


def _completion(prompt: object, record: Mapping[str, Any]) -> Iterator[Prompt]:
    match prompt:
        case str():
            instructions = record.get("instructions")
            if isinstance(instructions, str):
                yield _chat([{"role": "system", "content": instructions}, {"role": "user", "content": prompt}], record.get("tools"))
            else:
                yield plain(prompt)
        case [int(), *_]:
            yield _of_ids(list(prompt))
        case [str(), *_] | [[int(), *_], *_]:
            for each in prompt:
                yield from _completion(each, {})
        case [dict(), *_]:
            instructions = record.get("instructions")
            first = [{"role": "system", "content": instructions}] if isinstance(instructions, str) else []
            yield _chat([*first, *prompt], record.get("tools"))
        case _:
            raise RecordError("its prompt is neither a text, a list of texts, messages nor token ids")


def _of_ids(ids: list[Any]) -> Prompt:
    if not all(type(each) is int and 0 <= each <= MOST_ID for each in ids):
        raise RecordError("token ids that are not whole numbers from 0 to 2^32 - 1")
    return Prompt("", (), "token ids", array("I", ids).tobytes())


def _chat(messages: object, tools: object) -> Prompt:
    if not isinstance(messages, list) or not messages:
        raise RecordError("its messages are no list, or an empty one")
    sections = [("tools", "\n".join(_json(tool) for tool in tools))] if isinstance(tools, list) and tools else []
    for message in messages:
        match message:
            case {"role": str() as role} | {"type": str() as role}:
                sections.append((role, _content(message)))
            case _:
                raise RecordError("a message without a role")
    text, parts = "", []
    for role, content in sections:
        head = f"<|{role}|>\n"
        parts.append(Part(role if role in ROLES else "", len(text), len(text) + len(head)))
        text += f"{head}{content}\n"
    return Prompt(_unicode(text), tuple(parts), "chat")


def _content(message: Mapping[str, Any]) -> str:
    """What a message says, then what it calls."""
    match message.get("content"):
        case None:
            said: list[str] = []
        case str() as text:
            said = [text]
        case list() as pieces:
            said = [_piece(piece) for piece in pieces]
        case _:
            raise RecordError("a message whose content is neither a text nor a list of parts")
    beside = [_json(message[key]) for key in ("tool_calls", "function_call", "arguments", "output") if message.get(key) is not None]
    return "\n".join([*said, *beside])


def _piece(piece: object) -> str:
    match piece:
        case str():
            return piece
        case {"text": str() as text}:
            return text
        case _:
            return f"<|{sha256(_json(piece).encode('utf-8', 'surrogatepass')).hexdigest()[:16]}|>"


def _json(value: object) -> str:
    """As chat templates write it: keys in the order that they come in."""
    try:
        return dumps(value, ensure_ascii=False)
    except RecursionError:
        raise RecordError(NESTED) from None


def _unicode(text: str) -> str:
    if not text.strip():
        raise RecordError("an empty prompt")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RecordError("half of a character (a lone surrogate)") from None
    return text
