"""A process that builds the caches of one case and reports what they take: a Request on stdin, a Report on stdout. Run as `python -m kvcalc.verify.worker`.

How to measure on CUDA: expandable segments, a warm-up with the same shapes (libraries keep workspaces from their first use), no other stream.
"""

import gc
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import Any, Final, NamedTuple

from kvcalc.errors import ExitCode, printable
from kvcalc.units import BINARY_UNITS, format_bytes
from kvcalc.verify.forms import COUNTERS, DTYPES, REQUESTED, Bare, ByUpdate, Filled, FromModel, Moment, Reading, Report, Request

CACHE_NAMES: Final = ("cache", "past_key_values", "cache_params")
"""What models call their cache: transformers 5.24 and later, before, and those of Mamba before."""
WORKSPACE: Final = 128 * BINARY_UNITS["MiB"]
"""Room for what is not counted out: cuBLAS workspaces (32 MiB on Hopper, torch 2.13.0 aten/src/ATen/cuda/CUDABlas.cpp) and a step's own tensors."""
COPIES: Final = 3
"""Of the largest cache: itself, a layer's old tensors beside the new, and the input that fills it."""

Observe = Callable[[Moment, object], None]
Play = Callable[[Observe], None]


class NoRoomError(Exception):
    """The case would take more memory than it may."""


class NoDeviceError(Exception):
    """torch cannot use the device."""


def measure(request: Request) -> Report:
    """The caches of one case as they are at each moment. What cannot be measured here is a report that says why."""
    torch: Any = import_module("torch")  # it is optional, and has no types where it is not installed
    meter = _Meter(torch, torch.device(request.device))
    report = Report(
        torch=torch.__version__,
        transformers=import_module("transformers").__version__,
        device_name=meter.name,
    )
    meter.limit(request)
    try:
        with torch.inference_mode():
            play = _player(torch, request, meter)
            readings, left = meter.watch(play, plays=3 if meter.cuda and not isinstance(request.what, Bare) else 1)
    except NoRoomError as error:
        return report.model_copy(update={"refused": str(error)})
    return report.model_copy(update={"readings": readings, "left": left})


class _Meter:
    """Counters of one device."""

    def __init__(self, torch: Any, device: Any) -> None:  # noqa: ANN401 (torch's own)
        self.torch = torch
        self.device = device
        self.cuda = device.type == "cuda"
        if self.cuda:
            _require_gpu(torch, device)
            torch.cuda.set_device(device)
        self.name = torch.cuda.get_device_name(device) if self.cuda else "CPU"
        self.max_bytes: int | None = None

    def limit(self, request: Request) -> None:
        """Holds torch to `max_bytes`, half of what is free where none is stated."""
        free = _free_bytes(self.torch, self.device)
        self.max_bytes = request.max_bytes if request.max_bytes is not None else None if free is None else free // 2
        if self.cuda and free is not None and self.max_bytes is not None:
            self.max_bytes = min(self.max_bytes, free)
            total = self.torch.cuda.mem_get_info(self.device)[1]
            self.torch.cuda.set_per_process_memory_fraction(min(1.0, self.max_bytes / total), self.device)

    def require(self, size_bytes: int) -> None:
        """Raises NoRoomError where `size_bytes` are more than may be taken."""
        if self.max_bytes is not None and size_bytes > self.max_bytes:
            raise NoRoomError(f"it needs up to {format_bytes(size_bytes)}, and may take {format_bytes(self.max_bytes)}")

    def watch(self, play: Play, plays: int) -> tuple[tuple[Reading, ...], int | None]:
        """The readings of the last of several plays, and the bytes that were left after it. Nothing needs to be warm on a CPU, nor for bare tensors, which
        without expandable segments would find the blocks of an earlier play.
        """
        readings: list[Reading] = []
        for _ in range(plays):
            readings.clear()
            before = self._counters()
            play(partial(self._read, readings, before))
        after = self._counters()
        return tuple(readings), after[REQUESTED] - before[REQUESTED] if self.cuda else None

    def _counters(self) -> dict[str, int]:
        gc.collect()
        if not self.cuda:
            return {}
        self.torch.cuda.synchronize(self.device)
        stats = self.torch.cuda.memory_stats(self.device)
        self.torch.cuda.reset_peak_memory_stats(self.device)
        return {name: stats.get(name, 0) for name in COUNTERS}

    def _read(self, readings: list[Reading], before: Mapping[str, int], moment: Moment, cache: object) -> None:
        after = self._counters()
        found = {(tensor.device, tensor.untyped_storage().data_ptr()): tensor for tensor in _tensors(self.torch, cache, set())}
        here = [tensor for tensor in found.values() if tensor.device.type == self.device.type]
        reading = Reading(
            moment=moment,
            storages=tuple(tensor.untyped_storage().nbytes() for tensor in here if tensor.dtype.is_floating_point),
            housekeeping=tuple(tensor.untyped_storage().nbytes() for tensor in here if not tensor.dtype.is_floating_point),
            elsewhere=sum(
                tensor.untyped_storage().nbytes() for tensor in found.values() if tensor.device.type != self.device.type and tensor.dtype.is_floating_point
            ),
            before=dict(before),
            after=after,
        )
        readings.append(reading)


def _tensors(torch: Any, held: object, seen: set[int]) -> Iterator[Any]:  # noqa: ANN401 (torch's own)
    """All tensors that an object of transformers holds, through its attributes and containers; empty ones take nothing."""
    if id(held) in seen:
        return
    seen.add(id(held))
    if isinstance(held, torch.Tensor):
        if held.untyped_storage().nbytes():
            yield held
        return
    parts: list[object] = []
    if isinstance(held, Mapping):
        parts = list(held.values())
    elif isinstance(held, (list, tuple, set)):
        parts = list(held)
    elif type(held).__module__.split(".")[0] == "transformers" and not isinstance(held, torch.nn.Module):
        parts = list(vars(held).values())
    for part in parts:
        yield from _tensors(torch, part, seen)


def _require_gpu(torch: Any, device: Any) -> None:  # noqa: ANN401 (torch's own)
    """Raises NoDeviceError where torch has no such GPU."""
    if not torch.cuda.is_available():
        reason = "this build of torch has no CUDA" if torch.version.cuda is None else "torch sees no CUDA GPU"
        raise NoDeviceError(f"there is no {device} here: {reason}")
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise NoDeviceError(f"there is no {device} here: torch sees {torch.cuda.device_count()} GPUs, counted from 0")


def _free_bytes(torch: Any, device: Any) -> int | None:  # noqa: ANN401 (torch's own)
    """Memory that is free on the device now; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # Windows has no sysconf, and macOS does not know the name
        return None


def _player(torch: Any, request: Request, meter: _Meter) -> Play:  # noqa: ANN401 (torch's own)
    match request.what:
        case FromModel() as what:
            return _model_player(torch, request, what, meter)
        case ByUpdate() as what:
            meter.require(COPIES * request.cache_bytes + WORKSPACE)
            return _update_player(torch, request, what)
        case Bare() as what:
            meter.require(request.cache_bytes + WORKSPACE)
            return _tensor_player(torch, request, what)


def _tensor_player(torch: Any, request: Request, what: Bare) -> Play:  # noqa: ANN401 (torch's own)
    def play(observe: Observe) -> None:
        observe(
            "tensors",
            [torch.empty(each.shape, dtype=getattr(torch, DTYPES[each.dtype]), device=request.device) for each in what.tensors for _ in range(each.count)],
        )

    return play


def _update_player(torch: Any, request: Request, what: ByUpdate) -> Play:  # noqa: ANN401 (torch's own)
    classes: Any = import_module("transformers.cache_utils")
    dtype = getattr(torch, DTYPES[request.dtype])

    def rows(heads_and_width: tuple[int, int], count: int) -> Any:  # noqa: ANN401 (torch's own)
        heads, width = heads_and_width
        return torch.empty((request.batch, heads, count, width), dtype=dtype, device=request.device)

    def fill(cache: Any, count: int) -> None:  # noqa: ANN401 (transformers' own)
        for index, layer in enumerate(what.layers):
            cache.update(rows(layer.k, count), rows(layer.v, count), index)

    def dynamic(layer: Filled) -> object:
        return classes.DynamicLayer() if layer.window is None else classes.DynamicSlidingWindowLayer(sliding_window=layer.window)

    def static(layer: Filled, most: int) -> object:
        if layer.window is None:
            return classes.StaticLayer(max_cache_len=most)
        return classes.StaticSlidingWindowLayer(max_cache_len=most, sliding_window=layer.window)

    def play(observe: Observe) -> None:
        cache = classes.Cache(layers=[dynamic(layer) for layer in what.layers])
        fill(cache, request.prefill)
        observe("prefill", cache)
        for _ in range(request.tokens - request.prefill):
            fill(cache, 1)
        observe("decode", cache)
        if request.static_tokens is not None:
            cache = classes.Cache(layers=[static(layer, request.static_tokens) for layer in what.layers])
            fill(cache, request.prefill)
            fill(cache, 1)
            observe("static", cache)

    return play


class _Built(NamedTuple):
    """A model, its inputs at the first step, and those that every step has."""

    model: Any
    first: dict[str, Any]
    always: dict[str, Any]
    ids: str


def _model_player(torch: Any, request: Request, what: FromModel, meter: _Meter) -> Play:  # noqa: ANN401 (torch's own)
    classes: Any = import_module("transformers.cache_utils")
    built = _build(torch, request, what, meter)
    steps = request.tokens - request.prefill
    prompt = torch.randint(3, 100, (request.batch, request.prefill), device=request.device)
    token = torch.randint(3, 100, (request.batch, 1), device=request.device)

    def forward(ids: Any, first: Mapping[str, Any], **cache: object) -> Any:  # noqa: ANN401 (torch's own)
        output = built.model(**{built.ids: ids}, **first, **built.always, **cache, use_cache=True)
        return _cache_of(output)

    def play(observe: Observe) -> None:
        keyword = _cache_keyword(built.model)
        cache = forward(prompt, built.first)
        observe("prefill", cache)
        for _ in range(steps):
            cache = forward(token, {}, **{keyword: cache})
        observe("decode", cache)
        del cache
        if request.static_tokens is not None:
            cache = classes.StaticCache(config=built.model.config, max_cache_len=request.static_tokens)
            if built.model.config.is_encoder_decoder:
                cache = classes.EncoderDecoderCache(cache, classes.StaticCache(config=built.model.config, max_cache_len=what.encoder_tokens))
            cache = forward(prompt, built.first, **{keyword: cache})
            observe("static", cache)

    return play


def _cache_of(output: Any) -> Any:  # noqa: ANN401 (transformers' own)
    """The cache that a forward pass returns, under the names that models have for it."""
    return next(output[name] for name in CACHE_NAMES if output.get(name) is not None)


def _cache_keyword(model: Any) -> str:  # noqa: ANN401 (transformers' own)
    """The name under which a model takes its cache."""
    names = inspect.signature(model.forward).parameters
    return next(name for name in CACHE_NAMES if name in names)


def _build(torch: Any, request: Request, what: FromModel, meter: _Meter) -> _Built:  # noqa: ANN401 (torch's own)
    transformers: Any = import_module("transformers")
    fields = dict(what.config)
    config = transformers.AutoConfig.for_model(fields.pop("model_type"), **fields)
    dtype = getattr(torch, DTYPES[request.dtype])
    named = (what.config.get("architectures") or [None])[0]

    def make() -> Any:  # noqa: ANN401 (transformers' own)
        return getattr(transformers, named)(config) if named else transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)

    with torch.device("meta"):
        shapes = make()
        weights = sum(tensor.numel() for tensor in (*shapes.parameters(), *shapes.buffers())) * 4  # some stay in fp32
    meter.require(weights + COPIES * request.cache_bytes + WORKSPACE)
    with torch.device(request.device):
        model = make().to(dtype).eval() if named else make().eval()
    return _Built(model, *_inputs(torch, request, what, model, dtype))


def _inputs(torch: Any, request: Request, what: FromModel, model: Any, dtype: Any) -> tuple[dict[str, Any], dict[str, Any], str]:  # noqa: ANN401 (torch's own)
    """What the decoder reads beside its own tokens, made before anything is measured: the encoder's output, or an image's."""
    config = model.config
    if config.is_encoder_decoder:
        encode = model.get_encoder()
        if config.model_type == "whisper":  # two frames of sound make a position
            sound = torch.zeros((request.batch, config.num_mel_bins, 2 * what.encoder_tokens), dtype=dtype, device=request.device)
            encoded = encode(sound)
        else:
            encoded = encode(torch.randint(3, 100, (request.batch, what.encoder_tokens), device=request.device))
        return {}, {"encoder_outputs": encoded}, "decoder_input_ids"
    if what.encoder_tokens:
        states = torch.zeros((request.batch, what.encoder_tokens, config.hidden_size), dtype=dtype, device=request.device)
        return {"cross_attention_states": states}, {}, "input_ids"
    return {}, {}, "input_ids"


def main() -> int:
    """Answers one request. Whatever libraries print goes to stderr, so that stdout is the report alone."""
    answer = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = Request.model_validate_json(sys.stdin.read())
    try:
        report = measure(request)
    except NoDeviceError as error:
        sys.stderr.write(printable(str(error)) + "\n")
        return ExitCode.ENVIRONMENT
    except Exception as error:  # noqa: BLE001 (the process is made for one case: whatever a library raises is its answer)
        sys.stderr.write(printable(f"{type(error).__name__}: {error}") + "\n")
        return ExitCode.NO
    answer.write(report.model_dump_json())
    answer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
