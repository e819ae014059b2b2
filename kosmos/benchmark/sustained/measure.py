"""How a sweep is measured.

Every point is prepared first, compiled, captured in a CUDA graph and its result checked. Then they run, one after the
other without a rest, in the order of the sweep: each is replayed back to back for some seconds, while a thread reads
the sensor. Of some points one launch is recorded every quarter of a second, for the clock in the kernel; it is not
timed.
"""

import platform
import shlex
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any, Protocol

import numpy as np
import torch
import triton

import kosmos
from kosmos import ops, power
from kosmos.benchmark.cases import DTYPES
from kosmos.benchmark.measure import baselines
from kosmos.benchmark.sustained.cases import UNFUSED, Point, Sweep
from kosmos.benchmark.sustained.results import Copy, Results, Run
from kosmos.benchmark.timer import GpuTimer, Loop
from kosmos.doctor.reference import TOLERANCE
from kosmos.errors import KosmosEnvironmentError
from kosmos.power.clocks import clock_map, mean_mhz
from kosmos.power.samples import Samples
from kosmos.power.sensors import Sensor
from kosmos.trace import Trace
from kosmos.world import World, record

REPLAY_MS = 5.0
"""About what one replay lasts."""

IN_FLIGHT = 4
"""Replays that are enqueued ahead."""

RECORD_EVERY_S = 0.25

PROBE_S = 1.5
"""For how long the sensor is asked for how often it changes, under load."""

IDLE_S = 1.5

COPIED_BYTES, COPY_S = 4 << 30, 1.5
"""Far more than any cache holds."""

CHECKED_ROWS = 16

HOST_CALLS = 10

BURST_N, BURST_K = 16384, 32768
"""Long items, so that a launch of a second is no large trace."""

BURST_FLOPS = 600e12
"""What is taken for the rate, to choose the rows of a launch that lasts so long."""

REST_S = 2.0
"""At rest before it, so that it begins cool."""


class Runner(Protocol):
    """What runs things and times them; on a GPU `GpuRunner`."""

    device: torch.device | None

    def capture(self, name: str, call: Callable[[], torch.Tensor], inner: int) -> Loop:
        """`inner` calls, ready to be replayed."""

    def repeat(
        self, loop: Loop, seconds: float, aside: Callable[[], object] | None = None
    ) -> tuple[int, int, list[float]]:
        """Replay back to back for so long, and every quarter of a second call `aside`, which is not timed.

        When it began and ended in the host's ns, and the ms of each replay.
        """

    def host(self, call: Callable[[], object], count: int) -> list[float]:
        """µs that the host spends in each of `count` calls."""

    def machine(self) -> dict[str, Any]:
        """What it is, for the header."""


class GpuRunner(GpuTimer):
    """A GPU."""

    def repeat(self, loop: Loop, seconds: float, aside: Callable[[], object] | None = None):
        """See Runner."""
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            # a replay lasts from the end of the one before to its own, or from its begin where something stood between
            begun, ended = [_event()], []
            begin = time.monotonic_ns()
            due = begin + int(RECORD_EVERY_S * 1e9)
            begun[0].record()
            while (now := time.monotonic_ns()) - begin < seconds * 1e9 or len(ended) <= IN_FLIGHT:
                loop.replay()
                ended.append(_event())
                ended[-1].record()
                begun.append(ended[-1])
                if aside is not None and now >= due:
                    aside()
                    begun[-1] = _event()
                    begun[-1].record()
                    due += int(RECORD_EVERY_S * 1e9)
                if len(ended) > IN_FLIGHT:
                    ended[-IN_FLIGHT - 1].synchronize()
            torch.cuda.synchronize()
            end = time.monotonic_ns()
        return begin, end, [round(before.elapsed_time(after), 5) for before, after in zip(begun, ended)]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def measure(
    sweep: Sweep,
    seconds: float,
    seed: int,
    runner: Runner,
    sensor: Sensor,
    progress: bool,
    results: Results,
    save: Callable[[], None],
    traces: dict[int, Trace] | None = None,
) -> Results:
    """Run `sweep` into `results`. save: called now and then, with what there is. traces: takes the last recorded launch
    of every point that has one, with the sensor's readings among its counters."""
    from tqdm.auto import tqdm

    results.sweep = sweep
    results.header.update(_header(runner, sensor, seed, seconds))
    bar = tqdm(total=len(sweep.points) + len(sweep.order), unit="run", disable=not progress, leave=False)
    try:
        results.idle = _at_rest(sensor, runner)
        bench = _Bench(sweep, runner, seed)
        loops: list[Loop] = []
        for point in sweep.points:
            bar.set_description(f"preparing {point.name}")
            loops.append(bench.prepare(point))
            bar.update()
        results.header["tile"] = bench.tile
        if sweep.over == "workgroups":
            results.copy = _copies(sensor, runner)
        bar.set_description("warming up")
        updates = _warm_up(loops[sweep.full], sensor, runner)
        for at in sweep.order:
            point = sweep.points[at]
            bar.set_description(point.name)
            run, trace = _run(at, point, loops[at], bench, seconds, sensor, updates, runner)
            if sweep.over == "sampling":
                run.host_us = _host(point, bench, sensor, updates, runner)
            results.runs.append(run)
            if trace is not None and traces is not None:
                traces[at] = trace
            bar.update()
        bench.finish()
        results.header["ended"] = _now()
    finally:
        bar.close()
        # what was measured until then, if it ends early
        if results.runs:
            save()
    return results


def _at_rest(sensor: Sensor, runner: Runner) -> Samples | None:
    if isinstance(sensor, power.NoSensor):
        return None
    with power.sample(hz=50, device=runner.device, sensor=sensor, updates={}) as samples:
        time.sleep(IDLE_S)
    return samples.samples


def _copies(sensor: Sensor, runner: Runner) -> Copy:
    """The device busy with its memory and little else, for what a byte costs."""
    size = COPIED_BYTES if runner.device.type == "cuda" else 1 << 16
    source, target = (torch.zeros(size, dtype=torch.uint8, device=runner.device) for _ in range(2))
    source.random_()
    loop = runner.capture("copy", lambda: target.copy_(source), 4)
    reading = nullcontext() if isinstance(sensor, power.NoSensor) else power.sample(50, runner.device, sensor, {})
    with reading:
        begin, end, replay_ms = runner.repeat(loop, COPY_S)
    samples = None if isinstance(sensor, power.NoSensor) else reading.samples
    return Copy(2 * size, begin, end, loop.inner, replay_ms, samples)


def _warm_up(loop: Loop, sensor: Sensor, runner: Runner) -> dict[str, float | None]:
    """Bring the device to its working temperature, and see how often the sensor changes under load."""
    import threading

    found: dict[str, float | None] = {}
    if isinstance(sensor, power.NoSensor):
        runner.repeat(loop, PROBE_S)
        return found
    thread = threading.Thread(target=lambda: found.update(power.probe(sensor, PROBE_S)), daemon=True)
    thread.start()
    runner.repeat(loop, PROBE_S + 0.1)
    thread.join()
    return found


def _run(
    at: int,
    point: Point,
    loop: Loop,
    bench: "_Bench",
    seconds: float,
    sensor: Sensor,
    updates: dict[str, float | None],
    runner: Runner,
) -> tuple[Run, Trace | None]:
    sampled = point.sampled_hz > 0 and not isinstance(sensor, power.NoSensor)
    reading = power.sample(point.sampled_hz, runner.device, sensor, updates) if sampled else nullcontext()
    call = bench.call(point)
    recording = record() if point.traced else nullcontext()
    with recording, reading:
        begin, end, replay_ms = runner.repeat(loop, seconds, call if point.traced else None)
    bench.finish()
    traces = recording.traces if point.traced else []
    samples = reading.samples if sampled else None
    clocks = [_clock(trace, samples) for trace in traces]
    run = Run(at, begin, end, loop.inner, replay_ms, samples, clocks)
    trace = traces[-1] if traces else None
    if trace is not None and samples is not None and samples.timebase.source != "host":
        trace = samples.on(trace)
    return run, trace


def _clock(trace: Trace, samples: Samples | None) -> dict[str, float | None]:
    """When a recorded launch began, and the clock in it."""
    _, mhz = clock_map(trace, 1)
    at = None
    base = samples and samples.timebase
    epoch = trace.meta.get("epoch")
    if base and base.first and isinstance(epoch, int) and (trace.meta.get("clock") or {}).get("source") == base.source:
        ticks = 10 if base.source == "s_memrealtime" else 1
        at = base.first.host_ns + (epoch * ticks - base.first.device_ns)
    return {"at_ns": at, "mhz": mean_mhz(trace), "low": float(np.nanmin(mhz)), "high": float(np.nanmax(mhz))}


def _host(
    point: Point, bench: "_Bench", sensor: Sensor, updates: dict[str, float | None], runner: Runner
) -> list[float]:
    """What the host spends in eager calls, with the sensor being read as in the run before, or not."""
    sampled = point.sampled_hz > 0 and not isinstance(sensor, power.NoSensor)
    reading = power.sample(point.sampled_hz, runner.device, sensor, updates) if sampled else nullcontext()
    with reading:
        found = runner.host(bench.call(point), HOST_CALLS)
    bench.finish()
    return found


class _Bench:
    """The points of a sweep as calls on one set of operands."""

    def __init__(self, sweep: Sweep, runner: Runner, seed: int) -> None:
        self.sweep, self.runner, self.seed = sweep, runner, seed
        self._worlds: dict[tuple[int, int], World] = {}
        self._operands: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._baselines: dict[str, Any] = {}
        self._inner: dict[tuple, int] = {}
        self._first: dict[tuple, torch.Tensor] = {}

    def world(self, point: Point) -> World:
        """Of a point; points with the same grid share one."""
        key = point.ranks, point.workgroups
        if key not in self._worlds:
            self._worlds[key] = World.virtual(point.ranks, point.workgroups, self.runner.device)
        return self._worlds[key]

    def operands(self, point: Point) -> tuple[torch.Tensor, torch.Tensor]:
        """x and w with a point's data; points with the same data share them."""
        if point.data not in self._operands:
            world, dtype = self.world(point), getattr(torch, DTYPES[point.dtype])
            rows = point.m // point.ranks if point.op == "all_gather_matmul" else point.m
            shapes = (rows, point.k), (point.n, point.k)
            if point.data == "normal":
                made = tuple(world.randn(*shape, dtype, seed=self.seed + i) for i, shape in enumerate(shapes))
            else:
                value = {"zeros": 0.0, "constant": 1.0}[point.data]
                full = {"dtype": dtype, "device": world.device}
                made = tuple(torch.full((point.ranks, *shape), value, **full) for shape in shapes)
            self._operands[point.data] = made
        return self._operands[point.data]

    def call(self, point: Point) -> Callable[[], torch.Tensor]:
        """One call of a point."""
        x, w = self.operands(point)
        if point.policy == UNFUSED:
            if point.data not in self._baselines:
                self._baselines[point.data] = baselines(point.op, x, w)
            return self._baselines[point.data]["unfused"]
        world, op = self.world(point), getattr(ops, point.op)
        return lambda: op(x, w, world=world, policy=point.policy)

    def prepare(self, point: Point) -> Loop:
        """A point ready to be replayed, its result checked."""
        call = self.call(point)
        if point.traced:
            with record():  # compile that too
                call()
        key = point.policy == UNFUSED, point.workgroups
        if key not in self._inner:
            once = self.runner.capture(point.name, call, 1)
            _, _, ms = self.runner.repeat(once, 0.02)
            self._inner[key] = max(1, round(REPLAY_MS / min(ms)))
        loop = self.runner.capture(point.name, call, self._inner[key])
        loop.output.fill_(float("nan"))
        loop.replay()
        self.finish()
        self._check(point, loop.output)
        return loop

    @property
    def tile(self) -> list[int] | None:
        """Rows and columns of a builder's tile."""
        plans = [plan for world in self._worlds.values() for plan in world._plans.values()]
        return list(plans[0].blocks.tile) if plans else None

    def finish(self) -> None:
        """Wait for the device, and raise what it has to report."""
        for world in self._worlds.values():
            world.synchronize()

    def _check(self, point: Point, output: torch.Tensor) -> None:
        """Against float64 on some rows, and fused results of the same operands bit by bit against each other."""
        x, w = self.operands(point)
        y = output.view(point.ranks, -1, point.n)
        shard = point.m // point.ranks
        rows = torch.linspace(0, shard - 1, min(shard, CHECKED_ROWS)).round().long().unique().to(y.device)
        if point.op == "all_gather_matmul":
            expected = [(y[r, rows], x[0, rows].double() @ w[r].double().T) for r in range(point.ranks)]
        else:
            expected = [(y[0, rows], sum(x[r, rows].double() @ w[r].double().T for r in range(point.ranks)))]
        allowed = TOLERANCE[x.dtype]
        for got, right in expected:
            off = (got.double() - right).norm()
            if not off <= allowed * right.norm():
                raise KosmosEnvironmentError(
                    f"{point.op} with {point.name}: the result is wrong, off by {off.item():.3g} of "
                    f"{right.norm().item():.3g}"
                )
        if point.policy == UNFUSED:
            return
        first = self._first.setdefault((point.data,), y.clone())
        if not torch.equal(first, y):
            raise KosmosEnvironmentError(f"{point.op} with {point.name}: the bits of the result depend on the grid")


def burst(
    seconds: float, seed: int, runner: Runner, sensor: Sensor, hz: float = 100, workgroups: int | None = None
) -> Trace:
    """The trace of one launch that lasts about `seconds`, from rest: a matmul with very many rows, the sensor's
    readings and the clock in the kernel among its counters."""
    world = World.virtual(1, workgroups, runner.device)
    n, k = (BURST_N, BURST_K) if not world.emulated else (256, 256)
    rows = max(1, round(seconds * BURST_FLOPS / (2 * n * k) / 4096)) * 4096 if not world.emulated else 512
    generator = torch.Generator(world.device).manual_seed(seed)

    def normal(rows: int) -> torch.Tensor:
        # not world.randn, whose fp32 would take twice the memory again
        new = torch.empty((1, rows, k), dtype=torch.bfloat16, device=world.device)
        return new.normal_(generator=generator)

    try:
        x, w = normal(rows), normal(n)
        with record():  # compile that, and make the queue
            ops.all_gather_matmul(x, w, world=world)
    except torch.OutOfMemoryError:
        raise KosmosEnvironmentError(f"seconds={seconds:g} need {rows} rows, and they do not fit the memory") from None
    time.sleep(REST_S)
    with record() as recorded, power.sample(hz, runner.device, sensor, {}) as reading:
        ops.all_gather_matmul(x, w, world=world)
        world.synchronize()
    trace, samples = recorded.trace, reading.samples
    if samples.timebase.source != "host":
        trace = samples.on(trace)
    return power.clock_counters(trace)


def _header(runner: Runner, sensor: Sensor, seed: int, seconds: float) -> dict[str, Any]:
    return {
        **runner.machine(),
        **{name: value for name, value in sensor.limits.items() if value is not None},
        "sensors": sensor.name,
        "versions": {
            "kosmos": kosmos.__version__,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "started": _now(),
        "ended": None,
        "command": shlex.join(["kosmos", *sys.argv[1:]]),
        "seed": seed,
        "seconds": seconds,
    }


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
