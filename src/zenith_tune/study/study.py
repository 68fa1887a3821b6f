"""A study in memory: its trials, the best of them, and the gain over the user's own command."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from zenith_tune.study.lever_results import LeverGain, LeverResult, LeverStatus
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.precision import TO_90, LaunchNoise
from zenith_tune.study.runs import PairedGain, StudyRuns
from zenith_tune.study.trial import Trial

MIN_DIFFERENCE = 0.03
"""The smallest difference that two runs of one command do not show by themselves."""
LEAST_GAIN = 0.01
"""The smallest gain that is worth a trial: two runs of one command differ by nearly as much."""
SURE = 2.0
"""Standard errors by which a run must be faster to count as faster."""
CLEAR, CLEAR_UNSEEN = 1.4, 7.0
"""Half-widths of its 90% interval by which a gain stands without more runs, and where no pair of runs has shown what
two launches differ by."""
MOST_PAIRS = 4
"""Neighbouring pairs of runs after which a gain that is in doubt stays so."""
UNLIKE = 2.0
"""Times the noise of earlier studies on the machine from which it is another one now."""
TOO_NOISY = 0.2
"""Half of the 90% interval of a gain from which runs are too noisy to tell, as a logarithm."""
MAX_RERUNS = 4
"""How many trials of a study run once more at its end: the best, and those that may be better."""


class EndReason(StrEnum):
    """Why a study ended."""

    DONE = "done"
    """The strategy has tried what it wanted to."""
    LIMIT = "limit"
    """A budget is used, or a limit is reached."""
    FAILED = "failed"
    """The user's own command fails, the options take no effect, or the tuner itself failed."""
    INTERRUPTED = "interrupted"


class StudyEnding(NamedTuple):
    """Why a study ended, and how that is put in a sentence."""

    reason: EndReason
    why: str


class Study(StudyRuns):
    """The trials of a study in the order in which they ended, the best of them and its gain."""

    def __init__(self, direction: Direction) -> None:
        super().__init__(direction)
        self.own_params: Mapping[str, Value] | None = None
        """The point that the user's own command stands for; None where it is none, or unknown."""
        self.memory_limit_bytes: float | None = None
        """What the best may take of a GPU's memory; `limit_memory` sets it."""
        self.ruled_out: dict[str, str] = {}
        """Why runs that went well cannot be the best, as a run that confirms another has shown; `rule_out` sets it."""
        self.cut_off_s = 0.0
        """Seconds of runs that were cut off, and are no trials of the study."""
        self.earlier_launches = LaunchNoise()
        """How much runs of one command differed in earlier studies on the machine."""
        self._checked: Trial | None = None
        """The best of those that ran again at the end."""
        self._unchecked: Trial | None = None
        """The best of all others."""
        self.max_trials: int | None = None
        """The most runs that count in the budget, once that is known; None: as many as pay."""
        self.max_reruns = MAX_RERUNS
        """How many reruns there may be, those of earlier runs of the study included."""
        self._replaced: set[int] = set()
        """The numbers of the trials that ran again: what they measured then is what counts."""
        self._fewest_settings = sys.maxsize
        """The fewest settings of a trial: levers come on top."""
        self.is_sound = True
        """Whether its runs differ by what was tuned; not where options proved to be without effect."""
        self._lever_gains: dict[str, LeverGain] = {}
        """The gain of each group of levers that proved faster over the run before it, by the run that has it."""
        self._lever_results: dict[str, LeverResult] = {}
        self.num_pruned = 0
        self.num_repeated = 0

    def add_lever_gain(self, trial: Trial, gain: LeverGain) -> None:
        """Take in what levers gave in a trial, over the best that there was before it."""
        self._lever_gains[trial.identity] = gain

    def add_lever_result(self, result: LeverResult) -> None:
        """Take in what became of a lever; the last result counts."""
        self._lever_results[result.lever] = result

    @property
    def lever_results(self) -> tuple[LeverResult, ...]:
        """Return what became of each lever; one whose gain did not hold when its trial ran again is not kept."""
        gains = self.lever_gains if self.fastest is self.best else ()
        held = {lever for gain in gains for lever in gain.levers}
        return tuple(
            replace(result, status=LeverStatus.NO_FASTER, why="its gain did not hold, or is within the noise")
            if result.status is LeverStatus.KEPT and result.lever not in held
            else result
            for result in self._lever_results.values()
        )

    @property
    def lever_gains(self) -> tuple[LeverGain, ...]:
        """Return what the levers of the best trial gave, the first over its layout alone."""
        identity = "" if self.best is None else self.best.identity
        if identity not in self._lever_gains:
            return ()
        runs = list(self._lever_gains)
        return tuple(self._lever_gains[run] for run in runs[: runs.index(identity) + 1])

    @property
    def lever_speedup(self) -> float | None:
        """Return what they gave in all; None where it has none."""
        return math.prod(gain.speedup for gain in self.lever_gains) if self.lever_gains else None

    def add(self, trial: Trial) -> None:
        """Take in a finished trial."""
        if trial.is_baseline:
            self.own_runs.append(trial)
            return
        self.trials.append(trial)
        self._fewest_settings = min(self._fewest_settings, len(trial.params))
        if trial.rerun_of is not None:
            self._replaced.add(trial.rerun_of)
            self.limit_memory(self.memory_limit_bytes)
        self._weigh(trial)

    @property
    def best(self) -> Trial | None:
        """The best trial; one that failed or takes more memory than it may is never it.

        Once trials ran again, it is one of them: what ran only once must be clearly better, and no longer counts when
        as many ran again as are worth it.
        """
        if self._checked is None:
            return self._unchecked
        return self.contender if self.is_open and self.contender is not None else self._checked

    @property
    def is_open(self) -> bool:
        """Whether more trials may run again."""
        return len(self._replaced) < self.max_reruns

    @property
    def contender(self) -> Trial | None:
        """The best of those that ran only once, unless one that ran again is as good within the noise."""
        checked, other = self._checked, self._unchecked
        if checked is None or other is None or checked.value is None or other.value is None:
            return other
        noise = max(MIN_DIFFERENCE, (checked.spread or 0.0) + (other.spread or 0.0))
        is_clear = abs(other.value - checked.value) > noise * abs(checked.value)
        return other if is_clear and self.direction.better(other.value, than=checked.value) else None

    @property
    def counted(self) -> list[Trial]:
        """The trials that count: of one that ran again, the last run."""
        return [trial for trial in self.trials if trial.number not in self._replaced]

    def allow_reruns(self) -> None:
        """Let as many trials run again as one run of a study may, whatever earlier ones did."""
        self.max_reruns = len(self._replaced) + MAX_RERUNS

    def limit_memory(self, limit_bytes: float | None) -> None:
        """Choose the best among what takes no more of a GPU's memory."""
        self.memory_limit_bytes = limit_bytes
        self._checked = self._unchecked = None
        for trial in self.trials:
            self._weigh(trial)

    def rule_out(self, trials: Iterable[Trial], why: str) -> None:
        """Choose the best among the other runs."""
        self.ruled_out.update(dict.fromkeys(map(_settings, trials), why))
        self.limit_memory(self.memory_limit_bytes)

    def why_ruled_out(self, trial: Trial) -> str | None:
        """Return why a run cannot be the best."""
        return self.ruled_out.get(_settings(trial))

    def may_be_best(self, trial: Trial) -> bool:
        """Tell whether a run stays within the memory that the best may take, as far as any run has shown."""
        return self.why_ruled_out(trial) is None and self.is_within_limit(trial)

    def is_within_limit(self, trial: Trial) -> bool:
        """Tell whether a run measured no more memory than the best may take."""
        limit = self.memory_limit_bytes
        return limit is None or trial.peak_memory_bytes is None or trial.peak_memory_bytes <= limit

    def proves_better(self, trial: Trial, *, than: Trial) -> bool:
        """Tell whether a trial is faster than another by more than the noise of both, and by as much as is worth it."""
        if trial.value is None or not than.value:
            return trial.value is not None
        noise = SURE * math.hypot(trial.standard_error, than.standard_error)
        return self.direction.gain(trial.value, over=than.value) > max(noise, LEAST_GAIN)

    def _is_proven(self, trial: Trial) -> bool:
        """Tell whether a trial is better than all that have fewer settings, are the same otherwise, and are proven too.

        So are levers: one that proves no faster than its layout alone is not kept, however lucky its run was. Two
        that gain too little for that may do so together.
        """
        base, own = self.baseline, self.own_params
        if len(trial.params) <= min(self._fewest_settings, len(own or trial.params)):
            return True
        plainer = [run for run in self.counted if run.params.keys() < trial.params.keys()]
        twins = [run for run in plainer if run.params.items() <= trial.params.items()]
        if base is not None and own and own.keys() < trial.params.keys() and own.items() <= trial.params.items():
            twins.append(base)
        usable = [run for run in twins if run.ok and self.may_be_best(run) and self._is_proven(run)]
        return all(self.proves_better(trial, than=run) for run in usable)

    def _weigh(self, trial: Trial) -> None:
        """Take a trial for the best of its kind, if it is: of those that ran again, or of all others."""
        if trial.number in self._replaced or not self.may_be_best(trial) or not self._is_proven(trial):
            return
        if trial.is_rerun:
            self._checked = self._better_of(self._checked, trial)
        else:
            self._unchecked = self._better_of(self._unchecked, trial)

    @property
    def leader(self) -> Trial | None:
        """The best of all runs that went well, the user's own command included, by whatever noise.

        Where options take no effect, it is that command; where it takes more memory than it may, it is a trial.
        """
        base, best, gain = self.baseline, self.best, self.gain_of(self.best) if self.best is not None else None
        if base is None or base.value is None:
            return best
        if best is None or best.value is None or not self.is_sound:
            return base
        if not self.may_be_best(base):
            return best
        is_better = self.direction.better(best.value, than=base.value) if gain is None else gain > 0
        return best if is_better else base

    @property
    def fastest(self) -> Trial | None:
        """The run whose command is the one to use: a trial must gain more than the noise over the user's own."""
        base = self.baseline
        return base if self.is_within_noise and base is not None and self.may_be_best(base) else self.leader

    @property
    def gain(self) -> float | None:
        """Return how much faster the best trial is than the user's own command, as a fraction.

        A trial that repeats the command's own settings gains nothing, by whatever its run differs.
        """
        gain = self.gain_of(self.best) if self.best is not None else None
        return min(gain, 0.0) if gain is not None and self.best_is_own else gain

    @property
    def best_is_own(self) -> bool:
        """Whether the best trial has the settings of the user's own command."""
        return bool(self.own_params) and self.best is not None and dict(self.best.params) == dict(self.own_params or {})

    def next_confirming(self, *, always: bool = False) -> Trial | None:
        """Return which of the user's own command and the best trial runs next, in turn, to confirm the gain.

        None where nothing is in doubt, or too many runs have not told; `always` repeats both whatever they show.
        """
        base, best = self.baseline, self.best
        if base is None or best is None or self.gain is None or self.gain <= 0 or self.leader is base:
            return None
        are_repeated = base.is_rerun and best.is_rerun
        if are_repeated and self.gain < LEAST_GAIN and not self.is_wide:
            return None
        if self.num_pairs >= MOST_PAIRS or (self.is_clear and (are_repeated or not always)):
            return None
        if not any(run.ok and run.is_rerun and run.number > best.number for run in self.own_runs):
            return base
        return best if self.is_open else None

    @property
    def launch_noise(self) -> LaunchNoise:
        """How much two runs of one command differ.

        By the runs that repeat one, of which the first run of the user's own command counts until it has neighbouring
        ones: the machine may have been cold. Earlier studies count where their noise is like that of this one.
        """
        near = self.rerun_ratios(near=True)
        has_near = any(run.is_rerun for run in self.own_runs[:-1])
        pairs = [*near, *self.rerun_ratios(besides=self.own_runs if has_near else ())]
        seen, earlier = LaunchNoise().seen(pairs), self.earlier_launches
        # Quiet runs of other jobs say nothing against noise that this one has shown, nor cold starts against what came
        # after one.
        is_noisier, is_quieter = seen.sd > UNLIKE * earlier.sd, earlier.sd > UNLIKE * seen.sd
        return seen if pairs and (is_noisier or (near and is_quieter)) else earlier.seen(pairs)

    @property
    def gain_half_width(self) -> float | None:
        """Half of the 90% interval of the logarithm of the gain; None where there is nothing to compare.

        Two errors for each of the runs: that of its iterations, and that of one launch against the next. With few
        runs that were repeated, the interval is wide.
        """
        found = self._best_paired
        return None if found is None else math.hypot(TO_90 * found.error, self._launches_half_width)

    @property
    def _best_paired(self) -> PairedGain | None:
        return None if self.best is None else self._paired(self.best)

    @property
    def _launches_half_width(self) -> float:
        found = self._best_paired
        return self.launch_noise.half_width * found.launches / math.sqrt(2) if found is not None else 0.0

    @property
    def noise_half_width(self) -> float | None:
        """The same by what was seen alone: where no command ran twice, by the iterations of both runs."""
        found = self._best_paired
        return self.gain_half_width if self.launch_noise.num_pairs or found is None else TO_90 * found.error

    @property
    def is_within_noise(self) -> bool:
        """Whether there may be no gain, by the iterations of both runs and by the launches that were compared."""
        gain, half_width = self.gain, self.noise_half_width
        return gain is not None and half_width is not None and gain > 0 and math.log1p(gain) <= half_width

    @property
    def is_wide(self) -> bool:
        """Whether the interval of the gain is so wide that it may as well be a loss."""
        gain, half_width = self.gain, self.noise_half_width
        return gain is not None and half_width is not None and half_width >= max(abs(math.log1p(gain)), TOO_NOISY)

    @property
    def is_too_noisy(self) -> bool:
        """Whether it is so by runs that were seen to differ, and not by few runs alone."""
        ratio = self.noisy_ratio
        return self.is_wide and (ratio is None or math.log(ratio) >= TOO_NOISY / 2)

    @property
    def noisy_ratio(self) -> float | None:
        """The largest ratio of two runs of one command; None where none ran twice."""
        seen = self.rerun_ratios(near=True) or self.rerun_ratios()
        return math.exp(max(map(abs, seen))) if seen else None

    @property
    def is_clear(self) -> bool:
        """Whether the gain is so far beyond its noise that it stands without more runs."""
        gain, half_width = self.gain, self.gain_half_width
        times = CLEAR if self.launch_noise.num_pairs else CLEAR_UNSEEN
        return gain is not None and half_width is not None and gain > 0 and math.log1p(gain) >= times * half_width

    @property
    def num_pairs(self) -> int:
        """Count the neighbouring pairs of runs that the gain is from."""
        return self._best_paired.num_pairs if self._best_paired is not None else 0

    def _better_of(self, best: Trial | None, trial: Trial) -> Trial | None:
        if trial.value is None:
            return best
        if best is None or best.value is None or self.direction.better(trial.value, than=best.value):
            return trial
        # Of equals the first, in whatever order they ended: so several tuners of a study name the same one.
        return trial if trial.value == best.value and trial.number < best.number else best


def _settings(trial: Trial) -> str:
    """Name what a run has in common with those that repeat it."""
    return "" if trial.is_baseline else trial.identity
