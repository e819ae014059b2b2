"""What tells power, energy and clocks of a GPU: NVIDIA's and AMD's libraries, a recording, or nothing.

Every sensor is read the same way: `read()` gives what it knows at this moment as {quantity: value}, in the units of
QUANTITIES. What it does not know ("N/A", an error, a driver that lacks it) is not in there: it is never a zero.
Everything is read only and needs no root.
"""

import bisect
import math
import re
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError


@dataclass(frozen=True)
class Quantity:
    """A quantity that a sensor may tell. still_s: for how many seconds a working sensor may show one value, None for
    ever: energy always climbs, power is never quiet to a thousandth, a clock may rest."""

    unit: str
    what: str
    still_s: float | None = None


QUANTITIES = {
    "power": Quantity("W", "of the board or socket, as momentary as it is told", 3.0),
    "power_average": Quantity("W", "the same, smoothed by the driver"),
    "energy": Quantity("J", "since the driver was loaded", 1.0),
    "sm_clock": Quantity("MHz", "of the compute units, the mean of the dies"),
    "memory_clock": Quantity("MHz", "of the device memory"),
    "temperature": Quantity("°C", "of the GPU; AMD: of its hottest spot"),
    "throttle_power": Quantity("", "1 while the power cap holds the clock down"),
    "throttle_thermal": Quantity("", "1 while the temperature holds the clock down"),
}
"""By name. A GPU of several dies has "sm_clock_0", "sm_clock_1", ... besides."""


def unit_of(name: str) -> str:
    """The unit of a quantity, "" for one without."""
    return QUANTITIES["sm_clock" if name.startswith("sm_clock") else name].unit


class Sensor(Protocol):
    """name: what is read, and through what. limits: what does not change, {"power_limit_w": 700.0, ...}."""

    name: str
    limits: Mapping[str, Any]

    def read(self) -> dict[str, float]:
        """What is known now. Raises whatever its library raises if that is gone as a whole."""


class NoSensor:
    """Where nothing can be read. name: why, in a sentence."""

    def __init__(self, why: str) -> None:
        self.name = f"no sensor here: {why}"
        self.limits: dict[str, Any] = {}

    def read(self) -> dict[str, float]:
        """Nothing."""
        return {}


class Nvidia:
    """An NVIDIA GPU through nvidia-ml-py (NVML)."""

    def __init__(self, nvml: Any, handle: Any) -> None:
        self._nvml, self._handle = nvml, handle
        model = _text(_ask(lambda: nvml.nvmlDeviceGetName(handle)))
        self.name = f"{model or 'NVIDIA GPU'} through nvidia-ml-py"
        self.limits = {
            "driver": _text(_ask(nvml.nvmlSystemGetDriverVersion)),
            "power_limit_w": _scaled(_ask(lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle)), 1e-3),
            "max_clock_mhz": _ask(lambda: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
        }
        reasons = "nvmlClocksEventReason", "nvmlClocksThrottleReason"  # the old name, until driver 535

        def bits(*names: str) -> int:
            found = [getattr(nvml, prefix + name, 0) for name in names for prefix in reasons]
            return sum({*found})

        self._power_bits = bits("SwPowerCap", "HwPowerBrakeSlowdown")
        self._thermal_bits = bits("SwThermalSlowdown", "HwThermalSlowdown")

    @classmethod
    def find(cls, device: int | None = None) -> "Nvidia | NoSensor":
        """The GPU with torch's index `device`, by default torch's current one, or NVML's first without torch."""
        try:
            import pynvml
        except ImportError:
            return NoSensor("nvidia-ml-py is not installed (pip install 'kosmos[nvidia]')")
        try:
            pynvml.nvmlInit()
            uuid = _torch_property(device, "uuid")
            if uuid is None:
                return cls(pynvml, pynvml.nvmlDeviceGetHandleByIndex(device or 0))
            uuid = str(uuid)
            return cls(pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"))
        except Exception as error:  # NVML's own kind, or a driver that lacks a name
            return NoSensor(f"NVIDIA's driver library does not serve ({error})")

    def read(self) -> dict[str, float]:
        """Power, energy, clocks, temperature and what holds the clock down, as far as the driver tells them."""
        nvml, handle = self._nvml, self._handle
        found = {
            "energy": _scaled(_ask(lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle)), 1e-3),
            "sm_clock": _number(_ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))),
            "memory_clock": _number(_ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))),
            "temperature": _number(_ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))),
            **self._power(),
        }
        reasons = self._reasons()
        if reasons is not None:
            found["throttle_power"] = float(bool(reasons & self._power_bits))
            found["throttle_thermal"] = float(bool(reasons & self._thermal_bits))
        known = {name: value for name, value in found.items() if value is not None}
        if not known:
            # each of them failed: let the library say why
            nvml.nvmlDeviceGetPowerUsage(handle)
        return known

    def _power(self) -> dict[str, float | None]:
        """Momentary power is a field of newer drivers (186); what NVML calls power usage is an average on Hopper."""
        nvml, handle = self._nvml, self._handle
        fields = [nvml.NVML_FI_DEV_POWER_INSTANT, nvml.NVML_FI_DEV_POWER_AVERAGE]
        told = _ask(lambda: nvml.nvmlDeviceGetFieldValues(handle, fields)) or ()
        known = {field: one.value.uiVal * 1e-3 for field, one in zip(fields, told) if not one.nvmlReturn}
        instant, average = (known.get(field) for field in fields)
        if average is None:
            average = _scaled(_ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle)), 1e-3)
        return {"power": average if instant is None else instant, "power_average": average}

    def _reasons(self) -> int | None:
        """What holds the clock down, as bits; under an older name with older drivers."""
        for name in ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"):
            reasons = _ask(lambda name=name: getattr(self._nvml, name)(self._handle))
            if reasons is not None:
                return reasons
        return None


class Amd:
    """An AMD GPU through amdsmi, which comes with ROCm."""

    _THROTTLES = {
        "throttle_power": ("ppt_residency_acc",),
        "throttle_thermal": ("socket_thm_residency_acc", "vr_thm_residency_acc", "hbm_thm_residency_acc"),
    }

    def __init__(self, smi: Any, handle: Any) -> None:
        self._smi, self._handle = smi, handle
        asic = _ask(lambda: smi.amdsmi_get_gpu_asic_info(handle)) or {}
        self.name = f"{asic.get('market_name') or 'AMD GPU'} through amdsmi"
        driver = _ask(lambda: smi.amdsmi_get_gpu_driver_info(handle)) or {}
        power = _ask(lambda: smi.amdsmi_get_power_info(handle)) or {}
        clock = _ask(lambda: smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)) or {}
        self.limits = {
            "driver": driver.get("driver_version"),
            "power_limit_w": self._limit(_number(power.get("power_limit"))),
            "max_clock_mhz": _number(clock.get("max_clk")),
        }
        self._before: dict[str, float] = {}

    @staticmethod
    def _limit(value: float | None) -> float | None:
        """Told in W by some releases, in µW by others."""
        return None if value is None else value * 1e-6 if value > 1e5 else value

    @classmethod
    def find(cls, device: int | None = None) -> "Amd | NoSensor":
        """The GPU with torch's index `device`, by default torch's current one, or the first without torch."""
        try:
            import amdsmi
        except Exception:  # it fails to load in other ways than ImportError where its system library is missing
            return NoSensor("amdsmi, which comes with ROCm, is not installed")
        try:
            amdsmi.amdsmi_init()
            handles = amdsmi.amdsmi_get_processor_handles()
            if not handles:
                return NoSensor("amdsmi sees no GPU")
            bus = _torch_property(device, "pci_bus_id")
            if bus is not None:
                where = f"{_torch_property(device, 'pci_domain_id') or 0:04x}:{bus:02x}:"
                for handle in handles:
                    if amdsmi.amdsmi_get_gpu_device_bdf(handle).lower().startswith(where):
                        return cls(amdsmi, handle)
            return cls(amdsmi, handles[device or 0])
        except Exception as error:  # amdsmi's own kind
            return NoSensor(f"amdsmi does not serve ({error})")

    def read(self) -> dict[str, float]:
        """Power, energy, clocks (every die's and their mean), temperature and throttling, as far as they are told."""
        smi, handle = self._smi, self._handle
        power = _ask(lambda: smi.amdsmi_get_power_info(handle)) or {}
        metrics = _ask(lambda: smi.amdsmi_get_gpu_metrics_info(handle)) or {}
        # MI300 tells the current power and no average, MI200 the reverse; releases since 7.0 have one name for both
        current, average = _number(power.get("current_socket_power")), _number(power.get("average_socket_power"))
        if current is None:
            current = _number(power.get("socket_power"))
        found = {
            "power": average if current is None else current,
            "power_average": average,
            "energy": self._energy(),
            "memory_clock": _number(metrics.get("current_uclk")),
            "temperature": _number(metrics.get("temperature_hotspot")),
            **self._clocks(metrics),
            **self._throttles(metrics),
        }
        known = {name: value for name, value in found.items() if value is not None}
        if not known:
            smi.amdsmi_get_power_info(handle)
        return known

    def _energy(self) -> float | None:
        told = _ask(lambda: self._smi.amdsmi_get_energy_count(self._handle)) or {}
        ticks = _number(told.get("energy_accumulator", told.get("power")))  # the name of older releases
        microjoules = _number(told.get("counter_resolution"))
        return None if ticks is None or microjoules is None else ticks * microjoules * 1e-6

    @staticmethod
    def _clocks(metrics: Mapping[str, Any]) -> dict[str, float | None]:
        told = metrics.get("current_gfxclks")
        dies = [_number(value) for value in told] if isinstance(told, list | tuple) else []
        known = {f"sm_clock_{die}": value for die, value in enumerate(dies) if value}
        if not known:
            return {"sm_clock": _number(metrics.get("current_gfxclk"))}
        return {"sm_clock": sum(known.values()) / len(known), **(known if len(known) > 1 else {})}

    def _throttles(self, metrics: Mapping[str, Any]) -> dict[str, float]:
        """1 if one of the accumulated times has grown since the last reading."""
        found = {}
        for name, sources in self._THROTTLES.items():
            times = [_number(metrics.get(source)) for source in sources]
            if all(time is None for time in times):
                continue
            total = sum(time for time in times if time is not None)
            before = self._before.get(name)
            self._before[name] = total
            if before is not None:
                found[name] = float(total > before)
        return found


class Recorded:
    """Samples that were recorded, played back at the pace at which they were: what a sensor said `begin` seconds into
    them when this object was made, and so on; when they are over it is gone, as a sensor that dies is."""

    def __init__(self, samples: Any, begin: float = 0.0) -> None:
        self.name = f"a recording of {samples.sensor}"
        self.limits = dict(samples.limits)
        self._times = [(time - samples.begin_ns) * 1e-9 for time, _ in samples.readings]
        self._values = [dict(values) for _, values in samples.readings]
        self._end = samples.seconds
        self._origin = time.monotonic() - begin

    def read(self) -> dict[str, float]:
        """The last reading until now."""
        since = time.monotonic() - self._origin
        if since > self._end:
            raise KosmosEnvironmentError(f"the recording is over after {self._end:.2f} s")
        at = bisect.bisect_right(self._times, since) - 1
        return dict(self._values[at]) if at >= 0 else {}


def find(device: Any = None) -> Sensor:
    """The sensor of a GPU: of torch's `device` (an index, "cuda:1", a torch.device), by default of its current one.

    Raises KosmosArgumentError for what is no device.
    """
    if is_cpu(device):
        return NoSensor(f"device={str(device)!r} has none")
    index = gpu_index(device)
    nvidia = Nvidia.find(index)
    if not isinstance(nvidia, NoSensor):
        return nvidia
    amd = Amd.find(index)
    if not isinstance(amd, NoSensor):
        return amd
    reasons = [sensor.name.partition(": ")[2] for sensor in (nvidia, amd)]
    return NoSensor("; ".join(reasons))


def is_cpu(device: Any) -> bool:
    """Whether a device is torch's "cpu"."""
    return str(device).partition(":")[0] == "cpu"


def gpu_index(device: Any) -> int | None:
    """torch's index of a GPU (an index, "cuda:1", a torch.device), None for the current one. It needs no torch.

    Raises KosmosArgumentError for what is none.
    """
    if device is None:
        return None
    if isinstance(device, int) and not isinstance(device, bool) and device >= 0:
        return device
    is_torchs = hasattr(device, "type") and hasattr(device, "index")
    told = re.fullmatch(r"cuda(?::([0-9]+))?", str(device)) if isinstance(device, str) or is_torchs else None
    if told is None:
        raise KosmosArgumentError(f"device={device!r} is unknown; allowed are 'cuda[:N]' and the index of a GPU")
    return None if told[1] is None else int(told[1])


def _torch_property(device: int | None, name: str) -> Any:
    """A property of torch's GPU, None if torch is not loaded or sees none: it is not loaded for this."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    chosen = torch.cuda.current_device() if device is None else device
    return getattr(torch.cuda.get_device_properties(chosen), name, None)


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:  # a single value that a machine does not tell is no reason to do without the others
        return None


def _number(value: Any) -> float | None:
    """A number; None for "N/A", for NaN, and for the all-ones with which AMD's structures say that they lack one."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return None if value in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF) else float(value)


def _scaled(value: Any, by: float) -> float | None:
    number = _number(value)
    return None if number is None else number * by


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
