"""Ends a trial that hangs: one that has printed nothing for far longer than any trial before it went without output."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from zenith_tune.units import format_seconds

FIRST_RUN_S = 1800.0
"""How long a run may be silent before any has gone well: downloads and compilation may come first."""
LEAST_S = 300.0
MARGIN = 5.0
"""How many times the longest silence of a trial that went well another one may be silent."""
NUM_LINES = 4
"""How often a silent trial is spoken of before it is ended."""


class SilenceLimit:
    """Hold how long trials may print nothing, by the longest silence of those that went well."""

    def __init__(self, fixed_s: float | None = None) -> None:
        self._first_s = max(FIRST_RUN_S, fixed_s or 0.0)
        self._longest_s: float | None = None

    def observe(self, silence_s: float) -> None:
        """Learn the longest silence of a trial that went well."""
        self._longest_s = max(self._longest_s or 0.0, silence_s)

    @property
    def seconds(self) -> float:
        """The limit as it is by now; a longer --timeout is taken for the time that a first run may need."""
        return self._first_s if self._longest_s is None else max(LEAST_S, MARGIN * self._longest_s)


class SilenceWatch:
    """Watch the log of one trial grow."""

    def __init__(self, limit: SilenceLimit, tell: Callable[[str], None] = lambda line: None) -> None:
        self.longest_s = 0.0
        self._limit, self._tell = limit, tell
        self._seen: tuple[Path, int] | None = None
        self._since_s = 0.0
        self._num_told = 0

    def look(self, log_path: Path, now_s: float) -> str | None:
        """Return why the trial is to be ended, or None where it is not; one that waits for its machine has no log."""
        try:
            seen = (log_path, log_path.stat().st_size)
        except OSError:
            self._seen = None
            return None
        if seen != self._seen:
            self._seen, self._since_s, self._num_told = seen, now_s, 0
            return None
        silence_s, limit_s = now_s - self._since_s, self._limit.seconds
        self.longest_s = max(self.longest_s, silence_s)
        if silence_s >= limit_s:
            return f"no output for {format_seconds(silence_s)}"
        if (num_parts := int(silence_s / limit_s * (NUM_LINES + 1))) > self._num_told:
            self._num_told = num_parts
            self._tell(
                f"no output for {format_seconds(silence_s)}: it is ended after {format_seconds(limit_s)} of that"
            )
        return None
