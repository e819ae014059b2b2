"""Why fewer workgroups clock higher: power as a function of what is active, and the clock that the cap leaves.

    watts = idle_w + active × (on_w + unit_w × x^exponent) + byte_pj × GB/s / 1000,  x = clock / max_mhz

An active unit draws something for being on, and something that goes with its clock and the square of a voltage that
falls with the clock: a power of the clock. The cap picks the highest clock at which the sum fits; throughput is then
rate × active × clock. What comes out is a model's; the parameters describe a measured curve and are no data of a chip.
The simulator's law is the same: its H200 has this idle_w, on_w and exponent, and unit_w from clocks of short bursts.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from kosmos.errors import KosmosArgumentError, KosmosEnvironmentError
from kosmos.machine.power import clock_share


@dataclass(frozen=True)
class PowerModel:
    """cap_w: the sustained power that the clock is held to. max_mhz: the highest clock. idle_w: what the board draws
    with a clock but nothing active. on_w: of one active unit, whatever its clock. unit_w: on top of that, at max_mhz.
    exponent: how that grows with the clock. byte_pj: picojoules a byte of device memory, on top of all.
    """

    cap_w: float
    max_mhz: float
    idle_w: float
    unit_w: float
    exponent: float
    on_w: float = 0.0
    byte_pj: float = 0.0

    def watts(self, active: Any, mhz: Any, gbps: Any = 0.0) -> np.ndarray:
        """Power of the board with `active` busy units (a number, or an array; so the others)."""
        x = np.asarray(mhz, float) / self.max_mhz
        return self.idle_w + active * (self.on_w + self.unit_w * x**self.exponent) + self.byte_pj * gbps * 1e-3

    def mhz(self, active: Any, gbps: Any = 0.0) -> np.ndarray:
        """The clock that the cap leaves: the highest, up to max_mhz, at which the power fits."""
        active, gbps = np.broadcast_arrays(np.asarray(active, float), np.asarray(gbps, float))
        budget = self.cap_w - self.idle_w - active * self.on_w - self.byte_pj * gbps * 1e-3
        each = zip(budget.flat, active.flat)
        share = [clock_share(left, count * self.unit_w, self.exponent, 0.0) for left, count in each]
        return self.max_mhz * np.reshape(share, active.shape)

    def kept(self, share: Any, units: int) -> np.ndarray:
        """Throughput kept with this share of `units` active, evenly busy: (share × clock) against all of them."""
        return share * self.mhz(np.asarray(share, float) * units) / self.mhz(units)

    def like(self, own_units: int, units: int, cap_w: float, max_mhz: float, full_mhz: float) -> "PowerModel":
        """A GPU of `units` units that are of the kind of the `own_units` of this one, under another cap.

        full_mhz: its clock with all units busy, which sets how much a unit draws; the idle power keeps its share of the
        cap, and the two parts of a unit their ratio.
        """
        idle = self.idle_w / self.cap_w * cap_w
        one = self.watts(1, full_mhz / max_mhz * self.max_mhz).item() - self.idle_w
        size = (cap_w - idle) / units / one
        return replace(
            self, cap_w=cap_w, max_mhz=max_mhz, idle_w=idle, on_w=self.on_w * size, unit_w=self.unit_w * size
        )


def busy(workgroups: Any, tiles: int) -> np.ndarray:
    """Mean number of workgroups that have a tile, when so many equal tiles are dealt in rounds: in the last round some
    have none."""
    workgroups = np.asarray(workgroups)
    return tiles / np.ceil(tiles / workgroups)


@dataclass(frozen=True)
class Observation:
    """One sustained run of a GEMM of so many tiles. mhz: of the sensor. gbps: traffic with the device memory."""

    workgroups: int
    tiles: int
    tflops: float
    mhz: float
    watts: float
    gbps: float = 0.0


FREE = {"idle_w": (0, 2000), "on_w": (0, 100), "unit_w": (0.01, 100), "exponent": (1, 8), "rate": (0, 1)}
"""What is fitted, and within which limits. rate: TFLOP/s of a busy unit at one MHz."""

OFF = {"mhz": 0.005, "watts": 0.01, "tflops": 0.01}
"""How exactly each is taken to be known, relative: its weight in the fit."""


@dataclass(frozen=True)
class Fit:
    """A PowerModel that was fitted. rate: TFLOP/s of a busy unit at one MHz. error: standard errors of FREE, by name,
    from the residuals; a large one says that the curve does not tell this parameter from the others."""

    model: PowerModel
    rate: float
    error: dict[str, float]
    observations: tuple[Observation, ...]

    def predict(self, workgroups: Any, tiles: int, gbps: float = 0.0) -> dict[str, np.ndarray]:
        """mhz, watts and tflops with so many workgroups."""
        active = busy(workgroups, tiles)
        mhz = self.model.mhz(active, gbps)
        return {"mhz": mhz, "watts": self.model.watts(active, mhz, gbps), "tflops": self.rate * active * mhz}

    def residuals(self, observations: Sequence[Observation] | None = None) -> list[dict[str, float]]:
        """For every observation, by default those of the fit, (predicted / measured - 1) of mhz, watts and tflops."""
        found = []
        for one in self.observations if observations is None else observations:
            said = self.predict(one.workgroups, one.tiles, one.gbps)
            off = {name: float(said[name] / getattr(one, name) - 1) for name in OFF}
            found.append({"workgroups": one.workgroups, **off})
        return found

    def held_out(self) -> list[dict[str, float]]:
        """Residuals of observations that a fit has not seen. Of eleven or more every second one is held out of one fit,
        and the others of a second; of fewer one at a time. The smallest and the largest grid always stay in: beyond
        them nothing is predicted."""
        known = self.observations
        inner = range(1, len(known) - 1)
        folds = [inner[0::2], inner[1::2]] if len(known) >= 11 else [[at] for at in inner]
        found = []
        for fold in folds:
            seen = [one for at, one in enumerate(known) if at not in fold]
            again = fit(seen, self.model.max_mhz, self.model.byte_pj, on="on_w" in self.error)
            found += again.residuals([known[at] for at in fold])
        return sorted(found, key=lambda row: row["workgroups"])

    def __str__(self) -> str:
        model = self.model
        values = {**{part.name: getattr(model, part.name) for part in fields(model)}, "rate": self.rate}
        units = {"cap_w": "W", "max_mhz": "MHz", "idle_w": "W", "on_w": "W", "unit_w": "W", "exponent": ""}
        units |= {"byte_pj": "pJ", "rate": "TFLOP/s a unit and MHz"}
        lines = ["fitted: watts = idle_w + active × (on_w + unit_w × x^exponent), x = clock / max_mhz"]
        for name, value in values.items():
            error = f" ± {self.error[name]:.2g}" if name in self.error else "  (given)"
            lines.append(f"  {name:10} {value:.4g}{error} {units[name]}".rstrip())
        lines.append("predicted against measured, fitted to all points / held out:")
        held = {row["workgroups"]: row for row in self.held_out()} if len(self.observations) >= 6 else {}
        for row in self.residuals():
            other = held.get(row["workgroups"])
            parts = [
                f"{name} {100 * row[name]:+.2f} %" + (f" / {100 * other[name]:+.2f} %" if other else "") for name in OFF
            ]
            lines.append(f"  {row['workgroups']:4} workgroups: {', '.join(parts)}")
        return "\n".join(lines)


def fit(observations: Sequence[Observation], max_mhz: float, byte_pj: float = 0.0, *, on: bool = True) -> Fit:
    """The PowerModel that describes sustained runs over the number of workgroups best, by least squares (scipy).

    on: False fits the plainer law with on_w = 0. The cap is what the runs below the highest clock drew in the mean.
    Raises KosmosArgumentError for fewer than five observations, or if none of them or all of them are held by the cap:
    then the curve has no bend to fit.
    """
    try:
        from scipy.optimize import curve_fit
    except ImportError:
        raise KosmosEnvironmentError("fitting a power model needs scipy (pip install scipy)") from None
    known = tuple(sorted(observations, key=lambda one: one.workgroups))
    if len(known) < 5:
        raise KosmosArgumentError(f"a power model has five parameters: {len(known)} observations are too few")
    capped = [one.mhz < 0.99 * max_mhz for one in known]
    if len({*capped}) == 1:
        raise KosmosArgumentError(
            f"{'all' if capped[0] else 'none'} of the runs are held by the power cap: a fit needs some of either kind"
        )
    cap = float(np.mean([one.watts for one, held in zip(known, capped) if held]))
    columns = {name: np.array([getattr(one, name) for one in known], float) for name in (*OFF, "gbps")}
    active = np.array([busy(one.workgroups, one.tiles).item() for one in known])

    names = [name for name in FREE if on or name != "on_w"]

    def model(values: Sequence[float]) -> tuple[PowerModel, float]:
        given = dict(zip(names, values))
        rate = given.pop("rate")
        return PowerModel(cap, max_mhz, byte_pj=byte_pj, **given), rate

    def predicted(_: Any, *values: float) -> np.ndarray:
        tried, rate = model(values)
        mhz = tried.mhz(active, columns["gbps"])
        said = {"mhz": mhz, "watts": tried.watts(active, mhz, columns["gbps"]), "tflops": rate * active * mhz}
        return np.concatenate([said[name] / columns[name] for name in OFF])

    # a start from the curve itself: the least busy run is not capped, and one that is says how deep the clock falls
    free = int(np.argmin(active))
    each = columns["watts"][free] / active[free]
    rate = columns["tflops"][free] / active[free] / columns["mhz"][free]
    start = {"idle_w": 0.2 * cap, "on_w": 0.2 * each, "unit_w": 0.6 * each, "exponent": 3.0, "rate": rate}
    low, high = ([FREE[name][side] for name in names] for side in (0, 1))
    wanted = np.ones(len(OFF) * len(known))
    sigma = np.repeat(list(OFF.values()), len(known))
    begin = np.clip([start[name] for name in names], low, high)
    try:
        found, covariance = curve_fit(predicted, None, wanted, begin, sigma, bounds=(low, high))
    except (RuntimeError, ValueError) as error:  # it does not converge, or a value is not finite
        raise KosmosArgumentError(f"no power model fits these observations ({error})") from None
    return Fit(*model(found.tolist()), dict(zip(names, np.sqrt(np.diag(covariance)).tolist())), known)
