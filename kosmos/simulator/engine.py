"""The event loop: workgroups, queues, and work that shares links and memory, on arrays alone, compiled by numba.

Time is float64 ns. What a workgroup does beside its work (claims, looks at counters, signals) are *steps*: each takes
effect at one moment, in a heap of moments. The work itself is done in *flows*: all items of one kind and rank (and of
one source, for copies) that are under way progress at one rate, so a flow keeps how much work a member has got since
the beginning, `done`, and a member that joins with w of work leaves when `done` has grown by w. Nothing has to be
touched when a rate changes, however many are under way.

Rates are max-min fair. A resource (a link, a port, a memory) has a capacity in bytes/ns and gives every member of its
flows the same `level`, or less where something else limits it; it is unlimited (inf) as long as it has enough for all.
A flow's rate is the least of its own limit and level / bytes-per-work of each of its resources. After a change only the
resources concerned are levelled again, and those that their flows share with others if a rate has changed there.

Work of builders is ns at the highest clock, that of movers bytes, that of reducers bytes of each source.

Between memory and units lies a cache. Who reads a block (a tile its two operands, a copy its source) fetches from
memory what is not there any more. What goes through the memory puts out lines at random: after d bytes since the last
one that read or stored the block began, a cache of C bytes still has exp(-d / C) of it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from kosmos.machine import power

MOVER, BUILDER, REDUCER = 0, 1, 2
FIXED, ONE_WAY, TWO_WAY, ASKED = 0, 1, 2, 3
DONE, ASKING, GOING = 0, 1, 2
BINS = 256
SAME = 1e-10
"""Rates that differ by less, relatively, are the same: else ties would be levelled against each other for ever."""
MOST_ROUNDS = 10_000
"""Of levelling after one change: never seen to be needed; counted in `unsettled` if it is."""
EVENTS = 20_000
"""After so many Python has a turn, so that Ctrl-C is heard: about a hundredth of a second."""
TICKET, LOOK, GO, SIGNALLED, SIGNAL, HEAD, READY, SWAP, PACE, ANNOUNCE = range(10)

RUN = np.dtype(
    [
        # what stays
        ("policy", np.int64),
        ("workgroups", np.int64),
        ("ranks", np.int64),
        ("sharing", np.int64),  # ranks of a device
        ("counters", np.int64),  # of a rank
        ("announced", np.int64),
        ("flatten", np.int64),
        ("atomic_ns", np.float64),
        ("signal_ns", np.float64),  # to a peer
        ("nap_ns", np.float64),  # between two rounds of a wait
        ("end_ns", np.float64),  # latency at the end of a copy
        ("pace", np.float64),  # ns a byte of a paced link, 0: none is paced
        ("cap_w", np.float64),  # 0: power is not modelled
        ("idle_w", np.float64),
        ("on_w", np.float64),  # of a workgroup, at any clock
        ("unit_w", np.float64),  # of one that builds, at the highest
        ("wait_w", np.float64),  # of one that does not
        ("exponent", np.float64),
        ("byte_pj", np.float64),
        ("cache", np.float64),  # bytes, not 0
        ("clock_step", np.float64),
        ("busy_share", np.float64),  # the highest clock while a unit multiplies
        # what changes
        ("now", np.float64),
        ("width", np.float64),  # of a bin
        ("steps", np.int64),
        ("sequence", np.int64),
        ("spans", np.int64),
        ("asker", np.int64),
        ("starter", np.int64),  # whose wait has just ended, or -1
        ("dirty", np.int64),
        ("rounds", np.int64),
        ("unsettled", np.int64),
    ]
)
ITEM = np.dtype(
    [
        ("wait", np.int64),  # rank * counters + counter, or -1
        ("signal", np.int64),
        ("near", np.int64),  # whether the signal stays on the rank
        ("work", np.float64),
        ("flow", np.int64),
        ("chunk", np.int64),
        # of tiles and copies
        ("blocks", np.int64, 2),  # what they read: rows and columns, or a source; -1: nothing
        ("reads", np.float64, 2),  # bytes of them
        ("writes", np.float64),  # bytes, where they are not a constant use of the flow
    ]
)
COUNTER = np.dtype([("wanted", np.int64), ("value", np.int64), ("first", np.int64), ("last", np.int64)])
FLOW = np.dtype(
    [
        ("kind", np.int64),  # role
        ("device", np.int64),  # whose clock
        ("top", np.float64),  # rate of one member that nothing else limits, at the highest clock
        ("limit", np.float64),  # at the present one
        ("uses", np.int64),  # its uses of resources
        ("uses_end", np.int64),
        ("size", np.int64),  # members
        ("rate", np.float64),  # of one
        ("done", np.float64),
        ("since", np.float64),  # when `done` was right
        ("fetches", np.float64),  # bytes for a unit of work, of all members, besides constant uses
        ("base", np.float64),  # the constant use of the resource that it fetches from
    ]
)
USE = np.dtype([("resource", np.int64), ("bytes", np.float64), ("user", np.int64)])
"""What a flow uses of a resource for a unit of work."""
USER = np.dtype([("flow", np.int64), ("bytes", np.float64)])
"""The same, as the resource sees it."""
RESOURCE = np.dtype(
    [
        ("capacity", np.float64),  # bytes/ns
        ("level", np.float64),  # bytes/ns of a member
        ("load", np.float64),  # bytes/ns of all
        ("users", np.int64),
        ("users_end", np.int64),
        ("marked", np.int64),  # whether it waits to be levelled
    ]
)
ENTRY = np.dtype([("at", np.float64), ("seq", np.int64), ("kind", np.int64), ("who", np.int64)])
"""Of a heap."""
DEVICE = np.dtype(
    [
        ("share", np.float64),  # clock, of the highest
        ("building", np.int64),  # workgroups that multiply
        ("present", np.int64),  # that have not left
        ("moved", np.float64),  # bytes that have gone through its memory
        ("ticks", np.float64),  # share * ns since the beginning
        ("since", np.float64),
        ("flows", np.int64),
        ("flows_end", np.int64),
    ]
)
WORKGROUP = np.dtype(
    [
        ("home", np.int64),  # the queue that it claims from
        ("queue", np.int64),  # that of what it is at
        ("item", np.int64),
        ("claimed", np.float64),
        ("started", np.float64),
        ("ticks", np.float64),  # of the device when it started
        ("polls", np.float64),  # when it polls the counter that it waits for, next or in this round
        ("left", np.int64),  # peers to pace, or to announce itself to
        ("building", np.int64),
        ("fetches", np.float64),  # bytes for a unit of its work
        ("seen", np.int64),  # head of the consumers' queue that it has looked at
        ("after", np.int64),  # who is next in a line of waiters
    ]
)
SPAN = np.dtype(
    [
        ("who", np.int64),
        ("item", np.int64),
        ("claim", np.float64),
        ("start", np.float64),
        ("end", np.float64),
        ("ticks", np.float64),
    ]
)


class State(NamedTuple):
    """All of a run. Queue 0 is the producers', 1 the consumers'; a workgroup is rank * workgroups + its index."""

    run: np.ndarray  # RUN [1]
    item: np.ndarray  # ITEM [items]
    base: np.ndarray  # [2, ranks] where a queue begins in `item`
    length: np.ndarray  # [2]
    ticket: np.ndarray  # [2, ranks]
    counter: np.ndarray  # COUNTER [ranks * counters]
    workgroup: np.ndarray  # WORKGROUP [ranks * workgroups]
    flow: np.ndarray  # FLOW [flows]
    use: np.ndarray  # USE [uses]
    resource: np.ndarray  # RESOURCE [resources], the devices' memories first
    user: np.ndarray  # USER [uses]
    dirty: np.ndarray  # [resources] which are to be levelled
    member: np.ndarray  # ENTRY [flows, workgroups] a heap for each flow: at which `done` they leave
    next_at: np.ndarray  # [leaves] when the first member of a flow leaves
    first: np.ndarray  # [2 * leaves] tournament over next_at
    device: np.ndarray  # DEVICE [devices]
    step: np.ndarray  # ENTRY heap
    link_free: np.ndarray  # [ranks, ranks] until when a paced link is taken
    block: np.ndarray  # [blocks] what had gone through the memory when it was last begun to be read
    span: np.ndarray  # SPAN [items]
    served: np.ndarray  # [flows, BINS] work
    energy: np.ndarray  # [devices, BINS] nJ
    clocked: np.ndarray  # [devices, BINS] share * ns
    moved: np.ndarray  # [devices, BINS] bytes


def compiled(function: Callable[..., Any], **more: bool) -> Callable[..., Any]:
    # Nothing is allocated in here. Without numba's reference counts a run takes a third of the time.
    options: dict[str, Any] = {"_nrt": False, **more}
    try:
        return njit(cache=True, **options)(function)
    except RuntimeError:  # neither beside this file nor in the user's cache can anything be written
        return njit(**options)(function)


def inlined(function: Callable[..., Any]) -> Callable[..., Any]:
    """For what each item goes through: a call would pass some 200 values, every array of the state, and a run would
    take twice as long. To inline further functions gains nothing and compiles longer."""
    return compiled(function, forceinline=True)


# numba keeps what it has compiled until this file changes: touch it after a change of that function
clock_share = compiled(power.clock_share)


# ------------------------------------------------------------------------------------------------------------- heaps


@compiled
def _sift_up(heap, n, at, seq, kind, who):
    """Puts an entry into a heap of n entries, ordered by (at, seq)."""
    while n > 0:
        up = (n - 1) >> 1
        above = heap[up]
        if above.at < at or (above.at == at and above.seq < seq):
            break
        entry = heap[n]
        entry.at, entry.seq, entry.kind, entry.who = above.at, above.seq, above.kind, above.who
        n = up
    entry = heap[n]
    entry.at, entry.seq, entry.kind, entry.who = at, seq, kind, who


@compiled
def _drop_first(heap, n):
    """Takes the first entry out of a heap, which then has n entries."""
    last = heap[n]
    at, seq = last.at, last.seq
    hole = 0
    while True:
        low = 2 * hole + 1
        if low >= n:
            break
        if low + 1 < n:
            left, right = heap[low], heap[low + 1]
            if right.at < left.at or (right.at == left.at and right.seq < left.seq):
                low += 1
        below = heap[low]
        if at < below.at or (at == below.at and seq < below.seq):
            break
        entry = heap[hole]
        entry.at, entry.seq, entry.kind, entry.who = below.at, below.seq, below.kind, below.who
        hole = low
    entry = heap[hole]
    entry.at, entry.seq, entry.kind, entry.who = at, seq, last.kind, last.who


@compiled
def _at(s, at, kind, who):
    """Lets a step take effect at a moment."""
    run = s.run[0]
    _sift_up(s.step, run.steps, at, run.sequence, kind, who)
    run.steps += 1
    run.sequence += 1


# ---------------------------------------------------------------------------------------------------- series, meters


@compiled
def _spread(row, begin, end, rate, width):
    """Adds what a constant rate has made between two moments to the bins of a row."""
    place = int(begin / width)
    last = int(end / width)
    while place < last:
        edge = (place + 1) * width
        row[place] += (edge - begin) * rate
        begin = edge
        place += 1
    if end > begin:
        row[place] += (end - begin) * rate


@compiled
def _fold(rows):
    for row in range(rows.shape[0]):
        for place in range(BINS // 2):
            rows[row, place] = rows[row, 2 * place] + rows[row, 2 * place + 1]
        for place in range(BINS // 2, BINS):
            rows[row, place] = 0.0


@compiled
def _power(s, d):
    """Of a device: what its units take at the highest clock; bytes/ns of copies; of builders, at the highest clock."""
    run = s.run[0]
    device = s.device[d]
    busy, own, fetches = 0.0, 0.0, 0.0
    per_rank = (device.flows_end - device.flows) // run.sharing
    for f in range(device.flows, device.flows_end, per_rank):
        flow = s.flow[f]
        progress = flow.rate / flow.limit
        # who waits for its operands takes what a waiting unit does
        busy -= flow.size * (1.0 - progress)
        own += flow.rate * flow.fetches
        fetches += flow.fetches * progress
    busy += device.building
    compute = busy * run.unit_w + (device.present - busy) * run.wait_w
    return compute, max(s.resource[d].load - own, 0.0), fetches


@compiled
def _watts(s, d):
    run = s.run[0]
    share = s.device[d].share
    compute, streaming, fetches = _power(s, d)
    on = run.idle_w + s.device[d].present * run.on_w
    return on + compute * share**run.exponent + (streaming + fetches * share) * run.byte_pj * 1e-3


@compiled
def _tick(s, d, t):
    """Lets a device's clock and meter run up to now."""
    device = s.device[d]
    if t > device.since:
        device.ticks += (t - device.since) * device.share
        _spread(s.clocked[d], device.since, t, device.share, s.run[0].width)
        device.moved += (t - device.since) * s.resource[d].load
        _spread(s.moved[d], device.since, t, s.resource[d].load, s.run[0].width)
        if s.run[0].cap_w > 0.0:
            _spread(s.energy[d], device.since, t, _watts(s, d), s.run[0].width)
        device.since = t


# ------------------------------------------------------------------------------------------------- flows and resources


@compiled
def _advance(s, f, t):
    """Lets a flow's work be done up to now."""
    flow = s.flow[f]
    if t > flow.since:
        if flow.size:
            flow.done += (t - flow.since) * flow.rate
            _spread(s.served[f], flow.since, t, flow.rate * flow.size, s.run[0].width)
        flow.since = t


@compiled
def _plan(s, f):
    """Notes when the first member of a flow will leave, at its present rate."""
    flow = s.flow[f]
    at = np.inf
    if flow.size:
        at = flow.since + max(s.member[f, 0].at - flow.done, 0.0) / flow.rate
    s.next_at[f] = at
    node = (s.next_at.size + f) >> 1
    while node:
        left, right = s.first[2 * node], s.first[2 * node + 1]
        s.first[node] = left if s.next_at[left] <= s.next_at[right] else right
        node >>= 1


@compiled
def _allowed(s, f, without):
    """The rate of a flow's member by all that limits it but one resource."""
    flow = s.flow[f]
    rate = flow.limit
    for i in range(flow.uses, flow.uses_end):
        use = s.use[i]
        if use.resource != without:
            level = s.resource[use.resource].level
            if level < rate * use.bytes:
                rate = level / use.bytes
    return rate


@compiled
def _concerns(s, f, change, t):
    """A flow's members together do `change` more work in a ns: loads its resources and marks which to level again."""
    flow = s.flow[f]
    for i in range(flow.uses, flow.uses_end):
        use = s.use[i]
        if use.resource < s.device.size:
            _tick(s, use.resource, t)
        s.resource[use.resource].load += change * use.bytes
        _mark(s, use.resource)


@compiled
def _mark(s, e):
    """Has a resource levelled again, if it has not enough for all."""
    resource = s.resource[e]
    if (resource.level < np.inf or resource.load > resource.capacity * (1 + 2 * SAME)) and not resource.marked:
        resource.marked = 1
        s.dirty[s.run[0].dirty] = e
        s.run[0].dirty += 1


@compiled
def _set_rate(s, f, t):
    """Gives a flow the rate that its resources allow."""
    flow = s.flow[f]
    rate = _allowed(s, f, -1)
    if abs(rate - flow.rate) > SAME * rate:
        _advance(s, f, t)
        change = (rate - flow.rate) * flow.size
        flow.rate = rate
        _concerns(s, f, change, t)
        _plan(s, f)


@compiled
def _level(s, e, t):
    """Levels one resource among its flows."""
    resource = s.resource[e]
    wanted, members = 0.0, 0
    for i in range(resource.users, resource.users_end):
        user = s.user[i]
        size = s.flow[user.flow].size
        if size:
            wanted += size * user.bytes * _allowed(s, user.flow, e)
            members += size
    level = np.inf
    if wanted > resource.capacity * (1 + SAME):
        # who wants less than an equal part gets that; the others share the rest, until nobody else wants less
        level = resource.capacity / members
        while True:
            content, others = 0.0, 0
            for i in range(resource.users, resource.users_end):
                user = s.user[i]
                size = s.flow[user.flow].size
                if size:
                    wants = user.bytes * _allowed(s, user.flow, e)
                    if wants <= level * (1 - SAME):
                        content += size * wants
                    else:
                        others += size
            if others == 0 or others == members:
                break
            members = others
            level = (resource.capacity - content) / others
    if level > resource.level * (1 + SAME) or level < resource.level * (1 - SAME):
        resource.level = level
        for i in range(resource.users, resource.users_end):
            if s.flow[s.user[i].flow].size:
                _set_rate(s, s.user[i].flow, t)


@compiled
def _settle(s, t):
    """Levels resources until none is left that a change concerns."""
    run = s.run[0]
    rounds = 0
    while run.dirty:
        e = s.dirty[0]
        run.dirty -= 1
        for i in range(run.dirty):
            s.dirty[i] = s.dirty[i + 1]
        s.resource[e].marked = 0
        _level(s, e, t)
        rounds += 1
        run.rounds += 1
        if rounds == MOST_ROUNDS:
            run.unsettled += 1
            while run.dirty:
                run.dirty -= 1
                s.resource[s.dirty[run.dirty]].marked = 0


@compiled
def _resize(s, f, w, by, t):
    """A workgroup has joined a flow's heap, or left it."""
    flow = s.flow[f]
    if flow.size == 0:
        flow.rate = _allowed(s, f, -1)
    flow.size += by
    if flow.kind != REDUCER:
        # what it does fetches more or less than what the others do: their mean is what the flow uses
        use = s.use[flow.uses]
        _tick(s, use.resource, t)
        s.resource[use.resource].load -= flow.rate * (flow.size - by) * use.bytes
        flow.fetches = flow.fetches + by * s.workgroup[w].fetches if flow.size else 0.0
        use.bytes = flow.base + flow.fetches / max(flow.size, 1)
        s.user[use.user].bytes = use.bytes
        s.resource[use.resource].load += flow.rate * (flow.size - by) * use.bytes
    _concerns(s, f, by * flow.rate, t)
    if flow.size:
        _set_rate(s, f, t)
    _plan(s, f)
    if s.run[0].dirty:
        _settle(s, t)
    if s.run[0].cap_w > 0.0:
        for i in range(flow.uses, flow.uses_end):
            if s.use[i].resource < s.device.size:
                _set_clock(s, s.use[i].resource, t)


# ------------------------------------------------------------------------------------------------------------ clocks


@compiled
def _set_clock(s, d, t):
    """Moves the clock of a device, in steps, to the highest that its cap allows now."""
    run = s.run[0]
    device = s.device[d]
    if run.cap_w == 0.0:
        return
    share = device.share
    compute, streaming, fetches = _power(s, d)
    budget = run.cap_w - run.idle_w - device.present * run.on_w - streaming * run.byte_pj * 1e-3
    stream = fetches * run.byte_pj * 1e-3
    top = run.busy_share if device.building else 1.0
    if share <= top and compute * share**run.exponent + stream * share <= budget:
        # it fits, and stays if one step more does not
        more = min(share + run.clock_step, top)
        if share == top or compute * more**run.exponent + stream * more > budget:
            return
    allowed = clock_share(budget, compute, run.exponent, stream)
    if allowed >= top:
        allowed = top
    else:
        allowed = max(np.floor(allowed / run.clock_step + 1e-9) * run.clock_step, power.LEAST_SHARE)
    if allowed == share:
        return
    device.share = allowed
    for f in range(device.flows, device.flows_end):
        flow = s.flow[f]
        flow.limit = flow.top * allowed
        if flow.size:
            _set_rate(s, f, t)
    if run.dirty:
        _settle(s, t)


@compiled
def _builds(s, w, yes, t):
    """Whether a workgroup counts among those that multiply: between two tiles it goes on to."""
    workgroup = s.workgroup[w]
    if workgroup.building != yes:
        d = w // (s.run[0].workgroups * s.run[0].sharing)
        _tick(s, d, t)
        workgroup.building = yes
        s.device[d].building += 1 if yes else -1
        _set_clock(s, d, t)


# -------------------------------------------------------------------------------------------- claim, wait, work, signal


@compiled
def _leave(s, w, t):
    _builds(s, w, 0, t)
    d = w // (s.run[0].workgroups * s.run[0].sharing)
    _tick(s, d, t)
    s.device[d].present -= 1
    _set_clock(s, d, t)


@compiled
def _claim(s, w, t):
    """A workgroup with nothing in hand turns to the queues."""
    workgroup = s.workgroup[w]
    policy = s.run[0].policy
    if policy == ASKED or (policy == TWO_WAY and workgroup.home == 1):
        _at(s, t + s.run[0].atomic_ns, HEAD, w)
    else:
        workgroup.queue = 0 if policy == TWO_WAY else workgroup.home
        _at(s, t + s.run[0].atomic_ns, TICKET, w)


@inlined
def _ticket(s, w, t):
    """A ticket of the queue that the workgroup has chosen is taken."""
    rank = w // s.run[0].workgroups
    workgroup = s.workgroup[w]
    q = workgroup.queue
    index = s.ticket[q, rank]
    s.ticket[q, rank] += 1
    if index < s.length[q]:
        _take(s, w, q, index, t)
    elif q == 0 and s.run[0].policy != FIXED:
        workgroup.queue = 1
        if s.run[0].policy == ONE_WAY:
            workgroup.home = 1
        _at(s, t + s.run[0].atomic_ns, TICKET, w)
    else:
        _leave(s, w, t)


@inlined
def _take(s, w, q, index, t):
    """A workgroup has an item: it looks at the counter, if there is one to wait for."""
    workgroup = s.workgroup[w]
    workgroup.item = s.base[q, w // s.run[0].workgroups] + index
    workgroup.queue = q
    if s.item[workgroup.item].wait < 0:
        s.run[0].starter = w
    else:
        _at(s, t + s.run[0].atomic_ns, LOOK, w)


@compiled
def _look(s, w, t):
    workgroup = s.workgroup[w]
    c = s.item[workgroup.item].wait
    counter = s.counter[c]
    if counter.value >= counter.wanted:
        s.run[0].starter = w
        return
    _builds(s, w, 0, t)
    workgroup.polls = t + s.run[0].atomic_ns
    workgroup.after = -1
    if counter.first < 0:
        counter.first = w
    else:
        s.workgroup[counter.last].after = w
    counter.last = w


@inlined
def _start(s, w, t):
    """The wait is over, the work begins."""
    workgroup = s.workgroup[w]
    item = s.item[workgroup.item]
    f = item.flow
    flow = s.flow[f]
    builds = flow.kind == BUILDER
    _tick(s, flow.device, t)
    workgroup.started = t
    workgroup.ticks = s.device[flow.device].ticks
    if builds and (workgroup.queue == 0 or s.run[0].ranks == 1):
        # as in the kernel: where nothing can be waited for the record starts at the claim
        workgroup.started = workgroup.claimed
        workgroup.ticks -= (t - workgroup.claimed) * s.device[flow.device].share
    _builds(s, w, 1 if builds else 0, t)
    if flow.kind != REDUCER:
        workgroup.fetches = _fetched(s, item, flow, t) / item.work
    _advance(s, f, t)
    _sift_up(s.member[f], flow.size, flow.done + item.work, s.run[0].sequence, 0, w)
    s.run[0].sequence += 1
    _resize(s, f, w, 1, t)


@compiled
def _fetched(s, item, flow, t):
    """Bytes that a tile or a copy which begins now moves between the memory and its unit."""
    total = item.writes
    for i in range(2):
        if item.blocks[i] < 0:
            break
        # a copy reads at its source and stores at home
        d = s.use[flow.uses].resource if i == 0 else flow.device
        _tick(s, d, t)
        moved = s.device[d].moved
        total += item.reads[i] * (1.0 - np.exp((s.block[item.blocks[i]] - moved) / s.run[0].cache))
        s.block[item.blocks[i]] = moved
    return total


@inlined
def _worked(s, f, t):
    """The first member of a flow has done its work."""
    run = s.run[0]
    flow = s.flow[f]
    _advance(s, f, t)
    flow.done = s.member[f, 0].at
    w = s.member[f, 0].who
    _drop_first(s.member[f], flow.size - 1)
    _resize(s, f, w, -1, t)
    if flow.kind == BUILDER:
        _finish(s, w, t)
        return
    s.workgroup[w].left = 0
    if run.pace > 0.0:
        s.workgroup[w].left = 1 if flow.kind == MOVER else run.ranks
    _at(s, t + run.end_ns, PACE, w)


@compiled
def _pace(s, w, t):
    """Holds a workgroup that has copied until paced links would have; a reducer's links one after the other."""
    run = s.run[0]
    workgroup = s.workgroup[w]
    item = s.item[workgroup.item]
    rank = w // run.workgroups
    while workgroup.left:
        peer = item.chunk if s.flow[item.flow].kind == MOVER else run.ranks - workgroup.left
        workgroup.left -= 1
        if peer != rank:
            s.link_free[peer, rank] = max(s.link_free[peer, rank], t) + item.work * run.pace
            _at(s, s.link_free[peer, rank], PACE, w)
            return
    _finish(s, w, t)


@compiled
def _finish(s, w, t):
    """The item is done: its record, its signal, the next claim."""
    run = s.run[0]
    workgroup = s.workgroup[w]
    item = s.item[workgroup.item]
    kind = s.flow[item.flow].kind
    rank = w // run.workgroups
    d = s.flow[item.flow].device
    _tick(s, d, t)
    span = s.span[run.spans]
    run.spans += 1
    span.who, span.item = w, workgroup.item
    span.claim, span.start, span.end = workgroup.claimed, workgroup.started, t
    span.ticks = s.device[d].ticks - workgroup.ticks
    workgroup.claimed = t
    takes = run.atomic_ns if item.near else run.signal_ns
    if run.flatten and kind == BUILDER and workgroup.queue == 0 and s.ticket[0, rank] < s.length[0]:
        # the next ticket has been taken already, and the signal goes out beside the next tile
        if item.signal >= 0:
            _at(s, t + takes, SIGNAL, item.signal)
        s.ticket[0, rank] += 1
        _take(s, w, 0, s.ticket[0, rank] - 1, t)
    elif item.signal >= 0:
        _at(s, t + takes, SIGNALLED, w)
    else:
        _claim(s, w, t)


@compiled
def _signal(s, c, t):
    """A counter gets one more; if that completes it, whoever waits for it goes on.

    Each round of the wait is two polls, of the counter and whether the launch has been stopped, and then sleep until
    the counter is written to, or a nap if it has been meanwhile. A look for all threads ends the wait.
    """
    counter = s.counter[c]
    counter.value += 1
    atomic = s.run[0].atomic_ns
    complete = counter.value == counter.wanted
    w = counter.first
    while w >= 0:
        workgroup = s.workgroup[w]
        if t > workgroup.polls + atomic:
            workgroup.polls = t + atomic
        elif t >= workgroup.polls:
            workgroup.polls += s.run[0].nap_ns + 2 * atomic
        if complete:
            _at(s, workgroup.polls + 2 * atomic, GO, w)
        w = workgroup.after
    if complete:
        counter.first = -1


@compiled
def _announce(s, w, t):
    """The first workgroup of a rank tells one rank after the other that this one is in the launch."""
    run = s.run[0]
    workgroup = s.workgroup[w]
    rank = w // run.workgroups
    peer = run.ranks - workgroup.left
    _signal(s, peer * run.counters + rank, t)
    workgroup.left -= 1
    if workgroup.left:
        _at(s, t + (run.atomic_ns if peer + 1 == rank else run.signal_ns), ANNOUNCE, w)
    else:
        workgroup.claimed = t
        _claim(s, w, t)


@compiled
def _two_way(s, kind, w, t):
    """The steps of a consumer's claim: the head of its queue, that item's counter, the ticket if nobody was faster."""
    rank = w // s.run[0].workgroups
    workgroup = s.workgroup[w]
    then = t + s.run[0].atomic_ns
    if kind == HEAD:
        workgroup.seen = s.ticket[1, rank]
        workgroup.queue = 0
        if workgroup.seen >= s.length[1]:
            _at(s, then, TICKET, w)
        else:
            _at(s, then, SWAP if s.item[s.base[1, rank] + workgroup.seen].wait < 0 else READY, w)
    elif kind == READY:
        _at(s, then, SWAP if ready(s, 1, rank, workgroup.seen) else TICKET, w)
    elif s.ticket[1, rank] == workgroup.seen:
        s.ticket[1, rank] += 1
        _take(s, w, 1, workgroup.seen, t)
    else:
        _at(s, then, TICKET, w)


# ---------------------------------------------------------------------------------------------------- what is called


@compiled
def ready(s, q, rank, index):
    """Whether an item of a queue would not have to wait."""
    c = s.item[s.base[q, rank] + index].wait
    return c < 0 or s.counter[c].value >= s.counter[c].wanted


@compiled
def begin(s):
    """The first step of every workgroup."""
    run = s.run[0]
    for w in range(run.workgroups * run.ranks):
        if run.announced and w % run.workgroups == 0:
            s.workgroup[w].left = run.ranks
            _at(s, run.atomic_ns if w == 0 else run.signal_ns, ANNOUNCE, w)
        else:
            _claim(s, w, 0.0)


@compiled
def answer(s, q):
    """What the policy says to the workgroup that asked: a queue to claim from, or -1 to leave."""
    w = s.run[0].asker
    t = s.run[0].now
    if q < 0:
        _leave(s, w, t)
    else:
        rank = w // s.run[0].workgroups
        s.ticket[q, rank] += 1
        _take(s, w, q, s.ticket[q, rank] - 1, t)


def go_on(s):
    """Runs until nothing is left that could happen (DONE), or a policy is to be asked (ASKING)."""
    while True:
        came = _some(s, EVENTS)
        if came != GOING:
            return came


@compiled
def _some(s, events):
    """So many events, if nothing ends them before: DONE and ASKING as above, else GOING."""
    run = s.run[0]
    for _ in range(events):
        if run.starter >= 0:
            w = run.starter
            run.starter = -1
            _start(s, w, run.now)
        f = s.first[1]
        t = s.next_at[f]
        works = True
        if run.steps and s.step[0].at < t:
            t = s.step[0].at
            works = False
        if t == np.inf:
            for d in range(s.device.size):
                _tick(s, d, run.now)
            return DONE
        while t >= run.width * (BINS - 1):
            _fold(s.served)
            _fold(s.energy)
            _fold(s.clocked)
            _fold(s.moved)
            run.width *= 2
        run.now = t
        if works:
            _worked(s, f, t)
            continue
        kind, w = s.step[0].kind, s.step[0].who
        run.steps -= 1
        _drop_first(s.step, run.steps)
        if kind == TICKET:
            _ticket(s, w, t)
        elif kind == LOOK:
            _look(s, w, t)
        elif kind == GO:
            run.starter = w
        elif kind == SIGNALLED:
            _signal(s, s.item[s.workgroup[w].item].signal, t)
            _claim(s, w, t)
        elif kind == SIGNAL:
            _signal(s, w, t)
        elif kind == PACE:
            _pace(s, w, t)
        elif kind == ANNOUNCE:
            _announce(s, w, t)
        elif run.policy == ASKED:
            run.asker = w
            return ASKING
        else:
            _two_way(s, kind, w, t)
    return GOING
