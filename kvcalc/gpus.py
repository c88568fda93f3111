"""The GPU catalogue: what a person or nvidia-smi calls a card, to what is known of it. Reads gpus.yaml beside this file and nothing else."""

import re
from collections.abc import Iterable
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import TypeAdapter

from kvcalc.efficiency import Rate
from kvcalc.engines.base import Device
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.layers import Frozen, Size
from kvcalc.machine import Machine, Rates, ceilings
from kvcalc.results.fit import GpuInfo
from kvcalc.results.gpus import GpuRow, Gpus
from kvcalc.units import BINARY_UNITS


class Gpu(Frozen):
    """One card (of a board with several GPUs, one of these). `memory_gib` is what `memory_by` reports, `memory_gb` what is sold. `bandwidth_mb_s` is that
    of its memory in MB/s; the arithmetic rates are dense, in GFLOP/s (fp16 stands for bf16 too; `fp16_acc16_gflops` accumulates in fp16, where that is
    faster). `link_mb_s` is what `link` carries to other GPUs of the machine, each way. None where not known, or where tables disagree.
    """

    name: str
    aliases: tuple[str, ...] = ()
    vendor: Literal["NVIDIA", "AMD", "Intel", "Apple"]
    kind: Literal["datacenter", "workstation", "consumer", "laptop", "edge", "apu", "apple"]
    capability: str | None = None
    memory_gb: Size | None = None
    memory_gib: str | None = None
    memory_by: str | None = None
    hbm: bool = False
    bandwidth_mb_s: Size | None = None
    fp16_gflops: Size | None = None
    fp16_acc16_gflops: Size | None = None
    fp8_gflops: Size | None = None
    fp4_gflops: Size | None = None
    int8_gops: Size | None = None
    link: str | None = None
    link_mb_s: Size | None = None
    source: str

    @property
    def memory_bytes(self) -> int | None:
        """All memory as the runtime reports it."""
        return None if self.memory_gib is None else int(Decimal(self.memory_gib) * BINARY_UNITS["GiB"])

    @property
    def size_class_bytes(self) -> int | None:
        """The same, or what is sold where no report is known: near enough to tell large cards from small."""
        sold = None if self.memory_gb is None else self.memory_gb * 10**9
        return sold if self.memory_bytes is None else self.memory_bytes


class GpuMatch(Frozen):
    """The cards that a name can mean: one, or variants that differ in memory or form."""

    asked: str
    gpus: tuple[Gpu, ...]

    @property
    def name(self) -> str:
        return self.gpus[0].name if len(self.gpus) == 1 else self.asked

    def memory(self) -> tuple[int, str | None]:
        """Bytes of one card, and what reported them. Raises KvcalcError where the variants differ in them, or none is known."""
        known = [(gpu.memory_bytes, gpu.memory_by) for gpu in self.gpus if gpu.memory_bytes is not None]
        sold = {gpu.memory_gb for gpu in self.gpus}
        if len(sold) > 1:
            raise KvcalcError(f"{self.asked} may be {_listed(self.gpus)}", hint="name the one you mean, or state its memory with --gpu-mem")
        if not known:
            raise KvcalcError(f"how much memory {self.name} reports is not known", hint="state it with --gpu-mem, as nvidia-smi or torch shows it")
        return min(known)

    def device(self, memory_bytes: int | None = None) -> Device:
        """The card as engines see it, with its memory or the one that is stated."""
        capabilities = {gpu.capability for gpu in self.gpus}
        if len(capabilities) > 1:
            raise KvcalcError(f"{self.asked} may be {_listed(self.gpus)}", hint="name the one you mean")
        capability = capabilities.pop()
        sizes = {size for gpu in self.gpus if (size := gpu.size_class_bytes) is not None} if memory_bytes is None else {memory_bytes}
        return Device(
            self.name,
            None if capability is None else int(capability.replace(".", "")),
            tuple(sorted(sizes)),
            unified=all(gpu.kind in UNIFIED for gpu in self.gpus),
            nvidia=all(gpu.vendor == "NVIDIA" for gpu in self.gpus),
        )

    def machine(self, bandwidth_bytes_s: int | None = None) -> Machine:
        """What the card moves (or as stated) and computes in a second. Raises KvcalcError where the variants differ in it, or its bandwidth is not known."""
        known = [gpu for gpu in self.gpus if gpu.bandwidth_mb_s is not None or bandwidth_bytes_s is not None]
        machines = {_machine(gpu, self.name, bandwidth_bytes_s) for gpu in known}
        if not machines:
            raise KvcalcError(f"how much the memory of {self.name} moves in a second is not known", hint="state it with --bandwidth")
        if len(machines) > 1:
            raise KvcalcError(f"{self.asked} may be {_listed(self.gpus)}", hint="name the one you mean")
        return machines.pop()


def _machine(gpu: Gpu, name: str, bandwidth_bytes_s: int | None) -> Machine:
    """Cards without fast fp16 (CC 6.1) compute in fp32, whose rate is not in the catalogue; GeForce cards accumulate in fp32 at half the rate of fp16
    (data sheets of Ada and Blackwell, both rates of eight cards).
    """
    known: dict[Rate, int | None] = {"fp16": gpu.fp16_gflops, "fp8": gpu.fp8_gflops, "fp4": gpu.fp4_gflops, "int8": gpu.int8_gops}
    if gpu.capability == SLOW_FP16:
        known["fp16"] = None
    elif gpu.fp16_gflops is None and gpu.fp16_acc16_gflops is not None:
        known["fp16"] = gpu.fp16_acc16_gflops // 2
    rates: Rates = tuple((rate, number * 10**9) for rate, number in known.items() if number is not None)
    return Machine(
        name=name,
        memory="unified" if gpu.kind in UNIFIED else "hbm" if gpu.hbm else "gddr",
        geforce=gpu.kind in ("consumer", "laptop"),
        bandwidth_bytes_s=(gpu.bandwidth_mb_s or 0) * 10**6 if bandwidth_bytes_s is None else bandwidth_bytes_s,
        rates=rates,
        ceilings=ceilings(gpu.kind, rates, _times(gpu.fp16_acc16_gflops, 10**9)),
        link=gpu.link,
        link_bytes_s=_times(gpu.link_mb_s, 10**6),
        link_on_board=gpu.link is not None and not gpu.link.startswith("PCIe"),
    )


SLOW_FP16: Final = "6.1"
"""Pascal but for the P100: fp16 at 1/64 of fp32's rate, which llama.cpp does not use (FAST_FP16_AVAILABLE, ggml/src/ggml-cuda/common.cuh 00108827d)."""
UNIFIED: Final = ("edge", "apu", "apple")
"""Kinds whose memory is that of the CPU too."""


@cache
def find_gpu(text: str) -> GpuMatch:
    """The cards that `text` names, in any case, with or without make and line. Raises KvcalcError with near names where there is none."""
    if len(text) > LONGEST_NAME:
        raise KvcalcError(f"GPU {text[:60]!r} is not in the catalogue: it is longer than {LONGEST_NAME} letters", hint="state its memory with --gpu-mem")
    wanted = _words(text)
    matches = [
        (min(sizes), gpu) for gpu in gpus() if (sizes := [len(words - wanted) for words in _names(gpu) if wanted and wanted <= words <= wanted | _extra(words)])
    ]
    if not matches:
        raise KvcalcError(f"GPU {text[:60]!r} is not in the catalogue", hint=f"{_near(text)} state its memory with --gpu-mem")
    exact = [gpu for missing, gpu in matches if missing == 0]
    return GpuMatch(asked=text.strip(), gpus=tuple(exact or [gpu for _, gpu in matches]))


def short_names() -> list[str]:
    """Each card by its name without the make, in one word that `find_gpu` knows."""
    return ["-".join(word for word in re.findall(r"[a-z0-9]+", gpu.name.lower()) if word not in _MAKES) for gpu in gpus()]


def gpus_here(needed: int) -> tuple[GpuInfo, Device]:
    """The first `needed` GPUs of this machine, as one: the smallest memory among them, and the most that other processes hold of one.

    Raises KvcalcError (exit 4) where they cannot be asked for, or are fewer.
    """
    from kvcalc.nvml import local_gpus  # only a question without a GPU asks the driver

    found = local_gpus()
    used = found[:needed]
    if len(used) < needed:
        raise KvcalcError(
            f"this machine has {len(found)} GPU{'s' if len(found) > 1 else ''}, not {needed}",
            hint="name the GPU with --gpu for a machine that has them",
            code=ExitCode.ENVIRONMENT,
        )
    smallest = min(used, key=lambda gpu: gpu.total_bytes)
    info = GpuInfo(name=smallest.name, memory_bytes=smallest.total_bytes, memory_by=smallest.memory_by, used_bytes=max(gpu.used_bytes for gpu in used))
    return info, Device(smallest.name, smallest.capability, (smallest.total_bytes,), unified=smallest.memory_by != "NVML")


@cache
def gpus() -> tuple[Gpu, ...]:
    """The whole catalogue, in its own order."""
    import yaml  # a question without a GPU does without

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    rows: Any = yaml.load(Path(__file__).with_name("gpus.yaml").read_bytes(), Loader=loader)  # noqa: S506 (both loaders are safe ones)
    return tuple(TypeAdapter(list[Gpu]).validate_python([{**row, "aliases": tuple(row.get("aliases", ()))} for row in rows]))


LONGEST_NAME: Final = 200
"""Of a GPU, as a person or a driver writes it."""

_MAKES: Final = frozenset(
    {"apple", "nvidia", "geforce", "tesla", "amd", "instinct", "radeon", "intel", "r", "tm", "gpu", "graphics", "generation", "corporation"}
)
"""Words that a name may have or lack without meaning another card."""
_VARIANT: Final = re.compile(r"\d+gb|pcie|sxm\d?|oam|hbm\d?e?|one|of|four|dgx|spark|server|workstation|edition|rtx|gtx|rx|1[46]|core|cpu")
"""Words that tell variants of one card apart, and that a name may leave out."""


def _words(text: str) -> frozenset[str]:
    """The words of a name: "RTX4090", "rtx 4090" and "NVIDIA GeForce RTX 4090" alike, "80G" as "80GB"."""
    plain = re.sub(r"\b(rtx|gtx|rx|mi)[ -]?(?=\d)", r"\1 ", re.sub(r"(sxm)\d", r"\1", text.lower()))
    words = re.findall(r"[a-z0-9]+", re.sub(r"(\d+) ?gi?b?\b", r"\1gb", plain))
    return frozenset(words) - _MAKES


def _names(gpu: Gpu) -> Iterable[frozenset[str]]:
    return map(_words, (gpu.name, *gpu.aliases))


def _extra(words: frozenset[str]) -> frozenset[str]:
    return frozenset(word for word in words if _VARIANT.fullmatch(word))


def _listed(found: Iterable[Gpu]) -> str:
    return " or ".join(gpu.name for gpu in found)


def _near(text: str) -> str:
    from difflib import get_close_matches  # only a typo needs it

    names = {" ".join(sorted(words)): gpu.name for gpu in reversed(gpus()) for named in _names(gpu) for words in (named, named - _extra(named))}
    near = dict.fromkeys(names[match] for match in get_close_matches(" ".join(sorted(_words(text))), names, n=4, cutoff=0.5))
    return f"did you mean {', '.join(near)}? Or" if near else "Instead,"


def list_gpus(text: str | None) -> Gpus:
    """The cards whose name, alias or make contains `text`, as an answer."""
    wanted = "" if text is None else text.strip().lower()
    return Gpus(gpus=tuple(_row(gpu) for gpu in gpus() if any(wanted in name.lower() for name in (gpu.name, gpu.vendor, *gpu.aliases))))


def _row(gpu: Gpu) -> GpuRow:
    return GpuRow(
        name=gpu.name,
        aliases=gpu.aliases,
        vendor=gpu.vendor,
        kind=gpu.kind,
        capability=gpu.capability,
        memory_bytes=gpu.memory_bytes,
        memory_by=gpu.memory_by,
        sold_bytes=_times(gpu.memory_gb, 10**9),
        bandwidth_bytes_s=_times(gpu.bandwidth_mb_s, 10**6),
        fp16_flops=_times(gpu.fp16_gflops, 10**9),
        fp8_flops=_times(gpu.fp8_gflops, 10**9),
        fp4_flops=_times(gpu.fp4_gflops, 10**9),
        int8_ops=_times(gpu.int8_gops, 10**9),
        link=gpu.link,
        link_bytes_s=_times(gpu.link_mb_s, 10**6),
        source=gpu.source,
    )


def _times(number: int | None, unit: int) -> int | None:
    return None if number is None else number * unit
