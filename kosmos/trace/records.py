"""The record that a workgroup leaves in its slice of the trace buffer: layout, and decoding on the host.

A trace buffer is int64 [ranks, workgroups, 2 + capacity, WORDS]. Row 0 of a slice is its header, the rows after it
are records in the order in which the workgroup finished them. A workgroup turns to its next item when it is done with
one: a record ends with the claim of the next row, and the row after the last record holds nothing else. Times are ticks
of the device's timer.
"""

from typing import Any

import numpy as np
import pyarrow as pa

from kosmos.errors import KosmosTraceError
from kosmos.trace.schema import ROLES, SPANS, role_array

WORDS = 4

# header: how many records the workgroup meant to write, where it ran, when it entered and left the kernel
HEADER_COUNT, HEADER_UNIT, HEADER_ENTER, HEADER_LEAVE = 0, 1, 2, 3

# record: a tag, when the workgroup turned to the item, when its wait ended, cycles from then until it was done
TAG, CLAIM, START, CYCLES = 0, 1, 2, 3

# tag = role | unit << UNIT_SHIFT | item << ITEM_SHIFT; the role is an index into kosmos.trace.ROLES
UNIT_SHIFT, ITEM_SHIFT = 8, 32

NOTHING = -1
"""The tag of a row that is no record: a ticket was beyond its queue, and the time was wasted."""


def decode(buffer: np.ndarray, tick_ns: int = 1) -> tuple[pa.Table, dict[str, Any]]:
    """The spans table of a trace buffer, and what else it tells.

    `buffer` is int64 [ranks, workgroups, 2 + capacity, WORDS]; `tick_ns` is how many nanoseconds a tick lasts, a
    whole number. The run's epoch is the moment when the first workgroup entered: times are ns from it, exact.
    Spans come rank by rank, workgroup by workgroup, in the order in which they were done; nothing is mended.

    The second value holds `epoch` (ticks), `dropped` (a list of {rank, workgroup, records} for every slice that was
    too small; rows of no record are counted, too, if they are among what is lost), `enter_ns` and `leave_ns`
    ([ranks][workgroups], ns from the epoch, None where nothing ran), ready for a trace's `meta`.

    Raises KosmosTraceError for a buffer of another layout and for a record whose role does not exist.
    """
    if not isinstance(buffer, np.ndarray) or buffer.dtype != np.int64 or buffer.ndim != 4 or buffer.shape[3] != WORDS:
        given = f"{buffer.dtype} {list(buffer.shape)}" if isinstance(buffer, np.ndarray) else type(buffer).__name__
        raise KosmosTraceError(f"a trace buffer is int64 [ranks, workgroups, 2 + capacity, {WORDS}], not {given}")
    if isinstance(tick_ns, bool) or tick_ns != int(tick_ns) or tick_ns < 1:
        raise KosmosTraceError(f"tick_ns must be a whole number of nanoseconds, at least 1, not {tick_ns!r}")
    tick = int(tick_ns)
    capacity = buffer.shape[2] - 2
    if capacity < 0 or not buffer.shape[0] or not buffer.shape[1]:
        raise KosmosTraceError(f"a trace buffer of shape {list(buffer.shape)} has no room for a header and an end")

    header = buffer[:, :, 0]
    count, enter = header[..., HEADER_COUNT], header[..., HEADER_ENTER]
    if count.min() < 0:
        rank, workgroup = np.argwhere(count < 0)[0]
        raise KosmosTraceError(f"the header of rank {rank} workgroup {workgroup} counts {count.min()} records")
    # A workgroup that never ran left its slice as zeros: that is no moment of entry.
    ran: np.ndarray = (header != 0).any(axis=-1)
    epoch = int(enter[ran].min()) if ran.any() else 0

    there = np.arange(capacity) < count[..., None]
    rank, workgroup, row = np.nonzero(there & (buffer[:, :, 1:-1, TAG] != NOTHING))
    records, ends = buffer[rank, workgroup, row + 1], buffer[rank, workgroup, row + 2, CLAIM]
    tag = records[:, TAG]
    role = tag & ((1 << UNIT_SHIFT) - 1)
    if role.size and role.max() >= len(ROLES):
        at = int(role.argmax())
        raise KosmosTraceError(
            f"record {row[at]} of rank {rank[at]} workgroup {workgroup[at]} has role {role[at]}; "
            f"roles are 0 to {len(ROLES) - 1}"
        )
    spans = pa.Table.from_arrays(
        [
            pa.array(rank.astype(np.int32)),
            pa.array(workgroup.astype(np.int32)),
            role_array(role),
            pa.array((tag >> ITEM_SHIFT).astype(np.int32)),
            *(pa.array((ticks - epoch) * tick) for ticks in (records[:, CLAIM], records[:, START], ends)),
            pa.array(records[:, CYCLES]),
            pa.array(((tag & ((1 << ITEM_SHIFT) - 1)) >> UNIT_SHIFT).astype(np.int32)),
        ],
        schema=SPANS,
    )
    lost = np.argwhere(count > capacity)
    extra = {
        "epoch": epoch,
        "dropped": [{"rank": int(r), "workgroup": int(w), "records": int(count[r, w]) - capacity} for r, w in lost],
        "enter_ns": _since(enter, epoch, tick, ran),
        "leave_ns": _since(header[..., HEADER_LEAVE], epoch, tick, ran),
    }
    return spans, extra


def _since(ticks: np.ndarray, epoch: int, tick: int, ran: np.ndarray) -> list[list[int | None]]:
    since = ((ticks - epoch) * tick).astype(object)
    since[~ran] = None
    return since.tolist()
