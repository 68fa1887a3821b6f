"""A study in memory: its trials, the best of them, and the gain over the user's own command."""

from __future__ import annotations

import math
import statistics
from collections import Counter

from zenith_tune.direction import Direction
from zenith_tune.trial import ALONE, Outcome, Trial


class Study:
    """Hold the trials of a study in the order in which they ended."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.trials: list[Trial] = []
        self.baseline: Trial | None = None
        self.best: Trial | None = None
        """The best trial; a trial that failed is never it, whatever its duration."""
        self._replaced: set[str] = set()
        """The runs beside others that were run again alone: what they measured then is what counts."""
        self.num_pruned = 0
        self.num_repeated = 0

    def add(self, trial: Trial) -> None:
        """Take in a finished trial."""
        if trial.is_baseline:
            self.baseline = trial
            return
        self.trials.append(trial)
        if trial.is_alone:
            self._replaced.add(trial.identity.removesuffix(ALONE))
            self.best = None
            for each in self.trials:
                self._weigh(each)
        else:
            self._weigh(trial)

    @property
    def num_searched(self) -> int:
        """Count the trials, without those that ran another one again."""
        return sum(not trial.is_alone for trial in self.trials)

    def _weigh(self, trial: Trial) -> None:
        if trial.identity in self._replaced:
            return
        if trial.ok and trial.value is not None and self._beats_best(trial, trial.value):
            self.best = trial

    @property
    def fastest(self) -> Trial | None:
        """Return the best of all runs that went well, the user's own command included."""
        base, best = self.baseline, self.best
        if base is None or base.value is None:
            return best
        if best is None or best.value is None:
            return base
        return best if self.direction.better(best.value, than=base.value) else base

    @property
    def gain(self) -> float | None:
        """Return how much faster the best trial is than the user's own command, as a fraction."""
        return self.gain_of(self.best) if self.best is not None else None

    def gain_of(self, trial: Trial) -> float | None:
        """Return how much faster a trial is than the user's own command; None where that cannot be said."""
        base = self.baseline
        if base is None or not base.value or not trial.value:
            return None
        gain = self.direction.gain(trial.value, over=base.value)
        return gain if math.isfinite(gain) else None

    @property
    def noise(self) -> float | None:
        """Return the spread of the gain, from those of the best trial and of the user's own command."""
        spreads = [trial.spread for trial in (self.best, self.baseline) if trial is not None]
        return math.hypot(*(spread or 0.0 for spread in spreads)) if len(spreads) == 2 else None

    def counts(self) -> Counter[Outcome]:
        """Count the trials by outcome."""
        return Counter(trial.outcome for trial in self.trials)

    def time_left_s(self, num_left: int | None) -> float | None:
        """Estimate the seconds for `num_left` more trials, from those that ran."""
        durations = [trial.duration_s * trial.num_runs for trial in self.trials if trial.duration_s is not None]
        if num_left is None or not durations:
            return None
        return num_left * statistics.fmean(durations)

    def _beats_best(self, trial: Trial, value: float) -> bool:
        best = self.best
        if best is None or best.value is None:
            return True
        # Of equals the first, in whatever order they ended: so several tuners of a study name the same one.
        is_earlier = value == best.value and (trial.number or 0) < (best.number or 0)
        return is_earlier or self.direction.better(value, than=best.value)
