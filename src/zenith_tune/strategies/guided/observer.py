"""What is learned from a trial: a step time, a memory peak or bound, or a rule of the framework."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout import WORDS, named_axes
from zenith_tune.layouts.layout_batch import BoolArray, LayoutBatch
from zenith_tune.strategies.guided.acquisition import Acquisition
from zenith_tune.strategies.guided.posteriors import alike, is_sharding_twin, is_slower
from zenith_tune.study.files import write_atomically
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Outcome, Trial

FILE_NAME = "taught.json"
"""Numbers of the trials that this machine's calibration has learned from, in the study's folder."""


class CountedTrials:
    """The numbers of trials that were learned from; none without a folder."""

    def __init__(self, folder: Path | None) -> None:
        self._path = folder / FILE_NAME if folder is not None else None
        self.numbers: set[int] = set(self._read())

    def add(self, numbers: Iterable[int]) -> None:
        self.numbers |= set(numbers)
        if self._path is not None and self._path.parent.is_dir():
            try:
                write_atomically(self._path, json.dumps(sorted(self.numbers)) + "\n")
            except OSError:  # on a full disk they may count twice, which does little harm
                return

    def _read(self) -> list[int]:
        try:
            found = json.loads(self._path.read_text(encoding="utf-8")) if self._path is not None else []
        except (OSError, ValueError):
            return []
        return [number for number in found if isinstance(number, int)] if isinstance(found, list) else []


_UNKNOWN_OPTION = re.compile(r"unrecognized argument|no such option|remaining_argv", re.IGNORECASE)
"""Messages about an unknown option, whose value, and so the layout, is not at fault."""


def refused_alike(layouts: LayoutBatch, index: int, message: str) -> BoolArray:
    """Tell which layouts have the values that a message names; only that at `index` if it names none."""
    return alike(layouts, index, _blamed(message) or tuple(WORDS))


def rule_of(layouts: LayoutBatch, index: int, message: str) -> str:
    """Return the rule behind a refusal as a sentence."""
    axes = _blamed(message)
    values = ", ".join(f"{axis}={getattr(layouts, axis)[index]}" for axis in axes)
    return f"{values or 'this layout'} is refused: {message}"


def _blamed(message: str) -> tuple[str, ...]:
    return () if _UNKNOWN_OPTION.search(message) else named_axes(message)


ROOMY = 0.95
"""Share of the memory up to which a layout is not slowed down, so that recomputing more cannot help."""
CONFIGURATION = "configuration"
"""The kind of failure by which a framework refuses its options."""
SAME = 1e-6
"""Rounding error of two equal logarithms."""
EXPLAINED = 0.05
"""The largest standard deviation of a layout's own error at which twins are comparable; many GPUs have more."""


def dominated_twins(acquisition: Acquisition, index: int) -> BoolArray:
    """Tell which layouts cannot beat their twin at `index`, which ran: as much memory, predicted no faster.

    Where sharding costs time, as predicted or by the trials so far, there is no such twin.
    """
    prior, mean = acquisition.prior, acquisition.time.mean
    no_leaner = prior.log_memory >= prior.log_memory[index] - SAME
    no_faster = (prior.log_step >= prior.log_step[index] - SAME) & (mean >= mean[index] - EXPLAINED)
    result: BoolArray = is_sharding_twin(prior.layouts, index) & no_leaner & no_faster & (prior.own_sd <= EXPLAINED)
    return result


class TrialObserver:
    """The link from trials to an acquisition."""

    def __init__(self, acquisition: Acquisition, direction: Direction, limit_bytes: float) -> None:
        self._acquisition, self._direction, self._limit = acquisition, direction, limit_bytes
        self._offset: float | None = None

    def observe(self, index: int, trial: Trial) -> str | None:
        """Learn from a trial of the layout at `index`, and return the rule that it revealed, if any."""
        acquisition = self._acquisition
        acquisition.done(index)
        acquisition.cost.observe(trial)
        if trial.ok:
            self._observe_success(index, trial)
        elif trial.outcome is Outcome.OOM:
            acquisition.memory.observe_out_of_memory(index)
        elif trial.failure == CONFIGURATION and trial.cause:
            return self._observe_refusal(index, trial.cause)
        return None

    def log_step(self, index: int, trial: Trial) -> float | None:
        """Return the logarithm of a trial's step time, or of its value scaled to one.

        The scale is the same for all trials; the first one gives it.
        """
        if trial.step_s:
            return math.log(trial.step_s)
        if trial.value is None:
            return None
        if trial.value <= 0:
            problem = f"strategy guided learns from values above 0, such as a time or a rate, but got {trial.value:g}"
            raise UsageError(problem, hint="choose another --objective, or --strategy optuna")
        pace = math.log(trial.value) * self._direction.sign
        if self._offset is None:
            self._offset = float(self._acquisition.time.mean[index]) - pace
        return pace + self._offset

    def is_over_limit(self, trial: Trial) -> bool:
        return (trial.peak_memory_bytes or 0) > self._limit

    def _observe_success(self, index: int, trial: Trial) -> None:
        acquisition, log_step = self._acquisition, self.log_step(index, trial)
        log_share = float(acquisition.prior.log_memory[index])
        is_over = self.is_over_limit(trial)
        if trial.peak_memory_bytes:
            # Frameworks do not report the memory of the driver and its libraries.
            context = acquisition.prior.estimate.memory_parts.get("context", 0.0)
            context_bytes = float(np.broadcast_to(context, len(acquisition.prior))[index])
            log_share = math.log((trial.peak_memory_bytes + context_bytes) / self._limit)
            acquisition.memory.observe_peak(index, log_share)
        if not is_over:
            acquisition.memory.observe_fits(index)
        if log_step is not None:
            acquisition.observe_step(index, log_step, trial.standard_error, may_be_best=not is_over)
        if log_share < math.log(ROOMY):
            acquisition.refuse(is_slower(acquisition.prior.layouts, index))
        acquisition.refuse(dominated_twins(acquisition, index))

    def _observe_refusal(self, index: int, message: str) -> str:
        layouts = self._acquisition.prior.layouts
        num_closed = self._acquisition.refuse(refused_alike(layouts, index, message))
        more = f" ({num_closed} more layouts are left out)" if named_axes(message) and num_closed else ""
        return f"learned: {rule_of(layouts, index, message)}{more}"
