"""What a benchmark measured: its file and its statistics.

The file is JSON and holds what was measured, every sample of it; medians, quartiles and ratios are computed when it is
read:

    {"kosmos": "bench", "format": 2,
     "header": {                      what, where, when; null for what could not be read
       "machine", "units", "memory_gib", "driver", "runtime", "max_clock_mhz", "power_limit_w", "sensors",
       "versions": {"kosmos", "torch", "triton", "python"}, "started", "ended" (UTC, null: it ended early), "command",
       "seed", "rounds", "sustained_s", "turns"},
     "cases": [{
       "case": {"op", "m", "n", "k", "ranks", "dtype", "policies", "orders", "crews", "link_gbps",
                "workgroups", "name", "set"},
       "workgroups",                  of a rank
       "inner",                       calls in one replay
       "skipped", "failed",           a sentence each: why there are no numbers, or no more; what is wrong; or ""
       "burst_mhz",                   [round]: the SM clock after a round of bursts, or null
       "traced_ms", "untraced_ms",    [round][launch]: eager launches of the default policy's kernel
       "runs": [{
         "name",                      "unfused", "gemm", "default", "default again", "fixed:4", "fixed:4, row", ...
         "part",                      "baseline", "default", "again", "asked" or "swept"
         "policy", "order",           as asked; null for a baseline, and for the default policy
         "ran",                       the policy that ran: "one_way:6" for the default one
         "error",                     relative, against float64 on some rows; null where nothing is compared
         "burst_ms",                  [round]: one call, on a device at rest before
         "sustained_ms",              [turn][replay]: one call, back to back, in order of time
         "clock_mhz", "power_w",      means over the last halves of the sustained turns, or null
         "host_us",                   [call]: what the host spends in an eager call
         "left_out"                   why it was not measured, or ""
       }]}]}

Times are milliseconds of one call of all ranks together, as floats. In format 1 there was one turn: [replay].
"""

import dataclasses
import itertools
import json
import math
import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kosmos.benchmark.cases import Case
from kosmos.errors import KosmosArgumentError
from kosmos.files import path_text, whole_file
from kosmos.schedule import Policy

FORMAT = 2

Quartiles = tuple[float, float, float]


@dataclass
class Run:
    """One variant of a case and what was measured of it: the file's "runs"."""

    name: str
    part: str
    policy: str | None = None
    order: str | None = None
    ran: str | None = None
    error: float | None = None
    burst_ms: list[float] = field(default_factory=list)
    sustained_ms: list[list[float]] = field(default_factory=list)
    clock_mhz: float | None = None
    power_w: float | None = None
    host_us: list[float] = field(default_factory=list)
    left_out: str = ""

    @property
    def kind(self) -> str:
        """Of the policy that ran: "fixed", "one_way" or "two_way"; "" for a baseline."""
        return (self.ran or "").partition(":")[0]

    @property
    def crew(self) -> int:
        """Of the policy that ran; 0 for a baseline."""
        return int((self.ran or "").partition(":")[2] or 0)

    @property
    def median(self) -> float:
        """Of the burst samples, in ms."""
        return quartiles(self.burst_ms)[1]

    @property
    def turns(self) -> list[float]:
        """Of each sustained turn the mean ms of a call over the last half of the time."""
        found = []
        for turn in self.sustained_ms:
            ms = np.array(turn)
            ends = ms.cumsum()
            found.append(float(ms[ends > ends[-1] / 2].mean()))
        return found

    @property
    def sustained(self) -> float | None:
        """The median of the sustained turns, in ms; None if there are none."""
        return statistics.median(self.turns) if self.sustained_ms else None


@dataclass
class Measured:
    """A case and what was measured of it: the file's "cases"."""

    case: Case
    workgroups: int = 0
    inner: int = 1
    skipped: str = ""
    failed: str = ""
    burst_mhz: list[float | None] = field(default_factory=list)
    traced_ms: list[list[float]] = field(default_factory=list)
    untraced_ms: list[list[float]] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)

    def run(self, name: str) -> Run | None:
        """The variant of that name, if it was timed."""
        return next((run for run in self.timed if run.name == name), None)

    @property
    def timed(self) -> list[Run]:
        """The variants with burst samples."""
        return [run for run in self.runs if run.burst_ms]

    @property
    def base(self) -> Run | None:
        """What the ratios are against."""
        return self.run(self.case.base)

    @property
    def in_order(self) -> list[Run]:
        """The variants that were asked for with a crew, or swept, in the default order."""
        return [run for run in self.timed if run.policy == run.ran and run.order == self.case.default_order]

    @property
    def fixed(self) -> list[Run]:
        """The fixed crews in the default order, from the fastest to the slowest."""
        runs = [run for run in self.in_order if run.kind == "fixed"]
        return sorted(runs, key=lambda run: run.median)

    @property
    def bound_ms(self) -> float | None:
        """What no kernel can beat: the GEMMs alone, or the links."""
        gemm = self.run("gemm")
        return max(gemm.median, self.case.link_ms or 0) if gemm else None

    @property
    def trace_cost(self) -> Quartiles | None:
        """Quartiles of how much longer a launch takes with a trace; 0.01 is a hundredth. Round by round."""
        if not self.traced_ms:
            return None
        pairs = zip(self.traced_ms, self.untraced_ms)
        return quartiles([statistics.mean(traced) / statistics.mean(untraced) - 1 for traced, untraced in pairs])


def quartiles(samples: list[float]) -> Quartiles:
    """First quartile, median, third quartile."""
    low, middle, high = np.quantile(samples, [0.25, 0.5, 0.75])
    return float(low), float(middle), float(high)


def ratio(base: Run, run: Run) -> Quartiles:
    """Quartiles of how many times as fast as `base` `run` is: pairs of the same round."""
    return quartiles([a / b for a, b in zip(base.burst_ms, run.burst_ms)])


def sustained_ratio(base: Run, run: Run) -> Quartiles | None:
    """The same for sustained runs: pairs of the same turn. None if there are none."""
    pairs = [a / b for a, b in zip(base.turns, run.turns)]
    return quartiles(pairs) if pairs else None


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


@dataclass
class Results:
    """All that one benchmark measured."""

    header: dict[str, Any] = field(default_factory=dict)
    cases: list[Measured] = field(default_factory=list)

    @property
    def well(self) -> bool:
        """Whether nothing is wrong and something was measured."""
        return not any(measured.failed for measured in self.cases) and any(measured.timed for measured in self.cases)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, whole or not at all. Raises KosmosArgumentError if it cannot be written."""
        content = {"kosmos": "bench", "format": FORMAT, **dataclasses.asdict(self)}
        # JSON has no NaN, which is the error of a result that has one
        for measured in content["cases"]:
            for run in measured["runs"]:
                if run["error"] is not None and not math.isfinite(run["error"]):
                    run["error"] = repr(run["error"])
        with whole_file(path, KosmosArgumentError) as file:
            file.write((json.dumps(content, allow_nan=False) + "\n").encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Results":
        """Read such a file. Raises KosmosArgumentError if it is none, or damaged, or newer than this version."""
        from kosmos.benchmark.table import table  # an error in here is none of the file's

        path = path_text(path, KosmosArgumentError)
        content = content_of(path, "bench", (1, FORMAT), "benchmark")
        try:
            if content["format"] == 1:
                for run in itertools.chain(*(measured["runs"] for measured in content["cases"])):
                    run["sustained_ms"] = [run["sustained_ms"]] if run["sustained_ms"] else []
            results = cls(dict(content["header"]), [_measured(measured) for measured in content["cases"]])
            table(results)  # says everything, so that it is known to be readable
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            raise KosmosArgumentError(f"{path}: is a damaged benchmark: its content contradicts itself") from None
        return results

    def __str__(self) -> str:
        from kosmos.benchmark.table import table

        return table(self)

    def plot(self):
        """A matplotlib Figure of the ratios, with their spread."""
        from kosmos.benchmark.figure import figure

        return figure(self)


def _measured(content: dict[str, Any]) -> Measured:
    case = Case(**content["case"])
    runs = [Run(**run) for run in content["runs"]]
    measured = Measured(**{**content, "case": case, "runs": runs})
    rounds = [[mhz for mhz in measured.burst_mhz if mhz is not None], *measured.traced_ms, *measured.untraced_ms]
    for run in runs:
        run.error = None if run.error is None else float(run.error)
        if run.ran is not None:
            Policy.parse(run.ran)
        rounds += [run.burst_ms, *run.sustained_ms, run.host_us]
        if not all(run.sustained_ms):
            raise ValueError("a turn is empty")
    for sample in itertools.chain(*rounds):
        if not (isinstance(sample, int | float) and 0 < sample < math.inf):
            raise ValueError("a sample is no positive number")
    return measured


def content_of(path: str, kind: str, formats: Sequence[int], what: str) -> dict[str, Any]:
    """The JSON of a file {"kosmos": kind, "format": one of these, ...}, which errors call a `what`.

    Raises KosmosArgumentError if the file is none.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except OSError as error:
        raise KosmosArgumentError(f"{path}: cannot be read ({error.strerror or error})") from None
    except (ValueError, RecursionError):
        raise KosmosArgumentError(f"{path}: is not JSON, so no {what} of KOSMOS") from None
    if not isinstance(content, dict) or content.get("kosmos") != kind:
        raise KosmosArgumentError(f"{path}: is JSON, but no {what} of KOSMOS")
    if content.get("format") not in formats:
        reads = " and ".join(map(str, formats))
        raise KosmosArgumentError(f"{path}: has format {content.get('format')!r}; this version reads {reads}")
    return content
