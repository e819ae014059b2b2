"""What a sweep measured: its file and its statistics.

The file is JSON and holds what was measured, every replay and every reading of the sensor; means and ratios are
computed when it is read:

    {"kosmos": "power", "format": 1,
     "header": {"machine", "units", "memory_gib", "driver", "runtime", "max_clock_mhz", "power_limit_w", "sensors",
                "versions", "started", "ended", "command", "seed", "seconds"},
     "sweep": {"over", "points": [Point], "order": [index], "full"},
     "idle": Samples or null,         the device at rest, before anything ran
     "copy": Copy or null,            the device copying its own memory
     "runs": [{                       in the order in which they ran
       "point",                       index of a point
       "begin_ns", "end_ns",          of the host's monotonic clock
       "inner", "replay_ms",          calls in one replay; [replay]: how long it took, back to back, in order of time
       "samples": Samples or null,    the sensor
       "clocks": [{"at_ns", "mhz", "low", "high"}],   recorded launches: when (host), the mean clock in the kernel, and
                                      the lowest and highest mean of a workgroup; at_ns is null without a device clock
       "host_us": [call]              what the host spent in eager calls, right after the run; may be empty
     }]}
"""

import dataclasses
import json
import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kosmos.benchmark.cases import BYTES
from kosmos.benchmark.results import content_of
from kosmos.benchmark.sustained.cases import OVER, SETTLE_S, Point, Sweep
from kosmos.errors import KosmosArgumentError
from kosmos.files import path_text, whole_file
from kosmos.machine import Machine, machine_named
from kosmos.power.model import Fit, Observation, PowerModel, fit
from kosmos.power.samples import Samples

FORMAT = 1

TILE = (128, 256)
"""Of a builder on an H200, where a file does not say."""


@dataclass
class Run:
    """One stretch of back-to-back replays of a point: the file's "runs"."""

    point: int
    begin_ns: int
    end_ns: int
    inner: int
    replay_ms: list[float]
    samples: Samples | None = None
    clocks: list[dict[str, float | None]] = field(default_factory=list)
    host_us: list[float] = field(default_factory=list)

    @property
    def settled_ns(self) -> int:
        """From when on it counts."""
        return self.begin_ns + int(min(SETTLE_S * 1e9, (self.end_ns - self.begin_ns) / 4))

    @property
    def call_ms(self) -> float:
        """Mean of one call, once settled."""
        ms = np.array(self.replay_ms)
        ends = self.begin_ns + 1e6 * ms.cumsum()
        late = ms[ends > self.settled_ns]
        return float((late if len(late) else ms).mean()) / self.inner

    @property
    def burst_ms(self) -> float:
        """One call of the first replay."""
        return self.replay_ms[0] / self.inner

    def mean(self, name: str) -> float | None:
        """Of a quantity of the sensor, once settled; None if it is not known for at least half of that time."""
        if self.samples is None or self.samples.known(name, self.settled_ns, self.end_ns) < 0.5:
            return None
        return self.samples.mean(name, self.settled_ns, self.end_ns)

    @property
    def counted_power(self) -> tuple[float, float] | None:
        """Mean power by the energy counter, once settled, and how far off it may be, in W."""
        return self.samples and self.samples.counted_power_w(self.settled_ns, self.end_ns)

    @property
    def power_w(self) -> float | None:
        """By the energy counter; where it says nothing, by the momentary power."""
        counted = self.counted_power
        return counted[0] if counted else self.mean("power")

    @property
    def kernel_mhz(self) -> float | None:
        """Mean clock in the recorded launches, once settled."""
        late = [one["mhz"] for one in self.clocks if one["at_ns"] is None or one["at_ns"] >= self.settled_ns]
        return float(np.mean(late)) if late else None


@dataclass
class Copy:
    """Copies inside the device memory, back to back. moved_bytes: read and written by one copy."""

    moved_bytes: int
    begin_ns: int
    end_ns: int
    inner: int
    replay_ms: list[float]
    samples: Samples | None = None

    @property
    def gbps(self) -> float:
        """Bytes read and written a second, in 10^9."""
        return self.moved_bytes * self.inner / float(np.median(self.replay_ms)) * 1e-6

    @property
    def power_w(self) -> float | None:
        """Mean momentary power over the last half."""
        return self.samples and self.samples.mean("power", (self.begin_ns + self.end_ns) // 2, self.end_ns)


@dataclass
class Results:
    """All that one sweep measured. note: where it comes from, if not from here and now; "" otherwise."""

    header: dict[str, Any] = field(default_factory=dict)
    sweep: Sweep | None = None
    idle: Samples | None = None
    copy: Copy | None = None
    runs: list[Run] = field(default_factory=list)
    note: str = ""

    def of(self, point: int) -> list[Run]:
        """The runs of a point, in order of time."""
        return [run for run in self.runs if run.point == point]

    def tflops(self, run: Run) -> float:
        """Operations a second of all ranks, in 10^12."""
        return self.sweep.points[run.point].flops / run.call_ms * 1e-9

    def joule(self, run: Run) -> float | None:
        """Energy of one call."""
        return None if run.power_w is None else run.power_w * run.call_ms * 1e-3

    def drift(self) -> list[float]:
        """For each run of the full point its throughput against the first one's."""
        full = [self.tflops(run) for run in self.of(self.sweep.full)]
        return [one / full[0] for one in full]

    def kept(self, run: Run) -> float:
        """Throughput against the full point's at that time: a line between its runs before and after."""
        times, values = zip(*((one.begin_ns, self.tflops(one)) for one in self.of(self.sweep.full)))
        return self.tflops(run) / float(np.interp(run.begin_ns, times, values))

    def rows(self) -> list[dict[str, Any]]:
        """A row a point, means over its runs; None for what is not known.

        workgroups (of all ranks), data, policy, runs, call_ms, tflops, kept (throughput against the full point's, by
        time), clock_mhz (the sensor's), kernel_mhz (in the kernel), power_w, counted_w (by the energy counter),
        sensor_w (by the momentary power), joule (a call), pj_per_flop, joule_seconds (energy times delay of a call),
        temperature, throttled (share of the time that the power cap held the clock down).
        """
        return [self._row(at) for at in range(len(self.sweep.points)) if self.of(at)]

    def _row(self, at: int) -> dict[str, Any]:
        point, runs = self.sweep.points[at], self.of(at)

        def mean(value: Callable[[Run], float | None]) -> float | None:
            known = [found for found in map(value, runs) if found is not None]
            return float(np.mean(known)) if known else None

        joule, ms = mean(self.joule), mean(lambda run: run.call_ms)
        return {
            "workgroups": point.active,
            "data": point.data,
            "policy": point.policy,
            "hz": point.sampled_hz,
            "runs": len(runs),
            "call_ms": ms,
            "burst_ms": min(run.burst_ms for run in runs),
            "tflops": mean(self.tflops),
            "kept": mean(self.kept),
            "clock_mhz": mean(lambda run: run.mean("sm_clock")),
            "kernel_mhz": mean(lambda run: run.kernel_mhz),
            "power_w": mean(lambda run: run.power_w),
            "counted_w": mean(lambda run: run.counted_power and run.counted_power[0]),
            "sensor_w": mean(lambda run: run.mean("power")),
            "joule": joule,
            "pj_per_flop": None if joule is None else 1e12 * joule / point.flops,
            "joule_seconds": None if joule is None else joule * ms * 1e-3,
            "temperature": mean(lambda run: run.mean("temperature")),
            "throttled": mean(lambda run: run.mean("throttle_power")),
        }

    def energy_check(self) -> tuple[float, float, float] | None:
        """Energy in J by the counter, and by the integral of the momentary power over the same time, and how many
        seconds that was: over all runs. None if either is not known."""
        counted = integral = seconds = 0.0
        for run in self.runs:
            both = run.counted_power, run.mean("power")
            if None in both:
                continue
            span = (run.end_ns - run.settled_ns) * 1e-9
            counted, integral, seconds = counted + both[0][0] * span, integral + both[1] * span, seconds + span
        return (counted, integral, seconds) if seconds else None

    def overhead(self, value: Callable[[Run], float] = lambda run: run.call_ms) -> tuple[float, float, float] | None:
        """Quartiles of how much longer a call takes while the sensor is read, turn by turn; 0.01 is a hundredth."""
        off, on = self.of(0), self.of(1)
        pairs = [value(b) / value(a) - 1 for a, b in zip(off, on)]
        if self.sweep.over != "sampling" or not pairs:
            return None
        low, middle, high = np.quantile(pairs, [0.25, 0.5, 0.75])
        return float(low), float(middle), float(high)

    def observations(self) -> list[Observation]:
        """The points of a sweep over workgroups with a known clock and power, for a fit."""
        found = []
        for at in range(len(self.sweep.points)):
            point, rows = self.sweep.points[at], self.of(at)
            row = self._row(at) if rows else None
            if self.sweep.over != "workgroups" or row is None or None in (row["clock_mhz"], row["power_w"]):
                continue
            high, wide = self.header.get("tile", TILE)
            tiles = math.ceil(point.m / high) * math.ceil(point.n / wide) * point.ranks
            # what has to move at least: both operands and the product, once
            moved = (point.m + point.n) * point.k + point.m * point.n
            gbps = moved * BYTES[point.dtype] * point.ranks / row["call_ms"] * 1e-6
            found.append(Observation(point.active, tiles, row["tflops"], row["clock_mhz"], row["power_w"], gbps))
        return found

    def fit(self, *, on: bool = True, byte_pj: float | None = None) -> Fit:
        """The power model that describes a sweep over workgroups; on: as in kosmos.power.model.fit. byte_pj: what a
        byte takes, by default what the sweep's copies say. Raises KosmosArgumentError for another sweep, or one that
        says too little."""
        if self.sweep.over != "workgroups":
            raise KosmosArgumentError(f"a power model is fitted to a sweep over workgroups, not over {self.sweep.over}")
        highest = self.header.get("max_clock_mhz")
        known = self.observations()
        if not known or not highest:
            raise KosmosArgumentError("this sweep has no clock and power to fit a model to")
        byte_pj = (self.byte_pj or 0.0) if byte_pj is None else byte_pj
        return fit(known, float(highest), byte_pj, on=on)

    def machine(self, base: str | Machine = "H200") -> Machine:
        """The machine model of the GPU that was swept, with the power of this sweep: it is one of runs that last for
        seconds, where the model of its name is one of short bursts.

        base: that model, of the whole GPU. Its clocks are those that kernels count, which while units multiply are
        below the sensor's; the fitted power of a unit is that at the clock counted. What a byte takes, and the share of
        a waiting unit, is that of `base`. Raises KosmosArgumentError for a sweep that says too little, and for the
        model of another GPU.
        """
        base = machine_named(base)
        swept = (self.header.get("units"), self.header.get("max_clock_mhz"))
        if base.sharing > 1 or swept != (base.units, base.clock_mhz):
            raise KosmosArgumentError(
                f"base={base.name!r} is not what was swept: that has {swept[0]} units and a clock of {swept[1]} MHz"
            )
        model = self.fit(byte_pj=base.byte_pj).model
        counted = [row["kernel_mhz"] / row["clock_mhz"] for row in self.rows() if row["kernel_mhz"]]
        if not counted or not base.unit_w:
            raise KosmosArgumentError("this sweep has no clocks counted in kernels, or this machine models no power")
        share = float(np.median(counted))
        unit_w = model.unit_w / share**model.exponent
        said = dict(
            cap_w=model.cap_w,
            idle_w=model.idle_w,
            on_w=model.on_w,
            unit_w=unit_w,
            wait_w=unit_w * base.wait_w / base.unit_w,
            exponent=model.exponent,
            busy_mhz=share * model.max_mhz,
        )
        sources = {**base.sources, **dict.fromkeys(said, "fitted to a sustained sweep over workgroups")}
        sources["wait_w"] = "derived: its share of unit_w is that of the machine for short bursts"
        sources["busy_mhz"] = "derived: the highest clock, times what kernels count of the sensor's clock"
        return replace(base, name=f"{base.name} sustained", sources=sources, **said)

    @property
    def byte_pj(self) -> float | None:
        """What a byte costs that is copied inside the device memory, in pJ: all that the board draws more than at rest,
        by the bytes read and written. None if that is not known."""
        copied, rest = self.copy and self.copy.power_w, self.idle and self.idle.mean("power")
        return None if copied is None or rest is None else 1e3 * max(copied - rest, 0.0) / self.copy.gbps

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all. Raises KosmosArgumentError if it cannot be written."""
        content = {
            "kosmos": "power",
            "format": FORMAT,
            "header": self.header,
            "sweep": dataclasses.asdict(self.sweep) if self.sweep else None,
            "idle": self.idle and self.idle.as_json(),
            "copy": self.copy and _as_json(self.copy),
            "runs": [_as_json(run) for run in self.runs],
        }
        with whole_file(path, KosmosArgumentError) as file:
            file.write((json.dumps(content, allow_nan=False, separators=(",", ":")) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Results":
        """Read such a file. Raises KosmosArgumentError if it is none, or damaged, or newer than this version."""
        from kosmos.benchmark.sustained.table import table  # an error in here is none of the file's

        path = path_text(path, KosmosArgumentError)
        content = content_of(path, "power", (FORMAT,), "sweep")
        try:
            found = cls._from_json(content)
            table(found)  # says everything, so that it is known to be readable
        except (KeyError, TypeError, ValueError, AttributeError, IndexError, ArithmeticError):
            raise KosmosArgumentError(f"{path}: is a damaged sweep: its content contradicts itself") from None
        return found

    @classmethod
    def _from_json(cls, content: dict[str, Any]) -> "Results":
        told = content["sweep"]
        if told["over"] not in OVER:
            raise ValueError("an unknown sweep")
        sweep = Sweep(told["over"], tuple(Point(**one) for one in told["points"]), tuple(told["order"]), told["full"])
        runs = []
        for one in content["runs"]:
            samples = one["samples"] and Samples.from_json(one["samples"])
            run = Run(**{**one, "samples": samples})
            if not 0 <= run.point < len(sweep.points) or not run.inner > 0 or not run.replay_ms:
                raise ValueError("a run of nothing")
            if not all(isinstance(ms, int | float) and 0 < ms < math.inf for ms in run.replay_ms):
                raise ValueError("a time is no positive number")
            runs.append(run)
        idle = content["idle"] and Samples.from_json(content["idle"])
        copied = content["copy"] and dict(content["copy"])
        if copied:
            copied["samples"] = copied["samples"] and Samples.from_json(copied["samples"])
        return cls(dict(content["header"]), sweep, idle, copied and Copy(**copied), runs)

    def __str__(self) -> str:
        from kosmos.benchmark.sustained.table import table

        return table(self)

    def plot(self):
        """A matplotlib Figure of the sweep."""
        from kosmos.benchmark.sustained.figure import figure

        return figure(self)

    def headroom_figure(self, others: "dict[str, tuple[PowerModel, int]] | None" = None):
        """A matplotlib Figure of the share of the throughput that is kept with a share of the units.

        others: models of other machines by name, each with its number of units, drawn beside what was measured.
        """
        from kosmos.benchmark.sustained.figure import headroom

        return headroom(self, others=others)


def _as_json(run: Run | Copy) -> dict[str, Any]:
    content = {part.name: getattr(run, part.name) for part in dataclasses.fields(run)}
    return {**content, "samples": run.samples and run.samples.as_json()}


def column(rows: Iterable[dict[str, Any]], name: str) -> np.ndarray:
    """A column of `Results.rows` as floats, NaN for what is not known."""
    return np.array([math.nan if row[name] is None else row[name] for row in rows], float)
