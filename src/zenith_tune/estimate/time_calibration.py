"""What measurements have made of the model of time: coefficients, and how they differ by GPU, precision and release."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from zenith_tune.estimate.time_coefficients import TimeCoefficients

KIN = {
    "h200": "h100",
    "a800": "a100-80",
    "a100-40": "a100-80",
    "b300": "b200",
    "gb200": "b200",
    "gb300": "gb200",
}
"""Of what other GPU one that was never measured is taken to be a kind."""


def precision_class(precision: str) -> str:
    """Return the kind of matrix product that a precision stands for.

    >>> precision_class("FP8-MX"), precision_class("nvfp4"), precision_class("amp_bf16"), precision_class("float8")
    ('mxfp8', 'fp4', 'bf16', 'fp8')
    """
    text = precision.lower()
    if "fp4" in text:
        return "fp4"
    if "fp8" in text or "float8" in text:
        return "mxfp8" if "mx" in text else "fp8"
    return "bf16"


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCalibration:
    """Hold the coefficients of a family of frameworks, and what they are multiplied by for each kind of run."""

    coefficients: TimeCoefficients = field(default_factory=TimeCoefficients)
    factors: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By kind of run, such as gpu:h100, precision:fp8 or framework:megascale: coefficient and factor."""
    trends: Mapping[str, float] = field(default_factory=dict)
    """Logarithmic change of a coefficient per year of a framework's release."""
    release: float = 2026.0
    """The release, as a year, that the coefficients are of."""
    interval: tuple[float, float] = (-0.25, 0.25)
    """The 90% interval of the logarithm of measured over estimated step time, from held-out runs."""

    @property
    def spread(self) -> float:
        """Standard deviation that a normal distribution of the same interval would have."""
        return (self.interval[1] - self.interval[0]) / 3.29

    def coefficients_for(
        self, *, gpu: str, precision: str, framework: str, release: float | None = None
    ) -> TimeCoefficients:
        """Return the coefficients of one kind of run."""
        names = (f"gpu:{self._known_gpu(gpu)}", f"precision:{precision_class(precision)}", f"framework:{framework}")
        values = self.coefficients.to_dict()
        for name in names:
            for coefficient, factor in self.factors.get(name, {}).items():
                values[coefficient] *= factor
        years = 0.0 if release is None else release - self.release
        for coefficient, slope in self.trends.items():
            values[coefficient] *= math.exp(slope * years)
        return replace(self.coefficients, **values)

    def _known_gpu(self, gpu: str) -> str:
        while f"gpu:{gpu}" not in self.factors and gpu in KIN:
            gpu = KIN[gpu]
        return gpu
