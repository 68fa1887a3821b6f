"""The second phase of a study: levers on the layout that won, several at once, kept where they prove faster.

All that are worth a trial and go together are tried in one. Where that is no faster, or fails, each half of them is
tried, and so on down to one. Afterwards come, one by one, levers that need what a machine may lack, other values of
what was kept, levers that need one that was kept, and what does not fit without a lever that frees memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.presets.levers import Lever, compatible, goes_with
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Params
from zenith_tune.study.study import LEAST_GAIN, LeverGain
from zenith_tune.study.trial import Trial
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.session import StudySession

LEAST_SHARE = 0.002
"""A lever that is expected to save less is not set."""
FULL = 0.97
"""Of the memory that may be used: levers that take more are not tried on a layout that takes so much."""
RESERVED_SHARE = 4
"""One of so many trials is left to levers by the search for a layout."""
WHY = "levers on trial {}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Hold the best run, and the levers that it has."""

    trial: Trial
    levers: tuple[Lever, ...] = ()

    def takes(self, lever: Lever) -> bool:
        """Tell whether a lever can be set beside them, or in place of another value of the same."""
        others = [other for other in self.levers if other.name != lever.name]
        is_met = lever.needs <= {other.name for other in others}
        return is_met and lever not in self.levers and all(goes_with(lever, other) for other in others)


class LeverPhase:
    """Try the levers of a preset on the fastest run of a study."""

    def __init__(self, session: StudySession, evaluate: EvalFunction, note: Callable[[str], None]) -> None:
        self._session, self._evaluate, self._note = session, evaluate, note
        self._config: StudyConfig = session.config

    def run(self) -> None:
        """Try them until none is left that is worth a trial."""
        study = self._session.study
        fastest = self._fastest_layout()
        point = self._point(fastest) if fastest is not None else None
        if fastest is None or point is None:
            return
        shares = predicted_shares(self._config, point)
        levers = self._config.preset.levers(self._config.command, point)
        self._note_unallowed([lever for lever in levers if lever.is_on_request], shares)
        allowed = sorted(
            (lever for lever in levers if not lever.is_on_request), key=lambda lever: -gain_of(lever, shares)
        )
        worth = [lever for lever in allowed if is_of_use(lever, shares)]
        if not worth:
            return
        kept = self._climb(Kept(trial=fastest), point, [each for each in worth if self._fits([each], fastest)], shares)
        frees = [lever for lever in allowed if lever.is_for_memory]
        lacking = [lever for lever in worth if not self._fits([lever], fastest)]
        kept = self._make_room(kept, point, lacking, frees, shares)
        if not kept.levers:
            self._note(f"levers: none of {', '.join(lever.label for lever in worth)} is faster")
            return
        gain = study.direction.gain(kept.trial.value or 0.0, over=fastest.value or 1.0)
        names = ", ".join(lever.label for lever in kept.levers)
        self._note(f"levers: {names}: {gain:+.1%} over {_who(fastest)}")

    def _climb(self, kept: Kept, point: Params, levers: list[Lever], shares: Mapping[str, float] | None) -> Kept:
        """Return the best run, and the levers that it has."""
        groups = in_turn(levers)
        while groups:
            group = [lever for lever in groups.pop(0) if kept.takes(lever)]
            better = self._tried(kept, group, point, shares)
            if better is not None:
                kept = better
            elif len(group) > 1:
                half = (len(group) + 1) // 2
                groups = [group[:half], group[half:], *groups]
        return kept

    def _make_room(
        self,
        kept: Kept,
        point: Params,
        lacking: list[Lever],
        frees: list[Lever],
        shares: Mapping[str, float] | None,
    ) -> Kept:
        """Try each lever that does not fit beside as few of those that free memory as make it fit."""
        for lever in (each for each in lacking if kept.takes(each)):
            group = [lever]
            for other in compatible([lever, *(each for each in frees if kept.takes(each))])[1:]:
                group += [] if self._fits(group, kept.trial) else [other]
            if self._fits(group, kept.trial):
                kept = self._tried(kept, group, point, shares) or kept
        return kept

    def _tried(self, kept: Kept, group: list[Lever], point: Params, shares: Mapping[str, float] | None) -> Kept | None:
        """Return the levers with a group among them, where they prove faster with it."""
        replaced = [other for other in kept.levers if any(other.name == lever.name for lever in group)]
        expected = sum(gain_of(lever, shares) for lever in group) - sum(gain_of(other, shares) for other in replaced)
        if not group or not self._pays(kept.trial, expected):
            return None
        levers = [*(other for other in kept.levers if other not in replaced), *group]
        values = {lever.name: lever.value for lever in levers}
        trial = self._evaluate.run({**point, **values}, WHY.format(kept.trial.number))
        if not self._is_better(trial, kept.trial):
            self._note_allowed(group, trial, kept.trial)
            return None
        study = self._session.study
        gain = LeverGain(
            levers=tuple(lever.label for lever in group),
            speedup=1 + study.direction.gain(trial.value or 0.0, over=kept.trial.value or 1.0),
            numerics=any(lever.numerics for lever in group),
        )
        study.add_lever_gain(trial, gain)  # at once, because the budget may end the phase
        return Kept(trial=trial, levers=tuple(levers))

    def _fastest_layout(self) -> Trial | None:
        """Return the fastest run without levers: a resumed study may have tried some already."""
        study, levers = self._session.study, self._config.preset.lever_space().keys()
        runs = [*study.counted, *([study.baseline] if study.baseline is not None else [])]
        plain = [run for run in runs if run.ok and study.may_be_best(run) and not run.params.keys() & levers]
        best: Trial | None = None
        for run in plain:
            if best is None or study.direction.better(run.value or 0.0, than=best.value or 0.0):
                best = run
        return best

    def _point(self, trial: Trial) -> Params | None:
        params = trial.params if not trial.is_baseline else self._session.study.own_params
        space = self._config.preset.get_search_space()
        return dict(params) if params is not None and params.keys() == space.keys() else None

    def _is_better(self, trial: Trial, best: Trial) -> bool:
        study = self._session.study
        return trial.ok and study.may_be_best(trial) and study.proves_better(trial, than=best)

    def _pays(self, best: Trial, gain: float) -> bool:
        """Tell whether a trial is expected to save more of the training than it takes."""
        training_s = self._config.budget.training.seconds(best.step_s or 1.0)
        cost_s = (best.duration_s or 0.0) * best.num_runs
        return gain >= LEAST_GAIN and gain * training_s > cost_s

    def _fits(self, levers: Sequence[Lever], best: Trial) -> bool:
        """Tell whether levers may still fit beside what the best run took."""
        limit, more = self._session.study.memory_limit_bytes, sum(lever.memory for lever in levers)
        if limit is None or best.peak_memory_bytes is None or more <= 0:
            return True
        return best.peak_memory_bytes * (1 + more) < FULL * limit

    def _note_allowed(self, group: Sequence[Lever], trial: Trial, best: Trial) -> None:
        """Say what a lever gave that the user has asked for, where it is not kept."""
        for lever in (each for each in group if each.is_allowed):
            study = self._session.study
            gain = study.direction.gain(trial.value or 0.0, over=best.value or 1.0)
            over = "" if study.may_be_best(trial) else " and takes more memory than the limit"
            what = f"gives {gain:+.1%} over {_who(best)}{over}" if trial.ok else f"fails: {trial.cause}"
            self._note(f"levers: {lever.label} is not kept: it {what}")

    def _note_unallowed(self, levers: Sequence[Lever], shares: Mapping[str, float] | None) -> None:
        for lever in (each for each in levers if gain_of(each, shares) >= LEAST_GAIN):
            gain = f", which is expected to save {gain_of(lever, shares):.0%} of a step" if shares else ""
            why = "it changes the numerics" if lever.numerics else "the framework calls it unstable"
            self._note(f"not tried, because {why}: {lever.label}{gain}; give --allow {lever.name}")


def reserved_trials(config: StudyConfig) -> int:
    """Return how many of `--n-trials` the search for a layout leaves: a quarter, but no more than there are levers."""
    preset, num_trials = config.preset, config.limits.n_trials
    point = _any_point(config) if num_trials is not None and preset.lever_space() else None
    if num_trials is None or point is None:
        return 0
    levers, shares = preset.levers(config.command, point), predicted_shares(config, point)
    num_levers = sum(is_of_use(lever, shares) and not lever.is_on_request for lever in levers)
    return min(num_trials // RESERVED_SHARE, num_levers)


def _any_point(config: StudyConfig) -> Params | None:
    """Return the user's own point, or any other where the command is none."""
    with contextlib.suppress(UsageError):  # a command with placeholders
        if (own := config.preset.own_point(config.command)) is not None:
            return own
    return next(iter(config.preset.points()), None)


def _who(trial: Trial) -> str:
    return "your own command" if trial.is_baseline else f"trial {trial.number}"


def in_turn(levers: Sequence[Lever]) -> list[list[Lever]]:
    """Return what is tried at once, and in which order: together what cannot fail the rest, the others one by one.

    >>> safe, unsure = Lever(name="a"), Lever(name="b", is_alone=True)
    >>> last = Lever(name="c", needs=frozenset({"b"}))
    >>> [[lever.name for lever in group] for group in in_turn([last, unsure, safe, Lever(name="d")])]
    [['a', 'd'], ['b'], ['c']]
    """
    together = compatible([lever for lever in levers if not lever.is_alone and not lever.needs])
    others = sorted((lever for lever in levers if lever not in together), key=lambda lever: bool(lever.needs))
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
    from zenith_tune.estimate.step import time_with_room
    from zenith_tune.layouts.layout_batch import batch_of

    calibration = default_calibration(subject.job.framework.name)
    batch = batch_of([layout])
    time = time_with_room(subject.model, subject.cluster, subject.job, batch, calibration, data_overlap=0.0)
    return {name: float(seconds[0] / time.step_s[0]) for name, seconds in time.parts.items()}
