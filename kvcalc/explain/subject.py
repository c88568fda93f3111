"""What is explained: one model under one engine, with the answers that all topics draw on, and how they put figures into words."""

from collections import Counter
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from kvcalc.budget import Question
from kvcalc.engines.base import LayerUse, Options, Plan, PlaneUse
from kvcalc.engines.ideal import IDEAL
from kvcalc.engines.work import Costs, costs
from kvcalc.errors import KvcalcError
from kvcalc.estimate import estimate, product, row_product
from kvcalc.latency import clock
from kvcalc.machine import Machine
from kvcalc.packing import PACKINGS, KvDtype, Packing
from kvcalc.results.estimate import Estimate
from kvcalc.results.explain import Formula, Paragraph, Unit
from kvcalc.tensors import weighed
from kvcalc.timing import Clock
from kvcalc.units import counted, format_bytes

ATTENTION = ("gqa", "mla")
"""Kernels of attention with queries: over K and V of heads, and over a latent."""
BESIDE = ("ring", "compressor", "indexer")
"""Kernels of what a layer keeps beside its attention, to compress or to pick."""


class Part(NamedTuple):
    """A paragraph of a topic, and whether the short story has it."""

    paragraph: Paragraph
    in_story: bool = False


class Counts(NamedTuple):
    """Layers by what they keep themselves: attention alone, a state alone, both, another layer's cache, nothing."""

    attention: int
    state: int
    both: int
    shared: int
    nothing: int


class Subject:
    """A question, and what is asked of it again and again, each found once.

    `own` and `uses` are the bare formula in one copy of the model. Raises KvcalcError as an estimate of that does, and for a KV dtype whose elements only
    an engine has.
    """

    def __init__(self, question: Question, machine: Machine | None) -> None:
        self.question, self.machine = question, machine
        asked, options = question.asked, question.options
        self.name, self.context, self.batch = asked.name, asked.context, asked.batch
        self.spec = weighed(question.spec)
        self.options = Options(kv_dtype=_elements(options.kv_dtype), encoder_tokens=options.encoder_tokens, draft_layers=options.draft_layers)
        self.rows = IDEAL.plan(self.spec, self.options)
        self.uses = self.rows.uses(self.context)
        self.own: Estimate = estimate(self.spec, IDEAL, self.options, name=asked.name, source=asked.source, context=self.context, batch=self.batch)

    @cached_property
    def counts(self) -> Counts:
        kept: Counter[str] = Counter()
        for layer in (*self.spec.layers, *(self.spec.draft_layers if self.options.draft_layers else ())):
            kernels = {cache.kernel for cache in layer.caches} - set(BESIDE)
            attends = bool(kernels & set(ATTENTION))
            state = bool(kernels - set(ATTENTION))
            shared = layer.reads is not None and not layer.caches
            kept["both" if attends and state else "attention" if attends else "state" if state else "shared" if shared else "nothing"] += 1
        return Counts(*(kept[name] for name in Counts._fields))

    @cached_property
    def attention(self) -> tuple[LayerUse, ...]:
        """Caches that queries attend to, in one copy."""
        return tuple(use for use in self.uses if use.cache is not None and use.cache.kernel in ATTENTION)

    @cached_property
    def states(self) -> tuple[LayerUse, ...]:
        """Recurrent and convolution states, in one copy."""
        return tuple(use for use in self.uses if use.cache is not None and use.cache.kernel not in (*ATTENTION, *BESIDE))

    @cached_property
    def keeps_all(self) -> bool:
        """Whether every layer that keeps something keeps a row for every token."""
        return bool(self.uses) and all(use.kind in ("full", "latent", "indexer", "shared") and use.rows in (0, self.context) for use in self.uses)

    @cached_property
    def sees_all(self) -> bool:
        """Whether attention, in the layers that have it, looks at every token so far."""
        return all(use.kind in ("full", "latent") and use.cache is not None and use.cache.picks is None for use in self.attention)

    @cached_property
    def plan(self) -> Plan | KvcalcError:
        """The engine's, or why it has none."""
        try:
            return self.question.engine.plan(self.spec, self.question.options)
        except KvcalcError as error:
            return error

    @property
    def is_held_otherwise(self) -> bool:
        """Whether the engine can hold the model where nothing is asked of it."""
        try:
            self.question.engine.plan(self.spec, Options(encoder_tokens=self.options.encoder_tokens))
        except KvcalcError:
            return False
        return True

    @cached_property
    def costs(self) -> Costs | KvcalcError:
        """What one GPU of each stage computes and moves, or why that cannot be told."""
        options = self.question.options
        counted = Options(tp=options.tp, pp=options.pp, dp=options.dp, dcp=options.dcp, encoder_tokens=options.encoder_tokens)
        try:
            return costs(self.spec, self.rows.kv_dtype, counted)
        except KvcalcError as error:
            return error

    @cached_property
    def clock(self) -> Clock | KvcalcError | None:
        """The same in time, or why not; None without a GPU."""
        if self.machine is None:
            return None
        try:
            return clock(self.question, self.machine)
        except KvcalcError as error:
            return error

    @cached_property
    def engine(self) -> str:
        """Its name, with the release whose rules these are."""
        rules = self.question.engine
        return rules.name if rules.version is None else f"{rules.name} {rules.version}"


def _elements(kv_dtype: KvDtype) -> KvDtype:
    """Element types that a row can be counted in. Raises KvcalcError for those of which an engine stores several to a row."""
    if "auto" in kv_dtype:
        return kv_dtype
    elements = KvDtype(*(packing.name for packing in kv_dtype.elements()))
    if any(name not in PACKINGS for name in elements):
        raise KvcalcError(f"the rows of {kv_dtype} cannot be explained by elements and bytes", hint="name a plain type: --kv-dtype fp8")
    return elements


# Words and figures


def sized(size_bytes: int) -> str:
    """A size in bytes, and where that is long in a larger unit too."""
    return f"{size_bytes:,} B" if size_bytes < 10_240 else f"{size_bytes:,} B ({format_bytes(size_bytes)})"


def listed(words: Sequence[str]) -> str:
    """Words as a sentence has them: a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def plain(name: str, text: str, value: int, unit: Unit, *factors: int | str) -> Formula:
    """A product."""
    return Formula(name=name, text=text, numbers=product(*factors), value=value, unit=unit)


def row_bytes(planes: Sequence[PlaneUse]) -> int:
    """Bytes of one row in one layer."""
    return sum(plane.row_bytes for plane in planes)


def row_formula(name: str, planes: Sequence[PlaneUse], text: str) -> Formula:
    """The bytes of one row in one layer."""
    numbers = row_product(planes)
    return Formula(name=name, text=text, numbers=numbers.removeprefix("(").removesuffix(")"), value=row_bytes(planes), unit="B")


def element_size(packing: Packing) -> str:
    """How many bytes an element takes, or a block of them."""
    if packing.elements == 1:
        return counted(packing.size_bytes, "byte")
    return f"{packing.size_bytes} bytes for {packing.elements}"
