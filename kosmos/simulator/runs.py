"""One run of a fused op on a machine model."""

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from kosmos import __version__
from kosmos.errors import KosmosArgumentError, KosmosDeadlock
from kosmos.machine import Machine, machine_named
from kosmos.schedule import QUEUES, Policy, Queues, Tile, check
from kosmos.schedule.queues import Order, group_for, order_name
from kosmos.simulator.watch import View, Watched
from kosmos.trace import Trace

DTYPES = {"bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of an element."""

ORDERS = {"all_gather_matmul": "local_first", "matmul_reduce_scatter": "band"}
"""The default orders."""

PolicyFunction = Callable[[View], str | None]

LARGEST = 1 << 24
MOST_ITEMS = 30_000_000


def simulate(
    op: str,
    *,
    m: int,
    n: int,
    k: int,
    ranks: int = 8,
    machine: str | Machine = "MI350X",
    policy: Policy | str | PolicyFunction | None = None,
    order: Order | None = None,
    dtype: str = "bf16",
    workgroups: int | None = None,
    tile: tuple[int, int] | None = None,
    link_gbps: float | None = None,
) -> Trace:
    """The trace of a fused op on a model of a machine.

    m, n, k: the GEMM that each rank runs, after the gather or before the scatter. machine: a name from kosmos.machines
    ("H200/4" is one H200 that 4 virtual ranks share) or a Machine. policy: a kosmos.Policy, its text, or a function
    that is called with a kosmos.simulator.watch.View whenever a workgroup needs work and returns the role of its next
    item, or None to leave for good. order: as for the op, a function too. dtype: bf16, fp16 or fp8. workgroups: of a
    rank, by default one a unit. tile: rows and columns of an output tile, by default the machine's. link_gbps: links of
    another rate.

    The trace's meta has `bounds`: lower bounds of the makespan, in ns. Times, power and clocks are the model's.
    Raises KosmosArgumentError for what is not allowed, KosmosDeadlock if an item would wait for ever.
    """
    run = _prepared(op, m, n, k, ranks, machine, policy, order, dtype, workgroups, tile, link_gbps)
    trace = simulate_queues(
        run.queues,
        run.policy,
        run.machine,
        run.workgroups,
        k=k,
        itemsize=DTYPES[dtype],
        tile=run.tile,
        flatten=run.flatten,
        meta={
            "shape": {"m": m, "n": n, "k": k},
            "dtype": {"bf16": "bfloat16", "fp16": "float16", "fp8": "float8"}[dtype],
            "order": order_name(run.order),
            "link_gbps": run.machine.link_gbps if run.machine.topology != "memory" or run.machine.paced else None,
        },
        asked=run.asked,
    )
    return trace


def bounds(
    op: str,
    *,
    m: int,
    n: int,
    k: int,
    ranks: int = 8,
    machine: str | Machine = "MI350X",
    order: Order | None = None,
    dtype: str = "bf16",
    workgroups: int | None = None,
    tile: tuple[int, int] | None = None,
    link_gbps: float | None = None,
) -> dict[str, float]:
    """Lower bounds in ns of the makespan of a run, see kosmos.simulator.limits; arguments as in `simulate`."""
    from kosmos.simulator.limits import bounds_of
    from kosmos.simulator.setup import work_of

    run = _prepared(op, m, n, k, ranks, machine, None, order, dtype, workgroups, tile, link_gbps)
    return bounds_of(work_of(run.queues, run.machine, run.workgroups, k, DTYPES[dtype], run.tile))


def simulate_queues(
    queues: Queues,
    policy: Policy | PolicyFunction,
    machine: Machine,
    workgroups: int,
    *,
    k: int,
    itemsize: int = 2,
    tile: Tile,
    flatten: bool = False,
    meta: dict[str, Any] | None = None,
    asked: str | None = None,
) -> Trace:
    """The trace of queues and a settled policy on a machine. k, itemsize, tile: of what the builders multiply.

    flatten: whether builders that wait for nobody take their tickets a tile ahead, as the kernels for sm_90 do.
    meta: more of it. asked: how the policy was asked for, if it is another text than its own.
    """
    if machine.sharing > 1 and queues.ranks != machine.sharing:
        raise KosmosArgumentError(
            f"ranks={queues.ranks}: machine {machine.name} is one GPU shared by {machine.sharing} ranks"
        )
    with _compiling():
        from kosmos.simulator import engine, setup
        from kosmos.simulator.limits import bounds_of
        from kosmos.simulator.result import trace_of
        from kosmos.simulator.watch import run_asked

        # as the kernels do: not under two_way, and not where builders wait for others
        flat = flatten and (queues.producer == "builder" or queues.ranks == 1)
        flat = flat and isinstance(policy, Policy) and policy.kind != "two_way"
        work = setup.work_of(queues, machine, workgroups, k, itemsize, tile, flat)
        if isinstance(policy, Policy):
            text = str(policy)
            if policy.crew is None or policy.crew > workgroups:
                check(queues, policy, workgroups)
            state = setup.state_of(work, setup.POLICIES[policy.kind], policy.crew or 0, flat)
            engine.begin(state)
            engine.go_on(state)
        else:
            text = getattr(policy, "__name__", repr(policy))
            state = setup.state_of(work, engine.ASKED, 0, flat)
            with Watched(f"policy {text}") as watched:
                run_asked(state, policy, (queues.producer, queues.consumer), watched)
    if int(state.run["spans"][0]) < len(state.item):
        if isinstance(policy, Policy):
            check(queues, policy, workgroups)
        raise KosmosDeadlock(_stuck(queues, state, text, workgroups))
    return trace_of(
        work,
        state,
        {
            "op": queues.op,
            **(meta or {}),
            "policy": f"{asked} ({text})" if asked else text,
            "ranks": queues.ranks,
            "workgroups": workgroups,
            "place": "simulator",
            "model": True,
            "machine": machine.name,
            "tile": list(tile),
            "clock": {"source": f"virtual time of the model {machine.name}", "tick_ns": 1},
            "versions": {"kosmos": __version__},
            "dropped": [],
            "bounds": {name: round(ns) for name, ns in bounds_of(work).items()},
        },
    )


def _stuck(queues: Queues, state: Any, policy: str, workgroups: int) -> str:
    """Who waits for ever, or which item nobody claims."""
    for q, role in enumerate((queues.producer, queues.consumer)):
        for rank in range(queues.ranks):
            head = int(state.ticket[q, rank])
            if head < state.length[q]:
                return f"rank {rank}: {role} item {head} is never claimed under policy {policy}"
    done = set(state.span["item"][: int(state.run["spans"][0])].tolist())
    held = {int(one["item"]): w for w, one in enumerate(state.workgroup) if int(one["item"]) not in done}
    item, w = min(held.items())
    q = int(state.workgroup["queue"][w])
    rank = w // workgroups
    counter = int(state.item["wait"][item])
    return (
        f"rank {rank}, workgroup {w % workgroups}: {(queues.producer, queues.consumer)[q]} item "
        f"{item - int(state.base[q, rank])} would wait for ever for counter {counter % queues.counters} under policy "
        f"{policy}"
    )


class _Prepared:
    """The arguments of `simulate`, checked and completed."""

    queues: Queues
    policy: Policy | PolicyFunction
    machine: Machine
    workgroups: int
    tile: Tile
    flatten: bool
    order: Order
    asked: str | None = None


def _prepared(op, m, n, k, ranks, machine, policy, order, dtype, workgroups, tile, link_gbps) -> _Prepared:
    if not isinstance(op, str) or op not in QUEUES:
        raise KosmosArgumentError(f"op={op!r} is unknown; known are {', '.join(QUEUES)}")
    for name, value in (("m", m), ("n", n), ("k", k), ("ranks", ranks)):
        _whole(name, value)
    if m % ranks:
        raise KosmosArgumentError(f"m={m} must divide by ranks={ranks}: each rank has an equal share of the rows")
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise KosmosArgumentError(f"dtype={dtype!r} is unknown; known are {', '.join(DTYPES)}")
    run = _Prepared()
    run.machine = machine_named(machine)
    if link_gbps is not None:
        number = isinstance(link_gbps, int | float) and not isinstance(link_gbps, bool)
        if not (number and 0 < link_gbps < float("inf")):
            raise KosmosArgumentError(f"link_gbps={link_gbps!r} must be a rate in GB/s, above 0, or None")
        run.machine = run.machine.with_link(link_gbps)
    run.workgroups = run.machine.units if workgroups is None else workgroups
    _whole("workgroups", run.workgroups)
    if run.workgroups > run.machine.units:
        raise KosmosArgumentError(
            f"workgroups={run.workgroups} cannot be resident at once: a rank of machine {run.machine.name} has "
            f"{run.machine.units} units, one workgroup each"
        )
    run.tile = Tile(*run.machine.tile) if tile is None else _tile(tile)
    run.flatten = run.machine.flatten and tuple(run.tile) == tuple(run.machine.tile)
    run.order = ORDERS[op] if order is None else order
    if not isinstance(run.order, str) and not callable(run.order):
        raise KosmosArgumentError(f"order={order!r} must be a name or a function")
    blocks = ranks * -(-(m // ranks) // run.tile.rows) * -(-n // run.tile.cols)
    if ranks * blocks > MOST_ITEMS:
        raise KosmosArgumentError(
            f"m={m}, n={n}, ranks={ranks} make {ranks * blocks:,} tiles of {run.tile.rows} × {run.tile.cols}; the "
            f"simulator takes up to {MOST_ITEMS:,}"
        )
    itemsize = DTYPES[dtype]
    make = _queues if isinstance(run.order, str) else _queues_ordered
    run.queues = make(op, m, n, k, ranks, run.tile, itemsize, run.order, group_for(run.workgroups, run.tile))
    if policy is not None and not isinstance(policy, Policy | str) and callable(policy):
        run.policy = policy
        return run
    cost_ns = run.machine.cost_ns(run.queues.items, k, itemsize, ranks)
    asked = Policy.default(run.queues, run.workgroups, cost_ns) if policy is None else Policy.parse(policy)
    run.policy = asked.settle(run.queues, run.workgroups, cost_ns)
    run.asked = None if run.policy == asked else str(asked)
    return run


@functools.lru_cache(maxsize=16)
def _queues(op: str, m: int, n: int, k: int, ranks: int, tile: Tile, itemsize: int, order: Order, group: int) -> Queues:
    return QUEUES[op](m=m, n=n, k=k, ranks=ranks, tile=tile, itemsize=itemsize, order=order, group=group)


def _queues_ordered(
    op: str, m: int, n: int, k: int, ranks: int, tile: Tile, itemsize: int, order: Any, group: int
) -> Queues:
    with Watched(f"order {order_name(order)}") as watched:

        @functools.wraps(order)
        def each(items: Any) -> Any:
            return watched.call(order, items)

        return QUEUES[op](m=m, n=n, k=k, ranks=ranks, tile=tile, itemsize=itemsize, order=each, group=group)


def _whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= LARGEST:
        raise KosmosArgumentError(f"{name}={value!r} must be a whole number from 1 to {LARGEST}")


def _tile(tile: Any) -> Tile:
    try:
        rows, cols = tile
    except (TypeError, ValueError):
        raise KosmosArgumentError(f"tile={tile!r} must be (rows, columns)") from None
    _whole("tile rows", rows)
    _whole("tile columns", cols)
    return Tile(rows, cols)


COMPILES = 2.0
"""Seconds of computing after which a first run is taken to compile: with compiled code at hand it takes one."""

_warm = False


@contextlib.contextmanager
def _compiling() -> Iterator[None]:
    """Says so if the first run of a process has to compile the event loop: numba keeps the result for later ones."""
    global _warm
    if _warm:
        yield
        return
    ready, begin = threading.Event(), time.process_time()

    def tell() -> None:
        # time of the processor: a machine that is busy with other things is slow too, but does not compile
        while not ready.wait(0.25):
            if time.process_time() - begin > COMPILES:
                print("kosmos: compiling the simulator, this once (half a minute) ...", file=sys.stderr, flush=True)
                return

    threading.Thread(target=tell, daemon=True).start()
    try:
        yield
        _warm = True
    finally:
        ready.set()
