"""Answers to what a page asks about one or several traces, at the level of detail that it shows.

A request is a dict {"ask": ..., ...}, perhaps with a buffer; its answer a dict and a list of buffers. Times are integer
ns from each trace's base, lanes and spans are numbered through all traces. Buffers are little-endian, most of them raw
deflate.
"""

import math
import operator
import os
import re
import threading
import zlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from kosmos.errors import KosmosArgumentError
from kosmos.trace import ROLES, Trace
from kosmos.trace.colours import PALETTE
from kosmos.trace.schema import numbers
from kosmos.viewer import kernels
from kosmos.viewer.lanes import LONGEST_NS, WAIT, Group, Lanes, ranges_of

VERSION = 1

OVERVIEW_ROWS, OVERVIEW_WIDTH = 128, 640

LISTED_SPANS = 20_000
"""Up to so many spans come one by one with a picture."""

MOST_MATCHES = MOST_FLOWS = 1000
MOST_RANGES = 5000
LONGEST_CHAIN = 20_000

LARGEST_PICTURE = 2**25
"""Bytes of coverage."""

Request = dict[str, Any]
Answer = dict[str, Any]
Buffers = list[bytes]


class Detail:
    """The source of everything that is shown of `traces`. It may be asked from any thread.

    Raises KosmosTraceError for a trace of 2**53 ns or more, KosmosArgumentError if there is none.
    """

    def __init__(self, traces: Sequence[Trace], titles: Sequence[str] | None = None) -> None:
        if not traces or not all(isinstance(trace, Trace) for trace in traces):
            given = ", ".join(type(trace).__name__ for trace in traces) or "nothing"
            raise KosmosArgumentError(f"traces must be one or more Trace objects, not {given}")
        if titles is None:
            titles = [_title(trace) for trace in traces]
        if isinstance(titles, str) or not isinstance(titles, Sequence) or len(titles) != len(traces):
            raise KosmosArgumentError(f"titles must be one for each of {len(traces)} traces, not {titles!r}")
        self.titles = [str(title) for title in titles]
        self.runs = [Lanes(trace) for trace in traces]
        self.first_lane = _offsets(run.lanes for run in self.runs)
        self.first_span = _offsets(run.count for run in self.runs)
        self.lanes = self.first_lane[-1]
        self.length = max(run.length for run in self.runs)
        roles = sorted({role for run in self.runs for role in run.roles})
        self.kinds = [*roles, WAIT]
        self._slot = np.zeros(WAIT + 1, np.int8)
        self._slot[self.kinds] = np.arange(len(self.kinds))
        self._series = [_recorded(run) for run in self.runs]
        self._group: tuple[tuple[int, int, int], Group] | None = None
        self._total = np.zeros(0)
        self._lock = threading.RLock()
        self._asks: dict[str, Callable[[Request, Sequence[Any]], tuple[Answer, Buffers]]] = {
            "picture": self._picture,
            "span": self._span,
            "step": self._step,
            "chain": self._chain,
            "sums": self._sums,
            "order": self._order,
            "search": self._search,
            "counters": self._counters,
            "ranges": self._ranges,
        }

    def answer(self, request: Request, buffers: Sequence[Any] = ()) -> tuple[Answer, Buffers]:
        """The answer to a request and its buffers. Raises KosmosArgumentError for a request that cannot be answered."""
        ask = request.get("ask")
        if ask not in self._asks:
            raise KosmosArgumentError(f"ask={ask!r} is unknown; allowed are {', '.join(self._asks)}")
        with self._lock:
            return self._asks[ask](request, buffers)

    # what is known without being asked

    def meta(self) -> dict[str, Any]:
        """What the page is told at once, as JSON; `problems` of each trace is left at None."""
        traces = [self._meta_of(index) for index in range(len(self.runs))]
        difference = None
        if len(traces) > 1:
            difference = [_difference(trace["title"], trace["summary"], traces[0]["summary"]) for trace in traces]
        return {
            "version": VERSION,
            "traces": traces,
            "lanes": self.lanes,
            "difference": difference,
            "palette": PALETTE,
        }

    def _meta_of(self, index: int) -> dict[str, Any]:
        run = self.runs[index]
        meta = run.trace.meta
        summary = run.trace.summary()
        ranges = ranges_of(run.trace)
        clock = meta.get("clock")
        return {
            "title": self.titles[index],
            "base": str(run.base),
            "length_ns": run.length,
            "ranks": run.ranks,
            "workgroups": run.workgroups,
            "first_lane": self.first_lane[index],
            "first_span": self.first_span[index],
            "spans": run.count,
            "roles": run.roles,
            "place": meta.get("place"),
            "machine": meta.get("machine"),
            "clock": clock if isinstance(clock, dict) else {},
            "tick_ns": (clock.get("tick_ns") if isinstance(clock, dict) else clock) or 1,
            "summary": {"makespan_ns": summary.pop("makespan_ns"), "shares": summary},
            "problems": None,
            "bad": int(np.count_nonzero(run.bad)),
            "queues": [{"rank": rank, "role": role, "items": items} for rank, role, items in run.queues],
            "counters": [{"name": s.name, "unit": s.unit, "rank": s.rank} for s in self._series[index]],
            "unit_name": _unit_name(meta.get("machine")),
            "units": None if run.units is None else run.units.tolist(),
            "ranges": 0 if ranges is None else len(ranges),
        }

    def overview(self) -> tuple[np.ndarray, bytes]:
        """The whole run in few rows: coverage uint8 [7 kinds][rows][width], and the same as the page takes it.

        That is uint32 rows, uint32 width, then the coverage deflated.
        """
        rows = max(min(OVERVIEW_ROWS, self.lanes), 1)
        row = np.arange(self.lanes) * rows // max(self.lanes, 1)
        coverage = np.zeros((WAIT + 1, rows, OVERVIEW_WIDTH), np.uint8)
        with self._lock:
            coverage[self.kinds] = self._cover(0, self.length, OVERVIEW_WIDTH, rows, row)[0]
        packer = zlib.compressobj(9, wbits=-15)
        head = np.array([rows, OVERVIEW_WIDTH], "<u4").tobytes()
        return coverage, head + packer.compress(coverage.tobytes()) + packer.flush()

    # picture

    def _picture(self, request: Request, buffers: Sequence[Any]) -> tuple[Answer, Buffers]:
        t0, t1 = _window(request)
        width, rows = _whole(request, "width", 1, 2**15), _whole(request, "rows", 1, 2**15)
        if len(self.kinds) * rows * width > LARGEST_PICTURE:
            raise KosmosArgumentError(f"a picture of rows={rows}, width={width} is too large")
        kinds = self.kinds
        if request.get("axis", "lanes") == "items":
            kinds = [_whole(request.get("group") or {}, "role", 0, len(ROLES) - 1), WAIT]
            coverage, spans, found = self._cover_items(request, t0, t1, width, rows)
        else:
            row = np.frombuffer(buffers[0], "<i4") if len(buffers) else np.zeros(0, np.int32)
            if len(row) != self.lanes or (len(row) and row.max() >= rows):
                raise KosmosArgumentError(f"a picture needs the row, below {rows}, of each of the {self.lanes} lanes")
            coverage, spans, found = self._cover(t0, t1, width, rows, row)
        few = spans <= LISTED_SPANS
        answer = {"rows": rows, "width": width, "kinds": kinds, "spans": spans if few else None}
        return answer, [deflate(coverage), *(self._columns(found) if few else [])]

    def _cover(
        self, t0: float, t1: float, width: int, rows: int, row: np.ndarray
    ) -> tuple[np.ndarray, int, list[tuple[int, np.ndarray]]]:
        """Coverage uint8 [kinds][rows][width], how many spans meet t0 to t1, and the first as (trace, places)."""
        total = self._zeros(rows, width)
        shown = row >= 0
        whole = np.bincount(row[shown], minlength=rows) * ((t1 - t0) / width)
        spans, found = 0, []
        for index, run in enumerate(self.runs):
            of_run = row[self.first_lane[index] : self.first_lane[index + 1]]
            lanes = np.flatnonzero(of_run >= 0).astype(np.int32)
            lanes = lanes[np.argsort(of_run[lanes], kind="stable")]
            meet, places = self._paint(run, lanes, of_run[lanes].astype(np.int32), t0, t1, total)
            spans += meet
            found.append((index, places))
        coverage = np.empty((len(self.kinds), rows, width), np.uint8)
        kernels.to_bytes(total, whole, coverage)
        return coverage, spans, found

    def _paint(
        self, run: Lanes, lanes: np.ndarray, rows: np.ndarray, t0: float, t1: float, total: np.ndarray
    ) -> tuple[int, np.ndarray]:
        """Paint these lanes of a trace into `total`; how many spans meet t0 to t1, and the places of the first."""

        def paint(some: slice) -> tuple[int, np.ndarray]:
            found = np.empty(LISTED_SPANS, np.int32)
            meet = kernels.paint(
                run.first, run.tidy, run.claim, run.start, run.end, run.role, run.base,
                lanes[some], rows[some], t0, t1, self._slot, total, found,
            )  # fmt: skip
            return meet, found[:meet]

        cut = _middle(run, lanes, rows)
        parts = _side_by_side(paint, [slice(0, cut), slice(cut, None)] if cut else [slice(None)])
        return sum(meet for meet, _ in parts), np.sort(np.concatenate([places for _, places in parts]))

    def _cover_items(
        self, request: Request, t0: float, t1: float, width: int, rows: int
    ) -> tuple[np.ndarray, int, list[tuple[int, np.ndarray]]]:
        index, rank, role = key = self._group_of(request)
        run = self.runs[index]
        if self._group is None or self._group[0] != key:
            self._group = (key, run.group(rank, role))
        group = self._group[1]
        lanes = np.arange(len(group.item), dtype=np.int32)
        row = (group.item.astype(np.int64) * rows // max(group.items, 1)).astype(np.int32)
        shared = np.diff(-(-np.arange(rows + 1) * group.items // rows))  # how many items each row has
        total = self._zeros(rows, width, 2)
        slot = np.full(WAIT + 1, 0, np.int8)
        slot[WAIT] = 1
        found = np.empty(LISTED_SPANS, np.int32)
        # an item has one span: not to look for the first that is in the window is faster
        untidy = np.zeros(len(lanes), bool)
        spans = kernels.paint(
            group.first, untidy, group.claim, group.start, group.end, group.role, run.base,
            lanes, row, t0, t1, slot, total, found,
        )  # fmt: skip
        coverage = np.empty((2, rows, width), np.uint8)
        kernels.to_bytes(total, shared * ((t1 - t0) / width), coverage)
        return coverage, spans, [(index, np.sort(group.place[found[: min(spans, LISTED_SPANS)]]))]

    def _group_of(self, request: Request) -> tuple[int, int, int]:
        group = request.get("group")
        if not isinstance(group, dict):
            raise KosmosArgumentError(f"group must be {{trace, rank, role}}, not {group!r}")
        index = _whole(group, "trace", 0, len(self.runs) - 1)
        rank = _whole(group, "rank", 0, max(self.runs[index].ranks - 1, 0))
        return index, rank, _whole(group, "role", 0, len(ROLES) - 1)

    def _columns(self, found: list[tuple[int, np.ndarray]]) -> Buffers:
        columns: list[list[np.ndarray]] = [[] for _ in range(8)]
        for index, places in found:
            run = self.runs[index]
            values = (
                (self.first_span[index] + run.rows(places)).astype("<i4"),
                (self.first_lane[index] + run.lane(places)).astype("<i4"),
                run.item[places].astype("<i4"),
                run.role[places].astype(np.uint8),
                (run.bad[places] > 0).astype(np.uint8),
                *((times[places] - run.base).astype("<f8") for times in (run.claim, run.start, run.end)),
            )
            for column, value in zip(columns, values):
                column.append(value)
        return [deflate(np.concatenate(column)) for column in columns]

    def _zeros(self, rows: int, width: int, kinds: int | None = None) -> np.ndarray:
        """float64 [rows, kinds, width + 1] of zeros, in memory that is kept."""
        kinds = len(self.kinds) if kinds is None else kinds
        size = rows * kinds * (width + 1)
        if len(self._total) < size:
            self._total = np.empty(size)
        total = self._total[:size].reshape(rows, kinds, width + 1)
        total.fill(0)
        return total

    # spans

    def _find(self, request: Request) -> tuple[int, int]:
        """Trace and place of the span that a request names by its index."""
        span = _whole(request, "index", 0, max(self.first_span[-1] - 1, 0))
        if not self.first_span[-1]:
            raise KosmosArgumentError(f"index={span} of a trace without spans")
        index = _within(self.first_span, span)
        return index, self.runs[index].place(span - self.first_span[index])

    def _lane_of(self, request: Request) -> tuple[int, int]:
        """Trace and lane within it of the lane that a request names."""
        lane = _whole(request, "lane", 0, max(self.lanes - 1, 0))
        if not self.lanes:
            raise KosmosArgumentError(f"lane={lane} of a trace without lanes")
        index = _within(self.first_lane, lane)
        return index, lane - self.first_lane[index]

    def _span(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        place: int | None
        if "index" in request:
            index, place = self._find(request)
        else:
            index, lane = self._lane_of(request)
            place = self.runs[index].at(lane, math.floor(_time(request, "t")))
        return {"span": None if place is None else self._whole_span(index, place)}, []

    def _step(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        by = request.get("by")
        if by not in (1, -1):
            raise KosmosArgumentError(f"by={by!r} must be 1 or -1")
        if "index" in request:
            index, place = self._find(request)
            run = self.runs[index]
            lane = int(run.lane(np.array([place]))[0])
            place += by
        else:
            index, lane = self._lane_of(request)
            run = self.runs[index]
            claims = run.claim[run.first[lane] : run.first[lane + 1]]
            time = _time(request, "t")
            after, before = np.searchsorted(claims, run.base + np.array([math.floor(time) + 1, math.ceil(time)]))
            place = int(run.first[lane]) + int(after if by > 0 else before - 1)
        inside = run.first[lane] <= place < run.first[lane + 1]
        return {"span": self._whole_span(index, place) if inside else None}, []

    def _brief(self, index: int, place: int) -> dict[str, Any]:
        run = self.runs[index]
        lane = int(run.lane(np.array([place]))[0])
        return {
            "index": self.first_span[index] + int(run.rows(np.array([place]))[0]),
            "lane": self.first_lane[index] + lane,
            "role": int(run.role[place]),
            "item": int(run.item[place]),
            "claim": int(run.claim[place]) - run.base,
            "start": int(run.start[place]) - run.base,
            "end": int(run.end[place]) - run.base,
        }

    def _whole_span(self, index: int, place: int) -> dict[str, Any]:
        run = self.runs[index]
        span = self._brief(index, place)
        cycles, worked = int(run.cycles[place]), span["end"] - span["start"]
        lane = span["lane"] - self.first_lane[index]
        span |= {
            "trace": index,
            "rank": lane // run.workgroups,
            "workgroup": lane % run.workgroups,
            "unit": None if run.units is None else int(run.unit[place]),
            "claim_ns": str(run.claim[place]),
            "start_ns": str(run.start[place]),
            "end_ns": str(run.end[place]),
            "mhz": 1000 * cycles / worked if cycles > 0 and worked > 0 else None,
            "bad": run.bad_sentence(place),
            "queue": None,
            "waits_for": [],
            "waits_for_total": 0,
            "released": None,
            "signals": [],
            "signals_total": 0,
        }
        if run.queued is None or run.queued[place] < 0:
            return span
        queue = run.trace.queue.slice(int(run.queued[place]), 1)
        span["queue"] = {name: queue[name][0].as_py() for name in queue.column_names if name not in _NOT_TOLD}
        flows = run.flows
        assert flows is not None
        producers, consumers = flows.producers(place), flows.consumers(place)
        released = flows.released(place, producers)
        return span | {
            "waits_for": [self._brief(index, int(other)) for other in producers[:MOST_FLOWS]],
            "waits_for_total": len(producers),
            "released": None if released is None else self._brief(index, released),
            "signals": [self._brief(index, int(other)) for other in consumers[:MOST_FLOWS]],
            "signals_total": len(consumers),
        }

    def _chain(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        index, place = self._find(request)
        run = self.runs[index]
        places, reasons = [place], []
        seen = {place}
        cut = False
        while True:
            first = place == run.first[run.lane(np.array([place]))[0]]
            before = _released(run, place)
            waited = before is not None and (first or run.end[before] > run.claim[place])
            if not waited:
                before = None if first else place - 1
            if before is None or before in seen:
                break
            if len(places) == LONGEST_CHAIN:
                cut = True
                break
            places.append(before)
            reasons.append("wait" if waited else "lane")
            seen.add(before)
            place = before
        spans = [self._brief(index, place) for place in reversed(places)]
        edges = [[a["index"], b["index"], why] for a, b, why in zip(spans, spans[1:], reversed(reasons))]
        return {"spans": spans, "edges": edges, "cut": cut}, []

    # sums, order, search

    def _sums(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        t0, t1 = _window(request)
        lanes = self._some_lanes(request.get("lanes"))
        row = np.full(self.lanes, -1, np.int32)
        row[lanes] = np.arange(len(lanes)) * 2 // max(len(lanes), 1)  # two halves, side by side
        spent, spans = self._spent(t0, t1, row, 2)
        kinds = zip(self.kinds, spent.sum(axis=0))
        ns = {("wait" if kind == WAIT else ROLES[kind]): _as_whole(value) for kind, value in kinds}
        ns["idle"] = _as_whole(len(lanes) * (t1 - t0) - sum(ns.values()))
        return {"ns": ns, "spans": spans, "lanes": len(lanes)}, []

    def _spent(self, t0: float, t1: float, row: np.ndarray, rows: int) -> tuple[np.ndarray, int]:
        """float64 [rows, kinds], the whole ns that each row's lanes spend in each kind; how many spans they have."""
        total = self._zeros(rows, 1)
        spans = 0
        for index, run in enumerate(self.runs):
            of_run = row[self.first_lane[index] : self.first_lane[index + 1]]
            lanes = np.flatnonzero(of_run >= 0).astype(np.int32)
            spans += self._paint(run, lanes, of_run[lanes].astype(np.int32), t0, t1, total)[0]
        return total[:, :, 0].copy(), spans

    def _some_lanes(self, lanes: Any) -> np.ndarray:
        """These lanes, each once; all of them for None."""
        return np.arange(self.lanes) if lanes is None else np.array(checked_lanes(lanes, self.lanes), np.int64)

    def _order(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        by = request.get("by")
        allowed = ("workgroup", "unit", "role", "switch", "idle")
        if by not in allowed:
            raise KosmosArgumentError(f"by={by!r} is unknown; allowed are {', '.join(allowed)}")
        busy = None
        if by == "idle":
            busy = self._spent(0, self.length, np.arange(self.lanes, dtype=np.int32), self.lanes)[0].sum(axis=1)
        parts = []
        for index, run in enumerate(self.runs):
            first = self.first_lane[index]
            value: np.ndarray = np.zeros(run.lanes)
            if by == "unit" and run.units is not None:
                value = np.where(run.units < 0, np.int64(2**31), run.units)
            elif by == "role":
                value = self._kinds_at(run, math.floor(_time(request, "t")))
            elif by == "switch":
                value = run.first_switch
            elif busy is not None:
                value = busy[first : first + run.lanes]
            rank = np.arange(run.lanes) // max(run.workgroups, 1)
            parts.append(first + np.lexsort((value, rank)))
        return {}, [np.concatenate(parts).astype("<i4").tobytes()]

    @staticmethod
    def _kinds_at(run: Lanes, time: int) -> np.ndarray:
        """The kind of each lane at a time, WAIT + 1 where it idles."""
        kinds = np.full(run.lanes, WAIT + 1)
        places = run.meeting(time, time + 1)
        claim, start, end = (times[places] - run.base for times in (run.claim, run.start, run.end))
        waits, works = (claim <= time) & (time < start), (start <= time) & (time < end)
        lanes = run.lane(places)
        # of several in a lane the last counts, as the places ascend
        some = waits | works
        kinds[lanes[some]] = np.where(works, run.role[places], WAIT)[some]
        return kinds

    def _search(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        text = request.get("text")
        if not isinstance(text, str):
            raise KosmosArgumentError(f"text must be text, not {text!r}")
        conditions = _conditions(text)
        found = [_matches(run, conditions) if conditions else np.zeros(0, np.int64) for run in self.runs]
        trace = np.repeat(np.arange(len(self.runs)), [len(places) for places in found])
        start = np.concatenate([run.start[places] - run.base for run, places in zip(self.runs, found)])
        span = np.concatenate([run.rows(places) for run, places in zip(self.runs, found)])
        total, places = len(start), np.concatenate(found)
        if total > MOST_MATCHES:
            early = np.flatnonzero(start <= np.partition(start, MOST_MATCHES - 1)[MOST_MATCHES - 1])
            trace, start, span, places = trace[early], start[early], span[early], places[early]
        first = np.lexsort((span, trace, start))[:MOST_MATCHES]
        return {"matches": [self._brief(int(trace[i]), int(places[i])) for i in first], "total": total}, []

    # counters and ranges

    def _counters(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        t0, t1 = _window(request)
        width = _whole(request, "width", 1, 2**15)
        series: list[dict[str, Any]] = []
        packed: Buffers = []

        def add(index: int, values: np.ndarray, **about: Any) -> None:
            series.append({"rank": None, **about, "trace": index, "step": not about["derived"]})
            with np.errstate(over="ignore"):  # what is too large for the page is infinite there, and not drawn
                packed.append(deflate(np.broadcast_to(values, (3, width)).astype("<f4")))

        for index, run in enumerate(self.runs):
            if run.count:
                total = self._zeros(2, width)  # two halves of the lanes, side by side
                lanes = np.arange(run.lanes, dtype=np.int32)
                self._paint(run, lanes, (lanes * 2 // run.lanes).astype(np.int32), t0, t1, total)
                for kind in [*run.roles, WAIT]:
                    about = {"name": "wait" if kind == WAIT else ROLES[kind], "unit": "workgroups", "derived": True}
                    add(index, total[:, self._slot[kind], :-1].sum(axis=0) * (width / (t1 - t0)), **about)
                if run.has_cycles:
                    add(index, self._clock(run, t0, t1, width), name="clock", unit="MHz", derived=True)
            for one in self._series[index]:
                add(index, one.values(t0, t1, width), name=one.name, unit=one.unit, rank=one.rank, derived=False)
        return {"series": series}, packed

    @staticmethod
    def _clock(run: Lanes, t0: float, t1: float, width: int) -> np.ndarray:
        """float64 [width]: the mean clock of those at work, in MHz; NaN where nobody is."""
        total = np.zeros((2, width + 1))
        kernels.add_cycles(run.first, run.tidy, run.start, run.end, run.cycles, run.base, t0, t1, total)
        ns, cycles = total[:, :-1]
        works = ns > 1e-9 * (t1 - t0) / width  # less is what rounding leaves of a stretch that ends at the pixel's edge
        return np.divide(1000 * cycles, ns, out=np.full(width, np.nan), where=works)

    def _ranges(self, request: Request, _: Sequence[Any]) -> tuple[Answer, Buffers]:
        t0, t1 = _window(request)
        found = []
        for index, run in enumerate(self.runs):
            table = ranges_of(run.trace)
            if table is None or not len(table):
                continue
            start, end = (times - run.base for times in numbers(table, "start_ns", "end_ns"))
            for row in np.flatnonzero((start < t1) & (end > t0)):
                found.append((int(start[row] - end[row]), index, int(row)))
        kept = sorted(found)[:MOST_RANGES]  # the longest
        ranges = [self._range(index, row) for index, row in sorted(one[1:] for one in kept)]
        return {"ranges": ranges, "total": len(found)}, []

    def _range(self, index: int, row: int) -> dict[str, Any]:
        run = self.runs[index]
        table: Any = ranges_of(run.trace)
        one = table.slice(row, 1).to_pylist()[0]
        times = {"start": one["start_ns"] - run.base, "end": one["end_ns"] - run.base}
        return {"track": one["track"], "name": one["name"], "trace": index, **times}


class _Series:
    """Samples of one recorded counter, times in ns from the base; each holds until the next, the last for no time.

    A sample that is no finite number ends the one before and says nothing itself.
    """

    def __init__(self, name: str, unit: str, rank: int, times: np.ndarray, samples: np.ndarray) -> None:
        self.name, self.unit, self.rank = name, unit, rank
        order = np.argsort(times, kind="stable")
        known = np.isfinite(samples[order])
        self._times, self._samples = times[order], np.where(known, samples[order], np.nan)
        self._latest = np.maximum.accumulate(np.where(known, np.arange(len(known)), -1))
        time = np.where(known[:-1], np.diff(self._times), 0)
        with np.errstate(over="ignore", invalid="ignore"):
            held = np.where(known[:-1], self._samples[:-1] * time, 0)
            self._integral, self._known = (np.concatenate(([0.0], np.cumsum(one))) for one in (held, time))

    def values(self, t0: float, t1: float, width: int) -> np.ndarray:
        """float64 [3][width]: min, mean over the time and max of what holds in each pixel; NaN where nothing does."""
        edges = t0 + np.arange(width + 1) * ((t1 - t0) / width)
        at = np.searchsorted(self._times, edges)
        first, last = at[:-1], at[1:]  # the samples in each pixel; the one before, if any is to follow, holds into it
        next_ = self._times[np.minimum(first, len(self._times) - 1)]
        holds = (first > 0) & (first < len(self._times)) & (next_ > edges[:-1])
        first = first - holds
        values = np.full((3, width), np.nan)
        some = np.flatnonzero(last > first)
        if not len(some):
            return values
        # every other entry is what reduceat makes of the samples from there to the next
        bounds = np.stack([first[some], last[some]], axis=1).ravel()
        padded = np.append(self._samples, np.nan)
        values[0, some] = np.fmin.reduceat(padded, bounds)[::2]
        values[2, some] = np.fmax.reduceat(padded, bounds)[::2]
        begins = np.maximum(edges[:-1], self._times[0])[some]
        ends = np.minimum(edges[1:], self._times[-1])[some]
        with np.errstate(invalid="ignore", divide="ignore"):
            integral, known = (
                np.interp(ends, self._times, sums) - np.interp(begins, self._times, sums)
                for sums in (self._integral, self._known)
            )
            mean = integral / known
        latest = self._latest[last[some] - 1]
        lone = np.where(latest >= first[some], self._samples[latest], np.nan)
        values[1, some] = np.where(known > 0, mean, lone)
        return values


def _recorded(run: Lanes) -> list[_Series]:
    """The counters of a trace, in the order of their first samples in the table."""
    table = run.trace.counters
    if not len(table):
        return []
    rank, time, value = numbers(table, "rank", "time_ns", "value")
    names, units = table["name"].combine_chunks(), table["unit"].combine_chunks()
    name, unit = (words.dictionary_encode().indices.to_numpy() for words in (names, units))
    key = np.stack([name, unit, rank])
    _, first, which = np.unique(key, axis=1, return_index=True, return_inverse=True)
    series = []
    for number in np.argsort(first):
        mine = which.ravel() == number
        row = int(first[number])
        about = (names[row].as_py(), units[row].as_py(), int(rank[row]))
        series.append(_Series(*about, time[mine] - run.base, value[mine]))
    return series


_NOT_TOLD = ("rank", "role", "item")


def deflate(values: np.ndarray) -> bytes:
    """Raw deflate; runs of equal bytes are what coverage has, and looking for nothing else is twice as fast.

    Large values are packed in two halves side by side: the first ends at a whole byte, so that they are one stream.
    """
    data = memoryview(values.tobytes())

    def pack(part: tuple[memoryview, int]) -> bytes:
        packer = zlib.compressobj(1, wbits=-15, strategy=zlib.Z_RLE)
        return packer.compress(part[0]) + packer.flush(part[1])

    if len(data) < 2**18:
        return pack((data, zlib.Z_FINISH))
    half = len(data) // 2
    return b"".join(_side_by_side(pack, [(data[:half], zlib.Z_FULL_FLUSH), (data[half:], zlib.Z_FINISH)]))


_pool: ThreadPoolExecutor | None = None


def _side_by_side(call: Callable[[Any], Any], parts: list[Any]) -> list[Any]:
    """What `call` returns for each part; all parts at once, if the machine can."""
    global _pool
    if len(parts) < 2 or (os.cpu_count() or 1) < 2:
        return [call(part) for part in parts]
    if _pool is None:
        try:
            _pool = ThreadPoolExecutor(2, "kosmos-viewer")
            _pool.submit(int).result()
        except RuntimeError:  # no threads, in a browser
            _pool = None
            return [call(part) for part in parts]
    return list(_pool.map(call, parts))


def _middle(run: Lanes, lanes: np.ndarray, rows: np.ndarray) -> int:
    """Where to cut lanes in two parts of about as many spans and no row in common; 0 for few spans."""
    if len(lanes) < 2:
        return 0
    spans = np.cumsum(run.first[lanes + 1] - run.first[lanes])
    if spans[-1] < 200_000:
        return 0
    middle = int(np.searchsorted(spans, spans[-1] // 2))
    return int(np.searchsorted(rows, rows[min(middle + 1, len(rows) - 1)]))


def _released(run: Lanes, place: int) -> int | None:
    """The place of the span whose signal was the last that this one needed; None if nobody knows of any."""
    if run.flows is None:
        return None
    return run.flows.released(place, run.flows.producers(place))


_NUMBERED = {
    "item": "item",
    "chunk": "chunk",
    "rank": "rank",
    "workgroup": "workgroup",
    "wg": "workgroup",
    "unit": "unit",
    "sm": "unit",
    "xcd": "unit",
}


def _conditions(text: str) -> list[tuple[str, Any]]:
    """What each word of a search asks for, (what, value); nothing if there is a word that says nothing."""
    conditions: list[tuple[str, Any]] = []
    words = re.sub(r"\s*,\s*", ",", text.lower()).split()
    while words:
        word = words.pop(0)
        roles = [code for code, role in enumerate(ROLES) if role.startswith(word)]
        if word == "tile" or word in _NUMBERED:
            values = (words.pop(0) if words else "").split(",")
            if len(values) != 1 + (word == "tile") or not all(re.fullmatch(r"-?\d{1,15}", value) for value in values):
                return []
            conditions.append((_NUMBERED.get(word, word), [int(value) for value in values]))
        elif re.fullmatch(r"\d{1,15}", word):
            conditions.append(("item", [int(word)]))
        elif word in ("wait", "bad"):
            conditions.append((word, None))
        elif roles:
            conditions.append(("role", roles))
        else:
            return []
    return conditions


def _matches(run: Lanes, conditions: list[tuple[str, Any]]) -> np.ndarray:
    """The places of the spans that meet all conditions."""
    meets = np.ones(run.count, bool)
    lanes = np.arange(run.lanes)
    for what, value in conditions:
        if what == "role":
            meets &= np.isin(run.role, value)
        elif what == "item":
            meets &= run.item == value[0]
        elif what == "wait":
            meets &= run.start > run.claim
        elif what == "bad":
            meets &= run.bad > 0
        elif what in ("tile", "chunk"):
            if run.queued is None:
                return np.zeros(0, np.int64)
            columns = numbers(run.trace.queue, *(["chunk"] if what == "chunk" else ["band", "column"]))
            of_row = np.logical_and.reduce([column == number for column, number in zip(columns, value)])
            meets &= np.append(of_row, False)[run.queued]  # -1 is the last
        else:
            if what == "unit" and run.units is None:
                return np.zeros(0, np.int64)
            of_lane = {"rank": lanes // run.workgroups, "workgroup": lanes % run.workgroups, "unit": run.units}[what]
            meets &= np.repeat(of_lane == value[0], np.diff(run.first))
    return np.flatnonzero(meets)


def checked_lanes(lanes: Any, count: int) -> list[int]:
    """`lanes` as ints, each once, ascending. KosmosArgumentError if they are not lanes from 0 to count - 1."""
    try:
        numbers_ = sorted({operator.index(lane) for lane in lanes})
    except TypeError:
        raise KosmosArgumentError(f"lanes must be whole numbers or None, not {lanes!r:.80}") from None
    if numbers_ and not 0 <= numbers_[0] <= numbers_[-1] < count:
        wrong = numbers_[0] if numbers_[0] < 0 else numbers_[-1]
        raise KosmosArgumentError(f"lanes must be from 0 to {count - 1}, not {wrong}")
    return numbers_


def _whole(request: Request, name: str, least: int, most: int) -> int:
    value = request.get(name)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise KosmosArgumentError(f"{name}={value!r} must be a whole number from {least} to {most}")
    return value


def _time(request: Request, name: str) -> float:
    """A time in ns from the base. A page that glides stops between two of them."""
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not -LONGEST_NS <= value <= LONGEST_NS:
        raise KosmosArgumentError(f"{name}={value!r} must be a time in ns, from -2**53 to 2**53")
    return value


def _window(request: Request) -> tuple[float, float]:
    t0, t1 = _time(request, "t0"), _time(request, "t1")
    if t1 <= t0:
        raise KosmosArgumentError(f"t1={t1} must be later than t0={t0}")
    return t0, t1


def _as_whole(value: float) -> float:
    """The same, as an int if it is one."""
    return int(value) if float(value).is_integer() else float(value)


def _offsets(counts: Iterable[int]) -> list[int]:
    return np.concatenate(([0], np.cumsum(list(counts)))).astype(int).tolist()


def _within(offsets: list[int], number: int) -> int:
    """Which trace a number that runs through all of them belongs to."""
    return int(np.searchsorted(offsets, number, "right")) - 1


def _difference(title: str, summary: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """How a summary differs from that of the first trace: makespan as a ratio, shares as what was added."""
    before, shares = base["shares"], summary["shares"]
    return {
        "title": title,
        "makespan_ns": summary["makespan_ns"],
        "ratio": summary["makespan_ns"] / base["makespan_ns"] if base["makespan_ns"] else None,
        "shares": {kind: shares.get(kind, 0.0) - before.get(kind, 0.0) for kind in {**before, **shares}},
    }


def _title(trace: Trace) -> str:
    said = [str(trace.meta[key]) for key in ("op", "policy", "order", "machine") if trace.meta.get(key)]
    return " · ".join(said) or f"{trace.ranks} ranks × {trace.workgroups} workgroups"


def _unit_name(machine: Any) -> str:
    name = str(machine or "").upper()
    if re.search(r"\bAMD\b|INSTINCT|\bMI\d|GFX9", name):
        return "XCD"
    return "SM" if re.search(r"NVIDIA|\b[ABHVL]\d{1,3}\b|\bGB?\d{3}\b", name) else "unit"
