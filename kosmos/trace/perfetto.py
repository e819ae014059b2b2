"""A trace for Perfetto (https://ui.perfetto.dev): protobuf, written as it is made.

Tracks are plain ones, the only kind whose order can be set: run → rank → counters, ranges, workgroups. A slice is named
after its role, as Perfetto colours by name, or `wait`; an arrow leads from a producer's slice to its consumer's.
"""

import json
import os
from typing import Any, BinaryIO

from kosmos.errors import KosmosEnvironmentError, KosmosTraceError
from kosmos.files import whole_file
from kosmos.trace.export import WAIT, Export, Lane, Row, Series, Span

_SEQUENCE = 1  # all packets are of one sequence: what one of them interns, the later ones may use
_HELD = 4_000  # packets in memory


def write(export: Export, path: str | os.PathLike[str]) -> None:
    """Write the file, whole or not at all.

    Raises KosmosEnvironmentError if the package perfetto is missing, KosmosTraceError if the file cannot be written.
    """
    try:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
    except ImportError:
        raise KosmosEnvironmentError(
            'a Perfetto file is written with the package perfetto, which is missing here: pip install "perfetto>=0.59"'
        ) from None
    with whole_file(path, KosmosTraceError) as file:
        _Writer(file, proto).write(export)


class _Writer:
    def __init__(self, file: BinaryIO, proto: Any) -> None:
        self._file, self._proto = file, proto
        self._trace = proto.Trace()
        self._flags = proto.TracePacket.SEQ_INCREMENTAL_STATE_CLEARED
        self._interned: dict[tuple[str, str], int] = {}
        self._children: dict[int, int] = {}  # how many tracks are below each track so far

    def write(self, export: Export) -> None:
        run = self._track(export.title())
        self._beside_lanes(export, -1, run)
        ranks = {rank: self._track(f"rank {rank}", run) for rank in export.ranks}
        for rank, track in ranks.items():
            self._beside_lanes(export, rank, track)
        for lane in export.lanes():
            self._lane(lane, ranks[lane.rank])
        metadata = self._packet().chrome_events.metadata
        for name, value in export.facts().items():
            if isinstance(value, int) and abs(value) < 2**63:
                metadata.add(name=f"kosmos.{name}", int_value=value)
            else:
                text = value if isinstance(value, str) else json.dumps(value)
                metadata.add(name=f"kosmos.{name}", string_value=text)
        self._flush()

    def _beside_lanes(self, export: Export, rank: int, parent: int) -> None:
        for series in export.counters:
            if series.rank == rank:
                self._counter(series, parent)
        for row in export.rows:
            if row.rank == rank:
                self._ranges(row, parent)

    def _lane(self, lane: Lane, parent: int) -> None:
        name = f"workgroup {lane.workgroup}"
        track = self._track(name, parent)
        begin, end = self._proto.TrackEvent.TYPE_SLICE_BEGIN, self._proto.TrackEvent.TYPE_SLICE_END
        for span in lane.spans:
            if span.start > span.claim:
                event = self._event(track, begin, span.claim, WAIT)
                self._annotate(event, {"role": span.role, "item": span.item})
                self._event(track, end, span.start)
            self._fill(self._event(track, begin, span.start, span.role), span, span.facts)
            self._event(track, end, span.end)
        if lane.bad:
            track = self._track(f"{name}: {len(lane.bad)} that do not nest", parent)
            for span in lane.bad:
                event = self._event(track, self._proto.TrackEvent.TYPE_INSTANT, span.claim, f"{span.role} {span.wrong}")
                times = {"claim": span.claim, "start": span.start, "end": span.end}
                self._fill(event, span, times | span.facts)

    def _ranges(self, row: Row, parent: int) -> None:
        track = self._track(row.name, parent)
        begin, end = self._proto.TrackEvent.TYPE_SLICE_BEGIN, self._proto.TrackEvent.TYPE_SLICE_END
        for time, name in row.steps():
            self._event(track, end if name is None else begin, time, name)
        if row.bad:
            track = self._track(f"{row.name}: {len(row.bad)} that do not nest", parent)
            for name, start, stop in row.bad:
                event = self._event(track, self._proto.TrackEvent.TYPE_INSTANT, start, name)
                self._annotate(event, {"start": start, "end": stop})

    def _counter(self, series: Series, parent: int) -> None:
        track = self._track(series.name, parent, unit=series.unit)
        counter = self._proto.TrackEvent.TYPE_COUNTER
        for time, value in zip(series.times, series.values, strict=True):
            self._event(track, counter, time).double_counter_value = value

    def _fill(self, event: Any, span: Span, facts: dict[str, Any]) -> None:
        self._annotate(event, facts)
        event.flow_ids.extend(span.begins)
        event.terminating_flow_ids.extend(span.ends)

    def _annotate(self, event: Any, facts: dict[str, Any]) -> None:
        for name, value in facts.items():
            annotation = event.debug_annotations.add()
            annotation.name_iid = self._iid("debug_annotation_names", name)
            if isinstance(value, int):
                annotation.int_value = value
            elif isinstance(value, float):
                annotation.double_value = value
            else:
                annotation.string_value = value

    def _event(self, track: int, kind: int, time: int, name: str | None = None) -> Any:
        packet = self._packet()
        packet.timestamp = time
        event = packet.track_event
        event.type = kind
        event.track_uuid = track
        if name is not None:
            event.name_iid = self._iid("event_names", name)
        return event

    def _track(self, name: str, parent: int = 0, unit: str | None = None) -> int:
        """A new track, after all others of its parent."""
        track = self._packet().track_descriptor
        track.uuid = len(self._children) + 1
        track.name = name
        track.child_ordering = self._proto.TrackDescriptor.EXPLICIT
        # without this, tracks of one name would be drawn as one
        track.sibling_merge_behavior = self._proto.TrackDescriptor.SIBLING_MERGE_BEHAVIOR_NONE
        if parent:
            track.parent_uuid = parent
            track.sibling_order_rank = self._children[parent]
            self._children[parent] += 1
        if unit is not None:
            track.counter.unit_name = unit
        self._children[track.uuid] = 0
        return track.uuid

    def _iid(self, table: str, text: str) -> int:
        """The number of a text in one of the sequence's tables; the latest packet brings it if it is new."""
        iid = self._interned.get((table, text))
        if iid is None:
            iid = self._interned[table, text] = len(self._interned) + 1
            getattr(self._trace.packet[-1].interned_data, table).add(iid=iid, name=text)
        return iid

    def _packet(self) -> Any:
        if len(self._trace.packet) >= _HELD:
            self._flush()
        packet = self._trace.packet.add()
        packet.trusted_packet_sequence_id = _SEQUENCE
        packet.sequence_flags = self._flags
        self._flags = self._proto.TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
        return packet

    def _flush(self) -> None:
        # traces that follow one another are one trace
        self._file.write(self._trace.SerializeToString())
        self._trace = self._proto.Trace()
