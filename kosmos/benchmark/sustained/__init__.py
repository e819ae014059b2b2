"""Sustained runs with the sensors on: what the power cap does to throughput, clock and energy.

cases: what is run, in which order. measure: how. results: the file and the statistics. table: the text. figure: the
picture. command: `kosmos power`. Nothing heavy is imported before something is measured or read.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kosmos.benchmark.sustained.cases import DATA, OVER, SECONDS, Point, Sweep, plan
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError

if TYPE_CHECKING:
    from kosmos.benchmark.sustained.results import Results
    from kosmos.power.sensors import Sensor
    from kosmos.trace import Trace

__all__ = ["DATA", "OVER", "RECORDINGS", "Point", "Sweep", "load", "recording", "sweep"]

RECORDINGS = Path(__file__).parents[3] / "traces" / "h200" / "power"
"""What was measured on an H200, in a clone of the repository."""

SHAPES = {
    "matmul": (8192, 8192, 8192),
    "all_gather_matmul": (8192, 2048, 8192),
    "matmul_reduce_scatter": (8192, 8192, 2048),
}
"""m, n, k where none are given."""


def sweep(
    op: str | None = None,
    *,
    over: str = "workgroups",
    m: int | None = None,
    n: int | None = None,
    k: int | None = None,
    ranks: int = 4,
    dtype: str = "bf16",
    workgroups: Iterable[int] | None = None,
    data: Iterable[str] | None = None,
    policies: Iterable[str] | None = None,
    seconds: float | None = None,
    turns: int | None = None,
    hz: float | None = None,
    seed: int = 0,
    device: Any = None,
    output: str | os.PathLike[str] | None = None,
    progress: bool = True,
    recording: str | os.PathLike[str] | None = None,
    traces: "dict[int, Trace] | None" = None,
    runner: Any = None,
    sensor: "Sensor | None" = None,
) -> "Results":
    """Throughput, SM clock, power and energy of sustained runs, over what is changed between them.

    over: "workgroups", how many of them are active (`workgroups` of a rank, by default a grid from all of the GPU down
    to an eighth); "data", what the operands hold (`data`: "normal", "zeros", "constant"); "policy" (`policies`, among
    them "unfused"); "sampling", with the sensor read and not.
    op: "matmul", all_gather_matmul on one rank, "all_gather_matmul" or "matmul_reduce_scatter" on `ranks` virtual ones;
    by default "matmul", and "matmul_reduce_scatter" for policies. m, n, k: the GEMM that each rank runs.
    seconds: of one run; the first half second is left out. turns: how often everything is run. hz: readings of the
    sensor a second. seed: of the inputs and the order. output: a JSON file. progress: a bar on stderr.
    recording: the file that is loaded instead where there is no GPU, by default the one that was measured on an H200;
    seconds, turns, hz and seed are then the recording's.
    traces: takes, for some points by index, the trace of the last launch that was recorded. runner, sensor: what runs
    and what is read, by default the GPU's own.

    Returns Results, to print, plot and save; `.note` says so if they come from a recording. Raises KosmosArgumentError
    for values that are not allowed, and KosmosEnvironmentError where there is neither a GPU nor a recording.
    """
    if not isinstance(over, str) or over not in OVER:
        raise KosmosArgumentError(f"over={over!r} is unknown; allowed are {', '.join(OVER)}")
    op = ("matmul_reduce_scatter" if over == "policy" else "matmul") if op is None else op
    if not isinstance(op, str) or op not in SHAPES:
        raise KosmosArgumentError(f"op={op!r} is unknown; allowed are {', '.join(SHAPES)}")
    shape = tuple(usual if asked is None else asked for asked, usual in zip((m, n, k), SHAPES[op]))
    seconds = SECONDS[over] if seconds is None else seconds
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= 600:
        raise KosmosArgumentError(f"seconds={seconds!r} must be above 0 and at most 600 a run")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise KosmosArgumentError(f"seed={seed!r} must be a whole number, 0 or more")
    hz = (20 if over == "sampling" else 50) if hz is None else hz
    if isinstance(hz, bool) or not isinstance(hz, int | float) or not 0 < hz <= 1000:
        raise KosmosArgumentError(f"hz={hz!r} must be above 0 and at most 1000 readings a second")
    if output is not None:
        from kosmos.files import refuse_unwritable

        refuse_unwritable(output, KosmosArgumentError)

    def planned(units: int) -> Sweep:
        return plan(over, op, *shape, ranks, dtype, units, workgroups, data, policies, turns, float(hz), seed)

    if runner is None:
        missing = _no_gpu(device)
        if missing:
            if output is not None:
                raise KosmosEnvironmentError(
                    f"{missing}, so there is nothing to measure and nothing to write to {output}"
                )
            results = _recorded(over, missing, recording)
            # what is not allowed on that GPU is not answered by its recording either
            asked = planned(results.header.get("units") or max(point.active for point in results.sweep.points))
            same = ["op", "m", "n", "k", "ranks", "dtype"]
            listed = {"workgroups": workgroups, "data": data, "policy": policies}
            same += [name for name, given in listed.items() if given is not None and name == over]
            results.note += _differs(asked, results.sweep, same)
            return results
    from kosmos.benchmark.sustained.measure import GpuRunner, measure
    from kosmos.benchmark.sustained.results import Results
    from kosmos.power import find

    if runner is None:
        from kosmos.world import World

        runner = GpuRunner(World.virtual(1, device=device).device)
    chosen = planned(runner.machine()["units"])
    results = Results()

    def save() -> None:
        if output is not None:
            results.save(output)

    sensor = find(runner.device) if sensor is None else sensor
    return measure(chosen, float(seconds), seed, runner, sensor, progress, results, save, traces)


def load(path: str | os.PathLike[str]) -> "Results":
    """The sweep that was saved at `path`. Raises KosmosArgumentError for a file that has none."""
    from kosmos.benchmark.sustained.results import Results

    return Results.load(path)


def recording(over: str = "workgroups") -> "Results":
    """The sweep that was measured on an H200. Raises KosmosEnvironmentError outside a clone of the repository."""
    return _recorded(over, "", None)


def _recorded(over: str, missing: str, path: str | os.PathLike[str] | None) -> "Results":
    path = RECORDINGS / f"{over}.json" if path is None else path
    if not os.path.exists(path):
        why = f"{missing}, and " if missing else ""
        raise KosmosEnvironmentError(f"{why}there is no recording {path}: it is in a clone of the repository")
    results = load(path)
    results.note = f"{missing or 'a recording'}: using the recording {os.path.relpath(path)}"
    return results


def _differs(asked: Sweep, recorded: Sweep, names: Iterable[str]) -> str:
    """Which of the values that were asked for are not in a recording, as the end of a sentence."""
    off = []
    for name in names:
        wanted, found = (list(dict.fromkeys(getattr(point, name) for point in one.points)) for one in (asked, recorded))
        missing = [value for value in wanted if value not in found]
        if missing:
            told = (", ".join(map(str, values)) for values in (found, missing))
            off.append("{} {}, not {}".format(name, *told))
    return f". It is not what was asked for: {'; '.join(off)}" if off else ""


def _no_gpu(device: Any) -> str:
    """Why nothing can be measured, or nothing. Raises KosmosArgumentError for what is no device."""
    from kosmos.power.sensors import gpu_index, is_cpu

    if not is_cpu(device):
        gpu_index(device)
    try:
        import torch
    except ImportError:
        return "no GPU here (torch is not installed)"
    if not torch.cuda.is_available():
        return "no sensor here (torch sees no GPU)"
    if is_cpu(device):
        return f"no sensor for device={str(device)!r}"
    return ""
