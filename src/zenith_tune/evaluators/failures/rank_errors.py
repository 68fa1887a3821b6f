"""Which rank failed first, and with what: the exceptions in a log that many processes wrote at once.

The work is bounded, whatever the log holds: a number of tracebacks, of lines in all, and of characters in a line.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from zenith_tune.study.trial_log import clean_line, without_escapes

TRACEBACK = "Traceback (most recent call last)"
_MAX_LINE = 4096
_MAX_WALKED_LINES = 100_000
_MAX_CANDIDATES = 5_000
_VALIDATION = re.compile(r"[0-9]{1,4} validation errors? for \w")
_MAX_MARKS = 8

# Prefixes of launchers: [rank3]:, [default3]:, 3:, [1,3]<stderr>:, (Worker pid=9), a date, or the name of a host, which
# has a digit and no capital, so that no exception or word of a program is mistaken for one. Source lines are indented
# and so never match; srun pads its numbers, but with fewer blanks.
_PREFIX = re.compile(
    r"(?:\[[^\[\]]{1,60}\]:?|<std(?:out|err)>:?|\([^()]{1,60}\)|[0-9]{1,6}:"
    r"|[0-9]{4}-[0-9]{2}-[0-9]{2}[T ][0-9]{2}:[0-9]{2}:[0-9]{2}\S{0,12}"
    r"|(?P<host>(?=[a-z.-]{0,62}[0-9])[a-z0-9][a-z0-9.-]{0,62}):(?= (?!error: ))) ?"
)
_PADDED = re.compile(r" {1,5}(?=[0-9]{1,6}: )")
_RANKS = (
    re.compile(r"rank[: ]{0,2}([0-9]{1,6})", re.I),
    re.compile(r"^\[[A-Za-z_]{0,20}([0-9]{1,6})\]:"),
    re.compile(r"^\[[0-9]{1,6},([0-9]{1,6})\]"),
    re.compile(r"^([0-9]{1,6}):"),
)
_EXCEPTION = re.compile(r"([A-Za-z_][\w.]{1,160})(?::(?: |$)(.*)|$)")
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")

# Exceptions that a healthy rank raises because another one died.
_CONSEQUENCE_TYPES = frozenset(
    (
        *("ChildFailedError", "DistBackendError", "DistNetworkError", "DistStoreError", "CalledProcessError"),
        *("BrokenPipeError", "ConnectionResetError", "ConnectionRefusedError", "EOFError", "SignalException"),
        *("ProcessExitedException", "ProcessRaisedException", "KeyboardInterrupt", "SystemExit"),
        *("RendezvousConnectionError", "RendezvousClosedError", "RendezvousTimeoutError"),
    )
)
_CONSEQUENCE_TEXT = re.compile(
    r"Connection (?:closed|reset) by peer|Broken pipe|Socket Timeout|wait timeout|Gloo |gloo/|exited unexpectedly"
    r"|[NH]CCL (?:error|comm|op|watchdog|timeout)|nccl(?:System|Remote|Internal|Unhandled)"
    r"|address already in use|EADDRINUSE",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankError:
    """An exception, and the rank that raised it where the log shows it."""

    type: str
    text: str
    rank: int | None
    is_aside: bool = False
    """Whether it was raised in a side thread, or by an import that programs often survive."""
    lines: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Its traceback, as its rank wrote it."""

    @property
    def name(self) -> str:
        """The type without its module."""
        return self.type.rpartition(".")[2]

    @property
    def is_consequence(self) -> bool:
        """Whether another rank's failure is behind it."""
        return self.name in _CONSEQUENCE_TYPES or _CONSEQUENCE_TEXT.search(self.text) is not None

    def message(self, rank: int | None = None) -> str:
        """Return the exception in one line, as `rank 3: ValueError: ...`; `rank` is used where the log names none."""
        known = self.rank if self.rank is not None else rank
        reported = f"{self.type}: {self.text}" if self.text else self.type
        return clean_line(reported if known is None else f"rank {known}: {reported}")


def first_error(log: str, root_rank: int | None = None) -> RankError | None:
    """Return the first exception that no other rank caused; one of the root cause's rank is preferred."""
    primary = [error for error in _traced_errors(log) if not error.is_consequence]
    if not primary:
        return next((error for error in _bare_errors(log) if not error.is_consequence), None)
    fatal = [error for error in primary if not error.is_aside] or primary
    return next((error for error in fatal if root_rank is not None and error.rank == root_rank), fatal[0])


def line_at(log: str, position: int) -> str:
    """Return the line around `position`, within bounds."""
    start = log.rfind("\n", max(0, position - _MAX_LINE), position) + 1 or max(0, position - _MAX_LINE)
    end = log.find("\n", position, position + _MAX_LINE)
    return log[start : end if end >= 0 else position + _MAX_LINE]


def split_prefix(line: str) -> tuple[int | None, str]:
    """Return the rank of a line's prefix, and the line without prefixes."""
    speaker, rest = _split_speaker(line)
    return speaker.rank, rest


class _Speaker(NamedTuple):
    """The process that wrote a line, as far as its prefixes show it."""

    host: str | None
    rank: int | None


def _split_speaker(line: str) -> tuple[_Speaker, str]:
    line = without_escapes(line)
    if padding := _PADDED.match(line):
        line = line[padding.end() :]
    host: str | None = None
    marks: list[str] = []
    while len(marks) < _MAX_MARKS and (match := _PREFIX.match(line)):
        host = host or match["host"]
        marks.append(match[0])
        line = line[match.end() :]
    ranks = (found for pattern in _RANKS for mark in marks if (found := pattern.search(mark)))
    first = next(ranks, None)
    return _Speaker(host, int(first[1]) if first else None), line


def occurrences(log: str, needle: str) -> Iterator[int]:
    """Yield where `needle` stands, once for each line, up to a bound."""
    position = log.find(needle)
    for _ in range(_MAX_CANDIDATES):
        if position < 0:
            return
        yield position
        newline = log.find("\n", position)
        position = log.find(needle, newline) if newline >= 0 else -1


def _traced_errors(log: str) -> list[RankError]:
    """Return the exceptions at the ends of tracebacks, in order; the last one of a chain."""
    errors: list[RankError] = []
    budget = _MAX_WALKED_LINES
    for position in occurrences(log, TRACEBACK):
        speaker, _ = _split_speaker(line_at(log, position))
        before = _line_before(log, position, speaker)
        if before.startswith("Exception ignored in") or budget <= 0:
            continue
        error, walked = _walk(log, position, speaker, min(budget, 3_000), before.startswith("Exception in thread"))
        budget -= walked
        if error is None:
            continue
        if before.startswith(_CHAINED):
            replaced = [index for index, earlier in enumerate(errors) if earlier.rank == speaker.rank]
            if replaced:
                del errors[replaced[-1]]
        errors.append(error)
    return errors


def _line_before(log: str, position: int, speaker: _Speaker) -> str:
    """Return the nearest line above `position` of the same speaker that is not blank."""
    above = log[max(0, position - _MAX_LINE) : position].split("\n")[:-1]
    for line in reversed(above[-12:]):
        other, rest = _split_speaker(line)
        if other == speaker and rest.strip():
            return rest.strip()
    return ""


def _walk(log: str, position: int, speaker: _Speaker, limit: int, in_thread: bool) -> tuple[RankError | None, int]:
    """Follow one traceback down to its exception; return it and the number of lines looked at."""
    source = ""
    # Torchrun repeats a worker's traceback inside its own report, two blanks further in.
    indent = "  " if "traceback : " in line_at(log, position) else ""
    following = _lines_after(log, position, limit)
    lines = [line_at(log, position)]
    for walked, line in enumerate(following, start=1):
        other, rest = _split_speaker(line)
        rest = rest.removeprefix(indent)
        if other != speaker or not rest.strip():
            continue
        lines.append(line)
        if rest[0].isspace():
            source = rest.strip() if rest.lstrip().startswith("assert ") else source
            continue
        if found := _exception(rest):
            kind, text = found
            text = text or (source if kind.endswith("AssertionError") else "")
            if _VALIDATION.match(text):
                text = f"{text}: {_first_field(following, speaker, indent)}"
            aside = in_thread or kind in ("ImportError", "ModuleNotFoundError")
            error = RankError(type=kind, text=text, rank=speaker.rank, is_aside=aside, lines=tuple(lines))
            return error, walked
    return None, limit


def _first_field(following: Iterator[str], speaker: _Speaker, indent: str) -> str:
    """Return the field that pydantic refuses and why, from the two lines below its exception."""
    reported = (_split_speaker(line) for line in itertools.islice(following, 8))
    own = [rest.removeprefix(indent).strip() for other, rest in reported if other == speaker and rest.strip()]
    return ": ".join(own[:2]).partition(" [type=")[0]


def _lines_after(log: str, position: int, limit: int) -> Iterator[str]:
    for _ in range(limit):
        newline = log.find("\n", position)
        if newline < 0:
            return
        position = newline + 1
        end = log.find("\n", position, position + _MAX_LINE)
        yield log[position : end if end >= 0 else position + _MAX_LINE]


def _exception(line: str) -> tuple[str, str] | None:
    """Return type and text of a line that ends a traceback, or None."""
    match = _EXCEPTION.match(line.rstrip())
    if match is None:
        return None
    kind, text = match[1], (match[2] or "").strip()
    name = kind.rpartition(".")[2]
    is_named_so = name.endswith(("Error", "Exception", "Interrupt", "Exit"))
    has_humps = name[:1].isupper() and sum(map(str.isupper, name)) > 1 and not name.isupper()
    return (kind, text) if is_named_so or has_humps else None


def _bare_errors(log: str) -> Iterator[RankError]:
    """Yield exceptions that were printed without a traceback."""
    for needle in ("Error: ", "Exception: "):
        for position in occurrences(log, needle):
            rank, rest = split_prefix(line_at(log, position))
            if (found := _exception(rest)) and found[0].endswith(needle[:-2]):
                yield RankError(type=found[0], text=found[1], rank=rank)
