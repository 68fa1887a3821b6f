"""What a trial costs: start-up, and the steps that are run before its value is known."""

from __future__ import annotations

import statistics

import numpy as np

from zenith_tune.estimate.estimate import FloatArray
from zenith_tune.study.trial import Trial

START_UP_S, NUM_STEPS = 60.0, 15.0
"""Of a trial before any was seen: Megatron-LM on one H200 takes 45 to 75 s, most of it to start."""


class TrialCost:
    """Learn from trials how long they take to start, and how many steps they run."""

    def __init__(self) -> None:
        self._start_ups: list[float] = []
        self._steps: list[float] = []

    def tell(self, trial: Trial) -> None:
        """Learn from one trial."""
        if trial.duration_s is None:
            return
        if trial.ok and trial.step_s and trial.num_samples:
            # The duration is that of one run, the samples are those of all repeats.
            steps = trial.num_samples / trial.num_runs
            self._steps.append(steps)
            self._start_ups.append(max(trial.duration_s - trial.step_s * steps, 0.0))
        elif not trial.ok:
            self._start_ups.append(trial.duration_s)

    def expected_s(self, log_step: FloatArray, fits: FloatArray) -> FloatArray:
        """Return the seconds that a trial is expected to take; one that does not fit ends as it starts."""
        start_up = statistics.median(self._start_ups) if self._start_ups else START_UP_S
        num_steps = statistics.median(self._steps) if self._steps else NUM_STEPS
        result: FloatArray = max(start_up, 0.1) + fits * num_steps * np.exp(log_step)
        return result
