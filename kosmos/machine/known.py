"""The machines that are known by name, and where their numbers come from."""

from collections.abc import Iterator, Mapping
from typing import Any

from kosmos.errors import KosmosArgumentError
from kosmos.machine.model import Machine

_SHEET = "data sheet"
_SUMS = "derived: AMD's data sheet gives the sum of both directions of all links"
_SWEEP = "fitted to a sustained sweep of an H200, traces/h200/power/workgroups.json"
_FITTED = "fitted to half of the traces in traces/h200/validation"
"""wait_w and byte_pj as well as these leave them open: docs/simulator.md, power."""
_EXPONENT, _IDLE_SHARE = 2.7, 150 / 685
"""Of a law without on_w, fitted to that sweep: for GPUs that nobody measured here. idle_w is that share of the cap."""
_WAIT_SHARE, _BYTE_PJ = 0.25, 25.0
"""About what the traces say with that law. wait_w is that share of unit_w."""
_PLAIN = "assumed: that of an H200 in a law without on_w"
_COPY = "assumed: of the order of an H200's 43 GB/s"
_LATE = "assumed: an atomic in the last-level cache and a round trip between GPUs"


def _unit_w(units: int, cap_w: float, idle_w: float, full_share: float) -> float:
    """unit_w of a machine that runs at `full_share` of its highest clock when all of its units multiply."""
    return (cap_w - idle_w) / (units * full_share**_EXPONENT)


def _gpu(name: str, sources: dict[str, str], **numbers: Any) -> Machine:
    if "wait_w" not in numbers:
        numbers |= {"wait_w": numbers["unit_w"] * _WAIT_SHARE, "exponent": _EXPONENT, "byte_pj": _BYTE_PJ}
    usual = {
        "units": _SHEET,
        "tflops": _SHEET + ", dense",
        "memory_gbps": _SHEET,
        "clock_mhz": _SHEET,
        "peak_mhz": "0: the data sheet's rate is that at its highest clock",
        "cap_w": _SHEET,
        "copy_gbps": _COPY,
        "atomic_ns": _LATE,
        "link_ns": _LATE,
        "idle_w": "assumed: the share of the cap that an H200 takes in a law without on_w",
        "on_w": "0: a law without it",
        "wait_w": "assumed: the share of a multiplying unit's that an H200's takes in a law without on_w",
        "exponent": _PLAIN,
        "byte_pj": _PLAIN,
        "narrow": _SHEET,
        "memory_share": "a large copy on an H200 reaches 4.3 of 4.8 TB/s; taken to hold for every GPU",
    }
    return Machine(name, **numbers, sources={**usual, **sources})


def _amd(name: str, sources: dict[str, str], **numbers: Any) -> Machine:
    return _gpu(
        name,
        {
            "link_gbps": _SUMS,
            "topology": "AMD: a mesh of 7 links, no switch",
            "cache_mb": _SHEET + ": the last-level cache",
            "efficiency": "AMD's maximum achievable FLOP/s: an MI300X reaches 94 % of its peak at the clock it runs at",
            **sources,
        },
        **{"topology": "mesh", "efficiency": 0.94, "cache_mb": 256.0} | numbers,
    )


def _nvidia(name: str, sources: dict[str, str], **numbers: Any) -> Machine:
    fitted = _FITTED if name == "H200" else "assumed: an H200's, " + _FITTED
    return _gpu(
        name,
        {
            "link_gbps": _SHEET + ", per direction",
            "topology": "NVIDIA: a switch, so that one pair can use all of a port",
            **dict.fromkeys(("efficiency", "tile_start_ns", "tile_fill_ns", "atomic_ns"), fitted),
            "cache_mb": _SHEET,
            "flatten": "the kernels for sm_90",
            **sources,
        },
        **{
            "topology": "switch",
            "efficiency": 0.996,
            "tile_start_ns": 1917.0,
            "tile_fill_ns": 1214.0,
            "atomic_ns": 633.0,
        }
        | numbers,
    )


_HOPPER: dict[str, Any] = dict(
    units=132,
    tflops=989,
    peak_mhz=1830,
    link_gbps=450,
    clock_mhz=1980,
    flatten=True,
    copy_gbps=43.4,
    reduce_gbps=37.4,
    cap_w=700,
    idle_w=141.0,
    on_w=2.33,
    unit_w=5.15,
    wait_w=0.44,
    exponent=4.5,
    byte_pj=8.05,
    busy_mhz=1793,
    cache_mb=50,
)
_PEAK = "derived: the clock at which 132 units of 4096 operations a cycle make the data sheet's rate"
_H200_SOURCES = {
    "peak_mhz": _PEAK,
    **dict.fromkeys(("idle_w", "on_w", "exponent"), _SWEEP),
    **dict.fromkeys(("copy_gbps", "reduce_gbps", "unit_w", "wait_w", "byte_pj", "busy_mhz"), _FITTED),
}
_H100_SOURCES = {
    "peak_mhz": _PEAK,
    **{name: "assumed: an H200's, the same die, " + said for name, said in _H200_SOURCES.items() if said != _PEAK},
}
# an MI350X has the idle power and the unit of an MI355X: the same die
_MI355X_IDLE, _MI355X_FULL = _IDLE_SHARE * 1400, 1610 / 2517 / 0.94
_MI355X_UNIT = _unit_w(256, 1400, _MI355X_IDLE, _MI355X_FULL)
_CDNA4 = "derived: units of 4096 operations a cycle, at the highest clock"

_ALL = (
    Machine(
        "laptop",
        units=16,
        tflops=3.2,
        memory_gbps=200,
        link_gbps=8,
        copy_gbps=16,
        clock_mhz=1000,
        efficiency=1.0,
        tile=(64, 64),
        sources=dict.fromkeys(
            ("units", "tflops", "memory_gbps", "link_gbps", "copy_gbps", "clock_mhz", "efficiency", "tile"),
            "chosen to show on a few workgroups what a GPU shows on hundreds",
        ),
    ),
    _amd(
        "MI300X",
        {"unit_w": "derived: all units at 1207 MHz under the cap, AMD's maximum achievable FLOP/s"},
        units=304,
        tflops=1307,
        memory_gbps=5300,
        link_gbps=64,
        copy_gbps=30,
        clock_mhz=2100,
        cap_w=750,
        idle_w=_IDLE_SHARE * 750,
        unit_w=_unit_w(304, 750, _IDLE_SHARE * 750, 1207 / 2100),
    ),
    _amd(
        "MI350X",
        {
            "tflops": _CDNA4,
            "idle_w": "derived: that of an MI355X, the same die",
            "unit_w": "derived: that of an MI355X at the same clock, the same die",
        },
        units=256,
        tflops=2307,
        memory_gbps=8000,
        link_gbps=76.8,
        copy_gbps=30,
        clock_mhz=2200,
        cap_w=1000,
        idle_w=_MI355X_IDLE,
        unit_w=_MI355X_UNIT * (2200 / 2400) ** _EXPONENT,
    ),
    _amd(
        "MI355X",
        {
            "tflops": _CDNA4,
            "unit_w": "derived: the full-load clock at which 94 % of peak are the 1610 TFLOP/s that HipKittens reports",
        },
        units=256,
        tflops=2517,
        memory_gbps=8000,
        link_gbps=76.8,
        copy_gbps=30,
        clock_mhz=2400,
        cap_w=1400,
        idle_w=_MI355X_IDLE,
        unit_w=_MI355X_UNIT,
    ),
    _nvidia("H100", _H100_SOURCES, memory_gbps=3350, **_HOPPER),
    _nvidia("H200", _H200_SOURCES, memory_gbps=4800, **_HOPPER),
    _nvidia(
        "B200",
        {
            "clock_mhz": "assumed",
            "busy_mhz": "assumed: not modelled",
            "reduce_gbps": _COPY,
            "unit_w": "derived: all units run at the share of their highest clock that an H200's do in a sustained run",
        },
        units=148,
        tflops=2250,
        memory_gbps=7700,
        link_gbps=900,
        clock_mhz=1965,
        copy_gbps=50,
        cache_mb=126,
        reduce_gbps=50,
        cap_w=1000,
        idle_w=_IDLE_SHARE * 1000,
        unit_w=_unit_w(148, 1000, _IDLE_SHARE * 1000, 1443 / 1980),
    ),
)


class Machines(Mapping[str, Machine]):
    """Machine models by name; "H200/4" is an H200 that 4 virtual ranks share."""

    def __init__(self, known: dict[str, Machine]) -> None:
        self._known = known

    def __getitem__(self, name: str) -> Machine:
        if not isinstance(name, str):
            raise KeyError(name)
        whole, slash, ranks = name.partition("/")
        machine = self._known[whole]
        if not slash:
            return machine
        if not ranks.isdecimal() or len(ranks) > 9:
            raise KeyError(name)
        return machine.split(int(ranks))

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)

    def __repr__(self) -> str:
        return f"machines: {', '.join(self)}"


machines = Machines({machine.name: machine for machine in _ALL})
"""Machine models by name."""


def machine_named(name: "str | Machine") -> Machine:
    """The machine model of that name (or itself)."""
    if isinstance(name, Machine):
        return name
    if isinstance(name, str):
        try:
            return machines[name]
        except KeyError:
            pass
    raise KosmosArgumentError(
        f"machine={name!r} is unknown; known are {', '.join(machines)}, and NAME/RANKS for a part"
    )
