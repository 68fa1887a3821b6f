"""What a killed tuner left: trials that are in the record as running."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from zenith_tune.record.record import StudyRecord
from zenith_tune.runners.base import Job
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.trial import Outcome, RunKey, Trial
from zenith_tune.tuning.events import StudyNotifier
from zenith_tune.tuning.execution import TrialExecution, TrialRequest


class OrphanedTrials:
    """Trials of a killed tuner: those that had finished are kept, jobs that may continue are followed, others end."""

    def __init__(
        self, execution: TrialExecution, notifier: StudyNotifier, folder: Path, timeout_s: float | None
    ) -> None:
        self._execution = execution
        self._notifier = notifier
        self._folder = folder
        self._timeout_s = timeout_s
        self._running: dict[RunKey, tuple[Trial, Job]] = {}
        """Jobs that continue: they are waited for when their runs are asked for."""

    def recover(self, left: Trial, record: StudyRecord) -> bool:
        """Deal with one trial; True where its job continues, False where it has ended in the record."""
        folder = TrialFolder(left.folder or self._folder)
        if (job := self._find(left, folder)) is not None:
            self._running[left.key] = (left, job)
            return True
        command = folder.read(folder.command).partition("\n")[2].strip()
        trial = self._execution.recover(TrialRequest(trial=left, command=command), folder)
        what = f"trial {left.number}, left by a tuner that was killed,"
        self._notifier.noted(f"{what} had finished: kept" if trial else f"{what} was ended and will run again")
        record.finish(trial or replace(left, outcome=Outcome.CANCELLED, cause="the tuner was killed", value=None))
        return False

    def pop(self, run: RunKey) -> tuple[Trial, Job] | tuple[None, None]:
        """Hand over the job of a run that continues, if there is one."""
        return self._running.pop(run, (None, None))

    def end(self, record: StudyRecord) -> None:
        """End the jobs that were not asked for again."""
        for left, job in self._running.values():
            job.cancel()
            cause = "the tuner was killed, and its run was not asked for again"
            record.finish(replace(left, outcome=Outcome.CANCELLED, cause=cause, value=None))
        self._running.clear()

    def _find(self, left: Trial, folder: TrialFolder) -> Job | None:
        states: list[str] = []

        def on_state(state: str) -> None:
            states.append(state)
            self._notifier.state(left.number, state)

        job = self._execution.find(folder, self._timeout_s, on_state)
        if job is not None:
            waits = bool(states) and states[0].startswith("pending")
            status = "still waits in the queue: it keeps its place" if waits else "still runs: it continues"
            self._notifier.noted(f"trial {left.number}, left by a tuner that was killed, {status}")
        return job
