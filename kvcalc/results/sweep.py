"""The answer of `kvcalc sweep`."""

from pydantic import Field

from kvcalc.layers import Frozen, Note
from kvcalc.results.fit import Figures
from kvcalc.results.shared import Answer


class Cell(Frozen):
    """A cell of a grid, by the `options` that vary, as they would be typed."""

    options: dict[str, str]


class Refused(Cell):
    """A cell without an answer: `refused` says why. `context` is None where it would have been the model's own."""

    context: int | None
    batch: int
    fits: None = None
    refused: str


class SweptFit(Figures, Cell):
    """What `kvcalc fit` answers with the same options, but for what it advises. `notes` are those of its deployment, which the whole says once."""

    refused: None = None
    notes: tuple[Note, ...] = Field(exclude=True)


Row = SweptFit | Refused


class Sweep(Answer):
    """A grid, cell by cell: deployments in the order of their options, of each the lengths, of each the batches. `notes` hold for all rows unless they say of
    how many.
    """

    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
