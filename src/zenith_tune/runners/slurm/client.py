"""Slurm's programs, each called in one place and with a limit on its time."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_HOSTS = re.compile(r"((?:[^,\[\]]|\[[^\]]*\])+)")
_FIELD = re.compile(r"(?:^|\s)([A-Za-z][\w:/&]*)=")
_DURATION = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")


def hosts(text: str) -> list[str]:
    """Return the names in a host list.

    >>> hosts("n[1-3,07],login,r[1-2]c[5-6]")
    ['n1', 'n2', 'n3', 'n07', 'login', 'r1c5', 'r1c6', 'r2c5', 'r2c6']
    """
    found = [name for part in _HOSTS.findall(text) for name in _expanded(part.strip())]
    return [name for name in found if name and name != "(null)"]


def _expanded(part: str) -> list[str]:
    bracket = re.search(r"\[([^\]]*)\]", part)
    if bracket is None:
        return [part]
    numbers: list[str] = []
    for each in bracket[1].split(","):
        low, dash, high = each.partition("-")
        if not dash:
            numbers.append(low)
        elif low.isdecimal() and high.isdecimal():
            numbers += [str(number).zfill(len(low)) for number in range(int(low), int(high) + 1)]
    head, tail = part[: bracket.start()], part[bracket.end() :]
    return [head + number + rest for number in numbers for rest in _expanded(tail)]


def fields(line: str) -> dict[str, str]:
    """Read one line of `scontrol --oneliner`; a value may hold blanks."""
    found = list(_FIELD.finditer(line))
    ends = [*(each.start() for each in found[1:]), len(line)]
    return {each[1]: line[each.end() : end].strip() for each, end in zip(found, ends, strict=False)}  # none: no field


def duration_s(text: str) -> float | None:
    """Return the seconds of a duration as Slurm takes and prints it; None for one without limit or not understood.

    >>> [duration_s(text) for text in ("20", "1:30", "00:20:00", "2-1", "1-00:00:30", "UNLIMITED")]
    [1200.0, 90.0, 1200.0, 176400.0, 86430.0, None]
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        return None
    days, *given = match.groups()
    numbers = [int(each) for each in given if each is not None]
    # A plain number is minutes and two are minutes and seconds; after days, hours come first.
    if days is not None or len(numbers) == 3:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
    else:
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return float(((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds)


def megabytes(text: str) -> int | None:
    """Return the MB of a memory size such as 64G; None for one that is not understood."""
    match = re.fullmatch(r"([0-9]+)([KMGT]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        return None
    return int(int(match[1]) * {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2}[match[2].upper()])


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
"""Messages after which the same call may succeed a little later."""
_UNKNOWN_JOB = ("Invalid job id specified", "Invalid job id")


def _mentions(message: object, phrases: Iterable[str]) -> bool:
    return any(phrase in str(message) for phrase in phrases)


class SlurmError(OSError):
    """A call that Slurm did not do."""


class SlurmUnreachableError(SlurmError):
    """A scheduler that does not answer now; nobody knows whether the call arrived."""


class SlurmRefusedError(SlurmError):
    """A call that Slurm refused, with its own message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """A job as squeue shows it."""

    job_id: str
    state: str
    reason: str = ""
    nodes: str = ""
    """Host list: n[1-3]."""
    elapsed_s: float = 0.0
    name: str = ""


class SlurmClient:
    """Slurm's programs."""

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

    def jobs(self, ids: Iterable[str]) -> dict[str, JobStatus]:
        """Return what is known of these jobs; one that the scheduler has forgotten is left out."""
        wanted = set(ids)
        if not wanted:
            return {}
        try:
            statuses = self._statuses(f"--jobs={','.join(sorted(wanted, key=int))}")
        except SlurmRefusedError as error:
            if _mentions(error, _UNKNOWN_JOB):
                return {}
            raise
        return {status.job_id: status for status in statuses if status.job_id in wanted}

    def named(self, prefix: str) -> list[JobStatus]:
        """Return the user's jobs whose names begin so, the last submitted one last."""
        statuses = self._statuses(f"--user={os.geteuid()}")
        return sorted((each for each in statuses if each.name.startswith(prefix)), key=lambda each: int(each.job_id))

    def _statuses(self, which: str) -> list[JobStatus]:
        out = self._call(["squeue", "--noheader", "--states=all", which, "--format=%i|%T|%r|%N|%M|%j"])
        rows = [line.split("|", 5) for line in out.splitlines()]
        return [
            JobStatus(
                job_id=job_id, state=state, reason=reason, nodes=nodes, elapsed_s=duration_s(elapsed) or 0.0, name=name
            )
            for job_id, state, reason, nodes, elapsed, name in (row for row in rows if len(row) == 6)
            if job_id.isdecimal()
        ]

    def steps(self, job_id: str, name: str) -> list[str]:
        """Return the ids of a job's running steps of this name."""
        out = self._call(["squeue", "--noheader", "--steps", f"--jobs={job_id}", "--format=%i|%j"])
        rows = [line.partition("|") for line in out.splitlines()]
        return [step_id.strip() for step_id, _, shown in rows if shown.strip() == name]

    def job(self, job_id: str) -> list[dict[str, str]]:
        return self._records("job", job_id)

    def node_groups(self, job_id: str) -> list[dict[str, str]]:
        lines = self._call(["scontrol", "--details", "show", "job", job_id]).splitlines()
        return [each for each in map(fields, lines) if "CPU_IDs" in each and "Nodes" in each]

    def partitions(self) -> list[dict[str, str]]:
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
            if not _mentions(error, (*_UNKNOWN_JOB, "already completing or completed", "Job/step already")):
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
        if done.returncode and _mentions(said, _UNREACHABLE):
            raise SlurmUnreachableError(said[:400])
        if done.returncode:
            raise SlurmRefusedError(said[:400])
        return done.stdout
