"""What a device makes of a layer's arithmetic: a time for every layer whatever its size, and FLOPs by the second."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PassRate:
    """Hold how long one pass of layers takes: their number times `layer_s`, and their FLOPs at `flops_per_s`."""

    flops_per_s: float
    layer_s: float = 0.0

    def seconds(self, flops: float, num_layers: int = 1) -> float:
        """Return the time of that many FLOPs in that many layers.

        >>> PassRate(flops_per_s=1e12, layer_s=1e-4).seconds(2e9, num_layers=2)
        0.0022
        """
        return num_layers * self.layer_s + flops / self.flops_per_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRates:
    """Hold the rates of a module's two passes."""

    forward: PassRate
    backward: PassRate


def fit_rate(measured: Sequence[tuple[float, float]]) -> PassRate:
    """Return the rate of measured layers, each its FLOPs and its seconds: the least squares of relative errors.

    A negative time per layer is none.

    >>> fit_rate([(1e9, 1.1e-3), (3e9, 3.1e-3)])
    PassRate(flops_per_s=1000000000000.0, layer_s=0.0001)
    """
    # t = a + b x with weights 1 / t^2: the normal equations of two unknowns.
    weights = [1 / seconds**2 for _, seconds in measured]
    total = sum(weights)
    mean_x = sum(w * flops for w, (flops, _) in zip(weights, measured, strict=True)) / total
    mean_t = sum(w * seconds for w, (_, seconds) in zip(weights, measured, strict=True)) / total
    spread = sum(w * (flops - mean_x) ** 2 for w, (flops, _) in zip(weights, measured, strict=True))
    both = sum(w * (x - mean_x) * (t - mean_t) for w, (x, t) in zip(weights, measured, strict=True))
    slope = both / spread if spread else mean_t / mean_x
    layer_s = mean_t - slope * mean_x
    if slope <= 0 or layer_s < 0:
        square = sum(w * flops**2 for w, (flops, _) in zip(weights, measured, strict=True))
        slope, layer_s = sum(w * x * t for w, (x, t) in zip(weights, measured, strict=True)) / square, 0.0
    return PassRate(flops_per_s=float(f"{1 / slope:.6g}"), layer_s=float(f"{layer_s:.6g}"))
