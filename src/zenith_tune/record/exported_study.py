"""A study from the study.json that it leaves behind, for one whose database is elsewhere."""

from __future__ import annotations

import json
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

from zenith_tune.direction import Direction
from zenith_tune.errors import UsageError
from zenith_tune.record.record import StudyHeader
from zenith_tune.record.search import StudySearch
from zenith_tune.record.stored_values import NUMBERS, TEXTS, finite, measured
from zenith_tune.record.view import StudyView, TrialView, refuse_odd, study_of
from zenith_tune.regular_file import open_regular
from zenith_tune.study.study import Study
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.units import MIB

FILE_NAME = "study.json"
MAX_BYTES = 256 * MIB

Json = dict[str, Any]


class ExportedStudy:
    """Read a study.json."""

    def __init__(self, path: Path) -> None:
        self.path = path / FILE_NAME if path.is_dir() else path
        self.name = self.path.absolute().parent.name if self.path.name == FILE_NAME else self.path.stem

    def view(self) -> StudyView:
        """Return the study as it was when it was written."""
        content = self._content()
        try:
            return self._view(content)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            cause = f"{type(error).__name__}: {error}"
            raise UsageError(f"{self.path} must be what a study writes, but is not ({cause}): give another") from error

    def _content(self) -> Json:
        try:
            with open_regular(Path(os.path.realpath(self.path))) as file:
                content = json.loads(file.read(MAX_BYTES).decode("utf-8-sig"))
        except OSError as error:
            raise UsageError(f"study {str(self.path)!r} cannot be read ({error.strerror}): check the path") from None
        except (ValueError, RecursionError):
            content = None
        if not isinstance(content, dict) or not isinstance(content.get("trials"), list):
            raise UsageError(f"{self.path} must be what a study writes, but is not: give another")
        return content

    def _view(self, content: Json) -> StudyView:
        direction = Direction(content["direction"])
        header = StudyHeader(**{field.name: content[field.name] for field in fields(StudyHeader)})
        refuse_odd(header, self.name)
        trials = tuple(TrialView(trial=_trial(each)) for each in content["trials"])
        return StudyView(
            name=self.name,
            header=header,
            direction=direction,
            trials=tuple(sorted(trials, key=lambda view: view.number)),
            study=study_of(trials, direction),
            folder=self.path.absolute().parent,
            num_pruned=content.get("num_pruned"),
            num_repeated=content.get("num_repeated"),
            best_command=content.get("best_command"),
            search=StudySearch.from_json(content.get("search")),
        )


def remembered(folder: Path | None, study: Study) -> Json:
    """Return what a study's export says beyond its record: counts, and the best command if that is still the best."""
    if folder is None or not (folder / FILE_NAME).is_file():
        return {}
    try:
        content = ExportedStudy(folder)._content()
    except UsageError:
        return {}
    best = content.get("best")
    is_still = isinstance(best, dict) and study.best is not None and best.get("number") == study.best.number
    kept = {name: content[name] for name in ("num_pruned", "num_repeated") if isinstance(content.get(name), int)}
    return {**kept, **({"best_command": content.get("best_command")} if is_still else {})}


def _trial(content: Json) -> Trial:
    known = {"number", "outcome", "value", "command", "folder", "is_baseline", "why", "parameters", *TEXTS, *NUMBERS}
    outcome, value = Outcome(content["outcome"]), content["value"]
    return Trial(
        params=dict(content["parameters"]),
        outcome=outcome,
        value=finite("value", value) if outcome is Outcome.OK else None,
        number=int(finite("number", content["number"])),
        command=content["command"] or "",
        folder=Path(content["folder"]) if content["folder"] else None,
        is_baseline=bool(content.get("is_baseline")),
        why=content.get("why") or "",
        extra={name: value for name, value in content.items() if name not in known},
        **measured(content),
    )
