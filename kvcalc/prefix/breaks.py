"""Where prompts differ that agree again after it: found in a sample, and found again in any prompt by what stands on both sides."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from kvcalc.prefix.kinds import in_order, is_order, kind_of, named_in
from kvcalc.prefix.prompt import Part, Prompt

AGREES_CHARS: Final = 64
"""Characters after a difference that count as agreement: a block of 16 tokens of 4 bytes."""
REACHES: Final = (256, 8192)
"""How long a difference may be: a value, then a whole list of tools."""
WORDS: Final = 8
"""Words in a row by which prompts of one make are known."""
MOST_FAMILIES: Final = 32
MOST_DIFFERENCES: Final = 16
"""Of one prompt against the first of its make."""
NEAR_CHARS: Final = 8
"""Differences so close to each other are one."""
ANCHOR_CHARS: Final = (48, 256)
"""What is looked for before and behind a place: so much, or more where that is not found at it alone."""
MOST_PLACES: Final = 12
"""Differing places of which the worth is computed."""


class Place(NamedTuple):
    """A part of a prompt between two texts that others have too: `before` it (the whole beginning of the prompt if `at_start`) and `after` it. In the prompt
    that it was found in, it lies in message `part` of them, in `line` of its text, after `offset` characters. `kinds` is what stands there, `example`
    its longest text, `ahead` all before it there: never to be shown.
    """

    before: str
    after: str
    at_start: bool
    part: int
    role: str
    line: int
    offset: int
    kinds: tuple[str, ...]
    example: str
    ahead: str

    def find(self, text: str) -> tuple[int, int] | None:
        """Where it begins and ends in a prompt."""
        if self.at_start:
            start = len(self.before) if text.startswith(self.before) else -1
        else:
            found = text.find(self.before)
            start = -1 if found < 0 else found + len(self.before)
        if start < 0:
            return None
        end = text.find(self.after, start, start + REACHES[-1] + len(self.after))
        return None if end < 0 else (start, end)


def without(text: str, places: Sequence[Place]) -> str:
    """A prompt with these parts moved to its end, in their order; parts that come in any order are put into one, where they are."""
    found = [(span, place) for place in places if (span := place.find(text)) is not None]
    kept, moved, at = [], [], 0
    for (start, end), place in sorted(found, key=lambda item: (item[0][0], -item[0][1])):
        if start < at:
            continue  # of two that overlap, the first and longer
        kept.append(text[at:start])
        if is_order(place.kinds):
            kept.append(in_order(text[start:end]))
        else:
            moved.append(text[start:end])
        at = end
    return "".join([*kept, text[at:], *moved])


def places_in(sample: Sequence[Prompt]) -> list[Place]:
    """Places where prompts of one make differ and agree again, those in most prompts first."""
    found: list[tuple[int, Place]] = []
    for members in _families([prompt for prompt in sample if prompt.ids is None]):
        for number, place in _places(members) if len(members) > 1 else ():
            for index, (known, other) in enumerate(found):
                if (both := _of_both(other, place)) is not None:
                    found[index] = (known + number, both)
                    break
            else:
                found.append((number, place))
    best = sorted(found, key=lambda item: (-item[0], item[1].offset))
    return [place for _, place in best[:MOST_PLACES]]


def _of_both(one: Place, other: Place) -> Place | None:
    """The same place in prompts of two makes, by as much behind it as both have: conversations go on with words of their own. None where it is another."""
    if (one.before, one.at_start, one.kinds) != (other.before, other.at_start, other.kinds):
        return None
    after = one.after[: agreeing(one.after, other.after, 0, 0)]
    enough = len(after) >= min(NEAR_CHARS, len(one.after), len(other.after))
    told = enough and all((place.example + place.after).find(after) == len(place.example) for place in (one, other))
    return one._replace(after=after, example=max(one.example, other.example, key=len)) if told else None


def _families(sample: Sequence[Prompt]) -> list[list[Prompt]]:
    """Prompts by what their texts have in common with the first of each group: a new one where that is less than a third while there are few, or nothing."""
    shingled: list[set[int]] = []
    families: list[list[Prompt]] = []
    for prompt in sample:
        words = prompt.text.split()
        rows = [hash(tuple(words[at : at + WORDS])) for at in range(max(1, len(words) - WORDS + 1))]
        alike = [sum(row in known for row in rows[::4]) for known in shingled]
        best = max(range(len(alike)), key=lambda index: alike[index], default=None)
        common = 0 if best is None else alike[best]
        if best is not None and common and (3 * common >= len(rows[::4]) or len(families) >= MOST_FAMILIES):
            families[best].append(prompt)
        elif len(families) < (MOST_FAMILIES if common else 2 * MOST_FAMILIES):
            shingled.append(set(rows))
            families.append([prompt])
    return families


def _places(members: Sequence[Prompt]) -> Iterator[tuple[int, Place]]:
    """The differing places of one family, each with the number of prompts that have it. All are measured against the first prompt."""
    first = members[0]
    seen: Counter[tuple[int, int]] = Counter()
    for other in members[1:]:
        if other.text != first.text:
            seen.update({(start, end) for start, end, _, _ in differences(first.text, other.text)})
    spans = _joined(seen)
    for index, (start, end) in enumerate(spans):
        behind = spans[index - 1][1] if index else 0
        ahead = spans[index + 1][0] if index + 1 < len(spans) else len(first.text)
        place = _anchored(first, start, end, behind, ahead)
        if place is None:
            continue
        held = [(other.text, span) for other in members if (span := place.find(other.text)) is not None]
        values = [text[begin:stop] for text, (begin, stop) in held]
        if len(set(values)) > 1:
            kinds = kind_of(values, [named_in(text, begin, stop)[0] for text, (begin, stop) in held])
            yield len(held), place._replace(kinds=kinds, example=max(values, key=len))


def _joined(seen: Counter[tuple[int, int]]) -> list[tuple[int, int]]:
    """Places that do not overlap, in order: of about equally many prompts the shorter first, each with those that touch it, but for such as would take in far
    more.
    """
    taken: list[tuple[int, int]] = []
    for (start, end), _ in sorted(seen.items(), key=lambda item: (-(item[1].bit_length() // 2), item[0][1] - item[0][0], item[0])):
        touching = [span for span in taken if start <= span[1] + NEAR_CHARS and span[0] <= end + NEAR_CHARS]
        low, high = min([start, *(span[0] for span in touching)]), max([end, *(span[1] for span in touching)])
        own = sum(stop - begin for begin, stop in touching)
        if touching and high - low > 2 * own + AGREES_CHARS:
            continue
        taken = [span for span in taken if span not in touching] + [(low, high)]
    return sorted(taken)


def _anchored(prompt: Prompt, start: int, end: int, behind: int, ahead: int) -> Place | None:
    """A place with as much on both sides as tells it from others in this prompt; None where nothing does."""
    text = prompt.text
    part, line = _position(prompt, start)
    for size in ANCHOR_CHARS:
        low, high = max(behind, start - size), min(ahead, end + size)
        role = prompt.parts[part].role if part < len(prompt.parts) else ""
        place = Place(text[low:start], text[end:high], low == 0, part, role, line, start, (), "", text[:start])
        if place.after and (place.before or place.at_start) and place.find(text) == (start, end):
            return place
    return None


def _position(prompt: Prompt, at: int) -> tuple[int, int]:
    """The part and the line of its content, from 1, that a character lies in."""
    index = max((number for number, part in enumerate(prompt.parts) if part.start <= at), default=0)
    part = prompt.parts[index] if prompt.parts else Part("", 0, 0)
    return index, prompt.text.count("\n", part.content, max(part.content, at)) + 1


def differences(one: str, other: str) -> Iterator[tuple[int, int, int, int]]:
    """Each place where two texts differ and agree again for AGREES_CHARS: where it begins and ends in the one, and in the other, widened to whole values."""
    at, beside, last = 0, 0, 0
    for _ in range(MOST_DIFFERENCES):
        common = agreeing(one, other, at, beside)
        at, beside = at + common, beside + common
        if at == len(one) or beside == len(other):
            return
        found = _agree_again(one, other, at, beside)
        if found is None:
            return
        end, stop = found
        back = 0
        while end - back > at and stop - back > beside and one[end - back - 1] == other[stop - back - 1]:
            back += 1
        yield _widened(one, other, (at, end - back, beside, stop - back), last)
        at, beside, last = end, stop, end


def agreeing(one: str, other: str, at: int, beside: int) -> int:
    """Characters that two texts have in common from there on."""
    low, high = 0, min(len(one) - at, len(other) - beside)
    while low < high:
        middle = (low + high + 1) // 2
        if one[at + low : at + middle] == other[beside + low : beside + middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _agree_again(one: str, other: str, at: int, beside: int) -> tuple[int, int] | None:
    """The nearest places in both from which they agree for AGREES_CHARS; parts that have changed places are gone past as a whole."""
    size = AGREES_CHARS
    for reach in REACHES:
        index: dict[str, int] = {}
        for here in range(at, min(at + reach, len(one) - size) + 1):
            index.setdefault(one[here : here + size], here)
        best: tuple[int, int] | None = None
        for there in range(beside, min(beside + reach, len(other) - size) + 1):
            if best is not None and there - beside >= best[0] - at + best[1] - beside:
                break
            found = index.get(other[there : there + size])
            if found is not None and (best is None or found - at + there - beside < best[0] - at + best[1] - beside):
                best = found, there
        if best is not None:
            moved = None if best[0] - at == best[1] - beside else _changed_places(one, other, at, beside)
            return best if moved is None else moved
    return _changed_places(one, other, at, beside)


def _changed_places(one: str, other: str, at: int, beside: int) -> tuple[int, int] | None:
    """Where two texts agree again after the same characters in another order."""
    size, tried = AGREES_CHARS, 0
    longest = min(REACHES[-1], len(one) - at - size, len(other) - beside - size)
    for length in range(1, longest + 1):
        if one[at + length : at + length + size] == other[beside + length : beside + length + size]:
            if sorted(one[at : at + length]) == sorted(other[beside : beside + length]):
                return at + length, beside + length
            tried += 1
            if tried == NEAR_CHARS:
                return None
    return None


def _widened(one: str, other: str, span: tuple[int, int, int, int], last: int) -> tuple[int, int, int, int]:
    """A difference with the rest of what it is a part of: what stands around it is the same in both."""
    start, end, begin, stop = span
    forms = [named_in(one, start, end), named_in(other, begin, stop)]
    back = max(start - forms[0][1], begin - forms[1][1])
    ahead = max(forms[0][2] - end, forms[1][2] - stop)
    if word(one[start:end][:1]) or word(other[begin:stop][:1]):
        while back < start - last and word(one[start - back - 1]):
            back += 1
    if word(one[start:end][-1:]) or word(other[begin:stop][-1:]):
        while ahead < AGREES_CHARS and word(one[end + ahead : end + ahead + 1]):
            ahead += 1
    back = min(back, start - last)
    return start - back, end + ahead, begin - back, stop + ahead


def word(sign: str) -> bool:
    return sign.isalnum() or sign == "_"
