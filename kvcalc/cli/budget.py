"""What commands about a budget have alike: the memory of the GPUs, and what is taken from it."""

from decimal import Decimal
from typing import Annotated, Any, Final

import typer

from kvcalc.asking.budget import HIGHEST_LORA_RANK, LORA_RANK, MOST_LORAS
from kvcalc.cli.options import COUNT, PART, Group, parser
from kvcalc.units import parse_bytes

SIZE: Final[dict[str, Any]] = {"parser": parser(parse_bytes), "metavar": "SIZE"}


def complete_quantization(incomplete: str) -> list[str]:
    from kvcalc.quantizations import BY_NAME

    return [name for name in BY_NAME if name.startswith(incomplete)]


BUDGET: Final[Group] = {
    "gpu_mem": (Annotated[int | None, typer.Option("--gpu-mem", **SIZE, help="All memory of one GPU, as the runtime reports it: 80GiB, 79.2GiB.")], None),
    "kv_mem": (
        Annotated[
            int | None,
            typer.Option("--kv-mem", "--kv-cache-memory-bytes", **SIZE, help="The KV budget of one GPU itself: weights and overheads are skipped."),
        ],
        None,
    ),
    "utilization": (
        Annotated[Decimal | None, typer.Option("--utilization", "--gpu-memory-utilization", **PART, help="Of the memory, what the engine takes.")],
        None,
    ),
    "mem_fraction_static": (Annotated[Decimal | None, typer.Option("--mem-fraction-static", **PART, help="The same as SGLang calls it.")], None),
    "quantization": (
        Annotated[
            str | None,
            typer.Option(
                "--quantization",
                metavar="NAME",
                help="How the weights are stored, where the config does not say: awq, fp8, nvfp4, ...",
                autocompletion=complete_quantization,
            ),
        ],
        None,
    ),
    "reserve": (Annotated[int, typer.Option("--reserve", **SIZE, show_default="none", help="Memory of each GPU to keep back.")], 0),
    "gpus": (Annotated[int | None, typer.Option("--gpus", **COUNT, help="GPUs in all; given alone, they share the heads.")], None),
    "expert_parallel": (Annotated[bool, typer.Option("--ep", "--enable-expert-parallel", help="Experts are dealt out whole to the GPUs.")], False),
    "max_loras": (Annotated[int, typer.Option("--max-loras", min=0, max=MOST_LORAS, metavar="N", help="LoRA adapters kept on the GPU.")], 0),
    "max_lora_rank": (
        Annotated[int, typer.Option("--max-lora-rank", min=1, max=HIGHEST_LORA_RANK, metavar="N", help="The highest rank among them.")],
        LORA_RANK,
    ),
    "language_model_only": (Annotated[bool, typer.Option("--language-model-only", help="As vLLM's own switch: no vision or audio towers.")], False),
}
