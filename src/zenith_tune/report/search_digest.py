"""What is shown of a study's search beside its trials: the strategy, why it stopped, what it found, how far it is."""

from __future__ import annotations

from typing import Any

from zenith_tune.record.view import StudyView
from zenith_tune.report.study_pace import StudyPace
from zenith_tune.strategies.findings import Findings

Json = dict[str, Any]


def search_object(view: StudyView) -> Json:
    """Return it as plain values; a record of an older release has none of it."""
    search = view.search
    pace = StudyPace(max_trials=search.max_trials, num_slots=search.num_slots)
    return {
        "strategy": search.strategy,
        "stopped": search.stopped,
        "findings": [_table(each) for each in search.tables],
        "max_trials": search.max_trials,
        "num_searched": view.study.num_searched,
        "time_left_s": pace.left_s(view.study),
    }


def _table(findings: Findings) -> Json:
    return {
        "title": findings.title,
        "columns": list(findings.columns),
        "rows": [list(row) for row in findings.rows],
        "notes": list(findings.lines),
    }
