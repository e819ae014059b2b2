"""From the arrays of a finished run to its Trace."""

from typing import Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosArgumentError
from kosmos.simulator import engine
from kosmos.simulator.setup import Work, resources_of
from kosmos.trace import Trace
from kosmos.trace.schema import ROLES, SPANS, role_array

PAIRS = 8
"""Up to so many ranks each link has a series of its own."""


def trace_of(work: Work, state: engine.State, meta: dict[str, Any]) -> Trace:
    """The trace of a run in which every item has been done.

    Raises KosmosArgumentError for one that lasts longer than the int64 ns of a trace.
    """
    makespan = float(state.span["end"].max(initial=0.0))
    if not makespan < 2**62:
        raise KosmosArgumentError(
            f"on machine {work.machine.name} this run lasts {makespan:.1e} ns, longer than a trace can tell"
        )
    span = state.span[np.argsort(state.span["who"], kind="stable")]
    workgroups = work.workgroups
    queue_of = (span["item"] >= state.base[1, 0]).astype(np.int64)
    rank = span["who"] // workgroups
    codes = np.array([ROLES.index(work.queues.producer), ROLES.index(work.queues.consumer)])
    # rounded down alike, so that what comes later is never earlier
    claim, start, end = (np.floor(span[name]).astype(np.int64) for name in ("claim", "start", "end"))
    workgroup = (span["who"] % workgroups).astype(np.int32)
    spans = pa.Table.from_arrays(
        [
            pa.array(rank.astype(np.int32)),
            pa.array(workgroup),
            role_array(codes[queue_of]),
            pa.array((span["item"] - state.base[queue_of, rank]).astype(np.int32)),
            pa.array(claim),
            pa.array(start),
            pa.array(end),
            pa.array(np.rint(span["ticks"] * work.machine.clock_mhz / 1000).astype(np.int64)),
            pa.array(workgroup),
        ],
        schema=SPANS,
    )
    counters, said = _series(work, state)
    energy = {} if not work.machine.cap_w else {"energy_j": float(state.energy.sum()) * 1e-9}
    return Trace(spans, work.queues.table(), counters, {**meta, **said, **energy} if makespan else meta)


def _series(work: Work, state: engine.State) -> tuple[pa.Table, dict[str, Any]]:
    """Power, clock, memory and link rates: means of bins, each with the time at which its bin begins."""
    now, width = float(state.run["now"][0]), float(state.run["width"][0])
    bins = max(int(np.ceil(now / width - 1e-9)), 1)
    begins = np.arange(bins) * width
    long = np.minimum(begins + width, now) - begins
    machine, ranks = work.machine, work.queues.ranks
    served = state.served[:, :bins] / long
    _, _, flows = resources_of(work)
    memory = state.moved[:, :bins] / long
    into = np.zeros((ranks, bins))
    pairs: dict[tuple[int, int], np.ndarray] = {}
    for f, (role, rank, source) in enumerate(flows):
        if role == "mover" and source != rank:
            into[rank] += served[f]
            pairs[source, rank] = served[f]
        elif role == "reducer":
            into[rank] += served[f] * (ranks - 1)
            pairs.update({(other, rank): served[f] for other in range(ranks) if other != rank})

    rows: list[tuple[str, int, np.ndarray, str]] = []
    for d in range(work.devices):
        first = d * machine.sharing
        if machine.cap_w:
            rows.append(("power", first, state.energy[d, :bins] / long, "W"))
        rows.append(("clock", first, state.clocked[d, :bins] / long * machine.clock_mhz, "MHz"))
        rows.append(("memory", first, memory[d], "GB/s"))
    if ranks > 1:
        rows += [("links in", rank, into[rank], "GB/s") for rank in range(ranks)]
    if ranks <= PAIRS:
        rows += [(f"link from {source}", rank, rates, "GB/s") for (source, rank), rates in pairs.items()]
    names, owners, values, units = zip(*rows)
    of = pa.array(np.repeat(np.arange(len(rows)), bins))
    table = pa.table(
        {
            "name": pa.array(names).take(of),
            "rank": pa.array(owners, pa.int32()).take(of),
            "time_ns": pa.array(np.tile(np.floor(begins).astype(np.int64), len(rows))),
            "value": pa.array(np.concatenate(values)),
            "unit": pa.array(units).take(of),
        }
    )
    return table, {"counters": {"bin_ns": width, "end_ns": now, "value": "mean of the bin that begins at time_ns"}}
