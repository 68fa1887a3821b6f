"""What PyTorch says of GPU memory in its message about an allocation that failed."""

from __future__ import annotations

import re
from dataclasses import dataclass

_SIZE = r"([\d.]{1,12}) ?([KMGT]i?B|bytes)"
_TRIED = re.compile(rf"Tried to allocate {_SIZE}", re.IGNORECASE)
# PyTorch 2.1 spells it "capacty"; releases before put the figure first.
_CAPACITY = re.compile(rf"total capaci?ty of {_SIZE}|{_SIZE} total capacity", re.IGNORECASE)
_FREE = re.compile(rf"of which {_SIZE} is free|{_SIZE} free\b", re.IGNORECASE)
_POWERS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedAllocation:
    """Hold the bytes that the message names, each where it does."""

    tried_bytes: float | None = None
    capacity_bytes: float | None = None
    free_bytes: float | None = None

    @classmethod
    def of(cls, cause: str | None) -> FailedAllocation:
        """Read the message of a run.

        >>> FailedAllocation.of("Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB").tried_bytes
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


def _bytes(match: re.Match[str] | None) -> float | None:
    if match is None:
        return None
    number, unit = (group for group in match.groups() if group is not None)
    try:
        return float(number) * 1024.0 ** _POWERS[unit[0].lower()]
    except ValueError:  # "1.2.3"
        return None
