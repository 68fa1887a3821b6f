"""The unequal loads of expert-parallel ranks, of which the busiest decides time and memory.

Loads of experts are taken to be log-normal around their mean and independent, except that they sum to all tokens. Their
spread v is part of the job: 0 with forced load balancing, as in Megatron-LM's benchmarks; `planner.limits.IMBALANCE`
with a trained router; 0.56 to 0.8 with random token ids (Gini coefficients of 0.29 to 0.38, arXiv 2605.20982).

Legend: E experts, ep expert-parallel ranks, L layers, v standard deviation of the loads of experts over their mean.
"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from zenith_tune.estimates.workload import FloatArray, Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

MOST_RANKS = 4096
_RANKS = np.arange(1.0, MOST_RANKS + 1)
# Blom 1958: the expected maximum of N normal numbers is the quantile at (N - 3/8) / (N + 1/4).
_MAXIMA = np.array([0.0, *(NormalDist().inv_cdf((n - 0.375) / (n + 0.25)) for n in _RANKS)])
# That of N numbers alone is 0.83 for 2, 0.61 for 8, 0.46 for 64, here to 4%; their mean is taken off.
_MAXIMA_SD = np.concatenate([[0.0], np.sqrt(np.square(1.0 / (1.0 + 0.21 * np.log2(_RANKS))) - 1.0 / _RANKS)])


def busiest_rank(w: Workload, layouts: LayoutBatch, num_layers: Number = 1.0) -> tuple[Number, Number]:
    """Return the expected load of the busiest expert-parallel rank over the mean, and its standard deviation.

    A rank has E / ep experts of `num_layers` layers, whose loads average out: v_rank = v / sqrt(L * E / ep).
    """
    if not np.any(w.imbalance):
        return 1.0, 0.0
    ep = np.minimum(layouts.ep, MOST_RANKS)
    return busiest_of(w.imbalance * np.sqrt(ep / (np.maximum(w.num_experts, 1.0) * num_layers)), ep)


def busiest_of(spread: FloatArray, ranks: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Return the mean and the standard deviation of the largest of `ranks` loads with a known sum."""
    variance = np.log1p(spread * spread) * (ranks > 1)
    sigma = np.sqrt(variance)
    above = sigma * _MAXIMA[ranks]
    share = np.clip(np.exp(above - variance / 2.0), 1.0 + above, ranks)  # of few ranks the sum bounds the tail
    return share, share * sigma * _MAXIMA_SD[ranks]
