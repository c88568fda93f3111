"""What `replay` is asked."""

from typing import TYPE_CHECKING

from kvcalc.asking.budget import utilization_of
from kvcalc.asking.deployment import Typed, check_owned, check_together
from kvcalc.asking.machine import timed_question

if TYPE_CHECKING:
    from kvcalc.replay import ReplayQuestion


def replayed_on(typed: Typed) -> "ReplayQuestion":
    """The server that a trace is replayed on."""
    from kvcalc.engines import find_engine
    from kvcalc.replay import ReplayQuestion

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    of_a_gpu = {"--utilization": utilization_of(typed, rules.name), "--reserve": typed["reserve"] or None}
    check_together("--kv-mem states what is left for the cache", typed["kv_mem"], of_a_gpu)
    question, machine = timed_question(typed, rules, 1)
    return ReplayQuestion(question, machine, rate_scale=float(typed["rate_scale"]))
