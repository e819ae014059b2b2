"""What a machine model is, and what things cost on it. Emulator, simulator and planner share these formulas."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from kosmos.errors import KosmosArgumentError
from kosmos.machine.power import clock_share

if TYPE_CHECKING:
    from kosmos.machine.fit import Fit
    from kosmos.trace import Trace

TOPOLOGIES = ("mesh", "switch", "memory")

NAP_NS = 40
"""How long a workgroup that polls naps between two rounds."""

MAY_BE_ZERO = {
    *("memory_ns", "link_ns", "atomic_ns", "tile_start_ns", "tile_fill_ns", "peak_mhz", "busy_mhz"),
    *("cap_w", "idle_w", "on_w", "unit_w", "wait_w", "byte_pj"),
}
MAY_BE_NONE = {"tile_start_ns", "reduce_gbps"}
WHOLE = {"units", "sharing"}


def _fact(unit: str, says: str, **default: Any) -> Any:
    return field(metadata={"unit": unit, "says": says}, **default)


def _allowed(name: str, value: Any) -> str:
    """What a field must be, if this value is not that; otherwise nothing."""
    if name in ("topology", "sources"):
        return ""
    if name == "name":
        return "" if isinstance(value, str) else "a text"
    if name in ("paced", "flatten"):
        return "" if isinstance(value, bool) else "True or False"
    if name == "tile":
        sides = value if isinstance(value, tuple | list) else ()
        whole = len(sides) == 2 and all(type(side) is int and side > 0 for side in sides)
        return "" if whole else "(rows, columns), two whole numbers above 0"
    if name in MAY_BE_NONE and value is None:
        return ""
    kind = "a whole number" if name in WHOLE else "a number"
    number = isinstance(value, int if name in WHOLE else int | float) and not isinstance(value, bool)
    least = "0 or more" if name in MAY_BE_ZERO else "above 0"
    right = number and math.isfinite(value)
    if name == "exponent":
        return "" if right and value >= 1 else "a number, 1 or more"
    if right and (value > 0 or (value == 0 and name in MAY_BE_ZERO)):
        return ""
    return f"{kind}, {least}"


@dataclass(frozen=True)
class Machine:
    """One rank's share of a node of equals: a GPU, or a part of one. Rates are per direction; GB is 1e9 bytes.

    `facts()` says what each field is, in which unit, and where its number comes from. Raises KosmosArgumentError for a
    field that cannot be.
    """

    name: str
    units: int = _fact("", "compute units (CUs, SMs) of a rank, one workgroup each")
    tflops: float = _fact("TFLOP/s", "dense 16-bit rate of these units at peak_mhz")
    memory_gbps: float = _fact("GB/s", "device memory, reads and writes together")
    link_gbps: float = _fact("GB/s", "mesh: from one peer to one other; switch: a port, into or out of a rank")
    copy_gbps: float = _fact("GB/s", "what one workgroup copies at the highest clock; it loads and stores as much each")
    clock_mhz: int = _fact("MHz", "highest clock")
    efficiency: float = _fact("", "share of the rate at a given clock that a tile's loop reaches", default=0.8)
    memory_ns: float = _fact("ns", "latency of the own memory", default=600)
    link_ns: float = _fact("ns", "latency of a peer's memory, and of a signal to it", default=1500)
    atomic_ns: float = _fact("ns", "one atomic or poll: a claim, a look at a counter, a signal at home", default=700)
    peak_mhz: float = _fact("MHz", "clock at which tflops is quoted; 0: clock_mhz", default=0)
    tile_start_ns: float | None = _fact(
        "ns", "what a tile takes besides its loop, at the highest clock; None: memory_ns", default=None
    )
    reduce_gbps: float | None = _fact(
        "GB/s", "as copy_gbps, for a workgroup that adds up; None: the same", default=None
    )
    tile_fill_ns: float = _fact(
        "ns", "what a tile takes until its operands come, unless they are asked for during the one before", default=0.0
    )
    narrow: float = _fact("", "how many times faster 8-bit products are than 16-bit ones", default=2.0)
    cache_mb: float = _fact("MB", "the last cache before the memory", default=50)
    memory_share: float = _fact("", "share of memory_gbps that is reached", default=0.9)
    topology: str = _fact("", "mesh: a link a pair; switch: a port a rank; memory: all ranks share one", default="mesh")
    sharing: int = _fact("", "ranks that share one device with its memory, clock and power", default=1)
    paced: bool = _fact("", "whether each copy holds its workgroup until a link would have carried it", default=False)
    tile: tuple[int, int] = _fact("elements", "rows and columns of an output tile", default=(128, 256))
    flatten: bool = _fact("", "whether builders that wait for nobody take their tickets a tile ahead", default=False)
    cap_w: float = _fact("W", "power cap of a device; 0: power is not modelled", default=0)
    idle_w: float = _fact("W", "power of an idle device", default=0)
    on_w: float = _fact("W", "power of one unit that has a workgroup, whatever its clock", default=0)
    unit_w: float = _fact("W", "more, of one unit that multiplies without a pause, at the highest clock", default=0)
    wait_w: float = _fact("W", "more, of one unit whose workgroup waits or copies, at the highest clock", default=0)
    exponent: float = _fact("", "power of a unit grows with this power of its clock", default=2.6)
    byte_pj: float = _fact("pJ/byte", "energy of moving a byte between memory and units", default=0)
    busy_mhz: float = _fact("MHz", "highest clock of a device while a unit multiplies; 0: clock_mhz", default=0.0)
    clock_step_mhz: float = _fact("MHz", "the clock moves in steps of this", default=15)
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            allowed = _allowed(one.name, value)
            if allowed:
                raise KosmosArgumentError(f"machine {self.name}: {one.name}={value!r} must be {allowed}")
        if self.topology not in TOPOLOGIES:
            raise KosmosArgumentError(
                f"machine {self.name}: topology={self.topology!r} is unknown; allowed are {', '.join(TOPOLOGIES)}"
            )
        if self.cap_w and not self.cap_w > self.idle_w:
            raise KosmosArgumentError(
                f"machine {self.name}: cap_w={self.cap_w!r} must be above idle_w={self.idle_w!r}, or 0 for none"
            )

    # other machines from this one

    def with_link(self, link_gbps: float) -> "Machine":
        """The same machine with links of another rate; where ranks share a memory, with copies paced to that rate."""
        return replace(self, link_gbps=link_gbps, paced=self.topology == "memory")

    def split(self, ranks: int) -> "Machine":
        """This GPU shared by `ranks` virtual ranks: each has its part of the units, all have one memory and one clock.

        Copies between ranks stay in the memory. With `with_link` they are paced as kosmos.World.virtual paces them.
        """
        if isinstance(ranks, bool) or not isinstance(ranks, int) or not 1 <= ranks <= self.units:
            raise KosmosArgumentError(
                f"ranks={ranks!r} must be a whole number from 1 to the {self.units} units of {self.name}"
            )
        if self.sharing > 1:
            raise KosmosArgumentError(f"machine {self.name} is a part of a GPU already")
        units = self.units // ranks
        derived = f"derived: {self.name} shared by {ranks} ranks"
        return replace(
            self,
            name=f"{self.name}/{ranks}",
            units=units,
            tflops=self.tflops * units / self.units,
            link_gbps=self.memory_gbps,
            link_ns=self.atomic_ns,
            topology="memory",
            sharing=ranks,
            sources={**self.sources, **dict.fromkeys(("units", "tflops", "link_gbps", "link_ns", "topology"), derived)},
        )

    def at_clock(self, clock_mhz: int) -> "Machine":
        """The same machine at one clock, whatever it does: no power is modelled. For short bursts, and comparisons."""
        if _allowed("clock_mhz", clock_mhz):
            raise KosmosArgumentError(f"clock_mhz={clock_mhz!r} must be {_allowed('clock_mhz', clock_mhz)}")
        share = clock_mhz / self.clock_mhz
        start = None if self.tile_start_ns is None else self.tile_start_ns / share
        return replace(
            self,
            clock_mhz=clock_mhz,
            peak_mhz=self.quoted_mhz,
            tile_fill_ns=self.tile_fill_ns / share,
            copy_gbps=self.copy_gbps * share,
            reduce_gbps=self.reduce_gbps and self.reduce_gbps * share,
            tile_start_ns=start,
            cap_w=0,
        )

    # rates and costs, at the highest clock unless a clock is given

    @property
    def quoted_mhz(self) -> float:
        """The clock at which `tflops` is quoted."""
        return self.peak_mhz or self.clock_mhz

    @property
    def flops_per_ns(self) -> float:
        """What one workgroup multiplies and adds in a nanosecond."""
        return self.tflops * self.efficiency * 1e3 / self.units * self.clock_mhz / self.quoted_mhz

    @property
    def operand_gbps(self) -> float:
        """What one workgroup can read of tiles that its neighbours read too: the cache, taken as 8 times the memory."""
        return 8 * self.memory_gbps / (self.units * self.sharing)

    @property
    def reached_gbps(self) -> float:
        """What the memory gives."""
        return self.memory_gbps * self.memory_share

    def tile_ns(self, flops: float, operand_bytes: float, itemsize: int = 2, *, flat: bool = False) -> float:
        """A tile's pipelined loop: loads and products overlap, the slower one counts; before and after it the rest.

        flat: whether it is one loop with that of the tile before, and asks for its operands during that.
        """
        rate = self.flops_per_ns * (self.narrow if itemsize == 1 else 1.0)
        start = self.memory_ns if self.tile_start_ns is None else self.tile_start_ns
        return max(flops / rate, operand_bytes / self.operand_gbps) + start + (0.0 if flat else self.tile_fill_ns)

    def carry_ns(self, carried_bytes: float, *, adds: bool = False) -> float:
        """One workgroup loading and storing `carried_bytes` altogether, while nobody is in its way."""
        rate = (self.reduce_gbps or self.copy_gbps) if adds else self.copy_gbps
        return carried_bytes / (2 * rate)

    def copy_ns(self, moved_bytes: float) -> float:
        """One workgroup copying bytes over an idle link."""
        return self._over_links(self.carry_ns(2 * moved_bytes), moved_bytes / self.link_gbps)

    def reduce_ns(self, part_bytes: float, ranks: int) -> float:
        """One workgroup adding up `ranks` parts of so many bytes, all but one of them over idle links."""
        if ranks == 1:
            return self.carry_ns(2 * part_bytes, adds=True) + self.memory_ns
        through = ranks - 1 if self.topology == "switch" or self.paced else 1
        carry = self.carry_ns((ranks + 1) * part_bytes, adds=True)
        return self._over_links(carry, through * part_bytes / self.link_gbps)

    def _over_links(self, carry_ns: float, link_ns: float) -> float:
        # a paced workgroup is held when it has carried all
        return (carry_ns + link_ns if self.paced else max(carry_ns, link_ns)) + self.far_ns

    @property
    def far_ns(self) -> float:
        """Latency of what lies in another rank's memory."""
        return self.memory_ns if self.topology == "memory" else self.link_ns

    def cost_ns(self, items: dict, k: int, itemsize: int, ranks: int) -> dict[str, float]:
        """For each role what all items of one rank would cost one workgroup of this machine, waits left out.

        items: role -> ITEM array [ranks, items]. k: columns that a builder multiplies over.
        """
        cost = {}
        for role, table in items.items():
            first = table[:1]
            sizes, counts = np.unique(first["rows"].astype(np.int64) << 32 | first["cols"], return_counts=True)
            total = 0.0
            for size, count in zip(sizes.tolist(), counts.tolist()):
                rows, cols = float(size >> 32), float(size & 0xFFFFFFFF)
                if role == "builder":
                    each = self.tile_ns(2 * rows * cols * k, (rows + cols) * k * itemsize, itemsize)
                elif role == "reducer":
                    each = self.reduce_ns(rows * cols * itemsize, ranks)
                else:
                    each = self.copy_ns(rows * cols * itemsize)
                total += count * (each + 2 * self.atomic_ns)
            cost[role] = total
        return cost

    def clock_share(self, busy: float, stream_gbps: float = 0.0, own_gbps: float = 0.0, waiting: float = 0.0) -> float:
        """The share of the highest clock that the cap allows a device with `busy` multiplying units.

        stream_gbps: memory traffic besides. own_gbps: that of these units, at the highest clock.
        waiting: units whose workgroups wait or copy.
        """
        if not self.cap_w:
            return 1.0
        budget = self.cap_w - self.idle_w - (busy + waiting) * self.on_w - stream_gbps * self.byte_pj * 1e-3
        allowed = clock_share(
            budget, busy * self.unit_w + waiting * self.wait_w, self.exponent, own_gbps * self.byte_pj * 1e-3
        )
        return min(allowed, self.busy_share) if busy else allowed

    @property
    def busy_share(self) -> float:
        """The highest clock while a unit multiplies, as a share of the highest."""
        return self.busy_mhz / self.clock_mhz if self.busy_mhz and self.cap_w else 1.0

    # what is known about it

    def facts(self) -> list[dict[str, Any]]:
        """A row for every field: field, value, unit, says, source. "derived: ..." stands on no one's data sheet."""
        return [
            {
                "field": one.name,
                "value": getattr(self, one.name),
                "unit": one.metadata["unit"],
                "says": one.metadata["says"],
                "source": self.sources.get(one.name, "assumed: the default of all models"),
            }
            for one in fields(self)
            if one.metadata
        ]

    def fit(self, traces: "Iterable[Trace]") -> "Fit":
        """This machine with its free parameters fitted to recorded traces; see kosmos.simulator.fit."""
        # The one import upwards, for people, who look for it at the machine
        from kosmos.simulator.fit import fit

        return fit(self, traces)
