"""Which moment of the device's timer is which moment of the host's clock."""

import time
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Moment:
    """One moment on both clocks, in ns; the device's is off by at most error_ns."""

    host_ns: int
    device_ns: int
    error_ns: int


@dataclass(frozen=True)
class Timebase:
    """The device's time as a function of the host's (time.monotonic_ns), a line through two moments.

    source: of the device's times: "globaltimer", "s_memrealtime", or "host" where there is no device's clock: times
    are the host's then. error_ns: how far off a time between the two moments may be.
    """

    source: str = "host"
    first: Moment | None = None
    last: Moment | None = None

    @property
    def error_ns(self) -> int | None:
        """The larger error of the two moments; None where times are the host's."""
        return max(self.first.error_ns, self.last.error_ns) if self.first and self.last else None

    @property
    def drift_ppm(self) -> float | None:
        """How much faster the device's clock runs, in millionths; None for a line of less than a second."""
        if not self.first or not self.last or self.last.host_ns - self.first.host_ns < 1_000_000_000:
            return None
        host, device = self.last.host_ns - self.first.host_ns, self.last.device_ns - self.first.device_ns
        return 1e6 * (device - host) / host

    def device_ns(self, host_ns: Any) -> Any:
        """The device's time at a host's time, int or int64 array."""
        if not self.first or not self.last:
            return host_ns
        slope = (self.drift_ppm or 0.0) * 1e-6
        since = host_ns - self.first.host_ns
        correction = (since * slope).round() if hasattr(since, "round") and hasattr(since, "astype") else since * slope
        correction = correction.astype("int64") if hasattr(correction, "astype") else round(correction)
        return since + self.first.device_ns + correction

    def as_json(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> "Timebase":
        """From a file."""
        moments = (content[key] and Moment(**content[key]) for key in ("first", "last"))
        return cls(content["source"], *moments)


TRIES = 40
"""Brackets of which the narrowest counts."""


class DeviceClock:
    """Reads the timer of a torch GPU device by a kernel that does nothing else, on a stream of its own."""

    def __init__(self, device: Any) -> None:
        import torch

        from kosmos.power.device import read_timer

        self._torch, self._device, self._kernel = torch, device, read_timer
        self._tick_ns = 10 if torch.version.hip else 1
        self.source = "s_memrealtime" if torch.version.hip else "globaltimer"
        with torch.cuda.device(device):
            self._stream = torch.cuda.Stream()
            self._out = torch.zeros(1, dtype=torch.int64, device=device)
            self._bracket()  # compile

    def _bracket(self) -> Moment:
        torch = self._torch
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            before = time.monotonic_ns()
            self._kernel[(1,)](self._out, num_warps=1)
            self._stream.synchronize()
            after = time.monotonic_ns()
            ticks = int(self._out.item())
        return Moment((before + after) // 2, ticks * self._tick_ns, (after - before) // 2 + self._tick_ns)

    def moment(self) -> Moment:
        """Now, on both clocks: the host's time is taken before and after the device's, the narrowest of some tries."""
        return min((self._bracket() for _ in range(TRIES)), key=lambda moment: moment.error_ns)


def device_clock(device: Any = None) -> DeviceClock | None:
    """The clock of torch's GPU `device`, by default the current one; None if torch is not loaded or has none."""
    import sys

    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    try:
        return DeviceClock(torch.device("cuda", torch.cuda.current_device()) if device is None else device)
    except Exception:  # no Triton, a GPU that it does not know: times are the host's then
        return None
