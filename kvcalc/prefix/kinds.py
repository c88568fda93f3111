"""What stands where prompts differ: named by its form, and shown so that nobody can read it."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

SHOWN_CHARS: Final = 24
NAMED_CHARS: Final = 256
"""Of what differs, the first so many are looked at: some forms take the square of that in time."""
CONTEXT_CHARS: Final = 48
"""Characters on both sides that help to name it."""
LEAST_ORDERED: Final = 16
"""Characters of parts that are said to change places: shorter values are made of the same signs by chance."""

_MONTH = r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|Sept?(?:ember)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
_WEEKDAY = r"(?:Mon|Tues?|Wed(?:nes)?|Thu(?:rs)?|Fri|Sat(?:ur)?|Sun)(?:day)?"
_DAY = r"\d{1,2}(?:st|nd|rd|th)?"
_DATE = (
    rf"(?:{_WEEKDAY},? )?(?:\d{{4}}[-/.]\d{{1,2}}[-/.]\d{{1,2}}|\d{{1,2}}[-/]\d{{1,2}}[-/]\d{{2,4}}|\d{{1,2}}\.\d{{1,2}}\.\d{{4}}|"
    rf"{_DAY} {_MONTH}\.?,? \d{{4}}|{_MONTH}\.? {_DAY},? \d{{4}})"
)
_CLOCK = r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d{1,9})?)?(?: ?[AaPp]\.?[Mm]\b\.?)?(?: ?(?:Z|UTC|GMT|[A-Z]{2,4}T|[+-]\d{2}:?\d{2}))?"

FORMS: Final = {
    "secret": re.compile(
        r"\b(?:sk|pk|rk|ghp|gho|ghs|github_pat|glpat|xox[abp]|hf|AKIA|ASIA|AIza)[-_]?[A-Za-z0-9_-]{8,}|\beyJ[\w-]+(?:\.[\w-]+)*|"
        r"(?i:\b(?:bearer|token|password|passwd|secret|api[ _-]?key|authorization)\b[\"' ]*[:= ]\s*[\"']?(?:bearer |basic )?)[^\s\"',;]+"
    ),
    "UUID": re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"),
    "e-mail address": re.compile(r"[\w.+-]+@[\w-]+(?:\.[\w-]+)+"),
    "time stamp": re.compile(rf"{_DATE}(?:T|,? (?:at )?){_CLOCK}|\b{_CLOCK}(?:,? (?:on )?){_DATE}|\b\d{{8}}T\d{{6}}Z?|\b{_CLOCK}"),
    "date": re.compile(rf"\b{_DATE}|\b{_WEEKDAY}\b|\b{_MONTH} \d{{4}}\b"),
    "IP address": re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\b(?:[0-9a-fA-F]{1,4}:){4,7}[0-9a-fA-F]{1,4}\b"),
    "path": re.compile(r"(?:https?://|(?<![\w.])(?:~|\.{1,2})?/|\b[A-Za-z]:\\)[\w.~%-]+(?:[/\\][\w.~%?=&-]+)+"),
    "epoch time": re.compile(r"\b[12]\d{9}(?:\.\d+|\d{3}|\d{6}|\d{9})?\b"),
    "user name": re.compile(
        r"(?i:\b(?:user(?: ?name)?|name|customer|client|patient|account|agent|hello|hi|dear|hey|assistant (?:of|for|to)|on behalf of|named|called)\b)"
        r"[\"']?[:=,]? +[\"']?"
        r"[^\W\d_][\w'\u2019.-]*(?: [A-Z][\w'\u2019.-]*){0,3}"
    ),
    "id": re.compile(
        r"(?i:\b(?:(?:request|session|trace|run|message|msg|conversation|thread|correlation|user|node|span|order|ticket|job)[ _-]?)?"
        r"(?:id|nonce|uid|guid|hash|cch|run|msg|session|trace)\b)"
        r"[\"']?[ ]?[:=# ][ ]?[\"']?[\w.:-]+|\b(?:req|chatcmpl|msg|run|sess|call|thread|conv|trace|usr|user|ord)[-_][A-Za-z0-9]{4,}\b|"
        r"\b(?=[0-9a-fA-F]*\d)(?=[0-9a-fA-F]*[a-fA-F])[0-9a-fA-F]{4,}\b|\b(?=[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9_-]{16,}\b"
    ),
    "version": re.compile(r"\bv?\d+(?:\.\d+){2,}(?:[-+.]\w+)*\b|\bv\d+(?:\.\d+)*\b"),
    "number": re.compile(r"(?<![\w.])[-+]?\d[\d,_]*(?:\.\d+)?(?![\w])"),
}
"""Forms by which a value is known, the more telling first. One that takes in its label reaches from there to the end of the value."""
_LABELLED: Final = ("secret", "user name", "id")
REASONING: Final = re.compile(r"</?(?:think|thinking|reasoning|scratchpad)\b", re.IGNORECASE)
OTHER: Final = "other text"


def named_in(text: str, start: int, end: int) -> tuple[tuple[str, ...], int, int]:
    """What stands in text[start:end], in the order of FORMS, and its place widened to the whole of it: from the first digit of a date to its last."""
    whole, end = end, min(end, start + NAMED_CHARS)
    low, high = max(0, start - CONTEXT_CHARS), min(len(text), end + CONTEXT_CHARS)
    window = text[low:high]
    taken: list[tuple[int, int]] = []
    found: list[str] = []
    first, last = start, whole
    for name, form in FORMS.items():
        for match in form.finditer(window):
            begin, stop = low + match.start(), low + match.end()
            overlaps = begin < max(end, start + 1) and stop > start if end > start else begin < start < stop
            if not overlaps or any(begin < other_stop and stop > other_begin for other_begin, other_stop in taken):
                continue
            if name in _LABELLED and begin < start:  # its label is the same everywhere
                begin = _value_at(text, begin, start)
            taken.append((begin, stop))
            if name not in found:
                found.append(name)
            first, last = min(first, begin), max(last, stop if end == whole else whole)
    return tuple(found), first, last


def _value_at(text: str, begin: int, start: int) -> int:
    """Where the word begins that `start` lies in."""
    at = start
    while at > begin and (text[at - 1].isalnum() or text[at - 1] in "_-.@'\u2019"):
        at -= 1
    return at


def kind_of(values: Sequence[str], forms: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    """What the differing `values` of one place are, of which each has its own `forms`."""
    told = {value for value in values if value.strip()}
    if not told:
        return ("white space",)
    if len({value.strip() for value in values}) == 1:
        return ("white space",)
    if 2 * len({in_order(value) for value in values}) <= len(set(values)) and max(map(len, told)) >= LEAST_ORDERED:
        return (_order_of(max(told)),)
    if all(REASONING.search(value) for value in told):
        return ("reasoning block",)
    names = Counter(form for value, form in zip(values, forms, strict=True) if value.strip())
    best = min(names, key=lambda form: (-names[form], form)) if names else ()
    return best or (OTHER,)


def is_order(kinds: Sequence[str]) -> bool:
    return kinds[0].startswith("order of")


def _order_of(value: str) -> str:
    """What changes places."""
    if '"function"' in value or value.count('"name"') > 1 or value.count('"description"') > 1:
        return "order of tools"
    if re.search(r"\"\s*:", value):
        return "order of keys"
    return "order of lines" if "\n" in value else "order of words"


def in_order(value: str) -> str:
    """The same words and signs in an order that does not depend on how they came."""
    return "".join(sorted(re.findall(r"\w+|\W", value)))


def masked(value: str) -> str:
    """Its form alone: # for a digit, x for a letter and for all of a word that has both, signs as they are; the first SHOWN_CHARS of them, long words cut."""
    one_line = re.sub(r"\b(?=[^\W\d]*\d)(?!\d+[TZ]\d*(?!\w))(?=\d*[^\W\d])\w+", lambda match: "x" * len(match[0]), " ".join(value.split()))
    signs = "".join("#" if sign.isdigit() else "x" if sign.isalpha() else sign if sign.isascii() and sign.isprintable() else "?" for sign in one_line)
    short = re.sub(r"x{5,}", "xxx…", signs)
    return short if len(short) <= SHOWN_CHARS else short[: SHOWN_CHARS - 1] + "…"
