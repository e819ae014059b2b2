"""The trace of a run: its tables, its file, what it tells. Times are int64 ns from the run's epoch."""

from kosmos.trace.metrics import Summary
from kosmos.trace.records import decode
from kosmos.trace.schema import COUNTERS, QUEUE, RANGES, ROLES, SPANS
from kosmos.trace.trace import Trace

__all__ = ["COUNTERS", "QUEUE", "RANGES", "ROLES", "SPANS", "Summary", "Trace", "decode"]
