"""A grid of deployments, lengths and batches, each cell answered as `fit` answers it: a pure function of the questions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from kvcalc.budget import Budget, Question
from kvcalc.errors import KvcalcError
from kvcalc.fit import Deployed
from kvcalc.layers import Note
from kvcalc.results.sweep import Refused, Row, SweptFit

MOST_CELLS: Final = 1_000_000
"""A larger grid is a mistyped range: its table would be read by nobody."""


class Point(NamedTuple):
    """One deployment of a grid: those of its `options` that vary, as they would be typed, and what is asked, or why it cannot be asked."""

    options: Mapping[str, str]
    question: Question | KvcalcError


def sweep(points: Iterable[Point], contexts: Sequence[int] = (), batches: Sequence[int] = (1,)) -> Iterator[Row]:
    """The cells of a grid as they are answered: of each point all `contexts` (its question's own where none is named), of each of these all `batches`.

    A cell that cannot be answered is a row with its reason. Raises KvcalcError where no cell can be: the error of the first.
    """
    before: list[_Refusal] = []
    answered = False
    for point in points:
        for row in _rows(point, contexts, batches):
            if isinstance(row, SweptFit):
                yield from (each.row for each in before)
                before.clear()
                answered = True
                yield row
            elif answered:
                yield row.row
            else:
                before.append(row)
    if before:
        raise before[0].error


class _Refusal(NamedTuple):
    """A row without an answer, and the error that says why."""

    row: Refused
    error: KvcalcError


def _rows(point: Point, contexts: Sequence[int], batches: Sequence[int]) -> Iterator[SweptFit | _Refusal]:
    def varied(context: int | None, batch: int) -> dict[str, str]:
        lengths = {"context": str(context)} if len(contexts) > 1 else {}
        return {**point.options, **lengths, "batch": str(batch)} if len(batches) > 1 else {**point.options, **lengths}

    def refusal(context: int | None, batch: int, error: KvcalcError) -> _Refusal:
        return _Refusal(Refused(options=varied(context, batch), context=context, batch=batch, refused=error.message), error)

    question = point.question
    if isinstance(question, KvcalcError):
        yield from (refusal(context, batch, question) for context in contexts or (None,) for batch in batches)
        return
    lengths = contexts or (question.asked.context,)
    try:
        deployed = Deployed(question)
    except KvcalcError as error:
        yield from [refusal(context, batch, error) for context in lengths for batch in batches]
        return
    said: tuple[Budget, tuple[Note, ...]] | None = None
    for context in lengths:
        for batch in batches:
            try:
                held = deployed.held(context, batch)
            except KvcalcError as error:
                yield refusal(context, batch, error)
                continue
            if said is None or said[0] is not held.budget:
                said = held.budget, (*question.spec.notes, *question.notes, *deployed.plan.notes, *held.budget.notes)
            yield SweptFit(options=varied(context, batch), notes=said[1], **deployed.figures(context, batch, held))


class Said:
    """What is to be known about the rows of a grid, gathered while they pass."""

    def __init__(self) -> None:
        self.fits = False
        self._answered = 0
        self._notes: Counter[tuple[Note, ...]] = Counter()
        self._last: tuple[Note, ...] = ()
        self._since = 0
        self._beyond: Counter[tuple[str, int]] = Counter()

    def listening(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The same rows."""
        for row in rows:
            if isinstance(row, SweptFit):
                self._hear(row)
            yield row

    def _hear(self, row: SweptFit) -> None:
        self.fits = self.fits or row.fits
        self._answered += 1
        if row.notes is not self._last:
            self._count()
            self._last = row.notes
        self._since += 1
        own = row.model.max_context
        if own is not None and row.context > own and (row.capacity.slots or 1) == 1:
            self._beyond[row.model.name, own] += 1

    def _count(self) -> None:
        """Rows of one deployment share their notes, which are counted together."""
        self._notes[self._last] += self._since
        self._since = 0

    def notes(self) -> tuple[Note, ...]:
        """Each note once, with the number of rows that it is about where these are not all that are answered."""
        self._count()
        counts: Counter[Note] = Counter()
        for shared, rows in self._notes.items():
            for note in dict.fromkeys(shared):
                counts[note] += rows
        for (name, own), rows in self._beyond.items():
            counts[Note(code="context", text=f"more tokens are asked for than the {own:,} that {name} is made for")] += rows
        return tuple(
            note if rows == self._answered else Note(code=note.code, text=f"of {rows:,} of {self._answered:,} rows: {note.text}")
            for note, rows in counts.items()
        )
