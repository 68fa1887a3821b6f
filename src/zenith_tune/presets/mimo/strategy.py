"""The best layouts of a plan of per-module layouts, tried for real beside the best that treat all modules alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zenith_tune.errors import UsageError
from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.prediction import MimoPrediction
from zenith_tune.presets.mimo.evaluator import PASSES
from zenith_tune.registry import StrategyRegistry
from zenith_tune.strategies.base import EvalFunction, TunedJob, TuningStrategy
from zenith_tune.study.parameters import Direction, Parameter, Params
from zenith_tune.study.trial import Findings, Prediction, Trial

if TYPE_CHECKING:
    from zenith_tune.planner.mimo.search import MimoSearch, NextLayout


COLUMNS = ("planned", "measured", "encoder stage", "llm stage", "micro batches", "waiting", "layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLayout:
    """Hold a layout with what was planned and what came of it."""

    prediction: MimoPrediction
    """By the plan as it is by now."""
    expected_s: float
    """The step that was expected when it was picked."""
    trial: Trial

    @property
    def is_homogeneous(self) -> bool:
        """Tell whether both modules have the same tp and dp."""
        return self.prediction.at.is_homogeneous


def layout_row(tried: TriedLayout) -> tuple[str, ...]:
    """Return a tried layout as a row of COLUMNS."""
    plan, trial = tried.prediction, tried.trial
    measured = _ms(trial.step_s) if trial.ok and trial.step_s else str(trial.outcome)
    return (
        _ms(tried.expected_s),
        measured,
        _ms(plan.encoder_stage_s),
        _ms(plan.language_stage_s),
        str(plan.num_microbatches),
        f"{plan.idle_share:.0%}",
        plan.at.label + (", homogeneous" if tried.is_homogeneous else ""),
    )


def gain_lines(all_tried: Sequence[TriedLayout], direction: Direction) -> list[str]:
    """Return how the fastest compares with the best homogeneous one tried, and what makes the difference."""
    alike = _best([tried for tried in all_tried if tried.is_homogeneous], direction)
    best = _best(all_tried, direction)
    if best is None:
        return ["no layout went well: nothing can be compared"]
    if alike is None:
        return [f"{best.prediction.at.label} is the fastest; no homogeneous layout went well beside it"]
    if best.is_homogeneous:
        reported = f"the best homogeneous layout tried stays the fastest ({_step(best)})"
        return [f"{reported}: layouts of their own gain nothing here"]
    return [_gain(alike, best), f"where it comes from, by the plan: {'; '.join(_causes(alike, best))}"]


def _best(all_tried: Sequence[TriedLayout], direction: Direction) -> TriedLayout | None:
    good = [tried for tried in all_tried if tried.trial.ok and tried.trial.value is not None]
    sign = 1.0 if direction is Direction.MINIMIZE else -1.0
    return min(good, key=lambda tried: sign * (tried.trial.value or 0.0), default=None)


def _gain(alike: TriedLayout, best: TriedLayout) -> str:
    before, after = alike.trial.value or 0.0, best.trial.value or 0.0
    ratio = max(before, after) / min(before, after) if before > 0 and after > 0 else 1.0
    names = f"{best.prediction.at.label} against {alike.prediction.at.label}"
    return f"{ratio:.2f}x as fast as the best homogeneous layout tried, {_step(alike)} -> {_step(best)} a step: {names}"


def _causes(alike: TriedLayout, best: TriedLayout) -> list[str]:
    """Return the parts of the step that differ, before and after, the largest saving first."""
    before, after = alike.prediction, best.prediction
    parts = {
        "waiting (bubble and uneven lanes)": (before.idle_s, after.idle_s),
        "sums over tensor-parallel ranks": (before.tensor_s, after.tensor_s),
        "computing": (before.compute_s, after.compute_s),
        "gradients and optimizer": (before.sync_s, after.sync_s),
    }
    telling = 0.01 * before.step_s
    changed = {name: pair for name, pair in parts.items() if abs(pair[0] - pair[1]) >= telling}
    order = sorted(changed, key=lambda name: changed[name][1] - changed[name][0])
    causes = [f"{name} {_ms(changed[name][0])} -> {_ms(changed[name][1])}" for name in order]
    ranks = _change(str(before.at.encoder.size), str(after.at.encoder.size))
    encoder_s = _change(_ms(before.encoder_stage_s), _ms(after.encoder_stage_s))
    language_s = _change(_ms(before.language_stage_s), _ms(after.language_stage_s))
    return [*causes, f"the encoder's {ranks} ranks take {encoder_s} a micro-batch, an LLM stage {language_s}"]


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _step(tried: TriedLayout) -> str:
    return _ms(tried.trial.step_s) if tried.trial.step_s else "unknown"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


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
            problem = f"strategy {NAME} tries the layouts that preset mimo plans, but has none"
            raise UsageError(problem, hint="take --preset mimo and leave --strategy out")
        self._job = job

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self._tried, self._direction, self._is_over = [], direction, False
        if self._points is None:
            return
        self._search = search = self._points.search()
        self._learn_baseline(search, self._points)
        is_reported = False
        while (following := search.next()) is not None:
            if search.rates is not None and not following.is_probe and not is_reported:
                self._job.tell(search.describe_rates())
                is_reported = True
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
        reported = trial.extra.get(PASSES)
        measured = MeasuredStep.of(reported) if isinstance(reported, str) else None
        step_s = trial.step_s if trial.ok else None
        search.learn(following.prediction.at, step_s, measured, has_failed=not trial.ok)
        self._tried.append((following, trial))
