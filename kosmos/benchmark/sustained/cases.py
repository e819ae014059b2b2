"""What runs back to back, and what is changed between runs."""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kosmos.benchmark.cases import DTYPES, SHORT
from kosmos.errors import KosmosArgumentError, KosmosShapeError

DATA = ("normal", "zeros", "constant")
"""What the operands hold: normal random numbers, 0, or 1 everywhere. What does not toggle takes less power."""

OVER = ("workgroups", "data", "policy", "sampling")

SECONDS = {"workgroups": 2.5, "data": 2.2, "policy": 2.5, "sampling": 0.5}
"""How long one run lasts. Sensors are slow, and the power cap takes some tenths of a second to settle."""

TURNS = {"workgroups": 1, "data": 2, "policy": 3, "sampling": 20}
"""How often everything is run."""

SETTLE_S = 0.5
"""What is left out at the beginning of a run, while the clock settles; at most a quarter of it."""

BETWEEN = 4
"""Runs between two runs of the full grid, which show the drift."""

UNFUSED = "unfused"
"""A policy that is none: copies and torch's GEMMs, one after the other."""


@dataclass(frozen=True)
class Point:
    """One thing to run: an op with a shape, a grid, data and a policy ("unfused": torch's). sampled_hz: how often the
    sensor is asked meanwhile, 0 for not at all. traced: whether some launches are recorded, for their clock."""

    op: str
    m: int
    n: int
    k: int
    ranks: int
    workgroups: int
    dtype: str = "bf16"
    data: str = "normal"
    policy: str | None = None
    sampled_hz: float = 50.0
    traced: bool = False

    @property
    def flops(self) -> int:
        """Operations of all ranks."""
        return 2 * self.m * self.n * self.k * self.ranks

    @property
    def active(self) -> int:
        """Workgroups of all ranks."""
        return self.ranks * self.workgroups

    @property
    def name(self) -> str:
        """What is particular about it."""
        return ", ".join([f"{self.active} workgroups", self.data, self.policy or "default policy"])


@dataclass(frozen=True)
class Sweep:
    """What is run, and in which order: `order` holds indices of `points`, several times some of them. full: the index
    of the one that the others are compared with, and that is repeated."""

    over: str
    points: tuple[Point, ...]
    order: tuple[int, ...]
    full: int


def grid(units: int) -> list[int]:
    """Workgroups to try on so many units, for all of them first: dense where the power cap counts."""
    shares = (1, 15 / 16, 7 / 8, 13 / 16, 3 / 4, 11 / 16, 5 / 8, 9 / 16, 1 / 2, 7 / 16, 3 / 8, 1 / 4, 1 / 8)
    return sorted({max(1, round(units * share)) for share in shares}, reverse=True)


def plan(
    over: str,
    op: str,
    m: int,
    n: int,
    k: int,
    ranks: int,
    dtype: str,
    units: int,
    workgroups: Iterable[int] | None,
    data: Iterable[str] | None,
    policies: Iterable[str] | None,
    turns: int | None,
    hz: float,
    seed: int,
) -> Sweep:
    """The runs of a sweep. Raises KosmosArgumentError for what is not allowed."""
    if over not in OVER:
        raise KosmosArgumentError(f"over={over!r} is unknown; allowed are {', '.join(OVER)}")
    if op == "matmul":
        op, ranks = "all_gather_matmul", 1
    if op not in SHORT:
        raise KosmosArgumentError(f"op={op!r} is unknown; allowed are matmul, {', '.join(SHORT)}")
    for name, value in (("m", m), ("n", n), ("k", k), ("ranks", ranks)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise KosmosArgumentError(f"{name}={value!r} must be a whole number, 1 or more")
    if m % ranks:
        raise KosmosShapeError(f"m={m} must divide by ranks={ranks}")
    if dtype not in DTYPES:
        raise KosmosArgumentError(f"dtype={dtype!r} is unknown; allowed are {', '.join(DTYPES)}")
    if ranks > units:
        raise KosmosArgumentError(f"ranks={ranks} must be at most the {units} compute units")
    for name, value in (("workgroups", workgroups), ("data", data), ("policies", policies)):
        if isinstance(value, str) or not (value is None or hasattr(value, "__iter__")):
            raise KosmosArgumentError(f"{name}={value!r} must be several, such as a list, or None")
        if value is not None and name != {"policy": "policies"}.get(over, over):
            raise KosmosArgumentError(f"{name} does not go with over={over!r}")
    turns = TURNS[over] if turns is None else turns
    if isinstance(turns, bool) or not isinstance(turns, int) or turns < 1:
        raise KosmosArgumentError(f"turns={turns!r} must be a whole number, 1 or more")
    all_units = units // ranks
    whole = Point(op, m, n, k, ranks, all_units, dtype, sampled_hz=hz)
    shuffle = random.Random(f"{seed} {over} {op}")
    if over == "workgroups":
        return _over_workgroups(whole, all_units, workgroups, turns, shuffle)
    if over == "data":
        return _in_turns(over, [replace(whole, data=kind, traced=True) for kind in _kinds(data)], turns, shuffle)
    if over == "policy":
        chosen = _policies(op, ranks, policies)
        points = [replace(whole, policy=policy, traced=policy != UNFUSED) for policy in chosen]
        return _in_turns(over, points, turns, shuffle)
    # where the power cap does not count, so that what is seen is the sampler and not the cap
    quiet = replace(whole, workgroups=max(1, all_units // 4))
    return _in_turns(over, [replace(quiet, sampled_hz=0.0), quiet], turns, shuffle)


def _over_workgroups(
    whole: Point, all_units: int, workgroups: Iterable[int] | None, turns: int, shuffle: random.Random
) -> Sweep:
    asked = grid(all_units) if workgroups is None else list(dict.fromkeys(workgroups))
    for count in asked:
        if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= all_units:
            raise KosmosArgumentError(f"workgroups={count!r} must be whole numbers from 1 to {all_units} of a rank")
    counts = sorted({all_units, *asked}, reverse=True)
    # some of them are recorded as well, from one end to the other
    traced = {counts[round(at * (len(counts) - 1) / 4)] for at in range(5)}
    points = tuple(replace(whole, workgroups=count, traced=count in traced) for count in counts)
    order = [0]
    for _ in range(turns):
        others = shuffle.sample(range(1, len(points)), len(points) - 1)
        for chunk in _batches(others):
            order += [*chunk, 0]
    return Sweep("workgroups", points, tuple(order), 0)


def _batches(items: Sequence[int]) -> Iterable[Sequence[int]]:
    return (items[at : at + BETWEEN] for at in range(0, len(items), BETWEEN))


def _kinds(data: Iterable[str] | None) -> list[str]:
    kinds = list(DATA) if data is None else list(dict.fromkeys(data))
    for kind in kinds:
        if kind not in DATA:
            raise KosmosArgumentError(f"data={kind!r} is unknown; allowed are {', '.join(DATA)}")
    return kinds


def _policies(op: str, ranks: int, policies: Iterable[str] | None) -> list[str]:
    from kosmos.schedule import Policy

    if policies is None:
        crew = 6 if op == "all_gather_matmul" else 4
        policies = (UNFUSED, f"fixed:{crew}", f"one_way:{crew}")
    found = list(dict.fromkeys(policies))
    for policy in found:
        if policy != UNFUSED:
            Policy.parse(policy)
    if ranks == 1:
        raise KosmosArgumentError("over='policy' needs 2 ranks or more: on one nothing is communicated")
    return found


def _in_turns(over: str, points: list[Point], turns: int, shuffle: random.Random) -> Sweep:
    """Everything in every turn, in random order."""
    order = [at for _ in range(turns) for at in shuffle.sample(range(len(points)), len(points))]
    return Sweep(over, tuple(points), tuple(order), 0)
