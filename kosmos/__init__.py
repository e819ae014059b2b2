"""KOSMOS: self-scheduling persistent kernels that can be watched, compared and changed.

The names below are loaded when they are first used: reading and drawing traces needs neither torch nor
triton.
"""

import importlib

__version__ = "0.1.0"

_HOME = {
    "KosmosError": "errors",
    "KosmosArgumentError": "errors",
    "KosmosShapeError": "errors",
    "KosmosDeadlock": "errors",
    "KosmosTimeout": "errors",
    "KosmosTraceError": "errors",
    "KosmosEnvironmentError": "errors",
    "Trace": "trace",
    "Policy": "schedule",
    "machines": "machine",
    "Machine": "machine",
    "simulate": "simulator",
    "sweep": "simulator",
    "bounds": "simulator",
    "World": "world",
    "record": "world",
    "all_gather_matmul": "ops",
    "matmul_reduce_scatter": "ops",
    "bench": "benchmark",
    "panel": "panels",
    "compare": "viewer",
}

_MODULES = ("power", "rocprof")
"""Whole modules that are used by their name: kosmos.power.sample(), ..."""

__all__ = ["__version__", *_HOME, *_MODULES]


def __getattr__(name):
    if name in _MODULES:
        return importlib.import_module(f"kosmos.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'kosmos' has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f"kosmos.{_HOME[name]}"), name)
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "triton", "greenlet"):
            raise
        from kosmos.errors import KosmosEnvironmentError

        raise KosmosEnvironmentError(
            f"kosmos.{name} runs kernels and needs {missing.name}, which is not installed here (Triton has wheels for "
            "Linux only); traces, schedules, machine models and plots work without it"
        ) from None


def __dir__():
    return sorted(__all__)
