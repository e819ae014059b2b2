"""Compiles every kernel for every GPU that KOSMOS is for, GPU here or not, and reads what came out.

A kernel that spills is slow without a word; one that wants more shared memory than its GPU has does not start; one that
signals before its stores have left gives wrong results once in a while. None of the three needs the GPU to be seen.
"""

import contextlib
import importlib
import itertools
import os
import re
import signal
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Any, NamedTuple

from kosmos.doctor.releases import releases, unsafe_releases
from kosmos.errors import KosmosEnvironmentError
from kosmos.schedule import QUEUES


class Target(NamedTuple):
    """A GPU to compile for. shared_bytes: what one workgroup can have of shared memory (LDS)."""

    backend: str
    arch: int | str
    warp_size: int
    shared_bytes: int


TARGETS = {
    "gfx950": Target("hip", "gfx950", 64, 160 * 1024),  # MI350X, MI355X
    "gfx942": Target("hip", "gfx942", 64, 64 * 1024),  # MI300X
    "sm_90": Target("cuda", 90, 32, 227 * 1024),  # H100, H200
    "sm_100": Target("cuda", 100, 32, 227 * 1024),  # B200
}

DTYPES = {"bf16": 2, "fp16": 2, "fp32": 4}
"""Bytes of an element."""

SHAPES = ("even", "ragged")
"""Even: m, n and k divide by the blocks. Ragged: by nothing, so that no access is wide and nothing is read by TMA."""

MODES = {
    "one-way": {"RANKS": 8, "SCOPE": "gpu", "TWO_WAY": False, "PACED": False, "TRACE": False},
    "one-way traced": {"RANKS": 8, "SCOPE": "sys", "TWO_WAY": False, "PACED": False, "TRACE": True},
    "two-way paced traced": {"RANKS": 8, "SCOPE": "gpu", "TWO_WAY": True, "PACED": True, "TRACE": True},
    "one rank traced": {"RANKS": 1, "SCOPE": "gpu", "TWO_WAY": False, "PACED": False, "TRACE": True},
}
"""What flags leave of a kernel: the least, with records, everything, and where nobody is waited for."""

TENSOR_MEMORY = 512
"""Columns of the tensor memory of sm_100."""


class Variant(NamedTuple):
    """One way to compile one kernel: the op's name, and keys of TARGETS, DTYPES, SHAPES and MODES."""

    op: str
    target: str
    dtype: str
    shape: str
    mode: str

    def __str__(self) -> str:
        return f"{self.op} for {self.target}, {self.dtype}, {self.shape} shape, {self.mode}"


def variants() -> list[Variant]:
    """All that differ: fp16 is bf16 with another name in the instructions, and one rank differs in its loops alone."""
    everything = itertools.starmap(Variant, itertools.product(QUEUES, TARGETS, DTYPES, SHAPES, MODES))
    once = {"fp16": ("even", "two-way paced traced"), "one rank traced": ("bf16", "even")}
    return [
        variant
        for variant in everything
        if all(key not in variant or {*among} <= {*variant} for key, among in once.items())
    ]


class Compiled(NamedTuple):
    """What came out. `problems`: a sentence each, none if all is well; the numbers are None if nothing came out.

    registers: a thread's vector registers. shared_bytes: a workgroup's. spilled_bytes: a thread's memory (stack) for
    what found no register. scalars: registers that a wave keeps in lanes of vector registers, which costs no memory
    (ROCm). releases: release atomics in the assembly.
    """

    variant: Variant
    problems: tuple[str, ...]
    registers: int | None = None
    shared_bytes: int | None = None
    spilled_bytes: int | None = None
    scalars: int | None = None
    releases: int | None = None


def compile_all(chosen: list[Variant]) -> Iterator[Compiled]:
    """Compile variants, as many at a time as there are cores, with an empty cache; they come in the order given.

    If the compiler takes its process down, the variant that is next is blamed and those after it do not come.
    """
    with tempfile.TemporaryDirectory(prefix="kosmos-compile-") as cache:
        pool = ProcessPoolExecutor(len(os.sched_getaffinity(0)), get_context("spawn"), _prepare, (cache,))
        done = 0
        try:
            # Ctrl-C reaches the whole group of processes: this one alone answers
            with _uninterrupted():
                futures = [pool.submit(measure, variant) for variant in chosen]
            for future in futures:
                yield future.result()
                done += 1
        except BrokenProcessPool:
            yield Compiled(chosen[done], ("the compiler crashed on this variant or one of the next",))
        finally:
            pool.shutdown(cancel_futures=True)


@contextlib.contextmanager
def _uninterrupted():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _prepare(cache: str) -> None:
    os.environ["TRITON_CACHE_DIR"] = cache
    os.environ.pop("TRITON_INTERPRET", None)
    warnings.simplefilter("ignore")


def triton_version() -> str:
    """Raises KosmosEnvironmentError where there is none."""
    try:
        import triton
    except ImportError as error:
        raise KosmosEnvironmentError(f"kernels are compiled with Triton, which is not usable here: {error}") from None
    return triton.__version__


def measure(variant: Variant) -> Compiled:
    """Compile one variant and look at it. What goes wrong on the way is a problem of the variant."""
    doing = "compiled"
    try:
        kernel = compile_variant(variant)
        doing = "examined"
        return _examined(variant, kernel)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip().splitlines()
        return Compiled(variant, (f"cannot be {doing}: {' '.join(reason[:3])}",))


def _examined(variant: Variant, kernel) -> Compiled:
    target = TARGETS[variant.target]
    numbers = _amd_resources(kernel) if target.backend == "hip" else _nvidia_resources(kernel)
    shared_bytes = kernel.metadata.shared
    problems = []
    spilled_registers = numbers.pop("spilled_registers", 0)
    if spilled_registers or numbers["spilled_bytes"]:
        problems.append(f"spills registers to memory, {numbers['spilled_bytes']} bytes a thread")
    if shared_bytes > target.shared_bytes:
        problems.append(f"needs {shared_bytes:,} bytes of shared memory; {variant.target} has {target.shared_bytes:,}")
    columns = getattr(kernel.metadata, "tmem_size", None) or 0
    if columns > TENSOR_MEMORY:
        problems.append(f"needs {columns} columns of tensor memory; {variant.target} has {TENSOR_MEMORY}")
    assembly = kernel.asm["amdgcn" if target.backend == "hip" else "ptx"]
    found, asked = releases(assembly, target.backend), asked_releases(kernel)
    if found < max(asked, 1):
        problems.append(f"{asked} release atomics were asked for, {found} are recognized in the assembly")
    unsafe = unsafe_releases(assembly, target.backend)
    if unsafe:
        problems.append(f"{len(unsafe)} of {found} releases can be seen before what they announce, e.g. {unsafe[0]}")
    return Compiled(variant, tuple(problems), shared_bytes=shared_bytes, releases=found, **numbers)


def compile_variant(variant: Variant) -> Any:
    """Triton's CompiledKernel of a variant, compiled as its launch would."""
    from kosmos.ops.launch import blocks_for

    kernel = getattr(importlib.import_module(f"kosmos.ops.{variant.op}"), f"{variant.op}_kernel")
    target = TARGETS[variant.target]
    even = variant.shape == "even"
    capability = target.arch if target.backend == "cuda" else 0
    blocks = blocks_for(target.backend, DTYPES[variant.dtype], MODES[variant.mode]["RANKS"], capability, even)
    constants = {
        "WORKGROUPS": 32,
        "SWITCH": True,
        **MODES[variant.mode],
        "TMA_STORE": blocks.tma,
        "BM": blocks.tile.rows,
        "BN": blocks.tile.cols,
        "BK": blocks.step,
        "CM": blocks.copy.rows,
        "CN": blocks.copy.cols,
        "RM": blocks.reduce.rows,
        "RN": blocks.reduce.cols,
        "ALIGN": 16 if even else DTYPES[variant.dtype],
        "STAGES": blocks.copy_stages if variant.op == "all_gather_matmul" else blocks.reduce_stages,
        "TMA": blocks.tma,
        "FLATTEN": blocks.flatten,
        "EVEN_K": even,
    }
    constants = {argument.name: constants[argument.name] for argument in kernel.params if argument.is_constexpr}
    types = {name: argument_type(name, variant.dtype, blocks) for name in kernel.arg_names if name not in constants}
    aligned = {"state_words", "first_rank", *(("m", "n", "k", "width") if even else ())} & {*kernel.arg_names}
    options = {**blocks.options, "launch_cooperative_grid": True}
    return compile_kernel(kernel, target, types, constants, aligned, options)


def argument_type(name: str, dtype: str, blocks) -> str:
    """The type, in Triton's words, of a kernel's argument. dtype: the op's. blocks: a kosmos.ops.launch.Blocks."""
    if name in ("y_tiles", "part_tiles"):
        return f"tensordesc<{dtype}[{blocks.tile.rows}, {blocks.tile.cols // 2}]>" if blocks.tma else f"*{dtype}"
    if name.endswith("_tiles") and name != "n_tiles":
        rows = blocks.tile.cols if name == "w_tiles" else blocks.tile.rows
        return f"tensordesc<{dtype}[{rows}, {blocks.step}]>" if blocks.tma else f"*{dtype}"
    if name in ("x", "w", "y", "gathered", "part"):
        return f"*{dtype}"
    if name in ("moves", "tiles", "sums", "state"):
        return "*i32"
    if name.endswith("_peers") or name in ("trace", "links"):
        return "*i64"
    return "fp32" if name == "ticks_per_byte" else "i32"


def compile_kernel(
    kernel, target: Target, types: dict, constants: dict, aligned=(), options: dict | None = None
) -> Any:
    """Compile a jitted function for a target. types: of its arguments, in Triton's words. aligned: the numbers among
    them that divide by 16, as a launch would find; pointers always do."""
    from triton import compile
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    sixteen = [["tt.divisibility", 16]]
    given = [name for name, of in types.items() if name in aligned or of.startswith("*")]
    source = ASTSource(
        fn=kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=constants,
        attrs={(kernel.arg_names.index(name),): sixteen for name in given},
    )
    return compile(source, target=GPUTarget(*target[:3]), options=options or {})


def asked_releases(kernel) -> int:
    """How many release atomics Triton was asked for; loops that it unrolls have more of them in assembly."""
    return len(re.findall(r"tt\.atomic_rmw \w+, (?:release|acq_rel)\b", kernel.asm["ttir"]))


def _amd_resources(kernel) -> dict[str, int]:
    fields = dict(re.findall(r"\.(\w+):\s+(\d+)", kernel.asm["amdgcn"]))
    return {
        "registers": int(fields["vgpr_count"]),
        "spilled_registers": int(fields["vgpr_spill_count"]),
        "spilled_bytes": int(fields["private_segment_fixed_size"]),
        "scalars": int(fields["sgpr_spill_count"]),
    }


def _nvidia_resources(kernel) -> dict[str, int]:
    from triton import knobs

    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        cubin.write(kernel.asm["cubin"])
        cubin.flush()
        command = [knobs.nvidia.cuobjdump.path, "--dump-resource-usage", cubin.name]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    fields = {name: int(value) for name, value in re.findall(r"(REG|STACK):(\d+)", text)}
    return {"registers": fields["REG"], "spilled_bytes": fields["STACK"], "scalars": 0}
