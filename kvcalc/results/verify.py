"""The answer of `kvcalc verify`."""

from kvcalc.layers import Frozen, Note
from kvcalc.results.shared import Answer


class Check(Frozen):
    """One figure beside its prediction, in the same `unit`. `difference` is measured less predicted; None where one of them is not known. `ok`: whether they
    agree as far as the claim goes that `explanation` states (to the byte, or within what rounding allows).
    """

    name: str
    predicted: int | float | None
    measured: int | float | None
    difference: int | float | None
    unit: str
    ok: bool
    explanation: str


class Verified(Answer):
    """Predictions against reality, check by check; `ok` when all agree."""

    checks: tuple[Check, ...]
    ok: bool
    notes: tuple[Note, ...]
