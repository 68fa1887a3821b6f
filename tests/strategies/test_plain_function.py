"""Every strategy takes a plain function as `eval_fn`: a value or None, and TrialExhausted when the budget is spent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.mentions import mentions
from zenith_tune import (
    CategoricalParameter,
    Direction,
    MegatronHeuristicStrategy,
    MegatronPreset,
    Parameter,
    StrategyRegistry,
    TrialExhausted,
    TuningStrategy,
)
from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import TunedJob
from zenith_tune.study.parameters import Value

MOST = 12


class Budget:
    """Count calls, answer with a value, or with None for a micro-batch that is too large."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Value]] = []

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        if len(self.asked) >= MOST:
            raise TrialExhausted("the budget is spent")
        self.asked.append(dict(params))
        mbs = int(params["mbs"])
        return None if mbs > 4 else float(mbs)


def prepared(name: str) -> tuple[TuningStrategy, dict[str, Parameter]]:
    """Return a strategy, and a space that it can search."""
    if name == "mimo-ranked":
        return StrategyRegistry.get(name)(), {"mbs": CategoricalParameter((1, 2))}
    if name == "zero-progressive":
        stages, sizes = CategoricalParameter((0, 1, 2, 3)), CategoricalParameter((1, 2, 4, 8))
        return StrategyRegistry.get(name)(), {"stage": stages, "mbs": sizes}
    preset = MegatronPreset(n_gpus=8, gbs=16, model="llama3-8b", seq=4096, cluster="h100x8")
    strategy = StrategyRegistry.get(name)(**{"n_gpus": 8} if name == "megatron-heuristic" else {})
    if strategy.plans:
        subject = preset.subject("megatron sft --tensor_model_parallel_size 1 --micro_batch_size 1")
        strategy.prepare(TunedJob(subject=subject, layout=preset.layout, points=preset.points))
    return strategy, preset.get_search_space()


@pytest.mark.parametrize("name", StrategyRegistry.names())
def test_a_plain_function_is_enough_or_one_line_says_what_is_missing(name: str) -> None:
    budget = Budget()
    strategy = StrategyRegistry.get(name)(**{"n_gpus": "8"} if name == "megatron-heuristic" else {})
    _, space = prepared(name)
    try:
        strategy.optimize(budget, space, Direction.MAXIMIZE)  # type: ignore[arg-type]
    except TrialExhausted:
        pass
    except UsageError as error:
        assert "\n" not in str(error) and mentions(error, name, "PresetTuner" if name == "guided" else "--preset mimo")
        return
    assert budget.asked


# Strategy mimo-ranked walks through the plan of its preset, which it gets from nowhere else.
@pytest.mark.parametrize("name", [name for name in StrategyRegistry.names() if name != "mimo-ranked"])
def test_a_plain_function_is_enough(name: str) -> None:
    strategy, space = prepared(name)
    budget = Budget()

    def function(params: Mapping[str, Value]) -> float | None:
        return budget(params)

    try:
        strategy.optimize(function, space, Direction.MAXIMIZE)  # type: ignore[arg-type]
    except TrialExhausted:
        assert len(budget.asked) == MOST
    assert budget.asked and all(point.keys() == space.keys() for point in budget.asked)


def test_a_strategy_of_ones_own_may_call_run_on_it() -> None:
    seen: list[Any] = []

    class Own(TuningStrategy):
        def optimize(self, eval_fn: Any, search_space: Any, direction: Direction) -> None:
            seen.append((eval_fn({"x": 1}), eval_fn.run({"x": 2}).value, eval_fn.run({"x": 0}).ok))

    Own().optimize(lambda params: params["x"] or None, {}, Direction.MINIMIZE)
    assert seen == [(1.0, 2.0, False)]


def test_the_documented_classes_are_exported() -> None:
    assert StrategyRegistry.get("megatron-heuristic") is MegatronHeuristicStrategy
