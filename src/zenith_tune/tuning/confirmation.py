"""Whether a gain holds: where it is in doubt, the user's own command and the best trial run again, in turn.

The first run of a cold machine may be far slower than the same run later, and the user's own command is always the
first; trials that ran side by side may have slowed one another. A gain that is many times what launches differ by is
clear without. First runs do not count where a later one does: the trial was chosen for being fast, so that the mean of
both would overstate it. Runs in turn are compared with their neighbours, so that slow drift of the machine cancels.
"""

from __future__ import annotations

import math

from zenith_tune.evaluators.early_stop import saved_share
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import MAX_RERUNS, MIN_DIFFERENCE
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.tuning.session import StudySession
from zenith_tune.units import format_value

RESERVED_SHARE, RESERVED = 3, 3
"""The search reserves one trial in so many for what confirms its gain, up to so many: the user's own command again,
the best trial again, and the own command once more."""
MAX_RUNS = MAX_RERUNS + 3
"""Runs that confirm a gain: trials, and the user's own command."""


def reserved_runs(num_trials: int | None) -> int:
    """Return how many of `--n-trials` are left to confirm a gain."""
    return 0 if num_trials is None else min(num_trials // RESERVED_SHARE, RESERVED)


class Confirmation:
    """Second runs of the best trial, of the user's own command, and of trials that may be better, where they tell.

    `side_by_side` says whether trials shared the machine while the study was searched, `claims` whether a gain that is
    in doubt is to be confirmed, `always` whether a clear one is too.
    """

    def __init__(self, session: StudySession, *, side_by_side: bool, claims: bool = True, always: bool = False) -> None:
        self._session, self._side_by_side, self._claims, self._always = session, side_by_side, claims, always
        self._num_left = MAX_RUNS
        """Runs that there may still be."""
        self._is_in_turn = claims
        """Whether runs in turn may still tell; not once one of them failed."""
        self._num_failed = 0
        """Confirming runs that were out of memory and are dealt with."""

    def run(self) -> list[str]:
        study = self._session.study
        self._rule_out()  # by what an earlier run of the study has shown
        first = study.contender
        if not (self._side_by_side or self._claims_gain()):
            return []
        if first is None:
            return self._in_turn()
        is_due = self._side_by_side or self._session.config.preset.confirming(first.params) is not None
        # Its first run, on a machine that may have been cold, is what is in doubt most, and often all that is.
        lines = [] if is_due else self._in_turn(1)
        if not (is_due or self._next() is not None):
            return lines
        again = self._again(first)
        num_before = sum(trial.is_rerun for trial in study.trials)
        gain = self._gain(again, over=first)
        lines += [*self._until_one_fits(again), *self._in_turn()]
        differs = gain is not None and abs(gain) > max(MIN_DIFFERENCE, (first.spread or 0) + (again.spread or 0))
        if study.may_be_best(first):
            near = self._near(first, gain if differs else None)
            while (
                study.is_open and self._num_left and (following := near.pop(0) if near else study.contender) is not None
            ):
                self._again(following)  # then those that are best by now
            lines += self._in_turn()
        num_more = sum(trial.is_rerun for trial in study.trials) - num_before
        return [self._verdict(first, again, gain, num_more, differs=differs), *lines]

    def _until_one_fits(self, again: Trial) -> list[str]:
        """Run smaller points, each again as well, where the best runs out of memory on what its trial did not meet."""
        study = self._session.study
        lines: list[str] = []
        while (why := self._rule_out()) is not None:
            confirming = self._session.config.preset.confirming(again.params)
            if confirming is not None and confirming.smaller is not None:
                self._try(dict(confirming.smaller), f"trial {study.number_of(again)} {why}")
            following = study.contender
            if following is None or study.leader is study.baseline:
                return [*lines, f"trial {study.number_of(again)} {why}, and nothing smaller is faster"]
            if not self._num_left:
                return [*lines, f"trial {study.number_of(again)} {why}; trial {following.number} did not run again"]
            lines.append(f"trial {study.number_of(again)} {why}: trial {following.number} is tried in its place")
            again = self._again(following)
        return lines

    def _rule_out(self) -> str | None:
        """Rule out what would run out of memory like a run that confirmed its trial; returns why, where there is any.

        None where no such run came after the last time.
        """
        study, preset = self._session.study, self._session.config.preset
        failed = [trial for trial in study.trials if trial.is_rerun and trial.outcome is Outcome.OOM]
        confirming = preset.confirming(failed[-1].params) if len(failed) > self._num_failed else None
        self._num_failed = len(failed)
        if confirming is None:
            return None
        why = f"runs out of memory on {confirming.meets}"
        own, base = study.own_params, study.baseline
        same = [base] if base is not None and own and preset.prune(own) else []
        study.rule_out([*same, *(trial for trial in study.trials if preset.prune(trial.params))], why)
        return why

    def _try(self, params: Params, why: str) -> None:
        """Run a point, unless the study has."""
        config, study = self._session.config, self._session.study
        identity = config.identify(params)
        known = {*config.own_identities, *(trial.identity for trial in study.trials)}
        if self._num_left and identity not in known and not config.preset.prune(params):
            self._num_left -= 1
            self._session.run_point(params, identity, why)

    def _in_turn(self, most: int = MAX_RUNS) -> list[str]:
        """Run the user's own command and the best trial in turn while the gain is in doubt; returns what failed."""
        for _ in range(most):
            following = self._next()
            if following is None:
                break
            trial = self._again(following)
            if not trial.ok:
                self._is_in_turn = False
                who = "your own command" if following.is_baseline else f"trial {self._session.study.number_of(trial)}"
                return [f"{who}, run again, failed ({trial.cause}): the gain is not confirmed"]
        return []

    def _claims_gain(self) -> bool:
        """Tell whether there is a gain over the user's own command that wants confirmation."""
        study = self._session.study
        return self._claims and study.gain is not None and study.gain > 0 and study.leader is not study.baseline

    def _next(self) -> Trial | None:
        """Return what runs next to confirm the gain."""
        is_open = self._is_in_turn and self._num_left
        return self._session.study.next_confirming(always=self._always) if is_open else None

    def _verdict(self, first: Trial, again: Trial, gain: float | None, num_more: int, *, differs: bool) -> str:
        if gain is None:
            line, verdict = f"trial {first.number}, run again, failed ({again.cause})", "it does not count"
        else:
            measured = format_value(again.value or 0.0, again.unit)
            line = f"trial {first.number}, run again: {measured}, {gain:+.1%}"
            verdict = "confirmed"
            if differs:
                why = "trials side by side slow one another" if self._side_by_side else "its runs differ that much"
                verdict = why if gain > 0 else "what it measured at first did not hold"
        if not num_more:
            return f"{line}: {verdict}"
        study = self._session.study
        last = study.best
        chosen = f"trial {study.number_of(last)} is the best" if last else "none is left"
        if last is not None and last.identity == again.identity:
            chosen = "it stays the best trial"
        return f"{line}: {verdict}; after {num_more} more run again {chosen}"

    def drift(self) -> str | None:
        """Say by how much the user's own command ran otherwise at the end than at the begin, where it did."""
        study = self._session.study
        first, again = study.first_baseline, study.baseline
        gain = self._gain(again, over=first) if first is not None and again is not None and again is not first else None
        if first is None or again is None or gain is None or abs(gain) <= MIN_DIFFERENCE:
            return None
        if study.is_too_noisy and study.num_pairs > 1:  # which the verdict says
            return None
        at_first, at_end = format_value(first.value or 0.0, first.unit), format_value(again.value or 0.0)
        was = f"your own command measured {at_first} at first and {at_end} when it ran again ({gain:+.1%})"
        return f"{was}: each row's gain is over its last run before, the verdict's over neighbouring runs"

    def _again(self, trial: Trial) -> Trial:
        self._num_left -= 1
        if trial.is_baseline:
            return self._session.run_baseline(again=True)
        why = f"trial {self._session.study.number_of(trial)} again, to confirm it"
        return self._session.run_point(dict(trial.params), trial.identity, why, rerun_of=trial.number)

    def _near(self, best: Trial, gain: float | None) -> list[Trial]:
        """Return the trials that may be better than the best is now, the nearest first.

        The one whose second run saves more training than it costs; all that neighbours may have put behind it, where
        they did.
        """
        study = self._session.study
        near = [
            (abs(behind), trial)
            for trial in study.trials
            if trial.number != best.number and not trial.is_rerun
            if not study.reruns_of(trial)
            if study.may_be_best(trial)
            if (behind := self._gain(trial, over=best)) is not None
        ]
        ordered = sorted(near, key=lambda other: (other[0], other[1].number))
        if gain is not None and gain > 0 and self._side_by_side:
            return [trial for gap, trial in ordered if gap <= gain]
        return [trial for gap, trial in ordered[:1] if self._pays(trial, math.log1p(gap), best)]

    def _pays(self, trial: Trial, gap: float, best: Trial) -> bool:
        """Tell whether another run of a trial is expected to save more of the training than it costs."""
        launch_sd = self._session.study.launch_noise.sd
        error, other = (math.hypot(run.standard_error, launch_sd) for run in (trial, best))
        training_s = self._session.config.budget.training.seconds(best.step_s or 1.0)
        saved_s = training_s * saved_share(error, [(gap, other)], less_variance=error**2 / 2)
        return saved_s > (trial.alone_s or 0.0) * trial.num_runs

    def _gain(self, trial: Trial, *, over: Trial) -> float | None:
        """Return how much better one is than the other; None where one of them failed."""
        if trial.value is None or over.value is None:
            return None
        direction = self._session.study.direction
        try:
            return direction.gain(trial.value, over=over.value)
        except ZeroDivisionError:
            is_better = direction.better(trial.value, than=over.value)
            return 0.0 if trial.value == over.value else math.inf if is_better else -math.inf
