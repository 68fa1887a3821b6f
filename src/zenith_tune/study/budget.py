"""What a study may cost, and the training that it is for: by both a study knows when another trial no longer pays."""

from __future__ import annotations

from dataclasses import dataclass

from zenith_tune.errors import UsageError

DEFAULT_TRAIN_HOURS = 8.0
"""Of training where nothing says how long it will run: a night. Longer trainings are worth more trials."""
MAX_HOURS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Hold how long the training is that a study is for.

    >>> Training(steps=100_000).seconds(step_s=2.0) / 3600
    55.55555555555556
    >>> Training().seconds(step_s=2.0) / 3600
    8.0
    """

    hours: float | None = None
    """As the user states it."""
    steps: int | None = None
    """As the command asks for them. Few of them are a trial of the user's own, and do not count."""

    def __post_init__(self) -> None:
        refuse_out_of_range("--train-hours", self.hours)

    def seconds(self, step_s: float) -> float:
        """Return how long the training takes with steps of `step_s`."""
        if self.hours is not None:
            return self.hours * 3600
        return max((self.steps or 0) * step_s, DEFAULT_TRAIN_HOURS * 3600)

    def describe(self, step_s: float) -> str:
        """Say how long the training is taken to be, and how that is known."""
        hours = f"{self.seconds(step_s) / 3600:.3g} h of training"
        if self.hours is not None:
            return hours
        is_long = (self.steps or 0) * step_s > DEFAULT_TRAIN_HOURS * 3600
        return f"{hours} ({self.steps} steps)" if is_long else f"{hours} (assumed; see --train-hours)"


def refuse_out_of_range(option: str, hours: float | None) -> None:
    """Refuse a number of hours that is none; written so that NaN is refused too."""
    if hours is not None and not 0 < hours <= MAX_HOURS:
        raise UsageError(f"{option} must be above 0 and at most {MAX_HOURS:g} hours, but got {hours:g}")
