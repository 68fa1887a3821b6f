"""Which layout to try next: the one that is expected to save the most training time for what its trial costs.

Saved is the length of the training times the expected improvement of the logarithm of the step time (Jones, Schonlau
and Welch, J. Global Optimization 13 (1998)), times the chance to run. A trial costs start-up and some steps, or just
the start-up where it fails. Once no trial is expected to save more than it costs, the search is over.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np

from zenith_tune.estimates.workload import FloatArray
from zenith_tune.layouts.layout_batch import BoolArray
from zenith_tune.planner.limits import RISK
from zenith_tune.strategies.guided.posteriors import MemoryPosterior, TimePosterior
from zenith_tune.strategies.guided.prior import Prior, normal_cdf, normal_density
from zenith_tune.study.budget import Training
from zenith_tune.study.precision import TO_90
from zenith_tune.study.study import LEAST_GAIN
from zenith_tune.study.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A layout to try next."""

    index: int
    why: str
    expected_s: float
    error: float = 0.0
    """Relative standard error of the expected step; 0 where it is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Expected saving of training time and cost of the most promising trial."""

    saved_s: float
    cost_s: float


START_UP_S, NUM_STEPS = 60.0, 15.0
"""A trial's start-up and steps before any has run: Megatron-LM on one H200 takes 45 to 75 s, mostly start-up."""


class TrialCost:
    """Start-up time and number of steps of a trial, learned from those that ran."""

    def __init__(self) -> None:
        self._start_ups: list[float] = []
        self._steps: list[float] = []

    def observe(self, trial: Trial) -> None:
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
        """Return the expected seconds of a trial; one that does not fit ends at start-up."""
        start_up = statistics.median(self._start_ups) if self._start_ups else START_UP_S
        num_steps = statistics.median(self._steps) if self._steps else NUM_STEPS
        result: FloatArray = max(start_up, 0.1) + fits * num_steps * np.exp(log_step)
        return result


HOPELESS = 0.02
"""The least probability of running with which a layout is tried, even where nothing has run yet."""
STATED_LIMIT = 0.99
"""Share of the memory below which a limit was set by the user, and is not the usual reserve."""


class Acquisition:
    """The choice among the layouts of a prior, which learns from their trials."""

    def __init__(self, prior: Prior, training: Training | None = None) -> None:
        self.prior = prior
        self.time = TimePosterior(prior)
        self.memory = MemoryPosterior(prior)
        self.cost = TrialCost()
        self.best: int | None = None
        """The fastest layout that ran."""
        self.best_log_step = math.inf
        self.training = training or Training()
        self._closed = np.zeros(len(prior), np.bool_)
        self._running: list[int] = []

    def pick(self) -> Proposal | None:
        """Return the next layout to try, which then counts as running, or None where none is worth it."""
        mean, sd = self.time.supposing(self._running)
        open_ = ~self._closed & (self.memory.fits >= HOPELESS)
        if not open_.any():
            return None
        found = self._first(mean, sd, open_) if self.best is None else self._next(mean, sd, open_)
        if found is not None:
            self._closed[found.index] = True
            self._running.append(found.index)
        return found

    def taken(self, index: int) -> Proposal:
        """Return a proposal for a layout that has run without being picked."""
        self._closed[index] = True
        return Proposal(
            index=index, why="", expected_s=math.exp(self.time.mean[index]), error=float(self.time.sd[index])
        )

    def done(self, index: int) -> None:
        """Count a trial as over; its measurements are observed separately."""
        self._closed[index] = True
        if index in self._running:
            self._running.remove(index)

    def observe_step(self, index: int, log_step: float, noise: float, *, may_be_best: bool = True) -> None:
        """Learn a step time; a layout over the memory limit is never the best."""
        self.time.observe(index, log_step, noise)
        if may_be_best and log_step < self.best_log_step:
            self.best, self.best_log_step = index, log_step

    def refuse(self, rows: BoolArray) -> int:
        """Never pick these rows; returns how many were still open."""
        num_closed = int(np.sum(rows & ~self._closed))
        self._closed |= rows
        return num_closed

    def outlook(self) -> Outlook | None:
        """Return the outlook of the most promising layout that is left; None where none is left."""
        open_ = ~self._closed & (self.memory.fits >= HOPELESS)
        if self.best is None or not open_.any():
            return None
        saved, cost = self._worth(self.time.mean, self.time.sd)
        index = int(np.argmax(np.where(open_, saved / cost, -1.0)))
        return Outlook(saved_s=float(saved[index]), cost_s=float(cost[index]))

    def is_worth_a_look(self) -> bool:
        """Tell whether the least gain that counts would save more than a trial of the best layout costs."""
        cost = self.cost.expected_s(np.array([self.best_log_step]), np.ones(1))
        return LEAST_GAIN * self.training_s() > float(cost[0])

    def training_s(self) -> float:
        """Return how long the training takes with the best layout so far."""
        return self.training.seconds(math.exp(self.best_log_step))

    @property
    def first(self) -> int:
        """The layout to try where nothing has run: the fastest that is likely to fit, or else the likeliest to fit."""
        return self._likely_fastest(self.time.mean, ~self._closed & (self.memory.fits >= HOPELESS))[0]

    def _likely_fastest(self, mean: FloatArray, open_: BoolArray) -> tuple[int, bool]:
        safe = open_ & (self.memory.fits >= 1 - RISK)
        if safe.any():
            return int(np.argmin(np.where(safe, mean, np.inf))), True
        return int(np.argmax(np.where(open_, self.memory.fits, -1.0))), False

    def _first(self, mean: FloatArray, sd: FloatArray, open_: BoolArray) -> Proposal:
        """Pick by the prediction alone: with nothing run, any trial pays."""
        index, is_safe = self._likely_fastest(mean, open_)
        what = "predicted fastest"
        if self._closed.any():
            what = "nothing has run yet, and this is predicted the fastest of those likely to fit"
        if not is_safe:
            what = "nothing has run yet, and this is the most likely to fit"
        fits_by = f"{self.memory.room[index]:.0%} chance {self._to_fit}"
        why = f"{what}: {_seconds(mean[index], sd[index])} per step, {fits_by}"
        return Proposal(index=index, why=why, expected_s=math.exp(mean[index]), error=float(sd[index]))

    def _next(self, mean: FloatArray, sd: FloatArray, open_: BoolArray) -> Proposal | None:
        saved, cost = self._worth(mean, sd)
        pays = open_ & (saved > cost)
        if not pays.any():
            return None
        index = int(np.argmax(np.where(pays, saved / cost, -1.0)))
        why = self._reason(index, mean, sd)
        return Proposal(index=index, why=why, expected_s=math.exp(mean[index]), error=float(sd[index]))

    def _worth(self, mean: FloatArray, sd: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the expected seconds of training that a trial of each layout saves, and those that it costs."""
        fits, ahead = self.memory.fits, (self.best_log_step - LEAST_GAIN - mean) / sd
        improvement = sd * (ahead * normal_cdf(ahead) + normal_density(ahead))
        saved: FloatArray = self.training_s() * fits * self.time.ordinary * improvement
        return saved, self.cost.expected_s(mean, fits)

    def _reason(self, index: int, mean: FloatArray, sd: FloatArray) -> str:
        ahead = math.expm1(self.best_log_step - mean[index])
        against = f"{abs(ahead):.0%} {'faster' if ahead >= 0 else 'slower'} than the best"
        faster = float(normal_cdf((self.best_log_step - mean[index]) / sd[index])) * self.time.ordinary
        predicted = f"predicted {_seconds(mean[index], sd[index])} per step ({against})"
        return f"{predicted}, {faster:.0%} chance to be faster, {self.memory.room[index]:.0%} {self._to_fit}"

    @property
    def _to_fit(self) -> str:
        return "to fit within the limit" if self.prior.limit_share < STATED_LIMIT else "to fit"


def _seconds(log_step: float, sd: float) -> str:
    """Write a step by its logarithm, with half of its 90% range."""
    return f"{math.exp(log_step):.3g} s ±{math.expm1(TO_90 * sd):.0%} (90%)"
