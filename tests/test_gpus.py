"""The GPU catalogue: names as people and nvidia-smi write them, memory as runtimes report it, and what is refused."""

import pytest

from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.gpus import find_gpu, gpus, list_gpus

GIB = 1 << 30
ONE = {
    "l4": "NVIDIA L4",
    "L40S": "NVIDIA L40S",
    "rtx4090": "GeForce RTX 4090",
    "RTX 4090": "GeForce RTX 4090",
    "4090": "GeForce RTX 4090",
    "NVIDIA GeForce RTX 4090": "GeForce RTX 4090",
    "RTX 4080": "GeForce RTX 4080",
    "NVIDIA GeForce RTX 4080 SUPER": "GeForce RTX 4080 SUPER",
    "rtx-3090-ti": "GeForce RTX 3090 Ti",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100 SXM5 80GB",
    "H100 SXM": "NVIDIA H100 SXM5 80GB",
    "H100 PCIe": "NVIDIA H100 PCIe 80GB",
    "NVIDIA A100-SXM4-40GB": "NVIDIA A100 40GB SXM4",
    "Tesla T4": "Tesla T4",
    "NVIDIA GB10": "NVIDIA GB10 (DGX Spark)",
    "MI300X": "Instinct MI300X",
    "AMD Instinct MI300X": "Instinct MI300X",
    "GB300": "NVIDIA GB300 (one GPU)",
    "a6000": "RTX A6000",
    "Apple M4 Max": "Apple M4 Max",
}
# Compute capability times ten (NVIDIA's table of CUDA GPUs).
CAPABILITY = {
    "t4": 75,
    "a100": 80,
    "rtx3090": 86,
    "a10g": 86,
    "l4": 89,
    "h100": 90,
    "h200": 90,
    "gh200": 90,
    "b200": 100,
    "b300": 103,
    "rtx5090": 120,
    "gb10": 121,
}
# All memory in GiB as torch or vLLM reported it in public logs.
REPORTED = {"T4": 14.741, "L4": 22.161, "A10G": 22.184, "RTX 4090": 23.635, "A100 80GB": 79.318, "H100 SXM": 79.18, "H200 SXM": 139.8, "B200": 178.35}


@pytest.mark.parametrize(("text", "name"), ONE.items())
def test_a_name_finds_one_card(text: str, name: str) -> None:
    assert [gpu.name for gpu in find_gpu(text).gpus] == [name]


@pytest.mark.parametrize(("text", "capability"), CAPABILITY.items())
def test_capability(text: str, capability: int) -> None:
    assert find_gpu(text).device().capability == capability


@pytest.mark.parametrize(("text", "gib"), REPORTED.items())
def test_memory_is_what_the_runtime_reports(text: str, gib: float) -> None:
    assert find_gpu(text).memory()[0] == pytest.approx(gib * GIB, abs=1)


def test_variants_are_told_apart_only_where_it_matters() -> None:
    assert find_gpu("a100").device().capability == 80
    with pytest.raises(KvcalcError, match="A100 40GB PCIe or NVIDIA A100 40GB SXM4 or NVIDIA A100 80GB PCIe") as refused:
        find_gpu("a100").memory()
    assert refused.value.code == ExitCode.UNANSWERABLE
    assert len(find_gpu("m3 max").gpus) == 2
    assert find_gpu("H100-80G").memory() == find_gpu("H100 80GB").memory()


def test_stated_memory_takes_the_place_of_the_catalogue() -> None:
    assert find_gpu("a100").device(20 * GIB).memory_sizes == (20 * GIB,)


def test_memory_that_nobody_reported_is_asked_for() -> None:
    with pytest.raises(KvcalcError, match="is not known") as refused:
        find_gpu("H100 NVL").memory()
    assert "--gpu-mem" in refused.value.hint


@pytest.mark.parametrize(("text", "near"), [("h1oo", "H100"), ("rtx 4900", "RTX 4090"), ("apple m9 max", "Max"), ("", "--gpu-mem"), ("x" * 5000, "--gpu-mem")])
def test_unknown_name_is_refused_with_near_ones(text: str, near: str) -> None:
    with pytest.raises(KvcalcError, match="not in the catalogue") as refused:
        find_gpu(text)
    assert near in refused.value.hint
    assert refused.value.code == ExitCode.UNANSWERABLE


def test_catalogue_is_whole() -> None:
    names = [gpu.name for gpu in gpus()]
    assert len(names) == len(set(names)) >= 80
    for gpu in gpus():
        assert gpu.source
        assert (gpu.memory_gib is None) == (gpu.memory_by is None)
        assert gpu in find_gpu(gpu.name).gpus
        if gpu.memory_bytes is not None and gpu.memory_gb is not None:
            assert 0.85 * gpu.memory_gb * 10**9 < gpu.memory_bytes < 1.075 * gpu.memory_gb * 10**9, gpu.name


# Dense rates in TFLOP/s and bandwidth in GB/s of the vendor's data sheets (sparse figures halved).
SHEETS = {
    "NVIDIA A100 80GB SXM4": (2039, 312, None),
    "NVIDIA H100 SXM5 80GB": (3350, 989, 1979),
    "NVIDIA L4": (300, 121, 242),
    "Instinct MI300X": (5300, 1307, 2615),
}


@pytest.mark.parametrize(("name", "sheet"), SHEETS.items())
def test_bandwidth_and_rates_are_those_of_the_data_sheet(name: str, sheet: tuple[int, int, int | None]) -> None:
    (row,) = [row for row in list_gpus(name).gpus if row.name == name]
    bandwidth, fp16, fp8 = sheet
    assert row.bandwidth_bytes_s == pytest.approx(bandwidth * 10**9, rel=0.01)
    assert row.fp16_flops == pytest.approx(fp16 * 10**12, rel=0.01)
    assert row.fp8_flops == (None if fp8 is None else pytest.approx(fp8 * 10**12, rel=0.01))


def test_list_is_filtered_by_name_alias_and_make() -> None:
    assert [row.name for row in list_gpus("hbm3e").gpus] == ["NVIDIA GH200 144GB HBM3e"]
    assert {row.vendor for row in list_gpus("apple").gpus} == {"Apple"}
    assert "Tesla T4" in [row.name for row in list_gpus(None).gpus]
    assert list_gpus("no such card").gpus == ()
