"""Lower bounds of a run's makespan: no order and no policy is faster on that machine."""

import numpy as np

from kosmos.machine.power import LEAST_SHARE
from kosmos.simulator.setup import Work, blocks, resources_of


def bounds_of(work: Work) -> dict[str, float]:
    """For each bound its ns; the makespan is never below any of them.

    work: all workgroups busy from the first to the last moment, at the clock that the power cap allows.
    link: what the busiest link or port has to carry. memory: what the busiest memory has to move: all that is stored,
    and what is read for the first time; the cache may have the rest.
    critical_path: the longest chain of an item and those that it waits for.
    """
    machine, queues = work.machine, work.queues
    resources, uses, flows = resources_of(work)
    loads = np.zeros(len(resources))
    for (role, rank, source), used in zip(flows, uses):
        amount = work.work[role][rank]
        if role == "mover":
            amount = amount[queues.items["mover"]["chunk"][rank] == source]
        for resource, size in used:
            if role != "mover" or resource >= work.devices:
                loads[resource] += float(amount.sum()) * size
    if "mover" in queues.items:
        loads[: work.devices] += _copied(work)
    spent = loads / np.array([each.gbps for each in resources])
    found = {"work": _work_ns(work), "critical_path": _path_ns(work), "memory": float(spent[: work.devices].max())}
    if len(resources) > work.devices:
        found["link"] = float(spent[work.devices :].max())
    elif machine.paced and queues.ranks > 1:
        found["link"] = _paced_ns(work)
    return found


def _copied(work: Work) -> np.ndarray:
    """Bytes that copies move in each device's memory: a part that several ranks fetch is read once."""
    table, size = work.queues.items["mover"], work.work["mover"].ravel()
    device = np.arange(work.queues.ranks) // work.machine.sharing
    row, column, _ = blocks(table)
    part = row * (int(column.max(initial=0)) + 1) + column
    _, first = np.unique(part, return_index=True)
    bytes_of = np.bincount(np.repeat(device, table.shape[1]), size, work.devices)
    return bytes_of + np.bincount(device[table["chunk"].ravel()[first]], size[first], work.devices)


def _work_ns(work: Work) -> float:
    """With b of its N workgroups building on average, a device's builders do g(b) = b * clock share(b), which is
    concave above the lowest share: builders' work B and copies' workgroup time C fit into a time T only if
    T * g(N - C / T) >= B.
    """
    machine = work.machine
    units = work.workgroups * machine.sharing
    stream = float(work.builder_bytes.mean())

    def speed(busy: float) -> float:
        return busy * machine.clock_share(busy * work.product_share, 0.0, busy * stream)

    best = float(units)
    if machine.cap_w and machine.on_w:
        # more units may then be slower: where g is the most, or at the lowest share, which no cap goes below
        best = min(best, (machine.cap_w - machine.idle_w) / machine.on_w / work.product_share)
        low = 0.0
        while best - low > 1e-6 * units:
            left, right = low + (best - low) / 3, best - (best - low) / 3
            low, best = (left, best) if speed(left) < speed(right) else (low, right)

    asked = set()
    for device in range(work.devices):
        ranks = slice(device * machine.sharing, (device + 1) * machine.sharing)
        build = float(work.work["builder"][ranks].sum())
        copy = sum(
            float(table[ranks].sum()) / work.top[role] + table[ranks].size * work.end_ns
            for role, table in work.work.items()
            if role != "builder"
        )
        asked.add((build, copy))
    least = 0.0
    for build, copy in asked:
        low, high = copy / units, (copy + 20 * build) / units + 1
        for _ in range(60):
            middle = (low + high) / 2
            free = max(units - copy / middle, 0.0)
            enough = middle * max(speed(min(free, best)), LEAST_SHARE * free) >= build
            low, high = (low, middle) if enough else (middle, high)
        least = max(least, low)
    return least


def _path_ns(work: Work) -> float:
    queues = work.queues
    ranks, counters = queues.ranks, queues.counters
    own = np.arange(ranks)[:, None]
    complete = np.zeros(max(ranks * counters, 1))
    longest = 0.0
    for role in (queues.producer, queues.consumer):
        table = queues.items[role]
        if not table.size:
            continue
        takes = work.work[role] / work.top[role] + (0.0 if role == "builder" else work.end_ns)
        ready = np.where(table["wait"] >= 0, complete[own * counters + table["wait"]], 0.0)
        end = ready + takes
        longest = max(longest, float(end.max()))
        signals = table["signal"] >= 0
        np.maximum.at(complete, (table["signal_rank"] * counters + table["signal"])[signals], end[signals])
    return longest


def _paced_ns(work: Work) -> float:
    queues, rate = work.queues, work.machine.link_gbps
    if "mover" not in queues.items:
        return float(work.work["reducer"].sum(axis=1).max()) / rate
    chunk = queues.items["mover"]["chunk"]
    return max(
        float(work.work["mover"][rank][chunk[rank] == source].sum()) / rate
        for rank in range(queues.ranks)
        for source in range(queues.ranks)
    )
