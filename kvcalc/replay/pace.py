"""How long a scheduler's step takes: a clock's likely time, remembered for counts rounded to 1 %."""

from typing import Final

from kvcalc.engines.work import Work, added
from kvcalc.errors import KvcalcError
from kvcalc.timing import Clock

EXACT: Final = 128
"""Counts below this are not rounded; above it, 7 binary digits are kept."""
MOST_REMEMBERED: Final = 1 << 17

Piece = tuple[int, int]
"""Tokens of a prompt that are there already, and those that a step adds."""


def rounded(number: int) -> int:
    """To within 1 %."""
    if number < EXACT:
        return number
    shift = number.bit_length() - 7
    return (number + (1 << shift >> 1)) >> shift << shift


class Pace:
    """Seconds of steps. Raises KvcalcError where the clock does not know how fast the GPU computes."""

    def __init__(self, clock: Clock) -> None:
        if clock.prompt(1).compute is None:
            raise KvcalcError(f"what {clock.machine.name} computes in a second is not known, and so no step can be timed", hint="state it with --tflops")
        self._clock = clock
        self._decodes: dict[tuple[int, int], float] = {}
        self._steps: dict[tuple[int, ...], float] = {}
        self._decode_work: dict[tuple[int, int], Work] = {}
        self._piece_work: dict[Piece, Work] = {}

    def decode(self, batch: int, context: int) -> float:
        """One more token for each of so many requests, which have `context` tokens on average."""
        key = rounded(batch), rounded(context)
        found = self._decodes.get(key)
        if found is None:
            found = self._decodes[key] = self._clock.step(key[1], key[0]).likely
        return found

    def mixed(self, batch: int, context: int, pieces: list[Piece]) -> float:
        """The same beside pieces of prompts. Under pipeline parallelism the stages share these."""
        asked = [(rounded(start), rounded(tokens)) for start, tokens in pieces]
        key = (rounded(batch), rounded(context), *(number for piece in asked for number in piece))
        found = self._steps.get(key)
        if found is None:
            if len(self._steps) == MOST_REMEMBERED:
                self._steps.clear()
            found = self._steps[key] = self._step(key[0], key[1], asked)
        return found

    def prompt(self, tokens: int, cached: int) -> float:
        """Until the first token of a request that is alone."""
        return self._clock.prompt(tokens, min(cached, tokens - 1)).likely

    def _step(self, batch: int, context: int, pieces: list[Piece]) -> float:
        """Weights are read, and layers passed through, once for all that is in a step."""
        works = [self._piece(piece) for piece in pieces]
        if batch:
            works.append(self._decoding(batch, context))
        total = works[0]
        for work in works[1:]:
            total = added(total, work)
        weight_bytes, reductions = max(work.weight_bytes for work in works), max(work.reductions for work in works)
        return self._clock.times(total._replace(weight_bytes=weight_bytes, reductions=reductions), 1).likely

    def _decoding(self, batch: int, context: int) -> Work:
        key = batch, context
        if key not in self._decode_work:
            self._decode_work[key] = self._clock.step_work(context, batch)
        return self._decode_work[key]

    def _piece(self, piece: Piece) -> Work:
        found = self._piece_work.get(piece)
        if found is None:
            if len(self._piece_work) == MOST_REMEMBERED:
                self._piece_work.clear()
            start, tokens = piece
            work, pp = self._clock.prompt_work(start + tokens, start), self._clock.pp
            shared = Work({stored: flops // pp for stored, flops in work.linear_flops.items()}, *(part // pp for part in work[1:]))
            found = self._piece_work[piece] = shared._replace(weight_bytes=work.weight_bytes, reductions=work.reductions)
        return found
