"""Turns Ctrl-C and SIGTERM into an orderly stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

from zenith_tune.errors import (
    ConsecutiveDuplicateLimitExceeded,
    ConsecutivePruneLimitExceeded,
    StudyInterrupted,
    TrialExhausted,
)
from zenith_tune.study.study import EndReason, StudyEnding

LIMITS = (ConsecutiveDuplicateLimitExceeded, ConsecutivePruneLimitExceeded, TrialExhausted)
"""What ends the search for a layout, after which levers are tried, or named where nothing is left for them."""
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def ending_by(error: BaseException) -> StudyEnding:
    """Return why a study ended that an error ended."""
    if isinstance(error, StudyInterrupted):
        return StudyEnding(EndReason.INTERRUPTED, f"interrupted by {signal.Signals(error.signum).name}")
    if isinstance(error, BrokenPipeError | SystemExit):  # rich makes the one into the other
        return StudyEnding(EndReason.INTERRUPTED, "interrupted: nobody reads its output any more")
    reason = EndReason.LIMIT if isinstance(error, LIMITS) else EndReason.FAILED
    return StudyEnding(reason, str(error) or "it failed")


class Interruption:
    """The signals that ask a study to stop, caught for as long as the block runs.

    A handler that raised would strike between any two instructions, also between a trial's start and its entry in
    the record; so it only takes note and wakes the runner, and the study stops at the next safe place. Where that place
    does not come, because no trial runs and some plug-in computes for ever, a second signal does raise.
    """

    def __init__(self, wake: Callable[[], None], is_busy: Callable[[], bool]) -> None:
        self._wake = wake
        self._is_busy = is_busy
        self._signum: int | None = None
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for signum in _SIGNALS:
                # A signal that whoever started us ignores (nohup) stays ignored.
                if signal.getsignal(signum) is not signal.SIG_IGN:
                    self._previous[signum] = signal.signal(signum, self._take_note)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._previous.items():
            signal.signal(signum, handler)

    def check(self) -> None:
        """Raise StudyInterrupted if a signal came."""
        if self._signum is not None:
            raise StudyInterrupted(self._signum)

    def _take_note(self, signum: int, frame: FrameType | None) -> None:
        is_first = self._signum is None
        self._signum = self._signum if self._signum is not None else signum
        self._wake()
        if not is_first and not self._is_busy():
            raise StudyInterrupted(self._signum)
