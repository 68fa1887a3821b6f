"""Fine-tuning and pre-training by NeMo Automodel: micro-batch, tensor parallelism and recomputation, by options."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.steps import JobSizes, LoggedSteps
from zenith_tune.presets.automodel.command import find_recipe
from zenith_tune.presets.automodel.job import (
    EP,
    GLOBAL_BATCH,
    LEVERS,
    MICRO_BATCH,
    PP,
    RULES,
    AutomodelJob,
    read_steps,
)
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.shared.config_preset import IN_FOLDER, ConfigPreset
from zenith_tune.presets.shared.launched_gpus import job_gpus, started_gpus
from zenith_tune.presets.shared.training_files import flat, read_yaml
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.rank_launcher import last_option
from zenith_tune.study.parameters import Value
from zenith_tune.units import whole

NEVER = 1_000_000_000
_DUMP = re.compile(r"^((?:[\w-]+:.*\n(?:[ -].*\n)*){3,})", re.MULTILINE)
"""The configuration that a run prints, in sections."""


@PresetRegistry.register("automodel")
class AutomodelPreset(ConfigPreset[AutomodelJob]):
    """Tune a command that trains by a recipe of NeMo Automodel and names its YAML.

    Trials and the best command are the user's own with options that win over the file. The global batch stays what it
    is. `search` lists tp, checkpointing and mbs; `steps` are those of a trial.
    """

    title, declared, rules, framework = "preset automodel", LEVERS, RULES, "fsdp"

    def _read_job(self, command: str) -> AutomodelJob:
        file = find_recipe(command)
        if file is None or not isinstance(file.content, Mapping):
            problem = f"{self.title} reads the job from the YAML of a recipe, but the command names none"
            raise UsageError(problem, hint="give `automodel recipe.yaml --nproc-per-node 8`")
        line = ParsedCommand.of(command)
        asked = whole(last_option(line.arguments, "--nproc-per-node") or "")
        values = flat(file.content)
        own = {option[2:]: value for option, value in _options(line.arguments).items() if "." in option}
        started = started_gpus(command) or asked
        num_gpus = job_gpus(self.title, self._given.n_gpus, started, option="--nproc-per-node")
        job = AutomodelJob(num_gpus=num_gpus, values={**values, **own})
        for key in (MICRO_BATCH, GLOBAL_BATCH):
            if type(job.values.get(key)) is not int:
                raise UsageError(f"{self.title} needs {key}, but the recipe has none", hint="write it into the YAML")
        if job.count(PP) > 1 or job.count(EP) > 1:
            problem = f"{self.title} tunes jobs without pipeline and expert parallelism"
            raise UsageError(f"{problem}, but pp is {job.count(PP)} and ep {job.count(EP)}", hint="use --space")
        return job

    def _in_trials(self) -> dict[str, Any]:
        trackers = ("wandb",) if any(key.startswith("wandb.") for key in self._space.job.values) else ()
        return {
            "step_scheduler.max_steps": self._given.steps,
            "step_scheduler.ckpt_every_steps": NEVER,
            "step_scheduler.val_every_steps": NEVER,
            "checkpoint.enabled": False,
            "checkpoint.checkpoint_dir": f"{IN_FOLDER}/checkpoints",  # its log of steps lies there
            **{f"{name}.enable": False for name in trackers},
        }

    def _written(self, command: str, values: Mapping[str, Any]) -> str:
        options = {f"--{key}": value for key, value in values.items()}
        return ParsedCommand.of(command).set(options, keeps_names=True).text if options else command

    def _fault(self, log: str, asked: Mapping[str, Value]) -> str | None:
        ran = _printed(log)
        for key, wanted in asked.items():
            if key in ran and str(ran[key]).lower() != str(wanted).lower():
                return f"the run was configured with {key}={ran[key]}, where {wanted} was asked for"
        return None

    def _read_steps(self, log: str) -> LoggedSteps:
        return replace(read_steps(log), sizes=JobSizes(n_gpus=self._space.job.num_gpus))

    def _looked_up(self) -> PlanSubject:
        if any(key.startswith("peft.") for key in self._space.job.values):
            raise UsageError("layouts are planned for training all parameters, but the recipe trains adapters")
        return super()._looked_up()


def _options(arguments: list[str]) -> dict[str, Any]:
    """Return the options of a command as Automodel reads them: --key=value, --key value, or a bare --key."""
    found: dict[str, Any] = {}
    for at, word in enumerate(arguments):
        if not word.startswith("--"):
            continue
        name, equals, value = word.partition("=")
        following = arguments[at + 1] if at + 1 < len(arguments) else "--"
        text = value if equals else "true" if following.startswith("--") else following
        found[name] = read_yaml(text)
    return found


def _printed(log: str) -> dict[str, Any]:
    """Return the values of the configuration that a run prints before it trains."""
    for match in _DUMP.finditer(log):
        try:
            found = read_yaml(match[1])
        except ValueError:
            continue
        if isinstance(found, Mapping) and "step_scheduler" in found:
            return flat(found)
    return {}
