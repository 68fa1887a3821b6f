"""Whether trials that ran side by side slowed one another: the best of them runs once more, alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from zenith_tune.parameters import Value
from zenith_tune.study_session import StudySession
from zenith_tune.trial import ALONE, Trial

MIN_DIFFERENCE = 0.03
"""A smaller one is what two runs of one command differ by."""
MAX_MORE = 3
"""How many further trials run alone, where the first shows that side by side is not the same."""


class AloneCheck:
    """Run the best trial alone and, where its value is another then, those that may be better than it.

    What a trial measured alone is what counts of it, so that the study's best is one that had the machine for itself.
    """

    def __init__(self, session: StudySession, render: Callable[[Mapping[str, Value]], str]) -> None:
        self._session = session
        self._render = render

    def run(self) -> list[str]:
        """Return what came of it, one line each."""
        study = self._session.study
        best = study.best
        if best is None or best.is_alone:
            return []
        alone = self._alone(best)
        if alone.value is None or best.value is None:
            line, told = f"trial {best.number}, run again alone, failed ({alone.cause})", "it does not count"
            gain = None
        else:
            gain = study.direction.gain(alone.value, over=best.value)
            said = f"{alone.value:.4g} {alone.unit}".strip()
            line, told = f"trial {best.number}, run again alone: {said}, {gain:+.1%}", ""
            if abs(gain) <= max(MIN_DIFFERENCE, (best.spread or 0) + (alone.spread or 0)):
                return [f"{line}: trials side by side did not slow one another"]
            told = "trials side by side slow one another" if gain > 0 else "what it measured beside others did not hold"
        num_more = self._more(best, gain)
        last = study.best
        stays = last is not None and last.identity == alone.identity
        chosen = "it stays the best" if stays else f"trial {last.number} is the best" if last else "none is left"
        return [f"{line}: {told}; after {num_more} more run alone {chosen}"]

    def _more(self, best: Trial, gain: float | None) -> int:
        """Run further trials alone, those that neighbours may have put behind or that are best now; return how many."""
        near = self._contenders(best, gain) if gain is not None and gain > 0 else []
        for count in range(MAX_MORE):
            now = self._session.study.best
            following = near.pop(0) if near else now
            if following is None or following.is_alone:
                return count
            self._alone(following)
        return MAX_MORE

    def _alone(self, trial: Trial) -> Trial:
        identity = trial.identity + ALONE
        if (known := self._session.recorded.get(identity)) is not None:
            return known
        why = f"trial {trial.number} alone, to see what its neighbours cost"
        return self._session.run_point(dict(trial.params), self._render(trial.params), identity, why)

    def _contenders(self, best: Trial, gain: float) -> list[Trial]:
        """Return the trials that their neighbours may have put behind the best, the nearest first."""
        study, top = self._session.study, best.value or 0.0
        others = [
            (abs(study.direction.gain(trial.value, over=top)), trial.number or 0, trial)
            for trial in study.trials
            if trial.value is not None and trial.number != best.number and not trial.is_alone
        ]
        return [trial for gap, _, trial in sorted(others, key=lambda other: other[:2]) if gap <= gain]
