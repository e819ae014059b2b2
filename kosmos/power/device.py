"""Kernels that ask the device for nothing but its clocks."""

import triton
import triton.language as tl

from kosmos.lang import cycles, now


@triton.jit
def read_timer(out):
    """Write the device's timer in ticks to out[0], int64."""
    tl.store(out, now())


@triton.jit
def spin(log, ticks):
    """Let so many ticks of the timer pass in every workgroup, with nothing to compute, and write how many did, and how
    many cycles: log int64 [workgroups, 2]."""
    log += 2 * tl.program_id(0)
    begin, clocked = now(), cycles()
    ended = begin
    while ended - begin < ticks:
        ended = now()
    tl.store(log, ended - begin)
    tl.store(log + 1, cycles() - clocked)
