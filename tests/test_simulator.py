"""The simulator: against the emulator, against references of its own, against conservation; bounds, sweeps, errors."""

import contextlib
import functools
import signal
import subprocess
import sys
import time
from collections import defaultdict
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

import kosmos
from kosmos.cli import main
from kosmos.errors import KosmosArgumentError, KosmosDeadlock
from kosmos.machine import Machine, machines
from kosmos.schedule import QUEUES, Policy, Tile
from kosmos.simulator import engine, setup, sweeps, watch
from kosmos.trace.schema import ROLES, numbers

AG, RS = "all_gather_matmul", "matmul_reduce_scatter"
OPS = (AG, RS)
LAPTOP = machines["laptop"]
# neither links nor memory are ever short: workgroups get in nobody's way
FREE = replace(LAPTOP, name="free", memory_gbps=1e6, link_gbps=1e5)
SMALL = dict(m=1024, n=768, k=512, ranks=4, tile=(64, 64))


def simulate(op, machine=LAPTOP, **more):
    return kosmos.simulate(op, machine=machine, **(SMALL | more))


def columns(trace, *names):
    return numbers(trace.spans, *names)


# ------------------------------------------------------------------------------------------------- the same in both


def in_the_emulator(op, m, n, k, ranks, workgroups, machine, policy, order):
    torch = pytest.importorskip("torch", reason="the emulator runs Triton kernels")
    pytest.importorskip("triton")
    from emulated import OPS as run_of
    from emulated import operands

    assert torch
    world = kosmos.World.virtual(ranks, workgroups, device="cpu", machine=machine)
    x, w = operands(op, world, m // ranks, n, k)
    with kosmos.record() as run:
        run_of[op](x, w, world=world, policy=policy, order=order)
    return run.trace


def both(op, m, n, k, ranks, workgroups, machine, policy, order):
    emulated = in_the_emulator(op, m, n, k, ranks, workgroups, machine, policy, order)
    simulated = kosmos.simulate(
        op,
        m=m,
        n=n,
        k=k,
        ranks=ranks,
        machine=machine,
        policy=policy,
        order=order,
        workgroups=workgroups,
        tile=tuple(emulated.meta["tile"]),
    )
    assert emulated.queue.equals(simulated.queue)
    return emulated, simulated


def in_order_of_end(trace):
    rank, role, item, end = columns(trace, "rank", "role", "item", "end_ns")
    order = np.lexsort((item, role, rank, end))
    return list(zip(rank[order].tolist(), role[order].tolist(), item[order].tolist()))


@pytest.mark.triton
@pytest.mark.parametrize("policy", ["fixed:2", "one_way:2", "fixed:1", "one_way:3"])
@pytest.mark.parametrize(("op", "order"), [(AG, "local_first"), (AG, "random:1"), (RS, "band"), (RS, "row")])
def test_without_contention_emulator_and_simulator_do_the_same_in_the_same_order(op, order, policy):
    emulated, simulated = both(op, 512, 320, 256, 2, 4, FREE, policy, order)
    assert in_order_of_end(emulated) == in_order_of_end(simulated)
    assert simulated.summary()["makespan_ns"] == pytest.approx(emulated.summary()["makespan_ns"], rel=0.005)


@pytest.mark.triton
@pytest.mark.parametrize("policy", ["fixed:2", "one_way:2", "two_way:2", "planned"])
@pytest.mark.parametrize("machine", ["laptop", "MI350X", "H200", "slow links", "slower links", "H200/2 at full clock"])
@pytest.mark.parametrize("op, order", [(AG, "local_first"), (AG, "rank"), (RS, "band"), (RS, "row")])
def test_the_makespan_in_emulator_and_simulator_is_within_5_percent(op, order, machine, policy):
    model = {
        "slow links": LAPTOP.with_link(1.5),
        "slower links": LAPTOP.with_link(0.7),
        "H200/2 at full clock": replace(machines["H200"].split(2), cap_w=0),
    }.get(machine, machine)
    ranks = 2 if "/2" in machine else 4
    emulated, simulated = both(op, 512, 384, 320, ranks, 6, model, policy, order)
    assert simulated.summary()["makespan_ns"] == pytest.approx(emulated.summary()["makespan_ns"], rel=0.05)
    assert simulated.meta["policy"] == emulated.meta["policy"]


# ------------------------------------------------------------------------------------------------- fair shares


def assert_fair(capacity, flow, uses):
    """What max-min fair means: a flow's members have all that they can take, or they use a full resource, of which
    nobody has more bytes than they."""
    load, most = np.zeros(len(capacity)), np.zeros(len(capacity))
    for each, used in zip(flow, uses):
        for e, size in used if each["size"] else ():
            load[e] += each["size"] * each["rate"] * size
            most[e] = max(most[e], each["rate"] * size)
    assert (load <= capacity * (1 + 1e-6)).all()
    for each, used in zip(flow, uses):
        if each["size"] and each["rate"] < each["limit"] * (1 - 1e-6):
            full = [e for e, _ in used if load[e] >= capacity[e] * (1 - 1e-6)]
            assert any(each["rate"] * size >= most[e] * (1 - 1e-6) for e, size in used if e in full)
    return load


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("op", OPS)
def test_links_ports_and_memories_are_shared_max_min_fairly(op, seed):
    """Members join and leave at random; after each change the rates are what max-min fair means."""
    draw = np.random.default_rng(seed)
    machine = replace(
        LAPTOP,
        topology=("mesh", "switch", "memory")[seed % 3],
        memory_gbps=float(draw.choice([3, 20, 1000])),
        link_gbps=float(draw.choice([1, 3])),
        copy_gbps=float(draw.choice([2, 10])),
    )
    if machine.topology == "memory":
        machine = replace(machine, sharing=4, units=4)
    queues = QUEUES[op](m=1024, n=512, k=512, ranks=4, tile=Tile(64, 64))
    work = setup.work_of(queues, machine, 16, 512, 2, Tile(64, 64))
    state = setup.state_of(work, engine.ONE_WAY, 2, False)
    # each fetches something else
    state.workgroup["fetches"] = draw.uniform(0, 2, len(state.workgroup))
    members = [[] for _ in state.flow]
    now, held = 0.0, False
    for _ in range(80):
        f = int(draw.integers(len(members)))
        now += draw.uniform(0, 100)
        if state.flow["size"][f] and (draw.random() < 0.4 or state.flow["size"][f] == 15):
            engine._advance(state, f, now)
            engine._drop_first(state.member[f], int(state.flow["size"][f]) - 1)
            engine._resize(state, f, members[f].pop(), -1, now)
        else:
            engine._advance(state, f, now)
            engine._sift_up(state.member[f], int(state.flow["size"][f]), state.flow["done"][f] + 1e9, 0, 0, 0)
            members[f].append(int(draw.integers(len(state.workgroup))))
            engine._resize(state, f, members[f][-1], 1, now)
        uses = [
            [(use["resource"], use["bytes"]) for use in state.use[u:v]] for u, v in state.flow[["uses", "uses_end"]]
        ]
        for each, used, who in zip(state.flow, uses, members):
            if who and each["kind"] != engine.REDUCER:
                mean = state.workgroup["fetches"][who].mean()
                assert used[0][1] == pytest.approx(each["base"] + mean), "what its members fetch on average"
        load = assert_fair(state.resource["capacity"], state.flow, uses)
        np.testing.assert_allclose(state.resource["load"], load, rtol=1e-6, atol=1e-6)
        held = held or bool((state.resource["level"] < np.inf).any())
    assert held or machine.topology == "memory", "something was full"
    assert state.run["unsettled"][0] == 0


def test_copies_on_one_link_share_it():
    """Two ranks, one row block of 8 parts: with many movers the link is the limit, with one the workgroup is."""
    machine = replace(FREE, link_gbps=10.0, copy_gbps=4.0, atomic_ns=0, link_ns=0, memory_ns=0)
    moved = 64 * 4096 * 2 * 64 // 8  # bytes that one rank fetches
    for crew, rate in ((1, 4.0), (2, 8.0), (4, 10.0), (8, 10.0)):
        trace = kosmos.simulate(
            AG, m=8192, n=64, k=512, ranks=2, machine=machine, policy=Policy.fixed(crew), workgroups=16, tile=(64, 64)
        )
        role, rank, end = columns(trace, "role", "rank", "end_ns")
        movers = role == ROLES.index("mover")
        _, rows, cols = (
            trace.queue.filter(pa.compute.equal(trace.queue["role"], "mover"))[c].to_numpy()
            for c in ("rank", "rows", "cols")
        )
        moved = int((rows.astype(np.int64) * cols * 2).sum()) / 2
        assert end[movers].max() == pytest.approx(moved / rate, rel=0.02), crew


# ------------------------------------------------------------------------------------------------- conservation


def settings():
    """Machines of every kind, every policy, orders, ugly shapes."""
    model = {
        "laptop": LAPTOP,
        "slow links": LAPTOP.with_link(1.0),
        "slow memory": replace(LAPTOP, name="slow memory", memory_gbps=20.0),
        "MI350X": replace(machines["MI350X"], units=40),
        "MI300X hot": replace(machines["MI300X"], units=40, cap_w=300, unit_w=20.0, wait_w=4.0),
        "H200": replace(machines["H200"], units=32, link_gbps=60),
        "B200": machines["B200"],
        "H200/4": replace(machines["H200/4"], memory_gbps=600.0),
        "paced": machines["H200/4"].with_link(4),
    }
    shapes = [(1024, 768, 512), (520, 321, 200), (24, 7, 65), (4096, 512, 1024)]
    for at, (name, machine) in enumerate(model.items()):
        for op in OPS:
            for which, policy in enumerate(("fixed:3", "planned", "one_way:2", "two_way:3")):
                m, n, k = shapes[(at + which) % len(shapes)]
                ranks = 4 if machine.sharing == 4 else (1, 2, 4, 8)[(at + which) % 4]
                order = [("local_first", "rank"), ("band", "row")][op == RS][which % 2]
                yield pytest.param(
                    dict(op=op, m=m, n=n, k=k, ranks=ranks, machine=machine, policy=policy, order=order),
                    id=f"{name}-{op}-{policy}-{m}-{ranks}",
                )


@functools.cache
def result(**how):
    how = dict(how)
    return kosmos.simulate(how.pop("op"), tile=(64, 64), workgroups=10, **how)


@pytest.mark.parametrize("how", list(settings()))
def test_what_is_conserved(how):
    trace = result(**how)
    machine, ranks = how["machine"], how["ranks"]
    assert trace.problems() == []  # overlaps, items done twice or never, waits that end too early
    rank, workgroup, role, item, claim, start, end, cycles = columns(
        trace, "rank", "workgroup", "role", "item", "claim_ns", "start_ns", "end_ns", "cycles"
    )
    rows = {(q["rank"], ROLES.index(q["role"]), q["item"]): q for q in trace.queue.to_pylist()}
    keys = list(zip(rank.tolist(), role.tolist(), item.tolist()))
    assert sorted(keys) == sorted(rows)

    # waits end at the signal, or as soon as one can know of it, and neither earlier nor later
    atomic = machine.atomic_ns
    signalled = defaultdict(list)
    for key, when in zip(keys, end.tolist()):
        row = rows[key]
        if row["signal"] >= 0:
            takes = atomic if row["signal_rank"] == key[0] else machine.link_ns
            signalled[row["signal_rank"], row["signal"]].append(when + takes)
    waited = 0
    for key, claimed, started in zip(keys, claim.tolist(), start.tolist()):
        row = rows[key]
        arrived = signalled[row["rank"], row["wait"]]
        if row["wait"] >= 0 and arrived:
            assert len(arrived) == row["wait_count"]
            assert started >= max(arrived) - 2
            if started > max(arrived) + 4 * atomic + 42:
                # it was ready before: from the claim on there are only steps of the claim and one look
                steps = 6 if how["policy"].startswith("two_way") else 5
                assert started <= claimed + steps * atomic + machine.link_ns + 2
            else:
                waited += 1

    # no link is above its rate: in no stretch of time more is carried than it can
    carried = defaultdict(list)
    for key, began, ended in zip(keys, start.tolist(), end.tolist()):
        row = rows[key]
        size = row["rows"] * row["cols"] * 2
        if key[1] == ROLES.index("mover"):
            carried[row["chunk"], key[0]].append((began, ended, size))
        elif key[1] == ROLES.index("reducer"):
            for source in set(range(ranks)) - {key[0]}:
                carried[source, key[0]].append((began, ended, size))
    ports = defaultdict(list)
    for (source, to), items in carried.items():
        if machine.topology == "switch":
            ports["out", source] += items
            ports["in", to] += items
        elif machine.topology == "mesh" or machine.paced:
            ports[source, to] += items
    for items in ports.values():
        edges = sorted({at for began, ended, _ in items for at in (began, ended)})
        for begin in edges[:: max(len(edges) // 12, 1)]:
            for until in edges[:: max(len(edges) // 12, 1)]:
                # rounded times: a ns on either side
                inside = (
                    0
                    if until <= begin
                    else sum(size for began, ended, size in items if begin <= began and ended <= until)
                )
                assert inside <= machine.link_gbps * (max(until - begin, 0) + 2) * (1 + 1e-6)

    # cycles are time at a clock between none and the highest
    long = end - start
    assert (cycles <= (long + 1) * machine.clock_mhz / 1000 + 1).all()
    assert (cycles >= (long - 1) * 0.05 * machine.clock_mhz / 1000 - 1).all()


@pytest.mark.parametrize("how", list(settings()))
def test_what_the_counters_say(how):
    trace = result(**how)
    machine, ranks = how["machine"], how["ranks"]
    series = defaultdict(dict)
    for row in trace.counters.to_pylist():
        series[row["name"], row["rank"]][row["time_ns"]] = row["value"]
    said = trace.meta["counters"]
    devices = ranks // machine.sharing
    bins = len(series["clock", 0])
    width = np.diff([*(at * said["bin_ns"] for at in range(bins)), said["end_ns"]])
    assert (width > 0).all() and said["end_ns"] >= trace.summary()["makespan_ns"]

    # rates: what all items move, and never more than there is
    rows = {(q["rank"], q["role"], q["item"]): q for q in trace.queue.to_pylist()}
    copies = [q for q in rows.values() if q["role"] != "builder"]
    parts = 1 if how["op"] == AG else ranks - 1
    for rank in range(ranks) if ranks > 1 else ():
        moved = sum(q["rows"] * q["cols"] * 2 * parts for q in copies if q["rank"] == rank)
        rates = np.array(list(series["links in", rank].values()))
        assert (rates * width).sum() == pytest.approx(moved, rel=1e-6)
        if machine.topology == "mesh":
            assert (rates <= machine.link_gbps * (ranks - 1) * (1 + 1e-6)).all()
        elif machine.topology == "switch":
            assert (rates <= machine.link_gbps * (1 + 1e-6)).all()
    if machine.topology == "mesh":
        for (name, _), values in series.items():
            if name.startswith("link from"):
                assert max(values.values()) <= machine.link_gbps * (1 + 1e-6)
    for d in range(devices):
        memory = np.array(list(series["memory", d * machine.sharing].values()))
        assert (memory <= machine.memory_gbps * (1 + 1e-6)).all()
        stored = 2 if how["op"] == AG else 1
        least = sum(
            q["rows"] * q["cols"] * 2 * (1 if q["role"] == "builder" else stored)
            for q in rows.values()
            if q["rank"] // machine.sharing == d
        )
        if ranks == machine.sharing or ranks == 1:
            assert (memory * width).sum() >= least * (1 - 1e-6)

    # power: under the cap, and the energy is its integral; the clock is what the cap leaves
    clock = np.array([list(series["clock", d * machine.sharing].values()) for d in range(devices)])
    assert (clock <= machine.clock_mhz * (1 + 1e-9)).all() and (clock > 0).all()
    if not machine.cap_w:
        assert (clock == pytest.approx(machine.clock_mhz)) and "energy_j" not in trace.meta
        assert ("power", 0) not in series
        return
    power = np.array([list(series["power", d * machine.sharing].values()) for d in range(devices)])
    assert (power >= machine.idle_w - 1e-6).all()
    assert (power <= machine.cap_w * 1.001).all()
    assert (power * width).sum() * 1e-9 == pytest.approx(trace.meta["energy_j"], rel=1e-9)


def memory_bytes(trace):
    """What has gone through all memories: the integral of their series."""
    said = trace.meta["counters"]
    rows = [row for row in trace.counters.to_pylist() if row["name"] == "memory"]
    begins = np.array([row["time_ns"] for row in rows], float)
    lasts = np.minimum(begins + said["bin_ns"], said["end_ns"]) - begins
    return float((np.array([row["value"] for row in rows]) * lasts).sum())


def test_energy_is_that_of_the_units_and_the_bytes():
    """At one clock power is a sum that can be written down: idle, units by what they do, bytes."""
    machine = replace(machines["H200"], units=20, cap_w=1e6, busy_mhz=0)
    trace = kosmos.simulate(RS, m=4096, n=2048, k=4096, ranks=4, machine=machine, policy="fixed:4")
    role, start, end = columns(trace, "role", "start_ns", "end_ns")
    queues = QUEUES[RS](m=4096, n=2048, k=4096, ranks=4, tile=Tile(128, 256))
    work = setup.work_of(queues, machine, 20, 4096, 2, Tile(128, 256), flat=True)
    built = work.work["builder"].sum()
    lasted = trace.meta["counters"]["end_ns"]
    leave = defaultdict(int)
    for rank, workgroup, until in zip(*columns(trace, "rank", "workgroup", "end_ns")):
        leave[rank, workgroup] = max(leave[rank, workgroup], until)
    present = sum(leave.values())
    building = (end - start)[role == ROLES.index("builder")].sum()
    least = (
        sum((q["rows"] * q["cols"] * 2) * 5 for q in trace.queue.to_pylist() if q["role"] == "reducer")
        + (work.builder_bytes * work.work["builder"].sum(axis=1)).sum()
    )
    moved = memory_bytes(trace)
    assert 0.999 * least < moved < 2 * least, "all operands once, some again"
    watts = [
        4 * machine.idle_w * lasted,
        present * machine.on_w,
        building * machine.unit_w * work.product_share,
        (present - building) * machine.wait_w,
        moved * machine.byte_pj * 1e-3,
    ]
    assert built == pytest.approx(building, rel=0.02)
    assert trace.meta["energy_j"] == pytest.approx(sum(watts) * 1e-9, rel=0.01)


def test_a_cap_slows_builders_down_and_fewer_run_faster():
    machine = replace(machines["MI350X"], units=64, tflops=577.0, unit_w=20.0, wait_w=0.0, cap_w=800)
    free = replace(machine, cap_w=1e6)
    usual = dict(m=16384, n=8192, k=2048, ranks=4, policy="one_way:12")
    capped, loose = (kosmos.simulate(RS, machine=model, **usual) for model in (machine, free))
    assert capped.summary()["makespan_ns"] > 1.1 * loose.summary()["makespan_ns"]
    fewer = kosmos.simulate(RS, machine=machine, **usual, workgroups=56)
    kept = capped.summary()["makespan_ns"] / fewer.summary()["makespan_ns"]
    assert 56 / 64 < kept < 1
    clock = [
        np.mean([row["value"] for row in trace.counters.to_pylist() if row["name"] == "clock"])
        for trace in (fewer, capped)
    ]
    assert clock[0] > 1.02 * clock[1]


# ------------------------------------------------------------------------------------------------- paced links


def test_paced_links_hold_their_workgroups_exactly_as_the_kernel_does():
    """Replayed link by link: a copy ends bytes / rate after it got the link."""
    machine = replace(machines["H200/4"].with_link(5), cap_w=0, memory_gbps=1e5)
    trace = kosmos.simulate(AG, m=4096, n=1024, k=2048, ranks=4, machine=machine, policy="one_way:6")
    rows = {(q["rank"], q["item"]): q for q in trace.queue.to_pylist() if q["role"] == "mover"}
    spans = [s for s in trace.spans.to_pylist() if s["role"] == "mover"]
    links = defaultdict(list)
    for span in spans:
        row = rows[span["rank"], span["item"]]
        size = row["rows"] * row["cols"] * 2
        copied = span["start_ns"] + size / machine.copy_gbps + machine.memory_ns
        links[row["chunk"], span["rank"]].append((copied, size, span["end_ns"]))
    held = 0
    for items in links.values():
        free = 0.0
        for copied, size, end in sorted(items):
            free = max(free, copied) + size / 5
            assert end == pytest.approx(free, abs=3)
            held += free > copied + size / 5 + 10
    assert held > 20, "several workgroups queue up on a link"


def test_paced_reducers_take_one_link_after_the_other():
    machine = replace(machines["H200/4"].with_link(2), cap_w=0, memory_gbps=1e5)
    trace = kosmos.simulate(RS, m=1024, n=1024, k=512, ranks=4, machine=machine, policy="fixed:1")
    size = 128 * 256 * 2
    took = [s["end_ns"] - s["start_ns"] for s in trace.spans.to_pylist() if s["role"] == "reducer"]
    expected = 5 * size / (2 * machine.reduce_gbps) + machine.memory_ns + 3 * size / 2
    assert took == [pytest.approx(expected, abs=3)] * len(took)


# ------------------------------------------------------------------------------------------------- determinism, time


@pytest.mark.parametrize("op", OPS)
def test_the_same_run_twice_is_the_same_trace(op):
    how = dict(m=2048, n=2048, k=1024, ranks=8, machine="MI350X", policy="one_way:5")
    assert kosmos.simulate(op, **how).equals(kosmos.simulate(op, **how))


def paper(ranks=8, **more):
    usual = dict(m=8192, n=16384, k=6656, ranks=ranks, machine="MI350X", policy="one_way:32", tile=(128, 256))
    return kosmos.simulate(RS, **usual | more)


@pytest.mark.speed
@pytest.mark.parametrize("policy", ["one_way:8", "one_way:32"])  # the first is README's
def test_a_run_at_paper_scale_takes_100_ms(policy):
    paper(policy=policy)
    times = []
    for _ in range(10):
        begin = time.process_time()
        trace = paper(policy=policy)
        times.append(time.process_time() - begin)
    assert len(trace.spans) == 8 * 4096 + 4096 and trace.workgroups == 256
    print(f"{policy}: {1000 * min(times):.0f} ms")
    assert min(times) <= 0.1


@pytest.mark.speed
@pytest.mark.parametrize("op", OPS)
def test_time_is_linear_in_items_up_to_64_ranks(op):
    spent = {}
    for ranks in (8, 64):
        how = dict(m=8192, n=8192, k=4096, ranks=ranks, machine="MI350X", policy="one_way:32")
        kosmos.simulate(op, **how)
        times = []
        for _ in range(3):
            begin = time.process_time()
            trace = kosmos.simulate(op, **how)
            times.append(time.process_time() - begin)
        spent[ranks] = min(times) / len(trace.spans)
    assert spent[64] < 3 * spent[8], spent


@pytest.mark.speed
def test_the_first_run_of_a_process_takes_2_seconds():
    code = (
        "import time, kosmos\n"
        "begin = time.process_time()\n"
        f"kosmos.simulate({RS!r}, m=8192, n=16384, k=6656, ranks=8, machine='MI350X', policy='one_way:32')\n"
        "print(time.process_time() - begin)"
    )
    paper()  # compiles, if nobody has yet
    took = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)
        for _ in range(2)
    ]
    assert min(took) <= 2


def test_ctrl_c_stops_a_run_under_way():
    work = setup.work_of(QUEUES[RS](m=2048, n=1024, k=64, ranks=8, tile=Tile(4, 4)), LAPTOP, 16, 64, 2, Tile(4, 4))
    engine.go_on(setup.state_of(work, setup.POLICIES["fixed"], 4, False))  # compiles, if nobody has yet
    state = setup.state_of(work, setup.POLICIES["fixed"], 4, False)
    engine.begin(state)
    seconds = 0.1
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    begin = time.process_time()
    try:
        with pytest.raises(KeyboardInterrupt):
            engine.go_on(state)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert time.process_time() - begin < seconds + 1
    assert 0 < state.run["spans"][0] < len(state.item)


def test_how_often_python_has_a_turn_changes_nothing(monkeypatch):
    how = dict(policy="two_way:2")
    whole = simulate(RS, **how)
    turns = []
    some = engine._some
    monkeypatch.setattr(engine, "EVENTS", 7)
    monkeypatch.setattr(engine, "_some", lambda *all: turns.append(some(*all)) or turns[-1])
    assert simulate(RS, **how).equals(whole)
    assert turns[-1] == engine.DONE and turns.count(engine.GOING) == len(turns) - 1 > 100


def test_a_run_that_compiles_says_so(capfd, monkeypatch):
    from kosmos.simulator import runs as module

    monkeypatch.setattr(module, "_warm", False)
    monkeypatch.setattr(module, "COMPILES", -1.0)
    with module._compiling():
        time.sleep(0.6)
    assert "compiling the simulator, this once" in capfd.readouterr().err
    with module._compiling():
        time.sleep(0.4)
    assert capfd.readouterr().err == ""


# ------------------------------------------------------------------------------------------------- the user's functions


def test_a_policy_function_that_does_what_a_policy_does_gives_the_same_run():
    def fixed_3(view):
        role = "reducer" if view.workgroup < 3 else "builder"
        return role if view.left(role) else None

    def one_way_3(view):
        if view.workgroup >= 3 and view.left("builder"):
            return "builder"
        return "reducer" if view.left("reducer") else None

    for function, policy in ((fixed_3, "fixed:3"), (one_way_3, "one_way:3")):
        own, usual = (simulate(RS, policy=each, workgroups=8) for each in (function, policy))
        assert own.problems() == [] and own.meta["policy"] == function.__name__
        assert in_order_of_end(own) == in_order_of_end(usual)
        assert own.summary()["makespan_ns"] == pytest.approx(usual.summary()["makespan_ns"], abs=2 * 700)


def test_a_policy_function_sees_the_queues_and_cannot_change_them():
    seen = []

    def greedy(view):
        seen.append(view)
        for role in ("builder", "mover"):
            if view.ready[role]:
                return role
        return next((role for role in ("mover", "builder") if view.left(role)), None)

    trace = simulate(AG, policy=greedy, workgroups=6)
    assert trace.problems() == []
    first = seen[0]
    assert (first.role, first.head["mover"], first.length["mover"]) == (None, 0, len(trace.queue) // 4 - 16 * 12)
    assert {view.role for view in seen} == {None, "mover", "builder"}
    assert all(view.head[role] <= view.length[role] for view in seen for role in view.head)
    assert all(not view.ready[role] for view in seen for role in view.head if not view.left(role))
    last = seen[-1]
    assert last.left("mover") == last.left("builder") == 0 and last.now_ns > 0
    with pytest.raises((AttributeError, TypeError)):
        first.rank = 3
    with pytest.raises(TypeError):
        first.length["mover"] = 7


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        ("cook", "policy odd returned 'cook' for rank 0, workgroup 0; allowed are 'builder', 'reducer' and None"),
        (7, "policy odd returned 7 for rank 0, workgroup 0; allowed are"),
        ("x" * 500, r"policy odd returned 'xxx.*\.\.\. for rank 0"),
        (["builder"], "returned \\['builder'\\]"),
    ],
)
def test_a_policy_function_that_returns_nonsense(answer, says):
    def odd(view):
        return answer

    with pytest.raises(KosmosArgumentError, match=says):
        simulate(RS, policy=odd)


def test_a_policy_function_that_asks_for_what_is_gone():
    def always(view):
        return "builder"

    with pytest.raises(
        KosmosArgumentError, match="policy always returned 'builder' .*; allowed are 'reducer' and None"
    ):
        simulate(RS, policy=always)


def test_a_policy_function_that_leaves_work_behind_or_waits_for_ever():
    with pytest.raises(KosmosDeadlock, match="builder item 0 is never claimed under policy lazy"):
        simulate(RS, policy=_named("lazy", lambda view: None))

    def reduces_only(view):
        return "reducer" if view.left("reducer") else None

    with pytest.raises(KosmosDeadlock, match="builder item 0 is never claimed under policy reduces_only"):
        simulate(RS, policy=reduces_only)

    def takes_all(view):
        # more workgroups than items: all wait, nobody builds
        return "builder" if view.left("builder") and view.rank else "reducer" if view.left("reducer") else None

    with pytest.raises(KosmosDeadlock, match="rank 0: builder item 0 is never claimed"):
        simulate(RS, policy=takes_all)


def _named(name, function):
    function.__name__ = name
    return function


def test_a_policy_function_cannot_change_what_it_is_told():
    def greedy(view):
        view.head["builder"] = 0

    with pytest.raises(TypeError, match="does not support item assignment"):
        simulate(RS, policy=greedy)


def test_code_that_cannot_be_kept_is_compiled_all_the_same(monkeypatch):
    def nowhere(cache=False, **options):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: (function, options)

    monkeypatch.setattr(engine, "njit", nowhere)
    assert engine.inlined(len) == (len, {"_nrt": False, "forceinline": True})


def test_a_policy_or_an_order_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(watch, "CALL_SECONDS", 0.3)

    def endless(_):
        while True:
            pass

    def deaf(_):
        with contextlib.suppress(BaseException):
            endless(_)
        endless(_)

    begin = time.monotonic()
    stopped = "does not end: a call of it was stopped after"
    with pytest.raises(KosmosArgumentError, match=rf"policy endless {stopped} 0\.[3-9] s"):
        simulate(RS, policy=endless)
    with pytest.raises(KosmosArgumentError, match=rf"order endless {stopped} 0\.[3-9] s"):
        simulate(RS, order=endless)
    with pytest.raises(KosmosArgumentError, match=rf"policy deaf {stopped} 1\.[3-9] s"):
        simulate(RS, policy=deaf)
    with pytest.raises(KosmosArgumentError, match=rf"policy <lambda> {stopped} 0\.[6-9] s"):
        simulate(RS, policy=lambda view: time.sleep(0.6))
    assert time.monotonic() - begin < 10
    # many quick calls take longer together than one may
    slow = simulate(RS, policy=lambda view: time.sleep(0.001) or next((r for r in view.head if view.left(r)), None))
    assert slow.problems() == []


def test_an_error_inside_a_policy_function_is_the_users_own():
    def broken(view):
        return view.no_such_thing

    with pytest.raises(AttributeError, match="no_such_thing"):
        simulate(RS, policy=broken)


def test_orders_of_the_user():
    def backwards(items):
        return np.arange(len(items))[::-1]

    trace = simulate(RS, order=backwards)
    assert trace.problems() == [] and trace.meta["order"] == "backwards"
    builders = trace.queue.filter(pa.compute.equal(trace.queue["role"], "builder"))
    assert builders["row"][0].as_py() == 1024 - 64
    with pytest.raises(KosmosArgumentError, match="order .* must return a permutation"):
        simulate(RS, order=lambda items: [0] * len(items))


# ------------------------------------------------------------------------------------------------- policies, orders


def test_what_the_models_are_for_comes_out():
    """At paper scale: rows are slower than bands, a wrong fixed crew is slow where one-way is not."""
    how = dict(m=8192, n=8192, k=3584, ranks=8, machine="MI350X")
    spans = {
        (policy, order): kosmos.simulate(RS, **how, policy=policy, order=order).summary()["makespan_ns"]
        for policy in ("fixed:4", "fixed:16", "one_way:4", "one_way:16")
        for order in ("band", "row")
    }
    assert spans["fixed:16", "row"] > 1.2 * spans["fixed:16", "band"]
    assert spans["fixed:4", "band"] > 1.5 * spans["one_way:4", "band"]


@pytest.mark.parametrize("order, n, k", [("rank", 1280, 8192), ("local_first", 2304, 16384)])
def test_every_device_has_a_cache_of_its_own(order, n, k):
    """A block that a copy stores lies in another cache than what it reads; devices move different amounts meanwhile."""
    trace = kosmos.simulate(AG, m=8192, n=n, k=k, ranks=8, machine="H200", order=order, policy="one_way:8")
    assert trace.problems() == []
    (cycles,) = columns(trace, "cycles")
    assert cycles.min() > 0
    series = trace.counters.to_pydict()
    memory = np.array([v for name, v in zip(series["name"], series["value"]) if name == "memory"])
    assert memory.min() >= -1e-6 and memory.max() <= machines["H200"].reached_gbps * (1 + 1e-6)


def test_a_bad_operand_order_costs_memory_traffic():
    machine = replace(machines["H200/4"], memory_gbps=4800.0)
    columns_first = _named("columns_first", lambda items: np.lexsort((items.row, items.col)))
    how = dict(m=8192, n=8192, k=2048, ranks=4, policy="one_way:4")
    runs = {order: kosmos.simulate(RS, **how, machine=machine, order=order) for order in ("band", columns_first)}
    traffic = {order: memory_bytes(trace) for order, trace in runs.items()}
    # operands, products, and what reducers read and write
    once = 4 * (2 * 8192 * 2048 * 2 + 8192 * 8192 * 2) + 5 * 8192 * 8192 * 2
    assert once < traffic["band"] and traffic[columns_first] > 1.5 * traffic["band"]
    for order in runs:
        all_fits = kosmos.simulate(RS, **how, machine=replace(machine, cache_mb=1e8), order=order)
        assert memory_bytes(all_fits) == pytest.approx(once, rel=1e-3)
        none_fits = kosmos.simulate(RS, **how, machine=replace(machine, cache_mb=1e-9), order=order)
        every = 4 * 64 * 32 * (128 + 256) * 2048 * 2 + once - 4 * 2 * 8192 * 2048 * 2
        # tiles that begin in the same moment share even then
        assert 1.5 * once < memory_bytes(none_fits) <= 1.001 * every


# ------------------------------------------------------------------------------------------------- bounds


@pytest.mark.parametrize("how", list(settings()))
def test_no_run_is_below_its_bounds(how):
    trace = result(**how)
    makespan = trace.summary()["makespan_ns"]
    bounds = trace.meta["bounds"]
    assert set(bounds) >= {"work", "critical_path", "memory"} and min(bounds.values()) >= 0
    assert ("link" in bounds) == (how["ranks"] > 1 and (how["machine"].topology != "memory" or how["machine"].paced))
    for name, ns in bounds.items():
        assert ns <= makespan + 1, name
    arguments = {name: value for name, value in how.items() if name not in ("op", "policy")}
    again = kosmos.bounds(how["op"], **arguments, tile=(64, 64), workgroups=10)
    assert {name: round(ns) for name, ns in again.items()} == bounds


@pytest.mark.parametrize(
    "how",
    [
        dict(m=8192, n=16, k=8192, machine="H200/8", policy="two_way:4"),
        dict(m=8000, n=2, k=4096, machine="MI300X/8", tile=(1000, 1), order="random:789"),
        dict(m=4096, n=2048, k=1024, machine=replace(machines["H200"], on_w=9.0), policy="one_way:16"),
        dict(m=4096, n=2048, k=1024, machine=replace(machines["H200"], on_w=15.0), policy="one_way:16"),
        dict(m=1024, n=2048, k=2048, machine=replace(machines["MI355X"], on_w=15.0), policy="fixed:2", ranks=1),
    ],
)
def test_what_the_cache_may_have_and_units_that_slow_others_down_are_no_bound(how):
    trace = kosmos.simulate(AG, **{"ranks": 8} | how)
    assert 0 < max(trace.meta["bounds"].values()) <= trace.summary()["makespan_ns"]


def test_bounds_are_near_what_binds():
    busy = kosmos.simulate(RS, m=16384, n=8192, k=8192, ranks=2, machine="H200", policy="one_way:4")
    assert busy.meta["bounds"]["work"] > 0.93 * busy.summary()["makespan_ns"]
    slow = kosmos.simulate(AG, m=8192, n=512, k=8192, ranks=4, machine="MI350X", link_gbps=5, policy="one_way:64")
    assert slow.meta["bounds"]["link"] > 0.9 * slow.summary()["makespan_ns"]
    starved = replace(LAPTOP, memory_gbps=5.0, link_gbps=1000.0)
    trace = kosmos.simulate(AG, m=4096, n=64, k=2048, ranks=2, machine=starved, policy="one_way:8", tile=(64, 64))
    assert trace.meta["bounds"]["memory"] > 0.8 * trace.summary()["makespan_ns"]
    one = kosmos.simulate(RS, m=128, n=64, k=4096, ranks=2, machine=FREE, policy="fixed:1", tile=(64, 64))
    assert one.meta["bounds"]["critical_path"] > 0.9 * one.summary()["makespan_ns"]


def test_the_picture_shows_the_bounds_and_says_model():
    trace = simulate(RS)
    figure = trace.plot()
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    makespan = trace.summary()["makespan_ns"]
    for name, ns in trace.meta["bounds"].items():
        said = next(text for text in legend if text.startswith(name.replace("_", " ")))
        assert f"{ns / 1000:,.1f} µs" in said and f"({100 * ns / makespan:.0f} %)" in said
    assert figure.axes[0].get_title(loc="left") == "matmul_reduce_scatter (model)"
    vertical = {
        round(float(line.get_xdata()[0]), 3) for line in figure.axes[0].lines if len(set(line.get_xdata())) == 1
    }
    claim = int(columns(trace, "claim_ns")[0].min())
    assert vertical >= {round((claim + ns) / 1000, 3) for ns in trace.meta["bounds"].values()}


# ------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (dict(op="gather"), "op='gather' is unknown; known are all_gather_matmul, matmul_reduce_scatter"),
        (dict(op=3), "op=3 is unknown"),
        (dict(m=-8), "m=-8 must be a whole number from 1"),
        (dict(n=0), "n=0 must be a whole number from 1"),
        (dict(k=1.5), "k=1.5 must be a whole number from 1"),
        (dict(k=True), "k=True must be a whole number"),
        (dict(ranks=3), "m=1024 must divide by ranks=3"),
        (dict(ranks=0), "ranks=0 must be a whole number from 1"),
        (dict(machine="PDP-11"), "machine='PDP-11' is unknown; known are laptop, MI300X, MI350X"),
        (dict(machine="H200/8"), "ranks=4: machine H200/8 is one GPU shared by 8 ranks"),
        (dict(policy="fixed"), "policy='fixed' is unknown; allowed are"),
        (dict(policy="fixed:17"), "crew=17 of policy fixed:17 is larger than the 16 workgroups"),
        (dict(policy="fixed:16"), "leaves nobody to be a builder"),
        (dict(policy="fixed:0"), "leaves nobody to be a reducer"),
        (dict(policy=5), "policy=5 is unknown"),
        (dict(order="bands"), "order='bands' is unknown; allowed are 'band', 'row'"),
        (dict(order=5), "order=5 must be a name or a function"),
        (dict(dtype="int4"), "dtype='int4' is unknown; known are bf16, fp16, fp8"),
        (dict(workgroups=0), "workgroups=0 must be a whole number"),
        (dict(workgroups=17), "workgroups=17 cannot be resident at once: a rank of machine laptop has 16 units"),
        (dict(tile=(0, 64)), "tile rows=0 must be a whole number"),
        (dict(tile=64), r"tile=64 must be \(rows, columns\)"),
        (dict(link_gbps=0), "link_gbps=0 must be a rate in GB/s, above 0"),
        (dict(link_gbps=float("nan")), "link_gbps=nan must be a rate"),
        (dict(link_gbps=1e-300), "this run lasts .* ns, longer than a trace can tell"),
        (dict(m=1 << 24, n=1 << 24, tile=(1, 1)), "the simulator takes up to 30,000,000"),
    ],
)
def test_bad_input_gets_one_sentence(more, says):
    how = dict(op=RS) | SMALL | dict(machine="laptop") | more
    with pytest.raises(KosmosArgumentError, match=says) as raised:
        kosmos.simulate(how.pop("op"), **how)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("policy", ["one_way:0", "two_way:0", "one_way:16", "two_way:16"])
def test_crews_of_nobody_and_of_all(op, policy):
    """What the deadlock check lets pass ends; what it refuses is refused."""
    queues = QUEUES[op](m=1024, n=768, k=512, ranks=4, tile=Tile(64, 64))
    try:
        kosmos.schedule.check(queues, Policy.parse(policy), 16)
    except (KosmosArgumentError, KosmosDeadlock) as refused:
        with pytest.raises(type(refused)):
            simulate(op, policy=policy)
    else:
        assert simulate(op, policy=policy).problems() == []


def test_dtypes():
    spans = {dtype: simulate(RS, dtype=dtype, k=4096).summary()["makespan_ns"] for dtype in ("bf16", "fp16", "fp8")}
    assert spans["bf16"] == spans["fp16"] > 1.6 * spans["fp8"]


# ------------------------------------------------------------------------------------------------- sweeps, command


def test_a_sweep_is_every_combination_in_order():
    table = kosmos.sweep(
        RS, m=1024, n=[256, 768], k=512, ranks=4, machine=["laptop", LAPTOP.with_link(2)],
        policy=["fixed:2", Policy.one_way(3), "planned"], tile=(64, 64), progress=False,
    )  # fmt: skip
    assert table.column_names == sweeps.TABLE.names and len(table) == 12
    rows = table.to_pylist()
    assert [row["n"] for row in rows] == [256] * 6 + [768] * 6
    assert [row["link_gbps"] for row in rows[:6]] == [8] * 3 + [2] * 3
    assert [row["policy"] for row in rows[:3]] == ["fixed:2", "one_way:3", "planned"]
    assert rows[2]["ran"].startswith("planned (fixed:")
    for row, machine in ((rows[0], "laptop"), (rows[9], LAPTOP.with_link(2))):
        one = simulate(RS, n=row["n"], machine=machine, policy=row["policy"])
        summary = one.summary()
        assert row["makespan_ns"] == summary["makespan_ns"] and row["idle"] == summary["idle"]
        assert row["work_ns"] == one.meta["bounds"]["work"] and row["energy_j"] is None and row["mover"] is None


def test_a_sweep_over_processes_gives_the_same_table():
    how = dict(shapes=[(256, 256, 256), (512, 256, 64)], ranks=[1, 2], machine="laptop", dtype=["bf16", "fp8"],
               policy=["one_way:1", "two_way:2"], tile=(64, 64), progress=False)  # fmt: skip
    ops = list(OPS)
    assert kosmos.sweep(ops, **how, jobs=2).equals(kosmos.sweep(ops, **how, jobs=1))


def test_a_sweep_with_functions_and_its_bar(capfd):
    def backwards(items):
        return np.arange(len(items))[::-1]

    table = kosmos.sweep(RS, m=256, n=256, k=64, ranks=2, machine="laptop", order=[backwards, "band"], tile=[(64, 64)])
    assert table["order"].to_pylist() == ["backwards", "band"]
    assert "/2 [" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (dict(n=None), "n is missing; give m, n and k, or shapes"),
        (dict(n=[]), "size is an empty list"),
        (dict(policy=[]), "policy is an empty list"),
        (dict(tile=5), r"tile=5 must be \(rows, columns\)"),
        (dict(shapes=[(1, 2, 3)]), "give either shapes, or m, n and k"),
        (dict(jobs=0), "jobs=0 must be a whole number"),
        (dict(policy=["fixed:2", "fixed:40"]), r"crew=40 .* larger than .* \(in the run op=matmul_reduce_scatter, .*"),
    ],
)
def test_a_sweep_says_what_is_wrong(more, says):
    how = dict(m=256, n=256, k=64, ranks=2, machine="laptop", progress=False) | more
    with pytest.raises(KosmosArgumentError, match=says):
        kosmos.sweep(RS, **how)


def test_the_command_runs_one(tmp_path, capsys):
    out, png = str(tmp_path / "run.parquet"), str(tmp_path / "run.png")
    sizes = ["--m", "1024", "--n", "512", "--k", "512", "--ranks", "4", "--machine", "laptop", "--tile", "64x64"]
    assert main(["simulate", RS, *sizes, "--policy", "one_way:3", "-o", out, "--png", png]) == 0
    said = capsys.readouterr().out
    assert "place      simulator" in said and "problems   none" in said and "bound      critical path" in said
    saved = kosmos.Trace.load(out)
    expected = kosmos.simulate(RS, m=1024, n=512, k=512, ranks=4, machine="laptop", tile=(64, 64), policy="one_way:3")
    assert saved.equals(expected)
    assert open(png, "rb").read(4) == b"\x89PNG"
    assert main(["show", out]) == 0


def test_the_command_sweeps(tmp_path, capsys):
    sizes = ["--m", "1024", "--n", "512", "--k", "512", "--ranks", "4", "--machine", "laptop", "--tile", "64x64"]
    lists = ["--policy", "fixed:2,one_way:2", "--order", "band,row", "--link-gbps", "2,8"]
    csv, parquet, png = (str(tmp_path / f"sweep.{end}") for end in ("csv", "parquet", "png"))
    assert main(["simulate", RS, *sizes, *lists, "-o", csv, "--png", png]) == 0
    assert main(["simulate", RS, *sizes, *lists, "-o", parquet]) == 0
    printed = capsys.readouterr().out
    table = pyarrow.parquet.read_table(parquet)
    assert len(table) == 8 and pyarrow.csv.read_csv(csv)["makespan_ns"].to_pylist() == table["makespan_ns"].to_pylist()
    for row in table.to_pylist():
        assert f"{row['makespan_ns'] / 1000:,.1f}" in printed
    assert open(png, "rb").read(4) == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["cook", "--m", "8", "--n", "8", "--k", "8"], "op='cook' is unknown"),
        ([RS, "--m", "-8", "--n", "8", "--k", "8"], "'-8' is not a whole number"),
        ([RS, "--m", "8", "--n", "8"], "required: --k"),
        ([RS, "--m", "8", "--n", "8", "--k", "8", "--machine", "Cray"], "machine='Cray' is unknown; known are"),
        ([RS, "--m", "8", "--n", "8", "--k", "8", "--tile", "8"], "'8' is not ROWSxCOLS"),
        ([RS, "--m", "8", "--n", "8", "--k", "8", "-o", "/no/such/folder/x"], "there is no folder"),
    ],
)
def test_the_command_refuses_with_one_line(arguments, says, capsys):
    try:
        code = main(["simulate", *arguments])
    except SystemExit as left:
        code = left.code
    lines = capsys.readouterr().err.strip().splitlines()
    assert code == 2 and len(lines) == 1 and says in lines[0]


def test_a_machine_of_ones_own():
    mine = Machine("mine", units=8, tflops=10, memory_gbps=100, link_gbps=10, copy_gbps=5, clock_mhz=1500)
    trace = simulate(AG, machine=mine)
    assert trace.meta["machine"] == "mine" and trace.workgroups == 8 and trace.problems() == []
