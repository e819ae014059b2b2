"""The deadlock check: run the queues without time and see whether every item gets its turn.

Signals only ever add and every queue is claimed from its front, so the order in which enabled items are run does not
change which of them can run in the end: one untimed run decides.
"""

from collections import defaultdict

import numpy as np

from kosmos.errors import KosmosArgumentError, KosmosDeadlock
from kosmos.schedule.policies import Policy
from kosmos.schedule.queues import Queues


def check(queues: Queues, policy: Policy, workgroups: int) -> None:
    """Refuse a (queues, policy) pair that cannot finish with `workgroups` a rank.

    Raises KosmosArgumentError for a crew that the workgroups cannot fill or that leaves a queue without anybody, and
    KosmosDeadlock with the first item that would wait for ever.
    """
    crew = policy.crew
    if crew is None:
        raise KosmosArgumentError(f"policy {policy} has no crew yet; settle it with Policy.settle")
    if crew > workgroups:
        raise KosmosArgumentError(
            f"crew={crew} of policy {policy} is larger than the {workgroups} workgroups of a rank"
        )
    for role, table in queues.items.items():
        if table.shape[1] and not _serves(queues, policy, workgroups, role):
            raise KosmosArgumentError(
                f"policy {policy} leaves nobody to be a {role} among {workgroups} workgroups a rank, and "
                f"{queues.op} has {table.shape[1]} {role} items a rank"
            )
    _check_counts(queues)
    producers = queues.items[queues.producer]
    if policy.kind == "two_way" and (producers["wait"] >= queues.announced).any():
        raise KosmosArgumentError(
            f"policy {policy} needs {queues.producer} items that wait for no other item: whoever waits cannot switch"
        )
    sentence = deadlock(queues, policy, workgroups)
    if sentence:
        raise KosmosDeadlock(sentence)


def deadlock(queues: Queues, policy: Policy, workgroups: int) -> str | None:
    """The sentence that names the first item that would wait for ever, or None if all items get done."""
    signals = np.zeros((queues.ranks, queues.counters), np.int64)
    signals[:, : queues.announced] = 1
    taken: dict[tuple[int, str], int] = defaultdict(int)
    holds: dict[tuple[int, str, int], tuple[str, int]] = {}
    parked: dict[tuple[int, int], list[tuple[int, str, int]]] = defaultdict(list)
    crew = policy.crew or 0
    free = [
        (rank, queues.crew_role if workgroup < crew else "builder", workgroup)
        for rank in range(queues.ranks)
        for workgroup in range(workgroups)
    ]

    def ready(rank: int, role: str, index: int) -> bool:
        item = queues.items[role][rank, index]
        return item["wait"] < 0 or signals[rank, item["wait"]] >= item["wait_count"]

    def claim(rank: int, role: str) -> tuple[str, int] | None:
        """What a workgroup that is at home in `role` takes next by the policy's rule; None when it leaves."""
        left = {name for name, table in queues.items.items() if taken[rank, name] < table.shape[1]}
        if policy.kind == "two_way" and role == queues.consumer and queues.producer in left:
            role = role if role in left and ready(rank, role, taken[rank, role]) else queues.producer
        elif role not in left and role == queues.producer and policy.switches:
            role = queues.consumer
        if role not in left:
            return None
        taken[rank, role] += 1
        return role, taken[rank, role] - 1

    while free:
        worker = rank, role, _ = free.pop()
        work = holds.pop(worker, None) or claim(rank, role)
        if work is None:
            continue
        item = queues.items[work[0]][rank, work[1]]
        if not ready(rank, *work):
            holds[worker] = work
            parked[rank, int(item["wait"])].append(worker)
            continue
        if item["signal"] >= 0:
            counter = int(item["signal_rank"]), int(item["signal"])
            signals[counter] += 1
            free.extend(parked.pop(counter, ()))
        free.append(worker)

    for (rank, _, workgroup), (role, index) in sorted(holds.items()):
        item = queues.items[role][rank, index]
        return (
            f"rank {rank}, workgroup {workgroup}: {role} item {index} would wait for ever for counter {item['wait']}, "
            f"which gets {signals[rank, item['wait']]} of {item['wait_count']} signals"
        )
    for role, table in queues.items.items():
        for rank in range(queues.ranks):
            if taken[rank, role] < table.shape[1]:
                return f"rank {rank}: {role} item {taken[rank, role]} is never claimed under policy {policy}"
    return None


def _serves(queues: Queues, policy: Policy, workgroups: int, role: str) -> bool:
    """Whether some workgroup starts in `role` or can switch into it."""
    crew = policy.crew or 0
    starters = crew if role == queues.crew_role else workgroups - crew
    if policy.switches and role == queues.consumer:
        starters = workgroups
    if policy.kind == "two_way":
        starters = workgroups
    return starters > 0


def _check_counts(queues: Queues) -> None:
    """Refuse a counter that gets more signals than are waited for: the next launch would count the surplus."""
    signals = np.zeros((queues.ranks, queues.counters), np.int64)
    signals[:, : queues.announced] = 1
    for table in queues.items.values():
        signalling = table[table["signal"] >= 0]
        np.add.at(signals, (signalling["signal_rank"], signalling["signal"]), 1)
    for role, table in queues.items.items():
        waiting = table[table["wait"] >= 0]
        surplus = waiting[signals[waiting["rank"], waiting["wait"]] > waiting["wait_count"]]
        if len(surplus):
            item = surplus[0]
            raise KosmosArgumentError(
                f"counter {item['wait']} of rank {item['rank']} gets {signals[item['rank'], item['wait']]} signals "
                f"but a {role} item waits for {item['wait_count']}: a counter is waited for as a whole"
            )
