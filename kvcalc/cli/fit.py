"""`kvcalc fit`."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kvcalc.cli.budget import BUDGET, SIZE, checkpoint_of, deployed_gpus, gpu_and_device, quantization_named, shared_heads, utilization_of, with_budget
from kvcalc.cli.machine import LATENCY, MACHINE, latency_asked
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
    context_typed,
    length_for,
    model_typed,
    one_form,
    options_of,
    with_options,
)
from kvcalc.cli.pictures import PICTURES, check_pictures, draw_in_terminal, save_as
from kvcalc.cli.workload import WORKLOAD, workload_typed
from kvcalc.errors import ExitCode, KvcalcError

if TYPE_CHECKING:
    from pathlib import Path

    from kvcalc.budget import Latency, Question, StatedWeights
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.engines.base import Engine, Options
    from kvcalc.layers import Note
    from kvcalc.quantizations import Named
    from kvcalc.results.fit import Fit, GpuInfo
    from kvcalc.results.plot import Chart
    from kvcalc.workload import Workload


@with_options(MODEL, BUDGET, DEPLOYMENT, WORKLOAD, LATENCY, MACHINE, PICTURES)
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
    """What fits on GPUs, and what would help.

    Requests, tokens and the longest request, in the blocks of the engine. Without --model: every preset. Exit code 1: it does not fit.
    """
    from kvcalc.advice import advised, fewest_gpus
    from kvcalc.engines import find_engine
    from kvcalc.fit import answer

    one_form(as_json=as_json, quiet=quiet)
    typed = call.params
    check_owned(typed, (find_engine(engine).name,))
    every_preset = typed["model"] is None and (typed["layers"], typed["kv_heads"], typed["head_dim"]) == (None, None, None)
    of_one = {
        "--weights": weights,
        "--weights-per-gpu": weights_per_gpu,
        "--as": typed["as_model_type"],
        "--revision": typed["revision"],
        "--encoder-tokens": typed["encoder_tokens"],
        "--draft": draft,
    }
    pictures = {"--plot": typed["plot"] or None, "--save": typed["save"]}
    _check_scope({**of_one, "--min-gpus": min_gpus or None, **pictures}, {"--filter": name_filter}, every_preset=every_preset)
    check_pictures(typed["plot"], typed["save"], as_text=not (as_json or quiet))
    if min_gpus and (typed["gpus"] is not None or (typed["tp"], typed["pp"]) != (1, 1)):
        raise typer.BadParameter("--min-gpus finds how many GPUs it takes: leave out --gpus, --tp and --pp")
    lookup = Lookup()
    asking = asking_of(typed, lookup)

    if every_preset:
        return _fit_presets(lambda found, length: answer(asking.question(found, length, batch)), context, name_filter, as_json=as_json, quiet=quiet)
    found = lookup.model(typed)
    asked = asking.question(found, asking.length(found, context), batch)
    asked = fewest_gpus(asked) if min_gpus else asked
    result = advised(asked)
    chart = None
    if typed["plot"] or typed["save"] is not None:
        from kvcalc.charts import capacity_chart

        chart = capacity_chart(asked)
    if typed["save"] is not None:
        _save(typed["save"], result, chart)
    if as_json:
        print(result.to_json())
    elif quiet:
        print(result.held)
    else:
        from kvcalc.render.fit import render_fit
        from kvcalc.render.style import console_for_stdout

        render_fit(result, console_for_stdout())
    if typed["plot"]:
        draw_in_terminal(chart)
    return ExitCode.YES if result.fits else ExitCode.NO


def _save(path: "Path", result: "Fit", chart: "Chart | None") -> None:
    """What fits against context, and the memory of a GPU; or the whole answer as a page."""
    from kvcalc.results.plot import memory_chart

    def page() -> str:
        from kvcalc.render.report import fit_page

        return fit_page(result, chart)

    save_as(path, [drawing for drawing in (chart, memory_chart(result)) if drawing is not None], page)


class Lookup:
    """Models and their checkpoints, each read once however many questions are about it."""

    def __init__(self) -> None:
        self._models: dict[object, FoundModel] = {}
        self._workloads: dict[object, Workload | None] = {}
        self._checkpoints: dict[object, tuple[StatedWeights | None, tuple[Note, ...]]] = {}

    def model(self, typed: Mapping[str, Any]) -> "FoundModel":
        """The model that is asked about. Raises KvcalcError where it is not found, BadParameter where none is named."""
        key = tuple(typed[name] for name in MODEL)
        if key not in self._models:
            self._models[key] = model_typed(typed)
        return self._models[key]

    def drafter(self, typed: Mapping[str, Any]) -> "FoundModel | None":
        """The model that drafts tokens."""
        draft, draft_tokens = typed["draft"], typed["draft_tokens"]
        if draft is None:
            if draft_tokens is not None:
                raise typer.BadParameter("--draft-tokens goes with --draft MODEL")
            return None
        if typed["mtp"] is not None:
            raise typer.BadParameter("--mtp drafts with the model's own layers: give it, or --draft")
        if draft_tokens is None:
            raise typer.BadParameter("say how many tokens --draft proposes a step, with --draft-tokens")
        return self.model({**dict.fromkeys(MODEL), "model": draft})

    def workload(self, typed: Mapping[str, Any]) -> "Workload | None":
        """What is said of the requests."""
        key = tuple(typed[name] for name in WORKLOAD)
        if key not in self._workloads:
            self._workloads[key] = workload_typed(typed)
        return self._workloads[key]

    def weights(self, found: "FoundModel", typed: Mapping[str, Any]) -> "tuple[StatedWeights | None, tuple[Note, ...]]":
        """The size of the weights from the command line, else from the checkpoint; None leaves it to the tensors."""
        from kvcalc.budget import StatedWeights

        if typed["kv_mem"] is not None:
            return None, ()
        if typed["weights_per_gpu"] is not None:
            return StatedWeights(typed["weights_per_gpu"], "gpu", "--weights-per-gpu"), ()
        if typed["weights"] is not None:
            return StatedWeights(typed["weights"], "checkpoint", "--weights"), ()
        key = (found.name, found.source, found.weights_at, named := typed["quantization"] is not None)
        if key not in self._checkpoints:
            self._checkpoints[key] = checkpoint_of(found, named=named)
        return self._checkpoints[key]


class Asking(NamedTuple):
    """A deployment with its budget, about which any model can be asked: `typed`, and what was found for it."""

    typed: Mapping[str, Any]
    lookup: Lookup
    engine: "Engine"
    options: "Options"
    gpu: "GpuInfo"
    quantization: "Named | None"
    latency: "Latency | None"
    workload: "Workload | None"

    def length(self, found: "FoundModel", context: int | None) -> int:
        """The length of requests that is asked about. Raises KvcalcError where it is not stated and the model's own is not known."""
        if context is None and self.workload is not None and self.workload.lengths is not None:
            return self.workload.lengths.percentile(100)
        memory = None if self.gpu.memory_bytes is None else self.gpu.memory_bytes * self.options.tp * self.options.pp
        return length_for(found, context_typed(self.typed, context), self.engine.name, memory)

    def question(self, found: "FoundModel", length: int, batch: int) -> "Question":
        """What is asked of a model."""
        from kvcalc.budget import Asked, Question

        typed, kv_mem = self.typed, self.typed["kv_mem"]
        stated, notes = self.lookup.weights(found, typed)
        return Question(
            found.spec if kv_mem is not None and self.latency is None else found.weighed(),
            self.engine,
            self.options,
            Asked(found.name, found.source, found.served_as, length, batch),
            self.gpu,
            kv_bytes=kv_mem,
            utilization=utilization_of(typed, self.engine.name),
            weights=stated,
            quantization=self.quantization,
            reserve_bytes=typed["reserve"],
            latency=self.latency,
            workload=self.workload,
            notes=notes,
        )


def asking_of(typed: Mapping[str, Any], lookup: Lookup) -> Asking:
    """The deployment and the budget that were typed. Raises BadParameter where options contradict each other, KvcalcError where a name is not known."""
    from kvcalc.engines import find_engine

    rules = find_engine(typed["engine"])
    of_a_gpu = {
        "--utilization": utilization_of(typed, rules.name),
        "--weights": typed["weights"],
        "--weights-per-gpu": typed["weights_per_gpu"],
        "--quantization": typed["quantization"],
        "--reserve": typed["reserve"] or None,
    }
    check_together("--kv-mem states what is left for the cache", typed["kv_mem"], of_a_gpu)
    check_together(
        "--weights-per-gpu states what is loaded", typed["weights_per_gpu"], {"--weights": typed["weights"], "--quantization": typed["quantization"]}
    )
    tp = shared_heads(typed)
    info, device = gpu_and_device(typed, deployed_gpus(typed, tp))
    drafter = lookup.drafter(typed)
    options = with_budget(options_of({**typed, "tp": tp}, device, rules.name), typed)._replace(
        draft=None if drafter is None else drafter.weighed(),
        draft_served_as="" if drafter is None else drafter.served_as,
        speculative_tokens=(typed["draft_tokens"] if typed["mtp"] is None else typed["mtp"]) or 0,
    )
    latency = latency_asked(typed, deployed_gpus(typed, tp))
    return Asking(typed, lookup, rules, options, info, quantization_named(typed["quantization"]), latency, lookup.workload(typed))


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
