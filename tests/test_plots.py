"""Timelines: what is drawn is what happened, in notebooks and out of them, on any background."""

import gc
import io
import pathlib
import subprocess
import sys
import weakref

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.image import imread
from test_trace import one, scheduled

from kosmos import plots
from kosmos.errors import KosmosArgumentError, KosmosTraceError
from kosmos.trace import ROLES, Trace

FOLDER = str(pathlib.Path(__file__).parent)


def legend(figure):
    return [text.get_text() for text in figure.legends[0].get_texts()]


def png(figure, **options):
    file = io.BytesIO()
    figure.savefig(file, format="png", **options)
    file.seek(0)
    return imread(file)


def blend(kind, background):
    *colour, alpha = mpl.colors.to_rgba(plots.PALETTE[kind])
    return alpha * np.array(colour) + (1 - alpha) * np.array(to_rgb(background))


@pytest.mark.parametrize("seed", range(4))
def test_coverage_is_exact(seed):
    """Against a loop that intersects every stretch with every bin."""
    draw = np.random.default_rng(seed)
    row, begin = draw.integers(0, 3, 40), draw.uniform(-50, plots._BINS, 40)
    end = begin + draw.choice([0.0, 0.2, 3.7, 100.0], 40)
    end[:3] = np.floor(end[:3])
    expected = np.zeros((3, plots._BINS))
    left = np.arange(plots._BINS)
    for r, a, b in zip(row, begin, end):
        expected[r] += np.sign(b - a) * np.clip(np.minimum(left + 1, max(a, b)) - np.maximum(left, min(a, b)), 0, 1)
    np.testing.assert_allclose(plots._coverage(row, 3, begin, end), expected, atol=1e-9)


def test_the_legend_says_the_shares_and_the_switches():
    trace = scheduled(3, meta={"op": "all_gather_matmul", "shape": {"m": 8, "n": 9, "k": 10}, "policy": "one_way:2"})
    figure = trace.plot()
    shares = trace.summary()
    makespan = shares.pop("makespan_ns")
    expected = [f"{kind} {100 * share:.1f} %" for kind, share in shares.items()]
    *drawn, switches = legend(figure)
    assert drawn == expected
    lanes = {}
    for row in sorted(trace.spans.to_pylist(), key=lambda row: row["claim_ns"]):
        lanes.setdefault((row["rank"], row["workgroup"]), []).append(row)
    moments = [
        (after["claim_ns"] / 1000, lane[0] * 5 + lane[1] + 0.5)
        for lane, spans in lanes.items()
        for before, after in zip(spans, spans[1:])
        if before["role"] != after["role"]
    ]
    assert switches == f"role switch ({len(moments)})"
    (dots,) = figure.axes[0].lines
    np.testing.assert_allclose(sorted(zip(*dots.get_data())), sorted(moments), atol=1e-6)
    above, below = figure.axes
    assert above.get_title("left") == "all_gather_matmul"
    texts = [text.get_text() for text in above.texts]
    assert texts == ["m 8 × n 9 × k 10  ·  one_way:2", f"makespan {makespan / 1000:.3f} µs"]
    assert [label.get_text() for label in above.get_yticklabels()] == ["rank 0", "rank 1", "rank 2"]
    assert below.get_ylabel() == "workgroups" and below.get_ylim() == (0, 15)
    np.testing.assert_allclose(above.get_xlim(), below.get_xlim())


@pytest.mark.parametrize("style", ["default", "dark_background"])
def test_a_pixel_has_the_colour_of_what_happened_there(style):
    """Two ranks of two workgroups, one span each; every kind is looked up in the middle of its stretch."""
    with mpl.style.context(style):
        spans = {name: column * 3 for name, column in one().items()}
        spans |= {"rank": [0, 0, 1], "workgroup": [0, 1, 1], "role": ["mover", "builder", "folder"]}
        spans |= {"claim_ns": [0, 0, 500], "start_ns": [0, 600, 500], "end_ns": [400, 1000, 1000]}
        figure = Trace(spans).plot(title="")
        image = png(figure, dpi=100)[..., :3]
        above, below = figure.axes
        background = mpl.rcParams["axes.facecolor"]

        def colour(axes, us, y):
            x, y = axes.transData.transform((us, y)) * 100 / figure.dpi
            return image[round(image.shape[0] - y), round(x)]

        for us, lane, kind in (
            (0.2, 0.5, "mover"),
            (0.7, 0.5, None),
            (0.3, 1.5, "wait"),
            (0.8, 1.5, "builder"),
            (0.5, 2.5, None),
            (0.25, 3.5, None),
            (0.7, 3.5, "folder"),
        ):
            wanted = to_rgb(background) if kind is None else blend(kind, background)
            np.testing.assert_allclose(colour(above, us, lane), wanted, atol=0.01, err_msg=f"{kind} at {us}")
        for us, workgroups, kind in (
            (0.2, 0.5, "mover"),
            (0.2, 1.5, "wait"),
            (0.2, 2.5, None),
            (0.8, 0.5, "builder"),
            (0.8, 1.5, "folder"),
            (0.8, 3, None),
        ):
            wanted = to_rgb(background) if kind is None else blend(kind, background)
            np.testing.assert_allclose(colour(below, us, workgroups), wanted, atol=0.01, err_msg=f"{kind} at {us}")
        assert figure.get_facecolor()[:3] == to_rgb(mpl.rcParams["figure.facecolor"])
        assert to_rgb(above.texts[1].get_color()) == to_rgb(mpl.rcParams["text.color"])


def test_a_line_parts_one_item_from_the_next():
    spans = {name: column * 2 for name, column in one().items()}
    spans |= {"item": [0, 1], "claim_ns": [0, 500], "start_ns": [0, 500], "end_ns": [500, 1000]}
    figure = Trace(spans).plot()
    image = png(figure, dpi=100)[..., :3]
    (left, y), (right, _) = figure.axes[0].transData.transform([(0, 0.5), (1, 0.5)])
    lane = image[round(image.shape[0] - y), round(left) + 2 : round(right) - 2]
    parts = np.flatnonzero(np.abs(lane - to_rgb(plots.PALETTE["builder"])).max(axis=1) > 0.1)
    assert len(parts) in (1, 2) and abs(parts.mean() - len(lane) / 2) < 2


def test_ranks_are_shown_in_the_order_asked_for():
    trace = scheduled(1, ranks=4)
    figure = trace.plot(ranks=[3, 1])
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["rank 3", "rank 1"]
    spans = [row for row in trace.spans.to_pylist() if row["rank"] in (1, 3)]
    busy = sum(row["end_ns"] - row["start_ns"] for row in spans if row["role"] == "builder")
    share = busy / (2 * trace.workgroups * trace.summary()["makespan_ns"])
    assert f"builder {100 * share:.1f} %" in legend(figure)
    assert legend(trace.plot(ranks=range(4))) == legend(trace.plot())
    assert legend(trace.plot(ranks=np.int64(2))) == legend(trace.plot(ranks=2))


def test_a_window_shows_what_lies_in_it():
    spans = {name: column * 2 for name, column in one().items()}
    spans |= {"role": ["mover", "builder"], "claim_ns": [0, 500], "start_ns": [0, 600], "end_ns": [500, 1000]}
    figure = Trace(spans).plot(window_us=(0.45, 0.65))
    assert legend(figure) == ["mover 25.0 %", "builder 25.0 %", "wait 50.0 %", "idle 0.0 %", "role switch (1)"]
    np.testing.assert_allclose(figure.axes[1].get_xlim(), (0.45, 0.65))
    assert legend(Trace(spans).plot(window_us=(0.7, 0.9))) == ["builder 100.0 %", "wait 0.0 %", "idle 0.0 %"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"ranks": 3}, "ranks must be some of 0 to 2, each once, not 3"),
        ({"ranks": [-1]}, "ranks must be some of"),
        ({"ranks": []}, "ranks must be some of"),
        ({"ranks": [1, 1]}, "ranks must be some of"),
        ({"ranks": "one"}, "ranks must be some of"),
        ({"ranks": 1.5}, "ranks must be some of"),
        ({"window_us": (2, 1)}, "window_us must be .begin, end. with begin before end, not .2, 1."),
        ({"window_us": 3}, "window_us must be"),
        ({"window_us": (0, float("nan"))}, "window_us must be"),
        ({"window_us": (0, 1, 2)}, "window_us must be"),
        ({"size": (0, 4)}, "size must be .width, height. in inches, both above 0"),
        ({"title": 7}, "title must be text, not int"),
    ],
)
def test_bad_arguments_are_refused_in_one_sentence(options, sentence):
    with pytest.raises(KosmosArgumentError, match=f"^{sentence}"):
        scheduled().plot(**options)


def test_what_is_no_run_is_refused():
    with pytest.raises(KosmosTraceError, match="without spans"):
        Trace(None).plot()
    with pytest.raises(KosmosArgumentError, match="draws a Trace, not str"):
        plots.timeline("run.parquet")


@pytest.mark.parametrize(
    "trace",
    [
        Trace(one(start_ns=[0], end_ns=[0])),  # no time passes
        Trace(one(claim_ns=[5], start_ns=[3], end_ns=[9])),  # a wait that runs backwards
        Trace(one(claim_ns=[2**62], start_ns=[2**62 + 5], end_ns=[2**62 + 9])),
        Trace(one(), meta={"ranks": 70, "workgroups": 100}),  # more workgroups than image rows, nearly all idle
        Trace(one(), meta={"op": 5, "shape": [1, 2], "policy": {"a": 1}, "dtype": None}),
    ],
)
def test_odd_traces_are_drawn(trace):
    assert png(trace.plot()).std() > 0


def test_a_late_start_is_taken_off_the_axis():
    late = Trace(one(claim_ns=[2**62], start_ns=[2**62 + 500], end_ns=[2**62 + 1000])).plot().axes[1]
    assert late.get_xlim() == (0, 1) and late.get_xlabel() == f"time (µs) after {2**62:,} ns"
    early = Trace(one(claim_ns=[2000], start_ns=[2500], end_ns=[3000])).plot().axes[1]
    assert early.get_xlim() == (2, 3) and early.get_xlabel() == "time (µs)"


def test_every_role_has_a_colour_of_its_own():
    assert set(plots.PALETTE) == {*ROLES, "wait"} and len(set(plots.PALETTE.values())) == len(ROLES) + 1
    spans = {name: column * 6 for name, column in one().items()} | {"role": list(ROLES), "item": range(6)}
    assert [text.split()[0] for text in legend(Trace(spans).plot())[:6]] == list(ROLES)


def test_too_many_switches_are_counted_only(monkeypatch):
    monkeypatch.setattr(plots, "_MARKS", 3)
    figure = scheduled(0).plot()
    assert "too many to mark" in legend(figure)[-1] and not figure.axes[0].lines


def test_a_hundred_thousand_spans_of_two_thousand_workgroups():
    lanes, each = 2048, 50
    claim = np.tile(np.arange(each) * 100, lanes)
    role = np.where(claim < 2500, "builder", "reducer")
    lane = np.repeat(np.arange(lanes), each)
    trace = Trace(
        {
            "rank": lane // 256,
            "workgroup": lane % 256,
            "role": role,
            "item": np.arange(lanes * each),
            "claim_ns": claim,
            "start_ns": claim + 10,
            "end_ns": claim + 90,
            "cycles": claim,
            "unit": lane,
        }
    )
    figure = trace.plot()
    data, metadata = figure._repr_png_()
    assert legend(figure)[:2] == ["builder 40.1 %", "reducer 40.1 %"] and metadata["width"] == 1000
    assert len(figure.axes[0].get_children()) + len(figure.axes[1].get_children()) < 60  # no artist a span


def test_a_figure_leaves_nothing_behind():
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]; from test_trace import scheduled; scheduled().plot()._repr_png_(); "
    )
    code += "print('matplotlib.pyplot' in sys.modules, 'torch' in sys.modules, 'triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, FOLDER], capture_output=True, text=True, check=True).stdout == (
        "False False False\n"
    )
    before = dict(mpl.rcParams)
    figure = weakref.ref(scheduled().plot())
    gc.collect()
    assert figure() is None and dict(mpl.rcParams) == before


def test_a_notebook_shows_it_once_with_and_without_pyplot():
    nbformat = pytest.importorskip("nbformat")
    client = pytest.importorskip("nbclient")
    helper = f"import sys; sys.path.insert(0, {FOLDER!r}); from test_trace import scheduled"
    cells = [
        helper,
        "scheduled().plot()",
        "%matplotlib inline",
        "scheduled().plot()",
        "import matplotlib.pyplot; scheduled().plot()",
        "figure = scheduled().plot();",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    client.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    outputs = [[sorted(output.data) for output in cell.outputs] for cell in notebook.cells]
    shown = [["image/png", "text/plain"]]
    assert outputs == [[], shown, [], shown, shown, []]
