"""Power, energy and clocks: reading them while something runs, and what they say.

sensors: what can be read. sampler: reading it meanwhile. samples: what was read. timebase: the host's clock and the
device's. clocks: the clock that every workgroup ran at, from a trace; figure: as a picture. model: why the clock falls.
"""

from kosmos.power.clocks import clock_counters, clock_map
from kosmos.power.figure import clock_figure
from kosmos.power.model import Fit, Observation, PowerModel, fit
from kosmos.power.sampler import probe, sample
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
    "clock_counters",
    "clock_figure",
    "clock_map",
    "find",
    "fit",
    "probe",
    "sample",
    "sweep",
]


def sweep(*arguments, **options):
    """See kosmos.benchmark.sustained.sweep."""
    # the one import upwards: for people, who look for it here
    from kosmos.benchmark.sustained import sweep

    return sweep(*arguments, **options)
