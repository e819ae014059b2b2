"""Many runs: every combination of lists of arguments, as one table."""

import contextlib
import itertools
import os
import sys
import types
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pyarrow as pa

from kosmos.errors import KosmosArgumentError, KosmosError
from kosmos.machine import Machine, machine_named
from kosmos.schedule import Policy
from kosmos.schedule.queues import order_name
from kosmos.simulator.runs import DTYPES, ORDERS, simulate

TABLE = pa.schema(
    {
        "op": pa.string(),
        "m": pa.int64(),
        "n": pa.int64(),
        "k": pa.int64(),
        "ranks": pa.int64(),
        "machine": pa.string(),
        "policy": pa.string(),  # as it was asked for; null: the default
        "order": pa.string(),
        "dtype": pa.string(),
        "workgroups": pa.int64(),
        "tile_rows": pa.int64(),
        "tile_cols": pa.int64(),
        "link_gbps": pa.float64(),
        "ran": pa.string(),  # the policy with its crew
        "makespan_ns": pa.int64(),
        "mover": pa.float64(),  # shares of all workgroups' time, with wait and idle 1 together
        "builder": pa.float64(),
        "reducer": pa.float64(),
        "wait": pa.float64(),
        "idle": pa.float64(),
        "work_ns": pa.int64(),  # lower bounds of the makespan
        "critical_path_ns": pa.int64(),
        "memory_ns": pa.int64(),
        "link_ns": pa.int64(),  # null: there is no link
        "energy_j": pa.float64(),  # null: power is not modelled
    }
)
"""What a sweep says of each run. All of it is the model's."""

WORTH_A_PROCESS = 32
"""Fewer runs than this do not pay for starting processes."""


def sweep(
    op: str | Sequence[str],
    *,
    m: int | Sequence[int] | None = None,
    n: int | Sequence[int] | None = None,
    k: int | Sequence[int] | None = None,
    shapes: Sequence[tuple[int, int, int]] | None = None,
    ranks: int | Sequence[int] = 8,
    machine: str | Machine | Sequence[str | Machine] = "MI350X",
    policy: Any = None,
    order: Any = None,
    dtype: str | Sequence[str] = "bf16",
    workgroups: int | Sequence[int] | None = None,
    tile: tuple[int, int] | Sequence[tuple[int, int]] | None = None,
    link_gbps: float | Sequence[float] | None = None,
    jobs: int | None = None,
    progress: bool = True,
) -> pa.Table:
    """Simulate every combination of the arguments of `simulate`, each of which may be one value or a list of them.

    shapes: (m, n, k) together, instead of m, n and k. jobs: processes, by default one a core if there are enough runs;
    runs with functions of the user's stay in this one. progress: whether to show a bar on stderr. The rows have the
    columns of `TABLE`, in the order of the combinations, the last argument fastest. Raises what `simulate` raises,
    with the combination that did it.
    """
    if shapes is not None:
        if (m, n, k) != (None, None, None):
            raise KosmosArgumentError("give either shapes, or m, n and k")
        sizes = [_shape(shape) for shape in _several(shapes)]
    else:
        for name, size in (("m", m), ("n", n), ("k", k)):
            if size is None:
                raise KosmosArgumentError(f"{name} is missing; give m, n and k, or shapes")
        sizes = list(itertools.product(*map(_several, (m, n, k))))
    tiles = [tile] if tile is None or (len(tile) == 2 and all(isinstance(side, int) for side in tile)) else list(tile)
    axes = [op, sizes, ranks, machine, policy, order, dtype, workgroups, tiles, link_gbps]
    names = ("op", "size", "ranks", "machine", "policy", "order", "dtype", "workgroups", "tile", "link_gbps")
    lists = [_several(axis) for axis in axes]
    for name, values in zip(names, lists):
        if not values:
            raise KosmosArgumentError(f"{name} is an empty list: there is nothing to simulate")
    runs = [dict(zip(names, combination)) for combination in itertools.product(*lists)]
    for run in runs:
        run["m"], run["n"], run["k"] = run.pop("size")
    if jobs is None:
        jobs = min(_cores(), len(runs) // (WORTH_A_PROCESS // 2)) if len(runs) >= WORTH_A_PROCESS else 1
    elif isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1:
        raise KosmosArgumentError(f"jobs={jobs!r} must be a whole number, 1 or more")
    if any(callable(run[name]) for run in runs for name in ("policy", "order")):
        jobs = 1

    from tqdm.auto import tqdm

    rows: list[dict[str, Any]] = []
    with tqdm(total=len(runs), unit="run", disable=not progress, leave=False) as bar:
        for some in _all(runs, jobs):
            rows += some
            bar.update(len(some))
    return pa.Table.from_pylist(rows, schema=TABLE)


def _all(runs: list[dict[str, Any]], jobs: int) -> Iterator[list[dict[str, Any]]]:
    if jobs == 1:
        for run in runs:
            yield [_row(run)]
        return
    size = max(1, min(16, len(runs) // (4 * jobs)))
    parts = [runs[at : at + size] for at in range(0, len(runs), size)]
    yield _rows(parts[0])  # compiles, if that is still to be done, once and not in every process
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        with _no_main():
            waiting = [pool.submit(_rows, part) for part in parts[1:]]
        try:
            for future in waiting:
                yield future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _rows(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [_row(run) for run in runs]


def _row(run: dict[str, Any]) -> dict[str, Any]:
    try:
        trace = simulate(**run)
    except KosmosError as error:
        told = ", ".join(f"{name}={_text(value)}" for name, value in run.items() if value is not None)
        raise type(error)(f"{error} (in the run {told})") from None
    machine = machine_named(run["machine"])
    meta = trace.meta
    summary = trace.summary()
    tile = meta["tile"]
    policy = run["policy"]
    return {
        **{name: run[name] for name in ("op", "m", "n", "k", "ranks", "dtype")},
        "machine": machine.name,
        "policy": None if policy is None else _text(policy),
        "order": order_name(ORDERS[run["op"]] if run["order"] is None else run["order"]),
        "workgroups": trace.workgroups,
        "tile_rows": tile[0],
        "tile_cols": tile[1],
        "link_gbps": meta["link_gbps"],
        "ran": meta["policy"],
        **{name: summary.get(name) for name in ("makespan_ns", "mover", "builder", "reducer", "wait", "idle")},
        **{f"{name}_ns": ns for name, ns in meta["bounds"].items()},
        "energy_j": meta.get("energy_j"),
    }


def _text(value: Any) -> str:
    if isinstance(value, Machine):
        return value.name
    return getattr(value, "__name__", None) or str(value)


def _several(value: Any) -> list[Any]:
    """A list of values from a list of them or from one."""
    if isinstance(value, str | Machine | Policy) or not hasattr(value, "__iter__"):
        return [value]
    return [one.item() if hasattr(one, "item") else one for one in value]


def _shape(shape: Any) -> tuple[Any, ...]:
    if not isinstance(shape, Sequence) or len(shape) != 3:
        raise KosmosArgumentError(f"shapes has {shape!r}; each shape must be (m, n, k)")
    return tuple(shape)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def _no_main() -> Iterator[None]:
    """Started meanwhile, a process does not run the user's script anew: nothing of it is needed there."""
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


__all__ = ["DTYPES", "TABLE", "sweep"]
