"""Reads the assembly of a kernel and proves that nothing is signalled before it is there.

A release atomic orders the stores of the one thread that issues it. What the other threads of the workgroup have
stored is there only if, after the last of those stores,

    each wave has drained its own stores        ROCm: s_waitcnt vmcnt(0)    CUDA: cp.async.bulk.wait_group
    all waves have met                          ROCm: s_barrier             CUDA: bar.sync 0
    the L2 cache has been written back          ROCm: buffer_wbl2, s_waitcnt vmcnt(0)

CUDA's ordinary stores need no draining, its bulk stores (TMA) do; a kernel that signals what it stored before may leave
out the very last of them, and says so by wait_group 1, which this check believes. The last line is the release's own
part, and CUDA's releases are whole. But LLVM drops the wait after buffer_wbl2 where it takes vmcnt to be 0 already
(llvm/llvm-project#178316; Triton 3.6 and 3.7 have that LLVM): the signal can then be seen before the data.

This is demanded of every release, not only of those that hand on a tile: they look alike in assembly, where source
lines are merged, and one rule without exceptions cannot be met by accident. Only compare-and-swaps are left out,
which Triton makes a release on ROCm whatever is asked for. All paths through the kernel are followed, so a store that
can reach a release by one branch, or by the next turn of a loop, counts.
"""

import re
from collections import defaultdict
from typing import NamedTuple


class Event(NamedTuple):
    """An instruction that matters here. kind: store, stored (one that need not be drained), bulk (a store that a spare
    may leave out), drain, spare (a drain of all but the last bulk store), barrier, writeback, written (all of that),
    release, jump or end.

    scope: of a writeback or a release, "agent" (this GPU) or "system". target: the label of a jump. maybe: the jump
    may not be taken.
    """

    kind: str
    line: int
    scope: str = ""
    target: str = ""
    maybe: bool = False


class Program(NamedTuple):
    """The events of a kernel in the order of its text, and where its labels point to: indices of events."""

    events: list[Event]
    labels: dict[str, list[int]]


# How far a store has got. A wave knows this of its own stores, and of its whole workgroup's. The bulk store that is the
# last one so far is apart: issued, there, or left out on purpose.
ISSUED, LEFT, WRITING, THERE = range(4)
SPARED = LEFT
State = tuple[int, int, int]


def releases(assembly: str, backend: str) -> int:
    """How many release atomics the assembly (PTX for "cuda", GCN for "hip") has."""
    return sum(event.kind == "release" for event in _read(assembly, backend).events)


def unsafe_releases(assembly: str, backend: str) -> list[str]:
    """A sentence for every release atomic that some path reaches before all stores are there."""
    program = _read(assembly, backend)
    lines = assembly.splitlines()
    found = []
    for scope in ("agent", "system"):
        states = _states(program, scope)
        for index, event in enumerate(program.events):
            if event.kind == "release" and event.scope == scope and _unsafe(states[index]):
                text = " ".join(lines[event.line - 1].split())
                found.append(f"line {event.line}, {text}: {_missing(states[index], backend)}")
    return found


def _unsafe(state: State | None) -> bool:
    return state is not None and (state[1] < THERE or state[2] == ISSUED)


def _missing(state: State, backend: str) -> str:
    own, all_waves, last = state
    if backend == "cuda":
        bulk = "no cp.async.bulk.wait_group after the last bulk store"
        return bulk if ISSUED in (own, last) else "no bar.sync after the last store"
    if all_waves == ISSUED:
        return (
            "no s_waitcnt vmcnt(0) after the last store, before s_barrier"
            if own == ISSUED
            else "no s_barrier after the last store has drained"
        )
    return "no s_waitcnt vmcnt(0) after buffer_wbl2" if all_waves == WRITING else "no buffer_wbl2 after s_barrier"


def _states(program: Program, scope: str) -> list[State | None]:
    """Before each event, the worst state in which any path from the entry arrives there; None if none does."""
    events = program.events
    states: list[State | None] = [None] * (len(events) + 1)
    states[0] = (THERE, THERE, THERE)
    todo = [0]
    while todo:
        index = todo.pop()
        if index == len(events):
            continue
        event = events[index]
        state = _after(event, states[index], scope)
        following = [] if event.kind == "end" or (event.kind == "jump" and not event.maybe) else [index + 1]
        if event.kind == "jump":
            # a label inside a block of inline assembly may occur several times: the nearest is meant
            following.append(min(program.labels[event.target], key=lambda at: abs(at - index)))
        for after in following:
            before = states[after]
            worst = state if before is None else tuple(map(min, before, state))
            if worst != before:
                states[after] = worst
                todo.append(after)
    return states


def _after(event: Event, state: State, scope: str) -> State:
    own, all_waves, last = state
    if event.kind in ("bulk", "drain") and last != THERE:
        # now it is one of those before
        own, all_waves, last = ISSUED, ISSUED, THERE
    if event.kind == "bulk":
        return own, all_waves, ISSUED
    if event.kind == "store":
        return ISSUED, ISSUED, last
    if event.kind == "stored":
        return min(own, LEFT), min(all_waves, LEFT), last
    if event.kind == "written":
        return THERE if own == WRITING else own, THERE if all_waves == WRITING else all_waves, last
    if event.kind == "drain":
        return {ISSUED: LEFT, WRITING: THERE}.get(own, own), THERE if all_waves == WRITING else all_waves, last
    if event.kind == "spare":
        return LEFT if own == ISSUED else own, all_waves, SPARED if last == ISSUED else last
    if event.kind == "release" and last == SPARED:
        # left out once: the next release is of something else
        return own, all_waves, ISSUED
    if event.kind == "barrier":
        return own, max(all_waves, LEFT if own == WRITING else own), last
    if event.kind == "writeback" and event.scope in (scope, "system"):
        # what has not left yet is not in the cache that is written back
        own, all_waves = (at if at == ISSUED else max(at, WRITING) for at in (own, all_waves))
    return own, all_waves, last


def _read(assembly: str, backend: str) -> Program:
    instructions = _ptx if backend == "cuda" else _gcn
    events: list[Event] = []
    labels = defaultdict(list)
    for found in instructions(assembly):
        if isinstance(found, str):
            labels[found].append(len(events))
        else:
            events.append(found)
    return Program(events, labels)


def _ptx(assembly: str):
    """Labels and events of PTX."""
    committed = True
    for number, line in enumerate(assembly.splitlines(), 1):
        for text in line.partition("//")[0].split(";"):
            text = text.strip().lstrip("{ \t")
            label = re.match(r"([$\w]+):", text)
            if label:
                yield label[1]
                text = text[label.end() :].strip()
            predicate, text = re.match(r"(@!?%?\w+\s+)?(.*)", text).groups()
            if re.match(r"bra\b", text):
                yield Event("jump", number, target=text.split()[-1], maybe=bool(predicate))
            elif re.match(r"(ret|exit|trap)\b", text) and not predicate:
                yield Event("end", number)
            elif re.match(r"(call|brx)\b", text):
                raise ValueError(f"line {number}: {text} leads where this check does not follow")
            elif re.match(r"(atom|red)\.\S*(release|acq_rel)", text):
                yield Event("release", number, "agent" if ".gpu." in text else "system")
            elif re.match(r"cp\.async\.bulk\S*\.global\.shared", text):
                if not committed:
                    raise ValueError(f"line {number}: a second bulk store in one group, which this check takes for one")
                committed = False
                yield Event("bulk", number)
            elif re.match(r"cp\.async\.bulk\.commit_group", text):
                committed = True
            elif re.match(r"cp\.async\.bulk\.wait_group\s+[01]$", text) and not predicate:
                if not committed:
                    raise ValueError(f"line {number}: {text} does not wait for a bulk store before it is committed")
                yield Event("drain" if text.endswith("0") else "spare", number)
            elif re.match(r"st\b(?!\.(shared|local|param))", text):
                yield Event("stored", number)
            elif re.match(r"bar(rier)?(\.cta)?\.sync(\.aligned)?\s+0$", text) and not predicate:
                # the barrier and a release after it order the stores of all threads: nothing else is needed
                yield from (Event("barrier", number), Event("writeback", number, "system"), Event("written", number))


def _gcn(assembly: str):
    """Labels and events of GCN assembly."""
    writeback = None
    for number, line in enumerate(assembly.splitlines(), 1):
        text = line.partition(";")[0].strip()
        label = re.match(r"([.$\w]+):$", text)
        if label and label[1].startswith(".Lfunc_end"):
            return
        if label:
            writeback = None
            yield label[1]
            continue
        name = text.partition(" ")[0]
        if name == "s_branch" or name.startswith("s_cbranch"):
            yield Event("jump", number, target=text.split()[1], maybe=name != "s_branch")
        elif name == "s_endpgm":
            yield Event("end", number)
        elif name in ("s_setpc_b64", "s_swappc_b64", "s_call_b64"):
            raise ValueError(f"line {number}: {text} leads where this check does not follow")
        elif name == "s_barrier":
            yield Event("barrier", number)
        elif name == "s_waitcnt" and "vmcnt(0)" in text:
            yield Event("drain", number)
        elif name == "buffer_wbl2":
            writeback = "system" if "sc0 sc1" in text else "agent"
            yield Event("writeback", number, writeback)
        elif re.match(r"(global|flat|buffer)_store", name):
            yield Event("store", number)
        elif re.match(r"(global|flat|buffer)_atomic", name):
            # LLVM makes an atomic a release by writing back the cache right before it
            if writeback and "cmpswap" not in name:
                yield Event("release", number, writeback)
            writeback = None
