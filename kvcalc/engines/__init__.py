"""The engines that kvcalc models, by name."""

from typing import Final

from kvcalc.engines.base import Engine
from kvcalc.errors import ExitCode, KvcalcError

ENGINES: Final = ("ideal", "transformers", "vllm", "sglang", "trtllm", "llama.cpp", "ollama")


def find_engine(text: str) -> Engine:
    """The engine of that name, at the release behind an @ ("vllm@0.11"), else at the newest that is modelled. Only that engine is imported.

    Raises KvcalcError: no such engine, with the names that there are (usage); a release that is not modelled.
    """
    name, at, release = text.strip().lower().partition("@")
    match name:
        case "vllm":
            from kvcalc.engines.vllm import NEWEST_VLLM, VllmEngine
            from kvcalc.engines.vllm.versions import find_version

            return VllmEngine(find_version(release)) if at else NEWEST_VLLM
        case "transformers":
            from kvcalc.engines.transformers import TRANSFORMERS, TransformersEngine, find_release

            return TransformersEngine(find_release(release)) if at else TRANSFORMERS
        case _ if name not in ENGINES:
            raise KvcalcError(f"unknown engine {text[:40]!r}", hint=f"known: {', '.join(ENGINES)}", code=ExitCode.USAGE)
        case _ if at:
            raise KvcalcError(f"{name} has no releases to choose from here", hint="leave out the @", code=ExitCode.USAGE)
        case "llama.cpp":
            from kvcalc.engines.llamacpp import LLAMACPP

            return LLAMACPP
        case "sglang":
            from kvcalc.engines.sglang import SGLANG

            return SGLANG
        case "trtllm":
            from kvcalc.engines.trtllm import TRTLLM

            return TRTLLM
        case "ollama":
            from kvcalc.engines.ollama import OLLAMA

            return OLLAMA
        case "ideal":
            from kvcalc.engines.ideal import IDEAL

            return IDEAL
        case _:
            raise AssertionError(name)
