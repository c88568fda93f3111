"""The answer of `kvcalc gpus`."""

from kvcalc.layers import Frozen
from kvcalc.results.shared import Answer


class GpuRow(Frozen):
    """One card of the catalogue. `memory_bytes`: all memory as `memory_by` reports it; `sold_bytes`: as it is sold. `bandwidth_bytes_s`: of its memory.
    The rates are dense operations a second, with fp32 accumulation for `fp16_flops` (bf16 alike). `link_bytes_s`: what `link` carries to another card of
    the machine, each way. None where not known.
    """

    name: str
    aliases: tuple[str, ...]
    vendor: str
    kind: str
    capability: str | None
    memory_bytes: int | None
    memory_by: str | None
    sold_bytes: int | None
    bandwidth_bytes_s: int | None
    fp16_flops: int | None
    fp8_flops: int | None
    fp4_flops: int | None
    int8_ops: int | None
    link: str | None
    link_bytes_s: int | None
    source: str


class Gpus(Answer):
    """The cards that match a filter."""

    gpus: tuple[GpuRow, ...]
