"""The best layouts of a plan of per-module layouts, tried for real beside the best that treat all modules alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zenith_tune.direction import Direction
from zenith_tune.errors import UsageError
from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.presets.mimo.evaluator import PASSES
from zenith_tune.registry import StrategyRegistry
from zenith_tune.strategies.base import EvalFunction, TuningStrategy
from zenith_tune.strategies.findings import Findings
from zenith_tune.strategies.mimo_gain import COLUMNS, TriedLayout, gain_lines, layout_row
from zenith_tune.strategies.prediction import Prediction
from zenith_tune.strategies.tuned_job import TunedJob
from zenith_tune.study.parameters import Parameter, Params
from zenith_tune.study.trial import Trial

if TYPE_CHECKING:
    from zenith_tune.planner.mimo.search import MimoSearch, NextLayout

NAME = "mimo-ranked"
EXPECTED_BY = "the plan of preset mimo, by what it had learned when it picked the trial"


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoPoints:
    """Hold what preset mimo knows of its layouts."""

    search: Callable[[], MimoSearch]
    """Begins a search."""
    point: Callable[[MimoCandidate], Params]
    candidate: Callable[[Params], MimoCandidate]
    num_planned: int


@StrategyRegistry.register(NAME)
class MimoRankedStrategy(TuningStrategy):
    """Measure the rates in a few runs, try the best layouts by them, and tell where the fastest gains.

    Every run corrects what is expected of the others. Homogeneous layouts are tried until none that is left may well
    be the best of them. The preset mimo makes the plan.
    """

    ends_by_itself = True

    def __init__(self) -> None:
        self._points: MimoPoints | None = None
        self._job = TunedJob()
        self._search: MimoSearch | None = None
        self._tried: list[tuple[NextLayout, Trial]] = []
        self._is_over = False
        self._direction = Direction.MAXIMIZE

    @classmethod
    def of(cls, points: MimoPoints) -> MimoRankedStrategy:
        """Return the strategy for the layouts of a preset."""
        strategy = cls()
        strategy._points = points
        return strategy

    def prepare(self, job: TunedJob) -> None:
        if self._points is None:
            law = f"strategy {NAME} tries the layouts that preset mimo plans, but has none"
            raise UsageError(f"{law}: take --preset mimo and leave --strategy out")
        self._job = job

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self._tried, self._direction, self._is_over = [], direction, False
        if self._points is None:
            return
        self._search = search = self._points.search()
        self._learn_baseline(search, self._points)
        is_told = False
        while (following := search.next()) is not None:
            if search.rates is not None and not following.is_probe and not is_told:
                self._job.tell(search.rates_told())
                is_told = True
            expected = f"{following.expected.step_s * 1e3:.1f} ms a step by the plan"
            trial = eval_fn.run(self._points.point(following.prediction.at), f"{following.why}: {expected}")
            self._learn(search, following, trial)
        self._is_over = True

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int | None:
        return None if self._points is None else self._points.search().max_runs

    def why_done(self) -> str | None:
        if not self._is_over or self._points is None:
            return None
        num_alike = sum(following.prediction.at.is_homogeneous for following, _ in self._tried)
        tried = f"tried {len(self._tried)} of {self._points.num_planned} planned layouts"
        return f"{tried}, {num_alike} of them homogeneous" if num_alike else f"{tried}; no homogeneous one can run"

    def findings(self) -> Findings | None:
        if not self._tried or self._search is None:
            return None
        by_now = self._search.plan
        tried = [
            TriedLayout(
                prediction=by_now.at(following.prediction.at) or following.prediction,
                expected_s=following.expected.step_s,
                trial=trial,
            )
            for following, trial in self._tried
        ]
        return Findings(
            title="layouts of the modules, planned and measured",
            columns=COLUMNS,
            rows=tuple(layout_row(each) for each in tried),
            lines=tuple(gain_lines(tried, self._direction)),
            predictions={
                each.trial.number: Prediction(step_s=each.expected_s, by=EXPECTED_BY)
                for each in tried
                if each.trial.number is not None
            },
        )

    def _learn_baseline(self, search: MimoSearch, points: MimoPoints) -> None:
        """Take the run of the user's own command for one of its layout, which then needs no other."""
        own, trial = self._job.own_point(), self._job.baseline()
        following = search.of(points.candidate(own)) if own is not None and trial is not None else None
        if following is not None and trial is not None:
            self._learn(search, following, trial)

    def _learn(self, search: MimoSearch, following: NextLayout, trial: Trial) -> None:
        told = trial.extra.get(PASSES)
        measured = MeasuredStep.of(told) if isinstance(told, str) else None
        step_s = trial.step_s if trial.ok else None
        search.learn(following.prediction.at, step_s, measured, has_failed=not trial.ok)
        self._tried.append((following, trial))
