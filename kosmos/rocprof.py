"""rocprofiler around a command: `rocprofv3` sees every kernel dispatch, and we tell it which launches are ours.

    trace = kosmos.rocprof.run(["kosmos", "record", "all_gather_matmul", "-o", "run.parquet"], trace="run.parquet")

In the command every launch of a fused op is a range "kosmos OP POLICY" of its thread, set through roctx, which the
profiler provides; without it a launch is not marked and costs nothing.
"""

import contextlib
import ctypes
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.trace import Trace

ENABLE = "KOSMOS_ROCTX"
"""Set to 1 in the environment of a process whose launches are to be marked; `run` sets it."""

LIBRARIES = ("librocprofiler-sdk-roctx.so.1", "librocprofiler-sdk-roctx.so")

OPTIONS = ("--kernel-trace", "--marker-trace", "--output-format", "rocpd")


def run(
    command: Sequence[str],
    *,
    trace: str | os.PathLike[str] | None = None,
    keep: str | os.PathLike[str] | None = None,
    environment: Mapping[str, str] | None = None,
) -> Trace:
    """Run `command` under rocprofv3: kernel dispatches and markers as the `ranges` of a Trace, without spans.

    trace: the file of a trace that the command saves, as `kosmos record -o` does; then it is that trace, with the
    ranges beside it: the last dispatch of its kernel is put at its first claim. keep: where to leave the rocpd file.
    environment: variables besides those of this process. What the command prints goes where this process prints.

    Raises KosmosEnvironmentError where rocprofv3 is not installed, and for a command that fails or dispatches nothing;
    KosmosTraceError for a file that cannot be read.
    """
    if isinstance(command, str) or not command or not all(isinstance(word, str | os.PathLike) for word in command):
        raise KosmosArgumentError(f"command={command!r} must be a list of words, such as ['python', 'train.py']")
    profiler = find()
    if profiler is None:
        raise KosmosEnvironmentError(
            "rocprofv3 is not installed here: it comes with ROCm 7 or newer, in the package rocprofiler-sdk, as "
            "/opt/rocm/bin/rocprofv3"
        )
    words = [os.fspath(word) for word in command]
    with tempfile.TemporaryDirectory(prefix="kosmos-rocprof-") as folder:
        done = subprocess.run(
            [profiler, *OPTIONS, "--output-directory", folder, "--output-file", "kosmos", "--", *words],
            env={**os.environ, **(environment or {}), ENABLE: "1"},
        )
        found = sorted(Path(folder).rglob("*.db"))
        if done.returncode:
            raise KosmosEnvironmentError(
                f"{shlex.join(words)} ended with the exit code {done.returncode} under rocprofv3; what it printed says "
                "why"
            )
        if not found:
            raise KosmosEnvironmentError(
                f"rocprofv3 has written no rocpd file for {shlex.join(words)}: it ran no kernel, or rocprofv3 is older "
                "than ROCm 7"
            )
        profiles = [Trace.from_rocpd(path) for path in found]
        if keep is not None:
            _keep(found, Path(keep))
    # a file a process, all on one clock
    whole = profiles[0]
    for other in profiles[1:]:
        whole = whole.beside(other)
    return whole if trace is None else _beside(Trace.load(trace), whole)


def find() -> str | None:
    """Where rocprofv3 is: on the PATH, under ROCM_PATH, or where ROCm installs it; None if it is not."""
    folders = [os.environ.get("PATH", ""), os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "bin")]
    return shutil.which("rocprofv3", path=os.pathsep.join(folders))


def _keep(found: list[Path], target: Path) -> None:
    for number, path in enumerate(found):
        name = target if number == 0 else target.with_name(f"{target.stem}_{number}{target.suffix}")
        try:
            shutil.copyfile(path, name)
        except OSError as error:
            raise KosmosEnvironmentError(f"keep={os.fspath(name)!r}: cannot be written ({error.strerror})") from None


def _beside(trace: Trace, profile: Trace) -> Trace:
    """The trace with the profile's ranges, aligned by the dispatch that it is the trace of."""
    kernel = f"{trace.meta.get('op')}_kernel"
    names = profile.ranges["name"].to_pylist()
    ranks, starts = (profile.ranges[column].to_numpy() for column in ("rank", "start_ns"))
    ours = [at for at, name in enumerate(names) if ranks[at] >= 0 and kernel in name]
    if not ours or not len(trace.spans):
        raise KosmosEnvironmentError(f"no dispatch of {kernel} is in the profile, so it cannot be put beside the trace")
    last = max(ours, key=lambda at: starts[at])
    claim = int(np.min(trace.spans["claim_ns"].to_numpy()))
    return trace.beside(profile, offset_ns=claim - int(starts[last]))


class _Roctx:
    """The library, loaded once; `push` is None where there is none, or nobody asked."""

    def __init__(self) -> None:
        self.push: Any = None
        self.pop: Any = None
        self.missing = ""

    def load(self) -> bool:
        """Whether launches are marked from now on; `missing` says why if not."""
        folder = os.path.join(os.environ.get("ROCM_PATH", "/opt/rocm"), "lib")
        for name in (*LIBRARIES, *(os.path.join(folder, name) for name in LIBRARIES)):
            try:
                library = ctypes.CDLL(name)
                self.push, self.pop = library.roctxRangePushA, library.roctxRangePop
            except (OSError, AttributeError):
                continue
            self.push.argtypes, self.push.restype, self.pop.restype = [ctypes.c_char_p], ctypes.c_int, ctypes.c_int
            self.missing = ""
            return True
        self.push = None
        self.missing = f"launches are not marked: {LIBRARIES[1]}, which comes with ROCm's profiler, cannot be loaded"
        return False


_roctx = _Roctx()


def mark_launches() -> bool:
    """Mark every launch of a fused op as a range from now on; whether that is possible, see `why_not_marked`."""
    return _roctx.load()


def why_not_marked() -> str:
    """Why launches are not marked, in a sentence; "" if they are, or if nobody has asked for it."""
    return _roctx.missing


@contextlib.contextmanager
def launch_range(op: str, policy: object) -> Iterator[None]:
    """Around the launch of a fused op: a range "kosmos OP POLICY", where launches are marked."""
    if _roctx.push is None:
        yield
        return
    _roctx.push(f"kosmos {op} {policy}".encode())
    try:
        yield
    finally:
        _roctx.pop()


if os.environ.get(ENABLE) == "1":
    mark_launches()
