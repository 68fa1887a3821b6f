"""What Slurm's states and reasons mean for a trial."""

from __future__ import annotations

import re
from dataclasses import dataclass

from zenith_tune.runners.base import End
from zenith_tune.runners.slurm.client import JobSight
from zenith_tune.runners.slurm_record import SlurmRecord
from zenith_tune.runners.slurm_text import hosts

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
_KILLED = 137


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Hold how a job ended, before it is known for how long it ran."""

    end: End
    exit_code: int | None = None
    reason: str = ""
    is_out_of_memory: bool = False


def never_starts(reason: str) -> bool:
    """Tell whether a pending job with this reason would wait for ever.

    >>> never_starts("PartitionNodeLimit"), never_starts("Resources"), never_starts("QOSMaxJobsPerUserLimit")
    (True, False, False)
    """
    return _NEVER.fullmatch(reason.strip("()").replace(" ", "_")) is not None


def words(sight: JobSight) -> str:
    """Return a job's state in a few words.

    >>> words(JobSight(job_id="7", state="PENDING", reason="Resources"))
    'pending (Resources)'
    """
    if sight.state in WAITING:
        reason = "" if sight.reason in ("", "None") else f" ({sight.reason})"
        return f"{sight.state.lower()}{reason}"
    where = ",".join(hosts(sight.nodes))
    return f"running on {where}" if where else sight.state.lower()


def judge(sight: JobSight, record: SlurmRecord, scheduler_code: int | None) -> Verdict:
    """Return how a job that Slurm says is over has ended.

    The exit code is the one that the trial's own shell wrote down; Slurm's, which is 0 after NODE_FAIL, only counts
    where the state says that the script came to its end.
    """
    state, job = sight.state.partition(" ")[0], f"job {sight.job_id}"
    if state in LOST and record.exit_code != 0:
        return Verdict(end=End.LOST, reason=f"{job}: {state} on {','.join(hosts(sight.nodes)) or 'no node'}")
    if state == "TIMEOUT":
        return Verdict(end=End.TIMED_OUT, reason=f"{job} reached Slurm's time limit")
    if state in _REVOKED:
        why = "" if sight.reason in ("", "None") else f" ({sight.reason})"
        return Verdict(end=End.REVOKED, reason=f"{job} was {_REVOKED[state]}{why}")
    if state == "OUT_OF_MEMORY" and record.exit_code != 0:
        reason = f"{job}: Slurm reports an oom_kill event"
        return Verdict(end=End.EXITED, exit_code=_KILLED, reason=reason, is_out_of_memory=True)
    return Verdict(end=End.EXITED, exit_code=scheduler_code if record.exit_code is None else record.exit_code)


def exit_code(text: str) -> int | None:
    """Read Slurm's `code:signal` as a shell would tell it.

    >>> exit_code("3:0"), exit_code("0:9"), exit_code("")
    (3, 137, None)
    """
    code, _, signum = text.partition(":")
    if not code.isdecimal() or not (signum or "0").isdecimal():
        return None
    return 128 + int(signum) if signum and int(signum) else int(code)
