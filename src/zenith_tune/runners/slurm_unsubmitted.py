"""A trial that the user stopped while it waited for a scheduler that did not answer."""

from __future__ import annotations

from typing import overload

from zenith_tune.runners.base import End, Job, JobResult
from zenith_tune.study.files import TrialFolder


class UnsubmittedJob(Job):
    """Stand for a job that never was."""

    def __init__(self, files: TrialFolder) -> None:
        self.log_path = files.log
        self._result = JobResult(end=End.CANCELLED, exit_code=None, duration_s=0.0)

    def poll(self) -> JobResult:
        return self._result

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult: ...

    def wait(self, timeout_s: float | None = None) -> JobResult:
        return self._result

    def cancel(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""
