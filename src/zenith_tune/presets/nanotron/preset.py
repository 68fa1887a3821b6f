"""Pre-training with nanotron: parallel sizes, micro-batch, ZeRO and recomputation, by changed copies of its YAML."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import JobSizes, LoggedSteps
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.nanotron.command import OPTION, find_config
from zenith_tune.presets.nanotron.job import (
    CP,
    DP,
    EP,
    LEVERS,
    PP,
    RULES,
    TP,
    NanotronJob,
    read_steps,
    shown_values,
)
from zenith_tune.presets.shared.config_file import ConfigFile
from zenith_tune.presets.shared.config_preset import IN_FOLDER, ConfigPreset
from zenith_tune.presets.shared.launched_gpus import started_gpus
from zenith_tune.presets.shared.training_files import flat, yaml_text
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.parameters import Value

NEVER = 1_000_000_000
SAVES_AT_END = "checkpoints.save_final_state"
"""A key of later releases, which older ones refuse."""


@PresetRegistry.register("nanotron")
class NanotronPreset(ConfigPreset[NanotronJob]):
    """Tune a command that trains with nanotron and names its YAML by --config-file.

    Trials and the best command have a changed copy of it. The global batch stays what it is. `search` lists tp, pp,
    zero, recompute and mbs; `steps` are those of a trial.
    """

    title, declared, rules, framework = "preset nanotron", LEVERS, RULES, "nanotron"
    _file: ConfigFile | None = None

    def _read_job(self, command: str) -> NanotronJob:
        self._file = find_config(command)
        if self._file is None:
            problem = f"{self.title} reads the job from the YAML that {OPTION} names, but the command has none"
            raise UsageError(problem, hint=f"give `torchrun --nproc-per-node 8 run_train.py {OPTION} FILE`")
        job = NanotronJob(num_gpus=1, values=flat(self._file.content))
        if job.count(EP) > 1:
            raise UsageError(f"{self.title} tunes dense models, but {EP} is {job.count(EP)}", hint="use --space")
        sizes = {key: job.count(key) for key in (TP, PP, CP, DP)}
        own = math.prod(sizes.values())
        num_gpus = self._given.n_gpus or started_gpus(command) or own
        if own != num_gpus:
            shown = " * ".join(f"{key.rpartition('.')[2]} {size}" for key, size in sizes.items())
            raise UsageError(f"{shown} = {own} GPUs, but the command starts {num_gpus}", hint="change one of them")
        return replace(job, num_gpus=num_gpus)

    def _in_trials(self) -> dict[str, Any]:
        return {
            "tokens.train_steps": self._given.steps,
            "tokens.val_check_interval": -1,
            "checkpoints.checkpoint_interval": NEVER,
            "checkpoints.save_initial_state": False,
            "checkpoints.resume_checkpoint_path": None,
            **{key: False for key in (SAVES_AT_END,) if key in self._space.job.values},
            "logging.iteration_step_info_interval": 1,
            # A warm-up that is longer than the trial would leave no steps to decay in.
            "optimizer.learning_rate_scheduler.lr_warmup_steps": 1,
            "optimizer.learning_rate_scheduler.lr_decay_steps": self._given.steps - 1,
            "optimizer.learning_rate_scheduler.lr_decay_starting_step": None,
        }

    def read_baseline(self, log: str) -> list[str]:
        """Learn from a run of the command whether its release can recompute layers."""
        shown = shown_values(log)
        if shown.keys() - self._space.job.values.keys():
            self._bind_job(replace(self._space.job, values={**shown, **self._space.job.values}))
        return []

    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        assert self._file is not None, "of a command that was bound"
        return ParsedCommand.of(command).with_argument(self._file.path, f"{IN_FOLDER}/{self._file.name}").text

    def _text(self, values: Mapping[str, Any]) -> dict[str, str]:
        """Return the user's file with other values."""
        assert self._file is not None, "of a command that was bound"
        content = copy.deepcopy(self._file.content)
        for key, value in values.items():
            *sections, name = key.split(".")
            table = content
            for section in sections:
                table = table.setdefault(section, {})
            table[name] = value
        return {self._file.name: yaml_text(content)}

    def files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return self._text({**self._space.changed(params), **self._in_trials()})

    def baseline_files(self) -> dict[str, str]:
        return self._text(self._in_trials())

    def result_files(self, params: Mapping[str, Value]) -> dict[str, str]:
        return self._text(self._space.changed(params))

    def _read_steps(self, log: str) -> LoggedSteps:
        found, job = read_steps(log), self._space.job
        return replace(
            found, sizes=JobSizes(gbs=job.global_batch, seq=self._given.seq or job.seq_len, n_gpus=job.num_gpus)
        )
