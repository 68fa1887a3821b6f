"""Writes a study as it runs, one JSON object per line, for programs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import IO, Any

from zenith_tune.record.export import outcome_as_json, trial_as_json
from zenith_tune.study.parameters import Value
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Trial
from zenith_tune.study.verdict import spent_s
from zenith_tune.tuning.events import StudyEnd, StudyListener, StudyPlan


class JsonLinesReporter(StudyListener):
    """A listener that writes every event to a stream, and passes it on to one for people."""

    def __init__(self, stream: IO[str], people: StudyListener) -> None:
        self._stream = stream
        self._people = people
        self._num_gpus = 1

    def study_started(self, plan: StudyPlan) -> None:
        names = [field.name for field in fields(plan) if field.name not in ("study", "labels", "budget")]
        self._num_gpus = plan.num_gpus
        self._write("study_started", **{name: getattr(plan, name) for name in names})
        self._people.study_started(plan)

    def trial_started(self, number: int, label: str, log_path: Path, limit_s: float | None, why: str = "") -> None:
        self._write("trial_started", number=number, label=label, log=str(log_path), limit_s=limit_s, why=why)
        self._people.trial_started(number, label, log_path, limit_s, why)

    def trial_state(self, number: int, state: str) -> None:
        self._write("trial_state", number=number, state=state)
        self._people.trial_state(number, state)

    def trial_progress(self, number: int, num_iterations: int, value: float | None, unit: str) -> None:
        self._write("trial_progress", number=number, num_iterations=num_iterations, value=value, unit=unit)
        self._people.trial_progress(number, num_iterations, value, unit)

    def trial_outlook(self, number: int, known: str, left_s: float | None) -> None:
        self._write("trial_outlook", number=number, known=known, left_s=left_s)
        self._people.trial_outlook(number, known, left_s)

    def trial_memory(self, number: int, peak_memory_bytes: int) -> None:
        self._write("trial_memory", number=number, peak_memory_bytes=peak_memory_bytes)
        self._people.trial_memory(number, peak_memory_bytes)

    def trial_finished(self, trial: Trial, label: str, study: Study) -> None:
        best = study.fastest
        self._write(
            "trial_finished",
            label=label,
            **trial_as_json(trial),
            best_value=best.value if best else None,
            gpu_hours_spent=spent_s(study) * self._num_gpus / 3600,
        )
        self._people.trial_finished(trial, label, study)

    def trial_recalled(self, trial: Trial, label: str) -> None:
        self._write("trial_recalled", label=label, **trial_as_json(trial))
        self._people.trial_recalled(trial, label)

    def point_pruned(self, params: Mapping[str, Value], label: str, reason: str) -> None:
        self._write("point_pruned", parameters=dict(params), label=label, reason=reason)
        self._people.point_pruned(params, label, reason)

    def point_repeated(self, trial: Trial, label: str) -> None:
        self._write("point_repeated", label=label, **trial_as_json(trial))
        self._people.point_repeated(trial, label)

    def noted(self, line: str) -> None:
        self._write("note", text=line)
        self._people.noted(line)

    def explained(self, line: str) -> None:
        self._write("explanation", text=line)
        self._people.explained(line)

    def search_began(self, outlook: str) -> None:
        self._write("search_began", outlook=outlook)
        self._people.search_began(outlook)

    def study_ended(self, end: StudyEnd) -> None:
        self._write(
            "study_ended",
            reason=end.reason,
            why=end.why,
            **outcome_as_json(end.study),
            verdict=asdict(end.verdict) if end.verdict else None,
            best_command=end.best_command,
            study_name=end.study_name,
            warnings=end.warnings,
            csv=str(end.csv_path),
            json=str(end.json_path),
            trials=str(end.trials_path),
            database=end.database_url,
            findings=asdict(end.findings) if end.findings else None,
        )
        self._people.study_ended(end)

    def _write(self, event: str, **content: Any) -> None:
        # NaN is no JSON: a value is finite or None, so a NaN here is a bug that must be seen.
        line = json.dumps({"event": event, **content}, allow_nan=False, default=str)
        self._stream.write(line + "\n")  # at once: several threads may write
        self._stream.flush()
