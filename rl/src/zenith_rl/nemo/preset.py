"""Reinforcement learning by NeMo RL: how answers are generated, scored and trained on, by overrides of its YAML."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from zenith_rl.nemo.command import PROGRAMS, find_run
from zenith_rl.nemo.config import composed, resolved
from zenith_rl.nemo.job import (
    COUNTS,
    DIVISIBLE,
    GPUS,
    LEVERS,
    LOG_PROB_BATCH,
    MEMORY,
    NODES,
    PHASES,
    RULES,
    NemoJob,
    read_steps,
)
from zenith_rl.phase_preset import PhasePreset
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.shared.config_preset import IN_FOLDER
from zenith_tune.presets.shared.training_files import flat
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import last_option
from zenith_tune.shell.scripts.runs import ProgramRun

LOGGERS = ("wandb", "tensorboard", "mlflow", "swanlab")


@PresetRegistry.register("nemo-rl")
class NemoPreset(PhasePreset[NemoJob]):
    """Tune a command, or a script, that trains by GRPO with NeMo RL's run_grpo.py.

    Trials and the best command are the user's own with other overrides. Prompts, answers, lengths and updates of a step
    stay what they are. `search` lists tp and memory of the engines; train_tp, mbs or tokens, log_probs, checkpointing
    and offload of training.
    """

    title, declared, rules, reads = "preset nemo-rl", LEVERS, RULES, read_steps
    program, of_phases, gpus = "uv run python examples/run_grpo.py --config FILE", PHASES, (GPUS, NODES)
    to_the_limit = "policy.generation.ignore_eos"
    _spelled: Mapping[str, str] = {}
    """How overrides must be written, where that is not by their key alone."""
    _known: frozenset[str] = frozenset()
    """The keys of the configuration."""

    def _read_job(self, command: str) -> NemoJob:
        run, written = self._own_run(command, find_run(command))
        tables = composed(self._config(run))
        own = {key.lstrip("+"): value for key, value in written.items()}
        self._known, self._spelled = frozenset(flat(tables)), {key.lstrip("+"): key for key in written}
        values, plain = resolved(tables, own), {**flat(tables), **own}
        self._refuse_counts(values, COUNTS)
        if MEMORY in values:
            self._refuse_share(values, MEMORY)
        log_probs, divisible = values.get(LOG_PROB_BATCH), plain.get(DIVISIBLE)
        if isinstance(plain.get(LOG_PROB_BATCH), str):
            del values[LOG_PROB_BATCH]  # it follows the micro-batch, unless it is written out
        return NemoJob(
            num_gpus=self._num_gpus(values),
            values=values,
            log_probs=log_probs if type(log_probs) is int and log_probs > 0 else 1,
            divisible_by=divisible if type(divisible) is int else None,
        )

    def _config(self, run: ProgramRun) -> Path:
        named = last_option(run.arguments, "--config")
        path = PurePosixPath(run.program).parent / "configs" / PROGRAMS[PurePosixPath(run.program).name]
        if run.folder is None:
            problem = f"{self.title} must read {named or path}, but only a shell knows the folder that it is in"
            raise UsageError(problem, hint="give its absolute path")
        return run.folder / (named or path)

    def _measured(self) -> dict[str, Any]:
        values = self._space.job.values
        ends_by = "grpo.stop_at_validation_metric"
        return {
            "grpo.max_num_steps": self._given.steps,
            "grpo.val_period": 0,
            "grpo.val_at_start": False,
            "grpo.val_at_end": False,
            **({ends_by: "null"} if values.get(ends_by) else {}),
            "checkpointing.enabled": False,
            # A checkpoint that is there is continued from, also where none is saved.
            "checkpointing.checkpoint_dir": f"{IN_FOLDER}/checkpoints",
            "logger.log_dir": f"{IN_FOLDER}/logs",
            **{key: False for each in LOGGERS if values.get(key := f"logger.{each}_enabled") is True},
        }

    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        spelled = {self._spelled.get(key, key if key in self._known else f"++{key}"): values[key] for key in values}
        return ParsedCommand.of(command).override(spelled).text
