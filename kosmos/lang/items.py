"""The words of a queue row, by the names of kosmos.schedule.queues.FIELDS."""

import triton.language as tl

from kosmos.schedule.queues import FIELDS

ITEM_WORDS = tl.constexpr(len(FIELDS))
INDEX = tl.constexpr(FIELDS.index("index"))
CHUNK = tl.constexpr(FIELDS.index("chunk"))
COLUMN = tl.constexpr(FIELDS.index("column"))
ROW = tl.constexpr(FIELDS.index("row"))
ROWS = tl.constexpr(FIELDS.index("rows"))
COL = tl.constexpr(FIELDS.index("col"))
COLS = tl.constexpr(FIELDS.index("cols"))
WAIT = tl.constexpr(FIELDS.index("wait"))
WAIT_COUNT = tl.constexpr(FIELDS.index("wait_count"))
SIGNAL_RANK = tl.constexpr(FIELDS.index("signal_rank"))
SIGNAL = tl.constexpr(FIELDS.index("signal"))
