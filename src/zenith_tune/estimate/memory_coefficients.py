"""The few numbers of the memory model that measurements may move; without any, the code's own account stands."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from zenith_tune.units import GIB, MIB

NUM_QUANTILES = 20


def even_quantiles(spread: float) -> tuple[float, ...]:
    """Return the quantiles of a normal distribution of this standard deviation, evenly spaced in probability."""
    normal = NormalDist(0.0, spread)
    return tuple(normal.inv_cdf((i + 0.5) / NUM_QUANTILES) for i in range(NUM_QUANTILES))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCoefficients:
    """Hold the coefficients of one framework."""

    activations: float = 1.0
    """Measured over accounted activations."""
    logits: float = 1.0
    fixed_bytes: float = 70.0 * MIB
    """Workspaces of the matrix library and small buffers, inside the allocator."""
    imbalance: float = 1.0
    """Tokens on the busiest expert rank over the mean."""
    reserve: float = 0.05
    """What the allocator holds beyond the peak, as a share of activations and temporaries."""
    context_bytes: float = 2.0 * GIB
    """CUDA context and communication buffers, outside the allocator."""
    log_middle: float = 0.0
    """Logarithm of what most runs measure over the account; the estimate is the account times its exponential."""
    variant_share: float = 0.0
    """Share of runs of the framework's variant, where it has one."""
    log_errors: tuple[float, ...] = even_quantiles(0.06)
    """Quantiles of the logarithm of measured over estimated, evenly spaced in probability."""

    @property
    def interval(self) -> tuple[float, float]:
        """The 90% interval of the logarithm of measured over estimated."""
        return self._error(0.05), self._error(0.95)

    @property
    def log_spread(self) -> float:
        """Standard deviation of the logarithm of measured over estimated, from the middle of its quantiles."""
        return (self._error(0.84) - self._error(0.16)) / 2.0

    def _error(self, level: float) -> float:
        levels = (np.arange(len(self.log_errors)) + 0.5) / len(self.log_errors)
        return float(np.interp(level, levels, self.log_errors))
