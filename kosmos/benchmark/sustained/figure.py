"""A sweep as a picture, on a light ground."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from kosmos.benchmark.figure import FAINT, INK, _plain
from kosmos.errors import KosmosArgumentError, KosmosError
from kosmos.plots import PALETTE, NotebookFigure

if TYPE_CHECKING:
    from kosmos.benchmark.sustained.results import Results, Run
    from kosmos.power.model import Fit

# One colour a quantity, in every picture; the same quantity seen in another way has another shape.
LOOKS: dict[str, dict[str, Any]] = {
    "tflops": {"color": PALETTE["builder"], "marker": "o"},
    "clock_mhz": {"color": PALETTE["router"], "marker": "s"},
    "kernel_mhz": {"color": PALETTE["router"], "marker": "x", "markeredgewidth": 1.8},
    "power_w": {"color": PALETTE["pusher"], "marker": "^"},
    "sensor_w": {"color": PALETTE["pusher"], "marker": "+", "markeredgewidth": 1.8},
    "pj_per_flop": {"color": PALETTE["reducer"], "marker": "D"},
    "joule": {"color": PALETTE["reducer"], "marker": "D"},
    "joule_seconds": {"color": PALETTE["mover"], "marker": "v"},
}

PAPER = (224 / 256, 0.93)
"""The one point of the paper: 224 of 256 units keep 93 %."""


def figure(results: "Results") -> Figure:
    """What the sweep says. Raises KosmosArgumentError if nothing was measured."""
    if results.sweep is None or not results.runs:
        raise KosmosArgumentError("nothing was measured, so there is nothing to draw")
    if results.sweep.over == "workgroups":
        return _over_workgroups(results)
    if results.sweep.over == "sampling":
        return _sampling(results)
    return _bars(results)


def _over_workgroups(results: "Results") -> Figure:
    drawn = NotebookFigure(figsize=(10, 7), layout="constrained", facecolor="white")
    speed, clock, power, energy = drawn.subplots(2, 2, sharex=True).flat
    fitted = _fit(results)
    rows = results.rows()
    at = np.array([row["workgroups"] for row in rows])
    full = at.max()
    _dots(speed, results, results.tflops, "tflops")
    _line(speed, rows, "tflops")
    speed.set_ylabel("throughput (TFLOP/s)")
    speed.axhline(results.tflops(results.of(results.sweep.full)[0]), color=FAINT, linewidth=1)
    _dots(clock, results, lambda run: run.mean("sm_clock"), "clock_mhz")
    _line(clock, rows, "clock_mhz")
    _line(clock, rows, "kernel_mhz", linestyle="none")
    clock.set_ylabel("clock (MHz)")
    _dots(power, results, lambda run: run.power_w, "power_w")
    _line(power, rows, "power_w")
    _line(power, rows, "sensor_w", linestyle="none")
    power.set_ylabel("power (W)")
    if results.header.get("power_limit_w"):
        power.axhline(results.header["power_limit_w"], color=INK, linewidth=1, linestyle=":")
    _line(energy, rows, "pj_per_flop")
    energy.set_ylabel("energy (pJ per FLOP)")
    if fitted:
        tiles = fitted.observations[0].tiles
        said = fitted.predict(at, tiles, np.interp(at, *zip(*((o.workgroups, o.gbps) for o in fitted.observations))))
        for axes, name in ((speed, "tflops"), (clock, "mhz"), (power, "watts")):
            axes.plot(at, said[name], color=INK, linewidth=1.2, linestyle="--", zorder=5)
    for axes in (speed, clock, power, energy):
        axes.set_xlim(0, 1.03 * full)
        _plain(axes, "both")
    for axes in (speed, power, energy):
        axes.set_ylim(bottom=0)
    for axes in (power, energy):
        axes.set_xlabel(f"active workgroups of {full}")
    entries = [("throughput, each run", LOOKS["tflops"]), ("clock by the sensor", LOOKS["clock_mhz"])]
    if any(row["kernel_mhz"] for row in rows):
        entries.append(("clock in the kernel", {**LOOKS["kernel_mhz"], "linestyle": "none"}))
    entries += [("power by the energy counter", LOOKS["power_w"])]
    entries += [("by the momentary sensor", {**LOOKS["sensor_w"], "linestyle": "none"})]
    entries += [("energy", LOOKS["pj_per_flop"])]
    if fitted:
        entries.append(("model, fitted", {"color": INK, "linestyle": "--"}))
    if results.header.get("power_limit_w"):
        entries.append(("power cap", {"color": INK, "linestyle": ":"}))
    _legend(drawn, entries)
    _title(drawn, results)
    return drawn


def headroom(results: "Results", fitted: "Fit | None" = None, others: dict[str, Any] | None = None) -> Figure:
    """The share of the throughput that is kept with a share of the units: measured, the fitted model's, that of
    `others` (name -> (PowerModel, units), drawn as models), and the paper's point; below, what the model is off by.

    Raises KosmosArgumentError for a sweep that is not over workgroups.
    """
    if results.sweep is None or results.sweep.over != "workgroups":
        raise KosmosArgumentError("headroom is drawn from a sweep over workgroups")
    fitted = fitted or _fit(results)
    rows = results.rows()
    full = max(row["workgroups"] for row in rows)
    share = np.array([row["workgroups"] / full for row in rows])
    drawn = NotebookFigure(figsize=(8, 6.6), layout="constrained", facecolor="white")
    above, below = drawn.subplots(2, 1, sharex=True, height_ratios=[3, 1.2])
    above.plot([0, 1], [0, 1], color=FAINT, linewidth=1.5)
    entries: list[tuple[str, dict[str, Any]]] = []
    curve = np.linspace(0.1, 1, 181)
    for (name, (model, units)), colour in zip((others or {}).items(), ("mover", "reducer", "folder")):
        look = {"color": PALETTE[colour], "linestyle": "-.", "linewidth": 1.3}
        above.plot(curve, model.kept(curve, units), **look)
        entries.append((f"{name}, a model", look))
    if fitted:
        look = {"color": INK, "linestyle": "--", "linewidth": 1.3}
        above.plot(curve, fitted.model.kept(curve, full), **look)
        entries.append(("model, fitted, without rounds of tiles", look))
    above.plot(share, [row["kept"] for row in rows], **LOOKS["tflops"], linestyle="none", markersize=6, zorder=4)
    entries.insert(0, (f"{results.header.get('machine')}, measured", {**LOOKS["tflops"], "linestyle": "none"}))
    paper = {"color": PALETTE["pusher"], "marker": "*", "markersize": 14, "linestyle": "none"}
    above.plot(*PAPER, **paper, zorder=5)
    entries += [("the paper: 224 of 256 keep 93 %", paper), ("no headroom", {"color": FAINT, "linewidth": 1.5})]
    above.set_ylabel("throughput kept")
    above.set_xlim(0, 1.02)
    above.set_ylim(0, 1.05)
    if fitted:
        for row in fitted.residuals():
            for name, key in (("tflops", "tflops"), ("mhz", "clock_mhz"), ("watts", "power_w")):
                below.plot(row["workgroups"] / full, 100 * row[name], **LOOKS[key], markersize=5, linestyle="none")
        below.axhline(0, color=INK, linewidth=1)
        below.set_ylabel("model off (%)")
        reach = max(3.2, 110 * max(abs(row[name]) for row in fitted.residuals() for name in ("tflops", "mhz", "watts")))
        below.set_ylim(-reach, reach)
        entries += [(f"{what} off", {**LOOKS[key], "linestyle": "none"}) for what, key in _OFF]
    below.set_xlabel(f"share of the {full} units that is active")
    for axes in (above, below):
        _plain(axes, "both")
    _legend(drawn, entries, 3)
    _title(drawn, results)
    return drawn


_OFF = (("clock", "clock_mhz"), ("power", "power_w"))


def _bars(results: "Results") -> Figure:
    """Data or policies: a row each."""
    rows = results.rows()
    key = "data" if results.sweep.over == "data" else "policy"
    panels = [("tflops", "throughput (TFLOP/s)", results.tflops), ("clock_mhz", "clock (MHz)", _mean("sm_clock"))]
    panels += [("power_w", "power (W)", lambda run: run.power_w), ("joule", "energy of a call (J)", results.joule)]
    if key == "policy":
        panels.append(("joule_seconds", "energy × delay (mJ·s)", _delay(results)))
    drawn = NotebookFigure(
        figsize=(2.35 * len(panels) + 1, 0.45 * len(rows) + 2), layout="constrained", facecolor="white"
    )
    all_axes = drawn.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    names = [row[key] or "default" for row in rows]
    order = [at for at in range(len(results.sweep.points)) if results.of(at)]
    for axes, (name, label, value) in zip(all_axes, panels):
        for place, at in enumerate(order):
            found = [one for one in map(value, results.of(at)) if one is not None]
            if found:
                axes.barh(place, np.mean(found), 0.6, color=LOOKS[name]["color"], alpha=0.35, linewidth=0)
                axes.plot(found, [place] * len(found), **LOOKS[name], markersize=4, linestyle="none")
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        _plain(axes, "x")
    all_axes[0].set_yticks(range(len(names)), names)
    all_axes[0].set_ylim(len(names) - 0.5, -0.5)
    _legend(
        drawn, [("a run", {"color": INK, "marker": "o", "linestyle": "none"}), ("bar: their mean", {"color": FAINT})]
    )
    _title(drawn, results)
    return drawn


def _sampling(results: "Results") -> Figure:
    off, on = results.of(0), results.of(1)
    extra = [100 * (b.call_ms / a.call_ms - 1) for a, b in zip(off, on)]
    drawn = NotebookFigure(figsize=(7, 3.6), layout="constrained", facecolor="white")
    axes = drawn.subplots()
    axes.plot(range(1, len(extra) + 1), extra, **LOOKS["tflops"], linestyle="none")
    axes.axhline(0, color=INK, linewidth=1)
    axes.axhline(0.5, color=INK, linewidth=1, linestyle=":")
    axes.set_xlabel("turn")
    hz = results.sweep.points[1].sampled_hz
    axes.set_ylabel(f"a call takes longer if the sensor\nis read {hz:g} times a second (%)")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    _plain(axes, "y")
    looks = {**LOOKS["tflops"], "linestyle": "none"}
    _legend(drawn, [("a run with, against its neighbour without", looks), ("0.5 %", {"color": INK, "linestyle": ":"})])
    _title(drawn, results)
    return drawn


def _mean(name: str):
    return lambda run: run.mean(name)


def _delay(results: "Results"):
    def value(run: "Run") -> float | None:
        joule = results.joule(run)
        return None if joule is None else joule * run.call_ms

    return value


def _dots(axes: Axes, results: "Results", value: Any, name: str) -> None:
    """Every run."""
    known = [(results.sweep.points[run.point].active, value(run)) for run in results.runs]
    known = [pair for pair in known if pair[1] is not None]
    if known:
        look = {**LOOKS[name], "markeredgewidth": 0}
        axes.plot(*zip(*known), **look, linestyle="none", markersize=5, alpha=0.45, zorder=3)


def _line(axes: Axes, rows: list[dict[str, Any]], name: str, linestyle: str = "-") -> None:
    known = [(row["workgroups"], row[name]) for row in rows if row[name] is not None]
    if known:
        axes.plot(*zip(*known), **LOOKS[name], linestyle=linestyle, linewidth=1.3, markersize=5, zorder=4)


def _fit(results: "Results") -> "Fit | None":
    try:
        return results.fit()
    except KosmosError:
        return None


def _legend(drawn: Figure, entries: list[tuple[str, dict[str, Any]]], columns: int = 4) -> None:
    handles = [Line2D([], [], **{"linestyle": "-", **look}) for _, look in entries]
    names = [name for name, _ in entries]
    columns = min(columns, math.ceil(len(entries) / math.ceil(len(entries) / columns)))
    drawn.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, labelcolor=INK, fontsize="small"
    )


def _title(drawn: Figure, results: "Results") -> None:
    header, sweep = results.header, results.sweep
    point = sweep.points[sweep.full]
    parts = [header.get("machine"), f"{point.op} {point.m} × {point.n} × {point.k}, {point.dtype}"]
    parts += [f"sustained, {header.get('seconds'):g} s a run", header.get("started")]
    drawn.suptitle("  ·  ".join(str(part) for part in parts if part), x=0.01, ha="left", fontsize="small", color=INK)
