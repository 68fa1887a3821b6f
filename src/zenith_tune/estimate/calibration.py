"""A calibration: what measurements say of a framework, with where they come from."""

from __future__ import annotations

from dataclasses import dataclass, field

from zenith_tune.estimate.memory_coefficients import MemoryCoefficients
from zenith_tune.estimate.time_calibration import TimeCalibration


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Hold the coefficients of one framework; without measurements, sensible defaults."""

    framework: str = "megatron"
    time: TimeCalibration = field(default_factory=TimeCalibration)
    memory: MemoryCoefficients = field(default_factory=MemoryCoefficients)
    origin: str = "defaults, not fitted"
    """The data that the coefficients were fitted to."""
    date: str = ""
    """When they were fitted, as YYYY-MM-DD."""
    num_runs: int = 0
    """How many measured runs that were."""
    num_memory_runs: int = 0
    """How many of them memory was fitted to; 0 where the account of the framework's code stands alone."""
