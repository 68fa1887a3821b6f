"""One trial as a step inside an allocation: the srun that stands for it here, and the step that it started there."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import overload

from zenith_tune.runners.base import End, Job, JobResult, OnState
from zenith_tune.runners.slurm.allocation import NODES_FILE
from zenith_tune.runners.slurm.client import SlurmClient, SlurmError
from zenith_tune.runners.slurm_text import hosts
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.trial_log import TrialLog

_NODE_FAILED = re.compile(r"srun: error: Node failure on (\S+)|slurmstepd: error: .{1,200} DUE TO NODE FAILURE")
_REVOKED = re.compile(r"slurmstepd: error: \*\*\* STEP .{1,200} CANCELLED AT .{1,60}")
_OVER = re.compile(r"srun: .{0,200}(?:allocation .{0,40}revoked|Job \d+ has (?:been revoked|completed)|has expired)")

_LOOK_S = 0.1
"""How often a step that waits looks whether it has begun."""
_TELL_WAIT_S = 1.0
"""How long a step may take to begin before it is told that it waits."""


def end_steps(client: SlurmClient, job_id: str, name: str) -> None:
    """End the steps of this name, if any still run."""
    with contextlib.suppress(SlurmError):
        for step_id in client.steps(job_id, name):
            client.cancel(step_id)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTerms:
    """Hold what a step is told when it is started."""

    job_id: str
    timeout_s: float | None
    on_state: OnState
    on_over: Callable[[], None]
    """Called once, when it is known how the step ended."""
    sweep: Callable[[], None]
    """Ends whatever of the step still runs."""
    waits: bool = True
    """False of a command that makes its own steps: when these begin is not known."""


class SlurmStep(Job):
    """Stand for one step; srun waits until the allocation has room for it, and its time counts from then."""

    def __init__(self, srun: Job, files: TrialFolder, terms: StepTerms) -> None:
        self.log_path = files.log
        self._files = files
        self._srun = srun
        self._terms = terms
        self._submitted = time.monotonic()
        self._began: float | None = None
        self._last_look = self._submitted
        self._has_told_wait = False
        self._result: JobResult | None = None
        if not terms.waits:
            self._begin(self._submitted, f"in job {terms.job_id}")

    def poll(self) -> JobResult | None:
        if self._result is None:
            self._look()
            if self._is_late():
                self._end(End.TIMED_OUT)
            else:
                self._take(self._srun.poll())
        return self._result

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None:
            self._look()
            if self._is_late():
                self._end(End.TIMED_OUT)
                break
            limits = [limit for limit in (self._next_look(), until) if limit is not None]
            left_s = max(min(limits) - time.monotonic(), 0.0) if limits else None
            self._take(self._srun.wait() if left_s is None else self._srun.wait(left_s))
            if until is not None and time.monotonic() >= until:
                break
        return self._result

    def cancel(self) -> None:
        if self._result is None:
            self._srun.cancel()
            self._take(self._srun.wait())

    def stop(self) -> None:
        if self.poll() is None:
            self._end(End.STOPPED)

    def _end(self, end: End) -> None:
        self._srun.stop()
        result = self._srun.wait()
        self._take(replace(result, end=end) if result.end is End.STOPPED else result)

    def _look(self) -> None:
        """See whether the step has begun, which its own note of its nodes tells."""
        if self._began is not None:
            return
        now = time.monotonic()
        if place := self._place():
            self._begin(self._last_look, f"on {place}")
        elif not self._has_told_wait and now - self._submitted > _TELL_WAIT_S:
            self._has_told_wait = True
            self._terms.on_state(f"pending (waits for room in job {self._terms.job_id})")
        self._last_look = now

    def _begin(self, at: float, where: str) -> None:
        self._began = at
        self._terms.on_state(f"running {where}")

    def _next_look(self) -> float | None:
        """Return when something is to be done although srun is silent."""
        if self._began is None:
            return self._last_look + _LOOK_S
        return None if self._terms.timeout_s is None else self._began + self._terms.timeout_s

    def _is_late(self) -> bool:
        limit_s = self._terms.timeout_s
        return self._began is not None and limit_s is not None and time.monotonic() >= self._began + limit_s

    def _place(self) -> str:
        return ",".join(hosts(self._files.read(self._files.path / NODES_FILE).strip()))

    def _take(self, result: JobResult | None) -> None:
        """Take in what srun's end means for the step, and see to it that nothing of the step is left."""
        if result is None or self._result is not None:
            return
        self._look()
        if result.end is not End.EXITED:
            self._terms.sweep()
        waited_s = (self._began if self._began is not None else time.monotonic()) - self._submitted
        duration_s = max(result.duration_s - waited_s, 0.0)
        result = replace(result, place=self._place(), duration_s=duration_s)
        self._result = self._judged(result) if result.end is End.EXITED and result.exit_code else result
        self._terms.on_over()

    def _judged(self, result: JobResult) -> JobResult:
        text = TrialLog(self.log_path).text()[-20_000:]
        if failed := _NODE_FAILED.search(text):
            place = failed[1].rstrip(",") if failed[1] else result.place
            return replace(result, end=End.LOST, exit_code=None, place=place, reason=f"node failure on {place}")
        if said := _OVER.search(text) or _REVOKED.search(text):
            return replace(result, end=End.REVOKED, exit_code=None, reason=said[0])
        return result
