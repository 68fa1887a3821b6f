"""Posteriors of memory and step times, updated by every trial; docs/guided.md explains both models.

Memory has censored observations (Tobin, Econometrica 26 (1958)). Time is a Gaussian process whose mean is the planner's
estimate (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, sections 2.2 and 2.7); its misfit, a
wrong scale and outliers are learned by the predictive density of each trial given all others (section 5.4.2).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from zenith_tune.estimates.workload import FloatArray
from zenith_tune.layouts.layout import SCHEDULES
from zenith_tune.layouts.layout_batch import (
    RECOMPUTE_BLOCK,
    RECOMPUTE_NONE,
    RECOMPUTE_SELECTIVE,
    BoolArray,
    LayoutBatch,
)
from zenith_tune.strategies.guided.prior import Prior, normal_cdf, normal_density

MISFITS: FloatArray = np.exp(np.linspace(-2.4, 1.2, 13))
"""Candidate ratios of the unexplained errors to those of the prior."""
MISFIT_SD = 0.7
"""Prior standard deviation of that ratio's logarithm."""
WRONG_SCALE, WRONG_SCALE_SD = 0.05, 2.0
"""Prior probability that all estimates share a large error, and the standard deviation of its logarithm."""
SLOW, SLOW_TRIALS = 0.1, 4.0
"""Prior share of unexplained slow layouts, and the number of trials that this prior weighs."""
SLOW_SCALE = 1.0
"""Mean of their log slowdown, which is exponentially distributed."""
NUM_ROUNDS = 6
"""Iterations until the shares of ordinary and slow trials converge."""
LEAST_NOISE = 0.003
"""Standard deviation of the log step time between two runs of one command."""


class TimePosterior:
    """Mean and standard deviation of the logarithm of every layout's step time."""

    def __init__(self, prior: Prior) -> None:
        self._prior = prior
        self._places = layout_places(prior.layouts)
        self._weighted = prior.sensitivity * prior.coefficient_sd
        self._scale_sd = prior.scale_sd
        self._seen: list[int] = []
        self._common: list[FloatArray] = []
        self._near: list[FloatArray] = []
        self._values: list[float] = []
        self._noise: list[float] = []
        self._misfit = 1.0
        self._own: FloatArray = np.zeros(0)
        """Variance of each trial that it does not share with other layouts."""
        self.ordinary = 1 - SLOW
        """Probability that a layout is not an unexplained slow one."""
        self.mean = prior.log_step.copy()
        self.sd: FloatArray = np.sqrt(self._variance())

    def observe(self, index: int, log_step: float, noise: float = 0.0) -> None:
        """Learn the step time of one layout, measured with a relative `noise`."""
        common, near = self._columns(index)
        self._seen.append(index)
        self._common.append(common)
        self._near.append(near)
        self._values.append(log_step)
        self._noise.append(max(noise, LEAST_NOISE))
        self._learn_misfit()
        self.mean, self.sd = self._posterior(self._seen, self._values, self._own, self._common, self._near)
        self.mean[self._seen], self.sd[self._seen] = self._values, self._noise

    def supposing(self, indices: list[int]) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard deviation if the layouts of `indices` turn out as predicted now."""
        if not indices:
            return self.mean, self.sd
        expected = [float(self.mean[index]) for index in indices]
        columns = [self._columns(index) for index in indices]
        own = (self._misfit * self._prior.own_sd[np.array(indices)]) ** 2 + LEAST_NOISE**2
        return self._posterior(
            [*self._seen, *indices],
            [*self._values, *expected],
            np.concatenate([self._own, own]),
            [*self._common, *(common for common, _ in columns)],
            [*self._near, *(near for _, near in columns)],
        )

    def _posterior(
        self, seen: list[int], values: list[float], own: FloatArray, common: list[FloatArray], near: list[FloatArray]
    ) -> tuple[FloatArray, FloatArray]:
        rows = np.array(seen)
        cross = self._scale_sd**2 + np.stack(common, axis=1) + self._misfit**2 * np.stack(near, axis=1)
        errors = np.array(values) - self._prior.log_step[rows]
        solved = np.linalg.solve(cross[rows] + np.diag(own), np.column_stack([errors, cross.T]))
        mean: FloatArray = self._prior.log_step + cross @ solved[:, 0]
        variance = self._variance() - np.einsum("ij,ji->i", cross, solved[:, 1:])
        return mean, np.sqrt(np.maximum(variance, (self._misfit * self._prior.own_sd) ** 2))

    def _variance(self) -> FloatArray:
        """Return the variance of every layout before the first trial."""
        prior = self._prior
        common: FloatArray = (self._weighted**2).sum(axis=1) + self._scale_sd**2
        return common + self._misfit**2 * (prior.neighbour_sd**2 + prior.own_sd**2)

    def _columns(self, index: int) -> tuple[FloatArray, FloatArray]:
        """Return every layout's covariance with that at `index`: by coefficients, and by a Matern-3/2 kernel."""
        prior = self._prior
        apart = np.sqrt(3 * ((self._places - self._places[index]) ** 2).sum(axis=1))
        common: FloatArray = self._weighted @ self._weighted[index]
        return common, prior.neighbour_sd * prior.neighbour_sd[index] * (1 + apart) * np.exp(-apart)

    def _learn_misfit(self) -> None:
        stated, wrong = self._prior.scale_sd, max(self._prior.scale_sd, WRONG_SCALE_SD)
        as_stated, as_wrong = self._fit(stated), self._fit(wrong)
        is_wrong = as_wrong.log_density - as_stated.log_density > np.log((1 - WRONG_SCALE) / WRONG_SCALE)
        fit, self._scale_sd = (as_wrong, wrong) if is_wrong else (as_stated, stated)
        self._misfit, self._own, self.ordinary = fit.misfit, fit.own, 1 - fit.slow

    def _fit(self, scale_sd: float) -> _Fit:
        """Return the fit to the trials if the error common to all layouts has this standard deviation."""
        rows = np.array(self._seen)
        joint, near = scale_sd**2 + np.stack(self._common, axis=1)[rows], np.stack(self._near, axis=1)[rows]
        errors, noise = np.array(self._values) - self._prior.log_step[rows], np.square(self._noise)
        fits = [
            _robust_fit(joint + factor**2 * near, noise + (factor * self._prior.own_sd[rows]) ** 2, errors)
            for factor in MISFITS
        ]
        log_weights = np.array([fit[0] for fit in fits]) - (np.log(MISFITS) / MISFIT_SD) ** 2 / 2
        weights = np.exp(log_weights - log_weights.max())
        log_density = float(log_weights.max() + np.log(weights.sum()))
        weights /= weights.sum()
        return _Fit(
            log_density=log_density,
            misfit=float(np.sqrt(weights @ MISFITS**2)),
            own=1 / (weights @ np.array([1 / own for _, own, _ in fits])),
            slow=float(weights @ np.array([slow for _, _, slow in fits])),
        )


@dataclass(frozen=True, slots=True)
class _Fit:
    log_density: float
    misfit: float
    own: FloatArray
    slow: float


def _robust_fit(joint: FloatArray, bulk: FloatArray, errors: FloatArray) -> tuple[float, FloatArray, float]:
    """Return the trials' log predictive density, each one's own variance, and the share of unexplained slow ones."""
    own, slow = bulk, SLOW
    for _ in range(NUM_ROUNDS):
        inverse = np.linalg.inv(joint + np.diag(own))
        precision = np.diag(inverse)
        off = (inverse @ errors) / precision
        variance = np.maximum(1 / precision - own, 0.0) + bulk
        as_ordinary = (1 - slow) * normal_density(off / np.sqrt(variance)) / np.sqrt(variance)
        as_slow = slow * _slow_density(off, variance)
        density = as_ordinary + as_slow + 1e-300
        is_slow = as_slow / density
        own = 1 / ((1 - is_slow) / bulk + is_slow / (bulk + SLOW_SCALE**2))
        slow = (is_slow.sum() + SLOW * SLOW_TRIALS) / (len(errors) + SLOW_TRIALS)
    return float(np.log(density).sum()), own, float(slow)


def _slow_density(x: FloatArray, variance: FloatArray) -> FloatArray:
    """Return the density of a normal error plus an exponential one."""
    sd = np.sqrt(variance)
    tail: FloatArray = np.exp(np.minimum(variance / (2 * SLOW_SCALE**2) - x / SLOW_SCALE, 50.0)) / SLOW_SCALE
    return tail * normal_cdf(x / sd - sd / SLOW_SCALE)


def layout_places(layouts: LayoutBatch) -> FloatArray:
    """Return coordinates of layouts: twice a size is half a unit away, another way to shard is one."""
    sizes = ("tp", "pp", "vp", "cp", "ep", "etp", "mbs", "num_micro_batches")
    columns = [0.5 * np.log2(np.maximum(getattr(layouts, name), 1)) for name in sizes]
    columns += [1.0 * layouts.zero, 0.5 * layouts.recompute, 0.5 * (layouts.pp > 1)]
    columns += [0.5 * (layouts.schedule == code) for code in range(1, len(SCHEDULES))]
    columns += [0.5 * layouts.sequence_parallel, 1.0 * layouts.flash_attention]
    return np.stack(columns, axis=1)


CUT = ("tp", "pp", "vp", "schedule", "cp", "ep", "etp", "dp", "zero", "sequence_parallel", "flash_attention")
"""Axes that split the model and its work."""


def needs_more(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell which layouts need more memory than that at `index`: a larger micro-batch, or the same recomputed less."""
    kept = _kept(layouts)
    more = alike(layouts, index, CUT) & (layouts.mbs >= layouts.mbs[index]) & (kept >= kept[index])
    # Rows equal in both may differ in what the planner does not know, such as the modules that are recomputed.
    larger = (layouts.mbs > layouts.mbs[index]) | (kept > kept[index])
    result: BoolArray = more & larger & _comparable(layouts, index)
    return result


def is_slower(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell which layouts cannot be faster than that at `index`: the same work, and more of it recomputed."""
    kept = _kept(layouts)
    slower: BoolArray = alike(layouts, index, (*CUT, "mbs")) & (kept < kept[index]) & _comparable(layouts, index)
    return slower


def is_sharding_twin(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell which layouts differ from that at `index` in sharding the optimizer or not, and in nothing else.

    Both send the same: a reduce-scatter of gradients and an all-gather of weights are what an all-reduce is made of.
    """
    same = alike(layouts, index, (*(name for name in CUT if name != "zero"), "mbs", "recompute", "recompute_layers"))
    others = np.arange(len(layouts)) != index
    twins: BoolArray = same & others & (layouts.zero <= 1) & (layouts.zero[index] <= 1)
    return twins


def _kept(layouts: LayoutBatch) -> FloatArray:
    """Return a rank of how much is kept for the backward pass; with blocks, the fewer are recomputed the more."""
    r = layouts.recompute
    blocks = 1 / (1.0 + layouts.recompute_layers)
    return np.select([r == RECOMPUTE_NONE, r == RECOMPUTE_SELECTIVE, r == RECOMPUTE_BLOCK], [3.0, 2.0, blocks], 0.0)


def _comparable(layouts: LayoutBatch, index: int) -> BoolArray:
    """Tell where keeping more means more memory and less work, which blocks against selective does not."""
    kinds = {RECOMPUTE_SELECTIVE, RECOMPUTE_BLOCK}
    here = int(layouts.recompute[index])
    if here not in kinds:
        return np.ones(len(layouts), np.bool_)
    other: BoolArray = layouts.recompute != (kinds - {here}).pop()
    return other


def alike(layouts: LayoutBatch, index: int, names: Iterable[str]) -> BoolArray:
    """Tell which layouts agree with that at `index` in the axes of these names."""
    same = [getattr(layouts, name) == getattr(layouts, name)[index] for name in names]
    result: BoolArray = np.logical_and.reduce(same)
    return result


COMMON, OWN = 0.8, 0.6
"""Shares of the standard deviation that all layouts have in common, and that is each layout's own."""
OTHER_CAUSE = 0.05
"""Probability that a run fails as if for memory although it would fit: fragmentation, another process, a bad node."""
WRONG, WRONG_SD = 0.1, 0.4
"""Probability that the memory model is wrong (an unknown part, a shared GPU), and the standard deviation then."""
GRID: FloatArray = 1.5 * np.sinh(np.linspace(-6.0, 6.0, 121)) / np.sinh(6.0)
"""Grid of the common error, dense around 0."""


class MemoryPosterior:
    """Every layout's probability of running."""

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
        """Every layout's probability of fitting the memory, other causes of failure apart."""
        return self.fits / (1 - OTHER_CAUSE)

    @property
    def common_error(self) -> float:
        """Expected error common to all layouts, as the logarithm of needed over estimated memory."""
        return float(self._weights() @ self._common)

    def observe_fits(self, index: int) -> None:
        self._log_weight = self._log_weight + np.log(self._below(index) + 1e-9)
        self.fits = self._fits()

    def observe_peak(self, index: int, log_share: float) -> None:
        """Learn the logarithm of the share of the device's memory that a layout took."""
        error = (log_share - self._log_memory[index] - self._common) / self._own[index]
        self._log_weight = self._log_weight - np.minimum(error**2 / 2, 8.0)
        self.fits = self._fits()

    def observe_out_of_memory(self, index: int) -> None:
        """Learn that a layout ran out of memory, and that what surely needs more would too."""
        self._log_weight = self._log_weight + np.log(OTHER_CAUSE + (1 - OTHER_CAUSE) * (1 - self._below(index)))
        self._surely_more |= needs_more(self._layouts, index)
        self.fits = self._fits()

    def _below(self, index: int) -> FloatArray:
        """Return the probability of fitting for each value of the common error."""
        return normal_cdf((-self._log_memory[index] - self._common) / self._own[index])

    def _weights(self) -> FloatArray:
        """Return the probability of each value of the common error."""
        weights = np.exp(self._log_weight - self._log_weight.max())
        result: FloatArray = weights / weights.sum()
        return result

    def _fits(self) -> FloatArray:
        room: FloatArray = (-self._log_memory[:, None] - self._common[None]) / self._own[:, None]
        probability: FloatArray = (1 - OTHER_CAUSE) * normal_cdf(room) @ self._weights()
        return np.where(self._surely_more, 0.0, probability)


def _common_prior(sd: float) -> FloatArray:
    """Return the prior of the grid's values: small errors as calibrated, or large ones where the model is wrong."""
    right, wrong = normal_density(GRID / sd) / sd, normal_density(GRID / WRONG_SD) / WRONG_SD
    weights = ((1 - WRONG) * right + WRONG * wrong) * np.gradient(GRID)
    result: FloatArray = weights / weights.sum()
    return result
