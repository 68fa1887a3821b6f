"""The memory that a trial which ran out of it would have needed: what its last words tell, or else a bound."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from zenith_tune.evaluators.failures import FailureKind

_SIZE = r"([\d.]+) ?([KMGT]i?B|bytes)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}", re.IGNORECASE)
# Some releases of PyTorch spell it "capacty"; older ones put the figure first.
_CAPACITY = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free\b", re.IGNORECASE)
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWords:
    """Hold the bytes that a message about an allocation that failed names, each where it does."""

    tried_bytes: float | None = None
    capacity_bytes: float | None = None
    free_bytes: float | None = None

    @classmethod
    def of(cls, cause: str | None) -> LastWords:
        """Read the message of a trial.

        >>> LastWords.of("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB").tried_bytes
        2147483648.0
        """
        found = [_bytes(pattern.search(cause or "")) for pattern in (_TRIED, _CAPACITY, _FREE)]
        return cls(tried_bytes=found[0], capacity_bytes=found[1], free_bytes=found[2])

    @property
    def needed_bytes(self) -> float | None:
        """What was taken already and what was asked for on top: more than the GPU has."""
        if self.tried_bytes is None or self.capacity_bytes is None or self.free_bytes is None:
            return None
        needed = self.capacity_bytes - self.free_bytes + self.tried_bytes
        # A memory in pieces refuses less than it has free: then no more is known than that it was not enough.
        return needed if needed > self.capacity_bytes else None


def told_capacity(causes: Iterable[str | None]) -> float | None:
    """Return the memory of a GPU, as runs that were out of it tell."""
    found = (LastWords.of(cause).capacity_bytes for cause in causes)
    return max((capacity for capacity in found if capacity), default=None)


def needed_memory(trials: Iterable[Json], capacity_bytes: float | None) -> dict[int, Json]:
    """Return what the trials that ran out of a GPU's memory needed, by number, and whether that is but a bound.

    Where a GPU's memory is not known either, what another trial took and went well with was not enough for these.
    """
    trials = list(trials)
    went_well = max((trial["memory_bytes"] or 0.0 for trial in trials if trial["value"] is not None), default=0.0)
    found = {}
    for trial in trials:
        if trial["state"] == "oom" and trial["failure"] != FailureKind.HOST_OUT_OF_MEMORY:
            words, predicted = LastWords.of(trial["cause"]), (trial["predicted"] or {}).get("memory_bytes")
            limit = words.capacity_bytes or capacity_bytes or went_well
            bounds = (limit, words.tried_bytes, trial["memory_bytes"], predicted)
            needed = words.needed_bytes
            least = needed or max(bound or 0.0 for bound in bounds)
            found[trial["number"]] = {"bytes": least or None, "is_bound": needed is None}
    return found


def _bytes(match: re.Match[str] | None) -> float | None:
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    try:
        return float(number) * 1024.0 ** _POWERS[unit[0].lower()]
    except ValueError:  # "1.2.3"
        return None
