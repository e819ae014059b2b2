"""How a workgroup writes down what it did: plain stores into its own slice, no atomics; nothing when TRACE is off.

The layout is that of kosmos.trace.records. A *stamp* is a moment as (time, timer_word, cycles): the word was read at
that moment, less than 2 s after the time, and is made a time when a record is written, at the end of the next item, so
that nobody waits for the timer. Nothing here branches: in the flattened loop of a builder ptxas copies the accumulators
around at every branch, which costs more than the stores.
"""

import triton
import triton.language as tl

from kosmos.lang.device import cycles, now, time_of, timer_word, unit
from kosmos.trace import records

WORDS = tl.constexpr(records.WORDS)
COUNT = tl.constexpr(records.HEADER_COUNT)
UNIT = tl.constexpr(records.HEADER_UNIT)
ENTER = tl.constexpr(records.HEADER_ENTER)
LEAVE = tl.constexpr(records.HEADER_LEAVE)
TAG = tl.constexpr(records.TAG)
CLAIM = tl.constexpr(records.CLAIM)
START = tl.constexpr(records.START)
CYCLES = tl.constexpr(records.CYCLES)
NOTHING = tl.constexpr(records.NOTHING)
UNIT_SHIFT = tl.constexpr(records.UNIT_SHIFT)
ITEM_SHIFT = tl.constexpr(records.ITEM_SHIFT)


@triton.jit
def stamp(TRACE: tl.constexpr):
    """A stamp of now, if anybody is to know it."""
    if TRACE:
        # the time takes long to read; the word and the cycles are of one moment, as at the end of a record
        time = now()
        clock = cycles()
        return time, timer_word(), clock
    else:
        nothing = tl.full((), 0, tl.int64)
        return nothing, nothing, nothing


@triton.jit
def open_slice(trace, capacity, TRACE: tl.constexpr):
    """This workgroup's slice of the trace buffer, and how many records it has room for: a log."""
    if TRACE:
        trace += tl.program_id(0).to(tl.int64) * (2 + capacity) * WORDS
        tl.store(trace + ENTER, now())
        tl.store(trace + UNIT, unit().to(tl.int64))
    return trace, capacity


@triton.jit
def record(log, count, role, item, claimed, started, TRACE: tl.constexpr, real=True):
    """Write record number `count`, ending now, if there is room for it. Returns the next number and the stamp of now,
    which is when the workgroup turns to its next item.

    claimed, started: stamps. real: False if there was no item after all: the time shows as a gap.
    """
    trace, capacity = log
    ended = started
    if TRACE:
        claimed_at, claimed_word, _ = claimed
        started_at, started_word, cycles_before = started
        start = time_of(started_word, started_at)
        cycles_after = cycles()
        ended = (start, timer_word(), cycles_after)
        row = trace + (1 + count).to(tl.int64) * WORDS
        tag = role | (unit().to(tl.int64) << UNIT_SHIFT) | (item.to(tl.int64) << ITEM_SHIFT)
        fits = count < capacity
        tl.store(row + TAG, tl.where(real, tag, NOTHING), mask=fits)
        # of the first record that does not fit, too: it is the end of the last one that does
        tl.store(row + CLAIM, time_of(claimed_word, claimed_at), mask=count <= capacity)
        tl.store(row + START, start, mask=fits)
        tl.store(row + CYCLES, cycles_after - cycles_before, mask=fits)
    return count + 1, ended


@triton.jit
def close_slice(log, count, claimed, TRACE: tl.constexpr):
    """Leave the end of the last record, and the number of records, written or not, in the header."""
    trace, capacity = log
    if TRACE:
        claimed_at, claimed_word, _ = claimed
        row = trace + (1 + count).to(tl.int64) * WORDS
        tl.store(row + CLAIM, time_of(claimed_word, claimed_at), mask=count <= capacity)
        tl.store(trace + COUNT, count.to(tl.int64))
        tl.store(trace + LEAVE, now())
