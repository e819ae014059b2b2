"""What a kernel may say: claim, wait, signal, now, record, gemm_tile, copy_tile, reduce_tile.

One source for CUDA, ROCm and the emulator. Only `device` knows which of them it is on.
"""

from kosmos.lang.device import cycles, fence_async, hold, nap, now, pause, poll, unit
from kosmos.lang.record import close_slice, open_slice, record, stamp
from kosmos.lang.sync import (
    BUILDER,
    MOVER,
    REDUCER,
    announce,
    claim,
    claim_two_way,
    counter_of,
    counter_on,
    enter,
    leave,
    on_peer,
    pace,
    signal,
    wait,
)
from kosmos.lang.tiles import WIDE, copy_tile, gemm_tile, reduce_tile, store_tile

__all__ = [
    "BUILDER",
    "MOVER",
    "REDUCER",
    "WIDE",
    "announce",
    "claim",
    "claim_two_way",
    "close_slice",
    "copy_tile",
    "counter_of",
    "counter_on",
    "cycles",
    "enter",
    "fence_async",
    "gemm_tile",
    "hold",
    "leave",
    "nap",
    "now",
    "on_peer",
    "open_slice",
    "pace",
    "pause",
    "poll",
    "record",
    "reduce_tile",
    "signal",
    "stamp",
    "store_tile",
    "unit",
    "wait",
]
