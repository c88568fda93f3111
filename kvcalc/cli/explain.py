"""`kvcalc explain`."""

from typing import Annotated, Final

import typer

from kvcalc.asking.deployment import CONTEXT_WITHOUT_MODEL, check_owned, model_typed, options_of
from kvcalc.asking.machine import check_no_rates, machine_asked
from kvcalc.cli.machine import MACHINE
from kvcalc.cli.options import CONTEXT_NAMES, COUNT, DEPLOYMENT, MODEL, Batch, EngineName, Json, with_options

ANY_MODEL: Final = "llama-3-8b"
"""What is explained where no model is named: every layer keeps K and V of every token."""


def _complete_topic(incomplete: str) -> list[str]:
    from kvcalc.explain import ALL, TOPICS

    return [name for name in (*TOPICS, ALL) if name.startswith(incomplete.lower())]


@with_options(MODEL, DEPLOYMENT, MACHINE)
def explain(
    call: typer.Context,
    topics: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="TOPIC",
            help="cache, formula, layers, prefill-decode, paging, prefix, dtype, parallel, or all; without: the story in short.",
            autocompletion=_complete_topic,
            show_default=False,
        ),
    ] = None,
    context: Annotated[
        int | None,
        typer.Option(*CONTEXT_NAMES, **COUNT, help="Tokens of the request that is shown; 8,192, or the model's own maximum where that is less."),
    ] = None,
    batch: Batch = 1,
    engine: EngineName = "vllm",
    as_json: Json = False,
) -> None:
    """What a KV cache is: the formula, prefill and decode, paging and sharing, with the numbers of a model."""
    from kvcalc.budget import Asked, Question
    from kvcalc.engines import find_engine
    from kvcalc.explain import explain as compute
    from kvcalc.explain import find_topics
    from kvcalc.results.fit import GpuInfo

    asked_for, rules, typed = find_topics(topics or ()), find_engine(engine), call.params
    check_owned(typed, (rules.name,))
    assumed = typed["model"] is None and (typed["layers"], typed["kv_heads"], typed["head_dim"]) == (None, None, None)
    info, device, machine = GpuInfo(name=None, memory_bytes=None), None, None
    if typed["gpu"] is not None:
        info, device, machine = machine_asked({**typed, "gpu_mem": None, "kv_mem": None}, 1)
    else:
        check_no_rates(typed)
    found = model_typed({**typed, "model": ANY_MODEL} if assumed else typed)
    own = found.spec.facts.max_context
    length = (CONTEXT_WITHOUT_MODEL if own is None else min(CONTEXT_WITHOUT_MODEL, own)) if context is None else context
    asked = Asked(found.name, found.source, found.served_as, length, batch)
    result = compute(Question(found.weighed(), rules, options_of(typed, device, rules.name), asked, info), asked_for, machine, assumed_model=assumed)
    if as_json:
        print(result.to_json())
    else:
        from kvcalc.render.explain import render_explain
        from kvcalc.render.style import console_for_stdout

        render_explain(result, console_for_stdout())
