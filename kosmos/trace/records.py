"""The record that a workgroup leaves in its slice of the trace buffer: layout, and decoding on the host.

A trace buffer is int64 [ranks, workgroups, 1 + capacity, WORDS]. Row 0 of a slice is its header, the rows after it
are records in the order in which the workgroup finished them. Times are ticks of the device's timer.
"""

WORDS = 5

# header: how many records the workgroup meant to write, where it ran, when it entered and left the kernel
HEADER_COUNT, HEADER_UNIT, HEADER_ENTER, HEADER_LEAVE = 0, 1, 2, 3

# record: a tag, when the workgroup turned to the item, when its wait ended, when it was done, cycles between the
# last two
TAG, CLAIM, START, END, CYCLES = 0, 1, 2, 3, 4

# tag = role | unit << UNIT_SHIFT | item << ITEM_SHIFT; the role is an index into kosmos.trace.ROLES
UNIT_SHIFT, ITEM_SHIFT = 8, 32
