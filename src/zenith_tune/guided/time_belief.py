"""What is believed of step times, corrected by every trial: a Gaussian process whose prior is the planner's estimate.

Its covariance is that of a linear model in the coefficients, of a common factor and of neighbouring layouts (Rasmussen
and Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2 and 2.7). How large the errors are is
learned too: their common scale has an inverse-gamma prior worth a few trials (ibid., section 9.9), so that a machine on
which the estimates prove right is soon believed, and one on which they prove wrong is looked at more widely.
"""

from __future__ import annotations

import numpy as np

from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.strategies.guided.prior import Prior

SCALE_TRIALS = 4.0
"""How many trials the prior of the errors' scale is worth."""
LEAST_NOISE = 0.003
"""Standard deviation of the logarithm of a measured step time that two runs of one command differ by anyway."""


class TimeBelief:
    """Hold mean and standard deviation of the logarithm of every layout's step time."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._places = layout_places(prior.layouts)
        weighted = prior.sensitivity * prior.coefficient_sd
        self._weighted = weighted
        shared = (weighted**2).sum(axis=1) + prior.scale_sd**2 + prior.neighbour_sd**2
        self._variance: FloatArray = shared + prior.own_sd**2
        self._seen: list[int] = []
        self._columns: list[FloatArray] = []
        self._values: list[float] = []
        self._noise: list[float] = []
        self.mean = prior.log_step.copy()
        self.sd: FloatArray = np.sqrt(self._variance)

    def tell(self, index: int, log_step: float, noise: float = 0.0) -> None:
        """Learn the step time of one layout, known but for a relative `noise`."""
        self._seen.append(index)
        self._columns.append(self._column(index))
        self._values.append(log_step)
        self._noise.append(max(noise, LEAST_NOISE))
        self.mean, self.sd = self._posterior(self._seen, self._values, self._noise, self._columns)

    def supposing(self, indices: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation if the layouts of `indices` turn out as is believed of them now."""
        if not indices:
            return self.mean, self.sd
        believed = [float(self.mean[index]) for index in indices]
        noise = [*self._noise, *([LEAST_NOISE] * len(indices))]
        columns = [*self._columns, *(self._column(index) for index in indices)]
        return self._posterior([*self._seen, *indices], [*self._values, *believed], noise, columns)

    def _posterior(
        self, seen: list[int], values: list[float], noise: list[float], columns: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        at, cross = np.array(seen), np.stack(columns, axis=1)
        joint = cross[at] + np.diag(np.square(noise))
        errors = np.array(values) - self._prior.log_step[at]
        solved = np.linalg.solve(joint, np.column_stack([errors, cross.T]))
        mean: FloatArray = self._prior.log_step + cross @ solved[:, 0]
        variance = self._variance - np.einsum("ij,ji->i", cross, solved[:, 1:])
        scale = (SCALE_TRIALS + errors @ solved[:, 0]) / (SCALE_TRIALS + len(seen))
        return mean, np.sqrt(np.maximum(variance * scale, 1e-12))

    def _column(self, index: int) -> FloatArray:
        """Return the covariance of every layout with that at `index`; neighbours by a Matern kernel of order 3/2."""
        p = self._prior
        apart = np.sqrt(3 * ((self._places - self._places[index]) ** 2).sum(axis=1))
        column: FloatArray = self._weighted @ self._weighted[index] + p.scale_sd**2
        column = column + p.neighbour_sd**2 * (1 + apart) * np.exp(-apart)
        column[index] += p.own_sd**2
        return column


def layout_places(layouts: LayoutBatch) -> FloatArray:
    """Return where layouts lie: twice a size is half a unit away, another way to shard or to recompute is one."""
    sizes = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "num_micro_batches")
    columns = [0.5 * np.log2(np.maximum(getattr(layouts, name), 1)) for name in sizes]
    columns += [1.0 * layouts.zero, 0.5 * layouts.recompute, 0.5 * (layouts.pp > 1)]
    columns += [0.5 * layouts.sequence_parallel, 1.0 * layouts.flash_attention]
    return np.stack(columns, axis=1)
