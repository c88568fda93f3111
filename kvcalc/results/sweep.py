"""The answer of `kvcalc sweep`."""

from typing import Literal

from pydantic import Field

from kvcalc.layers import Frozen, Note
from kvcalc.results.fit import CapacityInfo, GpuInfo, LatencyInfo, Memory, MixInfo, Range, SharedInfo, Totals
from kvcalc.results.shared import Answer, ModelInfo, Parallel


class Refused(Frozen):
    """A cell without an answer: `refused` says why. `context` is None where it would have been the model's own."""

    options: dict[str, str]
    context: int | None
    batch: int
    fits: None = None
    refused: str


class SweptFit(Frozen):
    """One cell of a grid: what `kvcalc fit` answers with the same `options` (those that vary, as they would be typed), but for what it advises. `notes` are
    those of its deployment, which the whole says once.
    """

    options: dict[str, str]
    model: ModelInfo
    engine: str
    engine_version: str | None
    gpu: GpuInfo
    gpus: int
    parallel: Parallel
    context: int
    batch: int
    kv_dtype: str
    memory: Memory
    memory_range: dict[str, Range]
    capacity: CapacityInfo
    capacity_range: Range
    totals: Totals
    fits: bool
    lacking_bytes: int
    limited_by: Literal["kv_bytes", "max_seqs", "weights", "ttft", "tpot"]
    latency: LatencyInfo | None
    shared: SharedInfo | None
    mix: MixInfo | None
    refused: None = None
    notes: tuple[Note, ...] = Field(exclude=True)


Row = SweptFit | Refused


class Sweep(Answer):
    """A grid, cell by cell: deployments in the order of their options, of each the lengths, of each the batches. `notes` hold for all rows unless they say of
    how many.
    """

    rows: tuple[Row, ...]
    notes: tuple[Note, ...]
