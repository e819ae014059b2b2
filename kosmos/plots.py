"""Pictures of a trace for paper and notebook, as matplotlib Figures.

A timeline has a row for every workgroup. A run has more rows and more spans than a screen has pixels, so the rows are
painted as one image, in which a pixel has the mixture of colours that its stretch of time was made of: nothing is
sampled, every span counts with its length.
"""

import io
import math
import operator
from collections.abc import Iterable
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb, to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator

from kosmos.errors import KosmosArgumentError, KosmosTraceError
from kosmos.trace import ROLES, Trace
from kosmos.trace.colours import PALETTE
from kosmos.trace.metrics import makespan_ns, microseconds
from kosmos.trace.schema import numbers

_BINS = 2400  # columns of the image: more than the picture has pixels
_ROWS = 1600  # about as many rows: more workgroups share them, fewer have several each
_MARKS = 20_000  # more marks than this would hide the run


class NotebookFigure(Figure):
    """A Figure that a notebook shows by itself: pyplot would keep it alive, and with it show it twice."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        png = io.BytesIO()
        self.savefig(png, format="png", dpi=2 * self.dpi)  # for screens with two pixels a point
        width, height = self.get_size_inches() * self.dpi
        return png.getvalue(), {"width": round(width), "height": round(height)}


def timeline(
    trace: Trace,
    *,
    ranks: int | Iterable[int] | None = None,
    window_us: tuple[float, float] | None = None,
    title: str | None = None,
    size: tuple[float, float] | None = None,
) -> Figure:
    """What every workgroup did when and, below, how many workgroups did what.

    `ranks`: the ranks to show, in this order; None is all. `window_us`: the stretch of time to show, in µs from the
    run's epoch; None is from the first claim to the last end. Lower bounds of the makespan that the trace's meta has
    are drawn as lines, the legend says how much of the makespan each is. A model's picture says "model". `title`:
    instead of the op's name. `size`: width and height in inches. Percentages in the legend are shares of what is shown;
    a dot is a workgroup's change of role, where it turns to its first item of the new one. Text and background follow
    matplotlib's style.

    Raises KosmosArgumentError for an argument that is not allowed, KosmosTraceError for a trace without spans.
    """
    if not isinstance(trace, Trace):
        raise KosmosArgumentError(f"timeline draws a Trace, not {type(trace).__name__}")
    if not len(trace.spans):
        raise KosmosTraceError("a trace without spans cannot be drawn")
    shown = _ranks(trace, ranks)
    window = _pair("window_us", window_us, lambda a, b: a < b, "(begin, end) with begin before end")
    inches = _pair("size", size, lambda a, b: min(a, b) > 0, "(width, height) in inches, both above 0")
    if title is not None and not isinstance(title, str):
        raise KosmosArgumentError(f"title must be text, not {type(title).__name__}")

    spans = _Spans(trace, shown, window)
    tall = float(np.clip(0.055 * spans.lanes, 1.6, 5.2))
    figure = NotebookFigure(figsize=inches or (10, tall + 2.7), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[tall, 1.3])
    shares = _draw_areas(below, spans)
    _draw_lanes(above, spans, shown)
    marks = _draw_switches(above, spans, tall)
    bounds = _draw_bounds((above, below), trace, spans)

    name = title if title is not None else trace.meta.get("op") or "run"
    if is_model(trace):
        name = f"{name} (model)"
    above.set_title(name, loc="left", weight="bold", pad=20)
    small = {"xycoords": "axes fraction", "xytext": (0, 6), "textcoords": "offset points", "fontsize": "small"}
    above.annotate(_facts(trace), (0, 1), **small)
    above.annotate(f"makespan {microseconds(makespan_ns(trace))}", (1, 1), ha="right", **small)
    below.set_xlabel("time (µs)" if not spans.zero_ns else f"time (µs) after {spans.zero_ns:,} ns")

    idle = Patch(facecolor=above.get_facecolor(), edgecolor=mpl.rcParams["axes.edgecolor"], linewidth=0.6)
    handles: list[Any] = [Patch(facecolor=PALETTE[kind]) for kind in shares] + [idle]
    rest = 1 - sum(shares.values())
    labels = [f"{kind} {100 * share:.1f} %" for kind, share in [*shares.items(), ("idle", rest)]]
    if marks is not None:
        handles.append(Line2D([], [], **_DOT, markersize=4, color=mpl.rcParams["text.color"]))
        labels.append(marks)
    for line, label in bounds:
        handles.append(line)
        labels.append(label)
    columns = len(labels) if len(labels) <= 6 else -(-len(labels) // 2)
    if bounds:
        columns = 4
    figure.legend(handles, labels, loc="outside lower center", ncols=columns, frameon=False, handlelength=1.2)
    return figure


_DOT: dict[str, Any] = {"marker": "o", "linestyle": "none", "markeredgewidth": 0}


class _Spans:
    """The spans that a picture shows: lanes counted from its top, times in bins from its left edge."""

    def __init__(self, trace: Trace, shown: list[int], window_us: tuple[float, float] | None) -> None:
        rank, workgroup, role = numbers(trace.spans, "rank", "workgroup", "role")
        times = numbers(trace.spans, "claim_ns", "start_ns", "end_ns")
        # Integers are subtracted before anything becomes a float, so that a late start costs no nanoseconds.
        origin = int(times[0].min())
        last = max(int(times[2].max()), origin + 1)
        # The axis counts from the run's epoch, unless its numbers would be alike in all the digits that it has.
        self.zero_ns = origin if abs(origin) > 1_000_000 * (last - origin) else 0
        if window_us is None:
            begin, end = 0.0, float(last - origin)
        else:
            begin, end = (us * 1000 - origin for us in window_us)
        self.first_us = (origin - self.zero_ns) / 1000
        self.window_us = ((begin + (origin - self.zero_ns)) / 1000, (end + (origin - self.zero_ns)) / 1000)

        self.workgroups = trace.workgroups
        self.lanes = len(shown) * trace.workgroups
        place = np.full(trace.ranks, -1)
        place[shown] = np.arange(len(shown))
        keep = place[rank] >= 0
        self.lane = (place[rank] * trace.workgroups + workgroup)[keep]
        self.role = role[keep]
        self.claim, self.start, self.end = (((t[keep] - origin) - begin) / (end - begin) * _BINS for t in times)

    def kinds(self) -> list[tuple[str, np.ndarray, np.ndarray, np.ndarray]]:
        """Role or wait, with the lane, begin and end of each stretch of it."""
        kinds = []
        for code in np.unique(self.role):
            mask = self.role == code
            kinds.append((ROLES[code], self.lane[mask], self.start[mask], self.end[mask]))
        return [*kinds, ("wait", self.lane, self.claim, self.start)]


def _coverage(row: np.ndarray, rows: int, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """How much of each bin the stretches of each row cover: [rows, _BINS], 1 is all of it."""
    change = np.zeros(rows * (_BINS + 2))
    for edge, sign in ((begin, 1.0), (end, -1.0)):
        # A step at x fills its own bin by what is left of it and all later bins: two differences, summed up below.
        x = np.clip(edge, 0, _BINS)
        column = x.astype(np.int64)
        part = x - column
        cell = row * (_BINS + 2) + column
        change += np.bincount(cell, sign * (1 - part), len(change))
        change += np.bincount(cell + 1, sign * part, len(change))
    return change.reshape(rows, _BINS + 2).cumsum(axis=1)[:, :_BINS]


def _draw_lanes(axes: Axes, spans: _Spans, shown: list[int]) -> None:
    fold = -(-spans.lanes // _ROWS)
    shared = np.bincount(np.arange(spans.lanes) // fold)  # lanes in each row
    tall = max(1, _ROWS // len(shared))  # image rows for each of them
    roomy = tall >= 10  # for hairlines between lanes and between the items of a lane
    background = np.array(to_rgb(axes.get_facecolor()), np.float32)
    image = np.empty((len(shared), _BINS, 3), np.float32)
    image[:] = background
    for kind, lane, begin, end in spans.kinds():
        if roomy:
            end = np.where(end - begin > 8, end - 1, end)
        *colour, alpha = to_rgba(PALETTE[kind])
        cover = (alpha / shared[:, None] * _coverage(lane // fold, len(shared), begin, end)).astype(np.float32)
        image += cover[..., None] * (np.array(colour, np.float32) - background)
    # Many rows a lane, so that scaling the image to the screen cannot blur one lane into the next.
    pixels = (image.clip(0, 1) * 255).round().astype(np.uint8).repeat(tall, axis=0)
    if roomy:
        pixels[np.arange(len(pixels)) % tall >= tall - min(tall // 8, 16)] = (background * 255).round()
    axes.imshow(pixels, aspect="auto", extent=(*spans.window_us, spans.lanes, 0))

    borders = np.arange(1, len(shown)) * spans.workgroups
    edge = mpl.rcParams["axes.edgecolor"]
    axes.hlines(borders, *spans.window_us, color=edge, linewidth=mpl.rcParams["axes.linewidth"])
    some = slice(None, None, -(-len(shown) // 32))
    axes.set_yticks((np.arange(len(shown)) + 0.5)[some] * spans.workgroups, [f"rank {rank}" for rank in shown[some]])
    axes.tick_params(axis="y", length=0)
    axes.set_ylabel(f"{spans.workgroups} workgroup{'s'[: spans.workgroups > 1]} a rank")


def _draw_switches(axes: Axes, spans: _Spans, tall: float) -> str | None:
    """Marks the changes of role; their entry in the legend, None if there are none."""
    order = np.lexsort((spans.claim, spans.lane))
    lane, role, when = spans.lane[order], spans.role[order], spans.claim[order]
    at = np.flatnonzero((lane[1:] == lane[:-1]) & (role[1:] != role[:-1])) + 1
    at = at[(when[at] >= 0) & (when[at] <= _BINS)]
    if not len(at):
        return None
    if len(at) > _MARKS:
        return f"role switch ({len(at):,}, too many to mark)"
    begin, end = spans.window_us
    size = float(np.clip(0.5 * 72 * tall / spans.lanes, 1.2, 4))
    x = begin + when[at] / _BINS * (end - begin)
    axes.plot(x, lane[at] + 0.5, **_DOT, markersize=size, color=mpl.rcParams["text.color"])
    return f"role switch ({len(at):,})"


BOUNDS = {"work": "-", "link": "--", "memory": "-.", "critical_path": ":"}
"""The lower bounds of `meta["bounds"]`, and the line of each."""


def is_model(trace: Trace) -> bool:
    """Whether a trace's times are those of a machine model: then every picture of it says so."""
    return bool(trace.meta.get("model")) or trace.meta.get("place") in ("simulator", "emulator")


def _draw_bounds(axes: Iterable[Axes], trace: Trace, spans: _Spans) -> list[tuple[Line2D, str]]:
    """A line for each lower bound of the makespan, from the first claim on; the legend's lines and texts."""
    bounds = trace.meta.get("bounds")
    makespan = makespan_ns(trace)
    drawn: list[tuple[Line2D, str]] = []
    if not isinstance(bounds, dict) or not makespan:
        return drawn
    for name, style in BOUNDS.items():
        ns = bounds.get(name)
        if not isinstance(ns, int | float) or not ns > 0:
            continue
        at = spans.first_us + ns / 1000
        look: dict[str, Any] = {"linestyle": style, "linewidth": 1.3, "color": mpl.rcParams["text.color"]}
        if spans.window_us[0] <= at <= spans.window_us[1]:
            for each in axes:
                # a halo, so that the line is seen on every role's colour
                each.axvline(at, **look, path_effects=[withStroke(linewidth=3, foreground=each.get_facecolor())])
        said = f"{name.replace('_', ' ')} ≥ {ns / 1000:,.1f} µs ({100 * ns / makespan:.0f} %)"
        drawn.append((Line2D([], [], **look), said))
    return drawn


def _draw_areas(axes: Axes, spans: _Spans) -> dict[str, float]:
    """Stacks how many workgroups did what; the share of each in the whole."""
    edges = np.linspace(*spans.window_us, _BINS + 1)
    heights = {}
    for kind, lane, begin, end in spans.kinds():
        height = _coverage(np.zeros_like(lane), 1, begin, end)[0]
        if kind == "wait" or height.any():
            heights[kind] = height
    tops = np.cumsum(list(heights.values()), axis=0)
    # The highest first and each down to the ground: areas that only touch would let the background shine through.
    for kind, top in reversed(list(zip(heights, tops, strict=True))):
        axes.fill_between(edges, np.append(top, top[-1]), step="post", color=PALETTE[kind], linewidth=0)
    axes.set_ylim(0, spans.lanes)
    axes.set_xlim(*spans.window_us)
    axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
    axes.set_ylabel("workgroups")
    return {kind: float(height.mean()) / spans.lanes for kind, height in heights.items()}


def sweep_bars(table: Any, *, title: str = "sweep") -> Figure:
    """A bar for every run of a kosmos.sweep: its makespan, made of the roles' shares, and its largest lower bound.

    Raises KosmosArgumentError for a table of no or of more than 80 runs.
    """
    runs = table.to_pylist()
    if not 0 < len(runs) <= 80:
        raise KosmosArgumentError(f"a sweep of {len(runs)} runs cannot be drawn as bars; 1 to 80 can")
    same = {name for name in runs[0] if len({str(run[name]) for run in runs}) == 1}
    asked = ("op", "m", "n", "k", "ranks", "machine", "ran", "order", "dtype", "workgroups", "link_gbps")
    differ = [name for name in asked if name not in same]

    def named(run: dict[str, Any], name: str) -> str:
        return run[name] if isinstance(run[name], str) else f"{name} {run[name]:,}".replace("link_gbps", "GB/s a link")

    figure = NotebookFigure(figsize=(9, 1.6 + 0.27 * len(runs)), layout="constrained")
    axes = figure.subplots()
    left = np.zeros(len(runs))
    for kind in ("builder", "reducer", "mover", "wait", "idle"):
        widths = np.array([(run[kind] or 0.0) * run["makespan_ns"] / 1000 for run in runs])
        if widths.any():
            colour = axes.get_facecolor() if kind == "idle" else PALETTE[kind]
            edge = mpl.rcParams["axes.edgecolor"]
            axes.barh(range(len(runs)), widths, left=left, color=colour, edgecolor=edge, linewidth=0.4, label=kind)
        left += widths
    bounds = [
        max(run[name] or 0 for name in ("work_ns", "link_ns", "memory_ns", "critical_path_ns")) / 1000 for run in runs
    ]
    axes.plot(
        bounds, range(len(runs)), "|", color=mpl.rcParams["text.color"], markersize=12, label="largest lower bound"
    )
    labels = ["  ".join(named(run, name) for name in differ) for run in runs]
    axes.set_yticks(range(len(runs)), labels or [""] * len(runs), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("makespan (µs), divided as the workgroups' time is")
    alike = "  ·  ".join(named(runs[0], name) for name in asked if name in same and runs[0][name] is not None)
    axes.set_title(f"{title} (model)", loc="left", weight="bold", pad=20)
    axes.annotate(alike, (0, 1), xycoords="axes fraction", xytext=(0, 6), textcoords="offset points", fontsize="small")
    figure.legend(loc="outside lower center", ncols=6, frameon=False, handlelength=1.2)
    return figure


def _facts(trace: Trace) -> str:
    """One line of what `meta` says about the run."""
    meta = trace.meta
    shape = meta.get("shape")
    order = meta.get("order")
    facts = [
        " × ".join(f"{key} {shape[key]}" for key in "mnk" if key in shape) if isinstance(shape, dict) else shape,
        meta.get("dtype"),
        meta.get("policy"),
        order and f"{order} order",
        meta.get("machine"),
        meta.get("place"),
    ]
    return "  ·  ".join(str(fact) for fact in facts if fact)


def _ranks(trace: Trace, ranks: int | Iterable[int] | None) -> list[int]:
    if ranks is None:
        return list(range(trace.ranks))
    allowed = f"ranks must be some of 0 to {trace.ranks - 1}, each once"
    try:
        shown = [operator.index(rank) for rank in (ranks if isinstance(ranks, Iterable) else [ranks])]
    except TypeError:
        raise KosmosArgumentError(f"{allowed}, not {ranks!r}") from None
    if not shown or len(set(shown)) < len(shown) or not 0 <= min(shown) <= max(shown) < trace.ranks:
        raise KosmosArgumentError(f"{allowed}, not {ranks!r}")
    return shown


def _pair(name: str, value: Any, fits: Any, allowed: str) -> tuple[float, float] | None:
    if value is None:
        return None
    try:
        first, second = (float(number) for number in value)
    except (TypeError, ValueError):
        first = second = math.nan
    if not (math.isfinite(first) and math.isfinite(second) and fits(first, second)):
        raise KosmosArgumentError(f"{name} must be {allowed}, not {value!r}")
    return first, second
