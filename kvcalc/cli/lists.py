"""Options that take lists and ranges: derived from those of a command that takes one value of each."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import cached_property
from inspect import signature
from typing import Annotated, Any, Final, NamedTuple, get_args

import typer
from typer.main import get_command

from kvcalc.cli.budget import SIZE
from kvcalc.cli.machine import DURATION
from kvcalc.cli.options import Group, complete_in_list
from kvcalc.errors import without_halves
from kvcalc.packing import KvDtype
from kvcalc.units import BINARY_UNITS, TIME_UNITS

NONE: Final = "none"
"""What stands in a list for an option that is not given."""
REPEATED: Final = ("model",)
"""Options that may also be given several times."""
RULE: Final = (
    "Every option but a switch may be a list (--tp 1,2,4) or, where it is a number or a size, a range: 1K..64K doubles from its low end and "
    "includes its high end, 8K..64K+8K goes in steps. In a list, none stands for an option that is not given."
)


class Element(NamedTuple):
    """One value of an option: the word for it on a command line, and what it stands for."""

    word: str
    value: Any


class _Option(NamedTuple):
    """An option of the other command: its type (but for None), typer's words about it, its default."""

    kind: Any
    words: Any
    default: Any

    @property
    def is_switch(self) -> bool:
        return self.kind is bool

    @property
    def is_number(self) -> bool:
        return self.kind in (int, Decimal)

    @property
    def is_size(self) -> bool:
        return bool(self.words.metavar == SIZE["metavar"])

    @property
    def is_duration(self) -> bool:
        return bool(self.words.metavar == DURATION["metavar"])

    def word(self, value: Any) -> str:  # noqa: ANN401 (each option has a type of its own)
        """One value of a range, as it is typed."""
        return _size(value) if self.is_size else _duration(value) if self.is_duration else _word(value)

    @property
    def names(self) -> list[str]:
        """What it is called on a command line: typer files the first name as a default."""
        return [self.words.default, *self.words.param_decls]

    @property
    def flag(self) -> str:
        """Its first name."""
        return self.names[0]


class Lists:
    """The options of `command`, but those named in `but`. Each takes a list, or where it is a number a range; switches stay as they are."""

    def __init__(self, command: Callable[..., Any], but: Sequence[str]) -> None:
        self._single = command
        parameters = signature(command).parameters
        self._options = {name: _option(each.annotation, each.default) for name, each in parameters.items() if name not in but and get_args(each.annotation)}

    @cached_property
    def _command(self) -> Any:  # noqa: ANN401 (typer's own command class has no public name)
        alone = typer.Typer(rich_markup_mode=None, add_completion=False)
        alone.command()(self._single)
        return get_command(alone)

    @property
    def group(self) -> Group:
        """The options as text."""
        return {name: _as_text(option, repeated=name in REPEATED) for name, option in self._options.items()}

    def flag(self, name: str) -> str:
        """What is typed for an option."""
        return self._options[name].flag

    def axes(self, typed: Mapping[str, Any], most: int) -> dict[str, tuple[Element, ...]]:
        """The values of each option: one for those that were not given. Raises BadParameter for what the command itself refuses, with the option named as it
        names it, and for more than `most` values.
        """
        return {name: tuple(self._axis(name, option, typed[name], most)) for name, option in self._options.items()}

    def _axis(self, name: str, option: _Option, typed: Any, most: int) -> list[Element]:  # noqa: ANN401 (each option has a type of its own)
        """Each value once, by the first word for it."""
        if option.is_switch or not (typed if name in REPEATED else typed is not None):
            return [Element(NONE, typed if option.is_switch else option.default)]
        found: dict[Any, Element] = {}
        try:
            for text in typed if name in REPEATED else [typed]:
                for part in _parts(text, paired=option.kind is KvDtype):
                    for element in self._elements(name, option, part, most):
                        found.setdefault(element.value, element)
        except typer.BadParameter as error:
            error.param = next(each for each in self._command.params if each.name == name)
            raise
        return list(found.values())

    def _elements(self, name: str, option: _Option, part: str, most: int) -> Iterator[Element]:
        """One value, or those of a range."""
        if part.lower() == NONE:
            yield Element(NONE, option.default)
            return
        low, dots, rest = part.partition("..")
        if not (dots and option.is_number):
            value = self._value(name, option, part)
            yield Element(without_halves(part) if option.is_size or option.is_duration or not option.is_number else _word(value), value)
            return
        high, plus, step = rest.partition("+")
        first, last = self._value(name, option, low), self._value(name, option, high)
        if first > last:
            raise typer.BadParameter(f"{part!r} runs backwards: write {high.strip()}..{low.strip()}" + (f"+{step.strip()}" if plus else ""))
        values = _stepped(part, first, last, self._value(name, option, step), most) if plus else _doubled(part, first, last)
        for value in values:
            yield Element(option.word(value), value)

    def _value(self, name: str, option: _Option, word: str) -> Any:  # noqa: ANN401 (each option has a type of its own)
        """What the command itself makes of one word."""
        try:
            return self._command.make_context(self._single.__name__, [f"{option.flag}={word.strip()}"]).params[name]
        except typer.BadParameter as error:
            if word.strip()[:40] not in error.message:
                error.message = f"{word.strip()[:40]!r}: {error.message}"
            raise


def _option(annotation: Any, default: Any) -> _Option:  # noqa: ANN401 (an annotation can be anything)
    kind, words = get_args(annotation)
    of = [each for each in get_args(kind) if each is not type(None)]
    return _Option(of[0] if of else kind, words, default)


def _as_text(option: _Option, *, repeated: bool) -> tuple[Any, Any]:
    """The annotation and the default of an option that takes a list."""
    words = option.words
    if option.is_switch:
        return Annotated[bool | None if option.default is None else bool, words], option.default
    shown = words.show_default if isinstance(words.show_default, str) else str(option.default) if option.default is not None else False
    listed = typer.Option(
        *option.names,
        metavar=f"{words.metavar},...",
        help=words.help,
        show_default=shown,
        autocompletion=None if words.autocompletion is None else complete_in_list(words.autocompletion),
    )
    return Annotated[list[str] | None if repeated else str | None, listed], None


def _parts(text: str, *, paired: bool) -> list[str]:
    """What stands between commas; where `paired`, k=NAME,v=NAME is one part."""
    parts: list[str] = []
    for part in (each.strip() for each in text.split(",")):
        if paired and "=" in part and parts and parts[-1].count("=") == 1:
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    if "" in parts:
        raise typer.BadParameter(f"{text[:60]!r} has an empty element")
    return parts


def _doubled(text: str, low: Any, high: Any) -> Iterator[Any]:  # noqa: ANN401 (whole numbers and decimals)
    """From the low end, twice as much each time, then the high end."""
    if low == 0:
        raise typer.BadParameter(f"{text!r} cannot double from 0: state a step behind a +")
    while low < high:
        yield low
        low *= 2
    yield high


def _stepped(text: str, low: Any, high: Any, step: Any, most: int) -> Iterator[Any]:  # noqa: ANN401 (as above)
    """From the low end in steps, then the high end."""
    if step == 0:
        raise typer.BadParameter(f"{text!r} has a step of 0")
    if (high - low) // step >= most:
        raise typer.BadParameter(f"{text!r} has more than {most:,} values: take larger steps")
    while low < high:
        yield low
        low += step
    yield high


def _word(number: int | Decimal) -> str:
    return str(number) if isinstance(number, int) else format(number.normalize(), "f")


def _duration(microseconds: int) -> str:
    """A time in the largest unit of which it is a whole number."""
    name, unit = next((name, unit) for name, unit in TIME_UNITS.items() if microseconds % unit == 0)
    return f"{microseconds // unit}{name}"


def _size(size_bytes: int) -> str:
    """A size in the largest unit of which it is a whole number."""
    unit = max((name for name, size in BINARY_UNITS.items() if size_bytes % size == 0), key=BINARY_UNITS.__getitem__)
    return f"{size_bytes // BINARY_UNITS[unit]}{unit}"
