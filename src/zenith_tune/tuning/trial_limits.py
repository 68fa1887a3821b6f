"""How long a trial may run: by the timeouts, and by what is left of the study's budget."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from zenith_tune.errors import TrialExhausted
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.verdict import spent_s
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.units import count, format_seconds

CONFIRMING = 1.2
"""How many times as long as at first the runs that confirm a gain are taken to last, where a budget must hold them."""
SHORTEST = 0.8
"""A trial may take this share of the shortest so far; one that has less time left by the budget is not started."""


class TrialLimits:
    """The bounds on the trials of a study; `keeps` leaves room to run the best and the user's own command again."""

    def __init__(self, config: StudyConfig, study: Study) -> None:
        self.config = config
        self.num_slots = 1
        self.earlier_s = 0.0
        """How long earlier runs of the study took."""
        self._study = study
        self._began = time.monotonic()
        self._running: dict[int, float] = {}
        """When the trials that run now were started, by number."""

    @property
    def elapsed_s(self) -> float:
        """How long all runs of the study took by now."""
        return self.earlier_s + time.monotonic() - self._began

    @contextmanager
    def counting(self, number: int) -> Iterator[None]:
        """Count a trial that runs in the block as time that is spent."""
        self._running[number] = time.monotonic()
        try:
            yield
        finally:
            self._running.pop(number, None)

    def limit_s(self, *, is_baseline: bool, keeps: bool) -> float | None:
        """Return how long a trial that starts now may run; None: as long as it takes."""
        timeouts = self.config.timeouts
        limits = (timeouts.fixed_s if is_baseline else timeouts.limit_s(self._study), self._left_s(keeps=keeps))
        return min((limit for limit in limits if limit is not None), default=None)

    def check_number(self) -> None:
        """Raise TrialExhausted where the budget holds no further trial, whatever it is for."""
        num_trials = self.config.limits.n_trials
        if num_trials is not None and self._study.num_budgeted >= num_trials:
            raise TrialExhausted(f"budget of {count(num_trials, 'run')} used")

    def check(self, *, keeps: bool) -> None:
        """Raise TrialExhausted where the budget leaves no time for a trial."""
        left_s = self._left_s(keeps=keeps)
        if left_s is None:
            return
        # A trial that cannot come to its end would be paid for in vain.
        least_s = SHORTEST * min((run.alone_s or 0.0 for run in self._study.runs if run.ok), default=0.0)
        if left_s <= least_s:
            left = []
            if left_s > 0:
                left.append(f"{format_seconds(left_s)}, less than a trial takes")
            if keeps and self.config.patience.confirms and self._study.best:
                left.append("what confirming the best takes")
            kept = f" but for {' and '.join(left)}" if left else ""
            raise TrialExhausted(f"the budget of {self.config.budget.describe()} is spent{kept}")

    def without_cut_off(self, trial: Trial, *, keeps: bool) -> Trial:
        """Take a trial that the end of the budget cut off for one that did not run: a resumed study runs it again."""
        left_s = self._left_s(keeps=keeps) if trial.outcome is Outcome.TIMEOUT else None
        if left_s is None or left_s - (trial.duration_s or 0.0) > 0:
            return trial
        return replace(trial, outcome=Outcome.CANCELLED, cause="the budget ended", failure=None)

    def _left_s(self, *, keeps: bool) -> float | None:
        """Return how long a trial that starts now may run by the budget; None: as long as it takes."""
        config, study = self.config, self._study
        if not config.budget.describe():  # nothing to add up after every trial
            return None
        num_gpus, now = config.num_gpus or 1, time.monotonic()
        running_s = sum(now - start for start in list(self._running.values()))
        left_s = config.budget.left_s(
            gpu_s=(spent_s(study) + running_s) * num_gpus, elapsed_s=self.elapsed_s, num_gpus=num_gpus
        )
        again = (study.best, study.baseline) if keeps and config.patience.confirms and not study.is_clear else ()
        kept_s = CONFIRMING * sum((trial.alone_s or 0.0) * trial.num_runs for trial in again if trial is not None)
        # Trials that start together, and the repeats of one, share what is left.
        share = config.options.repeats * (self.num_slots if keeps else 1)
        return None if left_s is None else (left_s - kept_s) / share
