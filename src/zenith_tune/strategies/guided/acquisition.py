"""Which layout to try next: the one with the most expected gain for the seconds that its trial takes.

Expected improvement (Jones, Schonlau and Welch, J. Global Optimization 13 (1998)) of the logarithm of the step time,
times the chance to fit, over the trial's expected cost: start-up and some steps, or start-up alone where it fails.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import numpy as np

from zenith_tune.estimate.workload import FloatArray
from zenith_tune.planner.limits import RISK
from zenith_tune.strategies.guided.posteriors import MemoryPosterior, TimePosterior
from zenith_tune.strategies.guided.prior import Prior, normal_cdf, normal_density
from zenith_tune.study.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Hold a pick."""

    index: int
    """The row of the layout."""
    why: str
    """In one line."""
    expected_s: float
    """The step time that is believed of it."""
    chance: float
    """That it is faster than the best so far by more than what counts as a gain; 1 where nothing ran yet."""


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


GAIN = 0.01
"""A smaller gain is not worth a trial."""
SMALL_CHANCE = 0.03
"""Once no layout has a larger chance of such a gain, it is done."""

HOPELESS = 0.02
"""What has a smaller chance to run is not tried, also where nothing ran yet."""


class Acquisition:
    """Choose among the layouts of a prior, and learn from their trials."""

    def __init__(self, prior: Prior, *, gain: float = GAIN, small_chance: float = SMALL_CHANCE) -> None:
        self.prior = prior
        self.time = TimePosterior(prior)
        self.memory = MemoryPosterior(prior)
        self.cost = TrialCost()
        self.best: int | None = None
        """The fastest layout that ran."""
        self.best_log_step = math.inf
        self._gain, self._small_chance = -math.log1p(-gain), small_chance
        self._closed = np.zeros(len(prior), np.bool_)
        self._running: list[int] = []

    def pick(self) -> Proposal | None:
        """Return the next layout to try, or None where none is worth it; it then counts as running."""
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
        """Return a layout that runs without having been picked, with what is believed of it."""
        self._closed[index] = True
        return Proposal(index=index, why="", expected_s=math.exp(self.time.mean[index]), chance=1.0)

    def done(self, index: int) -> None:
        """Hear that a trial is over; what it taught is told apart."""
        self._closed[index] = True
        if index in self._running:
            self._running.remove(index)

    def observe_step(self, index: int, log_step: float, noise: float) -> None:
        """Learn a step time."""
        self.time.tell(index, log_step, noise)
        if log_step < self.best_log_step:
            self.best, self.best_log_step = index, log_step

    def refuse(self, rows: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> int:
        """Never pick these rows; returns how many were still open."""
        num_closed = int(np.sum(rows & ~self._closed))
        self._closed |= rows
        return num_closed

    def chance_of_gain(self) -> float:
        """Return the largest chance of any layout that is open to be faster than the best by more than counts."""
        if self.best is None:
            return 1.0 if (~self._closed & (self.memory.fits >= HOPELESS)).any() else 0.0
        chance = np.where(self._closed, 0.0, self._chance(self.time.mean, self.time.sd))
        return float(chance.max(initial=0.0))

    def _first(self, mean: FloatArray, sd: FloatArray, open_: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Proposal:
        """Pick where nothing has run: the fastest that fits well enough, or else what fits best."""
        fits = self.memory.fits
        safe = open_ & (fits >= 1 - RISK)
        index = int(np.argmin(np.where(safe, mean, np.inf)) if safe.any() else np.argmax(np.where(open_, fits, -1.0)))
        summary = f"{_seconds(mean[index], sd[index])} a step expected, {_percent(self.memory.room[index])} to fit"
        what = "fastest on paper" if not self._closed.any() else "fastest of those that should fit"
        if not safe.any():
            what = "nothing has run yet, and this is the likeliest to fit"
        return Proposal(index=index, why=f"{what}: {summary}", expected_s=math.exp(mean[index]), chance=1.0)

    def _next(
        self, mean: FloatArray, sd: FloatArray, open_: np.ndarray[tuple[int], np.dtype[np.bool_]]
    ) -> Proposal | None:
        chance = np.where(open_, self._chance(mean, sd), 0.0)
        if chance.max() < self._small_chance:
            return None
        fits, ahead = self.memory.fits, (self.best_log_step - mean) / sd
        improvement = sd * (ahead * normal_cdf(ahead) + normal_density(ahead))
        # What may hardly gain is not picked for being cheap to try.
        worth = open_ & (chance >= self._small_chance)
        score = np.where(worth, fits * improvement / self.cost.expected_s(mean, fits), -1.0)
        index = int(np.argmax(score))
        return Proposal(
            index=index,
            why=self._reason(index, mean, sd, chance),
            expected_s=math.exp(mean[index]),
            chance=float(chance[index]),
        )

    def _reason(self, index: int, mean: FloatArray, sd: FloatArray, chance: FloatArray) -> str:
        ahead = math.expm1(self.best_log_step - mean[index])
        against = f"{abs(ahead):.0%} {'faster' if ahead >= 0 else 'slower'} than the best"
        summary = f"{_seconds(mean[index], sd[index])} a step expected ({against})"
        return f"{_percent(chance[index])} chance of a gain: {summary}, {_percent(self.memory.room[index])} to fit"

    def _chance(self, mean: FloatArray, sd: FloatArray) -> FloatArray:
        result: FloatArray = self.memory.fits * normal_cdf((self.best_log_step - self._gain - mean) / sd)
        return result


def _seconds(log_step: float, sd: float) -> str:
    return f"{math.exp(log_step):.3g} s ±{math.expm1(sd):.0%}"


def _percent(chance: float) -> str:
    return f"{chance:.0%}"
