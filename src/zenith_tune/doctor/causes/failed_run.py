"""The failure that ended a run, classified as trials' failures are, with the lines that show it and what to do."""

from __future__ import annotations

import re

from zenith_tune.doctor.causes.cause import Cause, CauseKind, Figure, quoted
from zenith_tune.doctor.causes.collective_timeout import NEEDLES
from zenith_tune.evaluators.failures.failures import (
    FailedAllocation,
    Failure,
    FailureKind,
    classify,
    hidden_failure,
    shows_crash,
)
from zenith_tune.evaluators.failures.rank_errors import TRACEBACK, first_error, line_at, occurrences, split_prefix
from zenith_tune.evaluators.steps import after_steps, has_steps
from zenith_tune.study.trial_log import clean_line
from zenith_tune.units import GIB, format_bytes

KINDS = {
    FailureKind.OUT_OF_MEMORY: CauseKind.OUT_OF_MEMORY,
    FailureKind.HOST_OUT_OF_MEMORY: CauseKind.HOST_OUT_OF_MEMORY,
    FailureKind.CONFIGURATION: CauseKind.CONFIGURATION,
    FailureKind.COMMUNICATION: CauseKind.COMMUNICATION,
    FailureKind.NOT_FOUND: CauseKind.NOT_FOUND,
    FailureKind.DISK_FULL: CauseKind.DISK_FULL,
    FailureKind.KILLED: CauseKind.KILLED,
}
ACTIONS = {
    CauseKind.HOST_OUT_OF_MEMORY: (
        "fewer processes of the data loader, no optimizer offload, or more memory of the host (--mem for Slurm)",
        "where checkpoints are written at that time, write them sharded, or not from all ranks at once",
    ),
    CauseKind.CONFIGURATION: (
        "correct the option that the message names",
        "zenithtune plan lists the layouts that the model and the GPUs allow",
    ),
    CauseKind.COMMUNICATION: (
        "set NCCL_DEBUG=INFO and run again: the first rank that warns names the link",
        "look at the node of the first rank that failed: the others only lost their connection to it",
    ),
    CauseKind.NOT_FOUND: ("install what is missing, or correct the path, on every node",),
    CauseKind.DISK_FULL: ("free the disk that the message names, or write checkpoints elsewhere",),
    CauseKind.KILLED: (
        "where the scheduler ended it, ask for more time or save more often",
        "where nobody ended it, look at dmesg of that node: a fault of the driver or of the program",
    ),
    CauseKind.CRASH: (
        "read the exception that is quoted, and its traceback where the log has one",
        "resume from the last checkpoint once it is corrected",
    ),
}
_OF_A_RANK = "read the exception of rank {}: what other ranks raise follows from it"
_HARDWARE = re.compile(r"\bECC error|\bXid\b|fallen off the bus|NVLink error", re.IGNORECASE)
_HARDWARE_ACTIONS = (
    "take the GPU out: drain its node (scontrol update nodename=NODE state=drain reason=ECC) and start without it",
    "look at dmesg for Xid and at nvidia-smi -q -d ECC on that node: errors that come back need another GPU",
    "resume from the last checkpoint on other nodes",
)
_ENDS = ("CANCELLED AT ", "DUE TO TIME LIMIT", "Process got signal: 15")
_REPORT = "ChildFailedError"
_UNALLOCATED = re.compile(r"([0-9.]{1,12}) ?([KMG]i?B) is reserved by PyTorch but unallocated")
_UNITS = {"K": 1024.0, "M": 1024.0**2, "G": 1024.0**3}
_RANK = re.compile(r"^rank ([0-9]{1,6}): ")
_DEVICE = re.compile(r"\bGPU ([0-9]{1,3})\b")
LEAST_IN_PIECES = 0.05
"""Least share of a GPU's memory, reserved but unallocated, for which expandable segments are advised."""


def failed_run(log: str) -> Cause | None:
    """Return what ended the run, or None where the log does not end with a failure."""
    end = after_steps(log)
    if any(needle in end for needle in _ENDS):
        position = len(log) - len(end) + min(end.find(needle) for needle in _ENDS if needle in end)
        return _plain(log, CauseKind.KILLED, "the run was ended from outside", position, None)
    if not _has_died(end, trained=has_steps(log)):
        return None
    failure = classify(log, 1)
    return None if failure is None else _cause(log, failure, trained=has_steps(log))


def _has_died(end: str, *, trained: bool) -> bool:
    """Tell whether the end of a log shows a failure, and not only what healthy runs print when they exit."""
    error = first_error(end) if TRACEBACK in end else None
    if _REPORT in end or (error is not None and not error.is_aside) or (error is None and shows_crash(end)):
        return True
    failure = hidden_failure(end, has_value=False)
    is_of_exit = failure is not None and trained and failure.kind is FailureKind.COMMUNICATION
    return failure is not None and (not is_of_exit or any(needle in end for needle in NEEDLES))


def _cause(log: str, failure: Failure, *, trained: bool) -> Cause:
    kind = KINDS.get(failure.kind, CauseKind.CRASH)
    if kind is CauseKind.CONFIGURATION and trained:
        kind = CauseKind.CRASH  # a refused configuration would not have trained
    marked = _RANK.match(failure.message)
    text = failure.message[marked.end() :] if marked else failure.message
    position = _place(log, text[:60].rstrip("…"))
    rank = int(marked[1]) if marked else None
    if kind is CauseKind.OUT_OF_MEMORY:
        return _out_of_memory(log, failure.message, position, rank)
    return _plain(log, kind, failure.message, position, rank)


def _place(log: str, text: str) -> int:
    """Return where a line begins with a text, after its prefix; a report may quote it inside a longer line."""
    places = list(occurrences(log, text))
    own = (each for each in places if split_prefix(clean_line(line_at(log, each), 4096))[1].startswith(text))
    return next(own, places[0] if places else -1)


def _plain(log: str, kind: CauseKind, finding: str, position: int, rank: int | None) -> Cause:
    evidence = quoted(log, _with_frame(log, position)) if position >= 0 else (finding,)
    actions = ACTIONS[kind]
    if _HARDWARE.search(finding):
        actions = _HARDWARE_ACTIONS
    elif kind is CauseKind.CRASH and rank is not None:
        actions = (_OF_A_RANK.format(rank), *actions[1:])
    return Cause(kind=kind, finding=finding, evidence=evidence, actions=actions, rank=rank)


def _with_frame(log: str, position: int) -> list[int]:
    """Return the places of the source line that raised an exception, and of the exception."""
    above = max(position - 8192, 0)
    rank = split_prefix(line_at(log, position))[0]
    frames = [above + each for each in occurrences(log[above:position], '  File "')]
    own = [each for each in frames if split_prefix(line_at(log, each))[0] == rank]
    return [*own[-1:], position]


def _out_of_memory(log: str, message: str, position: int, rank: int | None) -> Cause:
    """Return the cause with the bytes asked for, free and unallocated."""
    line = line_at(log, position) if position >= 0 else message
    found = _UNALLOCATED.search(line)
    pieces = float(found[1]) * _UNITS[found[2][0]] if found and found[1].count(".") <= 1 else None
    asked = FailedAllocation.of(line)
    figures: dict[str, Figure] = {
        name: value
        for name, value in (
            ("tried_bytes", asked.tried_bytes),
            ("free_bytes", asked.free_bytes),
            ("capacity_bytes", asked.capacity_bytes),
            ("unallocated_bytes", pieces),
        )
        if value is not None
    }
    device = _DEVICE.search(line)
    who = f"rank {rank}" if rank is not None else f"GPU {device[1]}" if device else "a GPU"
    tried = f" asking for {format_bytes(asked.tried_bytes)}" if asked.tried_bytes is not None else ""
    free = f" with {format_bytes(asked.free_bytes)} free" if asked.free_bytes is not None else ""
    kept = f", {pieces / GIB:.1f} GiB reserved but unallocated" if pieces is not None else ""
    return Cause(
        kind=CauseKind.OUT_OF_MEMORY,
        finding=f"{who} ran out of memory{tried}{free}{kept}",
        evidence=quoted(log, [position]) if position >= 0 else (message,),
        actions=tuple(_memory_actions(asked, pieces)),
        rank=rank,
        figures=figures,
    )


def _memory_actions(asked: FailedAllocation, pieces: float | None) -> list[str]:
    least = LEAST_IN_PIECES * (asked.capacity_bytes or 0.0)
    smaller = "a smaller micro-batch, recomputation, or a layout that splits the model further"
    if pieces and (pieces >= max(least, 1.0) or (asked.tried_bytes and pieces >= asked.tried_bytes)):
        joined = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True joins the pieces that are reserved but unallocated"
        return [joined, smaller]
    return [smaller]
