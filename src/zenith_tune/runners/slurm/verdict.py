"""How a Slurm job ended: by the state that Slurm shows, and by the record that the trial's own shell wrote."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zenith_tune.runners.base import End, JobResult
from zenith_tune.runners.slurm.client import JobStatus, hosts
from zenith_tune.study.files import TrialFolder


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRecord:
    """Where a job began and how its command exited, as its own shell noted."""

    nodes: str = ""
    has_begun: bool = False
    exit_code: int | None = None
    duration_s: float = 0.0

    @classmethod
    def read(cls, files: TrialFolder, job_id: str) -> SlurmRecord:
        """Read the record, as far as this very job wrote it: one on a node that was given up may write late."""
        begin = _pairs(files.read(files.process), job_id)
        end = _pairs(files.read(files.exit_code), job_id)
        code = end.get("code", "")
        is_code = code.isdecimal()
        return cls(
            nodes=begin.get("nodes", ""),
            has_begun=bool(begin),
            exit_code=int(code) if is_code else None,
            duration_s=max(float(end.get("time", 0)) - float(begin.get("time", 0)), 0.0) if is_code else 0.0,
        )


def _pairs(text: str, job_id: str) -> dict[str, str]:
    pairs = dict(line.split(" ", 1) for line in text.splitlines() if " " in line)
    return pairs if pairs.get("job") == job_id else {}


WAITING = frozenset(
    {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"}
)
ENDED = frozenset(
    {"COMPLETED", "FAILED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL", "CANCELLED", "PREEMPTED", "DEADLINE"}
    | {"OUT_OF_MEMORY", "REVOKED", "LAUNCH_FAILED", "RECONFIG_FAIL"}
)
LOST = frozenset({"NODE_FAIL", "BOOT_FAIL", "LAUNCH_FAILED", "RECONFIG_FAIL"})
_REVOKED = {
    "CANCELLED": "cancelled by somebody else than the tuner",
    "PREEMPTED": "preempted for another job",
    "DEADLINE": "ended at its deadline",
    "REVOKED": "revoked by the scheduler",
}
# A job that is held starts when a person says so, for whom a study does not wait.
# Of the limits only those of a single job: one on all jobs of a user or an account is met once others have ended.
_NEVER = re.compile(
    r"PartitionNodeLimit|PartitionTimeLimit|PartitionConfig|BadConstraints|InvalidAccount|InvalidQOS|AccountNotAllowed"
    r"|QOSNotAllowed|DependencyNeverSatisfied|ReservationDeleted|QOSTimeLimit|QOSMaxWallDurationPerJobLimit"
    r"|(?:Assoc|QOS)\w*Max\w*Per(?:Job|Node)\w*|(?:Assoc|QOS)Min\w*|\w*launch_failed_requeued_held"
    r"|JobHeld(?:User|Admin)|JobHoldMaxRequeue",
    re.IGNORECASE,
)


def ended(end: End, code: int | None = None, *, reason: str = "") -> JobResult:
    """Return how a job ended, before it is known where and for how long it ran."""
    return JobResult(end=end, exit_code=code, duration_s=0.0, reason=reason)


def never_starts(reason: str) -> bool:
    """Tell whether a pending job with this reason would wait for ever."""
    return _NEVER.fullmatch(reason.strip("()").replace(" ", "_")) is not None


def describe_status(status: JobStatus) -> str:
    """Return a job's state for people."""
    if status.state in WAITING:
        reason = "" if status.reason in ("", "None") else f" ({status.reason})"
        return f"{status.state.lower()}{reason}"
    where = ",".join(hosts(status.nodes))
    return f"running on {where}" if where else status.state.lower()


def judge(status: JobStatus, record: SlurmRecord, scheduler_code: int | None) -> JobResult:
    """Return how a job that Slurm says is over has ended.

    The exit code is the one that the trial's own shell wrote down; where that is 0 the trial is done, whatever happened
    to its job. Slurm's, which is 0 after NODE_FAIL, only counts where the state says that the script came to its end.
    Only a job out of memory has exited with a reason.
    """
    state, job = status.state.partition(" ")[0], f"job {status.job_id}"
    if record.exit_code == 0:
        return ended(End.EXITED, 0)
    if state in LOST:
        return ended(End.LOST, reason=f"{job}: {state} on {','.join(hosts(status.nodes)) or 'no node'}")
    if state == "TIMEOUT":
        return ended(End.TIMED_OUT, reason=f"{job} reached Slurm's time limit")
    if state in _REVOKED:
        why = "" if status.reason in ("", "None") else f" ({status.reason})"
        return ended(End.REVOKED, reason=f"{job} was {_REVOKED[state]}{why}")
    if state == "OUT_OF_MEMORY":
        return ended(End.EXITED, 137, reason=f"{job}: Slurm reports an oom_kill event")
    return ended(End.EXITED, scheduler_code if record.exit_code is None else record.exit_code)


def exit_code(text: str) -> int | None:
    """Read Slurm's `code:signal` as a shell would report it."""
    code, _, signum = text.partition(":")
    if not code.isdecimal() or not (signum or "0").isdecimal():
        return None
    return 128 + int(signum) if signum and int(signum) else int(code)
