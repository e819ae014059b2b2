"""Traces of any size, made in no time: a stand-in for a recorded run of many GPUs."""

import numpy as np
import pyarrow as pa

from kosmos.trace import Trace
from kosmos.trace.schema import QUEUE, SPANS, role_array

MOVER, BUILDER, REDUCER = range(3)


def generated(spans, ranks=8, workgroups=256, seed=0):
    """A run of about so many spans: each workgroup takes as many items as the others, ticks last 32 ns.

    A sixteenth of the workgroups move first, all build, all reduce in the end. Builders 8 i to 8 i + 7 wait for mover
    i, reducer i for 8 builders.
    """
    draw = np.random.default_rng(seed)
    lanes = ranks * workgroups
    each = spans // lanes
    shape = (lanes, each)
    rank, workgroup = (column.astype(np.int32) for column in np.divmod(np.arange(lanes), workgroups))
    position = np.arange(each) / each
    role = np.full(shape, BUILDER, np.int8)
    role[np.ix_(workgroup < max(workgroups // 16, 1), position < 1 / 3)] = MOVER
    role[:, position > 0.9] = REDUCER
    wait = np.where(draw.random(shape) < 0.3, draw.integers(0, 60, shape), 0) * 32
    work = draw.integers(10, 40, shape) * 32
    end = np.cumsum(wait + work + draw.integers(0, 2, shape) * 32, axis=1)
    start = end - work
    claim = start - wait
    item = np.empty(shape, np.int32)
    columns = {name: [] for name in QUEUE.names}
    for r in range(ranks):
        for code in (MOVER, BUILDER, REDUCER):
            mine = np.flatnonzero((rank[:, None] == r) & (role == code))
            item.ravel()[mine[np.argsort(claim.ravel()[mine], kind="stable")]] = np.arange(len(mine))
            i = np.arange(len(mine), dtype=np.int32)
            none = np.full_like(i, -1)
            row = {"rank": none + 1 + r, "role": i * 0 + code, "item": i, "chunk": i % ranks, "band": i // 64}
            row |= {
                "column": i % 64,
                "row": i // 64 * 128,
                "rows": i * 0 + 128,
                "col": i % 64 * 256,
                "cols": i * 0 + 256,
            }
            row |= {"wait": none, "wait_count": i * 0, "signal_rank": none, "signal": none}
            if code == MOVER:
                row |= {"signal_rank": i * 0 + r, "signal": i}
            elif code == BUILDER:
                row |= {"wait": i // 8, "wait_count": i * 0 + 1, "signal_rank": i * 0 + r, "signal": 2**20 + i // 8}
            else:
                row |= {"wait": 2**20 + i, "wait_count": i * 0 + 8}
            for name, column in row.items():
                columns[name].append(column)
    table = pa.Table.from_arrays(
        [
            pa.array(np.repeat(rank, each)),
            pa.array(np.repeat(workgroup, each)),
            role_array(role.ravel()),
            pa.array(item.ravel()),
            *(pa.array(times.ravel()) for times in (claim, start, end)),
            pa.array((work * 1.7).astype(np.int64).ravel() + draw.integers(-20, 20, lanes * each)),
            pa.array(np.repeat(workgroup % 132, each).astype(np.int32)),
        ],
        schema=SPANS,
    )
    queue = {name: np.concatenate(parts) for name, parts in columns.items()}
    queue = [role_array(queue["role"]) if name == "role" else pa.array(queue[name].astype(np.int32)) for name in queue]
    return Trace(
        table,
        pa.Table.from_arrays(queue, schema=QUEUE),
        meta={"op": "generated", "ranks": ranks, "workgroups": workgroups, "clock": {"tick_ns": 32}},
    )
