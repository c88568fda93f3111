"""The `kvcalc` command, and `python -m kvcalc`."""

import sys

from kvcalc import __version__


def main() -> None:
    """Answers --version before the rest is imported, which takes ten times as long."""
    if sys.argv[1:] == ["--version"]:
        print(f"kvcalc {__version__}")
        return
    from kvcalc.cli import run

    sys.exit(run())


if __name__ == "__main__":
    main()
