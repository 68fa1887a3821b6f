"""ZeRO stages in order, each only if it can beat those before, after the method of DeepSpeed's autotuning."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from zenith_tune.registry import keywords_of
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TunedJob, TuningStrategy, listed_choices
from zenith_tune.strategies.zero_progressive.rung import Choices, rungs
from zenith_tune.strategies.zero_progressive.search import ProgressiveSearch, SearchRules
from zenith_tune.study.parameters import Direction, Parameter
from zenith_tune.study.trial import Findings

NAME = "zero-progressive"
EXPECTED_TRIALS, EXPECTED_WITH_KEYS = 6, 14
"""Mean numbers of trials until it stops, over simulated jobs (benchmarks/results/zero_simulated.md)."""
COLUMNS = ("stage", "runs", "best", "at micro batch", "largest that ran", "skipped or ended, and why")


@StrategyRegistry.register(NAME)
class ZeroProgressiveStrategy(TuningStrategy):
    """The largest useful micro-batch of each ZeRO stage; a next stage only if it can be faster.

    Growing the micro-batch ends where a step gains less than `plateau`. The best stage's other keys are then searched:
    `inside` is grid, random or model, with at most `inside_trials` runs, until `patience` in a row gain nothing.
    `probe=true` runs each skipped stage once. Deterministic for the same `seed`. docs/deepspeed.md has the method.
    """

    ends_by_itself = True
    plans = True

    @keywords_of(SearchRules)
    def __init__(self, rules: SearchRules) -> None:
        self.rules = rules
        self._job = TunedJob()
        self._search: ProgressiveSearch | None = None

    def prepare(self, job: TunedJob) -> None:
        self._job = job

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self._search = ProgressiveSearch(eval_fn, _choices(search_space), direction, self._job, self.rules)
        self._search.run()

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int:
        choices = _choices(search_space)
        inside = prod(len(values) for values in choices.values())
        num_rungs = sum(1 for _ in rungs(choices))
        return num_rungs * (2 * len(choices["mbs"]) + min(inside, self.rules.inside_trials))

    def expected_trials(self, search_space: Mapping[str, Parameter]) -> int:
        has_keys = any(
            len(values) > 1 for name, values in _choices(search_space).items() if name not in ("stage", "mbs")
        )
        return min(self.max_trials(search_space), EXPECTED_WITH_KEYS if has_keys else EXPECTED_TRIALS)

    def why_done(self) -> str | None:
        return self._search.why_done() if self._search else None

    def findings(self) -> Findings | None:
        if self._search is None:
            return None
        rows = tuple(search.row() for search in self._search.rungs)
        return Findings(title="ZeRO stages", columns=COLUMNS, rows=rows, lines=tuple(self._search.lines))


def _choices(search_space: Mapping[str, Parameter]) -> Choices:
    hint = "take --preset deepspeed, or --strategy optuna or grid"
    return listed_choices(search_space, {"stage": 0, "mbs": 1}, strategy=NAME, hint=hint)
