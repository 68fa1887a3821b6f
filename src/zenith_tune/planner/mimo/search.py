"""Which layout to run next: first those that measure the rates, then the best of a plan that every run corrects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.plan import MimoPlan
from zenith_tune.planner.mimo.prediction import MimoPrediction
from zenith_tune.planner.mimo.rate_fit import MeasuredLayout, fit_rates, with_rates
from zenith_tune.planning.mimo_correction import Corrected, MimoCorrection
from zenith_tune.planning.mimo_rates import MimoRates
from zenith_tune.planning.mimo_rates_told import rates_told

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

    def rates_told(self) -> str:
        """Return in one line what was measured."""
        return "" if self.rates is None else rates_told(self._job, self.rates, len(self._runs))

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
