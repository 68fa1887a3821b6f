"""The prior of every layout: the planner's estimate and its uncertainty, by the four errors of docs/guided.md."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.calibrate.holdout import FEW
from zenith_tune.calibrate.time_family import family_of
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.estimates.calibration import Calibration, TimeCoefficients
from zenith_tune.estimates.memory_risk import slowdown
from zenith_tune.estimates.step import estimate, known_numbers
from zenith_tune.estimates.time import estimate_time
from zenith_tune.estimates.workload import Estimate, FloatArray
from zenith_tune.layouts.layout_batch import LayoutBatch


def normal_density(x: FloatArray) -> FloatArray:
    """Return the density of the standard normal distribution."""
    result: FloatArray = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return result


def normal_cdf(x: FloatArray) -> FloatArray:
    """Return the probability of a standard normal value below x; off by 7.5e-8 at most.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", formula 26.2.17.
    """
    t = 1 / (1 + 0.2316419 * np.abs(x))
    terms = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
    tail = normal_density(x) * t * (terms[0] + t * (terms[1] + t * (terms[2] + t * (terms[3] + t * terms[4]))))
    return np.where(x >= 0, 1 - tail, tail)


FALLBACK = "megatron"
"""The framework whose coefficients stand in for those of one that was never measured."""
KNOWN, UNKNOWN = 0.3, 0.6
"""Uncertainty of coefficients, as a share of their family's, when fitted to enough runs or to few."""
STEP = 0.05
"""Relative change of a coefficient by which its effect is measured."""
SHARES = {"scale": 1.0, "neighbour": 0.4, "own": 0.7}
"""Standard deviations of the errors as shares of the calibration's spread on runs that it has not seen."""
LEAST_SPREAD, MOST_SPREAD = 0.1, 0.3
"""Limits of that spread: sources differ by no less, and a wider one comes from a few outliers."""
ALL_WORK = {KNOWN: 0.15, UNKNOWN: 0.6}
ALL_WAITING = 4.0
"""Factors of a layout's own error, where a step is all GPU work and where it is all launches and messages.

Held-out residuals of the measured landscapes, less each landscape's median, have a standard deviation (1.48 times their
median) of 0.05 above 70% of work, 0.15 from 30% to 70%, and 0.3 to 0.9 below."""
HOST = "layer_launch_s"
WORK = ("compute", "recompute", "optimizer")
LEAST_MEMORY_SPREAD = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """The predictions before any trial; arrays have one row per layout."""

    layouts: LayoutBatch
    estimate: Estimate
    log_step: FloatArray
    sensitivity: FloatArray
    """Derivative of log_step by the logarithm of each coefficient."""
    coefficient_sd: FloatArray
    scale_sd: float
    neighbour_sd: FloatArray
    own_sd: FloatArray
    log_memory: FloatArray
    """Logarithm of needed over usable device memory."""
    memory_sd: FloatArray
    limit_share: float = 1.0
    """Usable share of a device's memory."""

    def __len__(self) -> int:
        return len(self.log_step)


def prior_of(
    subject: PlanSubject, calibration: Calibration, layouts: LayoutBatch, limit_bytes: float | None = None
) -> Prior:
    """Return the prior of `layouts`; `limit_bytes` is the usable memory of a device."""
    found = estimate(subject.model, subject.cluster, subject.job, layouts, calibration)
    names = family_of(subject.job.framework.name).fitted or family_of(FALLBACK).fitted
    known = KNOWN if calibration.num_runs >= FEW else UNKNOWN
    spread = float(np.clip(calibration.time.spread, LEAST_SPREAD, MOST_SPREAD)) if calibration.num_runs else MOST_SPREAD
    misfit = spread * ALL_WORK[known] * (ALL_WAITING / ALL_WORK[known]) ** (1 - _work_share(found))
    capacity = float(subject.cluster.gpu.memory_bytes)
    limit = min(limit_bytes or capacity, capacity)
    log_memory = np.log(found.memory_bytes / limit) + float(np.median(calibration.memory.log_errors))
    memory_sd = np.maximum(found.memory_spread, LEAST_MEMORY_SPREAD)
    thrash = calibration.time.coefficients.thrash
    # The step time matters only if the layout fits, so its memory is that of a layout that does.
    pressure = slowdown(np.exp(_mean_if_it_fits(log_memory, memory_sd)) * limit, capacity, thrash)
    host_sd = calibration.time.error_sds["host"]  # the host is this machine's, however well the framework is known
    return Prior(
        layouts=layouts,
        estimate=found,
        log_step=np.log(found.step_s * pressure / slowdown(found.memory_bytes, capacity, thrash)),
        sensitivity=_sensitivity(subject, calibration, layouts, found, tuple(names)),
        coefficient_sd=np.array([max(known * sd, host_sd if name == HOST else 0.0) for name, sd in names.items()]),
        scale_sd=SHARES["scale"] * spread,
        neighbour_sd=SHARES["neighbour"] * misfit,
        own_sd=SHARES["own"] * misfit,
        log_memory=log_memory,
        memory_sd=memory_sd,
        limit_share=limit / capacity,
    )


def _work_share(found: Estimate) -> FloatArray:
    """Return the share of GPU work in a step, waits for memory apart."""
    parts = found.time_parts
    work = sum((parts[name] for name in WORK if name in parts), np.zeros(len(found.step_s)))
    return np.clip(work / (found.step_s - parts.get("memory", 0.0)), 0.0, 1.0)


def _mean_if_it_fits(log_memory: FloatArray, sd: FloatArray) -> FloatArray:
    """Return the mean of a normal variable given that it is at most 0."""
    edge = -log_memory / sd
    # Far beyond the edge both vanish, and the mean is the edge itself.
    mean: FloatArray = np.where(
        edge > -6.0, log_memory - sd * normal_density(edge) / np.maximum(normal_cdf(edge), 1e-12), 0.0
    )
    return mean


def _sensitivity(
    subject: PlanSubject,
    calibration: Calibration,
    layouts: LayoutBatch,
    found: Estimate,
    names: tuple[str, ...],
) -> FloatArray:
    workload, machine, base = known_numbers(subject.model, subject.cluster, subject.job, calibration)
    full = slowdown(found.memory_bytes, float(subject.cluster.gpu.memory_bytes), base.thrash)

    def log_step(coefficients: TimeCoefficients) -> FloatArray:
        seconds = estimate_time(workload, machine, layouts, subject.job.framework, coefficients).step_s
        result: FloatArray = np.log(seconds * full)
        return result

    moved = [log_step(replace(base, **{name: getattr(base, name) * np.exp(STEP)})) for name in names]
    return (np.stack(moved, axis=1) - np.log(found.step_s)[:, None]) / STEP
