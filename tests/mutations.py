"""Valid files made hostile: values, keys, nesting and bytes changed at random. The same seed changes the same things."""

import json
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final


class Raw(str):
    """What stands in a JSON or YAML file as it is, without quotes."""

    __slots__ = ()


class Twice(dict[str, Any]):
    """An object each key of which is written twice."""


NUMBERS: Final = (
    *(0, 1, -1, 2, 3, 7, 127, 255, 256, 4095, 65_536, 10_000, 10_001, 10**6, 10**12, -(10**12)),
    *((1 << 31) - 1, 1 << 31, (1 << 31) + 1, 1 << 32, (1 << 63) - 1, 1 << 63, 1 << 64, 10**30, 10**400, -(10**400)),
)
WRITTEN: Final = tuple(
    map(
        Raw,
        (
            *("NaN", "Infinity", "-Infinity", "nan", ".nan", ".inf", "-.inf", "-0", "-0.0", "0.0", "1.0", "1.5", "0.5", "1e3", "1e400", "-1e400", "1e-400"),
            *("1e999999999", "1e-999999999", "1e999999999999999999999", "0x10", "0o17", "1_000", "1:30", "2024-13-45", "0001-01-01", "~", "<<", "{", "]"),
            *("9" * 4_300, "9" * 4_301, "9" * 20_000, "-" + "9" * 20_000, "0." + "3" * 20_000, "1" * 1_000_000),
        ),
    )
)
TEXTS: Final = (
    *(
        "",
        " ",
        "\x00",
        "\n",
        "\x1b[31mred\x1b[0m",
        "\u202e",
        "\ud800",
        "\ufeff",
        "[/]",
        "[red]",
        "%s%n",
        "{0}",
        "../../etc/passwd",
        "None",
        "null",
        "true",
        "auto",
    ),
    *(
        "x" * 100_000,
        "é",
        "\U0001d7d9\U0001d7da",
        "\u0663",
        "²",
        "1",
        "-1",
        "1e400",
        "9" * 5_000,
        "full_attention",
        "sliding_attention",
        "llama",
        "float16",
        "bfloat16",
        "a" * 61,
    ),
)
_ENCODINGS: Final = ("utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1", "cp037", "utf-7")


class Mutator:
    """Changes what it is given, by a source of randomness of its own."""

    def __init__(self, random: Random) -> None:
        self.random = random

    def few(self) -> int:
        """How many changes: mostly one or two, now and then many."""
        return self.random.choice((1, 1, 1, 1, 2, 2, 3, 5, 20))

    def value(self) -> Any:
        """Any value at all."""
        pick = self.random.random()
        if pick < 0.35:
            return self.random.choice(NUMBERS)
        if pick < 0.55:
            return self.random.choice(WRITTEN)
        if pick < 0.75:
            return self.random.choice(TEXTS)
        made: Sequence[Callable[[], Any]] = (
            lambda: None,
            lambda: True,
            lambda: False,
            list,
            dict,
            lambda: [self.random.choice(NUMBERS) for _ in range(self.random.choice((1, 2, 32, 200, 10_001)))],
            lambda: [self.random.choice(TEXTS[:-8])] * self.random.choice((1, 2, 32, 200)),
            lambda: {self.random.choice(TEXTS): self.random.choice(NUMBERS)},
            self.nested,
        )
        return self.random.choice(made)()

    def nested(self) -> Any:
        """Lists or objects in each other: seldom deeper than a parser goes."""
        depth = self.random.choice((3, 50, 200, 900))
        return Raw("[" * depth + "]" * depth) if self.random.random() < 0.5 else Raw('{"a":' * depth + "1" + "}" * depth)

    def tree(self, value: Any) -> Any:
        """A JSON value with a few changes, in place where it can be."""
        for _ in range(self.few()):
            places = list(_places(value))
            if not places or self.random.random() < 0.01:
                return self.value()
            self._change(*self.random.choice(places))
        return value

    def _change(self, holder: Any, key: Any) -> None:
        old = holder[key]
        match self.random.randrange(9):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                name = self.random.choice((str(key) + "_", str(key)[1:], str(key).upper(), self.random.choice(TEXTS)))
                holder[name] = holder.pop(key)
            case 2 if isinstance(old, list) and old:
                holder[key] = old * self.random.choice((2, 3, 100)) if self.random.random() < 0.5 else old[: self.random.randrange(len(old))]
            case 3 if isinstance(old, int) and not isinstance(old, bool):
                holder[key] = self.random.choice((old + 1, old - 1, -old, old * 2, old // 2, old * 1_000, old << 40))
            case 4 if isinstance(old, dict):
                holder[key] = Twice(old)
            case 5:
                holder[key] = [old]
            case 6:
                holder[key] = str(old)
            case _:
                holder[key] = self.value()

    def data(self, data: bytes) -> bytes:  # noqa: C901 (a table of changes)
        """Bytes with a few changes, of a text in another encoding now and then."""
        if self.random.random() < 0.1:
            return data.decode(errors="replace").encode(self.random.choice(_ENCODINGS), errors="replace")
        for _ in range(self.few()):
            at = self.random.randrange(len(data) + 1)
            match self.random.randrange(8):
                case 0:
                    data = data[:at]
                case 1:
                    data = data[:at] + self.random.randbytes(self.random.choice((1, 2, 8, 64))) + data[at:]
                case 2:
                    data = data[:at] + data[at + self.random.choice((1, 2, 8, 64)) :]
                case 3:
                    data = data[:at] + data[max(0, at - 64) : at] * self.random.choice((1, 2, 50)) + data[at:]
                case 4:
                    data = data[:at] + self.random.choice(WRITTEN[:-1]).encode() + data[at:]
                case 5:
                    data = data[:at] + self.random.choice(TEXTS).encode(errors="surrogatepass") + data[at:]
                case 6:
                    data = (
                        data[:at] + self.random.choice((b"\xff" * 8, b"\x00" * 8, b"\x00\x00\x00\x80", b"\n", b"\r", b'"', b"{", b"[", b",")) + data[at + 8 :]
                    )
                case _ if at < len(data):
                    data = data[:at] + bytes((data[at] ^ (1 << self.random.randrange(8)),)) + data[at + 1 :]
        return data

    def some(self, data: bytes, part: float = 0.3) -> bytes:
        """The same, of a part of what is given."""
        return self.data(data) if self.random.random() < part else data

    def figures(self, text: str) -> str:
        """A text with a few of its numbers changed."""
        spans = [(at, end) for at, end in _numbers(text)]
        for at, end in sorted(self.random.sample(spans, min(len(spans), self.few())), reverse=True):
            text = text[:at] + str(self.random.choice((*NUMBERS, *WRITTEN[:-1], *TEXTS))) + text[end:]
        return text


def _numbers(text: str) -> list[tuple[int, int]]:
    spans, start = [], None
    for index, letter in enumerate(text + " "):
        if letter.isdigit() or (start is not None and letter == "."):
            start = index if start is None else start
        elif start is not None:
            spans.append((start, index))
            start = None
    return spans


def _places(value: Any) -> Any:
    """Each value within, by what holds it and where."""
    match value:
        case dict():
            for key in list(value):
                yield value, key
                yield from _places(value[key])
        case list():
            for index in range(min(len(value), 50)):
                yield value, index
                yield from _places(value[index])
        case _:
            pass


def dumped(value: Any) -> str:
    """A JSON text, in which Raw stands as it is and the keys of Twice stand twice. Integers of any length are written."""
    match value:
        case Raw():
            return str(value)
        case bool() | None | float():
            return json.dumps(value)
        case int():
            return str(value)
        case str():
            return json.dumps(value)
        case dict():
            pairs = [f"{json.dumps(str(name))}: {dumped(each)}" for name, each in value.items()]
            return "{" + ", ".join(pairs * 2 if isinstance(value, Twice) else pairs) + "}"
        case _:
            return "[" + ", ".join(map(dumped, value)) + "]"
