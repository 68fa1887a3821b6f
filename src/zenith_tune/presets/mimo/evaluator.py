"""The evaluator of this package's MIMO example: Megatron's lines, and what the run measured of its own passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zenith_tune.evaluators.base import Measurement
from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator

PASSES = "measured_passes"
"""Under `extra`: what the run told of its passes, as `MeasuredStep.of` reads it."""


class MimoEvaluator(MegatronEvaluator):
    """Read the steady speed as from Megatron's log, and keep the seconds of passes, sums and messages beside it."""

    def with_objective(self, name: str) -> MimoEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        return MimoEvaluator(name, gbs=self.gbs, seq=self.seq)

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value with all that the log tells."""
        measurement = super().measure(stdout, metadata)
        step = MeasuredStep.read(stdout)
        return measurement if step is None else replace(measurement, extra={**measurement.extra, PASSES: step.text()})
