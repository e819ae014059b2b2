"""Imports inside kosmos go down only, and the pure layers need neither torch nor triton."""

import ast
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import kosmos

PACKAGE = Path(kosmos.__file__).parent

# From the bottom to the top: a layer may import those before it.
LAYERS = [
    "errors",
    "files",
    "trace",
    "schedule",
    "machine",
    "simulator",
    "lang",
    "emulator",
    "power",
    "rocprof",
    "world",
    "ops",
    "nn",
    "plots",
    "viewer",
    "validation",
    "paper",
    "course",
    "doctor",
    "panels",
    "benchmark",
    "cli",
    "__main__",
]
PURE = {"errors", "files", "trace", "schedule", "machine", "simulator", "plots", "viewer"}
READ_TRACES_ONLY = {"plots", "viewer"}

FILES = sorted(PACKAGE.rglob("*.py"))


def may_import(layer: str) -> set[str]:
    """The layers that this one may import when it is itself imported."""
    if layer == "":  # kosmos/__init__.py
        return set()
    if layer in READ_TRACES_ONLY:
        return {layer, "trace", "files", "errors"}
    return {layer, *LAYERS[: LAYERS.index(layer)]} - (READ_TRACES_ONLY if layer in PURE else set())


@dataclass(frozen=True)
class Import:
    line: int
    name: str  # kosmos.trace.records, torch, ...

    @property
    def layer(self) -> str | None:
        """The layer of kosmos that it is in, "" for the package itself, None for what is not kosmos."""
        package, _, rest = self.name.partition(".")
        if package != "kosmos":
            return None
        first = rest.partition(".")[0]
        if first in LAYERS:
            return first
        return kosmos._HOME.get(first, "")  # from kosmos import Trace


def module_of(path: Path) -> list[str]:
    parts = ["kosmos", *path.relative_to(PACKAGE).with_suffix("").parts]
    return parts[:-1] if parts[-1] == "__init__" else parts


def layer_of(path: Path) -> str:
    return (path.relative_to(PACKAGE).with_suffix("").parts[0]).replace("__init__", "")


def imports_at_module_level(path: Path) -> list[Import]:
    """Everything that importing this file imports: not what stands inside a function."""
    package = module_of(path) if path.name == "__init__.py" else module_of(path)[:-1]
    found = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.Import):
            found.extend(Import(node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*above, *filter(None, [node.module])])
            found.extend(Import(node.lineno, f"{origin}.{alias.name}") for alias in node.names)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    return found


def test_every_file_belongs_to_a_layer():
    homeless = [str(path.relative_to(PACKAGE.parent)) for path in FILES if layer_of(path) not in {"", *LAYERS}]
    assert not homeless, f"add to LAYERS in {Path(__file__).name}: {homeless}"


def test_imports_go_down_only():
    upward = [
        f"{path.relative_to(PACKAGE.parent)}:{found.line} imports {found.name}"
        for path in FILES
        for found in imports_at_module_level(path)
        if found.layer and layer_of(path) in {"", *LAYERS} and found.layer not in may_import(layer_of(path))
    ]
    assert not upward, "imports that do not go down:\n" + "\n".join(upward)


def test_imports_are_read_right(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path)
    (tmp_path / "trace").mkdir()
    file = tmp_path / "trace" / "files.py"
    file.write_text(
        "from . import schema\n"
        "from ..plots import draw\n"
        "from kosmos import World\n"
        "if True:\n"
        "    import kosmos.ops.launch, torch\n"
        "def plot():\n"
        "    import kosmos.viewer\n"
    )
    assert [(found.line, found.name, found.layer) for found in imports_at_module_level(file)] == [
        (1, "kosmos.trace.schema", "trace"),
        (2, "kosmos.plots.draw", "plots"),
        (3, "kosmos.World", "world"),
        (5, "kosmos.ops.launch", "ops"),
        (5, "torch", None),
    ]
    file = tmp_path / "trace" / "__init__.py"
    file.write_text("from .files import load\nfrom ..lang import now\n")
    assert [found.name for found in imports_at_module_level(file)] == ["kosmos.trace.files.load", "kosmos.lang.now"]


@pytest.mark.parametrize("layer", ["kosmos", *sorted({layer_of(path) for path in FILES} & PURE)])
def test_pure_layers_need_neither_torch_nor_triton(layer):
    names = [".".join(module_of(path)) for path in FILES if layer_of(path) == (layer if layer != "kosmos" else "")]
    code = (
        "import importlib, sys\n"
        "for absent in ('torch', 'triton', 'greenlet'):\n"
        "    sys.modules[absent] = None\n"  # import torch raises ModuleNotFoundError
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=PACKAGE.parent)
    assert run.returncode == 0, run.stderr


def test_kosmos_alone_loads_nothing_heavy():
    code = "import sys, kosmos; print(*{'numpy', 'pyarrow', 'matplotlib', 'torch', 'triton'} & {*sys.modules})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert run.stdout.strip() == ""
