"""Whether a point fits a GPU's memory, on paper and with what runs have measured, with the arithmetic in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Trial
from zenith_tune.units import format_bytes
from zenith_tune.zero.state_bytes import shown
from zenith_tune.zero.zero_subject import ZeroSubject

Point = tuple[tuple[str, Value], ...]

SURE = 0.5
"""The share of the planned activations that a point surely needs: before any run, no more is held against it."""
SPARE = 1.25
"""How far what is counted may exceed what is there at once: 20 bytes per parameter over 16, without passing copies."""


def why_too_large(
    subject: ZeroSubject, params: Mapping[str, Value], activations: float, origin: str, share: float = 1.0
) -> str | None:
    """Return the sum that exceeds the memory, or None where it does not.

    `origin` says how the activations are known, `share` what runs have measured of the states over what is reckoned.
    """
    states, capacity = subject.states(params), subject.capacity_bytes
    needed = share * states.total + activations
    if needed <= capacity:
        return None
    words = f"activations {origin} {format_bytes(activations)} at micro-batch {params['mbs']}"
    measured = f"; the states take {share:.0%} of that" if share < 1 else ""
    return f"needs {format_bytes(needed)} of {format_bytes(capacity)}: {shown(states, words)}{measured}"


def why_surely_too_large(subject: ZeroSubject, params: Mapping[str, Value]) -> str | None:
    """Return the sum that exceeds the memory whatever of it may not be there at once."""
    activations = SURE * subject.planned_activations(params)
    if subject.states(params).total + activations <= SPARE * subject.capacity_bytes:
        return None
    return why_too_large(subject, params, activations, "at least")


class ActivationProfile:
    """Hold what runs have measured of memory: activations per sample, and the states over what is reckoned for them.

    Two runs that differ in their micro-batch alone tell activations by themselves. Of one run it is the peak over whole
    steps less the states, or the planner's figure where there is less than the states alone should take. The run with
    the largest micro-batch counts: what does not grow weighs least in it.
    """

    def __init__(self, subject: ZeroSubject) -> None:
        self.subject = subject
        self._peaks: dict[Point, dict[int, int]] = {}
        self._measured: dict[bool, tuple[int, float]] = {}
        self._share = 1.0

    def tell(self, trial: Trial) -> None:
        """Learn from a run whose log tells its peak memory."""
        if not trial.ok or not trial.peak_memory_bytes:
            return
        peak, mbs, mode = trial.peak_memory_bytes, int(trial.params["mbs"]), self.subject.recomputes_at(trial.params)
        others = tuple((name, value) for name, value in trial.params.items() if name != "mbs")
        peaks = self._peaks.setdefault(others, {})
        peaks[mbs] = peak
        states = self.subject.states(trial.params).total
        activations = (_slope(peaks) or 0.0) * mbs or peak - states
        if activations <= 0:
            activations = min(self.subject.planned_activations(trial.params), peak / 2)
        self._share = min((peak - activations) / states, 1.0)
        known = self._measured.get(mode)
        if known is None or mbs >= known[0]:
            self._measured[mode] = mbs, activations / mbs

    def is_measured(self, params: Mapping[str, Value]) -> bool:
        """Tell whether a run has measured this way of keeping activations."""
        return self.subject.recomputes_at(params) in self._measured

    def activations(self, params: Mapping[str, Value]) -> float:
        """Return the activations of a point: what was measured, scaled to its micro-batch, or the planner's figure."""
        known = self._measured.get(self.subject.recomputes_at(params))
        return known[1] * int(params["mbs"]) if known else self.subject.planned_activations(params)

    def needed(self, params: Mapping[str, Value]) -> float:
        """Return the bytes that a point needs."""
        return self._share * self.subject.states(params).total + self.activations(params)

    def largest(self, params: Mapping[str, Value], micro_batches: Sequence[int]) -> int | None:
        """Return the largest of these micro-batches, ascending, that fits; None where none does."""
        fits = [mbs for mbs in micro_batches if self.why_not({**params, "mbs": mbs}) is None]
        return fits[-1] if fits else None

    def why_not(self, params: Mapping[str, Value]) -> str | None:
        """Return why a point does not fit, or None."""
        origin = "measured and scaled to" if self.is_measured(params) else "planned as"
        return why_too_large(self.subject, params, self.activations(params), origin, self._share)


def _slope(peaks: Mapping[int, int]) -> float | None:
    """Return the bytes that one more sample takes, of the two largest micro-batches; None of fewer than two."""
    if len(peaks) < 2:
        return None
    (small, low), (large, high) = sorted(peaks.items())[-2:]
    return max((high - low) / (large - small), 0.0)
