"""The runs of a study in order: what repeats what, how they are named, and how much faster a trial is.

A gain is by neighbouring runs of a trial and of the user's own command: slow drift is in both, and cancels. The rule
and what it was checked against are in docs/study.md, "Confirming a gain".
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import count

_MOST_LOG = 700.0
"""The logarithm of the largest ratio that is stated: a float holds little more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedGain:
    """The mean gain of a trial over the user's own command, by pairs of runs that came one after the other."""

    log: float
    """Logarithm of how many times as fast it is."""
    num_pairs: int
    error: float
    """Standard error of `log` by the iterations of the runs."""
    launches: float
    """Standard error of `log` by their launches, where that of one launch is 1."""


def paired_gain(own: Iterable[Trial], tried: Iterable[Trial], direction: Direction) -> PairedGain | None:
    """Return the gain of runs of a trial over those of the user's own command; None where no ratio can be stated."""
    runs = sorted([*own, *tried], key=lambda trial: trial.number)
    pairs = [(one, two) for one, two in itertools.pairwise(range(len(runs))) if _differ(runs[one], runs[two])]
    if not pairs or any((trial.value or 0.0) <= 0 for trial in runs):
        return None
    shares = [sum(index in pair for pair in pairs) / len(pairs) for index in range(len(runs))]
    shared = list(zip(shares, runs, strict=True))
    log = sum(share * math.log(trial.value or 1.0) * (1 if trial.is_baseline else -1) for share, trial in shared)
    return PairedGain(
        log=log * direction.sign,
        num_pairs=len(pairs),
        error=math.hypot(*(share * trial.standard_error for share, trial in shared)),
        launches=math.hypot(*shares),
    ) if abs(log) < _MOST_LOG else None  # fmt: skip


def _differ(one: Trial, two: Trial) -> bool:
    return one.is_baseline is not two.is_baseline


class StudyRuns:
    """The runs of the user's own command and the trials, as they were measured."""

    def __init__(self, direction: Direction) -> None:
        self.direction = direction
        self.trials: list[Trial] = []
        self.own_runs: list[Trial] = []
        """The runs of the user's own command, the first on a machine that may have been cold."""

    @property
    def first_baseline(self) -> Trial | None:
        """The first run of the user's own command."""
        return self.own_runs[0] if self.own_runs else None

    @property
    def baseline(self) -> Trial | None:
        """The run of it that counts: the last that went well."""
        return next((trial for trial in reversed(self.own_runs) if trial.ok), self.first_baseline)

    @property
    def num_trials(self) -> int:
        """Count the trials: neither runs that repeat one nor the user's own command."""
        return sum(trial.is_searched for trial in self.trials)

    @property
    def num_budgeted(self) -> int:
        """Count the runs that the budget of trials holds: all but the first of the user's own command."""
        return len(self.trials) + len(self.own_runs[1:])

    @property
    def what_ran(self) -> str:
        """The trials and the runs that repeat one, as they are counted everywhere."""
        num_again = sum(run.is_rerun for run in self.runs)
        again = f" and {count(num_again, 'repeated run')}" if num_again else ""
        return f"{count(self.num_trials, 'trial')}{again}"

    @property
    def runs(self) -> list[Trial]:
        """Every run, those of the user's own command first."""
        return [*self.own_runs, *self.trials]

    def first_run(self, trial: Trial) -> Trial | None:
        """Return the first run of what a rerun repeats."""
        if trial.is_baseline:
            return self.first_baseline if trial.is_rerun else None
        repeated = self._repeated(trial)
        return (self.first_run(repeated) or repeated) if repeated is not None else None

    def _repeated(self, trial: Trial) -> Trial | None:
        """Return the run that a rerun repeats, which may be a rerun itself."""
        runs = (self.own_runs if trial.is_baseline else self.trials) if trial.is_rerun else []
        return next((each for each in runs if each.number == trial.rerun_of), None)

    def name_of(self, trial: Trial) -> str:
        """Return what tables and lines call a run: 3, and 3' and 3'' where trial 3 is repeated; yours is 0."""
        if not trial.is_rerun:
            return str(trial.number)
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

    def counts(self) -> Counter[Outcome]:
        """Count the trials by outcome, without those that ran another one again."""
        return Counter(trial.outcome for trial in self.trials if not trial.is_rerun)

    def time_left_s(self, num_left: int | None) -> float | None:
        """Estimate the seconds for `num_left` more trials, from those that ran."""
        durations = [trial.duration_s * trial.num_runs for trial in self.trials if trial.duration_s is not None]
        if num_left is None or not durations:
            return None
        return num_left * statistics.fmean(durations)

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

    def gain_of(self, trial: Trial) -> float | None:
        """Return how much faster a trial is than the user's own command; None where no ratio can be stated."""
        found = self._paired(trial)
        return None if found is None else math.expm1(found.log)

    def _paired(self, trial: Trial) -> PairedGain | None:
        """Return the gain of a trial by its neighbours among the runs of the user's own command.

        First runs do not count where a later one does: the machine was cold then, or the trial chosen for its luck.
        """
        own, tried = self._compared(trial)
        return paired_gain(own, tried, self.direction) if own and tried else None

    def _compared(self, trial: Trial) -> tuple[list[Trial], list[Trial]]:
        """Return the runs of the user's own command and of a trial that its gain is from."""
        own = [run for run in self.own_runs if run.ok]
        tried = [each for each in self._reruns(trial) if each.ok] if trial.is_rerun else []
        return [run for run in own if run.is_rerun] or own[-1:], tried or [trial] * trial.ok

    def seen_speedups(self, trial: Trial) -> tuple[float, float] | None:
        """Return the lowest and the highest ratio between runs of a trial and of the user's own command."""
        own, tried = self._compared(trial)
        values = [[run.value or 0.0 for run in runs] for runs in (own, tried)]
        if not own or not tried or min(map(min, values)) <= 0:
            return None
        ratios = [(one / other) ** -self.direction.sign for other in values[0] for one in values[1]]
        return min(ratios), max(ratios)

    def row_gain(self, trial: Trial) -> float | None:
        """Return how much faster one run is than the run of the user's own command before it, as tables show it.

        What is printed while a study runs holds at its end too.
        """
        own = [run for run in self.own_runs if run.ok]
        before = [run for run in own if run.number < trial.number] or own
        found = paired_gain(before[-1:], [trial], self.direction) if before and trial.ok else None
        return None if found is None else math.expm1(found.log)
