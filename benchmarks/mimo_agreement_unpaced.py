"""Compares the plan of per-module layouts with real runs at their own speed, one core a rank.

The shapes were written down before any of them ran. For each the layouts that measure the rates run first, as in a
study (`planning/mimo_search.py`); the plan that they lead to is laid beside real runs of every layout. All run once,
those within 40% of the fastest a second and those within 25% a third time, in rounds, so that a machine that drifts
shows as noise. A layout's time is the middle of all its steps after each run's first. The noise is how far a layout's
rounds lie apart, in the middle over all layouts; the best two agree where they are within it of the best two measured.
At last the study is played through with the measured times: what it would have tried, and how far from the best.

    python benchmarks/mimo_agreement.py --unpaced --output benchmarks/mimo_agreement-unpaced-2026-11-15.json
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from zenith_tune.mimo.measured_step import MeasuredStep
from zenith_tune.planner.mimo.candidate import MimoCandidate
from zenith_tune.planner.mimo.job import MimoJob
from zenith_tune.planner.mimo.plan import plan_mimo
from zenith_tune.planner.mimo.search import MimoSearch

ROUNDS = (float("inf"), 0.40, 0.25)
"""How near to the fastest a layout must be to run in each round."""
LEAST_TIE = 0.05
TOP = 3

Measure = Callable[[MimoCandidate], tuple[list[float], MeasuredStep | None]]
"""Trains a layout, and returns its steps after the first and what it told of its passes."""


@dataclass(slots=True, kw_only=True)
class MeasuredRow:
    """Hold a layout with its runs."""

    at: MimoCandidate
    rounds: list[list[float]] = field(default_factory=list)
    told: MeasuredStep | None = None

    @property
    def step_s(self) -> float:
        """Return the middle of all steps."""
        return statistics.median(step_s for steps in self.rounds for step_s in steps)

    @property
    def spread(self) -> float | None:
        """Return how far the rounds lie apart, relative to the step; None of one that ran once."""
        middles = [statistics.median(steps) for steps in self.rounds]
        return (max(middles) - min(middles)) / self.step_s if len(middles) > 1 else None


def compare(job: MimoJob, mbs_max: int, measure: Measure) -> dict[str, Any]:
    """Return the plan's ranking beside that of real runs of every layout."""
    search = _search(job, mbs_max)
    probes = []
    while (following := search.next()) is not None and following.is_probe:
        at = following.prediction.at
        steps, told = measure(at)
        step_s = statistics.median(steps)
        search.learn(at, step_s, told)
        probes.append({"layout": at.label, "step_s": step_s, "told": "" if told is None else told.text()})
    ranked = search.ranked()
    rows = {at: MeasuredRow(at=at) for at in ranked}
    for nearness in ROUNDS:
        bar_s = min((row.step_s for row in rows.values() if row.rounds), default=0.0) * (1 + nearness)
        for row in list(rows.values()):
            if not row.rounds or row.step_s <= bar_s:
                steps, row.told = measure(row.at)
                row.rounds.append(steps)
    noise = statistics.median(row.spread for row in rows.values() if row.spread is not None)
    expected = {at: corrected.step_s for at, corrected in ranked.items()}
    return {
        "probes": probes,
        **_agreement(expected, rows, max(noise, LEAST_TIE)),
        "noise": noise,
        "study": _played_study(job, mbs_max, rows),
        "rows": [
            {
                "layout": at.label,
                "homogeneous": at.is_homogeneous,
                "planned_s": round(step_s, 5),
                "rounds_s": [[round(step, 5) for step in steps] for steps in rows[at].rounds],
            }
            for at, step_s in expected.items()
        ],
    }


def _search(job: MimoJob, mbs_max: int) -> MimoSearch:
    return MimoSearch(job, lambda known: plan_mimo(known, mbs_max=mbs_max), top=TOP, measures=True)


def _agreement(
    expected: dict[MimoCandidate, float], rows: dict[MimoCandidate, MeasuredRow], tie: float
) -> dict[str, Any]:
    order = sorted(rows.values(), key=lambda row: row.step_s)
    planned = [rows[at] for at in expected]
    places = [order.index(row) + 1 for row in planned[:4]]
    two = sorted(row.step_s for row in planned[:2])
    alike = [row for row in order if row.at.is_homogeneous]
    return {
        "num_layouts": len(rows),
        "tie": tie,
        "same_best_two": sorted(places[:2]) == [1, 2],
        "best_two_within_tie": two[0] <= order[0].step_s * (1 + tie) and two[1] <= order[1].step_s * (1 + tie),
        "measured_places_of_planned": places,
        "regret": planned[0].step_s / order[0].step_s - 1,
        "regret_of_second": two[1] / order[1].step_s - 1,
        "rank_correlation": _rank_correlation(list(expected.values()), [row.step_s for row in planned]),
        "median_error": statistics.median(abs(expected[row.at] / row.step_s - 1) for row in order),
        "planned_best": [row.at.label for row in planned[:2]],
        "measured_best": [row.at.label for row in order[:2]],
        "best_step_s": order[0].step_s,
        "best_homogeneous_step_s": alike[0].step_s if alike else None,
    }


def _played_study(job: MimoJob, mbs_max: int, rows: dict[MimoCandidate, MeasuredRow]) -> dict[str, Any]:
    """Return what a study that measures these times would try, and how far from the best it would end."""
    search, tried = _search(job, mbs_max), []
    while (following := search.next()) is not None:
        row = rows[following.prediction.at]
        search.learn(row.at, row.step_s, row.told)
        tried.append(row)
    alike = [row for row in tried if row.at.is_homogeneous]
    all_alike = [row.step_s for row in rows.values() if row.at.is_homogeneous]
    return {
        "tried": [row.at.label for row in tried],
        "regret": min(row.step_s for row in tried) / min(row.step_s for row in rows.values()) - 1,
        "homogeneous_regret": min(row.step_s for row in alike) / min(all_alike) - 1 if alike else None,
    }


def _rank_correlation(first: Sequence[float], second: Sequence[float]) -> float:
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    return statistics.correlation(*ranks)
