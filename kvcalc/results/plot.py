"""What a picture shows, without how it is drawn: on a terminal, as a file, or on a page."""

from typing import Final, Literal, NamedTuple

from kvcalc.layers import Frozen
from kvcalc.results.fit import Fit

Quantity = Literal["tokens", "count", "bytes", "FLOP/byte", "FLOP/s"]
Scale = Literal["linear", "log2", "log10"]


class Axis(Frozen):
    """What lies along an axis: its `quantity` decides how figures are written, and `unit` names it (of bytes: the binary unit of all figures)."""

    label: str
    quantity: Quantity
    unit: str
    scale: Scale


class Series(Frozen):
    """Points of one name, in the order of x. `band`: low and high of each y where it is estimated. `kind`: a bare line, a line
    with its points, or points alone.
    """

    name: str
    points: tuple[tuple[float, float], ...]
    band: tuple[tuple[float, float], ...] = ()
    kind: Literal["line", "joined", "points"] = "joined"


class Mark(Frozen):
    """A value along one axis, drawn across the other."""

    name: str
    axis: Literal["x", "y"]
    value: float


class Chart(Frozen):
    """Series over two axes. `captions` say in words what a reader would otherwise measure in the picture. A logarithmic axis has no point at zero."""

    title: str
    x: Axis
    y: Axis
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    captions: tuple[str, ...] = ()


class Part(Frozen):
    """One part of a bar."""

    name: str
    bytes: int
    estimated: bool


class Bar(Frozen):
    """Sizes in a row. `total_bytes` is where there is no more; the parts may be more than that. Of it the engine takes `usable_bytes`."""

    title: str
    parts: tuple[Part, ...]
    total_bytes: int
    usable_bytes: int


Drawing = Chart | Bar


class _Sizes(NamedTuple):
    name: str
    fields: tuple[str, ...]


PARTS: Final = (
    _Sizes("weights", ("weights_bytes",)),
    _Sizes("activations", ("activation_bytes",)),
    _Sizes("graphs and runtime", ("graph_bytes", "runtime_bytes")),
    _Sizes("kept back", ("reserve_bytes",)),
    _Sizes("KV cache", ("kv_bytes",)),
)
"""Into what the memory of a GPU is divided, by the names of its sizes."""


def memory_chart(result: Fit) -> Bar | None:
    """The memory of one GPU, every part of PARTS in it; None where only the KV budget was stated."""
    memory = result.memory
    if memory.total_bytes is None or memory.usable_bytes is None:
        return None
    parts = tuple(
        Part(
            name=part.name,
            bytes=sum(getattr(memory, field) or 0 for field in part.fields),
            estimated=any(field in result.memory_range for field in part.fields),
        )
        for part in PARTS
    )
    title = f"Memory of {'one' if result.gpus > 1 else 'the'} {result.gpu.name or 'GPU'}"
    return Bar(title=title, parts=parts, total_bytes=memory.total_bytes, usable_bytes=memory.usable_bytes)
