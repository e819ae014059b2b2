"""The policy panel: what it runs, what it keeps, and one sentence for what is wrong; its widgets without a browser."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_trace import scheduled

import kosmos
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosShapeError
from kosmos.panels import ORDERS, Setting
from kosmos.trace import Trace

ROOT = Path(__file__).parent.parent
SMALL = {"m": 64, "n": 32, "k": 16, "ranks": 2, "workgroups": 4, "place": "emulator"}

runs_kernels = pytest.mark.triton


class Scheduler:
    """Runs nothing real: a trace by loops for every setting, which it remembers."""

    def __init__(self):
        self.asked = []

    def __call__(self, setting):
        self.asked.append(setting)
        if setting.m == 666:
            raise ZeroDivisionError("a <b>\nc")
        trace = scheduled(len(self.asked), ranks=setting.ranks, workgroups=setting.workgroups or 5)
        return Trace(trace.spans, trace.queue, meta={"policy": str(setting.policy), "order": setting.order})


@pytest.fixture
def made():
    scheduler = Scheduler()
    return kosmos.panel(run=scheduler, m=8, n=9, k=10, ranks=2), scheduler


def test_runs_are_kept_with_what_they_ran(made):
    panel, scheduler = made
    first = panel.run()
    second = panel.run(policy="one_way:3", order="row", ranks=4, workgroups=7)
    assert panel.traces == [first, second]
    assert scheduler.asked == [
        Setting("matmul_reduce_scatter", 8, 9, 10, 2, None, None, None, None, None, "bf16", 0, "simulator"),
        Setting(
            "matmul_reduce_scatter", 8, 9, 10, 4, 7, kosmos.Policy.one_way(3), "row", None, None, "bf16", 0, "simulator"
        ),
    ]
    assert panel.setting == scheduler.asked[1]
    rows = panel.table.to_pylist()
    assert [(row["run"], row["ranks"], row["workgroups"], row["policy"]) for row in rows] == [
        (1, 2, 5, "None"),
        (2, 4, 7, "one_way:3"),
    ]
    for row, trace in zip(rows, (first, second)):
        assert {name: row[name] for name in trace.summary()} == trace.summary()
    assert repr(panel) == "<Panel: matmul_reduce_scatter in the simulator, 2 runs>"


def test_no_run_is_a_table_too(made):
    assert made[0].table.num_rows == 0 and "makespan_ns" in made[0].table.column_names


@pytest.mark.parametrize(
    ("changes", "error", "sentence"),
    [
        (
            {"op": "matmul"},
            KosmosArgumentError,
            "op='matmul' is unknown; allowed are all_gather_matmul, matmul_reduce_sc",
        ),
        ({"m": 7}, KosmosShapeError, "m=7 must divide by ranks=2"),
        ({"k": 0}, KosmosShapeError, "k=0 must be a whole number, 1 or more"),
        ({"ranks": 2.0}, KosmosShapeError, "ranks=2.0 must be a whole number, 1 or more"),
        ({"policy": "wild"}, KosmosArgumentError, "policy='wild' is unknown; allowed are"),
        ({"place": "moon"}, KosmosArgumentError, "place='moon' is unknown; allowed are gpu, emulator, simulator"),
        ({"machine": "PDP-11"}, KosmosArgumentError, "machine='PDP-11' is unknown"),
        ({"place": []}, KosmosArgumentError, "place=[] is unknown; allowed are gpu, emulator, simulator"),
        ({"dtype": "int8"}, KosmosArgumentError, "dtype='int8' is unknown; allowed are bf16, fp16, fp32"),
        ({"dtype": []}, KosmosArgumentError, "dtype=[] is unknown; allowed are bf16, fp16, fp32"),
        ({"seed": -1}, KosmosArgumentError, "seed=-1 must be a whole number, 0 or more"),
        ({"seed": "a"}, KosmosArgumentError, "seed='a' must be a whole number, 0 or more"),
        ({"colour": "red"}, KosmosArgumentError, "panel: 'colour' is no setting; settings are op, m, n, k"),
    ],
)
def test_what_is_not_allowed_is_one_sentence_and_changes_nothing(made, changes, error, sentence):
    panel, scheduler = made
    before = panel.setting
    with pytest.raises(error, match=f"^{re.escape(sentence)}"):
        panel.run(**changes)
    with pytest.raises(error, match=f"^{re.escape(sentence)}"):
        kosmos.panel(run=scheduler, **{"m": 8, "n": 9, "k": 10, "ranks": 2} | changes)
    assert panel.setting == before and not panel.traces and not scheduler.asked


def test_a_run_and_a_world_must_be_such():
    with pytest.raises(KosmosArgumentError, match="^run=5 must be a function from a Setting to a Trace, or None"):
        kosmos.panel(run=5)
    with pytest.raises(KosmosArgumentError, match="^world=5 must be a kosmos.World, or None"):
        kosmos.panel(5)
    panel = kosmos.panel(run=lambda setting: "done", m=8)
    with pytest.raises(KosmosArgumentError, match="^run must return a kosmos.Trace, not 'done'"):
        panel.run()
    assert not panel.traces and not panel.table.num_rows


# on a world


@runs_kernels
@pytest.mark.parametrize("op", list(ORDERS))
def test_it_runs_the_op_in_the_emulator(op):
    panel = kosmos.panel(op=op, **SMALL)
    for policy in ("fixed:1", "planned", "two_way:1"):
        for order in ORDERS[op]:
            trace = panel.run(policy=policy, order=order)
            assert trace.problems() == [] and (trace.ranks, trace.workgroups) == (2, 4)
            expected = {"op": op, "shape": {"m": 64, "n": 32, "k": 16}, "order": order, "place": "emulator"}
            assert trace.meta.items() >= expected.items() and trace.meta["policy"].startswith(policy)
    slow = panel.run(link_gbps=0.1, policy="fixed:1")
    assert slow.meta["link_gbps"] == 0.1
    assert slow.summary()["makespan_ns"] > 2 * trace.summary()["makespan_ns"]
    assert panel.run(link_gbps=None, machine="H200").meta["machine"] == "H200"
    assert len(panel.traces) == len(panel.table) == 8
    assert panel.run().equals(panel.traces[-2])  # the same again


@runs_kernels
def test_it_runs_in_a_world_that_was_given():
    world = kosmos.World.virtual(2, 3, device="cpu", link_gbps=5)
    panel = kosmos.panel(world, m=64, n=32, k=16)
    trace = panel.run(order=lambda items: np.arange(len(items))[::-1])
    assert (trace.ranks, trace.workgroups, trace.meta["link_gbps"]) == (2, 3, 5)
    assert panel.run(ranks=2).ranks == 2
    for changes in ({"ranks": 4}, {"link_gbps": 2.0}, {"place": "simulator"}, {"machine": "H200"}):
        ((name, value),) = changes.items()
        with pytest.raises(KosmosArgumentError, match=f"^{name}={value!r} is not that of the panel's world"):
            panel.run(**changes)
        with pytest.raises(KosmosArgumentError, match=f"^{name}={value!r} is not that of the panel's world"):
            kosmos.panel(world, **changes)
    with pytest.raises(KosmosArgumentError, match="is unknown; allowed are bf16, fp16, fp32"):
        panel.run(dtype="int8")
    with pytest.raises(KosmosEnvironmentError, match=r"^m=64, n=\d+, k=16 on 2 ranks do not fit the memory"):
        panel.run(n=10**12)


def test_it_needs_neither_torch_nor_widgets_to_be_used():
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['torch', 'triton', 'greenlet', 'ipywidgets', 'anywidget', 'matplotlib'])\n"
        "import kosmos\n"
        "panel = kosmos.panel(run=lambda setting: kosmos.Trace(None), m=8)\n"
        "assert panel.run(policy='fixed:3').ranks == 0 and len(panel.table) == 1\n"
        "assert kosmos.panel().setting.place == 'simulator'\n"
        "try: panel.widget\n"
        "except kosmos.KosmosEnvironmentError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.startswith("the panel is made of widgets and needs ipywidgets, which is not installed here")


def test_the_simulator_is_asked_with_its_own_names(monkeypatch):
    asked = []
    monkeypatch.setitem(
        kosmos.__dict__, "simulate", lambda *args, **options: asked.append((args, options)) or scheduled()
    )
    panel = kosmos.panel(place="simulator", m=64, n=32, k=16, ranks=8)
    panel.run()
    panel.run(op="all_gather_matmul", policy="fixed:32", order="rank", machine="H200", link_gbps=20.0)
    shape = {"m": 64, "n": 32, "k": 16, "ranks": 8, "dtype": "bf16"}
    assert asked[0] == (("matmul_reduce_scatter",), shape)
    options = {"policy": kosmos.Policy.fixed(32), "order": "rank", "machine": "H200", "link_gbps": 20.0}
    assert asked[1] == (("all_gather_matmul",), shape | options)
    panel.run(policy=mine, workgroups=7)
    assert asked[2][1] == shape | options | {"policy": mine, "workgroups": 7}


def mine(view):
    """A policy of one's own."""


# in a page


@pytest.fixture
def controls(made):
    pytest.importorskip("ipywidgets")
    panel, scheduler = made
    assert panel.widget is panel.widget
    return panel._controls, panel, scheduler


def press(controls):
    controls.button.click()
    assert not controls.button.disabled and controls.button.description == "Run"
    return re.sub("<[^>]*>", "", controls.message.value)


def test_the_controls_say_what_runs(controls):
    controls, panel, scheduler = controls
    assert controls.chosen()["policy"] is None and controls.order.value == "band" and controls.crew.disabled
    assert press(controls) == "" and scheduler.asked[-1].order == "band"
    controls.policy.value, controls.crew.value = "two_way", 2
    controls.op.value = "all_gather_matmul"
    assert controls.order.options == ("local_first", "rank") and controls.order.value == "local_first"
    controls.order.value, controls.m.value, controls.ranks.value, controls.link.value = "rank", 40, 4, 2.5
    controls.workgroups.value, controls.machine.value, controls.place.value = 6, "H200", "emulator"
    assert press(controls) == ""
    expected = Setting(
        "all_gather_matmul", 40, 9, 10, 4, 6, kosmos.Policy.two_way(2), "rank", 2.5, "H200", "bf16", 0, "emulator"
    )
    assert panel.setting == scheduler.asked[-1] == expected
    controls.policy.value = "planned"
    assert controls.crew.disabled and press(controls) == "" and panel.setting.policy == kosmos.Policy.planned()


def test_errors_are_one_sentence_in_the_panel(controls):
    controls, panel, _ = controls
    controls.m.value = 7
    assert press(controls) == "m=7 must divide by ranks=2" and not panel.traces
    assert "role='alert'" in controls.message.value
    controls.m.value = 666
    assert press(controls) == "ZeroDivisionError: a &lt;b&gt; c"
    controls.m.value = 8
    assert press(controls) == "" and len(panel.traces) == 1


def test_it_shows_the_runs(controls):
    controls, panel, _ = controls
    assert not controls.picture.children and controls.runs.value == ""
    for policy in ("fixed:1", "one_way:2", "<i>"):
        trace = scheduled(len(panel.traces), ranks=2)
        panel._run = lambda _, trace=trace, policy=policy: Trace(trace.spans, meta={"policy": policy})
        panel.run()
    times = [trace.summary()["makespan_ns"] for trace in panel.traces]
    rows = re.findall("<tr.*?</tr>", controls.runs.value)
    assert len(rows) == 4 and "&lt;i&gt;" in rows[3] and "<i>" not in controls.runs.value
    assert ["bold" in row for row in rows[1:]] == [time == min(times) for time in times]
    pictures = []
    for shown, count in (("this run", 1), ("this and the one before", 2), ("all runs", 3)):
        controls.shown.value = shown
        (viewer,) = controls.picture.children
        assert viewer.traces == panel.traces[-count:]
        pictures.append(viewer)
    assert all(picture.comm is None for picture in pictures[:-1])  # closed: no state is left in the notebook


def test_without_the_viewer_it_plots(controls, monkeypatch):
    controls, panel, _ = controls

    def absent(*_, **__):
        raise KosmosEnvironmentError("needs anywidget")

    monkeypatch.setattr(Trace, "view", absent)
    panel.run()
    (box,) = controls.picture.children
    assert [image.value[:4] for image in box.children] == [b"\x89PNG"]


def test_an_order_of_ones_own_can_be_chosen_again():
    pytest.importorskip("ipywidgets")

    def mine(items):
        return np.arange(len(items))

    scheduler = Scheduler()
    panel = kosmos.panel(run=lambda setting: scheduler(setting) and scheduled(), order=mine, m=8, ranks=2)
    controls = panel.widget and panel._controls
    assert controls.order.options == ("band", "row", "mine") and controls.order.value == "mine"
    controls.order.value = "row"
    press(controls)
    controls.order.value = "mine"
    press(controls)
    assert [setting.order for setting in scheduler.asked] == ["row", mine]


def test_a_policy_of_ones_own_can_be_chosen_again():
    pytest.importorskip("ipywidgets")
    scheduler = Scheduler()
    panel = kosmos.panel(run=lambda setting: scheduler(setting) and scheduled(), policy=mine, m=8, ranks=2)
    controls = panel.widget and panel._controls
    for name in ("mine", "default", "planned", "mine"):
        controls.policy.value = name
        assert controls.crew.disabled and press(controls) == ""
    assert [setting.policy for setting in scheduler.asked] == [mine, None, kosmos.Policy.planned(), mine]


def test_what_a_world_fixes_is_greyed():
    pytest.importorskip("ipywidgets")
    pytest.importorskip("torch")
    panel = kosmos.panel(kosmos.World.virtual(2, 3, device="cpu"), m=64, n=32, k=16)
    controls = panel.widget and panel._controls
    fixed = ("ranks", "workgroups", "link", "machine", "place")
    assert all(getattr(controls, name).disabled for name in fixed) and not controls.m.disabled
    assert controls.ranks.value == 2 and controls.workgroups.value == 3
