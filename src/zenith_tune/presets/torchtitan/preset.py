"""Pre-training with torchtitan: parallel sizes, sharding, micro-batch and recomputation, as options of the command."""

from __future__ import annotations

from collections.abc import Mapping

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UnknownNameError, UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.arguments import refuse_steps
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.shared.launched_gpus import run_resources
from zenith_tune.presets.shared.subject import LookedUp, job_model
from zenith_tune.presets.torchtitan.command import PRESET, titan_run, with_settings
from zenith_tune.presets.torchtitan.evaluator import TorchTitanEvaluator
from zenith_tune.presets.torchtitan.job import PRECISION, STEPS, TitanArguments, TitanJob, live_job, read_job
from zenith_tune.presets.torchtitan.levers import LEVERS, TitanSituation
from zenith_tune.presets.torchtitan.live import live_model
from zenith_tune.presets.torchtitan.log import TitanRun
from zenith_tune.presets.torchtitan.space import FSDP, TitanSpace
from zenith_tune.registry import keywords_of
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources
from zenith_tune.units import positive_int

LOG_FREQUENCY = "metrics.log_freq"


def job_notes(space: TitanSpace, steps: int) -> list[str]:
    """Return one line for each thing worth knowing."""
    job = space.job
    notes = [
        f"trials make {steps} steps each, without saving, evaluation and profiling (--args steps=N);"
        " the best command is without that"
    ]
    if not job.is_known:
        notes.append("the job is set up in Python: the run of your own command shows its settings")
        return notes
    searched = [name for name, choices in space.axes.items() if len(choices) > 1]
    what = f"{job.num_gpus} GPUs, sequence {job.seq_len}, batch {job.global_batch}"
    notes.append(f"read by the dialect of {job.dialect.name}: {what}; searched: {', '.join(searched) or 'nothing'}")
    if not positive_int(job.own(job.dialect.global_batch)):
        notes.append(f"{job.dialect.global_batch} is not set, so that layouts would change the batch: trials set it")
    if job.splits_itself:
        notes.append("pp is not searched: the pipeline is cut by hand")
    return notes


def _named_model(job: TitanJob) -> ModelSpec:
    """Return the model of a job that names one of the catalog; the shape of another is seen in its run."""
    try:
        return job_model(job.model)
    except UnknownNameError:
        if job.given.model is not None:
            raise
        hint = "or give --model NAME"
        raise UsageError(f"the shape of {job.model} is seen when your own command runs", hint=hint) from None


@PresetRegistry.register("torchtitan")
class TorchTitanPreset(FrameworkPreset[TitanSpace, TitanArguments]):
    """Tune a command that runs torchtitan.train, itself or by a script such as run_train.sh.

    A TOML is read; a configuration in Python is known after a run of the command. Every value is an option of the
    command, so that no file is changed, and the global batch stays what it is. `search` lists tp, pp, schedule, cp, ep,
    shard, mbs and ac. `steps` are those of a trial.
    """

    title, declared, most_grid_points = PRESET, LEVERS, 0

    @keywords_of(TitanArguments)
    def __init__(self, given: TitanArguments) -> None:
        refuse_steps(given.steps)
        super().__init__(given)
        self._model: LookedUp[ModelSpec] = LookedUp(lambda: job_model(None))

    def bind(self, command: str) -> None:
        job = read_job(command, self._given)
        self._model = LookedUp(lambda: _named_model(job))
        self._bind_job(job)

    def _bind_job(self, job: TitanJob) -> None:
        model = self._model.get()
        known = model if isinstance(model, ModelSpec) else None
        self._bind_space(TitanSpace.of(job, known, self._given.search, self._given.mbs_max))

    def read_baseline(self, log: str) -> list[str]:
        """Learn the settings of a configuration in Python, and the shape of the model, from a run of the command."""
        run, before = TitanRun.read(log), self._space.job
        job = live_job(before, run)
        if not job.is_known:
            problem = f"{PRESET} can only learn the settings of a configuration in Python by running it"
            raise UsageError(problem, hint="leave --no-baseline out")
        planned, was_unknown = self._subject.get(), isinstance(self._model.get(), UsageError)
        live = LookedUp(lambda: live_model(run))
        if self._given.model is None and run.model and (was_unknown or isinstance(live.get(), ModelSpec)):
            self._model = live
        self._bind_job(job)
        notes = [] if before.is_known else job_notes(self._space, self._given.steps)[1:]
        model, now = self._model.get(), self._subject.get()
        if was_unknown and isinstance(model, ModelSpec):
            notes.append(f"{model.name} has {model.num_params:,} parameters, by what it says of its shape")
        if isinstance(now, UsageError) and str(now) != str(planned):
            notes.append(f"layouts are not planned: {now}")
        return notes

    def decisive(self) -> tuple[str, ...]:
        return ("tp", "pp", "mbs", "ac")

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        at = TitanSituation(job=self._space.job, layout=self.layout(params), shard=str(params["shard"]))
        return self._levers.offered([lever for lever in LEVERS if lever.is_for(at)], at)

    def own_point(self, command: str) -> Params | None:
        return self._space.own_point() if self._space.job.is_known else None

    def train_steps(self, command: str) -> int | None:
        return positive_int(self._space.job.own(STEPS))

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        return with_settings(command, self._space.job.dialect, self._space.written(params))

    def trial_command(self, command: str) -> str:
        """Return the command as it is measured: a few steps, each in the log, and nothing besides them."""
        job = self._space.job
        dialect = job.dialect
        # Of a TOML it is known what is on; an option that a release does not have would end the run.
        services = [name for name in dialect.services if not dialect.has_file or job.own(name)]
        values: dict[str, Value] = {STEPS: self._given.steps, LOG_FREQUENCY: 1, **dict.fromkeys(services, False)}
        if dialect.prints:
            values[dialect.prints] = True
        return with_settings(command, dialect, values)

    def resources(self, command: str) -> Resources:
        return run_resources(command, titan_run(command), self._space.job.num_gpus)

    def label(self, params: Mapping[str, Value]) -> str:
        """Return a point in a few words; what is 1 goes without saying."""
        words = [f"{name.upper()}{params[name]}" for name in ("tp", "pp", "cp", "ep") if params[name] != 1]
        words += [str(params["schedule"])] * (params["pp"] != 1)
        words += [str(params["shard"])] * (params["shard"] != FSDP)
        return self._labelled([*words, f"mbs{params['mbs']}", f"ac-{params['ac']}"], params)

    def evaluator(self) -> TuningEvaluator:
        def step_tokens() -> int | None:
            job = self._space.job  # as the baseline has shown it by then
            return job.global_batch * job.seq_len if job.is_known else None

        found = TorchTitanEvaluator(n_gpus=self._space.job.num_gpus)
        found.step_tokens = step_tokens
        return found

    def notes(self, command: str) -> list[str]:
        return [*job_notes(self._space, self._given.steps), *self._plan_notes(), *self._lever_notes(command)]

    def _looked_up(self) -> PlanSubject:
        # Not at the top: the catalogs are loaded only where a plan is made.
        from zenith_tune.describe.framework_spec import titan_framework

        job, model = self._space.job, self._model.required()
        if not job.is_known:
            raise UsageError("the settings are seen when your own command runs", hint="run the baseline")
        framework = titan_framework(job.compiles, job.num_gpus == 1)
        precision = "fp32" if job.own(PRECISION) == "float32" else "bf16"
        return self._planned_job(
            model, framework, num_gpus=job.num_gpus, seq_len=job.seq_len, precision=precision, gpu=job.gpu
        )
