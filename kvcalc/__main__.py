"""The `kvcalc` command, and `python -m kvcalc`."""

import gc
import os
import sys

from kvcalc import __version__


def main() -> None:
    """Answers --version before the rest is imported, which takes ten times as long."""
    if sys.argv[1:] == ["--version"] and _printed(f"kvcalc {__version__}"):
        return
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "1")  # kvcalc has none: looking for them reads every installed distribution
    gc.set_threshold(100_000)  # imports make many objects and no garbage: looking for it takes a tenth of a short command's time
    from kvcalc.cli import run

    sys.exit(run())


def _printed(text: str) -> bool:
    """False where it could not be: the whole program then says why."""
    try:
        print(text, flush=True)
    except OSError:
        return False
    return True


if __name__ == "__main__":
    main()
