"""From queues, a policy and a machine to the arrays of the event loop."""

from dataclasses import dataclass

import numpy as np

from kosmos.machine import Machine
from kosmos.machine.model import NAP_NS
from kosmos.schedule import Queues, Tile
from kosmos.simulator import engine

STEP = 64
"""Columns that the kernels multiply at once: k counts as a multiple of it."""

POLICIES = {"fixed": engine.FIXED, "planned": engine.FIXED, "one_way": engine.ONE_WAY, "two_way": engine.TWO_WAY}


@dataclass(frozen=True)
class Work:
    """What the items of a run take, on one machine: for each role an array [ranks, items].

    work: of builders ns at the highest clock, of movers bytes, of reducers bytes of each source. top: the rate at which
    one workgroup does it at the highest clock while nobody is in its way. product_share: how much of the builders' time
    is products. builder_bytes: what each rank's builders have to move between memory and units at least, in a ns of
    their work: each operand once, if no copy has just stored it, and what they store.
    """

    queues: Queues
    machine: Machine
    workgroups: int
    k: int
    itemsize: int
    work: dict[str, np.ndarray]
    top: dict[str, float]
    product_share: float
    builder_bytes: np.ndarray

    @property
    def devices(self) -> int:
        return self.queues.ranks // self.machine.sharing

    @property
    def end_ns(self) -> float:
        """The latency at the end of a copy or a sum."""
        return self.machine.far_ns if self.queues.ranks > 1 else self.machine.memory_ns


def work_of(
    queues: Queues, machine: Machine, workgroups: int, k: int, itemsize: int, tile: Tile, flat: bool = False
) -> Work:
    """The work of all items. k: columns that a builder multiplies over. flat: whether their loops are flattened."""
    tiles = queues.items["builder"]
    steps = -(-k // STEP) * STEP
    flops = 2.0 * tile.rows * tile.cols * steps
    operands = (tile.rows + tile.cols) * k * itemsize
    stored = tiles["rows"].astype(np.int64) * tiles["cols"] * itemsize
    sizes = np.unique(stored)
    each = np.array([machine.tile_ns(flops, operands + size, itemsize, flat=flat) for size in sizes])
    work = {"builder": each[np.searchsorted(sizes, stored)]}
    top = {"builder": 1.0}
    parts = queues.ranks + 1 if queues.ranks > 1 else 2
    for role, carried in (("mover", 2), ("reducer", parts)):
        if role in queues.items:
            table = queues.items[role]
            work[role] = table["rows"].astype(float) * table["cols"] * itemsize
            top[role] = 1 / machine.carry_ns(float(carried), adds=role == "reducer")
    product = flops / (machine.flops_per_ns * (machine.narrow if itemsize == 1 else 1.0))
    # what copies have stored may still be in the cache
    own = (tiles["chunk"] == np.arange(queues.ranks)[:, None]) | ("mover" not in queues.items)
    once = _rows_and_columns(tiles, own) * float(k * itemsize) + stored.sum(axis=1)
    return Work(
        queues,
        machine,
        workgroups,
        k,
        itemsize,
        work,
        top,
        product_share=float(product * tiles.size / work["builder"].sum()),
        builder_bytes=once / work["builder"].sum(axis=1),
    )


def blocks(table: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """Of tiles or copies [ranks, items]: the row block of each, its column block, and how many row blocks there are."""
    bands = int(table["band"].max(initial=0)) + 1
    return table["chunk"].astype(np.int64) * bands + table["band"], table["column"], len(table) * bands


def _rows_and_columns(tiles: np.ndarray, counted: np.ndarray) -> np.ndarray:
    """How many rows and columns of operands the tiles of each rank read altogether, with the rows of those tiles that
    are counted."""
    row, column, rows = blocks(tiles)
    rank = np.arange(len(tiles))[:, None]
    size = np.zeros((len(tiles), rows + int(column.max()) + 1))
    size[rank, row] = tiles["rows"] * counted
    size[rank, rows + column] = tiles["cols"]
    return size.sum(axis=1)


@dataclass(frozen=True)
class Link:
    """A link or port: bytes/ns, and what it is in words: (sources, destination)."""

    name: str
    gbps: float


def resources_of(work: Work) -> tuple[list[Link], list[list[tuple[int, float]]], list[tuple[str, int, int]]]:
    """The resources (memories first, one a device); for each flow the (resource, bytes for a unit of work) that it
    uses; and what each flow is: (role, rank, source or -1). Flows go rank by rank.

    Reducers take as much from every other rank, so that what goes into their rank is what limits them; what goes out
    of a port is never more.
    """
    queues, machine = work.queues, work.machine
    ranks = queues.ranks
    device = [rank // machine.sharing for rank in range(ranks)]
    resources = [Link(f"memory of device {d}", machine.reached_gbps) for d in range(work.devices)]
    names: dict[str, int] = {}

    def link(name: str) -> int:
        if name not in names:
            names[name] = len(resources)
            resources.append(Link(name, machine.link_gbps))
        return names[name]

    uses, flows = [], []
    for rank in range(ranks):
        flows.append(("builder", rank, -1))
        uses.append([(device[rank], float(work.builder_bytes[rank]))])
        if "mover" in queues.items:
            for source in range(ranks):
                flows.append(("mover", rank, source))
                memory = _summed([(device[source], 1.0), (device[rank], 1.0)])
                if source != rank and machine.topology == "mesh":
                    memory.append((link(f"link {source} to {rank}"), 1.0))
                elif source != rank and machine.topology == "switch":
                    memory += [(link(f"port out of {source}"), 1.0), (link(f"port into {rank}"), 1.0)]
                uses.append(memory)
        else:
            flows.append(("reducer", rank, -1))
            memory = _summed([(device[source], 1.0) for source in range(ranks)] + [(device[rank], 1.0)])
            if ranks > 1 and machine.topology == "mesh":
                memory.append((link(f"each link into {rank}"), 1.0))
            elif ranks > 1 and machine.topology == "switch":
                memory.append((link(f"port into {rank}"), ranks - 1.0))
            uses.append(memory)
    return resources, uses, flows


def _summed(uses: list[tuple[int, float]]) -> list[tuple[int, float]]:
    total: dict[int, float] = {}
    for resource, amount in uses:
        total[resource] = total.get(resource, 0.0) + amount
    return list(total.items())


def state_of(work: Work, kind: int, crew: int, flatten: bool) -> engine.State:
    """The state before the first event. kind: the policy, as the engine counts them."""
    queues, machine, workgroups = work.queues, work.machine, work.workgroups
    ranks, counters = queues.ranks, queues.counters
    roles = (queues.producer, queues.consumer)
    tables = [queues.items[role] for role in roles]
    length = np.array([table.shape[1] for table in tables], np.int64)
    base = np.array([[q * ranks * length[0] + rank * length[q] for rank in range(ranks)] for q in range(2)], np.int64)

    resources, uses, flows = resources_of(work)
    per_rank = len(flows) // ranks
    own = np.arange(ranks, dtype=np.int64)[:, None]
    item = np.zeros(int(length.sum()) * ranks, engine.ITEM)
    counter = np.zeros(max(ranks * counters, 1), engine.COUNTER)
    counter["wanted"] = 1
    counter["first"] = -1
    for q, (role, table) in enumerate(zip(roles, tables)):
        rows = item[base[q, 0] : base[q, 0] + table.size].reshape(table.shape)
        rows["wait"] = np.where(table["wait"] < 0, -1, own * counters + table["wait"])
        rows["signal"] = np.where(table["signal"] < 0, -1, table["signal_rank"] * np.int64(counters) + table["signal"])
        rows["near"] = table["signal_rank"] == own
        rows["work"] = work.work[role]
        rows["chunk"] = table["chunk"]
        rows["blocks"] = -1
        if role == "builder":
            _operands(rows, table, work)
        elif role == "mover":
            _sources(rows, table, work)
        rows["flow"] = own * per_rank + (0 if role == "builder" else 1 + table["chunk"] if role == "mover" else 1)
        waits = table["wait"] >= 0
        counter["wanted"][rows["wait"][waits]] = table["wait_count"][waits]

    flow = np.zeros(len(flows), engine.FLOW)
    codes = {"mover": engine.MOVER, "builder": engine.BUILDER, "reducer": engine.REDUCER}
    flow["kind"] = [codes[role] for role, _, _ in flows]
    flow["device"] = [rank // machine.sharing for _, rank, _ in flows]
    flow["top"] = flow["limit"] = [work.top[role] for role, _, _ in flows]
    counts = np.array([len(each) for each in uses])
    flow["uses_end"] = np.cumsum(counts)
    flow["uses"] = flow["uses_end"] - counts
    use = np.zeros(int(counts.sum()), engine.USE)
    use["resource"] = [resource for each in uses for resource, _ in each]
    use["bytes"] = [amount for each in uses for _, amount in each]
    order = np.argsort(use["resource"], kind="stable")
    user = np.zeros(len(use), engine.USER)
    user["flow"] = np.repeat(np.arange(len(flows)), counts)[order]
    user["bytes"] = use["bytes"][order]
    use["user"][order] = np.arange(len(use))
    # what is fetched depends on what the cache has; what a copy stores does not
    flow["base"] = [use["bytes"][f["uses"]] - 1.0 if f["kind"] == engine.MOVER else 0.0 for f in flow]
    resource = np.zeros(len(resources), engine.RESOURCE)
    resource["capacity"] = [each.gbps for each in resources]
    resource["level"] = np.inf
    resource["users"] = np.searchsorted(use["resource"][order], np.arange(len(resources)), "left")
    resource["users_end"] = np.searchsorted(use["resource"][order], np.arange(len(resources)), "right")

    device = np.zeros(work.devices, engine.DEVICE)
    device["share"] = 1.0
    device["present"] = workgroups * machine.sharing
    device["flows"] = np.arange(work.devices) * machine.sharing * per_rank
    device["flows_end"] = device["flows"] + machine.sharing * per_rank

    people = ranks * workgroups
    workgroup = np.zeros(people, engine.WORKGROUP)
    starts = np.where(np.arange(people) % workgroups < crew, roles.index(queues.crew_role), roles.index("builder"))
    workgroup["home"] = starts
    workgroup["after"] = -1

    leaves = 1 << max(len(flows) - 1, 0).bit_length()
    first = np.zeros(2 * leaves, np.int64)
    first[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        first[node] = first[2 * node]

    run = np.zeros(1, engine.RUN)
    paced = machine.paced and ranks > 1
    for name, value in {
        "policy": kind,
        "workgroups": workgroups,
        "ranks": ranks,
        "sharing": machine.sharing,
        "counters": counters,
        "announced": queues.announced,
        "flatten": flatten,
        "atomic_ns": machine.atomic_ns,
        "signal_ns": machine.link_ns,
        "nap_ns": NAP_NS,
        "end_ns": work.end_ns,
        "pace": 1 / machine.link_gbps if paced else 0.0,
        "cap_w": machine.cap_w,
        "idle_w": machine.idle_w,
        "on_w": machine.on_w,
        "unit_w": machine.unit_w * work.product_share,
        "wait_w": machine.wait_w,
        "exponent": machine.exponent,
        "byte_pj": machine.byte_pj,
        "cache": max(machine.cache_mb * 1e6, 1.0),  # it is divided by
        "busy_share": machine.busy_share,
        "clock_step": machine.clock_step_mhz / machine.clock_mhz,
        "starter": -1,
        "width": max(work.work["builder"].sum() / people / engine.BINS, 1.0),
    }.items():
        run[name] = value
    return engine.State(
        run=run,
        item=item,
        base=base,
        length=length,
        ticket=np.zeros((2, ranks), np.int64),
        counter=counter,
        workgroup=workgroup,
        flow=flow,
        use=use,
        resource=resource,
        user=user,
        dirty=np.zeros(len(resources) + 1, np.int64),
        member=np.empty((len(flows), workgroups + 1), engine.ENTRY),
        next_at=np.full(leaves, np.inf),
        first=first,
        device=device,
        step=np.empty(2 * people + (len(item) if flatten else 0) + 1, engine.ENTRY),
        link_free=np.zeros((ranks, ranks)),
        block=np.full(int(item["blocks"].max(initial=0)) + 1, -np.inf),
        span=np.zeros(len(item), engine.SPAN),
        served=np.zeros((len(flows), engine.BINS)),
        energy=np.zeros((work.devices, engine.BINS)),
        clocked=np.zeros((work.devices, engine.BINS)),
        moved=np.zeros((work.devices, engine.BINS)),
    )


def _operands(rows: np.ndarray, table: np.ndarray, work: Work) -> None:
    """What the tiles read and write, into the engine's items [ranks, items]."""
    row, column, after = blocks(table)
    own = np.arange(len(table))[:, None] * (after + int(column.max()) + 1)
    rows["blocks"][..., 0] = own + row
    rows["blocks"][..., 1] = own + after + column
    rows["reads"][..., 0] = table["rows"].astype(float) * work.k * work.itemsize
    rows["reads"][..., 1] = table["cols"].astype(float) * work.k * work.itemsize
    rows["writes"] = table["rows"].astype(float) * table["cols"] * work.itemsize


def _sources(rows: np.ndarray, table: np.ndarray, work: Work) -> None:
    """The part of a peer's row block that each copy reads, and the row block of which it then is a part, into the
    engine's items [ranks, items]."""
    # after the blocks of all ranks' tiles
    _, columns, after = blocks(work.queues.items["builder"])
    many = after + int(columns.max()) + 1
    row, part, _ = blocks(table)
    rows["blocks"][..., 0] = len(table) * many + row * (int(part.max(initial=0)) + 1) + part
    rows["reads"][..., 0] = rows["work"]
    # it is not read, but what has just been stored is in the cache
    rows["blocks"][..., 1] = np.arange(len(table))[:, None] * many + row
