"""Trials that are answered from a record instead of from real runs."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from replay_record import NUM_STEPS, Find, Landscape, Recorded

from zenith_tune.errors import (
    ConsecutiveDuplicateLimitExceeded,
    ConsecutivePruneLimitExceeded,
    TrialExhausted,
)
from zenith_tune.strategies.base import EvalFunction
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.tuning.config import Limits


class ReplayTrials(EvalFunction):
    """Answer a strategy as a study on the real cluster would have, and remember what it tried.

    A point that is not in the record is pruned, and one that was tried is answered again: neither is a trial. `find`
    says which recorded layout a point stands for, where the strategy has a search space of its own. `until_best` ends
    the study once nothing faster is left to find.
    """

    def __init__(
        self,
        landscape: Landscape,
        *,
        budget: int | None = None,
        limits: Limits | None = None,
        until_best: bool = False,
        find: Find | None = None,
    ) -> None:
        self.tried: list[Recorded] = []
        self.num_pruned = self.num_repeated = 0
        self._landscape = landscape
        self._budget = len(landscape.recorded) if budget is None else budget
        self._limits = limits or Limits(consecutive_duplicates=None, consecutive_prunes=None)
        self._until_best = until_best
        self._find = find or landscape.finder()
        self._answered: dict[int, Trial] = {}
        self._pruned_in_a_row = self._repeated_in_a_row = 0

    def __call__(self, params: Mapping[str, Value]) -> float | None:
        """Return the recorded step time, or None where the layout crashed or is not in the record."""
        return self.run(params).value

    def run(self, params: Mapping[str, Value], why: str = "") -> Trial:
        """Return the recorded trial."""
        if self._until_best and any(item.step_s == self._landscape.best_s for item in self.tried):
            raise TrialExhausted("nothing faster is left to find")
        item = self._find(params)
        if item is None:
            return self._pruned(params)
        if id(item) in self._answered:
            return self._repeated(id(item))
        if len(self.tried) >= self._budget:
            raise TrialExhausted(f"the budget of {self._budget} trials is spent")
        self._pruned_in_a_row = self._repeated_in_a_row = 0
        self.tried.append(item)
        self._answered[id(item)] = trial = _trial(item, params, why)
        return trial

    def submit(self, params: Mapping[str, Value], why: str = "") -> Future[Trial]:
        """Return the recorded trial as one that is done."""
        future: Future[Trial] = Future()
        future.set_result(self.run(params, why))
        return future

    def _pruned(self, params: Mapping[str, Value]) -> Trial:
        self.num_pruned += 1
        self._pruned_in_a_row += 1
        limit = self._limits.consecutive_prunes
        if limit is not None and self._pruned_in_a_row > limit:
            raise ConsecutivePruneLimitExceeded(f"{limit} pruned points in a row")
        return Trial(params=params, outcome=Outcome.PRUNED, cause="not in the record")

    def _repeated(self, key: int) -> Trial:
        self.num_repeated += 1
        self._pruned_in_a_row = 0
        self._repeated_in_a_row += 1
        limit = self._limits.consecutive_duplicates
        if limit is not None and self._repeated_in_a_row > limit:
            raise ConsecutiveDuplicateLimitExceeded(f"{limit} points in a row had been tried before")
        return self._answered[key]


def _trial(item: Recorded, params: Mapping[str, Value], why: str) -> Trial:
    if item.step_s is None:
        return Trial(params=params, outcome=Outcome.OOM, duration_s=item.duration_s, why=why)
    return Trial(
        params=params,
        outcome=Outcome.OK,
        value=item.step_s,
        step_s=item.step_s,
        duration_s=item.duration_s,
        # Of a trial whose whole duration was recorded, the number of steps was not.
        num_samples=NUM_STEPS if item.wall_s is None else None,
        peak_memory_bytes=item.peak_memory_bytes,
        why=why,
    )
