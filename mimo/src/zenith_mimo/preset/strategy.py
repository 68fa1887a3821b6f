"""The best layouts of a plan of per-module layouts, tried for real next to the best that treat all modules alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from zenith_mimo.planning.candidate import MimoCandidate
from zenith_mimo.planning.prediction import MimoPlan, MimoPrediction
from zenith_mimo.planning.search import MimoSearch, NextLayout
from zenith_tune.errors import UsageError
from zenith_tune.strategies.base import EvalFunction, StrategyRegistry, TunedJob, TuningStrategy
from zenith_tune.study.parameters import Direction, Parameter, Params
from zenith_tune.study.precision import TO_90
from zenith_tune.study.trial import NOT_RUN, Findings, Prediction, Trial

NAME = "mimo-ranked"
EXPECTED_BY = "the plan of preset mimo, by what it had learned when it picked the trial"
COLUMNS = ("planned", "measured", "encoder stage", "llm stage", "micro batches", "waiting", "layout")


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedLayout:
    """A layout with its prediction and its trial."""

    prediction: MimoPrediction
    expected_s: float
    """The corrected step time when it was picked."""
    trial: Trial

    @property
    def is_homogeneous(self) -> bool:
        return self.prediction.candidate.is_homogeneous


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
        plan.candidate.label + (", homogeneous" if tried.is_homogeneous else ""),
    )


def gain_lines(all_tried: Sequence[TriedLayout], direction: Direction) -> list[str]:
    """Return how the fastest compares with the best homogeneous one tried, and what makes the difference."""
    alike = _best([tried for tried in all_tried if tried.is_homogeneous], direction)
    best = _best(all_tried, direction)
    if best is None:
        return ["every layout failed: there is nothing to compare"]
    own = _best([tried for tried in all_tried if not tried.is_homogeneous], direction)
    if alike is None or own is None:
        missing = "homogeneous layout" if alike is None else "layout of its own for each module"
        return [f"{best.prediction.candidate.label} is the fastest; no {missing} ran to compare it with"]
    if best.is_homogeneous:
        num = sum(not tried.is_homogeneous for tried in all_tried)
        lines = [f"the best homogeneous layout tried stays the fastest ({_step(best)})"]
        lines += [f"the best of {num} with layouts of their own for the modules takes {_step(own)}{_doubt(own, best)}"]
        return ["; ".join(lines)]
    return [_gain(alike, best) + _doubt(alike, best), _causes_line(alike, best)]


def _doubt(one: TriedLayout, other: TriedLayout) -> str:
    """Return that a difference is within the noise of both runs, where it is."""
    values = sorted(abs(tried.trial.value or 0.0) for tried in (one, other))
    noise = TO_90 * math.hypot(one.trial.standard_error, other.trial.standard_error)
    return f", within the noise of {noise:.0%}" if noise and values[1] <= (1 + noise) * values[0] else ""


def _best(all_tried: Sequence[TriedLayout], direction: Direction) -> TriedLayout | None:
    good = [tried for tried in all_tried if tried.trial.ok and tried.trial.value is not None]
    return min(good, key=lambda tried: direction.sign * (tried.trial.value or 0.0), default=None)


def _gain(alike: TriedLayout, best: TriedLayout) -> str:
    before, after = alike.trial.value or 0.0, best.trial.value or 0.0
    ratio = max(before, after) / min(before, after) if before > 0 and after > 0 else 1.0
    names = f"{best.prediction.candidate.label} against {alike.prediction.candidate.label}"
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
    least_s = 0.01 * before.step_s
    changed = {name: pair for name, pair in parts.items() if abs(pair[0] - pair[1]) >= least_s}
    order = sorted(changed, key=lambda name: changed[name][1] - changed[name][0])
    causes = [f"{name} {_ms(changed[name][0])} -> {_ms(changed[name][1])}" for name in order]
    ranks = _change(str(before.candidate.encoder.size), str(after.candidate.encoder.size))
    encoder_s = _change(_ms(before.encoder_stage_s), _ms(after.encoder_stage_s))
    language_s = _change(_ms(before.language_stage_s), _ms(after.language_stage_s))
    return [*causes, f"the encoder's {ranks} ranks take {encoder_s} a micro-batch, an LLM stage {language_s}"]


def _causes_line(alike: TriedLayout, best: TriedLayout) -> str:
    return f"where it comes from, by the plan: {'; '.join(_causes(alike, best))}"


def _change(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _step(tried: TriedLayout) -> str:
    return _ms(tried.trial.step_s) if tried.trial.step_s else "unknown"


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


@dataclass(frozen=True, slots=True, kw_only=True)
class MimoPoints:
    """The layouts that preset mimo plans, and how they become points."""

    plan: MimoPlan
    top: int
    point: Callable[[MimoCandidate], Params]
    candidate: Callable[[Params], MimoCandidate]


@StrategyRegistry.register(NAME)
class MimoRankedStrategy(TuningStrategy):
    """The best layouts of the plan of preset mimo, with a report of where the fastest gains.

    Every run corrects what is expected of the others. The search ends where nothing left may be faster, by the noise of
    the runs, and two layouts of each kind have run: homogeneous ones, and ones that differ between the modules.
    """

    ends_by_itself = True

    def __init__(self) -> None:
        self._points: MimoPoints | None = None
        self._job = TunedJob()
        self._tried: list[TriedLayout] = []
        self._is_over = False
        self._direction = Direction.MAXIMIZE

    @classmethod
    def of(cls, points: MimoPoints) -> MimoRankedStrategy:
        """Return the strategy for the layouts of a preset."""
        strategy = cls()
        strategy._points = points
        return strategy

    def prepare(self, job: TunedJob) -> None:
        self._planned()
        self._job = job

    def _planned(self) -> MimoPoints:
        if self._points is None:
            problem = f"strategy {NAME} tries the layouts that preset mimo plans, but has none"
            raise UsageError(problem, hint="take --preset mimo and leave --strategy out")
        return self._points

    def optimize(self, eval_fn: EvalFunction, search_space: Mapping[str, Parameter], direction: Direction) -> None:
        self._tried, self._direction, self._is_over = [], direction, False
        points = self._planned()
        search = MimoSearch(points.plan, top=points.top)
        self._learn_baseline(search, points)
        while (following := search.next()) is not None:
            expected = f"{following.expected.step_s * 1e3:.1f} ms a step by the plan"
            trial = eval_fn.run(points.point(following.prediction.candidate), f"{following.why}: {expected}")
            self._learn(search, following, trial)
        self._is_over = True

    def max_trials(self, search_space: Mapping[str, Parameter]) -> int | None:
        return None if self._points is None else MimoSearch(self._points.plan, top=self._points.top).max_runs

    def why_done(self) -> str | None:
        if not self._is_over or self._points is None:
            return None
        num_alike = sum(tried.is_homogeneous for tried in self._tried)
        tried = f"tried {len(self._tried)} of {len(self._points.plan.ranked)} planned layouts"
        if not self._points.plan.homogeneous:
            return f"{tried}; no homogeneous one can run"
        return f"{tried}, {num_alike} homogeneous and {len(self._tried) - num_alike} with layouts of their own"

    def findings(self) -> Findings | None:
        if not self._tried:
            return None
        return Findings(
            title="layouts of the modules, planned and measured",
            columns=COLUMNS,
            rows=tuple(layout_row(each) for each in self._tried),
            lines=tuple(gain_lines(self._tried, self._direction)),
            predictions={
                each.trial.number: Prediction(step_s=each.expected_s, by=EXPECTED_BY)
                for each in self._tried
                if each.trial.number != NOT_RUN
            },
        )

    def _learn_baseline(self, search: MimoSearch, points: MimoPoints) -> None:
        """Take the run of the user's own command for one of its layout, which then needs no other."""
        own, trial = self._job.own_point(), self._job.baseline()
        following = search.of(points.candidate(own)) if own is not None and trial is not None else None
        if following is not None and trial is not None:
            self._learn(search, following, trial)

    def _learn(self, search: MimoSearch, following: NextLayout, trial: Trial) -> None:
        prediction = following.prediction
        step_s = trial.step_s if trial.ok else None
        search.learn(prediction.candidate, step_s, has_failed=not trial.ok, noise=trial.standard_error)
        self._tried.append(TriedLayout(prediction=prediction, expected_s=following.expected.step_s, trial=trial))
