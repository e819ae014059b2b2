"""The fused kernels beside what they have to beat, measured in one process, in turns, in random order.

cases: what is measured. measure: how a case is. timer: the clock, on a GPU. results: the file and the statistics.
table: the text. figure: the picture. command: `kosmos bench`. Nothing heavy is imported before something is measured
or read.
"""

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from kosmos.benchmark.cases import SETS, Case
from kosmos.benchmark.command import add_arguments, run
from kosmos.errors import KosmosEnvironmentError

if TYPE_CHECKING:
    import torch

    from kosmos.benchmark.measure import Timer
    from kosmos.benchmark.results import Results

__all__ = ["SETS", "Case", "add_arguments", "bench", "load", "run"]

ROUNDS = 15
"""Burst samples of every variant."""

SUSTAINED_S = 1.0
"""Seconds for which a variant runs back to back."""

TURNS = 3
"""How often it does."""


def bench(
    cases: "str | Case | Iterable[str | Case]" = "quick",
    *,
    rounds: int = ROUNDS,
    sustained_s: float = SUSTAINED_S,
    turns: int = TURNS,
    seed: int = 0,
    output: str | os.PathLike[str] | None = None,
    device: "str | torch.device | None" = None,
    say: Callable[[str], object] | None = None,
    timer: "Timer | None" = None,
    results: "Results | None" = None,
) -> "Results":
    """Measure `cases`: the name of a set (kosmos.benchmark.SETS, or "all"), a Case, or several of these.

    rounds: burst samples of every variant. sustained_s: for how many seconds a variant runs back to back, 1 or more;
    0 leaves this out. turns: how often it does. seed: of the inputs and of the order. output: a JSON file that is
    written anew after every case, so that a run that ends early leaves what it measured. say: takes lines of progress,
    by default to stderr. timer: what times, by default the GPU's own. results: where the results go, for a caller who
    may be interrupted.

    Returns Results, to print, plot and save. A case that finds no memory is skipped with the reason, one whose result
    is wrong is failed; both are in the results. Raises KosmosEnvironmentError without a GPU and KosmosArgumentError for
    values that are not allowed, before anything is allocated.
    """
    try:
        from kosmos.benchmark.measure import measure
    except ModuleNotFoundError as missing:
        if missing.name not in ("torch", "triton", "greenlet"):
            raise
        raise KosmosEnvironmentError(f"a benchmark needs {missing.name}, which is not installed here") from None
    return measure(cases, rounds, sustained_s, turns, seed, output, device, say, timer, results)


def load(path: str | os.PathLike[str]) -> "Results":
    """The results that were saved at `path`. Raises KosmosArgumentError for a file that has none."""
    from kosmos.benchmark.results import Results

    return Results.load(path)
