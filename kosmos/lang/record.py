"""How a workgroup writes down what it did: plain stores into its own slice, no atomics; nothing when TRACE is off.

The layout is that of kosmos.trace.records.
"""

import triton
import triton.language as tl

from kosmos.lang.device import cycles, now, now_after, unit
from kosmos.trace import records

WORDS = tl.constexpr(records.WORDS)
COUNT = tl.constexpr(records.HEADER_COUNT)
UNIT = tl.constexpr(records.HEADER_UNIT)
ENTER = tl.constexpr(records.HEADER_ENTER)
LEAVE = tl.constexpr(records.HEADER_LEAVE)
TAG = tl.constexpr(records.TAG)
CLAIM = tl.constexpr(records.CLAIM)
START = tl.constexpr(records.START)
END = tl.constexpr(records.END)
CYCLES = tl.constexpr(records.CYCLES)
UNIT_SHIFT = tl.constexpr(records.UNIT_SHIFT)
ITEM_SHIFT = tl.constexpr(records.ITEM_SHIFT)


@triton.jit
def stamp(TRACE: tl.constexpr):
    """The time, if anybody is to know it."""
    if TRACE:
        return now()
    else:
        return tl.full((), 0, tl.int64)


@triton.jit
def stamp_cycles(TRACE: tl.constexpr):
    """The compute unit's clock counter, if anybody is to know it."""
    if TRACE:
        return cycles()
    else:
        return tl.full((), 0, tl.int64)


@triton.jit
def open_slice(trace, capacity, TRACE: tl.constexpr):
    """This workgroup's slice of the trace buffer."""
    if TRACE:
        trace += tl.program_id(0).to(tl.int64) * (1 + capacity) * WORDS
        tl.store(trace + ENTER, now())
        tl.store(trace + UNIT, unit().to(tl.int64))
    return trace


@triton.jit
def record(log, count, role, item, claimed, started, cycles_before, TRACE: tl.constexpr):
    """Write record number `count`, ending now, if there is room for it. Returns the time in ticks and the cycles.

    log: (slice, capacity).
    """
    trace, capacity = log
    ended, cycles_after = started, stamp_cycles(TRACE)
    if TRACE:
        ended = now_after(started)
        if count < capacity:
            row = trace + (1 + count).to(tl.int64) * WORDS
            tag = role | (unit().to(tl.int64) << UNIT_SHIFT) | (item.to(tl.int64) << ITEM_SHIFT)
            tl.store(row + TAG, tag)
            tl.store(row + CLAIM, claimed)
            tl.store(row + START, started)
            tl.store(row + END, ended)
            tl.store(row + CYCLES, cycles_after - cycles_before)
    return ended, cycles_after


@triton.jit
def close_slice(log, count, TRACE: tl.constexpr):
    """Leave the number of records, written or not, in the header."""
    trace, _ = log
    if TRACE:
        tl.store(trace + COUNT, count.to(tl.int64))
        tl.store(trace + LEAVE, now())
