"""Judge step times on whole sources that nothing was fitted to: each is predicted from the others alone.

A source is what one author measured on a machine with its software. What other sources of a framework have too few
landscapes to be fitted, or none, is predicted with Megatron's coefficients, as the planner does for a framework that
nobody measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from held_out import Judged, decides, judged_run, predict

from zenith_calibration.calibrate.calibration_fit import sources_by_gpu
from zenith_calibration.calibrate.framework_fits import FALLBACK, LEAST_LANDSCAPES, families_of
from zenith_calibration.calibrate.memory_fit import fit_memory
from zenith_calibration.calibrate.memory_fit import usable as states_memory
from zenith_tune.calibrate.holdout import LEAST_RUNS, HeldOutSteps, held_out_steps, likeliest_sds, step_errors
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_family import EFFICIENCY, LAUNCH, TRAFFIC, TimeFamily
from zenith_tune.calibrate.time_fit import RunTable, TimeFit
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.estimates.calibration import ERROR_SOURCES, TO_90, TimeCalibration
from zenith_tune.estimates.workload import FloatArray

KINDS = ("work", *ERROR_SOURCES)
USUAL: FloatArray = np.array([EFFICIENCY, LAUNCH, TRAFFIC, EFFICIENCY])
"""Standard deviations of a source's level before any source: those that the fits expect of their coefficients."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A source that was predicted from others."""

    author: str
    framework: str
    runs: list[MeasuredRun]
    held: HeldOutSteps
    errors: TimeCalibration
    """The errors of those others; `sources` is empty where none measured the framework."""

    @property
    def is_measured(self) -> bool:
        """Whether another source measured the framework."""
        return bool(self.errors.sources)

    @property
    def kinds(self) -> list[str]:
        return [kind_of(run, self.held.shares[:, row]) for row, run in enumerate(self.runs)]

    def levels(self) -> Iterator[tuple[float, FloatArray]]:
        """Yield the level of each kind of run, and the mean shares of ERROR_SOURCES in its steps.

        The others' mean is off too, by less the more of them there are: what it adds is taken off the level.
        """
        kinds = np.array(self.kinds)
        for kind in sorted(set(kinds)):
            rows = self.held.of(kinds == kind)
            if len(rows.residuals) >= LEAST_RUNS:
                gpus = [run.gpu for run, each in zip(self.runs, kinds, strict=True) if each == kind]
                others = statistics.median(self.errors.num_sources(gpu) for gpu in gpus)
                yield float(np.median(rows.residuals)) / math.sqrt(1 + 1 / max(others, 1)), rows.shares.mean(axis=1)

    def judged(self, source_sds: dict[str, float]) -> Iterator[Judged]:
        """Yield the runs with the intervals of a machine of which nothing is known."""
        errors = replace(self.errors, source_sds=source_sds)
        for row, run in enumerate(self.runs):
            level_sd = float(errors.level_sd(self.held.shares[:, [row]], run.gpu)[0])
            yield judged_run(run, self.held, row, errors, level_sd)


def kind_of(run: MeasuredRun, shares: FloatArray) -> str:
    """Return what decides a predicted step: experts if the model has any, else the host, messages or the GPU's work."""
    has_experts = run.model is not None and run.model.num_experts > 0
    return "experts" if has_experts else decides(shares[0], shares[1])


def leave_sources_out(runs: list[MeasuredRun]) -> list[LeftOut]:
    """Predict every source from the others of its framework's family, or from Megatron's where these are too few."""
    found: list[LeftOut] = []
    fallbacks: dict[str, tuple[TimeCalibration, TimeCalibration]] = {}
    by_family = {family.name: (family, members) for family, members in families_of(runs) if family.fitted}
    for family, members in by_family.values():
        fit = fit_of(family, members)
        errors: HeldOutSteps | None = None
        for author in sorted({run.author for run in members}):
            own = [run for run in members if run.author == author]
            others = [run for run in members if run.author != author]
            num_places = len({run.landscape for run in others})
            if num_places < LEAST_LANDSCAPES:
                if FALLBACK in by_family:
                    fallback, runs_of_it = by_family[FALLBACK]
                    rest = [run for run in runs_of_it if run.author != author]
                    key = author if len(rest) < len(runs_of_it) else ""
                    fallbacks[key] = fallbacks.get(key) or _fitted(fallback, rest)
                    found += _in_place(own, fallback, *fallbacks[key])
                continue
            mine = np.array([run.author == author for run in members])
            errors = errors or held_out_steps(fit)
            held = HeldOutSteps.of_estimate(fit, fit.estimate(fit.fit(np.flatnonzero(~mine))))
            known = replace(step_errors(errors.of(~mine), num_places), sources=sources_by_gpu(others))
            found.append(LeftOut(author=author, framework=family.name, runs=own, held=held.of(mine), errors=known))
    return found


def _fitted(family: TimeFamily, runs: list[MeasuredRun]) -> tuple[TimeCalibration, TimeCalibration]:
    """Return the calibration fitted to runs, and its errors on landscapes left out."""
    fit = fit_of(family, runs)
    return fit.calibration(fit.fit()), step_errors(held_out_steps(fit), len({run.landscape for run in runs}))


def _in_place(
    own: list[MeasuredRun], family: TimeFamily, calibration: TimeCalibration, errors: TimeCalibration
) -> Iterator[LeftOut]:
    """Yield the runs of an author by framework, predicted with the coefficients of another framework."""
    for name in sorted({run.framework for run in own}):
        mine = [run for run in own if run.framework == name]
        same = replace(family, frameworks=(name,), by_release=())
        as_is = TimeFit(same, RunTable.of(mine, load_framework(name)), load_framework(name), start=calibration)
        held = HeldOutSteps.of_estimate(as_is, as_is.estimate(as_is.start))
        yield LeftOut(author=own[0].author, framework=name, runs=mine, held=held, errors=errors)


def fit_of(family: TimeFamily, runs: list[MeasuredRun]) -> TimeFit:
    """Return the fit of a family to runs."""
    framework = load_framework(family.name)
    return TimeFit(family, RunTable.of(runs, framework), framework)


def source_sds(cases: list[LeftOut]) -> dict[str, float]:
    """Return the likeliest standard deviations of a source's level, from frameworks that others measured too.

    They are those of the normal distribution whose 90% interval is that of Student's t with a degree of freedom less
    than there are sources (Abramowitz and Stegun, formula 26.7.5).
    """
    levels = [level for case in cases if case.is_measured for level in case.levels()]
    residuals = np.array([level for level, _ in levels])
    shares = np.array([share for _, share in levels]).reshape(-1, len(ERROR_SOURCES)).T
    sds, _ = likeliest_sds(residuals, shares, USUAL)
    freedom = max(len({case.author for case in cases if case.is_measured}) - 1, 1)
    wider = 1 + (TO_90**2 + 1) / (4 * freedom)
    return dict(zip(KINDS, (wider * sds).tolist(), strict=True))


def judge_sources(cases: list[LeftOut]) -> Iterator[tuple[LeftOut, list[Judged]]]:
    """Yield every source with its judged runs, whose intervals know of the levels of others alone."""
    for case in cases:
        yield case, list(case.judged(source_sds([other for other in cases if other.author != case.author])))


def leave_sources_out_memory(runs: list[MeasuredRun]) -> dict[int, float]:
    """Return the predicted memory of runs by their id, every source by the others of its framework.

    A framework that no other source measured has the coefficients of one without measurements, as in the planner.
    """
    stated = [run for run in runs if states_memory(run) and run.memory_bytes]
    found: dict[int, float] = {}
    for name, author in sorted({(run.framework, run.author) for run in stated}):
        members = [run for run in stated if run.framework == name]
        coefficients = fit_memory([run for run in members if run.author != author], load_framework(name))
        own = [run for run in members if run.author == author]
        found |= {id(held.run): held.predicted_bytes for held in predict(own, coefficients, name)}
    return found
