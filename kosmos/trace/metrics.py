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
    return int(end.max() - claim.min()) if len(end) else 0


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
    present = set(np.unique(role)) | set(np.unique(numbers(trace.queue, "role")[0]))
    spent = {ROLES[code]: 0 for code in sorted(present)} | {"wait": 0}
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
    producers = np.flatnonzero(queue.signals)
    consumers = np.flatnonzero(queue.waits)
    order = producers[np.argsort(queue.signal_key[producers], kind="stable")]
    first, last = _bounds(queue.signal_key[order], queue.wait_key[consumers])
    count = last - first
    dst = np.repeat(consumers, count)
    src = order[np.repeat(last - np.cumsum(count), count) + np.arange(len(dst))]
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


def problems(trace: "Trace") -> list[str]:
    """What is wrong with a trace, a sentence each with a count and an example; empty if nothing is.

    Looked for: records that were dropped; waits and spans that end before they begin; spans of one workgroup that
    overlap; if the trace has a queue, items never done, done twice or not in it, items that wait for more signals
    than the queue gives (a counter that no item signals is announced by the launch and is no problem), and waits
    that ended more than a tick of the clock (`meta["clock"]["tick_ns"]`, else 1 ns) before what they waited for.
    """
    found = [*_dropped(trace), *_backwards(trace), *_overlaps(trace)]
    if len(trace.queue):
        found += _against_queue(trace)
    return found


class _Queue:
    """The queue's columns, and keys that name an item or a counter in one int64."""

    def __init__(self, table: pa.Table) -> None:
        self.rank, self.role, self.item = numbers(table, "rank", "role", "item")
        self.wait, self.wait_count = numbers(table, "wait", "wait_count")
        signal_rank, signal = numbers(table, "signal_rank", "signal")
        self.key = _item_key(self.rank, self.role, self.item)
        self.waits = (self.wait >= 0) & (self.wait_count > 0)
        self.wait_key = _pair(self.rank, self.wait)
        self.signals = (signal_rank >= 0) & (signal >= 0)
        self.signal_key = _pair(signal_rank, signal)

    def name(self, row: int) -> str:
        return _item(self.rank[row], self.role[row], self.item[row])


def _pair(high: np.ndarray, low: np.ndarray) -> np.ndarray:
    return (high.astype(np.int64) << 32) + low


def _item_key(rank: np.ndarray, role: np.ndarray, item: np.ndarray) -> np.ndarray:
    return _pair(rank.astype(np.int64) * len(ROLES) + role, item)


def _bounds(keys: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Where each of `wanted` begins and ends in the sorted `keys`."""
    return np.searchsorted(keys, wanted, "left"), np.searchsorted(keys, wanted, "right")


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


def _overlaps(trace: "Trace") -> Iterator[str]:
    rank, workgroup, role, item = numbers(trace.spans, "rank", "workgroup", "role", "item")
    claim, end = numbers(trace.spans, "claim_ns", "end_ns")
    lane = _pair(rank, workgroup)
    before: slice | np.ndarray = slice(None, -1)
    after: slice | np.ndarray = slice(1, None)
    # Recorded spans come lane by lane, each later than the one before: then there is nothing to sort.
    follows = (lane[1:] > lane[:-1]) | ((lane[1:] == lane[:-1]) & (claim[1:] > claim[:-1]))
    if not follows.all():
        order = np.lexsort((end, claim, lane))
        before, after = order[:-1], order[1:]
    wrong = np.flatnonzero((lane[before] == lane[after]) & (claim[after] < end[before]))
    if len(wrong):
        a, b = np.arange(len(lane))[before][wrong[0]], np.arange(len(lane))[after][wrong[0]]
        yield (
            f"{len(wrong):,} of {len(claim):,} spans began before their workgroup was done with the one before, e.g. "
            f"workgroup {workgroup[b]} turned to {_item(rank[b], role[b], item[b])} at {claim[b]} ns and did "
            f"{ROLES[role[a]]} item {item[a]} until {end[a]} ns"
        )


def _against_queue(trace: "Trace") -> Iterator[str]:
    queue = _Queue(trace.queue)
    rank, role, item = numbers(trace.spans, "rank", "role", "item")
    key = _item_key(rank, role, item)

    # rows: the queue's rows in the order of their keys, each key once; row: the span's place among them
    keys = queue.key
    if (keys[1:] > keys[:-1]).all():
        rows: np.ndarray = np.arange(len(keys), dtype=np.int32)
        listed: np.ndarray = np.ones(len(keys), np.int8)
    else:
        keys, rows, listed = np.unique(keys, return_index=True, return_counts=True)
    row = np.searchsorted(keys, key).astype(np.int32)
    row[row == len(keys)] = 0
    known = keys[row] == key
    done = np.bincount(row[known], minlength=len(keys)).astype(np.int32)
    spans = len(key)
    del key, keys, queue.key  # a large trace leaves little room

    total = len(queue.rank)
    for count, says in (
        (listed > 1, "were listed more than once"),
        (done == 0, "were never done"),
        (done > 1, "were done more than once"),
    ):
        wrong = np.flatnonzero(count)
        if len(wrong):
            yield f"{len(wrong):,} of {total:,} items in the queue {says}, e.g. {queue.name(rows[wrong].min())}"
    wrong = np.flatnonzero(~known)
    if len(wrong):
        at = wrong[0]
        yield (
            f"{len(wrong):,} of {spans:,} spans did an item that is not in the queue, e.g. "
            f"{_item(rank[at], role[at], item[at])} in workgroup {trace.spans['workgroup'][int(at)]}"
        )

    signalled = np.sort(queue.signal_key[queue.signals])
    first, last = _bounds(signalled, queue.wait_key)
    given = (last - first).astype(np.int32)
    del signalled, first, last
    unbound = queue.waits & (given > 0) & (given < queue.wait_count)
    wrong = np.flatnonzero(unbound)
    if len(wrong):
        at = wrong[0]
        yield (
            f"{len(wrong):,} of {total:,} items in the queue wait for more signals than it gives, e.g. "
            f"{queue.name(at)} for {queue.wait_count[at]} of counter {queue.wait[at]}, which {given[at]} signal"
        )
    bound = queue.waits & (given > 0) & ~unbound
    row, span = rows[row[known]], np.flatnonzero(known).astype(np.int32)
    del given, unbound, rows, known, done, listed
    yield from _early(trace, queue, row, span, bound)


def _early(trace: "Trace", queue: _Queue, row: np.ndarray, span: np.ndarray, bound: np.ndarray) -> Iterator[str]:
    """Waits that ended too early; `span` did the item in `row` of the queue, `bound` says which rows to look at."""
    start, end = numbers(trace.spans, "start_ns", "end_ns")
    tick = (trace.meta.get("clock") or {}).get("tick_ns") or 1
    # Every signal that was given, counter by counter in the order of time: the n-th of a counter is n - 1 places on.
    gives = queue.signals[row]
    counter, when = queue.signal_key[row[gives]], end[span[gives]]
    order = np.lexsort((when, counter))
    counter, when = counter[order], when[order]
    del order
    looks = bound[row]
    row, span = row[looks], span[looks]
    first, last = _bounds(counter, queue.wait_key[row])
    nth = first + queue.wait_count[row] - 1
    never = nth >= last
    del counter
    ready = when[np.minimum(nth, len(when) - 1)] if len(when) else np.zeros(len(nth), np.int64)
    wrong = np.flatnonzero(never | (start[span] < ready - tick))
    if len(wrong):
        at = wrong[0]
        count, counted = queue.wait_count[row[at]], last[at] - first[at]
        yield (
            f"{len(wrong):,} of {len(row):,} waits ended before what they waited for, e.g. that of "
            f"{queue.name(row[at])} at {start[span[at]]} ns, but counter {queue.wait[row[at]]} of its rank "
            + (f"got {counted} of {count} signals" if never[at] else f"reached {count} at {ready[at]} ns")
        )
