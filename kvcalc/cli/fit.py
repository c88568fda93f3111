"""`kvcalc fit`."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from kvcalc.cli.budget import BUDGET, SIZE, checkpoint_of, deployed_gpus, gpu_and_device, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.cli.options import (
    CONTEXT_WITHOUT_MODEL,
    COUNT,
    DEPLOYMENT,
    MODEL,
    Batch,
    Context,
    EngineName,
    Json,
    check_owned,
    check_together,
    complete_model,
    find_model,
    one_form,
    options_of,
    with_options,
)
from kvcalc.errors import ExitCode, KvcalcError

if TYPE_CHECKING:
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.fit import StatedWeights
    from kvcalc.layers import Note
    from kvcalc.results.fit import Fit


@with_options(MODEL, BUDGET, DEPLOYMENT)
def fit(
    call: typer.Context,
    context: Context = None,
    batch: Batch = 1,
    engine: EngineName = "vllm",
    weights: Annotated[int | None, typer.Option("--weights", **SIZE, help="Bytes of the whole checkpoint.")] = None,
    weights_per_gpu: Annotated[int | None, typer.Option("--weights-per-gpu", **SIZE, help="Bytes on one GPU, as the engine reports them loaded.")] = None,
    min_gpus: Annotated[bool, typer.Option("--min-gpus", help="The smallest number of these GPUs that serves it, and how they share the work.")] = False,
    name_filter: Annotated[str | None, typer.Option("--filter", metavar="TEXT", help="Without --model: only presets whose name contains this.")] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="MODEL", help="A model that drafts tokens, named as --model is.", autocompletion=complete_model)
    ] = None,
    draft_tokens: Annotated[int | None, typer.Option("--draft-tokens", **COUNT, help="Tokens that --draft proposes a step.")] = None,
    as_json: Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only the number of whole requests; without --model, the names that fit.")] = False,
) -> int:
    """What fits: requests, tokens and the longest request, in the blocks of the engine. Without --model: every preset. Exit code 1: it does not fit."""
    from kvcalc.engines import find_engine
    from kvcalc.fit import Asked, Question, advised, fewest_gpus
    from kvcalc.fit import answer as plainly

    one_form(as_json=as_json, quiet=quiet)
    rules, typed = find_engine(engine), call.params
    check_owned(typed, (rules.name,))
    utilization, kv_mem = utilization_of(typed, rules.name), typed["kv_mem"]
    of_a_gpu = {
        "--utilization": utilization,
        "--weights": weights,
        "--weights-per-gpu": weights_per_gpu,
        "--quantization": typed["quantization"],
        "--reserve": typed["reserve"] or None,
    }
    check_together("--kv-mem states what is left for the cache", kv_mem, of_a_gpu)
    check_together("--weights-per-gpu states what is loaded", weights_per_gpu, {"--weights": weights, "--quantization": typed["quantization"]})
    every_preset = typed["model"] is None and (typed["layers"], typed["kv_heads"], typed["head_dim"]) == (None, None, None)
    of_one = {
        "--weights": weights,
        "--weights-per-gpu": weights_per_gpu,
        "--as": typed["as_model_type"],
        "--revision": typed["revision"],
        "--encoder-tokens": typed["encoder_tokens"],
        "--draft": draft,
    }
    _check_scope({**of_one, "--min-gpus": min_gpus or None}, {"--filter": name_filter}, every_preset=every_preset)
    tp = shared_heads(typed)
    if min_gpus and (typed["gpus"] is not None or (tp, typed["pp"]) != (1, 1)):
        raise typer.BadParameter("--min-gpus finds how many GPUs it takes: leave out --gpus, --tp and --pp")
    info, device = gpu_and_device(typed, deployed_gpus(typed, tp))
    drafter = _drafter(draft, draft_tokens, typed["mtp"])
    options = with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed)._replace(
        draft=None if drafter is None else drafter.weighed(),
        draft_served_as="" if drafter is None else drafter.served_as,
        speculative_tokens=(draft_tokens if typed["mtp"] is None else typed["mtp"]) or 0,
    )
    named = quantization_named(typed["quantization"])

    def answer(found: "FoundModel", length: int) -> "Fit":
        stated, notes = (None, ()) if kv_mem is not None else _stated_weights(found, weights, weights_per_gpu, named=named is not None)
        question = Question(
            found.spec if kv_mem is not None else found.weighed(),
            rules,
            options,
            Asked(found.name, found.source, found.served_as, length, batch),
            info,
            kv_bytes=kv_mem,
            utilization=utilization,
            weights=stated,
            quantization=named,
            reserve_bytes=typed["reserve"],
            notes=notes,
        )
        if every_preset:
            return plainly(question)
        return advised(fewest_gpus(question) if min_gpus else question)

    if every_preset:
        return _fit_presets(answer, context, name_filter, as_json=as_json, quiet=quiet)
    memory = None if info.memory_bytes is None else info.memory_bytes * tp * typed["pp"]
    result = answer(*find_model(typed, context, rules.name, memory))
    if as_json:
        print(result.to_json())
    elif quiet:
        print(next(row.requests for row in result.lengths if row.context == result.context))
    else:
        from kvcalc.render.fit import render_fit
        from kvcalc.render.style import console_for_stdout

        render_fit(result, console_for_stdout())
    return ExitCode.YES if result.fits else ExitCode.NO


def _stated_weights(found: "FoundModel", weights: int | None, weights_per_gpu: int | None, *, named: bool) -> "tuple[StatedWeights | None, tuple[Note, ...]]":
    """The size of the weights from the command line, else from the checkpoint."""
    from kvcalc.fit import StatedWeights

    if weights_per_gpu is not None:
        return StatedWeights(weights_per_gpu, "gpu", "--weights-per-gpu"), ()
    if weights is not None:
        return StatedWeights(weights, "checkpoint", "--weights"), ()
    return checkpoint_of(found, named=named)


def _drafter(draft: str | None, draft_tokens: int | None, mtp: int | None) -> "FoundModel | None":
    """The model that drafts tokens."""
    if draft is None:
        if draft_tokens is not None:
            raise typer.BadParameter("--draft-tokens goes with --draft MODEL")
        return None
    if mtp is not None:
        raise typer.BadParameter("--mtp drafts with the model's own layers: give it, or --draft")
    if draft_tokens is None:
        raise typer.BadParameter("say how many tokens --draft proposes a step, with --draft-tokens")
    from kvcalc.catalog import load_model

    return load_model(draft)


def _check_scope(of_one: dict[str, object], of_all: dict[str, object], *, every_preset: bool) -> None:
    """Options that go with one model, or with all presets, and were given for the other."""
    given = [flag for flag, value in (of_one if every_preset else of_all).items() if value is not None]
    if given:
        raise typer.BadParameter(
            f"{given[0]} goes with one model: give --model too" if every_preset else f"{given[0]} goes with all presets: leave out --model"
        )


def _fit_presets(answer: "Callable[[FoundModel, int], Fit]", context: int | None, name_filter: str | None, *, as_json: bool, quiet: bool) -> ExitCode:
    """The same question about every preset, at the length asked for, or one that each can take."""
    from kvcalc.catalog import model_of, presets
    from kvcalc.fit import ranked

    answers, unanswered = [], {}
    for preset in presets():
        found = model_of(preset)
        if name_filter is not None and name_filter.strip().lower() not in found.name:
            continue
        own = found.spec.facts.max_context
        length = context if context is not None else CONTEXT_WITHOUT_MODEL if own is None else min(own, CONTEXT_WITHOUT_MODEL)
        try:
            answers.append(answer(found, length))
        except KvcalcError as error:
            unanswered[found.name] = error.message
    result = ranked(answers, unanswered)
    if not result.rows:
        raise KvcalcError("no preset is left to be answered", hint="; ".join(note.text for note in result.notes)[:300] or "`kvcalc models` lists the presets")
    if as_json:
        print(result.to_json())
    elif quiet:
        for row in result.rows:
            if row.fits:
                print(row.model.name)
    else:
        from kvcalc.render.fit import render_fits
        from kvcalc.render.style import console_for_stdout

        render_fits(result, console_for_stdout())
    return ExitCode.YES if result.rows[0].fits else ExitCode.NO
