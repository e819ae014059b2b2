"""The instructions that Triton has no word for, one source for CUDA, ROCm and the emulator.

Each is a builtin that asks its own builder which back end it is compiled for (tl.target_info would ask the active
driver, which is wrong when cross-compiling). Every thread of a workgroup gets its own answer: never choose a role by
one of these, only by an elected atomic.
"""

import functools

import triton
import triton.language as tl
from triton.language import core

emulated_semantic = None
"""Set by the emulator while it runs a kernel; calls then arrive without a semantic of their own."""


def _builtin(function):
    @functools.wraps(function)
    def call(*args, _semantic=None):
        return function(*args, _semantic=emulated_semantic if _semantic is None else _semantic)

    call.__triton_builtin__ = True
    return call


def _asm(text, constraints, args, dtype, semantic):
    return core.inline_asm_elementwise(text, constraints, args, dtype=dtype, is_pure=False, pack=1, _semantic=semantic)


def _by_backend(semantic, cuda, hip, emulated, dtype, args=(), emulated_args=()):
    """cuda, hip: (assembly, constraints); emulated: a method of the emulator's builder."""
    builder = semantic.builder
    backend = builder.options.backend_name
    if backend == "interpreter":
        return core.tensor(getattr(builder, emulated)(*(arg.handle for arg in args + emulated_args)), dtype)
    return _asm(*(cuda if backend == "cuda" else hip), list(args), dtype, semantic)


@_builtin
def now(_semantic=None):
    """The device's timer, int64 ticks: 1 ns on CUDA and in the emulator, 10 ns (100 MHz) on ROCm."""
    # on ROCm not tl.extra.hip.memrealtime: on gfx9 it waits on vmcnt, but a scalar read completes on lgkmcnt
    return _by_backend(
        _semantic,
        ("mov.u64 $0, %globaltimer;", "=l"),
        ("s_memrealtime $0\ns_waitcnt lgkmcnt(0)", "=s"),
        "kosmos_now",
        core.int64,
    )


@_builtin
def timer_word(_semantic=None):
    """What the timer shows, for `time_of`: the time, but on CUDA the low 32 bits of it, int32, and only in the thread
    that stores scalars.

    CUDA's timer is slow to read, and 64 bits take several reads. Nobody waits for one until it is used.
    """
    if _semantic.builder.options.backend_name != "cuda":
        return now(_semantic=_semantic)
    text = (
        "{\n.reg .pred first;\nmov.u32 $0, %tid.x;\nsetp.eq.u32 first, $0, 0;\n@first mov.u32 $0, %globaltimer_lo;\n}"
    )
    return _asm(text, "=r", [], core.int32, _semantic)


@triton.jit
def time_of(word, before):
    """The time of a timer_word that was read less than 2 s from the time `before`, usually after it."""
    if word.dtype == tl.int32:
        return before + (word - before.to(tl.int32)).to(tl.int64)
    else:
        return word


@_builtin
def cycles(_semantic=None):
    """The clock counter of the compute unit, int64: cycles over time is the clock that a workgroup ran at."""
    return _by_backend(
        _semantic,
        ("mov.u64 $0, %clock64;", "=l"),
        ("s_memtime $0\ns_waitcnt lgkmcnt(0)", "=s"),
        "kosmos_cycles",
        core.int64,
    )


@_builtin
def _die(_semantic=None):
    return _by_backend(
        _semantic,
        ("mov.u32 $0, 0;", "=r"),
        ("s_getreg_b32 $0, hwreg(HW_REG_XCC_ID, 0, 4)", "=s"),
        "kosmos_die",
        core.int32,
    )


@_builtin
def _core(_semantic=None):
    return _by_backend(
        _semantic,
        ("mov.u32 $0, %smid;", "=r"),
        ("s_getreg_b32 $0, hwreg(HW_REG_HW_ID, 8, 8)", "=s"),
        "kosmos_core",
        core.int32,
    )


@triton.jit
def unit():
    """Where this workgroup runs: 256 * die + SM (CUDA) or shader engine and CU (ROCm)."""
    return _die() * 256 + _core()


@_builtin
def poll(pointer, scope="sys", _semantic=None):
    """Read an int32 that another workgroup or GPU may be writing; later reads see what was written before it.

    scope: "gpu" if all who write it are on this GPU.
    """
    # tl.load has no acquire, and volatile or .cv loads do not mean the same on every target
    return _by_backend(
        _semantic,
        (f"ld.acquire.{core._unwrap_if_constexpr(scope)}.global.b32 $0, [$1];", "=r,l"),
        ("global_load_dword $0, $1, off sc0 sc1\ns_waitcnt vmcnt(0)\nbuffer_inv sc0 sc1", "=&v,v"),
        "kosmos_poll",
        core.int32,
        (pointer,),
    )


@_builtin
def nap(_semantic=None):
    """Let some 40 ns pass without using the compute unit."""
    return _by_backend(_semantic, *_NAP, "kosmos_nap", core.int32)


@_builtin
def pause(pointer, _semantic=None):
    """Back off between two polls of `pointer`; the emulator parks the workgroup until it is written."""
    return _by_backend(_semantic, *_NAP, "kosmos_pause", core.int32, emulated_args=(pointer,))


_NAP = ("nanosleep.u32 40;\nmov.u32 $0, 0;", "=r"), ("s_sleep 1\ns_mov_b32 $0, 0", "=s")


@_builtin
def gather_stores(spared=0, _semantic=None):
    """Wait until all threads of the workgroup have come here and, on ROCm, until all that they stored is in memory.

    What has to stand before every release: of itself it orders the stores of one thread. spared: so many of the last
    stores through a tensor descriptor are not waited for.
    """
    # CUDA: not tl.debug_barrier, since Triton does not pipeline a loop that has one. What the tensor memory accelerator
    # stores is waited for by the thread that gave the order.
    # ROCm: each wave waits for its own stores, all meet, and the cache is written back. The release does that again,
    # but LLVM may drop its wait for it (llvm-project#178316).
    accelerated = _semantic.builder.options.backend_name == "cuda" and int(_semantic.builder.options.arch[2:]) >= 90
    drain = f"cp.async.bulk.wait_group {core._unwrap_if_constexpr(spared)};\n" if accelerated else ""
    return _by_backend(
        _semantic,
        (f"{drain}bar.sync 0;\nmov.u32 $0, 0;", "=r"),
        (
            "s_waitcnt vmcnt(0) lgkmcnt(0)\ns_barrier\nbuffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0)\ns_mov_b32 $0, 0",
            "=s",
        ),
        "kosmos_gather_stores",
        core.int32,
    )


@_builtin
def hold(value, _semantic=None):
    """An int64 as it is, known from here on only. In a flattened loop Triton hands a value that the beginning of a turn
    knows to the end of that same turn, even if the end was to have the last turn's."""
    return _by_backend(
        _semantic,
        ("mov.b64 $0, $1;", "=l,l"),
        ("v_mov_b64 $0, $1", "=v,v"),
        "kosmos_hold",
        core.int64,
        (value,),
    )


@_builtin
def fence_async(_semantic=None):
    """Let the tensor memory accelerator (CUDA) see what ordinary loads and stores see by now; elsewhere nothing."""
    return _by_backend(
        _semantic,
        ("fence.proxy.async;\nmov.u32 $0, 0;", "=r"),
        ("s_mov_b32 $0, 0", "=s"),
        "kosmos_fence_async",
        core.int32,
    )
