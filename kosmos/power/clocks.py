"""The clock that every workgroup ran at, from the cycles and the times of its records.

A record has the cycles of its compute unit from start to end: cycles over time is the clock. What a workgroup waited is
not in it. One item's clock is as exact as the timer's tick is small against the item (an H200's 32 ns in an item of
90 µs: 0.04 %).
"""

import copy
from typing import Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosArgumentError
from kosmos.trace import COUNTERS, Trace
from kosmos.trace.files import as_json
from kosmos.trace.schema import conform, numbers

BINS = 200

TICKS = 50
"""A record that lasts fewer ticks of the timer says nothing about the clock."""


def clock_map(trace: Trace, bins: int = BINS) -> tuple[np.ndarray, np.ndarray]:
    """(edges_ns [bins + 1], MHz [ranks, workgroups, bins]): the mean clock of each workgroup in each stretch of time.

    A record counts in every stretch that it reaches into, with the time that it has there. NaN where a workgroup has
    no record. Raises KosmosArgumentError for a trace that says nothing about clocks.
    """
    if isinstance(bins, bool) or not isinstance(bins, int) or bins < 1:
        raise KosmosArgumentError(f"bins={bins!r} must be a whole number, 1 or more")
    lane, start, end, mhz = _records(trace)
    edges = np.linspace(start.min(), end.max(), bins + 1)
    lanes = trace.ranks * trace.workgroups
    time, cycles = np.zeros(lanes * bins), np.zeros(lanes * bins)
    first = np.clip(np.searchsorted(edges, start, "right") - 1, 0, bins - 1)
    last = np.clip(np.searchsorted(edges, end, "left") - 1, first, bins - 1)
    # record by stretch: most records reach into few stretches
    for step in range(int((last - first).max()) + 1):
        at = first + step
        some = at <= last
        begins = np.maximum(start[some], edges[at[some]])
        ends = np.minimum(end[some], edges[at[some] + 1])
        overlap = np.maximum(ends - begins, 0)
        cell = lane[some] * bins + at[some]
        time += np.bincount(cell, overlap, len(time))
        cycles += np.bincount(cell, overlap * mhz[some], len(cycles))
    with np.errstate(invalid="ignore"):
        return edges, (cycles / time).reshape(trace.ranks, trace.workgroups, bins)


def mean_mhz(trace: Trace) -> float:
    """The mean clock of all records, by the time that they took."""
    _, start, end, mhz = _records(trace)
    return float(np.average(mhz, weights=end - start))


def clock_counters(trace: Trace, bins: int = BINS, per_workgroup: bool = False) -> Trace:
    """The trace with the clock that its workgroups ran at among its counters, in MHz.

    Counter "clock" of every rank: the mean of its workgroups in each of `bins` stretches of time; with per_workgroup
    "clock 0", "clock 1", ... besides. A NaN begins a stretch in which nothing ran.
    """
    edges, mhz = clock_map(trace, bins)
    known = ~np.isnan(mhz)
    with np.errstate(invalid="ignore"):
        mean = np.where(known, mhz, 0).sum(1) / known.sum(1)
    curves = [("clock", rank, mean[rank]) for rank in range(trace.ranks)]
    if per_workgroup:
        curves += [(f"clock {w}", rank, mhz[rank, w]) for rank in range(trace.ranks) for w in range(trace.workgroups)]
    times = np.round(edges).astype(np.int64)
    parts = [
        pa.table(
            {
                "name": pa.array([name] * (bins + 1), pa.string()),
                "rank": pa.array(np.full(bins + 1, rank, np.int32)),
                "time_ns": pa.array(times),
                "value": pa.array(np.append(curve, np.nan)),
                "unit": pa.array(["MHz"] * (bins + 1), pa.string()),
            },
            schema=COUNTERS,
        )
        for name, rank, curve in curves
    ]
    return with_counters(trace, pa.concat_tables([trace.counters, *parts]))


def with_counters(trace: Trace, counters: pa.Table, **meta: Any) -> Trace:
    """The same trace with these counters, and more in its meta."""
    new = copy.copy(trace)
    new.counters, new.meta = conform(counters, COUNTERS, "counters"), as_json({**trace.meta, **meta})
    return new


def _records(trace: Trace) -> tuple[np.ndarray, ...]:
    """Lane, start and end in ns, and MHz of the records that say something about the clock."""
    rank, workgroup, start, end, cycles = numbers(trace.spans, "rank", "workgroup", "start_ns", "end_ns", "cycles")
    clock = trace.meta.get("clock")
    tick = clock.get("tick_ns", 1) if isinstance(clock, dict) else 1
    some = (end - start >= TICKS * tick) & (cycles > 0)
    if not some.any():
        raise KosmosArgumentError("this trace says nothing about clocks: no record has cycles and lasts long enough")
    start, end = start[some], end[some]
    lane = rank[some].astype(np.int64) * trace.workgroups + workgroup[some]
    return lane, start, end, 1000 * cycles[some] / (end - start)
