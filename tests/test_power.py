"""Power: what sensors say and what is made of it, the clock in a kernel, sustained sweeps, and the model."""

import json
import math
import re
import sys
import threading
import time
import types
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from powered import Sensor, samples_of

import kosmos
from kosmos import power
from kosmos.benchmark import sustained
from kosmos.errors import KosmosArgumentError
from kosmos.power import Samples, clocks, sampler, sensors
from kosmos.power.timebase import Moment, Timebase
from kosmos.trace import Trace

ROOT = Path(__file__).parent.parent


class NVMLError(Exception):
    pass


def nvml_of(**answers):
    """A pynvml; an answer that is an exception is raised, a function is called."""
    module = types.ModuleType("pynvml")
    module.NVML_FI_DEV_POWER_INSTANT, module.NVML_FI_DEV_POWER_AVERAGE = 186, 185
    module.NVML_CLOCK_SM, module.NVML_CLOCK_MEM, module.NVML_TEMPERATURE_GPU = 1, 2, 0
    module.nvmlClocksThrottleReasonSwPowerCap, module.nvmlClocksThrottleReasonHwPowerBrakeSlowdown = 4, 0x80
    module.nvmlClocksThrottleReasonSwThermalSlowdown, module.nvmlClocksThrottleReasonHwThermalSlowdown = 0x20, 0x40
    usual = {
        "nvmlInit": None,
        "nvmlSystemGetDriverVersion": b"580.1",
        "nvmlDeviceGetHandleByIndex": lambda index: f"handle {index}",
        "nvmlDeviceGetName": "NVIDIA H200",
        "nvmlDeviceGetEnforcedPowerLimit": 700_000,
        "nvmlDeviceGetMaxClockInfo": 1980,
        "nvmlDeviceGetTotalEnergyConsumption": 123_456,
        "nvmlDeviceGetClockInfo": lambda handle, which: {1: 1500, 2: 3201}[which],
        "nvmlDeviceGetTemperature": 61,
        "nvmlDeviceGetPowerUsage": 650_000,
        "nvmlDeviceGetFieldValues": lambda handle, fields: [field(0, 701_234), field(0, 690_000)],
        "nvmlDeviceGetCurrentClocksEventReasons": 4,
    }
    for name, answer in (usual | answers).items():
        setattr(module, name, answering(answer))
    return module


def answering(answer):
    def call(*arguments):
        if isinstance(answer, Exception):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    return call


def field(error, milliwatts):
    return SimpleNamespace(nvmlReturn=error, value=SimpleNamespace(uiVal=milliwatts))


class TestNvidia:
    def found(self, monkeypatch, **answers):
        monkeypatch.setitem(sys.modules, "pynvml", nvml_of(**answers))
        return sensors.Nvidia.find()

    def test_everything_is_told_in_its_unit(self, monkeypatch):
        sensor = self.found(monkeypatch)
        assert sensor.name == "NVIDIA H200 through nvidia-ml-py"
        assert sensor.limits == {"driver": "580.1", "power_limit_w": 700.0, "max_clock_mhz": 1980}
        assert sensor.read() == {
            "power": pytest.approx(701.234),
            "power_average": pytest.approx(690.0),
            "energy": pytest.approx(123.456),
            "sm_clock": 1500.0,
            "memory_clock": 3201.0,
            "temperature": 61.0,
            "throttle_power": 1.0,
            "throttle_thermal": 0.0,
        }

    def test_a_driver_without_momentary_power_gives_the_average(self, monkeypatch):
        missing = lambda handle, fields: [field(3, 0), field(3, 0)]  # noqa: E731
        sensor = self.found(monkeypatch, nvmlDeviceGetFieldValues=missing)
        assert sensor.read()["power"] == sensor.read()["power_average"] == pytest.approx(650.0)

    @pytest.mark.parametrize("bits, capped, hot", [(0, 0, 0), (0x80, 1, 0), (0x24, 1, 1), (0x40, 0, 1), (1, 0, 0)])
    def test_an_older_driver_tells_the_reasons_under_another_name(self, monkeypatch, bits, capped, hot):
        absent = NVMLError("Function Not Found")
        answers = {"nvmlDeviceGetCurrentClocksThrottleReasons": bits, "nvmlDeviceGetCurrentClocksEventReasons": absent}
        said = self.found(monkeypatch, **answers).read()
        assert (said["throttle_power"], said["throttle_thermal"]) == (capped, hot)

    def test_what_is_not_supported_is_missing_and_no_zero(self, monkeypatch):
        broken = NVMLError("Not Supported")
        names = "nvmlDeviceGetTotalEnergyConsumption", "nvmlDeviceGetTemperature", "nvmlDeviceGetFieldValues"
        said = self.found(monkeypatch, **dict.fromkeys(names, broken)).read()
        assert {"energy", "temperature"} & {*said} == set() and said["power"] == pytest.approx(650.0)

    def test_a_device_that_is_lost_says_why(self, monkeypatch):
        names = [name for name in dir(nvml_of()) if name.startswith("nvmlDeviceGet") and "Handle" not in name]
        sensor = self.found(monkeypatch, **dict.fromkeys(names, NVMLError("GPU is lost")))
        with pytest.raises(NVMLError, match="GPU is lost"):
            sensor.read()

    def test_no_driver_is_a_sentence(self, monkeypatch):
        sensor = self.found(monkeypatch, nvmlInit=NVMLError("NVML Shared Library Not Found"))
        assert sensor.name == ("no sensor here: NVIDIA's driver library does not serve (NVML Shared Library Not Found)")
        assert sensor.read() == {}

    def test_nothing_is_ever_set(self, monkeypatch):
        """No function of NVML is called that sets, resets or clears anything."""
        called = []

        class Watching(types.ModuleType):
            def __getattribute__(self, name):
                if name.startswith("nvml"):
                    called.append(name)
                return super().__getattribute__(name)

        watching = Watching("pynvml")
        watching.__dict__.update(nvml_of().__dict__)
        monkeypatch.setitem(sys.modules, "pynvml", watching)
        sensors.Nvidia.find().read()
        functions = {name for name in called if callable(watching.__dict__.get(name))}
        assert functions and all(name == "nvmlInit" or "Get" in name for name in functions)


def amdsmi_of(power=None, metrics=None, energy=None, **more):
    module = types.ModuleType("amdsmi")
    module.AmdSmiClkType = SimpleNamespace(GFX=0)
    answers = {
        "amdsmi_init": None,
        "amdsmi_get_processor_handles": ["gpu 0", "gpu 1"],
        "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
        "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.12"},
        "amdsmi_get_clock_info": {"clk": 132, "max_clk": 2100},
        "amdsmi_get_power_info": MI300_POWER if power is None else power,
        "amdsmi_get_gpu_metrics_info": MI300_METRICS if metrics is None else metrics,
        "amdsmi_get_energy_count": MI300_ENERGY if energy is None else energy,
    }
    for name, answer in (answers | more).items():
        setattr(module, name, answering(answer))
    return module


MI300_POWER = {"current_socket_power": 740, "average_socket_power": "N/A", "power_limit": 750}
MI300_METRICS = {
    "current_gfxclks": [1200, 1300, "N/A", 65535],
    "current_gfxclk": 1200,
    "current_uclk": 1300,
    "temperature_hotspot": 70,
    "ppt_residency_acc": 10,
    "socket_thm_residency_acc": "N/A",
    "vr_thm_residency_acc": 5,
    "hbm_thm_residency_acc": 5,
}
MI300_ENERGY = {"energy_accumulator": 1_000_000, "counter_resolution": 15.259, "timestamp": 1}


class TestAmd:
    def found(self, monkeypatch, **answers):
        monkeypatch.setitem(sys.modules, "amdsmi", amdsmi_of(**answers))
        return sensors.Amd.find()

    def test_mi300(self, monkeypatch):
        sensor = self.found(monkeypatch)
        assert sensor.name == "AMD Instinct MI300X through amdsmi"
        assert sensor.limits == {"driver": "6.12", "power_limit_w": 750.0, "max_clock_mhz": 2100.0}
        assert sensor.read() == {
            "power": 740.0,
            "energy": pytest.approx(15.259),
            "memory_clock": 1300.0,
            "temperature": 70.0,
            "sm_clock": 1250.0,
            "sm_clock_0": 1200.0,
            "sm_clock_1": 1300.0,
        }

    def test_mi200_tells_only_the_average(self, monkeypatch):
        power = {"current_socket_power": "N/A", "average_socket_power": 500, "power_limit": 560_000_000}
        sensor = self.found(monkeypatch, power=power, metrics={"current_gfxclk": 1700})
        said = sensor.read()
        assert said["power"] == said["power_average"] == 500.0 and said["sm_clock"] == 1700.0
        assert sensor.limits["power_limit_w"] == pytest.approx(560.0)  # told in µW

    def test_newer_and_older_names(self, monkeypatch):
        said = self.found(monkeypatch, power={"socket_power": 900}, energy={"power": 2e6, "counter_resolution": 15.0})
        said = said.read()
        assert said["power"] == 900.0 and said["energy"] == pytest.approx(30.0)

    def test_throttling_is_seen_from_one_reading_to_the_next(self, monkeypatch):
        times = iter([10, 10, 12])
        metrics = lambda handle: {**MI300_METRICS, "ppt_residency_acc": next(times)}  # noqa: E731
        sensor = self.found(monkeypatch, amdsmi_get_gpu_metrics_info=metrics)
        seen = [sensor.read().get("throttle_power") for _ in range(3)]
        assert seen == [None, 0.0, 1.0]

    def test_a_library_that_is_gone_says_why(self, monkeypatch):
        gone = NVMLError("AMDSMI_STATUS_DRIVER_NOT_LOADED")
        sensor = self.found(monkeypatch)
        for name in ("power_info", "gpu_metrics_info", "energy_count"):
            setattr(sys.modules["amdsmi"], f"amdsmi_get_{name}", answering(gone))
        with pytest.raises(NVMLError, match="DRIVER_NOT_LOADED"):
            sensor.read()

    def test_no_gpu_is_a_sentence(self, monkeypatch):
        sensor = self.found(monkeypatch, amdsmi_get_processor_handles=[])
        assert sensor.name == "no sensor here: amdsmi sees no GPU"


def test_find_says_why_there_is_nothing(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    sensor = power.find()
    assert isinstance(sensor, power.NoSensor)
    assert sensor.name == (
        "no sensor here: nvidia-ml-py is not installed (pip install 'kosmos[nvidia]'); amdsmi, which comes with ROCm, "
        "is not installed"
    )


@pytest.mark.parametrize("nvidia, expected", [(True, "nvidia-ml-py"), (False, "amdsmi")])
def test_find_takes_what_there_is(monkeypatch, nvidia, expected):
    monkeypatch.setitem(sys.modules, "pynvml", nvml_of() if nvidia else None)
    monkeypatch.setitem(sys.modules, "amdsmi", amdsmi_of())
    assert power.find().name.endswith(expected)


@pytest.mark.parametrize("device", ["moon", "cuda:x", "cuda:", "", 5.5, True, -1, "cuda:-1", [], "xpu:0"])
def test_what_is_no_device_is_refused(device, monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml_of())
    sentence = f"^device={re.escape(repr(device))} is unknown; allowed are 'cuda\\[:N\\]' and the index of a GPU$"
    with pytest.raises(KosmosArgumentError, match=sentence):
        power.find(device)
    pytest.importorskip("torch")
    for gpus in (False, True):
        monkeypatch.setattr("torch.cuda.is_available", lambda gpus=gpus: gpus)
        with pytest.raises(KosmosArgumentError, match=sentence):
            sustained.sweep(device=device)


def test_devices_are_told_by_index_by_text_and_as_torchs():
    torch = pytest.importorskip("torch")
    asked = [None, "cuda", torch.device("cuda"), 2, "cuda:2", torch.device("cuda:2")]
    assert [sensors.gpu_index(device) for device in asked] == [None, None, None, 2, 2, 2]
    for cpu in ("cpu", torch.device("cpu")):
        assert power.find(cpu).name == "no sensor here: device='cpu' has none"


# sampling


def steady(count):
    return {"power": 500.0 + 0.001 * count, "energy": 10.0 * count, "sm_clock": 1500.0}


def sample_for(seconds, answer=steady, hz=50, updates=None):
    with power.sample(hz, sensor=Sensor(answer), updates={} if updates is None else updates) as samples:
        time.sleep(seconds)
    return samples.samples


@pytest.mark.speed
def test_readings_come_at_the_rate_that_was_asked_for():
    samples = sample_for(0.5, hz=40)
    assert 15 <= len(samples.readings) <= 23
    assert samples.gaps == [] and samples.lost == ""
    assert samples.names == ["power", "energy", "sm_clock"]
    assert samples.table.schema == kosmos.trace.COUNTERS and len(samples.table) == 3 * len(samples.readings)
    assert set(samples.table["unit"].to_pylist()) == {"W", "J", "MHz"}


def test_the_report_tells_rate_values_and_updates():
    report = sample_for(0.2, updates={"power": 100.0}).report()
    assert "a sensor of the tests" in report and "a new value every 100 ms" in report
    assert "no device clock was there" in report and "1,500.0 MHz" in report
    often = {line.partition(" ")[0]: line.rpartition(", ")[2] for line in report.splitlines() if "to" in line}
    assert often["energy"] == "too few changes to say how often" and often["sm_clock"] == "not seen to change"


def test_the_thread_ends_when_the_block_raises():
    sensor = Sensor(steady)
    with pytest.raises(ZeroDivisionError), power.sample(100, sensor=sensor, updates={}):
        raise ZeroDivisionError
    count = sensor.count
    time.sleep(0.05)
    assert sensor.count == count
    assert not [thread for thread in threading.enumerate() if thread.name == "kosmos.power"]


@pytest.mark.speed
def test_what_was_read_before_an_exception_is_kept():
    with pytest.raises(ZeroDivisionError), power.sample(100, sensor=Sensor(steady), updates={}) as samples:
        time.sleep(0.1)
        raise ZeroDivisionError
    assert len(samples.readings) > 3


@pytest.mark.speed
def test_a_sensor_that_dies_leaves_a_gap():
    answer = lambda count: steady(count) if count < 20 else NVMLError("GPU is lost")  # noqa: E731
    samples = sample_for(1.0, answer)
    gaps = {gap.name: gap for gap in samples.gaps}
    assert {*gaps} == {"power", "energy", "sm_clock"}
    gap = gaps["power"]
    assert gap.why == "no reading" and gap.end_ns == samples.end_ns
    assert gap.begin_ns - samples.begin_ns == pytest.approx(0.4e9, abs=0.06e9)
    assert samples.lost == "a reading failed (NVMLError: GPU is lost)"
    assert "LOST" in samples.report() and "GAP" in samples.report()
    assert samples.mean("power") == pytest.approx(500.0, abs=0.1)
    assert samples.known("power") == pytest.approx(0.4, abs=0.06)
    assert np.nanmin(samples.series["power"].value) > 0


@pytest.mark.speed
def test_a_sensor_that_comes_back_ends_the_gap():
    answer = lambda count: NVMLError("busy") if 10 <= count < 30 else steady(count)  # noqa: E731
    samples = sample_for(1.0, answer)
    (gap,) = [gap for gap in samples.gaps if gap.name == "sm_clock"]
    assert gap.end_ns - gap.begin_ns == pytest.approx(0.4e9, abs=0.08e9)
    assert samples.counted_power_w() is None  # what went by in the gap is not known


def test_a_sensor_that_never_answers_leaves_nothing():
    samples = sample_for(0.1, lambda count: NVMLError("no permission"))
    assert samples.readings == [] and samples.names == [] and samples.energy_j is None
    assert len(samples.table) == 0 and "LOST" in samples.report()


@pytest.mark.speed
@pytest.mark.parametrize("odd", [math.nan, math.inf])
def test_values_that_are_no_numbers_are_missing(odd):
    samples = sample_for(0.3, lambda count: {**steady(count), "power": odd if 5 <= count < 10 else 400.0})
    (gap,) = [gap for gap in samples.gaps if gap.name == "power"]
    assert gap.why == "not told" and samples.mean("power") == 400.0


def readings_of(values, hz=50):
    return [(int(at / hz * 1e9), value) for at, value in enumerate(values)]


def test_a_frozen_energy_counter_is_a_gap_and_a_resting_clock_is_none():
    # 2 s that climb, 3 s that stand still, 1 s that climbs
    joules = [*range(100), *[100] * 150, *range(101, 151)]
    readings = readings_of([{"energy": float(joule), "sm_clock": 1980.0} for joule in joules])
    samples = Samples("s", readings, 50, 0, int(6e9))
    (gap,) = samples.gaps
    assert (gap.name, gap.why) == ("energy", "frozen")
    assert gap.begin_ns == pytest.approx(2.02e9, abs=0.03e9) and gap.end_ns == pytest.approx(5.0e9, abs=0.03e9)
    assert samples.counted_power_w() is None
    assert samples.counted_power_w(0, int(1.9e9))[0] == pytest.approx(50.0)


def test_frozen_power_is_a_gap_after_three_seconds():
    watts = [500.0 + 0.001 * at for at in range(100)] + [480.0] * 250
    samples = Samples("s", readings_of([{"power": one} for one in watts]), 50, 0, int(7e9))
    (gap,) = samples.gaps
    assert gap.why == "frozen" and gap.end_ns == int(7e9)
    assert samples.known("power") == pytest.approx(2 / 7, abs=0.02)
    resting = Samples("s", readings_of([{"power": one} for one in watts[:240]]), 50, 0, int(4.8e9))
    assert resting.gaps == []


def test_a_value_that_is_told_later_only_begins_with_a_gap():
    said = [{"power": 1.0 + at} | ({"temperature": 50.0} if at >= 25 else {}) for at in range(50)]
    samples = Samples("s", readings_of(said), 50, 0, int(1e9))
    (gap,) = samples.gaps
    assert gap == power.Gap("temperature", 0, int(0.5e9), "not told")


def test_means_are_over_time():
    """A step curve: each value holds until the next reading."""
    readings = [(0, {"power": 100.0}), (int(1e9), {"power": 200.0}), (int(1.5e9), {"power": 400.0})]
    samples = Samples("s", readings, 1, 0, int(2e9))
    assert samples.mean("power") == pytest.approx((100 * 1 + 200 * 0.5 + 400 * 0.5) / 2)
    assert samples.mean("power", int(0.5e9), int(1.25e9)) == pytest.approx((100 * 0.5 + 200 * 0.25) / 0.75)
    assert samples.integral("power") == pytest.approx(400.0)
    assert samples.mean("power", int(5e9), int(6e9)) is None
    assert samples.mean("energy") is None


@pytest.mark.parametrize("change_s", [0.02, 0.1, 0.25])
def test_power_by_the_energy_counter_allows_for_its_steps(change_s):
    """A stepped counter, read at its changes: exact to one reading at either end."""
    samples = samples_of({"power": 600.0}, seconds=2.9, change_s=change_s)
    watts, off = samples.counted_power_w()
    assert watts == pytest.approx(600.0, abs=0.5) and off < 0.02 * 600
    assert samples.energy_j == pytest.approx(1740.0, rel=0.001)
    assert samples.mean("power") == pytest.approx(600.0, abs=0.1)


def test_a_counter_that_starts_anew_says_nothing():
    joules = [100.0 + at for at in range(25)] + [1.0 + at for at in range(25)]
    samples = Samples("s", readings_of([{"energy": joule} for joule in joules]), 50, 0, int(1e9))
    assert samples.counted_power_w() is None and samples.energy_j is None
    assert samples.counted_power_w(int(0.5e9), int(1e9))[0] == pytest.approx(50.0)


def test_without_a_counter_energy_is_the_integral():
    readings = readings_of([{"power": 100.0 + at} for at in range(50)])
    samples = Samples("s", readings, 50, 0, int(1e9))
    assert samples.energy_j == pytest.approx(np.mean(100.0 + np.arange(50)), rel=1e-6)
    assert "by the integral of power" in samples.report()


def test_samples_come_back_from_a_file():
    first, last = Moment(5, 1000, 10), Moment(2_000_000_005, 2_000_001_100, 12)
    samples = samples_of({"power": 500.0, "sm_clock": 1500.0})
    base = Timebase("globaltimer", first, last)
    samples = Samples("s", samples.readings, 50, 0, int(2e9), {"a": 1}, base, {}, "lost")
    again = Samples.from_json(json.loads(json.dumps(samples.as_json())))
    # to a thousandth, which is what sensors tell
    assert again.readings == [(at, pytest.approx(one, abs=6e-4)) for at, one in samples.readings]
    assert (again.timebase, again.limits, again.lost) == (samples.timebase, samples.limits, samples.lost)


@pytest.mark.speed
def test_probing_tells_how_often_a_value_changes():
    start = time.monotonic()

    def answer(_):
        since = time.monotonic() - start
        return {"energy": float(int(since / 0.05)), "sm_clock": 1980.0}

    found = power.probe(Sensor(answer), 0.6)
    assert found["energy"] == pytest.approx(50, rel=0.3)
    assert found["sm_clock"] is None


def test_a_sensor_is_probed_once_a_process(monkeypatch):
    monkeypatch.setattr(sampler, "_probed", {})
    monkeypatch.setattr(sampler, "PROBE_S", 0.05)
    sensor = Sensor(steady)
    for _ in range(2):
        with power.sample(10, sensor=sensor):
            pass
    assert list(sampler._probed) == [sensor.name]


@pytest.mark.parametrize("hz", [0, -1, 1001, "20", True, math.nan])
def test_rates_that_are_not_allowed(hz):
    with pytest.raises(KosmosArgumentError, match="must be above 0 and at most 1000"):
        power.sample(hz)


def test_asking_before_the_end_is_refused():
    with power.sample(50, sensor=Sensor(steady), updates={}) as samples:
        with pytest.raises(KosmosArgumentError, match="has not ended"):
            samples.energy_j  # noqa: B018
    with pytest.raises(AttributeError):
        samples.no_such_thing  # noqa: B018


def test_where_there_is_no_sensor_the_block_runs_as_ever():
    with power.sample(sensor=power.NoSensor("nothing is plugged in")) as samples:
        done = 1 + 1
    assert done == 2 and samples.energy_j is None and samples.names == []
    assert "no sensor here: nothing is plugged in" in samples.report()


@pytest.mark.speed
def test_a_recording_is_played_back_and_then_over():
    samples = samples_of({"power": 500.0, "sm_clock": 1500.0}, seconds=0.3)
    sensor = power.Recorded(samples)
    assert sensor.name == "a recording of made up" and sensor.read()["sm_clock"] == 1500.0
    replayed = {}
    with power.sample(50, sensor=power.Recorded(samples), updates={}) as again:
        time.sleep(0.5)
    replayed = again.samples
    assert replayed.mean("sm_clock") == 1500.0
    assert {gap.why for gap in replayed.gaps} == {"no reading"} and "the recording is over" in replayed.lost


# the device's clock


def test_times_on_the_devices_clock_are_exact_integers():
    big = 1_800_000_000_000_000_123  # where a float resolves 256 ns
    base = Timebase("globaltimer", Moment(1000, big, 7), Moment(2000, big + 1000, 9))
    assert base.device_ns(1500) == big + 500 and base.error_ns == 9 and base.drift_ppm is None
    assert base.device_ns(np.array([1000, 3001])).tolist() == [big, big + 2001]


def test_drift_is_measured_and_allowed_for():
    big, second = 1_800_000_000_000_000_123, 1_000_000_000
    base = Timebase("globaltimer", Moment(0, big, 7), Moment(10 * second, big + 10 * second + 50_000, 7))
    assert base.drift_ppm == pytest.approx(5.0)
    assert base.device_ns(np.array([4 * second])).tolist() == [big + 4 * second + 20_000]
    assert base.device_ns(4 * second) == big + 4 * second + 20_000


def gpu_trace(**meta):
    spans = {"rank": [0], "workgroup": [0], "role": ["builder"], "item": [0]}
    times = {"claim_ns": [0], "start_ns": [0], "end_ns": [100_000_000], "cycles": [150_000_000], "unit": [0]}
    known = {"clock": {"source": "globaltimer", "tick_ns": 32}, "epoch": 7_000_000_000}
    return Trace({**spans, **times}, meta=known | meta)


def test_samples_become_counters_of_a_trace():
    readings = [(int(at * 0.02e9), {"power": 500.0 + at}) for at in range(50)]
    # host 0.5 s is the epoch of the trace
    moments = Moment(0, 6_500_000_000, 5), Moment(1_000_000_000, 7_500_000_000, 5)
    samples = Samples("s", readings, 50, 0, int(1e9), {}, Timebase("globaltimer", *moments), {"power": 25.0})
    trace = samples.on(gpu_trace())
    rows = trace.counters.to_pylist()
    # the one that holds at the beginning, all inside, and the one after
    assert [row["time_ns"] for row in rows] == list(range(0, 121_000_000, 20_000_000))
    assert rows[0]["value"] == 525.0 and rows[0]["unit"] == "W" and rows[0]["name"] == "power"
    assert trace.meta["power"]["updates_ms"] == {"power": 25.0}
    assert Timebase.from_json(trace.meta["power"]["timebase"]).error_ns == 5


def test_a_gap_in_a_trace_is_a_nan():
    readings = [(int(at * 0.02e9), {"power": 1.0 + at} if at != 26 else {}) for at in range(50)]
    moments = Moment(0, 6_500_000_000, 5), Moment(1_000_000_000, 7_500_000_000, 5)
    samples = Samples("s", readings, 50, 0, int(1e9), {}, Timebase("globaltimer", *moments))
    trace = samples.on(gpu_trace())
    values = dict(zip(trace.counters["time_ns"].to_pylist(), trace.counters["value"].to_pylist()))
    assert math.isnan(values[20_000_000]) and values[40_000_000] == 28.0
    assert trace.equals(trace)


@pytest.mark.parametrize("meta", [{"clock": {"source": "virtual", "tick_ns": 1}}, {"epoch": None}, {"clock": None}])
def test_samples_of_another_clock_are_refused(meta):
    base = Timebase("globaltimer", Moment(0, 0, 1), Moment(1, 1, 1))
    samples = Samples("s", [], 50, 0, 1, {}, base)
    with pytest.raises(KosmosArgumentError, match="only a GPU's trace"):
        samples.on(gpu_trace(**meta))
    with pytest.raises(KosmosArgumentError, match="only a GPU's trace"):
        Samples("s", [], 50, 0, 1).on(gpu_trace())


# the clock in the kernel


def random_trace(seed=0, lanes=5, items=30):
    draw = np.random.default_rng(seed)
    rows = []
    for lane in range(lanes):
        now = int(draw.integers(0, 5000))
        for item in range(items):
            start = now + int(draw.integers(0, 800))
            end = start + int(draw.integers(200, 9000))
            cycles = int((end - start) * draw.uniform(1.0, 2.0))
            rows.append((lane // 3, lane % 3, "builder", item, now, start, end, cycles, 0))
            now = end
    return Trace(dict(zip(kosmos.trace.SPANS.names, map(list, zip(*rows)))), meta={"ranks": 2, "workgroups": 3})


def test_the_clock_map_against_plain_loops():
    trace = random_trace()
    edges, mhz = clocks.clock_map(trace, 40)
    spans = trace.spans.to_pylist()
    for rank in range(2):
        for workgroup in range(3):
            for cell in range(40):
                time_ns = cycles = 0.0
                for span in spans:
                    if (span["rank"], span["workgroup"]) != (rank, workgroup):
                        continue
                    lasts = span["end_ns"] - span["start_ns"]
                    inside = min(span["end_ns"], edges[cell + 1]) - max(span["start_ns"], edges[cell])
                    if lasts >= clocks.TICKS and inside > 0:
                        time_ns, cycles = time_ns + inside, cycles + inside * 1000 * span["cycles"] / lasts
                got = mhz[rank, workgroup, cell]
                assert math.isnan(got) if not time_ns else got == pytest.approx(cycles / time_ns)


def test_the_mean_clock_is_all_cycles_by_all_time():
    trace = random_trace(3)
    spans = trace.spans
    total = sum(spans["end_ns"].to_pylist()) - sum(spans["start_ns"].to_pylist())
    assert clocks.mean_mhz(trace) == pytest.approx(1000 * sum(spans["cycles"].to_pylist()) / total)


def test_the_clock_becomes_a_counter():
    trace = random_trace()
    with_clock = power.clock_counters(trace, 10, per_workgroup=True)
    names = set(with_clock.counters["name"].to_pylist())
    assert names == {"clock", "clock 0", "clock 1", "clock 2"}
    assert set(with_clock.counters["unit"].to_pylist()) == {"MHz"}
    edges, mhz = clocks.clock_map(trace, 10)
    known = ~np.isnan(mhz[1])
    expected = [mhz[1, known[:, at], at].mean() if known[:, at].any() else math.nan for at in range(10)]
    of_rank = [row for row in with_clock.counters.to_pylist() if (row["name"], row["rank"]) == ("clock", 1)]
    assert [row["value"] for row in of_rank[:-1]] == pytest.approx(expected, nan_ok=True)
    assert math.isnan(of_rank[-1]["value"]) and of_rank[-1]["time_ns"] == round(edges[-1])
    assert trace.counters.num_rows == 0 and with_clock.spans is trace.spans


def test_records_shorter_than_some_ticks_say_nothing():
    spans = {"rank": [0, 0], "workgroup": [0, 0], "role": ["builder"] * 2, "item": [0, 1]}
    times = {"claim_ns": [0, 1000], "start_ns": [0, 1000], "end_ns": [1000, 101_000], "unit": [0, 0]}
    trace = Trace({**spans, **times, "cycles": [999_999, 150_000]}, meta={"clock": {"source": "x", "tick_ns": 32}})
    assert clocks.mean_mhz(trace) == pytest.approx(1500.0)


@pytest.mark.parametrize("tick_ns", [None, 10**8])
def test_a_trace_without_clocks_is_refused(tick_ns):
    trace = Trace(None) if tick_ns is None else gpu_trace(clock={"source": "x", "tick_ns": tick_ns})
    with pytest.raises(KosmosArgumentError, match="says nothing about clocks"):
        power.clock_counters(trace)


def test_the_h200_ran_below_its_highest_clock():
    """Plausible numbers from real records: an H200's clock, 345 to 1980 MHz, all workgroups alike."""
    trace = Trace.load(ROOT / "traces/h200/all_gather_matmul_one_way6.parquet")
    assert 1400 < clocks.mean_mhz(trace) < 1980
    _, mhz = clocks.clock_map(trace, 1)
    assert np.nanmax(mhz) / np.nanmin(mhz) < 1.1
