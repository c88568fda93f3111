"""The GPUs of a machine as NVML tells them: a stand-in for pynvml takes the place of a driver."""

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import pytest

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.nvml import LocalGpu, local_gpus

MIB = 1 << 20


class NVMLError(Exception):
    """Like pynvml's: one class for all, and one more for each error."""


class NVMLError_NotSupported(NVMLError):  # noqa: N801, N818 (pynvml's name)
    pass


class NVMLError_NotFound(NVMLError):  # noqa: N801, N818 (pynvml's name)
    pass


class Card(NamedTuple):
    """A card, or a MIG instance. Memory in MiB: total, reserved, free. `old`: the driver has no nvmlDeviceGetMemoryInfo_v2."""

    name: str
    uuid: str
    memory: tuple[int, int, int] | None
    capability: tuple[int, int] | None = (9, 0)
    instances: tuple["Card | None", ...] | None = None
    old: bool = False


H100 = Card("NVIDIA H100 80GB HBM3", "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", (81559, 551, 81004))
BUSY = Card("NVIDIA H100 80GB HBM3", "GPU-8932aaaa-0000-0000-0000-000000000000", (81559, 551, 20000))
T4 = Card("Tesla T4", "GPU-11111111-2222-3333-4444-555555555555", (15360, 448, 14912), (7, 5))
SPARK = Card("NVIDIA GB10", "GPU-2dee1e25-b3b5-007e-2b55-79f2d0f2ebe5", None, (12, 1))
SLICE = Card("NVIDIA A100-SXM4-40GB MIG 1g.5gb", "MIG-aaaaaaaa-0000-0000-0000-000000000001", (4864, 12, 4839), None)
HALF = Card("NVIDIA A100-SXM4-40GB MIG 3g.20gb", "MIG-bbbbbbbb-0000-0000-0000-000000000002", (19968, 37, 19931), None)
SLICED = Card("NVIDIA A100-SXM4-40GB", "GPU-cccccccc-0000-0000-0000-000000000003", (40960, 500, 40000), (8, 0), (SLICE, None, HALF))
UNDIVIDED = SLICED._replace(instances=(None, None))


def memory_of(card: Card, version: int | None = None) -> Any:
    if card.memory is None:
        raise NVMLError_NotSupported("Not Supported")
    total, reserved, free = (size * MIB for size in card.memory)
    if version is None:
        return SimpleNamespace(total=total, free=free, used=total - free)
    if card.old:
        raise NVMLError("Function Not Found")
    return SimpleNamespace(total=total, reserved=reserved, free=free, used=total - reserved - free)


def capability_of(card: Card) -> tuple[int, int]:
    if card.capability is None:
        raise NVMLError_NotSupported("Not Supported")
    return card.capability


def mig_mode_of(card: Card) -> tuple[int, int]:
    if card.old:
        raise NVMLError_NotSupported("Not Supported")
    return (0, 0) if card.instances is None else (1, 1)


def instance_of(card: Card, place: int) -> Card:
    found = (card.instances or ())[place]
    if found is None:
        raise NVMLError_NotFound("Not Found")
    return found


def driver(*cards: Card, init: Exception | None = None) -> ModuleType:
    """A pynvml whose driver knows these cards. `down` tells whether it was shut down."""

    def initialise() -> None:
        if init is not None:
            raise init

    module = ModuleType("pynvml")
    module.__dict__.update(
        NVMLError=NVMLError,
        NVMLError_NotSupported=NVMLError_NotSupported,
        NVMLError_NotFound=NVMLError_NotFound,
        NVML_DEVICE_MIG_ENABLE=1,
        nvmlMemory_v2=0x02000028,
        nvmlInit=initialise,
        nvmlShutdown=lambda: module.__dict__.update(down=True),
        nvmlDeviceGetCount=lambda: len(cards),
        nvmlDeviceGetHandleByIndex=lambda index: cards[index],
        nvmlDeviceGetName=lambda card: card.name,
        nvmlDeviceGetUUID=lambda card: card.uuid,
        nvmlDeviceGetMemoryInfo=memory_of,
        nvmlDeviceGetCudaComputeCapability=capability_of,
        nvmlDeviceGetMigMode=mig_mode_of,
        nvmlDeviceGetMaxMigDeviceCount=lambda card: len(card.instances),
        nvmlDeviceGetMigDeviceHandleByIndex=instance_of,
        down=False,
    )
    return module


def asked(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, visible: str | None = None) -> tuple[LocalGpu, ...]:
    monkeypatch.setitem(sys.modules, "pynvml", module)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    return local_gpus()


def refused(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None, visible: str | None = None) -> KvcalcError:
    with pytest.raises(KvcalcError) as error:
        asked(monkeypatch, module, visible)
    assert error.value.code == ExitCode.ENVIRONMENT
    assert "--gpu" in error.value.hint
    assert "--gpu-mem" in error.value.hint
    return error.value


ANSWERS = {
    "memory that the driver keeps is not the user's": (H100, LocalGpu(0, H100.name, 81008 * MIB, 4 * MIB, 90, mig=False, memory_by="NVML")),
    "what others hold": (BUSY, LocalGpu(0, BUSY.name, 81008 * MIB, 61008 * MIB, 90, mig=False, memory_by="NVML")),
    "a driver without the newer call": (T4._replace(old=True), LocalGpu(0, "Tesla T4", 15360 * MIB, 448 * MIB, 75, mig=False, memory_by="NVML")),
    "an unknown capability": (T4._replace(capability=None), LocalGpu(0, "Tesla T4", 14912 * MIB, 0, None, mig=False, memory_by="NVML")),
}


@pytest.mark.parametrize("case", ANSWERS)
def test_one_card(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    card, gpu = ANSWERS[case]
    module = driver(card)
    assert asked(monkeypatch, module) == (gpu,)
    assert module.down


def test_used_is_what_is_not_free_whichever_way_the_driver_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    module = driver(H100)
    counted = SimpleNamespace(total=100, reserved=10, free=60, used=40)
    monkeypatch.setattr(module, "nvmlDeviceGetMemoryInfo", lambda _card, version: counted if version else None)
    (gpu,) = asked(monkeypatch, module)
    assert (gpu.total_bytes, gpu.used_bytes) == (90, 30)


@pytest.mark.parametrize("memory", [None, (0, 0, 0)])
def test_a_gpu_without_memory_of_its_own_has_that_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, memory: tuple[int, int, int] | None) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       127600748 kB\nMemFree:        7000000 kB\nMemAvailable:   118566368 kB\nHugePages_Total:       0\n")
    monkeypatch.setattr("kvcalc.nvml._MEMINFO", meminfo)
    expected = LocalGpu(0, "NVIDIA GB10", 127600748 << 10, (127600748 - 118566368) << 10, 121, mig=False, memory_by=str(meminfo))
    assert asked(monkeypatch, driver(SPARK._replace(memory=memory))) == (expected,)


@pytest.mark.parametrize("text", [None, "", "MemTotal: lots\n"])
def test_a_gpu_whose_memory_nobody_tells_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "meminfo").write_text(text)
    monkeypatch.setattr("kvcalc.nvml._MEMINFO", tmp_path / "meminfo")
    assert "how much memory NVIDIA GB10 has" in refused(monkeypatch, driver(SPARK)).message


def test_a_card_in_mig_mode_is_its_instances(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = asked(monkeypatch, driver(T4, SLICED))
    assert [(gpu.index, gpu.name, gpu.total_bytes // MIB, gpu.capability, gpu.mig) for gpu in gpus] == [
        (0, "Tesla T4", 14912, 75, False),
        (1, SLICE.name, 4852, 80, True),
        (1, HALF.name, 19931, 80, True),
    ]


VISIBLE = {
    "0": [0],
    "1,0": [1, 0],
    " 2 , 0 ": [2, 0],
    "0,9,1": [0],
    "0,-1,1": [0],
    "0,,1": [0],
    "1,NoDevFiles": [1],
    "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6": [0],
    "GPU-8932f": [0],
    "GPU-1,GPU-8932a": [2, 1],
    "GPU-1,GPU-8932,0": [2],  # two cards begin so
    "MIG-bbbb": [4],
    "GPU-cccc": [3, 4],
    "3": [3, 4],
    "MIG-aaaa,0": [3, 0],
}
NONE_VISIBLE = ["", "-1", " ", "9", "0,0", "GPU-8932f,0", "MIG-aaaa,3", "GPU-zzzz", "GPU-8932", "all", "9" * 5000]


@pytest.mark.parametrize("wanted", VISIBLE)
def test_cuda_visible_devices_counts(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    module = driver(H100, BUSY, T4, SLICED)
    every = asked(monkeypatch, module)
    assert len(every) == 5
    assert asked(monkeypatch, module, wanted) == tuple(every[place] for place in VISIBLE[wanted])


@pytest.mark.parametrize("wanted", NONE_VISIBLE, ids=lambda text: repr(text[:20]))
def test_no_gpu_may_be_visible(monkeypatch: pytest.MonkeyPatch, wanted: str) -> None:
    error = refused(monkeypatch, driver(H100, BUSY, T4, SLICED), wanted)
    assert "CUDA_VISIBLE_DEVICES=" in error.message
    assert len(error.message) < 200


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    error = refused(monkeypatch, None)
    assert "nvidia-ml-py is not installed" in error.message
    assert "pip install 'kvcalc[nvml]'" in error.hint
    assert "no NVIDIA driver answers here: Library Not Found" in refused(monkeypatch, driver(init=NVMLError("Library Not Found"))).message
    assert "knows no GPU" in refused(monkeypatch, driver()).message
    assert "knows no GPU" in refused(monkeypatch, driver(UNDIVIDED)).message


def test_a_card_that_fails_is_an_error_and_nvml_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    module = driver(H100)

    def lost(_card: Card) -> str:
        raise NVMLError("GPU is lost")

    monkeypatch.setattr(module, "nvmlDeviceGetName", lost)
    assert "GPU is lost" in refused(monkeypatch, module).message
    assert module.down


def test_pynvml_is_imported_only_when_it_is_asked() -> None:
    check = "import sys, kvcalc.nvml; assert 'pynvml' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
