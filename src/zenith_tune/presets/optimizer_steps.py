"""What `--space` measures where nothing says what to read: the steps of a program's optimizer, by a hook."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zenith_tune.evaluators.base import Measurement
from zenith_tune.presets import step_hook
from zenith_tune.presets.accelerate import hook as accelerate_hook
from zenith_tune.presets.accelerate.evaluator import AccelerateEvaluator
from zenith_tune.presets.shared.trial_hook import HOOK_SOURCES, hook_files

STEP_HOOK = hook_files(
    {
        "sitecustomize": Path(step_hook.__file__),
        "zenithtune_accelerate_hook": Path(accelerate_hook.__file__),
        **HOOK_SOURCES,
    }
)


class StepEvaluator(AccelerateEvaluator):
    """Read the steady time of an optimizer's step by the lines of the trial's hook; `hint` says what else could be."""

    def __init__(self, hint: str) -> None:
        super().__init__("latency", check=False)
        self._hint = hint

    def describe(self) -> str:
        """Say what is measured."""
        return f"seconds of an optimizer's step, {self.direction}"

    def _from_other_lines(self, log: str, metadata: Mapping[str, Any]) -> Measurement:
        raise ValueError(f"no two steps of an optimizer of torch were seen: {self._hint}")
