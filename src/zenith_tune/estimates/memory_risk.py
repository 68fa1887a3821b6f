"""The uncertainty of estimated memory: its interval, the probability of running out, and the cost of a tight fit.

Measured over estimated memory is distributed as in the runs of the calibration, kept as quantiles because measured
memory has a long upper tail.

A layout that almost fills its memory is slow: a DeepSeek-V3-shaped model on H100 at 79.7 GB of 80 fell from 225 to 33
TFLOP/s (Megatron-LM PR 6311), because the allocator keeps freeing and claiming blocks. Layouts are ranked by their
mean step over that risk, `expected_step`, not by the likeliest one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from zenith_tune.describe.framework_spec import FrameworkSpec, load_framework
from zenith_tune.estimates.calibration import MemoryCoefficients
from zenith_tune.estimates.memory import MemoryEstimate, estimate_memory
from zenith_tune.estimates.workload import FloatArray, Number, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch

LEAST_SPREAD = 1e-3
"""Least standard deviation of the logarithm of measured over estimated memory."""
TIGHT = 0.99
"""Share of the memory at which a step has half of the slowdown of a full one."""
WIDTH = 0.0025
"""Width of the transition, as a share of the memory."""
CRASH = 1.1
"""Charge for running out of memory, in steps of the layout: assumed, and small because published best layouts with a
predicted risk of 5 to 11% did run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRisk:
    """The memory risk of each layout."""

    oom: FloatArray
    """Probability that it needs more than the device has."""
    tight: FloatArray
    """Probability that it fits, but almost fills the device."""

    def mixed(self, other: MemoryRisk, share: float) -> MemoryRisk:
        """Return the risk where a `share` of runs have the other one."""
        return MemoryRisk(
            oom=(1.0 - share) * self.oom + share * other.oom, tight=(1.0 - share) * self.tight + share * other.tight
        )


def expected_step(roomy_s: FloatArray, risk: MemoryRisk, thrash: Number) -> FloatArray:
    """Return the mean step over the errors of memory, by which layouts are ranked.

    `roomy_s` is the step with memory to spare, `thrash` the slowdown where memory is full.
    """
    return roomy_s * (1.0 + (thrash - 1.0) * risk.tight + (CRASH - 1.0) * risk.oom)


def layout_risk(
    w: Workload, layouts: LayoutBatch, f: FrameworkSpec, c: MemoryCoefficients, usable_bytes: FloatArray | float
) -> tuple[MemoryEstimate, MemoryRisk]:
    """Return the memory of layouts, and the risk of each.

    Where runs may be of a variant of the framework, the risk is a mixture with `c.variant_share` of the variant.
    """
    memory = estimate_memory(w, layouts, f, c)
    risk = memory_risk(memory, usable_bytes, c)
    if not (f.variant and c.variant_share):
        return memory, risk
    variant = estimate_memory(w, layouts, load_framework(f.variant), c)
    return memory, risk.mixed(memory_risk(variant, usable_bytes, c), c.variant_share)


def memory_risk(memory: MemoryEstimate, usable_bytes: FloatArray | float, c: MemoryCoefficients) -> MemoryRisk:
    """Return the risk of an estimate on devices of this memory."""
    oom = oom_probability(memory.device_bytes, usable_bytes, c, memory.unsure_bytes)
    # The gradual slowdown is equivalent to a sharp one at an uncertain edge.
    unsure_bytes = np.hypot(memory.unsure_bytes, WIDTH * LOGISTIC_SD * memory.device_bytes)
    full = oom_probability(memory.device_bytes, TIGHT * usable_bytes, c, unsure_bytes)
    return MemoryRisk(oom=oom, tight=np.maximum(full - oom, 0.0))


LOGISTIC_SD = np.pi / np.sqrt(3.0)
"""Standard deviation of a logistic distribution of width 1."""


def oom_probability(
    device_bytes: FloatArray,
    usable_bytes: FloatArray | float,
    c: MemoryCoefficients,
    unsure_bytes: FloatArray | float = 0.0,
) -> FloatArray:
    """Return the probability that a layout needs more than the device has.

    The errors of measured runs are those of allocated bytes. `unsure_bytes`, the standard deviation of the other bytes,
    is added to them in quadrature.
    """
    errors = np.asarray(c.log_errors)
    spread, middle = _spread(c), float(np.median(errors))
    wider = np.hypot(spread, unsure_bytes / device_bytes) / spread
    room = middle + (np.log(usable_bytes / device_bytes) - middle) / wider
    points = np.concatenate([[errors[0] - 2 * spread], errors, [errors[-1] + 2 * spread]])
    levels = np.concatenate([[0.0], (np.arange(len(errors)) + 0.5) / len(errors), [1.0]])
    result: FloatArray = 1.0 - np.interp(room, points, levels)
    return result


def memory_spread(memory: MemoryEstimate, c: MemoryCoefficients) -> FloatArray:
    """Return the standard deviation of the logarithm of needed over estimated device memory."""
    return np.hypot(c.log_spread, memory.unsure_bytes / memory.device_bytes)


def memory_quantiles(
    estimated: FloatArray,
    levels: tuple[float, ...],
    c: MemoryCoefficients,
    variant: FloatArray | None = None,
    spread: FloatArray | None = None,
) -> FloatArray:
    """Return one row per level: the bytes that a measurement stays under with that probability.

    Where runs may be of a variant of the framework, it is a mixture with `c.variant_share` of the variant. `spread` is
    that of `memory_spread` for device memory instead of allocated memory.
    """
    spreads = np.full(len(estimated), c.log_spread) if spread is None else spread
    wider, middle = np.maximum(spreads, LEAST_SPREAD) / _spread(c), float(np.median(c.log_errors))
    errors = np.exp(middle + (np.asarray(c.log_errors) - middle) * wider[:, None])
    samples, weights = estimated[:, None] * errors, np.full(len(c.log_errors), 1.0)
    if variant is not None and c.variant_share:
        samples = np.concatenate([samples, variant[:, None] * errors], axis=1)
        weights = np.concatenate([weights * (1.0 - c.variant_share), weights * c.variant_share])
    order = samples.argsort(axis=1)
    ordered = np.take_along_axis(samples, order, axis=1)
    heights = weights[order]
    below = (heights.cumsum(axis=1) - heights / 2.0) / weights.sum()
    pairs = list(zip(below, ordered, strict=True))
    return np.array([[np.interp(level, row, values) for row, values in pairs] for level in levels])


def _spread(c: MemoryCoefficients) -> float:
    return max(c.log_spread, LEAST_SPREAD)


def slowdown(device_bytes: FloatArray, capacity: Number, thrash: Number) -> FloatArray:
    """Return how much longer a step takes for lack of memory; `thrash` is the factor where it is full."""
    excess = np.clip((device_bytes / capacity - TIGHT) / WIDTH, -40, 40)
    return 1 + (thrash - 1) / (1 + np.exp(-excess))
