"""The events of a study: what shows it, on a terminal or as JSON, subclasses StudyListener."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import Judgement
from zenith_tune.study.budget import Budget
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import EndReason, Study
from zenith_tune.study.trial import Findings, Trial
from zenith_tune.study.verdict import Verdict

FIRST_STATE = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPlan:
    """A study before its first trial."""

    study_name: str
    preset: str
    strategy: str
    evaluator: str
    command: str
    n_trials: int | None
    """The budget; None: until the strategy ends by itself."""
    max_trials: int | None
    """An upper bound on the trials, as far as it is known before the user's own command has run."""
    num_finished: int
    """Trials found in the record when the study is resumed."""
    warnings: list[str]
    """What the user should know before the first trial."""
    notes: list[str]
    """How the study goes about it, for those who ask."""
    labels: dict[int, str]
    """The names of the finished trials."""
    study: Study
    """The study so far; it keeps changing."""
    title: str = ""
    """The job in one line: script, model, GPUs, batch, sequence."""
    own_label: str = ""
    """The layout of the user's own command, where it is known."""
    num_slots: int = 1
    """How many trials run side by side."""
    budget: Budget = field(default_factory=Budget)
    """What the study may take, and the training that it is for."""
    num_gpus: int = 1
    """GPUs of one trial."""
    first_state: str = FIRST_STATE
    """The state of a trial until its runner reports one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyEnd:
    """A study after its last trial."""

    study: Study
    reason: EndReason
    why: str
    """The reason in a sentence."""
    best_command: str | None
    """The fastest command, ready to paste, secrets masked."""
    csv_path: Path
    json_path: Path
    trials_path: Path
    database_url: str
    best_command_path: Path
    study_name: str
    warnings: list[str]
    """Warnings of the start, which may have been overlooked."""
    findings: Findings | None = None
    """The strategy's findings besides the best point."""
    verdict: Verdict | None = None
    diagnosis: list[str] = field(default_factory=list)
    """What limits the fastest run, and what to change."""
    best_diff_path: Path | None = None
    """The change of the user's script, where it was opened."""


class StudyListener:
    """A listener to everything that happens in a study; every method may be left out."""

    def study_started(self, plan: StudyPlan) -> None:
        """Take note of a study that begins or is resumed."""

    def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None, why: str = "") -> None:
        """Take note of a trial that starts, and why it was picked where the strategy says so."""

    def trial_state(self, number: int, state: str) -> None:
        """Take note of what a trial waits for, or where it runs: `pending (Resources)`, `running on n1`."""

    def trial_progress(self, number: int, num_iterations: int, value: float | None, unit: str) -> None:
        """Take note of how far a trial is: its iterations, and its value by those that are steady."""

    def trial_outlook(self, number: int, known: str, left_s: float | None) -> None:
        """Take note of what is known of a trial that runs and why it goes on, and of about how long it still does."""

    def trial_memory(self, number: int, peak_memory_bytes: int) -> None:
        """Take note of how much memory a trial that runs has taken at most, where its log says so."""

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        """Take note of a trial that ended."""

    def trial_recalled(self, trial: Trial, label: str) -> None:
        """Take note of a trial that an earlier run of this study finished."""

    def point_pruned(self, params: Mapping[str, Value], label: str, reason: str) -> None:
        """Take note of a point that is not worth a trial."""

    def point_repeated(self, trial: Trial, label: str) -> None:
        """Take note of a point that was tried before and is answered from the record."""

    def noted(self, line: str) -> None:
        """Take note of something that the user should know."""

    def explained(self, line: str) -> None:
        """Take note of how the study goes about it, which a user need not know."""

    def search_began(self, outlook: str) -> None:
        """Take note of what is searched and what that will take, once the user's own command has run."""

    def study_ended(self, end: StudyEnd) -> None:
        """Take note of the end, whatever brought it."""


class StudyNotifier:
    """The thread-safe way from the threads of a study to its listener."""

    def __init__(self, listener: Callable[[], StudyListener]) -> None:
        self._listener = listener
        self._lock = threading.Lock()
        self._started: set[int] = set()
        self._early_states: dict[int, str] = {}
        """The last states of trials that the listener does not know yet."""

    def noted(self, line: str) -> None:
        """Report something that the user should know."""
        with self._lock:
            self._listener().noted(line)

    def started(self, trial: Trial, label: str, log_path: Path, limit_s: float | None) -> None:
        """Report a trial that starts."""
        number = trial.number
        with self._lock:
            self._listener().trial_started(number, label, log_path, limit_s, trial.why)
            self._started.add(number)
            if (state := self._early_states.pop(number, None)) is not None:
                self._listener().trial_state(number, state)

    def state(self, number: int, state: str) -> None:
        """Report what a trial waits for, or where it runs; one that a killed tuner left, once it is asked for."""
        with self._lock:
            if number in self._started:
                self._listener().trial_state(number, state)
            else:
                self._early_states[number] = state

    def progress(self, number: int, progress: Progress, known: Judgement | None) -> None:
        """Report how far a trial is, and why it still runs."""
        with self._lock:
            listener = self._listener()
            if progress.peak_memory_bytes is not None:
                listener.trial_memory(number, progress.peak_memory_bytes)
            listener.trial_progress(number, progress.num_iterations, progress.latest, progress.unit)
            if known is not None:
                listener.trial_outlook(number, known.reason, known.left_s)

    def recalled(self, trial: Trial, label: str, study: Study) -> None:
        """Take in a trial that another tuner of the study ran, and report it."""
        with self._lock:
            study.add(trial)
            self._listener().trial_recalled(trial, label)

    def finished(self, trial: Trial, label: str, study: Study) -> None:
        """Take a trial into the study, unless it was cut off, and report it."""
        with self._lock:
            if not trial.was_cut_off:
                study.add(trial)
            self._listener().trial_finished(trial, label, study)
