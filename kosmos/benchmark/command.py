"""The command `kosmos bench`."""

import argparse
import io
import os
import sys
from typing import Any

from kosmos.benchmark.cases import CREWS, DTYPES, SETS, SHORT, Case
from kosmos.errors import KosmosArgumentError
from kosmos.files import refuse_unwritable, whole_file

PICTURES = ("png", "svg", "pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of the command; `run` takes what the parser makes of them."""
    parser.add_argument("sets", nargs="*", metavar="SET", help=f"{', '.join(SETS)} or all; default: quick")
    one = parser.add_argument_group("one case instead of sets")
    one.add_argument("--op", choices=SHORT, metavar="OP", help=" or ".join(SHORT))
    for size in "mnk":
        one.add_argument(f"--{size}", type=int, help="of the GEMM that each rank runs" if size == "m" else None)
    one.add_argument("--ranks", type=int, help="default: 4")
    one.add_argument("--workgroups", type=int, help="of a rank; default: its share of the GPU")
    one.add_argument("--dtype", choices=DTYPES, help="bf16 (default), fp16 or fp32")
    one.add_argument("--policy", nargs="+", metavar="POLICY", help="besides the default one: one_way:CREW, ...")
    one.add_argument("--order", nargs="+", metavar="ORDER", help="besides the default one; every policy in every order")
    usual = " ".join(map(str, CREWS))
    one.add_argument("--crews", nargs="+", type=int, metavar="CREW", help=f"fixed crews to sweep; default: {usual}")
    one.add_argument("--link-gbps", type=float, metavar="GBPS", help="pace the links between ranks to this rate")
    how = parser.add_argument_group("how to measure")
    how.add_argument("--rounds", type=int, help="burst samples of every variant; default: 15")
    how.add_argument(
        "--sustained", type=float, metavar="SECONDS", help="how long a variant runs back to back; 0: not; default: 1"
    )
    how.add_argument("--turns", type=int, help="how often it does; default: 3")
    how.add_argument("--seed", type=int, help="of the inputs and of the order; default: 0")
    how.add_argument("--device", help="cuda[:N]; default: the current GPU")
    out = parser.add_argument_group("what comes out, besides the table")
    out.add_argument("-o", "--output", metavar="FILE.json", help="every sample; written anew after every case")
    out.add_argument("--figure", metavar="FILE", help=f"a picture of the ratios: {', '.join(PICTURES)}")
    saved = parser.add_argument_group("instead of measuring")
    saved.add_argument("--show", metavar="FILE.json", help="the table, and with --figure the picture, of a saved run")
    saved.add_argument("--compare", nargs=2, metavar=("OLD", "NEW"), help="how the ratios of two saved runs differ")


def run(given: argparse.Namespace) -> int:
    """Do what was asked; the exit code: 0 if all went well, 1 if a result is wrong or nothing was measured.

    Ctrl-C saves what was measured until then; the code is 130. Raises KosmosError for what is wrong with the input or
    with this machine.
    """
    _consistent(given)
    if given.figure:
        _picture_format(given.figure)
    if given.compare:
        from kosmos.benchmark.results import Results
        from kosmos.benchmark.table import compared

        sys.stdout.write(compared(*map(Results.load, given.compare)))
        return 0
    if given.show:
        from kosmos.benchmark.results import Results

        results = Results.load(given.show)
        _give(results, given)
        return 0
    return _measure(given)


def _measure(given: argparse.Namespace) -> int:
    import kosmos.benchmark as benchmark
    from kosmos.benchmark.results import Results

    results, code = Results(), 0
    options = _given(rounds=given.rounds, sustained_s=given.sustained, turns=given.turns, seed=given.seed)
    try:
        benchmark.bench(_cases(given), output=given.output, device=given.device, results=results, **options)
    except KeyboardInterrupt:
        code = 130
        if not any(measured.timed for measured in results.cases):
            print("kosmos: interrupted before anything was measured", file=sys.stderr)
            return code
        print("kosmos: interrupted; this is what was measured", file=sys.stderr)
        if given.output:
            results.save(given.output)
    _give(results, given)
    return code or (0 if results.well else 1)


def _give(results: Any, given: argparse.Namespace) -> None:
    """The table, and the picture if there is one to be drawn."""
    sys.stdout.write(str(results))
    if given.figure and any(measured.timed for measured in results.cases):
        picture = io.BytesIO()
        results.plot().savefig(picture, format=_picture_format(given.figure), dpi=200)
        with whole_file(given.figure, KosmosArgumentError) as file:
            file.write(picture.getvalue())


def _cases(given: argparse.Namespace) -> list[str] | Case:
    if not given.op:
        return given.sets or ["quick"]
    options = _given(ranks=given.ranks, dtype=given.dtype, policies=given.policy, orders=given.order)
    options |= _given(crews=given.crews, link_gbps=given.link_gbps, workgroups=given.workgroups)
    return Case(given.op, given.m, given.n, given.k, **options)


def _given(**options: Any) -> dict[str, Any]:
    """The options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def _consistent(given: argparse.Namespace) -> None:
    """Refuse what does not go together, rather than leave some of it out."""
    names = "m n k ranks workgroups dtype policy order crews link_gbps".split()
    one = {f"--{name.replace('_', '-')}": getattr(given, name) for name in names}
    how = {"--rounds": given.rounds, "--sustained": given.sustained, "--turns": given.turns, "--seed": given.seed}
    how |= {"--device": given.device, "-o": given.output}
    if given.show or given.compare:
        instead = "--show" if given.show else "--compare"
        other = {"SET": given.sets or None, "--op": given.op, **one, **how}
        other |= {"--compare": given.compare} if given.show else {"--figure": given.figure}
        for name in _given(**other):
            raise KosmosArgumentError(f"{instead} reads what was measured; {name} does not go with it")
        return
    if given.op and given.sets:
        raise KosmosArgumentError(f"it is either the set {given.sets[0]} or --op {given.op}")
    if given.op and None in (given.m, given.n, given.k):
        raise KosmosArgumentError("--op needs --m, --n and --k, the GEMM that each rank runs")
    if not given.op:
        for name in _given(**one):
            raise KosmosArgumentError(f"{name} is for one case and needs --op")


def _picture_format(path: str) -> str:
    """By the end of its name. Refuses a picture that could not be written."""
    kind = os.path.splitext(path)[1].removeprefix(".").lower()
    if kind not in PICTURES:
        raise KosmosArgumentError(f"{path}: the name of a picture must end in .{', .'.join(PICTURES)}")
    refuse_unwritable(path, KosmosArgumentError)
    return kind
