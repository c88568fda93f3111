"""How many requests fit: a pure function of a model, an engine, its options and a budget."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from math import ceil
from typing import Final, Literal, NamedTuple

from kvcalc.engines.base import Engine, Options, Plan, model_packing
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import KvcalcError
from kvcalc.estimate import LAYER_CAUSES, formula_bytes, length_notes, model_info, rows_of_one_copy
from kvcalc.layers import ModelSpec, Note
from kvcalc.packing import PACKINGS, KvDtype
from kvcalc.results.fit import CapacityInfo, Difference, Division, Fit, Fits, GpuInfo, LengthRow, Memory, Range
from kvcalc.results.shared import Parallel
from kvcalc.units import BINARY_UNITS, format_bytes

GIB: Final = BINARY_UNITS["GiB"]
FLAT_RESERVE: Final = Range(low=GIB // 2, high=11 * GIB // 2)
FLAT_RESERVE_BYTES: Final = 3 * GIB
"""Activations, CUDA graphs and runtime of vLLM together: the median of 23 public start-up logs (usable - weights - KV cache: 2.9 GiB), of which
nine in ten lie in FLAT_RESERVE. It depends on the model, on batched tokens and on the release, and is therefore named as an estimate."""

NVIDIA_SMI_HIDES: Final = "0.9 GiB"
"""At most: 81,920 MiB of an A100 80GB are 79.15 to 79.32 GiB for CUDA, 15,360 MiB of a T4 14.56 to 14.74 (public logs)."""

LENGTHS: Final = (1024, 4096, 16384, 65536)


class Budget(NamedTuple):
    """Memory of one GPU, the sizes in it that are estimated, and what to say about it. `stated` where the user gave the KV bytes themselves."""

    gpu: GpuInfo
    memory: Memory
    ranges: dict[str, Range]
    notes: tuple[Note, ...]
    stated: bool
    utilization: Decimal | None = None


class Asked(NamedTuple):
    """What a question calls the model (`name`, `source`; `served_as` on a command line), and the requests that it is about."""

    name: str
    source: str
    served_as: str
    context: int
    batch: int


def stated_budget(kv_bytes: int, gpu_name: str | None) -> Budget:
    """A KV budget of that many bytes on each GPU."""
    return Budget(GpuInfo(name=gpu_name, memory_bytes=None), Memory(kv_bytes=kv_bytes), {}, (), stated=True)


def gpu_budget(spec: ModelSpec, engine: Engine, options: Options, gpu: GpuInfo, *, utilization: Decimal | None, weights_bytes: int | None) -> Budget:
    """What a GPU leaves for the cache: utilisation x memory - weights - a flat reserve. `weights_bytes` are those of the whole checkpoint.

    Raises KvcalcError where the size of the weights is not known.
    """
    if gpu.memory_bytes is None:
        raise KvcalcError("the memory of the GPU is not known", hint="state it with --gpu-mem")
    part = Decimal(engine.utilization_percent) / 100 if utilization is None else utilization
    usable = ceil(part * gpu.memory_bytes)
    checkpoint, notes = (weights_bytes, ()) if weights_bytes is not None else _checkpoint_bytes(spec)
    weights = -(-checkpoint // (options.tp * options.pp))
    left = usable - weights - FLAT_RESERVE_BYTES
    ranges = {
        "reserve_bytes": FLAT_RESERVE,
        "kv_bytes": Range(low=max(0, usable - weights - FLAT_RESERVE.high), high=max(0, usable - weights - FLAT_RESERVE.low)),
    }
    memory = Memory(total_bytes=gpu.memory_bytes, usable_bytes=usable, weights_bytes=weights, reserve_bytes=FLAT_RESERVE_BYTES, kv_bytes=max(0, left))
    text = f"a flat {format_bytes(FLAT_RESERVE_BYTES)} stands for activations, CUDA graphs and runtime; state what is left with --kv-mem where you know it"
    said = [*notes, Note(code="reserve", text=text)]
    if gpu.memory_by is not None and gpu.memory_by.startswith("nvidia-smi"):
        said.append(
            Note(
                code="gpu-memory",
                text=f"the GPU's memory is what nvidia-smi shows; CUDA sees up to {NVIDIA_SMI_HIDES} less: --gpu-mem takes the engine's own figure",
            )
        )
    return Budget(gpu, memory, ranges, tuple(said), stated=False, utilization=utilization)


def _checkpoint_bytes(spec: ModelSpec) -> tuple[int, tuple[Note, ...]]:
    facts = spec.facts
    stored = facts.weights if facts.weights is not None else model_packing(facts)[0].name
    if facts.parameters is None:
        raise KvcalcError(
            "how many parameters this model has is not known here", hint="state the size of the checkpoint with --weights, or the KV budget with --kv-mem"
        )
    if stored not in PACKINGS:
        raise KvcalcError(f"how large weights stored as {stored} are is not known here", hint="state the size of the checkpoint with --weights")
    text = f"weights are {facts.parameters:,} parameters x {stored}, shared evenly by the GPUs: an estimate; another size with --weights"
    return PACKINGS[stored].row_bytes(facts.parameters), (Note(code="weights", text=text),)


def fit(spec: ModelSpec, engine: Engine, options: Options, budget: Budget, asked: Asked) -> Fit:
    """Requests of one length that the budget holds in each replica. Raises KvcalcError where the engine cannot run the model so."""
    plan = engine.plan(spec, options)
    (pool,) = plan.pools
    kv_bytes = budget.memory.kv_bytes
    blocks = kv_bytes // pool.unit_bytes
    usable = max(0, blocks - plan.reserved)
    need = plan.need(asked.context)[0]
    longest = longest_request(lambda tokens: plan.need(tokens)[0] <= usable, _longest_asked(spec, asked.context))
    fits = asked.batch * need <= usable
    held = plan.capacity(blocks, asked.context)
    limit = _limit(budget, plan, usable // need if need else 0)
    served = min(asked.context, longest)
    utilization = None if budget.utilization is None else str(budget.utilization)
    words = plan.command(asked.served_as, served, kv_bytes if budget.stated else None, utilization) if served else ()
    return Fit(
        model=model_info(spec, asked.name, asked.source),
        engine=engine.name,
        engine_version=engine.version,
        gpu=budget.gpu,
        gpus=options.tp * options.pp * options.dp,
        parallel=Parallel(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp),
        context=asked.context,
        batch=asked.batch,
        kv_dtype=str(plan.kv_dtype),
        memory=budget.memory,
        memory_range=budget.ranges,
        capacity=CapacityInfo(
            requests=held.requests,
            tokens=held.tokens,
            max_context=longest,
            blocks=blocks,
            block_tokens=pool.unit_rows,
            block_bytes=pool.unit_bytes,
            request_bytes=need * pool.unit_bytes,
        ),
        fits=fits,
        lacking_bytes=0 if fits else _wanted_bytes(plan, asked) - _left_bytes(budget.memory),
        limited_by=limit,
        lengths=tuple(_length(plan, usable, tokens) for tokens in _lengths(spec, asked.context)),
        division=_division(spec, plan, options, kv_bytes, asked.context),
        advice=() if fits else tuple(_advice(plan, budget, asked, longest)),
        commands={engine.name: " ".join(words)} if words else {},
        notes=(*spec.notes, *plan.notes, *budget.notes, *length_notes(spec, asked.context), *_scheduler_notes(limit, plan)),
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


def longest_request(holds: Callable[[int], bool], limit: int) -> int:
    """The largest number of tokens up to `limit` that `holds`, 0 where not even one does. `holds` must not come back once it is lost."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def _longest_asked(spec: ModelSpec, context: int) -> int:
    """The model's own maximum, or the context where that is longer or the only one known."""
    return context if spec.facts.max_context is None else max(context, spec.facts.max_context)


def _lengths(spec: ModelSpec, context: int) -> list[int]:
    longest = _longest_asked(spec, context)
    return sorted({context, longest, *(tokens for tokens in LENGTHS if tokens < longest)})


def _length(plan: Plan, usable: int, tokens: int) -> LengthRow:
    """What a server that takes requests of up to so many tokens holds of them."""
    need = plan.need(tokens)[0]
    requests = usable // need if need else 0
    return LengthRow(context=tokens, requests=requests, tokens=requests * tokens, request_bytes=need * plan.pools[0].unit_bytes)


def _limit(budget: Budget, plan: Plan, requests: int) -> Literal["kv_bytes", "max_seqs", "weights"]:
    if budget.memory.kv_bytes == 0 and not budget.stated:
        return "weights"
    return "max_seqs" if plan.max_requests is not None and requests > plan.max_requests else "kv_bytes"


def _scheduler_notes(limit: str, plan: Plan) -> list[Note]:
    if limit != "max_seqs":
        return []
    return [Note(code="max-seqs", text=f"the scheduler runs at most {plan.max_requests:,} requests at once, fewer than memory holds: --max-seqs raises it")]


def _advice(plan: Plan, budget: Budget, asked: Asked, longest: int) -> list[str]:
    """What one request wants and has, and the nearest question that would be answered with yes."""
    if (over := -_left_bytes(budget.memory)) >= 0 and not budget.stated:
        return [f"the weights and the reserve are {format_bytes(over)} more than one GPU gives: use more GPUs (--tp), or a quantised checkpoint"]
    unit, wanted = plan.pools[0].unit_bytes, _wanted_bytes(plan, asked)
    said = [f"{format_bytes(wanted)} on each GPU would hold it: {format_bytes(wanted - budget.memory.kv_bytes)} more than there are"]
    if longest and longest < asked.context:
        said.append(f"one request of {longest:,} tokens fits: --context {longest}")
    elif longest:
        requests = (budget.memory.kv_bytes // unit - plan.reserved) // plan.need(asked.context)[0]
        said.append(f"{requests:,} requests of {asked.context:,} tokens fit: --batch {requests}")
    return said


def _wanted_bytes(plan: Plan, asked: Asked) -> int:
    """The KV budget of one GPU that holds the batch."""
    return (asked.batch * plan.need(asked.context)[0] + plan.reserved) * plan.pools[0].unit_bytes


def _left_bytes(memory: Memory) -> int:
    """What is there for the cache; below zero where weights and reserve are more than the engine takes."""
    if memory.usable_bytes is None or memory.weights_bytes is None or memory.reserve_bytes is None:
        return memory.kv_bytes
    return memory.usable_bytes - memory.weights_bytes - memory.reserve_bytes


# Free memory divided by the plain formula


def _division(spec: ModelSpec, plan: Plan, options: Options, kv_bytes: int, context: int) -> Division | None:
    plain = spec.plain_formula
    if plain is None:
        return None
    free = kv_bytes * options.tp * options.pp
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
