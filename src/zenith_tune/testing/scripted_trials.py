"""Trials that a function answers, for whoever tests a strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future

from zenith_tune.errors import TrialExhausted
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, Trial


class ScriptedTrials(EvalFunction):
    """Answer a strategy from a function instead of from real runs, and remember what it asked."""

    def __init__(self, value: Callable[[Mapping[str, Value]], float | None], budget: int = 1000) -> None:
        self.points: list[dict[str, Value]] = []
        self.num_refused = 0
        """How often the strategy asked although the budget was spent."""
        self._value = value
        self._budget = budget

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        return self.run(params).value

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        if len(self.points) >= self._budget:
            self.num_refused += 1
            raise TrialExhausted(f"the budget of {self._budget} trials is spent")
        self.points.append(dict(params))
        value = self._value(params)
        outcome = Outcome.ERROR if value is None else Outcome.OK
        return Trial(params=params, outcome=outcome, value=value, why=why)

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        future: Future[Trial] = Future()
        future.set_result(self.run(params, why))
        return future
