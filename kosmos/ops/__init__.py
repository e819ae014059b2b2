"""Fused ops: one file each, with its kernel, its launch and its autograd function."""

from kosmos.ops.all_gather_matmul import all_gather_matmul
from kosmos.ops.matmul_reduce_scatter import matmul_reduce_scatter

__all__ = ["all_gather_matmul", "matmul_reduce_scatter"]
