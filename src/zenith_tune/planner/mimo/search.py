"""Which layout to run next: first those that measure the rates, then the best of a plan that every run corrects."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.mimo.module_layout import ModuleLayout
from zenith_tune.mimo.module_work import ModuleWork
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob, MimoRates, ModuleRates
from zenith_tune.planner.mimo.plan import MimoPlan
from zenith_tune.planner.mimo.prediction import MimoPrediction
from zenith_tune.planner.mimo.rate_fit import MeasuredLayout, fit_rates, with_rates

NOISE = 0.05
"""Spread that the step of one run is taken to have; rounds of one layout lay 9 to 19% apart (2026-11-15)."""
SPREADS = (0.3, 0.1, 0.1, 0.3)
"""How far the plan is expected to be off, in logarithms, where its rates are known: in all, for modules on ranks of
their own, for stages, and for what the sums of tensor-parallel ranks take."""
MEANS = (0.0, 0.0, 0.1, 0.0)
"""Where it is expected to be off by measured rates: a stage that is not the last comes back to a micro-batch whose
numbers have left the cache by then, and was 5 to 20% slower for it (16 cores, 2026-11-15)."""
GUESSED_SPREADS = (3.0, 0.5, 0.3, 1.0)
"""The same where its rates are guessed."""


@dataclass(frozen=True, slots=True)
class Corrected:
    """Hold a step as experience has it, and the spread of its logarithm."""

    step_s: float
    spread: float

    @property
    def least_s(self) -> float:
        """Return what it may well take if things go well: one spread less."""
        return self.step_s * math.exp(-self.spread)


class MimoCorrection:
    """Least squares of a few causes on the logarithm of measured over planned, each with a prior of no error."""

    def __init__(
        self, seen: Sequence[tuple[MimoPrediction, float]], *, is_guessed: bool, is_measured: bool = False
    ) -> None:
        spreads = np.array(GUESSED_SPREADS if is_guessed else SPREADS)
        means = np.array(MEANS) * is_measured
        causes = np.array([_causes(prediction) for prediction, _ in seen]).reshape(len(seen), len(spreads))
        errors = np.array([math.log(step_s / prediction.step_s) for prediction, step_s in seen])
        self._covariance = np.linalg.inv(causes.T @ causes / NOISE**2 + np.diag(spreads**-2))
        self._weights = means + self._covariance @ causes.T @ (errors - causes @ means) / NOISE**2

    def of(self, prediction: MimoPrediction) -> Corrected:
        """Return a planned step corrected."""
        causes = np.array(_causes(prediction))
        variance = float(causes @ self._covariance @ causes) + NOISE**2
        return Corrected(prediction.step_s * math.exp(float(causes @ self._weights)), math.sqrt(variance))


def _causes(prediction: MimoPrediction) -> tuple[float, float, float, float]:
    at = prediction.at
    has_stages = at.encoder.pp > 1 or at.language.pp > 1
    return (1.0, float(not at.is_colocated), float(has_stages), prediction.tensor_s / prediction.step_s)


def describe_rates(job: MimoJob, rates: MimoRates, num_runs: int) -> str:
    """Return what a rank takes for one item and one sample, whole and split in two, for messages and at the end."""
    whole = _both(job, rates, 1)
    runs = "1 run" if num_runs == 1 else f"{num_runs} runs"
    params = sum(
        part.params(1) * count for work in (job.encoder, job.language) for part, count in work.stage_parts(0, 1)
    )
    end_s = rates.agree_s + rates.update_s(params, job.encoder.num_layers + job.language.num_layers)
    return (
        f"measured in {runs}: a rank takes {whole} forward and backward, with tp 2 {_both(job, rates, 2)}; a message "
        f"{rates.message.fixed_s * 1e3:.2f} ms; the optimizer on a rank with both whole modules {end_s * 1e3:.1f} ms"
    )


def _both(job: MimoJob, rates: MimoRates, tp: int) -> str:
    item_s, sample_s = _unit_s(job.encoder, rates.encoder, tp), _unit_s(job.language, rates.language, tp)
    return f"{item_s * 1e3:.1f} ms for an item and {sample_s * 1e3:.1f} ms for a sample"


def _unit_s(work: ModuleWork, rates: ModuleRates, tp: int) -> float:
    return sum(rates.pass_s(work, ModuleLayout(tp=tp), 0, 1, is_backward) for is_backward in (False, True))


LEAST_HOMOGENEOUS = 2
MOST_HOMOGENEOUS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLayout:
    """Hold what to run next, and why."""

    prediction: MimoPrediction
    expected: Corrected
    why: str
    is_probe: bool = False
    """Whether it runs for the rates that it shows."""


class MimoSearch:
    """Pick layouts one by one and learn from each; deterministic, and without a run of its own.

    `plan_for` makes the plan of a job, for the rates that are known by then. A job that `measures` tells the seconds of
    its passes, so that few runs show the rates of all layouts.
    """

    def __init__(self, job: MimoJob, plan_for: Callable[[MimoJob], MimoPlan], *, top: int, measures: bool) -> None:
        self._job, self._plan_for, self._top = job, plan_for, top
        self.plan: MimoPlan = plan_for(job)
        self.rates: MimoRates | None = None
        self._runs: list[MeasuredLayout] = []
        self._seen: dict[MimoCandidate, float] = {}
        self._tried: set[MimoCandidate] = set()
        self._failed: set[MimoCandidate] = set()
        self._probes = probe_layouts(self.plan) if measures else []

    def next(self) -> NextLayout | None:
        """Return what is worth a run now; None where nothing is."""
        for probe in self._probes:
            if probe.at not in self._tried:
                return replace(self._next(probe.at, "measures rates"), is_probe=True)
        ranked = self.ranked()
        probes = {probe.at for probe in self._probes}
        num_best = sum(not at.is_homogeneous for at in self._tried - probes)
        best = next((at for at in ranked if at not in self._tried and not at.is_homogeneous), None)
        if num_best < self._top and best is not None:
            return self._next(best, "the plan's best of those that have not run")
        alike = next((at for at in ranked if at not in self._tried and at.is_homogeneous), None)
        if alike is not None and self._may_be_best_homogeneous(alike):
            return self._next(alike, "may be the best homogeneous layout")
        return None

    @property
    def max_runs(self) -> int:
        """Return how many layouts are run at most."""
        return min(len(self._probes) + self._top + MOST_HOMOGENEOUS, len(self.plan.ranked))

    def of(self, at: MimoCandidate) -> NextLayout | None:
        """Return a layout that runs for another reason; None where it is not planned."""
        return None if self.plan.at(at) is None else self._next(at, "runs anyway")

    def describe_rates(self) -> str:
        """Return in one line what was measured."""
        return "" if self.rates is None else describe_rates(self._job, self.rates, len(self._runs))

    def learn(
        self,
        at: MimoCandidate,
        step_s: float | None,
        measured: MeasuredStep | None = None,
        *,
        has_failed: bool = False,
    ) -> None:
        """Take what a run showed of its step, where it did, and of its passes."""
        self._tried.add(at)
        if has_failed:
            self._failed.add(at)
        if step_s is None:
            return
        self._seen[at] = step_s
        if measured is not None and measured.passes:
            self._runs.append(MeasuredLayout(at=at, step=measured))
            self.rates = fit_rates(self._job, self._runs)
            if self.rates is not None:
                self.plan = self._plan_for(with_rates(self._job, self.rates))

    def ranked(self) -> dict[MimoCandidate, Corrected]:
        """Return all layouts with what they are expected to take by now, the fastest first."""
        correction = self._correction()
        found = {each.at: correction.of(each) for each in self.plan.ranked}
        return dict(sorted(found.items(), key=lambda pair: pair[1].step_s))

    def _correction(self) -> MimoCorrection:
        seen = [(each, self._seen[each.at]) for each in self.plan.ranked if each.at in self._seen]
        is_measured = self.rates is not None
        is_guessed = not is_measured and not self._job.device.is_known
        return MimoCorrection(seen, is_guessed=is_guessed, is_measured=is_measured)

    def _next(self, at: MimoCandidate, why: str) -> NextLayout:
        prediction = self.plan.at(at)
        assert prediction is not None
        return NextLayout(prediction=prediction, expected=self._correction().of(prediction), why=why)

    def _may_be_best_homogeneous(self, at: MimoCandidate) -> bool:
        alike = {each for each in self._tried if each.is_homogeneous}
        if len(alike) >= MOST_HOMOGENEOUS or len(alike - self._failed) < LEAST_HOMOGENEOUS:
            return len(alike) < MOST_HOMOGENEOUS
        steps = [step_s for each, step_s in self._seen.items() if each.is_homogeneous]
        prediction = self.plan.at(at)
        assert prediction is not None
        return bool(steps) and self._correction().of(prediction).least_s < min(steps)


def probe_layouts(plan: MimoPlan) -> list[MimoPrediction]:
    """Return few layouts that together show all rates: both modules whole with two micro-batches, and split in two.

    Shared ranks are best, because there nobody waits for anybody and both modules are seen on all ranks.
    """
    whole = [each for each in plan.ranked if _tensor(each) == {1} and each.at.encoder.pp == each.at.language.pp == 1]
    whole.sort(key=lambda each: (not each.at.is_colocated, not each.at.is_homogeneous, -each.at.micro_batch))
    chosen = whole[:1]
    for each in whole[1:]:
        if each.at.encoder == chosen[0].at.encoder and each.at.language == chosen[0].at.language:
            chosen.append(each)  # the smallest comes last
    chosen = [chosen[0], chosen[-1]] if len(chosen) > 1 else chosen
    split = [each for each in plan.ranked if _tensor(each) == {2} and each.at.encoder.pp == each.at.language.pp == 1]
    split.sort(key=lambda each: (not each.at.is_colocated, -each.at.micro_batch))
    return [*chosen, *split[:1]]


def _tensor(each: MimoPrediction) -> set[int]:
    return {each.at.encoder.tp, each.at.language.tp}
