"""Turns trials into what the beliefs learn from them: a step time, a peak of memory, a bound, a rule."""

from __future__ import annotations

import math

import numpy as np

from zenith_tune.direction import Direction
from zenith_tune.errors import UsageError
from zenith_tune.guided.kin import is_slower
from zenith_tune.guided.refusal import refused_alike, rule_of
from zenith_tune.layouts.axis_words import named_axes
from zenith_tune.strategies.guided.acquisition import Picker
from zenith_tune.study.trial import Outcome, Trial

ROOMY = 0.95
"""A layout that needs no more of the memory is not slowed down by want of it, so that keeping less cannot help."""
CONFIGURATION = "configuration"
"""The kind of failure by which a framework refuses its options."""


class Teacher:
    """Tell a picker of trials."""

    def __init__(self, picker: Picker, direction: Direction, capacity_bytes: float) -> None:
        self._picker, self._direction, self._capacity = picker, direction, capacity_bytes
        self._offset: float | None = None

    def tell(self, index: int, trial: Trial) -> str | None:
        """Learn from a trial of the layout at `index`; returns a rule that it taught, in words."""
        picker = self._picker
        picker.done(index)
        picker.cost.tell(trial)
        if trial.ok:
            self._tell_success(index, trial)
        elif trial.outcome is Outcome.OOM:
            picker.memory.tell_out_of_memory(index)
        elif trial.failure == CONFIGURATION and trial.cause:
            return self._tell_refusal(index, trial.cause)
        return None

    def log_step(self, index: int, trial: Trial) -> float | None:
        """Return the logarithm of a trial's step time, or of its value in the place of one.

        A value that is no step time differs from one by a factor that is the same for all, which the first trial tells.
        """
        if trial.step_s:
            return math.log(trial.step_s)
        if trial.value is None:
            return None
        if trial.value <= 0:
            law = f"strategy guided learns from values above 0, such as a time or a rate, but got {trial.value:g}"
            raise UsageError(f"{law}: choose another --objective, or --strategy optuna")
        pace = math.log(trial.value) * (1 if self._direction is Direction.MINIMIZE else -1)
        if self._offset is None:
            self._offset = float(self._picker.time.mean[index]) - pace
        return pace + self._offset

    def _tell_success(self, index: int, trial: Trial) -> None:
        picker, log_step = self._picker, self.log_step(index, trial)
        if log_step is not None:
            noise = (trial.spread or 0.0) / math.sqrt(max(trial.num_samples or 1, 1))
            picker.tell_step(index, log_step, noise)
        picker.memory.tell_fits(index)
        log_share = float(picker.prior.log_memory[index])
        if trial.peak_memory_bytes:
            log_share = math.log((trial.peak_memory_bytes + self._beside(index)) / self._capacity)
            picker.memory.tell_peak(index, log_share)
        if log_share < math.log(ROOMY):
            picker.refuse(is_slower(picker.prior.layouts, index))

    def _beside(self, index: int) -> float:
        """Return what the driver and its libraries hold, which is no part of what a framework reports."""
        prior = self._picker.prior
        return float(np.broadcast_to(prior.estimate.memory_parts.get("context", 0.0), len(prior))[index])

    def _tell_refusal(self, index: int, message: str) -> str:
        layouts = self._picker.prior.layouts
        num_closed = self._picker.refuse(refused_alike(layouts, index, message))
        more = f" ({num_closed} more layouts are left out)" if named_axes(message) and num_closed else ""
        return f"learned: {rule_of(layouts, index, message)}{more}"
