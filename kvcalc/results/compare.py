"""The answer of `kvcalc compare`."""

from kvcalc.layers import Note
from kvcalc.results.estimate import Estimate, LayerRow
from kvcalc.results.fit import Difference, Fit
from kvcalc.results.shared import Answer


class ComparedEstimate(Estimate):
    """One model under one engine. `request_differs`: bytes of one request, on all GPUs of a replica, more or less than in the first row, by cause; they sum
    to the whole difference.
    """

    request_differs: tuple[Difference, ...]


class ComparedFit(Fit):
    """The same with a budget. `token_bytes` and `layers` are those of an estimate. `budget_differs`: bytes of the KV cache of one GPU more or less than in the
    first row, by cause.
    """

    token_bytes: int
    layers: tuple[LayerRow, ...]
    request_differs: tuple[Difference, ...]
    budget_differs: tuple[Difference, ...]


class Comparison(Answer):
    """Models or engines side by side, in the order they were asked for: with a budget where one was stated. `notes` name those that could not be answered."""

    rows: tuple[ComparedFit, ...] | tuple[ComparedEstimate, ...]
    notes: tuple[Note, ...]
