"""What the project's files promise each other and a person with a fresh clone."""

import ast
import importlib.metadata
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version
from test_layers import LAYERS, PURE

import kosmos

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
NOTEBOOK = "notebooks/00_start_here.ipynb"


def pinned(lines) -> dict[str, Version]:
    pins = [Requirement(line) for line in lines if "==" in line]
    return {canonicalize_name(pin.name): Version(str(pin.specifier).removeprefix("==")) for pin in pins}


PINS = pinned((ROOT / "constraints.txt").read_text().splitlines())
REQUIREMENTS = [
    Requirement(text)
    for texts in [PYPROJECT["project"]["dependencies"], *PYPROJECT["project"]["optional-dependencies"].values()]
    for text in texts
]
CONDA = yaml.safe_load((ROOT / "environment.yml").read_text())["dependencies"]


@pytest.mark.parametrize("requirement", REQUIREMENTS, ids=str)
def test_the_tested_version_is_in_the_range(requirement):
    assert PINS[canonicalize_name(requirement.name)] in requirement.specifier


def test_default_torch_and_triton_are_the_same_everywhere():
    (pip,) = [entry["pip"] for entry in CONDA if isinstance(entry, dict)]
    assert pinned(pip) == {name: PINS[name] for name in ("torch", "triton")}


@pytest.mark.parametrize("entry", [entry for entry in CONDA if isinstance(entry, str) and " " in entry])
def test_conda_has_the_ranges_of_pip(entry):
    name, _, versions = entry.partition(" ")
    if name == "python":
        assert {*SpecifierSet(PYPROJECT["project"]["requires-python"])} < {*SpecifierSet(versions)}
        return
    ranges = {requirement.specifier for requirement in REQUIREMENTS if requirement.name == name.removesuffix("-base")}
    assert ranges == {SpecifierSet(versions)}


def test_ci_runs_the_oldest_and_the_newest_triton():
    (supported,) = [requirement.specifier for requirement in REQUIREMENTS if requirement.name == "triton"]
    run = [Version(version) for version in re.findall(r"TRITON=([\d.]+)", (ROOT / ".ci/run").read_text())]
    assert all(version in supported for version in run)
    assert f">={min(run).major}.{min(run).minor}" in str(supported)
    assert f"<{max(run).major}.{max(run).minor + 1}" in str(supported)


def test_types_are_checked_on_the_pure_layers():
    (unchecked,) = [part["module"] for part in PYPROJECT["tool"]["mypy"]["overrides"] if part.get("ignore_errors")]
    assert {name.split(".")[1] for name in unchecked} == {*LAYERS} - PURE - {"__main__"}


def test_installed_version_is_that_of_the_package():
    assert importlib.metadata.version("kosmos") == kosmos.__version__ == PYPROJECT["project"]["version"]


def test_tests_that_need_torch_run_with_every_triton():
    unmarked = []
    for file in sorted((ROOT / "tests").glob("test_*.py")):
        text = file.read_text()
        imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = {name for node in imports for name in [getattr(node, "module", None), *(a.name for a in node.names)]}
        if names & {"torch", "triton"} and "pytest.mark.triton" not in text:
            unmarked.append(file.name)
    assert not unmarked, f"these import torch or triton and do not say pytest.mark.triton: {unmarked}"


@pytest.mark.triton
@pytest.mark.parametrize("name", kosmos.__all__)
def test_public_name_exists(name):
    assert getattr(kosmos, name) is not None


@pytest.mark.triton
def test_console_script_exists():
    (script,) = importlib.metadata.entry_points(group="console_scripts", name="kosmos")
    assert callable(script.load())


@pytest.mark.speed
def test_kosmos_is_imported_quickly():
    def seconds(code: str) -> float:
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)
        return time.perf_counter() - start

    assert min(seconds("import kosmos") for _ in range(3)) < 0.2 + min(seconds("pass") for _ in range(3))


@pytest.mark.slow
@pytest.mark.skipif(not (ROOT / ".venv/.lab").exists(), reason="make has not set up .venv")
def test_make_lab_serves_the_first_notebook(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    arguments = f"--no-browser --allow-root --port={port} --ServerApp.port_retries=0 --IdentityProvider.token=secret"
    own = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR"]
    environment = {**os.environ, **{name: str(tmp_path / name) for name in own}}
    log = tmp_path / "log"
    with log.open("w") as output:
        make = subprocess.Popen(
            ["make", "lab", f"LAB_ARGS={arguments}"],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:

        def get(path: str) -> bytes:
            deadline = time.monotonic() + 60
            while True:
                try:
                    return urllib.request.urlopen(f"http://127.0.0.1:{port}{path}?token=secret", timeout=30).read()
                except urllib.error.URLError as error:
                    if isinstance(error, urllib.error.HTTPError) or make.poll() is not None:
                        raise AssertionError(f"{path}: {error}\n{log.read_text()}") from error
                    if time.monotonic() > deadline:
                        raise AssertionError(f"nothing answers\n{log.read_text()}") from error
                    time.sleep(0.2)

        assert json.loads(get(f"/api/contents/{NOTEBOOK}"))["type"] == "notebook"
        assert b"JupyterLab" in get(f"/lab/tree/{NOTEBOOK}")
        assert f"/lab/tree/{NOTEBOOK}" in log.read_text()  # the address that the browser opens
    finally:
        os.killpg(make.pid, signal.SIGTERM)
        make.wait(30)
