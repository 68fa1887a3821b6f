"""Training by the Trainer of transformers and the trainers of TRL: batch, gradient checkpointing, and its arguments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.evaluators.hooked_run import RunAsked
from zenith_tune.hooks.injection import hook_files
from zenith_tune.hooks.process import MOST_TIMES
from zenith_tune.hooks.trainer import HERE
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.parts import ConfirmingRun
from zenith_tune.presets.shared.hooked_job import MBS, RECOMPUTE
from zenith_tune.presets.shared.hooked_preset import HookedPreset
from zenith_tune.presets.shared.launched_gpus import launched_resources
from zenith_tune.presets.shared.trial_hook import watched
from zenith_tune.presets.trainer.command import (
    ACCUMULATION,
    CHECKPOINTING,
    FILE_STEM,
    GENERATION_BATCH,
    MICRO_BATCH,
    NUM_ITERATIONS,
    PACKING,
    PRESET,
    STEPS_PER_GENERATION,
    with_file,
    with_options,
)
from zenith_tune.presets.trainer.dialect import Dialect
from zenith_tune.presets.trainer.evaluator import TrainerEvaluator
from zenith_tune.presets.trainer.job import Carrier, TrainerJob, live_job, live_notes, read_job
from zenith_tune.presets.trainer.levers import LEVERS, PACKAGES, REPORTED
from zenith_tune.presets.trainer.log import SAMPLE_PACKING, TrainerRun
from zenith_tune.presets.trainer.space import TrainerSpace
from zenith_tune.study.parameters import Value
from zenith_tune.study.resources import InPlace, Resources
from zenith_tune.study.trial import Trial

ALWAYS_REPORTED = (
    *(MICRO_BATCH, ACCUMULATION, CHECKPOINTING),
    *(SAMPLE_PACKING, GENERATION_BATCH, STEPS_PER_GENERATION, NUM_ITERATIONS),
)
AUTO_BATCH = "auto_find_batch_size"
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
class TrainerPreset(HookedPreset[TrainerSpace, TrainerJob]):
    """Tune a script that trains by Hugging Face's Trainer, or by one of TRL, however it is started.

    The global batch stays what it is: accumulation follows the micro-batch. Each trial makes `steps` updates, or more
    where they are quick, without logging, evaluation and saving, and fails where its Trainer was made with other
    arguments than were asked for, unless `check` is false. Levers are arguments of the Trainer.
    """

    title, declared, hook, file_stem = PRESET, LEVERS, "trainer", FILE_STEM
    dialect: ClassVar[Dialect | None] = None
    """How the program spells arguments, where it has names of its own for them."""
    _arrives = False
    """Whether a trial has trained with another micro-batch than the user's own command."""

    def _read_job(self, command: str) -> TrainerJob:
        return read_job(command, self._given, self.dialect)

    def _run_job(self, log: str) -> tuple[TrainerRun, TrainerJob | None]:
        run = TrainerRun.read(log)
        return run, live_job(self._space.job, run) if run.trainer is not None else None

    def _search(self, job: TrainerJob) -> TrainerSpace:
        return TrainerSpace.of(job, self._given.search, self._given.mbs_max)

    def _job_notes(self) -> list[str]:
        return live_notes(self._space.job)

    def decisive(self) -> tuple[str, ...]:
        return (MBS, RECOMPUTE)

    def confirming(self, params: Mapping[str, Value]) -> ConfirmingRun:
        """Return the run of a point whose first updates have the longest samples."""
        values = self._carried(params, Carrier.HOOK)
        files = {**self._trial_hook(values, meets_longest=True), **self._argument_file(params)}
        return ConfirmingRun(meets="the longest samples", files=files, smaller=self._space.smaller(params))

    def in_place(self, params: Mapping[str, Value]) -> InPlace | None:
        """Return the batch, and gradient checkpointing of a plain Trainer on one rank: a training begins with them."""
        job, arguments = self._space.job, self._space.arguments(params)
        if self.dialect is not None or job.trainer is None:
            return None
        is_plain = job.num_processes == 1 and job.trainer.kind == "Trainer"
        names = (MICRO_BATCH, ACCUMULATION, *((CHECKPOINTING,) if is_plain else ()))
        values = {name: arguments.pop(name) for name in names if name in arguments}
        shares = json.dumps([arguments, self._variables(params)], sort_keys=True)
        return InPlace(values=values, shares=shares, is_proven=self._arrives)

    def observe(self, trial: Trial) -> None:
        super().observe(trial)
        self._arrives |= trial.ok and trial.params.get(MBS) not in (None, self._space.job.micro_batch)

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
        file, changes = self._space.job.file, self._carried(params, Carrier.FILE)
        return {file.trial_name: file.having(changes)} if file and changes else {}

    def _hooked_values(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return self._carried(params, Carrier.HOOK)

    def _trial_hook(self, values: Mapping[str, Value], *, meets_longest: bool = False) -> dict[str, str]:
        settings = {
            "set": {**IN_TRIALS, "max_steps": MOST_TIMES * self._given.steps, **values},
            "steps": self._given.steps,
            "report": sorted({*ALWAYS_REPORTED, *REPORTED}),
            "packages": PACKAGES,
            **({"longest": True} if meets_longest else {}),
        }
        return hook_files(
            {"trainer": settings}, "accelerate", "model", "orders", *(("longest",) if meets_longest else ())
        )

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
        """Return what a point's job must say of itself; rows of packed samples are counted by their tokens."""
        found = super().asked(params)
        return replace(found, samples=None, batch=self._space.job.global_batch) if params.get(PACKING) else found

    def warnings(self, command: str) -> list[str]:
        if not self._space.job.arguments.get(AUTO_BATCH):
            return []
        return [f"{AUTO_BATCH} is off in trials: it would change the batch that they are compared by"]

    def notes(self, command: str) -> list[str]:
        job, notes = self._space.job, super().notes(command)
        if not job.reads_options and job.file is None:
            notes.append("the command shows no argument of a Trainer: its run shows whether the script makes one")
        return notes
