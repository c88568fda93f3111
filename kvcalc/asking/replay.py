"""What `replay` is asked."""

from typing import TYPE_CHECKING

from kvcalc.asking.deployment import Typed, check_owned
from kvcalc.asking.machine import timed_question

if TYPE_CHECKING:
    from kvcalc.replay import ReplayQuestion


def replayed_on(typed: Typed) -> "ReplayQuestion":
    """The server that a trace is replayed on."""
    from kvcalc.engines import find_engine
    from kvcalc.replay import ReplayQuestion

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    question, machine = timed_question(typed, rules, 1)
    return ReplayQuestion(question, machine, rate_scale=float(typed["rate_scale"]))
