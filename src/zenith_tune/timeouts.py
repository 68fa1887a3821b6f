"""When a trial has run for long enough."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError
from zenith_tune.study.study import Study

MAX_TIMEOUT_S = 1e7
MAX_MARGIN = 1000.0
_WHOLE_RUN = 10
"""How many times as long a whole run is taken to be as a best one that was ended early."""
_SLACK_S = 0.5
"""A margin on a run of milliseconds would end trials for the operating system's hiccups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Limit a trial's seconds: by a fixed number, by the best trial so far, or both."""

    fixed_s: float | None = None
    dynamic: bool = False
    margin: float = 1.5
    """How many times the best trial's duration a trial may take under `dynamic`."""

    def __post_init__(self) -> None:
        # Written so that NaN is refused too.
        if self.fixed_s is not None and not 0 < self.fixed_s <= MAX_TIMEOUT_S:
            raise UsageError(
                f"--timeout must be above 0 and at most {MAX_TIMEOUT_S:g} seconds, but got {self.fixed_s:g}"
            )
        if not 1 <= self.margin <= MAX_MARGIN:
            raise UsageError(f"--timeout-margin must be from 1 to {MAX_MARGIN:g}, but got {self.margin:g}")

    def limit_s(self, study: Study) -> float | None:
        """Return the limit of the next trial; the dynamic one never applies before the first success."""
        limits = [] if self.fixed_s is None else [self.fixed_s]
        best = study.fastest
        if self.dynamic and best is not None and best.duration_s is not None:
            duration_s = best.duration_s * (_WHOLE_RUN if best.early else 1)
            limits.append(max(duration_s * self.margin, duration_s + _SLACK_S))
        return min(limits, default=None)

    def describe(self) -> str | None:
        """Say in one line how trials are limited."""
        parts = []
        if self.fixed_s is not None:
            parts.append(f"{self.fixed_s:g} s")
        if self.dynamic:
            parts.append(f"{self.margin:g} times the best trial's duration (at least {_SLACK_S:g} s more than it)")
        return f"a trial ends after {', or '.join(parts)}" if parts else None
