"""Every notebook runs from top to bottom in under a minute, shows its pictures, and is committed clean."""

import json
import re
import sys
import time
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")

ROOT = Path(__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LIMIT_S = 60
DRAWS = re.compile(r"\.plot\(|plt\.subplots\(|\.view\(|kosmos\.compare\(|_figure\(")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path):
    return nbformat.reads(path.read_text(encoding="utf-8"), as_version=4)


def code_cells(notebook) -> list:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def test_there_is_a_first_notebook():
    assert "00_start_here" in {path.stem for path in NOTEBOOKS}


@every_notebook
def test_is_committed_clean(path):
    raw = json.loads(path.read_text(encoding="utf-8"))
    nbformat.validate(nbformat.from_dict(raw))
    assert "widgets" not in raw["metadata"]
    for cell in raw["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None, f"cell {cell['id']} has been run"
        assert not {*cell["metadata"]} - {"tags"}, f"cell {cell['id']} carries the state of an editor"


@every_notebook
def test_is_laid_out_for_a_reader(path):
    notebook = read(path)
    kinds = [cell.cell_type for cell in notebook.cells]
    unexplained = [
        cell.id
        for before, cell in zip([None, *kinds], notebook.cells)
        if (before, cell.cell_type) != ("markdown", "code") and cell.cell_type == "code"
    ]
    assert not unexplained, f"no text stands before {unexplained}"
    tagged = [cell for cell in code_cells(notebook) if "parameters" in cell.metadata.get("tags", [])]
    assert tagged == code_cells(notebook)[:1], "the first code cell, and no other, is tagged `parameters`"
    last = notebook.cells[-1]
    assert last.cell_type == "markdown" and "## Questions" in last.source and "?" in last.source


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> str:
    """The name of a kernel of the running Python that imports this repository, with no settings of the user's."""
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "KOSMOS tests",
        "language": "python",
        "env": {"PYTHONPATH": str(ROOT)},
    }
    folder = tmp_path / "jupyter" / "kernels" / "kosmos-tests"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    return "kosmos-tests"


@pytest.mark.triton
@pytest.mark.speed
@every_notebook
def test_runs_and_shows_its_pictures(path, kernel):
    notebook = read(path)
    client = nbclient.NotebookClient(
        notebook, timeout=LIMIT_S, kernel_name=kernel, resources={"metadata": {"path": str(path.parent)}}
    )
    start = time.perf_counter()
    client.execute()
    seconds = time.perf_counter() - start
    for cell in code_cells(notebook):
        pictures = [output for output in cell.outputs if "image/png" in output.get("data", {})]
        assert bool(pictures) == bool(DRAWS.search(cell.source)), f"cell {cell.id} shows {len(pictures)} pictures"
        said = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stderr"]
        said = [text for text in said if "compiling the simulator" not in text]
        assert not said, f"cell {cell.id} warns: {said}"
    assert seconds < LIMIT_S
