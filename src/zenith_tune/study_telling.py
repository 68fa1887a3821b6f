"""Tells the listener what happens in a study, one thing at a time, whichever thread it happens in."""

from __future__ import annotations

import statistics
import threading
from collections.abc import Callable
from pathlib import Path

from zenith_tune.evaluators.base import Progress
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial
from zenith_tune.tuning.events import StudyListener


class StudyTelling:
    """Stand between the threads of a study and its listener, which need not be safe for several."""

    def __init__(self, listener: Callable[[], StudyListener]) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._started: set[int] = set()
        self._early_states: dict[int, str] = {}
        """What was last heard of trials that are not known to the listener yet."""

    def noted(self, line: str) -> None:
        """Tell something that the user should know."""
        with self._lock:
            self._listener().noted(line)

    def started(self, trial: Trial, label: str, log_path: Path, limit_s: float | None) -> None:
        """Tell of a trial that starts."""
        number = trial.number or 0
        with self._lock:
            self._listener().trial_started(number, label, log_path, limit_s, trial.why)
            self._started.add(number)
            if (state := self._early_states.pop(number, None)) is not None:
                self._listener().trial_state(number, state)

    def state(self, number: int, state: str) -> None:
        """Tell what a trial waits for, or where it runs; of one that a killed tuner left once it is asked for."""
        with self._lock:
            if number in self._started:
                self._listener().trial_state(number, state)
            else:
                self._early_states[number] = state

    def progress(self, number: int, progress: Progress) -> None:
        """Tell how far a trial is."""
        value = statistics.median(progress.values) if progress.values else None
        with self._lock:
            listener = self._listener()
            if progress.peak_memory_bytes is not None:
                listener.trial_memory(number, progress.peak_memory_bytes)
            listener.trial_progress(number, progress.num_iterations, value, progress.unit)

    def recalled(self, trial: Trial, label: str, study: Study) -> None:
        """Take in a trial that another tuner of the study ran, and tell of it."""
        with self._lock:
            study.add(trial)
            self._listener().trial_recalled(trial, label)

    def finished(self, trial: Trial, label: str, study: Study, *, counts: bool) -> None:
        """Take a trial into the study, where it counts, and tell of it."""
        with self._lock:
            if counts:
                study.add(trial)
            self._listener().trial_finished(trial, label, study)
