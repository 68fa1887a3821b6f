"""The second phase of a study: levers on the layout that won, several at once, kept where they prove faster.

All that are worth a trial and go together are tried in one. Where that is no faster, or fails, each half of them is
tried, and so on down to one. Afterwards come, one by one, levers that need what a machine may lack, other values of
what was kept, levers that need one that was kept, then at once all that gained too little to prove it alone, and at
last what does not fit without a lever that frees memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.presets.levers import Lever, compatible, goes_with
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.lever_results import LeverGain, LeverResult, LeverStatus
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import LEAST_GAIN
from zenith_tune.study.trial import Trial
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.interruption import ending_by
from zenith_tune.tuning.session import StudySession

LEAST_SHARE = 0.002
"""A lever that is expected to save less is not set."""
FULL = 0.97
"""Share of the usable memory above which no lever that takes more memory is tried."""
RESERVED_SHARE = 4
"""The search for a layout reserves one trial in so many for levers."""
MAX_NAMED = 3
"""The most levers of a trial that are named; of more, the number is given."""
TOO_LITTLE = "it is expected to save too little to be worth a trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """The best run, and its levers."""

    trial: Trial
    levers: tuple[Lever, ...] = ()

    def takes(self, lever: Lever) -> bool:
        """Tell whether a lever can be set with them, or in place of another value of the same lever."""
        others = [other for other in self.levers if other.name != lever.name]
        is_met = lever.needs <= {other.name for other in others}
        return is_met and lever not in self.levers and all(goes_with(lever, other) for other in others)

    def replaced_by(self, group: Sequence[Lever]) -> list[Lever]:
        """Return the levers that others of a group take the place of."""
        return [other for other in self.levers if any(other.name == lever.name for lever in group)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Levers that are tried at once."""

    levers: Sequence[Lever]
    is_part: bool = False
    """Whether a larger group with them was tried before, and was no faster."""


class LeverPhase:
    """Trials of the levers of a preset on the fastest run of a study."""

    def __init__(self, session: StudySession, evaluate: EvalFunction, note: Callable[[str], None]) -> None:
        self._session, self._evaluate, self._note = session, evaluate, note
        self._config: StudyConfig = session.config
        self._shares: Mapping[str, float] | None = None
        self._first: Trial
        """The fastest run without levers, which they are tried on."""
        self._point: Params = {}
        self._waiting: dict[str, str] = {}
        """The levers without a trial yet, each with the reason to give if it gets none."""
        self._seen: dict[frozenset[str], Trial] = {}
        """The trials by the levers that they had."""
        self._unproven: dict[str, tuple[Lever, float]] = {}
        """Levers that gained less than proves anything, with their share of what they gained."""

    def run(self) -> None:
        """Try them until none is left that is worth a trial; the study knows at any time what became of each."""
        fastest = self._fastest_layout()
        if fastest is None:
            return
        params = self._session.study.own_params if fastest.is_baseline else fastest.params
        if params is None or params.keys() != self._config.preset.get_search_space().keys():
            return
        point = dict(params)
        self._first, self._point, self._shares = fastest, point, predicted_shares(self._config, point)
        levers = self._config.preset.levers(self._config.command, point)
        for lever in levers:
            if lever.is_left_out and self._gain_of(lever) >= LEAST_GAIN:
                saved = f"; expected to save {self._gain_of(lever):.0%} of a step" if self._shares else ""
                why = f"{lever.why_left_out}{saved}"
                self._session.study.add_lever_result(LeverResult(lever=lever.label, why=why))
        allowed = sorted((lever for lever in levers if not lever.is_left_out), key=lambda lever: -self._gain_of(lever))
        worth = [lever for lever in allowed if is_of_use(lever, self._shares)]
        self._waiting = {lever.label: TOO_LITTLE for lever in worth}
        try:
            kept = self._climb(Kept(trial=fastest), [lever for lever in worth if self._fits([lever], fastest)])
            frees = [lever for lever in allowed if lever.is_for_memory]
            kept = self._make_room(kept, [lever for lever in worth if not self._fits([lever], fastest)], frees)
        except BaseException as error:  # a budget that is spent, or a signal
            self._close(ending_by(error).why, is_cut_off=True)
            raise
        self._close()
        if kept.levers:
            gain = self._session.study.direction.gain(kept.trial.value or 0.0, over=fastest.value or 1.0)
            names = ", ".join(lever.label for lever in kept.levers)
            self._note(f"levers: {names}: {gain:+.1%} over {_who(fastest)}")
        elif worth:
            self._note(f"levers: none of {', '.join(lever.label for lever in worth)} is kept")

    def _climb(self, kept: Kept, levers: list[Lever]) -> Kept:
        groups = [Group(levers=group) for group in in_turn(levers)]
        # One that needs what is kept later has its turn then.
        while (group := next((each for each in groups if any(map(kept.takes, each.levers))), None)) is not None:
            groups.remove(group)
            taken = [lever for lever in group.levers if self._takes(kept, lever)]
            if not self._is_worth(kept, taken, least=0.0 if group.is_part else LEAST_GAIN):
                continue
            better = self._tried(kept, taken)
            if better is not None:
                kept = better
            elif len(taken) > 1:
                half = (len(taken) + 1) // 2
                groups = [Group(levers=part, is_part=True) for part in (taken[:half], taken[half:])] + groups
        for lever in (lever for group in groups for lever in group.levers):
            self._takes(kept, lever)  # none of them is: remember why
        # What gained too little to prove it one by one is tried at once.
        left = [(lever, gain) for lever, gain in self._unproven.values() if kept.takes(lever)]
        together = compatible([lever for lever, _ in left])
        gain = sum(gain for lever, gain in left if lever in together)
        return (self._tried(kept, together) if gain >= LEAST_GAIN else None) or kept

    def _make_room(self, kept: Kept, lacking: list[Lever], frees: list[Lever]) -> Kept:
        """Try each lever that does not fit together with as few of those that free memory as make it fit."""
        for lever in lacking:
            if not self._takes(kept, lever):
                continue
            group = [lever]
            for other in compatible([lever, *(each for each in frees if kept.takes(each))])[1:]:
                group += [] if self._fits(group, kept.trial) else [other]
            if self._fits(group, kept.trial) and self._is_worth(kept, group):
                kept = self._tried(kept, group) or kept
            elif not self._fits(group, kept.trial):
                self._waiting[lever.label] = "it does not fit into the memory that the best layout leaves"
        return kept

    def _is_worth(self, kept: Kept, group: Sequence[Lever], *, least: float = LEAST_GAIN) -> bool:
        """Tell whether a trial of a group is expected to save more of the training than it takes.

        Where a group was worth one and was no faster, so are its parts: they show what was wrong with it.
        """
        expected = sum(map(self._gain_of, group)) - sum(map(self._gain_of, kept.replaced_by(group)))
        # Of a step that is shorter by now each part that is left has a larger share.
        expected *= 1 + self._session.study.direction.gain(kept.trial.value or 0.0, over=self._first.value or 1.0)
        training_s = self._config.budget.training.seconds(kept.trial.step_s or 1.0)
        cost_s = (kept.trial.alone_s or 0.0) * kept.trial.num_runs
        return bool(group) and expected >= least and expected * training_s > cost_s

    def _tried(self, kept: Kept, group: list[Lever]) -> Kept | None:
        """Return the levers with a group among them, where they prove faster with it."""
        replaced = kept.replaced_by(group)
        levers = [*(other for other in kept.levers if other not in replaced), *group]
        labels = frozenset(lever.label for lever in levers)
        if (trial := self._seen.get(labels)) is None:
            values = {lever.name: lever.value for lever in levers}
            names = ", ".join(lever.label for lever in group) if len(group) <= MAX_NAMED else f"{len(group)} levers"
            trial = self._evaluate.run({**self._point, **values}, f"{_who(kept.trial)} with {names}")
            self._seen[labels] = trial
        study = self._session.study
        if not (trial.ok and study.may_be_best(trial) and study.proves_better(trial, than=kept.trial)):
            self._reject(group, trial, kept.trial)
            return None
        speedup = 1 + study.direction.gain(trial.value or 0.0, over=kept.trial.value or 1.0)
        gain = LeverGain(
            levers=tuple(lever.label for lever in group),
            speedup=speedup,
            numerics=any(lever.numerics for lever in group),
        )
        study.add_lever_gain(trial, gain)  # at once, because the budget may end the phase
        self._say(group, LeverStatus.KEPT, trial, speedup)
        for other in replaced:
            self._say([other], LeverStatus.NO_FASTER, trial, why=f"{group[0].label} in its place is faster")
        for lever in group:
            self._unproven.pop(lever.label, None)
        return Kept(trial=trial, levers=tuple(levers))

    def _reject(self, group: Sequence[Lever], trial: Trial, best: Trial) -> None:
        """Say why a group is not kept, and remember what it gained if that is not enough to prove it."""
        study = self._session.study
        if not trial.ok:
            self._say(group, LeverStatus.FAILED, trial, why=trial.cause or str(trial.outcome))
            return
        gain = study.direction.gain(trial.value or 0.0, over=best.value or 1.0)
        is_over = not study.may_be_best(trial)
        why = "it takes more memory than the limit" if is_over else "within the noise of two runs" if gain > 0 else ""
        self._say(group, LeverStatus.NO_FASTER, trial, 1 + gain, why)
        for lever in group:
            self._unproven.pop(lever.label, None)
            if gain > 0 and not is_over:
                self._unproven[lever.label] = lever, gain / len(group)

    def _say(
        self, group: Sequence[Lever], status: LeverStatus, trial: Trial, speedup: float | None = None, why: str = ""
    ) -> None:
        labels = [lever.label for lever in group]
        for label in labels:
            self._waiting.pop(label, None)
            others = tuple(other for other in labels if other != label)
            self._session.study.add_lever_result(
                LeverResult(lever=label, status=status, trial=trial.number, beside=others, speedup=speedup, why=why)
            )

    def _close(self, why: str = "", *, is_cut_off: bool = False) -> None:
        """Say why the levers that still wait had no trial."""
        for label, reason in self._waiting.items():
            result = LeverResult(lever=label, why=why if is_cut_off else reason, is_cut_off=is_cut_off)
            self._session.study.add_lever_result(result)

    def _takes(self, kept: Kept, lever: Lever) -> bool:
        """Tell whether a lever can be set with those that are kept, and remember why not."""
        is_taken = kept.takes(lever)
        if not is_taken and lever.label in self._waiting:
            lacking = lever.needs - {other.name for other in kept.levers}
            blocking = [other.label for other in kept.levers if not goes_with(lever, other)]
            needed = f"it needs {', '.join(sorted(lacking))}, which is not kept"
            self._waiting[lever.label] = needed if lacking else f"it does not go with {', '.join(blocking)}"
        return is_taken

    def _gain_of(self, lever: Lever) -> float:
        return gain_of(lever, self._shares)

    def _fastest_layout(self) -> Trial | None:
        """Return the fastest run without levers: a resumed study may have tried some already."""
        study, levers = self._session.study, self._config.preset.lever_space().keys()
        runs = [*study.counted, *([study.baseline] if study.baseline is not None else [])]
        plain = [run for run in runs if run.ok and study.may_be_best(run) and not run.params.keys() & levers]
        return min(plain, key=lambda run: study.direction.sign * (run.value or 0.0), default=None)

    def _fits(self, levers: Sequence[Lever], best: Trial) -> bool:
        """Tell whether levers may still fit into the memory that the best run leaves."""
        limit, more = self._session.study.memory_limit_bytes, sum(lever.memory for lever in levers)
        if limit is None or best.peak_memory_bytes is None or more <= 0:
            return True
        return best.peak_memory_bytes * (1 + more) < FULL * limit


def reserved_trials(config: StudyConfig) -> int:
    """Return how many of `--n-trials` the search for a layout leaves: a quarter, but no more than there are levers."""
    num_trials = config.limits.n_trials
    return 0 if num_trials is None else min(num_trials // RESERVED_SHARE, _num_levers(config))


def most_trials(config: StudyConfig) -> int:
    """Return how many trials levers take at most: of a group that is no faster each half is tried, down to one."""
    return 2 * _num_levers(config)


def _num_levers(config: StudyConfig) -> int:
    """Return how many levers are worth a trial."""
    preset = config.preset
    point = _any_point(config) if preset.lever_space() else None
    if point is None:
        return 0
    levers, shares = preset.levers(config.command, point), predicted_shares(config, point)
    return sum(is_of_use(lever, shares) and not lever.is_left_out for lever in levers)


def _any_point(config: StudyConfig) -> Params | None:
    """Return the user's own point, or any other where the command is none."""
    with contextlib.suppress(UsageError):  # a command with placeholders
        if (own := config.preset.own_point(config.command)) is not None:
            return own
    return next(iter(config.preset.points()), None)


def _who(trial: Trial) -> str:
    return "your own command" if trial.is_baseline else f"trial {trial.number}"


def in_turn(levers: Sequence[Lever]) -> list[list[Lever]]:
    """Return what is tried at once, and in which order: together what cannot fail the rest, the others one by one."""
    together = compatible([lever for lever in levers if not (lever.is_alone or lever.is_unsure or lever.needs)])
    rest = [lever for lever in levers if lever not in together]
    others = sorted(rest, key=lambda lever: lever.is_unsure)
    return [together, *([lever] for lever in others)]


def gain_of(lever: Lever, shares: Mapping[str, float] | None) -> float:
    """Return what a lever is expected to save; without a plan each is taken to be worth a trial."""
    return LEAST_GAIN if shares is None else lever.predicted_gain(shares)


def is_of_use(lever: Lever, shares: Mapping[str, float] | None) -> bool:
    """Tell whether a lever is expected to save anything at all."""
    return not lever.is_for_memory and gain_of(lever, shares) >= LEAST_SHARE


def predicted_shares(config: StudyConfig, point: Params) -> dict[str, float] | None:
    """Return which share of the predicted step each of its parts has where no data-parallel traffic is hidden.

    None where nothing can be predicted.
    """
    try:
        subject = config.preset.subject(config.command)
    except UsageError:
        return None
    layout = config.preset.planned_layout(config.command, point)
    if subject is None or layout is None:
        return None
    from zenith_tune.calibrate.calibration_file import default_calibration
    from zenith_tune.estimates.step import time_with_room
    from zenith_tune.layouts.layout_batch import batch_of

    calibration = default_calibration(subject.job.framework.name)
    batch = batch_of([layout])
    time = time_with_room(subject.model, subject.cluster, subject.job, batch, calibration, data_overlap=0.0)
    return {name: float(seconds[0] / time.step_s[0]) for name, seconds in time.parts.items()}
