"""What a launcher prints below the output of its ranks once one of them has failed."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass

from zenith_tune.evaluators.failures.rank_errors import TRACEBACK, line_at, occurrences, split_prefix

_ROOT_CAUSE = "Root Cause (first observed failure)"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}_[0-9]{2}:[0-9]{2}:[0-9]{2}"
_REPORTED = {"time": _TIME, "rank": r"[0-9]{1,6}", "exitcode": r"-?[0-9]{1,4}"}
_REPORT_LINE = re.compile(
    r"^\s*(?:[=\-_*#]{3,}|(?:time|host|rank|error_file|traceback|exitcode)\s*:|\[[0-9]+\]:|<NO_OTHER"
    r"|Root Cause|Failures:)"
)
_MAX_REPORTS = 1_000
_FIRST_LINES = ("failed (exitcode: ", " closing signal SIG", "sigkill_handler] ")
"""What the first line of a report by torchrun or deepspeed may hold."""
_OWN_TRACEBACKS = ("errors.ChildFailedError", "accelerate/commands/launch.py")
"""What a traceback of a launcher's own holds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """Torchrun's report on the first process that failed."""

    rank: int | None
    exit_code: int
    time: str = ""
    """The time as it is printed, which sorts."""

    @property
    def who(self) -> str:
        return "" if self.rank is None else f"rank {self.rank}: "


def root_cause(log: str) -> RootCause | None:
    """Return torchrun's report on the first failing process, the earliest of several nodes' reports."""
    positions = itertools.islice(occurrences(log, _ROOT_CAUSE), _MAX_REPORTS)
    reports = [report for position in positions if (report := _report(log, position))]
    if reports:
        return min(reports, key=lambda report: report.time)
    for start in occurrences(log, "failed (exitcode: "):
        if code := re.search(r"failed \(exitcode: (-?[0-9]{1,4})\)", line_at(log, start)):
            return RootCause(rank=None, exit_code=int(code[1]))
    return RootCause(rank=None, exit_code=-9) if "Signal 9 (SIGKILL)" in log else None


def _report(log: str, position: int) -> RootCause | None:
    block = log[position : position + 3_000]
    time, rank, code = (re.search(rf"\b{name}\s{{0,8}}: ({value})", block) for name, value in _REPORTED.items())
    if code is None:
        return None
    return RootCause(rank=int(rank[1]) if rank else None, exit_code=int(code[1]), time=time[1] if time else "9999")


def above_report(log: str) -> str:
    """Return what the ranks printed, without their launcher's report below it; all where they printed nothing."""
    found = [log.find(needle) for needle in _FIRST_LINES]
    for needle in _OWN_TRACEBACKS:
        raised = log.find(needle)
        found.append(log.rfind(TRACEBACK, 0, raised) if raised >= 0 else -1)
    first = min((position for position in found if position >= 0), default=len(log))
    above = log[: log.rfind("\n", 0, first) + 1] if first < len(log) else log
    return above if any(map(str.isalnum, above)) else log


def is_reported(line: str) -> bool:
    """Tell whether a line is part of torchrun's report, with any prefix."""
    rest = split_prefix(line)[1]
    return not rest.strip() or bool(_REPORT_LINE.match(line) or _REPORT_LINE.match(rest))
