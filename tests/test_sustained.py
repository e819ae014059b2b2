"""Sustained sweeps: what is run in which order, what is made of it, the file, the model, and the command."""

import json
import math
import re
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from powered import LAW, RATE, TILES, Sensor, samples_of, sweep_of

import kosmos
from kosmos import power
from kosmos.benchmark import sustained
from kosmos.benchmark.sustained import cases, load, plan
from kosmos.benchmark.sustained.results import Results, Run
from kosmos.cli import main
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.power.model import Observation, PowerModel, busy, fit

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.triton

SHAPE = {"op": "matmul", "m": 8192, "n": 8192, "k": 8192, "ranks": 4, "dtype": "bf16", "units": 132}
REST = {"workgroups": None, "data": None, "policies": None, "turns": None, "hz": 50.0, "seed": 0}


def planned(over, **changes):
    return plan(over, **{**SHAPE, **REST, **changes})


# what is run


def test_every_grid_is_run_once_and_the_full_one_between():
    sweep = planned("workgroups")
    counts = [point.workgroups for point in sweep.points]
    assert counts[0] == 132 and counts == sorted(counts, reverse=True) and min(counts) <= 132 / 8
    assert 116 in counts  # the paper's share, 7/8
    times = Counter(sweep.order)
    assert all(times[at] == 1 for at in range(1, len(counts)))
    full = [turn for turn, at in enumerate(sweep.order) if at == 0]
    assert full[0] == 0 and full[-1] == len(sweep.order) - 1
    assert max(np.diff(full)) <= cases.BETWEEN + 1


def test_the_order_is_random_and_the_seeds():
    orders = {planned("workgroups", seed=seed).order for seed in range(5)}
    assert len(orders) == 5 and planned("workgroups", seed=3).order == planned("workgroups", seed=3).order
    assert list(planned("workgroups").order[1:5]) != [1, 2, 3, 4]


def test_some_grids_are_recorded_from_end_to_end():
    traced = [point.workgroups for point in planned("workgroups").points if point.traced]
    assert len(traced) == 5 and traced[0] == 132 and traced[-1] == 16


def test_grids_that_are_asked_for_come_beside_the_full_one():
    sweep = planned("workgroups", workgroups=[64, 32, 64])
    assert [point.workgroups for point in sweep.points] == [132, 64, 32]
    fused = planned("workgroups", op="matmul_reduce_scatter", ranks=4)
    assert fused.points[0].workgroups == 33 and fused.points[0].active == 132


@pytest.mark.parametrize("over, key", [("data", "data"), ("policy", "policy"), ("sampling", "sampled_hz")])
def test_everything_is_run_in_every_turn(over, key):
    op = "matmul_reduce_scatter" if over == "policy" else "matmul"
    sweep = planned(over, op=op, turns=3)
    values = [getattr(point, key) for point in sweep.points]
    assert len({*values}) == len(values) > 1
    for turn in range(3):
        count = len(values)
        assert sorted(sweep.order[turn * count : (turn + 1) * count]) == list(range(count))


def test_the_sampler_is_judged_where_the_cap_does_not_count():
    sweep = planned("sampling", hz=20.0)
    assert [point.sampled_hz for point in sweep.points] == [0.0, 20.0]
    assert {point.workgroups for point in sweep.points} == {33}


@pytest.mark.parametrize(
    "over, changes, says",
    [
        ("time", {}, "over='time' is unknown; allowed are workgroups, data, policy, sampling"),
        ("data", {"op": "conv"}, "op='conv' is unknown; allowed are matmul, all_gather_matmul"),
        ("data", {"m": 0}, "m=0 must be a whole number"),
        ("data", {"op": "all_gather_matmul", "m": 6}, "m=6 must divide by ranks=4"),
        ("data", {"dtype": "fp64"}, "dtype='fp64' is unknown"),
        ("data", {"op": "all_gather_matmul", "ranks": 256, "m": 256}, "at most the 132 compute units"),
        ("data", {"data": "zeros"}, "data='zeros' must be several"),
        ("data", {"data": ["ones"]}, "data='ones' is unknown; allowed are normal, zeros, constant"),
        ("data", {"workgroups": [4]}, "workgroups does not go with over='data'"),
        ("workgroups", {"workgroups": [133]}, "workgroups=133 must be whole numbers from 1 to 132"),
        ("workgroups", {"workgroups": [True]}, "workgroups=True must be whole numbers"),
        ("policy", {}, "over='policy' needs 2 ranks or more"),
        ("policy", {"op": "all_gather_matmul", "policies": ["best"]}, "policy='best' is unknown"),
        ("data", {"turns": 0}, "turns=0 must be a whole number"),
    ],
)
def test_what_is_not_allowed(over, changes, says):
    with pytest.raises(KosmosArgumentError, match=re.escape(says)):
        planned(over, **changes)


@pytest.mark.parametrize(
    "options, says",
    [
        ({"seconds": 0}, "seconds=0 must be above 0"),
        ({"hz": 0}, "hz=0 must be above 0"),
        ({"seed": -1}, "seed=-1 must be a whole number"),
        ({"op": "conv"}, "op='conv' is unknown"),
        ({"over": "time"}, "over='time' is unknown"),
        ({"output": "/no/such/folder/x.json"}, "there is no folder"),
    ],
)
def test_what_is_not_allowed_of_a_person(options, says):
    with pytest.raises(KosmosArgumentError, match=re.escape(says)):
        power.sweep(**options)


# running it: kernels in the emulator, a runner that takes their time from a clock on the wall


class Runner:
    """Replays in the emulator, a few times, and says that each took `ms(name)`."""

    device = torch.device("cpu")

    def __init__(self, ms=lambda name: 4.0, broken=None):
        self.ms, self.broken, self.log = ms, broken, []

    def capture(self, name, call, inner):
        from kosmos.benchmark.timer import Loop

        output = call()

        def replay():
            output.copy_(call())
            if self.broken and self.broken[0] == name:
                self.broken[1](output)

        return Loop(name, inner, replay, output)

    def repeat(self, loop, seconds, aside=None):
        self.log.append((loop.name, aside is not None))
        begin = time.monotonic_ns()
        if aside is not None:
            aside()
        time.sleep(0.12)
        return begin, time.monotonic_ns(), [self.ms(loop.name)] * 5

    def host(self, call, count):
        return [50.0] * count

    def machine(self):
        return {"machine": "emulator", "units": 8}


SMALL = {"m": 64, "n": 128, "k": 64, "ranks": 2, "seconds": 0.1, "progress": False}


@pytest.fixture(autouse=True)
def short(monkeypatch):
    from kosmos.benchmark.sustained import measure

    for name in ("IDLE_S", "PROBE_S", "COPY_S", "REST_S"):
        monkeypatch.setattr(measure, name, 0.05)


def steady(count):
    return {"power": 500.0 + 0.001 * count, "energy": 10.0 * count, "sm_clock": 1000.0}


@pytest.mark.parametrize("over", cases.OVER)
def test_a_sweep_in_the_emulator(over, tmp_path):
    runner, traces = Runner(), {}
    given = {"policies": ["unfused", "fixed:1", "one_way:1"]} if over == "policy" else {}
    file = tmp_path / "sweep.json"
    results = power.sweep(
        over=over, turns=1, output=file, runner=runner, sensor=Sensor(steady), traces=traces, **SMALL, **given
    )
    assert [run.point for run in results.runs] == list(results.sweep.order)
    for run in results.runs:
        point = results.sweep.points[run.point]
        assert (run.samples is None) == (point.sampled_hz == 0)
        assert bool(run.clocks) == point.traced and all(clock["mhz"] > 0 for clock in run.clocks)
        assert run.replay_ms == [4.0] * 5
        assert results.tflops(run) == pytest.approx(point.flops * run.inner / 4e-3 / 1e12)
    assert {at for at, point in enumerate(results.sweep.points) if point.traced} == {*traces}
    assert all(not trace.problems() for trace in traces.values())
    assert results.header["tile"] == [64, 64] and results.header["ended"]
    assert bool(results.copy) == (over == "workgroups")
    again = load(file)
    assert str(again) == str(results) and again.sweep == results.sweep
    assert again.plot() is not None


def test_results_are_checked(tmp_path):
    names = [point.name for point in planned("workgroups", m=64, n=128, k=64, units=8).points]
    broken = names[0], lambda output: output.add_(1)
    with pytest.raises(KosmosEnvironmentError, match="the result is wrong, off by"):
        power.sweep(runner=Runner(broken=broken), sensor=Sensor(steady), **SMALL)
    slightly = names[1], lambda output: output[0, 0, :1].mul_(1.02)
    with pytest.raises(KosmosEnvironmentError, match="bits of the result depend on the grid"):
        power.sweep(runner=Runner(broken=slightly), sensor=Sensor(steady), **SMALL)


def test_a_run_that_ends_early_leaves_what_it_measured(tmp_path):
    runner, file = Runner(), tmp_path / "early.json"
    repeat, left = runner.repeat, [10]

    def interrupted(*arguments):
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return repeat(*arguments)

    runner.repeat = interrupted
    with pytest.raises(KeyboardInterrupt):
        power.sweep(over="data", turns=4, output=file, runner=runner, sensor=Sensor(steady), **SMALL)
    results = load(file)
    assert 0 < len(results.runs) < len(results.sweep.order) and results.header["ended"] is None
    assert "TFLOP/s" in str(results)


def test_a_sensor_that_dies_in_a_sweep_leaves_gaps_and_the_rest():
    answer = lambda count: steady(count) if count < 30 else RuntimeError("gone")  # noqa: E731
    results = power.sweep(over="data", turns=1, runner=Runner(), sensor=Sensor(answer), **SMALL)
    assert len(results.runs) == 3
    assert results.runs[-1].power_w is None and results.tflops(results.runs[-1]) > 0
    assert results.rows()[results.runs[-1].point]["power_w"] is None
    assert str(results) and results.plot()


def test_without_a_sensor_the_times_are_still_taken():
    results = power.sweep(over="data", turns=1, runner=Runner(), sensor=power.NoSensor("none"), **SMALL)
    assert all(run.samples is None for run in results.runs) and results.rows()[0]["tflops"] > 0
    assert "no sensor here: none" in str(results)


# what is made of it


def test_rows_give_back_the_law():
    results = sweep_of()
    for row in results.rows():
        active = float(busy(row["workgroups"], TILES))
        mhz = float(LAW.mhz(active))
        assert row["clock_mhz"] == pytest.approx(mhz)
        assert row["power_w"] == pytest.approx(float(LAW.watts(active, mhz)), rel=1e-3)
        assert row["tflops"] == pytest.approx(RATE * active * mhz, rel=1e-6)
        assert row["joule"] == pytest.approx(row["power_w"] * row["call_ms"] / 1000)
        assert row["pj_per_flop"] == pytest.approx(1e12 * row["joule"] / (2 * 8192**3))
        assert row["joule_seconds"] == pytest.approx(row["joule"] * row["call_ms"] / 1000, rel=1e-6)
    counted, integral, seconds = results.energy_check()
    assert counted == pytest.approx(integral, rel=0.005) and seconds > 10


def test_a_drift_is_shown_and_taken_out_of_what_is_kept():
    calm, drifting = sweep_of(), sweep_of(drift=-0.10)
    assert calm.drift() == pytest.approx([1.0] * len(calm.drift()))
    assert drifting.drift()[-1] == pytest.approx(0.9, abs=0.01)
    steady = [row["kept"] for row in calm.rows()]
    assert [row["kept"] for row in drifting.rows()] == pytest.approx(steady, rel=0.004)
    raw = [row["tflops"] / drifting.rows()[0]["tflops"] for row in drifting.rows()]
    assert max(abs(np.array(raw) / steady - 1)) > 0.02


def test_a_run_counts_once_it_has_settled():
    # 0.6 s fast, then slow: the first half second does not count, and the clock with it
    replays = [5.0] * 120 + [10.0] * 240
    run = Run(0, 0, int(3e9), 2, replays, samples_of({"power": 600.0, "sm_clock": 1500.0}, seconds=3.0))
    late = [5.0] * 20 + [10.0] * 240
    assert run.call_ms == pytest.approx(np.mean(late) / 2, rel=1e-3)
    assert run.burst_ms == 2.5 and run.mean("sm_clock") == 1500.0


def test_half_known_is_not_known():
    samples = samples_of({"power": 600.0, "sm_clock": 1500.0}, seconds=3.0)
    samples = power.Samples("s", samples.readings[:60], 50, 0, int(3e9))
    run = Run(0, 0, int(3e9), 1, [5.0] * 600, samples)
    assert run.mean("sm_clock") is None and run.counted_power is None and run.power_w is None


def test_overhead_is_over_pairs_of_turns():
    results = sweep_of(over="sampling")
    for run in results.of(1):
        run.replay_ms = [1.004 * ms for ms in run.replay_ms]
    assert results.overhead() == pytest.approx((0.004, 0.004, 0.004))
    assert "+0.400 %" in str(results)
    assert sweep_of(over="data").overhead() is None


def test_the_table_names_what_differs():
    assert "kept" in str(sweep_of()) and "policy" not in str(sweep_of()).splitlines()[4]
    text = str(sweep_of(over="policy"))
    assert "unfused" in text and "one_way:4" in text and "mJ·s" in text
    assert "at rest: 120.0 W" in str(sweep_of()) and "drift" in str(sweep_of())


def test_the_file_is_whole(tmp_path):
    results = sweep_of(noise=0.01)
    results.save(tmp_path / "a.json")
    assert str(load(tmp_path / "a.json")) == str(results)
    load(tmp_path / "a.json").save(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


@pytest.mark.parametrize(
    "change, says",
    [
        (lambda content: content.update(kosmos="bench"), "no sweep of KOSMOS"),
        (lambda content: content.update(format=99), "has format 99"),
        (lambda content: content["runs"][0].update(point=99), "damaged"),
        (lambda content: content["runs"][0].update(replay_ms=[]), "damaged"),
        (lambda content: content["runs"][0].update(replay_ms=[-1.0]), "damaged"),
        (lambda content: content["sweep"].update(over="time"), "damaged"),
        (lambda content: content["runs"][0]["samples"]["values"]["power"].pop(), "damaged"),
        (lambda content: content.pop("runs"), "damaged"),
    ],
)
def test_damaged_files_are_refused(tmp_path, change, says):
    file = tmp_path / "a.json"
    sweep_of().save(file)
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))
    with pytest.raises(KosmosArgumentError, match=says):
        load(file)


def test_an_import_that_breaks_off_does_not_make_a_file_damaged(tmp_path, monkeypatch):
    file = tmp_path / "a.json"
    sweep_of().save(file)

    class Broken:
        def find_spec(self, name, *_):
            if name == "kosmos.benchmark.sustained.table":
                raise AttributeError("half imported")

    monkeypatch.delitem(sys.modules, "kosmos.benchmark.sustained.table", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    with pytest.raises(AttributeError, match="half imported"):
        load(file)


# the model

MEASURED = [
    # one H200, 8192×8192×8192 of 2048 tiles, 2 s each at a 700 W cap, 29 November 2026:
    # workgroups, TFLOP/s, mean SM clock in MHz, power in W
    (132, 660, 1480, 693),
    (124, 636, 1523, 692),
    (116, 617, 1561, 690),
    (108, 605, 1611, 692),
    (96, 554, 1717, 692),
    (64, 434, 1954, 691),
    (32, 222, 1980, 428),
]


def measured():
    return [Observation(count, TILES, tflops, mhz, watts) for count, tflops, mhz, watts in MEASURED]


def test_the_model_fits_what_was_measured():
    found = fit(measured(), 1980.0)
    for row in [*found.residuals(), *found.held_out()]:
        assert abs(row["mhz"]) < 0.03 and abs(row["tflops"]) < 0.03, row
    assert len(found.held_out()) == 5
    assert 0.92 < found.predict(116, TILES)["tflops"] / found.predict(132, TILES)["tflops"] < 0.95
    assert all(0 < error < 0.2 * max(getattr(found.model, name, 1), 1) for name, error in found.error.items())


def test_the_cap_picks_the_clock():
    """Against a search by hand."""
    clocks = np.arange(200, 1981)
    for active in (10, 66, 80, 132):
        fits = clocks[LAW.watts(active, clocks) <= LAW.cap_w]
        assert abs(float(LAW.mhz(active)) - fits.max()) <= 1
    assert LAW.mhz(132, gbps=0) > replace(LAW, byte_pj=50.0).mhz(132, gbps=1000)
    assert LAW.mhz(np.array([10, 132])).shape == (2,)


def test_a_known_law_is_found_again():
    found = sweep_of().fit()
    # the law moves no bytes, the fit allows for some
    assert found.model.exponent == pytest.approx(LAW.exponent, rel=0.05)
    assert found.model.idle_w == pytest.approx(LAW.idle_w, rel=0.05)
    assert found.model.unit_w == pytest.approx(LAW.unit_w, rel=0.03)
    assert found.model.on_w == pytest.approx(LAW.on_w, rel=0.2)
    assert found.model.cap_w == pytest.approx(LAW.cap_w, rel=1e-3)
    assert found.rate == pytest.approx(RATE, rel=1e-3)


def test_noise_widens_the_errors():
    quiet, loud = (sweep_of(noise=noise).fit().error["rate"] for noise in (0.0, 0.01))
    assert loud > 3 * quiet > 0


def test_a_board_whose_idle_power_is_most_of_it_can_be_fitted():
    law = PowerModel(cap_w=1000.0, max_mhz=2000.0, idle_w=300.0, unit_w=5.0, exponent=2.7)
    known = []
    for count in (1, 40, 80, 120, 160, 200):
        mhz = float(law.mhz(count))
        known.append(Observation(count, count * 16, 3e-3 * count * mhz, mhz, float(law.watts(count, mhz))))
    found = fit(known, 2000.0, on=False).model
    assert found.idle_w == pytest.approx(300, rel=0.02) and found.exponent == pytest.approx(2.7, rel=0.02)
    with pytest.raises(KosmosArgumentError, match="no power model fits"):
        fit([replace(one, watts=math.nan) if one.mhz == 2000 else one for one in known], 2000.0)


def test_tiles_come_in_rounds():
    assert busy(132, 2048) == 2048 / 16 and busy(64, 2048) == 64 and busy(4096, 2048) == 2048
    assert busy(np.array([132, 2]), 3).tolist() == [3.0, 1.5]


def test_what_cannot_be_fitted_is_said():
    with pytest.raises(KosmosArgumentError, match="4 observations are too few"):
        fit(measured()[:4], 1980.0)
    with pytest.raises(KosmosArgumentError, match="all of the runs are held by the power cap"):
        fit(measured()[:6], 1980.0)
    with pytest.raises(KosmosArgumentError, match="none of the runs are held"):
        fit([replace(one, mhz=1980) for one in measured()], 1980.0)
    with pytest.raises(KosmosArgumentError, match="fitted to a sweep over workgroups, not over data"):
        sweep_of(over="data").fit()
    with pytest.raises(KosmosArgumentError, match="no clock and power"):
        Results({}, planned("workgroups")).fit()


def test_the_model_is_told_with_its_errors_and_residuals():
    text = str(sweep_of(noise=0.003).fit())
    assert re.search(r"exponent +\d\.\d+ ± 0\.\d+", text)
    assert text.count(" workgroups: mhz ") == 13 and text.count(" / ") >= 33


def test_headroom_of_a_machine_that_the_cap_does_not_hold_is_none():
    free = PowerModel(cap_w=1e6, max_mhz=2000.0, idle_w=100.0, unit_w=5.0, exponent=2.5)
    assert free.kept(0.875, 256) == pytest.approx(0.875)
    assert LAW.kept(0.875, 132) > 0.92


# pictures


def test_pictures_say_what_they_show():
    from kosmos.benchmark.sustained.figure import headroom

    results = sweep_of(noise=0.002)
    labels = [axes.get_ylabel() for axes in results.plot().axes]
    assert labels == ["throughput (TFLOP/s)", "clock (MHz)", "power (W)", "energy (pJ per FLOP)"]
    drawn = headroom(results, others={"MI355X": (LAW, 256)})
    (legend,) = drawn.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert "MI355X, a model" in names and "the paper: 224 of 256 keep 93 %" in names and "made up, measured" in names
    points = {tuple(line.get_xydata()[0]) for line in drawn.axes[0].lines if len(line.get_xydata()) == 1}
    assert (0.875, 0.93) in points
    rows = sweep_of(over="policy").plot().axes
    assert [axes.get_xlabel() for axes in rows][-2:] == ["energy of a call (J)", "energy × delay (mJ·s)"]
    with pytest.raises(KosmosArgumentError, match="over workgroups"):
        headroom(sweep_of(over="data"))
    with pytest.raises(KosmosArgumentError, match="nothing was measured"):
        Results({}, planned("data")).plot()


# the command


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.fixture
def recorded(tmp_path, monkeypatch):
    """A folder of recordings."""
    for over in ("workgroups", "data"):
        sweep_of(over=over).save(tmp_path / f"{over}.json")
    monkeypatch.setattr(sustained, "RECORDINGS", tmp_path)
    return tmp_path


def test_without_a_gpu_the_recording_is_shown_and_said_to_be_one(no_gpu, recorded, capsys):
    assert main(["power", "sweep", "--figure", str(recorded / "x.png")]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("no sensor here (torch sees no GPU): using the recording ") and "made up" in said.out
    assert (recorded / "x.png").read_bytes()[:4] == b"\x89PNG"
    results = power.sweep(over="data")
    assert results.note.startswith("no sensor here") and results.sweep.over == "data"
    assert "not what was asked for" not in results.note
    assert main(["power", "sweep", "--recording", str(recorded / "data.json")]) == 0
    assert "over data" in capsys.readouterr().out


def test_a_recording_of_something_else_is_said_to_be_that(no_gpu, recorded, capsys):
    shape = ["--m", "512", "--n", "8192", "--k", "8192"]
    assert main(["power", "sweep", *shape, "--dtype", "fp32", "--workgroups", "132", "64"]) == 0
    note = capsys.readouterr().out.splitlines()[0]
    for said in ("not what was asked for", "m 8192, not 512", "dtype bf16, not fp32"):
        assert said in note
    assert "n 8192" not in note and note.endswith(", not 64")
    assert "not what was asked for" not in power.sweep(over="data", data=["normal", "zeros"]).note


def test_a_recording_is_never_written_as_a_measurement(no_gpu, recorded, capsys):
    assert main(["power", "sweep", "-o", str(recorded / "new.json")]) == 2
    assert "nothing to measure and nothing to write" in capsys.readouterr().err
    assert not (recorded / "new.json").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--m", "-5"], "m=-5 must be a whole number"),
        (["--turns", "0"], "turns=0 must be a whole number"),
        (["--workgroups", "-1"], "workgroups=-1 must be"),
        (["--data", "zeros"], "data does not go with over='workgroups'"),
        (["--trace", "full.parquet"], "so there is no launch to write to full.parquet"),
    ],
)
def test_what_is_not_allowed_is_not_answered_by_a_recording(no_gpu, recorded, arguments, says, capsys):
    assert main(["power", "sweep", *arguments]) == 2
    told = capsys.readouterr()
    assert says in told.err and told.err.count("\n") == 1 and not told.out


def test_where_there_is_neither_gpu_nor_recording(no_gpu, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(sustained, "RECORDINGS", tmp_path)
    assert main(["power", "sweep"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "there is no recording" in said


def test_show(recorded, capsys):
    assert main(["power", "show", str(recorded / "workgroups.json")]) == 0
    told = capsys.readouterr().out
    assert "132" in told and re.search(r"exponent +4\.\d+ ± ", told) and " 33 workgroups: mhz " in told
    assert main(["power", "show", str(recorded / "data.json")]) == 0
    assert "exponent" not in capsys.readouterr().out
    assert main(["power", "show", str(recorded / "none.json")]) == 2
    assert main(["power", "show", str(recorded / "data.json"), "--figure", "x.bmp"]) == 2
    said = capsys.readouterr()
    assert "must end in .png" in said.err and "over data" not in said.out


def test_sensors(monkeypatch, capsys):
    monkeypatch.setattr(power, "find", lambda device=None: power.NoSensor("nothing here"))
    assert main(["power", "sensors"]) == 2
    said = capsys.readouterr()
    assert "no sensor here: nothing here\n" in said.err and said.err.count("\n") == 1 and not said.out
    monkeypatch.setattr(power, "find", lambda device=None: Sensor(steady))
    assert main(["power", "sensors", "--seconds", "0.2"]) == 0
    said = capsys.readouterr().out
    assert "power_limit_w" in said and "a sensor of the tests" in said and "1,000.0 MHz" in said


def test_burst_needs_a_gpu(no_gpu, tmp_path, capsys):
    assert main(["power", "burst", "-o", str(tmp_path / "b.parquet")]) == 2
    assert "a burst needs a GPU" in capsys.readouterr().err


def test_a_burst_has_clock_and_power_among_its_counters():
    from kosmos.benchmark.sustained.measure import burst

    trace = burst(0.1, 0, Runner(), Sensor(steady), workgroups=4)
    assert trace.problems() == [] and len(trace.spans)
    assert "clock" in trace.counters["name"].to_pylist()


@pytest.mark.parametrize("arguments", [["power"], ["power", "sweep", "--over", "time"], ["power", "show"]])
def test_wrong_arguments_are_one_line(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_checking_the_clock_needs_a_gpu(no_gpu):
    with pytest.raises(KosmosEnvironmentError, match="needs a GPU, and torch sees none"):
        power.clock_check(0.1)


@pytest.mark.gpu
def test_the_clock_in_a_kernel_is_the_sensors():
    kernel, told = power.clock_check(1.0)
    assert told is None or kernel == pytest.approx(told, rel=0.02)


@pytest.mark.gpu
def test_a_short_sweep_on_a_gpu(tmp_path):
    results = power.sweep(workgroups=[32], seconds=1.0, output=tmp_path / "a.json", progress=False)
    assert len(load(tmp_path / "a.json").runs) == 3 and results.rows()[1]["kept"] < 0.6


def test_the_public_names():
    assert kosmos.power.sweep is power.sweep and Path(sustained.RECORDINGS).parts[-2:] == ("h200", "power")


def test_replays_on_a_gpu_are_timed_end_to_end_and_what_stands_between_is_not(monkeypatch):
    from test_bench import FakeGpu

    from kosmos.benchmark.sustained import measure

    gpu = FakeGpu(monkeypatch)
    clock = SimpleNamespace(monotonic_ns=lambda: int(gpu.host * 1e6), sleep=gpu.rest)
    monkeypatch.setattr(measure, "time", clock)
    runner = measure.GpuRunner(torch.device("cpu"))
    loop = runner.capture("a", gpu.call(3), 4)  # 13 ms a call
    recorded = []

    def aside():
        recorded.append(gpu.now)
        gpu.run(7)

    gpu.host = gpu.now
    begin, end, replay_ms = runner.repeat(loop, 2.0, aside)
    assert replay_ms == pytest.approx([52.0] * len(replay_ms)) and 6 <= len(recorded) <= 8
    assert end - begin == pytest.approx(1e6 * (sum(replay_ms) + 7 * len(recorded)))
    # a rest of the host between replays is the replays' own fault
    replay = loop.replay

    def slow():
        gpu.host = max(gpu.host, gpu.now) + 20
        replay()

    loop.replay = slow
    _, _, replay_ms = runner.repeat(loop, 1.0)
    assert replay_ms[1:] == pytest.approx([72.0] * (len(replay_ms) - 1))


# what was measured on an H200


@pytest.fixture(scope="module")
def h200():
    return {over: sustained.recording(over) for over in cases.OVER}


def test_seven_eighths_keep_93_percent(h200):
    (row,) = [row for row in h200["workgroups"].rows() if row["workgroups"] == 116]
    assert 0.92 <= row["kept"] <= 0.95


def test_the_h200s_energy_counter_agrees_with_its_power(h200):
    for results in h200.values():
        counted, integral, seconds = results.energy_check()
        assert counted == pytest.approx(integral, rel=0.05)
        assert seconds >= 10 or results.sweep.over == "sampling"


def test_the_model_predicts_what_it_was_not_fitted_to(h200):
    held = h200["workgroups"].fit().held_out()
    assert len(held) >= 10
    for row in held:
        assert abs(row["mhz"]) < 0.03 and abs(row["tflops"]) < 0.03


def test_reading_the_sensor_costs_nothing(h200):
    _, middle, high = h200["sampling"].overhead()
    assert middle <= 0.005 and high <= 0.005 and len(h200["sampling"].of(1)) >= 10
    assert h200["sampling"].sweep.points[1].sampled_hz == 20


def test_while_matrix_cores_work_a_unit_gets_fewer_cycles_than_the_sensor_says(h200):
    ratios = [row["kernel_mhz"] / row["clock_mhz"] for row in h200["workgroups"].rows() if row["kernel_mhz"]]
    assert len(ratios) == 5 and all(0.90 < ratio < 0.92 for ratio in ratios)
    # and as many as it says when they rest: reducers behind the last tile, at the highest clock
    trace = kosmos.Trace.load(sustained.RECORDINGS.parent / "matmul_reduce_scatter_row_fixed4.parquet")
    start, end, cycles = (trace.spans[name].to_numpy() for name in ("start_ns", "end_ns", "cycles"))
    role = np.array(trace.spans["role"].to_pylist())
    alone = (role == "reducer") & (start > end[role == "builder"].max()) & (end - start > 3200)
    assert np.median(1000 * cycles[alone] / (end - start)[alone]) == pytest.approx(1980, rel=0.002)


def test_the_burst_is_on_one_clock_with_its_sensor():
    trace = kosmos.Trace.load(sustained.RECORDINGS / "burst.parquet")
    assert trace.problems() == [] and trace.meta["power"]["timebase"]["first"]["error_ns"] < 50_000
    _, mhz = power.clock_map(trace, 100)
    early, late = np.nanmean(mhz[:, :, :10]), np.nanmean(mhz[:, :, 50:])
    assert early > 1.1 * late
    watts = [row for row in trace.counters.to_pylist() if row["name"] == "power"]
    before = [row["value"] for row in watts if row["time_ns"] < 200e6]
    assert max(before) < 150 < max(row["value"] for row in watts)
