"""Python functions that a user has written for the simulator: a policy, an order. Each call must end in time."""

import ctypes
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kosmos.errors import KosmosArgumentError
from kosmos.simulator import engine

CALL_SECONDS = 5.0
"""How long one call of a user's function may take."""


@dataclass(frozen=True, slots=True)
class View:
    """What a policy function is told: who asks, and how the queues of its rank stand. It cannot change anything.

    rank, workgroup: who needs work. role: of its last item, None at first. now_ns: the time. head: role -> the item
    that would be claimed next, equal to the length if none is left. length: role -> items of that queue. ready: role ->
    whether that item would not have to wait; False if there is none.
    """

    rank: int
    workgroup: int
    role: str | None
    now_ns: float
    head: Mapping[str, int]
    length: Mapping[str, int]
    ready: Mapping[str, bool]

    def left(self, role: str) -> int:
        """How many items of a queue are not claimed yet."""
        return self.length[role] - self.head[role]


class _TooLong(BaseException):
    """Thrown into a function of the user's that does not end."""


class Watched:
    """Calls functions and stops, with one sentence, one that takes longer than CALL_SECONDS. One that is outside Python
    then (in time.sleep, at a lock) is stopped when it is back."""

    def __init__(self, what: str) -> None:
        self.what = what
        self._lock = threading.Lock()
        self._since: float | None = None
        self._patience = CALL_SECONDS
        self._took = 0.0
        self._thread = threading.get_ident()
        self._over = threading.Event()

    def __enter__(self) -> "Watched":
        threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._over.set()
        if kind is _TooLong:
            raise KosmosArgumentError(
                f"{self.what} does not end: a call of it was stopped after {self._took:.1f} s"
            ) from None

    def call(self, function: Callable[..., Any], *args: Any) -> Any:
        self._patience = CALL_SECONDS
        since = self._since = time.monotonic()
        try:
            return function(*args)
        finally:
            with self._lock:
                self._since = None
                self._took = time.monotonic() - since

    def _watch(self) -> None:
        while not self._over.wait(CALL_SECONDS / 50):
            with self._lock:
                if self._since is not None and time.monotonic() - self._since > self._patience:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), ctypes.py_object(_TooLong))
                    self._patience += 1.0  # it may have caught that


def run_asked(
    state: engine.State, policy: Callable[[View], str | None], roles: tuple[str, str], watched: Watched
) -> None:
    """Run to the end, asking `policy` whenever a workgroup needs work. roles: of the producers and the consumers.

    Raises KosmosArgumentError for an answer that is not allowed.
    """
    run = state.run[0]
    workgroups = int(run["workgroups"])
    length: Mapping[str, int] = MappingProxyType({role: int(state.length[q]) for q, role in enumerate(roles)})
    did: dict[int, str] = {}
    engine.begin(state)
    while engine.go_on(state) == engine.ASKING:
        who = int(state.run[0]["asker"])
        rank, workgroup = divmod(who, workgroups)
        head = {role: min(int(state.ticket[q, rank]), length[role]) for q, role in enumerate(roles)}
        ready = {
            role: head[role] < length[role] and bool(engine.ready(state, q, rank, head[role]))
            for q, role in enumerate(roles)
        }
        now = float(state.run[0]["now"])
        view = View(rank, workgroup, did.get(who), now, MappingProxyType(head), length, MappingProxyType(ready))
        role = watched.call(policy, view)
        if role is None:
            engine.answer(state, -1)
            continue
        if not isinstance(role, str) or role not in roles or head[role] == length[role]:
            left = [repr(name) for name in roles if head[name] < length[name]]
            allowed = f"allowed are {', '.join(left)} and None" if left else "only None is left"
            text = " ".join(repr(role).split())
            raise KosmosArgumentError(
                f"{watched.what} returned {text if len(text) <= 60 else text[:57] + '...'} for rank {rank}, "
                f"workgroup {workgroup}; {allowed}"
            )
        did[who] = role
        engine.answer(state, roles.index(role))
