"""A study in memory: its trials, the best of them, and the gain over the user's own command."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping

from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.trial import ALONE, Outcome, Trial

MIN_DIFFERENCE = 0.03
"""A smaller one is what two runs of one command differ by."""
MAX_ALONE = 4
"""How many trials of a study that ran side by side run once more alone: the best, and those that may be better."""


class Study:
    """Hold the trials of a study in the order in which they ended."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.own_params: Mapping[str, Value] | None = None
        """The point that the user's own command stands for; None where it is none, or nobody knows."""
        self.trials: list[Trial] = []
        self.baseline: Trial | None = None
        self._checked: Trial | None = None
        """The best of those that ran alone after they ran beside others."""
        self._unchecked: Trial | None = None
        """The best of all others."""
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
            self._checked = self._better_of(self._checked, trial)
            self._unchecked = None
            for each in self.trials:
                self._weigh(each)
        else:
            self._weigh(trial)

    @property
    def best(self) -> Trial | None:
        """Return the best trial; a trial that failed is never it, whatever its duration.

        Once trials ran again alone, it is one of them: what only ran beside others must be clearly better, and is not
        believed any more when as many were checked as are worth it.
        """
        if self._checked is None:
            return self._unchecked
        return self.contender if len(self._replaced) < MAX_ALONE and self.contender is not None else self._checked

    @property
    def contender(self) -> Trial | None:
        """Return the best of those that never ran alone, unless one that did is as good within the noise."""
        checked, other = self._checked, self._unchecked
        if checked is None or other is None or checked.value is None or other.value is None:
            return other
        noise = max(MIN_DIFFERENCE, (checked.spread or 0.0) + (other.spread or 0.0))
        is_clear = abs(other.value - checked.value) > noise * abs(checked.value)
        return other if is_clear and self.direction.better(other.value, than=checked.value) else None

    @property
    def num_searched(self) -> int:
        """Count the trials, without those that ran another one again."""
        return sum(not trial.is_alone for trial in self.trials)

    def _weigh(self, trial: Trial) -> None:
        if trial.identity not in self._replaced and not trial.is_alone:
            self._unchecked = self._better_of(self._unchecked, trial)

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
        """Return how much faster the best trial is than the user's own command, as a fraction.

        A trial that repeats the command's own settings gains nothing, by whatever its run differs.
        """
        gain = self.gain_of(self.best) if self.best is not None else None
        return min(gain, 0.0) if gain is not None and self.best_is_own else gain

    @property
    def best_is_own(self) -> bool:
        """Tell whether the best trial has the settings of the user's own command."""
        return bool(self.own_params) and self.best is not None and dict(self.best.params) == dict(self.own_params or {})

    def gain_of(self, trial: Trial) -> float | None:
        """Return how much faster a trial is than the user's own command; None where that cannot be said."""
        base = self.baseline
        if base is None or not base.value or not trial.value:
            return None
        gain = self.direction.gain(trial.value, over=base.value)
        return gain if math.isfinite(gain) else None

    @property
    def noise(self) -> float | None:
        """Return by how much the best trial and the user's own command differ at least where their spreads part."""
        spreads = [trial.spread for trial in (self.best, self.baseline) if trial is not None]
        return sum(spread or 0.0 for spread in spreads) if len(spreads) == 2 else None

    @property
    def is_within_noise(self) -> bool:
        """Tell whether the gain lies inside the two spreads, so that it may be none."""
        return self.gain is not None and 0 < self.gain < (self.noise or 0.0)

    def counts(self) -> Counter[Outcome]:
        """Count the trials by outcome."""
        return Counter(trial.outcome for trial in self.trials)

    def time_left_s(self, num_left: int | None) -> float | None:
        """Estimate the seconds for `num_left` more trials, from those that ran."""
        durations = [trial.duration_s * trial.num_runs for trial in self.trials if trial.duration_s is not None]
        if num_left is None or not durations:
            return None
        return num_left * statistics.fmean(durations)

    def _better_of(self, best: Trial | None, trial: Trial) -> Trial | None:
        if trial.value is None:
            return best
        if best is None or best.value is None or self.direction.better(trial.value, than=best.value):
            return trial
        # Of equals the first, in whatever order they ended: so several tuners of a study name the same one.
        return trial if trial.value == best.value and (trial.number or 0) < (best.number or 0) else best
