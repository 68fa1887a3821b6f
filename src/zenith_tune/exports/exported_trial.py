"""A trial as other programs keep one: numbers, texts and times under plain names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from zenith_tune.record.restored_preset import RestoredPreset
from zenith_tune.record.view import StudyView, TrialView
from zenith_tune.study.parameters import Value

MEASURED = ("value", "spread", "step_s", "peak_memory_bytes", "duration_s")
FIELDS = ("failure", "cause", "early", "why", "unit", "command")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedTrial:
    """Hold one trial that has ended."""

    number: int
    label: str
    params: Mapping[str, Value]
    metrics: Mapping[str, float]
    """What was measured, by name; nothing that is no finite number."""
    tags: Mapping[str, str]
    """In text: the outcome, the cause of a failure, the command."""
    is_baseline: bool = False
    went_well: bool = False
    started_s: float | None = None
    ended_s: float | None = None


def exported_trials(view: StudyView) -> list[ExportedTrial]:
    """Return all trials that have ended; those that run are for the next time."""
    preset = RestoredPreset(view.header, view.folder, view.search.cluster)
    return [_exported(view, each, preset.label(each)) for each in view.trials if not each.is_running]


def best_so_far(view: StudyView, trials: list[ExportedTrial]) -> list[tuple[int, float]]:
    """Return the best value after each trial, from the first that went well on; the user's own command left out."""
    found: list[tuple[int, float]] = []
    for trial in trials:
        value = trial.metrics.get("value")
        if value is not None and not trial.is_baseline:
            is_better = not found or view.direction.better(value, than=found[-1][1])
            found.append((trial.number, value if is_better else found[-1][1]))
        elif found:
            found.append((trial.number, found[-1][1]))
    return found


def _exported(view: StudyView, each: TrialView, label: str) -> ExportedTrial:
    trial = each.trial
    measured = {**{name: getattr(trial, name) for name in MEASURED}, "gain": view.study.gain_of(trial)}
    fields = {"outcome": str(trial.outcome), "label": label, **{name: getattr(trial, name) for name in FIELDS}}
    return ExportedTrial(
        number=each.number,
        label=label,
        params=dict(trial.params),
        metrics={name: float(value) for name, value in measured.items() if value is not None and math.isfinite(value)},
        tags={name: str(text) for name, text in fields.items() if text},
        is_baseline=trial.is_baseline,
        went_well=trial.ok,
        started_s=each.started_s,
        ended_s=each.ended_s,
    )
