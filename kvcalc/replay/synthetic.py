"""Requests drawn at random: `prompt=lognormal(512,1.0) output=geometric(200) rate=5/s`. The same words with the same seed draw the same requests."""

import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from math import exp, log, log1p
from random import Random
from typing import Final, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.replay.requests import MOST_TOKENS, Row
from kvcalc.units import parse_count, shorten

REQUESTS: Final = 1000
"""How many are drawn where nothing is said."""
MOST_RATE: Final = Decimal(10**6)
"""Requests a second."""
LEAST_RATE: Final = Decimal(1) / 10**6
"""Requests a second: one in 11 days. A lower one may be 0 as a float."""
MOST_REQUESTS: Final = 10**6
"""A longer trace is drawn for minutes, and tells no more."""
PERIODS: Final = {"s": 1, "min": 60, "h": 3600}

Draw = Callable[[Random], float]


class Synthetic(NamedTuple):
    """What is drawn: tokens of prompts and answers, seconds between arrivals on average, how many, from which seed."""

    prompt: Draw
    output: Draw
    rate_per_s: Decimal
    requests: int
    seed: int

    def rows(self) -> Iterator[Row]:
        """Arrivals as of a Poisson process; lengths are rounded, and at least 1."""
        random = Random(self.seed)  # noqa: S311 (nothing secret is drawn)
        now, mean_s = 0.0, 1 / _float(self.rate_per_s)
        for number in range(self.requests):
            if number:
                now -= mean_s * log1p(-random.random())
            yield Row(now, _length(self.prompt(random)), _length(self.output(random)))


def _length(drawn: float) -> int:
    return max(1, min(MOST_TOKENS, round(drawn)))


def _constant(tokens: float) -> Draw:
    return lambda _: tokens


def _uniform(low: float, high: float) -> Draw:
    return lambda random: random.uniform(low, high)


def _lognormal(median: float, sigma: float) -> Draw:
    return lambda random: median * exp(random.gauss(0, sigma))


def _geometric(mean: float) -> Draw:
    return lambda random: 1 + log1p(-random.random()) // log(1 - 1 / mean) if mean > 1 else 1


def _exponential(mean: float) -> Draw:
    return lambda random: -mean * log1p(-random.random())


def _normal(mean: float, deviation: float) -> Draw:
    return lambda random: random.gauss(mean, deviation)


DISTRIBUTIONS: Final[dict[str, tuple[tuple[str, ...], Callable[..., Draw]]]] = {
    "constant": (("tokens",), _constant),
    "uniform": (("least", "most"), _uniform),
    "lognormal": (("median", "sigma"), _lognormal),
    "geometric": (("mean",), _geometric),
    "exponential": (("mean",), _exponential),
    "normal": (("mean", "deviation"), _normal),
}
WORDS: Final = ("prompt", "output", "rate", "requests", "seed")
EXAMPLE: Final = "prompt=lognormal(512,1.0) output=geometric(200) rate=5/s"

_WORD = re.compile(r"([a-z]+)=((?:[a-z]+\s*\([^()]*\))|[^\s()]+)", re.ASCII)
_DRAW = re.compile(r"([a-z]+)\s*\(([^()]*)\)", re.ASCII)
_RATE = re.compile(r"([0-9][0-9_]*(?:\.[0-9]+)?)/([a-z]+)", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,12}(?:\.[0-9]{1,12})?", re.ASCII)


def parse_synthetic(text: str) -> Synthetic:
    """Raises KvcalcError (usage) for what cannot be drawn, with what there is."""
    words: dict[str, str] = {}
    rest = text.strip()
    while rest:
        match = _WORD.match(rest)
        if match is None or (rest[match.end() :] and not rest[match.end()].isspace()):
            raise _error(f"{shorten(rest)!r} is not name=value", f"write it like {EXAMPLE!r}")
        name, value = match[1], match[2]
        if name not in WORDS:
            raise _error(f"{name[:40]!r} is not drawn", f"there are {', '.join(WORDS)}")
        if name in words:
            raise _error(f"{name} is said twice", f"write it like {EXAMPLE!r}")
        words[name] = value
        rest = rest[match.end() :].lstrip()
    for name in WORDS[:3]:
        if name not in words:
            raise _error(f"{name}= is missing", f"write it like {EXAMPLE!r}")
    seed = words.get("seed", "0")
    if not re.fullmatch(r"[0-9]{1,18}", seed, re.ASCII):
        raise _error(f"seed={shorten(seed)} is not a whole number", "write it like seed=1")
    requests = parse_count(words["requests"]) if "requests" in words else REQUESTS
    if requests > MOST_REQUESTS:
        raise _error(f"requests={shorten(words['requests'])} are more than {MOST_REQUESTS:,}, the most that are drawn", "draw fewer, or name a trace")
    return Synthetic(_draw("prompt", words["prompt"]), _draw("output", words["output"]), _rate(words["rate"]), requests, int(seed))


def _float(number: Decimal) -> float:
    """By its exact ratio: a size is never read as a float here, so that no float() stands in the core."""
    top, bottom = number.as_integer_ratio()
    return top / bottom


def _draw(name: str, text: str) -> Draw:
    match = _DRAW.fullmatch(text)
    known = ", ".join(f"{each}({','.join(needs)})" for each, (needs, _) in DISTRIBUTIONS.items())
    if match is None or match[1] not in DISTRIBUTIONS:
        raise _error(f"{name}={shorten(text)} is no distribution", f"there are {known}")
    needs, made = DISTRIBUTIONS[match[1]]
    given = [part.strip() for part in match[2].split(",")]
    if len(given) != len(needs) or not all(_NUMBER.fullmatch(part) for part in given):
        raise _error(f"{name}={shorten(text)} wants {' and '.join(needs)} as plain numbers", f"there are {known}")
    numbers = [Decimal(part) for part in given]
    if numbers[0] > MOST_TOKENS or numbers[-1] > MOST_TOKENS:
        raise _error(f"{name}={shorten(text)} goes beyond {MOST_TOKENS:,} tokens", "name shorter lengths")
    if match[1] == "uniform" and numbers[0] > numbers[1]:
        raise _error(f"{name}={shorten(text)} has its least above its most", "swap them")
    if match[1] == "lognormal" and numbers[1] > 10:
        raise _error(f"{name}={shorten(text)} spreads over more than any trace does", "sigma is that of the logarithm: 1.0 is wide")
    if match[1] != "normal" and match[1] != "uniform" and numbers[0] < 1:
        raise _error(f"{name}={shorten(text)} is less than one token", "name at least 1")
    return made(*(_float(number) for number in numbers))


def _rate(text: str) -> Decimal:
    match = _RATE.fullmatch(text)
    if match is None or match[2] not in PERIODS:
        raise _error(f"rate={shorten(text)} is no rate", f"write it like 5/s; periods are {', '.join(PERIODS)}")
    rate = Decimal(match[1].replace("_", "")) / PERIODS[match[2]]
    if not LEAST_RATE <= rate <= MOST_RATE:
        raise _error(f"rate={shorten(text)} is not at least {LEAST_RATE:f} and up to {MOST_RATE:,} a second", "write it like 5/s")
    return rate


def _error(message: str, hint: str) -> KvcalcError:
    return KvcalcError(message, hint=hint, code=ExitCode.USAGE)
