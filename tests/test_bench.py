"""The benchmark: what is measured in which order, what is made of it, and what happens when something goes wrong.

Kernels run in the emulator, and a fake clock says how long they take.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from powered import Sensor  # noqa: E402

import kosmos  # noqa: E402
from kosmos import benchmark, power  # noqa: E402
from kosmos.benchmark import measure, results, table, timer  # noqa: E402
from kosmos.benchmark.cases import Case, cases_of  # noqa: E402
from kosmos.benchmark.results import Measured, Results, Run  # noqa: E402
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosError, KosmosTimeout  # noqa: E402
from kosmos.ops.launch import plan_for  # noqa: E402
from kosmos.power import Samples  # noqa: E402
from kosmos.world import recording  # noqa: E402

pytestmark = pytest.mark.triton

GATHER, SCATTER = "all_gather_matmul", "matmul_reduce_scatter"
SMALL = {"m": 64, "n": 32, "k": 32, "ranks": 2, "workgroups": 4, "crews": (1, 3)}


class FakeTimer:
    """Runs every call once and says that it took `ms(name)`, changed by a little noise."""

    def __init__(self, ms=lambda name: 1.0, noise=0.01, at=None):
        self.ms, self.draw, self.noise, self.at = ms, np.random.default_rng(7), noise, at or {}
        self.log = []

    def _event(self, what, name):
        self.log.append((what, name))
        for (where, who, count), error in self.at.items():
            if (where, who) == (what, name) and self.log.count((what, name)) == count:
                raise error

    def _took(self, name):
        return self.ms(name) * (1 + self.noise * float(self.draw.random()))

    def capture(self, name, call, inner):
        self._event("capture", name)
        output = call()
        return timer.Loop(name, inner, lambda: output.copy_(call()), output)

    def burst(self, loop):
        self._event("burst", loop.name)
        return self._took(loop.name)

    def clock_mhz(self):
        return 1980.0 - len(self.log) % 2 if self.noise else None

    def sustain(self, loop, seconds):
        self._event("sustain", loop.name)
        return timer.Sustained([self._took(loop.name) * factor for factor in (1, 1, 1.2, 1.2)], 1500.0, 690.5)

    def launches(self, call, count, ahead):
        self._event("traced" if recording() else "untraced", ahead.name)
        if self.log.count(self.log[-1]) == 1:
            call()
        return [self._took(ahead.name) * (1.1 if recording() else 1) for _ in range(count)]

    def host(self, call, count):
        return [150.0] * count

    def machine(self):
        return {"machine": "fake", "units": 32, "sensors": "none is read"}


@pytest.fixture(autouse=True)
def plain_ops(request, monkeypatch):
    """Where the kernels do not matter: torch in their place, with the plans and the refusals of the ops."""
    if request.node.get_closest_marker("gpu"):
        return

    def plain(op):
        def call(x, w, *, world, policy=None, order):
            m = x.shape[1] * (world.ranks if op == GATHER else 1)
            plan_for(world, op, m, w.shape[1], x.shape[2], x, w, policy, order)
            product = (x.flatten(0, 1) if op == GATHER else x).double() @ w.double().transpose(1, 2)
            return (product if op == GATHER else product.sum(0).view(world.ranks, -1, w.shape[1])).to(x.dtype)

        return call

    for op in (GATHER, SCATTER):
        monkeypatch.setattr(kosmos.ops, op, plain(op))


def bench(*cases, clock=None, **options):
    options = {"rounds": 3, "sustained_s": 1, "turns": 2, "say": lambda line: None, "device": "cpu", **options}
    return kosmos.bench([Case(**{**SMALL, **case}) for case in cases], timer=clock or FakeTimer(), **options)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Threads that wait for each other take longer than these products."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def clock():
    def ms(name):
        return {"unfused": 1.2, "gemm": 0.8, "fixed:1": 3.0, "fixed:3": 1.1, "fixed:3, row": 2.2}.get(name, 1.0)

    return FakeTimer(ms)


@pytest.fixture(scope="module")
def measured(clock):
    """Both ops in the emulator, with a policy of every kind and a second order for one of them."""
    policies = ("fixed:3", "one_way:2", "one_way:3", "two_way:3")
    scatter = {"op": SCATTER, "policies": policies, "orders": ("row",), "name": "RS"}
    return bench({"op": GATHER, "name": "AG"}, scatter, clock=clock)


def test_every_variant_is_measured(measured):
    gather, scatter = measured.cases
    assert [run.name for run in gather.runs] == ["unfused", "gemm", "default", "default again", "fixed:1", "fixed:3"]
    kinds = ("default", "fixed:3", "one_way:2", "one_way:3", "two_way:3")
    asked = [f"{kind}{order}" for kind in kinds for order in ("", ", row")][1:]
    assert [run.name for run in scatter.runs if run.part == "asked"] == asked
    assert [run.name for run in scatter.runs if run.part == "swept"] == ["fixed:1"]  # fixed:3 was asked for
    for one in measured.cases:
        assert one.workgroups == 4 and one.inner == 5  # 4 ms of 0.8 ms each
        assert all(len(run.burst_ms) == 3 for run in one.runs)
        assert len(one.burst_mhz) == 3 and {*one.burst_mhz} <= {1980.0, 1979.0}
        assert len(one.traced_ms) == len(one.untraced_ms) == 3 and len(one.traced_ms[0]) == measure.LAUNCHES
        errors = {run.error for run in one.runs if run.part != "baseline"}
        assert len(errors) == 1 and 0 < errors.pop() < 1e-2
        assert one.run("default").ran == one.run("default again").ran
        assert one.run("default").host_us == one.run("unfused").host_us == [150.0] * measure.HOST_CALLS
        assert not one.failed and not one.skipped
    assert (gather.run("default").ran, scatter.run("default").ran) == ("one_way:2", "one_way:2")
    assert measured.well and measured.header["ended"] and measured.header["command"]


def test_the_command_in_the_header_names_files_without_their_folders(monkeypatch):
    said = "bench quick -o /a/home/x.json -o../y.json --output=/a/z.json --figure sub/f.png --policy one_way:8 fixed:4"
    monkeypatch.setattr(sys, "argv", ["/somewhere/kosmos", *said.split()])
    assert measure.provenance()["command"] == (
        "kosmos bench quick -o x.json -oy.json --output=z.json --figure f.png --policy one_way:8 fixed:4"
    )


def test_what_lasts_is_what_was_asked_for_and_the_ends_of_the_sweep(measured):
    for one in measured.cases:
        lasting = [run.name for run in one.runs if run.sustained_ms]
        assert lasting == [run.name for run in one.runs if run.name != "default again"]
    clock = FakeTimer(lambda name: {"fixed:1": 3.0, "fixed:2": 1.0, "fixed:3": 2.0}.get(name, 0.5))
    (one,) = bench({"op": GATHER, "crews": (3, 2, 1, 2, 4, 99)}, clock=clock).cases
    assert [run.name for run in one.fixed] == ["fixed:2", "fixed:3", "fixed:1"]  # with 4 nobody would build
    assert {run.name for run in one.runs if run.sustained_ms and run.part == "swept"} == {"fixed:1", "fixed:2"}
    assert one.run("default").clock_mhz == 1500.0 and one.run("default").power_w == 690.5


def test_variants_take_turns_in_random_order():
    def orders(seed):
        clock = FakeTimer()
        bench({"op": GATHER}, clock=clock, rounds=20, seed=seed, sustained_s=0)
        bursts = [name for what, name in clock.log if what == "burst"][3:]  # the first three size the replays
        assert len(bursts) == 21 * 6  # one round is not kept
        rounds = [tuple(bursts[at : at + 6]) for at in range(0, len(bursts), 6)]
        traces = [what for what, _ in clock.log if what.endswith("traced")]
        assert all({*pair} == {"traced", "untraced"} for pair in zip(traces[::2], traces[1::2]))
        assert not [what for what, _ in clock.log if what == "sustain"]
        return rounds, traces

    (rounds, traces), again, other = orders(0), orders(0), orders(1)
    assert (rounds, traces) == again != other
    assert {frozenset(one) for one in rounds} == {frozenset(rounds[0])} and len({*rounds}) > 15
    assert {one[0] for one in rounds} == {*rounds[0]} and {*traces[::2]} == {"traced", "untraced"}


def test_where_nothing_is_communicated_the_gemm_is_the_base():
    (one,) = bench({"op": GATHER, "ranks": 1}).cases
    assert [run.name for run in one.runs] == ["gemm", "default", "default again"]
    assert one.base.name == "gemm" and 0 <= one.base.error < 1e-2
    (one,) = bench({"op": GATHER, "link_gbps": 2.0}).cases
    assert "unfused" not in [run.name for run in one.runs] and one.base.name == "gemm"
    assert one.case.link_ms == pytest.approx(32 * 32 * 2 / 2e9 * 1e3)
    assert Case(SCATTER, 128, 32, 64, 4, link_gbps=0.5).link_ms == pytest.approx(32 * 32 * 2 / 0.5e9 * 1e3)
    assert one.bound_ms == max(np.median(one.base.burst_ms), one.case.link_ms)


def test_baselines_do_what_the_ops_do():
    for op, ranks in itertools.product((GATHER, SCATTER), (1, 3)):
        world = kosmos.World.virtual(ranks, 1, device="cpu")
        rows = 12 if op == SCATTER else 12 // ranks
        x, w = world.randn(rows, 7, torch.float32, 1), world.randn(5, 7, torch.float32, 2)
        calls = measure.baselines(op, x, w)
        for tensor in calls.scratch:
            tensor.fill_(float("nan"))
        y, parts = calls["unfused"]().double(), calls["gemm"]().double()
        each = [(x.flatten(0, 1) if op == GATHER else x[rank]).double() @ w[rank].double().T for rank in range(ranks)]
        assert torch.allclose(parts, torch.stack(each), atol=1e-5)
        assert torch.allclose(y, torch.stack(each) if op == GATHER else sum(each), atol=1e-5)


@pytest.mark.parametrize("op", [GATHER, SCATTER])
def test_the_sampled_error_sees_a_wrong_row(op):
    world = kosmos.World.virtual(4, 2, device="cpu")
    case = Case(op, 160, 24, 16, 4)
    x, w = world.randn(160 if op == SCATTER else 40, 16, torch.float32, 1), world.randn(24, 16, torch.float32, 2)
    y = getattr(kosmos, op)(x, w, world=world, order=case.default_order)
    assert measure._sampled_error(case, x, w, y) < 1e-6
    shard = y.view(4, -1, 24)  # the ranks' rows, or all of them on each rank
    for rank, row in ((0, 0), (3, shard.shape[1] - 1)):
        wrong = shard.clone()
        wrong[rank, row] += 1
        assert measure._sampled_error(case, x, w, wrong) > 1e-3


# statistics


def samples(seed, count, scale=1.0):
    return (scale * (1 + 0.1 * np.random.default_rng(seed).random(count))).tolist()


@pytest.mark.parametrize("count", [1, 2, 3, 4, 15, 20])
def test_quartiles_and_ratios(count):
    base, run = Run("a", "baseline", burst_ms=samples(1, count, 2)), Run("b", "asked", burst_ms=samples(2, count))

    def independent(values):
        if len(values) == 1:
            return values * 3
        return statistics.quantiles(values, n=4, method="inclusive")

    assert results.quartiles(run.burst_ms) == pytest.approx(independent(run.burst_ms))
    assert run.median == pytest.approx(statistics.median(run.burst_ms))
    pairs = [before / after for before, after in zip(base.burst_ms, run.burst_ms)]
    assert results.ratio(base, run) == pytest.approx(independent(pairs))
    assert results.ratio(base, base) == (1, 1, 1)


def test_pairs_cancel_what_drifts():
    drift = np.linspace(1, 2, 15)
    base, run = Run("a", "baseline", burst_ms=(3 * drift).tolist()), Run("b", "asked", burst_ms=(2 * drift).tolist())
    assert results.ratio(base, run) == pytest.approx((1.5, 1.5, 1.5))
    run.burst_ms = run.burst_ms[:-1]  # interrupted in the last round
    assert results.ratio(base, run) == pytest.approx((1.5, 1.5, 1.5))


@pytest.mark.parametrize("ms", [[3.0], [1.0, 3.0], [1, 1, 1, 2, 2, 2], samples(3, 101)])
def test_sustained_is_the_mean_of_the_last_half_of_the_time(ms):
    kept, elapsed = [], 0.0
    for value in ms:
        elapsed += value
        if elapsed > sum(ms) / 2 + 1e-12:
            kept.append(value)
    assert Run("a", "asked", sustained_ms=[ms]).sustained == pytest.approx(sum(kept) / len(kept))
    assert Run("a", "asked").sustained is None


def test_sustained_ratios_are_taken_turn_by_turn():
    base = Run("a", "baseline", sustained_ms=[[3.0], [6.0], [9.0]])
    run = Run("b", "asked", sustained_ms=[[2.0], [4.0], [6.0]])
    assert results.sustained_ratio(base, run) == pytest.approx((1.5, 1.5, 1.5)) and run.sustained == 4.0
    assert results.sustained_ratio(base, Run("c", "asked")) is None
    run.sustained_ms.pop()  # interrupted in the last turn
    assert results.sustained_ratio(base, run) == pytest.approx((1.5, 1.5, 1.5)) and run.sustained == 3.0


def test_benchmarks_of_the_first_format_are_read(measured, tmp_path):
    path, old = tmp_path / "new.json", tmp_path / "old.json"
    measured.save(path)
    content = json.loads(path.read_text())
    content["format"] = 1
    for run in content["cases"][0]["runs"] + content["cases"][1]["runs"]:
        run["sustained_ms"] = run["sustained_ms"][0] if run["sustained_ms"] else []
    old.write_text(json.dumps(content))
    (first, *_), (again, *_) = (kosmos.benchmark.load(each).cases for each in (path, old))
    assert [run.turns for run in again.runs] == [run.turns[:1] for run in first.runs]


def test_the_cost_of_a_trace_is_taken_round_by_round():
    one = Measured(Case(GATHER, **SMALL), untraced_ms=[[1, 1], [2, 2], [3, 3]])
    one.traced_ms = [[1, 1.1], [2.2, 2.2], [3.0, 3.0]]
    assert one.trace_cost == pytest.approx((0.025, 0.05, 0.075))
    assert Measured(Case(GATHER, **SMALL)).trace_cost is None
    values = [0.5, 2.0, 8.0]
    assert results.geometric_mean(values) == pytest.approx(math.prod(values) ** (1 / 3))


# text


def row(text, name):
    (found,) = [line for line in text.splitlines() if line.startswith(f"  {name}  ")]
    return found.split()


def test_the_table_says_what_was_measured(measured):
    gather, scatter = str(measured).split("\n\n")[2:4]
    one = measured.cases[1]
    medians = {run.name: np.median(run.burst_ms) for run in one.runs}
    assert row(scatter, "unfused")[1] == f"{medians['unfused']:#.4g}"
    words = row(scatter, "default = one_way:2")
    ratios = np.array(one.run("unfused").burst_ms) / one.run("default").burst_ms
    low, middle, high = np.percentile(ratios, [25, 50, 75])
    assert words[3] == f"{medians['default']:#.4g}"
    assert words[5] == f"{2 * 64 * 32 * 32 * 2 / medians['default'] / 1e9:.0f}"
    assert words[6:8] == [f"{middle:.3f}", f"{low:.3f}–{high:.3f}"]
    fixed = [
        np.median(np.array(one.run(name).burst_ms) / one.run("default").burst_ms) for name in ("fixed:3", "fixed:1")
    ]
    assert words[8:10] == [f"{value:.3f}" for value in fixed]
    late = np.array(one.run("default").sustained_ms)[:, 2:].mean(axis=1)
    assert len(late) == 2 and words[10] == f"{np.median(late):#.4g}" and words[-2:] == ["1500", "690"]
    others = np.array(one.run("unfused").sustained_ms)[:, 2:].mean(axis=1)
    low, middle, high = np.percentile(others / late, [25, 50, 75])
    assert words[11:13] == [f"{middle:.3f}", f"{low:.3f}–{high:.3f}"]
    assert "fixed:3  best fixed" in scatter and "fixed:1  worst fixed" in scatter
    assert re.search(r"band order is 2\.\d+ \(.*\) × row order under fixed:3", scatter)
    assert re.search(r"one_way from crews of 2 to 3: 1\.\d+ to 1\.\d+ × fixed:3; the slowest, one_way:\d", scatter)
    assert f"after bursts: {np.median(one.burst_mhz):.0f} MHz, at least {min(one.burst_mhz):.0f}" in scatter
    assert "a trace costs +10" in scatter.replace("+9.", "+10.") and "150 µs in an eager call" in gather
    assert "AG: all_gather_matmul, m=64 n=32 k=32 a rank, bf16, 2 ranks of 4 workgroups" in gather
    text = str(measured)
    assert text.startswith("fake, 32 compute units\n") and "none is read" in text and torch.__version__ in text
    assert max(map(len, text.splitlines())) <= 160


def test_columns_stand_under_each_other():
    rows = [["", "above", "", "empty"], ["name", "ms", "", ""], ["a", "1.5", "", ""], ["longer", "", "", ""]]
    assert table.aligned(rows, heads=2) == ["        above", "name       ms", "a         1.5", "longer"]
    assert table.aligned([["a", "b"], ["longer", "c"]], left=2) == ["a       b", "longer  c"]


def test_the_summary_is_a_geometric_mean(measured):
    twice = Results(measured.header, [replace(one, case=replace(one.case, set="two")) for one in measured.cases])
    found = [results.ratio(one.base, one.run("default"))[1] for one in measured.cases]
    line = str(twice).splitlines()[-1]
    assert f"two: default × unfused, geometric mean of 2 cases {math.sqrt(found[0] * found[1]):.3f}" in line
    assert f"lowest {min(found):.3f} ({'AG' if found[0] < found[1] else 'RS'})" in line


def test_results_are_compared_by_their_ratios(measured):
    slower = FakeTimer(lambda name: 5 * {"default": 1.5, "unfused": 1.2, "gemm": 0.8}.get(name, 1.0))
    other = bench({"op": GATHER, "name": "AG"}, {"op": SCATTER, "name": "new"}, clock=slower)
    lines = table.compared(measured, other).splitlines()
    assert len(lines) == 2 + 5  # all but the base, of the one case that is in both
    (default,) = [line for line in lines if " default  " in line]
    assert default.split()[:3] == ["AG", "default", "unfused"] and default.endswith("slower") and "-3" in default
    assert table.compared(measured, measured).count(" +0.0 %") == sum(len(one.runs) - 1 for one in measured.cases)
    assert table.compared(measured, Results()) == "no case and variant is in both\n"


# file


def test_a_file_holds_everything(measured, tmp_path):
    path = tmp_path / "bench.json"
    measured.save(path)
    assert benchmark.load(path) == measured and str(benchmark.load(path)) == str(measured)
    content = json.loads(path.read_text())

    def keys(value):
        if isinstance(value, dict):
            return {*value}.union(*map(keys, value.values()))
        return set().union(*map(keys, value)) if isinstance(value, list) else set()

    described = {*re.findall(r'"(\w+)"', results.__doc__)}
    assert keys(content) <= described, "the schema in results.py does not know these"
    assert os.listdir(tmp_path) == ["bench.json"]


def test_an_error_that_is_no_number_is_kept(tmp_path):
    one = Measured(Case(GATHER, **SMALL), failed="default: wrong", runs=[Run("default", "default", error=math.nan)])
    Results(cases=[one]).save(tmp_path / "nan.json")
    json.loads((tmp_path / "nan.json").read_text(), parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))
    loaded = benchmark.load(tmp_path / "nan.json")
    assert math.isnan(loaded.cases[0].runs[0].error) and "FAILED: default: wrong" in str(loaded) and not loaded.well


def spoiled(content, *path, value):
    at = content
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    return json.dumps(content)


def test_an_import_that_breaks_off_does_not_make_a_file_damaged(measured, tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    measured.save(file)

    class Broken:
        def find_spec(self, name, *_):
            if name == "kosmos.benchmark.table":
                raise AttributeError("half imported")

    monkeypatch.delitem(sys.modules, "kosmos.benchmark.table")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(AttributeError, match="half imported"):
        benchmark.load(file)


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda content: "", "is not JSON"),
        (lambda content: json.dumps(content)[:-9], "is not JSON"),
        (lambda content: "\0\xff", "is not JSON"),
        (lambda content: "[" * 100_000, "is not JSON"),
        (lambda content: "[1]", "is JSON, but no benchmark"),
        (lambda content: spoiled(content, "kosmos", value="trace"), "is JSON, but no benchmark"),
        (lambda content: spoiled(content, "format", value=3), "has format 3; this version reads 1 and 2"),
        (lambda content: spoiled(content, "format", value=None), "has format None"),
        (lambda content: spoiled(content, "cases", value=5), "is a damaged benchmark"),
        (lambda content: spoiled(content, "header", value=[1]), "is a damaged benchmark"),
        (lambda content: spoiled(content, "cases", 0, "case", "op", value="sort"), "is a damaged benchmark"),
        (lambda content: spoiled(content, "cases", 0, "case", "more", value=1), "is a damaged benchmark"),
        (lambda content: spoiled(content, "cases", 0, "runs", 0, "burst_ms", value=[1.0, -1.0]), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 0, "burst_ms", value=[0]), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "burst_ms", value=["1"]), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "sustained_ms", value=7), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "sustained_ms", value=[7]), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "sustained_ms", value=[[]]), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "ran", value="one_way:x"), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "ran", value=3), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "runs", 2, "error", value="much"), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "traced_ms", value=[[]]), "is a damaged"),
        (lambda content: spoiled(content, "cases", 0, "untraced_ms", value=[[0.0], [0.0], [0.0]]), "is a damaged"),
    ],
)
def test_what_is_no_benchmark_is_refused_in_one_sentence(measured, tmp_path, spoil, sentence):
    path = tmp_path / "bench.json"
    measured.save(path)
    path.write_text(spoil(json.loads(path.read_text())), encoding="latin-1")
    with pytest.raises(KosmosArgumentError, match=sentence) as refused:
        benchmark.load(path)
    assert str(refused.value).startswith(f"{path}: ") and "\n" not in str(refused.value)


def test_files_that_cannot_be_read_or_written(measured, tmp_path):
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(KosmosArgumentError, match="cannot be read"):
            benchmark.load(path)
    for path in (tmp_path / "no" / "bench.json", tmp_path):
        with pytest.raises(KosmosArgumentError, match="cannot be written"):
            measured.save(path)
        clock = FakeTimer()
        with pytest.raises(KosmosArgumentError, match="cannot be written"):
            bench({"op": GATHER}, clock=clock, output=path)
        assert not clock.log
    assert os.listdir(tmp_path) == []


# picture


def test_the_figure_shows_the_ratios(measured):
    drawn = measured.plot()
    above = drawn.subfigs[0].axes[0]
    labels = [label.get_text() for label in above.get_yticklabels()]
    assert labels[:3] == ["AG  ·  one_way:2", "RS  ·  one_way:2", "default, row order"]
    assert labels.count("fixed:3, row order") == 1
    places = dict(zip(above.get_yticks().tolist(), labels))
    drawn_at = {label: [] for label in labels}
    for line in above.lines:
        for x, y in zip(line.get_xdata(), line.get_ydata()):
            if y in places:
                drawn_at[places[y]].append(float(x))
    for one in measured.cases:
        _, middle, _ = results.ratio(one.base, one.run("default"))
        label = f"{one.case.name}  ·  {one.run('default').ran}"
        assert any(x == pytest.approx(middle) for x in drawn_at[label])
        assert any(x == pytest.approx(one.base.median / one.run("gemm").median) for x in drawn_at[label])
    assert above.get_xlabel() == "times as fast as the unfused op"
    texts = [text.get_text() for text in drawn.legends[0].get_texts()]
    assert {"bound: GEMMs or links alone", "the same, sustained", "best to worst fixed crew", "two_way"} <= {*texts}
    assert drawn.get_facecolor()[:3] == (1, 1, 1) and above.get_facecolor()[:3] == (1, 1, 1)


def test_crews_are_drawn_against_the_ratio():
    policies = ("one_way:1", "one_way:3", "one_way:2")
    swept = bench({"op": GATHER, "policies": policies, "crews": (1, 2)}, {"op": GATHER, "name": "other"})
    drawn = swept.plot()
    panel, empty = drawn.subfigs[1].axes
    curves = {line.get_label(): line for line in panel.lines}
    one = swept.cases[0]
    expected = [results.ratio(one.base, one.run(f"one_way:{crew}"))[1] for crew in (1, 2, 3)]
    np.testing.assert_allclose(curves["one_way"].get_ydata(), expected)
    assert list(curves["one_way"].get_xdata()) == [1, 2, 3] and list(curves["fixed"].get_xdata()) == [1, 2]
    assert panel.get_xlabel() == "crew (workgroups of 4 a rank)" and not empty.axison
    assert len(drawn.subfigs[0].axes[0].get_yticks()) == 2  # what is drawn below is not drawn above
    with pytest.raises(KosmosArgumentError, match="nothing was measured"):
        Results().plot()


# what goes wrong


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (lambda y: y[:, :1].fill_(math.nan), "parts of it were not written or are not finite"),
        (lambda y: y.mul_(1.1), r"off by 1\.\de-01; 0\.01 is allowed"),
        (lambda y: y[..., -1:, -1:].view(torch.int16).add_(1), "its bits are not those of the default policy"),
    ],
)
def test_a_wrong_result_fails_by_name_and_the_others_go_on(monkeypatch, spoil, sentence):
    right = kosmos.ops.all_gather_matmul

    def wrong(x, w, *, world, policy, order):
        y = right(x, w, world=world, policy=policy, order=order)
        if policy == "fixed:3":
            spoil(y)
        return y

    monkeypatch.setattr(kosmos.ops, GATHER, wrong)
    clock = FakeTimer()
    found = bench({"op": GATHER}, {"op": SCATTER}, clock=clock)
    gather, scatter = found.cases
    assert re.fullmatch(f"fixed:3: the result is wrong, {sentence}", gather.failed)
    assert not gather.timed and scatter.timed and not found.well
    assert "FAILED: fixed:3: the result is wrong" in str(found) and "failed: AG 64×32×32, 2 ranks" in str(found)
    assert [run.name for run in gather.runs if run.error is not None][:3] == ["unfused", "gemm", "default"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has ..."),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes."),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        MemoryError(),
    ],
)
def test_a_case_without_room_is_skipped_and_the_others_go_on(error):
    said = []
    clock = FakeTimer(at={("capture", "fixed:1", 1): error})
    found = bench({"op": GATHER, "name": "large"}, {"op": SCATTER}, clock=clock, say=said.append)
    large, scatter = found.cases
    assert large.skipped.startswith("not enough memory") and not large.timed and scatter.timed and found.well
    assert "skipped: large" in str(found) and any("skipped, not enough memory" in line for line in said)


def test_no_room_late_keeps_what_was_measured():
    error = torch.OutOfMemoryError("CUDA out of memory. Tried")
    (one,) = bench({"op": GATHER}, clock=FakeTimer(at={("traced", "default", 1): error})).cases
    assert one.skipped and len(one.run("default").burst_ms) == 3 and one.traced_ms == []
    assert "default = one_way:2" in str(Results({}, [one]))


def test_other_errors_are_not_hidden():
    for error in (RuntimeError("CUDA error: an illegal memory access was encountered"), ValueError("odd")):
        with pytest.raises(type(error), match=str(error)):
            bench({"op": GATHER}, clock=FakeTimer(at={("burst", "gemm", 1): error}))


def test_a_wait_that_expires_fails_the_case():
    late = KosmosTimeout("rank 0, workgroup 1: builder item 2 waited 2 s for counter 3, which had 0 of 1 signals")
    found = bench({"op": GATHER}, {"op": SCATTER}, clock=FakeTimer(at={("capture", "fixed:1", 1): late}))
    assert found.cases[0].failed.startswith("fixed:1: rank 0, workgroup 1") and found.cases[1].timed and not found.well
    found = bench({"op": GATHER}, clock=FakeTimer(at={("burst", "default", 2): late}))
    assert found.cases[0].failed == str(late)


def test_a_variant_that_cannot_be_is_left_out_of_a_set_and_refused_by_hand():
    """fixed:4 leaves no builder."""
    (one,) = bench({"op": GATHER, "policies": ("fixed:4", "one_way:2"), "set": "some"}).cases
    (left,) = [run for run in one.runs if run.left_out]
    assert left.name == "fixed:4" and one.run("one_way:2") and "left out: fixed:4, " in str(Results({}, [one]))
    for wrong in ({"policies": ("fixed:4",)}, {"orders": ("row",)}, {"link_gbps": 1e-5}):
        with pytest.raises(KosmosError):
            bench({"op": GATHER, **wrong})
    (one,) = bench({"op": GATHER, "link_gbps": 1e-5, "set": "some"}).cases
    assert "link_gbps" in one.skipped and not one.runs


def test_an_interrupt_leaves_what_was_measured(tmp_path):
    path = tmp_path / "bench.json"
    for at, rounds in ((("burst", "default", 3), 1), (("sustain", "gemm", 1), 3), (("capture", "gemm", 1), 0)):
        kept = Results()
        with pytest.raises(KeyboardInterrupt):
            bench({"op": GATHER}, clock=FakeTimer(at={at: KeyboardInterrupt()}), output=path, results=kept)
        (one,) = kept.cases
        assert sorted({len(run.burst_ms) for run in one.runs}) in ([rounds], [rounds, rounds + 1], [])
        assert not kept.header["ended"] and "ended early" in str(kept)
        kept.save(path)
        assert benchmark.load(path) == kept


def test_the_file_is_there_after_every_case(tmp_path):
    path = tmp_path / "bench.json"
    clock = FakeTimer(at={("capture", "gemm", 3): RuntimeError("the machine is gone")})
    with pytest.raises(RuntimeError, match="gone"):
        bench({"op": GATHER, "name": "first"}, {"op": SCATTER}, clock=clock, output=path)
    (one,) = benchmark.load(path).cases
    assert one.case.name == "first" and one.timed


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"op": "sort"}, "op='sort' is unknown"),
        ({"op": GATHER, "m": 0}, "m=0 must be a whole number"),
        ({"op": GATHER, "k": 2.5}, "k=2.5 must be"),
        ({"op": GATHER, "m": 65}, "m=65 must divide by ranks=2"),
        ({"op": GATHER, "ranks": True}, "ranks=True must be"),
        ({"op": GATHER, "workgroups": 0}, "workgroups=0 must be"),
        ({"op": GATHER, "dtype": "int8"}, "dtype='int8' is unknown"),
        ({"op": GATHER, "policies": "fixed:2"}, "policies='fixed:2' must be several"),
        ({"op": GATHER, "policies": ("fixed",)}, "policy='fixed' is unknown"),
        ({"op": GATHER, "orders": (len,)}, "must be the name of an order"),
        ({"op": GATHER, "crews": (0,)}, r"crews=\(0,\) must be whole numbers"),
        ({"op": GATHER, "crews": 3}, "crews=3 must be several"),
        ({"op": GATHER, "link_gbps": -1}, "link_gbps=-1 must be a rate"),
    ],
)
def test_a_case_that_cannot_be_is_refused(options, sentence):
    with pytest.raises(KosmosArgumentError, match=sentence):
        Case(**{**SMALL, **options})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"cases": "fast"}, "set='fast' is unknown; allowed are quick, one_rank, llama, orders, crews, paced, all"),
        ({"cases": []}, "cases must be"),
        ({"cases": ["quick", 1]}, "cases must be"),
        ({"cases": ["quick", "fast"]}, "set='fast' is unknown"),
        ({"rounds": 0}, "rounds=0 must be"),
        ({"sustained_s": 0.5}, "sustained_s=0.5 must be from 1 to 3600 seconds, or 0"),
        ({"sustained_s": math.nan}, "sustained_s=nan"),
        ({"turns": 0}, "turns=0 must be a whole number, 1 or more"),
        ({"seed": -1}, "seed=-1 must be"),
    ],
)
def test_bad_arguments_are_refused_before_anything_runs(options, sentence):
    clock = FakeTimer()
    with pytest.raises(KosmosArgumentError, match=sentence):
        kosmos.bench(**{"cases": "quick", **options}, timer=clock, device="cpu")
    assert not clock.log


def test_the_sets_are_what_they_are_said_to_be():
    everything = cases_of("all")
    assert len(everything) == sum(len(cases_of(name)) for name in benchmark.SETS)
    for name in benchmark.SETS:
        cases = cases_of(name)
        assert {case.set for case in cases} == {name} and len({case.name for case in cases}) == len(cases)
        assert all(case.ranks == (1 if name == "one_rank" else 4) and case.dtype == "bf16" for case in cases)
    llama = cases_of("llama")
    assert len(llama) == 12 and {case.m for case in llama} == {8192}
    hidden = {"8B": (4096, 14336), "70B": (8192, 28672), "405B": (16384, 53248)}
    for case in llama:
        model, layer = case.name.split()[1:]
        width, inner = hidden[model]
        assert (case.n, case.k) == {
            "QKV": (width // 8 + 2 * 128, width),  # eight KV heads of 128 on eight ranks: one for K, one for V
            "proj": (width, width // 8),
            "fc1": (2 * inner // 8, width),
            "fc2": (width, inner // 8),
        }[layer]
        assert (case.op == GATHER) == (layer in ("QKV", "fc1"))
    policies = {policy for case in cases_of("crews") for policy in case.policies}
    assert {f"one_way:{crew}" for crew in range(2, 11)} < policies
    assert all(case.link_ms > case.flops / 800e12 * 1e3 for case in cases_of("paced"))  # bound by the links


# the command


def command(*arguments):
    parser = argparse.ArgumentParser(prog="kosmos bench", exit_on_error=False)
    benchmark.add_arguments(parser)
    return benchmark.run(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def on_the_emulator(monkeypatch):
    """The command with small cases for a set, a fake clock and the emulator."""

    def start(clock=None):
        def emulated(cases, **options):
            small = [Case(GATHER, **SMALL, name="first"), Case(SCATTER, **SMALL)] if isinstance(cases, list) else cases
            given = {"rounds": 2, "say": lambda line: None, **options, "device": "cpu"}
            return original(small, timer=clock or FakeTimer(), **given)

        monkeypatch.setattr(benchmark, "bench", emulated)

    original = benchmark.bench
    return start


def test_the_command_measures_saves_and_shows(on_the_emulator, tmp_path, capsys):
    on_the_emulator()
    path, picture = tmp_path / "bench.json", tmp_path / "bench.svg"
    assert command("quick", "--rounds", 3, "--sustained", 1, "--seed", 4, "-o", path, "--figure", picture) == 0
    first = capsys.readouterr().out
    loaded = benchmark.load(path)
    assert first == str(loaded) and loaded.header["seed"] == 4 and loaded.header["rounds"] == 3
    assert picture.read_bytes().startswith(b"<?xml") and len(loaded.cases) == 2
    assert command("--show", path, "--figure", tmp_path / "again.PNG") == 0
    assert capsys.readouterr().out == first and (tmp_path / "again.PNG").read_bytes().startswith(b"\x89PNG")
    assert command("--compare", path, path) == 0 and "+0.0 %" in capsys.readouterr().out
    arguments = "--m 64 --n 32 --k 32 --ranks 2 --workgroups 3 --dtype fp32 --policy fixed:2 planned --order row"
    assert command("--op", SCATTER, *arguments.split(), "--crews", 1, "--sustained", 0, "-o", path) == 0
    (one,) = benchmark.load(path).cases
    assert one.case == Case(SCATTER, 64, 32, 32, 2, "fp32", ("fixed:2", "planned"), ("row",), (1,), None, 3)
    assert one.run("planned").kind == "fixed" and one.run("planned") not in one.fixed


def test_exit_codes(on_the_emulator, tmp_path, capsys, monkeypatch):
    path = tmp_path / "bench.json"
    on_the_emulator(FakeTimer(at={("burst", "default", 5): KeyboardInterrupt()}))
    assert command("-o", path, "--figure", tmp_path / "a.png") == 130
    out, error = capsys.readouterr()
    assert "ended early" in out and error == "kosmos: interrupted; this is what was measured\n"
    assert len(benchmark.load(path).cases) == 2 and (tmp_path / "a.png").exists()
    on_the_emulator(FakeTimer(at={("capture", "gemm", 1): KeyboardInterrupt()}))
    assert command() == 130
    assert capsys.readouterr() == ("", "kosmos: interrupted before anything was measured\n")
    on_the_emulator(FakeTimer(at={("capture", "gemm", count): MemoryError() for count in (1, 2)}))
    assert command("--figure", tmp_path / "b.png") == 1 and "not enough memory" in capsys.readouterr().out
    assert not (tmp_path / "b.png").exists()
    right = kosmos.ops.all_gather_matmul
    monkeypatch.setattr(kosmos.ops, GATHER, lambda *given, **options: right(*given, **options) * 2)
    on_the_emulator()
    assert command() == 1 and "FAILED: default: the result is wrong" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("quick --op all_gather_matmul --m 1 --n 1 --k 1", "it is either the set quick or --op all_gather_matmul"),
        ("--op all_gather_matmul --m 8 --n 8", "--op needs --m, --n and --k"),
        ("--workgroups 2", "--workgroups is for one case and needs --op"),
        ("quick --link-gbps 20", "--link-gbps is for one case and needs --op"),
        ("--op all_gather_matmul --m 8 --n 8 --k 8 --policy two", "policy='two' is unknown"),
        ("--show a.json quick", "--show reads what was measured; SET does not go with it"),
        ("--show a.json -o b.json", "--show reads what was measured; -o does not go with it"),
        ("--compare a.json b.json --figure c.png", "--compare reads what was measured; --figure does not go with it"),
        ("--show a.json --compare b.json c.json", "--show reads what was measured; --compare does not go with it"),
        ("--show /no/such.json", "/no/such.json: cannot be read"),
        ("--figure a.gif", "a.gif: the name of a picture must end in .png, .svg, .pdf"),
        ("--figure /no/such/a.png", "/no/such/a.png: cannot be written, there is no folder"),
        ("--rounds 0", "rounds=0 must be"),
    ],
)
def test_wrong_input_is_one_sentence(arguments, sentence):
    with pytest.raises(KosmosArgumentError, match=re.escape(sentence)) as refused:
        command(*arguments.split())
    assert "\n" not in str(refused.value)


def test_several_sets(monkeypatch):
    chosen = [case.set for case in measure._chosen(["orders", "paced", Case(GATHER, **SMALL)])]
    assert chosen == ["orders"] * 2 + ["paced"] * 3 + [""]
    seen = []
    monkeypatch.setattr(benchmark, "bench", lambda cases, **options: seen.append(cases))
    assert command("orders", "paced") == command() == 1 and seen == [["orders", "paced"], ["quick"]]
    with pytest.raises(KosmosArgumentError, match="set='fast' is unknown"):
        measure._chosen("fast")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(kosmos.World, "virtual", lambda *given, **options: pytest.fail("something was allocated"))
    for arguments in ([], ["--device", "cuda:1"], ["--device", "cpu"], ["-o", tmp_path / "a.json"]):
        with pytest.raises(KosmosEnvironmentError, match="^a benchmark needs a GPU, and torch sees none"):
            command("all", *arguments)
    assert os.listdir(tmp_path) == []


def test_without_torch_it_is_one_sentence_and_a_file_can_be_read(measured, tmp_path):
    measured.save(tmp_path / "bench.json")
    code = (
        "import sys\n"
        "for absent in ('torch', 'triton', 'greenlet'): sys.modules[absent] = None\n"
        "import kosmos.benchmark\n"
        "print(*{'numpy', 'matplotlib', 'pyarrow'} & {*sys.modules})\n"
        "try: kosmos.bench('quick')\n"
        "except kosmos.KosmosEnvironmentError as error: print(error)\n"
        "print(kosmos.benchmark.load(sys.argv[1]), end='')"
    )
    run = [sys.executable, "-c", code, tmp_path / "bench.json"]
    found = subprocess.run(run, capture_output=True, text=True, cwd=Path(kosmos.__file__).parent.parent)
    assert found.stdout == "\na benchmark needs torch, which is not installed here\n" + str(measured), found.stderr


# the clock on a GPU, as far as it can be tried without one


def test_triton_has_the_hooks_that_launches_are_timed_with():
    for chain in (timer.knobs.runtime.launch_enter_hook, timer.knobs.runtime.launch_exit_hook):
        seen = []
        chain.add(seen.append)
        try:
            chain("launch")
        finally:
            chain.remove(seen.append)
        chain("after")
        assert seen == ["launch"]


class FakeGpu:
    """torch.cuda with a device that does one thing after the other, in virtual ms, and a host that never waits."""

    def __init__(self, monkeypatch):
        self.now, self.host, self.captured, self.kernels = 0.0, 0.0, None, 0
        gpu = self

        class Event:
            def __init__(self, enable_timing):
                assert enable_timing

            def record(self):
                gpu.run(0)
                self.at = gpu.now

            def synchronize(self):
                gpu.host = max(gpu.host, self.at)

            def elapsed_time(self, end):
                return end.at - self.at

        class CUDAGraph:
            def replay(self):
                for ms in self.work:
                    gpu.run(ms)

        @contextlib.contextmanager
        def graph(of):
            self.captured = of.work = []
            yield
            self.captured = None

        fakes = {
            "Event": Event,
            "CUDAGraph": CUDAGraph,
            "graph": graph,
            "device": lambda device: contextlib.nullcontext(),
            "synchronize": lambda: setattr(gpu, "host", max(gpu.host, gpu.now)),
        }
        for name, fake in fakes.items():
            monkeypatch.setattr(torch.cuda, name, fake)
        clock = types.SimpleNamespace(
            perf_counter=lambda: gpu.host / 1000, perf_counter_ns=lambda: int(gpu.host * 1e6), sleep=self.rest
        )
        monkeypatch.setattr(timer, "time", clock)
        monkeypatch.setattr(timer, "CLEARED_BYTES", 8)
        reads = {"find": lambda device: Sensor(lambda count: {"sm_clock": 1400.0}), "sample": self.sample}
        monkeypatch.setattr(timer, "power", types.SimpleNamespace(**reads))
        self.timer = timer.GpuTimer(torch.device("cpu"))

    def run(self, ms):
        if self.captured is not None:
            self.captured.append(ms)
        else:
            self.now = max(self.now, self.host) + ms

    def rest(self, seconds):
        self.host = max(self.host, self.now) + 1000 * seconds

    def sample(self, hz, device, sensor, updates):
        """Readings of four seconds: what counts is the last half."""
        first = {"sm_clock": 1900.0, "power": 500.0}
        later = {"sm_clock": 1500.0, "power": 700.0}
        samples = Samples("fake", [(0, first), (int(2e9), later)], 1, 0, int(4e9))
        reading = contextlib.nullcontext()
        reading.samples = samples
        return reading

    def call(self, ms):
        """An op: its kernel, launched as triton does, a copy after it, and 0.2 ms of the host."""

        def call():
            self.host += 0.2
            timer.knobs.runtime.launch_enter_hook({})
            self.run(ms)
            timer.knobs.runtime.launch_exit_hook({})
            self.run(10)
            self.kernels += 1
            return torch.tensor(self.kernels)

        return call


def test_the_clock_of_a_gpu(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    loop = gpu.timer.capture("a", gpu.call(3), 4)
    assert loop.output == 2 + 4 and gpu.captured is None  # two calls to warm up, then what is captured
    gpu.host = before = gpu.now
    assert gpu.timer.burst(loop) == pytest.approx(13) and gpu.now - before == pytest.approx(52)
    assert gpu.host - gpu.now == pytest.approx(2 * 52)  # it rests twice as long
    assert gpu.timer.launches(gpu.call(5), 3, loop) == pytest.approx([5, 5, 5])
    assert not timer.knobs.runtime.launch_enter_hook.calls and not timer.knobs.runtime.launch_exit_hook.calls
    assert gpu.timer.host(gpu.call(5), 6) == pytest.approx([200] * 6, abs=0.01)
    gpu.host = before = gpu.now
    sustained = gpu.timer.sustain(loop, 1.0)
    assert gpu.now - before >= 1000 and sustained.ms == pytest.approx([13] * len(sustained.ms))
    assert len(sustained.ms) * 52 == pytest.approx(gpu.now - before) and len(sustained.ms) <= 1000 / 52 + 6
    assert (sustained.clock_mhz, sustained.power_w) == (1500.0, 700.0)

    assert gpu.timer.launches(lambda: None, 2, loop) == []  # the hooks were not called

    def broken():
        raise ValueError("no launch")

    with pytest.raises(ValueError, match="no launch"):
        gpu.timer.launches(broken, 1, loop)
    assert not timer.knobs.runtime.launch_enter_hook.calls


def test_the_sensor_of_a_gpu(monkeypatch):
    gpu = FakeGpu(monkeypatch)
    assert gpu.timer.clock_mhz() == 1400.0
    gpu.timer.sensor = Sensor(lambda count: RuntimeError("GPU is lost"))
    assert gpu.timer.clock_mhz() is None
    gpu.timer.sensor = power.NoSensor("nvidia-ml-py is not installed")
    assert gpu.timer.clock_mhz() is None


def test_without_a_sensor_a_sentence_says_so():
    text = str(Results({"sensors": power.NoSensor("nvidia-ml-py is not installed").name}))
    assert "no sensor here: nvidia-ml-py is not installed" in text
    assert "through" not in str(Results({"sensors": "NVIDIA H200 through nvidia-ml-py"}))


@pytest.mark.gpu
def test_on_a_gpu(tmp_path):
    cases = [
        Case(GATHER, 1024, 512, 512, 4, policies=("two_way:2",), crews=(2, 4)),
        Case(SCATTER, 1024, 512, 512, 4, orders=("row",), crews=(2, 4)),
        Case(GATHER, 512, 512, 512, 1),
        Case(GATHER, 1024, 512, 512, 4, crews=(2,), link_gbps=20, workgroups=16),
    ]
    found = kosmos.bench(cases, rounds=3, sustained_s=1, output=tmp_path / "bench.json")
    assert found.well and benchmark.load(tmp_path / "bench.json") == found
    for one in found.cases:
        assert all(len(run.burst_ms) == 3 for run in one.runs) and not one.skipped
        assert all(len(launches) == measure.LAUNCHES for launches in one.traced_ms + one.untraced_ms)
        assert len(one.run("default").turns) == 3
        assert all(sum(turn) * one.inner >= 1000 for turn in one.run("default").sustained_ms)
