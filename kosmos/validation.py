"""How well the simulator predicts launches on a GPU that its machine has not been fitted to.

    python -m kosmos.validation traces/h200/validation [--png OUT]

The machine is fitted to half of the recorded settings, by the service times in their traces and not by their makespans;
the other half is predicted from nothing but queues, policy and that machine.
"""

import argparse
import hashlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosArgumentError, KosmosError
from kosmos.machine import Machine, machine_named
from kosmos.machine.fit import Fit
from kosmos.schedule import QUEUES, Policy, Queues, Tile
from kosmos.schedule.queues import group_for
from kosmos.simulator import simulate_queues
from kosmos.trace import Trace

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DIFFERS = 0.03
"""Runs whose measured makespans differ by more than this have a rank that the model has to get right."""

KINDS = ("mover", "builder", "reducer", "wait", "idle")


def recordings(folder: str | Path) -> dict[str, Trace]:
    """The traces of a folder, by the names of their files. Raises KosmosArgumentError if there are none."""
    found = {path.stem: Trace.load(path) for path in sorted(Path(folder).glob("*.parquet"))}
    if not found:
        raise KosmosArgumentError(f"folder={str(folder)!r} has no .parquet files; traces/h200/validation has")
    return found


def split(names: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Which settings are fitted to, and which are held out: every other one, in the order of their names' SHA-256."""
    shuffled = sorted(names, key=lambda name: hashlib.sha256(name.encode()).hexdigest())
    return sorted(shuffled[::2]), sorted(shuffled[1::2])


def queues_of(trace: Trace) -> Queues:
    """The queues of a recorded launch, made anew."""
    meta, shape, tile = trace.meta, trace.meta["shape"], Tile(*trace.meta["tile"])
    return QUEUES[meta["op"]](
        m=shape["m"],
        n=shape["n"],
        k=shape["k"],
        ranks=trace.ranks,
        tile=tile,
        order=meta["order"],
        group=group_for(trace.workgroups, tile),
    )


def predict(recorded: Trace, gpu: Machine) -> Trace:
    """What the model says of a recorded launch. gpu: the whole of the GPU that the ranks of the launch shared."""
    meta, shape, tile = recorded.meta, recorded.meta["shape"], Tile(*recorded.meta["tile"])
    machine = gpu.split(recorded.ranks)
    if meta.get("link_gbps"):
        machine = machine.with_link(meta["link_gbps"])
    asked, _, settled = meta["policy"].rstrip(")").partition(" (")  # "planned (fixed:5)"
    return simulate_queues(
        queues_of(recorded),
        Policy.parse(settled or asked),
        machine,
        recorded.workgroups,
        k=shape["k"],
        tile=tile,
        flatten=machine.flatten and tuple(tile) == machine.tile,
        meta={name: meta[name] for name in ("shape", "dtype", "order", "link_gbps")},
    )


@dataclass(frozen=True)
class Prediction:
    """One setting: what was measured, and what the model says."""

    name: str
    held_out: bool
    measured: Trace
    model: Trace

    @property
    def makespans_ns(self) -> tuple[int, int]:
        """Measured, and the model's."""
        return self.measured.summary()["makespan_ns"], self.model.summary()["makespan_ns"]

    @property
    def error(self) -> float:
        """Of the model's makespan, relative."""
        measured, model = self.makespans_ns
        return model / measured - 1

    @property
    def noise(self) -> float:
        """How far the launches of the setting lay apart, relative."""
        launches = self.measured.meta.get("makespans_ns") or [1]
        return (max(launches) - min(launches)) / float(np.median(launches))

    def like(self) -> tuple:
        """What two settings must have in common for their policies or orders to be compared."""
        meta = self.measured.meta
        return meta["op"], self.measured.ranks, *sorted(meta["shape"].items()), meta.get("link_gbps")


@dataclass(frozen=True)
class Pair:
    """Two settings that differ in one thing. ratios: how many times as long the second took, measured and in the
    model."""

    differ: str  # policy or order
    first: Prediction
    second: Prediction
    ratios: tuple[float, float]

    @property
    def right(self) -> bool:
        """Whether the model says, too, which one is faster."""
        return (self.ratios[0] > 1) == (self.ratios[1] > 1)


@dataclass(frozen=True)
class Validation:
    """What `validate` makes."""

    fit: Fit
    predictions: list[Prediction]

    def errors(self, held_out: bool = True) -> np.ndarray:
        """The absolute relative errors of the makespans of one half."""
        return np.array([abs(one.error) for one in self.predictions if one.held_out == held_out])

    def share_errors(self, held_out: bool = True) -> dict[str, np.ndarray]:
        """For each role, wait and idle the model's share of all workgroups' time less the measured one."""
        chosen = [one for one in self.predictions if one.held_out == held_out]
        summaries = [(one.measured.summary(), one.model.summary()) for one in chosen]
        return {
            kind: np.array([model[kind] - measured[kind] for measured, model in summaries if kind in measured])
            for kind in KINDS
        }

    def pairs(self) -> list[Pair]:
        """All pairs of settings with a held-out one among them that differ in policy or order alone, and measured by
        more than DIFFERS."""
        found = []
        for one, other in combinations(self.predictions, 2):
            if one.like() != other.like() or not (one.held_out or other.held_out):
                continue
            differ = [name for name in ("policy", "order") if one.measured.meta[name] != other.measured.meta[name]]
            ratios = [b / a for a, b in zip(one.makespans_ns, other.makespans_ns)]
            if len(differ) == 1 and max(ratios[0], 1 / ratios[0]) > 1 + DIFFERS:
                found.append(Pair(differ[0], one, other, (ratios[0], ratios[1])))
        return found

    @property
    def table(self) -> pa.Table:
        """A row for every setting: name, half, makespans in ns, error and noise, shares measured and of the model."""
        rows = []
        for one in self.predictions:
            measured, model = one.makespans_ns
            row: dict[str, Any] = {
                "name": one.name,
                "half": "held out" if one.held_out else "fitted",
                "measured_ns": measured,
            }
            row |= {"model_ns": model, "error": one.error, "noise": one.noise}
            for kind in KINDS:
                row[kind] = one.measured.summary().get(kind)
                row[f"{kind}_model"] = one.model.summary().get(kind)
            rows.append(row)
        return pa.Table.from_pylist(rows)

    def __str__(self) -> str:
        lines = [str(self.fit), ""]
        lines += [f"{'setting':76} {'half':8} {'measured µs':>11} {'model µs':>9} {'error':>7} {'noise':>6}"]
        for row in self.table.to_pylist():
            name = row["name"].replace("all_gather_matmul", "AG").replace("matmul_reduce_scatter", "RS")
            lines.append(
                f"{name:76} {row['half']:8} {row['measured_ns'] / 1e3:11,.0f} {row['model_ns'] / 1e3:9,.0f} "
                f"{100 * row['error']:+6.1f}% {100 * row['noise']:5.1f}%"
            )
        lines += ["", self.summary()]
        return "\n".join(lines)

    def summary(self) -> str:
        """The few numbers that count."""
        lines = []
        for held_out, what in ((False, "fitted half "), (True, "held-out half")):
            errors = 100 * self.errors(held_out)
            lines.append(
                f"{what:13}: {len(errors)} settings, error of the makespan: median {np.median(errors):.1f} %, "
                f"90th percentile {np.quantile(errors, 0.9):.1f} %, largest {errors.max():.1f} %"
            )
        shares = [
            f"{kind} {100 * np.median(np.abs(off)):.1f} (at most {100 * np.abs(off).max():.1f})"
            for kind, off in self.share_errors().items()
        ]
        lines.append(f"shares of the workgroups' time, off by percentage points in the median: {', '.join(shares)}")
        pairs = self.pairs()
        for differ in ("policy", "order"):
            right = [pair.right for pair in pairs if pair.differ == differ]
            lines.append(
                f"pairs that differ in {differ} alone, and measured by more than {100 * DIFFERS:.0f} %: the faster one "
                f"is right in {sum(right)} of {len(right)}"
            )
        for pair in pairs:
            if not pair.right:
                lines.append(
                    f"  wrong: {pair.first.name} against {pair.second.measured.meta[pair.differ]}: measured "
                    f"{pair.ratios[0]:.3f}, model {pair.ratios[1]:.3f}"
                )
        return "\n".join(lines)

    def plot(self) -> "Figure":
        """The model's makespans and shares against the measured ones; filled: held out."""
        from matplotlib.ticker import NullLocator

        from kosmos.plots import NotebookFigure
        from kosmos.trace.colours import PALETTE

        figure = NotebookFigure(figsize=(10, 4.6), layout="constrained")
        left, right = figure.subplots(1, 2)
        ops = {"all_gather_matmul": ("o", "mover"), "matmul_reduce_scatter": ("s", "reducer")}
        for op, (marker, role) in ops.items():
            for held_out in (False, True):
                chosen = [one for one in self.predictions if one.held_out == held_out and one.measured.meta["op"] == op]
                spans = np.array([one.makespans_ns for one in chosen]).reshape(-1, 2) / 1e6
                left.scatter(
                    *spans.T,
                    marker=marker,
                    s=26,
                    edgecolors=PALETTE[role],
                    facecolors=PALETTE[role] if held_out else "none",
                    label=f"{op}, {'held out' if held_out else 'fitted to'}",
                )
        low, high = (f(span for one in self.predictions for span in one.makespans_ns) / 1e6 for f in (min, max))
        ends = np.array([low / 1.15, high * 1.15])
        left.plot(ends, ends, color="#777777", lw=1)
        left.fill_between(ends, ends / 1.1, ends * 1.1, color="#777777", alpha=0.2, lw=0, label="within 10 %")
        left.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        ticks = [tick for tick in (0.25, 0.5, 1, 2, 4, 8) if ends[0] < tick < ends[1]]
        for axis in (left.xaxis, left.yaxis):
            axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            axis.set_minor_locator(NullLocator())
        left.set(xlabel="measured makespan (ms)", ylabel="makespan of the model (ms)")
        left.set_title("Makespan (model against measured)", loc="left", fontsize=11)
        left.legend(fontsize=8)

        colours = {**PALETTE, "wait": "#777777", "idle": "#CC79A7"}
        for kind, marker in zip(KINDS, "ovs^D"):
            shares = [
                (measured[kind], model[kind])
                for one in self.predictions
                if one.held_out
                for measured, model in [(one.measured.summary(), one.model.summary())]
                if kind in measured
            ]
            right.scatter(*(100 * np.array(shares)).T, s=22, marker=marker, color=colours[kind], label=kind)
        right.plot([0, 100], [0, 100], color="#777777", lw=1)
        right.set(xlabel="measured share of the workgroups' time (%)", ylabel="share of the model (%)")
        right.set(xlim=(-2, 102), ylim=(-2, 102))
        right.set_title("Where the time goes, held-out half", loc="left", fontsize=11)
        right.legend(fontsize=8)
        return figure


def validate(traces: Mapping[str, Trace] | str | Path, machine: str | Machine = "H200") -> Validation:
    """Fit a machine to half of the traces and predict them all.

    traces: by name, or the folder that they are in: launches of virtual ranks on one GPU. machine: the whole GPU, whose
    free parameters are fitted.
    """
    found = recordings(traces) if isinstance(traces, str | Path) else dict(traces)
    fitted, held_out = split(found)
    if not held_out:
        raise KosmosArgumentError(f"traces: {len(found)} are too few to hold half of them out; 2 are the fewest")
    fit = machine_named(machine).fit([found[name] for name in fitted])
    return Validation(
        fit,
        [Prediction(name, name in set(held_out), trace, predict(trace, fit.machine)) for name, trace in found.items()],
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kosmos.validation", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path, help="of recorded traces, as traces/record_validation.py makes them")
    parser.add_argument("--machine", default="H200", help="the GPU that they were recorded on; default: H200")
    parser.add_argument("--png", metavar="OUT", help="draw model against measured")
    given = parser.parse_args()
    try:
        found = validate(given.folder, given.machine)
    except KosmosError as error:
        print(f"kosmos.validation: {error}", file=sys.stderr)
        return 2
    print(found)
    if given.png:
        found.plot().savefig(given.png, dpi=150)
    return 0


if __name__ == "__main__":
    sys.exit(main())
