"""The command `kosmos power`."""

import argparse
import io
import os
import sys
from typing import Any

from kosmos.benchmark.cases import DTYPES
from kosmos.benchmark.sustained import DATA, OVER, SHAPES
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosError, KosmosTraceError
from kosmos.files import refuse_unwritable, whole_file

PICTURES = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-commands; the parsed arguments have a function `act` that does what was asked and returns the code."""
    acts = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    told = acts.add_parser("sensors", help="what can be read here, and how often it really changes")
    told.add_argument("--seconds", type=float, default=2.0, help="for how long to look; default: 2")
    told.add_argument("--device", help="cuda[:N]; default: the current GPU")
    told.set_defaults(act=_sensors)

    swept = acts.add_parser(
        "sweep",
        help="throughput, clock, power and energy of sustained runs",
        description="Runs an op back to back, with the sensors on, again and again with one thing changed: the active "
        "workgroups, the data, the policy, or whether the sensor is read. Without a GPU it shows the recording.",
        epilog="example: kosmos power sweep --over workgroups -o headroom.json --figure headroom.png",
    )
    swept.add_argument("--over", choices=OVER, default="workgroups", metavar="WHAT", help=", ".join(OVER))
    swept.add_argument("--op", choices=SHAPES, metavar="OP", help=", ".join(SHAPES))
    for size in "mnk":
        swept.add_argument(f"--{size}", type=int, help="of the GEMM that each rank runs" if size == "m" else None)
    swept.add_argument("--ranks", type=int, default=4, help="of the fused ops; default: 4")
    swept.add_argument("--dtype", choices=DTYPES, default="bf16", help="bf16 (default), fp16 or fp32")
    swept.add_argument("--workgroups", type=int, nargs="+", help="of a rank; default: from all to an eighth of them")
    swept.add_argument("--data", choices=DATA, nargs="+", metavar="DATA", help=", ".join(DATA))
    swept.add_argument("--policy", nargs="+", metavar="POLICY", help="unfused, fixed:CREW, one_way:CREW, ...")
    swept.add_argument("--seconds", type=float, help="of one run")
    swept.add_argument("--turns", type=int, help="how often everything is run")
    swept.add_argument("--hz", type=float, help="readings of the sensor a second")
    swept.add_argument("--seed", type=int, default=0, help="of the inputs and of the order; default: 0")
    swept.add_argument("--device", help="cuda[:N]; default: the current GPU")
    swept.add_argument("-o", "--output", metavar="FILE.json", help="every replay and every reading")
    swept.add_argument("--figure", metavar="FILE", help=f"a picture: {', '.join(PICTURES)}")
    swept.add_argument(
        "--trace", metavar="FILE.parquet", help="the last launch of the full grid that was recorded, with the sensor"
    )
    swept.add_argument("--recording", metavar="FILE.json", help="what is shown where there is no GPU")
    swept.set_defaults(act=_sweep)

    burst = acts.add_parser(
        "burst",
        help="one launch from rest, so long that the cap takes hold in it, as a trace with clock and power",
        epilog="example: kosmos power burst -o burst.parquet && kosmos show burst.parquet",
    )
    burst.add_argument("-o", "--output", metavar="FILE.parquet", required=True, help="where the trace goes")
    burst.add_argument("--seconds", type=float, default=0.8, help="about how long it lasts; default: 0.8")
    burst.add_argument("--workgroups", type=int, help="default: one a unit")
    burst.add_argument("--device", help="cuda[:N]; default: the current GPU")
    burst.set_defaults(act=_burst)

    shown = acts.add_parser("show", help="the table, and the picture, of a saved sweep")
    shown.add_argument("file", metavar="FILE.json")
    shown.add_argument("--figure", metavar="FILE", help=f"a picture: {', '.join(PICTURES)}")
    shown.set_defaults(act=_show)


def run(given: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    return given.act(given)


def _sensors(given: argparse.Namespace) -> int:
    import time

    from kosmos.power import NoSensor, clock_check, find, probe, sample

    if not 0 < given.seconds <= 600:
        raise KosmosArgumentError(f"--seconds={given.seconds:g} must be above 0 and at most 600")
    try:
        import torch  # noqa: F401, for which GPU is the current one, and for the device's clock
    except ImportError:
        pass
    sensor = find(given.device)
    if isinstance(sensor, NoSensor):
        raise KosmosEnvironmentError(sensor.name)
    updates = probe(sensor, given.seconds / 2)
    with sample(50, given.device, sensor, updates) as samples:
        time.sleep(given.seconds / 2)
    for name, value in sensor.limits.items():
        print(f"{name:16} {value}")
    print(samples.report())
    try:
        kernel, told = clock_check(given.seconds / 2, given.device, sensor)
    except KosmosEnvironmentError:
        return 0
    print(f"clock    in a kernel that computes nothing {kernel:,.1f} MHz, the sensor's mean {told or 0:,.1f} MHz")
    return 0


def _sweep(given: argparse.Namespace) -> int:
    from kosmos.benchmark.sustained import sweep

    _refuse_picture(given.figure)
    if given.trace:
        refuse_unwritable(given.trace, KosmosTraceError)
    traces: dict[int, Any] = {}
    results = sweep(
        given.op,
        over=given.over,
        m=given.m,
        n=given.n,
        k=given.k,
        ranks=given.ranks,
        dtype=given.dtype,
        workgroups=given.workgroups,
        data=given.data,
        policies=given.policy,
        seconds=given.seconds,
        turns=given.turns,
        hz=given.hz,
        seed=given.seed,
        device=given.device,
        output=given.output,
        recording=given.recording,
        traces=traces,
    )
    if given.trace and results.note:
        raise KosmosEnvironmentError(f"{results.note}, so there is no launch to write to {given.trace}")
    _give(results, given.figure)
    if given.trace:
        if results.sweep.full not in traces:
            print("kosmos: no launch of the full grid was recorded, so there is no trace", file=sys.stderr)
            return 1
        traces[results.sweep.full].save(given.trace)
    return 0


def _burst(given: argparse.Namespace) -> int:
    refuse_unwritable(given.output, KosmosTraceError)
    if not 0 < given.seconds <= 60:
        raise KosmosArgumentError(f"--seconds={given.seconds:g} must be above 0 and at most 60")
    from kosmos.benchmark.sustained.measure import GpuRunner, burst
    from kosmos.power import find
    from kosmos.world import World

    world = World.virtual(1, device=given.device)
    if world.emulated:
        raise KosmosEnvironmentError("a burst needs a GPU: the emulator's clock is a model's and knows no cap")
    runner = GpuRunner(world.device)
    trace = burst(given.seconds, 0, runner, find(world.device), workgroups=given.workgroups)
    trace.save(given.output)
    print(trace)
    print(f"saved {given.output}, {os.path.getsize(given.output):,} bytes")
    return 0


def _show(given: argparse.Namespace) -> int:
    from kosmos.benchmark.sustained import load

    _refuse_picture(given.figure)
    _give(load(given.file), given.figure)
    return 0


def _give(results: Any, figure: str | None) -> None:
    """The table, the model that is fitted to it where one can be, and the picture if one is asked for."""
    sys.stdout.write(str(results))
    if results.sweep.over == "workgroups":
        try:
            print(f"\n{results.fit()}")
        except KosmosError as error:
            print(f"\nno power model: {error}")
    if figure:
        picture = io.BytesIO()
        results.plot().savefig(picture, format=_picture_format(figure), dpi=200)
        with whole_file(figure, KosmosArgumentError) as file:
            file.write(picture.getvalue())


def _refuse_picture(path: str | None) -> None:
    """Say what is wrong with where a picture is to go before anything is measured or printed."""
    if path:
        refuse_unwritable(path, KosmosArgumentError)
        _picture_format(path)


def _picture_format(path: str) -> str:
    kind = os.path.splitext(path)[1].removeprefix(".").lower()
    if kind not in PICTURES:
        raise KosmosArgumentError(f"{path}: the name of a picture must end in .{', .'.join(PICTURES)}")
    return kind
