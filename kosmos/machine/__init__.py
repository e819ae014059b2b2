"""Models of machines: the rates, latencies and power from which emulator, simulator and planner take their times."""

from kosmos.machine.known import machine_named, machines
from kosmos.machine.model import Machine

__all__ = ["Machine", "machine_named", "machines"]
