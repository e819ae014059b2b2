"""Models of machines: the rates and latencies from which the emulator and the planner take their times.

A model's times are a model's. The GPU entries hold rates from the vendors' data sheets; only `laptop` is tuned to
anything: to show on a few workgroups what a GPU shows on hundreds.
"""

from dataclasses import dataclass, replace

from kosmos.errors import KosmosArgumentError


@dataclass(frozen=True)
class Machine:
    """One GPU (one rank) of a node of equals. Rates are per direction; GB is 1e9 bytes.

    units: compute units (CUs, SMs), one workgroup each. tflops: dense 16-bit rate of all units. efficiency: the share
    of it that a tile loop reaches. memory_gbps: device memory, reads and writes together. link_gbps: from one peer to
    one other. copy_gbps: what one workgroup can carry.
    clock_mhz: the highest clock. *_ns: latencies.
    """

    name: str
    units: int
    tflops: float
    memory_gbps: float
    link_gbps: float
    copy_gbps: float
    clock_mhz: int
    efficiency: float = 0.8
    memory_ns: int = 600
    link_ns: int = 1500
    atomic_ns: int = 700

    def __post_init__(self) -> None:
        for field in ("units", "tflops", "memory_gbps", "link_gbps", "copy_gbps", "clock_mhz", "efficiency"):
            value = getattr(self, field)
            if not value > 0:
                raise KosmosArgumentError(f"machine {self.name}: {field}={value!r} must be above 0")

    def with_link(self, link_gbps: float) -> "Machine":
        """The same machine with links of another rate."""
        return replace(self, link_gbps=link_gbps)

    @property
    def flops_per_ns(self) -> float:
        """What one workgroup multiplies and adds in a nanosecond."""
        return self.tflops * self.efficiency * 1e3 / self.units

    @property
    def operand_gbps(self) -> float:
        """What one workgroup can read of tiles that its neighbours read too: the cache, taken as 8 times the memory."""
        return 8 * self.memory_gbps / self.units

    def tile_ns(self, flops: int, read_bytes: int) -> float:
        """A tile's pipelined loop: loads and products overlap, the slower one counts."""
        return max(flops / self.flops_per_ns, read_bytes / self.operand_gbps) + self.memory_ns

    def copy_ns(self, moved_bytes: int) -> float:
        """One workgroup carrying bytes over an idle link."""
        return moved_bytes / min(self.copy_gbps, self.link_gbps) + self.link_ns

    def cost_ns(self, items: dict, k: int, itemsize: int, ranks: int) -> dict[str, float]:
        """For each role what all items of one rank would cost one workgroup of this machine, waits left out.

        items: role -> ITEM array [ranks, items]. k: columns that a builder multiplies over.
        """
        cost = {}
        for role, table in items.items():
            area = table["rows"][:1].astype(float) * table["cols"][:1]
            if role == "builder":
                edges = table["rows"][:1].astype(float) + table["cols"][:1]
                each = [self.tile_ns(2 * a * k, e * k * itemsize) for a, e in zip(area.ravel(), edges.ravel())]
            else:
                sources = ranks - 1 if role == "reducer" else 1
                each = [self.copy_ns(a * itemsize * max(sources, 1)) for a in area.ravel()]
            cost[role] = float(sum(each)) + 2 * self.atomic_ns * len(each)
        return cost


machines = {
    machine.name: machine
    for machine in (
        Machine(
            "laptop", units=16, tflops=3.2, memory_gbps=200, link_gbps=8, copy_gbps=16, clock_mhz=1000, efficiency=1.0
        ),
        # data sheets, dense 16-bit rates; AMD: a mesh of 7 links, NVIDIA: a switch, so that one pair can use all
        Machine("MI300X", units=304, tflops=1307, memory_gbps=5300, link_gbps=64, copy_gbps=30, clock_mhz=2100),
        Machine("MI350X", units=256, tflops=2307, memory_gbps=8000, link_gbps=76.8, copy_gbps=30, clock_mhz=2200),
        Machine("MI355X", units=256, tflops=2517, memory_gbps=8000, link_gbps=76.8, copy_gbps=30, clock_mhz=2400),
        Machine("H100", units=132, tflops=989, memory_gbps=3350, link_gbps=450, copy_gbps=30, clock_mhz=1980),
        Machine("H200", units=132, tflops=989, memory_gbps=4800, link_gbps=450, copy_gbps=30, clock_mhz=1980),
        Machine("B200", units=148, tflops=2250, memory_gbps=7700, link_gbps=900, copy_gbps=50, clock_mhz=1965),
    )
}
"""Machine models by name."""


def machine_named(name: "str | Machine") -> Machine:
    """The machine model of that name (or itself)."""
    if isinstance(name, Machine):
        return name
    if not isinstance(name, str) or name not in machines:
        raise KosmosArgumentError(f"machine={name!r} is unknown; known are {', '.join(machines)}")
    return machines[name]
