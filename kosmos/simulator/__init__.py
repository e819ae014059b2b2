"""The simulator: the same queues and policies as on a GPU, in the virtual time of a machine model. No numbers are made.

What comes out is a model's, not a measurement; every trace says so.
"""

from kosmos.simulator.runs import bounds, simulate, simulate_queues
from kosmos.simulator.sweeps import sweep

__all__ = ["bounds", "simulate", "simulate_queues", "sweep"]
