"""The NVIDIA GPUs of this machine, through NVML: the library of the driver that nvidia-smi asks too. No CUDA context is made, so no memory is taken.

pynvml (the package nvidia-ml-py) is optional, and imported only when it is asked.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.units import shorten

_MEMINFO: Final = Path("/proc/meminfo")
_HINT: Final = "name the GPU with --gpu, or state its memory with --gpu-mem"


@dataclass(frozen=True)
class LocalGpu:
    """One GPU, or one MIG instance of one, as it is now.

    `index` is that of the card in nvidia-smi, which CUDA's own may differ from unless CUDA_DEVICE_ORDER is PCI_BUS_ID. `total_bytes` is what programs
    can have: cudaMemGetInfo's total, or within some tens of MiB of it. `used_bytes` is what all processes hold of that. `memory_by` is
    "NVML", or "/proc/meminfo" where the GPU shares the memory of the CPU (GB10, Jetson). `capability` is the compute capability times ten, None where
    the driver does not tell. `mig`: this is an instance of a card in MIG mode; CUDA gives one process one of them.
    """

    index: int
    name: str
    total_bytes: int
    used_bytes: int
    capability: int | None
    mig: bool
    memory_by: str


class _Found(NamedTuple):
    gpu: LocalGpu
    uuid: str
    card_uuid: str


def local_gpus() -> tuple[LocalGpu, ...]:
    """The GPUs that a CUDA program started here could use, in its order: CUDA_VISIBLE_DEVICES counts.

    Raises KvcalcError (exit 4): pynvml is not installed, no driver answers, there is no GPU, or none is visible.
    """
    with _nvml() as nvml:
        found = [each for index in range(nvml.nvmlDeviceGetCount()) for each in _card(nvml, index)]
    if not found:
        raise KvcalcError("the NVIDIA driver knows no GPU here", hint=_HINT, code=ExitCode.ENVIRONMENT)
    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    if wanted is None:
        return tuple(each.gpu for each in found)
    visible = _visible(found, wanted)
    if not visible:
        message = f"CUDA_VISIBLE_DEVICES={shorten(wanted)!r} leaves none of the GPUs here ({len(found)}) visible"
        raise KvcalcError(message, hint=f"unset it, or {_HINT}", code=ExitCode.ENVIRONMENT)
    return visible


@contextmanager
def _nvml() -> Iterator[Any]:
    """NVML, initialised for the block. What it raises becomes a KvcalcError."""
    try:
        nvml = import_module("pynvml")  # it has no types
    except ImportError:
        message = "the GPUs of this machine cannot be asked for: the package nvidia-ml-py is not installed"
        raise KvcalcError(message, hint=f"`pip install 'kvcalc[nvml]'`, or {_HINT}", code=ExitCode.ENVIRONMENT) from None
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        raise KvcalcError(f"no NVIDIA driver answers here: {shorten(str(error))}", hint=_HINT, code=ExitCode.ENVIRONMENT) from None
    try:
        yield nvml
    except nvml.NVMLError as error:
        raise KvcalcError(f"the NVIDIA driver does not tell what GPUs are here: {shorten(str(error))}", hint=_HINT, code=ExitCode.ENVIRONMENT) from None
    finally:
        nvml.nvmlShutdown()


def _card(nvml: Any, index: int) -> Iterator[_Found]:  # noqa: ANN401 (a module without types)
    """A card, or the instances of one in MIG mode: the card itself cannot be used then, and has none if it was not divided yet."""
    card = nvml.nvmlDeviceGetHandleByIndex(index)
    uuid = nvml.nvmlDeviceGetUUID(card)
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(card)
        capability = 10 * major + minor
    except nvml.NVMLError:
        capability = None
    if not _in_mig_mode(nvml, card):
        yield _Found(_gpu(nvml, card, index, capability, mig=False), uuid, uuid)
        return
    for place in range(nvml.nvmlDeviceGetMaxMigDeviceCount(card)):
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(card, place)
        except nvml.NVMLError_NotFound:  # places may be free
            continue
        yield _Found(_gpu(nvml, instance, index, capability, mig=True), nvml.nvmlDeviceGetUUID(instance), uuid)


def _in_mig_mode(nvml: Any, card: Any) -> bool:  # noqa: ANN401
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(card)
    except nvml.NVMLError:  # not supported by most cards, and not known to older drivers
        return False
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _gpu(nvml: Any, handle: Any, index: int, capability: int | None, *, mig: bool) -> LocalGpu:  # noqa: ANN401
    name = nvml.nvmlDeviceGetName(handle)
    total_bytes, used_bytes, memory_by = _memory(nvml, handle, name)
    return LocalGpu(index, name, total_bytes, used_bytes, capability, mig, memory_by)


def _memory(nvml: Any, handle: Any, name: str) -> tuple[int, int, str]:  # noqa: ANN401
    """What programs can have, what they hold of it, and who says so.

    `nvmlMemory_v2_t` tells the memory that driver and firmware keep for themselves (`reserved`) apart, which no CUDA program sees; documentation of
    NVML has said that `used` includes it, while drivers leave it out, hence the difference. The older call counts it as used, which leaves the same free.
    """
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        total_bytes = memory.total - memory.reserved
    except nvml.NVMLError:  # a driver before R510, or WSL
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
        except nvml.NVMLError_NotSupported:
            return *_shared_memory(name), str(_MEMINFO)
        total_bytes = memory.total
    if total_bytes == 0:
        return *_shared_memory(name), str(_MEMINFO)
    return total_bytes, total_bytes - memory.free, "NVML"


def _shared_memory(name: str) -> tuple[int, int]:
    """Bytes of the memory that the GPU shares with the CPU, and those of them that are in use. CUDA calls all of it the GPU's.

    NVML does not tell it (DGX Spark Known Issues, "nvidia-smi Reports 'Memory-Usage: Not Supported'").
    """
    try:
        fields = dict(re.findall(r"^(MemTotal|MemAvailable): +([0-9]{1,15}) kB$", _MEMINFO.read_text(), re.MULTILINE))
        total, available = int(fields["MemTotal"]), int(fields["MemAvailable"])
    except (OSError, KeyError):
        raise KvcalcError(f"neither NVML nor {_MEMINFO} tells how much memory {name} has", hint=_HINT, code=ExitCode.ENVIRONMENT) from None
    return total << 10, (total - available) << 10


def _visible(found: list[_Found], wanted: str) -> tuple[LocalGpu, ...]:
    """What CUDA_VISIBLE_DEVICES leaves, in its order: indices, or UUIDs as far as they are unique. What follows an entry that names nothing does not count
    (CUDA Programming Guide 5.2.1.1), and an entry that stands twice leaves nothing (torch/cuda/__init__.py, _parse_visible_devices).
    """
    chosen: list[_Found] = []
    for entry in map(str.strip, wanted.split(",")):
        if re.fullmatch(r"[0-9]{1,6}", entry):
            named = [each for each in found if each.gpu.index == int(entry)]
        elif entry.startswith("MIG-"):
            named = [each for each in found if each.uuid.startswith(entry)]
        elif entry.startswith("GPU-"):
            named = [each for each in found if each.card_uuid.startswith(entry)]
        else:
            named = []
        if not named or len({each.card_uuid for each in named}) > 1:
            break
        if any(each in chosen for each in named):
            return ()
        chosen += named
    return tuple(each.gpu for each in chosen)
