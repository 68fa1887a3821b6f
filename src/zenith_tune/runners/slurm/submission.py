"""Submits a trial once, and finds its job again: also after a kill between sbatch and the note of the job's id."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

from zenith_tune.errors import UsageError
from zenith_tune.runners.base import OnState
from zenith_tune.runners.launch.trackers import without_trackers
from zenith_tune.runners.slurm.client import JobStatus, SlurmClient, SlurmUnreachableError
from zenith_tune.runners.slurm.verdict import ENDED
from zenith_tune.study.files import TrialFolder, write_json

T = TypeVar("T")

_MAX_PAUSE_S = 15.0
_UNDER_WAY_S = 3.0
"""How long an sbatch may still be at work whose tuner was killed."""


class SlurmSubmission:
    """The tie between a trial's folder and its job: the id in job.json, and a job name that no other folder has."""

    def __init__(self, client: SlurmClient, files: TrialFolder) -> None:
        self._client = client
        self._files = files
        digest = hashlib.sha256(os.fsencode(files.path.absolute())).hexdigest()[:12]
        self.prefix = f"zenithtune-{re.sub(r'[^A-Za-z0-9_.-]', '_', files.path.name)[:40]}-{digest}-"

    def submit(self, options: Sequence[str], script: str, is_over: Callable[[], bool], on_state: OnState) -> str | None:
        """Return the id of the new job, waiting for a scheduler that does not answer; None once `is_over`."""
        name, pause_s, may_be_there = self.prefix + secrets.token_hex(4), 1.0, False
        where = [f"--job-name={name}", f"--chdir={self._files.path.absolute()}", f"--output={self._files.log.name}"]
        options = [*options, *where, "--open-mode=append"]
        self.note(name=name)
        while not is_over():
            try:
                # A call that seemed to fail may have left its job.
                there = self._client.named(name) if may_be_there else []
                job_id, cluster = there[-1].job_id if there else "", ""
                if not there:
                    around = job_environment(without_trackers(os.environ))
                    job_id, cluster = self._client.submit(options, script, around)
            except SlurmUnreachableError as error:
                if not may_be_there:
                    on_state(f"the scheduler does not answer ({error}): waiting for it")
                may_be_there = True
                until = time.monotonic() + pause_s
                while time.monotonic() < until and not is_over():
                    time.sleep(0.1)
                pause_s = min(pause_s * 1.5, _MAX_PAUSE_S)
                continue
            try:
                self.note(name=name, job=job_id, cluster=cluster)
            except OSError:  # a full disk: nobody would ever look after this job
                self._client.cancel(job_id)
                raise
            return job_id
        return None

    def find(self) -> JobStatus | None:
        """Return the job that this folder's trial was submitted as, if the scheduler knows it."""
        noted = self.noted()
        if not noted:
            return None
        if (job_id := str(noted.get("job") or "")).isdecimal():
            return self._persistently(lambda: self._client.jobs([job_id]).get(job_id))
        name, deadline = str(noted.get("name") or self.prefix), time.monotonic() + _UNDER_WAY_S
        while True:
            statuses = self._persistently(lambda: self._client.named(name))
            statuses = [each for each in statuses if each.state not in ENDED] or statuses
            if statuses:
                self.note(name=name, job=statuses[-1].job_id)
                return statuses[-1]
            if time.monotonic() > deadline:
                return None
            time.sleep(0.5)

    def _persistently(self, ask: Callable[[], T]) -> T:
        deadline = time.monotonic() + 120.0
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
        content = self._files.read_json(self._files.job)
        return content if content.get("scheduler") == "slurm" else {}

    def note(self, **content: Any) -> None:
        begun = datetime.now(UTC).isoformat(timespec="seconds")
        write_json(self._files.job, {"scheduler": "slurm", "job": None, **content, "submitted": begun})


def job_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a job inherits: not what belongs to an allocation that the tuner itself may run in."""
    own = r"(?:SLURM|SLURMD|SRUN|PMI|PMIX)_(?!CONF$)"
    return {name: value for name, value in environment.items() if not re.match(own, name)}
