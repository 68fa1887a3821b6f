"""Collectives that timed out: which ranks waited, in which collective, and which rank is missing.

NCCL's watchdog prints `[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=880, OpType=ALLREDUCE,
..., Timeout(ms)=600000) ran for 600029 milliseconds before timing out.` on every rank that waits. A rank that waits in
an earlier collective than the others, or prints nothing while its neighbours do, is the one that they wait for.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from zenith_tune.doctor.causes.cause import Cause, CauseKind, Figure, quoted
from zenith_tune.evaluators.failures.rank_errors import line_at, occurrences, split_prefix

NEEDLES = ("caught collective operation timeout", "Timed out waiting ", "Timed out after ")
_WORK = re.compile(r"WorkNCCL\(SeqNum=([0-9]{1,12}), OpType=(\w{1,40})")
_LIMIT = re.compile(
    r"Timeout\(ms\)=([0-9]{1,12})|Timed out waiting ([0-9]{1,12}) ?ms|Timed out after ([0-9]{1,9}) seconds"
)
_RANK = re.compile(r"\bRank ([0-9]{1,6})\]")
_FEW = 4
"""Most silent ranks that are suspected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wait:
    position: int
    rank: int | None
    collective: str
    sequence: int | None
    timeout_s: float | None


def collective_timeout(log: str, *, of_trainer: bool) -> Cause | None:
    """Return the time-out that the log shows, or None."""
    waits = [_wait(log, position) for needle in NEEDLES for position in occurrences(log, needle)]
    if not waits:
        return None
    # A rank may wait in several groups at once; its first report counts.
    first = {wait.rank: wait for wait in reversed(waits)}
    ranks = sorted(rank for rank in first if rank is not None)
    behind = _behind([first[rank] for rank in ranks])
    named = Counter(wait.collective for wait in first.values() if wait.collective).most_common(1)
    collective = named[0][0] if named else ""
    limit_s = max((wait.timeout_s for wait in waits if wait.timeout_s is not None), default=None)
    figures: dict[str, Figure] = {"collective": collective, "waiting_ranks": ranks, "suspected_ranks": behind}
    figures |= {"timeout_s": limit_s} if limit_s is not None else {}
    sequences = [wait.sequence for wait in waits if wait.sequence is not None]
    figures |= {"sequence": min(sequences)} if sequences else {}
    what = f"collective {collective}" if collective else "a message between ranks"
    limit = f" after {limit_s:g} s" if limit_s is not None else ""
    waited = f", where {_names(ranks)} waited" if ranks else ""
    late = f"; {_names(behind)} did not join" if behind else ""
    return Cause(
        kind=CauseKind.TIMEOUT,
        finding=f"{what} timed out{limit}{waited}{late}",
        evidence=quoted(log, sorted(wait.position for wait in first.values())),
        actions=_actions(behind, of_trainer=of_trainer),
        rank=behind[0] if len(behind) == 1 else (ranks[0] if len(ranks) == 1 else None),
        figures=figures,
    )


def _wait(log: str, position: int) -> _Wait:
    line = line_at(log, position)
    work, limit, rank = _WORK.search(line), _LIMIT.search(line), _RANK.search(line)
    millis = (limit[1] or limit[2]) if limit else None
    seconds = float(millis) / 1000 if millis else (float(limit[3]) if limit else None)
    return _Wait(
        position=position,
        rank=int(rank[1]) if rank else split_prefix(line)[0],
        collective=work[2] if work else "",
        sequence=int(work[1]) if work else None,
        timeout_s=seconds,
    )


def _behind(waits: list[_Wait]) -> list[int]:
    """Return the ranks that the others wait for, by sequence numbers or by silence."""
    numbered = [wait for wait in waits if wait.sequence is not None]
    last = max((wait.sequence or 0 for wait in numbered), default=0)
    late = [wait.rank for wait in numbered if (wait.sequence or 0) < last and wait.rank is not None]
    if late and len(late) * 2 < len(numbered):
        return late
    ranks = {wait.rank for wait in waits if wait.rank is not None}
    silent = [rank for rank in range(max(ranks, default=-1) + 1) if rank not in ranks]
    return silent if len(ranks) > len(silent) and len(silent) <= _FEW else []


def _names(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def _actions(behind: list[int], *, of_trainer: bool) -> tuple[str, ...]:
    who = _names(behind) if behind else "the rank that printed no time-out"
    option = "--distributed-timeout-minutes for Megatron-LM, timeout= of init_process_group"
    return (
        f"look at the log of {who} and at its node (dmesg for Xid, nvidia-smi, the network link)",
        "set TORCH_NCCL_TRACE_BUFFER_SIZE=20000 and TORCH_NCCL_DUMP_ON_TIMEOUT=1 to record where each rank stood",
        "where one rank needs that long (data, a checkpoint, compiling), raise the time-out: "
        + ("ddp_timeout" if of_trainer else option),
    )
