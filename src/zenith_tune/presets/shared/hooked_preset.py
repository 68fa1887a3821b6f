"""The base of presets for a Trainer that a script makes: a hook in its process sets and reports what a point asks."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.hooked_run import HookedRun, RunAsked
from zenith_tune.hooks.injection import hook_files
from zenith_tune.hooks.process import MOST_TIMES
from zenith_tune.presets.arguments import refuse_steps
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever, LeverPoint, set_levers
from zenith_tune.presets.shared.hooked_job import MBS, HookedArguments, HookedJob, HookedLever, HookedSpace
from zenith_tune.presets.shared.live_model import LiveModel, model_notes
from zenith_tune.presets.shared.subject import LookedUp, job_model
from zenith_tune.presets.shared.trial_hook import hooked, watched
from zenith_tune.registry import keywords_of
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.shell.variables import set_variables
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import format_params

FRAMEWORK = "hf-accelerate"
"""What their jobs are planned as: data parallelism under autocast."""


J = TypeVar("J", bound=HookedJob)
S = TypeVar("S", bound=HookedSpace[Any])


class HookedPreset(FrameworkPreset[S, HookedArguments], Generic[S, J]):
    """A preset whose job is known by a run of the user's own command, and that leaves a hook next to the best one."""

    hook: ClassVar[str]
    """The module of `hooks` that sets values."""
    file_stem: ClassVar[str]
    """The folder next to the best command, where that needs the hook."""
    declared: ClassVar[Sequence[HookedLever[Any]]] = ()
    most_grid_points = 10**6

    @keywords_of(HookedArguments)
    def __init__(self, given: HookedArguments) -> None:
        refuse_steps(given.steps)
        super().__init__(given)
        self._model: LookedUp[ModelSpec] = LookedUp(self._named_model)
        self._own_variables: Mapping[str, str] = {}
        self._too_large: list[tuple[int, Params]] = []
        """The points that ran out of memory, each with the largest micro-batch that is worth a trial after it."""

    @abstractmethod
    def _read_job(self, command: str) -> J:
        """Return what a command says of its job."""

    @abstractmethod
    def _run_job(self, log: str) -> tuple[HookedRun, J | None]:
        """Return the run of the user's own command, and the job as it ran; None where no Trainer trained."""

    @abstractmethod
    def _search(self, job: J) -> S:
        """Return what is searched of a job."""

    @abstractmethod
    def _job_notes(self) -> list[str]:
        """Return what was learnt of the job, one line each."""

    @abstractmethod
    def _hooked_values(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return what the hook sets for a point."""

    def _written(self, command: str, params: Mapping[str, Value]) -> str:
        return command

    def _argument_file(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the changed copy of the job's own file; none where nothing is changed."""
        return {}

    def _watched(self, command: str) -> str:
        return watched(command)

    def _trial_hook(self, values: Mapping[str, Value]) -> dict[str, str]:
        return hook_files({self.hook: {"set": values, "steps": self._given.steps}}, "accelerate", "model")

    def bind(self, command: str) -> None:
        self._own_variables = {**os.environ, **set_variables(command)}
        self._model = LookedUp(self._named_model)
        self._bind_space(self._search(self._read_job(command)))

    def read_baseline(self, log: str) -> list[str]:
        """Learn the settings, the world, the model and what is installed from the Trainer that trained."""
        run, job = self._run_job(log)
        if job is None:
            if not self._space.job.is_known:
                problem = f"{self.title} can only learn what a script sets in its Trainer by running it"
                raise UsageError(problem, hint="leave --no-baseline out")
            return []
        planned, model = self._subject.get(), None if self._given.model else LiveModel.of(run.model)
        if model is not None:
            self._model = LookedUp(model.spec)
        self._bind_space(self._search(job))
        return [*self._job_notes(), *model_notes(model, planned, self._subject.get()), *self._lever_notes("")]

    def explain(self, params: Mapping[str, Value]) -> str | None:
        broken = self._space.explain(params)
        if broken is not None:
            return broken
        for largest, failed in self._too_large:
            if int(params[MBS]) > largest and self._space.takes_no_less(params, failed):
                return f"micro-batch {params[MBS]} takes no less memory than {failed[MBS]}, which ran out of it"
        return None

    def observe(self, trial: Trial) -> None:
        point = trial.params or (self._space.first_point if trial.is_baseline else {})
        if trial.outcome is Outcome.OOM and MBS in point:
            # What does not fit on the longest samples is not tried with other levers in turn.
            self._too_large.append((int(point[MBS]) - trial.is_rerun, dict(point)))

    def decisive(self) -> tuple[str, ...]:
        return (MBS,)

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        job = self._space.job
        at = LeverPoint(job=job, params=dict(params), variables=self._own_variables)
        named = {lever.package for lever in self.declared if lever.package} if job.packages is not None else ()
        packages = {name: name in (job.packages or ()) for name in named}
        return self._levers.offered([lever for lever in self.declared if lever.is_for(at)], at, packages)

    def own_point(self, command: str) -> Params | None:
        return self._space.first_point if self._space.job.is_known else None

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return self._watched(self._with_variables(self._written(command, params), params))

    def _with_variables(self, command: str, params: Mapping[str, Value]) -> str:
        values = self._variables(params)
        return ParsedCommand.of(command).started.with_variables(values) if values else command

    def _variables(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the variables of the environment that a point's levers set."""
        on = set_levers(self.declared, self._space.levers_of(params))
        return {name: value for lever in on for name, value in lever.variables.items()}

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return {**self._trial_hook(self._hooked_values(params)), **self._argument_file(params)}

    def baseline_command(self, command: str) -> str:
        return self._watched(command)

    def baseline_files(self) -> dict[str, str]:
        return self._trial_hook({})

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str:
        text = self._with_variables(self._written(command, params), params)
        if self._hooked_values(params):
            text = hooked(text, f"{{trial_folder}}/{self.file_stem}")
        return fill_placeholders(text, {"trial_folder": str(folder)})[0]

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return what the best command needs next to it: its file, or the folder that sets values."""
        values = self._hooked_values(params)
        hook = hook_files({self.hook: {"set": values}}, folder=self.file_stem) if values else {}
        return {**hook, **self._argument_file(params)}

    def label(self, params: Mapping[str, Value]) -> str:
        return self._labelled(self._space.words(params), params)

    def asked(self, params: Mapping[str, Value]) -> RunAsked:
        """Return what a point's job must say of itself; of the user's own command only the world."""
        job, space = self._space.job, self._space
        if not params:
            return RunAsked(num_processes=job.num_processes, wrapper=None)
        sharding = space.sharding(params)
        return RunAsked(
            num_processes=job.num_processes,
            wrapper=sharding.wrapper if space.sharding_axis in params else job.wrapper,
            settings=sharding.settings,
            samples=job.samples,
            passes=space.batch(params)[1] if job.counts_passes else None,
        )

    def notes(self, command: str) -> list[str]:
        steps = self._given.steps
        return [
            f"trials make {steps} updates each (--args steps=N), up to {MOST_TIMES * steps} where they"
            " are quick, without logging, evaluation and saving: the hook sets that, and the best command is without it"
        ]

    def _model_names(self) -> list[str]:
        model = self._model.get()
        return [] if isinstance(model, UsageError) else [f"{model.name} ({format_params(model.num_params)} parameters)"]

    def _named_model(self) -> ModelSpec:
        if self._given.model is None:
            raise UsageError("the model is seen when your own command runs", hint="or give --model NAME")
        return job_model(self._given.model)

    def _looked_up(self) -> PlanSubject:
        job, model = self._space.job, self._model.required()
        if not job.is_plain:
            hint = "search without a plan"
            raise UsageError(f"layouts of {self.title} are planned for plain data parallelism", hint=hint)
        return self._planned_job(
            model,
            FRAMEWORK,
            num_gpus=job.num_processes,
            seq_len=job.seq_len,
            precision=job.precision,
            gpu=job.gpu,
            new_shapes=job.new_shapes,
        )
