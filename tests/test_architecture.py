"""The direction of imports, and the house rules that a machine can check."""

import ast
from pathlib import Path

import pytest

import kvcalc
from kvcalc.errors import ExitCode

PACKAGE = Path(kvcalc.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# What each module may import of kvcalc (folders count with all they hold). Nothing points up.
ALLOWED = {
    "__init__": {"library", "errors", "results"},  # each when it is first used
    "__main__": {"__init__", "cli"},
    "errors": set(),
    "units": {"errors"},
    "files": {"units", "errors"},
    "packing": {"errors"},
    "layers": set(),
    "caches": {"layers"},
    "families": {"families", "caches", "gguf", "layers", "packing", "quantizations", "tensors", "units", "errors"},
    "tensors": {"layers"},
    "quantizations": {"tensors"},
    "weights": {"packing", "tensors"},
    "presets": {"caches", "layers", "packing", "errors"},
    "engines": {"engines", "layers", "packing", "search", "tensors", "weights", "units", "errors"},
    "results": {"results", "engines", "layers"},
    "estimate": {"engines", "layers", "packing", "results", "units"},
    "schemas": {"__init__", "results", "errors"},
    "search": set(),
    "workload": {"engines", "search", "errors"},
    "budget": {"engines", "layers", "machine", "packing", "quantizations", "results", "tensors", "weights", "workload", "units", "errors"},
    "latency": {"budget", "engines", "machine", "search", "tensors", "timing", "errors"},
    "fit": {"budget", "engines", "estimate", "latency", "layers", "packing", "results", "search", "tensors", "timing", "workload", "errors"},
    "advice": {"budget", "fit", "packing", "quantizations", "results", "search", "tensors", "units", "errors"},
    "charts": {"advice", "budget", "engines", "fit", "packing", "results", "search", "units", "errors"},
    "compare": {"budget", "engines", "estimate", "fit", "layers", "packing", "results", "errors"},
    "explain": {"explain", "budget", "engines", "estimate", "latency", "layers", "machine", "packing", "results", "tensors", "timing", "units", "errors"},
    "efficiency": set(),
    "machine": {"efficiency"},
    "timing": {"efficiency", "engines", "machine", "packing", "results"},
    "speed": {
        "advice",
        "budget",
        "efficiency",
        "engines",
        "estimate",
        "fit",
        "latency",
        "layers",
        "machine",
        "packing",
        "quantizations",
        "results",
        "search",
        "tensors",
        "timing",
        "units",
        "errors",
    },
    "replay": {"replay", "budget", "engines", "estimate", "fit", "latency", "layers", "machine", "packing", "results", "timing", "units", "errors"},
    "traces": {"files", "replay", "results", "workload", "units", "errors"},
    "gpus": {"efficiency", "engines", "layers", "machine", "nvml", "results", "units", "errors"},
    "sweep": {"budget", "fit", "layers", "results", "errors"},
    "prefix": {"prefix", "budget", "engines", "estimate", "latency", "layers", "machine", "results", "search", "units", "errors"},
    "prompts": {"files", "prefix", "results", "errors"},
    "listing": {"engines", "presets", "packing", "results", "errors"},
    "hub": {"__init__", "hub", "errors", "units"},
    "safetensors": {"units", "errors"},
    "gguf": {"units", "errors"},
    "nvml": {"units", "errors"},
    "catalog": {"families", "files", "presets", "caches", "gguf", "layers", "hub", "safetensors", "tensors", "units", "errors"},
    "verify": {
        "verify",
        "advice",
        "budget",
        "catalog",
        "engines",
        "estimate",
        "families",
        "fit",
        "gpus",
        "layers",
        "packing",
        "presets",
        "results",
        "search",
        "tensors",
        "units",
        "errors",
    },
    "asking": {
        "asking",
        "advice",
        "budget",
        "catalog",
        "compare",
        "engines",
        "estimate",
        "fit",
        "gpus",
        "layers",
        "machine",
        "prefix",
        "quantizations",
        "replay",
        "results",
        "speed",
        "traces",
        "units",
        "workload",
        "errors",
    },
    "library": {"asking", "advice", "errors", "packing", "results", "traces", "units"},
    "render": {"__init__", "render", "results", "layers", "units", "errors"},
    "cli": {
        "__init__",
        "cli",
        "asking",
        "advice",
        "budget",
        "catalog",
        "charts",
        "compare",
        "engines",
        "estimate",
        "explain",
        "files",
        "fit",
        "gpus",
        "layers",
        "listing",
        "machine",
        "prefix",
        "prompts",
        "quantizations",
        "render",
        "replay",
        "results",
        "packing",
        "schemas",
        "speed",
        "sweep",
        "traces",
        "units",
        "verify",
        "workload",
        "errors",
    },
}
# Libraries, and the one place that may import each.
HOMES = {
    "typer": {"cli"},
    "rich": {"render"},
    "matplotlib": {"render"},
    "yaml": {"catalog", "gpus"},
    "huggingface_hub": {"hub"},
    "torch": {"verify"},
    "transformers": {"verify"},
    "tokenizers": {"prompts"},
}
PURE = {
    "layers",
    "caches",
    "tensors",
    "quantizations",
    "weights",
    "packing",
    "units",
    "errors",
    "engines",
    "families",
    "presets",
    "estimate",
    "fit",
    "budget",
    "latency",
    "advice",
    "search",
    "workload",
    "compare",
    "explain",
    "efficiency",
    "machine",
    "timing",
    "speed",
    "sweep",
    "charts",
    "prefix",
    "replay",
    "listing",
    "schemas",
    "results",
    "safetensors",
    "gguf",
}


def part(path: Path) -> str:
    """The name under which a file stands in ALLOWED: its folder, else its own."""
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> set[str]:
    """The full names of all modules that a file imports, at its top or in a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            assert node.module is not None
            found.add(node.module)
    return found


def test_every_file_has_its_place() -> None:
    assert {part(path) for path in FILES} == set(ALLOWED)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    ours = {name.split(".")[1] if "." in name else "__init__" for name in imports(path) if name.split(".")[0] == "kvcalc"}
    assert ours <= ALLOWED[part(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_library_has_one_home(path: Path) -> None:
    for library in {name.split(".")[0] for name in imports(path)} & set(HOMES):
        assert part(path) in HOMES[library]


@pytest.mark.parametrize("path", [path for path in FILES if part(path) in PURE], ids=lambda path: str(path.relative_to(PACKAGE)))
def test_the_core_neither_opens_nor_prints(path: Path) -> None:
    called = {node.func.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"open", "print", "input", "exec", "eval", "compile", "float"}
    assert not imports(path) & {"os", "pathlib", "subprocess", "socket", "urllib", "urllib.request", "logging"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_only_engines_look_inside_a_cache(path: Path) -> None:
    """Match and isinstance over retentions stand in engines/, and in layers.py where they are defined."""
    if part(path) in ("engines", "layers", "caches"):
        return
    names = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
    assert not names & {"Grows", "Window", "Chunk", "Once", "Encoder"}


def test_exit_codes_are_unique_and_known() -> None:
    assert {code.name: code.value for code in ExitCode} == {"YES": 0, "NO": 1, "USAGE": 2, "UNANSWERABLE": 3, "ENVIRONMENT": 4}
