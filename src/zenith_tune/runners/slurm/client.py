"""Slurm's programs, each called in one place and with a limit on its time."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.runners.slurm_text import duration_s, fields

_SEPARATOR = "|"
_FORMAT = _SEPARATOR.join(("%i", "%T", "%r", "%N", "%M", "%j"))
_UNREACHABLE = (
    "Unable to contact slurm controller",
    "Connection refused",
    "Connection timed out",
    "Connection reset",
    "Socket timed out",
    "Transport endpoint",
    "Communication connection failure",
    "Zero Bytes were transmitted",
    "Slurm backup controller in standby mode",
    "Slurm temporarily unable to accept job",
    "Resource temporarily unavailable",
    "try again",
)
"""What the programs say where the same call may go well a little later."""
_UNKNOWN_JOB = ("Invalid job id specified", "Invalid job id")


class SlurmError(OSError):
    """Report a call that Slurm did not do."""


class SlurmUnreachableError(SlurmError):
    """Report a scheduler that does not answer now; nobody knows whether it heard."""


class SlurmRefusedError(SlurmError):
    """Report a call that Slurm refused, with its own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSight:
    """Hold what squeue tells of a job."""

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    """As a host list: n[1-3]."""
    elapsed_s: float = 0.0
    name: str = ""


class SlurmClient:
    """Call Slurm's programs."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s

    def submit(self, options: Sequence[str], script: str, environment: Mapping[str, str]) -> tuple[str, str]:
        """Hand a batch script over on sbatch's input; returns the job's id, and its cluster where Slurm names one."""
        out = self._call(["sbatch", "--parsable", *options], script=script, environment=environment)
        job_id, _, cluster = out.strip().rpartition("\n")[2].partition(";")
        if not job_id.isdecimal():
            raise SlurmRefusedError(f"sbatch gave no job id, but {out.strip()[:200]!r}")
        return job_id, cluster

    def test(self, options: Sequence[str]) -> None:
        """Ask whether Slurm would take such a job; raises SlurmRefusedError where it would not."""
        self._call(["sbatch", "--test-only", *options], script="#!/bin/sh\n")

    def jobs(self, ids: Iterable[str]) -> dict[str, JobSight]:
        """Return what is known of these jobs; one that the scheduler has forgotten is left out."""
        wanted = set(ids)
        if not wanted:
            return {}
        try:
            sights = self._sights(f"--jobs={','.join(sorted(wanted, key=int))}")
        except SlurmRefusedError as error:
            if any(words in str(error) for words in _UNKNOWN_JOB):
                return {}
            raise
        return {sight.job_id: sight for sight in sights if sight.job_id in wanted}

    def named(self, prefix: str) -> list[JobSight]:
        """Return the user's jobs whose names begin so, the last submitted one last."""
        sights = self._sights(f"--user={os.geteuid()}")
        return sorted((each for each in sights if each.name.startswith(prefix)), key=lambda each: int(each.job_id))

    def _sights(self, which: str) -> list[JobSight]:
        out = self._call(["squeue", "--noheader", "--states=all", which, f"--format={_FORMAT}"])
        rows = [line.split(_SEPARATOR, 5) for line in out.splitlines()]
        return [
            JobSight(
                job_id=job_id, state=state, reason=reason, nodes=nodes, elapsed_s=duration_s(elapsed) or 0.0, name=name
            )
            for job_id, state, reason, nodes, elapsed, name in (row for row in rows if len(row) == 6)
            if job_id.isdecimal()
        ]

    def steps(self, job_id: str, name: str) -> list[str]:
        """Return the ids of a job's running steps of this name."""
        out = self._call(["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j"])
        rows = [line.partition(_SEPARATOR) for line in out.splitlines()]
        return [step_id.strip() for step_id, _, shown in rows if shown.strip() == name]

    def job(self, job_id: str, *, details: bool = False) -> list[dict[str, str]]:
        """Return all that is known of one job, with `details` in one record more for each of its groups of nodes."""
        if details:
            out = self._call(["scontrol", "--details", "show", "job", job_id])
            return [fields(line) for line in out.splitlines() if line.strip()]
        return self._records("job", job_id)

    def partitions(self) -> list[dict[str, str]]:
        """Return every partition."""
        return self._records("partition")

    def nodes(self, names: Sequence[str] = ()) -> list[dict[str, str]]:
        """Return these nodes, or all."""
        return self._records("node", *([",".join(names)] if names else []))

    def _records(self, *what: str) -> list[dict[str, str]]:
        out = self._call(["scontrol", "--oneliner", "show", *what])
        return [fields(line) for line in out.splitlines() if "=" in line]

    def cancel(self, job_id: str, *, kill: bool = False) -> None:
        """Ask Slurm to end a job, at once and with all its processes if `kill`; one that is over is no error."""
        try:
            self._call(["scancel", *(["--signal=KILL", "--full"] if kill else []), job_id])
        except SlurmRefusedError as error:
            over = (*_UNKNOWN_JOB, "already completing or completed", "Job/step already")
            if not any(words in str(error) for words in over):
                raise

    def _call(
        self, argv: Sequence[str], *, script: str | None = None, environment: Mapping[str, str] | None = None
    ) -> str:
        try:
            done = subprocess.run(
                argv,
                input=script,
                stdin=subprocess.DEVNULL if script is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                env=environment,
                timeout=self._timeout_s,
            )
        except FileNotFoundError as error:
            raise SlurmRefusedError(f"{argv[0]} is not installed here, or not on the PATH") from error
        except subprocess.TimeoutExpired as error:
            raise SlurmUnreachableError(f"{argv[0]} did not answer within {self._timeout_s:g} s") from error
        said = " ".join(done.stderr.split()) or f"{argv[0]} failed with exit code {done.returncode}"
        if done.returncode and any(words in said for words in _UNREACHABLE):
            raise SlurmUnreachableError(said[:400])
        if done.returncode:
            raise SlurmRefusedError(said[:400])
        return done.stdout
