"""Whether a study was cut off: what its record shows of trials that never came to an end."""

from __future__ import annotations

from zenith_tune.record.view import StudyView, TrialView
from zenith_tune.study.trial import Outcome


def unfinished(view: StudyView) -> list[TrialView]:
    """Return the trials that run or were cut off with their study, and have not run again since.

    One that was cancelled by hand, or by a scheduler, has a kind of failure: the study went on after it.
    """
    last = {(each.trial.is_baseline, each.trial.identity or each.number): each for each in view.trials}
    return [each for each in last.values() if each.is_running or _was_cut_off(each)]


def _was_cut_off(each: TrialView) -> bool:
    return each.trial.outcome is Outcome.CANCELLED and each.trial.failure is None
