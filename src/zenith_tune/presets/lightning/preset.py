"""Training by a Trainer of Lightning: micro-batch, strategy, precision and compilation, by a hook in its process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.describe.job_spec import JobSpec, PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.hooked_run import PLAIN, HookedRun, RunAsked
from zenith_tune.hooks.injection import hook_files
from zenith_tune.hooks.lightning import MOST_TIMES
from zenith_tune.presets.arguments import FrameworkArguments, keywords_of, refuse_steps
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.lightning.evaluator import LightningEvaluator
from zenith_tune.presets.lightning.space import (
    LEVERS,
    MBS,
    STRATEGY,
    LightningJob,
    LightningPoint,
    LightningSpace,
    strategy_of,
)
from zenith_tune.presets.shared.launched_gpus import started_gpus
from zenith_tune.presets.shared.live_model import LiveModel, model_notes
from zenith_tune.presets.shared.subject import job_model, seen_cluster
from zenith_tune.presets.shared.trial_hook import hooked, watched
from zenith_tune.shell.placeholders import fill_placeholders
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.trial import Outcome, Trial

FILE_STEM = "lightning_arguments"
FRAMEWORK = "hf-accelerate"
"""What its jobs are planned as: data parallelism under autocast."""
PLANNED = ("32-true", "16-mixed", "bf16-mixed")


@dataclass(frozen=True, kw_only=True)
class LightningArguments(FrameworkArguments):
    """What preset lightning takes."""

    seq: int | None = None
    """Tokens of a sample, where its run does not show them."""
    steps: int = 20
    """Updates of a trial."""
    check: bool = True
    """Whether a trial that ran as something else than was asked for has failed."""


@PresetRegistry.register("lightning")
class LightningPreset(FrameworkPreset[LightningSpace, LightningArguments]):
    """Tune a script that trains by a Trainer of Lightning, however it is started.

    The global batch stays what it is: accumulation follows the micro-batch. Trials are without logging, validation
    and checkpoints.
    """

    title, declared, most_grid_points = "preset lightning", LEVERS, 10**6

    @keywords_of(LightningArguments)
    def __init__(self, given: LightningArguments) -> None:
        refuse_steps(given.steps)
        super().__init__(given)
        self._run: HookedRun | None = None
        """That of the user's own command."""
        self._too_large: list[tuple[int, int]] = []
        """Micro-batches that ran out of memory, with what their strategy shards."""

    def bind(self, command: str) -> None:
        self._run = None
        self._bind_job(LightningJob(num_processes=self._given.n_gpus or started_gpus(command) or 1))

    def _bind_job(self, job: LightningJob) -> None:
        self._bind_space(LightningSpace.of(job, self._given.search, self._given.mbs_max))

    def read_baseline(self, log: str) -> list[str]:
        """Learn the world, the batch, the settings and the model from the Trainer that fitted."""
        run, planned = HookedRun.read(log), self._subject.get()
        if not run.reports:
            problem = "preset lightning knows what a script sets in its Trainer after a run of it alone"
            raise UsageError(problem, hint="leave --no-baseline and --dry-run out")
        report, self._run = run.reports[0], run
        job = LightningJob(num_processes=int(report["processes"]), samples=run.samples, report=report)
        self._bind_job(job)
        batch = f"micro-batch {job.micro_batch}, {report['accumulation']} accumulated, {job.num_processes} ranks"
        notes = [f"Trainer: global batch {job.global_batch} ({batch}), which every trial keeps"]
        if not job.micro_batch:
            notes = [
                "the batch stays as it is: it is not that of one torch DataLoader, or the script accumulates itself"
            ]
        elif report.get("batch_norm") and len(self._space.axes[MBS]) == 1:
            notes.append(
                "the micro-batch stays as it is, because BatchNorm sees it: --args search=mbs+strategy tries it"
            )
        notes += model_notes(None if self._given.model else LiveModel.of(run.model), planned, self._subject.get())
        return [*notes, *self._lever_notes("")]

    def explain(self, params: Mapping[str, Value]) -> str | None:
        for size, zero in self._too_large:
            if int(params[MBS]) > size and strategy_of(params)[0] <= zero:
                return f"micro-batch {params[MBS]} takes no less memory than one that ran out of it"
        return self._space.explain(params)

    def observe(self, trial: Trial) -> None:
        point = trial.params or (self._space.first_point if trial.is_baseline else {})
        if trial.outcome is Outcome.OOM and MBS in point:
            self._too_large.append((int(point[MBS]) - trial.is_rerun, strategy_of(point)[0]))

    def decisive(self) -> tuple[str, ...]:
        return (MBS,)

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        at = LightningPoint(job=self._space.job, params=dict(params))
        return self._levers.offered([lever for lever in LEVERS if lever.is_for(at)], at)

    def own_point(self, command: str) -> Params | None:
        return self._space.first_point if self._space.job.report else None

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return the command with the hook, which sets what a point stands for."""
        return watched(command)

    def baseline_command(self, command: str) -> str:
        """Return the user's own command with the hook."""
        return watched(command)

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        settings: dict[str, Any] = {"set": self._space.settings(params) if params else {}, "steps": self._given.steps}
        return hook_files({"lightning": settings}, "accelerate", "model", "trainer")

    def baseline_files(self) -> dict[str, str]:
        return self.files({})

    def result_command(self, command: str, params: Mapping[str, Value], folder: Path) -> str:
        """Return the command that trains with a point's settings, without the hook of a trial."""
        text = hooked(command, f"{{trial_folder}}/{FILE_STEM}") if self._space.settings(params) else command
        return fill_placeholders(text, {"trial_folder": str(folder)})[0]

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        """Return the folder that sets what the best command trains with."""
        settings = self._space.settings(params)
        return hook_files({"lightning": {"set": settings}}, folder=FILE_STEM) if settings else {}

    def label(self, params: Mapping[str, Value]) -> str:
        return self._labelled(
            [f"mbs{params[MBS]}", *(str(params[name]) for name in (STRATEGY,) if name in params)], params
        )

    def evaluator(self) -> TuningEvaluator:
        found = LightningEvaluator(n_gpus=self._space.job.num_processes, check=self._given.check)
        found.asked = self.asked
        return found

    def asked(self, params: Mapping[str, Value]) -> RunAsked:
        """Return what the job of a point must say of itself."""
        job, (zero, wrapper) = self._space.job, strategy_of(params)
        stage = {"zero_optimization.stage": zero} if wrapper == "DeepSpeedEngine" else {}
        return RunAsked(
            num_processes=job.num_processes,
            wrapper=wrapper if STRATEGY in params else None,
            settings={**stage, **self._space.lever_settings(params)},
            samples=job.samples,
            passes=self._space.accumulation(params) if job.micro_batch and params else None,
        )

    def notes(self, command: str) -> list[str]:
        steps = self._given.steps
        return [
            f"trials make {steps} updates each (--args steps=N), up to {MOST_TIMES * steps} where a GPU is quick,"
            " without logging, validation and checkpoints: the hook sets that, and the best command is without it"
        ]

    def _looked_up(self) -> PlanSubject:
        # Not at the top: the catalogs are loaded only where a plan is made.
        from zenith_tune.describe.framework_spec import load_framework

        job, run, named = self._space.job, self._run, self._given.model
        live = LiveModel.of(run.model) if run else None
        if run is None or (live is None and named is None):
            raise UsageError("the model is seen when your own command runs", hint="or give --args model=NAME")
        if job.settings.get("precision") not in PLANNED or not job.micro_batch:
            raise UsageError("layouts are planned where precision is 32 or mixed, and the batch is known")
        if job.num_processes > 1 and job.report.get("wrapper") != PLAIN:
            raise UsageError("layouts of Lightning are planned for plain data parallelism")
        model = live.spec() if live and named is None else job_model(named)
        shown = live.input_shape[1] if live and len(live.input_shape) > 1 else None
        seq_len = (model.traced.num_tokens if model.traced else None) or self._given.seq or shown
        if seq_len is None:
            raise UsageError("the length of the sequences is not known", hint="give --args seq=2048")
        precision = run.precision if run.precision in ("bf16", "fp16") else "fp32"
        return PlanSubject(
            model=model,
            cluster=seen_cluster(self._given.cluster, job.num_processes, self._given.topology, run.gpu),
            job=JobSpec(seq_len=seq_len, framework=load_framework(FRAMEWORK), precision=precision),
        )
