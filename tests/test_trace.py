"""A trace as a whole, and a small scheduler that makes traces for all tests of them."""

import numpy as np
from kosmos.trace import Trace

SPANS = ["rank", "workgroup", "role", "item", "claim_ns", "start_ns", "end_ns", "cycles", "unit"]
QUEUE = ["rank", "role", "item", "wait", "wait_count", "signal_rank", "signal"]


def scheduled(seed=0, ranks=3, workgroups=5, crew=2, chunks=4, tiles=30, length=(1, 40), meta=None):
    """A run by plain loops: movers fetch chunks, builders make tiles of them, reducers add up bands of five tiles.

    Counter c < chunks of a rank counts the two pieces of chunk c, counter chunks + b the tiles of band b. The last
    chunk is there from the launch on: nobody signals it. Workgroups below `crew` move before they build.
    """
    draw = np.random.default_rng(seed)
    queues = {}
    for rank in range(ranks):
        queues[rank, "mover"] = [(-1, 0, (rank + 1) % ranks, piece // 2) for piece in range(2 * (chunks - 1))]
        queues[rank, "builder"] = [
            ((chunks - 1 - tile * chunks // tiles) % chunks, 2, rank, chunks + tile // 5) for tile in range(tiles)
        ]
        queues[rank, "reducer"] = [(chunks + band, min(5, tiles - 5 * band), -1, -1) for band in range(-(-tiles // 5))]
    given = {(rank, chunks - 1): [0, 0] for rank in range(ranks)}  # when each counter got its signals
    taken = dict.fromkeys(queues, 0)
    roles = {(r, w): ["mover", "builder", "reducer"][w >= crew :] for r in range(ranks) for w in range(workgroups)}
    free = {lane: int(draw.integers(0, 50)) for lane in roles}
    held, spans = {}, []
    while free or held:
        # Whoever holds a ticket that became ready goes on, else whoever is free first takes one.
        for lane, (role, item, claim) in list(held.items()):
            wait, count, to, signal = queues[lane[0], role][item]
            signals = sorted(given.get((lane[0], wait), []))
            if wait == -1 or len(signals) >= count:
                del held[lane]
                start = claim if wait == -1 else max(claim, signals[count - 1])
                end = start + int(draw.integers(*length))
                given.setdefault((to, signal), []).append(end)
                spans.append((*lane, role, item, claim, start, end, 3 * (end - start), lane[1] % 3))
                free[lane] = end + int(draw.integers(0, 3))
        if free:
            lane = min(free, key=free.get)
            now = free.pop(lane)
            while roles[lane] and taken[lane[0], roles[lane][0]] == len(queues[lane[0], roles[lane][0]]):
                roles[lane].pop(0)
            if roles[lane]:
                held[lane] = (roles[lane][0], taken[lane[0], roles[lane][0]], now)
                taken[lane[0], roles[lane][0]] += 1
    rows = [(rank, role, item, *row) for (rank, role), queue in queues.items() for item, row in enumerate(queue)]
    queue = dict(zip(QUEUE, zip(*rows, strict=True), strict=True))
    queue |= dict.fromkeys(["chunk", "band", "column", "row", "rows", "col", "cols"], [0] * len(rows))
    return Trace(dict(zip(SPANS, zip(*spans, strict=True), strict=True)), queue, meta=meta)
