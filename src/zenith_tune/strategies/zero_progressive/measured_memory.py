"""What runs have measured of memory where nothing is known of the model: a line over the micro-batch for each stage.

Legend: m micro-batch, a bytes whatever the micro-batch, b bytes of a sample. A run takes a + b m. What a stage keeps is
its own, a sample takes the same at every stage. Two runs at one stage give b; a further stage gives its a by one run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from zenith_tune.evaluators.failures.failures import FailedAllocation
from zenith_tune.strategies.zero_progressive.axes import CHECKPOINTING
from zenith_tune.strategies.zero_progressive.feasibility import Point, slope
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_bytes


class MeasuredMemory:
    """Predict which points run out of memory from those that ran, and from those that did not."""

    def __init__(self) -> None:
        self._peaks: dict[Point, dict[int, int]] = {}
        self._failed: list[Mapping[str, Value]] = []
        self._reported = math.inf

    def observe(self, trial: Trial) -> None:
        """Learn from a run that tells its peak memory, or that ran out of it."""
        if trial.ok and trial.peak_memory_bytes:
            self._peaks.setdefault(_others(trial.params), {})[int(trial.params["mbs"])] = trial.peak_memory_bytes
        elif trial.outcome is Outcome.OOM:
            self._failed.append(trial.params)
            self._reported = min(self._reported, FailedAllocation.of(trial.cause).capacity_bytes or math.inf)

    @property
    def capacity_bytes(self) -> float:
        """What a run can surely not take: what failed runs would have taken, or what they say the GPU has."""
        return min([self._reported, *(self.needed(params) for params in self._failed if self.is_measured(params))])

    def is_measured(self, params: Mapping[str, Value]) -> bool:
        """Tell whether runs have measured what a point needs."""
        return _others(params) in self._peaks and self._per_sample(params) is not None

    def is_vague(self, params: Mapping[str, Value]) -> bool:
        """Tell whether runs contradict what is predicted, which here is nothing."""
        return False

    def needed(self, params: Mapping[str, Value]) -> float:
        """Return the bytes that a point needs; 0 where no run tells."""
        peaks, per_sample = self._peaks.get(_others(params)), self._per_sample(params)
        if not peaks or per_sample is None:
            return 0.0
        known = max(peaks)
        return peaks[known] + per_sample * (int(params["mbs"]) - known)

    def largest(self, params: Mapping[str, Value], micro_batches: Sequence[int]) -> int | None:
        """Return the largest of these micro-batches that is below what failed; None where nothing is known of it."""
        if not self.is_measured(params) or math.isinf(self.capacity_bytes):
            return None
        return max((mbs for mbs in micro_batches if self.why_not({**params, "mbs": mbs}) is None), default=None)

    def why_not(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point does not fit, or None."""
        needed, capacity = self.needed(params), self.capacity_bytes
        if needed < capacity:
            return None
        line = f"{format_bytes(self._per_sample(params) or 0.0)} a sample, as measured"
        return f"needs {format_bytes(needed)}, and {format_bytes(capacity)} are not there ({line})"

    def _per_sample(self, params: Mapping[str, Value]) -> float | None:
        """Return the bytes of a sample: of the same stage, or of another one that keeps activations alike."""
        own = slope(self._peaks.get(_others(params), {}))
        if own is not None:
            return own
        alike = (found for others, found in self._peaks.items() if _recomputes(dict(others)) == _recomputes(params))
        return max((each for peaks in alike if (each := slope(peaks)) is not None), default=None)


def _others(params: Mapping[str, Value]) -> Point:
    return tuple((name, value) for name, value in params.items() if name != "mbs")


def _recomputes(params: Mapping[str, Value]) -> bool:
    return bool(params.get(CHECKPOINTING))
