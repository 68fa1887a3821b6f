"""One trial as a Slurm job."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import overload

from zenith_tune.runners.base import End, Job, JobResult, OnState, nobody_listens
from zenith_tune.runners.slurm.client import (
    ENDED,
    LOST,
    WAITING,
    JobStatus,
    SlurmClient,
    SlurmError,
    SlurmRecord,
    Verdict,
    exit_code,
    hosts,
    judge,
    never_starts,
    words,
)
from zenith_tune.runners.slurm.submission import SlurmWatcher
from zenith_tune.study.files import TrialFolder

_RECORD_GRACE_S = 5.0
"""How long a record may take to come over the network's file system after the scheduler says that the job is over."""
_FORGOTTEN_S = 5.0
"""How long a job must be unknown to the scheduler before it counts as gone."""
_FIRST_LOOK_S = 0.1
"""How soon after a job's own word of its end the scheduler is asked again, if it does not know yet; then ever later."""
_COMPLETING_S = 30.0
"""How long Slurm may take to clean up after a command that has exited."""
_MAX_SLEEP_S = 1.0
_GIVE_UP_S = 90.0
"""How long a job that Slurm was told to end is waited for, and a Slurm that does not hear while the user waits."""


@dataclass(slots=True, kw_only=True)
class CancelPolicy:
    """Hold how the runner that a job belongs to feels about it."""

    grace_s: float = 5.0
    """Seconds between asking a job to end and killing it."""
    num_interrupts: int = 0
    """How often the user asked to stop; twice: without any grace."""


@dataclass(slots=True)
class _Life:
    """Hold what has been seen of a job."""

    status: JobStatus | None = None
    reported: str = ""
    running_since: float | None = None
    missing_since: float | None = None
    over_since: float | None = None
    never_reason: str = ""
    noticed: tuple[bool, bool] = (False, False)
    exit_record_at: float | None = None
    is_blind: bool = False


@dataclass(slots=True, kw_only=True)
class JobTerms:
    """Hold what a job is told when it is submitted or found."""

    timeout_s: float | None = None
    on_state: OnState = nobody_listens
    on_over: Callable[[], None] = lambda: None
    """Called once, when it is known how the job ended."""
    reported: str = ""
    """The state that `on_state` has heard already."""
    patience: CancelPolicy = field(default_factory=CancelPolicy)


class SlurmJob(Job):
    """Stand for one job; what the watcher sees of it decides how it ended, unless the tuner ended it itself."""

    def __init__(
        self, job_id: str, files: TrialFolder, client: SlurmClient, watcher: SlurmWatcher, terms: JobTerms
    ) -> None:
        self.job_id = job_id
        self.log_path = files.log
        self._files = files
        self._client = client
        self._watcher = watcher
        self._terms = terms
        self._life = _Life(reported=terms.reported)
        self._ending: End | None = None
        self._ending_since = 0.0
        self._result: JobResult | None = None
        watcher.add(self)

    def poll(self) -> JobResult | None:
        if self._result is None:
            self._watcher.check()
            if self._is_late():
                self._end(End.TIMED_OUT)
        return self._result

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while self._result is None:
            self._watcher.check()
            if self._terms.patience.num_interrupts:
                self.cancel()
            elif self._is_late():
                self._end(End.TIMED_OUT)
            elif until is not None and time.monotonic() >= until:
                return None
            else:
                self._sleep(until)
        return self._result

    def _sleep(self, until: float | None) -> None:
        """Sleep until something changes, the job's time is up, or `until`."""
        now = time.monotonic()
        # Not longer, because the watcher may hang in a call while an interrupt comes.
        limits = [now + _MAX_SLEEP_S, *(limit for limit in (self._deadline(), until) if limit is not None)]
        with self._watcher.changed:
            if self._result is None and not self._terms.patience.num_interrupts:
                self._watcher.changed.wait(max(min(limits) - now, 0.0))

    def _deadline(self) -> float | None:
        since, limit_s = self._life.running_since, self._terms.timeout_s
        return None if since is None or limit_s is None else since + limit_s

    def _is_late(self) -> bool:
        deadline = self._deadline()
        return deadline is not None and time.monotonic() >= deadline

    def cancel(self) -> None:
        if self._result is None:
            self._end(End.CANCELLED)

    def stop(self) -> None:
        if self.poll() is None:
            self._end(End.STOPPED)

    def _end(self, end: End) -> None:
        """End the job and wait until the scheduler says that it is gone."""
        with self._watcher.changed:
            if self._result is not None:
                return
            self._ending, self._ending_since = end, time.monotonic()
        begun, asked, killed = time.monotonic(), False, False
        while self._result is None:
            elapsed_s, num_interrupts = time.monotonic() - begun, self._terms.patience.num_interrupts
            hurry = num_interrupts > 1
            is_late = elapsed_s > _GIVE_UP_S and (asked or num_interrupts)
            if is_late or (hurry and killed) or (asked and self._watcher.is_blind):
                if not asked:
                    self._terms.on_state(f"job {self.job_id} could not be cancelled, because Slurm does not answer")
                self._settle(Verdict(end=end))
                break
            if not asked or (not killed and (hurry or elapsed_s > self._terms.patience.grace_s)):
                with contextlib.suppress(SlurmError):  # one that does not answer is asked again
                    self._client.cancel(self.job_id, kill=asked)
                    asked, killed = True, asked
                killed = killed or hurry
                self._watcher.ring()
            with self._watcher.changed:
                if self._result is None:
                    self._watcher.changed.wait(0.5)

    def has_news(self) -> bool:
        noticed = (self._files.process.exists(), self._files.exit_code.exists())
        has_changed = noticed != self._life.noticed
        self._life.noticed = noticed
        if has_changed and noticed[1]:
            self._life.exit_record_at = time.monotonic()
        return has_changed

    def patience_s(self) -> float:
        at = self._ending_since if self._ending is not None else self._life.exit_record_at
        return math.inf if at is None else _FIRST_LOOK_S + (time.monotonic() - at) / 2

    def cannot_see(self, why: str) -> None:
        if not self._life.is_blind:
            self._life.is_blind = True
            self._terms.on_state(f"the scheduler does not answer ({why}): waiting for it")

    def saw(self, status: JobStatus | None) -> bool:
        life = self._life
        was, life.is_blind = life.status, False
        if status is None:
            self._is_missing()
            return False
        life.status, life.missing_since = status, None
        if status.state in ENDED:
            self._is_over(status)
        elif status.state in WAITING:
            self._pends(status)
        elif life.running_since is None:
            life.running_since = time.monotonic() - status.elapsed_s * (was is None)
        if status.state == "COMPLETING":
            self._completes()
        elif status.state not in ENDED:
            self._tell(words(status))
        return was is None or (was.state, was.reason) != (status.state, status.reason)

    def _tell(self, state: str) -> None:
        if state != self._life.reported:
            self._life.reported = state
            self._terms.on_state(state)

    def _completes(self) -> None:
        """Believe the record of a job that Slurm does not get off its nodes: until then it may still say why."""
        record, at = SlurmRecord.read(self._files, self.job_id), self._life.exit_record_at
        if record.exit_code is not None and at is not None and time.monotonic() - at > _COMPLETING_S:
            self._settle(Verdict(end=End.EXITED, exit_code=record.exit_code))

    def _pends(self, status: JobStatus) -> None:
        """End a job that can never start; the reason counts once it has been seen twice."""
        if not never_starts(status.reason) or self._ending is not None:
            return
        if status.reason != self._life.never_reason:
            self._life.never_reason = status.reason
            return
        with contextlib.suppress(SlurmError):
            self._client.cancel(self.job_id)
            reason = f"Slurm can never start it: pending ({status.reason})"
            self._append_to_log(f"error: {reason}")
            self._settle(Verdict(end=End.EXITED, reason=reason))

    def _is_missing(self) -> None:
        """Judge a job that the scheduler has forgotten by its own record."""
        since = self._life.missing_since = self._life.missing_since or time.monotonic()
        record = SlurmRecord.read(self._files, self.job_id)
        if record.exit_code is not None:
            self._settle(Verdict(end=End.EXITED, exit_code=record.exit_code))
        elif time.monotonic() - since > _FORGOTTEN_S:
            self._life.status = None  # its nodes have done nothing to be avoided
            self._settle(Verdict(end=End.LOST, reason=f"job {self.job_id} is unknown to Slurm and left no record"))

    def _is_over(self, status: JobStatus) -> None:
        since = self._life.over_since = self._life.over_since or time.monotonic()
        record = SlurmRecord.read(self._files, self.job_id)
        is_awaited = status.state in ("COMPLETED", "FAILED") and record.exit_code is None and self._ending is None
        if is_awaited and time.monotonic() - since < _RECORD_GRACE_S and self._files.path.is_dir():
            return
        code = self._scheduler_code() if is_awaited else None
        if code and not record.has_begun:
            folder = self._files.path
            where = ",".join(hosts(status.nodes)) or "its node"
            self._append_to_log(f"error: job {self.job_id} ended before its script began: does {where} see {folder}?")
        verdict = judge(status, record, code)
        if status.state in LOST and verdict.end is End.LOST:
            failed = self._failed_nodes(hosts(status.nodes))
            self._life.status = replace(status, nodes=",".join(failed))
            verdict = judge(self._life.status, record, code)
        if verdict.is_out_of_memory:
            self._append_to_log(verdict.reason)
        self._settle(verdict)

    def _scheduler_code(self) -> int | None:
        try:
            [shown] = self._client.job(self.job_id)
        except (SlurmError, ValueError):
            return None
        return exit_code(shown.get("ExitCode", ""))

    def _failed_nodes(self, nodes: list[str]) -> list[str]:
        """Return which of its nodes failed, or all where Slurm does not tell any more."""
        try:
            shown = self._client.nodes(nodes) if nodes else []
        except SlurmError:
            return nodes
        down = [each.get("NodeName", "") for each in shown if "DOWN" in each.get("State", "")]
        return [name for name in down if name] or nodes

    def _append_to_log(self, line: str) -> None:
        with contextlib.suppress(OSError), self._files.log.open("a", encoding="utf-8") as log:
            log.write(f"\n{line}\n")

    def _settle(self, verdict: Verdict) -> None:
        """Take down how the job ended, once."""
        record = SlurmRecord.read(self._files, self.job_id)
        status, since = self._life.status, self._life.running_since
        place = ",".join(hosts(status.nodes or record.nodes)) if status else ""
        ran_s = record.duration_s or (status.elapsed_s if status else 0.0)
        if self._ending is not None:
            verdict = Verdict(end=self._ending)
            ran_s = time.monotonic() - since if since is not None else 0.0
        self._watcher.remove(self)
        with self._watcher.changed:
            if self._result is not None:
                return
            self._terms.on_over()
            code, reason = verdict.exit_code, verdict.reason
            self._result = JobResult(end=verdict.end, exit_code=code, duration_s=ran_s, place=place, reason=reason)
            self._watcher.changed.notify_all()
