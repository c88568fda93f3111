"""The figures of a start-up log beside what is predicted. Pure."""

from typing import Final, NamedTuple

from kvcalc.budget import Question
from kvcalc.engines import find_engine
from kvcalc.errors import KvcalcError
from kvcalc.layers import Note
from kvcalc.results.verify import Check, Verified
from kvcalc.verify.log import LogFacts
from kvcalc.verify.log_estimates import estimate_checks
from kvcalc.verify.log_exact import cache_checks
from kvcalc.verify.log_failures import failure_checks


def verify_log(facts: LogFacts, question: Question, *, any_release: bool = False) -> Verified:
    """Every figure that has a prediction, beside it: what follows from the logged memory exactly, and what is estimated within its range.

    `question` is the deployment that the log is of; its model should have its tensors (for the weights), and its `kv_bytes` is not read. With `any_release`, of
    a log of vLLM that prints no release the newest counts with whose rules all exact figures agree, where there is one.
    Raises KvcalcError where the engine cannot run the model so.
    """
    first = _compared(facts, question)
    if not any_release or facts.release is not None or facts.engine != "vllm" or first.agrees:
        return first.verified(facts)
    for minor in OLDER_RULES:
        older = question._replace(engine=find_engine(f"vllm@0.{minor}"))
        try:
            second = _compared(facts, older)
        except KvcalcError:
            continue  # it does not run the model so
        if second.exact and second.agrees:
            says = (
                f"the log prints no release: its figures agree with the rules of vLLM {older.engine.version}, and not with those of {question.engine.version}"
            )
            return second.verified(facts, Note(code="release", text=says))
    return first.verified(facts)


OLDER_RULES: Final = (28, 27, 25, 20, 18, 14, 11, 9, 8, 6)
"""Minor numbers of releases of vLLM whose rules differ from those of newer ones (kvcalc/engines/vllm/versions.py)."""


class _Compared(NamedTuple):
    """Checks that are exact, those that are estimates, and what to say."""

    exact: tuple[Check, ...]
    estimated: tuple[Check, ...]
    notes: tuple[Note, ...]

    @property
    def agrees(self) -> bool:
        return all(check.ok for check in self.exact)

    def verified(self, facts: LogFacts, *more: Note) -> Verified:
        checks = (*self.exact, *self.estimated)
        alone = () if checks else (Note(code="log", text="no figure of the log has a prediction: it stands alone, or its line is cut"),)
        return Verified(checks=checks, ok=all(check.ok for check in checks), notes=(*facts.notes, *more, *self.notes, *alone))


def _compared(facts: LogFacts, question: Question) -> _Compared:
    plan = question.engine.plan(question.spec, question.options)
    notes = [*question.spec.notes, *question.notes, *plan.notes]
    if question.engine.name != facts.engine:
        notes.append(Note(code="engine", text=f"the log reads like one of {facts.engine}: its figures are compared with the rules of {question.engine.name}"))
    estimates, estimate_notes = estimate_checks(facts, question)
    failed, failed_notes = failure_checks(facts, question, plan)
    exact = (*cache_checks(facts, question, plan), *failed)
    return _Compared(exact, tuple(estimates), (*notes, *estimate_notes, *failed_notes))
