"""A study's search as it is shown: the strategy, why it stopped, what it found, how far it is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from zenith_tune.record.view import StudyView
from zenith_tune.study.budget import Budget
from zenith_tune.study.files import Json
from zenith_tune.study.lever_results import lever_table, results_from_json
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Findings
from zenith_tune.study.verdict import spent_s
from zenith_tune.units import count, format_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyPace:
    """The bounds of a study besides its number of trials."""

    num_slots: int = 1
    """How many trials run side by side."""
    budget: Budget | None = None
    num_gpus: int = 1

    def left_s(self, study: Study) -> float | None:
        """Return the seconds that the trials which are left take at most; None where that is not known."""
        most = self.most(study)
        if most is None:
            return None
        num_left = most - study.num_budgeted
        return study.time_left_s(math.ceil(num_left / self.num_slots))

    def most(self, study: Study) -> int | None:
        """Return how many runs there are at most, those that confirm a gain included; None where not known."""
        return None if study.max_trials is None else max(study.max_trials, study.num_budgeted)

    def title(self, study: Study) -> str:
        """Return how far a study is and what it has gained, short enough for a tab: `12/38 · +31%`."""
        most = self.most(study)
        done = f"{study.num_budgeted}/{most}" if most is not None else str(study.num_budgeted)
        gain = study.gain if study.fastest is study.best else None
        return done if gain is None else f"{done} · {gain:+.0%}"

    def bar(self, study: Study, width: int = 20) -> str:
        """Return the trials that are done as a bar; nothing where their number is not bounded."""
        most = self.most(study)
        if not most:
            return ""
        full = min(round(width * study.num_budgeted / most), width)
        return "━" * full + "╌" * (width - full)

    def describe(self, study: Study, left_s: float | None) -> list[str]:
        """Return how far a study is, how long it still takes, and what it has spent of a budget."""
        most = self.most(study)
        parts = [] if most is None else [f"{study.num_budgeted} of at most {count(most, 'run')}"]
        if left_s:
            parts.append(f"about {format_seconds(left_s)} left")
        if self.budget is not None and (self.budget.gpu_hours or self.budget.price):
            of = f" of {self.budget.gpu_hours:g} GPU-hours" if self.budget.gpu_hours else ""
            parts.append(f"{self.budget.cost(spent_s(study) * self.num_gpus)} spent{of}")
        return parts


def search_object(view: StudyView) -> Json:
    """Return it as plain values; a record of an older release has none of it."""
    search = view.search
    levers = lever_table(results_from_json(search.verdict.get("levers", ()) if search.stopped else ()))
    pace = StudyPace(num_slots=search.num_slots)
    return {
        "strategy": search.strategy,
        "stopped": search.stopped,
        "verdict": search.verdict.get("sentence", "") if search.stopped else "",
        "verdict_values": dict(search.verdict) if search.stopped else {},
        "findings": [_table(each) for each in (*search.tables, levers) if each is not None],
        "max_trials": pace.most(view.study),
        "num_trials": view.study.num_trials,
        "num_budgeted": view.study.num_budgeted,
        "time_left_s": pace.left_s(view.study),
    }


def _table(findings: Findings) -> Json:
    return {
        "title": findings.title,
        "columns": list(findings.columns),
        "rows": [list(row) for row in findings.rows],
        "notes": list(findings.lines),
    }


def best_so_far(study: Study) -> list[tuple[int, float]]:
    """Return number and value of every run that was the fastest when it ended; the last of them is the study's.

    What ran again alone counts from its first run on, as it ran then.
    """
    base = [run for run in (study.first_baseline, study.baseline) if run is not None]
    runs = sorted([*base, *study.trials], key=lambda trial: trial.number)
    again = {first.number: trial.value for trial in runs if (first := study.first_run(trial)) is not None}
    limit = study.leader.value if study.leader is not None else None
    found: list[tuple[int, float]] = []
    for trial in runs:
        value = again.get(trial.number, trial.value)
        if trial.is_rerun or value is None or not math.isfinite(value):
            continue
        # A value of a run next to others that did not hold in the end does not count.
        if limit is not None and study.direction.better(value, than=limit):
            continue
        if not found or study.direction.better(value, than=found[-1][1]):
            found.append((trial.number, value))
    return found
