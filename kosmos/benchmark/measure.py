"""How a case is measured.

All variants of a case are prepared first and their results checked: each writes over NaN, is compared with float64 on
some rows, and must have the same bits as the default one, which no policy and no order may change. Then they are timed:

burst       One replay of a few calls on a device at rest, so that it runs at its full clock, which is read after every
            round. In a round each variant has its turn, in random order; a ratio is taken of pairs of the same round.
            The first round is not kept. The default variant is there twice: what the two differ by is noise.
trace       Eager launches of the default policy's kernel in a row, with and without a trace in turns: a launch that is
            recorded cannot be captured. The events are right around the kernel: the copy of the records that follows it
            is not in, nor is what the host does.
sustained   Replays back to back for a second or more, so that the power limit is what counts; the mean over the last
            half. In each of some turns every variant, in random order; a ratio is taken of pairs of the same turn. Of
            the fixed crews that were swept, the best and the worst only.
host        What the host spends in an eager call.

The baselines: "gemm" is torch's (cuBLAS, hipBLAS) for one rank after the other, "unfused" the same after a copy of all
shards for every rank (all-gather), or before torch.sum over the ranks (reduce-scatter).
"""

import gc
import itertools
import os
import platform
import random
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, Protocol

import torch
import triton

import kosmos
from kosmos import ops
from kosmos.benchmark.cases import DTYPES, Case, cases_of
from kosmos.benchmark.results import Measured, Results, Run
from kosmos.benchmark.timer import GpuTimer, Loop, Sustained
from kosmos.doctor.reference import TOLERANCE, operands, relative_error
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosError, KosmosTimeout
from kosmos.files import refuse_unwritable
from kosmos.ops.launch import plan_for
from kosmos.schedule import Policy
from kosmos.world import World, record

REPLAY_MS = 4.0
"""About what a replay of the GEMMs lasts: so much that its launch does not count, so little that it stays a burst."""

MOST_CALLS = 20
"""In one replay."""

LAUNCHES = 4
"""Eager launches in a row, of a round's trace and as many without."""

HOST_CALLS = 20

SAMPLED_ROWS = 16
"""Rows of every rank's shard that are compared with float64."""

Say = Callable[[str], object]


class Timer(Protocol):
    """What measures time; on a GPU kosmos.benchmark.timer.GpuTimer."""

    def capture(self, name: str, call: Callable[[], torch.Tensor], inner: int) -> Loop:
        """Compile and warm up `call`, and make `inner` calls of it ready to be replayed."""

    def burst(self, loop: Loop) -> float:
        """ms of one call, from one replay on a device at rest."""

    def clock_mhz(self) -> float | None:
        """The SM clock now; None where it cannot be read."""

    def sustain(self, loop: Loop, seconds: float) -> Sustained:
        """Replay back to back for so long."""

    def launches(self, call: Callable[[], object], count: int, ahead: Loop) -> list[float]:
        """ms of the kernel in each of `count` eager calls in a row; `ahead` is replayed while they are enqueued."""

    def host(self, call: Callable[[], object], count: int) -> list[float]:
        """µs that the host spends in each of `count` calls."""

    def machine(self) -> dict[str, Any]:
        """What is timed, for the header."""


class _Untold(record):
    """A recording of which nobody wants the trace: making it would take longer than the launch."""

    def add(self, finish: Callable[[], Any]) -> None:
        pass


class _Wrong(KosmosError):
    """A result that is not what it should be."""


def measure(
    cases: str | Case | Iterable[str | Case],
    rounds: int,
    sustained_s: float,
    turns: int,
    seed: int,
    output: str | os.PathLike[str] | None = None,
    device: str | torch.device | None = None,
    say: Say | None = None,
    timer: Timer | None = None,
    results: Results | None = None,
) -> Results:
    """kosmos.bench; into `results`, if given, so that a caller who is interrupted has what there is."""
    chosen = _chosen(cases)
    _check(rounds, sustained_s, turns, seed)
    if output is not None:
        refuse_unwritable(output, KosmosArgumentError)
    if timer is None:
        timer = GpuTimer(_gpu(device))
        device = timer.device
    say = say or (lambda line: print(line, file=sys.stderr, flush=True))
    results = Results() if results is None else results
    results.header.update(_header(timer, rounds, sustained_s, turns, seed))
    started = time.monotonic()
    for number, case in enumerate(chosen, 1):
        measured = Measured(case)
        results.cases.append(measured)

        def tell(what: str, number=number, case=case) -> None:
            say(f"{time.monotonic() - started:6.1f} s  {number} of {len(chosen)}, {case.name}: {what}")

        try:
            shuffle = random.Random(f"{seed} {case}")
            _measure(measured, timer, rounds, sustained_s, turns, shuffle, seed, device, tell)
        except (KosmosTimeout, _Wrong) as error:
            measured.failed = str(error)
        except KosmosError as error:
            if not case.set:
                raise
            measured.skipped = str(error)
        except Exception as error:
            measured.skipped = _no_room(error)
            if not measured.skipped:
                raise
        _forget(timer)
        if measured.failed or measured.skipped:
            tell(f"FAILED, {measured.failed}" if measured.failed else f"skipped, {measured.skipped}")
        if output is not None:
            results.save(output)
    results.header["ended"] = now()
    if output is not None:
        results.save(output)
    return results


def _chosen(cases: str | Case | Iterable[str | Case]) -> list[Case]:
    several = [cases] if isinstance(cases, str | Case) else list(cases)
    if not several or not all(isinstance(one, str | Case) for one in several):
        raise KosmosArgumentError("cases must be the name of a set, a kosmos.benchmark.Case, or several of these")
    return [case for one in several for case in (cases_of(one) if isinstance(one, str) else [one])]


def _check(rounds: int, sustained_s: float, turns: int, seed: int) -> None:
    for name, value in (("rounds", rounds), ("turns", turns)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise KosmosArgumentError(f"{name}={value!r} must be a whole number, 1 or more")
    if not (sustained_s == 0 or 1 <= sustained_s <= 3600):
        raise KosmosArgumentError(f"sustained_s={sustained_s!r} must be from 1 to 3600 seconds, or 0 for none")
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise KosmosArgumentError(f"seed={seed!r} must be a whole number, 0 or more")


def _gpu(device: str | torch.device | None) -> torch.device:
    if not torch.cuda.is_available():
        raise KosmosEnvironmentError("a benchmark needs a GPU, and torch sees none: the emulator's times are a model's")
    target = torch.device("cuda") if device is None else World.virtual(1, device=device).device
    if target.type != "cuda":
        raise KosmosArgumentError(f"device={device!r}: a benchmark needs a GPU, the emulator's times are a model's")
    return torch.device("cuda", torch.cuda.current_device() if target.index is None else target.index)


def _header(timer: Timer, rounds: int, sustained_s: float, turns: int, seed: int) -> dict[str, Any]:
    return {
        **timer.machine(),
        **provenance(),
        "seed": seed,
        "rounds": rounds,
        "sustained_s": sustained_s,
        "turns": turns,
    }


def provenance() -> dict[str, Any]:
    """For the header of a file: the versions, when it began, and the command of this process, its files without their
    folders, which are of nobody's interest elsewhere."""
    return {
        "versions": {
            "kosmos": kosmos.__version__,
            "torch": torch.__version__,
            "triton": triton.__version__,
            "python": platform.python_version(),
        },
        "started": now(),
        "ended": None,
        "command": shlex.join(["kosmos", *map(_without_folder, sys.argv[1:])]),
    }


def _without_folder(word: str) -> str:
    """A word of a command line; of a path, also one behind its option (-oPATH, --output=PATH), the file's name."""
    return re.sub(r"^(-o|--[a-z-]+=)?.*/", r"\1", word)


def now() -> str:
    """The time of the day in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _no_room(error: Exception) -> str:
    """One sentence if the case is too large for this machine, else nothing."""
    text = " ".join(str(error).split())
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and ("memory" in text or "ALLOC_FAILED" in text) and "illegal" not in text
    ):
        return f"not enough memory ({text.partition('. ')[0] or type(error).__name__})"
    if isinstance(error, triton.OutOfResources):
        return f"the kernel does not fit this GPU ({text.partition('. ')[0]})"
    return ""


def _forget(timer: Timer) -> None:
    """Give back the memory of a case: a world and its plans hold each other."""
    if isinstance(timer, GpuTimer):
        gc.collect()
        torch.cuda.empty_cache()


def _measure(
    measured: Measured,
    timer: Timer,
    rounds: int,
    sustained_s: float,
    turns: int,
    shuffle: random.Random,
    seed: int,
    device: str | torch.device | None,
    tell: Say,
) -> None:
    """Measure one case. What is measured is in `measured` as soon as it is."""
    case = measured.case
    world = World.virtual(case.ranks, case.workgroups, device, link_gbps=case.link_gbps)
    measured.workgroups = world.workgroups
    x, w = operands(world, case.op, case.m, case.n, case.k, getattr(torch, DTYPES[case.dtype]), seed)
    bench = _Bench(measured, timer, world, x, w)

    measured.runs += _runs(case, world)
    loops = bench.prepare(tell)
    default = loops["default"]

    tell(f"burst, {len(loops)} variants, {rounds} rounds")
    runs = {run.name: run for run in measured.runs}
    for turn in range(rounds + 1):
        for name in shuffle.sample(list(loops), len(loops)):
            ms = timer.burst(loops[name])
            if turn:
                runs[name].burst_ms.append(ms)
        if turn:
            measured.burst_mhz.append(timer.clock_mhz())
        world.synchronize()

    tell("trace")
    call = bench.call(runs["default"])
    for turn in range(rounds + 1):
        both: dict[bool, list[float]] = {}
        for traced in shuffle.sample([False, True], 2):
            if traced:
                with _Untold():
                    both[traced] = timer.launches(call, LAUNCHES, default)
            else:
                both[traced] = timer.launches(call, LAUNCHES, default)
        world.synchronize()
        if turn and all(both.values()):
            measured.untraced_ms.append(both[False])
            measured.traced_ms.append(both[True])

    if sustained_s:
        lasting = _lasting(measured)
        tell(f"sustained, {len(lasting)} variants of {sustained_s:g} s, {turns} {'turns' if turns > 1 else 'turn'}")
        told: dict[str, list[Sustained]] = {run.name: [] for run in lasting}
        for _ in range(turns):
            for run in shuffle.sample(lasting, len(lasting)):
                told[run.name].append(timer.sustain(loops[run.name], sustained_s))
                run.sustained_ms.append(told[run.name][-1].ms)
                run.clock_mhz = _mean(one.clock_mhz for one in told[run.name])
                run.power_w = _mean(one.power_w for one in told[run.name])
            world.synchronize()

    for name in ("default", case.base):
        runs[name].host_us = timer.host(bench.call(runs[name]), HOST_CALLS)
    world.synchronize()


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if known else None


def _runs(case: Case, world: World) -> list[Run]:
    """The variants of a case: baselines, every policy in every order, and the fixed crews that nobody asked for."""
    order = case.default_order
    runs = [Run("unfused", "baseline")] if case.base == "unfused" else []
    runs += [Run("gemm", "baseline"), Run("default", "default", None, order)]
    runs += [Run("default again", "again", None, order)]
    policies = dict.fromkeys([None, *(str(Policy.parse(policy)) for policy in case.policies)])
    for policy, where in itertools.product(policies, dict.fromkeys([order, *case.orders])):
        if (policy, where) != (None, order):
            name = (policy or "default") + (f", {where}" if where != order else "")
            runs.append(Run(name, "asked", policy, where))
    if case.ranks > 1:
        names = {run.name for run in runs}
        crews = [crew for crew in sorted({*case.crews}) if crew < world.workgroups]
        swept = [Run(f"fixed:{crew}", "swept", f"fixed:{crew}", order) for crew in crews]
        runs += [run for run in swept if run.name not in names]
    return runs


def _lasting(measured: Measured) -> list[Run]:
    """What runs back to back: all but the noise's twin and the swept crews between the best and the worst."""
    ends = [run.name for run in (measured.fixed[:1] + measured.fixed[-1:])]
    return [run for run in measured.timed if run.part in ("baseline", "default", "asked") or run.name in ends]


class _Bench:
    """The variants of one case as calls."""

    def __init__(self, measured: Measured, timer: Timer, world: World, x: torch.Tensor, w: torch.Tensor) -> None:
        self.measured, self.timer, self.world, self.x, self.w = measured, timer, world, x, w
        self.case = measured.case
        self.op = getattr(ops, self.case.op)
        self.baselines = baselines(self.case.op, x, w)

    def call(self, run: Run) -> Callable[[], torch.Tensor]:
        """One call of a variant."""
        if run.part == "baseline":
            return self.baselines[run.name]
        return lambda: self.op(self.x, self.w, world=self.world, policy=run.policy, order=run.order)

    def prepare(self, tell: Say) -> dict[str, Loop]:
        """The variants ready to be timed, by name, each with a result that was checked."""
        runs = self.measured.runs
        tell(f"preparing {len(runs)} variants")
        # the GEMM says how many calls make a replay
        once = self.timer.capture("gemm", self.baselines["gemm"], 1)
        shortest = min(self.timer.burst(once) for _ in range(3))
        self.measured.inner = min(MOST_CALLS, max(1, round(REPLAY_MS / shortest)))
        del once
        loops, first = {}, None
        for run in runs:
            try:
                loop = self.timer.capture(run.name, self.call(run), self.measured.inner)
                self.world.synchronize()
            except KosmosTimeout as error:
                raise _Wrong(f"{run.name}: {error}") from None
            except KosmosError as error:
                if run.part == "default" or not self.case.set:
                    raise
                run.left_out = str(error)
                continue
            first = self._check(run, loop, first)
            loops[run.name] = loop
        return loops

    def _check(self, run: Run, loop: Loop, first: torch.Tensor | None) -> torch.Tensor | None:
        """Replay over NaN and compare, with float64 and with `first`, the first fused result; returns that."""
        fused = run.part != "baseline"
        if run.name == "gemm" and self.case.op == "matmul_reduce_scatter":
            return first  # half an op
        scratch = self._plan(run).scratch.values() if fused else self.baselines.scratch * (run.name == "unfused")
        for tensor in (loop.output, *scratch):
            tensor.fill_(float("nan"))
        loop.replay()
        self.world.synchronize()
        y = loop.output.view(self.world.ranks, -1, self.w.shape[1])
        if not y.isfinite().all():
            run.error = float("nan")
            raise _Wrong(f"{run.name}: the result is wrong, parts of it were not written or are not finite")
        run.error = _sampled_error(self.case, self.x, self.w, y)
        allowed = TOLERANCE[self.x.dtype]
        if not run.error <= allowed:
            raise _Wrong(f"{run.name}: the result is wrong, off by {run.error:.1e}; {allowed:g} is allowed")
        if not fused:
            return first
        if first is None:
            return y.clone()
        if not torch.equal(y, first):
            raise _Wrong(f"{run.name}: the result is wrong, its bits are not those of the default policy")
        return first

    def _plan(self, run: Run):
        """The plan of a fused variant; notes which policy runs."""
        case = self.case
        plan = plan_for(self.world, case.op, case.m, case.n, case.k, self.x, self.w, run.policy, run.order)
        run.ran = str(plan.policy)
        return plan


class _Baselines(dict):
    """The calls "unfused" and "gemm". scratch: what "unfused" has to write before it reads it."""

    scratch: tuple[torch.Tensor, ...] = ()


def baselines(op: str, x: torch.Tensor, w: torch.Tensor) -> _Baselines:
    ranks, rows, k = x.shape
    n = w.shape[1]
    across = w.transpose(1, 2)

    def new(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=x.dtype, device=x.device)

    if op == "all_gather_matmul":
        whole = x.flatten(0, 1)
        gathered, y = whole.repeat(ranks, 1, 1), new(ranks, ranks * rows, n)

        def gemm() -> torch.Tensor:
            for rank in range(ranks):
                torch.mm(gathered[rank], across[rank], out=y[rank])
            return y

        def unfused() -> torch.Tensor:
            for rank in range(ranks):
                gathered[rank].copy_(whole)
                torch.mm(gathered[rank], across[rank], out=y[rank])
            return y

        found = _Baselines(gemm=gemm, unfused=unfused)
        found.scratch = (gathered,)
        return found

    part, total = new(ranks, rows, n), new(rows, n)

    def gemms() -> torch.Tensor:
        for rank in range(ranks):
            torch.mm(x[rank], across[rank], out=part[rank])
        return part

    def summed() -> torch.Tensor:
        gemms()
        return torch.sum(part, 0, out=total)

    found = _Baselines(gemm=gemms, unfused=summed)
    found.scratch = (part,)
    return found


def _sampled_error(case: Case, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> float:
    """Relative error of y against float64 on some rows of every rank's shard, the first and the last among them."""
    shard = case.m // case.ranks
    chosen = torch.linspace(0, shard - 1, min(shard, SAMPLED_ROWS)).round().long().unique()
    rows = (torch.arange(case.ranks)[:, None] * shard + chosen).to(x.device)
    if case.op == "all_gather_matmul":
        return relative_error(case.op, x.flatten(0, 1)[rows], w, y[:, rows.flatten()])
    return relative_error(case.op, x[:, rows.flatten()], w, y.flatten(0, 1)[rows])
