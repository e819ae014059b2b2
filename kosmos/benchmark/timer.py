"""The clock of a benchmark on a GPU, and its sensors."""

import threading
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from triton import knobs

CLEARED_BYTES = 512 << 20
"""What is cleared before a burst: it empties the caches, and while it lasts the host enqueues what is timed."""

IDLE = 2.0
"""How long the device idles after a burst, in lengths of that burst: a third of the time is load."""

IN_FLIGHT = 4
"""Replays that are enqueued ahead while a variant runs back to back."""

SENSOR_S = 0.02


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
        self.sensors = Sensors(device)
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
        return self.sensors.clock_mhz()

    def sustain(self, loop: Loop, seconds: float) -> Sustained:
        """Replay back to back for so long."""
        with torch.cuda.device(self.device), self.sensors.watch() as seen:
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
        return Sustained(ms, *seen.means())

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
            **self.sensors.limits(),
        }


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


@dataclass
class _Seen:
    """Readings: seconds, MHz, W."""

    readings: list[tuple[float, float | None, float | None]] = field(default_factory=list)

    def means(self) -> tuple[float | None, float | None]:
        """Of clock and power, over the last half of the time."""
        if not self.readings:
            return None, None
        middle = (self.readings[0][0] + self.readings[-1][0]) / 2
        late = [reading[1:] for reading in self.readings if reading[0] >= middle]
        columns = [[value for value in column if value is not None] for column in zip(*late)]
        clock, power = (sum(column) / len(column) if column else None for column in columns)
        return clock, power


class Sensors:
    """SM clock and power of an NVIDIA GPU through nvidia-ml-py. `missing` is a sentence where they cannot be read."""

    def __init__(self, device: torch.device) -> None:
        self.missing = ""
        self._library: Any = None
        if torch.version.hip:
            self.missing = "clocks and power are left out: they are read on NVIDIA GPUs only"
            return
        try:
            import pynvml
        except ImportError:
            self.missing = "clocks and power are left out: nvidia-ml-py is not installed (pip install 'kosmos[nvidia]')"
            return
        try:
            pynvml.nvmlInit()
            uuid = str(torch.cuda.get_device_properties(device).uuid)
            self._handle = pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
            self._library = pynvml
        except Exception as error:  # NVML's own kind, or a torch or a driver that lacks a name
            self.missing = f"clocks and power are left out: the driver's library does not serve them ({error})"

    def limits(self) -> dict[str, Any]:
        """The driver's version, the highest SM clock in MHz and the power limit in W; None where it is not known."""
        nvml = self._library
        watts = self._ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(self._handle) / 1000)
        return {
            "driver": self._ask(nvml and nvml.nvmlSystemGetDriverVersion),
            "max_clock_mhz": self._ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(self._handle, nvml.NVML_CLOCK_SM)),
            "power_limit_w": watts,
            "sensors": self.missing or "nvidia-ml-py",
        }

    @contextmanager
    def watch(self):
        """Read the sensors all the time; yields what was seen."""
        seen = _Seen()
        if self._library is None:
            yield seen
            return
        done = threading.Event()

        def look() -> None:
            while not done.wait(SENSOR_S):
                seen.readings.append((time.perf_counter(), self.clock_mhz(), self._power()))

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield seen
        finally:
            done.set()
            thread.join()

    def clock_mhz(self) -> float | None:
        """The SM clock now; None where it cannot be read."""
        nvml = self._library
        return self._ask(lambda: float(nvml.nvmlDeviceGetClockInfo(self._handle, nvml.NVML_CLOCK_SM)))

    def _power(self) -> float | None:
        """At this moment; from a driver that does not know that, the mean of up to a second."""
        nvml = self._library

        def instant() -> float:
            (value,) = nvml.nvmlDeviceGetFieldValues(self._handle, [nvml.NVML_FI_DEV_POWER_INSTANT])
            if value.nvmlReturn:
                raise LookupError("not known")
            return value.value.uiVal / 1000

        now = self._ask(instant)
        return self._ask(lambda: nvml.nvmlDeviceGetPowerUsage(self._handle) / 1000) if now is None else now

    def _ask(self, question: Callable[[], Any] | None) -> Any:
        if self._library is None or question is None:
            return None
        try:
            return question()
        except Exception:  # a single sensor that a machine does not have is no reason to stop
            return None
