"""What is believed of memory, corrected by every trial: a trial that ran out of it is a bound, not a figure.

The logarithm of needed over estimated memory is a common error, which trials tell, and one of each layout by itself.
A run that went well says that both together stay below the device's memory, one that did not that they exceed it
(censored observations: Tobin, Econometrica 26 (1958)); a measured peak says more.
"""

from __future__ import annotations

import numpy as np

from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.guided.kin import needs_more
from zenith_tune.guided.normal import normal_below, normal_density
from zenith_tune.strategies.guided.prior import Prior

COMMON, OWN = 0.8, 0.6
"""Shares of the standard deviation that are common to all layouts, and each layout's own."""
OTHER_CAUSE = 0.05
"""Chance that a run fails as if for memory although it would fit: fragmentation, other processes, a sick node."""
WRONG, WRONG_SD = 0.1, 0.4
"""Chance that the estimate is of another thing altogether (a part it does not know, a GPU shared), and how far off."""
GRID: FloatArray = 1.5 * np.sinh(np.linspace(-6.0, 6.0, 121)) / np.sinh(6.0)
"""Values of the common error: dense where it is small."""


class MemoryBelief:
    """Hold the chance of every layout to run."""

    def __init__(self, prior: Prior) -> None:
        self._log_memory = prior.log_memory
        typical = float(np.median(prior.memory_sd))
        self._own = np.maximum(OWN * prior.memory_sd, 1e-3)
        self._common = GRID
        self._log_weight = np.log(_common_prior(COMMON * typical))
        self._layouts = prior.layouts
        self._surely_more = np.zeros(len(prior), np.bool_)
        self.fits = self._fits()

    @property
    def room(self) -> FloatArray:
        """The chance of every layout to find the memory that it needs, other causes of failure apart."""
        return self.fits / (1 - OTHER_CAUSE)

    @property
    def common_error(self) -> float:
        """What is believed of the error that all layouts share, as the logarithm of needed over estimated."""
        return float(self._weights() @ self._common)

    def tell_fits(self, index: int) -> None:
        """Learn that a layout ran."""
        self._log_weight = self._log_weight + np.log(self._below(index) + 1e-9)
        self.fits = self._fits()

    def tell_peak(self, index: int, log_share: float) -> None:
        """Learn the logarithm of the share of the device's memory that a layout took."""
        error = (log_share - self._log_memory[index] - self._common) / self._own[index]
        self._log_weight = self._log_weight - np.minimum(error**2 / 2, 8.0)
        self.fits = self._fits()

    def tell_out_of_memory(self, index: int) -> None:
        """Learn that a layout ran out of memory, and that what surely needs more would too."""
        self._log_weight = self._log_weight + np.log(OTHER_CAUSE + (1 - OTHER_CAUSE) * (1 - self._below(index)))
        self._surely_more |= needs_more(self._layouts, index)
        self.fits = self._fits()

    def _below(self, index: int) -> FloatArray:
        """Return the chance to fit for each value of the common error."""
        return normal_below((-self._log_memory[index] - self._common) / self._own[index])

    def _weights(self) -> FloatArray:
        """Return how likely each value of the common error is."""
        weights = np.exp(self._log_weight - self._log_weight.max())
        result: FloatArray = weights / weights.sum()
        return result

    def _fits(self) -> FloatArray:
        room: FloatArray = (-self._log_memory[:, None] - self._common[None]) / self._own[:, None]
        chance: FloatArray = (1 - OTHER_CAUSE) * normal_below(room) @ self._weights()
        return np.where(self._surely_more, 0.0, chance)


def _common_prior(sd: float) -> FloatArray:
    """Return the weights of the grid's values: small errors as calibrated, or large ones where the model is wrong."""
    right, wrong = normal_density(GRID / sd) / sd, normal_density(GRID / WRONG_SD) / WRONG_SD
    weights = ((1 - WRONG) * right + WRONG * wrong) * np.gradient(GRID)
    result: FloatArray = weights / weights.sum()
    return result
