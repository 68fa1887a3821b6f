"""Where a study stands, for whoever reads only the top of its page: headline, how sure, how full, what it cost."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from zenith_tune.record.restored_preset import FROM_ANOTHER_RELEASE, RestoredPreset
from zenith_tune.record.view import StudyView
from zenith_tune.study.files import Json
from zenith_tune.study.study import Study
from zenith_tune.study.verdict import verdict_of
from zenith_tune.units import format_value, whole

_FIELDS = ("speedup", "low", "high", "is_confirmed", "ties", "memory_share", "safer", "cost", "pays_after_hours")


def standing_object(view: StudyView, preset: RestoredPreset, capacity_bytes: float | None) -> Json:
    """Return the headline of a study with what its verdict says of gain, memory and cost."""
    num_gpus = _num_gpus(view, preset)
    values = verdict_object(view, num_gpus or 1, capacity_bytes)
    return {
        "headline": headline(view, values),
        **{name: _writable(values.get(name)) for name in _FIELDS},
        "gpu_hours": _writable(values.get("gpu_hours")) if num_gpus else None,
        "num_gpus": num_gpus,
    }


def verdict_object(view: StudyView, num_gpus: int = 1, capacity_bytes: float | None = None) -> Json:
    """Return the verdict of a study that has ended, or what it would be by the trials so far; empty where none is."""
    if view.search.stopped and "sentence" in view.search.verdict:
        return dict(view.search.verdict)
    try:
        return asdict(verdict_of(view.study, view.search.budget, num_gpus=num_gpus, capacity_bytes=capacity_bytes))
    except FROM_ANOTHER_RELEASE:  # values that somebody changed may be beyond all numbers
        return {}


def _writable(value: Any) -> Any:
    """Return a value, or None for a number that JSON has no spelling for."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def headline(view: StudyView, values: Mapping[str, Any]) -> str:
    """Return what a study comes to in a few words."""
    study, ended = view.study, bool(view.search.stopped)
    if not any(trial.ok for trial in study.trials):
        return _without_value(study, is_running=bool(view.running) and not ended)
    best, low = study.best, values.get("low")
    if best is None:
        return "No trial stays within the memory limit"
    if study.fastest is not best:
        return "Your own command is the fastest" + " so far" * (not ended)
    if study.gain is None:
        return f"Best: {format_value(best.value or 0.0, best.unit)}"
    if study.best_is_own or low is None or low <= 1:
        return "No gain beyond the noise" + " so far" * (not ended)
    return f"{1 + study.gain:.2f}× {'faster' if best.step_s is not None else 'better'} than your command"


def _without_value(study: Study, *, is_running: bool) -> str:
    if not study.trials:
        return "No trial has ended yet" if is_running else "No trial ran"
    return "No trial has succeeded yet" if is_running else "Every trial failed"


def _num_gpus(view: StudyView, preset: RestoredPreset) -> int | None:
    """Return how many GPUs a trial takes; None where nobody says."""
    if preset.planner is not None:
        return preset.planner.cluster.num_gpus
    return whole(view.header.args.get("n_gpus", ""))
