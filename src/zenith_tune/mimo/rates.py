"""What a device makes of layers: their arithmetic, their memory traffic beside it, and the least that starting takes.

A GPU works through a layer at a rate of FLOPs and a time for each hidden number (norms, residuals, activations), which
tensor parallelism does not split; small layers take as long as the host needs to start their kernels.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

FIT_ROUNDS = 5
BUSY = 2.0
"""A layer that takes that many times the least is not waiting for its kernels to be started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Hold how long one pass of layers takes."""

    flops_per_s: float
    number_s: float = 0.0
    """For each hidden number of each layer."""
    layer_s: float = 0.0
    """The least of a layer."""

    def seconds(self, flops: float, numbers: float = 0.0, num_layers: int = 1) -> float:
        """Return the time of that many FLOPs and hidden numbers in that many layers.

        >>> rate = PassRate(flops_per_s=1e12, layer_s=1e-3)
        >>> rate.seconds(2e9, num_layers=1), rate.seconds(2e9, num_layers=4)
        (0.002, 0.004)
        """
        return max(num_layers * self.layer_s, flops / self.flops_per_s + numbers * self.number_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRates:
    """Hold the rates of a module's two passes."""

    forward: PassRate
    backward: PassRate


@dataclass(frozen=True, slots=True)
class MeasuredPass:
    """One pass of one layer."""

    flops: float
    numbers: float
    seconds: float


def fit_rate(measured: Sequence[MeasuredPass]) -> PassRate:
    """Return the rate of measured layers by the least squares of relative errors.

    Those near the least time say what starting takes, the others the rest; where all are near, the rate is at least
    the best that was seen.

    >>> fit_rate([MeasuredPass(x * 1e9, n * 1e6, max(1e-3, x * 1e-3 + n * 1e-4)) for x, n in ((.1, 1), (4, 1), (8, 4))])
    PassRate(flops_per_s=1000000000000.0, number_s=1e-10, layer_s=0.001)
    """
    least = min(each.seconds for each in measured)
    found = PassRate(flops_per_s=1.0, layer_s=least)
    for _ in range(FIT_ROUNDS):
        busy = [each for each in measured if each.seconds > BUSY * found.layer_s]
        if not busy:
            best = max(each.flops / each.seconds for each in measured)
            return PassRate(flops_per_s=best, layer_s=statistics.median(each.seconds for each in measured))
        flops_s, number_s = _two_rates(busy)
        waiting = [each.seconds for each in measured if flops_s * each.flops + number_s * each.numbers < found.layer_s]
        layer_s = statistics.median(waiting) if waiting else 0.0
        found = PassRate(
            flops_per_s=float(f"{1 / flops_s:.6g}"), number_s=float(f"{number_s:.6g}"), layer_s=float(f"{layer_s:.6g}")
        )
    return found


def _two_rates(measured: Sequence[MeasuredPass]) -> tuple[float, float]:
    """Return the seconds by FLOP and by hidden number, neither below 0: t = a x + b n with weights 1 / t^2."""
    xs = [each.flops / each.seconds for each in measured]
    ns = [each.numbers / each.seconds for each in measured]
    xx, nn = sum(x * x for x in xs), sum(n * n for n in ns)
    xn, x1, n1 = sum(x * n for x, n in zip(xs, ns, strict=True)), sum(xs), sum(ns)
    determinant = xx * nn - xn * xn
    if determinant > 1e-9 * xx * nn:
        flops_s, number_s = (x1 * nn - n1 * xn) / determinant, (xx * n1 - xn * x1) / determinant
        if flops_s > 0 and number_s >= 0:
            return flops_s, number_s
    return x1 / xx, 0.0
