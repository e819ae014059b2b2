"""Reading a sensor while something runs.

with kosmos.power.sample(hz=20) as samples:
    ...
samples.table, samples.energy_j, samples.report()
"""

import math
import threading
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.power import sensors
from kosmos.power.samples import Samples
from kosmos.power.sensors import Sensor
from kosmos.power.timebase import Moment, Timebase, device_clock

PROBE_S = 0.5
"""For how long a sensor is asked as fast as it answers, to see how often its values change."""

FASTEST_HZ = 1000

_probed: dict[str, dict[str, float | None]] = {}


def probe(sensor: Sensor, seconds: float = PROBE_S) -> dict[str, float | None]:
    """For how many ms each quantity keeps a value: the median time between changes; None for one that was not seen to
    change twice. A sensor that nothing happens at changes little: probe it under load."""
    seen: dict[str, list[tuple[int, float]]] = {}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            values = sensor.read()
        except Exception:
            values = {}
        now = time.monotonic_ns()
        for name, value in values.items():
            changes = seen.setdefault(name, [])
            if not changes or changes[-1][1] != value:
                changes.append((now, value))
        time.sleep(0.001)
    # the first value was there before it was seen
    gaps = {name: np.diff([at for at, _ in changes[1:]]) for name, changes in seen.items()}
    return {name: float(np.median(gap)) * 1e-6 if len(gap) else None for name, gap in gaps.items()}


class sample:
    """Read power, energy, clocks and temperature `hz` times a second while the block runs; see Samples.

    device: of torch, by default the current GPU. sensor: instead of the one that is found there. updates: how often
    its values change, if that is known; by default this is measured first, once a process. A thread does the reading;
    it sets nothing, needs no root, and ends with the block, however that ends. Where there is no sensor the block runs
    as ever and `report()` says so. What belongs to Samples can be asked for when the block has ended.

    Raises KosmosArgumentError for an hz that is not allowed.
    """

    def __init__(
        self,
        hz: float = 20,
        device: Any = None,
        sensor: Sensor | None = None,
        updates: Mapping[str, float | None] | None = None,
    ) -> None:
        if isinstance(hz, bool) or not isinstance(hz, int | float) or not 0 < hz <= FASTEST_HZ:
            raise KosmosArgumentError(f"hz={hz!r} must be above 0 and at most {FASTEST_HZ} readings a second")
        self.hz = hz
        self.sensor = sensors.find(device) if sensor is None else sensor
        self._device, self._updates = device, updates
        self._samples: Samples | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "sample":
        if self._updates is None:
            if self.sensor.name not in _probed:
                nothing = isinstance(self.sensor, sensors.NoSensor)
                _probed[self.sensor.name] = {} if nothing else probe(self.sensor)
            self._updates = _probed[self.sensor.name]
        self._samples = None
        self._readings: list[tuple[int, dict[str, float]]] = []
        self._lost = ""
        self._done = threading.Event()
        self._clock = None if isinstance(self.sensor, sensors.NoSensor) else device_clock(self._device)
        self._first: Moment | None = self._clock.moment() if self._clock else None
        self._begin = time.monotonic_ns()
        self._thread = threading.Thread(target=self._poll, name="kosmos.power", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._done.set()
        if self._thread is not None:
            # a library that hangs must not take the block with it
            self._thread.join(timeout=5)
        end = time.monotonic_ns()
        timebase = Timebase()
        if self._clock is not None and kind is None:
            timebase = Timebase(self._clock.source, self._first, self._clock.moment())
        self._samples = Samples(
            self.sensor.name,
            list(self._readings),
            self.hz,
            self._begin,
            end,
            self.sensor.limits,
            timebase,
            self._updates,
            self._lost,
        )

    def _poll(self) -> None:
        """At the beginning, every 1/hz s, and at the end."""
        turn, last = 0, False
        while True:
            self._read()
            if last:
                return
            turn += 1
            # on a fixed grid, so that the reading itself does not slow the rate; what was missed is left out
            wait = self._begin * 1e-9 + turn / self.hz - time.monotonic()
            if wait < 0:
                turn += int(-wait * self.hz)
            last = self._done.wait(max(wait, 0.0))

    def _read(self) -> None:
        try:
            values = self.sensor.read()
        except Exception as error:  # of any library's kind; the gap that it leaves is marked
            self._lost = (
                f"a reading failed ({type(error).__name__}: {' '.join(str(error).split()) or 'no reason given'})"
            )
            return
        known = {name: float(value) for name, value in values.items() if math.isfinite(value)}
        self._readings.append((time.monotonic_ns(), known))

    @property
    def samples(self) -> Samples:
        """What was read. Raises KosmosArgumentError while the block has not ended."""
        if self._samples is None:
            raise KosmosArgumentError("nothing is sampled yet: this kosmos.power.sample() block has not ended")
        return self._samples

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.samples, name)


def clock_check(seconds: float = 1.0, device: Any = None, sensor: Sensor | None = None) -> tuple[float, float | None]:
    """The clock of all compute units in a kernel that computes nothing, and the sensor's mean of the same time, in MHz;
    None for a sensor that tells no clock. Both are means over the last three quarters of the time.

    Raises KosmosEnvironmentError without a GPU.
    """
    try:
        import torch

        from kosmos.power.device import spin
    except ImportError as missing:
        raise KosmosEnvironmentError(f"checking the clock needs {missing.name}, which is not installed") from None
    if not torch.cuda.is_available():
        raise KosmosEnvironmentError("checking the clock needs a GPU, and torch sees none")
    target = torch.device("cuda", torch.cuda.current_device()) if device is None else torch.device(device)
    units = torch.cuda.get_device_properties(target).multi_processor_count
    tick_ns, piece_s = (10 if torch.version.hip else 1), 0.02
    with torch.cuda.device(target):
        log = torch.zeros(max(4, round(seconds / piece_s)), units, 2, dtype=torch.int64, device=target)
        spin[(units,)](log[0], 1000, num_warps=1)  # compile
        torch.cuda.synchronize()
        with sample(50, target, sensor, updates={}) as samples:
            for piece in log:
                spin[(units,)](piece, round(piece_s * 1e9 / tick_ns), num_warps=1)
            torch.cuda.synchronize()
        ticks, cycles = log[len(log) // 4 :].sum((0, 1)).tolist()
    begin = samples.begin_ns + (samples.end_ns - samples.begin_ns) // 4
    return 1000 * cycles / (ticks * tick_ns), samples.mean("sm_clock", begin)
