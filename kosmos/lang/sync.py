"""Claiming, waiting, signalling; entering and leaving a launch.

Every rank has a block of int32 words, its *state*, in symmetric memory: a header, the tickets of its queues, the
distances to the other ranks' states, and its counters. Counters only ever grow. In epoch e (the number of launches
before this one) a counter that gets n signals a launch is complete at (e + 1) * n; compared by their difference, the
values may wrap.

In a virtual world one launch has all ranks, so that no rank is a launch ahead of another. Between processes one can be:
then scratch memory and counters will have to alternate between two sets, by the epoch's parity.
"""

import numpy as np
import triton
import triton.language as tl

from kosmos.lang.device import gather_stores, nap, now, pause, poll
from kosmos.lang.items import ITEM_WORDS, WAIT, WAIT_COUNT
from kosmos.trace.schema import ROLES

MOVER = tl.constexpr(ROLES.index("mover"))
BUILDER = tl.constexpr(ROLES.index("builder"))
REDUCER = tl.constexpr(ROLES.index("reducer"))
N_ROLES = tl.constexpr(len(ROLES))

# words of a rank's state; tickets lie a cache line apart, so that the claims of two roles do not meet
EPOCH = tl.constexpr(0)
LEFT = tl.constexpr(1)
STOP = tl.constexpr(2)
LIMIT = tl.constexpr(4)
FAULT = tl.constexpr(6)
LINE = tl.constexpr(32)
PEERS = tl.constexpr(LINE.value * (1 + len(ROLES)))

CLOSED = tl.constexpr(1 << 30)
"""What the tickets are raised to when a wait has expired: every later claim finds its queue empty."""

FAULT_WORDS = 8
"""int64 words of a rank's fault: whether there is one, workgroup, role, item, counter, signals seen and wanted."""


def new_state(ranks: int, counters: int, limit_ticks: int, fault_addresses: list[int]) -> np.ndarray:
    """The state of all ranks before the first launch, int32 [ranks, words]; one launch has all ranks.

    limit_ticks: how long a wait may last. fault_addresses: for each rank where its fault goes.
    """
    words = -(-(PEERS.value + 2 * ranks + counters) // LINE.value) * LINE.value
    state = np.zeros((ranks, words), np.int32)
    wide = state.view(np.int64)
    wide[:, LIMIT.value // 2] = limit_ticks
    wide[:, FAULT.value // 2] = fault_addresses
    rank = np.arange(ranks)
    wide[:, PEERS.value // 2 : PEERS.value // 2 + ranks] = (rank - rank[:, None]) * words * 4
    return state


@triton.jit
def on_peer(pointer, peers, peer, ALIGN: tl.constexpr = 1):
    """The same place in another rank's symmetric memory. peers: int64 [ranks], distances in bytes from this rank's.

    ALIGN: what the result is a multiple of, in bytes; unsaid, wide accesses become narrow ones.
    """
    there = (pointer.to(tl.pointer_type(tl.int8)) + tl.load(peers + peer)).to(pointer.dtype)
    return tl.multiple_of(there, ALIGN)


@triton.jit
def _wide(state, word):
    """The int64 at an (even) word of the state."""
    return (state + word).to(tl.pointer_type(tl.int64))


@triton.jit
def counter_of(state, counter, RANKS: tl.constexpr):
    """Where a rank has a counter."""
    return state + PEERS + 2 * RANKS + counter


@triton.jit
def counter_on(state, peer, counter, RANKS: tl.constexpr):
    """Where another rank has a counter."""
    return counter_of(on_peer(state, _wide(state, PEERS), peer, 16), counter, RANKS)


@triton.jit
def signal(pointer, SCOPE: tl.constexpr, SPARED: tl.constexpr = 0):
    """Add one to a counter, after everything that this workgroup has stored.

    The only way to signal: a release atomic alone orders the stores of the one thread that issues it. SCOPE: "gpu" if
    all ranks share one, else "sys": how far the stores have to be seen. SPARED: so many of the last stores through a
    tensor descriptor are not what is signalled, and need not be there.
    """
    gather_stores(SPARED)
    tl.atomic_add(pointer, 1, sem="release", scope=SCOPE)


@triton.jit
def look(pointer, SCOPE: tl.constexpr):
    """Read an int32 once for the whole workgroup, so that all its threads decide alike; acquires."""
    return tl.atomic_add(pointer, 0, sem="acquire", scope=SCOPE)


@triton.jit
def enter(state):
    """The epoch of this launch."""
    return tl.load(state + EPOCH)


@triton.jit
def announce(state, rank, RANKS: tl.constexpr, SCOPE: tl.constexpr):
    """Tell every rank that this one is in the launch: its inputs may be read. Counter `rank` of each is for that."""
    for peer in range(RANKS):
        signal(counter_on(state, peer, rank, RANKS), SCOPE)


@triton.jit
def leave(state, WORKGROUPS: tl.constexpr):
    """The last workgroup of a rank to leave makes its state ready for the next launch."""
    gather_stores()
    gone = tl.atomic_add(state + LEFT, 1, sem="acq_rel", scope="gpu")
    if gone == WORKGROUPS - 1:
        tl.store(state + LEFT, 0)
        tl.store(state + EPOCH, tl.load(state + EPOCH) + 1)
        if tl.load(state + STOP) == 0:
            for role in range(N_ROLES):
                tl.store(state + LINE * (1 + role), 0)


@triton.jit
def claim(state, role):
    """Take the next ticket of a queue: the index of an item, or one beyond the last."""
    return tl.atomic_add(state + LINE * (1 + role), 1, sem="relaxed", scope="gpu")


@triton.jit
def claim_ready(here, role, items, length, RANKS: tl.constexpr, SCOPE: tl.constexpr):
    """Take the next ticket of a queue only if its item would not have to wait; otherwise -1."""
    state, epoch, _, _ = here
    ticket = state + LINE * (1 + role)
    taken = tl.full((), -1, tl.int32)
    head = look(ticket, SCOPE)
    if head < length:
        counter = tl.load(items + head.to(tl.int64) * ITEM_WORDS + WAIT)
        count = tl.load(items + head.to(tl.int64) * ITEM_WORDS + WAIT_COUNT)
        ready = counter < 0
        if counter >= 0:
            ready = look(counter_of(state, counter, RANKS), SCOPE) - (epoch + 1) * count >= 0
        if ready:
            if tl.atomic_cas(ticket, head, head + 1, sem="relaxed", scope="gpu") == head:
                taken = head
    return taken


@triton.jit
def claim_two_way(
    here, producer, n_produced, consumer, consumed, n_consumed, consumes, RANKS: tl.constexpr, SCOPE: tl.constexpr
):
    """The two-way rule: (role, ticket). A workgroup that `consumes` takes the next consumer item if it is ready;
    otherwise everybody produces while there is something to produce, and then consumes. The consumer's ticket is
    beyond its queue when everything is taken.

    here: as in `wait`. consumed: the consumer's queue.
    """
    state, _, _, _ = here
    role = tl.full((), consumer, tl.int32)
    ticket = tl.full((), -1, tl.int32)
    if consumes:
        ticket = claim_ready(here, consumer, consumed, n_consumed, RANKS, SCOPE)
    if ticket < 0:
        role = tl.full((), producer, tl.int32)
        ticket = claim(state, producer)
        if ticket >= n_produced:
            role = tl.full((), consumer, tl.int32)
            ticket = claim(state, consumer)
    return role, ticket


@triton.jit
def wait(here, counter, count, role, item, RANKS: tl.constexpr, SCOPE: tl.constexpr):
    """Wait until a counter of this rank is complete; later reads see what its signallers wrote.

    here: (state, epoch, rank, workgroup). counter = -1 waits for nothing. If the state's limit passes, the fault is
    written down (the first one of the rank stays), all queues of all ranks are closed, and every wait of the launch
    ends: the workgroups leave, the results are void.
    """
    state, epoch, rank, workgroup = here
    if counter >= 0:
        pointer = counter_of(state, counter, RANKS)
        wanted = (epoch + 1) * count
        if look(pointer, SCOPE) - wanted < 0:
            limit = tl.load(_wide(state, LIMIT))
            since = now()
            while (poll(pointer, SCOPE) - wanted < 0) & (poll(state + STOP, SCOPE) == 0) & (now() - since < limit):
                pause(pointer)
            # the threads may have seen different things: one look for all decides
            seen = look(pointer, SCOPE)
            if seen - wanted < 0:
                if tl.atomic_xchg(state + STOP, 1, sem="relaxed", scope="sys") == 0:
                    fault = tl.load(_wide(state, FAULT)).to(tl.pointer_type(tl.int64))
                    tl.store(fault + 1, workgroup.to(tl.int64))
                    tl.store(fault + 2, tl.full((), role, tl.int64))
                    tl.store(fault + 3, item.to(tl.int64))
                    tl.store(fault + 4, counter.to(tl.int64))
                    tl.store(fault + 5, (seen - epoch * count).to(tl.int64))
                    tl.store(fault + 6, count.to(tl.int64))
                    tl.store(fault, tl.full((), 1, tl.int64))
                    for peer in range(RANKS):
                        there = on_peer(state, _wide(state, PEERS), peer, 16)
                        for queue in range(N_ROLES):
                            tl.atomic_max(there + LINE * (1 + queue), CLOSED, sem="relaxed", scope="sys")
                        signal(there + STOP, "sys")


@triton.jit
def pace(state, links, link, moved_bytes, ticks_per_byte):
    """Hold the workgroup until a link of the given rate would have carried the bytes.

    links: int64, for each link the time until which it is taken. Several workgroups on one link queue up.
    """
    free_at = links + link
    tl.atomic_max(free_at, now(), sem="relaxed", scope="gpu")
    taken = (moved_bytes * ticks_per_byte).to(tl.int64)
    until = tl.atomic_add(free_at, taken, sem="relaxed", scope="gpu") + taken
    while (now() < until) & (poll(state + STOP) == 0):
        nap()
