"""Fitting a machine model to recorded traces.

A trace measures the service times of each role directly: how many cycles a tile, a copy, a sum takes, how long a claim
and a look take where nothing is waited for, how long after the last signal a wait ends, and at which clock all that
happened while so many workgroups multiplied. The model's formulas are fitted to the medians of these by least squares;
no makespan is fitted, so that how well makespans come out says something.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from kosmos.errors import KosmosArgumentError, KosmosTraceError
from kosmos.machine import Machine
from kosmos.machine.fit import Fit
from kosmos.schedule import QUEUES, Tile
from kosmos.simulator.runs import ORDERS
from kosmos.simulator.setup import STEP
from kosmos.trace import ROLES, Trace
from kosmos.trace.schema import numbers

PARAMETERS = (
    "efficiency",
    "tile_start_ns",
    "tile_fill_ns",
    "copy_gbps",
    "reduce_gbps",
    "atomic_ns",
    "unit_w",
    "wait_w",
    "byte_pj",
    "busy_mhz",
)
"""Of the power, exponent, on_w and idle_w are not among them: full launches say little about them. A sustained sweep
over the number of workgroups says it, and is no trace (kosmos.machine.known)."""
POWER = PARAMETERS[-4:]
MOST = {"efficiency": 1.0}
PRIOR = 0.3
"""Relative spread of what is believed before: it decides only what the traces say nothing about."""
WINDOWS = 12
"""Stretches of a trace in which clocks are compared."""
PRECISION = {"tile": 0.005, "copy": 0.02, "sum": 0.02, "claim": 0.05, "wake": 0.05, "clock": 0.01}
"""How well the model can be expected to meet a mean of that kind, relatively: the weights of the fit."""


@dataclass(frozen=True)
class _Mean:
    """A measured mean, and what the model needs to predict it."""

    trace: int
    quantity: str
    unit: str
    measured: float
    run: "_Run"
    size: float = 0.0  # bytes, or number of atomics
    mhz: float = 0.0
    ended: float = 0.0  # tiles a cycle of all workgroups
    streaming: float = 0.0
    waiting: float = 0.0  # workgroups, those included that multiply


@dataclass(frozen=True)
class _Run:
    k: int
    itemsize: int
    tile: Tile
    ranks: int
    sharing: int
    flat: bool
    fetched: float  # bytes that a tile moves between memory and its unit, about


def fit(machine: Machine, traces: Iterable[Trace]) -> Fit:
    """`machine`, one whole GPU, with its free parameters fitted to traces of it.

    Traces of several ranks are taken as those of virtual ranks that share the GPU. What the traces say nothing about
    keeps its value, with a wide spread. Raises KosmosArgumentError for a machine that is a part of a GPU and
    for what are no traces, and KosmosTraceError for a trace that was not recorded on a GPU or says too little about its
    run.
    """
    from scipy.optimize import least_squares

    if machine.sharing > 1:
        raise KosmosArgumentError(f"machine {machine.name} is a part of a GPU; fit the whole one and split that")
    several = None if isinstance(traces, Trace) or not isinstance(traces, Iterable) else list(traces)
    if several is None or not all(isinstance(trace, Trace) for trace in several):
        raise KosmosArgumentError(f"traces={traces!r:.80} must be several kosmos.Trace, in a list")
    means = [mean for at, trace in enumerate(several) for mean in _means(machine, at, trace)]
    if not means:
        raise KosmosArgumentError("there are no traces to fit to")
    names = [name for name in PARAMETERS if machine.cap_w or name not in POWER]
    before = np.array([_value(machine, name) for name in names])

    def model(factors: np.ndarray) -> Machine:
        return replace(machine, **dict(zip(names, (before * np.exp(factors)).tolist())))

    def off(factors: np.ndarray) -> np.ndarray:
        tried = model(factors)
        data = [np.log(_predicted(tried, mean) / mean.measured) / PRECISION[mean.quantity] for mean in means]
        return np.array([*data, *(factors / PRIOR)])

    most = np.array([np.log(MOST.get(name, np.inf) / value) for name, value in zip(names, before)])
    # where busy_mhz is below what the cap allows unit_w does not matter, and the fit would stay there: a second start
    # with less under the cap
    more = (0.0, 0.5) if machine.cap_w else (0.0,)
    starts = [np.where([name == "unit_w" for name in names], shift, 0.0) for shift in more]
    solved = min(
        (
            least_squares(off, np.minimum(start, most - 0.01), bounds=(-np.inf, most), x_scale=0.1, loss="soft_l1")
            for start in starts
        ),
        key=lambda one: one.cost,
    )
    fitted = model(solved.x)
    covariance = np.linalg.inv(solved.jac.T @ solved.jac)
    spreads = np.sqrt(np.diag(covariance))
    said = "fitted to recorded traces"
    fitted = replace(fitted, sources={**machine.sources, **dict.fromkeys(names, said)})
    return Fit(
        fitted,
        {name: (_value(fitted, name), float(_value(fitted, name) * spread)) for name, spread in zip(names, spreads)},
        [
            {
                "trace": mean.trace,
                "quantity": mean.quantity,
                "unit": mean.unit,
                "measured": mean.measured,
                "model": _predicted(fitted, mean),
            }
            for mean in means
        ],
    )


def _value(machine: Machine, name: str) -> float:
    value = getattr(machine, name)
    if name == "busy_mhz":
        value = value or machine.clock_mhz
    if value is None:
        value = machine.memory_ns if name == "tile_start_ns" else machine.copy_gbps
    return float(value) or 1.0


def _predicted(machine: Machine, mean: _Mean) -> float:
    """What a machine model says that a mean is."""
    run = mean.run
    if mean.quantity == "tile":
        work = _tile_ns(machine, run)
        return work * machine.clock_mhz / 1000
    if mean.quantity in ("copy", "sum"):
        share = mean.mhz / machine.clock_mhz
        return machine.carry_ns(mean.size, adds=mean.quantity == "sum") / share + machine.memory_ns
    if mean.quantity in ("claim", "wake"):
        return mean.size * machine.atomic_ns
    # of a workgroup's time with a tile only the product takes a multiplying unit's power
    busy = mean.ended * _product_ns(machine, run) * machine.clock_mhz / 1000
    own = mean.ended * run.fetched * machine.clock_mhz / 1000
    return machine.clock_mhz * machine.clock_share(busy, mean.streaming, own, max(mean.waiting - busy, 0.0))


def _tile_ns(machine: Machine, run: _Run) -> float:
    tile = run.tile
    part = machine.split(run.ranks) if run.sharing > 1 else machine
    operands = (tile.rows + tile.cols) * run.k * run.itemsize + tile.rows * tile.cols * run.itemsize
    return part.tile_ns(_flops(run), operands, run.itemsize, flat=run.flat)


def _product_ns(machine: Machine, run: _Run) -> float:
    part = machine.split(run.ranks) if run.sharing > 1 else machine
    return _flops(run) / part.flops_per_ns


def _flops(run: _Run) -> float:
    return 2.0 * run.tile.rows * run.tile.cols * (-(-run.k // STEP) * STEP)


def _run_of(machine: Machine, at: int, trace: Trace) -> _Run:
    meta = trace.meta
    shape, tile = meta.get("shape") or {}, meta.get("tile")
    if meta.get("place") != "gpu" or meta.get("op") not in QUEUES or not {"m", "n", "k"} <= shape.keys() or not tile:
        raise KosmosTraceError(
            f"trace {at} cannot be fitted to: its meta must say place 'gpu', op, shape (m, n, k) and tile, as "
            "kosmos.record writes them"
        )
    itemsize = 4 if meta.get("dtype") == "float32" else 2
    ranks = trace.ranks
    part = machine.split(ranks) if ranks > 1 else machine
    order = meta.get("order")
    known = order in ("band", "row", "local_first", "rank") or str(order).startswith("random:")
    queues = QUEUES[meta["op"]](
        m=int(shape["m"]),
        n=int(shape["n"]),
        k=int(shape["k"]),
        ranks=ranks,
        tile=Tile(*tile),
        itemsize=itemsize,
        order=str(order) if known else ORDERS[meta["op"]],
    )
    tiles = queues.items["builder"]
    fetched = _operands_from_memory(tiles, trace.workgroups) * int(shape["k"]) * itemsize
    fetched += tiles["rows"].astype(np.int64) * tiles["cols"] * itemsize
    flat = machine.flatten and (queues.producer == "builder" or ranks == 1)
    flat = flat and not str(meta.get("policy")).startswith("two_way")
    return _Run(int(shape["k"]), itemsize, Tile(*tile), ranks, part.sharing, flat, float(fetched.mean()))


def _operands_from_memory(tiles: np.ndarray, workgroups: int) -> np.ndarray:
    """Rows of operands that each tile fetches from memory, [ranks, items]: all but those that one of the tiles which
    are under way together, the `workgroups` before it in the queue, fetches anyhow.
    """
    fetched = np.zeros(tiles.shape, np.int64)
    place = np.arange(tiles.shape[1])
    for block, size in (("row", "rows"), ("col", "cols")):
        for rank in range(tiles.shape[0]):
            name = tiles[block][rank]
            order = np.argsort(name, kind="stable")
            again = np.zeros(len(order), bool)
            near = (place[order][1:] - place[order][:-1]) <= workgroups
            again[order[1:]] = (name[order][1:] == name[order][:-1]) & near
            fetched[rank] += np.where(again, 0, tiles[size][rank])
    return fetched


def _means(machine: Machine, at: int, trace: Trace) -> list[_Mean]:
    run = _run_of(machine, at, trace)
    rank, workgroup, role, item = numbers(trace.spans, "rank", "workgroup", "role", "item")
    claim, start, end, cycles = numbers(trace.spans, "claim_ns", "start_ns", "end_ns", "cycles")
    q_rank, q_role, q_item, rows, cols, wait, signal_rank, signal = numbers(
        trace.queue, "rank", "role", "item", "rows", "cols", "wait", "signal_rank", "signal"
    )
    keys = (q_rank.astype(np.int64) * len(ROLES) + q_role) << 32 | q_item
    order = np.argsort(keys)
    row = order[np.searchsorted(keys[order], (rank.astype(np.int64) * len(ROLES) + role) << 32 | item)]
    rows, cols, wait = rows[row], cols[row], wait[row]
    codes = {name: role == ROLES.index(name) for name in ("mover", "builder", "reducer")}
    whole = (rows == rows[codes["builder"]].max()) & (cols == cols[codes["builder"]].max()) & codes["builder"]
    mhz = cycles / np.maximum(end - start, 1) * 1000

    found = []

    def mean(quantity: str, unit: str, values: np.ndarray, **more: float) -> None:
        if len(values) >= 8:
            found.append(_Mean(at, quantity, unit, float(np.median(values)), run, **more))

    # the quickest: those that waited for nothing from memory
    mean("tile", "cycles", np.sort(cycles[whole])[: max(int(whole.sum()) // 5, 8)])
    size = rows.astype(np.int64) * cols * run.itemsize
    if not trace.meta.get("link_gbps"):
        for name, quantity, parts in (("mover", "copy", 2), ("reducer", "sum", run.ranks + 1 if run.ranks > 1 else 2)):
            chosen = codes[name] & (size == size[codes[name]].max(initial=0))
            if chosen.any():
                mean(
                    quantity,
                    "ns",
                    (end - start)[chosen],
                    size=float(size[chosen][0] * parts),
                    mhz=float(mhz[chosen].mean()),
                )

    # when each counter was complete, for the waits on what items signal
    complete: dict[tuple[int, int], int] = {}
    for r, c, when in zip(signal_rank[row], signal[row], end):
        if c >= 0:
            complete[int(r), int(c)] = max(complete.get((int(r), int(c)), 0), int(when))
    ready_at = np.array([complete.get((int(r), int(c)), -1) if c >= 0 else -2 for r, c in zip(rank, wait)])
    far = 4 * machine.atomic_ns
    # reducers tell nothing: in a flattened loop a tile is signalled only after the next one's product
    consumer = codes["builder"] & codes["mover"].any()
    at_once = consumer & (ready_at >= 0) & (ready_at < claim - far)
    mean("claim", "ns", (start - claim)[at_once], size=2.0)
    late = consumer & (ready_at > claim + far)
    mean("wake", "ns", (start - ready_at)[late], size=3.0)

    if machine.cap_w:
        edges = np.linspace(claim.min(), end.max(), WINDOWS + 1)
        last = np.zeros(trace.ranks * trace.workgroups, np.int64)
        np.maximum.at(last, rank * trace.workgroups + workgroup, end)
        copies = codes["mover"] | codes["reducer"]
        carries = np.where(codes["mover"], 2, run.ranks + 1)
        for begin, until in zip(edges[1:-2], edges[2:-1]):
            overlap = np.clip(np.minimum(end, until) - np.maximum(start, begin), 0, None)
            ended = (overlap / np.maximum(cycles, 1))[codes["builder"]].sum() / (until - begin)
            streaming = (overlap / np.maximum(end - start, 1) * size * carries)[copies].sum() / (until - begin)
            present = np.clip(np.minimum(last, until) - begin, 0, None).sum() / (until - begin)
            if overlap.sum():
                seen = float((overlap * mhz).sum() / overlap.sum())
                found.append(
                    _Mean(
                        at,
                        "clock",
                        "MHz",
                        seen,
                        run,
                        ended=float(ended),
                        streaming=float(streaming),
                        waiting=float(present),
                    )
                )
    return found
