"""What every strategy is held to."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from zenith_tune.errors import TrialExhausted
from zenith_tune.strategies.base import PlainFunction, TuningStrategy
from zenith_tune.study.parameters import (
    BoolParameter,
    CategoricalParameter,
    Direction,
    FloatParameter,
    IntParameter,
    Parameter,
    Value,
)
from zenith_tune.study.trial import Trial


class ScriptedTrials(PlainFunction):
    """Answer a strategy from a function instead of from real runs, and remember what it asked."""

    def __init__(self, value: Callable[[Mapping[str, Value]], float | None], budget: int = 1000) -> None:
        super().__init__(value)
        self.points: list[dict[str, Value]] = []
        self.num_refused = 0
        """How often the strategy asked although the budget was spent."""
        self._budget = budget

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        if len(self.points) >= self._budget:
            self.num_refused += 1
            raise TrialExhausted(f"the budget of {self._budget} trials is spent")
        self.points.append(dict(params))
        return super().run(params, why)


class StrategyContract(ABC):
    """Hold a strategy to its contract."""

    @abstractmethod
    def make(self) -> TuningStrategy:
        """Return a fresh strategy; two of them must ask the same points for the same answers."""

    def space(self) -> dict[str, Parameter]:
        """Return a space that the strategy can search."""
        return {
            "width": IntParameter(1, 9, step=2),
            "rate": FloatParameter(0.1, 10.0, log=True),
            "mode": CategoricalParameter(["a", "b"]),
            "flag": BoolParameter(),
        }

    def value(self, params: Mapping[str, Value]) -> float | None:
        """Return the value of a point; any number will do."""
        return float(len(str(sorted(params.items()))))

    def _ask(self, budget: int = 20, direction: Direction = Direction.MINIMIZE) -> ScriptedTrials:
        trials = ScriptedTrials(self.value, budget)
        try:
            self.make().optimize(trials, self.space(), direction)
        except TrialExhausted:
            assert len(trials.points) == budget, "TrialExhausted must come from the trials, not from the strategy"
        return trials

    def test_every_point_lies_in_the_search_space(self) -> None:
        """Check names, order of names and values."""
        space = self.space()
        points = self._ask().points
        assert points
        for point in points:
            assert list(point) == list(space)
            assert all(space[name].contains(value) for name, value in point.items()), point

    def test_the_same_answers_lead_to_the_same_points(self) -> None:
        """Check what resuming rests on: a study is replayed from its record."""
        assert self._ask().points == self._ask().points

    def test_a_spent_budget_passes_through(self) -> None:
        """Check that TrialExhausted is not swallowed: the strategy stops, and asks no more."""
        for budget in (1, 2, 3):
            trials = ScriptedTrials(self.value, budget)
            try:
                self.make().optimize(trials, self.space(), Direction.MINIMIZE)
            except TrialExhausted:
                assert trials.num_refused == 1, "it went on asking"
            else:
                assert trials.num_refused == 0, "it swallowed TrialExhausted"

    def test_it_survives_failing_trials(self) -> None:
        """Check that None is taken as an answer."""
        trials = ScriptedTrials(lambda params: None, budget=10)
        with contextlib.suppress(TrialExhausted):
            self.make().optimize(trials, self.space(), Direction.MAXIMIZE)
        assert trials.points

    def test_one_that_ends_by_itself_does(self) -> None:
        """Check the end, and that the promised upper bound is one."""
        strategy = self.make()
        if not strategy.ends_by_itself:
            assert strategy.default_n_trials > 0
            return
        trials = ScriptedTrials(self.value, budget=100_000)
        strategy.optimize(trials, self.space(), Direction.MINIMIZE)
        bound = strategy.max_trials(self.space())
        assert bound is None or len(trials.points) <= bound
