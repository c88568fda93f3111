"""What `prefix` is asked."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from kvcalc.asking.budget import (
    budgeted_options,
    checkpoint_of,
    deployed_gpus,
    quantization_named,
    question_of,
    shared_heads,
    stated_budget,
    utilization_of,
)
from kvcalc.asking.deployment import Typed, check_owned, find_model, wrong
from kvcalc.asking.machine import RATES, check_no_rates, machine_asked
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Question
    from kvcalc.engines.base import Engine
    from kvcalc.machine import Machine
    from kvcalc.prefix.answer import Deployed

OF_NO_MODEL: Final = frozenset(("block_size", "page_size", "no_prefix_caching"))
"""Options that say something where no model is named."""
MODEL_NAMED_BY: Final = ("model", "layers", "kv_heads", "head_dim")


def cached_on(typed: Typed, defaults: Mapping[str, object]) -> "Deployed":
    """The rules of the cache: of an engine alone, or of one that serves a model. `defaults`: what each option is where it is not given."""
    from kvcalc.engines import find_engine
    from kvcalc.engines.reuse import check_reuse
    from kvcalc.prefix.answer import with_model, without_model

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    check_reuse(rules.name, prefix_caching=not typed["no_prefix_caching"])
    if any(typed[name] is not None for name in MODEL_NAMED_BY):
        machine = _machine(typed)
        return with_model(_question(typed, rules, timed=machine is not None), machine)
    given = [name for name, default in defaults.items() if name not in OF_NO_MODEL and typed[name] != default] + ["context"] * (typed["context"] is not None)
    if given:
        flag = "as" if given[0] == "as_model_type" else given[0].replace("_", "-")
        raise wrong(f"--{flag} says nothing without a model: give --model too")
    return without_model(rules, typed["block_size"] if typed["page_size"] is None else typed["page_size"])


def _machine(typed: Typed) -> "Machine | None":
    """How fast the GPU is, where one is named: cards of a name that differ in it are not told apart for that alone."""
    if typed["gpu"] is None:
        check_no_rates(typed)
        return None
    try:
        return machine_asked(typed, deployed_gpus(typed, shared_heads(typed)))[2]
    except KvcalcError:
        if any(typed[name] is not None for name in RATES):
            raise
        return None


def _question(typed: Typed, rules: "Engine", *, timed: bool) -> "Question":
    """What a server of the model has for its cache, where a GPU or a budget is stated."""
    named = quantization_named(typed["quantization"])
    info, device, weighs = stated_budget(typed, utilization_of(typed, rules.name))
    found, length = find_model(typed, typed["context"], rules.name, None)
    checkpoint = checkpoint_of(found, named=named is not None) if weighs else (None, ())
    options = budgeted_options(typed, device, rules.name)
    return question_of(typed, rules, options, info, found, length=length, batch=1, tensors=weighs or timed, checkpoint=checkpoint)
