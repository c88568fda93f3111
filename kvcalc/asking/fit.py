"""A deployment with its budget, about which any model can be asked."""

from typing import TYPE_CHECKING, Final, NamedTuple

from kvcalc.asking.budget import KV_STATED, budgeted_options, checkpoint_of, deployed_gpus, gpu_and_device, question_of, shared_heads, utilization_of
from kvcalc.asking.deployment import CONTEXT_WITHOUT_MODEL, Typed, check_owned, check_together, context_typed, length_for, model_typed, wrong
from kvcalc.asking.machine import latency_asked
from kvcalc.errors import KvcalcError

if TYPE_CHECKING:
    from kvcalc.budget import Latency, Question, StatedWeights
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.engines.base import Engine, Options
    from kvcalc.layers import Note
    from kvcalc.results.fit import Fits, GpuInfo
    from kvcalc.workload import Workload

MODEL: Final = ("model", "as_model_type", "layers", "kv_heads", "head_dim", "revision")
"""What says which model it is."""
WORKLOAD: Final = ("shared_prefix", "lengths")
"""What says how requests are."""


class Lookup:
    """Models and their checkpoints, each read once however many questions are about it."""

    def __init__(self) -> None:
        self._models: dict[object, FoundModel] = {}
        self._workloads: dict[object, Workload | None] = {}
        self._checkpoints: dict[object, tuple[StatedWeights | None, tuple[Note, ...]]] = {}

    def model(self, typed: Typed) -> "FoundModel":
        """The model that is asked about. Raises KvcalcError where it is not found, or none is named."""
        key = _key(typed, MODEL)
        if key not in self._models:
            self._models[key] = model_typed(typed)
        return self._models[key]

    def drafter(self, typed: Typed) -> "FoundModel | None":
        """The model that drafts tokens."""
        draft, draft_tokens = typed["draft"], typed["draft_tokens"]
        if draft is None:
            if draft_tokens is not None:
                raise wrong("--draft-tokens goes with --draft MODEL")
            return None
        if typed["mtp"] is not None:
            raise wrong("--mtp drafts with the model's own layers: give it, or --draft")
        if draft_tokens is None:
            raise wrong("say how many tokens --draft proposes a step, with --draft-tokens")
        return self.model({**dict.fromkeys(MODEL), "model": draft})

    def workload(self, typed: Typed) -> "Workload | None":
        """What is said of the requests."""
        key = _key(typed, WORKLOAD)
        if key not in self._workloads:
            self._workloads[key] = workload_typed(typed)
        return self._workloads[key]

    def weights(self, found: "FoundModel", typed: Typed) -> "tuple[StatedWeights | None, tuple[Note, ...]]":
        """The size of the weights from the command line, else from the checkpoint; None leaves it to the tensors."""
        from kvcalc.budget import StatedWeights

        if typed["kv_mem"] is not None and typed["ttft"] is None and typed["tpot"] is None:
            return None, ()
        if typed["weights_per_gpu"] is not None:
            return StatedWeights(typed["weights_per_gpu"], "gpu", "--weights-per-gpu"), ()
        if typed["weights"] is not None:
            return StatedWeights(typed["weights"], "checkpoint", "--weights"), ()
        key = (found.name, found.source, found.weights_at, named := typed["quantization"] is not None)
        if key not in self._checkpoints:
            self._checkpoints[key] = checkpoint_of(found, named=named)
        return self._checkpoints[key]


def _key(typed: Typed, names: tuple[str, ...]) -> tuple[object, ...]:
    """Values by which something is found again: what is neither text nor a number is itself alone."""
    return tuple(value if isinstance(value, str | int | None) else id(value) for value in map(typed.__getitem__, names))


class Asking(NamedTuple):
    """A deployment with its budget, about which any model can be asked: `typed`, and what was found for it."""

    typed: Typed
    lookup: Lookup
    engine: "Engine"
    options: "Options"
    gpu: "GpuInfo"
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
        tensors = self.typed["kv_mem"] is None or self.latency is not None
        checkpoint = self.lookup.weights(found, self.typed)
        question = question_of(self.typed, self.engine, self.options, self.gpu, found, length=length, batch=batch, tensors=tensors, checkpoint=checkpoint)
        return question._replace(latency=self.latency, workload=self.workload)


def asking_of(typed: Typed, lookup: Lookup) -> Asking:
    """The deployment and the budget that are asked about. Raises KvcalcError where options contradict each other (usage), or a name is not known."""
    from kvcalc.engines import find_engine

    rules = find_engine(typed["engine"])
    check_owned(typed, (rules.name,))
    of_a_gpu = {
        "--utilization": utilization_of(typed, rules.name),
        "--weights": typed["weights"],
        "--weights-per-gpu": typed["weights_per_gpu"],
        "--quantization": typed["quantization"],
        "--reserve": typed["reserve"] or None,
    }
    check_together(KV_STATED, typed["kv_mem"], of_a_gpu)
    check_together(
        "--weights-per-gpu states what is loaded", typed["weights_per_gpu"], {"--weights": typed["weights"], "--quantization": typed["quantization"]}
    )
    tp = shared_heads(typed)
    info, device = gpu_and_device(typed, deployed_gpus(typed, tp))
    drafter = lookup.drafter(typed)
    options = budgeted_options(typed, device, rules.name)._replace(
        draft=None if drafter is None else drafter.weighed(),
        draft_served_as="" if drafter is None else drafter.served_as,
        speculative_tokens=(typed["draft_tokens"] if typed["mtp"] is None else typed["mtp"]) or 0,
    )
    latency = latency_asked(typed, deployed_gpus(typed, tp))
    return Asking(typed, lookup, rules, options, info, latency, lookup.workload(typed))


def asks_every_preset(typed: Typed) -> bool:
    """Whether no model is named."""
    return all(typed[name] is None for name in ("model", "layers", "kv_heads", "head_dim"))


def check_scope(typed: Typed) -> None:
    """Raises KvcalcError (usage) for an option of one model where all presets are asked about, or the other way round."""
    of_one = {
        "--weights": typed["weights"],
        "--weights-per-gpu": typed["weights_per_gpu"],
        "--as": typed["as_model_type"],
        "--revision": typed["revision"],
        "--encoder-tokens": typed["encoder_tokens"],
        "--draft": typed["draft"],
        "--min-gpus": typed["min_gpus"] or None,
        "--plot": typed["plot"] or None,
        "--save": typed["save"],
    }
    if asks_every_preset(typed):
        given = [flag for flag, value in of_one.items() if value is not None]
        if given:
            raise wrong(f"{given[0]} goes with one model: give --model too")
    elif typed["name_filter"] is not None:
        raise wrong("--filter goes with all presets: leave out --model")
    if typed["min_gpus"] and (typed["gpus"] is not None or (typed["tp"], typed["pp"]) != (1, 1)):
        raise wrong("--min-gpus finds how many GPUs it takes: leave out --gpus, --tp and --pp")


def fit_question(typed: Typed) -> "Question":
    """What is asked of one model; with `min_gpus`, of as few GPUs as serve it."""
    from kvcalc.advice import fewest_gpus

    lookup = Lookup()
    asking = asking_of(typed, lookup)
    found = lookup.model(typed)
    asked = asking.question(found, asking.length(found, typed["context"]), typed["batch"])
    return fewest_gpus(asked) if typed["min_gpus"] else asked


def fitted_presets(typed: Typed) -> "Fits":
    """The same question about every preset, at the length asked for, or one that each can take."""
    from kvcalc.catalog import model_of, presets
    from kvcalc.fit import answer, ranked

    asking = asking_of(typed, Lookup())
    context, wanted = typed["context"], typed["name_filter"]
    answers, unanswered = [], {}
    for preset in presets():
        found = model_of(preset)
        if wanted is not None and wanted.strip().lower() not in found.name:
            continue
        own = found.spec.facts.max_context
        length = context if context is not None else CONTEXT_WITHOUT_MODEL if own is None else min(own, CONTEXT_WITHOUT_MODEL)
        try:
            answers.append(answer(asking.question(found, length, typed["batch"])))
        except KvcalcError as error:
            unanswered[found.name] = error.message
    result = ranked(answers, unanswered)
    if not result.rows:
        raise KvcalcError("no preset is left to be answered", hint="; ".join(note.text for note in result.notes)[:300] or "`kvcalc models` lists the presets")
    return result


def workload_typed(typed: Typed) -> "Workload | None":
    """What is said of the requests, None where nothing is. Raises KvcalcError for a file without lengths."""
    if typed["shared_prefix"] is None and typed["lengths"] is None:
        return None
    from kvcalc.traces import read_lengths
    from kvcalc.workload import Workload

    lengths = typed["lengths"]
    return Workload(typed["shared_prefix"] or 0, read_lengths(lengths) if isinstance(lengths, str) else lengths)
