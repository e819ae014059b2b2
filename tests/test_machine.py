"""Machine models: numbers and their sources, power and clocks, parts of a GPU, and fits to traces."""

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

import kosmos
from kosmos import power
from kosmos.errors import KosmosArgumentError, KosmosTraceError
from kosmos.machine import Machine, machine_named, machines
from kosmos.machine.power import clock_share
from kosmos.trace import Trace

TRACES = Path(__file__).parent.parent / "traces" / "h200"

# units, highest MHz, dense BF16 TFLOP/s, memory GB/s, link GB/s, W: as the vendors' data sheets have them
SHEETS = {
    "MI300X": (304, 2100, 1307, 5300, 64, 750),
    "MI350X": (256, 2200, 2307, 8000, 76.8, 1000),
    "MI355X": (256, 2400, 2517, 8000, 76.8, 1400),
    "H100": (132, 1980, 989, 3350, 450, 700),
    "H200": (132, 1980, 989, 4800, 450, 700),
    "B200": (148, 1965, 2250, 7700, 900, 1000),
}
FLOPS_PER_CLOCK = {"MI300X": 2048, "MI350X": 4096, "MI355X": 4096, "H100": 4096, "H200": 4096}


@pytest.mark.parametrize("name", SHEETS)
def test_the_data_sheets_numbers(name):
    machine = machines[name]
    given = (machine.units, machine.clock_mhz, machine.tflops, machine.memory_gbps, machine.link_gbps, machine.cap_w)
    assert given == SHEETS[name]
    assert machine.topology == ("mesh" if name.startswith("MI") else "switch")
    if name in FLOPS_PER_CLOCK:
        per_clock = machine.tflops * 1e6 / machine.units / machine.quoted_mhz
        assert per_clock == pytest.approx(FLOPS_PER_CLOCK[name], rel=0.003)


@pytest.mark.parametrize("name", machines)
def test_every_number_says_its_unit_and_its_source(name):
    machine = machines[name]
    facts = {fact["field"]: fact for fact in machine.facts()}
    assert set(facts) == {field.name for field in fields(machine)} - {"name", "sources"}
    assert all(fact["says"] and fact["source"] for fact in facts.values())
    assert facts["memory_gbps"]["unit"] == "GB/s" and facts["memory_gbps"]["value"] == machine.memory_gbps
    if name in ("MI300X", "MI350X", "MI355X", "B200"):
        assert facts["unit_w"]["source"].startswith("derived")
    if name.startswith("MI"):
        assert facts["link_gbps"]["source"].startswith("derived")
    for fact in facts.values():
        if name != "H200":
            assert not fact["source"].startswith("fitted"), "only an H200 was there to fit to"
        if fact["source"].startswith("data sheet"):
            assert fact["value"], "a data sheet says something"


def test_unknown_machines_and_wrong_numbers_get_a_sentence():
    for name in ("PDP-11", "H200/", "H200/x", "/4", 5, None):
        with pytest.raises(KosmosArgumentError, match="is unknown; known are laptop, MI300X.*NAME/RANKS"):
            machine_named(name)
    usual = dict(units=4, tflops=1.0, memory_gbps=1.0, link_gbps=1.0, copy_gbps=1.0, clock_mhz=1000)
    wrong = dict(units=(0, 1.5, True, "4"), tflops=(-1.0, None), copy_gbps=(float("nan"), "1"), memory_ns=(-1, None))
    wrong |= dict(exponent=(0.5, 0, True, "2"), on_w=(-1,))
    wrong |= dict(sharing=(2.5,), tile=(3, (1,), (0, 5), ("a", "b")), paced=("no",), flatten=(1,), link_gbps=("fast",))
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(KosmosArgumentError, match=f"machine m: {name}=.* must be"):
                Machine("m", **usual | {name: value})
    for clock in (0, -1, float("inf"), "high"):
        with pytest.raises(KosmosArgumentError, match="clock_mhz=.* must be a number, above 0"):
            machines["H200"].at_clock(clock)
    assert 5 not in machines
    with pytest.raises(KosmosArgumentError, match="topology='ring' is unknown; allowed are mesh, switch, memory"):
        Machine("m", **usual, topology="ring")
    with pytest.raises(KosmosArgumentError, match="cap_w=5 must be above idle_w=10"):
        Machine("m", **usual, cap_w=5, idle_w=10)
    for ranks in (0, 133, 2.0, True):
        with pytest.raises(KosmosArgumentError, match="from 1 to the 132 units of H200"):
            machines["H200"].split(ranks)
    with pytest.raises(KosmosArgumentError, match="H200/4 is a part of a GPU already"):
        machines["H200/4"].split(2)


def test_a_part_of_a_gpu_has_its_units_and_shares_the_rest():
    whole, part = machines["H200"], machines["H200/4"]
    assert (part.name, part.units, part.sharing, part.topology) == ("H200/4", 33, 4, "memory")
    assert part.flops_per_ns == pytest.approx(whole.flops_per_ns)
    assert part.operand_gbps == pytest.approx(whole.operand_gbps)
    assert part.memory_gbps == whole.memory_gbps and part.cap_w == whole.cap_w
    assert not part.paced and part.with_link(20).paced and part.with_link(20).link_gbps == 20
    assert not whole.with_link(20).paced
    # 132 units do not divide by 5: two stay unused
    assert machines["H200/5"].units == 26 and machines["H200/5"].flops_per_ns == pytest.approx(whole.flops_per_ns)


@pytest.mark.parametrize("seed", range(20))
def test_the_clock_is_the_highest_that_the_cap_allows(seed):
    draw = np.random.default_rng(seed)
    budget, compute, stream = draw.uniform(50, 1000), draw.uniform(0, 3000), draw.uniform(0, 300)
    exponent = draw.uniform(1, 6)
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        fits = compute * middle**exponent + stream * middle <= budget
        low, high = (middle, high) if fits else (low, middle)
    expected = 1.0 if compute + stream <= budget else low
    assert clock_share(budget, compute, exponent, stream) == pytest.approx(expected, abs=1e-6)


def test_no_cap_stops_a_machine():
    assert clock_share(-5.0, 100.0, 2.0, 1.0) == 0.05
    assert clock_share(-5.0, 0.0, 2.0, 0.0) == 0.05, "copies alone are above the cap"
    assert replace(machines["H200"], cap_w=0).clock_share(132) == 1.0


def test_fewer_units_run_faster():
    machine = machines["H200"]
    assert machine.clock_share(16) == machine.busy_mhz / machine.clock_mhz and machine.clock_share(0) == 1.0
    assert machines["MI300X"].clock_share(304) * 2100 == pytest.approx(1207, rel=0.01), "AMD's own figure"
    for name in SHEETS:
        shares = [machines[name].clock_share(units) for units in range(1, machines[name].units + 1)]
        assert shares == sorted(shares, reverse=True)
        throughput = np.arange(1, len(shares) + 1) * shares
        assert (np.diff(throughput) > 0).all(), "more units are never slower"


def test_the_power_of_the_machines_is_that_of_the_sweep():
    swept, h200 = power.recording("workgroups"), machines["H200"]
    full = swept.fit()
    for name in ("idle_w", "on_w", "exponent"):
        assert getattr(h200, name) == pytest.approx(getattr(full.model, name), rel=0.005), name
    plain = swept.fit(on=False)
    assert plain.model.on_w == 0 and "on_w" not in plain.error
    for name in ("MI300X", "MI355X", "B200"):
        assert machines[name].exponent == pytest.approx(plain.model.exponent, rel=0.005)
        share = plain.model.idle_w / plain.model.cap_w
        assert machines[name].idle_w / machines[name].cap_w == pytest.approx(share, rel=0.005)


def test_sustained_runs_are_predicted_from_the_sweep():
    """The simulator with the power model of the sweep against every point of it."""
    swept = power.recording("workgroups")
    machine = swept.machine("H200")
    assert machine.name == "H200 sustained" and "sweep" in machine.sources["unit_w"]
    found = []
    for row in swept.rows():
        usual = dict(m=8192, n=8192, k=8192, ranks=1, policy="fixed:0")
        trace = kosmos.simulate("all_gather_matmul", **usual, machine=machine, workgroups=row["workgroups"])
        found.append(2 * 8192**3 / trace.summary()["makespan_ns"] * 1e-3)
        assert found[-1] == pytest.approx(row["tflops"], rel=0.025), row["workgroups"]
        watts = trace.meta["energy_j"] / trace.summary()["makespan_ns"] * 1e9
        assert watts == pytest.approx(row["power_w"], rel=0.05), row["workgroups"]
        assert found[-1] / found[0] == pytest.approx(row["kept"], abs=0.02), row["workgroups"]
    for other in ("laptop", "MI355X", "H200/4"):
        with pytest.raises(KosmosArgumentError, match=f"base='{other}' is not what was swept: that has 132 units"):
            swept.machine(other)
    with pytest.raises(KosmosArgumentError, match="this machine models no power"):
        swept.machine(replace(machines["H200"], unit_w=0))


def test_one_clock():
    slow = machines["H200"].at_clock(990)
    assert slow.clock_share(132) == 1.0 and slow.clock_mhz == 990
    assert slow.flops_per_ns == pytest.approx(machines["H200"].flops_per_ns / 2)
    flops, read = 2 * 128 * 256 * 8192, 0
    assert slow.tile_ns(flops, read) == pytest.approx(2 * machines["H200"].tile_ns(flops, read))
    assert slow.carry_ns(1 << 20) == pytest.approx(2 * machines["H200"].carry_ns(1 << 20))
    assert slow.carry_ns(1 << 20, adds=True) == pytest.approx(2 * machines["H200"].carry_ns(1 << 20, adds=True))


def test_costs():
    m = Machine("m", units=2, tflops=2.0, memory_gbps=100, link_gbps=4, copy_gbps=8, clock_mhz=1000, efficiency=0.5)
    assert m.flops_per_ns == 500 and m.operand_gbps == 400
    assert m.tile_ns(1e6, 0) == 2000 + m.memory_ns and m.tile_ns(0, 4e6) == 10_000 + m.memory_ns
    assert m.tile_ns(1e6, 0, itemsize=1) == 1000 + m.memory_ns
    assert replace(m, tile_start_ns=50).tile_ns(1e6, 0) == 2050
    assert m.copy_ns(8000) == 2000 + m.link_ns and m.with_link(100).copy_ns(8000) == 1000 + m.link_ns
    # four parts read, one sum written: 5 * 8000 bytes at 16 loaded or stored a ns
    assert m.with_link(100).reduce_ns(8000, 4) == 2500 + m.link_ns
    assert m.reduce_ns(8000, 4) == 2500 + m.link_ns and m.with_link(2).reduce_ns(8000, 4) == 4000 + m.link_ns
    assert replace(m, topology="switch").reduce_ns(8000, 4) == 6000 + m.link_ns, "a port takes three parts in"
    assert m.reduce_ns(8000, 1) == 1000 + m.memory_ns
    paced = replace(m, topology="memory").with_link(2)
    assert paced.copy_ns(8000) == 1000 + 4000 + paced.memory_ns, "carried first, then held"
    assert paced.reduce_ns(8000, 4) == 2500 + 12000 + paced.memory_ns


# -------------------------------------------------------------------------------------------------------------- fits


def recorded(machine, op, m, n, k, policy, **more):
    """A trace as if it had been recorded on that GPU."""
    part = machine.split(4)
    trace = kosmos.simulate(op, m=m, n=n, k=k, ranks=4, machine=part, policy=policy, **more)
    meta = trace.meta | {"place": "gpu", "link_gbps": more.get("link_gbps")}
    return Trace(trace.spans, trace.queue, meta=meta)


def test_a_fit_finds_the_parameters_that_made_the_traces():
    truth = replace(
        machines["H200"],
        efficiency=0.8,
        tile_start_ns=4000.0,
        copy_gbps=30.0,
        reduce_gbps=50.0,
        atomic_ns=500.0,
        unit_w=9.5,
        wait_w=1.5,
        exponent=2.6,
    )
    traces = [
        recorded(truth, "all_gather_matmul", 8192, 2048, 8192, "fixed:6"),
        recorded(truth, "all_gather_matmul", 8192, 2048, 4096, "one_way:10"),
        recorded(truth, "all_gather_matmul", 8192, 2048, 8192, "one_way:6", link_gbps=10),
        recorded(truth, "matmul_reduce_scatter", 8192, 4096, 2048, "one_way:4"),
        recorded(truth, "matmul_reduce_scatter", 8192, 4096, 4096, "fixed:2"),
    ]
    fit = machines["H200"].fit(traces)
    for name in ("efficiency", "tile_start_ns", "copy_gbps", "reduce_gbps", "atomic_ns"):
        value, spread = fit.parameters[name]
        assert value == getattr(fit.machine, name) and spread > 0
        assert value == pytest.approx(getattr(truth, name), rel=0.06), name
    assert fit.off("tile") < 0.01 and fit.off("clock") < 0.02
    for busy, off in ((132, 0.02), (110, 0.03), (70, 0.05)):
        found = fit.machine.clock_share(busy, waiting=132 - busy)
        assert found == pytest.approx(truth.clock_share(busy, waiting=132 - busy), rel=off)
    assert "efficiency" in repr(fit) and "rms" in repr(fit)
    assert fit.machine.name == "H200" and "fitted" in fit.machine.sources["efficiency"]


@pytest.fixture(scope="module")
def shipped():
    return [Trace.load(path) for path in sorted(TRACES.glob("*.parquet"))]


def test_a_fit_to_half_of_the_shipped_traces_predicts_the_others(shipped):
    """Nothing of the makespans is fitted. The settings are few: the bound is wide."""
    fitted = machines["H200"].fit([shipped[0], shipped[3]]).machine
    for trace in (shipped[1], shipped[2], shipped[4], shipped[5]):
        meta = trace.meta
        model = kosmos.simulate(
            meta["op"],
            **meta["shape"],
            ranks=meta["ranks"],
            workgroups=meta["workgroups"],
            machine=fitted.split(meta["ranks"]),
            policy=meta["policy"],
            order=meta["order"],
            link_gbps=meta["link_gbps"],
        )
        seen, said = trace.summary(), model.summary()
        assert said["makespan_ns"] == pytest.approx(seen["makespan_ns"], rel=0.05), meta
        for role in ("mover", "builder", "reducer", "wait", "idle"):
            assert said.get(role, 0) == pytest.approx(seen.get(role, 0), abs=0.06), (role, meta)


def test_what_cannot_be_fitted_gets_a_sentence(shipped):
    with pytest.raises(KosmosArgumentError, match="there are no traces to fit to"):
        machines["H200"].fit([])
    for nonsense in (shipped[0], 5, None, [shipped[0], "a.parquet"], "ab"):
        with pytest.raises(KosmosArgumentError, match=r"traces=.* must be several kosmos.Trace, in a list"):
            machines["H200"].fit(nonsense)
    with pytest.raises(KosmosArgumentError, match="H200/4 is a part of a GPU; fit the whole one"):
        machines["H200/4"].fit(shipped[:1])
    model = kosmos.simulate("matmul_reduce_scatter", m=512, n=512, k=512, ranks=2, machine="laptop")
    with pytest.raises(KosmosTraceError, match="trace 1 cannot be fitted to: its meta must say place 'gpu'"):
        machines["H200"].fit([shipped[0], model])
