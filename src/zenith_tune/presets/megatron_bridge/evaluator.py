"""The evaluator of Megatron-Bridge: Megatron's iteration lines, of a run that was configured as it was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from zenith_tune.evaluators.base import EvaluatorRegistry, Measurement, OtherSettingsError, Progress
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron_bridge.config import RecipeConfig
from zenith_tune.study.parameters import Value


@EvaluatorRegistry.register("megatron-bridge")
class MegatronBridgeEvaluator(MegatronEvaluator):
    """Read the steady speed from the iteration lines; the sequence is that of the configuration that the run prints."""

    def __init__(self, objective: str = "tokens_per_s", gbs: int | None = None, seq: int | None = None) -> None:
        super().__init__(objective, gbs, seq)
        self.asked: Callable[[Mapping[str, Value]], Mapping[str, Value]] = lambda params: {}
        """The overrides of a point."""

    def with_objective(self, name: str) -> MegatronBridgeEvaluator:
        """Return the evaluator of the same job that reads another objective."""
        other = type(self)(name, gbs=self.gbs, seq=self.seq)
        other.asked = self.asked
        return other

    def describe(self) -> str:
        """Say what is measured; batch and sequence are those of the run itself."""
        return f"megatron {self.objective}, {self.direction}"

    def measure(self, stdout: str, metadata: Mapping[str, Any]) -> Measurement:
        """Return the value of a run that was configured as its trial asked."""
        config = RecipeConfig.in_log(stdout)
        params = metadata.get("parameters") or {}
        if config is not None and params and (fault := config.fault(self.asked(params))):
            raise OtherSettingsError(fault)
        return self._of(config).measure(stdout, metadata)

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        """Return the values of the steady lines so far."""
        return self._of(RecipeConfig.in_log(stdout)).progress(stdout, metadata)

    def _of(self, config: RecipeConfig | None) -> MegatronEvaluator:
        length = config.get("seq_length") if config else None
        return MegatronEvaluator(self.objective, self.gbs, self.seq or (length if type(length) is int else None))
