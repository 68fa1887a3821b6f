"""Reinforcement learning by verl: how answers are generated, scored and trained on, by overrides."""

from __future__ import annotations

from typing import Any

from zenith_rl.phase_preset import PhasePreset
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
    ROLLOUT,
    RULES,
    VerlJob,
    read_steps,
)
from zenith_tune.errors import UsageError
from zenith_tune.presets.base import PresetRegistry
from zenith_tune.presets.shared.config_preset import IN_FOLDER


@PresetRegistry.register("verl")
class VerlPreset(PhasePreset[VerlJob]):
    """Tune a command, or a script, that trains by reinforcement with verl's main_ppo.

    Trials and the best command are the user's own with other overrides. Prompts, answers, lengths and updates of a step
    stay what they are. `search` lists tp and memory of the engines, mbs or tokens, log_probs, checkpointing, offload.
    """

    title, declared, rules, reads = "preset verl", LEVERS, RULES, read_steps
    program, of_phases, gpus = f"python3 -m {MODULE}", PHASES, (GPUS, NODES)
    to_the_limit = f"{ROLLOUT}.ignore_eos"

    def _read_job(self, command: str) -> VerlJob:
        _, written = self._own_run(command, find_run(command))
        own = {key.lstrip("+"): value for key, value in written.items()}
        values = {**DEFAULTS, **own}
        is_counted = MICRO_BATCH in own and values[BY_TOKENS] is not True
        self._refuse_counts(values, (*COUNTS, *([MICRO_BATCH] if is_counted else [])))
        self._refuse_share(values, MEMORY)
        job = VerlJob(num_gpus=self._num_gpus(values), values=values)
        if not job.by_tokens and MICRO_BATCH not in own:
            problem = f"{self.title} needs {MICRO_BATCH}, or {BY_TOKENS}=True, as verl does"
            raise UsageError(problem, hint="write it into the command")
        return job

    def _measured(self) -> dict[str, Any]:
        return {
            "trainer.total_training_steps": self._given.steps,
            "trainer.save_freq": -1,
            "trainer.test_freq": -1,
            "trainer.val_before_train": False,
            "trainer.resume_mode": "disable",
            "trainer.logger": "[console]",
            "trainer.default_local_dir": f"{IN_FOLDER}/checkpoints",
        }
