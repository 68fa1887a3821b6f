"""The best layouts of a plan of per-module layouts, tried for real beside the best that treats all modules alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zenith_tune.direction import Direction
from zenith_tune.errors import UsageError
from zenith_tune.parameters import Parameter, Params
from zenith_tune.planning.mimo_prediction import MimoPrediction
from zenith_tune.registry import StrategyRegistry
from zenith_tune.strategies.base import EvalFunction, TuningStrategy
from zenith_tune.strategies.findings import Findings
from zenith_tune.strategies.mimo_gain import COLUMNS, TriedLayout, gain_lines, layout_row
from zenith_tune.strategies.tuned_job import TunedJob

NAME = "mimo-ranked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortlisted:
    """Hold a point that will be tried, and what the plan says of it."""

    params: Params
    prediction: MimoPrediction


@StrategyRegistry.register(NAME)
class MimoRankedStrategy(TuningStrategy):
    """Try a shortlist in its order, and tell where the fastest gains on the best homogeneous layout.

    The preset mimo makes the shortlist from its plan: the fastest layouts, and the fastest homogeneous ones.
    """

    ends_by_itself = True

    def __init__(self) -> None:
        self._shortlist: Sequence[Shortlisted] = ()
        self._num_planned = 0
        self._tried: list[TriedLayout] = []
        self._is_over = False
        self._direction = Direction.MAXIMIZE

    @classmethod
    def of(cls, shortlist: Sequence[Shortlisted], num_planned: int) -> MimoRankedStrategy:
        """Return the strategy for a shortlist out of `num_planned` layouts."""
        strategy = cls()
        strategy._shortlist, strategy._num_planned = tuple(shortlist), num_planned
        return strategy

    def prepare(self, job: TunedJob) -> None:
        if not self._shortlist:
            law = f"strategy {NAME} tries the layouts that preset mimo plans, but has none"
            raise UsageError(f"{law}: take --preset mimo and leave --strategy out")

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self._tried, self._direction = [], direction
        for number, each in enumerate(self._shortlist, start=1):
            kind = "the best homogeneous layout" if each.prediction.at.is_homogeneous else f"planned as number {number}"
            why = f"{kind}: {each.prediction.step_s * 1e3:.1f} ms a step by the plan"
            self._tried.append(TriedLayout(prediction=each.prediction, trial=eval_fn.run(each.params, why)))
        self._is_over = True

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int:
        return len(self._shortlist)

    def why_done(self) -> str | None:
        if not self._is_over:
            return None
        num_alike = sum(each.prediction.at.is_homogeneous for each in self._shortlist)
        tried = f"tried {len(self._shortlist)} of {self._num_planned} planned layouts"
        return f"{tried}, {num_alike} of them homogeneous" if num_alike else f"{tried}; no homogeneous one can run"

    def findings(self) -> Findings | None:
        if not self._tried:
            return None
        return Findings(
            title="layouts of the modules, planned and measured",
            columns=COLUMNS,
            rows=tuple(layout_row(tried) for tried in self._tried),
            lines=tuple(gain_lines(self._tried, self._direction)),
        )
