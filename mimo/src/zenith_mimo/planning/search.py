"""Which layout to run next: the best of a plan that every run corrects, and others of both kinds to compare it with.

A layout is homogeneous, or of its own for each module: a study that says which is better must have tried both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.prediction import MimoPlan, MimoPrediction

NOISE = 0.05
"""Least spread that the step of one run is taken to have; rounds of one layout lay 9 to 19% apart (2026-11-15)."""
SPREADS = (3.0, 0.5, 0.3, 1.0)
"""How far the plan is expected to be off, in logarithms, because its rates are guessed: in all, for modules on ranks of
their own, for stages, and for what the sums of tensor-parallel ranks take."""
LEAST_OF_KIND = 2
MOST_OF_KIND = 6
"""Layouts that run of those that are homogeneous, and of those that are not."""
MOST_WIDER = 2
"""How many times as many run where steps are noisy."""


@dataclass(frozen=True, slots=True)
class CorrectedStep:
    """A step time as the runs so far correct it, and the spread of its logarithm."""

    step_s: float
    spread: float

    @property
    def least_s(self) -> float:
        """Step time at best: one spread less than expected."""
        return self.step_s * math.exp(-self.spread)


@dataclass(frozen=True, slots=True)
class MeasuredLayout:
    """A planned layout, its measured step, and how well that is known."""

    prediction: MimoPrediction
    step_s: float
    noise: float = NOISE


class MimoCorrection:
    """Least squares of a few causes on the logarithm of measured over planned, each with a prior of no error."""

    def __init__(self, measured: Sequence[MeasuredLayout]) -> None:
        causes = np.array([_causes(each.prediction) for each in measured]).reshape(len(measured), len(SPREADS))
        errors = np.array([math.log(each.step_s / each.prediction.step_s) for each in measured])
        weights = np.array([each.noise**-2 for each in measured])
        self._covariance = np.linalg.inv((causes.T * weights) @ causes + np.diag(np.array(SPREADS) ** -2))
        self._weights = self._covariance @ (causes.T * weights) @ errors
        self._noise = statistics.median([each.noise for each in measured] or [NOISE])

    def of(self, prediction: MimoPrediction) -> CorrectedStep:
        """Return a planned step corrected."""
        causes = np.array(_causes(prediction))
        variance = float(causes @ self._covariance @ causes) + self._noise**2
        return CorrectedStep(prediction.step_s * math.exp(float(causes @ self._weights)), math.sqrt(variance))


def _causes(prediction: MimoPrediction) -> tuple[float, float, float, float]:
    candidate = prediction.candidate
    has_stages = candidate.encoder.pp > 1 or candidate.language.pp > 1
    return (1.0, float(not candidate.is_colocated), float(has_stages), prediction.tensor_s / prediction.step_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class NextLayout:
    """The layout to run next, and why."""

    prediction: MimoPrediction
    expected: CorrectedStep
    why: str


class MimoSearch:
    """The search over a plan: picks layouts one by one and learns from each, deterministically."""

    def __init__(self, plan: MimoPlan, *, top: int) -> None:
        self.plan = plan
        self._top = top
        self._measured: dict[MimoCandidate, MeasuredLayout] = {}
        self.tried: set[MimoCandidate] = set()
        self._failed: set[MimoCandidate] = set()

    @property
    def max_runs(self) -> int:
        """Most layouts that are run, however noisy the runs are."""
        return min(self._top + MOST_WIDER * MOST_OF_KIND, len(self.plan.ranked))

    @property
    def _most_now(self) -> int:
        """Most layouts that are run with runs as noisy as those so far: the worse they are known, the more."""
        noise = statistics.median([each.noise for each in self._measured.values()] or [NOISE])
        return min(self._top + round(MOST_OF_KIND * min(noise / NOISE, MOST_WIDER)), self.max_runs)

    def next(self) -> NextLayout | None:
        """Return what is worth a run now; None where nothing is."""
        left = [each for each in self.ranked() if each[0].candidate not in self.tried]
        if not left or len(self.tried) >= self._most_now:
            return None
        if len(self.tried) < self._top:
            prediction, expected = self._best_on_paper(left)
            return NextLayout(
                prediction=prediction, expected=expected, why="the plan's best of those that have not run"
            )
        prediction, expected = min(left, key=lambda each: each[1].least_s)
        steps = [each.step_s for each in self._measured.values()]
        if expected.least_s < min(steps, default=0.0):
            return NextLayout(prediction=prediction, expected=expected, why="may be faster than all that have run")
        for is_homogeneous, name in ((True, "homogeneous layout"), (False, "layout of its own for each module")):
            alike = next((each for each in left if each[0].candidate.is_homogeneous == is_homogeneous), None)
            if alike is not None and self._may_be_best_of_kind(is_homogeneous, alike[1]):
                return NextLayout(prediction=alike[0], expected=alike[1], why=f"may be the best {name}")
        return None

    def _best_on_paper(self, left: list[tuple[MimoPrediction, CorrectedStep]]) -> tuple[MimoPrediction, CorrectedStep]:
        """Return the fastest; while no homogeneous one has run, one as fast within a run's spread, as it is simpler."""
        if any(candidate.is_homogeneous for candidate in self.tried):
            return left[0]
        ties = [each for each in left if each[1].step_s <= left[0][1].step_s * (1 + NOISE)]
        return next((each for each in ties if each[0].candidate.is_homogeneous), left[0])

    def of(self, candidate: MimoCandidate) -> NextLayout | None:
        """Return a layout that runs for another reason; None where it is not planned."""
        prediction = self.plan.find(candidate)
        if prediction is None:
            return None
        return NextLayout(prediction=prediction, expected=self._correction().of(prediction), why="runs anyway")

    def learn(
        self, candidate: MimoCandidate, step_s: float | None, *, has_failed: bool = False, noise: float = 0.0
    ) -> None:
        """Take the step time that a run measured, where it did, and how well it is known, as a share of it."""
        self.tried.add(candidate)
        if has_failed:
            self._failed.add(candidate)
        prediction = self.plan.find(candidate)
        if step_s is not None and prediction is not None:
            self._measured[candidate] = MeasuredLayout(prediction, step_s, max(noise, NOISE))

    def ranked(self) -> list[tuple[MimoPrediction, CorrectedStep]]:
        """Return all layouts with what they are expected to take by now, the fastest first."""
        correction = self._correction()
        found = [(prediction, correction.of(prediction)) for prediction in self.plan.ranked]
        return sorted(found, key=lambda pair: pair[1].step_s)

    def _correction(self) -> MimoCorrection:
        return MimoCorrection(list(self._measured.values()))

    def _may_be_best_of_kind(self, is_homogeneous: bool, expected: CorrectedStep) -> bool:
        alike = {each for each in self.tried if each.is_homogeneous == is_homogeneous}
        if len(alike) >= MOST_OF_KIND or len(alike - self._failed) < LEAST_OF_KIND:
            return len(alike) < MOST_OF_KIND
        steps = [each.step_s for at, each in self._measured.items() if at.is_homogeneous == is_homogeneous]
        return is_homogeneous and bool(steps) and expected.least_s < min(steps)
