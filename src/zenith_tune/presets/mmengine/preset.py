"""Training by MMEngine's Runner (mmdet, mmseg, mmpretrain ...): data workers, levers and micro-batch, by options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import JobSizes, LoggedSteps
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.mmengine.command import OPTION, find_run, with_options
from zenith_tune.presets.mmengine.job import ACCUMULATION, LEVERS, RULES, MMEngineJob, printed_job, read_steps
from zenith_tune.presets.shared.config_preset import IN_FOLDER, ConfigPreset
from zenith_tune.presets.shared.launched_gpus import pretrain_gpus, run_resources
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Params, Value
from zenith_tune.study.resources import Resources

WORK_DIR, RESUME = "--work-dir", "--resume"
NEVER = 1_000_000_000
IN_TRIALS: dict[str, Any] = {
    "train_cfg._delete_": True,
    "train_cfg.by_epoch": False,
    "train_cfg.val_interval": NEVER,
    "param_scheduler": "None",
    "default_hooks.checkpoint": "None",
    "default_hooks.logger.interval": 1,
    "log_processor.window_size": 1,
    "visualizer": "None",
}
"""Iterations in place of epochs, each in the log by itself; no schedule, checkpoint, validation or tracker."""


@PresetRegistry.register("mmengine")
class MMEnginePreset(ConfigPreset[MMEngineJob]):
    """Tune a script that trains by MMEngine's Runner and takes a configuration and --cfg-options.

    What the configuration sets is read from what the user's own command prints. The global batch stays what it is.
    `search` lists workers and, on request, mbs; `steps` are the updates of a trial.
    """

    title, declared, rules, objective = "preset mmengine", LEVERS, RULES, "samples_per_s"
    most_grid_points = 64

    def _read_job(self, command: str) -> MMEngineJob:
        run = find_run(command)
        if run is None:
            problem = f"{self.title} tunes a script that trains by MMEngine's Runner, but the command has none"
            raise UsageError(problem, hint=f"give `python tools/train.py CONFIG.py`; the script must take {OPTION}")
        if run.script and run.added_at is None:
            problem = f"{run.script} does not pass its arguments on, so that no setting reaches MMEngine"
            raise UsageError(problem, hint='put "$@" at the end of its training command')
        return MMEngineJob(num_gpus=self._given.n_gpus or pretrain_gpus(run) or 1, values={})

    def read_baseline(self, log: str) -> list[str]:
        """Learn the configuration from what the user's own command printed."""
        job = printed_job(log)
        if job is None:
            if not self._space.job.is_known:
                problem = f"{self.title} can only learn what a configuration sets by running it"
                raise UsageError(problem, hint="leave --no-baseline out")
            return []
        # The trial's own settings are none of the user's.
        self._bind_job(replace(job, values={key: each for key, each in job.values.items() if key not in IN_TRIALS}))
        return self.notes("")[:1]

    def resources(self, command: str) -> Resources:
        return run_resources(command, find_run(command), self._space.job.num_gpus)

    def own_point(self, command: str) -> Params | None:
        return super().own_point(command) if self._space.job.is_known else None

    def _in_trials(self) -> dict[str, Any]:
        return IN_TRIALS

    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        line = ParsedCommand.of(command)
        if IN_TRIALS.keys() <= values.keys():
            line = line.set({WORK_DIR: f"{IN_FOLDER}/work"}).remove(RESUME)
            passes = int(values.get(ACCUMULATION) or self._space.job.count(ACCUMULATION))
            values = {**values, "train_cfg.max_iters": self._given.steps * passes}
        return with_options(line.text, values)

    def _fault(self, log: str, asked: Mapping[str, Value]) -> str | None:
        job = printed_job(log)
        for key, wanted in asked.items() if job else ():
            if job is not None and job.values.get(key) != wanted:
                return f"the run was configured with {key}={job.values.get(key)}, where {wanted} was asked for"
        return None

    def label(self, params: Mapping[str, Value]) -> str:
        return self._labelled([f"mbs{params['mbs']}", f"workers{params['workers']}"], params)

    def _read_steps(self, log: str) -> LoggedSteps:
        job = printed_job(log)
        return replace(read_steps(log), sizes=JobSizes(gbs=job.global_batch if job else None))
