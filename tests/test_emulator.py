"""The emulator: right numbers, repeatable virtual times, deadlocks by name, and nothing left behind."""

import hashlib
import os
import re
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
triton = pytest.importorskip("triton", reason="needs triton")

import triton.language as tl  # noqa: E402
from emulated import OPS, error, operands, reference, run, without_macros, world_of  # noqa: E402
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.runtime import interpreter as private  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

import kosmos  # noqa: E402
from kosmos import emulator  # noqa: E402
from kosmos.emulator import clock, macros  # noqa: E402
from kosmos.emulator.interpreter import round_to_bfloat16, to_float32  # noqa: E402
from kosmos.lang import (  # noqa: E402
    BUILDER,
    copy_tile,
    cycles,
    gemm_tile,
    nap,
    now,
    on_peer,
    pause,
    poll,
    reduce_tile,
    signal,
    store_tile,
    unit,
    wait,
)
from kosmos.lang.device import time_of  # noqa: E402
from kosmos.lang.sync import counter_on, enter, leave, new_state  # noqa: E402
from kosmos.machine import Machine, machine_named  # noqa: E402
from kosmos.schedule.queues import FIELDS  # noqa: E402

pytestmark = pytest.mark.triton
LAPTOP = machine_named("laptop")
B16 = tl.constexpr(16)


def launch(kernel, *, ranks=1, workgroups=1, machine=LAPTOP, symmetric=(), macro=True, **arguments):
    return emulator.launch(
        kernel, arguments, ranks=ranks, workgroups=workgroups, machine=machine, symmetric=symmetric, macro=macro
    )


def machine(**more):
    usual = dict(name="m", units=1, tflops=1.0, memory_gbps=100.0, link_gbps=1.0, copy_gbps=1.0, clock_mhz=2000)
    return Machine(**usual | dict(efficiency=1.0) | more)


def words(*shape):
    return torch.zeros(shape, dtype=torch.int32)


# ---------------------------------------------------------------------------------------------------------- numbers


def every_kind_of_float32():
    """Every upper half of a float32 with lower halves on, next to and between the ties of bf16."""
    upper = np.arange(1 << 16, dtype=np.uint32) << 16
    lower = np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32)
    return (upper[:, None] | lower).reshape(-1)


def test_bf16_is_rounded_as_torch_rounds_it():
    bits = every_kind_of_float32()
    floats = bits.view(np.float32)
    with np.errstate(all="ignore"):
        ours = round_to_bfloat16(floats)
    theirs = torch.from_numpy(floats.copy()).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    number = ~np.isnan(floats)
    assert (ours[number] == theirs[number]).all()
    assert np.isnan(to_float32(ours[~number], tl.bfloat16)).all(), "a NaN stays one, also where it would carry over"


def test_every_bf16_comes_back_as_it_was():
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = to_float32(every, tl.bfloat16)
    assert (wide.view(np.uint32) == every.astype(np.uint32) << 16).all()
    number = ~np.isnan(wide)
    assert (round_to_bfloat16(wide)[number] == every[number]).all()


@pytest.mark.parametrize("order", ["C", "F"])
def test_conversions_keep_the_shape_whatever_the_order_in_memory(order):
    values = np.asarray(np.arange(12, dtype=np.float32).reshape(3, 4) + 1 / 3, order=order)
    rounded = round_to_bfloat16(values)
    assert np.allclose(to_float32(np.asarray(rounded, order=order), tl.bfloat16), values, rtol=1e-2)


@triton.jit
def convert(source, target, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    tl.store(target + i, tl.load(source + i).to(target.dtype.element_ty))


TYPES = [torch.bfloat16, torch.float16, torch.float32, torch.float64, torch.int32, torch.int64, torch.int8]


@pytest.mark.parametrize("source", TYPES, ids=str)
@pytest.mark.parametrize("target", TYPES, ids=str)
def test_casts_are_those_of_torch(source, target):
    special = [0.0, -0.0, 1.0, -1.5, 3.14159, 65504.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 1e-7, -2.5, 100.7]
    if source.is_floating_point and target.is_floating_point:
        special += [float("inf"), -float("inf"), float("nan"), 1e-40, 6e-8, 65520.0, 3e38]
    values = torch.tensor(special, dtype=torch.float64)
    if not (source.is_floating_point and target.is_floating_point):
        values = values.clamp(-120, 120)
    values = torch.cat([values, torch.randn(64 - len(values), generator=torch.Generator().manual_seed(1))])
    given, got = values.to(source), torch.zeros(64, dtype=target)
    launch(convert, source=given, target=got, SIZE=64)
    expected = given.to(target)
    assert torch.equal(got.nan_to_num(777, 888, -888), expected.nan_to_num(777, 888, -888)), (got, expected)


@triton.jit
def arithmetic(x, y, out, WHAT: tl.constexpr, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a, b = tl.load(x + i), tl.load(y + i)
    if WHAT == "add":
        r = a + b
    elif WHAT == "sub":
        r = a - b
    elif WHAT == "mul":
        r = a * b
    elif WHAT == "neg":
        r = -a
    elif WHAT == "abs":
        r = tl.abs(a)
    elif WHAT == "maximum":
        r = tl.maximum(a, b)
    elif WHAT == "less":
        r = tl.where(a < b, a, b)
    elif WHAT == "twice":
        r = a * 2.0
    elif WHAT == "full":
        r = tl.full((SIZE,), 1.5, out.dtype.element_ty)
    elif WHAT == "masked":
        r = tl.load(x + i, mask=i < SIZE // 2, other=1.5)
    tl.store(out + i, r)


ARITHMETIC = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "neg": lambda a, b: -a,
    "abs": lambda a, b: a.abs(),
    "maximum": torch.maximum,
    "less": lambda a, b: torch.where(a < b, a, b),
    "twice": lambda a, b: a * 2,
    "full": lambda a, b: torch.full_like(a, 1.5),
    "masked": lambda a, b: torch.cat([a[: len(a) // 2], torch.full_like(a[len(a) // 2 :], 1.5)]),
}


@pytest.mark.parametrize("what", ARITHMETIC)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_arithmetic_in_a_kernel_is_that_of_torch(dtype, what):
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randn(64, generator=generator).to(dtype) for _ in range(2))
    out = torch.zeros(64, dtype=dtype)
    launch(arithmetic, x=a, y=b, out=out, WHAT=what, SIZE=64)
    assert torch.equal(out, ARITHMETIC[what](a, b))


@triton.jit
def reductions(x, out, SIZE: tl.constexpr):
    i = tl.arange(0, SIZE)
    a = tl.load(x + i)
    tl.store(out, tl.sum(a))
    tl.store(out + 1, tl.max(a))
    tl.store(out + 2, tl.min(a))
    tl.store(out + 3, tl.argmax(a, 0).to(tl.float32))
    tl.store(out + 4 + i, tl.cumsum(a, 0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_reductions_in_a_kernel_are_those_of_torch(dtype):
    a = torch.randn(64, generator=torch.Generator().manual_seed(3)).to(dtype)
    out = torch.zeros(68)
    launch(reductions, x=a, out=out, SIZE=64)
    wide = a.double()
    expected = torch.stack([wide.sum(), wide.max(), wide.min(), wide.argmax()])
    assert torch.allclose(out[:4].double(), expected, rtol=1e-2)
    assert torch.allclose(out[4:].double(), wide.cumsum(0), atol=0.1)


@triton.jit
def product(a, b, y, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    i, j, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    left = tl.load(a + i[:, None] * K + k[None, :])
    right = tl.load(b + k[:, None] * N + j[None, :])
    tl.store(y + i[:, None] * N + j[None, :], tl.dot(left, right).to(y.dtype.element_ty))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
def test_dot(dtype):
    generator = torch.Generator().manual_seed(3)
    a, b = torch.randn(16, 64, generator=generator).to(dtype), torch.randn(64, 32, generator=generator).to(dtype)
    y = torch.zeros(16, 32, dtype=torch.float32)
    launch(product, a=a, b=b, y=y, M=16, N=32, K=64)
    assert error(y, a.double() @ b.double()) < 1e-6


@triton.jit
def numbered(out):
    tl.store(out + tl.program_id(0) * 3, tl.program_id(0))
    tl.store(out + tl.program_id(0) * 3 + 1, tl.num_programs(0))
    tl.store(out + tl.program_id(0) * 3 + 2, unit())


def test_programs_know_where_they_are():
    out = words(6, 3)
    launch(numbered, ranks=2, workgroups=3, out=out)
    assert out.tolist() == [[program, 6, program % 3] for program in range(6)]


# -------------------------------------------------------------------------------------------- macros and determinism


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("op", OPS)
def test_macros_give_the_same_bits_and_the_same_virtual_times(monkeypatch, op, dtype):
    shapes = [(1, 1, 1, 1), (2, 65, 70, 100), (3, 64, 64, 64), (2, 3, 150, 7), (4, 20, 1, 130)]
    seen = {}
    for macro in (True, False):
        if not macro:
            without_macros(monkeypatch)
        for ranks, shard, n, k in shapes:
            # where products, memory or the links are what takes long
            for policy, model in (
                ("one_way:1", LAPTOP.with_link(2)),
                ("two_way:1", machine(tflops=100.0, memory_gbps=5.0)),
            ):
                world = world_of(ranks, machine=model)
                x, w = operands(op, world, shard, n, k, dtype)
                y, trace = run(op, x, w, world, policy=policy)
                if macro:
                    seen[ranks, shard, policy] = y, trace
                else:
                    expected, times = seen[ranks, shard, policy]
                    assert torch.equal(y, expected)
                    assert trace.spans.equals(times.spans) and trace.equals(times)


def test_there_is_a_macro_for_every_tile_helper():
    assert {fn.__name__ for fn in macros.MACROS} == {"gemm_tile", "store_tile", "copy_tile", "reduce_tile"}


@triton.jit
def helpers(a, b, both, peers, y, sums, copy, m, n, k, RANKS: tl.constexpr, TWICE: tl.constexpr):
    """Every helper once, its block sizes a module's constants, as kernels are usually written."""
    none = tl.program_id(0)
    tile = gemm_tile(a, none, b, none, k, m, n, False, False, B16, B16, B16)
    store_tile(y, tile, none, m, 0, n, False, B16, B16)
    copy_tile(a, copy, m, 0, k, k, B16, TWICE)
    reduce_tile(both, peers, sums, m, 0, k, RANKS, B16, TWICE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_helpers_in_a_kernel_of_ones_own(dtype):
    m, n, k = 13, 9, 30
    generator = torch.Generator().manual_seed(5)
    a, b = torch.randn(m, k, generator=generator).to(dtype), torch.randn(n, k, generator=generator).to(dtype)
    both = torch.randn(2, m, k, generator=generator).to(dtype)
    peers = torch.tensor([0, both[0].numel() * both.element_size()])
    results = {}
    for macro in (True, False):
        y, sums, copy = torch.zeros(m, n, dtype=dtype), torch.zeros(m, k, dtype=dtype), torch.zeros(m, k, dtype=dtype)
        ns = launch(
            helpers, macro=macro, a=a, b=b, both=both, peers=peers, y=y, sums=sums, copy=copy, m=m, n=n, k=k,
            RANKS=2, TWICE=32,
        )  # fmt: skip
        assert error(y, a.double() @ b.double().T) <= 1e-2 and torch.equal(copy, a)
        assert error(sums, both.double().sum(0)) <= 1e-2
        results[macro] = ns, y, sums
    assert results[True][0] == results[False][0] > 0
    assert all(torch.equal(one, other) for one, other in zip(results[True][1:], results[False][1:]))


@triton.jit
def many_small_steps(parts, peers, sums, copy, m, k, RANKS: tl.constexpr):
    reduce_tile(parts, peers, sums, m, 0, k, RANKS, 1, B16)
    copy_tile(sums, copy, m, 0, k, k, 1, B16)


def test_helpers_cost_the_same_however_small_their_steps_are():
    """Words that an interpreted helper loads and a macro does not are free."""
    parts, peers = torch.randn(8, 64, 16), torch.arange(8) * 64 * 16 * 4
    sums, copy = torch.zeros(64, 16), torch.zeros(64, 16)
    spent = {
        launch(many_small_steps, macro=macro, parts=parts, peers=peers, sums=sums, copy=copy, m=64, k=16, RANKS=8)
        for macro in (True, False)
    }
    assert len(spent) == 1


def digest_of_runs(path):
    """Of the files and the results of some runs."""
    world, digest = world_of(3, workgroups=4, link_gbps=3), hashlib.sha256()
    for op, order in (("all_gather_matmul", "random:3"), ("matmul_reduce_scatter", "band")):
        x, w = operands(op, world, 72, 65, 72)
        for policy in ("one_way:2", "two_way:1", "fixed:2", "planned"):
            y, trace = run(op, x, w, world, policy=policy, order=order)
            trace.save(path)
            digest.update(Path(path).read_bytes() + y.view(torch.int16).numpy().tobytes())
    return digest.hexdigest()


def test_the_same_run_gives_the_same_file_in_another_process(tmp_path):
    code = f"import test_emulator; print(test_emulator.digest_of_runs({str(tmp_path / 'trace.parquet')!r}))"
    search = os.pathsep.join([str(Path(__file__).parent), str(Path(kosmos.__file__).parents[1]), *sys.path])
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONPATH": search}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == digest_of_runs(tmp_path / "here.parquet")


@pytest.mark.parametrize("op", OPS)
def test_the_same_run_gives_the_same_file(tmp_path, op):
    """Fresh worlds, tensors at other addresses."""
    digests, kept = set(), []
    for _ in range(3):
        world = world_of(2, workgroups=4)
        x, w = operands(op, world, 70, 70, 70)
        kept.append((torch.zeros(1000), x, w, run(op, x, w, world, policy="two_way:1", order="random:1")))
        kept[-1][-1][1].save(tmp_path / "trace.parquet")
        digests.add(hashlib.sha256((tmp_path / "trace.parquet").read_bytes()).hexdigest())
    assert len(digests) == 1


# --------------------------------------------------------------------------------------------------------- deadlocks


def broken(op, role, item, rank, count):
    """A world whose plan has, behind the check's back, an item that waits for too much."""
    world = world_of(2, workgroups=4)
    x, w = operands(op, world, 130, 65, 70)
    y = OPS[op](x, w, world=world)
    (plan,) = world._plans.values()
    plan.tables[role][rank, item, FIELDS.index("wait_count")] = count
    counter = int(plan.tables[role][rank, item, FIELDS.index("wait")])
    return world, x, w, y, counter


@pytest.mark.parametrize(
    ("op", "role", "item", "rank"),
    [
        ("all_gather_matmul", "builder", 11, 1),
        ("all_gather_matmul", "builder", 8, 0),
        ("all_gather_matmul", "mover", 1, 1),
        ("matmul_reduce_scatter", "reducer", 0, 1),
        ("matmul_reduce_scatter", "reducer", 5, 0),
    ],
)
def test_a_deadlock_names_who_waits_for_what_and_the_world_works_again(op, role, item, rank):
    world, x, w, y, counter = broken(op, role, item, rank, 7)
    with pytest.raises(kosmos.KosmosDeadlock) as caught:
        OPS[op](x, w, world=world)
    sentence = str(caught.value)
    # a mover that waits for ever leaves builders waiting too, and the first of them may be named
    stuck = re.match(
        r"rank (\d), workgroup (\d+) waits for ever: (\w+) item (\d+) needs (\d) signals? of counter (\d+)", sentence
    )
    assert stuck, sentence
    if role != "mover":
        assert stuck.group(1, 3, 4, 5, 6) == (str(rank), role, str(item), "7", str(counter))
    assert int(stuck.group(2)) < world.workgroups and "\n" not in sentence and len(sentence) < 200
    for _ in range(2):
        again, _ = run(op, x, w, world)
        assert torch.equal(again, y)


def test_a_deadlock_in_one_plan_leaves_the_others_of_its_world_usable():
    world, x, w, y, _ = broken("all_gather_matmul", "builder", 11, 1, 7)
    a, b = operands("matmul_reduce_scatter", world, 20, 20, 20)
    first = kosmos.matmul_reduce_scatter(a, b, world=world)
    with pytest.raises(kosmos.KosmosDeadlock), kosmos.record():
        kosmos.all_gather_matmul(x, w, world=world)
    assert torch.equal(run("matmul_reduce_scatter", a, b, world)[0], first)
    assert torch.equal(run("all_gather_matmul", x, w, world)[0], y)


@pytest.mark.parametrize("op", OPS)
def test_an_expired_wait_is_a_timeout_by_name_and_the_world_works_again(op):
    """Virtual time counts for the limit too: on a slow machine waits expire."""
    world = world_of(2, workgroups=4)
    x, w = operands(op, world, 130, 65, 70)
    expected = run(op, x, w, world)[0]
    world = world_of(2, workgroups=4, link_gbps=0.1)
    world.timeout_ns = 500
    with pytest.raises(kosmos.KosmosTimeout) as caught:
        OPS[op](x, w, world=world)
    assert re.match(
        r"rank \d, workgroup \d: (builder|reducer) item \d+ waited 5e-07 s for counter \d+, which had \d of \d signals",
        str(caught.value),
    )
    world.timeout_ns = 10**12
    for _ in range(2):
        assert torch.equal(run(op, x, w, world)[0], expected)


@triton.jit
def waits_for_nobody(flag):
    while poll(flag) == 0:
        pause(flag)


def test_a_plain_spin_that_never_ends_is_a_deadlock_too():
    with pytest.raises(kosmos.KosmosDeadlock, match=r"rank 0, workgroup 1 waits for ever.*2 more wait as well"):
        launch(only_first_leaves, ranks=2, workgroups=2, flag=words(1))


@triton.jit
def only_first_leaves(flag):
    if tl.program_id(0) > 0:
        waits_for_nobody(flag)


@triton.jit
def naps_for_nobody(flag):
    while poll(flag) == 0:
        nap()


def test_a_spin_that_no_write_can_end_is_a_deadlock_too(monkeypatch):
    monkeypatch.setattr(clock, "LOOKS_WITHOUT_A_WRITE", 200)
    with pytest.raises(kosmos.KosmosDeadlock, match=r"rank \d, workgroup \d spins for ever.* 200 looks"):
        launch(naps_for_nobody, ranks=2, workgroups=2, flag=words(1))


# ------------------------------------------------------------------------------------------- kernels of one's own


@triton.jit
def ping_pong(flags, peers, log, ROUNDS: tl.constexpr):
    """Two ranks take turns: each waits for its flag and then raises the other's."""
    rank = tl.program_id(0)
    mine = flags + rank
    for turn in range(ROUNDS):
        while poll(mine) < turn + 1 - (rank == 0):
            pause(mine)
        tl.store(log + rank * ROUNDS + turn, now())
        signal(on_peer(mine, peers + rank * 2, 1 - rank), "sys")


def test_two_ranks_play_ping_pong():
    flags, log = words(2, 1), torch.zeros(2, 5, dtype=torch.int64)
    peers = torch.tensor([[0, 4], [-4, 0]])
    makespan = launch(ping_pong, ranks=2, symmetric=(flags,), flags=flags, peers=peers, log=log, ROUNDS=5)
    assert flags.tolist() == [[5], [5]]
    turns = log.T.reshape(-1)
    assert (turns.diff() > 0).all(), "they take turns"
    # a signal travels the link; the one who was parked looks once more
    assert turns.diff().tolist() == [LAPTOP.link_ns + LAPTOP.atomic_ns] * 9
    assert makespan == turns[-1] + LAPTOP.link_ns


@triton.jit
def times_of(words, befores, times):
    this = tl.program_id(0)
    tl.store(times + this, time_of(tl.load(words + this), tl.load(befores + this)))


def test_the_low_half_of_a_time_is_enough():
    """As on CUDA: whatever carries, and if the half was read a little before the whole."""
    befores = np.array([0, 5, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 1_764_430_000_123_456_789, 2**62])
    for passed in (0, 1, 31, -32, 10**9, 1_999_999_999, -(10**9)):
        expected = befores + passed
        low = torch.from_numpy((expected & 0xFFFFFFFF).astype(np.uint32).view(np.int32))
        times = torch.zeros(len(befores), dtype=torch.int64)
        launch(times_of, workgroups=len(befores), words=low, befores=torch.from_numpy(befores), times=times)
        assert times.tolist() == expected.tolist()


@triton.jit
def with_state(state, state_words, out, WORKGROUPS: tl.constexpr, RANKS: tl.constexpr, BROKEN: tl.constexpr):
    """The house's own wait and signal, over a state block: every rank waits for all ranks' workgroups."""
    rank = tl.program_id(0) // WORKGROUPS
    workgroup = tl.program_id(0) % WORKGROUPS
    state += rank * state_words
    here = (state, enter(state), rank, workgroup)
    for peer in range(RANKS):
        signal(counter_on(state, peer, 2, RANKS), "sys")
    wait(
        here,
        tl.full((), 2, tl.int32),
        tl.full((), WORKGROUPS * RANKS + BROKEN, tl.int32),
        BUILDER,
        rank * 10,
        RANKS,
        "sys",
    )
    tl.atomic_add(out, 1)
    leave(state, WORKGROUPS)


def test_a_barrier_of_all_ranks_by_wait_and_signal():
    faults = torch.zeros(3, 8, dtype=torch.int64)
    state = torch.from_numpy(new_state(3, 4, 10**9, [faults[rank].data_ptr() for rank in range(3)]))
    out = words(1)
    how = dict(ranks=3, workgroups=4, symmetric=(state,), state=state, state_words=state.shape[1], out=out)
    for launches in range(1, 4):  # epochs advance by themselves
        launch(with_state, WORKGROUPS=4, RANKS=3, BROKEN=0, **how)
        assert out.item() == 12 * launches and not faults.any()
    with pytest.raises(kosmos.KosmosDeadlock, match=r"rank 0, .*builder item 0 needs 13 signals of counter 2"):
        launch(with_state, WORKGROUPS=4, RANKS=3, BROKEN=1, **how)


@triton.jit
def crowd(counter, arrived, ROUNDS: tl.constexpr, CROWD: tl.constexpr):
    for turn in range(ROUNDS):
        tl.atomic_add(arrived + turn, 1)
        signal(counter, "sys")
        while poll(counter) < (turn + 1) * CROWD:
            pause(counter)
        if tl.load(arrived + turn) != CROWD:
            tl.atomic_add(arrived + ROUNDS, 1)


@pytest.mark.parametrize("machine", ["laptop", "H200"])
def test_no_wake_up_is_lost_in_a_crowd_on_one_counter(machine):
    counter, arrived = words(1), words(4)
    launch(crowd, workgroups=40, machine=machine_named(machine), counter=counter, arrived=arrived, ROUNDS=3, CROWD=40)
    assert counter.item() == 120 and arrived.tolist() == [40, 40, 40, 0]


@triton.jit
def looks_elsewhere_too(flags, seen_at):
    """The flag is raised after the first program's look at it and before its sleep."""
    if tl.program_id(0) == 0:
        while poll(flags) == 0:
            poll(flags + 1)
            pause(flags)
        tl.store(seen_at, now())
    elif tl.program_id(0) == 1:
        for _ in range(10):
            nap()
        signal(flags, "sys")
    else:
        for _ in range(500):
            nap()


def test_a_write_between_a_look_and_the_sleep_is_not_slept_through():
    seen_at = torch.zeros(1, dtype=torch.int64)
    makespan = launch(looks_elsewhere_too, workgroups=3, flags=words(2), seen_at=seen_at)
    assert makespan >= 500 * 40 and seen_at.item() < 4 * LAPTOP.atomic_ns


@triton.jit
def relay(flags, COUNT: tl.constexpr):
    """Everybody watches the flag before his own; the last raises the first."""
    program = tl.program_id(0)
    if program < COUNT - 1:
        while poll(flags + program + 1) == 0:
            pause(flags + program + 1)
    for _ in range(program % 7):
        nap()
    tl.store(flags + program, 1)


def test_a_chain_of_plain_stores_wakes_everybody():
    flags = words(50)
    launch(relay, workgroups=50, flags=flags, COUNT=50)
    assert flags.all()


@triton.jit
def looks_without_poll(flag, seen):
    """Not how one should wait, but on a GPU it would end. A thousand looks are more than enough."""
    looks = 0
    if tl.program_id(0) == 0:
        while (tl.atomic_add(flag, 0) == 0) & (looks < 1000):
            pause(flag)
            looks += 1
        tl.store(seen, tl.load(flag))
    elif tl.program_id(0) == 1:
        while (tl.load(flag) == 0) & (looks < 1000):
            pause(flag)
            looks += 1
        tl.store(seen + 1, tl.load(flag))
    else:
        for _ in range(20):
            nap()
        signal(flag, "sys")


def test_a_wait_by_other_means_than_poll_ends_as_well():
    seen = words(2)
    launch(looks_without_poll, workgroups=3, flag=words(1), seen=seen)
    assert seen.tolist() == [1, 1]


# -------------------------------------------------------------------------------------------------------------- time


@triton.jit
def one_tile(a, b, y, times, k, BM: tl.constexpr, BK: tl.constexpr, OWN: tl.constexpr):
    none = tl.program_id(0)
    before, cycles_before = now(), cycles()
    if OWN:
        i, ks = tl.arange(0, BM), tl.arange(0, BK)
        tile = tl.zeros((BM, BM), tl.float32)
        for step in range(0, k, BK):
            left = tl.load(a + i[:, None] * k + step + ks[None, :])
            right = tl.load(b + i[None, :] * k + step + ks[:, None])
            tile = tl.dot(left, right, tile)
    else:
        tile = gemm_tile(a, none, b, none, k, BM, BM, False, True, BM, BM, BK)
    after = now()
    tl.store(times, after - before)
    tl.store(times + 1, cycles() - cycles_before)
    store_tile(y, tile, none, BM, 0, BM, False, BM, BM)


@pytest.mark.parametrize("macro", [True, False])
@pytest.mark.parametrize("own", [True, False])
@pytest.mark.parametrize(
    ("model", "bound"),
    [
        (machine(tflops=0.1, memory_gbps=1000), "compute"),
        (machine(tflops=100, memory_gbps=1), "memory"),
        (machine(tflops=0.4, memory_gbps=2), "near"),
    ],
    ids=["compute", "memory", "near"],
)
def test_a_pipelined_loop_costs_the_slower_of_loads_and_products(model, bound, own, macro):
    m, k = 32, 256
    a, b, y = torch.randn(m, k).bfloat16(), torch.randn(m, k).bfloat16(), torch.zeros(m, m)
    times = torch.zeros(2, dtype=torch.int64)
    launch(one_tile, machine=model, macro=macro, a=a, b=b, y=y, times=times, k=k, BM=m, BK=64, OWN=own)
    assert error(y, a.double() @ b.double().T) < 1e-6
    compute = 2 * m * m * k / model.flops_per_ns
    load = 2 * m * k * 2 / model.operand_gbps
    slower = max(compute, load)
    assert times[0].item() == pytest.approx(slower + model.memory_ns, abs=2)
    assert times[0].item() == pytest.approx(model.tile_ns(2 * m * m * k, 2 * m * k * 2), abs=2)
    assert times[1].item() == pytest.approx(times[0].item() * 2, abs=4), "at 2 GHz"
    assert (bound == "compute") == (compute > 5 * load) and (bound == "memory") == (load > 5 * compute)


@triton.jit
def fetch(x, y, times, peers, SIZE: tl.constexpr, FAR: tl.constexpr):
    i = tl.arange(0, SIZE)
    if tl.program_id(0) == 0:
        before = now()
        tl.store(y + i, tl.load(on_peer(x, peers, FAR) + i))
        tl.store(times, now() - before)


def test_what_is_on_another_rank_travels_the_link():
    times = torch.zeros(1, dtype=torch.int64)
    x, y = torch.randn(2, 4096), torch.zeros(2, 4096)
    peers = torch.tensor([0, 4096 * 4])
    spent = {}
    for link in (0.5, 50):
        for far in (0, 1):
            model = machine(link_gbps=link, copy_gbps=1000.0)
            launch(
                fetch, ranks=2, symmetric=(x, y), machine=model, x=x, y=y, times=times, peers=peers, SIZE=4096, FAR=far
            )
            spent[link, far] = times.item()
            assert torch.equal(y[0], x[far])
    assert spent[0.5, 0] == spent[50, 0], "no link is used at home"
    assert spent[0.5, 1] == pytest.approx(4096 * 4 / 0.5 + model.link_ns, abs=2)
    assert spent[50, 1] == pytest.approx(4096 * 4 / 50 + model.link_ns, abs=2)


@triton.jit
def copies(x, y, SIZE: tl.constexpr):
    i = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    tl.store(y + i, tl.load(x + i))


def test_the_last_thing_that_a_workgroup_does_takes_its_time():
    x, y = torch.randn(1 << 14), torch.zeros(1 << 14)
    model = machine(memory_gbps=10, copy_gbps=1000)
    assert launch(copies, machine=model, x=x, y=y, SIZE=1 << 14) >= 2 * 4 * (1 << 14) / 10
    assert torch.equal(x, y)


@pytest.mark.parametrize("seed", range(6))
def test_a_pipe_is_shared_equally_at_any_time(seed):
    """Against small steps of time, in each of which everybody who is there gets the same."""
    draw = np.random.default_rng(seed)
    begins = np.sort(draw.integers(0, 40, 12)) * (1 if seed % 2 else 25)
    sizes = draw.integers(1, 30, 12) * 8
    rate, step = 2.0, 1 / 16

    remaining, expected, now = sizes.astype(float), np.full(12, np.nan), 0.0
    while np.isnan(expected).any():
        there = (begins <= now) & np.isnan(expected)
        now += step
        remaining[there] -= rate * step / max(there.sum(), 1)
        expected[there & (remaining <= 1e-9)] = now

    pipe, found = clock.Pipe(rate), np.full(12, np.nan)
    asked = {}  # as the clock does: who is not through when it wakes up asks again
    for who, (begin, size) in enumerate(zip(begins.tolist(), sizes.tolist())):
        while asked and min(asked.values())[0] <= begin:
            at, end, early = min(asked.values())
            left = pipe.left(end, at)
            asked[early] = (at + left, end, early)
            if left <= clock.LEAST_NS:
                found[early] = at
                del asked[early]
        end = pipe.join(begin, size)
        asked[who] = (begin + pipe.left(end, begin), end, who)
    for at, end, who in sorted(asked.values()):
        found[who] = at + pipe.left(end, at)
    assert np.abs(found - expected).max() <= 14 * step
    assert found.max() >= begins[0] + sizes.sum() / rate - step, "no faster than its rate"


def test_memory_is_shared_by_the_workgroups_of_a_rank():
    x, y = torch.randn(8 << 10), torch.zeros(8 << 10)
    model = machine(memory_gbps=10, copy_gbps=1000, memory_ns=1)
    times = [launch(copies, workgroups=count, machine=model, x=x, y=y, SIZE=1 << 10) for count in (1, 2, 8)]
    assert times[1] == pytest.approx(2 * times[0], rel=0.05) and times[2] == pytest.approx(8 * times[0], rel=0.05)


# --------------------------------------------------------------------------------------------- errors, nothing left


def attributes():
    """Everything that the emulator might have put something else into."""
    owners = [tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.constexpr, JITFunction]
    owners += [private, private.InterpreterBuilder, private.ReduceOps, private.ScanOps]
    owners += [kosmos.lang.device, private.interpreter_builder, private.interpreter_semantic]
    return {
        (getattr(owner, "__name__", type(owner).__name__), name): value
        for owner in owners
        for name, value in vars(owner).items()
        if name not in ("__dict__", "__weakref__")
    } | {("builder", "class"): type(private.interpreter_builder)}


def same(before, after):
    gone, new = before.keys() - after.keys(), after.keys() - before.keys()
    changed = [key for key in before.keys() & after.keys() if before[key] is not after[key]]
    return not (gone or new or changed), sorted(map(str, [*gone, *new, *changed]))


@triton.jit
def fails_in_python(x):
    tl.store(x, 1.0 / (tl.program_id(0) - tl.program_id(0)).nonsense)


@triton.jit
def fails_by_name(x):
    tl.store(x, there_is_no_such_name)  # noqa: F821


@triton.jit
def fails_in_triton(x):
    tl.store(x + tl.arange(0, 3), 0.0)


@pytest.mark.parametrize(
    ("kernel", "kind", "says"),
    [
        (fails_in_python, AttributeError, "nonsense"),
        (fails_by_name, NameError, "there_is_no_such_name"),
        (fails_in_triton, ValueError, "power of 2"),
    ],
    ids=["python", "name", "triton"],
)
def test_an_error_in_a_kernel_comes_out_with_its_line(kernel, kind, says):
    before = attributes()
    with pytest.raises(kind, match=says) as caught:
        launch(kernel, ranks=2, workgroups=3, x=torch.zeros(8))
    frames = traceback.extract_tb(caught.value.__traceback__)
    mine = [frame for frame in frames if frame.name == kernel.fn.__name__]
    assert mine and mine[0].filename == __file__ and "tl.store" in mine[0].line
    assert same(before, attributes()) == (True, [])


def test_nothing_is_left_behind_by_a_launch_that_ends_or_does_not():
    world = world_of(2)
    x, w = operands("all_gather_matmul", world, 9, 9, 9)
    before = attributes()
    kosmos.all_gather_matmul(x, w, world=world)
    assert same(before, attributes()) == (True, [])
    with pytest.raises(kosmos.KosmosDeadlock):
        launch(waits_for_nobody, flag=words(1))
    assert same(before, attributes()) == (True, [])


@pytest.mark.parametrize("piece", ["_patch_lang", "interpreter_semantic", "InterpreterOptions"])
def test_nothing_is_left_behind_when_the_set_up_fails(monkeypatch, piece):
    before = attributes()
    with monkeypatch.context() as patch:
        patch.delattr(private, piece)
        with pytest.raises(kosmos.KosmosEnvironmentError, match=f"does not fit Triton {triton.__version__}: .*{piece}"):
            launch(numbered, out=words(1, 3))
    with monkeypatch.context() as patch:
        if piece == "_patch_lang":
            patch.setattr(private, piece, lambda *_: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                launch(numbered, out=words(1, 3))
    assert same(before, attributes()) == (True, [])


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("op", OPS)
def test_a_launch_that_was_broken_off_leaves_its_world_usable(monkeypatch, op, error):
    """Half of the tickets are taken, some counters raised: the next call must not go on from there."""
    world = world_of(2)
    x, w = operands(op, world, 130, 70, 20)
    expected, _ = run(op, x, w, world)
    calls = []

    def breaks(*args):
        calls.append(args)
        if len(calls) == 5:
            raise error("stop")
        return usual(*args)

    fn = kosmos.lang.gemm_tile.fn
    usual = macros.MACROS[fn]
    with monkeypatch.context() as patch:
        patch.setitem(macros.MACROS, fn, breaks)
        with pytest.raises(error, match="stop"):
            OPS[op](x, w, world=world)
    assert torch.equal(run(op, x, w, world)[0], expected)


@triton.jit
def compiled(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i, mask=i < n) + tl.load(x + now() % 4), mask=i < n)


def test_kernels_still_compile_for_a_gpu_after_they_were_emulated(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    x, y = torch.ones(64), torch.zeros(64)
    for _ in range(2):
        launch(compiled, workgroups=2, x=x, y=y, n=50, BLOCK=32)
        assert y.sum() == 100
        signature = {"x": "*fp32", "y": "*fp32", "n": "i32", "BLOCK": "constexpr"}
        made = triton.compile(
            ASTSource(fn=compiled, signature=signature, constexprs={(3,): 32}), target=GPUTarget("cuda", 90, 32)
        )
        assert "globaltimer" in made.asm["ptx"] and made.asm["cubin"]
        for path in tmp_path.iterdir():  # the second time it is compiled again
            for file in path.iterdir():
                file.unlink()


def in_two_threads(work):
    """work(0, together) and work(1, together), each in a thread; both go on from together() at the same moment."""
    failures, barrier = [], threading.Barrier(2)

    def guarded(seed):
        try:
            work(seed, lambda: barrier.wait(60))
        except BaseException as problem:
            failures.append(problem)
            barrier.abort()

    threads = [threading.Thread(target=guarded, args=(seed,)) for seed in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures


def test_two_threads_may_launch_at_the_same_time():
    """Each on its world, and both on one: launches take turns, and each gets its own results and its own trace."""
    shared = world_of(2)

    def work(seed, together):
        own = world_of(2 + seed)
        for turn in range(4):
            for world in (own, shared):
                for op in OPS:
                    x, w = operands(op, world, 20 + 50 * seed, 70, 20, torch.float32, seed=seed + 2 * turn)
                    together()
                    with kosmos.record() as recorded:
                        y = OPS[op](x, w, world=world)
                    assert error(y, reference(op, x, w)) <= 1e-5
                    assert recorded.trace.problems() == [] and recorded.trace.ranks == world.ranks

    in_two_threads(work)


def test_two_threads_may_run_one_plan_of_one_world():
    world = world_of(2)
    expected = {}
    pairs = [operands("matmul_reduce_scatter", world, 40, 70, 20, torch.float32, seed=seed) for seed in range(2)]
    alone = run("matmul_reduce_scatter", *pairs[0], world)[1]

    def work(seed, together):
        for _ in range(8):
            together()
            with kosmos.record() as recorded:
                y = kosmos.matmul_reduce_scatter(*pairs[seed], world=world)
            assert torch.equal(expected.setdefault(seed, y), y)
            assert error(y, reference("matmul_reduce_scatter", *pairs[seed])) <= 1e-5
            assert recorded.trace.equals(alone)

    in_two_threads(work)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [({}, "missing .* 'out'"), ({"out": words(1, 3), "more": 1}, "unexpected keyword argument 'more'")],
)
def test_arguments_that_do_not_fit_the_kernel_are_named(arguments, says):
    with pytest.raises(TypeError, match=says):
        launch(numbered, **arguments)


def test_the_self_test_passes_here():
    emulator.self_test()
