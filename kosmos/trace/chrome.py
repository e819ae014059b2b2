"""A trace as Chrome's JSON, which chrome://tracing, Perfetto and others read.

A rank is a process, a workgroup a thread. Times are µs with three decimals, written as text and never as a float, so
that every ns is in the file.
"""

import json
import os
from collections.abc import Iterable
from typing import Any, BinaryIO

from kosmos.errors import KosmosTraceError
from kosmos.files import whole_file
from kosmos.trace.export import WAIT, Export, Lane, Row, Series, Span


def write(export: Export, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all. Raises KosmosTraceError if it cannot be written."""
    with whole_file(path, KosmosTraceError) as file:
        _Writer(file).write(export)


class _Writer:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._threads = 0
        self._first = True

    def write(self, export: Export) -> None:
        self._file.write(b'{"displayTimeUnit":"ns","traceEvents":[')
        # viewers keep process 0 for the operating system's idling
        processes = {-1: 1} | {rank: 2 + place for place, rank in enumerate(export.ranks)}
        for rank, pid in processes.items():
            name = export.title() if rank < 0 else f"rank {rank}"
            self._put([_named("process_name", pid, 0, name=name), _named("process_sort_index", pid, 0, sort_index=pid)])
        for series in export.counters:
            self._put(_counter(series, processes[series.rank]))
        for row in export.rows:
            self._row(row, processes[row.rank])
        for lane in export.lanes():
            self._lane(lane, processes[lane.rank])
        facts = {f"kosmos.{name}": value for name, value in export.facts().items()}
        self._file.write(f'\n],"otherData":{json.dumps(facts)}}}\n'.encode())

    def _lane(self, lane: Lane, pid: int) -> None:
        name = f"workgroup {lane.workgroup}"
        thread = self._thread(name, pid)
        self._put(text for span in lane.spans for text in _slices(span, thread))
        if lane.bad:
            thread = self._thread(f"{name}: {len(lane.bad)} that do not nest", pid)
            self._put(text for span in lane.bad for text in _instant(span, thread))

    def _row(self, row: Row, pid: int) -> None:
        thread = self._thread(row.name, pid)
        self._put(
            f'{{"ph":"X",{thread},"ts":{_us(start)},"dur":{_us(end - start)},"cat":"range","name":{json.dumps(name)}}}'
            for name, start, end in row.ranges
        )
        if row.bad:
            thread = self._thread(f"{row.name}: {len(row.bad)} that do not nest", pid)
            self._put(
                f'{{"ph":"i","s":"t",{thread},"ts":{_us(start)},"cat":"range","name":{json.dumps(name)},'
                f'"args":{json.dumps({"start_ns": start, "end_ns": end})}}}'
                for name, start, end in row.bad
            )

    def _thread(self, name: str, pid: int) -> str:
        """A new thread, after all others: the part of an event that says that it is its."""
        self._threads += 1
        tid = self._threads
        self._put([_named("thread_name", pid, tid, name=name), _named("thread_sort_index", pid, tid, sort_index=tid)])
        return f'"pid":{pid},"tid":{tid}'

    def _put(self, events: Iterable[str]) -> None:
        text = ",\n".join(events)
        if text:
            self._file.write(("\n" if self._first else ",\n").encode() + text.encode())
            self._first = False


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def _named(what: str, pid: int, tid: int, **args: Any) -> str:
    return json.dumps({"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args})


def _counter(series: Series, pid: int) -> Iterable[str]:
    name = json.dumps(f"{series.name} ({series.unit})" if series.unit else series.name)
    for time, value in zip(series.times, series.values, strict=True):
        yield f'{{"ph":"C","pid":{pid},"ts":{_us(time)},"name":{name},"args":{{"value":{value!r}}}}}'


def _slices(span: Span, thread: str) -> Iterable[str]:
    if span.start > span.claim:
        args = json.dumps({"role": span.role, "item": span.item})
        times = f'"ts":{_us(span.claim)},"dur":{_us(span.start - span.claim)}'
        yield f'{{"ph":"X",{thread},{times},"cat":"{WAIT}","name":"{WAIT}","args":{args}}}'
    times = f'"ts":{_us(span.start)},"dur":{_us(span.end - span.start)}'
    yield f'{{"ph":"X",{thread},{times},"cat":"work","name":"{span.role}","args":{json.dumps(span.facts)}}}'
    yield from _flows(span, thread, span.start)


def _instant(span: Span, thread: str) -> Iterable[str]:
    args = json.dumps({"claim_ns": span.claim, "start_ns": span.start, "end_ns": span.end} | span.facts)
    name = f"{span.role} {span.wrong}"
    yield f'{{"ph":"i","s":"t",{thread},"ts":{_us(span.claim)},"cat":"bad","name":"{name}","args":{args}}}'
    yield from _flows(span, thread, span.claim)


def _flows(span: Span, thread: str, time: int) -> Iterable[str]:
    for number in span.begins:
        yield f'{{"ph":"s",{thread},"ts":{_us(time)},"cat":"flow","name":"signal","id":{number}}}'
    for number in span.ends:
        yield f'{{"ph":"f","bp":"e",{thread},"ts":{_us(time)},"cat":"flow","name":"signal","id":{number}}}'
