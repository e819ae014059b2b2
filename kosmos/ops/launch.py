"""From a fused op's shapes to a launch: the plan that is kept between calls, the launch itself, and its trace."""

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from kosmos import __version__, emulator, rocprof
from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.lang.sync import new_state
from kosmos.ops.arguments import alignment
from kosmos.schedule import QUEUES, Policy, Tile, check
from kosmos.schedule.queues import FIELDS, Order, group_for, order_name
from kosmos.trace import Trace, records
from kosmos.world import World, recording

TRACE_BYTES = 1 << 30
"""The largest trace buffer. Below it no record is ever lost, even if one workgroup does all the work of a rank."""


class Blocks(NamedTuple):
    """The block sizes of a kernel: output tile, step along K, copy and reduction blocks; and how it is compiled.

    copy_stages, reduce_stages: how many copy and reduction blocks are on their way at once. tma: whether tiles are read
    through tensor descriptors. flatten: whether a builder's loop over tiles and the loop over K become one.
    registers: that a thread may have; unsaid, CUDA's assembler keeps some for workgroups that never come, and spills.
    """

    tile: Tile
    step: int
    copy: Tile
    reduce: Tile
    num_warps: int
    num_stages: int
    copy_stages: int = 1
    reduce_stages: int = 1
    tma: bool = False
    flatten: bool = False
    registers: int | None = None

    @property
    def options(self) -> dict[str, int]:
        """How Triton is to compile it."""
        options = {"num_warps": self.num_warps, "num_stages": self.num_stages}
        return options if self.registers is None else {**options, "maxnreg": self.registers}


def blocks_for(backend: str, itemsize: int, ranks: int, capability: int, aligned: bool) -> Blocks:
    """Block sizes for a back end ("cuda", "hip" or "emulator"), an element size in bytes and a number of ranks.

    capability: of a CUDA device, 90 for 9.0. aligned: the operands' rows start at multiples of 16 bytes. The choices
    were measured on an H200: docs/performance.md.
    """
    if backend == "emulator":
        return Blocks(Tile(64, 64), 64, Tile(64, 64), Tile(64, 64), 4, 1)
    if itemsize == 4:
        registers = 255 if backend == "cuda" else None
        return Blocks(Tile(64, 64), 32, Tile(16, 128), Tile(16, 64), 4, 2, registers=registers)
    if backend == "hip":
        return Blocks(Tile(128, 128), 64, Tile(32, 512), Tile(16, 128), 8, 2)
    # GPUs from 12.0 on have half the shared memory of a 9.0 or 10.0
    if not aligned or not 90 <= capability < 120:
        return Blocks(Tile(64, 128), 32, Tile(16, 512), Tile(16, 128), 8, 3)
    # one reduction block holds a part of every rank; three of them have to fit the shared memory
    rows, stages = (32, 3) if ranks <= 4 else (16, 3) if ranks <= 8 else (16, 1)
    # before Triton 3.7 a flattened loop does not compile for Blackwell
    flatten = capability < 100
    return Blocks(Tile(128, 256), 64, Tile(32, 512), Tile(rows, 256), 8, 4, 4, stages, tma=True, flatten=flatten)


class Plan:
    """What one op with one shape, dtype, policy and order needs again at every call: queues, state, options.

    tables: for each role its queue on the device, int32 [ranks, items + 1, len(FIELDS)]. state: int32 [ranks, words].
    """

    def __init__(
        self, world: World, op: str, m: int, n: int, k: int, dtype: torch.dtype, aligned: bool, policy, order: Order
    ) -> None:
        self.world, self.op, self.dtype, self.order = world, op, dtype, order
        self.shape = {"m": m, "n": n, "k": k}
        backend = "emulator" if world.emulated else "hip" if torch.version.hip else "cuda"
        major, minor = torch.cuda.get_device_capability(world.device) if backend == "cuda" else (0, 0)
        capability = 10 * major + minor
        self.blocks = blocks_for(backend, dtype.itemsize, world.ranks, capability, aligned)
        row_bytes = n * dtype.itemsize
        self.tma_store = self.blocks.tma and (m // world.ranks) % self.blocks.tile.rows == 0 and row_bytes % 16 == 0
        self.queues = QUEUES[op](
            m=m,
            n=n,
            k=k,
            ranks=world.ranks,
            tile=self.blocks.tile,
            itemsize=dtype.itemsize,
            order=order,
            group=group_for(world.workgroups, self.blocks.tile),
        )
        cost_ns = world.machine.cost_ns(self.queues.items, k, dtype.itemsize, world.ranks)
        policy = policy or Policy.default(self.queues, world.workgroups, cost_ns)
        self.asked, self.policy = policy, policy.settle(self.queues, world.workgroups, cost_ns)
        check(self.queues, self.policy, world.workgroups)
        self.tables = {role: self._upload(table) for role, table in self.queues.items.items()}
        faults = [world.faults[rank].data_ptr() for rank in range(world.ranks)]
        limit_ticks = world.timeout_ns // tick_ns(world)
        state = new_state(world.ranks, self.queues.counters, limit_ticks, faults)
        self.fresh = torch.from_numpy(state).to(world.device)
        self.state = self.fresh.clone()
        self.scratch: dict[str, torch.Tensor] = {}

    def _upload(self, table: np.ndarray) -> torch.Tensor:
        ranks, length = table.shape
        # a last row of no rows and no signal, for a ticket beyond the queue
        padded = np.zeros((ranks, length + 1), table.dtype)
        padded[:, :length] = table
        padded[:, length]["wait"] = padded[:, length]["signal"] = -1
        words = padded.view(np.int32).reshape(ranks, length + 1, len(FIELDS))
        return torch.from_numpy(words).to(self.world.device)

    def operands(self, **operands: tuple[torch.Tensor, str]) -> dict[str, Any]:
        """The arguments NAME_tiles for gemm_tile: each stacked tensor, and whether it gives a tile its rows or cols."""
        if not self.blocks.tma:
            return {f"{name}_tiles": tensor for name, (tensor, _) in operands.items()}
        return {
            f"{name}_tiles": TensorDescriptor.from_tensor(
                tensor.flatten(0, 1), [getattr(self.blocks.tile, side), self.blocks.step]
            )
            for name, (tensor, side) in operands.items()
        }

    def result(self, **result: torch.Tensor) -> dict[str, Any]:
        """The argument NAME_tiles for store_tile: a stacked tensor, or its descriptor if all tiles are whole."""
        ((name, tensor),) = result.items()
        if not self.tma_store:
            return {f"{name}_tiles": tensor}
        block = [self.blocks.tile.rows, self.blocks.tile.cols // 2]
        return {f"{name}_tiles": TensorDescriptor.from_tensor(tensor.flatten(0, 1), block)}

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """Scratch memory of the op's dtype that is kept between calls; plans of one world share it."""
        if name not in self.scratch:
            self.scratch[name] = self.world.scratch(name, shape, self.dtype)
        return self.scratch[name]

    def length(self, role: str) -> int:
        """Items of one rank's queue."""
        return self.queues.items[role].shape[1]

    @property
    def capacity(self) -> int:
        """Records that a workgroup has room for."""
        items = sum(self.length(role) for role in self.queues.items)
        room = TRACE_BYTES // (8 * records.WORDS * self.world.ranks * self.world.workgroups)
        return min(items, room - 2)

    def trace_buffer(self) -> torch.Tensor:
        """A new buffer, int64 [ranks, workgroups, 2 + capacity, WORDS], as kosmos.trace.records describes it."""
        shape = (self.world.ranks, self.world.workgroups, 2 + self.capacity, records.WORDS)
        buffer = torch.empty(shape, dtype=torch.int64, device=self.world.device)
        # a workgroup that never runs leaves its header as it is
        buffer[:, :, 0] = 0
        return buffer

    def reset(self) -> None:
        """Put the state back to what it was before the first launch; nothing of the plan may be running."""
        self.state.copy_(self.fresh)


def plan_for(
    world: World, op: str, m: int, n: int, k: int, x: torch.Tensor, w: torch.Tensor, policy, order: Order
) -> Plan:
    """The plan of this world for these arguments, made at the first call."""
    world.raise_fault()
    if not isinstance(order, str) and not callable(order):
        raise KosmosArgumentError(f"order={order!r} must be a name or a function")
    aligned = alignment(x, k) == alignment(w, k) == 16
    policy = None if policy is None else Policy.parse(policy)
    # a function may not be hashable; the plan keeps it alive, so that its id stays its own
    key = (op, m, n, k, x.dtype, aligned, policy, order if isinstance(order, str) else id(order))
    return world.plan(key, lambda: Plan(world, op, m, n, k, x.dtype, aligned, policy, order))


def launch(plan: Plan, kernel, arguments: dict[str, Any], symmetric: tuple[torch.Tensor, ...]) -> None:
    """Launch `kernel` with the op's own `arguments` and everything that every fused kernel takes, and record it.

    symmetric: the stacked tensors whose slices the ranks own, for the emulator to tell local from remote.
    """
    world = plan.world
    run = recording()
    buffer = plan.trace_buffer() if run else world.links
    paced = world.link_gbps is not None and not world.emulated
    arguments = {
        **arguments,
        "state": plan.state,
        "state_words": plan.state.shape[1],
        "trace": buffer,
        "links": world.links,
        "first_rank": 0,
        "crew": plan.policy.crew,
        "capacity": plan.capacity,
        "ticks_per_byte": 1 / (world.link_gbps * tick_ns(world)) if paced else 0.0,
        **plan.shape,
        "RANKS": world.ranks,
        # virtual ranks share one GPU
        "SCOPE": "gpu",
        "WORKGROUPS": world.workgroups,
        "SWITCH": plan.policy.switches,
        "TWO_WAY": plan.policy.kind == "two_way",
        "PACED": paced,
        "TRACE": run is not None,
        "BM": plan.blocks.tile.rows,
        "BN": plan.blocks.tile.cols,
        "BK": plan.blocks.step,
        "TMA": plan.blocks.tma,
        "TMA_STORE": plan.tma_store,
        "FLATTEN": plan.blocks.flatten,
        "EVEN_K": plan.shape["k"] % plan.blocks.step == 0,
    }
    if world.emulated:
        try:
            emulator.launch(
                kernel,
                arguments,
                ranks=world.ranks,
                workgroups=world.workgroups,
                machine=world.machine,
                symmetric=(plan.state, *symmetric),
            )
        except BaseException:
            # the launch has stopped half way: its tickets and counters are of no more use
            world.forget_plans()
            raise
        world.raise_fault()
    else:
        if run and world.capturing():
            raise KosmosEnvironmentError("a launch cannot be recorded while it is captured into a graph")
        with torch.cuda.device(world.device):
            world.join_stream()
            with rocprof.launch_range(plan.op, plan.policy):
                kernel[(world.ranks * world.workgroups,)](
                    **arguments,
                    **plan.blocks.options,
                    launch_cooperative_grid=True,
                )
    if run:
        run.add(lambda: trace_of(plan, buffer))


def trace_of(plan: Plan, buffer: torch.Tensor) -> Trace:
    """The Trace of a finished launch of `plan` from its trace buffer."""
    world = plan.world
    world.synchronize()
    spans, found = records.decode(buffer.cpu().numpy(), tick_ns(world))
    gpu = None if world.emulated else torch.cuda.get_device_name(world.device)
    meta = {
        "op": plan.op,
        "shape": plan.shape,
        "dtype": str(plan.dtype).removeprefix("torch."),
        "policy": str(plan.policy) if plan.asked == plan.policy else f"{plan.asked} ({plan.policy})",
        "order": order_name(plan.order),
        "ranks": world.ranks,
        "workgroups": world.workgroups,
        "place": "emulator" if world.emulated else "gpu",
        "machine": gpu or world.machine.name,
        "link_gbps": world.machine.link_gbps if world.emulated else world.link_gbps,
        "tile": list(plan.blocks.tile),
        "clock": clock_of(world, spans),
        "versions": {"kosmos": __version__, "torch": torch.__version__, "triton": triton.__version__},
        **found,
    }
    return Trace(spans, queue=plan.queues.table(), meta=meta)


def tick_ns(world: World) -> int:
    """Nanoseconds of one tick of lang.now: 10 on ROCm (100 MHz), 1 on CUDA and in the emulator."""
    return 10 if torch.version.hip and not world.emulated else 1


def clock_of(world: World, spans: pa.Table) -> dict[str, Any]:
    """Which clock stamped the records, and how finely it ticks: CUDA's timer counts in ns but moves in larger steps."""
    if world.emulated:
        return {"source": f"virtual time of the model {world.machine.name}", "tick_ns": 1}
    times = np.concatenate([spans[name].to_numpy() for name in ("claim_ns", "start_ns", "end_ns")])
    source = "s_memrealtime" if torch.version.hip else "globaltimer"
    return {"source": source, "tick_ns": max(int(np.gcd.reduce(times)), 1)}
