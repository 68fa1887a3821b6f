"""How far the plan of per-module layouts was off where layouts ran, and what that says of those that did not yet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zenith_tune.planner.mimo.prediction import MimoPrediction

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
