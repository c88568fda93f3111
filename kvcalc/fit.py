"""How many requests fit: a pure function of a model, an engine, its options and a budget."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from functools import cached_property, partial
from itertools import product
from math import ceil, floor, isqrt
from typing import Any, Final, Literal, NamedTuple

from kvcalc.engines.base import Capacity, Engine, Loaded, Options, Plan, model_packing
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.estimate import LAYER_CAUSES, formula_bytes, length_notes, model_info, rows_of_one_copy
from kvcalc.layers import ModelSpec, Note
from kvcalc.packing import PACKINGS, KvDtype
from kvcalc.quantizations import BY_NAME, Named
from kvcalc.results.fit import CapacityInfo, Change, Difference, Division, Fit, Fits, GpuInfo, LengthRow, Memory, Range, Totals
from kvcalc.results.shared import Parallel
from kvcalc.tensors import WeighedModel, weighed
from kvcalc.units import BINARY_UNITS, format_bytes
from kvcalc.weights import checkpoint_bytes

GIB: Final = BINARY_UNITS["GiB"]
NVIDIA_SMI_HIDES: Final = "0.9 GiB"
"""At most: 81,920 MiB of an A100 80GB are 79.15 to 79.32 GiB for CUDA, 15,360 MiB of a T4 14.56 to 14.74 (public logs)."""

CHECKPOINT: Final = "CHECKPOINT"
"""What a server is told to load where the model's own repository is not quantized and the question is about one that is."""
NAMED_QUANTIZATION_PERCENT: Final = 4
"""How far the weights of a checkpoint lie from what the name of its quantization alone tells, in two of three public logs."""
UNEVEN_PERCENT: Final = 3
"""How much more than an even share one GPU of several may hold: copied norms, routers and KV heads."""

LENGTHS: Final = (1024, 4096, 16384, 65536)


class StatedWeights(NamedTuple):
    """The size of the weights where it is known from elsewhere than the tensors: of the whole checkpoint, or as loaded on one GPU; and who says so."""

    size_bytes: int
    of: Literal["checkpoint", "gpu"]
    source: str


class Asked(NamedTuple):
    """What a question calls the model (`name`, `source`; `served_as` on a command line), and the requests that it is about."""

    name: str
    source: str
    served_as: str
    context: int
    batch: int


class Question(NamedTuple):
    """A model on an engine, so deployed, on that GPU. `kv_bytes` is the KV budget of one GPU where it is stated; else it is what is left of `utilization` x
    memory after the weights (`weights`, else by the tensors), what the engine keeps beside them, and a `reserve_bytes`. `quantization` replaces that of a
    checkpoint that has none. `notes` is what was said while these were looked up.
    """

    spec: ModelSpec
    engine: Engine
    options: Options
    asked: Asked
    gpu: GpuInfo
    kv_bytes: int | None = None
    utilization: Decimal | None = None
    weights: StatedWeights | None = None
    quantization: Named | None = None
    reserve_bytes: int = 0
    notes: tuple[Note, ...] = ()


class Budget(NamedTuple):
    """Memory of one GPU, the sizes in it that are estimated, what is `left` for the cache (below zero where there is too little), what to say about it. It
    is the same for requests of any length from `same_from` tokens on, None where it follows every length.
    """

    memory: Memory
    ranges: dict[str, Range]
    left: int
    notes: tuple[Note, ...]
    same_from: int | None


class _Weights(NamedTuple):
    """The weights on one GPU, drafts and adapters among them; how much less or more they may be; where the size is from."""

    loaded: Loaded
    below: int
    above: int
    source: str
    notes: tuple[Note, ...] = ()

    @property
    def total(self) -> int:
        return sum(self.loaded)


def budget(question: Question) -> Budget:
    """What a GPU leaves for the cache. Raises KvcalcError where its memory or the weights are not known, or where the engine would not start."""
    return _budget(question, question.asked.context, lambda: _weights(question, weighed(question.spec)))


def _budget(question: Question, context: int, find_weights: Callable[[], _Weights]) -> Budget:
    if question.kv_bytes is not None:
        return Budget(Memory(kv_bytes=question.kv_bytes), {}, question.kv_bytes, (), 0)
    total = question.gpu.memory_bytes
    if total is None:
        raise KvcalcError("the memory of the GPU is not known", hint="state it with --gpu-mem")
    part = _utilization(question, total)
    if question.engine.part_of == "all":
        _check_free(question, ceil(part * total), part)
    weights = find_weights()
    kept = question.engine.overheads(weighed(question.spec), question.options, context)
    used = weights.total + kept.total.likely + question.reserve_bytes
    usable = ceil(part * total) if question.engine.part_of == "all" else used + max(0, floor(part * (total - used)))
    left = usable - used
    more = isqrt((kept.total.likely - kept.total.low) ** 2 + weights.below**2)
    less = isqrt((kept.total.high - kept.total.likely) ** 2 + weights.above**2)
    named = {"activation_bytes": kept.activation, "graph_bytes": kept.graphs, "runtime_bytes": kept.runtime}
    ranges = {name: Range(low=span.low, high=span.high) for name, span in named.items() if span.low != span.high}
    if weights.above:
        ranges["weights_bytes"] = Range(low=weights.total - weights.below, high=weights.total + weights.above)
    if more or less:
        ranges["kv_bytes"] = Range(low=max(0, left - less), high=max(0, left + more))
    memory = Memory(
        total_bytes=total,
        usable_bytes=usable,
        weights_bytes=weights.total,
        weights_from=weights.source,
        draft_bytes=weights.loaded.draft,
        lora_bytes=weights.loaded.lora,
        activation_bytes=kept.activation.likely,
        graph_bytes=kept.graphs.likely,
        runtime_bytes=kept.runtime.likely,
        reserve_bytes=question.reserve_bytes,
        kv_bytes=max(0, left),
    )
    return Budget(memory, ranges, left, (*weights.notes, *_gpu_notes(question.gpu)), kept.same_from)


def _utilization(question: Question, total_bytes: int) -> Decimal:
    """The part of the memory that the engine takes."""
    return question.engine.utilization(question.spec, question.options, total_bytes) if question.utilization is None else question.utilization


def _check_free(question: Question, usable: int, part: Decimal) -> None:
    """An engine takes its part of all memory, and does not start where less is free (vllm/v1/worker/utils.py 0.33.0, request_memory)."""
    gpu = question.gpu
    if not gpu.used_bytes or gpu.memory_bytes is None or usable <= gpu.memory_bytes - gpu.used_bytes:
        return
    free = gpu.memory_bytes - gpu.used_bytes
    percent = 100 * free // gpu.memory_bytes
    raise KvcalcError(
        f"other processes hold {format_bytes(gpu.used_bytes)} of the {gpu.name or 'GPU'}: {format_bytes(free)} are free, and the engine would want "
        f"{format_bytes(usable)} ({part} of all)",
        hint=f"end them, or use --utilization 0.{percent:02d} or less",
        code=ExitCode.NO,
    )


def _gpu_notes(gpu: GpuInfo) -> Iterator[Note]:
    if gpu.memory_by is not None and gpu.memory_by.startswith("nvidia-smi"):
        yield Note(
            code="gpu-memory",
            text=f"the GPU's memory is what nvidia-smi shows; CUDA sees up to {NVIDIA_SMI_HIDES} less: --gpu-mem takes the engine's own figure",
        )
    if gpu.used_bytes:
        yield Note(code="gpu-used", text=f"other processes hold {format_bytes(gpu.used_bytes)} of the GPU; the engine's part of its memory is free beside them")


def _weights(question: Question, spec: WeighedModel) -> _Weights:
    """By what is stated for a GPU, else by the size of the checkpoint and the layout of the tensors, else by the tensors alone."""
    options, stated = question.options, question.weights
    if stated is not None and stated.of == "gpu":
        return _Weights(Loaded(stated.size_bytes, 0, 0), 0, 0, stated.source)
    named = _quantization_by_name(question, spec)
    stored, extra_permille = (spec.quantization, 0) if named is None else named.of(spec)
    known = spec.model_copy(update={"quantization": stored})
    if stated is None and spec.facts.checkpoint_bytes is not None and named is None:
        stated = StatedWeights(spec.facts.checkpoint_bytes, "checkpoint", f"the size of the checkpoint in the {question.asked.source}")
    if stated is None:
        loaded, source = question.engine.loaded(known, options), f"tensors of {question.asked.source}"
        if named is None:
            return _Weights(loaded, 0, 0, source)
        loaded = loaded._replace(weights=loaded.weights * (1000 + extra_permille) // 1000)
        miss = loaded.weights * NAMED_QUANTIZATION_PERCENT // 100
        return _Weights(loaded, miss, miss, f"{source}, stored as {named.plain.method} (by its name alone)")
    gpus = options.tp * options.pp
    if not spec.tensors or spec.untold is not None:
        share = -(-stated.size_bytes // gpus)
        text = f"{stated.source}: shared evenly by {gpus} GPUs, since its tensors are not all known"
        notes = (Note(code="weights", text=text),) if gpus > 1 else ()
        return _Weights(Loaded(share, 0, 0), 0, share * UNEVEN_PERCENT // 100 if gpus > 1 else 0, stated.source, notes)
    loaded, predicted = question.engine.loaded(known, options), _predicted(known, stated.size_bytes)
    scaled = Loaded(loaded.weights * stated.size_bytes // predicted, loaded.draft * stated.size_bytes // predicted, loaded.lora)
    notes = ()
    if abs(stated.size_bytes - predicted) * 50 > predicted:
        says = f"the checkpoint is {format_bytes(stated.size_bytes)} ({stated.source}), where its config alone tells {format_bytes(predicted)}"
        notes = (Note(code="weights", text=f"{says}: what a GPU loads is scaled to it"),)
    return _Weights(scaled, 0, 0, stated.source, notes)


def stored_model(question: Question) -> tuple[WeighedModel, float]:
    """The model as the question says that it is stored, and the size of its weights over that of its tensors. Raises KvcalcError where these are not all
    known.
    """
    spec = weighed(question.spec)
    named = _quantization_by_name(question, spec)
    stored = spec if named is None else spec.model_copy(update={"quantization": named.of(spec)[0]})
    return stored, _weights(question, spec).loaded.weights / question.engine.loaded(stored, question.options).weights


def _quantization_by_name(question: Question, spec: WeighedModel) -> Named | None:
    """That of the question, where the model that it names is not quantized itself."""
    return question.quantization if spec.quantization is None else None


def _predicted(spec: WeighedModel, size_bytes: int) -> int:
    """What the tensors make of the checkpoint: as its config says, or in fp32, in which many are saved whatever they say, where that comes nearer."""
    own = PACKINGS[spec.facts.dtype or model_packing(spec.facts)[0].name]
    return min((checkpoint_bytes(spec, packing) for packing in (own, PACKINGS["fp32"])), key=lambda predicted: abs(predicted - size_bytes))


class Held(NamedTuple):
    """What one replica holds of requests of one length: `blocks` of the `budget`, of which `usable` by requests; the `need` of one request in them; whether the
    batch `fits`, and the bytes of one GPU that it lacks; the `longest` request; the `capacity` that the engine reports; how many `whole` requests.
    """

    budget: Budget
    blocks: int
    usable: int
    need: int
    fits: bool
    lacking_bytes: int
    longest: int
    capacity: Capacity
    whole: int
    limited_by: Literal["kv_bytes", "max_seqs", "weights"]


class Deployed:
    """A question once planned, for requests of any length and number in place of its own: what does not depend on these is found once.

    Raises KvcalcError where the engine cannot run the model so; its methods raise it where there is no answer for a length.
    """

    def __init__(self, question: Question) -> None:
        self.question = question
        self.plan = question.engine.plan(question.spec, question.options)
        (self.pool,) = self.plan.pools
        self._budgets: dict[int, Budget] = {}
        self._same_from: int | None = None
        self._starts = self._divides = False
        self._longest: dict[int, tuple[int, int]] = {}

    @cached_property
    def _weights(self) -> _Weights:
        return _weights(self.question, weighed(self.question.spec))

    def budget(self, context: int) -> Budget:
        """What a GPU leaves for the cache of requests of up to so many tokens."""
        stands_for = context if self._same_from is None else min(context, self._same_from)
        found = self._budgets.get(stands_for)
        if found is None:
            found = _budget(self.question, stands_for, lambda: self._weights)
            self._same_from = found.same_from
            self._budgets[stands_for] = found
        return found

    def longest(self, usable: int, limit: int) -> int:
        """The longest request, of up to `limit` tokens, that so many units of the pool hold."""

        def holds(tokens: int) -> bool:
            return self.plan.need(tokens)[0] <= usable

        tried, found = self._longest.get(usable, (0, 0))
        if found < tried or limit <= tried:
            return min(found, limit)
        found = limit if holds(limit) else largest(holds, limit)
        self._longest[usable] = limit, found
        return found

    def held(self, context: int, batch: int) -> Held:
        """What the budget holds in requests of one length, and whether it holds a batch of them."""
        plan, pool, budgeted = self.plan, self.pool, self.budget(context)
        blocks = budgeted.memory.kv_bytes // pool.unit_bytes
        usable = max(0, blocks - plan.reserved)
        need = plan.need(context)[0]
        longest = self.longest(usable, longest_asked(self.question.spec, context))
        wanted = _units(plan, need, batch)
        fits = wanted <= usable
        whole = _whole(plan, usable, need)
        capacity = plan.capacity(blocks, context)
        if not (self._starts and self._divides):
            self._check_said(context, longest)
        return Held(
            budget=budgeted,
            blocks=blocks,
            usable=usable,
            need=need,
            fits=fits,
            lacking_bytes=0 if fits else (wanted + plan.reserved) * pool.unit_bytes - budgeted.left,
            longest=longest,
            capacity=capacity,
            whole=whole,
            limited_by=_limit(self.question, budgeted, plan, whole),
        )

    def _check_said(self, context: int, longest: int) -> None:
        """Raises KvcalcError where an answer cannot say what it says beside its figures: no length changes that, so that once is enough."""
        if not self._starts and min(context, longest):
            self.command(min(context, longest))
            self._starts = True
        if not self._divides:
            _division(self.question.spec, self.plan, self.question.options, 0, context)
            self._divides = True

    def command(self, context: int) -> str:
        """What starts a server for requests of up to so many tokens, empty for what is no server. Raises KvcalcError where the release cannot be told so, which
        does not depend on the length.
        """
        question = self.question
        utilization = None if question.utilization is None else str(question.utilization)
        served_as = question.asked.served_as if _stands_for(question) is None else CHECKPOINT
        return self.plan.command(served_as, context, question.kv_bytes, utilization)

    @cached_property
    def _fixed(self) -> dict[str, Any]:
        question, options = self.question, self.question.options
        return {
            "model": model_info(question.spec, question.asked.name, question.asked.source),
            "engine": question.engine.name,
            "engine_version": question.engine.version,
            "gpu": question.gpu,
            "gpus": options.gpus,
            "parallel": Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
            "kv_dtype": str(self.plan.kv_dtype),
        }

    def figures(self, context: int, batch: int, held: Held) -> dict[str, Any]:
        """The fields of an answer that say what is asked, and what of it is held."""
        plan, pool, dp = self.plan, self.pool, self.question.options.dp
        memory, ranges = held.budget.memory, held.budget.ranges
        low = high = held.whole
        if (ends := ranges.get("kv_bytes")) is not None:
            low, high = (_whole(plan, max(0, end // pool.unit_bytes - plan.reserved), held.need) for end in (ends.low, ends.high))
        return {
            **self._fixed,
            "context": context,
            "batch": batch,
            "memory": memory,
            "memory_range": ranges,
            "capacity": CapacityInfo(
                requests=held.capacity.requests,
                tokens=held.capacity.tokens,
                max_context=held.longest,
                blocks=held.blocks,
                block_tokens=pool.unit_rows,
                block_bytes=pool.unit_bytes,
                request_bytes=held.need * pool.unit_bytes,
                slots=plan.slots,
            ),
            "capacity_range": Range(low=low, high=high),
            "totals": Totals(requests=dp * held.whole, tokens=dp * _together(plan, held.usable, held.whole, context)),
            "fits": held.fits,
            "lacking_bytes": held.lacking_bytes,
            "limited_by": held.limited_by,
        }


def answer(question: Question) -> Fit:
    """Requests of one length that the budget holds in each replica. Raises KvcalcError where the engine cannot run the model so."""
    spec, asked, deployed = question.spec, question.asked, Deployed(question)
    plan, held = deployed.plan, deployed.held(asked.context, asked.batch)
    served = min(asked.context, held.longest)
    command, stands_for = deployed.command(served) if served else "", _stands_for(question)
    return Fit(
        **deployed.figures(asked.context, asked.batch, held),
        lengths=tuple(_length(plan, held.usable, tokens) for tokens in _lengths(spec, asked.context)),
        division=_division(spec, plan, question.options, held.budget.memory.kv_bytes, asked.context),
        advice=(),
        commands={question.engine.name: command} if command else {},
        notes=(
            *spec.notes,
            *question.notes,
            *plan.notes,
            *held.budget.notes,
            *length_notes(spec, plan, asked.context),
            *plan.length_notes(asked.context, asked.batch),
            *_scheduler_notes(held.limited_by, plan),
            *([] if stands_for is None or not command else [Note(code="checkpoint", text=f"{CHECKPOINT} stands for {stands_for}")]),
        ),
    )


def _stands_for(question: Question) -> str | None:
    """What a server must be told to load where that is not what was asked about: weights in another form."""
    named, name = _quantization_by_name(question, weighed(question.spec)), question.asked.served_as
    if named is not None and question.engine.name not in GGUF_ENGINES:
        return f"{name} in a checkpoint quantized to {named.plain.method}"
    if name.endswith(".gguf") and question.engine.name not in GGUF_ENGINES:
        return f"the model of {name} in a form that {question.engine.name} loads"
    return None


# What would make it fit


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
"""Batched tokens of vLLM on small GPUs."""
EIGHT_BIT: Final = {"llama.cpp": "q8_0", "ollama": "q8_0"}
"""What engines call a cache of about 8 bits, where it is not fp8."""
CPU_OFFLOAD: Final = ("vllm", "sglang")
"""Engines that take --cpu-offload-gb: weights in GiB a GPU (vllm/config/offload.py 0.33.0, sglang/srt/server_args.py 0.5.23)."""
GGUF_ENGINES: Final = ("llama.cpp", "ollama")
"""Engines that load GGUF files, and take a number of layers for the GPU."""


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
    held = next(row.requests for row in result.lengths if row.context == result.context)
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
    plan = question.engine.plan(question.spec, question.options)
    usable = max(0, found.capacity.blocks - plan.reserved)
    longest = largest(lambda tokens: _units(plan, plan.need(tokens)[0], asked.batch) <= usable, asked.context)
    if 0 < longest < asked.context:
        yield _Lever("asked", 0, "shorter requests", f"--context {longest}", lambda old: old._replace(asked=asked._replace(context=longest)))
    held = next(row.requests for row in found.lengths if row.context == found.context)
    if 0 < held < asked.batch:
        yield _Lever("asked", 0, "fewer requests at once", f"--batch {held}", lambda old: old._replace(asked=asked._replace(batch=held)))


def _levers(question: Question, found: Fit) -> list[_Lever]:
    """The changes that this deployment leaves open."""
    levers = []
    options, from_gpu = question.options, question.kv_bytes is None
    total_bytes = found.memory.total_bytes
    whole = question.engine.part_of == "all" and total_bytes is not None and _utilization(question, total_bytes) < FULL_UTILIZATION
    if from_gpu and not question.gpu.used_bytes and whole:
        levers.append(_Lever("utilization", 1, "more of the GPU", f"--utilization {FULL_UTILIZATION}", lambda old: old._replace(utilization=FULL_UTILIZATION)))
    if found.kv_dtype in ("bf16", "fp16"):
        name = EIGHT_BIT.get(question.engine.name, "fp8")
        levers.append(_Lever("kv", 2, "an 8-bit cache", f"--kv-dtype {name}", lambda old: _with(old, kv_dtype=KvDtype(name, name))))
    if from_gpu and found.memory.activation_bytes and (options.max_batched_tokens is None or options.max_batched_tokens > SMALL_BATCH):
        words = f"--max-batched-tokens {SMALL_BATCH}"
        levers.append(_Lever("batch", 3, "smaller batches", words, lambda old: _with(old, max_batched_tokens=SMALL_BATCH)))
    spec = weighed(question.spec)
    if from_gpu and spec.quantization is None and question.quantization is None and spec.tensors:
        levers += [
            _Lever("stored", cost, f"{name.upper()} weights", f"--quantization {name}", partial(_stored_as, BY_NAME[name]))
            for name, cost in ((("q8_0", 4), ("q4_k_m", 6)) if question.engine.name in GGUF_ENGINES else (("fp8", 4), ("awq", 6)))
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


def ranked(answers: Iterable[Fit], unanswered: Mapping[str, str]) -> Fits:
    """Answers about many models: those that fit, the largest weights (or parameters) first, then the others by how little they lack.

    `unanswered` holds the names of models with the reason why there is no answer.
    """
    rows = sorted(answers, key=lambda row: (not row.fits, row.lacking_bytes, -_size(row), row.model.name))
    reasons: dict[str, list[str]] = {}
    for name, reason in unanswered.items():
        reasons.setdefault(reason, []).append(name)
    notes = tuple(Note(code="unanswered", text=f"left out, since {reason}: {', '.join(names)}") for reason, names in reasons.items())
    return Fits(rows=tuple(rows), notes=notes)


def _size(row: Fit) -> int:
    """How large a model is, for an order alone: its weights, else its parameters, where either is known."""
    known = [size for size in (row.memory.weights_bytes, row.model.parameters) if size is not None]
    return known[0] if known else 0


def largest(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number up to `limit` that `holds`, 0 where not even one does. `holds` must not come back once it is lost."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def longest_asked(spec: ModelSpec, context: int) -> int:
    """The model's own maximum, or the context where that is longer or the only one known."""
    return context if spec.facts.max_context is None else max(context, spec.facts.max_context)


def _lengths(spec: ModelSpec, context: int) -> list[int]:
    longest = longest_asked(spec, context)
    return sorted({context, longest, *(tokens for tokens in LENGTHS if tokens < longest)})


def held_at(question: Question, kv_bytes: int, lengths: Iterable[int]) -> tuple[LengthRow, ...]:
    """What so many bytes of cache on one GPU hold in requests of other lengths."""
    plan = question.engine.plan(question.spec, question.options)
    usable = max(0, kv_bytes // plan.pools[0].unit_bytes - plan.reserved)
    return tuple(_length(plan, usable, tokens) for tokens in lengths)


def _length(plan: Plan, usable: int, tokens: int) -> LengthRow:
    """What a server that takes requests of up to so many tokens holds of them."""
    need = plan.need(tokens)[0]
    requests = _whole(plan, usable, need)
    return LengthRow(context=tokens, requests=requests, tokens=_together(plan, usable, requests, tokens), request_bytes=need * plan.pools[0].unit_bytes)


def _together(plan: Plan, usable: int, requests: int, tokens: int) -> int:
    """Tokens in so many requests, or in all slots."""
    return requests * tokens if plan.slots is None else plan.capacity(usable, tokens).tokens


def _units(plan: Plan, need: int, batch: int) -> int:
    """Units of the pool that a batch of requests holds, of which one needs so many. Raises KvcalcError for more requests than there are slots."""
    if plan.slots is None:
        return batch * need
    if batch > plan.slots:
        raise KvcalcError(f"{batch:,} requests at once want as many slots, and there are {plan.slots:,}", hint=f"use --max-seqs {batch} or more")
    return need


def _whole(plan: Plan, usable: int, need: int) -> int:
    """Whole requests that so many units hold at once, where one needs so many."""
    if plan.slots is not None:
        return plan.slots if need <= usable else 0
    return usable // need if need else 0


def _limit(question: Question, budgeted: Budget, plan: Plan, requests: int) -> Literal["kv_bytes", "max_seqs", "weights"]:
    if budgeted.left <= 0 and question.kv_bytes is None:
        return "weights"
    return "max_seqs" if plan.max_requests is not None and requests > plan.max_requests else "kv_bytes"


def _scheduler_notes(limit: str, plan: Plan) -> list[Note]:
    if limit != "max_seqs":
        return []
    return [Note(code="max-seqs", text=f"the scheduler runs at most {plan.max_requests:,} requests at once, fewer than memory holds: --max-seqs raises it")]


# Free memory divided by the plain formula


def _division(spec: ModelSpec, plan: Plan, options: Options, kv_bytes: int, context: int) -> Division | None:
    plain = spec.plain_formula
    if plain is None:
        return None
    free = kv_bytes * options.gpus // options.dp
    by_formula = formula_bytes(plain, plan.kv_dtype, context, 1)
    by_engine = plan.total_bytes(context, 1) // options.dp
    differences = _differences(spec, plan, options, context, by_formula=by_formula, by_engine=by_engine)
    return Division(
        tokens=free * context // by_formula,
        requests=free / by_formula,
        request_bytes=by_formula,
        engine_request_bytes=by_engine,
        differences=tuple(Difference(cause=cause, bytes=size) for cause, size in differences.items() if size),
    )


def _differences(spec: ModelSpec, plan: Plan, options: Options, context: int, *, by_formula: int, by_engine: int) -> dict[str, int]:
    """From the formula's bytes to the engine's, in steps that sum: what the layers keep, what is copied between GPUs, what the engine adds."""
    rows = rows_of_one_copy(spec, options, plan.kv_dtype, context)
    if not rows:
        return {"the engine's own packing, blocks and padding": by_engine - by_formula}
    formula_parts = Counter(layer.caches[0] if layer.caches else None for layer in spec.layers)
    found: Counter[str] = Counter()
    for use in rows:
        found[LAYER_CAUSES.get(use.kind, "other heads or widths")] += use.size_bytes - formula_parts.pop(use.cache, 0) * by_formula // len(spec.layers)
    kept = sum(use.size_bytes for use in rows)
    found["layers that keep nothing"] -= formula_parts.pop(None, 0) * by_formula // len(spec.layers)
    found["other heads or widths"] += kept - by_formula - found.total()
    elements = KvDtype(*(packing.name for packing in plan.kv_dtype.elements()))
    spread = IDEAL.plan(spec, options._replace(kv_dtype=elements, dp=1)).total_bytes(context, 1)
    found["heads and latents that GPUs copy"] = spread - kept
    found.update(dict(plan.surplus(context)))
    found["rounding to whole blocks"] = by_engine - by_formula - found.total()
    return found
