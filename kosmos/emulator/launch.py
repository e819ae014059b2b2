"""Launching a kernel on the emulator."""

import inspect
import threading
from functools import partial

from kosmos.emulator.clock import Clock, Workgroup
from kosmos.emulator.interpreter import interpreting, kernel_arguments, python_function, self_test
from kosmos.emulator.macros import MACROS
from kosmos.lang import sync
from kosmos.machine import Machine
from kosmos.trace.schema import ROLES

# Triton's language module is patched while a kernel is interpreted: one launch at a time
_one_at_a_time = threading.Lock()


def launch(kernel, arguments: dict, *, ranks: int, workgroups: int, machine: Machine, symmetric=(), macro=True) -> int:
    """Run `kernel` on ranks * workgroups programs and return its virtual makespan in ns.

    arguments: by name, CPU tensors and numbers. symmetric: stacked tensors [ranks, ...] whose slices belong to the
    ranks. macro: run the tile helpers as numpy operations of the same bits and charges, about twice as fast.
    Raises KosmosDeadlock when workgroups wait for ever.
    """
    self_test()
    owners = []
    for tensor in symmetric:
        size = tensor[0].numel() * tensor.element_size()
        owners += [(tensor[rank].data_ptr(), tensor[rank].data_ptr() + size, rank) for rank in range(ranks)]
    programs = [
        Workgroup(rank, index, (rank * workgroups + index, 0, 0))
        for rank in range(ranks)
        for index in range(workgroups)
    ]
    calls = {sync.wait.fn: _named_wait, **(MACROS if macro else {})}
    clock = Clock(machine, (len(programs), 1, 1), owners, calls)
    with _one_at_a_time, interpreting(clock):
        clock.run(programs, partial(python_function(kernel), **kernel_arguments(kernel, arguments)))
    return int(max(workgroup.ns for workgroup in programs))


_wait_signature = inspect.signature(sync.wait.fn)


def _named_wait(clock: Clock, run, *args, **kwargs):
    """A wait that can say, if it never ends, who waited for what."""
    given = _wait_signature.bind(*args, **kwargs).arguments
    role, item, counter, count = (int(given[name]) for name in ("role", "item", "counter", "count"))
    clock.current.waits_for = f"{ROLES[role]} item {item} needs {count} signals of counter {counter}"
    run(*args, **kwargs)
    clock.current.waits_for = ""
