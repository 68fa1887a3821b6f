"""A calibration for people and for programs: what it was fitted to, what moved, and how far off it is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from zenith_calibration.calibrate.calibration_fit import CalibrationFit
from zenith_tune.units import count, format_gain

MAX_MOVES, MAX_REASONS = 8, 6
MUCH = 0.25
"""A median error beyond which the runs are likely not what they are said to be."""


LEAST_MOVE = 0.01
"""Least logarithmic change of a coefficient that is reported."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A coefficient before and after a fit."""

    name: str
    before: float
    after: float

    @property
    def shift(self) -> float:
        """Absolute logarithmic change."""
        if self.before <= 0 or self.after <= 0:
            return math.inf if self.before != self.after else 0.0
        return abs(math.log(self.after / self.before))


def moves(fit: CalibrationFit) -> list[Move]:
    """Return the coefficients that the data changed, the largest change first."""
    after = asdict(fit.calibration.time.coefficients)
    found = [Move(name=name, before=old, after=after[name]) for name, old in asdict(fit.before).items()]
    return sorted((move for move in found if move.shift > LEAST_MOVE), key=lambda move: -move.shift)


def calibration_lines(fit: CalibrationFit, path: Path) -> Iterator[str]:
    """Yield the lines for people; `path` is where the calibration was written."""
    calibration = fit.calibration
    runs = f"{count(calibration.num_runs, 'run')} of {calibration.origin}"
    yield f"calibration of {calibration.framework}, fitted to {runs}"
    yield from _time_lines(fit)
    if fit.num_memory_runs:
        low, high = (format_gain(math.expm1(end)) for end in calibration.memory.interval)
        yield f"memory: {count(fit.num_memory_runs, 'run')}; 90% of runs within {low} to {high}"
    else:
        yield "memory: as it was; too few runs state what they allocated"
    reasons = sorted(fit.left_out.items(), key=lambda item: -item[1])
    for reason, number in reasons[:MAX_REASONS]:
        yield f"  left out {count(number, 'run')}: {reason}"
    if rest := sum(number for _, number in reasons[MAX_REASONS:]):
        yield f"  left out {count(rest, 'run')} for other reasons"
    if moved := moves(fit)[:MAX_MOVES]:
        yield "coefficients that moved most:"
        width = max(len(move.name) for move in moved)
        yield from (f"  {move.name:<{width}}  {move.before:.4g} -> {move.after:.4g}" for move in moved)
    yield f"written: {path}"
    yield f"use it: zenithtune plan ... --framework {calibration.framework} --calibration {path}"


def _time_lines(fit: CalibrationFit) -> Iterator[str]:
    if not fit.num_time_runs:
        yield "time: as it was; the speed of too few runs, or landscapes, is known"
        return
    places = count(fit.num_landscapes, "landscape")
    yield f"time: {count(fit.num_time_runs, 'run')} of {places} (a landscape is a model on a cluster)"
    low, high = (format_gain(end) for end in fit.interval)
    error = f"median {fit.median_error:.1%}, 90% of step times {low} to {high} from the predicted"
    yield f"  error where each {fit.held_out} is predicted without it: {error}"
    if fit.median_error > MUCH:
        yield "  that is much: check that model, cluster and layouts of the runs are as stated"


def calibration_object(fit: CalibrationFit, path: str) -> dict[str, Any]:
    """Return the same as plain values."""
    low, high = fit.interval
    calibration = fit.calibration
    return {
        "framework": calibration.framework,
        "origin": calibration.origin,
        "date": calibration.date,
        "num_runs": calibration.num_runs,
        "num_time_runs": fit.num_time_runs,
        "num_memory_runs": fit.num_memory_runs,
        "num_landscapes": fit.num_landscapes,
        "left_out": dict(fit.left_out),
        "held_out": fit.held_out,
        "median_error": fit.median_error if fit.num_time_runs else None,
        "interval": [low, high],
        "moved": {move.name: [move.before, move.after] for move in moves(fit)},
        "path": path,
    }
