"""The trace of one run."""

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosTraceError
from kosmos.trace import files, metrics
from kosmos.trace.schema import COUNTERS, QUEUE, RANGES, SPANS, conform, numbers

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Trace:
    """What happened in one run: who did which item when, the queue they took it from, counters, ranges, `meta`.

    `spans`, `queue`, `counters` and `ranges` (of the host, of kernel dispatches, markers) are pyarrow Tables with the
    columns of `kosmos.trace.schema`; all times are int64 ns from the run's epoch. `meta` is a dict of plain JSON
    values; what KOSMOS writes there (op, shape, dtype, policy, order, machine, place, clock, dropped, ...) may all be
    missing. `ranks`, and `workgroups` of a rank, are taken from `meta`, else from the spans.

    A table may be given as a mapping from column name to values, or as None for an empty one. A trace holds what it
    was given: nothing is clamped, sorted or repaired, and `problems()` lists what is wrong. Raises KosmosTraceError
    for tables with other columns or types, and for a `meta` that is not JSON or contradicts the spans.
    """

    def __init__(
        self,
        spans: pa.Table | Mapping[str, Any] | None,
        queue: pa.Table | Mapping[str, Any] | None = None,
        counters: pa.Table | Mapping[str, Any] | None = None,
        meta: dict[str, Any] | None = None,
        ranges: pa.Table | Mapping[str, Any] | None = None,
    ) -> None:
        self.spans: pa.Table = conform(spans, SPANS, "spans")
        self.queue: pa.Table = conform(queue, QUEUE, "queue")
        self.counters: pa.Table = conform(counters, COUNTERS, "counters")
        self.ranges: pa.Table = conform(ranges, RANGES, "ranges")
        self.meta: dict[str, Any] = files.as_json({} if meta is None else meta)
        self.ranks = self._extent("ranks", "rank")
        self.workgroups = self._extent("workgroups", "workgroup")
        _check(self.meta)

    def _extent(self, key: str, column: str) -> int:
        """How many ranks or workgroups there are: what `meta` says, else what the spans need."""
        (used,) = numbers(self.spans, column)
        if len(used) and used.min() < 0:
            raise KosmosTraceError(f"spans: column {column} has the negative value {used.min()}")
        needed = int(used.max()) + 1 if len(used) else 0
        said = self.meta.get(key)
        if said is None:
            return needed
        if not isinstance(said, int) or isinstance(said, bool) or said < 0:
            raise KosmosTraceError(f"meta: {key} must be a whole number, not {said!r}")
        if said < needed:
            raise KosmosTraceError(f"meta: {key} is {said}, but spans has {column} {needed - 1}")
        return said

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace to one Parquet file, whole or not at all; its table is `spans`, for any Parquet reader.

        The same trace gives the same bytes. Raises KosmosTraceError if that fails.
        """
        tables = {"queue": self.queue, "counters": self.counters, "ranges": self.ranges}
        files.save(path, self.spans, tables, self.meta)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Trace":
        """The trace that was saved at `path`, bit for bit; files of all earlier formats are read.

        Raises KosmosTraceError, naming the path, for a file that is missing, cut off, damaged, not a trace, or
        written by a newer format.
        """
        spans, tables, meta = files.load(path)
        try:
            return cls(spans, **tables, meta=meta)
        except KosmosTraceError as error:
            raise KosmosTraceError(f"{os.fspath(path)}: {error}") from None

    @classmethod
    def from_rocpd(cls, path: str | os.PathLike[str]) -> "Trace":
        """The kernel dispatches and markers of a rocpd file, as `ranges` of a trace without spans.

        The file is what `rocprofv3 --kernel-trace --marker-trace --output-format rocpd` writes. A dispatch is on the
        rank that its GPU has among the GPUs of the file and on the track of its stream, named after its kernel; what
        the host did is on rank -1 and the track of its thread, a marker named after its message. Times are ns from
        the first range, `meta["epoch"]` is when that was on rocprofiler's clock. `beside` puts them beside a run.

        Raises KosmosTraceError, naming the path, for a file that is missing, not rocpd, cut off, damaged, or without
        dispatches.
        """
        from kosmos.trace import rocpd

        ranges, meta = rocpd.load(path)
        return cls(None, ranges=ranges, meta=meta)

    def beside(self, other: "Trace", *, offset_ns: int | None = None, launch: str | None = None) -> "Trace":
        """This trace with the ranges of `other` added, for looking at both on one axis.

        `offset_ns` is what is added to the other's times. Without it, `launch` is text in the name of the one range
        of `other` that is the launch of this run: its begin is put at this run's first claim. Two clocks are aligned
        so to about the time that a launch takes to reach its first workgroup, microseconds. Without either, both
        must have been stamped by one clock of one machine (`meta["clock"]["source"]`, `meta["epoch"]`). What was used
        is noted in `meta["beside"]`, a list of {offset_ns, by}.

        Raises KosmosTraceError if the two cannot be aligned.
        """
        from kosmos.trace import align

        offset, by = align.offset_ns(self, other, offset_ns, launch)
        meta = self.meta | {"beside": [*self.meta.get("beside", []), {"offset_ns": offset, "by": by}]}
        return Trace(self.spans, self.queue, self.counters, meta, align.joined(self.ranges, other.ranges, offset))

    def summary(self) -> metrics.Summary:
        """Makespan (ns) and the share of each role, `wait` and `idle`; see `kosmos.trace.metrics.summary`."""
        return metrics.summary(self)

    def problems(self) -> list[str]:
        """What is wrong with this trace, a sentence each; see `kosmos.trace.metrics.problems`."""
        return metrics.problems(self)

    def flows(self) -> pa.Table:
        """The edges from producer to consumer items; see `kosmos.trace.metrics.flows`."""
        return metrics.flows(self)

    def edges(self) -> tuple[np.ndarray, np.ndarray, int]:
        """The flows as rows of `spans`: producers, consumers, how many lack one; see `kosmos.trace.metrics.edges`."""
        return metrics.edges(self)

    def to_perfetto(self, path: str | os.PathLike[str]) -> None:
        """Write a file for https://ui.perfetto.dev, whole or not at all; needs the package perfetto.

        It has a track for every workgroup, in order, with slices named after their roles and `wait` before them,
        arrows for the flows, the counters with their units, and the ranges. Times are exact, from the trace's smallest
        one (`kosmos.base_ns` in the file's metadata) on. Spans that do not nest, as they overlap or run backwards, are
        instants on tracks of their own, whose names say how many.

        Raises KosmosEnvironmentError without the package, KosmosTraceError if the file cannot be written or the times
        are 2^63 ns or more apart.
        """
        from kosmos.trace import export, perfetto

        perfetto.write(export.Export(self), path)

    def to_chrome(self, path: str | os.PathLike[str]) -> None:
        """Write the JSON that chrome://tracing and others read: what `to_perfetto` writes, three times as large.

        Times are µs with three decimals, exact as text; readers that take them for floats lose ns after 104 days.
        """
        from kosmos.trace import chrome, export

        chrome.write(export.Export(self), path)

    def plot(self, **options: Any) -> "Figure":
        """A matplotlib Figure of the run; the options are those of `kosmos.plots.timeline`."""
        # The one import upwards: for people, who look for a plot at the trace. Reading a trace needs no matplotlib.
        from kosmos.plots import timeline

        return timeline(self, **options)

    def view(self, **options: Any) -> Any:
        """The interactive viewer, a widget for notebooks; see `kosmos.viewer.view`."""
        from kosmos.viewer import view  # upwards, as in plot

        return view(self, **options)

    def to_html(self, path: str | os.PathLike[str], **options: Any) -> None:
        """Write the viewer of this trace as one HTML file that works offline; see `kosmos.viewer.to_html`."""
        from kosmos.viewer import to_html  # upwards, as in plot

        to_html(path, self, **options)

    def equals(self, other: "Trace") -> bool:
        """Whether both hold the same tables, bit for bit, and the same meta."""
        return (
            self.spans.equals(other.spans)
            and self.queue.equals(other.queue)
            and self.ranges.equals(other.ranges)
            and _bits(self.counters).equals(_bits(other.counters))
            and files.as_text(self.meta) == files.as_text(other.meta)
        )

    def __repr__(self) -> str:
        said = [str(self.meta[key]) for key in ("op", "policy", "order") if self.meta.get(key)]
        size = f"{self.ranks} ranks × {self.workgroups} workgroups"
        span = f"{len(self.spans):,} spans in {metrics.microseconds(metrics.makespan_ns(self))}"
        return f"<Trace: {', '.join([*said, size, span])}>"


def _check(meta: dict[str, Any]) -> None:
    """Refuse what `problems` could not compute with."""
    clock = meta.get("clock") or {}
    tick = clock.get("tick_ns", 1) if isinstance(clock, dict) else clock
    if not isinstance(tick, int | float) or not tick >= 0:
        raise KosmosTraceError(f"meta: clock must be like {{'source': ..., 'tick_ns': 1}}, not {clock!r}")
    dropped = meta.get("dropped") or []
    slot = {"rank", "workgroup", "records"}
    if not isinstance(dropped, list) or not all(
        isinstance(one, dict) and slot <= one.keys() and all(isinstance(one[key], int) for key in slot)
        for one in dropped
    ):
        raise KosmosTraceError(f"meta: dropped must be a list of {{rank, workgroup, records}}, not {dropped!r:.80}")

    offsets, error = meta.get("clock_offsets_ns") or [], meta.get("clock_offsets_error_ns") or 0
    if not isinstance(offsets, list) or not all(_is_ns(one) for one in offsets):
        raise KosmosTraceError(f"meta: clock_offsets_ns must be a list of whole ns, one a rank, not {offsets!r:.80}")
    if not (_is_ns(error) or (isinstance(error, list) and error and all(_is_ns(one) for one in error))):
        raise KosmosTraceError(f"meta: clock_offsets_error_ns must be whole ns, one or one a rank, not {error!r:.80}")


def _is_ns(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**62


def _bits(counters: pa.Table) -> pa.Table:
    """The table with its float values as the integers of the same bits, under which a NaN equals itself."""
    (value,) = numbers(counters, "value")
    return counters.set_column(counters.column_names.index("value"), "value", pa.array(value.view(np.int64)))
