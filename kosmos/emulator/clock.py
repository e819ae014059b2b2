"""Virtual time: workgroups as coroutines, the earliest one runs; memory, links and products cost what the model says.

Between two synchronisations (an atomic, a poll, a look at the clock) a workgroup's loads, stores and products overlap,
as in a software-pipelined loop: what counts is the slowest of them. Memory and links are pipes, shared equally by all
who use them at a time. Loads and stores of single words cost nothing.
"""

import bisect
import heapq
import math
from collections import defaultdict
from dataclasses import dataclass, field

import greenlet
import numpy as np
import triton.language as tl

from kosmos.errors import KosmosDeadlock
from kosmos.machine import Machine
from kosmos.machine.model import NAP_NS

LOOKS_WITHOUT_A_WRITE = 100_000
STARES_FOR_FREE = 100
LEAST_NS = 1e-3
"""A transfer of which less is left is through."""


@dataclass
class Workgroup:
    """One program instance: where it is in time, what it has in flight, and what it waits for."""

    rank: int
    index: int
    program: tuple[int, int, int]
    ns: float = 0.0
    bytes: dict[int, int] = field(default_factory=lambda: defaultdict(int))
    flops: int = 0
    polled: dict[int, int] = field(default_factory=dict)
    parked_at: int | None = None
    parked_after: int = 0
    waits_for: str = ""
    coroutine: greenlet.greenlet | None = None


class Pipe:
    """A memory or a link: whoever moves bytes through it gets the same share of its rate at any time."""

    def __init__(self, rate: float) -> None:
        """rate: bytes/ns."""
        self.rate, self.at, self.served = rate, 0.0, 0.0
        self.targets: list[float] = []
        """served: bytes that everybody here has had, at the time `at`. targets: at which `served` each is through,
        smallest first."""

    def join(self, at: float, size: int) -> float:
        """Begin to move `size` bytes at the time `at`, which never goes back. Returns the target, for `left`."""
        self._advance(at)
        target = self.served + size
        bisect.insort(self.targets, target)
        return target

    def left(self, target: float, at: float) -> float:
        """ns from the time `at` until who has this target is through, if nobody else joins."""
        self._advance(at)
        served, ns = self.served, 0.0
        for gone, other in enumerate(self.targets):
            if served >= target:
                break
            ns += (min(other, target) - served) * (len(self.targets) - gone) / self.rate
            served = other
        return ns

    def _advance(self, at: float) -> None:
        while self.targets:
            ns = (self.targets[0] - self.served) * len(self.targets) / self.rate
            if self.at + ns > at:
                self.served += max(at - self.at, 0.0) * self.rate / len(self.targets)
                break
            self.at += ns
            self.served = self.targets.pop(0)
        self.at = max(self.at, at)


class Clock:
    """The hooks of kosmos.emulator.interpreter: keeps every workgroup's time and decides who runs."""

    def __init__(self, machine: Machine, grid: tuple[int, int, int], owners: list[tuple[int, int, int]], calls: dict):
        """owners: (first address, end address, rank) of symmetric memory. calls: what to run in place of a helper."""
        self.machine = machine
        # one clock from the first to the last moment: what the power cap allows if all workgroups of a rank multiply
        ranks = max((rank for _, _, rank in owners), default=0) + 1
        self.share = machine.clock_share(math.prod(grid) / ranks * machine.sharing)
        self.grid = grid
        self.owners = sorted(owners)
        self.calls = calls
        self.pipes: dict[tuple[int, int], Pipe] = {}
        self.heap: list[tuple[float, int, Workgroup]] = []
        self.pushed = 0
        self.parked: dict[int, list[Workgroup]] = {}
        self.writes: dict[int, int] = defaultdict(int)
        self.all_writes = 0
        self.looks = self.stares = self.stared_at = 0

    def run(self, workgroups: list[Workgroup], body) -> None:
        """Run `body` once for each workgroup, to the end. Raises KosmosDeadlock if some wait for ever."""
        self.main = greenlet.getcurrent()

        def life() -> None:
            # a GPU says nothing of overflows and NaNs; coroutines have numpy's error state each for itself
            with np.errstate(all="ignore"):
                body()
            self._settle()

        for workgroup in workgroups:
            workgroup.coroutine = greenlet.greenlet(life)
            self._push(workgroup)
        try:
            while self.heap or self._look_again():
                self.current = heapq.heappop(self.heap)[2]
                self.current.coroutine.switch()
            if self.parked:
                raise KosmosDeadlock(self._deadlock())
        finally:
            for workgroup in workgroups:
                if workgroup.coroutine and not workgroup.coroutine.dead:
                    workgroup.coroutine.throw(greenlet.GreenletExit)

    # what the kernel asks

    @property
    def program(self) -> tuple[int, int, int]:
        return self.current.program

    def now(self) -> int:
        self._settle()
        return int(self.current.ns)

    def cycles(self) -> int:
        self._settle()
        return int(self.current.ns * self.share * self.machine.clock_mhz / 1000)

    def core(self) -> int:
        return self.current.index

    # what the kernel does

    def touched(self, address: int) -> None:
        """A word was loaded or stored: free, unless somebody stares at it."""
        self.stares = self.stares + 1 if address == self.stared_at else 0
        self.stared_at = address
        if self.stares > STARES_FOR_FREE:
            self.nap()

    def moved(self, address: int, size: int) -> None:
        if size:
            self.current.bytes[self._owner(address)] += size

    def multiplied(self, flops: int) -> None:
        self.current.flops += flops

    def nap(self) -> None:
        self._settle()
        self.current.ns += NAP_NS
        self._let_earlier_run()

    def before_atomic(self, address: int) -> None:
        self._settle()
        remote = self._owner(address) != self.current.rank
        self.current.ns += self.machine.link_ns if remote else self.machine.atomic_ns
        self._let_earlier_run()

    def polls(self, address: int) -> None:
        self.before_atomic(address)
        self.current.polled[address] = self.writes[address]

    def park(self, address: int) -> None:
        """Sleep until `address` is written; not at all if it has been since this workgroup polled it."""
        self._settle()
        if self.current.polled.pop(address, None) != self.writes[address]:
            self.nap()
            return
        self.current.parked_at, self.current.parked_after = address, self.all_writes
        self.parked.setdefault(address, []).append(self.current)
        self.main.switch()

    def written(self, addresses: np.ndarray) -> None:
        for address in addresses.reshape(-1).tolist():
            self.writes[address] += 1
            self.all_writes += 1
            self.looks = 0
            for workgroup in self.parked.pop(address, ()):
                self._wake(workgroup)

    def call(self, function, run, args, kwargs):
        instead = self.calls.get(function.fn)
        if not instead:
            return run(*args, **kwargs)
        args = [_plain(arg) for arg in args]
        return instead(self, run, *args, **{name: _plain(arg) for name, arg in kwargs.items()})

    # time

    def _settle(self) -> None:
        """Let the time pass that the work in flight takes."""
        workgroup, machine = self.current, self.machine
        if not workgroup.flops and not workgroup.bytes:
            return
        # who comes first to a pipe is to be there first
        self._sleep()
        own, latency, carried, moving = 0.0, 0.0, 0, []
        if workgroup.flops:
            operands = workgroup.bytes.pop(workgroup.rank, 0)
            own = machine.tile_ns(workgroup.flops, operands) / self.share
        for owner, size in workgroup.bytes.items():
            far = owner != workgroup.rank
            if (owner, workgroup.rank) not in self.pipes:
                self.pipes[owner, workgroup.rank] = Pipe(machine.link_gbps if far else machine.memory_gbps)
            pipe = self.pipes[owner, workgroup.rank]
            moving.append((pipe, pipe.join(workgroup.ns, size)))
            latency = max(latency, machine.far_ns if far else machine.memory_ns)
            carried += size
        end = workgroup.ns + max(own, machine.carry_ns(carried) / self.share)
        workgroup.bytes.clear()
        workgroup.flops = 0
        # others may join while it sleeps
        while (left := max((pipe.left(target, workgroup.ns) for pipe, target in moving), default=0.0)) > LEAST_NS:
            workgroup.ns += left
            self._sleep()
        workgroup.ns = max(end, workgroup.ns) + latency

    def _owner(self, address: int) -> int:
        """Whose memory an address is; what no rank has registered is the workgroup's own."""
        index = bisect.bisect_right(self.owners, (address, 1 << 63, 0)) - 1
        return self.owners[index][2] if index >= 0 and address < self.owners[index][1] else self.current.rank

    def _wake(self, workgroup: Workgroup) -> None:
        workgroup.ns = max(workgroup.ns, self.current.ns)
        workgroup.parked_at = None
        self._push(workgroup)

    def _look_again(self) -> bool:
        """When all are parked, wake those that may have missed a write elsewhere: a wait can watch several words."""
        missed = [w for parked in self.parked.values() for w in parked if w.parked_after < self.all_writes]
        for workgroup in missed:
            self.parked[workgroup.parked_at].remove(workgroup)
            if not self.parked[workgroup.parked_at]:
                del self.parked[workgroup.parked_at]
            self._wake(workgroup)
        return bool(missed)

    def _push(self, workgroup: Workgroup) -> None:
        self.pushed += 1
        heapq.heappush(self.heap, (workgroup.ns, self.pushed, workgroup))

    def _let_earlier_run(self) -> None:
        self.stares = 0
        self.looks += 1
        if self.looks > LOOKS_WITHOUT_A_WRITE:
            who = f"rank {self.current.rank}, workgroup {self.current.index}"
            raise KosmosDeadlock(
                f"{who} spins for ever: nothing was written in {LOOKS_WITHOUT_A_WRITE} looks at memory"
            )
        self._sleep()

    def _sleep(self) -> None:
        """Let those run who are earlier."""
        if self.heap and self.heap[0][0] < self.current.ns:
            self._push(self.current)
            self.main.switch()

    def _deadlock(self) -> str:
        stuck = sorted((w for waiting in self.parked.values() for w in waiting), key=lambda w: (w.rank, w.index))
        first = stuck[0]
        what = first.waits_for or f"a write to address {first.parked_at:#x}"
        others = f"; {len(stuck) - 1} more wait as well" if len(stuck) > 1 else ""
        return f"rank {first.rank}, workgroup {first.index} waits for ever: {what}{others}"


def _plain(arg):
    """A constant as the plain number that the numpy helpers compute with."""
    return arg.value if isinstance(arg, tl.constexpr) else arg
