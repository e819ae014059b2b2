"""What exports to other viewers have in common: time near 0, slices that nest, flows from span to span.

Viewers take slices of one track that nest and nothing else. What does not (see `Lane.bad`, `Row.bad`) is handed over
apart, so that an export can show it and say how much there is: nothing is left out or bent into shape.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from kosmos.errors import KosmosTraceError
from kosmos.trace import metrics
from kosmos.trace.schema import ROLES, numbers

if TYPE_CHECKING:
    from kosmos.trace.trace import Trace

WAIT = "wait"
"""The name of the slice before a working one, from claim to start."""


@dataclass(slots=True)
class Span:
    """One span, its times in ns from the base."""

    code: int
    item: int
    claim: int
    start: int
    end: int
    cycles: int
    unit: int
    band: int  # -1: the queue does not say
    column: int
    begins: list[int]  # numbers of the flows that begin here
    ends: list[int]

    @property
    def role(self) -> str:
        return ROLES[self.code]

    @property
    def facts(self) -> dict[str, Any]:
        """What a viewer shows when the span is clicked."""
        facts: dict[str, Any] = {"item": self.item}
        if self.band >= 0:
            facts["tile"] = f"{self.band},{self.column}"
        facts["cycles"] = self.cycles
        if self.end > self.start:
            facts["MHz"] = round(1000 * self.cycles / (self.end - self.start), 1)
        facts["unit"] = self.unit
        return facts

    @property
    def wrong(self) -> str:
        """What is wrong with one that does not nest."""
        return "ends before it begins" if not self.claim <= self.start <= self.end else "overlaps"


@dataclass
class Lane:
    """A workgroup's spans: `spans` follow one another, in the order of time; `bad` are the others."""

    rank: int
    workgroup: int
    spans: list[Span]
    bad: list[Span]


@dataclass
class Row:
    """Ranges of one track, as many as nest: (name, start, end) by start, the enclosing first; `bad` end too early."""

    rank: int
    name: str
    ranges: list[tuple[str, int, int]] = field(default_factory=list)
    bad: list[tuple[str, int, int]] = field(default_factory=list)
    _open: list[int] = field(default_factory=list)

    def takes(self, start: int, end: int) -> bool:
        """Whether a range that starts no earlier than those here nests among them."""
        while self._open and self._open[-1] <= start:
            self._open.pop()
        return not self._open or end <= self._open[-1]

    def add(self, name: str, start: int, end: int) -> None:
        self.ranges.append((name, start, end))
        self._open.append(end)

    def steps(self) -> Iterator[tuple[int, str | None]]:
        """(time, name) where a range begins and (time, None) where the one that began last ends, in order."""
        ends: list[int] = []
        for name, start, end in self.ranges:
            while ends and ends[-1] <= start:
                yield ends.pop(), None
            yield start, name
            ends.append(end)
        while ends:
            yield ends.pop(), None


@dataclass
class Series:
    """A counter's samples, in the order of time."""

    rank: int
    name: str
    unit: str
    times: list[int]
    values: list[float]


class Export:
    """A trace in the order in which exports write it.

    Raises KosmosTraceError for a trace that is longer than the 2^63 ns that other viewers count to.
    """

    def __init__(self, trace: "Trace") -> None:
        self.trace = trace
        times = [*numbers(trace.spans, "claim_ns", "start_ns", "end_ns"), *numbers(trace.counters, "time_ns")]
        times += numbers(trace.ranges, "start_ns", "end_ns")
        self.base_ns = min((int(column.min()) for column in times if len(column)), default=0)
        last = max((int(column.max()) for column in times if len(column)), default=0)
        if last - self.base_ns >= 2**63:
            raise KosmosTraceError(
                f"times from {self.base_ns} to {last} ns are too far apart for other viewers, which count to 2^63 ns"
            )
        ranks = {*range(trace.ranks), *_distinct(trace.counters, "rank"), *_distinct(trace.ranges, "rank")}
        self.ranks = sorted(rank for rank in ranks if rank >= 0)
        self.counters = [*self._series()]
        self.missing = int((~np.isfinite(numbers(trace.counters, "value")[0])).sum())
        self.rows = [*self._rows()]
        src, dst, self.unbound = metrics.edges(trace)
        count = len(trace.spans)
        self._begins, self._ends = _Groups(src, count), _Groups(dst, count)
        (start,) = numbers(trace.spans, "start_ns")
        self.flows = len(src)
        self.backwards = int(np.count_nonzero(start[dst] < start[src]))
        self.bad = 0  # spans that do not nest, counted as `lanes` comes by them

    def facts(self) -> dict[str, Any]:
        """What a reader of the file must know besides its events: `bad` is complete after `lanes`."""
        kept = ("op", "shape", "dtype", "policy", "order", "machine", "place", "clock", "epoch", "clock_offsets_ns")
        facts = {key: self.trace.meta[key] for key in kept if key in self.trace.meta}
        return facts | {
            "base_ns": self.base_ns,
            "spans": len(self.trace.spans),
            "spans_that_do_not_nest": self.bad,
            "ranges": len(self.trace.ranges),
            "ranges_that_do_not_nest": sum(len(row.bad) for row in self.rows),
            "flows": self.flows,
            "flows_without_an_end": self.unbound,
            "flows_back_in_time": self.backwards,
            "samples_without_a_value": self.missing,
        }

    def title(self) -> str:
        """The run in a few words."""
        said = [str(self.trace.meta[key]) for key in ("op", "policy", "order") if self.trace.meta.get(key)]
        return ", ".join(said) or "run"

    def lanes(self) -> Iterator[Lane]:
        """Rank by rank, workgroup by workgroup, those without a span too."""
        rank, workgroup, role, item = numbers(self.trace.spans, "rank", "workgroup", "role", "item")
        claim, start, end = numbers(self.trace.spans, "claim_ns", "start_ns", "end_ns")
        cycles, unit = numbers(self.trace.spans, "cycles", "unit")
        band, column = self._tiles()
        lane = rank.astype(np.int64) * self.trace.workgroups + workgroup
        order = np.lexsort((claim, end, lane))
        bounds = np.searchsorted(lane[order], np.arange(self.trace.ranks * self.trace.workgroups + 1))
        for number in range(len(bounds) - 1):
            rows = order[bounds[number] : bounds[number + 1]]
            columns = [
                *(values[rows].tolist() for values in (role, item)),
                *((times[rows] - self.base_ns).tolist() for times in (claim, start, end)),
                *(values[rows].tolist() for values in (cycles, unit, band, column)),
                *(flows.of(rows) for flows in (self._begins, self._ends)),
            ]
            spans = [Span(*values) for values in zip(*columns, strict=True)]
            nests = _follow(claim[rows], start[rows], end[rows])
            bad = [] if nests.all() else [span for span, good in zip(spans, nests) if not good]
            if bad:
                self.bad += len(bad)
                spans = [span for span, good in zip(spans, nests) if good]
            yield Lane(*divmod(number, self.trace.workgroups), spans, bad)

    def _tiles(self) -> tuple[np.ndarray, np.ndarray]:
        """Band and column of every span's item, -1 where the queue does not say."""
        row = metrics.rows_in_queue(self.trace)
        if not len(self.trace.queue):
            return row, row
        band, column = (np.where(row >= 0, of[row], -1) for of in numbers(self.trace.queue, "band", "column"))
        return band, column

    def _series(self) -> Iterator[Series]:
        counters = self.trace.counters
        rank, time, value = numbers(counters, "rank", "time_ns", "value")
        kinds: dict[tuple[int, str, str], list[int]] = {}
        for row, key in enumerate(zip(rank.tolist(), counters["name"].to_pylist(), counters["unit"].to_pylist())):
            kinds.setdefault(key, []).append(row)
        for (of, name, unit), listed in kinds.items():
            rows = np.array(listed)[np.isfinite(value[listed])]
            rows = rows[np.argsort(time[rows], kind="stable")]
            yield Series(max(of, -1), name, unit, (time[rows] - self.base_ns).tolist(), value[rows].tolist())

    def _rows(self) -> Iterator[Row]:
        rank, start, end = numbers(self.trace.ranges, "rank", "start_ns", "end_ns")
        names, tracks = self.trace.ranges["name"].to_pylist(), self.trace.ranges["track"].to_pylist()
        found: dict[tuple[int, str], list[Row]] = {}
        for at in np.lexsort((~end, start)).tolist():
            of, track = max(int(rank[at]), -1), tracks[at]
            rows = found.setdefault((of, track), [Row(of, track)])
            one = names[at], int(start[at]) - self.base_ns, int(end[at]) - self.base_ns
            if one[1] > one[2]:
                rows[0].bad.append(one)
                continue
            row = next((row for row in rows if row.takes(*one[1:])), None)
            if row is None:
                row = Row(of, f"{track} ({len(rows) + 1})")
                rows.append(row)
            row.add(*one)
        for rows in found.values():
            yield from rows


class _Groups:
    """Which flows, numbered from 1, belong to each of `count` spans."""

    def __init__(self, span: np.ndarray, count: int) -> None:
        self._flow = np.argsort(span, kind="stable") + 1
        self._first = np.concatenate([[0], np.cumsum(np.bincount(span, minlength=count))])

    def of(self, rows: np.ndarray) -> list[list[int]]:
        first, last = self._first[rows].tolist(), self._first[rows + 1].tolist()
        return [self._flow[a:b].tolist() if b > a else [] for a, b in zip(first, last)]


def _follow(claim: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Which spans, sorted by their end, follow one another: as many as can."""
    good = (claim <= start) & (start <= end)
    rows = np.flatnonzero(good)
    if (claim[rows[1:]] >= end[rows[:-1]]).all():
        return good
    free = None
    for row in rows.tolist():
        if free is not None and claim[row] < free:
            good[row] = False
        else:
            free = end[row]
    return good


def _distinct(table: Any, column: str) -> list[int]:
    return np.unique(numbers(table, column)[0]).tolist()
