"""One trial as a step inside an allocation: the srun that stands for it here, and the step that it started there."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import overload

from zenith_tune.runners.base import End, Job, JobResult
from zenith_tune.runners.slurm_allocation import NODES_FILE
from zenith_tune.runners.slurm_client import SlurmClient, SlurmError
from zenith_tune.runners.slurm_text import hosts
from zenith_tune.trial_folder import TrialFolder
from zenith_tune.trial_log import TrialLog

_NODE_FAILED = re.compile(r"srun: error: Node failure on (\S+)|slurmstepd: error: .{1,200} DUE TO NODE FAILURE")
_REVOKED = re.compile(r"slurmstepd: error: \*\*\* STEP .{1,200} CANCELLED AT .{1,60}")
_OVER = re.compile(r"srun: .{0,200}(?:allocation .{0,40}revoked|Job \d+ has (?:been revoked|completed)|has expired)")


def end_steps(client: SlurmClient, job_id: str, name: str) -> None:
    """End the steps of this name, if any still run."""
    with contextlib.suppress(SlurmError):
        for step_id in client.steps(job_id, name):
            client.cancel(step_id)


class SlurmStep(Job):
    """Stand for one step."""

    def __init__(self, srun: Job, files: TrialFolder, sweep: Callable[[], None], on_over: Callable[[], None]) -> None:
        self.log_path = files.log
        self._files = files
        self._srun = srun
        self._sweep = sweep
        self._on_over = on_over
        self._result: JobResult | None = None

    def poll(self) -> JobResult | None:
        return self._taken(self._srun.poll())

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        return self._taken(self._srun.wait() if timeout_s is None else self._srun.wait(timeout_s))

    def cancel(self) -> None:
        self._srun.cancel()
        self.poll()

    def stop(self) -> None:
        self._srun.stop()
        self.poll()

    def _taken(self, result: JobResult | None) -> JobResult | None:
        """Return what srun's end means for the step, and see to it that nothing of the step is left."""
        if result is not None and self._result is None:
            if result.end is not End.EXITED:
                self._sweep()
            place = ",".join(hosts(self._files.read(self._files.path / NODES_FILE).strip()))
            result = replace(result, place=place)
            self._result = self._judged(result) if result.end is End.EXITED and result.exit_code else result
            self._on_over()
        return self._result

    def _judged(self, result: JobResult) -> JobResult:
        text = TrialLog(self.log_path).text()[-20_000:]
        if failed := _NODE_FAILED.search(text):
            place = failed[1].rstrip(",") if failed[1] else result.place
            return replace(result, end=End.LOST, exit_code=None, place=place, reason=f"node failure on {place}")
        if said := _OVER.search(text) or _REVOKED.search(text):
            return replace(result, end=End.REVOKED, exit_code=None, reason=said[0])
        return result
