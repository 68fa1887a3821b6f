"""The second phase of a study: levers on the layout that won, several at once, kept where they prove faster.

All that are worth a trial and go together are tried in one. Where that is no faster, or fails, each half of them is
tried, and so on down to one; what a lever excludes is tried in its place afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from zenith_tune.errors import UsageError
from zenith_tune.presets.levers import Lever, compatible, goes_with
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Params
from zenith_tune.study.trial import Trial
from zenith_tune.tuning.config import StudyConfig
from zenith_tune.tuning.session import StudySession

LEAST_GAIN = 0.01
"""What a trial must be expected to save of a step: two runs of one command differ by nearly as much."""
LEAST_SHARE = 0.002
"""A lever that is expected to save less is not set."""
FULL = 0.97
"""Of the memory that may be used: levers that take more are not tried on a layout that takes so much."""
SURE = 2.0
"""Standard errors by which a run must be faster."""
WHY = "levers on trial {}"


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
        self._note_unallowed([lever for lever in levers if lever.numerics], shares)
        worth = [
            lever for lever in levers if not lever.numerics and self._fits(lever, fastest) and is_of_use(lever, shares)
        ]
        worth.sort(key=lambda lever: -gain_of(lever, shares))
        if not worth:
            return
        best, kept = self._climb(fastest, point, worth, shares)
        if not kept:
            self._note(f"levers: none of {', '.join(lever.name for lever in worth)} is faster")
            return
        gain = study.direction.gain(best.value or 0.0, over=fastest.value or 1.0)
        study.lever_speedup = 1 + gain
        self._note(f"levers: {', '.join(lever.name for lever in kept)} are {gain:+.1%} on trial {fastest.number}")

    def _climb(
        self, best: Trial, point: Params, levers: list[Lever], shares: Mapping[str, float] | None
    ) -> tuple[Trial, list[Lever]]:
        """Return the best run, and the levers that it has."""
        kept: list[Lever] = []
        groups = [compatible(levers)]
        groups += [[lever] for lever in levers if lever not in groups[0]]
        while groups:
            group = [lever for lever in groups.pop(0) if all(goes_with(lever, other) for other in kept)]
            if not group or not self._pays(best, sum(gain_of(lever, shares) for lever in group)):
                continue
            values = {lever.name: lever.value for lever in (*kept, *group)}
            trial = self._evaluate.run({**point, **values}, WHY.format(best.number))
            if self._is_better(trial, best):
                best, kept = trial, [*kept, *group]
            elif len(group) > 1:
                half = (len(group) + 1) // 2
                groups = [group[:half], group[half:], *groups]
        return best, kept

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
        if not trial.ok or trial.value is None or best.value is None or not self._session.study.may_be_best(trial):
            return False
        noise = math.hypot(*(SURE * (run.spread or 0.0) / math.sqrt(run.num_samples or 1) for run in (trial, best)))
        gain = self._session.study.direction.gain(trial.value, over=best.value) if best.value else 0.0
        return gain > max(noise, LEAST_SHARE)

    def _pays(self, best: Trial, gain: float) -> bool:
        """Tell whether a trial is expected to save more of the training than it takes."""
        training_s = self._config.budget.training.seconds(best.step_s or 1.0)
        cost_s = (best.duration_s or 0.0) * best.num_runs
        return gain >= LEAST_GAIN and gain * training_s > cost_s

    def _fits(self, lever: Lever, best: Trial) -> bool:
        """Tell whether a lever may still fit beside what the best run took."""
        limit = self._session.study.memory_limit_bytes
        if limit is None or best.peak_memory_bytes is None or lever.memory <= 0:
            return True
        return best.peak_memory_bytes * (1 + lever.memory) < FULL * limit

    def _note_unallowed(self, levers: Sequence[Lever], shares: Mapping[str, float] | None) -> None:
        for lever in levers:
            gain = f", which is expected to save {gain_of(lever, shares):.0%} of a step" if shares else ""
            self._note(f"not tried, because it changes the numerics: {lever.name}{gain}; give --allow {lever.name}")


def gain_of(lever: Lever, shares: Mapping[str, float] | None) -> float:
    """Return what a lever is expected to save; without a plan each is taken to be worth a trial."""
    return LEAST_GAIN if shares is None else lever.predicted_gain(shares)


def is_of_use(lever: Lever, shares: Mapping[str, float] | None) -> bool:
    """Tell whether a lever is expected to save anything at all."""
    return not lever.is_for_memory and gain_of(lever, shares) >= LEAST_SHARE


def predicted_shares(config: StudyConfig, point: Params) -> dict[str, float] | None:
    """Return which share of the predicted step each of its parts has; None where nothing can be predicted."""
    try:
        subject = config.preset.subject(config.command)
    except UsageError:
        return None
    layout = config.preset.planned_layout(config.command, point)
    if subject is None or layout is None:
        return None
    from zenith_tune.calibrate.calibration_file import default_calibration
    from zenith_tune.estimate.step import waiting_shares
    from zenith_tune.layouts.layout_batch import batch_of

    calibration = default_calibration(subject.job.framework.name)
    shares = waiting_shares(subject.model, subject.cluster, subject.job, batch_of([layout]), calibration)
    return {name: float(share[0]) for name, share in shares.items()}
