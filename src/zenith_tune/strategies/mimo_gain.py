"""Where a layout of modules gains on the best homogeneous one: planned parts of the step beside measured steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zenith_tune.direction import Direction
from zenith_tune.planner.mimo.prediction import MimoPrediction
from zenith_tune.study.trial import Trial

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
        told = f"the best homogeneous layout tried stays the fastest ({_step(best)})"
        return [f"{told}: layouts of their own gain nothing here"]
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
