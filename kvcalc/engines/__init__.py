"""The engines that kvcalc models, by name."""

from typing import Final

from kvcalc.engines.base import Engine
from kvcalc.engines.ideal import IDEAL
from kvcalc.engines.vllm import NEWEST_VLLM, VllmEngine
from kvcalc.engines.vllm.versions import find_version
from kvcalc.errors import ExitCode, KvcalcError

ENGINES: Final[dict[str, Engine]] = {"ideal": IDEAL, "vllm": NEWEST_VLLM}


def find_engine(text: str) -> Engine:
    """The engine of that name, at the release behind an @ ("vllm@0.11"), else at the newest that is modelled.

    Raises KvcalcError: no such engine, with the names that there are (usage); a release that is not modelled.
    """
    name, at, release = text.strip().lower().partition("@")
    engine = ENGINES.get(name)
    if engine is None:
        raise KvcalcError(f"unknown engine {text[:40]!r}", hint=f"known: {', '.join(ENGINES)}", code=ExitCode.USAGE)
    if not at:
        return engine
    if name != "vllm":
        raise KvcalcError(f"engine {name} has no releases to choose from", hint=f"leave out @{release[:20]}", code=ExitCode.USAGE)
    return VllmEngine(find_version(release))
