"""Caches on a device beside their predictions: what the allocator charges, how readings are judged, and real caches where torch is installed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.metadata import PackageNotFoundError
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvcalc.catalog import load_model
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.families import read_config
from kvcalc.verify import device as verify
from kvcalc.verify.allocator import block_bytes, blocks_bytes, charged, most_charged
from kvcalc.verify.device import Case, Expected, Measure, expect, judge, model_cases, small_cases, verify_device
from kvcalc.verify.forms import ALLOCATED, PEAK, REQUESTED, RESERVED, FromModel, Moment, Reading, Report, Request
from kvcalc.verify.shrink import shrink
from kvcalc.verify.worker import measure

MIB = 1 << 20
GPU_REPORT = Path(__file__).parent / "gpu_report.json"
LLAMA = {"model_type": "llama", "dtype": "bfloat16", "num_hidden_layers": 2, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
"""Two layers of Llama-3-8B: 8,192 bytes a token."""
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("transformers") is None, reason="torch and transformers are not installed: pip install 'kvcalc[verify]'"
)


def case(*, config: bool = True, **changes: Any) -> Case:
    fields = LLAMA | changes
    return Case("llama", read_config(fields), fields if config else None, 37)


def quiet(_text: str) -> None:
    """Progress that nobody reads."""


def report(*readings: Reading, **fields: Any) -> Report:
    return Report(torch="2.13.0", transformers="5.24.0", device_name="a device", readings=readings, **fields)


def reading(moment: Moment, *sizes: int, housekeeping: int = 0, requested: int | None = None, allocated: int | None = None) -> Reading:
    """Storages of so many bytes, `housekeeping` of 8 bytes each beside them, and what CUDA's allocator counts, where it does."""
    counters = {} if requested is None or allocated is None else {REQUESTED: requested, ALLOCATED: allocated}
    before = dict.fromkeys(counters, 1000)
    after = {name: 1000 + grown for name, grown in counters.items()} | ({PEAK: 9, RESERVED: 9} if counters else {})
    return Reading(moment=moment, storages=sizes, housekeeping=(8,) * housekeeping, elsewhere=0, before=before, after=after)


# Bytes asked for, one after another, and those charged without expandable segments, by torch's rules: blocks of 512; up to 1 MiB always split; from
# segments of 20 MiB below 10 MiB, of their own in steps of 2 MiB above; split where more than 1 MiB is left.
CHARGED = [
    ([0], 0),
    ([1], 512),
    ([512], 512),
    ([513], 1024),
    ([MIB], MIB),
    ([MIB + 1], MIB + 512),
    ([10 * MIB - 512], 10 * MIB - 512),
    ([10 * MIB + 1], 10 * MIB + 512),
    ([11 * MIB], 12 * MIB),
    ([11 * MIB - 512], 11 * MIB - 512),
    ([12 * MIB - 600], 12 * MIB),
    ([3 * MIB] * 6, 18 * MIB),
    ([3 * MIB] * 7, 21 * MIB),
    ([19 * MIB // 2, 19 * MIB // 2], 20 * MIB),
    ([32 * 1024] * 65, 65 * 32 * 1024),
]


@pytest.mark.parametrize(("sizes", "allocated"), CHARGED)
def test_what_the_allocator_charges(sizes: list[int], allocated: int) -> None:
    assert charged(sizes) == (sum(sizes), allocated)


@pytest.mark.parametrize(("sizes", "_allocated"), CHARGED)
def test_the_bounds_hold_in_any_order(sizes: list[int], _allocated: int) -> None:
    mixed = [*sizes, 5 * MIB, 700, 13 * MIB - 5, 20 * MIB]
    for order in (mixed, mixed[::-1], sorted(mixed)):
        assert blocks_bytes(order) <= charged(order).allocated <= most_charged(order)


def test_expandable_segments_charge_blocks_of_512() -> None:
    assert [block_bytes(size) for size in (0, 1, 512, 513, 11 * MIB)] == [0, 512, 512, 1024, 11 * MIB]
    assert blocks_bytes([8, 8, 327_680]) == 512 + 512 + 327_680


def test_a_model_is_expected_at_three_moments() -> None:
    (found,) = expect(case(), "cpu", None)
    assert dict(found.sizes) == {"prefill": 2 * 37 * 8192, "decode": 2 * 40 * 8192, "static": 2 * 64 * 8192}
    assert found.kinds == "full (gqa), bf16"


def test_a_windowed_model_is_expected_whole_right_after_the_prefill() -> None:
    (found,) = expect(case(model_type="mistral", sliding_window=16), "cpu", None)
    assert dict(found.sizes) == {"prefill": 2 * 37 * 8192, "decode": 2 * 16 * 8192, "static": 2 * 16 * 8192}


def test_caches_alone_are_expected_of_a_model_without_a_config() -> None:
    assert [each.request.what.kind for each in expect(case(config=False), "cpu", None)] == ["tensors", "update"]
    on_gpu = expect(case(config=False), "cuda", None)
    assert [(each.request.what.kind, each.request.expandable) for each in on_gpu] == [("tensors", True), ("tensors", False), ("update", True)]


@pytest.mark.parametrize("name", ["llama-3-8b", "gemma-3-1b", "deepseek-v3", "jamba-v0.1", "llama-3.2-11b-vision", "deepseek-v4-flash"])
def test_the_tensors_of_a_model_sum_up_to_its_prediction(name: str) -> None:
    first = model_cases(name, load_model(name).spec, device="cpu", max_bytes=None)[0]
    expected = expect(first, "cpu", None)[0]
    sizes = {"bf16": 2, "fp16": 2, "fp32": 4}
    assert expected.request.what.kind == "tensors"
    total = 0
    for tensors in expected.request.what.tensors:
        count = tensors.count * sizes[tensors.dtype]
        for length in tensors.shape:
            count *= length
        total += count
    assert total == expected.sizes["tensors"]


def test_a_model_takes_no_more_than_is_allowed() -> None:
    spec = load_model("llama-3-8b").spec
    by_bound = [model_cases("m", spec, device="cuda", max_bytes=most)[0].prefill for most in (None, 1 << 30, 128 << 20)]
    assert by_bound == [4096 - 27, 1024 - 27, 128 - 27]


@pytest.mark.parametrize("most", [1, 20, 27, 28])
def test_a_model_of_a_short_context_is_asked_for_at_least_one_token(most: int) -> None:
    spec = case(max_position_embeddings=most).spec
    assert spec.facts.max_context == most
    first = model_cases("m", spec, device="cpu", max_bytes=None)[0]
    assert first.prefill == 1
    asked = [each.request for each in expect(first, "cpu", None)]
    assert [(each.prefill, each.tokens, each.static_tokens) for each in asked] == [(1, 4, None), (1, 4, 28)]


def test_agreement_and_one_row_too_many() -> None:
    (expected,) = expect(case(), "cpu", None)
    right = [reading("prefill", *[37 * 4096] * 4), reading("decode", *[40 * 4096] * 4), reading("static", *[64 * 4096] * 4, housekeeping=2)]
    checks = judge(expected, report(*right))
    assert [check.ok for check in checks] == [True, True, True]
    longer = [*right[:1], reading("decode", 41 * 4096, *[40 * 4096] * 3), *right[2:]]
    checks = judge(expected, report(*longer))
    assert [check.ok for check in checks] == [True, False, True]
    assert checks[1].difference == 4096


def test_a_moment_that_was_not_read_does_not_agree() -> None:
    (expected,) = expect(case(), "cpu", None)
    checks = judge(expected, report(reading("prefill", *[37 * 4096] * 4)))
    assert [(check.ok, check.measured) for check in checks] == [(True, 2 * 37 * 8192), (False, None), (False, None)]


def gpu_expected(*, expandable: bool = True) -> Expected:
    (found,) = expect(case(), "cuda", None)
    return Expected(found.name, found.kinds, found.request.model_copy(update={"expandable": expandable}), {"static": 2 * 64 * 8192})


def test_counters_of_a_gpu() -> None:
    """Four storages of 262,144 bytes and two counters of 8 bytes, a block each."""
    exact = reading("static", *[262_144] * 4, housekeeping=2, requested=4 * 262_144 + 16, allocated=4 * 262_144 + 1024)
    checks = judge(gpu_expected(), report(exact, left=0))
    assert [(check.name.rpartition(", ")[2], check.measured, check.ok) for check in checks] == [
        ("static", 1_048_576, True),
        ("requested", 1_048_592, True),
        ("allocated", 1_049_600, True),
        ("freed", 0, True),
    ]


@pytest.mark.parametrize(("requested", "allocated", "left", "wrong"), [(16, 1024, 512, [3]), (17, 1024, 0, [1]), (16, 1536, 0, [2])])
def test_counters_that_are_off(requested: int, allocated: int, left: int, wrong: list[int]) -> None:
    off = reading("static", *[262_144] * 4, housekeeping=2, requested=4 * 262_144 + requested, allocated=4 * 262_144 + allocated)
    checks = judge(gpu_expected(), report(off, left=left))
    assert [index for index, check in enumerate(checks) if not check.ok] == wrong


@pytest.mark.parametrize(("allocated", "ok"), [(11 * MIB - 512, False), (11 * MIB, True), (12 * MIB, True), (12 * MIB + 512, False)])
def test_the_default_allocator_is_held_to_bounds(allocated: int, ok: bool) -> None:  # noqa: FBT001 (a column of the table)
    expected = gpu_expected(expandable=False)
    expected = expected._replace(sizes={"static": 11 * MIB})
    checks = judge(expected, report(reading("static", 11 * MIB, requested=11 * MIB, allocated=allocated)))
    assert checks[-1].ok is ok
    assert checks[-1].predicted == 12 * MIB


def answers(found: Report | KvcalcError) -> Measure:
    def run(_request: Request) -> Report:
        if isinstance(found, KvcalcError):
            raise found
        return found

    return run


def test_a_case_without_room_is_no_answer() -> None:
    with pytest.raises(KvcalcError, match="llama: model was not measured: it needs up to 3 GiB") as caught:
        verify_device("cuda", [case()], max_bytes=5, progress=quiet, measure=answers(report(refused="it needs up to 3 GiB")))
    assert caught.value.code is ExitCode.ENVIRONMENT
    assert "--max-mem" in caught.value.hint


def test_a_case_that_fails_does_not_agree() -> None:
    found = verify_device("cpu", [case()], max_bytes=None, progress=quiet, measure=answers(KvcalcError("the measurement failed: IndexError")))
    assert not found.ok
    assert [(check.measured, check.explanation) for check in found.checks] == [(None, "the measurement failed: IndexError")]


def test_a_missing_device_ends_it() -> None:
    with pytest.raises(KvcalcError, match="no GPU"):
        verify_device("cuda", [case()], max_bytes=None, progress=quiet, measure=answers(KvcalcError("no GPU", code=ExitCode.ENVIRONMENT)))


@pytest.mark.parametrize("device", ["gpu", "cuda:", "cuda:x", "mps", ""])
def test_unknown_devices(device: str) -> None:
    with pytest.raises(KvcalcError, match="unknown device") as caught:
        verify_device(device, [case()], max_bytes=None, progress=quiet)
    assert caught.value.code is ExitCode.USAGE


def installed(**versions: str) -> Callable[[str], str]:
    def version(name: str) -> str:
        if name not in versions:
            raise PackageNotFoundError(name)
        return versions[name]

    return version


@pytest.mark.parametrize(
    ("versions", "says"),
    [
        ({}, "torch is not installed"),
        ({"torch": "2.13.0+cpu"}, "transformers is not installed"),
        ({"torch": "2.9.1", "transformers": "5.24.0"}, "torch 2.9.1 is older than 2.11"),
        ({"torch": "2.11.0", "transformers": "4.57.6"}, "transformers 4.57.6 is older than 5.17"),
    ],
)
def test_what_to_install(monkeypatch: pytest.MonkeyPatch, versions: dict[str, str], says: str) -> None:
    monkeypatch.setattr(verify, "version", installed(**versions))
    with pytest.raises(KvcalcError, match=says) as caught:
        verify_device("cpu", [case()], max_bytes=None, progress=quiet)
    assert caught.value.code is ExitCode.ENVIRONMENT
    assert "'kvcalc[verify]'" in caught.value.hint


def test_versions_that_do(monkeypatch: pytest.MonkeyPatch) -> None:
    for torch, transformers in (("2.11.0", "5.17.0"), ("2.13rc1", "5.24.0.dev0"), ("3.0a1+cu130", "6rc1.0")):
        monkeypatch.setattr(verify, "version", installed(torch=torch, transformers=transformers))
        verify.require_libraries()


LARGE: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "torch_dtype": "bfloat16",
    "vocab_size": 262_144,
    "hidden_size": 2560,
    "intermediate_size": 10_240,
    "num_hidden_layers": 12,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "sliding_window": 1024,
    "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 2,
}
"""The shape of Gemma-3-4B, with a third of its layers: 4,096 bytes a token and layer."""


def test_a_config_made_small_keeps_one_of_each_layer() -> None:
    small = shrink(LARGE, "bfloat16")
    assert small is not None
    assert read_config(small).layers == read_config(LARGE).layers[:6]
    assert (small["hidden_size"], small["vocab_size"], small["intermediate_size"], small["num_hidden_layers"]) == (64, 128, 32, 6)


def test_a_width_that_caches_depend_on_stays() -> None:
    mamba = {"model_type": "mamba", "num_hidden_layers": 4, "hidden_size": 2560, "state_size": 16, "expand": 2, "intermediate_size": 5120, "vocab_size": 50_280}
    small = shrink(mamba, "float16")
    assert small is not None
    assert (small["intermediate_size"], small["vocab_size"], small["num_hidden_layers"], small["dtype"]) == (5120, 128, 2, "float16")


def test_a_hidden_size_under_two_names_stays() -> None:
    """LFM2's convolutions are as wide as the hidden size, which its published configs state as conv_dim too."""
    lfm2 = {"model_type": "lfm2", "hidden_size": 2048, "conv_dim": 2048, "num_hidden_layers": 3, "num_attention_heads": 32, "num_key_value_heads": 8}
    small = shrink({**lfm2, "conv_L_cache": 3, "layer_types": ["conv", "full_attention", "conv"]}, "bfloat16")
    assert small is not None
    assert small["hidden_size"] == 2048


def test_a_model_that_cannot_be_made_small_is_stood_in_for() -> None:
    fields = {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text", "num_hidden_layers": "many"}}
    assert shrink(fields, "bfloat16") is None
    names = [each.name for each in model_cases("m", load_model("gemma-3-1b").spec, device="cpu", max_bytes=None, config=fields)]
    assert names == ["m", "gemma-3-1b, window 16"]


def test_a_derived_case_that_fails_is_noted() -> None:
    fails = answers(KvcalcError("the measurement failed: ValueError"))
    with pytest.raises(KvcalcError, match="llama: model was not measured: the measurement failed"):
        verify_device("cpu", [case()._replace(derived=True)], max_bytes=None, progress=quiet, measure=fails)


def test_the_small_models_are_of_many_kinds() -> None:
    kinds = {each.kinds for case in small_cases() for each in expect(case, "cpu", None)}
    assert len(kinds) >= 15
    assert {kind.rpartition(", ")[2] for kind in kinds} == {"bf16", "fp16", "fp32"}


# Real caches


@needs_torch
@pytest.mark.filterwarnings("ignore")  # of torch and transformers, about their own code
def test_every_small_model_agrees_on_this_cpu() -> None:
    found = verify_device("cpu", small_cases(), max_bytes=None, progress=quiet, measure=measure)
    assert [check for check in found.checks if not check.ok] == []
    assert found.ok
    (combinations,) = (note.text for note in found.notes if note.code == "combinations")
    agreed, _, total = combinations.split()[:3]
    assert agreed == total
    assert int(agreed) >= 15


@needs_torch
@pytest.mark.filterwarnings("ignore")  # as above
def test_a_cache_with_a_row_too_many_does_not_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second step of the first layer keeps its token twice."""
    layer = import_module("transformers.cache_utils").DynamicLayer
    update = layer.update
    steps = iter((False, False, True))

    def twice(self: Any, keys: Any, values: Any, *args: Any, **kwargs: Any) -> Any:
        if next(steps, False):
            update(self, keys, values, *args, **kwargs)
        return update(self, keys, values, *args, **kwargs)

    monkeypatch.setattr(layer, "update", twice)
    found = verify_device("cpu", [case(config=False)], max_bytes=None, progress=quiet, measure=measure)
    assert not found.ok
    wrong = [check for check in found.checks if not check.ok]
    assert [(check.name, check.difference) for check in wrong] == [("llama: cache, decode", 2 * 2 * 8 * 128 * 2)]


@needs_torch
def test_a_case_in_a_process_of_its_own() -> None:
    tiny = case(vocab_size=128, hidden_size=64, intermediate_size=32)
    told: list[str] = []
    found = verify_device("cpu", [tiny], max_bytes=None, progress=told.append)
    assert found.ok
    assert told == ["llama: model"]
    assert [check.measured for check in found.checks] == [2 * 37 * 8192, 2 * 40 * 8192, 2 * 64 * 8192]


@needs_torch
def test_a_config_made_small_is_built() -> None:
    found = verify_device("cpu", model_cases("m", read_config(LARGE), device="cpu", max_bytes=None, config=LARGE)[1:], max_bytes=None, progress=quiet)
    assert [(check.name, check.measured) for check in found.checks] == [
        ("m made small: model, prefill", 6 * 2 * 37 * 4096),
        ("m made small: model, decode", 6 * 2 * 40 * 4096),
        ("m made small: model, static", 6 * 2 * 64 * 4096),
    ]
    assert found.ok


@needs_torch
def test_room_is_checked_before_anything_is_built() -> None:
    with pytest.raises(KvcalcError, match=r"and may take 1\.00 MiB"):
        verify_device("cpu", [case(config=False)], max_bytes=MIB, progress=quiet)


@needs_torch
def test_a_process_that_cannot_build_the_model_says_why() -> None:
    broken = case()._replace(config={"model_type": "no_such_type", "dtype": "bfloat16"})
    found = verify_device("cpu", [broken], max_bytes=None, progress=quiet)
    assert not found.ok
    assert "no_such_type" in found.checks[0].explanation


@needs_torch
def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(KvcalcError, match="there is no cuda:99 here") as caught:
        verify_device("cuda:99", [case()], max_bytes=None, progress=quiet)
    assert caught.value.code is ExitCode.ENVIRONMENT


@needs_torch
@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells which processes live")
def test_an_interrupt_ends_the_measuring_process() -> None:
    code = (
        "import kvcalc.verify.device as d\nfrom kvcalc.catalog import load_model\n"
        "cases = d.model_cases('m', load_model('llama-3-8b').spec, device='cpu', max_bytes=None)\n"
        "d.verify_device('cpu', cases, max_bytes=None, progress=lambda text: print(text, flush=True))"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        process.stdout.readline()
        worker = wait_for_worker(process.pid)
        time.sleep(0.2)  # until its parent waits for the answer
        os.kill(process.pid, signal.SIGINT)
        process.wait(timeout=30)
    assert not worker.exists()


def wait_for_worker(pid: int) -> Path:
    """The folder in /proc of the process that measures, once it runs its own program."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"kvcalc.verify.worker" in Path(f"/proc/{child}/cmdline").read_bytes():
                return Path(f"/proc/{child}")
        time.sleep(0.02)
    raise AssertionError("no measuring process was started")


# A GPU, and what was measured on one


def has_gpu() -> bool:
    if find_spec("torch") is None or find_spec("transformers") is None:
        return False
    return bool(import_module("torch").cuda.is_available())


def gpu_cases() -> list[Case]:
    """All small models, and two whole geometries."""
    whole = [model_cases(name, load_model(name).spec, device="cuda", max_bytes=None)[0] for name in ("llama-3-8b", "gemma-3-1b")]
    return [*small_cases(), *whole]


@pytest.mark.gpu
@pytest.mark.skipif(not has_gpu(), reason="no CUDA GPU, or no torch and transformers, here")
def test_every_case_agrees_on_this_gpu() -> None:
    """Writes gpu_report.json, the counters that the next test judges anew wherever it runs."""
    kept: list[dict[str, Any]] = []

    def recording(request: Request) -> Report:
        found = verify.in_own_process(request)
        kept.append({"request": request.model_dump(mode="json"), "report": found.model_dump(mode="json")})
        return found

    found = verify_device("cuda", gpu_cases(), max_bytes=None, progress=quiet, measure=recording)
    assert [check for check in found.checks if not check.ok] == []
    GPU_REPORT.write_text(json.dumps(kept))


@pytest.mark.skipif(not GPU_REPORT.is_file(), reason="nothing was measured on a GPU yet: pytest -m gpu writes gpu_report.json on one")
def test_predictions_agree_with_what_a_gpu_counted() -> None:
    """What was measured is found by what was asked for, but for sizes that are predictions themselves."""
    kept = {asked(Request.model_validate_json(json.dumps(each["request"]))): each["report"] for each in json.loads(GPU_REPORT.read_text())}

    def replayed(request: Request) -> Report:
        return Report.model_validate_json(json.dumps(kept[asked(request)]))

    found = verify_device("cuda", gpu_cases(), max_bytes=None, progress=quiet, measure=replayed)
    assert [check for check in found.checks if not check.ok] == []
    assert len({kind for case in gpu_cases() for kind in (each.kinds for each in expect(case, "cuda", None))}) >= 10


def asked(request: Request) -> str:
    return request.model_dump_json(exclude={"cache_bytes", "max_bytes"})


def test_requests_and_reports_travel_as_json() -> None:
    (expected,) = expect(case(), "cpu", 7)
    assert isinstance(expected.request.what, FromModel)
    assert Request.model_validate_json(expected.request.model_dump_json()) == expected.request
    read = report(reading("static", 4096, housekeeping=1, requested=1, allocated=2), left=0)
    assert Report.model_validate_json(read.model_dump_json()) == read
