"""The paper's experiments on the model of its machine: python -m kosmos.paper

Eight ranks of MI350X, the linear layers of Llama-3 8B, 70B and 405B as tensor parallelism divides them, M = 8192. The
paper is arXiv 2611.07477; all other numbers are the model's. The model has been fitted to an H200 and takes the rest
from data sheets: nothing in it has been chosen to meet the paper's numbers.
"""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kosmos.simulator import simulate, sweep
from kosmos.trace import Trace

RANKS = 8
M = 8192
HEAD = 128
MODELS = {  # hidden, ffn, heads, key-value heads
    "8B": (4096, 14336, 32, 8),
    "70B": (8192, 28672, 64, 8),
    "405B": (16384, 53248, 128, 8),
}
AG, RS = "all_gather_matmul", "matmul_reduce_scatter"
ATTENTION, MLP = ("QKV", "proj"), ("fc1", "fc2")
CREWS = (4, 8, 12, 16, 24, 32, 48, 64, 96, 128, 160, 192, 224)
ORDERS = {AG: ("local_first", "rank", "random:1"), RS: ("band", "row", "random:1")}
SLACK = 0.01
"""One-way is said to lose to the best fixed crew if it is slower by more than this."""


@dataclass(frozen=True)
class Layer:
    """A fused layer of a model: the GEMM that each of the 8 ranks runs."""

    model: str
    name: str
    op: str
    m: int
    n: int
    k: int

    @property
    def shape(self) -> dict[str, int]:
        return {"m": self.m, "n": self.n, "k": self.k}


def layers(models: Iterable[str] = tuple(MODELS)) -> list[Layer]:
    """The four fused layers of each model: column-parallel ones after a gather, row-parallel ones before a scatter."""
    found = []
    for model in models:
        hidden, ffn, heads, kv = MODELS[model]
        found += [
            Layer(model, "QKV", AG, M, (heads + 2 * kv) * HEAD // RANKS, hidden),
            Layer(model, "proj", RS, M, hidden, heads * HEAD // RANKS),
            Layer(model, "fc1", AG, M, 2 * ffn // RANKS, hidden),  # SwiGLU: gate and up
            Layer(model, "fc2", RS, M, hidden, ffn // RANKS),
        ]
    return found


@dataclass(frozen=True)
class Measured:
    """A layer's makespans in ns: fixed and one_way by crew, planned, and the default policy's by order."""

    layer: Layer
    fixed: dict[int, int]
    one_way: dict[int, int]
    planned: int
    orders: dict[str, int]
    orders_fixed: dict[str, int]  # of the best fixed crew
    link_bound: float  # the links' lower bound over the best makespan

    @property
    def best_fixed(self) -> int:
        return min(self.fixed, key=lambda crew: self.fixed[crew])

    @property
    def gain(self) -> float:
        """How many times as fast the best one-way run is as the best fixed one."""
        return min(self.fixed.values()) / min(self.one_way.values())

    @property
    def default_gain(self) -> float:
        """The same of the default one-way crew, which nobody has searched for."""
        return min(self.fixed.values()) / next(iter(self.orders.values()))

    def loses(self) -> list[int]:
        """One-way's starting crews from which it is slower than the best fixed crew."""
        return [crew for crew, ns in self.one_way.items() if ns > (1 + SLACK) * min(self.fixed.values())]


def experiments(
    models: Iterable[str] = tuple(MODELS), crews: Sequence[int] = CREWS, machine: str = "MI350X", progress: bool = True
) -> list[Measured]:
    """Every layer under every policy and order."""
    found = []
    for layer in layers(models):
        usual: dict[str, Any] = {**layer.shape, "ranks": RANKS, "machine": machine}
        asked = [f"{kind}:{crew}" for kind in ("fixed", "one_way") for crew in crews]
        table = sweep(layer.op, **usual, policy=[*asked, "planned"], progress=False)
        spans = dict(zip([*asked, "planned"], table["makespan_ns"].to_pylist()))
        fixed = {crew: spans[f"fixed:{crew}"] for crew in crews}
        best = min(fixed, key=lambda crew: fixed[crew])
        names = list(ORDERS[layer.op])
        orders = sweep(layer.op, **usual, policy=[None, f"fixed:{best}"], order=names, progress=False)
        ordered = orders["makespan_ns"].to_pylist()
        found.append(
            Measured(
                layer,
                fixed,
                {crew: spans[f"one_way:{crew}"] for crew in crews},
                spans["planned"],
                dict(zip(names, ordered)),
                dict(zip(names, ordered[len(names) :])),
                table["link_ns"].to_pylist()[0] / min(spans.values()),
            )
        )
        if progress:
            print(f"Llama-3 {layer.model} {layer.name}", file=sys.stderr, flush=True)
    return found


def headroom(machine: str = "MI350X") -> float:
    """The throughput of a GEMM on 224 of 256 workgroups, as a share of that on all: one rank, nothing is sent."""
    shape: dict[str, Any] = {"m": M, "n": 8192, "k": 8192, "ranks": 1, "machine": machine, "policy": "one_way:0"}
    whole, part = (simulate(RS, **shape, workgroups=workgroups) for workgroups in (256, 224))
    return _product_ns(whole) / _product_ns(part)


def _product_ns(trace: Trace) -> float:
    """How long the tiles took, with all workgroups at them to the end."""
    summary = trace.summary()
    return summary["builder"] * summary["makespan_ns"]


@dataclass(frozen=True)
class Claim:
    """What the paper says, and what the model says. inside: whether all that the model says lies in the paper's range,
    to a unit of its last digit; of "up to", whether the most does."""

    what: str
    paper: str
    model: str
    inside: bool


def claims(found: list[Measured], share: float) -> list[Claim]:
    """The paper's numbers beside the model's."""

    def mean(values: Iterable[float]) -> float:
        logs = [math.log(value) for value in values]
        return math.exp(sum(logs) / len(logs))

    attention = [one for one in found if one.layer.name in ATTENTION]
    gains = {f"{one.layer.model} {one.layer.name}": one.gain for one in found}
    most = max(gains, key=lambda name: gains[name])
    scatters = [one for one in found if one.layer.op == RS]
    rows = [one.orders["row"] / one.orders["band"] for one in scatters]
    rows_fixed = [one.orders_fixed["row"] / one.orders_fixed["band"] for one in scatters]
    planned = [one.planned / min(one.fixed.values()) for one in found]
    flat = mean(one.gain for one in attention)
    return [
        Claim(
            "one-way against the best fixed split",
            "up to 1.15×",
            f"{min(gains.values()):.2f} to {gains[most]:.2f}× (most: {most})",
            1.135 <= gains[most] <= 1.165,
        ),
        Claim(
            "the same, attention layers",
            "1.00× on average",
            f"{flat:.3f}× on average ({min(one.gain for one in attention):.2f} to "
            f"{max(one.gain for one in attention):.2f})",
            abs(flat - 1.0) <= 0.01,
        ),
        Claim(
            "row against band order, one-way",
            "1.41 to 1.45× slower",
            f"{min(rows):.2f} to {max(rows):.2f}× slower",
            min(rows) >= 1.405 and max(rows) <= 1.455,
        ),
        Claim(
            "row against band order, best fixed split",
            "1.41 to 1.45× slower",
            f"{min(rows_fixed):.2f} to {max(rows_fixed):.2f}× slower",
            min(rows_fixed) >= 1.405 and max(rows_fixed) <= 1.455,
        ),
        Claim(
            "planned against the best fixed split",
            "slower",
            f"{min(planned):.2f} to {max(planned):.2f}× as long, {mean(planned):.3f} on average",
            mean(planned) > 1.005,
        ),
        Claim("GEMM throughput on 224 of 256 units", "about 93 %", f"{100 * share:.1f} %", abs(share - 0.93) < 0.01),
    ]


def report(found: list[Measured], share: float) -> str:
    """Markdown tables: the claims, and every layer."""
    lines = ["| claim | paper | model | inside |", "|---|---|---|---|"]
    for claim in claims(found, share):
        lines.append(f"| {claim.what} | {claim.paper} | {claim.model} | {'yes' if claim.inside else 'no'} |")
    lines += [
        "",
        "| layer | m, n, k | links' bound | best fixed | worst fixed | planned | best one-way | default | "
        "one-way loses from |",
        "|---|---|---:|---:|---:|---:|---:|---:|---|",
    ]
    for one in found:
        layer = one.layer
        worst = max(one.fixed, key=lambda crew: one.fixed[crew])
        way = min(one.one_way, key=lambda crew: one.one_way[crew])
        default = next(iter(one.orders.values()))
        cells = [
            f"{layer.model} {layer.name}",
            f"{layer.m}, {layer.n}, {layer.k}",
            f"{100 * one.link_bound:.0f} %",
            f"{one.fixed[one.best_fixed] / 1e3:,.0f} ({one.best_fixed})",
            f"{one.fixed[worst] / 1e3:,.0f} ({worst})",
            f"{one.planned / 1e3:,.0f}",
            f"{one.one_way[way] / 1e3:,.0f} ({way}), {one.gain:.2f}×",
            f"{default / 1e3:,.0f}, {one.default_gain:.2f}×",
            ", ".join(map(str, one.loses())) or "none",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    for op, head in ((AG, "all-gather + GEMM"), (RS, "GEMM + reduce-scatter")):
        names = ORDERS[op]
        lines += ["", f"| {head}: order | {' | '.join(names)} | {' | '.join(f'{name}, fixed' for name in names)} |"]
        lines.append("|---|" + "---:|" * (2 * len(names)))
        for one in found:
            if one.layer.op == op:
                cells = [
                    f"{times[name] / times[names[0]]:.2f}×"
                    for times in (one.orders, one.orders_fixed)
                    for name in names
                ]
                lines.append(f"| {one.layer.model} {one.layer.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m kosmos.paper", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--machine", default="MI350X", help="default: MI350X")
    given = parser.parse_args()
    print(report(experiments(given.models, machine=given.machine), headroom(given.machine)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
