"""What is predicted of every layout before the first trial: the planner's estimate, and how it may be wrong.

A step time may be off in four ways, each a normal error of its logarithm: all layouts alike (the machine is faster or
slower than thought), by a coefficient (matrix products, links, launches: layouts that lean on it are off together),
alike for neighbouring layouts, and each layout by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.calibrate.holdout import FEW
from zenith_tune.calibrate.time_family import family_of
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.estimates.calibration import Calibration, TimeCoefficients
from zenith_tune.estimates.memory_risk import slowdown
from zenith_tune.estimates.step import estimate
from zenith_tune.estimates.time import estimate_time
from zenith_tune.estimates.workload import Estimate, FloatArray, Machine, Workload
from zenith_tune.layouts.layout_batch import LayoutBatch


def normal_density(x: FloatArray) -> FloatArray:
    """Return the density of the standard normal distribution."""
    result: FloatArray = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    return result


def normal_cdf(x: FloatArray) -> FloatArray:
    """Return the probability of a standard normal value below x; off by 7.5e-8 at most.

    Abramowitz and Stegun, "Handbook of Mathematical Functions", formula 26.2.17.

    >>> normal_cdf(np.array([-1.96, 0.0, 1.96])).round(3).tolist()
    [0.025, 0.5, 0.975]
    """
    t = 1 / (1 + 0.2316419 * np.abs(x))
    terms = (0.319381530, -0.356563782, 1.781477937, -1.821255978, 1.330274429)
    tail = normal_density(x) * t * (terms[0] + t * (terms[1] + t * (terms[2] + t * (terms[3] + t * terms[4]))))
    return np.where(x >= 0, 1 - tail, tail)


FALLBACK = "megatron"
"""Whose coefficients may be off where a framework was never measured."""
KNOWN, UNKNOWN = 0.3, 0.6
"""How far coefficients may be off, as a share of what their family allows: fitted to enough runs, or to few."""
STEP = 0.05
"""Relative change of a coefficient by which its effect is measured."""
SHARES = {"scale": 1.0, "neighbour": 0.4, "own": 0.7}
"""Standard deviations of the errors as shares of the calibration's spread on runs that it has not seen."""
LEAST_SPREAD, MOST_SPREAD = 0.03, 0.3
"""Between which that spread is taken to be: no model is better, and one worse has a tail that is no news here."""
ALL_WORK = {KNOWN: 0.15, UNKNOWN: 0.6}
ALL_WAITING = 4.0
"""Factors of the errors of layouts by themselves: where a step is nothing but the GPU's own work, and where it is all
launches and messages. Held-out residuals of the measured landscapes, less each landscape's median, have a standard
deviation (1.48 times their median) of 0.05 above 70% of work, 0.15 from 30% to 70%, and 0.3 to 0.9 below."""
HOST = "layer_launch_s"
WORK = ("compute", "recompute", "optimizer")
LEAST_MEMORY_SPREAD = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Hold the beliefs; arrays have one row per layout."""

    layouts: LayoutBatch
    estimate: Estimate
    log_step: FloatArray
    sensitivity: FloatArray
    """Change of log_step by that of the logarithm of each coefficient."""
    coefficient_sd: FloatArray
    scale_sd: float
    neighbour_sd: FloatArray
    own_sd: FloatArray
    log_memory: FloatArray
    """Logarithm of the needed share of what may be used of a device's memory."""
    memory_sd: FloatArray
    limit_share: float = 1.0
    """What may be used of a device's memory."""

    def __len__(self) -> int:
        return len(self.log_step)


def prior_of(
    subject: PlanSubject, calibration: Calibration, layouts: LayoutBatch, limit_bytes: float | None = None
) -> Prior:
    """Return what is predicted of `layouts`, and how sure it is; `limit_bytes` is what may be used of a device."""
    found = estimate(subject.model, subject.cluster, subject.job, layouts, calibration)
    names = _coefficients(subject.job.framework.name)
    known = KNOWN if calibration.num_runs >= FEW else UNKNOWN
    spread = float(np.clip(calibration.time.spread, LEAST_SPREAD, MOST_SPREAD)) if calibration.num_runs else MOST_SPREAD
    misfit = spread * ALL_WORK[known] * (ALL_WAITING / ALL_WORK[known]) ** (1 - _work_share(found))
    capacity = float(subject.cluster.gpu.memory_bytes)
    limit = min(limit_bytes or capacity, capacity)
    log_memory = np.log(found.memory_bytes / limit) + float(np.median(calibration.memory.log_errors))
    memory_sd = np.maximum(found.memory_spread, LEAST_MEMORY_SPREAD)
    thrash = calibration.time.coefficients.thrash
    # Of a layout that runs at all it is known that it fits, and by how much it may.
    pressure = slowdown(np.exp(_mean_if_it_fits(log_memory, memory_sd)) * limit, capacity, thrash)
    return Prior(
        layouts=layouts,
        estimate=found,
        log_step=np.log(found.step_s * pressure / slowdown(found.memory_bytes, capacity, thrash)),
        sensitivity=_sensitivity(subject, calibration, layouts, found, tuple(names)),
        coefficient_sd=_coefficient_sd(names, known, calibration.time.error_sds["host"]),
        scale_sd=SHARES["scale"] * spread,
        neighbour_sd=SHARES["neighbour"] * misfit,
        own_sd=SHARES["own"] * misfit,
        log_memory=log_memory,
        memory_sd=memory_sd,
        limit_share=limit / capacity,
    )


def _work_share(found: Estimate) -> FloatArray:
    """Return which share of a step the GPU works, of what is no waiting for memory."""
    parts = found.time_parts
    work = sum((parts[name] for name in WORK if name in parts), np.zeros(len(found.step_s)))
    return np.clip(work / (found.step_s - parts.get("memory", 0.0)), 0.0, 1.0)


def _mean_if_it_fits(log_memory: FloatArray, sd: FloatArray) -> FloatArray:
    """Return the mean of a normal value of which is known that it is not above 0."""
    edge = -log_memory / sd
    # Far beyond the edge both vanish, and the mean is the edge itself.
    mean: FloatArray = np.where(
        edge > -6.0, log_memory - sd * normal_density(edge) / np.maximum(normal_cdf(edge), 1e-12), 0.0
    )
    return mean


def _coefficients(framework: str) -> dict[str, float]:
    """Return the coefficients that may be off, and by how much their family allows."""
    return family_of(framework).fitted or family_of(FALLBACK).fitted


def _coefficient_sd(names: Mapping[str, float], known: float, host_sd: float) -> FloatArray:
    """Return how far each coefficient may be off; the host is this machine's, whatever is known of the framework."""
    return np.array([max(known * sd, host_sd if name == HOST else 0.0) for name, sd in names.items()])


def _sensitivity(
    subject: PlanSubject,
    calibration: Calibration,
    layouts: LayoutBatch,
    found: Estimate,
    names: tuple[str, ...],
) -> FloatArray:
    job, cluster = subject.job, subject.cluster
    workload, machine = Workload.of(subject.model, job), Machine.of(cluster, job.precision)
    base = calibration.time.coefficients_for(
        gpu=cluster.gpu.name, precision=job.precision, framework=job.framework.name
    )
    full = slowdown(found.memory_bytes, float(cluster.gpu.memory_bytes), base.thrash)

    def log_step(coefficients: TimeCoefficients) -> FloatArray:
        result: FloatArray = np.log(
            estimate_time(workload, machine, layouts, job.framework, coefficients).step_s * full
        )
        return result

    moved = [log_step(replace(base, **{name: getattr(base, name) * np.exp(STEP)})) for name in names]
    return (np.stack(moved, axis=1) - np.log(found.step_s)[:, None]) / STEP
