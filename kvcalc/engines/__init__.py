"""The engines that kvcalc models: one file each, one table."""

from typing import Final

from kvcalc.engines.base import Engine
from kvcalc.engines.ideal import IDEAL
from kvcalc.errors import ExitCode, KvcalcError

ENGINES: Final[dict[str, Engine]] = {"ideal": IDEAL}


def find_engine(text: str) -> Engine:
    """The engine of that name. Raises KvcalcError (usage) with the names that there are."""
    engine = ENGINES.get(text.strip().lower())
    if engine is None:
        raise KvcalcError(f"unknown engine {text[:40]!r}", hint=f"known: {', '.join(ENGINES)}", code=ExitCode.USAGE)
    return engine
