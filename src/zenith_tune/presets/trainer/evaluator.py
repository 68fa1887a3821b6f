"""The evaluator of Trainers: the steady speed of a Trainer that was made with the arguments that were asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import ClassVar

from zenith_tune.evaluators.base import EvaluatorRegistry
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.evaluators.hooked_speed import HookedEvaluator
from zenith_tune.evaluators.speed import Units
from zenith_tune.evaluators.steps import SAMPLES, SECONDS
from zenith_tune.presets.trainer.log import TrainerRun
from zenith_tune.study.parameters import Value


@EvaluatorRegistry.register("trainer")
class TrainerEvaluator(HookedEvaluator):
    """The steady speed of a Trainer by the lines of its trial's hooks.

    `throughput` is samples per second, `latency` seconds per step. A Trainer of other than `n_gpus` processes has no
    value, nor has one whose arguments are not those that were asked for, unless `check` is false.
    """

    units: ClassVar[Units] = {"throughput": (SAMPLES,), "latency": (SECONDS,)}
    no_steps = "because the Trainer made no two steps: give --args steps=20 or more"
    arguments: Callable[[Mapping[str, Value]], Mapping[str, Value]] = staticmethod(lambda params: {})
    """TrainingArguments that a point asks for."""
    usual_tokens: Callable[[], float | None] = staticmethod(lambda: None)
    """Tokens of an update of the user's own command, where they are known by now."""

    def read_run(self, log: str) -> TrainerRun:
        return replace(TrainerRun.read(log), usual_tokens=self.usual_tokens())

    def describe(self) -> str:
        """Say what is measured; the batch is that of the user's own command."""
        return f"trainer {self.objective}{'' if self.check else ', whatever the job ran as'}, {self.direction}"

    def _run_extra(self, run: HookedRun) -> dict[str, Value]:
        longest = run.longest if isinstance(run, TrainerRun) else None
        return {**super()._run_extra(run), **(longest.extra() if longest else {})}

    def _batch(self, run: HookedRun, params: Mapping[str, Value]) -> int:
        return self.asked(params).batch or run.samples or self.gbs or 1

    def _fault(self, run: HookedRun, params: Mapping[str, Value]) -> str | None:
        found = run.trainer_fault(self.arguments(params)) if isinstance(run, TrainerRun) else None
        # How many ranks srun and the like start is known by the run alone.
        is_comparable = bool(params) or self.asked(params).num_processes > 1 or not run.reports
        return found or (super()._fault(run, params) if is_comparable else None)
