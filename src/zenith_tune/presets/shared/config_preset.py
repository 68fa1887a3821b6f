"""The base of presets whose job is a configuration of nested keys, and the evaluator of a log with a line a step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import OtherSettingsError, TuningEvaluator
from zenith_tune.evaluators.speed import SpeedEvaluator, Units
from zenith_tune.evaluators.steps import SAMPLES, SECONDS, TFLOPS, TOKENS, LoggedSteps
from zenith_tune.layouts.layout import layout_name
from zenith_tune.layouts.rules import LayoutRule
from zenith_tune.presets.arguments import refuse_steps
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever, LeverPoint
from zenith_tune.presets.shared.config_job import (
    MBS,
    ConfigArguments,
    ConfigJob,
    ConfigLever,
    ConfigSpace,
    facts_of,
)
from zenith_tune.presets.shared.launched_gpus import launched_resources
from zenith_tune.presets.shared.subject import LookedUp, job_model
from zenith_tune.registry import keywords_of
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources

UNITS: Units = {
    "tokens_per_s": (TOKENS, "tokens/s/GPU"),
    "samples_per_s": (SAMPLES,),
    "tflops": (TFLOPS,),
    "step_time": (SECONDS,),
}
IN_FOLDER = "{trial_folder}"


class StepEvaluator(SpeedEvaluator):
    """The steady speed by the lines that a framework prints of its steps."""

    units = UNITS

    def __init__(self, objective: str, title: str, read: Callable[[str, Mapping[str, Any]], LoggedSteps]) -> None:
        super().__init__(objective)
        self.title, self._read = title, read

    def describe(self) -> str:
        return f"{self.title} {self.objective}, {self.direction}"

    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        logged = self._read(log, metadata.get("parameters") or {})
        if not logged.steps:
            raise ValueError("no line of a step in the log: train for longer")
        flaw = next((step.flaw for step in logged.steps if step.flaw and step.flaw.startswith("loss")), None)
        if flaw is not None:
            raise ValueError(f"NaN: the {flaw}")
        return logged


J = TypeVar("J", bound=ConfigJob)


class ConfigPreset(FrameworkPreset[ConfigSpace[J], ConfigArguments], Generic[J]):
    """A preset that reads a job from its configuration, and gives trials another."""

    declared: ClassVar[tuple[ConfigLever[Any], ...]] = ()
    rules: ClassVar[tuple[LayoutRule, ...]] = ()
    framework: ClassVar[str] = ""
    """Whose estimates plan its layouts; empty where none do."""
    objective: ClassVar[str] = "tokens_per_s"
    most_grid_points = 100

    @keywords_of(ConfigArguments)
    def __init__(self, given: ConfigArguments) -> None:
        refuse_steps(given.steps)
        super().__init__(given)
        self._model: LookedUp[ModelSpec] = LookedUp(lambda: job_model(given.model))

    @abstractmethod
    def _read_job(self, command: str) -> J:
        """Return what command and configuration say of a job."""

    @abstractmethod
    def _in_trials(self) -> dict[str, Any]:
        """Return the values that every measured run has, and the best command is without."""

    @abstractmethod
    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        """Return a command whose job has other values."""

    @abstractmethod
    def _read_steps(self, log: str) -> LoggedSteps:
        """Return the steps of a log."""

    def _fault(self, log: str, asked: Mapping[str, Value]) -> str | None:
        """Return in one line which value did not arrive, by what a run prints of its configuration."""
        return None

    def bind(self, command: str) -> None:
        self._bind_job(self._read_job(command))

    def _bind_job(self, job: J) -> None:
        named = self._given.model
        self._model = LookedUp(lambda: job_model(named) if named else job.model())
        model = self._model.get() if self.framework else None
        facts = facts_of(model if isinstance(model, ModelSpec) else None, self._given.seq or job.seq_len)
        space: ConfigSpace[J] = ConfigSpace.of(
            job, self._given.search, self._given.mbs_max, levers=self.declared, rules=self.rules, facts=facts
        )
        self._bind_space(space)

    def resources(self, command: str) -> Resources:
        return launched_resources(command, self._space.job.num_gpus)

    def own_point(self, command: str) -> Params | None:
        point = self._space.first_point
        return point if self._space.explain(point) is None else None

    def decisive(self) -> tuple[str, ...]:
        return (MBS,)

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        at = LeverPoint(job=self._space.job, params=dict(params))
        return self._levers.offered([lever for lever in self.declared if lever.is_for(at)], at)

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return self._written(command, {**self._space.changed(params), **self._in_trials()})

    def baseline_command(self, command: str) -> str:
        return self._written(command, self._in_trials())

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str:
        text = self._written(command, self._space.changed(params))
        return fill_placeholders(text, {"trial_folder": str(folder)})[0]

    def label(self, params: Mapping[str, Value]) -> str:
        return self._labelled([layout_name(self.layout(params))], params)

    def evaluator(self) -> TuningEvaluator:
        def read(log: str, params: Mapping[str, Value]) -> LoggedSteps:
            fault = self._fault(log, self._space.changed(params)) if params else None
            if fault is not None:
                raise OtherSettingsError(fault)
            return self._read_steps(log)

        return StepEvaluator(self.objective, self.title.removeprefix("preset "), read)

    def notes(self, command: str) -> list[str]:
        job = self._space.job
        searched = [name for name, choices in self._space.axes.items() if len(choices) > 1]
        return [
            f"global batch {job.global_batch} (micro-batch {job.micro_batch}, {job.num_gpus} GPUs), which every trial"
            f" keeps; searched: {', '.join(searched) or 'nothing'}",
            f"trials make {self._given.steps} steps each (--args steps=N), without saving and evaluation; the best"
            " command is without that",
            *self._plan_notes(),
            *self._lever_notes(command),
        ]

    def _plan_notes(self) -> list[str]:
        return super()._plan_notes() if self.framework else []

    def _looked_up(self) -> PlanSubject:
        if not self.framework:
            raise UsageError(f"layouts of {self.title} are not planned")
        job = self._space.job
        seq_len = self._given.seq or job.seq_len
        return self._planned_job(
            self._model.required(), self.framework, num_gpus=job.num_gpus, seq_len=seq_len, precision="bf16"
        )
