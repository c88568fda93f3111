"""CPU time of whole commands beside a typer program that does nothing: `.venv/bin/python tests/bench_startup.py`, where `.venv` has the installed wheel
(an editable install takes longer to import). Printed for a reader, gates nothing.
"""

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROUNDS = 15
NOTHING = """
import typer
app = typer.Typer()
@app.command()
def nothing(count: int = 1) -> None: ...
app()
"""


def cpu_ms(command: list[str]) -> float:
    """User and system time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return 1000 * (after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)


def main() -> None:
    """Medians of interleaved rounds, so that a busy machine slows all cases alike."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "nothing.py"
        script.write_text(NOTHING)
        kvcalc = [str(Path(sys.executable).with_name("kvcalc"))]
        cases = {
            "a typer program that does nothing": [sys.executable, str(script)],
            "kvcalc --version": [*kvcalc, "--version"],
            "kvcalc --help": [*kvcalc, "--help"],
            "kvcalc estimate --model llama-3-8b --json": [*kvcalc, "estimate", "--model", "llama-3-8b", "--json"],
            "kvcalc estimate --model llama-3-8b": [*kvcalc, "estimate", "--model", "llama-3-8b"],
            "kvcalc models --quiet": [*kvcalc, "models", "--quiet"],
        }
        times: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(ROUNDS):
            for name, command in cases.items():
                times[name].append(cpu_ms(command))
    nothing = statistics.median(times["a typer program that does nothing"])
    for name, each in times.items():
        median = statistics.median(each)
        print(f"{median:6.0f} ms  {median / nothing:4.2f}x  {name}")


if __name__ == "__main__":
    main()
