"""A log of TRL's GRPO trainer: its steps, the phases that a trial's hook noted, and its answers.

TRL prints lines such as {'loss': '0.01', ..., 'completions/mean_length': '310.5', 'completions/max_length': '1024'}.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from zenith_rl.phases import Answers, Phase, findings
from zenith_tune.evaluators.engine_log import read_trainer_steps
from zenith_tune.evaluators.hooked_run import HookedRun
from zenith_tune.evaluators.hooked_speed import hooked_steps
from zenith_tune.evaluators.steps import LoggedSteps, read_number

SETTINGS: Mapping[str, str] = {
    Phase.GENERATION: "use_vllm=True with vllm_mode=colocate, and vllm_gpu_memory_utilization",
    Phase.REWARDS: "reward functions that run side by side, such as asynchronous ones",
    Phase.SYNC: "more steps for each generation (steps_per_generation)",
}
"""The options of each phase."""
_LENGTH = re.compile(r"'completions/(mean|max)_length': '?([0-9.]{1,20})")


def read_steps(log: str) -> LoggedSteps:
    """Return the steps of a log of GRPO; none of others."""
    lengths = {which: read_number(text) for which, text in _LENGTH.findall(log)}
    if not lengths:
        return LoggedSteps()
    run = HookedRun.read(log)
    logged = LoggedSteps(steps=hooked_steps(run), peak_bytes=run.peak_bytes)
    if not logged.steps:
        return read_trainer_steps(log)
    answers = Answers(mean=lengths.get("mean"), longest=lengths.get("max"))
    return replace(logged, findings=findings(logged.phases, answers, SETTINGS))
