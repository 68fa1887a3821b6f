"""Every built-in, held to the contract that is shipped for third parties."""

from __future__ import annotations

from collections.abc import Mapping

from tests.conftest import FAKE_TRAINER
from zenith_tune import CategoricalParameter, Parameter, RegexEvaluator
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.evaluators.megatron import MegatronEvaluator
from zenith_tune.parameters import Value
from zenith_tune.presets.demo import DemoPreset
from zenith_tune.presets.megatron import MegatronPreset
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.strategies.megatron_heuristic import MegatronHeuristicStrategy
from zenith_tune.strategies.optuna import OptunaStrategy
from zenith_tune.strategies.random import RandomStrategy
from zenith_tune.testing import EvaluatorContract, PresetContract, StrategyContract

ITERATION = " iteration {0}/ 5 | elapsed time per iteration (ms): 40{0}.0 | global batch size: 16 |\n"


class TestGrid(StrategyContract):
    def make(self) -> GridStrategy:
        return GridStrategy(grid_points=3)


class TestRandom(StrategyContract):
    def make(self) -> RandomStrategy:
        return RandomStrategy(seed=3)


class TestOptuna(StrategyContract):
    def make(self) -> OptunaStrategy:
        return OptunaStrategy(seed=3)


class TestMegatronHeuristic(StrategyContract):
    def make(self) -> MegatronHeuristicStrategy:
        return MegatronHeuristicStrategy(n_gpus=8)

    def space(self) -> dict[str, Parameter]:
        return MegatronPreset(n_gpus=8, gbs=16).get_search_space()

    def value(self, params: Mapping[str, Value]) -> float | None:
        return None if params["mbs"] == 4 else float(str(params["tp"]))


class TestRegex(EvaluatorContract):
    def make(self) -> RegexEvaluator:
        return RegexEvaluator(r"value: (\S+)", selector="median")

    def good_log(self) -> str:
        return "value: 1\nnoise\nvalue: 3.5e-1\n"

    def bad_logs(self) -> list[str]:
        return [*super().bad_logs(), "value: nan", "value: inf", "value: many"]


class TestMegatronEvaluator(EvaluatorContract):
    def make(self) -> MegatronEvaluator:
        return MegatronEvaluator()

    def good_log(self) -> str:
        return "".join(ITERATION.format(number) for number in range(1, 6))


class TestDuration(EvaluatorContract):
    def make(self) -> DurationEvaluator:
        return DurationEvaluator()

    def good_log(self) -> str:
        return ""

    def bad_logs(self) -> list[str]:
        return []  # the value is the run's duration: no log lacks it


class TestDemoPreset(PresetContract):
    def make(self) -> DemoPreset:
        return DemoPreset()


class TestMegatronPreset(PresetContract):
    def make(self) -> MegatronPreset:
        return MegatronPreset(n_gpus=8, gbs=16, num_layers=24, num_query_groups=4)

    def command(self) -> str:
        return f"python {FAKE_TRAINER} --micro-batch-size=2 | tee log"


class TestMegatronPresetWithFolding(TestMegatronPreset):
    def make(self) -> MegatronPreset:
        return MegatronPreset(n_gpus=8, gbs=16, num_layers=24, num_query_groups=4, folding=True)


def test_a_choice_may_be_of_any_plain_type() -> None:
    assert CategoricalParameter([1, "1", 1.0, True]).contains("1")
