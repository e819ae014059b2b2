"""Worlds, recordings, and what is refused: one sentence that names the argument, the value and what is allowed."""

import re
import threading

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs torch")
pytest.importorskip("triton", reason="needs triton")

from emulated import OPS, error, operands, reference, run, world_of  # noqa: E402

import kosmos  # noqa: E402
from kosmos import schedule  # noqa: E402
from kosmos.errors import (  # noqa: E402
    KosmosArgumentError,
    KosmosDeadlock,
    KosmosEnvironmentError,
    KosmosError,
    KosmosShapeError,
)
from kosmos.ops import launch as ops_launch  # noqa: E402
from kosmos.world import recording  # noqa: E402

CPU = torch.device("cpu")


@pytest.fixture
def nothing_runs(monkeypatch):
    def launch(*_, **__):
        raise AssertionError("a kernel was launched")

    monkeypatch.setattr(kosmos.emulator, "launch", launch)


def refused(kind, call, *says):
    """The sentence with which `call` is refused; it must hold every one of `says`."""
    with pytest.raises(KosmosError) as caught:
        call()
    sentence = str(caught.value)
    assert type(caught.value) is kind, (type(caught.value), sentence)
    assert all(said in sentence for said in says), sentence
    assert 20 < len(sentence) < 320 and "\n" not in sentence and not sentence.endswith(".")
    return sentence


# ----------------------------------------------------------------------------------------------------------- worlds


@pytest.mark.parametrize("name", ["ranks", "workgroups"])
@pytest.mark.parametrize("value", [0, -1, True, False, 1.5, 2.0, "2", [2], {}, float("nan")])
def test_ranks_and_workgroups_are_whole_numbers(name, value):
    arguments = {"ranks": 2, "device": "cpu", name: value}
    refused(
        KosmosArgumentError,
        lambda: kosmos.World.virtual(**arguments),
        f"{name}={value!r}",
        "must be a whole number, 1 or more",
    )


def test_ranks_are_not_left_out():
    refused(KosmosArgumentError, lambda: kosmos.World.virtual(None, device="cpu"), "ranks=None")


@pytest.mark.parametrize("value", ["", "Laptop", "MI999", 5, 1.0, [], {}, True, ("laptop",)])
def test_unknown_machines_are_refused_with_the_known_ones(value):
    refused(
        KosmosArgumentError,
        lambda: kosmos.World.virtual(2, device="cpu", machine=value),
        f"machine={value!r}",
        *kosmos.machines,
    )


@pytest.mark.parametrize("value", [0, -1, "x", "8", True, [], {}, float("nan"), float("inf"), -0.5, 1e-300])
def test_a_link_has_a_rate(value):
    refused(
        KosmosArgumentError,
        lambda: kosmos.World.virtual(2, device="cpu", link_gbps=value),
        f"link_gbps={value!r}",
        "GB/s",
        "None",
    )


@pytest.mark.parametrize("value", ["", "tpu!", "meta", "mps", 5, -1, [], {}, 1.5])
def test_a_device_is_a_cpu_or_a_gpu(value):
    refused(
        KosmosArgumentError,
        lambda: kosmos.World.virtual(2, device=value),
        f"device={value!r}",
        "allowed are 'cpu' and 'cuda[:N]'",
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_here_is_an_environment_error():
    for device in ("cuda", "cuda:3"):
        refused(
            KosmosEnvironmentError,
            lambda device=device: kosmos.World.virtual(2, device=device),
            f"device={device!r}",
            "no GPU is usable here",
            "device='cpu'",
        )


def test_a_world_of_several_processes_is_not_built_yet():
    with pytest.raises(NotImplementedError, match="World.distributed is not built yet; kosmos.World.virtual"):
        kosmos.World.distributed()


def test_a_world_says_what_it_is():
    world = kosmos.World.virtual(3, device="cpu")
    assert (world.ranks, world.workgroups, world.device) == (3, kosmos.machines["laptop"].units, CPU)
    assert repr(world) == "World(3 ranks × 16 workgroups, emulated laptop)"
    world = kosmos.World.virtual(ranks=2, workgroups=5, device=CPU, machine="MI350X", link_gbps=2.5)
    assert world.machine.link_gbps == 2.5 and world.machine.units == 256 and world.workgroups == 5
    assert repr(world) == "World(2 ranks × 5 workgroups, emulated MI350X, links paced to 2.5 GB/s)"
    assert kosmos.World.virtual(1, device="cpu", machine=kosmos.machines["H100"]).workgroups == 132


@pytest.mark.triton
def test_the_first_cpu_is_the_cpu():
    world = kosmos.World.virtual(2, 2, device="cpu:0")
    x, w = operands("all_gather_matmul", world, 3, 4, 5)
    assert error(kosmos.all_gather_matmul(x, w, world=world), reference("all_gather_matmul", x, w)) <= 1e-2


def test_random_numbers_are_a_matrix_a_rank_and_the_same_for_the_same_seed():
    world = world_of(3)
    x = world.randn(40, 50, seed=7)
    assert x.shape == (3, 40, 50) and x.dtype == torch.bfloat16 and x.is_contiguous() and x.device == CPU
    assert torch.equal(x, world.randn(40, 50, seed=7)) and torch.equal(x, world_of(3).randn(40, 50, seed=7))
    assert not torch.equal(x, world.randn(40, 50, seed=8)) and not torch.equal(x[0], x[1])
    assert not torch.equal(world.randn(40, 50), world.randn(40, 50))
    wide = world.randn(40, 50, torch.float32, seed=7)
    assert torch.equal(wide.bfloat16(), x) and abs(wide.mean()) < 0.05 and abs(wide.std() - 1) < 0.05


@pytest.mark.parametrize("name", ["rows", "cols"])
@pytest.mark.parametrize("value", [0, -3, 1.5, True, "4", None])
def test_random_matrices_are_not_empty(name, value):
    arguments = {"rows": 2, "cols": 2, name: value}
    refused(KosmosArgumentError, lambda: world_of(2).randn(**arguments), f"{name}={value!r}", "1 or more")


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool, "bf16", None])
def test_random_numbers_are_of_a_floating_type(dtype):
    refused(KosmosArgumentError, lambda: world_of(2).randn(2, 2, dtype=dtype), f"dtype={dtype!r}", "floating-point")


# --------------------------------------------------------------------------------------------------------- operands


def wrong_operands(op, world):
    """(what is wrong, x, w, kind of error, words of its sentence)"""
    x, w = operands(op, world, 6, 5, 8)
    ranks, rows, k = x.shape
    shape = "[ranks, M/ranks, K]" if op == "all_gather_matmul" else "[ranks, M, K]"
    for name, place in (("x", 0), ("w", 1)):
        good = (x, w)

        def put(tensor, place=place, good=good):
            return (tensor, good[1]) if place == 0 else (good[0], tensor)

        want = shape if name == "x" else "[ranks, N, K]"
        tensor = good[place]
        for what, other in {
            "a matrix": tensor[0],
            "four dimensions": tensor[None],
            "a rank too many": torch.cat([tensor, tensor[:1]]),
            "one rank": tensor[:1],
            "no rows": tensor[:, :0],
            "no columns": tensor[:, :, :0],
            "no ranks": tensor[:0],
            "a number": tensor[0, 0, 0],
        }.items():
            yield f"{name} {what}", *put(other), [f"{name} has shape {list(other.shape)}", want, f"ranks={ranks}"]
        for other in (None, [tensor], tensor.float().numpy(), "tensor"):
            kind = type(other).__name__
            yield f"{name} {kind}", *put(other), [f"{name} must be a torch.Tensor {want}, not {kind}"]
        for dtype in (torch.float64, torch.int8, torch.bool, torch.complex64, torch.float8_e5m2):
            yield (
                f"{name} {dtype}",
                *put(tensor.to(dtype)),
                [f"{name} has dtype {dtype}", "torch.bfloat16, torch.float16, torch.float32"],
            )
        yield f"{name} elsewhere", *put(tensor.to("meta")), [f"{name} is on meta", "the world is on cpu"]
        turned = tensor.transpose(1, 2).contiguous().transpose(1, 2)
        wide = torch.zeros(ranks, tensor.shape[1], k + 1, dtype=tensor.dtype)[:, :, :k]
        for what, other in {
            "turned": turned,
            "part of rows": wide,
            "one for all": tensor[:1].expand(ranks, -1, -1),
        }.items():
            yield (
                f"{name} {what}",
                *put(other),
                [f"{name} is not contiguous", str(other.stride()), f"pass {name}.contiguous()"],
            )
    yield "mixed types", x, w.float(), ["x has dtype torch.bfloat16 and w has dtype torch.float32", "must be the same"]
    yield "mixed types too", x.half(), w, ["x has dtype torch.float16 and w has dtype torch.bfloat16"]
    yield "another K", x, w[:, :, :7].contiguous(), ["x has 8 columns and w has 7", "same K"]
    if op == "matmul_reduce_scatter":
        yield "an odd row", x[:, :-1].contiguous(), w, [f"M={rows - 1} rows", f"divide by ranks={ranks}"]


@pytest.mark.parametrize("op", OPS)
def test_operands_that_do_not_fit_are_refused_by_name(op, nothing_runs):
    world = world_of(3)
    seen = 0
    for _what, x, w, says in wrong_operands(op, world):
        refused(KosmosShapeError, lambda x=x, w=w: OPS[op](x, w, world=world), *says)
        seen += 1
    assert seen > 40 and not world._plans


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("world", [None, 4, "world", kosmos.World])
def test_a_world_is_a_world(op, world, nothing_runs):
    x, w = operands(op, world_of(2), 4, 4, 4)
    refused(KosmosArgumentError, lambda: OPS[op](x, w, world=world), f"world={world!r}", "must be a kosmos.World")


@pytest.mark.parametrize("name", ["K", "N"])
def test_a_matrix_is_no_wider_than_32_bits_can_address(name, nothing_runs):
    narrow, wide = torch.empty(1, 1, 1).half(), torch.empty(1, 1 << 24, dtype=torch.float16)
    x, w = (wide[None], wide[None]) if name == "K" else (narrow, wide[..., None])
    refused(
        KosmosShapeError,
        lambda: kosmos.all_gather_matmul(x, w, world=world_of(1)),
        f"{name}={1 << 24}",
        f"{(1 << 24) - 1} columns",
    )


# ----------------------------------------------------------------------------------------------- policies and orders


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("policy", "says"),
    [
        ("both_ways:2", ["policy='both_ways:2'", "fixed:CREW", "planned", "one_way:CREW", "two_way:CREW"]),
        ("fixed", ["policy='fixed'"]),
        ("fixed:-1", ["policy='fixed:-1'"]),
        ("fixed:1.5", ["policy='fixed:1.5'"]),
        (4, ["policy=4"]),
        (["fixed:1"], ["policy=['fixed:1']"]),
        ({}, ["policy={}"]),
        ("fixed:0", ["fixed:0 leaves nobody to be a"]),
        ("fixed:4", ["fixed:4 leaves nobody to be a builder"]),
        ("fixed:5", ["crew=5 of policy fixed:5 is larger than the 4 workgroups of a rank"]),
        ("one_way:5", ["crew=5 of policy one_way:5 is larger than the 4 workgroups"]),
        ("two_way:5", ["crew=5 of policy two_way:5 is larger than the 4 workgroups"]),
        ("fixed:" + "1" * 30, ["policy="]),
    ],
)
def test_policies_that_cannot_be_are_refused(op, policy, says, nothing_runs):
    world = world_of(2, workgroups=4)
    x, w = operands(op, world, 4, 4, 4)
    for _ in range(2):
        refused(KosmosArgumentError, lambda: OPS[op](x, w, world=world, policy=policy), *says)
    assert not world._plans


def test_a_crew_of_none_is_refused_only_where_movers_are_needed(nothing_runs):
    world = world_of(2, workgroups=4)
    x, w = operands("all_gather_matmul", world, 4, 4, 4)
    for policy in ("fixed:0", "one_way:0"):
        refused(
            KosmosArgumentError,
            lambda policy=policy: kosmos.all_gather_matmul(x, w, world=world, policy=policy),
            f"policy {policy} leaves nobody to be a mover among 4 workgroups a rank",
            "1 mover items a rank",
        )


@pytest.mark.triton
def test_a_crew_of_none_is_fine_where_nobody_has_to_move():
    world = world_of(1, workgroups=2)
    x, w = operands("all_gather_matmul", world, 4, 4, 4)
    for policy in ("fixed:0", "one_way:0", "two_way:0"):
        run("all_gather_matmul", x, w, world, policy=policy)
    world = world_of(2, workgroups=2)
    x, w = operands("all_gather_matmul", world, 4, 4, 4)
    run("all_gather_matmul", x, w, world, policy="two_way:0")
    x, w = operands("matmul_reduce_scatter", world, 4, 4, 4)
    run("matmul_reduce_scatter", x, w, world, policy="one_way:0")


def test_one_workgroup_cannot_be_split(nothing_runs):
    world = world_of(2, workgroups=1)
    x, w = operands("all_gather_matmul", world, 4, 4, 4)
    says = "policy planned needs at least 2 workgroups a rank; there are 1"
    refused(KosmosArgumentError, lambda: kosmos.all_gather_matmul(x, w, world=world, policy="planned"), says)


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "order",
    ["", "bands", "random", "random:", "random:-1", "random:x", 5, None, [0, 1], {}, np.arange(4), 1.5, b"rank"],
)
def test_unknown_orders_are_refused(op, order, nothing_runs):
    world = world_of(2)
    x, w = operands(op, world, 4, 4, 4)
    refused(KosmosArgumentError, lambda: OPS[op](x, w, world=world, order=order), "order=", "function")
    assert not world._plans


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    "wrong",
    [
        lambda items: np.arange(len(items) - 1),
        lambda items: np.zeros(len(items), int),
        lambda items: np.arange(len(items)) + 0.5,
        lambda items: np.arange(len(items)).astype(float),
        lambda items: np.arange(len(items)) % 2 == 0,
        lambda items: None,
        lambda items: "abcd",
    ],
)
def test_an_order_that_is_no_permutation_is_refused(op, wrong, nothing_runs):
    world = world_of(2)
    x, w = operands(op, world, 4, 70, 4)
    sentence = refused(KosmosArgumentError, lambda: OPS[op](x, w, world=world, order=wrong), "<lambda>", "permutation")
    assert re.search(r"0\.\.3\b.*\b4 items", sentence) and not world._plans


def test_an_error_in_an_order_is_the_users_own_and_leaves_no_plan(nothing_runs):
    world = world_of(2)
    x, w = operands("all_gather_matmul", world, 4, 4, 4)
    with pytest.raises(ZeroDivisionError):
        kosmos.all_gather_matmul(x, w, world=world, order=lambda items: 1 / 0)
    assert not world._plans


@pytest.mark.triton
def test_an_order_may_be_anything_that_can_be_called():
    class Order:
        """Equal to nothing that can be hashed."""

        __hash__ = None

        def __eq__(self, other):
            return True

        def __call__(self, items):
            return np.argsort(items.row, kind="stable")[::-1]

        def method(self, items):
            return np.arange(len(items))[::-1]

    world = world_of(2)
    for op in OPS:
        x, w = operands(op, world, 70, 70, 4)
        first, _ = run(op, x, w, world)
        rule = Order()
        for order in (rule, rule.method, lambda items: range(len(items))):
            y, trace = run(op, x, w, world, order=order)
            assert torch.equal(y, first) and isinstance(trace.meta["order"], str)


def with_queues(monkeypatch, op, change):
    """Let the queues of an op be what `change` makes of them."""
    usual = schedule.QUEUES[op]

    def queues(**arguments):
        made = usual(**arguments)
        change(made.items)
        return made

    monkeypatch.setitem(ops_launch.QUEUES, op, queues)


def test_queues_that_would_deadlock_are_refused_before_the_launch(monkeypatch, nothing_runs):
    world = world_of(2, workgroups=4)
    x, w = operands("all_gather_matmul", world, 4, 70, 4)

    def starve(items):
        items["builder"]["wait_count"][1, -1] = 2

    with_queues(monkeypatch, "all_gather_matmul", starve)
    sentence = refused(KosmosDeadlock, lambda: kosmos.all_gather_matmul(x, w, world=world), "rank 1, workgroup ")
    assert re.search(r"builder item 3 would wait for ever for counter \d+, which gets 1 of 2 signals", sentence)
    assert not world._plans


def test_queues_whose_counters_get_too_much_are_refused_before_the_launch(monkeypatch, nothing_runs):
    world = world_of(2, workgroups=4)
    x, w = operands("matmul_reduce_scatter", world, 4, 70, 4)

    def surplus(items):
        items["reducer"]["wait_count"][0, 1] = 1

    with_queues(monkeypatch, "matmul_reduce_scatter", surplus)
    says = "gets 2 signals but a reducer item waits for 1: a counter is waited for as a whole"
    refused(KosmosArgumentError, lambda: kosmos.matmul_reduce_scatter(x, w, world=world), "counter ", says)


def test_errors_are_ours_and_pythons():
    for kind in (KosmosArgumentError, KosmosShapeError, kosmos.KosmosTraceError):
        assert issubclass(kind, KosmosError) and issubclass(kind, ValueError)
    assert issubclass(KosmosShapeError, KosmosArgumentError) and issubclass(KosmosEnvironmentError, RuntimeError)
    assert issubclass(KosmosDeadlock, KosmosError) and issubclass(kosmos.KosmosTimeout, KosmosError)


# ------------------------------------------------------------------------------------------------------- recordings


@pytest.mark.triton
class TestRecording:
    def call(self, op="all_gather_matmul", world=None, **how):
        world = world_of(2) if world is None else world
        x, w = operands(op, world, 9, 20, 9)
        return OPS[op](x, w, world=world, **how)

    def test_a_trace_a_launch_in_their_order(self):
        world = world_of(2)
        with kosmos.record() as recorded:
            self.call(world=world, policy="one_way:1")
            self.call(world=world, policy="fixed:1")
            self.call("matmul_reduce_scatter", world, order="random:1")
        assert [trace.meta["op"] for trace in recorded.traces] == ["all_gather_matmul"] * 2 + ["matmul_reduce_scatter"]
        assert [trace.meta["policy"] for trace in recorded.traces] == ["one_way:1", "fixed:1", "one_way:1"]
        assert recorded.trace is recorded.traces[-1] and recorded.trace.meta["order"] == "random:1"
        assert all(trace.problems() == [] for trace in recorded.traces)

    def test_outside_a_block_nothing_is_recorded(self):
        with kosmos.record() as recorded:
            pass
        self.call()
        assert recorded.traces == [] and recording() is None
        refused(KosmosArgumentError, lambda: recorded.trace, "nothing is recorded")

    def test_inside_a_block_the_trace_is_not_there_yet(self):
        with kosmos.record() as recorded:
            self.call()
            refused(KosmosArgumentError, lambda: recorded.trace, "nothing is recorded")
        assert len(recorded.traces) == 1

    def test_of_nested_blocks_the_inner_one_records(self):
        with kosmos.record() as outer:
            self.call()
            with kosmos.record() as inner:
                self.call("matmul_reduce_scatter")
            self.call(order="rank")
        assert [trace.meta["order"] for trace in outer.traces] == ["local_first", "rank"]
        assert [trace.meta["op"] for trace in inner.traces] == ["matmul_reduce_scatter"]

    def test_a_block_that_ends_in_an_error_leaves_nothing_open(self):
        with pytest.raises(ZeroDivisionError), kosmos.record() as recorded:
            self.call()
            raise ZeroDivisionError
        self.call()
        assert recorded.traces == []
        with kosmos.record() as again:
            self.call()
        assert len(again.traces) == 1

    def test_gradients_are_recorded_too(self):
        world = world_of(2)
        x, w = (t.requires_grad_() for t in operands("all_gather_matmul", world, 9, 20, 9, torch.float32))
        with kosmos.record() as recorded:
            kosmos.all_gather_matmul(x, w, world=world).sum().backward()
        assert [trace.meta["op"] for trace in recorded.traces] == ["all_gather_matmul", "matmul_reduce_scatter"]

    def test_a_block_records_its_own_thread(self):
        with kosmos.record() as recorded:
            thread = threading.Thread(target=self.call)
            thread.start()
            thread.join()
        assert recorded.traces == []

    def test_what_a_trace_says_about_its_run(self):
        world = kosmos.World.virtual(2, 3, device="cpu", machine="H200", link_gbps=5)
        with kosmos.record() as recorded:
            self.call(world=world, policy="planned")
        meta = recorded.trace.meta
        assert meta["shape"] == {"m": 18, "n": 20, "k": 9} and meta["dtype"] == "bfloat16"
        assert (meta["ranks"], meta["workgroups"], meta["place"], meta["machine"]) == (2, 3, "emulator", "H200")
        assert re.fullmatch(r"planned \(fixed:[12]\)", meta["policy"]) and meta["order"] == "local_first"
        assert meta["link_gbps"] == 5 and meta["clock"]["tick_ns"] == 1 and "H200" in meta["clock"]["source"]
        assert set(meta["versions"]) == {"kosmos", "torch", "triton"} and meta["dropped"] == []

    @pytest.mark.parametrize("room", [1, 0])
    def test_records_that_do_not_fit_are_counted(self, monkeypatch, room):
        """The buffer holds everything unless it would be larger than a gigabyte; then the loss is said."""
        world = world_of(2)
        x, w = operands("all_gather_matmul", world, 200, 200, 9)
        with kosmos.record() as whole:
            kosmos.all_gather_matmul(x, w, world=world)
        monkeypatch.setattr(ops_launch, "TRACE_BYTES", 8 * 4 * 2 * 3 * (2 + room))
        with kosmos.record() as recorded:
            y = kosmos.all_gather_matmul(x, w, world=world)
        assert error(y, reference("all_gather_matmul", x, w)) <= 1e-2
        trace = recorded.trace
        # the first records of all workgroups, with the times when they ended
        kept = trace.spans.to_pylist()
        assert [row for row in whole.trace.spans.to_pylist() if row in kept] == kept
        items = len(trace.queue)
        assert len(trace.spans) == 2 * 3 * room
        assert sum(slot["records"] for slot in trace.meta["dropped"]) == items - len(trace.spans)
        assert "records of 6 workgroups were dropped" in trace.problems()[0]
