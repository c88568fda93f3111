"""A GPU as a clock sees it: how much it moves and computes in a second."""

from typing import Final, NamedTuple

from kvcalc.efficiency import HEADROOM, HEADROOM_OTHERS, Memory, Rate

Rates = tuple[tuple[Rate, int], ...]
"""Operations a second by format."""


class Machine(NamedTuple):
    """Bytes a second of its memory; dense operations a second by format, as rated with fp32 accumulation (`rates`) and at the most it might reach
    (`ceilings`), without those that are not known; bytes a second to another GPU, each way, over a `link` that is on the board (`link_on_board`) or may be
    another than the nominal one.
    """

    name: str
    memory: Memory
    geforce: bool
    bandwidth_bytes_s: int
    rates: Rates
    ceilings: Rates
    link: str | None
    link_bytes_s: int | None
    link_on_board: bool

    def rate(self, form: Rate) -> int | None:
        """Operations a second as rated."""
        return dict(self.rates).get(form)


FORMATS: Final[dict[str, tuple[Rate, ...]]] = {
    "fp8": ("fp8",),
    "fp8_e4m3": ("fp8",),
    "fp8_e5m2": ("fp8",),
    "nvfp4": ("fp4", "fp8"),
    "mxfp4": ("fp4", "fp8"),
    "int8": ("int8",),
}
"""What matrices so stored may be multiplied in, where the GPU has it; all may be widened to 16 bits first. Servers use the first, else 16 bits."""


def ceilings(kind: str, rates: Rates, fp16_acc16: int | None) -> Rates:
    """The most that a card of a kind might reach: the rates with headroom, and accumulation in fp16 where that is faster."""
    headroom = HEADROOM.get(kind, HEADROOM_OTHERS)
    most = {form: int(number * headroom) for form, number in rates}
    if fp16_acc16 is not None:
        most["fp16"] = max(most.get("fp16", 0), int(fp16_acc16 * headroom))
    return tuple(most.items())


def ceiling(machine: Machine, stored: str) -> int | None:
    """Operations a second that no kernel for matrices so stored exceeds, None where that is not known. llama.cpp multiplies blocks in int8."""
    known = dict(machine.ceilings)
    if "fp16" not in known:
        return None
    formats = FORMATS.get(stored, ("int8",) if _in_blocks(stored) else ())
    return max(known[form] for form in (*formats, "fp16") if form in known)


def usual(machine: Machine, stored: str) -> Rate:
    """The format that servers multiply matrices so stored in."""
    form = FORMATS[stored][0] if stored in FORMATS else "fp16"
    return "fp16" if machine.rate(form) is None else form


def _in_blocks(stored: str) -> bool:
    """Whether this is one of GGUF's block formats: q4_0, q6_k, iq4_xs, ..."""
    return stored.startswith(("q", "iq", "tq")) and "_" in stored
