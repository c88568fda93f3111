"""What `import kvcalc` offers: the commands as functions.

Keywords are named as the options are (`--kv-mem` is `kv_mem`), and messages name the options; `--as` is `as_model_type`, `--ep` is `expert_parallel`. Each
takes the text that the command line takes, or the value itself: whole numbers of tokens and bytes, True and False. One that is left out, or None, is as if
the option were not given.
"""

from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from difflib import get_close_matches
from functools import cache
from operator import index
from os import PathLike, fspath
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, NamedTuple, TypedDict, Unpack, get_type_hints

from kvcalc.asking.budget import HIGHEST_LORA_RANK, LORA_RANK, MOST_LORAS
from kvcalc.asking.compare import compared
from kvcalc.asking.deployment import wrong
from kvcalc.asking.estimate import estimated
from kvcalc.asking.fit import asks_every_preset, check_scope, fit_question, fitted_presets
from kvcalc.asking.speed import timed
from kvcalc.errors import ExitCode, KvcalcError
from kvcalc.packing import AUTO, parse_kv_dtype, parse_state_dtype
from kvcalc.units import MAX_TOKENS, parse_bytes, parse_count, parse_duration, parse_part, parse_ratio, parse_switch, parse_tflops, shorten

if TYPE_CHECKING:
    from kvcalc.results.compare import Comparison
    from kvcalc.results.estimate import Estimate
    from kvcalc.results.fit import Fit, Fits
    from kvcalc.results.speed import Speed

Source = str | PathLike[str] | Mapping[str, Any]
"""A model: a preset, a Hub id, or a path, as `--model` takes them; a path object, which is never a preset; or what a config.json holds."""
Count = int | str
"""A whole number of at least 1: 8192, "32k" (32,000), "32K" (32,768)."""
Size = int | str
"""Bytes, or "80GiB", "80GB"."""
Number = Decimal | float | str
Whole = int | str


class _Taken(NamedTuple):
    """How a value is read, and what it is where the option is not given."""

    read: Callable[[Any], Any]
    default: Any = None


def _words(parse: Callable[[str], Any]) -> Callable[[Any], Any]:
    """Of an option that takes words."""

    def read(value: object) -> object:
        if not isinstance(value, str):
            raise wrong(f"{shorten(repr(value))} is no text")
        return parse(value)

    return read


def _whole(parse: Callable[[str], int], unit: str = "") -> Callable[[Any], int]:
    """Of an option that takes a whole number, or text."""

    def read(value: object) -> int:
        if isinstance(value, str):
            return parse(value)
        try:
            number = index(value)  # type: ignore[arg-type]  # what is no whole number is refused here
        except TypeError:
            number = None
        if number is None or isinstance(value, bool):
            raise wrong(f"{shorten(repr(value))} is neither a whole number nor text")
        if abs(number) >= 10**30:
            raise wrong("a whole number of more than 30 digits is beyond all that is taken")
        return parse(f"{number}{unit}")

    return read


def _between(least: int, most: int) -> Callable[[str], int]:
    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            raise wrong(f"{shorten(text)!r} is not a whole number") from None
        if not least <= number <= most:
            raise wrong(f"{shorten(text)} is not in the range {least} to {most}")
        return number

    return parse


def _number(parse: Callable[[str], Decimal]) -> Callable[[Any], Decimal]:
    def read(value: object) -> Decimal:
        if isinstance(value, bool) or not isinstance(value, str | int | float | Decimal):
            raise wrong(f"{shorten(repr(value))} is neither a number nor text")
        return parse(str(value))

    return read


def _switched(value: object) -> bool:
    if not isinstance(value, bool):
        raise wrong(f"{shorten(repr(value))} is neither True nor False")
    return value


def _source(value: object) -> str | Mapping[str, Any]:
    if isinstance(value, str | Mapping):
        return value
    try:
        path = fspath(value)  # type: ignore[call-overload]  # what is no path is refused here
    except TypeError:
        path = None
    if not isinstance(path, str):
        raise wrong(f"{shorten(repr(value))} is neither the name of a model, nor a path, nor a config")
    return path if path.startswith(("/", "~", "./", "../")) else f"./{path}"


def _sources(value: object) -> list[str | Mapping[str, Any]]:
    if isinstance(value, str) or not isinstance(value, Sequence) or not value:
        raise wrong("models: compare is about a list of models")
    return [_read("models", each, _SOURCE) for each in value]


def _lengths(value: object) -> object:
    """A file is read when it is asked about; lengths that are at hand are counted now."""
    if isinstance(value, str | PathLike):
        return fspath(value)
    if not isinstance(value, Sequence) or isinstance(value, bytes):
        raise wrong(f"{shorten(repr(value))} is neither the path of a file nor a sequence of lengths")
    from kvcalc.traces import lengths_of

    return lengths_of(value)


_TEXT: Final = _Taken(_words(str))
_COUNT: Final = _Taken(_whole(parse_count))
_ONE: Final = _Taken(_whole(parse_count), 1)
_SIZE: Final = _Taken(_whole(parse_bytes, "B"))
_PART: Final = _Taken(_number(parse_part))
_RATIO: Final = _Taken(_number(parse_ratio))
_TIME: Final = _Taken(_words(parse_duration))
_OFF: Final = _Taken(_switched, default=False)
_SOURCE: Final = _Taken(_source)


class ShapeOptions(TypedDict, total=False):
    """Which model it is, beside its name: `revision` of a Hub id; `as_model_type` to read an unknown one as; or, in place of a name, `layers`, `kv_heads` and
    `head_dim`.
    """

    as_model_type: Annotated[str | None, _TEXT]
    layers: Annotated[Count | None, _COUNT]
    kv_heads: Annotated[Count | None, _COUNT]
    head_dim: Annotated[Count | None, _COUNT]
    revision: Annotated[str | None, _TEXT]


class DeploymentOptions(TypedDict, total=False):
    """How it is served: the KV dtype, the GPU by name, over how many GPUs heads (`tp`), layers (`pp`), requests (`dp`) and tokens (`dcp`) are divided, and the
    switches that engines have.
    """

    kv_dtype: Annotated[str | None, _Taken(_words(parse_kv_dtype), AUTO)]
    gpu: Annotated[str | None, _TEXT]
    tp: Annotated[Count | None, _ONE]
    pp: Annotated[Count | None, _ONE]
    dp: Annotated[Count | None, _ONE]
    dcp: Annotated[Count | None, _ONE]
    max_batched_tokens: Annotated[Count | None, _COUNT]
    max_seqs: Annotated[Count | None, _COUNT]
    block_size: Annotated[Count | None, _COUNT]
    mamba_ssm_cache_dtype: Annotated[str | None, _Taken(_words(parse_state_dtype))]
    no_prefix_caching: Annotated[bool | None, _OFF]
    disable_hybrid_kv_cache_manager: Annotated[bool | None, _OFF]
    no_async_scheduling: Annotated[bool | None, _OFF]
    enforce_eager: Annotated[bool | None, _OFF]
    encoder_tokens: Annotated[Whole | None, _Taken(_whole(_between(0, MAX_TOKENS)))]
    mtp: Annotated[Count | None, _COUNT]
    cache: Annotated[str | None, _TEXT]
    flash_attn: Annotated[Literal["on", "off"] | None, _Taken(_words(parse_switch))]
    swa_full: Annotated[bool | None, _OFF]
    kv_unified: Annotated[bool | None, _Taken(_switched)]
    ubatch_size: Annotated[Count | None, _COUNT]
    n_gpu_layers: Annotated[Count | None, _COUNT]
    page_size: Annotated[Count | None, _COUNT]
    swa_full_tokens_ratio: Annotated[Number | None, _PART]
    mamba_full_memory_ratio: Annotated[Number | None, _RATIO]
    enable_dp_attention: Annotated[bool | None, _OFF]


class BudgetOptions(TypedDict, total=False):
    """The memory of one GPU (`gpu_mem`), or what of it is for the cache (`kv_mem`); what the engine takes of it, how the weights are stored, what is kept back
    (`reserve`); GPUs in all; experts, adapters and towers.
    """

    gpu_mem: Annotated[Size | None, _SIZE]
    kv_mem: Annotated[Size | None, _SIZE]
    utilization: Annotated[Number | None, _PART]
    mem_fraction_static: Annotated[Number | None, _PART]
    quantization: Annotated[str | None, _TEXT]
    reserve: Annotated[Size | None, _Taken(_whole(parse_bytes, "B"), 0)]
    gpus: Annotated[Count | None, _COUNT]
    expert_parallel: Annotated[bool | None, _OFF]
    max_loras: Annotated[Whole | None, _Taken(_whole(_between(0, MOST_LORAS)), 0)]
    max_lora_rank: Annotated[Whole | None, _Taken(_whole(_between(1, HIGHEST_LORA_RANK)), LORA_RANK)]
    language_model_only: Annotated[bool | None, _OFF]


class MachineOptions(TypedDict, total=False):
    """What a GPU moves (`bandwidth`, bytes a second), computes (`tflops`, dense and in 16 bits) and sends to another (`link`, bytes a second), where the
    catalogue does not know or means another.
    """

    bandwidth: Annotated[Size | None, _SIZE]
    tflops: Annotated[Number | None, _Taken(_number(parse_tflops))]
    link: Annotated[Size | None, _SIZE]


class EstimateOptions(ShapeOptions, DeploymentOptions, total=False):
    """What `estimate` takes."""


class PresetsOptions(DeploymentOptions, BudgetOptions, MachineOptions, total=False):
    """What `fit_presets` takes: also tokens that all requests begin with (`shared_prefix`), their `lengths` (a file, or numbers of tokens), and within what
    time answers are wanted (`ttft`, `tpot`: "2s", "50ms") of `output` tokens.
    """

    shared_prefix: Annotated[Count | None, _COUNT]
    lengths: Annotated[str | PathLike[str] | Sequence[int] | None, _Taken(_lengths)]
    ttft: Annotated[str | None, _TIME]
    tpot: Annotated[str | None, _TIME]
    output: Annotated[Count | None, _COUNT]


class FitOptions(PresetsOptions, ShapeOptions, total=False):
    """What `fit` takes: also the size of the weights, of the checkpoint or on one GPU, a `draft` model with the tokens that it proposes, and `min_gpus`: the
    smallest number of GPUs is looked for.
    """

    weights: Annotated[Size | None, _SIZE]
    weights_per_gpu: Annotated[Size | None, _SIZE]
    min_gpus: Annotated[bool | None, _OFF]
    draft: Annotated[Source | None, _SOURCE]
    draft_tokens: Annotated[Count | None, _COUNT]


class SpeedOptions(ShapeOptions, DeploymentOptions, BudgetOptions, MachineOptions, total=False):
    """What `speed` takes: also how many tokens of the context are generated (`output`), and whether generation without a cache is shown beside it."""

    output: Annotated[Whole | None, _Taken(_whole(_between(0, MAX_TOKENS)), 0)]
    no_cache: Annotated[bool | None, _OFF]


class CompareOptions(DeploymentOptions, BudgetOptions, total=False):
    """What `compare` takes."""


_SHARED: Final = {"model": _SOURCE, "context": _COUNT, "batch": _ONE, "engine": _TEXT, "name_filter": _TEXT}
_NOT_OF_PYTHON: Final = {"plot": False, "save": None}


def estimate(
    model: Source | None = None, *, context: Count | None = None, batch: Count = 1, engine: str = "ideal", **options: Unpack[EstimateOptions]
) -> "Estimate":
    """KV-cache bytes of `batch` requests of `context` tokens (the model's own maximum if left out). Raises KvcalcError where that cannot be answered, TypeError
    for a keyword that there is not.
    """
    return estimated(_typed(EstimateOptions, options, "ideal", model=model, context=context, batch=batch, engine=engine))


def fit(model: Source | None = None, *, context: Count | None = None, batch: Count = 1, engine: str = "vllm", **options: Unpack[FitOptions]) -> "Fit":
    """What fits: requests of `context` tokens, the longest single request, what would make `batch` of them fit. Raises as `estimate` does."""
    from kvcalc.advice import advised

    typed = _typed(FitOptions, options, "vllm", model=model, context=context, batch=batch, engine=engine)
    if asks_every_preset(typed):
        raise KvcalcError("fit is about one model: name it", hint="fit_presets asks about all presets", code=ExitCode.USAGE)
    check_scope({**typed, "name_filter": None, **_NOT_OF_PYTHON})
    return advised(fit_question(typed))


def fit_presets(
    *, name_filter: str | None = None, context: Count | None = None, batch: Count = 1, engine: str = "vllm", **options: Unpack[PresetsOptions]
) -> "Fits":
    """The same of every preset whose name contains `name_filter`, those that fit first. Raises as `estimate` does."""
    typed = _typed(PresetsOptions, options, "vllm", name_filter=name_filter, context=context, batch=batch, engine=engine)
    of_one = dict.fromkeys(FitOptions.__annotations__)
    return fitted_presets({**of_one, "model": None, **typed})


def speed(model: Source | None = None, *, context: Count | None = None, batch: Count = 1, engine: str = "vllm", **options: Unpack[SpeedOptions]) -> "Speed":
    """Prefill and decode: time to first token, time a token, which of compute and bandwidth binds. Raises as `estimate` does."""
    return timed(_typed(SpeedOptions, options, "vllm", model=model, context=context, batch=batch, engine=engine))


def compare(
    models: Sequence[Source], *, context: Count | None = None, batch: Count = 1, engine: str | None = None, **options: Unpack[CompareOptions]
) -> "Comparison":
    """Models or engines side by side: `engine` is one, several with commas between, or "all". Raises as `estimate` does."""
    return compared(_sources(models), _typed(CompareOptions, options, None, context=context, batch=batch, engine=engine))


@cache
def _taken(kind: type) -> dict[str, _Taken]:
    """The keywords of a function."""
    return {name: hint.__metadata__[0] for name, hint in get_type_hints(kind, include_extras=True).items()}


def _typed(kind: type, options: Mapping[str, Any], default_engine: str | None, **stated: object) -> dict[str, Any]:
    """What the command line makes of the same options. Raises KvcalcError (usage) that names the keyword, TypeError for one that there is not."""
    taken = _taken(kind)
    for name in options:
        if name not in taken:
            close = get_close_matches(name, (*taken, *stated), n=1)
            raise TypeError(f"there is no keyword {name!r}" + (f": did you mean {close[0]!r}?" if close else ""))
    return {
        **{name: _read(name, options.get(name), each) for name, each in taken.items()},
        **{
            name: _read(name, value, _SHARED[name])
            for name, value in {**stated, "engine": default_engine if stated["engine"] is None else stated["engine"]}.items()
        },
    }


def _read(name: str, value: object, taken: _Taken) -> Any:  # noqa: ANN401 (each option has a type of its own)
    if value is None:
        return taken.default
    try:
        return taken.read(value)
    except KvcalcError as error:
        raise KvcalcError(f"{name}: {error.message}", hint=error.hint, code=error.code) from None
