"""Reinforcement learning by verl: how answers are generated, scored and trained on, by overrides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zenith_rl.verl.command import MODULE, find_run
from zenith_rl.verl.job import (
    BY_TOKENS,
    COUNTS,
    DEFAULTS,
    GPUS,
    LEVERS,
    MEMORY,
    MICRO_BATCH,
    NODES,
    PHASES,
    RULES,
    VerlJob,
    read_steps,
)
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import JobSizes, LoggedSteps
from zenith_tune.planner.limits import MAX_BATCH
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.shared.config_preset import IN_FOLDER, ConfigPreset
from zenith_tune.presets.shared.launched_gpus import job_gpus
from zenith_tune.presets.shared.training_files import read_yaml
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.parsed_command import OVERRIDE
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.parameters import Value
from zenith_tune.study.resources import Resources


def _refuse_values(values: Mapping[str, Any]) -> None:
    for key in (*COUNTS, *([MICRO_BATCH] if MICRO_BATCH in values and values[BY_TOKENS] is not True else [])):
        if type(values[key]) is not int or not 1 <= values[key] <= MAX_BATCH:
            problem = f"preset verl must know {key} as a whole number above 0, but got {values[key]!r}"
            raise UsageError(problem, hint="write the number into the command")
    share = values[MEMORY]
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise UsageError(f"{MEMORY} must be above 0 and at most 1, but got {share!r}", hint="change it")


@PresetRegistry.register("verl")
class VerlPreset(ConfigPreset[VerlJob]):
    """Tune a command, or a script, that trains by reinforcement with verl's main_ppo.

    Trials and the best command are the user's own with other overrides. Prompts, answers, lengths and updates of a step
    stay what they are. `search` lists tp and memory of the engines, mbs or tokens, log_probs, checkpointing, offload.
    """

    title, declared, rules = "preset verl", LEVERS, RULES

    def _read_job(self, command: str) -> VerlJob:
        run = find_run(command)
        if run is None:
            problem = f"{self.title} tunes training by verl, but the command does not start it"
            raise UsageError(problem, hint=f"give `python3 -m {MODULE} KEY=VALUE ...`, or a script that does")
        if run.script and run.added_at is None:
            problem = f"{run.script} does not pass its arguments on, so that no setting reaches verl"
            raise UsageError(problem, hint='put "$@" at the end of its training command')
        own = {match[1].lstrip("+"): word[match.end() :] for word in run.arguments if (match := OVERRIDE.match(word))}
        late = [word for word in run.arguments[run.added_at or 0 :] if OVERRIDE.match(word)] if run.script else []
        if late:
            problem = f"{run.script} has {late[0]} behind the arguments that it passes on, where it wins over a trial's"
            raise UsageError(problem, hint='put "$@" at the end of its training command')
        values = {**DEFAULTS, **{key: read_yaml(text) for key, text in own.items()}}
        _refuse_values(values)
        started = values[GPUS] * values[NODES] if type(values[GPUS]) is type(values[NODES]) is int else None
        num_gpus = job_gpus(self.title, self._given.n_gpus, started, option=f"{GPUS}=")
        job = VerlJob(num_gpus=num_gpus, values=values)
        if not job.by_tokens and MICRO_BATCH not in own:
            problem = f"{self.title} needs {MICRO_BATCH}, or {BY_TOKENS}=True, as verl does"
            raise UsageError(problem, hint="write it into the command")
        return job

    def resources(self, command: str) -> Resources:
        job = self._space.job
        return Resources(nodes=job.count(NODES), gpus_per_node=job.count(GPUS))

    def phases(self) -> Mapping[str, tuple[str, ...]]:
        return PHASES

    def get_recommended_strategy(self) -> TuningStrategy:
        from zenith_rl.strategy import PhasesStrategy

        return PhasesStrategy()

    def _in_trials(self) -> dict[str, Any]:
        return {
            "trainer.total_training_steps": self._given.steps,
            "trainer.save_freq": -1,
            "trainer.test_freq": -1,
            "trainer.val_before_train": False,
            "trainer.resume_mode": "disable",
            "trainer.logger": "[console]",
            "trainer.default_local_dir": f"{IN_FOLDER}/checkpoints",
        }

    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        return ParsedCommand.of(command).override(values).text

    def label(self, params: Mapping[str, Value]) -> str:
        words = {"tokens": "tokens", "mbs": "mbs", "log_probs": "log-probs", "tp": "engines TP", "memory": "memory "}
        shown = [f"{word}{params[name]}" for name, word in words.items() if name in params and self._shows(name)]
        shown += [f"{'' if params[name] else 'no '}{name}" for name in ("checkpointing", "offload") if name in params]
        return self._labelled(shown, params)

    def _shows(self, name: str) -> bool:
        return not (name == "mbs" and self._space.job.by_tokens)

    def _read_steps(self, log: str) -> LoggedSteps:
        return replace(read_steps(log), sizes=JobSizes(n_gpus=self._space.job.num_gpus))
