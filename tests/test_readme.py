"""What the READMEs show works: the example and the commands run, links lead somewhere, traces are what is said."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kosmos import Trace, benchmark
from kosmos.trace.metrics import microseconds

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
RECORDED = (ROOT / "traces" / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "traces").rglob("README.md"))]


def blocks(text: str, language: str = "") -> list[str]:
    found = re.findall(r"^```(\w*)\n(.*?)^```", text, re.M | re.S)
    return [content for named, content in found if named == language]


def commands(name: str) -> list[list[str]]:
    lines = [line for block in blocks(README) for line in block.splitlines()]
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith(f"{name} ")]


def run_python(*arguments: str, cwd: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.triton
def test_examples_run(tmp_path):
    run, simulate = blocks(README, "python")
    assert "makespan" in run_python("-c", run, cwd=tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"band.png", "band.parquet"}
    assert "one_way:8, band, 8 ranks × 256 workgroups" in run_python("-c", simulate, cwd=tmp_path)


@pytest.mark.triton
def test_commands_run(tmp_path):
    for command in commands("kosmos"):
        # these take minutes or a GPU, and have tests of their own
        if not {"--compile", "bench", "power"} & {*command}:
            run_python("-m", "kosmos", *command, cwd=tmp_path)
    made = {"mine.png", "mine.parquet", "mine.html", "mine.pftrace", "node.parquet"}
    assert {path.name for path in tmp_path.iterdir()} == made


@pytest.mark.parametrize("command", commands("make"), ids=" ".join)
def test_make_target_exists(command):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    target, *settings = command
    assert re.search(rf"^{target}:", makefile, re.M)
    for setting in settings:
        assert f"$({setting.partition('=')[0]})" in makefile


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    links = {link for link in re.findall(r"\]\((.*?)\)", text) if "://" not in link}
    paths = {
        path for path in re.findall(r"[\w/.]+/[\w/.]+\.\w+", text) if path.split("/")[0] in os.listdir(page.parent)
    }
    assert not [path for path in links | paths if not (page.parent / path).exists()]


def test_recorded_traces_are_what_is_said():
    rows = [[cell.strip(" `") for cell in line.split("|")[1:-1]] for line in re.findall(r"^\| `.*", RECORDED, re.M)]
    found = []
    for path in sorted((ROOT / "traces" / "h200").glob("*.parquet")):
        trace = Trace.load(path)
        assert not trace.problems()
        assert path.stat().st_size < 200_000
        meta = trace.meta
        shape = ", ".join(str(meta["shape"][name]) for name in "mnk")
        makespan = microseconds(trace.summary()["makespan_ns"])
        name = path.relative_to(ROOT / "traces").as_posix()
        found.append([name, shape, meta["policy"], meta["order"], makespan])
    assert sorted(rows) == found


def test_the_performance_notes_say_what_was_measured():
    cases = benchmark.load(ROOT / "docs/benchmarks/h200_one_rank_orders.json").cases
    measured = []
    for case in cases:
        base, default = (next(run for run in case.runs if run.name == name) for name in (case.base.name, "default"))
        burst = np.median(np.array(base.burst_ms) / default.burst_ms)
        measured.append((f"{burst:.3f}", f"{base.sustained / default.sustained:.3f}"))
    notes = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    assert re.findall(r", as (?:cuBLAS|the unfused path) \| ([\d.]+) \| ([\d.]+) \|", notes) == measured
