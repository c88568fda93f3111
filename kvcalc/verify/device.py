"""Caches of transformers on this machine's GPU or CPU beside what is predicted, each case measured in a process of its own."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, NamedTuple

from kvcalc.engines.base import LayerUse, Options, layer_kind
from kvcalc.engines.transformers import TRANSFORMERS, TransformersPlan
from kvcalc.errors import ExitCode, KvcalcError, printable
from kvcalc.families import read_config
from kvcalc.layers import Cache, ModelSpec, Note
from kvcalc.results.verify import Check, Verified
from kvcalc.units import BINARY_UNITS, format_bytes, shorten
from kvcalc.verify.allocator import blocks_bytes, charged, most_charged
from kvcalc.verify.cases import SMALL_MODELS, SMALL_PREFILL, SmallModel
from kvcalc.verify.forms import ALLOCATED, DTYPES, PEAK, REQUESTED, RESERVED, Bare, ByUpdate, Filled, FromModel, Moment, Reading, Report, Request, Tensors
from kvcalc.verify.shrink import shrink

BATCH: Final = 2
DECODED: Final = 3
"""Tokens decoded one at a time, after which windows hold no more of the prefill."""
STATIC_EXTRA: Final = 27
"""Tokens that a static cache has room for beyond the prefill."""
MOST_TOKENS: Final = 8192
CPU_BYTES: Final = BINARY_UNITS["GiB"]
GPU_BYTES: Final = 4 * BINARY_UNITS["GiB"]
"""What the caches of a model of the user's may take unless more is allowed: enough for whole requests, and done in seconds."""
WORK: Final = 4
"""Times the cache that a case takes while it grows (worker.COPIES and a margin)."""
TIMEOUT_SECONDS: Final = 600
NEEDED: Final = {"torch": (2, 11), "transformers": (5, 17)}
"""The oldest releases whose caches are as predicted: those that `kvcalc[verify]` asks for."""


class Case(NamedTuple):
    """A model, and how it is run: from `config` as a whole small model of transformers, or (None) its caches alone. `prefill` tokens, then DECODED more.
    `derived`: the config was made small by rule, so that a failure to build the model says nothing of the prediction.
    """

    name: str
    spec: ModelSpec
    config: Mapping[str, Any] | None
    prefill: int
    encoder_tokens: int | None = None
    derived: bool = False


class Expected(NamedTuple):
    """One measurement: what is asked of the process, and the bytes that the caches should have at each moment. `kinds` names layers and element type."""

    name: str
    kinds: str
    request: Request
    sizes: Mapping[Moment, int]


Measure = Callable[[Request], Report]
"""Raises KvcalcError (ENVIRONMENT) where there is nothing to measure with, and another for a case that cannot be run."""


def small_cases() -> tuple[Case, ...]:
    """At least one case for each kind of layer and mixture of them, in several element types."""
    return tuple(map(_small_case, SMALL_MODELS))


def model_cases(name: str, spec: ModelSpec, *, device: str, max_bytes: int | None, config: Mapping[str, Any] | None = None) -> tuple[Case, ...]:
    """A model at its real geometry: its caches alone, of as many tokens as are quickly done, and a model with random weights, from its own `config` made
    small where there is one and it can be, else the small models of its type.

    Raises KvcalcError for a model that transformers has no code for.
    """
    own = spec.facts.max_context
    tokens = MOST_TOKENS if own is None else min(own, MOST_TOKENS)
    most = CPU_BYTES if device == "cpu" else GPU_BYTES
    most = most if max_bytes is None else min(most, max_bytes)
    plan = TRANSFORMERS.plan(spec, Options())
    while tokens > 128 and WORK * max(plan.total_bytes(tokens, BATCH), _prefilled(plan, tokens)) > most:
        tokens //= 2
    alone = Case(name, spec, None, max(1, tokens - STATIC_EXTRA))
    small = None if config is None else shrink(config, DTYPES[plan.model.name])
    if small is None:
        return (alone, *(_small_case(each) for each in SMALL_MODELS if each.config["model_type"] == spec.facts.model_type))
    encoder_tokens = SMALL_PREFILL if small.get("is_encoder_decoder") and not plan.ideal.encoder_tokens else None
    return (alone, Case(f"{name} made small", read_config(small), small, SMALL_PREFILL, encoder_tokens, derived=True))


def verify_device(device: str, cases: Sequence[Case], *, max_bytes: int | None, progress: Callable[[str], None], measure: Measure | None = None) -> Verified:
    """Each case on `device` (cpu, cuda, cuda:1), to the byte. `max_bytes` bounds what a process takes (None: half of what is free when it starts);
    `progress` is told the name of each measurement before it begins; `measure` runs it (in a process of its own unless stated).

    Raises KvcalcError (ENVIRONMENT): torch or transformers is missing or too old, there is no such device, or no case has room. (USAGE): a device that is no
    word of torch's. And one where transformers cannot run a case's model.
    """
    if re.fullmatch(r"cpu|cuda(:\d{1,3})?", device) is None:
        raise KvcalcError(f"unknown device {shorten(device)!r}", hint="use cpu, cuda or cuda:1", code=ExitCode.USAGE)
    run = in_own_process if measure is None else measure
    checks: list[Check] = []
    notes: list[Note] = []
    agreed: dict[str, bool] = {}
    report = None
    for case in cases:
        for expected in expect(case, device, max_bytes):
            progress(expected.name)
            try:
                report = run(expected.request)
            except KvcalcError as error:
                if error.code is ExitCode.ENVIRONMENT:
                    raise
                if case.derived:
                    notes.append(Note(code="not-built", text=f"{expected.name} was not measured: {error.message}"))
                    continue
                checks.append(Check(name=expected.name, predicted=None, measured=None, difference=None, unit="bytes", ok=False, explanation=error.message))
                continue
            if report.refused is not None:
                notes.append(Note(code="room", text=f"{expected.name} was not measured: {report.refused}"))
                continue
            found = judge(expected, report)
            checks += found
            agreed[expected.kinds] = agreed.get(expected.kinds, True) and all(check.ok for check in found)
    if not checks:
        raise KvcalcError(
            notes[0].text if notes else "there is nothing to measure",
            hint="allow more with --max-mem, or free memory" if notes else "",
            code=ExitCode.ENVIRONMENT,
        )
    return Verified(checks=tuple(checks), ok=all(check.ok for check in checks), notes=(*_summary(agreed, report), *notes))


def expect(case: Case, device: str, max_bytes: int | None) -> tuple[Expected, ...]:
    """What is to be measured of a case, and the predictions. Raises KvcalcError where transformers cannot run the model so."""
    options = Options(encoder_tokens=case.encoder_tokens)
    plan = TRANSFORMERS.plan(case.spec, options)
    tokens = case.prefill + DECODED
    sizes: dict[Moment, int] = {"prefill": _prefilled(plan, case.prefill), "decode": plan.total_bytes(tokens, BATCH)}
    static_tokens = case.prefill + STATIC_EXTRA
    if (static := _static_plan(case.spec, options)) is not None:
        sizes["static"] = static.total_bytes(static_tokens, BATCH)
    alone = Bare(tensors=tuple(_tensors(plan.uses(tokens))))
    bare = Request(
        device=device,
        dtype=plan.model.name,
        what=alone,
        batch=BATCH,
        prefill=case.prefill,
        tokens=tokens,
        cache_bytes=sizes["decode"],
        max_bytes=max_bytes,
    )
    whole = {"static_tokens": static_tokens if "static" in sizes else None, "cache_bytes": max(sizes.values())}
    kinds = _kinds(case.spec, plan)
    if case.config is not None:
        what = FromModel(config=dict(case.config), encoder_tokens=plan.ideal.encoder_tokens)
        return (Expected(f"{case.name}: model", kinds, bare.model_copy(update={"what": what, **whole}), sizes),)
    expected = [Expected(f"{case.name}: tensors", kinds, bare, {"tensors": sizes["decode"]})]
    if device != "cpu":
        default = bare.model_copy(update={"expandable": False})
        expected.append(Expected(f"{case.name}: tensors, default allocator", kinds, default, {"tensors": sizes["decode"]}))
    if (filled := _filled(case.spec, plan)) is not None:
        update = {"what": ByUpdate(layers=filled), **whole}
        expected.append(Expected(f"{case.name}: cache", kinds, bare.model_copy(update=update), sizes))
    return tuple(expected)


def judge(expected: Expected, report: Report) -> tuple[Check, ...]:
    """The predictions of one measurement beside what its process reports: three rows a moment on CUDA, one on a CPU. A moment without a reading is not ok."""
    readings = {reading.moment: reading for reading in report.readings}
    checks: list[Check] = []
    for moment, size_bytes in expected.sizes.items():
        reading = readings.get(moment)
        name = f"{expected.name}, {moment}"
        measured = None if reading is None else reading.cache_bytes
        checks.append(_exact(name, size_bytes, measured, f"{expected.kinds}; {_MOMENTS[moment].format(**expected.request.model_dump())}"))
        if reading is not None and reading.after:
            checks += _counted(name, expected, reading)
    if report.left is not None:
        checks.append(_exact(f"{expected.name}, freed", 0, report.left, "what torch still counts after the last cache was dropped"))
    return tuple(checks)


_MOMENTS: Final[dict[Moment, str]] = {
    "prefill": "{batch} requests right after a prefill of {prefill:,} tokens",
    "decode": "{batch} requests decoded to {tokens:,} tokens",
    "static": "{batch} requests in a static cache of {static_tokens:,} tokens",
    "tensors": "tensors of the predicted shapes for {batch} requests of {tokens:,} tokens",
}


def in_own_process(request: Request) -> Report:
    """One measurement by kvcalc.verify.worker in a new process, which is ended with this one.

    Raises KvcalcError: torch or transformers is missing or too old, or there is no such device (ENVIRONMENT); the case failed, or took too long.
    """
    require_libraries()
    command = [sys.executable, "-m", "kvcalc.verify.worker"]
    with subprocess.Popen(  # noqa: S603 (our own module, no shell)
        command, env=_environment(request), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, encoding="utf-8", errors="replace"
    ) as process:
        try:
            answer, talk = process.communicate(request.model_dump_json(), timeout=TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            raise KvcalcError(f"the measurement took more than {TIMEOUT_SECONDS} seconds") from None
        finally:
            process.kill()
            process.wait()  # Popen leaves after an interrupt without waiting, and the memory would outlive the command
    if process.returncode == ExitCode.YES:
        return Report.model_validate_json(answer)
    last = next((line for line in reversed(talk.splitlines()) if line.strip()), f"it ended with {process.returncode}")
    message = shorten(printable(last), 300)
    if process.returncode == ExitCode.ENVIRONMENT:
        raise KvcalcError(message, hint="use --device cpu, or another GPU", code=ExitCode.ENVIRONMENT)
    raise KvcalcError(f"the measurement failed: {message}")


def require_libraries() -> None:
    """Raises KvcalcError (ENVIRONMENT) where torch or transformers is missing, or older than what is predicted. Imports neither."""
    for name, oldest in NEEDED.items():
        try:
            found = version(name)
        except PackageNotFoundError:
            raise KvcalcError(f"{name} is not installed", hint="`pip install 'kvcalc[verify]'`", code=ExitCode.ENVIRONMENT) from None
        if tuple(map(int, re.findall(r"\d+", found)[:2])) < oldest:
            wanted = ".".join(map(str, oldest))
            raise KvcalcError(
                f"{name} {found} is older than {wanted}, from which on caches are as predicted",
                hint="`pip install --upgrade 'kvcalc[verify]'`",
                code=ExitCode.ENVIRONMENT,
            )


def _environment(request: Request) -> dict[str, str]:
    """Nothing is downloaded, and the allocator is set before torch is imported: it reads its settings once."""
    allocator = f"expandable_segments:{request.expandable}"
    own = {name: value for name, value in os.environ.items() if name != "PYTORCH_CUDA_ALLOC_CONF"}  # the older name of the same settings
    return {**own, "HF_HUB_OFFLINE": "1", "PYTORCH_ALLOC_CONF": allocator}


def _small_case(model: SmallModel) -> Case:
    return Case(model.name, read_config(model.config), model.config, model.prefill, model.encoder_tokens)


def _static_plan(spec: ModelSpec, options: Options) -> TransformersPlan | None:
    try:
        return TRANSFORMERS.plan(spec, options._replace(cache="static"))
    except KvcalcError:  # not every model has one
        return None


def _prefilled(plan: TransformersPlan, tokens: int) -> int:
    return BATCH * sum(each.row_bytes * each.prefill_rows(tokens, plan.ideal.encoder_tokens) for each in plan.held)


def _kinds(spec: ModelSpec, plan: TransformersPlan) -> str:
    """The kinds of layers that a model mixes, and its element type: full (gqa) + state (mamba2), bf16."""
    found = {f"{layer_kind(cache)} ({cache.kernel})" for layer in spec.layers for cache in layer.caches}
    shared = ["shared"] if any(layer.reads is not None and not layer.caches for layer in spec.layers) else []
    return f"{' + '.join([*sorted(found), *shared])}, {plan.model.name}"


def _tensors(uses: Sequence[LayerUse]) -> Iterator[Tensors]:
    """A tensor for each plane of each layer; none for a cache without rows."""
    for use in uses:
        for each in use.planes:
            shape = (BATCH, each.heads * each.plane.columns, use.rows, each.width)
            if use.rows:
                yield Tensors(count=use.layers, shape=shape, dtype=each.packing.name)


def _filled(spec: ModelSpec, plan: TransformersPlan) -> tuple[Filled, ...] | None:
    """The layers of a model whose caches `update` alone can fill, in order; None for another model."""
    kept = {each.source: each for each in plan.held}
    caches = [cache for layer in spec.layers for cache in layer.caches]
    if any(len(layer.caches) > 1 for layer in spec.layers) or not all(map(_is_filled, caches)):
        return None
    layers = []
    for cache in caches:
        k, v = ((use.heads, use.width) for use in kept[cache].planes)
        layers.append(Filled(k=k, v=v, window=getattr(kept[cache].kept, "size", None)))
    return tuple(layers) or None


def _is_filled(cache: Cache) -> bool:
    return layer_kind(cache) in ("full", "latent", "sliding", "chunked") and cache.kernel in ("gqa", "mla") and len(cache.planes) == 2


def _exact(name: str, predicted: int, measured: int | None, explanation: str) -> Check:
    return Check(
        name=name,
        predicted=predicted,
        measured=measured,
        difference=None if measured is None else measured - predicted,
        unit="bytes",
        ok=measured == predicted,
        explanation=explanation if measured is not None else f"{explanation}; nothing was reported",
    )


def _counted(name: str, expected: Expected, reading: Reading) -> Iterator[Check]:
    """What the CUDA allocator counts for the same storages."""
    beside = sum(reading.housekeeping)
    why = f"bytes that torch was asked for: the cache, and {beside:,} of counters and window sizes" if beside else "bytes that torch was asked for"
    yield _exact(f"{name}, requested", expected.sizes[reading.moment] + beside, reading.grown(REQUESTED), why)
    allocated = reading.grown(ALLOCATED)
    least = blocks_bytes(reading.sizes)
    if expected.request.expandable:
        yield _exact(f"{name}, allocated", least, allocated, f"torch.cuda.memory_allocated: {len(reading.sizes):,} storages, each in blocks of 512 bytes")
        return
    most = most_charged(reading.sizes)
    predicted = charged(reading.sizes).allocated
    yield Check(
        name=f"{name}, allocated",
        predicted=predicted,
        measured=allocated,
        difference=allocated - predicted,
        unit="bytes",
        ok=least <= allocated <= most,
        explanation=f"torch.cuda.memory_allocated without expandable segments: ok from {least:,} to {most:,}, since large blocks may be handed out whole",
    )


def _summary(agreed: Mapping[str, bool], report: Report | None) -> Iterator[Note]:
    if agreed:
        yield Note(code="combinations", text=f"{sum(agreed.values())} of {len(agreed)} combinations of layer kinds and element type agree")
    if report is None:
        return
    yield Note(code="versions", text=f"torch {report.torch}, transformers {report.transformers}, {report.device_name}")
    if report.transformers != TRANSFORMERS.version:
        yield Note(code="version", text=f"predictions are of transformers {TRANSFORMERS.version}: other releases cache some models otherwise")
    if report.readings and (after := report.readings[-1].after):
        peak, reserved = after[PEAK], after[RESERVED]
        text = f"the last case peaked at {format_bytes(peak)} and reserved {format_bytes(reserved)}, weights and step included: neither is predicted"
        yield Note(code="peak", text=text)
