"""One trial as a step inside an allocation: the srun that stands for it here, and the step that it started there."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import overload

from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End, Job, JobResult, OnState, Runner
from zenith_tune.runners.slurm.allocation import NODES_FILE, SlurmAllocation, SlurmSeats, StepSlot, is_step
from zenith_tune.runners.slurm.client import SlurmClient, SlurmError, hosts
from zenith_tune.runners.slurm.request import SlurmRequest
from zenith_tune.runners.slurm.script import Launch
from zenith_tune.runners.slurm.submission import SlurmSubmission
from zenith_tune.study.files import TrialFolder
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial_log import TrialLog

_NODE_FAILED = re.compile(r"srun: error: Node failure on (\S+)|slurmstepd: error: .{1,200} DUE TO NODE FAILURE")
_REVOKED = re.compile(r"slurmstepd: error: \*\*\* STEP .{1,200} CANCELLED AT .{1,60}")
_OVER = re.compile(r"srun: .{0,200}(?:allocation .{0,40}revoked|Job \d+ has (?:been revoked|completed)|has expired)")

_LOOK_S = 0.1
"""How often a step that waits looks whether it has begun."""
_REPORT_WAIT_S = 1.0
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
        self._has_reported_wait = False
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
        elif not self._has_reported_wait and now - self._submitted > _REPORT_WAIT_S:
            self._has_reported_wait = True
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepStart:
    """Hold what one trial is to be started with."""

    command: str
    files: TrialFolder
    needs: Resources
    launch: Launch
    num_slots: int
    timeout_s: float | None
    on_state: OnState
    on_over: Callable[[], None]


class SlurmSteps:
    """Hold an allocation, and what of it the tuner itself has handed out."""

    def __init__(self, job_id: str, client: SlurmClient, local: Runner, request: SlurmRequest, setup: str) -> None:
        self.job_id = job_id
        self._client = client
        self._local = local
        self._request = request
        self._setup = setup
        self._allocation: SlurmAllocation | None = None
        self._slots: SlurmSeats | None = None
        """None where Slurm itself finds the room for each step."""

    @property
    def num_nodes(self) -> int:
        """How many nodes the allocation has."""
        return len(self._find_allocation().nodes)

    def prepare(self, needs: Resources) -> int:
        """Return how many trials fit side by side; raises UsageError where not even one does."""
        allocation = self._find_allocation()
        room = allocation.num_slots(self._request, needs)
        self._slots = allocation.slots(self._request, needs) if allocation.is_held else None
        return room

    def start(self, trial: StepStart) -> Job:
        """Start a trial's step; it may have to wait for room."""
        needs, is_one_step = trial.needs, is_step(trial.launch, trial.needs)
        if not is_one_step and trial.num_slots > 1:
            problem = "a command that starts its own ranks on several nodes has an allocation to itself"
            raise UsageError(
                f"{problem}, but {trial.num_slots} are to run side by side", hint="give --parallel 1, or steps=false"
            )
        allocation, submission = self._find_allocation(), SlurmSubmission(self._client, trial.files)
        if allocation.is_held and self._slots is None:
            self._slots = allocation.slots(self._request, needs)
        slot = self._slots.take(needs.avoid) if self._slots is not None else None
        name = submission.prefix
        terms = StepTerms(
            job_id=self.job_id,
            timeout_s=trial.timeout_s,
            on_state=trial.on_state,
            on_over=lambda: self._is_over(slot, trial.on_over),
            sweep=lambda: end_steps(self._client, self.job_id, name),
            waits=is_one_step,
        )
        try:
            command = allocation.step_command(
                trial.command, name, trial.launch, self._request, needs, self._setup, slot
            )
            submission.note(name=name, allocation=self.job_id)
            # What an earlier run of the trial noted would look like this one's word that it has begun.
            (trial.files.path / NODES_FILE).unlink(missing_ok=True)
            return SlurmStep(self._local.submit(command, trial.files.path, Resources()), trial.files, terms)
        except BaseException:
            self._give_back(slot)
            raise

    def _find_allocation(self) -> SlurmAllocation:
        if self._allocation is None:
            self._allocation = SlurmAllocation.read(self._client, self.job_id, os.environ)
        return self._allocation

    def _is_over(self, slot: StepSlot | None, on_over: Callable[[], None]) -> None:
        self._give_back(slot)
        on_over()

    def _give_back(self, slot: StepSlot | None) -> None:
        if self._slots is not None and slot is not None:
            self._slots.give_back(slot)
