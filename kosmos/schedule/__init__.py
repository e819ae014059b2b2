"""What is to be done, in which order, and by whom: queues as tables, orders, policies, and the deadlock check."""

from kosmos.schedule import all_gather_matmul, matmul_reduce_scatter
from kosmos.schedule.deadlocks import check, deadlock
from kosmos.schedule.policies import Policy
from kosmos.schedule.queues import ITEM, Queues, Tile

QUEUES = {
    "all_gather_matmul": all_gather_matmul.queues,
    "matmul_reduce_scatter": matmul_reduce_scatter.queues,
}
"""The queues of each fused op, by the op's name."""

__all__ = ["ITEM", "QUEUES", "Policy", "Queues", "Tile", "check", "deadlock"]
