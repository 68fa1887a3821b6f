"""Calibrations of one framework or of all, from runs of several."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from zenith_calibration.calibrate.calibration_fit import LEAST_MEMORY_RUNS, CalibrationFit, fit_calibration
from zenith_calibration.calibrate.memory_fit import usable as usable_memory
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_family import TimeFamily, family_of
from zenith_tune.calibrate.time_fit import unusable
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.errors import UsageError

FALLBACK = "megatron"
"""The framework whose speed is used for others with too few runs."""
LEAST_LANDSCAPES = 2
"""Least number of landscapes of which one can be left out."""
MAX_SOURCES = 4


def calibrate_all(runs: Sequence[MeasuredRun], *, date: str) -> Iterator[CalibrationFit]:
    """Fit every framework from scratch, beginning with the one that others fall back to."""
    trusted = {
        family.name
        for family, members in families_of(list(runs))
        if family.fitted and len({run.landscape for run in members}) >= LEAST_LANDSCAPES
    }
    if FALLBACK not in trusted:
        raise UsageError(f"--all needs runs of {FALLBACK}, whose speed others fall back to, but there are too few")
    first = _fit_one(runs, FALLBACK, date)
    yield first
    counts = Counter(run.framework for run in runs if run.memory_bytes and usable_memory(run))
    with_memory = {name for name, count in counts.items() if count >= LEAST_MEMORY_RUNS}
    for name in sorted((trusted | with_memory) - {FALLBACK}):
        fit = _fit_one(runs, name, date)
        if family_of(name).name not in trusted:
            calibration = replace(fit.calibration, time=replace(first.calibration.time, sources={}))
            fit = replace(fit, calibration=calibration, before=first.before, num_time_runs=0, residuals=np.empty(0))
        yield fit


def most_measured(runs: Sequence[MeasuredRun]) -> str:
    """Return the family of frameworks with the most usable runs."""
    sizes = {family.name: len(members) for family, members in families_of(list(runs)) if family.fitted}
    if not sizes:
        found = Counter(unusable(run) or f"no family for {run.framework}" for run in runs).most_common(3)
        reasons = "; ".join(f"{count} of them: {reason}" for reason, count in found)
        problem = f"a calibration needs runs that state their speed, model and layout, but none of {len(runs)} does"
        raise UsageError(f"{problem} ({reasons})", hint="give other rows")
    return max(sizes, key=lambda name: sizes[name])


def sources_of(runs: Sequence[MeasuredRun], framework: str) -> str:
    """Return where the runs of a framework come from, in one line."""
    members = family_of(load_framework(framework).name).frameworks
    used = [run for run in runs if run.framework in members and (unusable(run) is None or usable_memory(run))]
    sources = [name for name, _ in Counter(run.source for run in used if run.step_s or run.memory_bytes).most_common()]
    rest = len(sources) - MAX_SOURCES
    return ", ".join(sources[:MAX_SOURCES]) + (f" and {rest} more" if rest > 0 else "")


def _fit_one(runs: Sequence[MeasuredRun], framework: str, date: str) -> CalibrationFit:
    return fit_calibration(runs, framework=framework, origin=sources_of(runs, framework), date=date)


def families_of(runs: Sequence[MeasuredRun]) -> Iterator[tuple[TimeFamily, list[MeasuredRun]]]:
    """Yield every family with its usable runs."""
    families = {family_of(run.framework).name: family_of(run.framework) for run in runs}
    for family in families.values():
        members = [run for run in runs if run.framework in family.frameworks and unusable(run) is None]
        if members:
            yield family, members
