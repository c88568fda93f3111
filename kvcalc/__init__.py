"""KV-cache memory of large language models: bytes, tokens and requests, as each engine counts them.

    >>> import kvcalc
    >>> kvcalc.estimate("llama-3-8b", context="8K").total_bytes
    1073741824

`estimate`, `fit`, `fit_presets`, `speed` and `compare` answer what the commands of these names answer, with the options of these commands as keywords.
An answer is a frozen pydantic model; what cannot be answered raises `KvcalcError`. Nothing is printed, and threads may ask at the same time.
"""

import sys
from types import ModuleType

TYPE_CHECKING = False  # as type checkers know it: typing itself takes a third of the time of --version
if TYPE_CHECKING:
    from kvcalc.errors import ExitCode, KvcalcError
    from kvcalc.library import compare, estimate, fit, fit_presets, speed
    from kvcalc.results.compare import Comparison
    from kvcalc.results.estimate import Estimate
    from kvcalc.results.fit import Fit, Fits
    from kvcalc.results.speed import Speed

__version__ = "0.1.0"
__all__ = [
    "Comparison",
    "Estimate",
    "ExitCode",
    "Fit",
    "Fits",
    "KvcalcError",
    "Speed",
    "compare",
    "estimate",
    "fit",
    "fit_presets",
    "speed",
]

_HOMES = {
    "Comparison": "results.compare",
    "Estimate": "results.estimate",
    "ExitCode": "errors",
    "Fit": "results.fit",
    "Fits": "results.fit",
    "KvcalcError": "errors",
    "Speed": "results.speed",
    "compare": "library",
    "estimate": "library",
    "fit": "library",
    "fit_presets": "library",
    "speed": "library",
}
"""Where each name is defined: that module is imported when the name is first used."""


if not TYPE_CHECKING:  # to which it would mean that there is every name

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]


class _Package(ModuleType):
    """`kvcalc.fit` is the function, whichever modules were imported before: Python would set it to the module of that name once that is loaded."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
