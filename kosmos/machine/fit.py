"""What a fit of a machine to traces says."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kosmos.machine.model import Machine


@dataclass(frozen=True)
class Fit:
    """A fitted machine. parameters: name -> (value, standard deviation). residuals: a dict for every mean that was
    fitted: trace (its place among those given), quantity (tile, copy, sum, claim, wake, clock), unit, measured, model.
    """

    machine: "Machine"
    parameters: dict[str, tuple[float, float]]
    residuals: list[dict[str, Any]]

    def off(self, quantity: str) -> float:
        """How far the model's means of a quantity are from the measured ones: root mean square, relative."""
        ratios = [one["model"] / one["measured"] - 1 for one in self.residuals if one["quantity"] == quantity]
        return (sum(ratio**2 for ratio in ratios) / len(ratios)) ** 0.5

    def __repr__(self) -> str:
        traces = len({one["trace"] for one in self.residuals})
        lines = [f"{self.machine.name}, fitted to {len(self.residuals)} means of {traces} traces"]
        lines += [f"  {name:13} {value:10.4g} ± {spread:.2g}" for name, (value, spread) in self.parameters.items()]
        for quantity in dict.fromkeys(one["quantity"] for one in self.residuals):
            count = sum(one["quantity"] == quantity for one in self.residuals)
            lines.append(f"  {quantity:13} {count:10} means, off by {100 * self.off(quantity):.1f} % rms")
        return "\n".join(lines)
