"""Turns trials into what the beliefs learn from them: a step time, a peak of memory, a bound, a rule."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import WORDS, named_axes
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.strategies.guided.acquisition import Acquisition
from zenith_tune.strategies.guided.posteriors import is_sharding_twin, is_slower
from zenith_tune.study.files import write_atomically
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome, Trial

FILE_NAME = "taught.json"


class CountedTrials:
    """Hold the numbers of trials that were learned from; without a folder there are none."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE_NAME if folder is not None else None
        self.numbers: set[int] = set(self._read())

    def add(self, numbers: Iterable[int]) -> None:
        """Take in trials that have just been counted."""
        self.numbers |= set(numbers)
        if self._path is not None and self._path.parent.is_dir():
            try:
                write_atomically(self._path, json.dumps(sorted(self.numbers)) + "\n")
            except OSError:  # a disk that is full: they may count twice, which does little harm
                return

    def _read(self) -> list[int]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else []
        except (OSError, ValueError):
            return []
        return [number for number in found if isinstance(number, int)] if isinstance(found, list) else []


_UNKNOWN_OPTION = re.compile(r"unrecognized argument|no such option|remaining_argv", re.IGNORECASE)
"""The program does not know an option at all: its value, and so the layout, is not at fault."""


def refused_alike(layouts: LayoutBatch, index: int, message: str) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which layouts have the very values that the message speaks of; that at `index` alone if it names none."""
    axes = _blamed(message) or tuple(WORDS)
    alike: np.ndarray[tuple[int], np.dtype[np.bool_]] = np.logical_and.reduce(
        [getattr(layouts, axis) == getattr(layouts, axis)[index] for axis in axes]
    )
    return alike


def rule_of(layouts: LayoutBatch, index: int, message: str) -> str:
    """Return the rule that a refusal stands for, in words."""
    axes = _blamed(message)
    values = ", ".join(f"{axis}={getattr(layouts, axis)[index]}" for axis in axes)
    return f"{values or 'this layout'} is refused: {message}"


def _blamed(message: str) -> tuple[str, ...]:
    return () if _UNKNOWN_OPTION.search(message) else named_axes(message)


ROOMY = 0.95
"""A layout that needs no more of the memory is not slowed down by want of it, so that keeping less cannot help."""
CONFIGURATION = "configuration"
"""The kind of failure by which a framework refuses its options."""


SAME = 1e-6
"""Two logarithms that are closer are the same but for rounding."""


EXPLAINED = 0.05
"""Where the estimate may be off by more for a layout by itself, mostly on many GPUs, twins may differ by as much."""


def dominated_twins(picker: Acquisition, index: int) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Tell which layouts have no chance against their twin at `index`, which ran: as much memory, predicted no faster.

    In some frameworks sharding costs time, as predicted or as the trials so far say: then there is no such twin.
    """
    prior, mean = picker.prior, picker.time.mean
    no_leaner = prior.log_memory >= prior.log_memory[index] - SAME
    no_faster = (prior.log_step >= prior.log_step[index] - SAME) & (mean >= mean[index] - EXPLAINED)
    result: np.ndarray[tuple[int], np.dtype[np.bool_]] = (
        is_sharding_twin(prior.layouts, index) & no_leaner & no_faster & (prior.own_sd <= EXPLAINED)
    )
    return result


class TrialObserver:
    """Tell a picker of trials."""

    def __init__(self, picker: Acquisition, direction: Direction, limit_bytes: float) -> None:
        self._picker, self._direction, self._limit = picker, direction, limit_bytes
        self._offset: float | None = None

    def tell(self, index: int, trial: Trial) -> str | None:
        """Learn from a trial of the layout at `index`; returns a rule that it showed, as a sentence."""
        picker = self._picker
        picker.done(index)
        picker.cost.tell(trial)
        if trial.ok:
            self._observe_success(index, trial)
        elif trial.outcome is Outcome.OOM:
            picker.memory.observe_out_of_memory(index)
        elif trial.failure == CONFIGURATION and trial.cause:
            return self._observe_refusal(index, trial.cause)
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
            problem = f"strategy guided learns from values above 0, such as a time or a rate, but got {trial.value:g}"
            raise UsageError(problem, hint="choose another --objective, or --strategy optuna")
        pace = math.log(trial.value) * (1 if self._direction is Direction.MINIMIZE else -1)
        if self._offset is None:
            self._offset = float(self._picker.time.mean[index]) - pace
        return pace + self._offset

    def is_over_limit(self, trial: Trial) -> bool:
        """Tell whether a trial took more memory than it may."""
        return (trial.peak_memory_bytes or 0) > self._limit

    def _observe_success(self, index: int, trial: Trial) -> None:
        picker, log_step = self._picker, self.log_step(index, trial)
        log_share = float(picker.prior.log_memory[index])
        is_over = self.is_over_limit(trial)
        if trial.peak_memory_bytes:
            log_share = math.log((trial.peak_memory_bytes + self._beside(index)) / self._limit)
            picker.memory.observe_peak(index, log_share)
        if not is_over:
            picker.memory.observe_fits(index)
        if log_step is not None:
            noise = (trial.spread or 0.0) / math.sqrt(max(trial.num_samples or 1, 1))
            picker.observe_step(index, log_step, noise, may_be_best=not is_over)
        if log_share < math.log(ROOMY):
            picker.refuse(is_slower(picker.prior.layouts, index))
        picker.refuse(dominated_twins(picker, index))

    def _beside(self, index: int) -> float:
        """Return what the driver and its libraries hold, which is no part of what a framework reports."""
        prior = self._picker.prior
        return float(np.broadcast_to(prior.estimate.memory_parts.get("context", 0.0), len(prior))[index])

    def _observe_refusal(self, index: int, message: str) -> str:
        layouts = self._picker.prior.layouts
        num_closed = self._picker.refuse(refused_alike(layouts, index, message))
        more = f" ({num_closed} more layouts are left out)" if named_axes(message) and num_closed else ""
        return f"learned: {rule_of(layouts, index, message)}{more}"
