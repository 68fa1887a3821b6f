"""Whether trials that ran side by side slowed one another: the best of them runs once more, alone."""

from __future__ import annotations

import math

from zenith_tune.study.study import MAX_ALONE, MIN_DIFFERENCE
from zenith_tune.study.trial import ALONE, Trial
from zenith_tune.tuning.session import StudySession


class IsolatedRerun:
    """Run the best trial alone, and then those that may be better than what it measured so.

    What a trial measured alone is what counts of it, so that the study's best is one that had the machine for itself.
    """

    def __init__(self, session: StudySession) -> None:
        self._session = session

    def run(self) -> list[str]:
        """Return what came of it, one line each."""
        study = self._session.study
        first = study.contender
        if first is None:
            return []
        isolated = self._isolated(first)
        gain = self._gain(isolated, over=first)
        differs = gain is not None and abs(gain) > max(MIN_DIFFERENCE, (first.spread or 0) + (isolated.spread or 0))
        if gain is None:
            line, verdict = f"trial {first.number}, run again alone, failed ({isolated.cause})", "it does not count"
        else:
            said = f"{isolated.value:.4g} {isolated.unit}".strip()
            line = f"trial {first.number}, run again alone: {said}, {gain:+.1%}"
            verdict = "trials side by side did not slow one another"
            if differs:
                slow, fell = "trials side by side slow one another", "what it measured beside others did not hold"
                verdict = slow if gain > 0 else fell
        num_more = self._more(self._near(first, gain) if differs and gain is not None and gain > 0 else [])
        if not num_more and gain is not None:
            return [f"{line}: {verdict}"]
        last = study.best
        stays = last is not None and last.identity == isolated.identity
        chosen = "it stays the best" if stays else f"trial {last.number} is the best" if last else "none is left"
        return [f"{line}: {verdict}; after {num_more} more run alone {chosen}"]

    def _more(self, near: list[Trial]) -> int:
        """Run further trials alone, those that neighbours may have put behind or that are best now; return how many."""
        for count in range(MAX_ALONE - 1):
            following = near.pop(0) if near else self._session.study.contender
            if following is None:
                return count
            self._isolated(following)
        return MAX_ALONE - 1

    def _isolated(self, trial: Trial) -> Trial:
        identity = trial.identity + ALONE
        if (known := self._session.recorded.get(identity)) is not None:
            return known
        why = f"trial {trial.number} alone, to see what its neighbours cost"
        return self._session.run_point(dict(trial.params), identity, why)

    def _near(self, best: Trial, gain: float) -> list[Trial]:
        """Return the trials that their neighbours may have put behind the best, the nearest first."""
        known = self._session.recorded
        others = [
            (abs(behind), trial.number or 0, trial)
            for trial in self._session.study.trials
            if trial.number != best.number and not trial.is_alone and trial.identity + ALONE not in known
            if (behind := self._gain(trial, over=best)) is not None
        ]
        return [trial for gap, _, trial in sorted(others, key=lambda other: other[:2]) if gap <= gain]

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
