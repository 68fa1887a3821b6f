"""A trial as the database holds it, read without Optuna."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from zenith_tune.record.folder import StudyFolder
from zenith_tune.record.search import finite, measured
from zenith_tune.record.view import TrialView
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, Trial

RUNNING = ("RUNNING", "WAITING")
Json = dict[str, Any]


def stored_trial(
    number: int, state: str, times: tuple[Any, Any], params: Mapping[str, Value], value: float | None, attributes: Json
) -> TrialView:
    """Return a trial of the record; raises TypeError, ValueError or KeyError where it is none of ours."""
    run, result = dict(attributes.get("run", {})), dict(attributes.get("result", {}))
    is_running = state in RUNNING
    outcome = Outcome.CANCELLED if is_running else Outcome(result.get("outcome", Outcome.CANCELLED))
    trial = Trial(
        params=params,
        outcome=outcome,
        value=finite("value", value) if outcome is Outcome.OK else None,
        number=number,
        command=str(result.get("command", "")),
        identity=str(run.get("identity", "")),
        folder=_folder(run, number),
        is_baseline=bool(run.get("is_baseline", False)),
        why=str(run.get("why", "")),
        extra=dict(result.get("extra", {})),
        **({} if is_running else measured(result)),
    )
    started_s, ended_s = (_seconds(time) for time in times)
    return TrialView(
        trial=trial,
        label=str(run.get("label", "")),
        started_s=started_s,
        ended_s=ended_s,
        is_running=is_running,
        host=str(run.get("host", "")),
    )


def parameter_value(stored: float, distribution_json: str) -> Value:
    """Return the value that Optuna holds as a number.

    >>> parameter_value(1.0, '{"name": "CategoricalDistribution", "attributes": {"choices": ["full", "none"]}}')
    'none'
    """
    kind, choices = _distribution(distribution_json)
    if choices is not None:
        chosen: Value = choices[int(stored)]
        return chosen
    return int(stored) if kind.startswith("Int") else float(stored)


@lru_cache(maxsize=1024)
def _distribution(text: str) -> tuple[str, tuple[Any, ...] | None]:
    content = json.loads(text)
    choices = content["attributes"].get("choices")
    return str(content["name"]), None if choices is None else tuple(choices)


def _folder(run: Json, number: int) -> Path | None:
    study_folder = run.get("study_folder")
    return _study_folder(str(study_folder)).trial(number).path if study_folder else None


@lru_cache(maxsize=64)
def _study_folder(text: str) -> StudyFolder:
    path = Path(text)
    return StudyFolder(path.parent, path.name)


def _seconds(time: Any) -> float | None:
    """Return a stored time, local and without its zone, as seconds since 1970."""
    return None if time is None else datetime.fromisoformat(str(time)).timestamp()
