"""The command `kosmos`: doctor, record, simulate, show, view, export, bench, power.

Exit code 0 if all went well; 1 if what was examined is not well; 2 for wrong input, with one line on stderr that says
what is wrong. Heavy packages are imported by the command that needs them.
"""

import argparse
import io
import os
import pathlib
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from kosmos import __version__, benchmark
from kosmos.benchmark.cases import DTYPES
from kosmos.benchmark.sustained import command as sustained
from kosmos.errors import KosmosEnvironmentError, KosmosError, KosmosShapeError, KosmosTraceError
from kosmos.files import refuse_unwritable, whole_file

if TYPE_CHECKING:
    from kosmos.trace import Trace

OPS = ("all_gather_matmul", "matmul_reduce_scatter")

EXPORTS = ("perfetto", "chrome", "html")

EMULATED_SIZE, GPU_SIZE = 512, 8192
"""m, n and k where none are given: a second's work in the emulator, some milliseconds' on a GPU."""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        # one line, without the usage
        self.exit(2, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with these arguments, by default those of the process; the exit code."""
    try:
        given = _parser().parse_args(arguments)
        code = given.run(given)
        sys.stdout.flush()
        return code
    except KosmosError as error:
        print(f"kosmos: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # whoever read the output has enough; nothing more is to be written to it when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="kosmos",
        description="Self-scheduling persistent GPU kernels that can be watched.",
        epilog="example: kosmos record all_gather_matmul -o first.parquet && kosmos show first.parquet --png first.png",
    )
    parser.add_argument("--version", action="version", version=f"kosmos {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    doctor = commands.add_parser(
        "doctor",
        help="what can run here, and what to do about what cannot",
        description="Tells what is installed and runs a self-test of every place where kernels can run; exits with 0 "
        "if they run in one of them, else with 1.",
        epilog="example: kosmos doctor --compile",
    )
    doctor.add_argument(
        "--compile",
        action="store_true",
        help="compile every kernel for gfx950, gfx942, sm_90 and sm_100 instead, GPU or not (a minute on two cores), "
        "and look for spills and for signals that come before their data; exits with 1 if there are any",
    )
    doctor.set_defaults(run=_doctor)

    record = commands.add_parser(
        "record",
        help="run a fused op and save its trace",
        description="Runs a fused op on random numbers, on a GPU if there is one, else in the emulator, and saves the "
        "trace. m, n, k are the GEMM that each rank runs: after the gather, or before the scatter.",
        epilog="example: kosmos record matmul_reduce_scatter --ranks 4 --policy one_way:2 --order row -o row.parquet",
    )
    record.add_argument("op", metavar="OP", choices=OPS, help=" or ".join(OPS))
    record.add_argument("-o", "--output", metavar="FILE", required=True, help="where the trace goes (Parquet)")
    for size in "mnk":
        default = f"default: {EMULATED_SIZE} in the emulator, {GPU_SIZE} on a GPU"
        record.add_argument(f"--{size}", type=_count, help=default)
    record.add_argument("--ranks", type=_count, default=4, help="default: 4")
    record.add_argument("--workgroups", type=_count, help="of a rank; default: its share of the units")
    record.add_argument("--dtype", choices=DTYPES, default="bf16", help="bf16 (default), fp16 or fp32")
    record.add_argument("--policy", help="fixed:CREW, planned, one_way:CREW or two_way:CREW; default: one_way")
    record.add_argument("--order", help="local_first or rank (all-gather), band or row (reduce-scatter), random:SEED")
    record.add_argument("--device", help="cpu (the emulator) or cuda[:N]; default: a GPU if there is one")
    record.add_argument("--machine", help="whose times the emulator shows: laptop (default), MI350X, ...")
    record.add_argument("--link-gbps", type=float, metavar="GBPS", help="the rate of the links between ranks, in GB/s")
    record.add_argument("--seed", type=_seed, default=0, help="of the random numbers; default: 0")
    record.add_argument("--check", action="store_true", help="compare with float64; exits with 1 if it is off")
    record.set_defaults(run=_record)

    simulate = commands.add_parser(
        "simulate",
        help="run a fused op on a model of a machine, or sweep over many settings",
        description="Simulates a fused op on a machine model: the same queues and policies as on a GPU, no numbers. "
        "Several values, with commas between them, make a sweep over all combinations. What comes out is the model's.",
        epilog="example: kosmos simulate matmul_reduce_scatter --m 8192 --n 16384 --k 6656 "
        "--policy fixed:16,one_way:16 --order band,row",
    )
    simulate.add_argument("op", metavar="OP", type=_listed(str), help=" or ".join(OPS))
    for size in "mnk":
        simulate.add_argument(f"--{size}", type=_listed(_count), required=True, help="of the GEMM that each rank runs")
    simulate.add_argument("--ranks", type=_listed(_count), default=[8], help="default: 8")
    simulate.add_argument(
        "--machine", type=_listed(str), default=["MI350X"], help="MI350X (default), H200, H200/4, ..."
    )
    simulate.add_argument("--policy", type=_listed(str), default=[None], help="as for record; default: one_way")
    simulate.add_argument("--order", type=_listed(str), default=[None], help="as for record")
    simulate.add_argument("--dtype", type=_listed(str), default=["bf16"], help="bf16 (default), fp16 or fp8")
    simulate.add_argument("--workgroups", type=_listed(_count), default=[None], help="of a rank; default: one a unit")
    simulate.add_argument(
        "--link-gbps", type=_listed(_rate), metavar="GBPS", default=[None], help="another rate of the links, in GB/s"
    )
    simulate.add_argument("--tile", type=_tile, metavar="ROWSxCOLS", help="output tile; default: the machine's")
    simulate.add_argument("--jobs", type=_count, help="processes of a sweep; default: one a core")
    simulate.add_argument(
        "-o", "--output", metavar="FILE", help="where the trace (Parquet), or the sweep's table (Parquet or .csv), goes"
    )
    simulate.add_argument("--png", metavar="OUT", help="draw the run, or the sweep, as a PNG")
    simulate.set_defaults(run=_simulate)

    show = commands.add_parser(
        "show",
        help="what a trace says, as text or as a picture",
        description="Prints what was run, how the time was spent, and what is wrong with the trace if anything is.",
        epilog="example: kosmos show row.parquet --png row.png",
    )
    show.add_argument("trace", metavar="FILE", help="a trace that was saved")
    picture = show.add_mutually_exclusive_group()
    picture.add_argument("--png", metavar="OUT", help="draw it, as a PNG")
    picture.add_argument("--svg", metavar="OUT", help="draw it, as an SVG")
    show.set_defaults(run=_show)

    view = commands.add_parser(
        "view",
        help="look into a trace in the browser",
        description="Writes the viewer of a trace as one HTML file, which needs nothing else, and opens it.",
        epilog="example: kosmos view row.parquet --output row.html --no-open",
    )
    view.add_argument("trace", metavar="FILE", help="a trace that was saved")
    view.add_argument("--output", metavar="FILE.html", help="where the page goes; default: a temporary file")
    view.add_argument("--no-open", action="store_true", help="write it only")
    view.set_defaults(run=_view)

    export = commands.add_parser(
        "export",
        help="a trace for other viewers, or as a page",
        description="Writes a trace as a file for https://ui.perfetto.dev (perfetto), as JSON for chrome://tracing "
        "(chrome), or as a page that needs no network (html).",
        epilog="example: kosmos export row.parquet --to perfetto -o row.pftrace",
    )
    export.add_argument("trace", metavar="FILE", help="a trace that was saved")
    export.add_argument("--to", metavar="FORMAT", required=True, choices=EXPORTS, help=", ".join(EXPORTS))
    export.add_argument("-o", "--output", metavar="OUT", required=True, help="where it goes")
    export.set_defaults(run=_export)

    bench = commands.add_parser(
        "bench",
        help="how fast the fused kernels are, beside what they have to beat",
        epilog="example: kosmos bench quick -o quick.json --figure quick.png",
    )
    benchmark.add_arguments(bench)
    bench.set_defaults(run=benchmark.run)

    power = commands.add_parser("power", help="power, clocks and energy: what the cap does, on your GPU or recorded")
    sustained.add_arguments(power)
    power.set_defaults(run=sustained.run)
    return parser


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, 1 or more")
    return int(text)


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to 2**63 - 1")
    return int(text)


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a rate in GB/s") from None


def _tile(text: str) -> tuple[int, int]:
    rows, _, cols = text.partition("x")
    try:
        return _count(rows), _count(cols)
    except argparse.ArgumentTypeError:
        raise argparse.ArgumentTypeError(f"{text!r} is not ROWSxCOLS, such as 128x256") from None


def _listed(one: Any) -> Any:
    """The type of an argument that may be several values with commas between them."""
    return lambda text: [one(part) for part in text.split(",")]


def _doctor(given: argparse.Namespace) -> int:
    from kosmos import doctor

    return 0 if (doctor.examine_kernels if given.compile else doctor.examine)() else 1


def _record(given: argparse.Namespace) -> int:
    refuse_unwritable(given.output, KosmosTraceError)
    import kosmos

    op = getattr(kosmos, given.op)
    import torch

    from kosmos.doctor.reference import TOLERANCE, operands, relative_error

    world = kosmos.World.virtual(given.ranks, given.workgroups, given.device, given.machine, given.link_gbps)
    size = EMULATED_SIZE if world.emulated else GPU_SIZE
    m, n, k = (size if asked is None else asked for asked in (given.m, given.n, given.k))
    if m % world.ranks:
        raise KosmosShapeError(f"m={m} must divide by ranks={world.ranks}")
    options: dict[str, Any] = {"world": world, "policy": given.policy}
    if given.order is not None:
        options["order"] = given.order
    dtype = getattr(torch, DTYPES[given.dtype])
    try:
        x, w = operands(world, given.op, m, n, k, dtype, given.seed)
        if not world.emulated:
            # compile, and wake the GPU up
            op(x, w, **options)
            world.synchronize()
        with kosmos.record() as run:
            y = op(x, w, **options)
        trace = run.trace
        error = relative_error(given.op, x, w, y) if given.check else 0.0
    except (RuntimeError, MemoryError) as failure:
        # on the CPU, torch says it in a sentence only
        full = isinstance(failure, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(failure)
        if not full:
            raise
        raise KosmosEnvironmentError(f"m={m}, n={n}, k={k} on {world.ranks} ranks do not fit the memory") from None
    if not error <= TOLERANCE[dtype]:
        print(f"kosmos: the result is off by {error:.1e}, {TOLERANCE[dtype]:g} is allowed; not saved", file=sys.stderr)
        return 1
    trace.save(given.output)
    _tell(trace)
    if given.check:
        print(f"checked    relative error {error:.1e}, {TOLERANCE[dtype]:g} is allowed")
    print(f"saved      {given.output}, {os.path.getsize(given.output):,} bytes")
    return 0


def _simulate(given: argparse.Namespace) -> int:
    for path in (given.output, given.png):
        if path:
            refuse_unwritable(path, KosmosTraceError)
    from kosmos.simulator import simulate, sweep

    axes = {name: getattr(given, name) for name in (*"mnk", "ranks", "machine", "policy", "order", "dtype")}
    axes |= {"workgroups": given.workgroups, "link_gbps": given.link_gbps}
    if all(len(values) == 1 for values in (given.op, *axes.values())):
        trace = simulate(given.op[0], **{name: values[0] for name, values in axes.items()}, tile=given.tile)
        if given.output:
            trace.save(given.output)
        if given.png:
            _draw(given.png, trace.plot(), "png")
        _tell(trace)
        makespan = trace.summary()["makespan_ns"]
        for name, ns in trace.meta["bounds"].items():
            share = 100 * ns / makespan
            print(f"bound      {name.replace('_', ' '):13} {ns / 1000:12,.1f} µs, {share:.1f} % of the makespan")
    else:
        table = sweep(given.op, **axes, tile=given.tile, jobs=given.jobs)
        if given.output:
            with whole_file(given.output, KosmosTraceError) as file:
                _write_table(table, file, given.output.endswith(".csv"))
        if given.png:
            from kosmos.plots import sweep_bars

            _draw(given.png, sweep_bars(table), "png")
        _print_table(table)
    for what, path in (("saved", given.output), ("drawn", given.png)):
        if path:
            print(f"{what}      {path}")
    return 0


def _write_table(table: Any, file: Any, csv: bool) -> None:
    if csv:
        import pyarrow.csv

        pyarrow.csv.write_csv(table, file)
    else:
        import pyarrow.parquet

        pyarrow.parquet.write_table(table, file)


def _print_table(table: Any) -> None:
    """A sweep's runs, a line each: what differs between them, the makespan, the shares, the nearest bound."""
    runs = table.to_pylist()
    asked = ("op", "m", "n", "k", "ranks", "machine", "ran", "order", "dtype", "workgroups", "link_gbps")
    differ = [name for name in asked if len({run[name] for run in runs}) > 1]
    shares = [name for name in ("mover", "builder", "reducer", "wait", "idle") if any(run[name] for run in runs)]
    header = [*("policy" if name == "ran" else name for name in differ), "makespan µs", *shares, "of bound"]
    lines = []
    for run in runs:
        bound = max(run[name] or 0 for name in ("work_ns", "link_ns", "memory_ns", "critical_path_ns"))
        lines.append(
            [
                *(str(run[name]) for name in differ),
                f"{run['makespan_ns'] / 1000:,.1f}",
                *("" if run[name] is None else f"{100 * run[name]:.1f} %" for name in shares),
                f"{run['makespan_ns'] / bound:.3f}",
            ]
        )
    widths = [max(map(len, column)) for column in zip(header, *lines)]
    for line in [header, *lines]:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths)))


def _draw(path: str, figure: Any, kind: str) -> None:
    picture = io.BytesIO()
    figure.savefig(picture, format=kind, dpi=200)
    with whole_file(path, KosmosTraceError) as file:
        file.write(picture.getvalue())


def _show(given: argparse.Namespace) -> int:
    from kosmos.trace import Trace

    trace = Trace.load(given.trace)
    output = given.png or given.svg
    if output:
        refuse_unwritable(output, KosmosTraceError)
        _draw(output, trace.plot(), "png" if given.png else "svg")
    _tell(trace)
    if output:
        print(f"drawn      {output}")
    return 0


def _view(given: argparse.Namespace) -> int:
    from kosmos.trace import Trace

    trace = Trace.load(given.trace)
    output = given.output
    _refuse_itself(given.trace, output)
    if output is None:
        stem, _ = os.path.splitext(os.path.basename(given.trace))
        output = os.path.join(tempfile.mkdtemp(prefix="kosmos-"), f"{stem}.html")
    trace.to_html(output)
    print(f"written    {output}, {os.path.getsize(output):,} bytes")
    if not given.no_open and not webbrowser.open(pathlib.Path(output).resolve().as_uri()):
        print("no browser could be started; open the file in one")
    return 0


def _refuse_itself(trace: str, output: str | None) -> None:
    if output is not None and os.path.exists(output) and os.path.samefile(trace, output):
        raise KosmosTraceError(f"{output}: cannot be written, it is the trace itself")


def _export(given: argparse.Namespace) -> int:
    from kosmos.trace import Trace

    trace = Trace.load(given.trace)
    refuse_unwritable(given.output, KosmosTraceError)
    _refuse_itself(given.trace, given.output)
    getattr(trace, f"to_{given.to}")(given.output)
    print(f"exported   {given.output}, {os.path.getsize(given.output):,} bytes")
    problems = trace.problems()
    if problems:
        print(f"problems   {len(problems)}, which `kosmos show {given.trace}` lists")
    return 0


def _tell(trace: "Trace") -> None:
    """Print what was run, how its time was spent, and what is wrong with the trace."""
    meta = trace.meta
    shape = meta.get("shape")
    if isinstance(shape, dict):
        shape = ", ".join(f"{name}={shape[name]}" for name in "mnk" if name in shape) or None
    facts = {
        "op": meta.get("op"),
        "shape": shape,
        "dtype": meta.get("dtype"),
        "ranks": f"{trace.ranks} of {trace.workgroups} workgroups",
        "policy": meta.get("policy"),
        "order": meta.get("order"),
        "machine": meta.get("machine"),
        "place": meta.get("place"),
        "links": meta.get("link_gbps") and f"{meta['link_gbps']} GB/s",
    }
    for name, fact in facts.items():
        if fact is not None:
            print(f"{name:9}  {fact}")
    print()
    print(trace.summary())
    print()
    problems = trace.problems()
    print("problems   none" if not problems else "problems")
    for problem in problems:
        print(f"  {problem}")
