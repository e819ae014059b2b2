"""The clock of a benchmark on a GPU."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from triton import knobs

from kosmos import power

CLEARED_BYTES = 512 << 20
"""What is cleared before a burst: it empties the caches, and while it lasts the host enqueues what is timed."""

IDLE = 2.0
"""How long the device idles after a burst, in lengths of that burst: a third of the time is load."""

IN_FLIGHT = 4
"""Replays that are enqueued ahead while a variant runs back to back."""

SENSOR_HZ = 50


@dataclass
class Loop:
    """A variant ready to be timed: `replay` makes `inner` calls, the last of which writes `output`."""

    name: str
    inner: int
    replay: Callable[[], object]
    output: torch.Tensor


@dataclass
class Sustained:
    """ms: of one call, the mean of each replay, in order of time. clock_mhz, power_w: the means over the last half of
    the time; None where they cannot be read."""

    ms: list[float]
    clock_mhz: float | None = None
    power_w: float | None = None


class GpuTimer:
    """Times with the device's events. Everything that is timed is a CUDA graph, so that the host's launch cost stays
    out, but for `launches`, which times eager launches, and `host`, which times the host."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.sensor = power.find(device)
        self._cleared = torch.empty(CLEARED_BYTES, dtype=torch.int8, device=device)

    def capture(self, name: str, call: Callable[[], torch.Tensor], inner: int) -> Loop:
        """Compile and warm up `call`, and capture `inner` calls of it."""
        with torch.cuda.device(self.device):
            for _ in range(2):
                call()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            output = None
            with torch.cuda.graph(graph):
                for _ in range(inner):
                    output = None  # the next call may have its memory
                    output = call()
        return Loop(name, inner, graph.replay, output)

    def burst(self, loop: Loop) -> float:
        """ms of one call, from one replay on a device at rest with empty caches."""
        with torch.cuda.device(self.device):
            begin, end = _event(), _event()
            self._cleared.zero_()
            begin.record()
            loop.replay()
            end.record()
            end.synchronize()
        ms = begin.elapsed_time(end)
        time.sleep(IDLE * ms / 1000)
        return ms / loop.inner

    def clock_mhz(self) -> float | None:
        """The SM clock now; None where it cannot be read."""
        try:
            return self.sensor.read().get("sm_clock")
        except Exception:  # a sensor that is gone is no reason to stop
            return None

    def sustain(self, loop: Loop, seconds: float) -> Sustained:
        """Replay back to back for so long."""
        reading = power.sample(SENSOR_HZ, self.device, self.sensor, updates={})
        with torch.cuda.device(self.device), reading:
            torch.cuda.synchronize()
            events = [_event()]
            events[0].record()
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds or len(events) <= IN_FLIGHT:
                loop.replay()
                events.append(_event())
                events[-1].record()
                if len(events) > IN_FLIGHT:
                    events[-IN_FLIGHT].synchronize()
            torch.cuda.synchronize()
        ms = [before.elapsed_time(after) / loop.inner for before, after in zip(events, events[1:])]
        samples = reading.samples
        late = (samples.begin_ns + samples.end_ns) // 2
        return Sustained(ms, *(samples.mean(name, late) for name in ("sm_clock", "power")))

    def launches(self, call: Callable[[], object], count: int, ahead: Loop) -> list[float]:
        """ms of each of `count` eager launches of a kernel in a row: events right before and after it, so that what
        `call` does besides is not in. `ahead` is replayed first, while the host enqueues them. Empty if Triton does not
        call its hooks once a launch."""
        events: list[torch.cuda.Event] = []

        def stamp(_: Any) -> None:
            events.append(_event())
            events[-1].record()

        with torch.cuda.device(self.device):
            ahead.replay()
            # Triton calls them in the launch, right before and after it enqueues the kernel
            knobs.runtime.launch_enter_hook.add(stamp)
            knobs.runtime.launch_exit_hook.add(stamp)
            try:
                for _ in range(count):
                    call()
            finally:
                knobs.runtime.launch_enter_hook.remove(stamp)
                knobs.runtime.launch_exit_hook.remove(stamp)
            torch.cuda.synchronize()
        if len(events) != 2 * count:
            return []
        return [begin.elapsed_time(end) for begin, end in zip(events[::2], events[1::2])]

    def host(self, call: Callable[[], object], count: int) -> list[float]:
        """µs that the host spends in each of `count` calls, which do not wait for the device."""
        with torch.cuda.device(self.device):
            torch.cuda.synchronize()
            times = [time.perf_counter_ns()]
            for _ in range(count):
                call()
                times.append(time.perf_counter_ns())
            torch.cuda.synchronize()
        return [(after - before) / 1000 for before, after in zip(times, times[1:])]

    def machine(self) -> dict[str, Any]:
        """What is timed, for the header."""
        properties = torch.cuda.get_device_properties(self.device)
        return {
            "machine": properties.name,
            "units": properties.multi_processor_count,
            "memory_gib": round(properties.total_memory / 2**30, 1),
            "runtime": f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}",
            **self.sensor.limits,
            "sensors": self.sensor.name,
        }


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)
