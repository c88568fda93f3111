"""What commands have alike: the types of their options."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import wraps
from inspect import Parameter, signature
from typing import Annotated, Any, Final, TypeVar

import typer

from kvcalc.errors import KvcalcError
from kvcalc.packing import AUTO, ENGINE_DTYPES, PACKINGS, KvDtype, parse_kv_dtype, parse_state_dtype
from kvcalc.units import MAX_TOKENS, parse_count, parse_part, parse_ratio, parse_switch

T = TypeVar("T")


def parser(parse: Callable[[str], T]) -> Callable[[str | T], T]:
    """A parser of one option, whose errors typer reports with the option's name. Defaults pass through it as they are."""

    def parsed(text: str | T) -> T:
        if not isinstance(text, str):
            return text
        try:
            return parse(text)
        except KvcalcError as error:
            raise typer.BadParameter(f"{error.message}; {error.hint}" if error.hint else error.message) from None

    return parsed


def complete_model(incomplete: str) -> list[str]:
    from kvcalc.catalog import preset_names

    return [name for name in preset_names() if name.startswith(incomplete)]


def complete_gpu(incomplete: str) -> list[str]:
    from kvcalc.gpus import short_names

    return [name for name in short_names() if name.startswith(incomplete)]


def complete_engine(incomplete: str) -> list[str]:
    from kvcalc.engines import ENGINES

    return [name for name in ENGINES if name.startswith(incomplete)]


def complete_kv_dtype(incomplete: str) -> list[str]:
    """Of k=NAME,v=NAME the name that is being typed."""
    before, names, typed = incomplete.rpartition("=")
    return [before + names + name for name in ("auto", *PACKINGS, *ENGINE_DTYPES) if name.startswith(typed)]


def complete_in_list(complete: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Of values with commas between, the last one."""

    def completed(incomplete: str) -> list[str]:
        before, comma, typed = incomplete.rpartition(",")
        return [before + comma + each for each in complete(typed)]

    return completed


COUNT: Final[dict[str, Any]] = {"parser": parser(parse_count), "metavar": "N"}
PART: Final[dict[str, Any]] = {"parser": parser(parse_part), "metavar": "PART"}
RATIO: Final[dict[str, Any]] = {"parser": parser(parse_ratio), "metavar": "RATIO"}

CONTEXT_NAMES: Final = ("--context", "-c", "--max-model-len", "--context-length", "--ctx-size")
"""What engines call the length of a request."""
Context = Annotated[int | None, typer.Option(*CONTEXT_NAMES, **COUNT, help="Tokens in one request's cache; the model's own maximum.")]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="NAME",
        help="Whose rules: ideal (the bare formula), transformers, vllm (older: vllm@0.11), sglang, trtllm, llama.cpp or ollama.",
        autocompletion=complete_engine,
    ),
]
ServerName = Annotated[
    str, typer.Option("--engine", metavar="NAME", help="Whose rules: vllm (older: vllm@0.11), sglang or trtllm.", autocompletion=complete_engine)
]
"""Engines that keep what prompts share."""
Batch = Annotated[int, typer.Option("--batch", "-b", **COUNT, help="Requests held at the same time (in each replica).")]
Json = Annotated[bool, typer.Option("--json", help="The whole answer as one JSON object.")]

Group = Mapping[str, tuple[Any, Any]]
"""Options by the name of their parameter: the annotation, with typer's own words in it, and the default."""

MODEL: Final[Group] = {
    "model": (
        Annotated[
            str | None,
            typer.Option(
                "--model",
                "-m",
                metavar="MODEL",
                help="A preset, a Hub id, a folder or config.json, a .gguf file, or a spec YAML.",
                autocompletion=complete_model,
            ),
        ],
        None,
    ),
    "as_model_type": (Annotated[str | None, typer.Option("--as", metavar="TYPE", help="Read a config.json of an unknown model_type as a known one.")], None),
    "layers": (Annotated[int | None, typer.Option("--layers", **COUNT, help="With --kv-heads and --head-dim, in place of --model.")], None),
    "kv_heads": (Annotated[int | None, typer.Option("--kv-heads", **COUNT, help="KV heads of each layer.")], None),
    "head_dim": (Annotated[int | None, typer.Option("--head-dim", **COUNT, help="Width of a head.")], None),
    "revision": (Annotated[str | None, typer.Option("--revision", metavar="REV", help="Branch, tag or commit of a Hub id.")], None),
}

DEPLOYMENT: Final[Group] = {
    "kv_dtype": (
        Annotated[
            KvDtype,
            typer.Option(
                "--kv-dtype",
                "--kv-cache-dtype",
                parser=parser(parse_kv_dtype),
                metavar="DTYPE",
                show_default="auto",
                help="auto, a name such as fp8 or q8_0, or k=NAME,v=NAME.",
                autocompletion=complete_kv_dtype,
            ),
        ],
        AUTO,
    ),
    "gpu": (
        Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, as nvidia-smi or a person writes it.", autocompletion=complete_gpu)],
        None,
    ),
    "tp": (Annotated[int, typer.Option("--tp", "--tensor-parallel-size", **COUNT, help="GPUs that share the heads.")], 1),
    "pp": (Annotated[int, typer.Option("--pp", "--pipeline-parallel-size", **COUNT, help="GPUs that share the layers.")], 1),
    "dp": (Annotated[int, typer.Option("--dp", "--data-parallel-size", **COUNT, help="Replicas.")], 1),
    "dcp": (Annotated[int, typer.Option("--dcp", "--decode-context-parallel-size", **COUNT, help="GPUs that share the tokens of a copied cache.")], 1),
    "max_batched_tokens": (
        Annotated[int | None, typer.Option("--max-batched-tokens", "--max-num-batched-tokens", **COUNT, help="Tokens that the scheduler takes in one batch.")],
        None,
    ),
    "max_seqs": (
        Annotated[
            int | None,
            typer.Option("--max-seqs", "--max-num-seqs", "--max-running-requests", "--parallel", "-np", **COUNT, help="Requests that run at once, or slots."),
        ],
        None,
    ),
    "block_size": (Annotated[int | None, typer.Option("--block-size", **COUNT, help="Tokens in a block.")], None),
    "mamba_ssm_cache_dtype": (
        Annotated[
            str | None,
            typer.Option(
                "--mamba-ssm-cache-dtype", parser=parser(parse_state_dtype), metavar="DTYPE", help="Of recurrent states: float32, float16 or bfloat16."
            ),
        ],
        None,
    ),
    "no_prefix_caching": (
        Annotated[
            bool, typer.Option("--no-prefix-caching", "--no-enable-prefix-caching", "--disable-radix-cache", help="As the engine's own switch: no reuse.")
        ],
        False,
    ),
    "disable_hybrid_kv_cache_manager": (
        Annotated[bool, typer.Option("--disable-hybrid-kv-cache-manager", help="As vLLM's own switch: windows are kept at full length.")],
        False,
    ),
    "no_async_scheduling": (Annotated[bool, typer.Option("--no-async-scheduling", help="As vLLM's own switch: fewer tokens are in flight.")], False),
    "enforce_eager": (Annotated[bool, typer.Option("--enforce-eager", help="As vLLM's own switch: no CUDA graphs.")], False),
    "encoder_tokens": (
        Annotated[int | None, typer.Option("--encoder-tokens", min=0, max=MAX_TOKENS, metavar="N", help="Tokens that cross-attention keeps.")],
        None,
    ),
    "mtp": (Annotated[int | None, typer.Option("--mtp", **COUNT, help="Speculative tokens by the model's own draft layers, which are then counted.")], None),
    "cache": (Annotated[str | None, typer.Option("--cache", metavar="KIND", help="Of transformers: dynamic, static, quanto-4, ...")], None),
    "flash_attn": (
        Annotated[
            str | None,
            typer.Option("--flash-attn", "-fa", parser=parser(parse_switch), metavar="on|off", help="Of llama.cpp and Ollama: without, V is transposed."),
        ],
        None,
    ),
    "swa_full": (Annotated[bool, typer.Option("--swa-full", help="As llama.cpp's own switch: windows are kept at full length.")], False),
    "kv_unified": (Annotated[bool | None, typer.Option("--kv-unified/--no-kv-unified", help="As llama.cpp's own switch: one pool for all slots.")], None),
    "ubatch_size": (Annotated[int | None, typer.Option("--ubatch-size", "-ub", **COUNT, help="Of llama.cpp: tokens of a micro-batch.")], None),
    "n_gpu_layers": (Annotated[int | None, typer.Option("--n-gpu-layers", "-ngl", **COUNT, help="Of llama.cpp and Ollama: layers on the GPU.")], None),
    "page_size": (Annotated[int | None, typer.Option("--page-size", **COUNT, help="Of SGLang: tokens in a page.")], None),
    "swa_full_tokens_ratio": (
        Annotated[Decimal | None, typer.Option("--swa-full-tokens-ratio", **PART, help="Of SGLang: tokens kept for windows, to those kept in full.")],
        None,
    ),
    "mamba_full_memory_ratio": (
        Annotated[Decimal | None, typer.Option("--mamba-full-memory-ratio", **RATIO, help="Of SGLang: memory of states, to that of full attention.")],
        None,
    ),
    "enable_dp_attention": (
        Annotated[bool, typer.Option("--enable-dp-attention", help="Of SGLang and TensorRT-LLM: attention is split by requests, not by heads.")],
        False,
    ),
}


def with_options(*groups: Group) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Gives a command the options of `groups` beside its own. It finds their values in the `params` of its context, by the same names."""

    def extended(command: Callable[..., Any]) -> Callable[..., Any]:
        own = signature(command)
        shared = [Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind) for group in groups for name, (kind, default) in group.items()]

        @wraps(command)
        def called(**values: Any) -> Any:  # noqa: ANN401 (each option has a type of its own)
            return command(**{name: values[name] for name in own.parameters})

        called.__signature__ = own.replace(parameters=[*own.parameters.values(), *shared])  # type: ignore[attr-defined]  # what inspect reads
        return called

    return extended


def one_form(*, as_json: bool, quiet: bool) -> None:
    """Raises BadParameter for two forms of one answer."""
    if as_json and quiet:
        raise typer.BadParameter("--json and --quiet are two forms of one answer: give one of them")
