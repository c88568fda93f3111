"""A model and how it is deployed, from what is asked by the names of options."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from kvcalc.errors import ExitCode, KvcalcError

if TYPE_CHECKING:
    from kvcalc.catalog import Model as FoundModel
    from kvcalc.engines.base import Device, Options
    from kvcalc.gpus import GpuMatch

Typed = Mapping[str, Any]
"""What is asked: a value for the name of each option."""

Source = str | Mapping[str, Any]
"""A model: its name, or where it is, as `load_model` takes it; or what its config.json holds."""
CONTEXT_WITHOUT_MODEL: Final = 8192
"""The context of a question that names no model, so that the answer is about a round number."""
OWNERS: Final[Mapping[str, tuple[str, ...]]] = {
    "cache": ("transformers",),
    "flash_attn": ("llama.cpp", "ollama"),
    "swa_full": ("llama.cpp",),
    "kv_unified": ("llama.cpp",),
    "ubatch_size": ("llama.cpp",),
    "n_gpu_layers": ("llama.cpp", "ollama"),
    "page_size": ("sglang",),
    "swa_full_tokens_ratio": ("sglang",),
    "mamba_full_memory_ratio": ("sglang",),
    "enable_dp_attention": ("sglang", "trtllm"),
    "mem_fraction_static": ("sglang",),
}
"""The engines of an option that is not everyone's."""


def wrong(message: str) -> KvcalcError:
    """What is raised for options that contradict each other, or have nothing to say."""
    return KvcalcError(message, code=ExitCode.USAGE)


def check_owned(typed: Typed, engines: tuple[str, ...]) -> None:
    """Raises KvcalcError (usage) for an option of engines that are not asked about."""
    for name, owners in OWNERS.items():
        if typed.get(name) not in (None, False) and not set(owners) & set(engines):
            raise wrong(f"--{name.replace('_', '-')} is an option of {' and '.join(owners)}, not of {', '.join(engines)}")


def check_together(why: str, one: int | None, others: Mapping[str, object]) -> None:
    """Raises KvcalcError (usage) for options that have nothing to say beside another."""
    given = [flag for flag, value in others.items() if value is not None]
    if one is not None and given:
        raise wrong(f"{why}: {given[0]} has nothing to say beside it")


def find_model(typed: Typed, context: int | None, engine: str, total_bytes: int | None) -> "tuple[FoundModel, int]":
    """The model that is asked about, and the length of its requests, on an engine and GPUs of so much memory together."""
    return (found := model_typed(typed)), length_for(found, context_typed(typed, context), engine, total_bytes)


def context_typed(typed: Typed, context: int | None) -> int | None:
    """The length that is stated, and a round number for a model of which only three numbers are."""
    return CONTEXT_WITHOUT_MODEL if context is None and typed["model"] is None else context


def model_typed(typed: Typed) -> "FoundModel":
    """The model that is asked about."""
    model, shape = typed["model"], (typed["layers"], typed["kv_heads"], typed["head_dim"])
    if model is not None and shape == (None, None, None):
        return found_model(model, typed["revision"], typed["as_model_type"])
    layers, kv_heads, head_dim = shape
    if model is None and layers is not None and kv_heads is not None and head_dim is not None:
        from kvcalc.catalog import model_from_shape

        return model_from_shape(layers, kv_heads, head_dim)
    raise wrong("give --model MODEL, or --layers, --kv-heads and --head-dim together in its place")


def found_model(source: Source, revision: str | None = None, as_model_type: str | None = None) -> "FoundModel":
    """The model that `source` names or is."""
    from kvcalc.catalog import load_model, model_from_config

    return load_model(source, revision, as_model_type) if isinstance(source, str) else model_from_config(source, revision, as_model_type)


def length_for(found: "FoundModel", context: int | None, engine: str, total_bytes: int | None) -> int:
    """The length that is asked about: where nothing is said the model's own maximum, or under Ollama what it takes on GPUs of so much memory together.

    Raises KvcalcError where neither is known.
    """
    if context is not None:
        return context
    if engine == "ollama":
        from kvcalc.engines.ollama import default_context

        if total_bytes is None:
            raise KvcalcError("the context that Ollama takes follows from the memory of the GPUs, which is not known", hint="state --context, or --gpu")
        return default_context(total_bytes, found.spec.facts.max_context)
    length = found.spec.facts.max_context
    if length is None:
        raise KvcalcError(f"{found.name} states no maximum context", hint="say how many tokens with --context")
    return length


def find_gpu_named(name: str) -> "GpuMatch":
    from kvcalc.gpus import find_gpu  # a question without a GPU does not read the catalogue

    return find_gpu(name)


def options_of(typed: Typed, device: "Device | None", engine: str) -> "Options":
    """The deployment that was asked for, under one engine: options that it does not own are as if they were not given."""
    from kvcalc.engines.base import Options

    def own(name: str) -> Any:  # noqa: ANN401 (each option has a type of its own)
        return typed[name] if engine in OWNERS[name] else None

    return Options(
        kv_dtype=typed["kv_dtype"],
        tp=typed["tp"],
        pp=typed["pp"],
        dp=typed["dp"],
        dcp=typed["dcp"],
        encoder_tokens=typed["encoder_tokens"],
        draft_layers=typed["mtp"] is not None,
        speculative_tokens=0 if typed["mtp"] is None else typed["mtp"],
        device=device,
        max_batched_tokens=typed["max_batched_tokens"],
        max_seqs=typed["max_seqs"],
        block_size=typed["block_size"] if own("page_size") is None else typed["page_size"],
        state_dtype=typed["mamba_ssm_cache_dtype"],
        prefix_caching=not typed["no_prefix_caching"],
        hybrid_manager=not typed["disable_hybrid_kv_cache_manager"],
        async_scheduling=not typed["no_async_scheduling"],
        enforce_eager=typed["enforce_eager"],
        cache=own("cache") or "dynamic",
        flash_attention=own("flash_attn") != "off",
        swa_full=bool(own("swa_full")),
        unified=own("kv_unified"),
        ubatch=own("ubatch_size"),
        gpu_layers=own("n_gpu_layers"),
        swa_ratio=own("swa_full_tokens_ratio"),
        mamba_ratio=own("mamba_full_memory_ratio"),
        dp_attention=bool(own("enable_dp_attention")),
    )
