"""The spans of one trace in the order of lane and time, and what is looked up among them.

A *lane* is a workgroup of the trace: rank * workgroups + workgroup. A *place* is a span's position in this order, a
*row* its position in the trace's table; they are the same for a table that comes in that order, as recorded ones do.
"""

from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosTraceError
from kosmos.trace import ROLES, Trace
from kosmos.trace.schema import numbers
from kosmos.viewer import kernels

WAIT = kernels.WAIT

BAD = {
    kernels.WAITS_BACK: "its wait ended before it began",
    kernels.ENDS_EARLY: "it ended before it began",
    kernels.OVERLAPS: "it began before its workgroup was done with the span before",
    kernels.UNKNOWN: "its item is not in the queue",
}
"""What each bit of `Lanes.bad` says."""

LONGEST_NS = 2**53
"""From here on a page's numbers, which are doubles, are no longer whole nanoseconds."""


class Group(NamedTuple):
    """The items of one (rank, role) as if each were a lane: `place` is that of their spans, `first` theirs in it.

    `items` is how many there are, `item` int32 which of them have spans.
    """

    items: int
    item: np.ndarray
    first: np.ndarray
    place: np.ndarray
    claim: np.ndarray
    start: np.ndarray
    end: np.ndarray
    role: np.ndarray


class Lanes:
    """Columns as numpy arrays in the order of (lane, claim, end, row), times int64 ns as in the trace.

    `first` int64 [lanes + 1]: the first place of each lane. `tidy` bool [lanes]: no span of the lane runs backwards or
    overlaps another. `bad` uint8: bits of BAD. `row` int32: the row of a place, None if it is the place itself.
    `queued` int32: the row in the queue of a place's item, -1 for none, None for a trace without a queue. `base` and
    `length`, ns: where the time that is shown begins, and how long it is.

    Raises KosmosTraceError for a trace of 2**53 ns or more, and for ranges or counters so far from its spans.
    """

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.ranks, self.workgroups = trace.ranks, trace.workgroups
        self.count = len(trace.spans)
        self.lanes = trace.ranks * trace.workgroups
        self.first = np.zeros(self.lanes + 1, np.int64)
        self.row = self._order()
        columns = ("role", "item", "claim_ns", "start_ns", "end_ns", "cycles", "unit")
        self.role, self.item, self.claim, self.start, self.end, self.cycles, self.unit = (
            column if self.row is None else column[self.row]
            for name in columns
            for column in numbers(trace.spans, name)
        )
        self.bad = np.zeros(self.count, np.uint8)
        self.tidy = np.ones(self.lanes, bool)
        self.base, self.length = self._extent()
        self.queued = self._find_items()
        queued = numbers(trace.queue, "role")[0]
        self.roles = [code for code in range(len(ROLES)) if (self.role == code).any() or (queued == code).any()]

    def _order(self) -> np.ndarray | None:
        rank, workgroup, claim, end = numbers(self.trace.spans, "rank", "workgroup", "claim_ns", "end_ns")
        if kernels.count_lanes(rank, workgroup, claim, end, self.workgroups, self.first):
            return None
        return np.lexsort((end, claim, rank * np.int32(self.workgroups) + workgroup)).astype(np.int32)

    def _extent(self) -> tuple[int, int]:
        if self.count:
            low, high = kernels.check_lanes(self.first, self.claim, self.start, self.end, self.bad, self.tidy)
        else:  # what else there is to see
            times = [time for time in (*self.range_times, self.counter_times) if len(time)]
            low, high = (min(map(np.min, times)), max(map(np.max, times))) if times else (0, 0)
        low, high = int(low), int(high)
        # The epoch of a recording is its launch, at which traces are to be aligned; elsewhere it may be years away.
        base = 0 if 0 <= low <= high - low else low
        if high - base >= LONGEST_NS:
            raise KosmosTraceError(f"a trace from {low} to {high} ns is too long to be shown: 2**53 ns (104 days) are")
        for name, times in (("ranges", self.range_times), ("counters", [self.counter_times])):
            far = [int(time) for one in times if len(one) for time in (one.min(), one.max())]
            far = [time for time in far if abs(time - base) >= LONGEST_NS]
            if far:
                raise KosmosTraceError(
                    f"{name} at {far[0]} ns are too far from the run, which begins at {base} ns, to be shown with it: "
                    "2**53 ns (104 days) are; perhaps they are of another clock"
                )
        return base, max(high - base, 1)

    @property
    def counter_times(self) -> np.ndarray:
        return numbers(self.trace.counters, "time_ns")[0]

    @property
    def range_times(self) -> list[np.ndarray]:
        ranges = ranges_of(self.trace)
        return [] if ranges is None else numbers(ranges, "start_ns", "end_ns")

    def _find_items(self) -> np.ndarray | None:
        queue = self.trace.queue
        if not len(queue) or not self.count:
            return None if not len(queue) else np.zeros(0, np.int32)
        rank, role, item = numbers(queue, "rank", "role", "item")
        group = rank.astype(np.int64) * len(ROLES) + role
        groups = self.ranks * len(ROLES)
        order = None
        if (rank[0] < 0) | (rank[-1] >= self.ranks) | _descends(group, item):
            order = np.lexsort((item, group))
            order = order[(rank[order] >= 0) & (rank[order] < self.ranks)].astype(np.int32)
            group, item = group[order], item[order]
        first = np.concatenate(([0], np.cumsum(np.bincount(group, minlength=groups)))).astype(np.int64)
        place = np.empty(self.count, np.int32)
        kernels.find_items(self.first, self.workgroups, self.role, self.item, first, item, place, self.bad)
        if order is None:
            return place
        return np.where(place >= 0, order[place], np.int32(-1)) if len(order) else place

    @cached_property
    def flows(self) -> "Flows | None":
        """Who waits for whom; None without a queue."""
        return None if self.queued is None else Flows(self)

    @cached_property
    def units(self) -> np.ndarray | None:
        """int32 [lanes]: the unit that each lane ran on, by its first span, -1 for none; None if all are alike."""
        if not self.count:
            return None
        begin = np.minimum(self.first[:-1], self.count - 1)
        units = np.where(self.first[1:] > self.first[:-1], self.unit[begin], np.int32(-1))
        return None if (units == units[0]).all() else units

    @cached_property
    def has_cycles(self) -> bool:
        return bool((self.cycles > 0).any())

    @cached_property
    def first_switch(self) -> np.ndarray:
        """float64 [lanes]: when each lane first turned to an item of another role, ns from the base; else infinity."""
        when = np.full(self.lanes, np.inf)
        changes = np.flatnonzero(self.role[1:] != self.role[:-1]) + 1
        lanes = self.lane(changes)
        inside = changes > self.first[lanes]
        changes, lanes = changes[inside], lanes[inside]
        at = np.unique(lanes, return_index=True)[1]
        when[lanes[at]] = self.claim[changes[at]] - self.base
        return when

    @cached_property
    def _place_of_row(self) -> np.ndarray | None:
        if self.row is None:
            return None
        places = np.empty(self.count, np.int32)
        places[self.row] = np.arange(self.count, dtype=np.int32)
        return places

    def place(self, row: int) -> int:
        """Where the span of that row of the table stands."""
        return row if self._place_of_row is None else int(self._place_of_row[row])

    def rows(self, places: np.ndarray) -> np.ndarray:
        """The rows of the table of these places."""
        return places if self.row is None else self.row[places]

    def lane(self, places: np.ndarray) -> np.ndarray:
        """The lanes of these places."""
        return np.searchsorted(self.first, places, "right") - 1

    def items(self, rank: int, role: int) -> int:
        """How many items this (rank, role) has, in the queue or done."""
        return self._items.get((rank, role), 0)

    @cached_property
    def _items(self) -> dict[tuple[int, int], int]:
        largest = np.full((max(self.ranks, 1), len(ROLES)), -1, np.int64)
        rank, role, item = numbers(self.trace.queue, "rank", "role", "item")
        # in pieces: what numpy makes to add up by index is many times as large as the columns
        for begin in range(0, len(item), 2**18):
            piece = slice(begin, begin + 2**18)
            known = (rank[piece] >= 0) & (rank[piece] < self.ranks)
            np.maximum.at(largest, (rank[piece][known], role[piece][known]), item[piece][known])
        for lane in range(self.lanes):
            mine = slice(self.first[lane], self.first[lane + 1])
            np.maximum.at(largest[lane // self.workgroups], self.role[mine], self.item[mine])
        return {(int(rank), int(role)): int(largest[rank, role]) + 1 for rank, role in np.argwhere(largest >= 0)}

    @property
    def queues(self) -> list[tuple[int, int, int]]:
        """(rank, role, items) of everything that has items."""
        return [(rank, role, items) for (rank, role), items in self._items.items()]

    def group(self, rank: int, role: int) -> Group:
        """The spans of one (rank, role), item by item."""
        items = self.items(rank, role)
        begin, end = self.first[rank * self.workgroups], self.first[(rank + 1) * self.workgroups]
        of_role = (self.role[begin:end] == role) & (self.item[begin:end] >= 0) & (self.item[begin:end] < items)
        place = np.flatnonzero(of_role) + begin
        place = place[np.argsort(self.item[place], kind="stable")]
        item, first = np.unique(self.item[place], return_index=True)
        first = np.append(first, len(place))
        return Group(items, item, first, place, self.claim[place], self.start[place], self.end[place], self.role[place])

    def meeting(self, t0: int, t1: int, lanes: np.ndarray | None = None) -> np.ndarray:
        """The places, ascending, of the spans of these lanes that meet t0 to t1, in ns from the base."""
        low = np.minimum(np.minimum(self.claim, self.start), self.end)
        meets = low < self.base + t1
        high = np.maximum(np.maximum(self.claim, self.start), self.end)
        meets &= (high > self.base + t0) | (low >= self.base + t0)
        places = np.flatnonzero(meets)
        if lanes is None:
            return places
        wanted = np.zeros(self.lanes, bool)
        wanted[lanes] = True
        return places[wanted[self.lane(places)]]

    def at(self, lane: int, time: int) -> int | None:
        """The place of the last span of the lane that covers `time`, in ns from the base."""
        begin, end = int(self.first[lane]), int(self.first[lane + 1])
        time += self.base
        if self.tidy[lane]:
            # the last that began by then; before it may stand some without any length, but none that covers more
            begin = max(begin, begin + int(np.searchsorted(self.claim[begin:end], time, "right")) - 1)
            end = min(begin + 1, end)
        times = np.stack([self.claim[begin:end], self.start[begin:end], self.end[begin:end]])
        low, high = times.min(axis=0, initial=2**63 - 1), times.max(axis=0, initial=-(2**63))
        covers = np.flatnonzero((low <= time) & ((time < high) | ((low == high) & (time == low))))
        return begin + int(covers[-1]) if len(covers) else None

    def bad_sentence(self, place: int) -> str | None:
        """What is wrong with a span."""
        return "; ".join(sentence for bit, sentence in BAD.items() if self.bad[place] & bit) or None


class Flows:
    """Producers and consumers, from the queue: which rows signal what a row waits for, and which spans did a row."""

    def __init__(self, lanes: Lanes) -> None:
        assert lanes.queued is not None
        self._lanes = lanes
        queue = lanes.trace.queue
        rank, wait, self._count = numbers(queue, "rank", "wait", "wait_count")
        signal_rank, signal = numbers(queue, "signal_rank", "signal")
        counters = max(int(wait.max()), int(signal.max()), 0) + 1
        key = rank.astype(np.int64) * counters + wait
        key[(wait < 0) | (self._count <= 0) | (rank < 0)] = -1
        signal_key = signal_rank.astype(np.int64) * counters + signal
        signal_key[(signal_rank < 0) | (signal < 0)] = -1
        size = max(int(key.max()), int(signal_key.max())) + 1
        if size > 4 * len(key) + 2**20:  # counters far apart: number those that there are
            known, both = np.unique(np.concatenate([key, signal_key]), return_inverse=True)
            both -= int(known[0] == -1)
            key, signal_key, size = both[: len(key)], both[len(key) :], len(known)
        self._waits_for, self._signals = key.astype(np.int32), signal_key.astype(np.int32)
        self._waiters, self._signallers = _Groups(self._waits_for, size), _Groups(self._signals, size)
        self._done = _Groups(lanes.queued, len(key))

    def producers(self, place: int) -> np.ndarray:
        """The places of the spans that signal what this one waits for, in the order of the queue."""
        row = self._row(place)
        if row < 0 or self._waits_for[row] < 0:
            return np.zeros(0, np.int64)
        return self._done.of(self._signallers.of(self._waits_for[row : row + 1]))

    def consumers(self, place: int) -> np.ndarray:
        """The places of the spans that wait for what this one signals, in the order of the queue."""
        row = self._row(place)
        if row < 0 or self._signals[row] < 0:
            return np.zeros(0, np.int64)
        return self._done.of(self._waiters.of(self._signals[row : row + 1]))

    def released(self, place: int, producers: np.ndarray) -> int | None:
        """The place of the producer whose signal was the last that this span needed, or that there was."""
        if not len(producers):
            return None
        count = int(self._count[self._row(place)])
        by_end = np.lexsort((self._lanes.rows(producers), self._lanes.end[producers]))
        return int(producers[by_end[min(count, len(by_end)) - 1]])

    def _row(self, place: int) -> int:
        queued = self._lanes.queued
        assert queued is not None
        return int(queued[place])


class _Groups:
    """0, 1, 2, ... grouped by key; those of key -1 are in none."""

    def __init__(self, key: np.ndarray, size: int) -> None:
        counts = np.bincount(key[key >= 0] if (key < 0).any() else key, minlength=size)
        self._first = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        self._member = np.empty(int(self._first[-1]), np.int32)
        kernels.fill_groups(key, self._first[:-1].astype(np.int64), self._member)

    def of(self, keys: np.ndarray) -> np.ndarray:
        """The members of all these keys."""
        parts = [self._member[self._first[key] : self._first[key + 1]] for key in keys.tolist()]
        return np.concatenate(parts).astype(np.int64) if parts else np.zeros(0, np.int64)


def ranges_of(trace: Trace) -> pa.Table | None:
    """The ranges of the host beside the spans, if the trace has any."""
    ranges = getattr(trace, "ranges", None)
    return ranges if ranges is not None and len(ranges) else None


def _descends(high: np.ndarray, low: np.ndarray) -> bool:
    """Whether the pairs (high, low) are not in ascending order."""
    rises = high[1:] > high[:-1]
    return not bool((rises | ((high[1:] == high[:-1]) & (low[1:] >= low[:-1]))).all())
