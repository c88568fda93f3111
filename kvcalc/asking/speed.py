"""What `speed` is asked."""

from typing import TYPE_CHECKING

from kvcalc.asking.deployment import Typed, check_owned
from kvcalc.asking.machine import timed_question

if TYPE_CHECKING:
    from kvcalc.results.speed import Speed


def timed(typed: Typed) -> "Speed":
    """Prefill and decode: time to first token, time a token, and what binds."""
    from kvcalc.engines import find_engine
    from kvcalc.speed import SpeedQuestion, speed

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    question, machine = timed_question(typed, rules, typed["batch"])
    return speed(SpeedQuestion(question, machine, typed["output"], typed["no_cache"]))
