"""What a study does just now."""

from __future__ import annotations

import time
from enum import StrEnum

from zenith_tune.record.unfinished import unfinished
from zenith_tune.record.view import StudyView
from zenith_tune.serve.steady_source import SteadySource
from zenith_tune.serve.tuner_presence import is_tuned

QUIET_S = 60.0
"""A study whose tuner cannot be seen counts as ended when nothing has happened for so long."""


class LiveState(StrEnum):
    """Say what a study does."""

    RUNNING = "running"
    PAUSING = "pausing"
    """It is to pause, and a trial still runs."""
    PAUSED = "paused"
    ENDED = "ended"
    STOPPED = "stopped"
    """Its tuner is gone, and left trials behind that had not ended, or was interrupted in the midst of them."""
    UNREADABLE = "unreadable"

    @property
    def is_over(self) -> bool:
        """Tell whether nobody is there to ask anything of."""
        return self in (LiveState.ENDED, LiveState.STOPPED, LiveState.UNREADABLE)


def live_state(source: SteadySource, view: StudyView, *, is_paused: bool) -> LiveState:
    """Tell what a study does, by its tuner's lock, or else by its trials."""
    if source.is_export:
        return LiveState.ENDED
    tuned = is_tuned(source.database, source.name) if source.database is not None else None
    if tuned is None:
        tuned = bool(view.running) or not view.trials or time.time() - (view.ended_s or 0) < QUIET_S
    if not tuned:
        return LiveState.STOPPED if unfinished(view) else LiveState.ENDED
    if is_paused:
        return LiveState.PAUSING if view.running else LiveState.PAUSED
    return LiveState.RUNNING
