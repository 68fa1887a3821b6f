"""Training by the Trainer of transformers and the trainers of TRL: batch, gradient checkpointing, and its arguments."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.hooked_run import RunAsked
from zenith_tune.hooks.injection import hook_files
from zenith_tune.hooks.trainer import HERE
from zenith_tune.presets.arguments import keywords_of, refuse_steps
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.parts import ConfirmingRun
from zenith_tune.presets.shared.launched_gpus import launched_resources
from zenith_tune.presets.shared.live_model import LiveModel, model_notes
from zenith_tune.presets.shared.subject import LookedUp, job_model, seen_cluster
from zenith_tune.presets.shared.trial_hook import hooked, watched
from zenith_tune.presets.trainer.command import (
    ACCUMULATION,
    CHECKPOINTING,
    FILE_STEM,
    MICRO_BATCH,
    PACKING,
    PRESET,
    with_file,
    with_options,
)
from zenith_tune.presets.trainer.dialect import Dialect
from zenith_tune.presets.trainer.evaluator import TrainerEvaluator
from zenith_tune.presets.trainer.job import Carrier, TrainerArguments, TrainerJob, live_job, live_notes, read_job
from zenith_tune.presets.trainer.levers import LEVERS, PACKAGES, REPORTED, TrainerSituation, levers_for
from zenith_tune.presets.trainer.log import SAMPLE_PACKING, TrainerRun
from zenith_tune.presets.trainer.space import MBS, RECOMPUTE, SHARDING, TrainerSpace, sharding_of
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources
from zenith_tune.study.trial import Outcome, Trial

FRAMEWORK = "hf-accelerate"
"""What its jobs are planned as: plain data parallelism."""
AUTO_BATCH = "auto_find_batch_size"
MOST_TIMES = 5
"""So many times the updates of a trial are made at most, where they are quick."""
IN_TRIALS: dict[str, Any] = {
    "output_dir": f"{HERE}/output",
    "resume_from_checkpoint": None,
    "save_strategy": "no",
    "load_best_model_at_end": False,
    "eval_strategy": "no",
    "eval_on_start": False,
    "logging_strategy": "no",
    "logging_first_step": False,
    "disable_tqdm": True,
    "report_to": "none",
    "push_to_hub": False,
    AUTO_BATCH: False,
}
"""What the hook sets in every trial, and the best command is without; unknown names are left out there."""


@PresetRegistry.register("trainer")
class TrainerPreset(FrameworkPreset[TrainerSpace, TrainerArguments]):
    """Tune a script that trains by Hugging Face's Trainer, or by one of TRL, however it is started.

    The global batch stays what it is: accumulation follows the micro-batch. Each trial makes `steps` updates, or more
    where they are quick, without logging, evaluation and saving, and fails where its Trainer was made with other
    arguments than were asked for, unless `check` is false. Levers are arguments of the Trainer.
    """

    title, declared, most_grid_points = PRESET, LEVERS, 10**6
    dialect: ClassVar[Dialect | None] = None
    """How the program spells arguments, where it has names of its own for them."""

    @keywords_of(TrainerArguments)
    def __init__(self, given: TrainerArguments) -> None:
        refuse_steps(given.steps)
        super().__init__(given)
        self._model: LookedUp[ModelSpec] = LookedUp(self._named_model)
        self._too_large: list[tuple[int, Params]] = []
        """The points that ran out of memory, each with the largest micro-batch that is worth a trial after it."""

    def bind(self, command: str) -> None:
        self._model = LookedUp(self._named_model)
        self._bind_job(read_job(command, self._given, self.dialect))

    def _bind_job(self, job: TrainerJob) -> None:
        self._bind_space(TrainerSpace.of(job, self._given.search, self._given.mbs_max))

    def read_baseline(self, log: str) -> list[str]:
        """Learn the arguments, the world, the model and what is installed from the Trainer that was made."""
        job, run = self._space.job, TrainerRun.read(log)
        if run.trainer is None:
            if not job.reads_options and job.file is None:
                problem = f"{PRESET} knows the arguments of a script that sets them itself after a run of it alone"
                raise UsageError(problem, hint="leave --no-baseline and --dry-run out")
            return []
        planned, model = self._subject.get(), None if self._given.model else LiveModel.of(run.model)
        if model is not None:
            self._model = LookedUp(model.spec)
        self._bind_job(live_job(job, run))
        notes = live_notes(self._space.job)
        notes += model_notes(model, planned, self._subject.get())
        return [*notes, *self._lever_notes("")]

    def explain(self, params: Mapping[str, Value]) -> str | None:
        broken = self._space.explain(params)
        if broken is not None:
            return broken
        for largest, failed in self._too_large:
            if int(params[MBS]) > largest and self._space.takes_no_less(params, failed):
                return f"micro-batch {params[MBS]} takes no less memory than {failed[MBS]}, which ran out of it"
        return None

    def observe(self, trial: Trial) -> None:
        point = trial.params or (self._space.own_point() if trial.is_baseline else {})
        if trial.outcome is not Outcome.OOM or MBS not in point:
            return
        # What does not fit on the longest samples is not tried with other levers in turn.
        self._too_large.append((int(point[MBS]) - trial.is_rerun, dict(point)))

    def decisive(self) -> tuple[str, ...]:
        return (MBS, RECOMPUTE)

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        at = TrainerSituation(job=self._space.job, params=dict(params))
        return self._levers.offered(levers_for(at), at, at.packages)

    def own_point(self, command: str) -> Params | None:
        job = self._space.job
        is_known = job.trainer is not None or job.reads_options or job.file is not None
        return self._space.own_point() if is_known else None

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the arguments of a point, and with the hook."""
        return self._watched(self._written(command, params))

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return {**self._trial_hook(self._carried(params, Carrier.HOOK)), **self._argument_file(params)}

    def confirming(self, params: Mapping[str, Value]) -> ConfirmingRun:
        """Return the run of a point whose first updates have the longest samples."""
        values = self._carried(params, Carrier.HOOK)
        files = {**self._trial_hook(values, meets_longest=True), **self._argument_file(params)}
        return ConfirmingRun(meets="the longest samples", files=files, smaller=self._space.smaller(params))

    def baseline_command(self, command: str) -> str:
        """Return the user's own command with the hook."""
        return self._watched(command)

    def baseline_files(self) -> dict[str, str]:
        return self._trial_hook({})

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str:
        """Return the command that trains with a point's arguments, without the hook of a trial."""
        text = self._written(command, params)
        if self._carried(params, Carrier.HOOK):
            text = hooked(text, f"{{trial_folder}}/{FILE_STEM}")
        return fill_placeholders(text, {"trial_folder": str(folder)})[0]

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return what the best command needs next to it: its file, or the folder that sets arguments."""
        by_hook = self._carried(params, Carrier.HOOK)
        hook = hook_files({"trainer": {"set": by_hook}}, folder=FILE_STEM) if by_hook else {}
        return {**hook, **self._argument_file(params)}

    def resources(self, command: str) -> Resources:
        return launched_resources(command, self.dialect.num_processes(command) if self.dialect else None)

    def _carried(self, params: Mapping[str, Value], carrier: Carrier) -> dict[str, Value]:
        return self._space.job.carried(self._space.written(params), carrier)

    def _watched(self, command: str) -> str:
        in_trials = self.dialect.in_trials if self.dialect else {}
        return watched(self.dialect.write(command, in_trials) if self.dialect and in_trials else command)

    def _written(self, command: str, params: Mapping[str, Value]) -> str:
        if self.dialect is not None:
            return self.dialect.written(command, self._space.written(params))
        text = with_options(command, self._carried(params, Carrier.OPTION))
        for name in self._argument_file(params):
            text = with_file(text, f"{{trial_folder}}/{name}")
        return text

    def _argument_file(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the changed copy of the job's file; none where nothing is changed."""
        file, changes = self._space.job.file, self._carried(params, Carrier.FILE)
        return {file.trial_name: file.having(changes)} if file and changes else {}

    def _trial_hook(self, values: Mapping[str, Value], *, meets_longest: bool = False) -> dict[str, str]:
        settings = {
            "set": {**IN_TRIALS, "max_steps": MOST_TIMES * self._given.steps, **values},
            "steps": self._given.steps,
            "report": sorted({MICRO_BATCH, ACCUMULATION, CHECKPOINTING, SAMPLE_PACKING, *REPORTED}),
            "packages": PACKAGES,
            **({"longest": True} if meets_longest else {}),
        }
        return hook_files({"trainer": settings}, "accelerate", "model", *(("longest",) if meets_longest else ()))

    def label(self, params: Mapping[str, Value]) -> str:
        axes = self._space.axes
        words = [f"mbs{params[MBS]}"]
        if len(axes[RECOMPUTE]) > 1:
            words.append("checkpointing" if params[RECOMPUTE] else "no-checkpointing")
        if SHARDING in axes:
            words.append(str(params[SHARDING]) if params[SHARDING] != "none" else "ddp")
        return self._labelled(words, params)

    def evaluator(self) -> TuningEvaluator:
        job = self._space.job
        found = TrainerEvaluator(gbs=job.global_batch, n_gpus=job.num_processes, check=self._given.check)
        found.asked = self.asked
        found.arguments = self._proven
        found.usual_tokens = lambda: self._space.job.tokens
        return found

    def _proven(self, params: Mapping[str, Value]) -> dict[str, Value]:
        """Return those arguments of a point that its Trainer reports."""
        unseen = self.dialect.unseen if self.dialect else ()
        arguments = self._space.arguments(params) if params else {}
        return {name: value for name, value in arguments.items() if name not in unseen}

    def asked(self, params: Mapping[str, Value]) -> RunAsked:
        """Return what a point's job must say of itself; of the user's own command only the world."""
        job = self._space.job
        if not params:
            return RunAsked(num_processes=job.num_processes, wrapper=None)
        is_usual = job.passes in (None, job.accumulation)  # a trainer of TRL may make other passes
        return RunAsked(
            num_processes=job.num_processes,
            wrapper=sharding_of(params).wrapper if SHARDING in params else job.wrapper,
            settings=sharding_of(params).settings,
            # Rows of packed samples are counted by their tokens.
            samples=None if params.get(PACKING) else job.samples,
            batch=job.global_batch if params.get(PACKING) else None,
            passes=self._space.batch(params)[1] if is_usual else None,
        )

    def notes(self, command: str) -> list[str]:
        job, steps = self._space.job, self._given.steps
        notes = [
            f"trials make {steps} updates each (--args steps=N), up to {MOST_TIMES * steps} where a GPU"
            " is quick, without logging, evaluation and saving: the hook sets that, and the best command is without it"
        ]
        if not job.reads_options and job.file is None:
            notes.append("the command shows no argument of a Trainer: its run shows whether the script makes one")
        if job.arguments.get(AUTO_BATCH):
            notes.append(f"{AUTO_BATCH} is off in trials: it would change the batch that they are compared by")
        return notes

    def _named_model(self) -> ModelSpec:
        if self._given.model is None:
            raise UsageError("the model is seen when your own command runs", hint="or give --args model=NAME")
        return job_model(self._given.model)

    def _looked_up(self) -> PlanSubject:
        # Not at the top: the catalogs are loaded only where a plan is made.
        from zenith_tune.describe.framework_spec import load_framework

        job, model = self._space.job, self._model.required()
        if not job.is_plain:
            raise UsageError(
                "layouts of a Trainer are planned for plain data parallelism", hint="search without a plan"
            )
        seq_len = (model.traced.num_tokens if model.traced else None) or job.seq_len
        if seq_len is None:
            raise UsageError("the length of the sequences is not known", hint="give --args seq=2048")
        return PlanSubject(
            model=model,
            cluster=seen_cluster(self._given.cluster, job.num_processes, self._given.topology, job.gpu),
            job=JobSpec(
                seq_len=seq_len,
                framework=load_framework(FRAMEWORK),
                precision=job.precision,
                new_shapes=job.new_shapes,
            ),
        )
