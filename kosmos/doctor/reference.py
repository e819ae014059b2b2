"""What the fused ops ought to give, in float64, and how far from it they may be."""

import torch

TOLERANCE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""The largest relative error (Frobenius norms) of a correct result."""


def operands(world, op: str, m: int, n: int, k: int, dtype: torch.dtype, seed: int) -> tuple[torch.Tensor, ...]:
    """x and w, random, for a GEMM of m, n, k on each rank: after the gather, or before the scatter."""
    rows = m // world.ranks if op == "all_gather_matmul" else m
    return world.randn(rows, k, dtype=dtype, seed=seed), world.randn(n, k, dtype=dtype, seed=seed + 1)


def relative_error(op: str, x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> float:
    """How far y is from op(x, w) in float64, relative to that; NaN if y has one. One rank's product at a time."""
    ranks = x.shape[0]
    if op == "all_gather_matmul":
        gathered = x.flatten(0, 1).double()
        pairs = ((y[rank], gathered @ w[rank].double().T) for rank in range(ranks))
    else:
        total = sum(x[rank].double() @ w[rank].double().T for rank in range(ranks))
        pairs = [(y.flatten(0, 1), total)]
    wrong = right = 0.0
    for got, expected in pairs:
        wrong += (got.double() - expected).square().sum().item()
        right += expected.square().sum().item()
    return (wrong / right) ** 0.5
