"""Two traces on one axis of time."""

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kosmos.errors import KosmosTraceError
from kosmos.trace.schema import RANGES, numbers

if TYPE_CHECKING:
    from kosmos.trace.trace import Trace

# Clocks that count ns from a moment that all of a machine's traces share
_SHARED = {"globaltimer", "rocprofiler"}


def offset_ns(trace: "Trace", other: "Trace", given: int | None, launch: str | None) -> tuple[int, str]:
    """What to add to the times of `other` to have them in those of `trace`, and how that is known; see Trace.beside."""
    if not hasattr(other, "ranges"):
        raise KosmosTraceError(f"beside: the other must be a Trace, not {other!r:.80}")
    if launch is not None and not isinstance(launch, str):
        raise KosmosTraceError(f"beside: launch must be a text, not {launch!r:.80}")
    if given is not None and launch is not None:
        raise KosmosTraceError("beside: offset_ns and launch exclude each other")
    if given is not None:
        if not isinstance(given, int) or isinstance(given, bool):
            raise KosmosTraceError(f"beside: offset_ns must be a whole number of ns, not {given!r}")
        return given, "offset_ns"
    if launch is not None:
        return _to_launch(trace, other, launch), f"launch={launch!r}"
    clocks = [(of.meta.get("clock") or {}).get("source") for of in (trace, other)]
    here, there = (of.meta.get("epoch") for of in (trace, other))
    if clocks[0] == clocks[1] and clocks[0] in _SHARED and isinstance(here, int) and isinstance(there, int):
        return there - here, f"the clock {clocks[0]}"
    raise KosmosTraceError(
        f"beside: the clocks {clocks[0]!r} and {clocks[1]!r} have no common zero; give offset_ns, or launch, a text in "
        "the name of the range that launched this run"
    )


def _to_launch(trace: "Trace", other: "Trace", launch: str) -> int:
    (claim,) = numbers(trace.spans, "claim_ns")
    if not len(claim):
        raise KosmosTraceError("beside: a trace without spans has no launch to align with")
    named = np.flatnonzero(pc.match_substring(other.ranges["name"], launch).to_numpy())
    if len(named) != 1:
        some = f"; one is {other.ranges['name'][0].as_py()!r}" if len(other.ranges) and not len(named) else ""
        raise KosmosTraceError(f"beside: launch={launch!r} is in the names of {len(named)} ranges, not of one{some}")
    return int(claim.min()) - other.ranges["start_ns"][int(named[0])].as_py()


def joined(ranges: pa.Table, others: pa.Table, offset: int) -> pa.Table:
    """Both tables, the second one `offset` ns later."""
    columns = {name: others[name] for name in RANGES.names}
    for name in ("start_ns", "end_ns"):
        times = [time + offset for time in others[name].to_pylist()]
        if times and not -(2**63) <= min(times) <= max(times) < 2**63:
            raise KosmosTraceError(f"beside: times that are {offset} ns later do not fit int64")
        columns[name] = pa.array(times, pa.int64())
    return pa.concat_tables([ranges, pa.table(columns, schema=RANGES)])
