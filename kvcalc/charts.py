"""What is drawn of an answer: pure functions of a question, or of plain numbers, to a chart."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, NamedTuple

from kvcalc.advice import EIGHT_BIT
from kvcalc.budget import Question, budget
from kvcalc.engines.base import model_packing
from kvcalc.errors import KvcalcError
from kvcalc.fit import held_at, longest_asked
from kvcalc.packing import KvDtype
from kvcalc.results.fit import Range
from kvcalc.results.plot import Axis, Chart, Mark, Quantity, Series
from kvcalc.results.speed import Speed
from kvcalc.results.sweep import Sweep, SweptFit
from kvcalc.search import largest
from kvcalc.units import binary_unit, counted, format_bytes

LOG_FROM: Final = 8
"""The ratio of its ends from which an axis is logarithmic: points that double would lie in one corner of a linear one after three times."""
FEW: Final = 1024
"""The shortest request that is drawn, where a model takes several times as many tokens."""


class _Form(NamedTuple):
    """The cache in one KV dtype, its bytes on one GPU with their range, and the longest request that they hold."""

    question: Question
    name: str
    kv_bytes: int
    ends: Range
    estimated: bool
    longest: int

    def held(self, contexts: Sequence[int]) -> tuple[int, ...]:
        """Whole requests of each length."""
        return tuple(row.requests for row in held_at(self.question, self.kv_bytes, contexts))

    def at_ends(self, contexts: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """The least and the most that may be held of each length."""
        low, high = (held_at(self.question, kv_bytes, contexts) for kv_bytes in (self.ends.low, self.ends.high))
        return tuple((least.requests, most.requests) for least, most in zip(low, high, strict=True))

    def request_bytes(self, contexts: Sequence[int]) -> tuple[int, ...]:
        """One request of each length on the GPU that binds, or the cache of all slots."""
        return tuple(row.request_bytes for row in held_at(self.question, self.kv_bytes, contexts))


def capacity_chart(question: Question) -> Chart | None:
    """What fits against the length of a request, in the KV dtype that is asked about and in its 16-bit and 8-bit forms, where the engine takes them.

    These are whole requests held at once, and for an engine whose requests share slots of fixed size the bytes of the cache beside its budget. Every
    figure is that of `fit` with the same question. None where nothing fits at any length. Raises KvcalcError where the engine cannot run the model so.
    """
    forms = _forms(question)
    fitting = max(form.longest for form in forms)
    if not fitting:
        return None
    contexts = _contexts(question, fitting)
    plan = question.engine.plan(question.spec, question.options)
    return _requests_chart(question, contexts, forms, plan.max_requests) if plan.slots is None else _slots_chart(question, contexts, forms)


def _contexts(question: Question, fitting: int) -> list[int]:
    """Doubling up to the longest request, that and the asked one among them; short enough at first that several of those that fit are drawn."""
    context = question.asked.context
    longest = longest_asked(question.spec, context)
    tokens = FEW
    while tokens > 1 and tokens * 8 > fitting:
        tokens //= 2
    doubled = {context, longest}
    while tokens < longest:
        doubled.add(tokens)
        tokens *= 2
    return sorted(doubled)


def _forms(question: Question) -> list[_Form]:
    """The asked KV dtype first; others only where the engine takes them and they hold something else."""
    model = model_packing(question.spec.facts)[0].name
    sixteen = model if model in ("bf16", "fp16") and question.engine.name not in EIGHT_BIT else "fp16"
    eight = EIGHT_BIT.get(question.engine.name, "fp8")
    found = [_form(question)]
    lengths = (question.asked.context, longest_asked(question.spec, question.asked.context))
    for name in (sixteen, eight):
        try:
            form = _form(question._replace(options=question.options._replace(kv_dtype=KvDtype(name, name))))
        except KvcalcError:
            continue  # the engine does not store this model so
        if form.request_bytes(lengths) not in [other.request_bytes(lengths) for other in found]:
            found.append(form)
    return found


def _form(question: Question) -> _Form:
    memory, ranges = budget(question)[:2]
    return _Form(
        question,
        str(question.engine.plan(question.spec, question.options).kv_dtype),
        memory.kv_bytes,
        ranges.get("kv_bytes", Range(low=memory.kv_bytes, high=memory.kv_bytes)),
        "kv_bytes" in ranges,
        largest(lambda tokens: held_at(question, memory.kv_bytes, [tokens])[0].requests > 0, longest_asked(question.spec, question.asked.context)),
    )


def _requests_chart(question: Question, contexts: Sequence[int], forms: Sequence[_Form], most: int | None) -> Chart:
    """Whole requests that are held at once in each replica."""
    held = [form.held(contexts) for form in forms]
    some = [requests for row in held for requests in row if requests]
    y = axis("held at once" if question.options.dp == 1 else "held at once in each replica", "count", "requests", some)
    asked = question.asked.context
    limit = [Mark(name=f"the scheduler's limit, {most:,} requests", axis="y", value=most)] if most is not None and min(some) <= most <= max(some) else []
    return Chart(
        title=f"{_subject(question)}: requests that fit",
        x=axis("length of each request", "tokens", "tokens", contexts),
        y=y,
        series=tuple(_requests_series(form, contexts, zeros=y.scale == "linear") for form in forms),
        marks=(Mark(name=f"asked, {counted(asked, 'token')}", axis="x", value=asked), *limit),
        captions=(f"Of {counted(asked, 'token')}: {'; '.join(_said(form, asked) for form in forms)}.", *_longest(forms, contexts[-1])),
    )


def _requests_series(form: _Form, contexts: Sequence[int], *, zeros: bool) -> Series:
    drawn = [tokens for tokens, requests in zip(contexts, form.held(contexts), strict=True) if requests or zeros]
    return Series(
        name=f"{form.name} (~ estimated)" if form.estimated else form.name,
        points=tuple(zip(drawn, form.held(drawn), strict=True)),
        band=form.at_ends(drawn) if form.estimated else (),
    )


def _said(form: _Form, asked: int) -> str:
    """What a form holds of the asked length, in words."""
    (held,), ((low, high),) = form.held([asked]), form.at_ends([asked])
    return f"{form.name} ~{held:,} ({low:,} to {high:,})" if form.estimated else f"{form.name} {held:,}"


def _longest(forms: Sequence[_Form], longest: int) -> Iterable[str]:
    """Where the lines end, for those that do not reach the longest request."""
    for form in forms:
        if form.longest < longest:
            most = f"up to {'~' if form.estimated else ''}{counted(form.longest, 'token')} fit" if form.longest else "no length fits"
            yield f"{form.name}: {most}."


def _slots_chart(question: Question, contexts: Sequence[int], forms: Sequence[_Form]) -> Chart:
    """Bytes of a cache that is allocated whole, whatever is asked later, on the GPU that binds."""
    sizes = [form.request_bytes(contexts) for form in forms]
    budgeted, asked = forms[0].kv_bytes, question.asked.context
    unit = binary_unit(max(budgeted, *(size for row in sizes for size in row)))
    at_asked = "; ".join(f"{form.name} {format_bytes(form.request_bytes([asked])[0], unit)}" for form in forms)
    return Chart(
        title=f"{_subject(question)}: cache of all slots",
        x=axis("context of all slots together", "tokens", "tokens", contexts),
        y=axis("cache", "bytes", unit, [budgeted, *(size for row in sizes for size in row)]),
        series=tuple(Series(name=form.name, points=tuple(zip(contexts, row, strict=True))) for form, row in zip(forms, sizes, strict=True)),
        marks=(
            Mark(name=f"asked, {counted(asked, 'token')}", axis="x", value=asked),
            Mark(name=f"KV budget, {'~' if forms[0].estimated else ''}{format_bytes(budgeted, unit)}", axis="y", value=budgeted),
        ),
        captions=(f"Of {counted(asked, 'token')}: {at_asked}.", *_longest(forms, contexts[-1])),
    )


def _subject(question: Question) -> str:
    """The model, and what it runs on."""
    gpus, engine = question.options.gpus, question.engine
    where = "" if question.gpu.name is None else f" on {question.gpu.name}" if gpus == 1 else f" on {gpus} x {question.gpu.name}"
    budgeted = "" if question.kv_bytes is None else f", {format_bytes(question.kv_bytes)} of KV cache"
    return f"{question.asked.name}{where}, {engine.name}{'' if engine.version is None else f' {engine.version}'}{budgeted}"


def axis(label: str, quantity: Quantity, unit: str, values: Sequence[float]) -> Axis:
    """An axis for these values, logarithmic where their range asks for it: in powers of two for tokens, else of ten."""
    low, high = min(values), max(values)
    scale: Literal["linear", "log2", "log10"] = "linear"
    if 0 < low * LOG_FROM <= high:
        scale = "log2" if quantity == "tokens" else "log10"
    return Axis(label=label, quantity=quantity, unit=unit, scale=scale)


def speed_chart(result: Speed) -> Chart | None:
    """The roofline of the GPU with the prompt and decode steps on it; None where its arithmetic rate is not known."""
    if result.computes_in is None:
        return None
    steps = [Work(f"decode, batch {row.batch:,}", row.intensity) for row in result.batches]
    title = f"{result.model.name} on {result.gpu.name}, {result.computes_in}"
    return roofline_chart(title, result.gpu.flops[result.computes_in], result.gpu.bandwidth_bytes_s, [Work("prefill", result.prefill.intensity), *steps])


MOST_LINES: Final = 6
"""Lines in one picture that can be told apart."""


def sweep_chart(result: Sweep) -> Chart | None:
    """Whole requests, of all replicas, against the context, or else the first option that is a number in every row; a line for each combination of the
    others. None where nothing fits. Raises KvcalcError where no option has several numbers, or for more lines than can be told apart.
    """
    rows = [row for row in result.rows if isinstance(row, SweptFit)]
    along = next((name for name in ("context", *rows[0].options) if len({_numbered(row, name) for row in rows} - {None}) > 1), None)
    if along is None or any(_numbered(row, along) is None for row in rows):
        raise KvcalcError("no option has several numbers to draw along", hint="give a range, such as --context 1K..64K, or leave out --plot and --save")
    lines: dict[str, dict[int, SweptFit]] = {}
    for row in rows:
        others = [f"{name.replace('_', '-')} {word}" for name, word in row.options.items() if name != along]
        lines.setdefault(", ".join(others) or row.model.name, {})[_numbered(row, along) or 0] = row
    if len(lines) > MOST_LINES:
        hint = f"give fewer values: at most {MOST_LINES} combinations beside --{along.replace('_', '-')}"
        raise KvcalcError(f"{len(lines):,} lines cannot be told apart in one picture", hint=hint)
    held = [row.totals.requests for row in rows if row.totals.requests]
    if not held:
        return None
    y, label = axis("held at once", "count", "requests", held), along.replace("_", "-")
    of_tokens = along == "context"
    return Chart(
        title=f"Requests that fit against {label}",
        x=axis(label, "tokens" if of_tokens else "count", "tokens" if of_tokens else label, [each for points in lines.values() for each in points]),
        y=y,
        series=tuple(series for name, points in lines.items() if (series := _swept_series(name, points, zeros=y.scale == "linear")).points),
    )


def _swept_series(name: str, points: Mapping[int, SweptFit], *, zeros: bool) -> Series:
    """Requests of all replicas; a band where the budget is estimated."""
    drawn = [(value, row) for value, row in sorted(points.items()) if row.totals.requests or zeros]
    estimated = any("kv_bytes" in row.memory_range or row.latency is not None for _, row in drawn)
    return Series(
        name=f"{name} (~ estimated)" if estimated else name,
        points=tuple((value, row.totals.requests) for value, row in drawn),
        band=tuple((row.parallel.dp * row.capacity_range.low, row.parallel.dp * row.capacity_range.high) for _, row in drawn) if estimated else (),
    )


def _numbered(row: SweptFit, name: str) -> int | None:
    """What an option is in a row, where it is a number without a unit."""
    if name == "context":
        return row.context
    word = row.options.get(name, "").replace(",", "")
    return int(word) if word.isascii() and word.isdecimal() else None


class Work(NamedTuple):
    """A kind of step, and the operations that it does for each byte that it reads."""

    name: str
    flop_per_byte: float


def roofline_chart(name: str, peak_flops: float, bandwidth_bytes_s: float, points: Sequence[Work]) -> Chart:
    """Attainable operations a second against arithmetic intensity: the bandwidth binds left of the ridge, the arithmetic right of it. Each of `points`
    lies on the roof.
    """
    ridge = peak_flops / bandwidth_bytes_s
    intensities = [point.flop_per_byte for point in points if point.flop_per_byte > 0]
    ends = min([ridge / 100, *(each / 2 for each in intensities)]), max([ridge * 10, *(each * 2 for each in intensities)])

    def roof(flop_per_byte: float) -> tuple[float, float]:
        return flop_per_byte, min(peak_flops, flop_per_byte * bandwidth_bytes_s)

    return Chart(
        title=f"{name}: roofline",
        x=Axis(label="arithmetic intensity", quantity="FLOP/byte", unit="FLOP/byte", scale="log10"),
        y=Axis(label="attainable", quantity="FLOP/s", unit="FLOP/s", scale="log10"),
        series=(
            Series(name="the roof", points=(roof(ends[0]), roof(ridge), roof(ends[1])), kind="line"),
            *(Series(name=point.name, points=(roof(point.flop_per_byte),), kind="points") for point in points if point.flop_per_byte > 0),
        ),
        marks=(Mark(name=f"ridge, {ridge:,.0f} FLOP/byte", axis="x", value=ridge),),
        captions=(
            *(f"{point.name}: {point.flop_per_byte:,.1f} FLOP/byte, {'bandwidth' if point.flop_per_byte < ridge else 'arithmetic'} binds." for point in points),
        ),
    )
