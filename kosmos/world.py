"""Worlds: the ranks of a run, their symmetric memory, and the recording of what they do."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any
from weakref import WeakValueDictionary

import torch

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError, KosmosTimeout
from kosmos.lang.sync import FAULT_WORDS
from kosmos.machine import Machine, machine_named, machines
from kosmos.trace import ROLES, Trace

PLANS_KEPT = 32
SLOWEST_LINK_GBPS = 0.1
"""All workgroups of a rank that queue up on one such link are through within the 2 s that a record can tell."""


class World:
    """All ranks of one run.

    In a virtual world several ranks share one device and one launch: each has its own share of the workgroups, its
    own slice of every symmetric tensor, and reaches the others' slices through a table of distances, as it would over
    a node's links. Make one with `World.virtual`.

    ranks: how many. workgroups: resident ones a rank. device: a torch.device; on "cpu" the emulator runs the kernels.
    machine: the model from which the emulator takes its times and `planned` its crew. link_gbps: the rate to which
    copies between ranks are paced, None for as fast as it goes. timeout_ns: how long a wait may last.
    """

    def __init__(
        self,
        ranks: int,
        workgroups: int,
        device: torch.device,
        machine: Machine,
        link_gbps: float | None,
        timeout_ns: int = 2_000_000_000,
    ) -> None:
        self.ranks = ranks
        self.workgroups = workgroups
        self.device = device
        self.machine = machine if link_gbps is None else machine.with_link(link_gbps)
        self.link_gbps = link_gbps
        self.timeout_ns = timeout_ns
        self.emulated = device.type == "cpu"
        # the device writes faults straight into host memory, so that looking for one does not wait for the device
        self.faults = torch.zeros(ranks, FAULT_WORDS, dtype=torch.int64, pin_memory=not self.emulated)
        self.links = torch.zeros(ranks * ranks, dtype=torch.int64, device=device)
        self._plans: OrderedDict[Hashable, Any] = OrderedDict()
        self._captured: list[Any] = []
        self._distances: dict[int, torch.Tensor] = {}
        self._scratch: WeakValueDictionary[Hashable, torch.Tensor] = WeakValueDictionary()
        self._stream: torch.cuda.Stream | None = None

    @classmethod
    def virtual(
        cls,
        ranks: int,
        workgroups: int | None = None,
        device: str | torch.device | None = None,
        machine: str | Machine | None = None,
        link_gbps: float | None = None,
    ) -> "World":
        """Several ranks on one device: a GPU if there is one, else the emulator.

        workgroups: a rank's share of the compute units, by default all of them divided by `ranks` (on a GPU) or the
        machine model's units (emulated, where every rank is a whole machine). machine: a name from kosmos.machines or
        a Machine; by default the GPU's own model, or the H100's for a GPU that has none;
            "laptop" in the emulator.
        Raises KosmosArgumentError for values that are not allowed and for a grid that cannot be resident at once.
        """
        _whole("ranks", ranks)
        target = _device(device)
        if link_gbps is not None:
            is_number = isinstance(link_gbps, int | float) and not isinstance(link_gbps, bool)
            if not (is_number and SLOWEST_LINK_GBPS <= link_gbps < float("inf")):
                raise KosmosArgumentError(
                    f"link_gbps={link_gbps!r} must be a rate in GB/s, {SLOWEST_LINK_GBPS} or more, or None"
                )
        if target.type == "cpu":
            model = machine_named("laptop" if machine is None else machine)
            workgroups = model.units if workgroups is None else workgroups
            _whole("workgroups", workgroups)
            return cls(ranks, workgroups, target, model, link_gbps)
        properties = torch.cuda.get_device_properties(target)
        units = properties.multi_processor_count
        if ranks > units:
            raise KosmosArgumentError(f"ranks={ranks} must be at most the {units} compute units of {properties.name}")
        workgroups = units // ranks if workgroups is None else workgroups
        _whole("workgroups", workgroups)
        if ranks * workgroups > units:
            raise KosmosArgumentError(
                f"{ranks} ranks of workgroups={workgroups} cannot be resident at once: {properties.name} has {units} "
                f"compute units, so a rank can have at most {units // ranks}"
            )
        model = machine_named(_model_of(properties.name) if machine is None else machine)
        return cls(ranks, workgroups, target, model, link_gbps)

    @classmethod
    def distributed(cls, group: Any = None) -> "World":
        """One rank a process over a torch.distributed group: not built yet."""
        raise NotImplementedError(
            "kosmos.World.distributed is not built yet; kosmos.World.virtual runs several ranks on one device"
        )

    def randn(self, rows: int, cols: int, dtype: torch.dtype = torch.bfloat16, seed: int | None = None) -> torch.Tensor:
        """Normal random numbers, one matrix a rank: [ranks, rows, cols]. The same seed gives the same numbers."""
        for name, value in (("rows", rows), ("cols", cols)):
            _whole(name, value)
        if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
            raise KosmosArgumentError(f"dtype={dtype!r} must be a floating-point type")
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        shape = (self.ranks, rows, cols)
        return torch.randn(shape, generator=generator, device=self.device, dtype=torch.float32).to(dtype)

    def distances(self, stride_bytes: int) -> torch.Tensor:
        """int64 [ranks, ranks]: bytes from each rank's slice of a stacked tensor to every other rank's."""
        if stride_bytes not in self._distances:
            rank = torch.arange(self.ranks)
            self._distances[stride_bytes] = ((rank - rank[:, None]) * stride_bytes).to(self.device)
        return self._distances[stride_bytes]

    def scratch(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Memory for the inside of a launch, the same for all who ask for the same: launches of a world take turns."""
        key = (name, shape, dtype)
        tensor = self._scratch.get(key)
        if tensor is None:
            tensor = self._scratch[key] = torch.empty(shape, dtype=dtype, device=self.device)
        return tensor

    def plan(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """What `make` returns, remembered under `key`; the least recently used ones are dropped."""
        capturing = self.capturing()
        if key not in self._plans:
            if capturing:
                raise KosmosEnvironmentError(
                    "a fused op must have run once with these shapes, policy and order before it is captured"
                )
            self._plans[key] = make()
        self._plans.move_to_end(key)
        if capturing:
            # a graph keeps using the plan's memory after it has been dropped here
            self._captured.append(self._plans[key])
        if len(self._plans) > PLANS_KEPT:
            # a launch may still be under way on another stream than the one that the plan's memory goes back to
            self._wait()
            self._plans.popitem(last=False)
        return self._plans[key]

    def forget_plans(self) -> None:
        """Drop all plans, and with them the state that a launch which did not end has left behind.

        A captured graph goes on with its plan, whose state is made new.
        """
        self._plans.clear()
        for plan in self._captured:
            plan.reset()

    def capturing(self) -> bool:
        """Whether a CUDA graph is being captured on the world's device."""
        if self.emulated:
            return False
        with torch.cuda.device(self.device):
            return torch.cuda.is_current_stream_capturing()

    def join_stream(self) -> None:
        """Put the current stream behind the one that ran this world last: launches of one world share its state.

        Replays of a captured graph do not come by here: whoever replays one has to order it with the world's launches.
        """
        if self.capturing():
            return
        stream = torch.cuda.current_stream(self.device)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)
        self._stream = stream

    def _wait(self) -> None:
        if not self.emulated:
            torch.cuda.synchronize(self.device)

    def synchronize(self) -> None:
        """Wait for everything that was launched. Raises KosmosTimeout if a wait on the device has expired."""
        self._wait()
        self.raise_fault()

    def raise_fault(self) -> None:
        """Raise KosmosTimeout if the device has reported a fault, and forget the state that it left behind."""
        faults = self.faults.numpy()
        if not faults[:, 0].any():
            return
        self._wait()
        rank = int(faults[:, 0].argmax())
        _, workgroup, role, item, counter, seen, wanted, _ = faults[rank].tolist()
        self.forget_plans()
        self.faults.zero_()
        raise KosmosTimeout(
            f"rank {rank}, workgroup {workgroup}: {ROLES[role]} item {item} waited {self.timeout_ns / 1e9:g} s for "
            f"counter {counter}, which had {seen} of {wanted} signals; "
            "the results of that launch and of those behind it are void"
        )

    def __repr__(self) -> str:
        place = f"emulated {self.machine.name}" if self.emulated else torch.cuda.get_device_name(self.device)
        link = "" if self.link_gbps is None else f", links paced to {self.link_gbps:g} GB/s"
        return f"World({self.ranks} ranks × {self.workgroups} workgroups, {place}{link})"


class record:
    """Record the fused ops that are called inside: `with kosmos.record() as run: ...`, then `run.trace`.

    run.traces holds one Trace a launch, run.trace the last of them. On a GPU leaving the block waits for the device.
    """

    def __init__(self) -> None:
        self.traces: list[Trace] = []
        self._pending: list[Callable[[], Trace]] = []

    @property
    def trace(self) -> Trace:
        """The last trace. Raises KosmosArgumentError if the block has not ended or ran no fused op."""
        if not self.traces:
            raise KosmosArgumentError(
                "nothing is recorded: no fused op has run inside this kosmos.record() block, or the block has not ended"
            )
        return self.traces[-1]

    def add(self, finish: Callable[[], Trace]) -> None:
        """Take a launch whose trace `finish` makes once the device is done."""
        self._pending.append(finish)

    def __enter__(self) -> "record":
        self._thread = threading.current_thread()
        _open.append(self)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        _open.remove(self)
        if kind is None:
            self.traces += [finish() for finish in self._pending]
        self._pending.clear()


_open: list[record] = []


def recording() -> record | None:
    """The innermost open recording of this thread.

    Threads that Python did not start, such as the one in which torch runs a GPU's backward, have no blocks of their own
    and count to the block that was opened last.
    """
    thread = threading.current_thread()
    foreign = isinstance(thread, threading._DummyThread)
    return next((block for block in reversed(_open) if foreign or block._thread is thread), None)


def _whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise KosmosArgumentError(f"{name}={value!r} must be a whole number, 1 or more")


def _device(device: str | torch.device | None) -> torch.device:
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        target = torch.device(device)
    except (RuntimeError, TypeError):
        raise KosmosArgumentError(f"device={device!r} is unknown; allowed are 'cpu' and 'cuda[:N]'") from None
    if target.type == "cpu":
        return torch.device("cpu")
    if target.type != "cuda":
        raise KosmosArgumentError(f"device={device!r} cannot run the kernels; allowed are 'cpu' and 'cuda[:N]'")
    if not torch.cuda.is_available():
        raise KosmosEnvironmentError(f"device={device!r}: no GPU is usable here; device='cpu' runs the emulator")
    index = torch.cuda.current_device() if target.index is None else target.index
    if index >= torch.cuda.device_count():
        raise KosmosArgumentError(f"device={device!r}: there are {torch.cuda.device_count()} GPUs, from 'cuda:0'")
    return torch.device("cuda", index)


def _model_of(gpu: str) -> str:
    return next((name for name in machines if name in gpu), "H100")
