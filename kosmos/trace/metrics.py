"""What a trace says about its run: who did what for how long, what depends on what, what is wrong with it."""

import html
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kosmos.trace.schema import ROLES, numbers, role_array

if TYPE_CHECKING:
    from kosmos.trace.trace import Trace


_PIECE = 2**18  # rows of a large table that are looked at at once, so that copies of them stay small


class Summary(dict[str, Any]):
    """`makespan_ns` (int) and the shares, 0 to 1, of the roles, `wait` and `idle`; prints as a small table."""

    def _rows(self) -> list[tuple[str, str]]:
        shares = [(name, f"{100 * share:.1f} %") for name, share in self.items() if name != "makespan_ns"]
        return [("makespan", microseconds(self["makespan_ns"])), *shares]

    def __repr__(self) -> str:
        rows = self._rows()
        left, right = (max(map(len, column)) for column in zip(*rows, strict=True))
        return "\n".join(f"{name:<{left}}  {value:>{right}}" for name, value in rows)

    def _repr_html_(self) -> str:
        cells = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th><td style='text-align:right'>{value}</td></tr>"
            for name, value in self._rows()
        )
        return f"<table>{cells}</table>"


def makespan_ns(trace: "Trace") -> int:
    """Last end minus first claim in ns, 0 for a trace without spans."""
    claim, end = numbers(trace.spans, "claim_ns", "end_ns")
    return int(end.max()) - int(claim.min()) if len(end) else 0


def microseconds(ns: int) -> str:
    """`ns` as a person reads it: to the ns where that is a digit that counts."""
    return f"{ns / 1000:,.{1 if abs(ns) >= 100_000 else 3}f} µs"


def summary(trace: "Trace") -> Summary:
    """The makespan in ns, and how the time of all workgroups was spent.

    A role's share is its working time (start to end) over ranks × workgroups × makespan; every role of the spans or
    the queue has one. `wait` is claim to start, `idle` the rest: the shares add up to 1. A trace in which no time
    passes is idle. Spans that overlap or run backwards, see `problems`, count as they stand.
    """
    role, claim, start, end = numbers(trace.spans, "role", "claim_ns", "start_ns", "end_ns")
    makespan = makespan_ns(trace)
    total = trace.ranks * trace.workgroups * makespan
    queued = numbers(trace.queue, "role")[0]
    present = [code for code in range(len(ROLES)) if (role == code).any() or (queued == code).any()]
    spent = {ROLES[code]: 0 for code in present} | {"wait": 0}
    for begin in range(0, len(role), _PIECE):
        piece = slice(begin, begin + _PIECE)
        work = end[piece] - start[piece]
        for code in present:
            spent[ROLES[code]] += int(work[role[piece] == code].sum())
        spent["wait"] += int((start[piece] - claim[piece]).sum())
    spent["idle"] = total - sum(spent.values())
    if total <= 0:
        return Summary(makespan_ns=makespan, **dict.fromkeys(spent, 0.0) | {"idle": 1.0})
    return Summary(makespan_ns=makespan, **{name: ns / total for name, ns in spent.items()})


def flows(trace: "Trace") -> pa.Table:
    """Which item's signal which item waits for, from the queue: a row for every pair of a producer and a consumer.

    Columns src_rank, src_role, src_item, dst_rank, dst_role, dst_item, counter (on dst_rank), in the order of the
    consumers, then of the producers, in the queue.
    """
    queue = _Queue(trace.queue)
    src, dst = queue.pairs()
    return pa.table(
        {
            "src_rank": queue.rank[src],
            "src_role": role_array(queue.role[src]),
            "src_item": queue.item[src],
            "dst_rank": queue.rank[dst],
            "dst_role": role_array(queue.role[dst]),
            "dst_item": queue.item[dst],
            "counter": queue.wait[dst],
        }
    )


def edges(trace: "Trace") -> tuple[np.ndarray, np.ndarray, int]:
    """The flows from span to span: int64 rows of `spans` of the producers and of their consumers, in the order of
    `flows`, and how many flows are not among them because the trace lacks a span of the one or the other.

    Of an item that was done more than once, it is the span that ended first.
    """
    queue = _Queue(trace.queue)
    row = rows_in_queue(trace)
    (end,) = numbers(trace.spans, "end_ns")
    known = np.flatnonzero(row >= 0)
    # the last assignment stays: backwards, so that the first end does
    known = known[np.argsort(end[known], kind="stable")[::-1]]
    span = np.full(len(queue.item), -1)
    span[row[known]] = known
    src, dst = (span[rows] for rows in queue.pairs())
    there = (src >= 0) & (dst >= 0)
    return src[there], dst[there], int(np.count_nonzero(~there))


def rows_in_queue(trace: "Trace") -> np.ndarray:
    """int64 [spans]: the row of `queue` that each span's item has, -1 if it has none."""
    return _Queue(trace.queue).row(*numbers(trace.spans, "rank", "role", "item"))


def problems(trace: "Trace") -> list[str]:
    """What is wrong with a trace, a sentence each with a count and an example; empty if nothing is.

    Looked for: records that were dropped; waits, spans and ranges that end before they begin; spans of one workgroup
    that overlap; clocks of ranks that are further apart (`meta["clock_offsets_ns"]`) than a tick and than that could
    be measured. If the trace has a queue: items never done, done twice or not in it; items that wait for more signals
    than the queue gives (a counter that no item signals is announced by the launch and is no problem); unbound flows,
    from producers that are not in the trace to waits that are; and waits that ended more than a tick of the clock
    (`meta["clock"]["tick_ns"]`, else 1 ns) before what they waited for. Offsets between clocks, where they are known,
    are allowed for in that comparison, and nowhere else.
    """
    found = [*_dropped(trace), *_backwards(trace), *_overlaps(trace), *_offsets(trace)]
    if len(trace.queue):
        found += _against_queue(trace)
    return found


class _Queue:
    """The queue's columns, which rows wait and signal, and keys that name a counter in one int64."""

    def __init__(self, table: pa.Table) -> None:
        self.rank, self.role, self.item = numbers(table, "rank", "role", "item")
        self.wait, self.wait_count = numbers(table, "wait", "wait_count")
        self._signal_rank, self._signal = numbers(table, "signal_rank", "signal")
        self.waits = (self.wait >= 0) & (self.wait_count > 0)
        self.signals = (self._signal_rank >= 0) & (self._signal >= 0)

    def __len__(self) -> int:
        return len(self.item)

    def wait_key(self, rows: np.ndarray) -> np.ndarray:
        """The counters that these rows wait for."""
        return _pair(self.rank[rows], self.wait[rows])

    def signal_key(self, rows: np.ndarray) -> np.ndarray:
        """The counters that these rows signal."""
        return _pair(self._signal_rank[rows], self._signal[rows])

    def name(self, row: int) -> str:
        return _item(self.rank[row], self.role[row], self.item[row])

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of every producer and its consumer, in the order of the consumers, then of the producers."""
        producers, consumers = np.flatnonzero(self.signals), np.flatnonzero(self.waits)
        key = self.signal_key(producers)
        order = np.argsort(key, kind="stable")
        first, count = _runs(key[order], self.wait_key(consumers))
        dst = np.repeat(consumers, count)
        last = first + count
        return producers[order][np.repeat(last - np.cumsum(count), count) + np.arange(len(dst))], dst

    def row(self, rank: np.ndarray, role: np.ndarray, item: np.ndarray) -> np.ndarray:
        """int32: the row of each item, the first if it is listed more than once, -1 if it is not."""
        if not len(self):
            return np.full(len(item), -1, np.int32)
        # Queues are dense: a table of all items up to the last one takes no search.
        ranks = int(self.rank.max()) + 1
        if min(self.rank.min(), self.item.min()) >= 0 and ranks <= len(self):
            length = np.zeros(ranks * len(ROLES), np.int64)
            group = self.rank * len(ROLES) + self.role
            np.maximum.at(length, group, self.item.astype(np.int64) + 1)
            if length.sum() <= 4 * len(self):
                begin = np.cumsum(length) - length
                rows = np.full(int(length.sum()), -1, np.int32)
                rows[(begin[group] + self.item)[::-1]] = np.arange(len(self), dtype=np.int32)[::-1]
                known = (rank >= 0) & (rank < ranks) & (item >= 0)
                group = np.where(known, rank * len(ROLES) + role, 0)
                known &= item < length[group]
                return np.where(known, rows[np.where(known, begin[group] + item, 0)], np.int32(-1))
        own, asked = (
            _pair(of.astype(np.int64) * len(ROLES) + as_, number)
            for of, as_, number in ((self.rank, self.role, self.item), (rank, role, item))
        )
        keys, places = np.unique(own, return_index=True)
        at = np.minimum(np.searchsorted(keys, asked), len(keys) - 1)
        return np.where(keys[at] == asked, places[at], -1).astype(np.int32)


def _pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return (high.astype(np.int64) << 32) + low


def _runs(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of `wanted` begins in the sorted `keys`, and how often it is there; the former is void if never."""
    if not len(keys):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), np.int64)
    # many are alike: one search, among the few that differ
    distinct, first, count = np.unique(keys, return_index=True, return_counts=True)
    at = np.minimum(np.searchsorted(distinct, wanted), len(distinct) - 1)
    return first[at], np.where(distinct[at] == wanted, count[at], 0)


def _item(rank: int, role: int, item: int) -> str:
    return f"rank {rank} {ROLES[role]} item {item}"


def _dropped(trace: "Trace") -> Iterator[str]:
    dropped = trace.meta.get("dropped") or []
    if dropped:
        first = dropped[0]
        yield (
            f"{sum(slot['records'] for slot in dropped):,} records of {len(dropped):,} workgroups were dropped because "
            f"their slices were full, e.g. {first['records']:,} of rank {first['rank']} workgroup {first['workgroup']}"
        )


def _backwards(trace: "Trace") -> Iterator[str]:
    rank, role, item = numbers(trace.spans, "rank", "role", "item")
    claim, start, end = numbers(trace.spans, "claim_ns", "start_ns", "end_ns")
    for what, since, until in (("waits", claim, start), ("spans", start, end)):
        wrong = np.flatnonzero(since > until)
        if len(wrong):
            at = wrong[0]
            yield (
                f"{len(wrong):,} of {len(claim):,} {what} ended before they began, e.g. that of "
                f"{_item(rank[at], role[at], item[at])}: {since[at]} to {until[at]} ns"
            )
    start, end = numbers(trace.ranges, "start_ns", "end_ns")
    wrong = np.flatnonzero(start > end)
    if len(wrong):
        at = int(wrong[0])
        yield (
            f"{len(wrong):,} of {len(start):,} ranges ended before they began, e.g. {trace.ranges['name'][at]} on "
            f"{trace.ranges['track'][at]}: {start[at]} to {end[at]} ns"
        )


def _overlaps(trace: "Trace") -> Iterator[str]:
    rank, workgroup, role, item = numbers(trace.spans, "rank", "workgroup", "role", "item")
    claim, end = numbers(trace.spans, "claim_ns", "end_ns")
    lane = _pair(rank, workgroup)
    # As recorded, spans come lane by lane in the order of time: if none overlaps so, none does.
    same = lane[:-1] == lane[1:]
    if (lane[:-1] <= lane[1:]).all() and not (same & ((claim[1:] < end[:-1]) | (claim[1:] < claim[:-1]))).any():
        return
    order = np.lexsort((end, claim, lane))
    before, after = order[:-1], order[1:]
    wrong = np.flatnonzero((lane[before] == lane[after]) & (claim[after] < end[before]))
    if len(wrong):
        a, b = before[wrong[0]], after[wrong[0]]
        yield (
            f"{len(wrong):,} of {len(claim):,} spans began before their workgroup was done with the one before, e.g. "
            f"workgroup {workgroup[b]} turned to {_item(rank[b], role[b], item[b])} at {claim[b]} ns and did "
            f"{ROLES[role[a]]} item {item[a]} until {end[a]} ns"
        )


def _offsets(trace: "Trace") -> Iterator[str]:
    offset, error = clock_offsets(trace)
    wrong = np.flatnonzero(np.abs(offset) > np.maximum(error, _tick_ns(trace)))
    if len(wrong):
        at = wrong[np.abs(offset[wrong]).argmax()]
        yield (
            f"the clocks of {len(wrong):,} of {trace.ranks:,} ranks are off, by up to {offset[at]:+,} ± {error[at]:,} "
            f"ns (rank {at}): times of different ranks compare only after that is subtracted"
        )


def clock_offsets(trace: "Trace") -> tuple[np.ndarray, np.ndarray]:
    """How far the clocks of the first ranks are ahead of the trace's time in ns, and the error of that.

    Those of the other ranks, of all if nothing was measured, are taken to be right.
    """
    offset = np.array(trace.meta.get("clock_offsets_ns") or [], np.int64)
    return offset, np.resize(np.array(trace.meta.get("clock_offsets_error_ns") or 0, np.int64), len(offset))


def _tick_ns(trace: "Trace") -> int | float:
    return (trace.meta.get("clock") or {}).get("tick_ns") or 1


def _against_queue(trace: "Trace") -> Iterator[str]:
    queue = _Queue(trace.queue)
    rank, role, item = numbers(trace.spans, "rank", "role", "item")
    total = len(queue)
    first = queue.row(queue.rank, queue.role, queue.item)
    row = queue.row(rank, role, item)
    done = np.bincount(row[row >= 0], minlength=total).astype(np.int32)
    for wrong, says in (
        (np.bincount(first, minlength=total) > 1, "were listed more than once"),
        ((done == 0) & (first == np.arange(total)), "were never done"),
        (done > 1, "were done more than once"),
    ):
        if wrong.any():
            yield f"{wrong.sum():,} of {total:,} items in the queue {says}, e.g. {queue.name(int(wrong.argmax()))}"
    unknown = np.flatnonzero(row < 0)
    if len(unknown):
        at = unknown[0]
        yield (
            f"{len(unknown):,} of {len(row):,} spans did an item that is not in the queue, e.g. "
            f"{_item(rank[at], role[at], item[at])} in workgroup {trace.spans['workgroup'][int(at)]}"
        )

    # How many signals each counter was to get, and how many of them the trace has the producers of
    waits = np.flatnonzero(queue.waits)
    key = queue.wait_key(waits)
    listed = np.flatnonzero(queue.signals)
    seen = listed[done[first[listed]] > 0]
    given = _runs(np.sort(queue.signal_key(listed)), key)[1].astype(np.int32)
    found = given if len(seen) == len(listed) else _runs(np.sort(queue.signal_key(seen)), key)[1]
    del key, listed, seen, first
    asked = queue.wait_count[waits]
    short = (given > 0) & (given < asked)
    if short.any():
        at = int(short.argmax())
        yield (
            f"{short.sum():,} of {total:,} items in the queue wait for more signals than it gives, e.g. "
            f"{queue.name(waits[at])} for {asked[at]} of counter {queue.wait[waits[at]]}, which {given[at]} signal"
        )
    was_done = done[waits] > 0
    lost = np.flatnonzero(was_done & (found < given))
    if len(lost):
        at = int(lost[0])
        yield (
            f"{(given - found)[lost].sum():,} flows are unbound: {len(lost):,} of "
            f"{np.count_nonzero(was_done & (given > 0)):,} waits have producers that are not in the trace, e.g. "
            f"{queue.name(waits[at])} waits for {asked[at]} of counter {queue.wait[waits[at]]}, of whose {given[at]} "
            f"producers {found[at]} are there"
        )
    bound = np.zeros(total, bool)
    bound[waits] = (given > 0) & ~short
    del waits, given, found, asked, short, was_done, done, wrong
    spans = np.flatnonzero(row >= 0).astype(np.int32)
    yield from _early(trace, queue, row[spans], spans, bound)


def _early(trace: "Trace", queue: _Queue, row: np.ndarray, span: np.ndarray, bound: np.ndarray) -> Iterator[str]:
    """Waits that ended too early; `span` did the item in `row` of the queue, `bound` says which rows to look at."""
    rank, start, end = numbers(trace.spans, "rank", "start_ns", "end_ns")
    offset, error = clock_offsets(trace)
    tolerance = _tick_ns(trace) + 2 * (int(error.max()) if len(error) else 0)
    if offset.any():
        shift = np.where(rank < len(offset), offset[np.minimum(rank, len(offset) - 1)], 0)
        start, end = start - shift, end - shift
    # Every signal that was given, counter by counter in the order of time: the n-th of a counter is n - 1 places on.
    gives = queue.signals[row]
    counter, when = queue.signal_key(row[gives]), end[span[gives]]
    order = np.lexsort((when, counter))
    counter, when = counter[order], when[order]
    looks = bound[row]
    row, span = row[looks], span[looks]
    del order, gives, looks
    first, count = _runs(counter, queue.wait_key(row))
    asked = queue.wait_count[row]
    # those that never came are unbound flows
    came = asked <= count
    first += asked
    first -= 1
    ready = when[np.where(came, first, 0)] if len(when) else np.zeros(len(row), np.int64)
    del first, count, asked, counter, when
    wrong = np.flatnonzero(came & (start[span] < ready - tolerance))
    if len(wrong):
        at = wrong[0]
        yield (
            f"{len(wrong):,} of {len(row):,} waits ended before what they waited for, e.g. that of "
            f"{queue.name(row[at])} at {start[span[at]]} ns, but counter {queue.wait[row[at]]} of its rank reached "
            f"{queue.wait_count[row[at]]} at {ready[at]} ns"
        )
