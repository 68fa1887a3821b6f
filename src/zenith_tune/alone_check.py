"""Whether trials that ran side by side slowed one another: the best of them runs once more, alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zenith_tune.parameters import Value
from zenith_tune.study_session import StudySession
from zenith_tune.trial import Trial

MARK = " # alone"
"""Ends the identity of a run that had the machine for itself."""
MIN_SLOWDOWN = 0.03
"""A smaller difference is within what two runs of one command differ by."""
MAX_CONTENDERS = 3


class AloneCheck:
    """Run the best trial alone and, where that shows that neighbours cost time, its contenders too."""

    def __init__(self, session: StudySession, render: Callable[[Mapping[str, Value]], str]) -> None:
        self._session = session
        self._render = render

    def run(self) -> list[str]:
        """Return what came of it, one line each."""
        study = self._session.study
        best = study.best
        if best is None or best.identity.endswith(MARK):
            return []
        alone = self._alone(best)
        if alone.value is None or best.value is None:
            return [f"trial {best.number}, run again alone, failed: {alone.cause}"]
        slowdown = study.direction.gain(alone.value, over=best.value)
        line = f"trial {best.number}, run again alone: {alone.value:.4g} {alone.unit}, {slowdown:+.1%}".replace(
            " ,", ","
        )
        if abs(slowdown) <= max(MIN_SLOWDOWN, (best.spread or 0) + (alone.spread or 0)):
            return [f"{line}: trials side by side did not slow one another"]
        contenders = self._contenders(best, abs(slowdown))
        values = [self._alone(trial).value for trial in contenders]
        is_behind = [value is None or not study.direction.better(value, than=alone.value) for value in values]
        told = "it stays the best" if all(is_behind) else "another one is better alone"
        return [f"{line}: trials side by side slow one another; of {len(values)} more run alone, {told}"]

    def _alone(self, trial: Trial) -> Trial:
        identity = trial.identity + MARK
        if (known := self._session.recorded.get(identity)) is not None:
            return known
        why = f"trial {trial.number} alone, to see what its neighbours cost"
        return self._session.run_point(dict(trial.params), self._render(trial.params), identity, why)

    def _contenders(self, best: Trial, slowdown: float) -> list[Trial]:
        """Return the trials that the slowdown may have put behind the best, the nearest first."""
        study = self._session.study
        others = [(trial, trial.value) for trial in study.trials if trial.value is not None]
        near = [
            (abs(study.direction.gain(value, over=best.value or value)), trial)
            for trial, value in others
            if trial.number != best.number and not trial.identity.endswith(MARK)
        ]
        close = sorted((gap, trial.number or 0, trial) for gap, trial in near if gap <= slowdown)
        return [trial for _, _, trial in close[:MAX_CONTENDERS]]
