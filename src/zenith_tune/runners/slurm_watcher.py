"""Looks after all jobs of a runner: one call to the scheduler for all of them, less often while nothing changes."""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from zenith_tune.runners.slurm.client import JobSight, SlurmError

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

    def saw(self, sight: JobSight | None) -> bool:
        """Take in what the scheduler tells, None where it does not know the job; returns whether that was new."""

    def cannot_see(self, why: str) -> None:
        """Hear that the scheduler does not answer."""


class SlurmWatcher:
    """Tell every job what the scheduler says of it, from a thread that lives as long as there are jobs."""

    def __init__(self, look: Callable[[Collection[str]], Mapping[str, JobSight]], max_pause_s: float = 10.0) -> None:
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
            sights = self._look([job.job_id for job in jobs])
        except SlurmError as error:
            for job in jobs:
                job.cannot_see(str(error))
            return False
        is_new = False
        for job in jobs:
            is_new |= job.saw(sights.get(job.job_id))
        with self.changed:
            self.changed.notify_all()
        return is_new
