"""One trial as a Slurm job, and the watcher that asks Slurm about all of them at once."""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from zenith_tune.runners.base import End, Job, JobRequest, JobResult, Runner
from zenith_tune.runners.slurm.client import JobStatus, SlurmClient, SlurmError, hosts
from zenith_tune.runners.slurm.submission import SlurmSubmission
from zenith_tune.runners.slurm.verdict import (
    ENDED,
    LOST,
    WAITING,
    SlurmRecord,
    describe_status,
    ended,
    exit_code,
    judge,
    never_starts,
)

_RECORD_GRACE_S = 5.0
"""How long a record may take to come over the network's file system after the scheduler says that the job is over."""
_FORGOTTEN_S = 5.0
"""How long a job must be unknown to the scheduler before it counts as gone."""
_FIRST_LOOK_S = 0.1
"""How soon after a job has noted its own end the scheduler is asked again, if it does not know yet; then ever later."""
_COMPLETING_S = 30.0
"""How long Slurm may take to clean up after a command that has exited."""
_MAX_SLEEP_S = 1.0
_GIVE_UP_S = 90.0
"""How long a job that Slurm should end is waited for, and a Slurm that does not answer while the user waits."""


class SlurmJob(Job):
    """One job; what the watcher sees of it decides how it ended, unless the tuner ended it itself."""

    def __init__(
        self,
        runner: Runner,
        request: JobRequest,
        client: SlurmClient,
        watcher: SlurmWatcher,
        *,
        options: Sequence[str] = (),
        script: str = "",
        found: JobStatus | None = None,
    ) -> None:
        """Submit a script with these options of sbatch; or follow the job that was `found`."""
        self._client, self._watcher = client, watcher
        self._options, self._script = options, script
        self.job_id = found.job_id if found is not None else ""
        self._reported = describe_status(found) if found is not None else ""
        self._status: JobStatus | None = None
        self._missing_since: float | None = None
        self._over_since: float | None = None
        self._exit_noted_at: float | None = None
        self._noted = (False, False)
        self._never_reason = ""
        self._has_reported_silence = False
        self._ending: End | None = None
        self._ending_since = 0.0
        self._outcome: JobResult | None = None
        super().__init__(runner, request)

    def start(self) -> None:
        if not self.job_id:
            submission, on_state = SlurmSubmission(self._client, self.files), self.request.on_state
            submitted = submission.submit(self._options, self._script, lambda: self.runner.num_interrupts > 0, on_state)
            self.job_id = submitted or ""
        if self.job_id:
            self._watcher.add(self)
        else:
            self._outcome = ended(End.CANCELLED)

    def look(self) -> JobResult | None:
        self._watcher.check()
        return self._outcome

    def pause(self, limit_s: float) -> None:
        with self._watcher.changed:
            if self._outcome is None and not self.runner.num_interrupts:
                # Not longer, because the watcher may hang in a call while an interrupt comes.
                self._watcher.changed.wait(max(min(limit_s, _MAX_SLEEP_S), 0.0))

    def kill(self, end: End) -> JobResult:
        with self._watcher.changed:
            if self._outcome is None:
                self._ending, self._ending_since = end, time.monotonic()
        asked = killed = False
        while (outcome := self._outcome) is None:
            elapsed_s, hurry = time.monotonic() - self._ending_since, self.runner.in_a_hurry()
            is_late = elapsed_s > _GIVE_UP_S and (asked or self.runner.num_interrupts)
            if is_late or (hurry and killed) or (asked and self._watcher.is_blind):
                if not asked:
                    self.request.on_state(f"job {self.job_id} could not be cancelled, because Slurm does not answer")
                self._settle(ended(end))
                continue
            if not asked or (not killed and (hurry or elapsed_s > self.runner.grace_s)):
                with contextlib.suppress(SlurmError):  # one that does not answer is asked again
                    self._client.cancel(self.job_id, kill=asked)
                    asked, killed = True, asked
                killed = killed or hurry
                self._watcher.ring()
            with self._watcher.changed:
                if self._outcome is None:
                    self._watcher.changed.wait(0.5)
        return outcome

    def has_news(self) -> bool:
        """Tell whether the job's own record has changed since it was last asked."""
        noted = (self.files.process.exists(), self.files.exit_code.exists())
        has_changed, self._noted = noted != self._noted, noted
        if has_changed and noted[1]:
            self._exit_noted_at = time.monotonic()
        return has_changed

    def next_look_s(self) -> float:
        """Return how long the next look at the scheduler may wait: not long where the job's end is near."""
        at = self._ending_since if self._ending is not None else self._exit_noted_at
        return math.inf if at is None else _FIRST_LOOK_S + (time.monotonic() - at) / 2

    def note_silence(self, why: str) -> None:
        """Report once that the scheduler does not answer."""
        if not self._has_reported_silence:
            self._has_reported_silence = True
            self.request.on_state(f"the scheduler does not answer ({why}): waiting for it")

    def take(self, status: JobStatus | None) -> bool:
        """Take in what the scheduler says, None where it does not know the job; returns whether that was new."""
        previous, self._has_reported_silence = self._status, False
        if status is None:
            self._is_missing()
            return False
        self._status, self._missing_since = status, None
        if status.state in ENDED:
            self._is_over(status)
        elif status.state in WAITING:
            self._pends(status)
        elif self.began is None:
            self.began = time.monotonic() - status.elapsed_s * (previous is None)
        if status.state == "COMPLETING":
            self._completes()
        elif status.state not in ENDED and (state := describe_status(status)) != self._reported:
            self._reported = state
            self.request.on_state(state)
        return previous is None or (previous.state, previous.reason) != (status.state, status.reason)

    def _record(self) -> SlurmRecord:
        return SlurmRecord.read(self.files, self.job_id)

    def _completes(self) -> None:
        """Settle by its record a job that Slurm does not get off its nodes: until then it may still say why."""
        code, at = self._record().exit_code, self._exit_noted_at
        if code is not None and at is not None and time.monotonic() - at > _COMPLETING_S:
            self._settle(ended(End.EXITED, code))

    def _pends(self, status: JobStatus) -> None:
        """End a job that can never start; the reason counts once it has been seen twice."""
        if not never_starts(status.reason) or self._ending is not None:
            return
        if status.reason != self._never_reason:
            self._never_reason = status.reason
            return
        with contextlib.suppress(SlurmError):
            self._client.cancel(self.job_id)
            reason = f"Slurm can never start it: pending ({status.reason})"
            self._append_to_log(f"error: {reason}")
            self._settle(ended(End.EXITED, reason=reason))

    def _is_missing(self) -> None:
        """Judge a job that the scheduler has forgotten by its own record."""
        since = self._missing_since = self._missing_since or time.monotonic()
        code = self._record().exit_code
        if code is not None:
            self._settle(ended(End.EXITED, code))
        elif time.monotonic() - since > _FORGOTTEN_S:
            self._status = None  # its nodes have done nothing to be avoided
            self._settle(ended(End.LOST, reason=f"job {self.job_id} is unknown to Slurm and left no record"))

    def _is_over(self, status: JobStatus) -> None:
        since = self._over_since = self._over_since or time.monotonic()
        record = self._record()
        is_awaited = status.state in ("COMPLETED", "FAILED") and record.exit_code is None and self._ending is None
        if is_awaited and time.monotonic() - since < _RECORD_GRACE_S and self.files.path.is_dir():
            return
        code = None
        with contextlib.suppress(SlurmError):
            if is_awaited and (shown := self._client.job(self.job_id)):
                code = exit_code(shown[0].get("ExitCode", ""))
        if code and not record.has_begun:
            where, folder = ",".join(hosts(status.nodes)) or "its node", self.files.path
            self._append_to_log(f"error: job {self.job_id} ended before its script began: does {where} see {folder}?")
        result = judge(status, record, code)
        if status.state in LOST and result.end is End.LOST:
            self._status = replace(status, nodes=",".join(self._failed_nodes(hosts(status.nodes))))
            result = judge(self._status, record, code)
        if result.end is End.EXITED and result.reason:
            self._append_to_log(result.reason)
        self._settle(result)

    def _failed_nodes(self, nodes: list[str]) -> list[str]:
        """Return which of its nodes failed, or all where Slurm does not say any more."""
        try:
            shown = self._client.nodes(nodes) if nodes else []
        except SlurmError:
            return nodes
        down = [each.get("NodeName", "") for each in shown if "DOWN" in each.get("State", "")]
        return [name for name in down if name] or nodes

    def _append_to_log(self, line: str) -> None:
        with contextlib.suppress(OSError), self.files.log.open("a", encoding="utf-8") as log:
            log.write(f"\n{line}\n")

    def _settle(self, result: JobResult) -> None:
        """Take down how the job ended, once; where the tuner ended it, that is how."""
        record, status = self._record(), self._status
        place = ",".join(hosts(status.nodes or record.nodes)) if status else ""
        ran_s = record.duration_s or (status.elapsed_s if status else 0.0)
        if self._ending is not None:
            result, ran_s = ended(self._ending), self.ran_s()
        self._watcher.remove(self)
        with self._watcher.changed:
            self._outcome = self._outcome or replace(result, duration_s=ran_s, place=place)
            self._watcher.changed.notify_all()


_TICK_S = 0.05
"""How often the trials' own record files are looked for, which costs the scheduler nothing."""
_MIN_PAUSE_S = 0.3


class SlurmWatcher:
    """The thread that hands every job what the scheduler says about it, as long as there are jobs."""

    def __init__(self, ask: Callable[[Collection[str]], Mapping[str, JobStatus]], max_pause_s: float = 10.0) -> None:
        self.changed = threading.Condition()
        """Notified when a job's state may have changed, and when the runner is interrupted."""
        self._ask = ask
        self._max_pause_s = max_pause_s
        self._jobs: dict[str, SlurmJob] = {}
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self._bell_reader, self._bell_writer = os.pipe()
        os.set_blocking(self._bell_reader, False)
        os.set_blocking(self._bell_writer, False)

    def ring(self) -> None:
        """Wake everybody who waits; safe in a signal handler."""
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes just as well
            os.write(self._bell_writer, b"!")

    def check(self) -> None:
        """Raise what went wrong in the thread, if anything did: whoever waits would wait for ever."""
        if self._error is not None:
            raise self._error

    @property
    def is_blind(self) -> bool:
        return self._error is not None

    def reset(self) -> None:
        """Forget what went wrong; a study begins."""
        self._error = None

    def add(self, job: SlurmJob) -> None:
        with self.changed:
            self._jobs[job.job_id] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="slurm-watcher", daemon=True)
                self._thread.start()
        self.ring()

    def remove(self, job: SlurmJob) -> None:
        with self.changed:
            self._jobs.pop(job.job_id, None)

    def close(self) -> None:
        """End the thread, and let go of the pipe."""
        with self.changed:
            self._jobs.clear()
            thread = self._thread
        self.ring()
        if thread is not None:
            thread.join()
        os.close(self._bell_reader)
        os.close(self._bell_writer)

    def _watched(self) -> list[SlurmJob]:
        """Return the jobs; where there are none left, the thread is over."""
        with self.changed:
            if not self._jobs:
                self._thread = None
            return list(self._jobs.values())

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # such as a listener that cannot write any more
            with self.changed:
                self._error, self._thread = error, None
                self.changed.notify_all()

    def _watch(self) -> None:
        pause_s, looked = _MIN_PAUSE_S, -math.inf
        while jobs := self._watched():
            if select.select([self._bell_reader], [], [], _TICK_S)[0]:
                with contextlib.suppress(BlockingIOError):
                    while os.read(self._bell_reader, 4096):
                        pass
                pause_s = _MIN_PAUSE_S
                with self.changed:
                    self.changed.notify_all()
            news = [job.has_news() for job in jobs]
            if any(news):
                pause_s, looked = _MIN_PAUSE_S, -math.inf
            if time.monotonic() - looked < min(pause_s, *(job.next_look_s() for job in jobs)):
                continue
            pause_s = _MIN_PAUSE_S if self._look_once(jobs) else min(pause_s * 1.4, self._max_pause_s)
            looked = time.monotonic()

    def _look_once(self, jobs: list[SlurmJob]) -> bool:
        """Hand each job what the scheduler says; returns whether anything was new."""
        try:
            statuses = self._ask([job.job_id for job in jobs])
        except SlurmError as error:
            for job in jobs:
                job.note_silence(str(error))
            return False
        is_new = [job.take(statuses.get(job.job_id)) for job in jobs]
        with self.changed:
            self.changed.notify_all()
        return any(is_new)
