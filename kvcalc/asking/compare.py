"""What `compare` is asked."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from kvcalc.asking.budget import budgeted_options, checkpoint_of, quantization_named, question_of, stated_budget
from kvcalc.asking.deployment import CONTEXT_WITHOUT_MODEL, Source, Typed, check_owned, found_model, wrong

if TYPE_CHECKING:
    from kvcalc.results.compare import Comparison


def compared(names: Sequence[Source], typed: Typed) -> "Comparison":
    """Models or engines side by side."""
    from kvcalc.compare import compare
    from kvcalc.engines import ENGINES, find_engine

    asked_for = typed["engine"] or ("vllm" if len(names) > 1 else "all")
    engines = [find_engine(name) for name in (ENGINES if asked_for.strip().lower() == "all" else asked_for.split(","))]
    if len(names) * len(engines) == 1:
        raise wrong("one model under one engine has nothing to be compared with: name another, or --engine all")
    check_owned(typed, tuple(rules.name for rules in engines))
    named = quantization_named(typed["quantization"])
    info, device, weighs = stated_budget(typed, typed["utilization"] or typed["mem_fraction_static"])
    models = [found_model(name) for name in names]
    own = [found.spec.facts.max_context for found in models]
    length = min((CONTEXT_WITHOUT_MODEL, *(tokens for tokens in own if tokens is not None))) if typed["context"] is None else typed["context"]
    questions = []
    for found in models:
        checkpoint = checkpoint_of(found, named=named is not None) if weighs else (None, ())
        questions += [
            question_of(
                typed,
                rules,
                budgeted_options(typed, device, rules.name),
                info,
                found,
                length=length,
                batch=typed["batch"],
                tensors=weighs,
                checkpoint=checkpoint,
            )
            for rules in engines
        ]
    return compare(questions)
