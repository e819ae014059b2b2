"""The clock that every workgroup ran at, as a picture."""

from typing import Any

import numpy as np

from kosmos.errors import KosmosArgumentError
from kosmos.power.clocks import clock_map
from kosmos.trace import Trace


def clock_figure(trace: Trace, bins: int = 400, window_ms: tuple[float, float] | None = None) -> Any:
    """A matplotlib Figure: the clock of every workgroup over time, below it their mean beside the sensor's clock and,
    if the trace has it, the power.

    bins: stretches of time. window_ms: what to show, from the run's epoch; by default all of it. Raises
    KosmosArgumentError for a trace that says nothing about clocks.
    """
    # upwards, as Trace.plot does: for people, and reading sensors needs no matplotlib
    from kosmos.plots import PALETTE, NotebookFigure

    edges, mhz = clock_map(trace, bins)
    lanes = mhz.reshape(-1, bins)
    ms = edges * 1e-6
    shown = (ms[0], ms[-1]) if window_ms is None else window_ms
    if not shown[0] < shown[1]:
        raise KosmosArgumentError(f"window_ms={window_ms!r} must be (begin, end) with begin before end")
    watts = _counter(trace, "power")
    figure = NotebookFigure(figsize=(10, 6.4 if watts else 5.2), layout="constrained")
    panels = figure.subplots(3 if watts else 2, 1, sharex=True, height_ratios=[3, 1.2, 1][: 3 if watts else 2])
    above, below = panels[:2]
    image = above.imshow(
        lanes, aspect="auto", interpolation="nearest", cmap="cividis", extent=(ms[0], ms[-1], len(lanes), 0)
    )
    above.set_facecolor("0.6")
    above.set_ylabel("workgroup" if trace.ranks == 1 else f"workgroup ({trace.ranks} ranks)")
    figure.colorbar(image, ax=above, label="MHz in the kernel", pad=0.01)
    known = ~np.isnan(lanes)
    some = known.any(0)
    middle = (ms[:-1] + ms[1:]) / 2
    with np.errstate(invalid="ignore"):
        mean = np.where(known, lanes, 0).sum(0) / known.sum(0)
    low, high = (edge(lanes[:, some], axis=0) for edge in (np.nanmin, np.nanmax))
    colour = PALETTE["router"]
    below.fill_between(middle[some], low, high, color=colour, alpha=0.3, linewidth=0, label="lowest to highest")
    below.plot(middle, mean, color=colour, linewidth=1.4, label="in the kernel, mean")
    sensor = _counter(trace, "sm_clock")
    if sensor:
        ink = above.spines["left"].get_edgecolor()
        below.step(*sensor, where="post", color=ink, linewidth=1.2, linestyle="--", label="by the sensor")
    below.set_ylabel("clock (MHz)")
    below.legend(loc="best", fontsize="small", frameon=False, ncols=3)
    if watts:
        panels[2].step(*watts, where="post", color=PALETTE["pusher"], linewidth=1.3, marker=".", label="by the sensor")
        panels[2].set_ylabel("power (W)")
        panels[2].set_ylim(bottom=0)
        panels[2].legend(loc="best", fontsize="small", frameon=False)
    for axes in panels[1:]:
        axes.grid(color="0.5", alpha=0.3, linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("time (ms)")
    above.set_xlim(shown)
    facts = [trace.meta.get("machine"), trace.meta.get("op"), f"{trace.ranks * trace.workgroups} workgroups"]
    above.set_title("  ·  ".join(str(fact) for fact in facts if fact), loc="left", fontsize="medium")
    return figure


def _counter(trace: Trace, name: str) -> tuple[np.ndarray, np.ndarray] | None:
    """Times in ms and values of a counter of the device, None if it has none."""
    names = np.array(trace.counters["name"].to_pylist())
    some = names == name
    if not some.any():
        return None
    return trace.counters["time_ns"].to_numpy()[some] * 1e-6, trace.counters["value"].to_numpy()[some]
