"""The compile gate: what it compiles, and that it catches what it is there to catch."""

import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

import kosmos  # noqa: E402
from kosmos import cli, emulator  # noqa: E402
from kosmos.doctor import compiled, releases  # noqa: E402
from kosmos.doctor.compiled import TARGETS, Compiled, Variant  # noqa: E402
from kosmos.lang import signal as signal_all  # noqa: E402
from kosmos.schedule import QUEUES, Tile  # noqa: E402

pytestmark = pytest.mark.triton

ROOT = Path(__file__).parent.parent
AMD = [name for name, target in TARGETS.items() if target.backend == "hip"]
OLD = tuple(map(int, triton.__version__.split(".")[:2])) < (3, 9)  # from 3.9 on, Triton has a barrier in every release


@pytest.fixture(autouse=True)
def fresh_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))


# the kernels


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("op", QUEUES)
def test_kernels_are_well(op, target):
    """One variant each; `kosmos doctor --compile` has them all."""
    result = compiled.measure(Variant(op, target, "bf16", "even", "two-way paced traced"))
    assert result.problems == ()
    assert result.registers > 0 and result.spilled_bytes == 0 and result.releases >= 2


def test_every_choice_is_compiled():
    chosen = compiled.variants()
    assert len({*chosen}) == len(chosen)
    for column, choices in enumerate((QUEUES, TARGETS, compiled.DTYPES, compiled.SHAPES, compiled.MODES)):
        assert {variant[column] for variant in chosen} == {*choices}


@pytest.mark.parametrize("op", QUEUES)
@pytest.mark.parametrize("dtype", compiled.DTYPES)
def test_kernels_are_compiled_as_they_are_launched(op, dtype, monkeypatch):
    import torch

    class Stop(Exception):
        pass

    def instead(kernel, arguments, **_):
        found.update(kernel=kernel, arguments=arguments)
        raise Stop

    found = {}
    monkeypatch.setattr(emulator, "launch", instead)
    world = kosmos.World.virtual(8, workgroups=32, device="cpu")
    x, w = (world.randn(64, 64, dtype=getattr(torch, cli.DTYPES[dtype])) for _ in range(2))
    with pytest.raises(Stop), kosmos.record():
        getattr(kosmos, op)(x, w, world=world)

    def instead_of_compiling(kernel, target, types, constants, aligned, options):
        assert kernel is found["kernel"]
        assert {*types, *constants} == {*found["arguments"]} == {*kernel.arg_names}
        for name, value in found["arguments"].items():
            if name in constants:
                assert type(constants[name]) is type(value)
            elif isinstance(value, torch.Tensor):
                words = {torch.int32: "i32", torch.int64: "i64"}
                assert types[name] == "*" + words.get(value.dtype, dtype)
            else:
                assert types[name] == {int: "i32", float: "fp32"}[type(value)]
        assert all(found["arguments"][name] % 16 == 0 for name in aligned)

    monkeypatch.setattr(compiled, "compile_kernel", instead_of_compiling)
    compiled.compile_variant(Variant(op, "gfx950", dtype, "even", "one-way traced"))


# a trace that is off


@triton.jit
def no_stamp(TRACE: tl.constexpr):
    nothing = tl.full((), 0, tl.int64)
    return nothing, nothing, nothing


@triton.jit
def no_slice(trace, capacity, TRACE: tl.constexpr):
    return trace, capacity


@triton.jit
def no_record(log, count, role, item, claimed, started, TRACE: tl.constexpr, real=True):
    return count, started


@triton.jit
def no_close(log, count, claimed, TRACE: tl.constexpr):
    pass


@pytest.mark.parametrize("target", ["gfx950", "sm_90"])
@pytest.mark.parametrize("op", QUEUES)
def test_without_a_trace_the_code_is_that_of_a_kernel_without_the_calls(op, target, monkeypatch):
    module = importlib.import_module(f"kosmos.ops.{op}")
    kernel = getattr(module, f"{op}_kernel")

    def code(mode):
        kernel.hash = None  # what it calls may have changed
        assembly = compiled.compile_variant(Variant(op, target, "bf16", "even", mode)).asm
        return assembly["amdgcn" if target in AMD else "ptx"]

    off, on = code("one-way"), code("one-way traced")
    instead = {"stamp": no_stamp, "open_slice": no_slice, "record": no_record, "close_slice": no_close}
    with monkeypatch.context() as patched:
        for name, function in instead.items():
            patched.setattr(module, name, function)
        assert code("one-way") == off
        assert code("one-way traced") != on, "it is these calls that record"
    kernel.hash = None


# what it has to catch


@triton.jit
def stores(data, counter):
    at = tl.arange(0, 512)
    tl.store(data + at, at)


@triton.jit
def stores_and_signals(data, counter):
    stores(data, counter)
    signal_all(counter, "sys")


@triton.jit
def without_anything(data, counter):
    stores(data, counter)
    tl.atomic_add(counter, 1, sem="release", scope="sys")


@triton.jit
def without_drain(data, counter):
    stores(data, counter)
    tl.debug_barrier()
    tl.atomic_add(counter, 1, sem="release", scope="sys")


@triton.jit
def stores_after_the_signal_of_the_last_turn(data, counter):
    for _ in range(2000):
        tl.atomic_add(counter, 1, sem="release", scope="sys")
        stores(data, counter)


def assembly_of(kernel, name, **options):
    target = TARGETS[name]
    result = compiled.compile_kernel(
        kernel, target, {"data": "*i32", "counter": "*i32"}, {}, options={"num_warps": 8, **options}
    )
    return result.asm["amdgcn" if target.backend == "hip" else "ptx"], target.backend


@pytest.mark.parametrize("name", TARGETS)
def test_signal_is_safe(name):
    assembly = assembly_of(stores_and_signals, name)
    assert releases.releases(*assembly) == 1 and releases.unsafe_releases(*assembly) == []


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("kernel", [without_anything, without_drain, stores_after_the_signal_of_the_last_turn])
def test_broken_signals_are_caught(kernel, name):
    assembly = assembly_of(kernel, name)
    caught = releases.unsafe_releases(*assembly)
    # on CUDA a barrier is enough
    if name in AMD or (OLD and kernel is not without_drain):
        assert len(caught) == releases.releases(*assembly) >= 1
        assert re.fullmatch(r"line \d+, .*(atomic_add|atom|red).*: no (s_barrier|s_waitcnt|bar\.sync) .*", caught[0])
    else:
        assert caught == []


@pytest.mark.parametrize("name", TARGETS)
def test_signals_that_lose_an_instruction_are_caught(name):
    """As if a compiler dropped it: each of the instructions that a signal is made of, from the real assembly."""
    text, backend = assembly_of(stores_and_signals, name)
    lost = {"s_barrier": "no s_barrier", "vmcnt(0)": "no s_waitcnt vmcnt(0)"}
    for instruction, sentence in lost.items() if backend == "hip" else {"bar.sync": "no bar.sync"}.items():
        (caught,) = releases.unsafe_releases(text.replace(instruction, "nop"), backend)
        assert sentence in caught


def test_a_write_back_that_is_not_waited_for_is_caught():
    """What LLVM makes of a release where it takes vmcnt to be 0 (llvm/llvm-project#178316)."""
    whole = """
        global_store_dwordx4 v[0:1], v[2:5], off
        s_waitcnt vmcnt(0) lgkmcnt(0)
        s_barrier
        s_cbranch_execz .LBB0_2
        buffer_wbl2 sc0 sc1
        s_waitcnt vmcnt(0)
        global_atomic_add v[0:1], v2, off sc1
    .LBB0_2:
        s_endpgm
    .Lfunc_end0:
        global_atomic_add in a comment of the debug section
    """
    assert releases.releases(whole, "hip") == 1 and releases.unsafe_releases(whole, "hip") == []
    before, wait, after = whole.rpartition("s_waitcnt vmcnt(0)")
    (caught,) = releases.unsafe_releases(before + after, "hip")
    assert caught == "line 8, global_atomic_add v[0:1], v2, off sc1: no s_waitcnt vmcnt(0) after buffer_wbl2"
    # if the kernel has written back by itself, the compiler's part has nothing left to do
    by_hand = (before + after).replace("s_cbranch", "buffer_wbl2 sc0 sc1\ns_waitcnt vmcnt(0)\ns_cbranch")
    assert releases.unsafe_releases(by_hand, "hip") == []
    # and what this GPU can see, another one cannot yet
    (caught,) = releases.unsafe_releases(by_hand.replace("sc0 sc1", "sc1", 1), "hip")
    assert caught.endswith("no s_waitcnt vmcnt(0) after buffer_wbl2")


def test_all_paths_are_followed():
    text = """
        mov.b32 %r1, 0;
    $L__BB0_1:
        atom.global.sys.release.add.u32 %r2, [ %rd1 + 0 ], %r3;
        @%p1 bra $L__BB0_2;
        bra.uni $L__BB0_3;
    $L__BB0_2:
        STORE
        {
        .reg .pred complete;
        waitLoop:
        mbarrier.try_wait.parity.shared.b64 complete, [%r1], %r2;
        @!complete bra.uni waitLoop;
        }
        BARRIER
        @%p2 bra $L__BB0_1;
    $L__BB0_3:
        ret;
        st.global.b32 [ %rd1 + 0 ], { %r1 };
        bra.uni $L__BB0_1;
    """

    def caught(store, barrier):
        program = text.replace("STORE", store).replace("BARRIER", barrier)
        return len(releases.unsafe_releases(program, "cuda"))

    store = "@%p3 st.global.v4.b32 [ %rd1 + 0 ], { %r1, %r2, %r3, %r4 };"
    assert caught(store, "bar.sync \t0;") == 0
    assert caught(store, "") == 1
    assert caught(store, "bar.sync 1, 128;") == 1  # some of the threads only
    assert caught(store, "@%p1 bar.sync 0;") == 1
    # what the accelerator stores has to be waited for by the thread that gave the order, and not only until it was read
    bulk = (
        "@%p3 cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, %r2}], [%r3];"
        "cp.async.bulk.commit_group;"
    )
    assert caught(bulk, "bar.sync 0;") == 1
    assert caught(bulk, "cp.async.bulk.wait_group.read 0; bar.sync 0;") == 1
    assert caught(bulk, "@%p1 cp.async.bulk.wait_group 0; bar.sync 0;") == 1
    assert caught(bulk, "bar.sync 0; cp.async.bulk.wait_group 0;") == 1
    assert caught(bulk + store, "cp.async.bulk.wait_group 0; bar.sync 0;") == 0
    assert caught(bulk + "bar.sync 0;" + store, "bar.sync 0;") == 1
    # the very last one may be left out on purpose, but it alone, once
    but_last = "cp.async.bulk.wait_group 1;"
    assert caught(bulk, but_last + "bar.sync 0;") == 0
    assert caught(bulk + bulk, but_last + "bar.sync 0;") == 0
    assert caught(bulk + bulk, but_last) == 1
    assert caught(bulk + bulk, "bar.sync 0;" + but_last) == 1
    assert caught(bulk + but_last + bulk, "bar.sync 0;") == 1
    assert caught(bulk, "@%p1" + but_last + "bar.sync 0;") == 1
    twice = but_last + "bar.sync 0; atom.global.sys.release.add.u32 %r2, [ %rd1 + 0 ], %r3; bar.sync 0;"
    assert caught(bulk, twice) == 1
    with pytest.raises(ValueError, match="does not wait for a bulk store before it is committed"):
        caught(bulk.replace("cp.async.bulk.commit_group;", but_last + "cp.async.bulk.commit_group;"), "bar.sync 0;")
    with pytest.raises(ValueError, match="a second bulk store in one group"):
        caught(bulk.replace("cp.async.bulk.commit_group;", "") + bulk, but_last)
    assert caught("st.b32 [ %rd1 + 0 ], { %r1 };", "") == 1
    assert caught("st.shared.b32 [ %r1 + 0 ], { %r1 };", "") == 0
    with pytest.raises(ValueError, match="leads where this check does not follow"):
        caught("call.uni vprintf, (%rd1);", "")


def test_releases_that_are_not_recognized_are_missed(monkeypatch):
    monkeypatch.setattr(compiled, "releases", lambda *_: 0)
    result = compiled.measure(Variant("matmul_reduce_scatter", "gfx950", "fp32", "even", "one-way"))
    assert any("release atomics were asked for, 0 are recognized" in problem for problem in result.problems)


@pytest.mark.parametrize("name, tile", [("gfx942", Tile(128, 128)), ("sm_90", Tile(128, 64))])
def test_spills_and_too_much_shared_memory_are_caught(name, tile, monkeypatch):
    from kosmos.ops import launch

    small = launch.blocks_for("hip", 4, 8, 0, True)._replace(tile=tile, num_warps=1)
    monkeypatch.setattr(launch, "blocks_for", lambda *_: small)
    monkeypatch.setitem(TARGETS, name, TARGETS[name]._replace(shared_bytes=1000))
    result = compiled.measure(Variant("matmul_reduce_scatter", name, "bf16", "even", "one-way"))
    assert result.spilled_bytes > 0
    assert any(problem.startswith("spills registers to memory") for problem in result.problems)
    assert any(f"bytes of shared memory; {name} has 1,000" in problem for problem in result.problems)


def test_what_does_not_compile_is_a_problem(monkeypatch):
    monkeypatch.setitem(compiled.MODES, "one-way", {"RANKS": 8})
    result = compiled.measure(Variant("matmul_reduce_scatter", "sm_90", "bf16", "even", "one-way"))
    assert result.problems[0].startswith("cannot be compiled: KeyError") and result.registers is None


def test_what_cannot_be_read_is_a_problem(monkeypatch):
    monkeypatch.setattr(compiled, "unsafe_releases", lambda *_: {}["label"])
    result = compiled.measure(Variant("matmul_reduce_scatter", "gfx942", "bf16", "even", "one-way"))
    assert result.problems == ("cannot be examined: KeyError: 'label'",)


# the command


def well(variant):
    return Compiled(variant, (), *range(5))


def crashes(variant):
    os._exit(1) if variant.op == "all_gather_matmul" else None


def test_results_come_in_order_and_a_crash_is_named(monkeypatch):
    chosen = compiled.variants()
    with monkeypatch.context() as patched:
        patched.setattr(compiled, "measure", well)
        assert [result.variant for result in compiled.compile_all(chosen)] == chosen
        patched.setattr(compiled, "measure", crashes)
        (result,) = compiled.compile_all(chosen)
    assert result.variant == chosen[0] and "the compiler crashed" in result.problems[0]
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


@pytest.mark.parametrize("problems", [(), ("spills registers to memory, 8 bytes a thread",)])
def test_doctor_compile_tells_all(capsys, monkeypatch, problems):
    *others, last = compiled.variants()
    results = [*map(well, others), Compiled(last, problems, 255, 1000, 8, 0, 2)]
    monkeypatch.setattr(compiled, "compile_all", lambda chosen: iter(results))
    assert cli.main(["doctor", "--compile"]) == bool(problems)
    lines = capsys.readouterr().out.splitlines()
    row = [*" ".join(last).split(), "255", "1,000", "8", "0", "2", "FAILED" if problems else "ok"]
    assert [line.split() for line in lines].count(row) == 1
    assert [line for line in lines if line.startswith("FAILED")] == [f"FAILED  {last}: {one}" for one in problems]
    assert lines[-1].startswith(f"{len(results) - len(problems)} of {len(results)} variants are well")


@pytest.mark.slow
def test_interrupted_doctor_compile_says_nothing():
    command = [sys.executable, "-u", "-m", "kosmos", "doctor", "--compile"]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    doctor = subprocess.Popen(command, cwd=ROOT, text=True, start_new_session=True, **streams)
    try:
        while not doctor.stdout.readline().startswith("all_gather_matmul"):
            assert doctor.poll() is None
        os.killpg(doctor.pid, signal.SIGINT)
        _, err = doctor.communicate(timeout=60)
    finally:
        if doctor.poll() is None:
            os.killpg(doctor.pid, signal.SIGKILL)
    assert (doctor.returncode, err) == (130, "")
