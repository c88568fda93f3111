"""The engines that kvcalc models, by name."""

from typing import Final

from kvcalc.engines.base import Engine
from kvcalc.errors import ExitCode, KvcalcError

ENGINES: Final = ("ideal", "vllm", "transformers")


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
        case "llama.cpp":
            from kvcalc.engines.llamacpp import LLAMACPP

            return LLAMACPP
        case "ollama":
            from kvcalc.engines.ollama import OLLAMA

            return OLLAMA
        case "transformers":
            from kvcalc.engines.transformers import TRANSFORMERS, TransformersEngine, find_release

            return TransformersEngine(find_release(release)) if at else TRANSFORMERS
        case "ideal":
            from kvcalc.engines.ideal import IDEAL

            if at:
                raise KvcalcError("the formula (ideal) has no releases to choose from", hint="leave out the @", code=ExitCode.USAGE)
            return IDEAL
        case _:
            raise KvcalcError(f"unknown engine {text[:40]!r}", hint=f"known: {', '.join(ENGINES)}", code=ExitCode.USAGE)
