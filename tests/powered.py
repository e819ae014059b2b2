"""What the tests of power share: sensors that behave as they are told, and sweeps of a GPU that follows a known law."""

from dataclasses import replace

import numpy as np

from kosmos.benchmark.sustained.cases import plan
from kosmos.benchmark.sustained.results import Copy, Results, Run
from kosmos.power import Samples
from kosmos.power.model import PowerModel, busy

LAW = PowerModel(cap_w=692.0, max_mhz=1980.0, idle_w=140.0, unit_w=6.6, exponent=4.0, on_w=2.2)
RATE = 3.48e-3
TILES = 2048


class Sensor:
    """Answers from a function of the number of the reading; an exception among the answers is raised."""

    name = "a sensor of the tests"
    limits = {"power_limit_w": 700.0}

    def __init__(self, answer):
        self.answer, self.count = answer, 0

    def read(self):
        said = self.answer(self.count)
        self.count += 1
        if isinstance(said, Exception):
            raise said
        return said


def samples_of(values, hz=50.0, seconds=2.0, begin=0, change_s=0.02, noise=0.0, seed=0):
    """Samples of constants (but for noise), and the energy that goes with "power"."""
    draw = np.random.default_rng(seed)
    readings = []
    for at in range(int(seconds * hz) + 1):
        time = at / hz
        held = change_s * int(time / change_s + 1e-9)
        now = {name: value * (1 + noise * float(draw.normal())) for name, value in values.items()}
        # no sensor shows the same milliwatt twice
        now["power"] = values["power"] + 0.05 * np.sin(37 * held)
        now["energy"] = 1000 + values["power"] * held
        readings.append((begin + int(time * 1e9), now))
    updates = {"power": 1e3 * change_s, "energy": 1e3 * change_s}
    return Samples("made up", readings, hz, begin, begin + int(seconds * 1e9), {}, None, updates)


def sweep_of(law=LAW, rate=RATE, over="workgroups", noise=0.0, drift=0.0, seconds=2.0, seed=3, **options):
    """Results as a GPU of 132 units would give them that obeys `law`; drift: of the throughput, in all."""
    op = "matmul_reduce_scatter" if over == "policy" else "matmul"
    shape = (8192, 8192, 2048) if over == "policy" else (8192, 8192, 8192)
    given = {"workgroups": None, "data": None, "policies": None, "turns": None} | options
    chosen = plan(over, op, *shape, 4, "bf16", 132, hz=50.0, seed=seed, **given)
    draw = np.random.default_rng(seed)
    results = Results({"machine": "made up", "max_clock_mhz": 1980, "power_limit_w": 700, "seconds": seconds}, chosen)
    results.header["tile"] = [128, 256]
    for turn, at in enumerate(chosen.order):
        point = chosen.points[at]
        active = busy(point.active, TILES)
        lean = {"normal": 1.0, "zeros": 0.55, "constant": 0.62}[point.data]
        used = replace(law, on_w=law.on_w * lean, unit_w=law.unit_w * lean)
        mhz = float(used.mhz(active))
        watts = float(used.watts(active, mhz))
        slower = {None: 1.0, "unfused": 1.12, "fixed:4": 1.05, "one_way:4": 1.0}[point.policy]
        tflops = rate * active * mhz / slower * (1 + noise * draw.normal()) * (1 + drift * turn / len(chosen.order))
        ms = point.flops / tflops * 1e-9
        inner = max(1, round(5 / ms))
        begin = int(turn * (seconds + 0.1) * 1e9)
        told = {"power": watts, "sm_clock": mhz, "temperature": 60.0, "throttle_power": float(mhz < 1980)}
        samples = samples_of(told, seconds=seconds, begin=begin) if point.sampled_hz else None
        clocks = [{"at_ns": begin + int(1e9), "mhz": mhz * 1.003, "low": mhz, "high": mhz}] if point.traced else []
        replays = [ms * inner] * int(seconds * 1e3 / (ms * inner))
        results.runs.append(Run(at, begin, begin + int(seconds * 1e9), inner, replays, samples, clocks))
    if over == "workgroups":
        results.idle = samples_of({"power": 120.0, "sm_clock": 345.0}, begin=0)
        copied = samples_of({"power": 320.0, "sm_clock": 1980.0}, begin=0)
        results.copy = Copy(2 << 32, 0, int(2e9), 4, [8.0] * 100, copied)
    return results
