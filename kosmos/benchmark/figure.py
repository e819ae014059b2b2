"""The results as a picture: ratios with their spread, on a light ground."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kosmos.benchmark.results import Measured, Run, ratio, sustained_ratio
from kosmos.errors import KosmosArgumentError
from kosmos.plots import PALETTE, NotebookFigure

if TYPE_CHECKING:
    from kosmos.benchmark.results import Results

# Told apart with any colour vision, and by their shapes without colours.
LOOKS: dict[str, dict[str, Any]] = {
    "default": {"color": PALETTE["builder"], "marker": "o"},
    "fixed": {"color": PALETTE["mover"], "marker": "s"},
    "one_way": {"color": PALETTE["builder"], "marker": "o"},
    "two_way": {"color": PALETTE["router"], "marker": "^"},
    "bound": {"color": "#303030", "marker": "D"},
}
INK, FAINT = "#303030", "#C8C8C8"


def figure(results: "Results") -> Figure:
    """How many times as fast as its base every variant is, a row each; below, for swept crews, against the crew.

    Points are medians of pairs of a round, bars go from the first to the third quartile. Raises KosmosArgumentError if
    nothing was measured.
    """
    cases = [measured for measured in results.cases if measured.base and measured.run("default")]
    if not cases:
        raise KosmosArgumentError("nothing was measured, so there is nothing to draw")
    shown = [(measured, _shown(measured)) for measured in cases]
    swept = [measured for measured in cases if _sweeps(measured)]
    tall = 0.3 * sum(len(runs) for _, runs in shown) + 0.9
    lines = -(-len(swept) // 2)
    drawn = NotebookFigure(figsize=(9.5, tall + 3.2 * lines + 0.9), layout="constrained", facecolor="white")
    # two subfigures, so that the long labels of the rows take no room from the panels below
    parts = drawn.subfigures(1 + bool(lines), 1, height_ratios=[tall, 3.2 * lines][: 1 + bool(lines)], squeeze=False)
    _draw_rows(parts[0, 0].subplots(), shown)
    if lines:
        panels = parts[1, 0].subplots(lines, 2, squeeze=False).flat
        for measured, axes in itertools.zip_longest(swept, panels):
            _draw_crews(axes, measured) if measured else axes.set_axis_off()
    drawn.suptitle(_title(results), x=0.01, ha="left", fontsize="small", color=INK)
    rows = [(measured, run) for measured, runs in shown for run in runs]
    _legend(drawn, rows, bool(swept))
    return drawn


def _shown(measured: Measured) -> list[Run]:
    """The default, and what was asked for unless it is drawn against the crew."""
    asked = [run for run in measured.timed if run.part == "asked"]
    swept = {run.name for kind in _sweeps(measured).values() for run in kind}
    return [measured.run("default"), *(run for run in asked if run.name not in swept)]


def _sweeps(measured: Measured) -> dict[str, list[Run]]:
    """The variants of the default order by kind and in order of crew, if a switching kind has at least three crews."""
    kinds = {
        kind: sorted((run for run in measured.in_order if run.kind == kind), key=lambda run: run.crew)
        for kind in ("fixed", "one_way", "two_way")
    }
    enough = any(len(kinds[kind]) >= 3 for kind in ("one_way", "two_way"))
    return {kind: found for kind, found in kinds.items() if found} if enough else {}


def _draw_rows(axes: Axes, shown: Sequence[tuple[Measured, list[Run]]]) -> None:
    labels, places, place, before = [], [], 0.0, 1
    for measured, runs in shown:
        place += 0.4 * (max(before, len(runs)) > 1)  # a gap around a case of several rows
        before = len(runs)
        for run in runs:
            place += 1
            places.append(place)
            labels.append(_label(measured, run))
            _draw_row(axes, place, measured, run)
    axes.axvline(1, color=INK, linewidth=1, zorder=1)
    axes.set_yticks(places, labels)
    axes.set_ylim(place + 0.7, 0.3)
    bases = {"unfused": "the unfused op", "gemm": "the GEMMs alone"}
    against = " or ".join(bases[base] for base in dict.fromkeys(measured.case.base for measured, _ in shown))
    axes.set_xlabel(f"times as fast as {against}")
    _plain(axes, "x")


def _draw_row(axes: Axes, place: float, measured: Measured, run: Run) -> None:
    if run.name == "default":
        bound = measured.bound_ms
        if bound and not (measured.case.base == "gemm" and not measured.case.link_ms):
            at = measured.base.median / bound
            axes.plot(at, place, **LOOKS["bound"], markersize=6, fillstyle="none", linestyle="none", zorder=3)
        if len(measured.fixed) > 1:
            ends = [ratio(measured.base, fixed)[1] for fixed in (measured.fixed[0], measured.fixed[-1])]
            look = LOOKS["fixed"]
            axes.plot(ends, [place] * 2, **look, markersize=4, linewidth=1.2, alpha=0.9, zorder=2)
        lasting = sustained_ratio(measured.base, run)
        if lasting:
            look = {"color": PALETTE["pusher"], "markersize": 6, "markeredgewidth": 1.6, "elinewidth": 1.0}
            low, middle, high = lasting
            axes.errorbar(middle, place + 0.3, xerr=[[middle - low], [high - middle]], fmt="x", **look, zorder=5)
    low, middle, high = ratio(measured.base, run)
    look = LOOKS["default" if run.name == "default" else run.kind]
    spread = [[middle - low], [high - middle]]
    axes.errorbar(middle, place, xerr=spread, **look, markersize=6, capsize=3, linestyle="none", zorder=4)


def _label(measured: Measured, run: Run) -> str:
    if run.name != "default":
        return run.name + " order" * (run.order != measured.case.default_order)
    against = " (× GEMMs)" if measured.case.base == "gemm" else ""
    return f"{measured.case.name}{against}  ·  {run.ran}"


def _draw_crews(axes: Axes, measured: Measured) -> None:
    for kind, runs in _sweeps(measured).items():
        crews = [run.crew for run in runs]
        low, middle, high = zip(*(ratio(measured.base, run) for run in runs))
        axes.plot(crews, middle, **LOOKS[kind], markersize=5, linewidth=1.5, label=kind)
        axes.fill_between(crews, low, high, color=LOOKS[kind]["color"], alpha=0.25, linewidth=0)
    axes.axhline(1, color=INK, linewidth=1)
    axes.set_title(measured.case.name, loc="left", fontsize="medium", color=INK)
    axes.set_xlabel(f"crew (workgroups of {measured.workgroups} a rank)")
    axes.set_ylabel(f"times as fast as {measured.case.base}")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(axes, "both")


def _plain(axes: Axes, grid: str) -> None:
    axes.set_facecolor("white")
    axes.grid(axis=grid, color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(colors=INK)
    for spine in axes.spines.values():
        spine.set_color(INK)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(INK)


def _title(results: "Results") -> str:
    header = results.header
    parts = [header.get("machine"), *(f"{name} {version}" for name, version in (header.get("versions") or {}).items())]
    return "  ·  ".join(str(part) for part in [*parts, header.get("started")] if part)


def _legend(drawn: Figure, rows: Sequence[tuple[Measured, Run]], crews: bool) -> None:
    """What is drawn, and nothing else."""
    measured = [measured for measured, _ in rows]
    kinds = {run.kind for _, run in rows if run.name != "default"}
    kinds |= {kind for one in measured for kind in _sweeps(one)} if crews else set()
    entries = [("default policy, burst", {**LOOKS["default"], "linestyle": "none"})]
    if any(one.base.sustained and one.run("default").sustained for one in measured):
        look = {"marker": "x", "color": PALETTE["pusher"], "markeredgewidth": 1.6, "linestyle": "none"}
        entries.append(("the same, sustained", look))
    if any(one.case.base == "unfused" or one.case.link_ms for one in measured):
        entries.append(("bound: GEMMs or links alone", {**LOOKS["bound"], "fillstyle": "none", "linestyle": "none"}))
    if any(len(one.fixed) > 1 for one in measured):
        entries.append(("best to worst fixed crew", {**LOOKS["fixed"], "linewidth": 1.2}))
    entries += [(kind, {**LOOKS[kind], "linestyle": "-" if crews else "none"}) for kind in LOOKS if kind in kinds]
    handles = [Line2D([], [], **look) for _, look in entries]
    drawn.legend(
        handles, [text for text, _ in entries], loc="outside lower center", ncols=4, frameon=False, labelcolor=INK
    )
