"""Where kernels can run here, and whether they run right there."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from kosmos.errors import KosmosError

# Uneven on purpose; on the emulator a second of work.
RANKS, M, N, K = 3, 132, 72, 56


class Place(NamedTuple):
    """verdict: ok, missing or FAILED. what: the hardware, or what it is missing. advice: one sentence, or empty."""

    name: str
    what: str
    verdict: str
    advice: str = ""


def places() -> Iterator[Place]:
    """Every GPU that torch sees, and the emulator, each after its self-test."""
    try:
        import torch
    except Exception as error:  # a broken installation raises anything
        why = _sentence(error)
        yield Place("GPU", why, "missing", "Install torch as above; without it no kernel runs.")
        yield Place("emulator", why, "missing")
        return
    yield from _gpus(torch)
    yield _emulator()


def _gpus(torch) -> Iterator[Place]:
    if not torch.cuda.is_available():
        yield Place("GPU", "torch sees none", "missing", _why_no_gpu(torch))
        return
    for index in range(torch.cuda.device_count()):
        verdict, advice = _try(f"cuda:{index}")
        yield Place(f"cuda:{index}", _hardware(torch, index), verdict, advice)


def _hardware(torch, index: int) -> str:
    of = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        arch, runtime, module = of.gcnArchName.partition(":")[0], f"ROCm {torch.version.hip}", "amdgpu"
    else:
        arch, runtime, module = f"sm_{of.major}{of.minor}", f"CUDA {torch.version.cuda}", "nvidia"
    driver = Path("/sys/module", module, "version")
    driver = f", driver {driver.read_text().strip()}" if driver.is_file() else ""
    return f"{of.name}, {arch}, {of.multi_processor_count} units, {runtime}{driver}"


def _why_no_gpu(torch) -> str:
    nvidia, amd = Path("/dev/nvidiactl").exists(), Path("/dev/kfd").exists()
    if nvidia and not torch.version.cuda:
        return f"There is an NVIDIA GPU, but torch {torch.__version__} is not built for CUDA: install one that is."
    if amd and not torch.version.hip:
        return f"There is an AMD GPU, but torch {torch.__version__} is not built for ROCm: install one that is."
    if nvidia or amd:
        return "There is a GPU, but torch cannot use it: check the driver, and whether this user may open its device."
    return ""


def _emulator() -> Place:
    if sys.platform != "linux":
        return Place("emulator", f"Triton has no build for {sys.platform}", "missing", "Use Linux to run kernels.")
    verdict, advice = _try("cpu")
    return Place("emulator", "runs the kernels on the CPU, in a model's time", verdict, advice)


def _try(device: str) -> tuple[str, str]:
    """Run both fused ops there; the verdict, and the sentence of what went wrong."""
    try:
        for package in ("triton", "greenlet") if device == "cpu" else ("triton",):
            importlib.import_module(package)

        import kosmos
        from kosmos.doctor.reference import TOLERANCE, operands, relative_error
        from kosmos.schedule import QUEUES

        if device == "cpu":
            from kosmos import emulator

            emulator.self_test()
        world = kosmos.World.virtual(RANKS, workgroups=4, device=device)
        for op in QUEUES:
            for dtype, tolerance in TOLERANCE.items():
                x, w = operands(world, op, M, N, K, dtype, seed=0)
                y = getattr(kosmos, op)(x, w, world=world)
                world.synchronize()
                error = relative_error(op, x, w, y)
                if not error <= tolerance:
                    raise KosmosError(f"{op} in {dtype} is off by {error:.1e}; {tolerance:g} is allowed")
    except ImportError as error:
        return "missing", f"{device}: {_sentence(error)}"
    except Exception as error:
        return "FAILED", f"{device}: {_sentence(error)}"
    return "ok", ""


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())[:300]
    return text if isinstance(error, KosmosError) else f"{type(error).__name__}: {text}"
