"""The evaluator of Megatron-Bridge: Megatron's iteration lines, of a run that was configured as its trial asked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from zenith_tune.evaluators.base import EvaluatorRegistry, OtherSettingsError
from zenith_tune.evaluators.steps import LoggedSteps
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.presets.megatron_bridge.config import RecipeConfig
from zenith_tune.study.parameters import Value


@EvaluatorRegistry.register("megatron-bridge")
class MegatronBridgeEvaluator(MegatronEvaluator):
    """The steady speed by the iteration lines; the sequence is that of the configuration that the run prints."""

    asked: Callable[[Mapping[str, Value]], Mapping[str, Value]] = staticmethod(lambda params: {})
    """The overrides of a point."""

    def __init__(self, objective: str = "tokens_per_s", gbs: int | None = None, seq: int | None = None) -> None:
        super().__init__(objective, gbs, seq)

    def describe(self) -> str:
        return f"megatron {self.objective}, {self.direction}"

    def read(self, log: str, metadata: Mapping[str, Any]) -> LoggedSteps:
        """Return the steps of a run that was configured as its trial asked."""
        config, params = RecipeConfig.in_log(log), metadata.get("parameters") or {}
        if config is not None and params and (fault := config.fault(self.asked(params))):
            raise OtherSettingsError(fault)
        logged = super().read(log, metadata)
        length = config.get("seq_length") if config else None
        if self.seq is not None or type(length) is not int:
            return logged
        return replace(logged, sizes=replace(logged.sizes, seq=length))
