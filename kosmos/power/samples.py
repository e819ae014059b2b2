"""What a sensor said while something ran: values, gaps, means, energy.

A value holds from the moment it was read until the next reading: a sensor's curve is a step curve. Where nothing was
read, or where a value stood still for longer than a working sensor's can, there is a gap, and nothing is made up for
it.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosArgumentError
from kosmos.power.clocks import with_counters
from kosmos.power.sensors import QUANTITIES, unit_of
from kosmos.power.timebase import Timebase
from kosmos.trace import COUNTERS, Trace

LOST_READINGS = 3
"""A reading this many polling intervals after the one before is after a gap."""


class Gap(NamedTuple):
    """A stretch of time, in the host's ns, for which a quantity is not known, and why."""

    name: str
    begin_ns: int
    end_ns: int
    why: str


class Series(NamedTuple):
    """One quantity: int64 host times in ns, float64 values; NaN begins a gap."""

    time_ns: np.ndarray
    value: np.ndarray


class Samples:
    """Readings of one sensor over one stretch of time.

    sensor: its name. limits: what it said once. hz: how often it was asked. begin_ns, end_ns: the stretch, in ns of
    the host's monotonic clock. timebase: what these are on the device's clock. updates: how many ms each quantity
    keeps a value when it changes, as measured; None for one of which that was not seen.
    """

    def __init__(
        self,
        sensor: str,
        readings: list[tuple[int, Mapping[str, float]]],
        hz: float,
        begin_ns: int,
        end_ns: int,
        limits: Mapping[str, Any] | None = None,
        timebase: Timebase | None = None,
        updates: Mapping[str, float | None] | None = None,
        lost: str = "",
    ) -> None:
        self.sensor, self.hz, self.begin_ns, self.end_ns = sensor, hz, begin_ns, end_ns
        self.limits, self.updates, self.lost = dict(limits or {}), dict(updates or {}), lost
        self.timebase = timebase or Timebase()
        self.readings = readings
        self.gaps: list[Gap] = []
        self.series: dict[str, Series] = {}
        times = np.array([time for time, _ in readings], np.int64)
        for name in dict.fromkeys(name for _, values in readings for name in values):
            value = np.array([values.get(name, np.nan) for _, values in readings])
            self.series[name] = self._series(name, times, value)

    def _series(self, name: str, times: np.ndarray, value: np.ndarray) -> Series:
        """With its gaps in `gaps`, and NaN from where one begins."""
        said: list[tuple[int, int, str]] = []
        missing = np.isnan(value)
        for first, last in _runs(missing):
            end = int(times[last + 1]) if last + 1 < len(times) else self.end_ns
            said.append((int(times[first]), end, "not told"))
        # asked, but nothing came back for several intervals: the sensor hung, or died
        longest = int(LOST_READINGS * 1e9 / self.hz) + 50_000_000
        edges = np.array([*times, self.end_ns])
        for at in np.flatnonzero(np.diff(edges) > longest):
            said.append((int(edges[at] + 1e9 / self.hz), int(edges[at + 1]), "no reading"))
        if len(times) and times[0] - self.begin_ns > longest:
            said.append((self.begin_ns, int(times[0]), "no reading"))
        said += self._frozen(name, times, value, missing)
        self.gaps += [Gap(name, *one) for one in sorted(said)]
        value = value.copy()
        extra = []
        for begin, end, why in said:
            inside = (times >= begin) & (times < end)
            value[inside] = np.nan
            if why == "no reading":
                extra.append(begin)
        if extra:
            order = np.argsort(np.r_[times, extra], kind="stable")
            times, value = np.r_[times, np.array(extra, np.int64)][order], np.r_[value, [np.nan] * len(extra)][order]
        return Series(times, value)

    def _frozen(self, name: str, times: np.ndarray, value: np.ndarray, missing: np.ndarray):
        """Stretches in which a value stood still for longer than a working sensor's can."""
        still_s = QUANTITIES[name].still_s if name in QUANTITIES else None
        if still_s is None or not len(value):
            return
        limit = max(still_s * 1e9, 5e6 * (self.updates.get(name) or 0))
        changes = np.flatnonzero(np.r_[True, (value[1:] != value[:-1]) & ~(missing[1:] & missing[:-1])])
        ends = np.r_[times[changes[1:]], self.end_ns]
        for at, end in zip(changes, ends):
            if not missing[at] and end - times[at] > limit:
                # the reading at which it came to rest still counts
                yield int(times[at] + min(limit, 1e9 / self.hz)), int(end), "frozen"

    @property
    def names(self) -> list[str]:
        """The quantities that were told."""
        return [name for name, series in self.series.items() if not np.isnan(series.value).all()]

    @property
    def table(self) -> pa.Table:
        """Name, rank (0), time_ns, value, unit, as the counters of a trace; times are the device's where its clock is
        known, else the host's; a NaN begins a gap."""
        return self._counters(0, 0)

    def _counters(self, zero_ns: int, rank: int) -> pa.Table:
        parts = []
        for name, series in self.series.items():
            count = len(series.time_ns)
            parts.append(
                pa.table(
                    {
                        "name": pa.array([name] * count, pa.string()),
                        "rank": pa.array(np.full(count, rank, np.int32)),
                        "time_ns": pa.array(self.timebase.device_ns(series.time_ns) - zero_ns),
                        "value": pa.array(series.value),
                        "unit": pa.array([unit_of(name)] * count, pa.string()),
                    },
                    schema=COUNTERS,
                )
            )
        return pa.concat_tables(parts) if parts else COUNTERS.empty_table()

    def known(self, name: str, begin_ns: int | None = None, end_ns: int | None = None) -> float:
        """The share of the stretch, 0 to 1, for which `name` is known."""
        begin, end = self._stretch(begin_ns, end_ns)
        value, lasts = self._steps(name, begin, end)
        return float(lasts[~np.isnan(value)].sum() / (end - begin)) if end > begin else 0.0

    def mean(self, name: str, begin_ns: int | None = None, end_ns: int | None = None) -> float | None:
        """Over time, gaps left out; None if nothing is known. The stretch is in the host's ns."""
        value, lasts = self._steps(name, *self._stretch(begin_ns, end_ns))
        known = ~np.isnan(value) & (lasts > 0)
        if not known.any():
            return None
        return float(np.average(value[known], weights=lasts[known]))

    def integral(self, name: str, begin_ns: int | None = None, end_ns: int | None = None) -> float | None:
        """Of `name` over time, in its unit times seconds; a gap has the mean of the rest, None if all is gap."""
        begin, end = self._stretch(begin_ns, end_ns)
        mean = self.mean(name, begin, end)
        return None if mean is None else mean * (end - begin) * 1e-9

    def counted_power_w(self, begin_ns: int | None = None, end_ns: int | None = None) -> tuple[float, float] | None:
        """Mean power by the energy counter, and how far off it may be, in W.

        The counter is stepped: it is read where it has just changed, from the first change inside the stretch to the
        last. None if there are no two, or if there is a gap between them.
        """
        series = self.series.get("energy")
        if series is None:
            return None
        begin, end = self._stretch(begin_ns, end_ns)
        inside = (series.time_ns >= begin) & (series.time_ns <= end)
        times, value = series.time_ns[inside], series.value[inside]
        if len(value) < 3 or np.isnan(value).any():
            return None
        at = np.flatnonzero(value[1:] != value[:-1]) + 1
        if len(at) < 2 or (np.diff(value) < 0).any():
            return None
        first, last = at[0], at[-1]
        seconds = (times[last] - times[first]) * 1e-9
        watts = (value[last] - value[first]) / seconds
        # a change is seen up to one reading late, at either end
        late = float(max(times[first] - times[first - 1], times[last] - times[last - 1])) * 1e-9
        return float(watts), float(watts * late / seconds)

    @property
    def energy_j(self) -> float | None:
        """Of the whole stretch: mean power by the energy counter times its length; without a counter, the integral of
        the power; None if neither is known."""
        counted = self.counted_power_w()
        if counted is not None:
            return counted[0] * self.seconds
        return self.integral("power")

    @property
    def seconds(self) -> float:
        """How long the stretch was."""
        return (self.end_ns - self.begin_ns) * 1e-9

    def on(self, trace: Trace, rank: int = 0) -> Trace:
        """The trace with these samples among its counters: those that fall into it, the one before and the one after.

        Raises KosmosArgumentError if the two are not on one clock: the trace has to be a GPU's, recorded while the
        sensor was read.
        """
        clock = trace.meta.get("clock")
        source = clock.get("source") if isinstance(clock, dict) else None
        epoch = trace.meta.get("epoch")
        if self.timebase.source == "host" or source != self.timebase.source or not isinstance(epoch, int):
            raise KosmosArgumentError(
                f"these samples are on the clock {self.timebase.source!r}, the trace is on {source!r}: only a GPU's "
                "trace that was recorded while its sensor was read can have them as counters"
            )
        table = self._counters(epoch * (10 if source == "s_memrealtime" else 1), rank)
        end = int(trace.spans["end_ns"].to_numpy().max(initial=0))
        time, name = table["time_ns"].to_numpy(), np.array(table["name"].to_pylist())
        keep = np.zeros(len(table), bool)
        for one in np.unique(name):
            at = np.flatnonzero(name == one)
            first = max(np.searchsorted(time[at], 0, "right") - 1, 0)
            keep[at[first : np.searchsorted(time[at], end, "right") + 1]] = True
        counters = pa.concat_tables([trace.counters, table.filter(pa.array(keep))])
        said = {"sensor": self.sensor, "hz": self.hz, "updates_ms": self.updates, "timebase": self.timebase.as_json()}
        return with_counters(trace, counters, power=said)

    def report(self) -> str:
        """What was read, how often it changes, and what is missing, as a few lines of text."""
        lines = [f"sensor   {self.sensor}"]
        count = len(self.readings)
        rate = (count - 1) / max((self.readings[-1][0] - self.readings[0][0]) * 1e-9, 1e-9) if count > 1 else 0.0
        lines.append(f"readings {count:,} in {self.seconds:.2f} s: {rate:.1f} a second of {self.hz:g} asked for")
        clock = self.timebase
        if clock.error_ns is None:
            lines.append("clock    the host's; no device clock was there to compare with")
        else:
            drift = "" if clock.drift_ppm is None else f", drift {clock.drift_ppm:+.1f} ppm"
            lines.append(f"clock    {clock.source}, to ±{clock.error_ns / 1000:.1f} µs{drift}")
        for name in self.names:
            value = self.series[name].value
            value = value[~np.isnan(value)]
            period = self.updates.get(name)
            often = f"a new value every {period:.0f} ms" if period else "not seen to change"
            if period is None and value.min() < value.max():
                often = "too few changes to say how often"
            unit = unit_of(name)
            lines.append(
                f"{name:16} {self.mean(name):12,.1f} {unit:3} ({value.min():,.1f} to {value.max():,.1f}), {often}"
            )
        if self.energy_j is not None:
            counted = self.counted_power_w()
            how = "the integral of power" if counted is None else f"the energy counter, ±{counted[1]:.1f} W"
            lines.append(f"energy   {self.energy_j:,.1f} J, {self.energy_j / self.seconds:.1f} W, by {how}")
        for gap in self.gaps:
            span = f"{(gap.begin_ns - self.begin_ns) * 1e-9:.2f} to {(gap.end_ns - self.begin_ns) * 1e-9:.2f} s"
            lines.append(f"GAP      {gap.name}: {gap.why}, {span}")
        if self.lost:
            lines.append(f"LOST     {self.lost}")
        return "\n".join(lines)

    def _stretch(self, begin_ns: int | None, end_ns: int | None) -> tuple[int, int]:
        return self.begin_ns if begin_ns is None else begin_ns, self.end_ns if end_ns is None else end_ns

    def _steps(self, name: str, begin: int, end: int) -> tuple[np.ndarray, np.ndarray]:
        """Values, and for how many ns of the stretch each of them holds."""
        series = self.series.get(name)
        if series is None or not len(series.time_ns):
            return np.array([np.nan]), np.array([end - begin])
        edges = np.clip(np.r_[series.time_ns, self.end_ns], begin, end)
        return series.value, np.diff(edges)

    def as_json(self) -> dict[str, Any]:
        """For a file: every reading."""
        names = list(dict.fromkeys(name for _, values in self.readings for name in values))
        return {
            "sensor": self.sensor,
            "limits": self.limits,
            "hz": self.hz,
            "begin_ns": self.begin_ns,
            "end_ns": self.end_ns,
            "timebase": self.timebase.as_json(),
            "updates_ms": self.updates,
            "lost": self.lost,
            "since_begin_ns": [time - self.begin_ns for time, _ in self.readings],
            "values": {name: [_brief(values.get(name)) for _, values in self.readings] for name in names},
        }

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "Samples":
        """From a file. Raises KeyError, TypeError or ValueError for content that is damaged."""
        times = [content["begin_ns"] + since for since in content["since_begin_ns"]]
        columns = content["values"]
        if any(len(values) != len(times) for values in columns.values()):
            raise ValueError("a column has another length")
        readings = [
            (time, {name: float(values[at]) for name, values in columns.items() if values[at] is not None})
            for at, time in enumerate(times)
        ]
        return cls(
            content["sensor"],
            readings,
            content["hz"],
            content["begin_ns"],
            content["end_ns"],
            content["limits"],
            Timebase.from_json(content["timebase"]),
            content["updates_ms"],
            content["lost"],
        )


def _runs(mask: np.ndarray) -> list[tuple[int, int]]:
    """First and last index of each run of True."""
    edges = np.flatnonzero(np.diff(np.r_[0, mask.astype(np.int8), 0]))
    return [(int(first), int(last) - 1) for first, last in zip(edges[::2], edges[1::2])]


def _brief(value: float | None) -> float | int | None:
    if value is None:
        return None
    value = round(value, 3)
    return int(value) if value == int(value) else value
