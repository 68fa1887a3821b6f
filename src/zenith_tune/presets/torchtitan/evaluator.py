"""The evaluator of torchtitan's logs: the speed of each step that it prints, and its peak memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import EvaluatorRegistry, OtherSettingsError
from zenith_tune.evaluators.speed import SpeedEvaluator, Units
from zenith_tune.evaluators.steps import SECONDS, TFLOPS, TOKENS, JobSizes, LoggedSteps
from zenith_tune.presets.torchtitan.log import TitanRun, read_steps

UNITS: Units = {"tokens_per_s": (TOKENS, "tokens/s/GPU"), "tflops": (TFLOPS,), "step_time": (SECONDS,)}


@EvaluatorRegistry.register("torchtitan")
class TorchTitanEvaluator(SpeedEvaluator):
    """The steady speed by the lines that torchtitan prints of its steps.

    `tokens_per_s` is over all `n_gpus`, or per GPU where that is not given; `tflops` is per GPU as torchtitan counts
    them, `step_time` in seconds by the tokens of a step that the log states.
    """

    units = UNITS
    step_tokens: Callable[[], int | None] = staticmethod(lambda: None)
    """Tokens that every step must have; None where they are not known."""

    def __init__(self, objective: str = "tokens_per_s", n_gpus: int | None = None) -> None:
        self.n_gpus = n_gpus
        super().__init__(objective, n_gpus=n_gpus)

    def _take_objective(self, name: str) -> None:
        super()._take_objective(name)
        if name == "step_time" and self.n_gpus is None:
            raise UsageError("the objective step_time needs n_gpus, but has none", hint="give --gpus 8")

    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        """Return the steps of a run that has the batch of the job: no trial may change that."""
        logged = read_steps(log)
        if not logged.steps:
            raise ValueError("no line of a step in the log; lower --metrics.log_freq or train for longer")
        for step in logged.steps:
            rate = step.gpu_tokens_per_s or 0.0
            if step.flaw and step.flaw.startswith("loss"):
                raise ValueError(f"NaN at step {step.number}: the {step.flaw}")
            if not (math.isfinite(rate) and rate > 0):
                raise ValueError(f"a speed must be above 0, but at step {step.number} it is {rate} tokens/s")
        said, wanted = TitanRun.read(log).step_tokens, self.step_tokens()
        if said is not None and wanted is not None and said != wanted:
            raise OtherSettingsError(f"a step must have {wanted} tokens, but the run says that it has {said}")
        return replace(logged, sizes=JobSizes(n_gpus=self.n_gpus, step_tokens=said or wanted))

    def describe(self) -> str:
        return f"torchtitan {self.objective} of {self.n_gpus or 1} GPUs, {self.direction}"

    def _missing(self) -> str:
        what = "prints no TFLOP/s above 0" if self.objective == "tflops" else "does not say the tokens of a step"
        return f"the log {what}: use the objective tokens_per_s"
