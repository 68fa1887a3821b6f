"""Make calibrations from measured runs: of one framework, or of every framework that was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from zenith_tune.calibrate.calibration_fit import LEAST_MEMORY_RUNS, CalibrationFit, fit_calibration
from zenith_tune.calibrate.holdout import families_of
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.memory_fit import usable as usable_memory
from zenith_tune.calibrate.time_family import TimeFamily, family_of
from zenith_tune.calibrate.time_fit import RunTable, unusable
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.errors import UsageError
from zenith_tune.estimate.calibration import Calibration

FALLBACK = "megatron"
"""Whose speed stands for frameworks that have too few runs of their own."""
LEAST_LANDSCAPES = 2
"""Of fewer none can be left out, and what a fit says of other models and clusters is not known."""
MAX_SOURCES = 4


def calibrate(
    runs: Sequence[MeasuredRun], *, framework: str, origin: str, date: str, start: Calibration | None = None
) -> Calibration:
    """Return the calibration of a framework that `runs` show; `start` is refined where it is given."""
    return fit_calibration(runs, framework=framework, origin=origin, date=date, start=start).calibration


def calibrate_all(runs: Sequence[MeasuredRun], *, date: str) -> Iterator[CalibrationFit]:
    """Fit every framework from scratch, the one that others fall back to first."""
    trusted = {family.name for family, members in families_of(list(runs)) if _is_trusted(family, members)}
    if FALLBACK not in trusted:
        raise UsageError(f"--all needs runs of {FALLBACK}, whose speed others fall back to, but there are too few")
    first = _fit(runs, FALLBACK, date)
    yield first
    for name in sorted((trusted | _with_memory(runs)) - {FALLBACK}):
        fit = _fit(runs, name, date)
        yield fit if name in trusted else _with_time_of(first, fit)


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


def _fit(runs: Sequence[MeasuredRun], framework: str, date: str) -> CalibrationFit:
    return fit_calibration(runs, framework=framework, origin=sources_of(runs, framework), date=date)


def _with_time_of(other: CalibrationFit, fit: CalibrationFit) -> CalibrationFit:
    calibration = replace(fit.calibration, time=other.calibration.time)
    return replace(fit, calibration=calibration, before=other.before, num_time_runs=0, residuals=other.residuals[:0])


def _is_trusted(family: TimeFamily, runs: list[MeasuredRun]) -> bool:
    landscapes = set(RunTable.of(runs, load_framework(family.name)).landscapes)
    return bool(family.fitted) and len(landscapes) >= LEAST_LANDSCAPES


def _with_memory(runs: Sequence[MeasuredRun]) -> set[str]:
    counts = Counter(run.framework for run in runs if run.memory_bytes and usable_memory(run))
    return {name for name, count in counts.items() if count >= LEAST_MEMORY_RUNS}
