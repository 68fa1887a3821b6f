"""What was measured of a run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Hold what a log or a trial says of a run; what it does not say is None."""

    step_s: float | None = None
    peak_bytes: float | None = None
    """The most that any rank's allocator reserved."""
    out_of_memory: bool = False
    cause: str = ""
    """Why it failed, in one line, where it did."""
