"""Power, energy and clocks: reading them while something runs, and what they say.

sensors: what can be read. sampler: reading it meanwhile. samples: what was read. timebase: the host's clock and the
device's. clocks: the clock that every workgroup ran at, from a trace; figure: as a picture. model: why the clock falls.
"""

from kosmos.power.clocks import clock_counters, clock_map
from kosmos.power.figure import clock_figure
from kosmos.power.model import Fit, Observation, PowerModel, busy, fit
from kosmos.power.sampler import clock_check, probe, sample
from kosmos.power.samples import Gap, Samples
from kosmos.power.sensors import NoSensor, Recorded, find

__all__ = [
    "Fit",
    "Gap",
    "NoSensor",
    "Observation",
    "PowerModel",
    "Recorded",
    "Samples",
    "busy",
    "clock_check",
    "clock_counters",
    "clock_figure",
    "clock_map",
    "find",
    "fit",
    "load",
    "probe",
    "recording",
    "sample",
    "sweep",
]


# Upwards, as Trace.plot does: for people, who look for these here.


def sweep(*arguments, **options):
    """See kosmos.benchmark.sustained.sweep."""
    from kosmos.benchmark.sustained import sweep

    return sweep(*arguments, **options)


def load(path):
    """The sweep that was saved at `path`; see kosmos.benchmark.sustained.load."""
    from kosmos.benchmark.sustained import load

    return load(path)


def recording(over="workgroups"):
    """The sweep that was measured on an H200; see kosmos.benchmark.sustained.recording."""
    from kosmos.benchmark.sustained import recording

    return recording(over)
