"""Metrics, flows and problems of random runs, against plain loops over their rows."""

import re

import numpy as np
import pyarrow as pa
import pytest
from test_trace import one, scheduled

from kosmos.trace import ROLES, Trace

SEEDS = range(12)


def rows(trace):
    """Spans as (rank, workgroup, role, item, claim, start, end), queue rows by (rank, role, item)."""
    spans = [tuple(row.values())[:7] for row in trace.spans.to_pylist()]
    queue = {(row["rank"], row["role"], row["item"]): row for row in trace.queue.to_pylist()}
    return spans, queue


def change(trace, seed):
    """The run with some of everything that can be wrong."""
    draw = np.random.default_rng(seed)
    spans, queue = trace.spans.to_pylist(), trace.queue.to_pylist()
    for span in spans:
        for name in ("claim_ns", "start_ns", "end_ns"):
            if draw.random() < 0.05:
                span[name] += int(draw.integers(-60, 60))
        if draw.random() < 0.05:
            span["item"] += int(draw.integers(-3, 30))
    spans = [span for span in spans if draw.random() < 0.95]
    spans += [dict(span) for span in spans if draw.random() < 0.04]
    queue = [row for row in queue if row["role"] != "builder" or draw.random() < 0.97]
    order = draw.permutation(len(spans))
    to_columns = lambda table: {name: [row[name] for row in table] for name in table[0]}  # noqa: E731
    return Trace(to_columns([spans[i] for i in order]), to_columns(queue), meta={"clock": {"tick_ns": int(seed) % 4}})


def counted(trace):
    """How many of each kind `problems` found."""
    kinds = {
        "waits": r"waits ended before they began",
        "spans": r"spans ended before they began",
        "overlap": r"spans began before their workgroup was done",
        "undone": r"items in the queue were never done",
        "twice": r"items in the queue were done more than once",
        "stray": r"spans did an item that is not in the queue",
        "short": r"items in the queue wait for more signals than it gives",
        "unbound": r"flows are unbound",
        "early": r"waits ended before what they waited for",
    }
    found = dict.fromkeys(kinds, 0)
    for sentence in trace.problems():
        (kind,) = [kind for kind, says in kinds.items() if re.search(says, sentence)]
        found[kind] = int(sentence.split()[0].replace(",", ""))
    return found


def counted_by_loops(trace):
    spans, queue = rows(trace)
    tick = trace.meta["clock"]["tick_ns"] or 1
    found = {
        "waits": sum(start < claim for *_, claim, start, _ in spans),
        "spans": sum(end < start for *_, start, end in spans),
        "stray": sum((rank, role, item) not in queue for rank, _, role, item, *_ in spans),
    }
    lanes, done, gives = {}, {}, {}
    for rank, workgroup, role, item, claim, _, end in spans:
        lanes.setdefault((rank, workgroup), []).append((claim, end))
        done.setdefault((rank, role, item), []).append(end)
    found["overlap"] = 0
    for lane in lanes.values():
        lane.sort()
        found["overlap"] += sum(after[0] < before[1] for before, after in zip(lane, lane[1:]))
    found["undone"] = sum(key not in done for key in queue)
    found["twice"] = sum(len(done.get(key, [])) > 1 for key in queue)
    for key, row in queue.items():
        if row["signal"] >= 0 and row["signal_rank"] >= 0:
            gives.setdefault((row["signal_rank"], row["signal"]), []).append(key)
    found["short"] = found["unbound"] = found["early"] = 0
    for key, row in queue.items():
        signallers = gives.get((row["rank"], row["wait"]), [])
        if row["wait"] >= 0 and 0 < len(signallers) < row["wait_count"]:
            found["short"] += 1
        if row["wait"] >= 0 and row["wait_count"] > 0 and key in done:
            found["unbound"] += sum(signaller not in done for signaller in signallers)
    for rank, _, role, item, _, start, _ in spans:
        row = queue.get((rank, role, item))
        if row is None or row["wait"] < 0 or row["wait_count"] <= 0:
            continue
        signallers = gives.get((rank, row["wait"]), [])
        if not signallers or len(signallers) < row["wait_count"]:
            continue
        ends = sorted(end for key in signallers for end in done.get(key, []))
        if len(ends) >= row["wait_count"] and start < ends[row["wait_count"] - 1] - tick:
            found["early"] += 1
    return found


@pytest.mark.parametrize("seed", SEEDS)
def test_a_run_in_order_has_no_problems(seed):
    assert scheduled(seed, ranks=1 + seed % 4, workgroups=3 + seed, crew=seed % 3 + 1).problems() == []


@pytest.mark.parametrize("seed", SEEDS)
def test_problems_are_those_that_plain_loops_find(seed):
    trace = change(scheduled(seed), seed)
    assert counted(trace) == counted_by_loops(trace)


def test_the_changes_cause_every_kind_of_problem():
    traces = [change(scheduled(seed), seed) for seed in SEEDS]
    assert all(any(counts) for counts in zip(*(counted(trace).values() for trace in traces)))


def test_problems_without_a_queue_are_those_of_the_spans():
    trace = change(scheduled(0), 0)
    assert Trace(trace.spans).problems() == trace.problems()[:3]
    assert Trace(None).problems() == [] and Trace(None, trace.queue).problems()[0].startswith(
        f"{len(trace.queue)} of {len(trace.queue)} items in the queue were never done"
    )


def pair(**second):
    """Two spans: workgroup 0 moves from 0 to 10, workgroup 1 claims at 2 and builds from 10 to 30."""
    two = {
        "rank": 0,
        "workgroup": 1,
        "role": "builder",
        "item": 0,
        "claim_ns": 2,
        "start_ns": 10,
        "end_ns": 30,
    } | second
    first = {"rank": 0, "workgroup": 0, "role": "mover", "item": 0, "claim_ns": 0, "start_ns": 0, "end_ns": 10}
    return {name: [first[name], two[name]] for name in two} | {"cycles": [0, 0], "unit": [0, 0]}


def queue(count=1, signals=1):
    """A mover that signals counter 4, a builder that waits for `count` of it."""
    nothing = dict.fromkeys(["chunk", "band", "column", "row", "rows", "col", "cols"], [0, 0])
    signal = 4 if signals else 5
    return {
        "rank": [0, 0],
        "role": ["mover", "builder"],
        "item": [0, 0],
        "wait": [-1, 4],
        "wait_count": [0, count],
        "signal_rank": [0, -1],
        "signal": [signal, -1],
    } | nothing


def span_range(start, end):
    return {"rank": [-1], "track": ["thread 7"], "name": ["step"], "start_ns": [start], "end_ns": [end]}


def other_rank(shift=0):
    """The two spans, the second one on rank 1, whose clock is `shift` ahead."""
    times = {name: value + shift for name, value in {"claim_ns": 2, "start_ns": 10, "end_ns": 30}.items()}
    return pair(rank=1, workgroup=0, **times)


def slot(rank, workgroup, records):
    return {"rank": rank, "workgroup": workgroup, "records": records}


@pytest.mark.parametrize(
    ("trace", "sentence"),
    [
        (Trace(pair(), queue()), None),
        (Trace(pair(start_ns=9), queue()), None),  # a tick early
        (Trace(pair(start_ns=8), queue(), meta={"clock": {"tick_ns": 2}}), None),
        (Trace(pair(start_ns=8), queue(signals=0)), None),  # announced by the launch
        (
            Trace(pair(start_ns=8), queue()),
            "1 of 1 waits ended before what they waited for, e.g. that of rank 0 builder item 0 at 8 ns, "
            "but counter 4 of its rank reached 1 at 10 ns",
        ),
        (
            Trace({name: column[1:] for name, column in pair().items()}, queue()),
            "1 of 2 items in the queue were never done, e.g. rank 0 mover item 0|"
            "1 flows are unbound: 1 of 1 waits have producers that are not in the trace, e.g. rank 0 builder item 0 "
            "waits for 1 of counter 4, of whose 1 producers 0 are there",
        ),
        (
            Trace(pair(), queue(count=2)),
            "1 of 2 items in the queue wait for more signals than it gives, e.g. rank 0 builder item 0 for 2 of "
            "counter 4, which 1 signal",
        ),
        (
            Trace(pair(workgroup=0)),
            "1 of 2 spans began before their workgroup was done with the one before, e.g. workgroup 0 turned to "
            "rank 0 builder item 0 at 2 ns and did mover item 0 until 10 ns",
        ),
        (
            Trace(pair(claim_ns=11)),
            "1 of 2 waits ended before they began, e.g. that of rank 0 builder item 0: 11 to 10 ns",
        ),
        (
            Trace(pair(item=3), queue()),
            "1 of 2 items in the queue were never done, e.g. rank 0 builder item 0|"
            "1 of 2 spans did an item that is not in the queue, e.g. rank 0 builder item 3 in workgroup 1",
        ),
        (
            Trace(pair(role="mover"), {name: column[:1] for name, column in queue().items()}),
            "1 of 1 items in the queue were done more than once, e.g. rank 0 mover item 0",
        ),
        (
            Trace(pair(), {name: [*column, column[0]] for name, column in queue().items()}),
            "1 of 3 items in the queue were listed more than once, e.g. rank 0 mover item 0",
        ),
        (
            Trace(one(), ranges=span_range(5, 4)),
            "1 of 1 ranges ended before they began, e.g. step on thread 7: 5 to 4 ns",
        ),
        (Trace(one(), ranges=span_range(4, 4)), None),
        (Trace(other_rank(), meta={"clock_offsets_ns": [0, 40], "clock_offsets_error_ns": 40}), None),
        (
            Trace(other_rank(), meta={"clock_offsets_ns": [2, -4000], "clock_offsets_error_ns": [3, 1000]}),
            "the clocks of 1 of 2 ranks are off, by up to -4,000 ± 1,000 ns (rank 1): times of different ranks compare "
            "only after that is subtracted",
        ),
        (
            Trace(one(), meta={"dropped": [slot(1, 2, 1000), slot(1, 3, 5)]}),
            "1,005 records of 2 workgroups were dropped because their slices were full, "
            "e.g. 1,000 of rank 1 workgroup 2",
        ),
    ],
)
def test_a_problem_is_one_sentence_with_a_count_and_an_example(trace, sentence):
    assert trace.problems() == ([] if sentence is None else sentence.split("|"))


@pytest.mark.parametrize("shift", [-5000, 5000])
def test_waits_are_compared_in_common_time(shift):
    across = {name: list(column) for name, column in queue().items()} | {"rank": [0, 1], "signal_rank": [1, -1]}
    known = {"clock_offsets_ns": [0, shift], "clock_offsets_error_ns": 3}
    early = "waits ended before what they waited for"
    assert early not in " ".join(Trace(other_rank(shift), across, meta=known).problems())
    assert (early in " ".join(Trace(other_rank(shift), across).problems())) == (shift < 0)
    assert early in " ".join(Trace(other_rank(shift - 8), across, meta=known).problems())  # 1 tick and twice the error


def test_items_are_found_in_any_queue():
    """Sparse and negative numbers take another way than dense ones."""
    trace = scheduled(3)
    for shift in (0, 2**20, -7):
        moved = [
            table.set_column(table.column_names.index("item"), "item", pa.array(np.asarray(table["item"]) + shift))
            for table in (trace.spans, trace.queue)
        ]
        assert Trace(*moved).problems() == []
        some = Trace(moved[0].slice(0, 40), moved[1]).problems()
        assert some[0].startswith(f"{len(trace.queue) - 40} of {len(trace.queue)} items in the queue were never done")


@pytest.mark.parametrize("seed", SEEDS)
def test_edges_lead_from_span_to_span(seed):
    trace = change(scheduled(seed), seed)
    spans, queue = rows(trace)
    first = {}
    for index, (rank, _, role, item, *_, end) in enumerate(spans):
        key = rank, role, item
        if key in queue and (key not in first or end < spans[first[key]][-1]):
            first[key] = index
    pairs = [tuple(flow.values()) for flow in trace.flows().to_pylist()]
    expected = [(first.get(flow[:3]), first.get(flow[3:6])) for flow in pairs]
    src, dst, missing = trace.edges()
    assert list(zip(src.tolist(), dst.tolist())) == [pair for pair in expected if None not in pair]
    assert missing == sum(None in pair for pair in expected) and missing


def test_a_makespan_beyond_int64_is_right():
    assert Trace(one(claim_ns=[-(2**63)], end_ns=[2**63 - 1])).summary()["makespan_ns"] == 2**64 - 1


@pytest.mark.parametrize("seed", SEEDS)
def test_shares_are_those_of_plain_loops_and_add_up_to_one(seed):
    trace = scheduled(seed)
    spans, _ = rows(trace)
    makespan = max(span[6] for span in spans) - min(span[4] for span in spans)
    whole = trace.ranks * trace.workgroups * makespan
    summary = trace.summary()
    assert summary.pop("makespan_ns") == makespan
    assert list(summary) == ["mover", "builder", "reducer", "wait", "idle"]
    for role in ("mover", "builder", "reducer"):
        assert summary[role] == sum(end - start for *_, r, _, _, start, end in spans if r == role) / whole
    assert summary["wait"] == sum(span[5] - span[4] for span in spans) / whole
    assert sum(summary.values()) == pytest.approx(1, abs=1e-12)


def test_a_run_in_which_no_time_passes_is_idle():
    assert Trace(None).summary() == {"makespan_ns": 0, "wait": 0, "idle": 1}
    instant = one(start_ns=[0], end_ns=[0])
    assert Trace(instant).summary() == {"makespan_ns": 0, "builder": 0, "wait": 0, "idle": 1}


def test_a_role_of_the_queue_that_did_nothing_has_its_share():
    assert Trace(one(), queue()).summary()["mover"] == 0
    assert Trace(one(), meta={"workgroups": 4}).summary()["idle"] == 0.75


def test_a_summary_prints_as_a_table():
    summary = Trace(one(start_ns=[1], end_ns=[4])).summary()
    assert repr(summary) == "makespan  0.004 µs\nbuilder     75.0 %\nwait        25.0 %\nidle         0.0 %"
    assert summary._repr_html_().count("<tr>") == 4


@pytest.mark.parametrize("seed", SEEDS)
def test_flows_are_the_pairs_that_plain_loops_find(seed):
    trace = change(scheduled(seed), seed)
    _, queue = rows(trace)
    flows = trace.flows()
    pairs = [
        (*source, *target, row["wait"])
        for target, row in queue.items()
        if row["wait"] >= 0 and row["wait_count"] > 0
        for source, gives in queue.items()
        if gives["signal_rank"] == row["rank"] and gives["signal"] == row["wait"]
    ]
    assert [tuple(row.values()) for row in flows.to_pylist()] == pairs and pairs
    assert flows.schema.names == ["src_rank", "src_role", "src_item", "dst_rank", "dst_role", "dst_item", "counter"]
    assert flows["src_role"].combine_chunks().dictionary.to_pylist() == list(ROLES)


def test_no_queue_has_no_flows():
    assert len(Trace(one()).flows()) == 0
