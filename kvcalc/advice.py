"""What would make it fit: other questions whose answer is yes."""

from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import partial
from itertools import product
from typing import Any, Final, NamedTuple

from kvcalc.budget import Question, StatedWeights, part_taken
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.fit import GGUF_ENGINES, Deployed, answer, units_wanted
from kvcalc.packing import KvDtype
from kvcalc.quantizations import BY_NAME, Named
from kvcalc.results.fit import Change, Fit
from kvcalc.search import largest
from kvcalc.tensors import weighed
from kvcalc.units import BINARY_UNITS

GIB: Final = BINARY_UNITS["GiB"]


def advised(question: Question) -> Fit:
    """The same, and where the answer is no, what would make it yes."""
    found = answer(question)
    return found if found.fits else found.model_copy(update={"advice": tuple(_changes(question, found))})


class _Lever(NamedTuple):
    """One change of a kind of which at most one is made: what it costs beside the others, in no unit, and the question with it."""

    kind: str
    cost: int
    text: str
    options: str
    pull: Callable[[Question], Question]


MOST_TP: Final = 8
"""GPUs of one node, beyond which tensor parallelism rarely pays."""
MOST_GPUS: Final = 64
"""The largest deployment of one replica that is searched."""
MOST_CHANGES: Final = 6
FULL_UTILIZATION: Final = Decimal("0.95")
"""What a GPU without other users can be filled to: recipes of gpt-oss and DeepSeek use it."""
SMALL_BATCH: Final = 2048
"""Tokens of a step, as vLLM's default on small GPUs (vllm/engine/arg_utils.py 0.33.0, get_batch_defaults)."""
EIGHT_BIT: Final = {"llama.cpp": "q8_0", "ollama": "q8_0"}
"""What engines call a cache of about 8 bits, where it is not fp8."""
CPU_OFFLOAD: Final = ("vllm", "sglang")
"""Engines that take --cpu-offload-gb: weights in GiB a GPU (vllm/config/offload.py 0.33.0, sglang/srt/server_args.py 0.5.23)."""


def smaller_weights(question: Question) -> tuple[str, str]:
    """How weights of 16 bits are commonly stored smaller for an engine: in 8 bits and in 4."""
    return ("q8_0", "q4_k_m") if question.engine.name in GGUF_ENGINES else ("fp8", "awq")


def quantizable(question: Question) -> bool:
    """Whether the weights are of 16 bits and known one by one."""
    spec = weighed(question.spec)
    return spec.quantization is None and question.quantization is None and bool(spec.tensors)


def _changes(question: Question, found: Fit) -> Iterator[Change]:
    """What makes it fit, each answered in full: another question, then the cheapest sets of changes that need every one of theirs, then offloading."""
    yield from (change for lever in _lesser_questions(question, found) if (change := _confirmed(question, (lever,))))
    enough: list[set[str]] = []
    sets = sorted(_sets(_levers(question, found)), key=lambda levers: (sum(lever.cost for lever in levers), len(levers)))
    for levers in sets:
        words = {lever.options for lever in levers}
        if len(enough) == MOST_CHANGES:
            break
        if not any(fewer <= words for fewer in enough) and (change := _confirmed(question, levers)):
            enough.append(words)
            yield change
    yield from (change for lever in _offloading(question, found) if (change := _confirmed(question, (lever,))))


def _confirmed(question: Question, levers: tuple[_Lever, ...]) -> Change | None:
    """The answer with the changes, where it is yes."""
    for lever in levers:
        question = lever.pull(question)
    try:
        result = answer(question)
    except KvcalcError:
        return None  # the engine does not run the model so
    if not result.fits:
        return None
    held = result.held
    text, options = ", ".join(lever.text for lever in levers), " ".join(lever.options for lever in levers)
    return Change(text=text, options=options, requests=held, context=result.context, gpus=result.gpus)


def _sets(levers: list[_Lever]) -> Iterator[tuple[_Lever, ...]]:
    """Every set of levers with at most one of a kind, but the empty one."""
    kinds: dict[str, list[_Lever | None]] = {}
    for lever in levers:
        kinds.setdefault(lever.kind, [None]).append(lever)
    for chosen in product(*kinds.values()):
        pulled = tuple(lever for lever in chosen if lever is not None)
        if pulled:
            yield pulled


def _lesser_questions(question: Question, found: Fit) -> Iterator[_Lever]:
    """The longest requests of which the batch fits, and as many of the context as fit."""
    asked = question.asked
    deployed = Deployed(question)
    usable = max(0, found.capacity.blocks - deployed.plan.reserved)
    prefix = 0 if question.workload is None else question.workload.shared_prefix

    def holds(tokens: int) -> bool:
        once, own = deployed.split(prefix + tokens)
        return once + units_wanted(deployed.plan, own, asked.batch) <= usable

    longest = prefix + largest(holds, asked.context - prefix)
    if prefix < longest < asked.context:
        yield _Lever("asked", 0, "shorter requests", f"--context {longest}", lambda old: old._replace(asked=asked._replace(context=longest)))
    held = found.held
    if 0 < held < asked.batch:
        yield _Lever("asked", 0, "fewer requests at once", f"--batch {held}", lambda old: old._replace(asked=asked._replace(batch=held)))


def _levers(question: Question, found: Fit) -> list[_Lever]:
    """The changes that this deployment leaves open."""
    levers = []
    options, from_gpu = question.options, question.kv_bytes is None
    total_bytes = found.memory.total_bytes
    whole = question.engine.part_of == "all" and total_bytes is not None and part_taken(question, total_bytes) < FULL_UTILIZATION
    if from_gpu and not question.gpu.used_bytes and whole:
        levers.append(_Lever("utilization", 1, "more of the GPU", f"--utilization {FULL_UTILIZATION}", lambda old: old._replace(utilization=FULL_UTILIZATION)))
    if found.kv_dtype in ("bf16", "fp16"):
        name = EIGHT_BIT.get(question.engine.name, "fp8")
        levers.append(_Lever("kv", 2, "an 8-bit cache", f"--kv-dtype {name}", lambda old: _with(old, kv_dtype=KvDtype(name, name))))
    if from_gpu and found.memory.activation_bytes and (options.max_batched_tokens is None or options.max_batched_tokens > SMALL_BATCH):
        words = f"--max-batched-tokens {SMALL_BATCH}"
        levers.append(_Lever("batch", 3, "smaller batches", words, lambda old: _with(old, max_batched_tokens=SMALL_BATCH)))
    if from_gpu and quantizable(question):
        levers += [
            _Lever("stored", cost, f"{name.upper()} weights", f"--quantization {name}", partial(_stored_as, BY_NAME[name]))
            for name, cost in zip(smaller_weights(question), (4, 6), strict=True)
        ]
    levers += [_Lever("gpus", 5 + 2 * tp // options.tp, "more GPUs", f"--tp {tp}", partial(_with_tp, tp)) for tp in (2, 4, MOST_TP) if tp > options.tp]
    if options.pp == 1:
        levers.append(_Lever("gpus", 10, "more GPUs", "--pp 2", lambda old: _with(old, pp=2)))
    return levers


def _with(question: Question, **options: Any) -> Question:  # noqa: ANN401 (each option has a type of its own)
    return question._replace(options=question.options._replace(**options))


def _with_tp(tp: int, question: Question) -> Question:
    return _with(question, tp=tp)


def _stored_as(stored: Named, question: Question) -> Question:
    return question._replace(quantization=stored, weights=None)


def _offloading(question: Question, found: Fit) -> Iterator[_Lever]:
    """Weights in the memory of the CPU, which every step reads over the bus, or layers that the CPU computes: the last resort."""
    name, weights, gib = question.engine.name, found.memory.weights_bytes, -(-found.lacking_bytes // GIB)
    if name in CPU_OFFLOAD and weights is not None and gib * GIB < weights:
        moved = StatedWeights(weights - gib * GIB, "gpu", "the weights less what is offloaded")
        yield _Lever("offload", 0, "weights in CPU memory: slow", f"--cpu-offload-gb {gib} (of {name})", lambda old: old._replace(weights=moved))
    if name in GGUF_ENGINES and question.options.gpu_layers is None:
        kept = largest(lambda layers: answer(_on_gpu(layers, question)).fits, len(question.spec.layers))
        if kept:
            yield _Lever("offload", 0, "layers on the CPU: slow", f"--n-gpu-layers {kept}", partial(_on_gpu, kept))


def _on_gpu(layers: int, question: Question) -> Question:
    return _with(question, gpu_layers=layers)


def fewest_gpus(question: Question) -> Question:
    """The question on the smallest number of GPUs that serves it in one replica: of equally many, those with the fewest pipeline stages.

    Raises KvcalcError where no deployment of up to MOST_GPUS does.
    """
    refusal = ""
    for gpus in range(1, MOST_GPUS + 1):
        for tp in sorted((tp for tp in range(1, min(gpus, MOST_TP) + 1) if gpus % tp == 0), reverse=True):
            tried = question._replace(options=question.options._replace(tp=tp, pp=gpus // tp))
            try:
                if answer(tried).fits:
                    return tried
            except KvcalcError as error:
                refusal = error.message
    asked = question.asked
    why = f" (the last one tried: {refusal})" if refusal else ""
    raise KvcalcError(
        f"up to {MOST_GPUS} of these GPUs do not hold {asked.batch:,} x {asked.context:,} tokens of {asked.name}{why}",
        hint="lower --context or --batch, or name a larger GPU",
        code=ExitCode.NO,
    )
