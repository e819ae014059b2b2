import functools
import os

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # One core a worker; set before anything loads a thread pool
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@functools.cache
def why_no_gpu() -> str:
    """One sentence, or nothing where there is a GPU."""
    try:
        import torch
    except ImportError:
        return "needs a GPU, and torch, which is not installed"
    return "" if torch.cuda.is_available() else "needs a GPU, and torch sees none"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("gpu") and why_no_gpu():
        pytest.skip(why_no_gpu())
