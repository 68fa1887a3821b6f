"""Submits a trial once, and finds its job again: also after a kill between sbatch and the note of the job's id."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar, overload

from zenith_tune.errors import UsageError
from zenith_tune.runners.base import End, Job, JobResult, OnState
from zenith_tune.runners.slurm.client import ENDED, JobStatus, SlurmClient, SlurmError, SlurmUnreachableError
from zenith_tune.study.files import TrialFolder, write_json

T = TypeVar("T")

_MAX_PAUSE_S = 15.0
_UNDER_WAY_S = 3.0
"""How long an sbatch may still be at work whose tuner was killed."""
_PATIENCE_S = 120.0


class SlurmSubmission:
    """Tie a trial's folder to its job: by the id in job.json, and by a job name that no other folder has."""

    def __init__(self, client: SlurmClient, files: TrialFolder) -> None:
        self._client = client
        self._files = files
        digest = hashlib.sha256(os.fsencode(files.path.absolute())).hexdigest()[:12]
        self.prefix = f"zenithtune-{re.sub(r'[^A-Za-z0-9_.-]', '_', files.path.name)[:40]}-{digest}-"

    def submit(self, options: Sequence[str], script: str, is_over: Callable[[], bool], on_state: OnState) -> str | None:
        """Return the id of the new job, waiting for a scheduler that does not answer; None once `is_over`."""
        name, has_reported, pause_s = self.prefix + secrets.token_hex(4), False, 1.0
        where = [f"--job-name={name}", f"--chdir={self._files.path.absolute()}", f"--output={self._files.log.name}"]
        self.note(name=name)
        while not is_over():
            try:
                job_id, cluster = self._client.submit(
                    [*options, *where, "--open-mode=append"], script, job_environment(os.environ)
                )
            except SlurmUnreachableError as error:
                if not has_reported:
                    on_state(f"the scheduler does not answer ({error}): waiting for it")
                has_reported = True
                found = self._await_answer(name, is_over, pause_s)
                pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
                if found is None:
                    continue
                job_id, cluster = found, ""
            try:
                self.note(name=name, job=job_id, cluster=cluster)
            except OSError:  # a full disk: nobody would ever look after this job
                self._client.cancel(job_id)
                raise
            return job_id
        return None

    def _await_answer(self, name: str, is_over: Callable[[], bool], pause_s: float) -> str | None:
        """Return the job of a call that seemed to fail, or None once the scheduler says that there is none."""
        while not is_over():
            until = time.monotonic() + pause_s
            while time.monotonic() < until and not is_over():
                time.sleep(0.1)
            try:
                statuses = self._client.named(name)
            except SlurmUnreachableError:
                pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
                continue
            return statuses[-1].job_id if statuses else None
        return None

    def find(self) -> JobStatus | None:
        """Return the job that this folder's trial was submitted as, if the scheduler knows it."""
        noted = self.noted()
        if not noted:
            return None
        if (job_id := str(noted.get("job") or "")).isdecimal():
            return self._patiently(lambda: self._client.jobs([job_id]).get(job_id))
        name, deadline = str(noted.get("name") or self.prefix), time.monotonic() + _UNDER_WAY_S
        while True:
            statuses = self._patiently(lambda: self._client.named(name))
            statuses = [each for each in statuses if each.state not in ENDED] or statuses
            if statuses:
                self.note(name=name, job=statuses[-1].job_id)
                return statuses[-1]
            if time.monotonic() > deadline:
                return None
            time.sleep(0.5)

    def _patiently(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return ask()
            except SlurmUnreachableError as error:
                if time.monotonic() > deadline:
                    problem = "a trial that a killed tuner left may still run, and must not be started twice"
                    raise UsageError(f"{problem}, but {error}", hint="resume once Slurm answers again") from error
                time.sleep(1.0)

    def noted(self) -> dict[str, Any]:
        """Return what job.json holds, nothing where it is not a Slurm job's."""
        try:
            content = json.loads(self._files.read(self._files.job) or "{}")
        except ValueError:
            return {}
        return content if isinstance(content, dict) and content.get("scheduler") == "slurm" else {}

    def note(self, **content: Any) -> None:
        """Write job.json."""
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self._files.job, {"scheduler": "slurm", "job": None, **content, "submitted": begun})


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job inherits: not what belongs to an allocation that the tuner itself may run in."""
    own = re.compile(r"(?:SLURM|SLURMD|SRUN|PMI|PMIX)_(?!CONF$)")
    return {name: value for name, value in environment.items() if not own.match(name)}


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


TICK_S = 0.05
"""How often the trials' own record files are looked for, which costs the scheduler nothing."""
MIN_PAUSE_S = 0.3
_GROWTH = 1.4


class Watched(Protocol):
    """Name what the watcher needs of a job."""

    job_id: str

    def has_news(self) -> bool:
        """Tell whether the job's own record has changed since it was last asked."""

    def patience_s(self) -> float:
        """Return how long the job would wait for the next look: not long where its end is near."""

    def saw(self, status: JobStatus | None) -> bool:
        """Take in what the scheduler tells, None where it does not know the job; returns whether that was new."""

    def cannot_see(self, why: str) -> None:
        """Hear that the scheduler does not answer."""


class SlurmWatcher:
    """Tell every job what the scheduler says of it, from a thread that lives as long as there are jobs."""

    def __init__(self, look: Callable[[Collection[str]], Mapping[str, JobStatus]], max_pause_s: float = 10.0) -> None:
        self.changed = threading.Condition()
        """Notified when a job's state may have changed, and when the runner is told to stop."""
        self._look = look
        self._max_pause_s = max_pause_s
        self._jobs: dict[str, Watched] = {}
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
        """Raise what went wrong while looking, if anything did: whoever waits would wait for ever."""
        if self._error is not None:
            raise self._error

    @property
    def is_blind(self) -> bool:
        """Whether nobody looks any more."""
        return self._error is not None

    def reset(self) -> None:
        """Forget what went wrong; a study begins."""
        self._error = None

    def add(self, job: Watched) -> None:
        """Watch a job until it is removed."""
        with self.changed:
            self._jobs[job.job_id] = job
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="slurm-watcher", daemon=True)
                self._thread.start()
        self.ring()

    def remove(self, job: Watched) -> None:
        """Forget a job."""
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

    def _watched(self) -> list[Watched]:
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
        pause_s, looked = MIN_PAUSE_S, -float("inf")
        while jobs := self._watched():
            if self._heard_bell():
                pause_s = MIN_PAUSE_S
                with self.changed:
                    self.changed.notify_all()
            news = [job.has_news() for job in jobs]
            if any(news):
                pause_s, looked = MIN_PAUSE_S, -float("inf")
            if time.monotonic() - looked < min(pause_s, *(job.patience_s() for job in jobs)):
                continue
            pause_s = MIN_PAUSE_S if self._look_once(jobs) else min(pause_s * _GROWTH, self._max_pause_s)
            looked = time.monotonic()

    def _heard_bell(self) -> bool:
        if not select.select([self._bell_reader], [], [], TICK_S)[0]:
            return False
        with contextlib.suppress(BlockingIOError):
            while os.read(self._bell_reader, 4096):
                pass
        return True

    def _look_once(self, jobs: list[Watched]) -> bool:
        """Tell each job what the scheduler says; returns whether anything was new."""
        try:
            statuses = self._look([job.job_id for job in jobs])
        except SlurmError as error:
            for job in jobs:
                job.cannot_see(str(error))
            return False
        is_new = False
        for job in jobs:
            is_new |= job.saw(statuses.get(job.job_id))
        with self.changed:
            self.changed.notify_all()
        return is_new
