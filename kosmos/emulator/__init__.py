"""Runs the same Triton kernels on the CPU: every workgroup a coroutine with a clock of its own, in virtual time.

The numbers are computed, the times are a machine model's. The earliest workgroup always runs next, so the same launch
gives the same results and the same times, byte for byte.
"""

from kosmos.emulator.interpreter import self_test
from kosmos.emulator.launch import launch

__all__ = ["launch", "self_test"]
