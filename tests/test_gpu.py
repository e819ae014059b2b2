"""The fused ops on a real GPU: sizes, ugly shapes, many launches, graphs, streams, faults (`make test-gpu`)."""

import random

import pytest

torch = pytest.importorskip("torch")

from emulated import TOLERANCE, error, reference  # noqa: E402

import kosmos  # noqa: E402
from kosmos.schedule import ITEM  # noqa: E402

pytestmark = pytest.mark.gpu

POLICIES = ("fixed:3", "planned", "one_way:4", "two_way:4")
ORDERS = {
    "all_gather_matmul": ("local_first", "rank", "random:7"),
    "matmul_reduce_scatter": ("band", "row", "random:7"),
}


def operands(world, op, m, n, k, dtype, seed=0):
    """x and w for a GEMM of m, n, k a rank."""
    rows = m // world.ranks if op == "all_gather_matmul" else m
    return world.randn(rows, k, dtype=dtype, seed=seed), world.randn(n, k, dtype=dtype, seed=seed + 1)


def run(op, x, w, world, **options):
    """The op's result, when the device is done with it."""
    y = getattr(kosmos, op)(x, w, world=world, **options)
    world.synchronize()
    return y


def poison(world):
    """Fill what the allocator will hand out next, and all scratch of the world, with NaN."""
    for plan in world._plans.values():
        for tensor in plan.scratch.values():
            tensor.fill_(float("nan"))
    junk = [torch.full((size,), float("nan"), device=world.device) for size in (1 << 12, 1 << 18, 1 << 24)]
    del junk


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("op", ORDERS)
@pytest.mark.parametrize("ranks", (1, 2, 3, 4, 8))
def test_against_float64(op, ranks, dtype):
    world = kosmos.World.virtual(ranks)
    largest = 2048 if dtype is torch.float32 else 4096
    # tiles at the end of a shard that lack rows, and shards of whole tiles
    for m in (largest // 24 * 24, largest // (128 * ranks) * 128 * ranks):
        x, w = operands(world, op, m, 2048, 1024, dtype)
        poison(world)
        y = run(op, x, w, world)
        assert error(y, reference(op, x, w)) <= TOLERANCE[dtype]


def test_no_tile_is_told_of_before_it_is_there():
    """Reducers that wait for every tile, and read NaN if its signal comes first."""
    world = kosmos.World.virtual(4)
    for n, k in ((8192, 8192), (16384, 2048)):
        x, w = operands(world, "matmul_reduce_scatter", 8192, n, k, torch.bfloat16)
        expected = None
        for policy in ("fixed:16", "one_way:2", "one_way:16", "two_way:4"):
            run("matmul_reduce_scatter", x, w, world, policy=policy)
            for _ in range(3):
                poison(world)
                y = run("matmul_reduce_scatter", x, w, world, policy=policy)
                expected = y.clone() if expected is None else expected
                assert torch.equal(y, expected), policy
        assert error(expected[:, ::64], reference("matmul_reduce_scatter", x, w)[:, ::64]) <= TOLERANCE[torch.bfloat16]
        del x, w, y, expected


@pytest.mark.parametrize("op", ORDERS)
def test_8192_class(op):
    world = kosmos.World.virtual(4)
    m, n, k = (8192, 2048, 8192) if op == "all_gather_matmul" else (8192, 8192, 2048)
    x, w = operands(world, op, m, n, k, torch.bfloat16)
    y = run(op, x, w, world)
    assert error(y[:, ::16], reference(op, x, w)[:, ::16]) <= 1e-2


def test_50_ugly_shapes():
    generator = random.Random(1)
    worlds = {ranks: kosmos.World.virtual(ranks) for ranks in (1, 2, 3, 4, 5, 7, 8, 16)}
    for _ in range(50):
        ranks = generator.choice(list(worlds))
        world = worlds[ranks]
        op = generator.choice(list(ORDERS))
        m = ranks * generator.choice((1, 2, 17, 127, 128, 129, 300, 555))
        n = generator.choice((1, 3, 16, 100, 255, 256, 257, 1000))
        k = generator.choice((1, 7, 8, 33, 64, 65, 200, 1000, 1024))
        dtype = generator.choice(list(TOLERANCE))
        policy = generator.choice((None, "one_way:3", "two_way:3", "fixed:1", "planned"))
        x, w = operands(world, op, m, n, k, dtype, seed=m + n + k)
        poison(world)
        y = run(op, x, w, world, policy=policy, order=generator.choice(ORDERS[op]))
        assert error(y, reference(op, x, w)) <= TOLERANCE[dtype], (op, ranks, m, n, k, dtype, policy)


@pytest.mark.parametrize("op", ORDERS)
def test_same_bits_under_every_policy_and_order(op):
    world = kosmos.World.virtual(4)
    x, w = operands(world, op, 2048, 1000, 520, torch.bfloat16)
    first = run(op, x, w, world)
    for policy in POLICIES:
        for order in ORDERS[op]:
            poison(world)
            assert torch.equal(run(op, x, w, world, policy=policy, order=order), first), (policy, order)


def test_1000_launches():
    world = kosmos.World.virtual(4)
    pairs = [(op, policy) for op in ORDERS for policy in POLICIES]
    inputs = {op: operands(world, op, 1024, 768, 512, torch.bfloat16) for op in ORDERS}
    expected = {op: run(op, *inputs[op], world) for op in ORDERS}
    for step in range(1000):
        op, policy = pairs[step % len(pairs)]
        y = getattr(kosmos, op)(*inputs[op], world=world, policy=policy)
        if step % 49 == 0:
            assert torch.equal(y, expected[op])
    world.synchronize()
    assert torch.equal(y, expected[op])


@pytest.mark.parametrize("op", ORDERS)
def test_graph_replay(op):
    world = kosmos.World.virtual(4)
    x, w = operands(world, op, 2048, 512, 512, torch.bfloat16)
    run(op, x, w, world)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = getattr(kosmos, op)(x, w, world=world)
    for seed in range(5):
        x.copy_(operands(world, op, 2048, 512, 512, torch.bfloat16, seed=10 + seed)[0])
        y.fill_(float("nan"))
        graph.replay()
        world.synchronize()
        assert error(y, reference(op, x, w)) <= 1e-2


def test_first_call_inside_a_capture_is_refused():
    world = kosmos.World.virtual(2)
    x, w = operands(world, "all_gather_matmul", 256, 256, 128, torch.bfloat16)
    with pytest.raises(kosmos.KosmosError, match="before it is captured"), torch.cuda.graph(torch.cuda.CUDAGraph()):
        kosmos.all_gather_matmul(x, w, world=world)


@pytest.mark.parametrize("shared", (True, False), ids=("one world", "two worlds"))
def test_two_streams(shared):
    worlds = [kosmos.World.virtual(2)] * 2 if shared else [kosmos.World.virtual(2), kosmos.World.virtual(2)]
    op = "matmul_reduce_scatter"
    inputs = [operands(world, op, 1024, 1024, 256, torch.bfloat16, seed) for seed, world in enumerate(worlds)]
    expected = [run(op, *given, world) for given, world in zip(inputs, worlds, strict=True)]
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    torch.cuda.synchronize()
    results = [[], []]
    for _ in range(50):
        for i, stream in enumerate(streams):
            with torch.cuda.stream(stream):
                results[i].append(kosmos.matmul_reduce_scatter(*inputs[i], world=worlds[i]))
    for world in worlds:
        world.synchronize()
    for i in range(2):
        assert all(torch.equal(y, expected[i]) for y in results[i])


def test_broken_queue_times_out_and_leaves_the_device_usable():
    world = kosmos.World.virtual(4)
    world.timeout_ns = 50_000_000
    x, w = operands(world, "matmul_reduce_scatter", 1024, 512, 256, torch.bfloat16)
    expected = run("matmul_reduce_scatter", x, w, world)
    plan = next(iter(world._plans.values()))
    wait_count = ITEM.names.index("wait_count")
    plan.tables["reducer"][2, 1, wait_count] += 1
    sentence = r"rank 2, workgroup \d+: reducer item 1 waited 0.05 s for counter \d+, which had \d of 5 signals"
    with pytest.raises(kosmos.KosmosTimeout, match=sentence):
        run("matmul_reduce_scatter", x, w, world)
    for _ in range(3):
        assert torch.equal(run("matmul_reduce_scatter", x, w, world), expected)


@pytest.mark.parametrize("op", ORDERS)
@pytest.mark.parametrize("policy", POLICIES)
def test_traces_have_no_problems(op, policy):
    world = kosmos.World.virtual(4)
    x, w = operands(world, op, 4096, 1000, 520, torch.bfloat16)
    run(op, x, w, world, policy=policy)
    with kosmos.record() as recording:
        run(op, x, w, world, policy=policy)
    trace = recording.trace
    assert trace.problems() == []
    assert trace.spans.num_rows == trace.queue.num_rows
    summary = trace.summary()
    assert sum(share for name, share in summary.items() if name != "makespan_ns") == pytest.approx(1)


def test_paced_links_take_the_time_that_they_should():
    gbps = 20
    world = kosmos.World.virtual(4, link_gbps=gbps)
    x, w = operands(world, "all_gather_matmul", 4096, 256, 4096, torch.bfloat16)
    run("all_gather_matmul", x, w, world)
    with kosmos.record() as recording:
        run("all_gather_matmul", x, w, world, policy="one_way:8")
    bound_ns = 1024 * 4096 * 2 / gbps
    assert bound_ns <= recording.trace.summary()["makespan_ns"] <= 1.3 * bound_ns


def test_a_grid_that_cannot_be_resident_is_refused():
    units = torch.cuda.get_device_properties(0).multi_processor_count
    with pytest.raises(kosmos.KosmosArgumentError, match="cannot be resident"):
        kosmos.World.virtual(2, workgroups=units // 2 + 1)


def test_large_matrices_need_64_bit_offsets():
    world = kosmos.World.virtual(2)
    x, w = operands(world, "all_gather_matmul", 40960, 57344, 128, torch.bfloat16)
    y = run("all_gather_matmul", x, w, world)
    rows = torch.tensor([0, 1, 20479, 20480, 40959], device=world.device)
    expected = x.flatten(0, 1)[rows].double() @ w.double().transpose(1, 2)
    assert error(y[:, rows], expected) <= 1e-2


@pytest.mark.parametrize("op", ORDERS)
def test_operands_need_no_alignment(op):
    world = kosmos.World.virtual(2)
    x, w = operands(world, op, 512, 384, 256, torch.bfloat16)
    expected = run(op, x, w, world)
    shifted = torch.empty(x.numel() + 1, dtype=x.dtype, device=x.device)[1:].view(x.shape).copy_(x)
    assert shifted.data_ptr() % 16 and shifted.is_contiguous()
    assert error(run(op, shifted, w, world), expected.double()) <= 1e-2


@pytest.mark.parametrize("op", ORDERS)
def test_gradients(op):
    world = kosmos.World.virtual(4)
    x, w = operands(world, op, 512, 256, 128, torch.float32)
    x, w = x.requires_grad_(), w.requires_grad_()
    exact = [tensor.detach().double().requires_grad_() for tensor in (x, w)]
    getattr(kosmos, op)(x, w, world=world).square().sum().backward()
    reference(op, *exact).square().sum().backward()
    world.synchronize()
    for tensor, double in zip((x, w), exact, strict=True):
        assert error(tensor.grad, double.grad) <= 1e-4


def test_a_captured_graph_survives_a_timeout():
    world = kosmos.World.virtual(4)
    world.timeout_ns = 50_000_000
    op = "matmul_reduce_scatter"
    x, w = operands(world, op, 1024, 512, 256, torch.bfloat16)
    expected = run(op, x, w, world)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = kosmos.matmul_reduce_scatter(x, w, world=world)
    table = next(iter(world._plans.values())).tables["reducer"]
    wait_count = ITEM.names.index("wait_count")
    table[2, 1, wait_count] += 1
    graph.replay()
    with pytest.raises(kosmos.KosmosTimeout):
        world.synchronize()
    table[2, 1, wait_count] -= 1
    for _ in range(2):
        y.fill_(float("nan"))
        graph.replay()
        world.synchronize()
        assert torch.equal(y, expected)
