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


def measured(name):
    """The cases of a saved benchmark."""
    return benchmark.load(ROOT / f"docs/benchmarks/h200_{name}.json").cases


def times_as_fast(case, run="default", base=None):
    """How many times as fast as its base a variant of a case is, round by round: the median."""
    samples = {each.name: np.array(each.burst_ms) for each in case.runs}
    return float(np.median(samples[base or case.base.name] / samples[run]))


def test_the_performance_notes_say_what_was_measured():
    notes = (ROOT / "docs/performance.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    cases = measured("one_rank_orders")
    rows = []
    for case in cases:
        lasting = {run.name: run.sustained for run in case.runs}
        rows.append((times_as_fast(case), lasting[case.base.name] / lasting["default"]))
    told = re.findall(r", as (?:cuBLAS|the unfused path) \| ([\d.]+) \| ([\d.]+) \|", notes)
    assert told == [(f"{burst:.3f}", f"{sustained:.3f}") for burst, sustained in rows]
    gather, scatter = cases[-2:]
    assert re.findall(r" order, as (\w+) order, under (fixed:\d) \| ([\d.]+) ", notes) == [
        (worse, crew, f"{times_as_fast(case, crew, f'{crew}, {worse}'):.3f}")
        for case, worse, crew in ((gather, "rank", "fixed:4"), (scatter, "row", "fixed:2"), (scatter, "row", "fixed:4"))
    ]
    alone, fused = rows[:4], rows[4:]
    for text in (
        "the fused ops are {:.2f} and {:.2f} times".format(*(burst for burst, _ in fused)),
        "at the power limit {:.2f} and {:.2f} times".format(*(sustained for _, sustained in fused)),
        f"at {min(alone)[0]:.2f} to {max(alone)[0]:.2f} of cuBLAS",
        f"({min(b for _, b in alone):.2f} to {max(b for _, b in alone):.2f})",
    ):
        assert text in " ".join(readme.split()), text

    layers = [times_as_fast(case) for case in measured("llama_paced") if case.case.name.startswith("Llama")]
    assert len(layers) == 12
    mean = float(np.exp(np.mean(np.log(layers))))
    assert f"mean of the twelve {mean:.3f}, lowest {min(layers):.3f}" in " ".join(notes.split())
    assert f"it is {min(layers):.2f} to {max(layers):.2f} times" in " ".join(readme.split())

    least = times_as_fast(scatter, "fixed:2")
    assert f"which is {least:.2f} of the unfused path in band order itself" in " ".join(notes.split())

    eight = [times_as_fast(measured(f"eight_ranks_{op}")[0]) for op in ("all_gather_matmul", "matmul_reduce_scatter")]
    assert "{:.3f} (all-gather) and {:.3f} (reduce-scatter)".format(*eight) in notes


def test_the_performance_notes_say_what_a_trace_costs():
    notes = " ".join((ROOT / "docs/performance.md").read_text(encoding="utf-8").split())
    here = [100 * np.array(case.trace_cost) for case in measured("one_rank_orders")]
    layers = [100 * np.array(case.trace_cost) for case in measured("llama_paced") if "Llama" in case.case.name]
    medians, upper = [cost[1] for cost in here], [cost[2] for cost in here]
    short = sorted(cost[2] for cost in layers)
    assert f"costs {min(medians):.1f} to {max(medians):.1f} % here" in notes
    assert f"at most {max(cost[1] for cost in layers):.1f} % in Llama-3's layers" in notes
    assert f"{min(upper):.1f} to {max(upper):.1f} % here" in notes
    assert f"one is at {short[-1]:.1f} % and the others below {short[-2]:.1f} %" in notes


def test_the_performance_notes_say_what_paced_links_do():
    notes = " ".join((ROOT / "docs/performance.md").read_text(encoding="utf-8").split())
    gather, scatter, slower = (case for case in measured("llama_paced") if case.case.link_gbps)

    def best(case):
        fixed = {run.name: np.median(run.burst_ms) for run in case.runs if run.name.startswith("fixed")}
        return min(fixed, key=fixed.__getitem__)

    for case in (gather, slower):
        assert abs(times_as_fast(case, "one_way:4", "fixed:4") - 1) < 0.01
    assert f"still gains {100 * (times_as_fast(scatter, 'one_way:4', 'fixed:4') - 1):.0f} %" in notes
    assert f"is {times_as_fast(gather, base=best(gather)):.2f} of the best fixed crew" in notes
    assert f"was {times_as_fast(scatter, base=best(scatter)):.2f} of the best, {best(scatter)}" in notes


def test_the_performance_notes_say_which_crews_were_good():
    notes = " ".join((ROOT / "docs/performance.md").read_text(encoding="utf-8").split())
    against = []
    for case in measured("crews"):
        fixed = {run.name: np.median(run.burst_ms) for run in case.runs if run.name.startswith("fixed")}
        best = min(fixed, key=fixed.__getitem__)
        crews = {crew: times_as_fast(case, f"one_way:{crew}", best) for crew in range(2, 11)}
        two = [times_as_fast(case, f"two_way:{crew}", best) for crew in (2, 4, 6, 8, 10)]
        against.append((crews, two))
    (gather, both), (scatter, two) = against
    lowest = min(times_as_fast(measured("crews")[0], f"fixed:{crew}", "fixed:4") for crew in range(3, 11))
    assert f"while the fixed ones fall to {lowest:.2f}" in notes
    assert f"costs {100 * (1 - max(both)):.0f} to {100 * (1 - min(both)):.0f} %" in notes
    usual = [gather[crew] for crew in range(3, 11)]
    assert f"one-way from any crew of 3 to 10 is {min(usual):.3f} to {max(usual):.3f} of the best fixed" in notes
    assert f"from 2 it is {gather[2]:.2f}" in notes
    assert f"from 2 and 3 it is {scatter[2]:.3f} and {scatter[3]:.3f}" in notes
    assert f"({scatter[10]:.2f} from 10)" in notes
    assert f"({min(two):.3f} to {max(two):.3f})" in notes
