"""A cause that a log shows: what happened, the lines that show it, and what to do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from zenith_tune.evaluators.failures.rank_errors import line_at
from zenith_tune.study.trial_log import clean_line

MOST_EVIDENCE = 5
EVIDENCE_LENGTH = 600
"""Characters of a quoted line: an allocator's message has its advice at its end."""
Figure = float | int | str | list[int]


class CauseKind(StrEnum):
    """The kind of a cause, for programs."""

    OUT_OF_MEMORY = "out_of_memory"
    HOST_OUT_OF_MEMORY = "host_out_of_memory"
    NOT_FINITE = "nan"
    TIMEOUT = "timeout"
    COMMUNICATION = "communication"
    CONFIGURATION = "configuration"
    NOT_FOUND = "not_found"
    DISK_FULL = "disk_full"
    KILLED = "killed"
    CRASH = "crash"
    STRAGGLER = "straggler"
    DATA_STALL = "data_stall"
    HOST_BOUND = "host_bound"


RUNS_ON = (CauseKind.STRAGGLER, CauseKind.DATA_STALL, CauseKind.HOST_BOUND)
"""Causes that slow a run down, and do not end it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """What went wrong in a run, with evidence and advice."""

    kind: CauseKind
    finding: str
    """What happened, in one line."""
    evidence: tuple[str, ...]
    """Quoted lines of the log, or figures of the plan."""
    actions: tuple[str, ...]
    """Things to do, the most likely to help first."""
    rank: int | None = None
    """The rank at fault, where it is known."""
    figures: Mapping[str, Figure] = field(default_factory=dict)

    @property
    def is_fatal(self) -> bool:
        """Whether it ended the run, or the run has trained nothing since."""
        return self.kind not in RUNS_ON


def quoted(log: str, positions: Iterable[int]) -> tuple[str, ...]:
    """Return the lines around positions as evidence, each once."""
    lines = (clean_line(line_at(log, position), EVIDENCE_LENGTH) for position in positions)
    return tuple(list(dict.fromkeys(line for line in lines if line))[:MOST_EVIDENCE])
