"""What the tests of kernels share: small runs, float64 references, and a trace seen by plain loops."""

from collections import defaultdict
from functools import partial

import torch

import kosmos

OPS = {
    "all_gather_matmul": kosmos.all_gather_matmul,
    "matmul_reduce_scatter": kosmos.matmul_reduce_scatter,
}
ORDERS = {"all_gather_matmul": ["local_first", "rank"], "matmul_reduce_scatter": ["band", "row"]}
TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}


def world_of(ranks, workgroups=3, **more):
    return kosmos.World.virtual(ranks, workgroups, device="cpu", **more)


def operands(op, world, shard, n, k, dtype=torch.bfloat16, seed=0):
    """x and w for a product of `shard` rows a rank."""
    rows = shard if op == "all_gather_matmul" else shard * world.ranks
    return world.randn(rows, k, dtype, seed=2 * seed + 1), world.randn(n, k, dtype, seed=2 * seed + 2)


def reference(op, x, w):
    """What the op should give, in float64 and by torch alone."""
    x, w = x.double(), w.double()
    if op == "all_gather_matmul":
        return x.flatten(0, 1) @ w.transpose(1, 2)
    total = (x @ w.transpose(1, 2)).sum(0)
    return total.reshape(x.shape[0], -1, w.shape[1])


def error(y, expected):
    """Relative Frobenius error; NaN if anything is."""
    return ((y.double() - expected).norm() / expected.norm().clamp_min(1e-30)).item()


def poison(world):
    """Fill with NaN whatever a world keeps between calls and a kernel must not read before it has written it."""
    for plan in world._plans.values():
        for tensor in plan.scratch.values():
            tensor.fill_(float("nan"))


def run(op, x, w, world, **how):
    """(y, trace) of one call over poisoned scratch memory, inputs and trace checked."""
    poison(world)
    before = x.clone(), w.clone()
    with kosmos.record() as recorded:
        y = OPS[op](x, w, world=world, **how)
    assert torch.equal(x, before[0]) and torch.equal(w, before[1]), "the inputs are not to be written to"
    check_trace(recorded.trace)
    return y, recorded.trace


def check_trace(trace):
    """Every item of every queue once, no time running backwards, no wait over too early, and nothing else wrong."""
    spans = trace.spans.to_pylist()
    queue = {(row["rank"], row["role"], row["item"]): row for row in trace.queue.to_pylist()}
    assert sorted((s["rank"], s["role"], s["item"]) for s in spans) == sorted(queue)

    lanes, signalled = defaultdict(list), defaultdict(list)
    for span in spans:
        assert 0 <= span["claim_ns"] <= span["start_ns"] <= span["end_ns"] and span["cycles"] >= 0
        assert 0 <= span["rank"] < trace.ranks and 0 <= span["workgroup"] < trace.workgroups
        lanes[span["rank"], span["workgroup"]].append(span)
        row = queue[span["rank"], span["role"], span["item"]]
        if row["signal"] >= 0:
            signalled[row["signal_rank"], row["signal"]].append(span["end_ns"])
    for lane in lanes.values():
        lane.sort(key=lambda span: span["claim_ns"])
        assert all(a["end_ns"] <= b["claim_ns"] for a, b in zip(lane, lane[1:]))
    for span in spans:
        row = queue[span["rank"], span["role"], span["item"]]
        ends = sorted(signalled[row["rank"], row["wait"]])
        if row["wait"] >= 0 and ends:
            assert len(ends) == row["wait_count"] and ends[-1] <= span["start_ns"]

    summary = trace.summary()
    shares = [share for name, share in summary.items() if name != "makespan_ns"]
    assert abs(sum(shares) - 1) < 1e-9 and min(shares) >= 0
    assert trace.problems() == []
    assert trace.meta["dropped"] == []


def without_macros(monkeypatch):
    """Let the ops run every helper through Triton's interpreter."""
    monkeypatch.setattr(kosmos.emulator, "launch", partial(kosmos.emulator.launch, macro=False))
