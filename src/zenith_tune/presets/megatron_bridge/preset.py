"""Recipes of Megatron-Bridge (NeMo): Megatron's layouts and levers, as overrides of a recipe's configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.describe.megatron.args import MegatronArgs
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.base import TuningEvaluator
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.framework_preset import FrameworkPreset
from zenith_tune.presets.levers import Lever
from zenith_tune.presets.megatron.job import AS_IS, BALANCED, job_of, num_gpus_of, provisional_job
from zenith_tune.presets.megatron.levers.offered import LEVERS
from zenith_tune.presets.megatron.options import BALANCED_ROUTING, Wanted
from zenith_tune.presets.megatron.preset import MegatronLmPreset, what_was_read
from zenith_tune.presets.megatron.space import MegatronLmSpace
from zenith_tune.presets.megatron.written import EXPERTS, SIZES, wanted_switches
from zenith_tune.presets.megatron_bridge.command import PROGRAM, recipe_run
from zenith_tune.presets.megatron_bridge.config import NULL, RecipeConfig
from zenith_tune.presets.megatron_bridge.evaluator import MegatronBridgeEvaluator
from zenith_tune.presets.shared.training_files import path_in_training_folder
from zenith_tune.shell import ParsedCommand
from zenith_tune.shell.scripts.runs import ProgramRun
from zenith_tune.strategies.base import TuningStrategy
from zenith_tune.study.files import open_regular
from zenith_tune.study.parameters import Params, Value

PRESET = "preset megatron-bridge"
SAVED = "logger.save_config_filepath"
"""Where Megatron-Bridge saves its configuration, in a run and by --dry-run."""
IN_TRIALS: dict[str, Value] = {"logger.log_interval": 1, "checkpoint.save": NULL, "checkpoint.load": NULL}
"""What is set in every run that is measured, and the best command is without."""
MAX_BYTES = 1 << 20


def required_run(command: str) -> ProgramRun:
    """Return the same, or raise where there is none that overrides reach."""
    run = recipe_run(command)
    if run is None:
        problem = f"{PRESET} needs a command that runs {PROGRAM}, alone or in a readable script"
        raise UsageError(problem, hint="write it out, or choose another --preset")
    if run.script and run.added_at is None:
        problem = f"{run.script} must pass its arguments on for overrides to be set, but does not"
        raise UsageError(problem, hint=f'hand "$@" on to the end of the line that runs {PROGRAM}')
    return run


def saved_config(command: str, run: ProgramRun) -> RecipeConfig | None:
    """Return the configuration that an earlier run of the command, or its --dry-run, has saved."""
    said = [word.partition("=")[2] for word in run.arguments if word.startswith(f"{SAVED}=")]
    if not said:
        return None
    try:
        path = path_in_training_folder(command, said[-1])
        with open_regular(Path(os.path.realpath(path))) as file:
            return RecipeConfig.of(file.read(MAX_BYTES).decode())
    except (OSError, ValueError, UsageError):
        return None


@PresetRegistry.register("megatron-bridge")
class MegatronBridgePreset(MegatronLmPreset):
    """Tune a recipe of Megatron-Bridge that is started by its run_recipe.py, as preset megatron-lm tunes Megatron-LM.

    What the recipe sets is read from the configuration that its first run prints, or from the file that
    `logger.save_config_filepath` in the command names, where it is there. The global batch stays what it is. Arguments
    are those of preset megatron-lm.
    """

    title = "preset megatron-bridge"
    _run: ProgramRun | None = None
    _config: RecipeConfig | None = None

    def bind(self, command: str) -> None:
        self._run = required_run(command)
        self._config = saved_config(command, self._run)
        self._bind_space(self._read(command))

    def read_baseline(self, log: str) -> list[str]:
        """Learn the recipe's configuration from the run that printed it."""
        found = RecipeConfig.in_log(log)
        if found is None and self._config is None:
            problem = f"{PRESET} knows what a recipe sets by the configuration that a run prints, but there is none"
            hint = f"leave --no-baseline out, or add {SAVED}=F and run it with --dry-run first"
            raise UsageError(problem, hint=hint)
        if found is None:
            return []
        if self._config is None:
            # Its run was measured before it was known to have experts.
            self._given = replace(self._given, routing=AS_IS)
        self._config = found
        return self._job_notes(self._bind_space(self._read("")))

    def own_point(self, command: str) -> Params | None:
        return super().own_point(command) if self._config else None

    def levers(self, command: str, params: Mapping[str, Value]) -> list[Lever]:
        if self._config is None:
            return []
        # Whatever the configuration has can be overridden, wherever it is set.
        found = super().levers(self._space.job.args.line.text, params)
        release = self._space.job.features.release
        known = [each for each in LEVERS if each.first <= release <= each.last]
        keys = [(each.name, each.value) for each in known if all(map(self._config.key, each.sets))]
        return [lever for lever in found if (lever.name, lever.value) in keys]

    def apply_parameters(self, command: str, params: Mapping[str, Value]) -> str:
        """Return `command` with the overrides of a point, which win over its options; before a run, as it is."""
        if self._config is None:
            return command
        asked, given = self._overrides(params), ParsedCommand.of(command).overrides
        needed = {
            key: value
            for key, value in asked.items()
            # A benchmark recipe would scale a batch that is not stated.
            if key in given or key == self._config.key(SIZES["gbs"]) or self._config.fault({key: value})
        }
        return ParsedCommand.of(command).override(needed).text

    def trial_command(self, command: str) -> str:
        """Return the command as it is measured: a line for every iteration, and no checkpoints."""
        routing = {BALANCED_ROUTING: True} if self._space.job.routing == BALANCED else {}
        more = self._config.overrides({**routing}) if self._config else {}
        return ParsedCommand.of(command).override({**IN_TRIALS, **more}).text

    def short_steps(self, params: Mapping[str, Value]) -> None:
        """Return none: what its data loaders make of fewer micro-batches is not known."""

    def logged_as(self, params: Mapping[str, Value]) -> dict[str, Value]:
        return {}  # the evaluator compares the configuration itself

    def get_recommended_strategy(self) -> TuningStrategy:
        # Unlike a command of Megatron-LM, a recipe may train what cannot be planned.
        return FrameworkPreset.get_recommended_strategy(self)

    def evaluator(self) -> TuningEvaluator:
        found = MegatronBridgeEvaluator()
        found.asked = self._overrides
        return found

    def notes(self, command: str) -> list[str]:
        notes = ["runs are measured with logger.log_interval=1, and neither load nor save checkpoints"]
        if self._config is None:
            return [*notes, "what the recipe sets is read from the configuration that your own command prints"]
        return [*self._job_notes(self._space), *notes, *self._lever_notes(command)]

    def _job_notes(self, space: MegatronLmSpace) -> list[str]:
        return [
            what_was_read(space.job),
            f"searched: {', '.join(space.open_names) or 'nothing, there is one layout'}",
        ]

    def _overrides(self, params: Mapping[str, Value]) -> dict[str, Value]:
        space = self._space
        job, layout = space.job, space.layout(params)
        names = {**SIZES, **(EXPERTS if job.has_experts else {})}
        values = {**params, "gbs": layout.global_batch}
        sizes: Wanted = {option: values[name] for name, option in names.items() if name in values}
        return self._config.overrides({**sizes, **wanted_switches(job, layout, params)}) if self._config else {}

    def _looked_up(self) -> PlanSubject:
        if self._config is None:
            raise UsageError("the model is known when your own command has run")
        if any(path.startswith("peft.") for path in self._config.values):  # as for LoRA
            raise UsageError("layouts are planned for training all parameters, but the recipe trains adapters")
        return super()._looked_up()

    def _read(self, command: str) -> MegatronLmSpace:
        run = self._run or required_run(command)
        num_gpus = num_gpus_of(run, self._given)
        if self._config is None:
            return MegatronLmSpace(provisional_job(run, num_gpus), self._limits)
        args = MegatronArgs.of(self._config.flags())
        return MegatronLmSpace(job_of(args, run, self._given, num_gpus), self._limits)
