"""Contract suites: subclass one in your tests, and a new preset, strategy, evaluator or runner is held to its contract.

class TestMyStrategy(StrategyContract):
    def make(self):
        return MyStrategy()
"""

from zenith_tune.testing.evaluator_contract import EvaluatorContract
from zenith_tune.testing.preset_contract import PresetContract
from zenith_tune.testing.runner_contract import RunnerContract
from zenith_tune.testing.strategy_contract import ScriptedTrials, StrategyContract

__all__ = ["EvaluatorContract", "PresetContract", "RunnerContract", "ScriptedTrials", "StrategyContract"]
