"""A trace as a whole, and a small scheduler that makes traces for all tests of them."""

import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import kosmos
from kosmos.errors import KosmosTraceError
from kosmos.trace import ROLES, Trace
from kosmos.trace import schema as schemas

SPANS = ["rank", "workgroup", "role", "item", "claim_ns", "start_ns", "end_ns", "cycles", "unit"]
QUEUE = ["rank", "role", "item", "wait", "wait_count", "signal_rank", "signal"]


def scheduled(seed=0, ranks=3, workgroups=5, crew=2, chunks=4, tiles=30, length=(1, 40), meta=None):
    """A run by plain loops: movers fetch chunks, builders make tiles of them, reducers add up bands of five tiles.

    Counter c < chunks of a rank counts the two pieces of chunk c, counter chunks + b the tiles of band b. The last
    chunk is there from the launch on: nobody signals it. Workgroups below `crew` move before they build.
    """
    draw = np.random.default_rng(seed)
    queues = {}
    for rank in range(ranks):
        queues[rank, "mover"] = [(-1, 0, (rank + 1) % ranks, piece // 2) for piece in range(2 * (chunks - 1))]
        queues[rank, "builder"] = [
            ((chunks - 1 - tile * chunks // tiles) % chunks, 2, rank, chunks + tile // 5) for tile in range(tiles)
        ]
        queues[rank, "reducer"] = [(chunks + band, min(5, tiles - 5 * band), -1, -1) for band in range(-(-tiles // 5))]
    given = {(rank, chunks - 1): [0, 0] for rank in range(ranks)}  # when each counter got its signals
    taken = dict.fromkeys(queues, 0)
    roles = {(r, w): ["mover", "builder", "reducer"][w >= crew :] for r in range(ranks) for w in range(workgroups)}
    free = {lane: int(draw.integers(0, 50)) for lane in roles}
    held, spans = {}, []
    while free or held:
        # Whoever holds a ticket that became ready goes on, else whoever is free first takes one.
        for lane, (role, item, claim) in list(held.items()):
            wait, count, to, signal = queues[lane[0], role][item]
            signals = sorted(given.get((lane[0], wait), []))
            if wait == -1 or len(signals) >= count:
                del held[lane]
                start = claim if wait == -1 else max(claim, signals[count - 1])
                end = start + int(draw.integers(*length))
                given.setdefault((to, signal), []).append(end)
                spans.append((*lane, role, item, claim, start, end, 3 * (end - start), lane[1] % 3))
                free[lane] = end + int(draw.integers(0, 3))
        if free:
            lane = min(free, key=free.get)
            now = free.pop(lane)
            while roles[lane] and taken[lane[0], roles[lane][0]] == len(queues[lane[0], roles[lane][0]]):
                roles[lane].pop(0)
            if roles[lane]:
                held[lane] = (roles[lane][0], taken[lane[0], roles[lane][0]], now)
                taken[lane[0], roles[lane][0]] += 1
    rows = [(rank, role, item, *row) for (rank, role), queue in queues.items() for item, row in enumerate(queue)]
    queue = dict(zip(QUEUE, zip(*rows, strict=True), strict=True))
    queue |= dict.fromkeys(["chunk", "band", "column", "row", "rows", "col", "cols"], [0] * len(rows))
    return Trace(dict(zip(SPANS, zip(*spans, strict=True), strict=True)), queue, meta=meta)


def one(**changes):
    """The columns of a single span."""
    columns = dict(zip(SPANS, ([0], [0], ["builder"], [0], [0], [1], [2], [5], [0])))
    return columns | changes


def test_the_tables_have_their_columns_and_roles_are_coded_by_their_place():
    trace = scheduled()
    assert trace.spans.schema == schemas.SPANS and trace.queue.schema == schemas.QUEUE
    assert trace.counters.schema == schemas.COUNTERS and len(trace.counters) == 0
    assert trace.ranges.schema == schemas.RANGES and len(trace.ranges) == 0
    roles = trace.spans["role"].combine_chunks()
    assert roles.dictionary.to_pylist() == list(ROLES)
    assert roles.to_pylist() == [ROLES[code] for code in schemas.numbers(trace.spans, "role")[0]]
    assert kosmos.Trace is Trace


def test_other_widths_orders_chunks_and_dictionaries_make_the_same_table():
    trace = scheduled()
    table = trace.spans
    wide = pa.table({name: table[name].cast(pa.string() if name == "role" else pa.int64()) for name in SPANS[::-1]})
    pieces = pa.concat_tables([wide.slice(0, 7), wide.slice(7, 0), wide.slice(7)])
    encoded = pa.concat_tables([wide.slice(0, 9), wide.slice(9)])
    encoded = encoded.set_column(
        encoded.column_names.index("role"),
        "role",
        pa.chunked_array(
            [
                encoded["role"].slice(0, 9).combine_chunks().dictionary_encode(),
                encoded["role"].slice(9).combine_chunks().dictionary_encode(),
            ]
        ),
    )
    for same in (wide, pieces, encoded, table.to_pydict(), table.slice(0)):
        assert Trace(same, trace.queue).equals(trace)
    assert Trace(wide.slice(3, 5)).spans.equals(table.slice(3, 5))


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        (one(rank=[0.0]), "spans: column rank must be int32, not double"),
        (one(start_ns=[2.0**60]), "spans: column start_ns must be int64, not double"),
        (one(item=[2**31]), "spans: column item has values that do not fit int32"),
        (one(end_ns=[None]), "spans: column end_ns has 1 missing values"),
        (one(role=["cook"]), "spans: column role has the unknown role 'cook'; roles are mover, builder"),
        (one(role=[1]), "spans: column role must be names of roles, not int64"),
        (one(rank=[0, 1]), "spans: these columns do not make a table: rank (2), workgroup (1)"),
        (one(extra=[1]), "spans: has unknown column extra"),
        ({"rank": [0]}, "spans: lacks columns workgroup, role, item"),
        ([1, 2], "spans: must be a pyarrow Table or a mapping of columns, not list"),
        (one(rank=[-1]), "spans: column rank has the negative value -1"),
    ],
)
def test_what_is_no_spans_table_is_refused_in_one_sentence(columns, sentence):
    with pytest.raises(KosmosTraceError, match=f"^{re.escape(sentence)}"):
        Trace(columns)


@pytest.mark.parametrize(
    ("meta", "sentence"),
    [
        ({"ranks": 0}, "meta: ranks is 0, but spans has rank 0"),
        ({"workgroups": "8"}, "meta: workgroups must be a whole number, not '8'"),
        ({"x": np.int64(1)}, "meta: cannot be written as JSON"),
        ({"clock": {"tick_ns": "fast"}}, "meta: clock must be like"),
        ({"dropped": [{"rank": 0}]}, "meta: dropped must be a list of"),
        ([], "meta: must be a dict, not list"),
    ],
)
def test_a_meta_that_contradicts_is_refused_in_one_sentence(meta, sentence):
    with pytest.raises(KosmosTraceError, match=f"^{re.escape(sentence)}"):
        Trace(one(), meta=meta)


def test_ranks_and_workgroups_come_from_meta_or_from_the_spans():
    trace = scheduled(ranks=3, workgroups=5)
    assert (trace.ranks, trace.workgroups) == (3, 5)
    larger = Trace(trace.spans, meta={"ranks": 4, "workgroups": 9})
    assert (larger.ranks, larger.workgroups) == (4, 9)
    empty = Trace(None)
    assert (empty.ranks, empty.workgroups, len(empty.spans)) == (0, 0, 0)


def test_equal_means_every_bit():
    counters = {"name": ["power"], "rank": [0], "time_ns": [5], "value": [float("nan")], "unit": ["W"]}
    trace = Trace(one(), counters=counters, meta={"a": (1, 2), "b": {3: 4}})
    assert trace.equals(Trace(one(), counters=counters, meta={"b": {"3": 4}, "a": [1, 2]}))
    assert not trace.equals(Trace(one(), counters=counters, meta={"a": [1, 2]}))
    assert not trace.equals(Trace(one(end_ns=[3]), counters=counters, meta=trace.meta))
    assert not trace.equals(Trace(one(), counters=counters | {"value": [0.0]}, meta=trace.meta))
    ranges = {"rank": [-1], "track": ["thread 7"], "name": ["step"], "start_ns": [0], "end_ns": [4]}
    assert not trace.equals(Trace(one(), counters=counters, meta=trace.meta, ranges=ranges))


def test_its_line_says_what_ran():
    meta = {"op": "all_gather_matmul", "policy": "one_way:4", "order": "local_first"}
    assert repr(Trace(one(), meta=meta)) == (
        "<Trace: all_gather_matmul, one_way:4, local_first, 1 ranks × 1 workgroups, 1 spans in 0.002 µs>"
    )
    assert repr(Trace(None)) == "<Trace: 0 ranks × 0 workgroups, 0 spans in 0.000 µs>"


def test_reading_a_trace_loads_no_matplotlib():
    code = (
        "import sys, kosmos.trace; print(sorted({'matplotlib', 'torch', 'triton', 'kosmos.plots'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_numbers_are_the_table_s_own_memory():
    trace = scheduled(0)
    for name in ("claim_ns", "role"):
        (column,), (again,) = (schemas.numbers(trace.spans, name) for _ in range(2))
        assert np.shares_memory(column, again)
