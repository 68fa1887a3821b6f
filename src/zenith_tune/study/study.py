"""A study in memory: its trials, the best of them, and the gain over the user's own command."""

from __future__ import annotations

import math
import statistics
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import StrEnum
from typing import NamedTuple

from zenith_tune.study.gain import PairedGain, paired_gain
from zenith_tune.study.lever_results import LeverGain, LeverResult, LeverStatus
from zenith_tune.study.parameters import Direction, Value
from zenith_tune.study.precision import TO_90, LaunchNoise
from zenith_tune.study.trial import Outcome, Trial

MIN_DIFFERENCE = 0.03
"""The smallest difference that two runs of one command do not show by themselves."""
LEAST_GAIN = 0.01
"""The smallest gain that is worth a trial: two runs of one command differ by nearly as much."""
SURE = 2.0
"""Standard errors by which a run must be faster to count as faster."""
CLEAR, CLEAR_UNSEEN = 3.0, 8.0
"""Half-widths of its 90% interval by which a gain is clear without more runs, and where no pair of runs has shown what
two launches differ by."""
CONFIRMS, MOST_PAIRS = 2, 4
"""Neighbouring pairs of runs that confirm a gain, and after which one that is in doubt stays so."""
UNLIKE = 2.0
"""Times the noise of earlier studies on the machine from which it is another one now."""
TOO_NOISY = 0.2
"""Half of the 90% interval of a gain by launches alone from which the machine is too noisy, as a logarithm."""
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


class Study:
    """The trials of a study in the order in which they ended."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
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
        self.trials: list[Trial] = []
        self.own_runs: list[Trial] = []
        """The runs of the user's own command, the first on a machine that may have been cold."""
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
            replace(result, status=LeverStatus.NO_FASTER, why="its gain did not hold when it ran again")
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
    def first_baseline(self) -> Trial | None:
        """The first run of the user's own command."""
        return self.own_runs[0] if self.own_runs else None

    @property
    def baseline(self) -> Trial | None:
        """The run of it that counts: the last that went well."""
        return next((trial for trial in reversed(self.own_runs) if trial.ok), self.first_baseline)

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
    def num_searched(self) -> int:
        """Count the trials, without those that ran another one again."""
        return sum(not trial.is_rerun for trial in self.trials)

    @property
    def num_counted(self) -> int:
        """Count the runs that the budget of trials holds: all but the first of the user's own command."""
        return len(self.trials) + len(self.own_runs[1:])

    @property
    def runs(self) -> list[Trial]:
        """Every run, those of the user's own command first."""
        return [*self.own_runs, *self.trials]

    @property
    def counted(self) -> list[Trial]:
        """The trials that count: of one that ran again, the last run."""
        return [trial for trial in self.trials if trial.number not in self._replaced]

    def allow_reruns(self) -> None:
        """Let as many trials run again as one run of a study may, whatever earlier ones did."""
        self.max_reruns = len(self._replaced) + MAX_RERUNS

    def first_run(self, trial: Trial) -> Trial | None:
        """Return the first run of what a rerun repeats."""
        if trial.is_baseline:
            return self.first_baseline if trial.is_rerun else None
        repeated = self._repeated(trial)
        return (self.first_run(repeated) or repeated) if repeated is not None else None

    def _repeated(self, trial: Trial) -> Trial | None:
        """Return the run that a rerun repeats, which may be a rerun itself."""
        runs = self.own_runs if trial.is_baseline else self.trials
        return next((each for each in runs if trial.is_rerun and each.number == trial.rerun_of), None)

    def name_of(self, trial: Trial) -> str:
        """Return what tables and lines call a run: base, 3, and 3' and 3'' where trial 3 is repeated."""
        if trial.is_baseline or not trial.is_rerun:
            return "base" if trial.is_baseline else str(trial.number)
        repeated = self._repeated(trial)
        return f"{trial.rerun_of if repeated is None else self.name_of(repeated)}'"

    def number_of(self, trial: Trial) -> int:
        """Return the number that a trial is known by: that of its first run, whichever run counts."""
        return (self.first_run(trial) or trial).number

    def reruns_of(self, trial: Trial) -> list[int]:
        """Return the numbers of the runs that repeated a trial to confirm it."""
        return [each.number for each in self._reruns(trial)]

    def _reruns(self, trial: Trial) -> list[Trial]:
        number = self.number_of(trial)
        return [each for each in self.trials if each.is_rerun and self.number_of(each) == number]

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
    def fastest(self) -> Trial | None:
        """The best of all runs that went well, the user's own command included.

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

    def gain_of(self, trial: Trial) -> float | None:
        """Return how much faster a trial is than the user's own command; None where no ratio can be stated."""
        found = self._paired(trial)
        return None if found is None else math.expm1(found.log)

    def _paired(self, trial: Trial) -> PairedGain | None:
        """Return the gain of a trial by its neighbours among the runs of the user's own command.

        First runs do not count where a later one does: the machine was cold then, or the trial chosen for its luck.
        """
        base = self.baseline
        if base is None or not base.ok or not trial.ok:
            return None
        tried = [each for each in self._reruns(trial) if each.ok] if trial.is_rerun else []
        return paired_gain(self._own_again or [base], tried or [trial], self.direction)

    @property
    def _own_again(self) -> list[Trial]:
        return [run for run in self.own_runs if run.ok and run.is_rerun]

    def next_confirming(self, *, always: bool = False) -> Trial | None:
        """Return which of the user's own command and the best trial runs next, in turn, to confirm the gain.

        None where nothing is in doubt, or too many runs have not told; `always` repeats both whatever they show.
        """
        base, best = self.baseline, self.best
        if base is None or best is None or self.gain is None or self.gain <= 0 or self.fastest is base:
            return None
        are_repeated = base.is_rerun and best.is_rerun
        if are_repeated and self.gain < LEAST_GAIN and not self.noisy_ratio:
            return None
        if self.num_pairs >= MOST_PAIRS or (self.is_settled and (are_repeated or not always)):
            return None
        if not any(run.number > best.number for run in self._own_again):
            return base
        return best if self.is_open else None

    @property
    def launch_noise(self) -> LaunchNoise:
        """How much two runs of one command differ.

        By neighbouring runs, where the best trial has such; else by first runs and those that repeat them, and by
        earlier studies on the machine.
        """
        best = self.best
        if best is not None and best.is_rerun and (near := self.rerun_ratios(near=True)):
            return LaunchNoise().seen(near)
        seen, earlier = LaunchNoise().seen(far := self.rerun_ratios()), self.earlier_launches
        # Quiet runs of other jobs say nothing against noise that this one has shown.
        return seen if far and seen.sd > UNLIKE * earlier.sd else earlier.seen(far)

    def rerun_ratios(self, *, near: bool = False, besides: Iterable[Trial] = ()) -> list[float]:
        """Return the logarithms of the ratios between a second run and its first, or of those between later ones.

        `besides` are trials that are left out.
        """
        left_out = {(trial.is_baseline, trial.number) for trial in besides}
        pairs = [
            (trial.value or 0.0, before.value or 0.0)
            for trial in self.runs
            if (trial.is_baseline, trial.number) not in left_out
            if (before := self._repeated(trial)) is not None and before.is_rerun is near
        ]
        return [math.log(again / before) for again, before in pairs if again > 0 and before > 0]

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
    def noisy_ratio(self) -> float | None:
        """The largest ratio of two runs of one command, where these differ by too much to tell what is faster."""
        seen, gain = self.rerun_ratios(near=True) or self.rerun_ratios(), self.gain
        if not seen or gain is None or self._launches_half_width < max(abs(math.log1p(gain)), TOO_NOISY):
            return None
        return math.exp(max(map(abs, seen)))

    @property
    def is_clear(self) -> bool:
        """Whether the gain is so many times its noise that no further run can put it in doubt."""
        gain, half_width = self.gain, self.gain_half_width
        times = CLEAR if self.launch_noise.num_pairs else CLEAR_UNSEEN
        return gain is not None and half_width is not None and gain > 0 and math.log1p(gain) >= times * half_width

    @property
    def is_settled(self) -> bool:
        """Whether the gain stands without more runs: it is clear, or beyond the noise by neighbouring runs."""
        return self.is_clear or (self.num_pairs >= CONFIRMS and (self.gain or 0.0) > 0 and not self.is_within_noise)

    @property
    def num_pairs(self) -> int:
        """Count the neighbouring pairs of runs that the gain is from."""
        return self._best_paired.num_pairs if self._best_paired is not None else 0

    def counts(self) -> Counter[Outcome]:
        """Count the trials by outcome, without those that ran another one again."""
        return Counter(trial.outcome for trial in self.trials if not trial.is_rerun)

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
        return trial if trial.value == best.value and trial.number < best.number else best


def _settings(trial: Trial) -> str:
    """Name what a run has in common with those that repeat it."""
    return "" if trial.is_baseline else trial.identity
