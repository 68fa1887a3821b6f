"""A lost or damaged database, rebuilt from the files of the studies' own folders."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sqlite3
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.folder import ABOUT_NAME, DATABASE_NAME, RECORD_NAME, StudyFolder, StudyLock
from zenith_tune.record.reader import FILE_NAME, study_names
from zenith_tune.record.record import HEADER_KEY
from zenith_tune.record.storage import clear_errors, database_url, opened_storage
from zenith_tune.record.stored_trial import RESULT, RUN, TWIN_OF, exported_trial, refuse_unreadable, result_of
from zenith_tune.record.view import StudyHeader
from zenith_tune.study.files import Json, read_regular
from zenith_tune.study.optuna_types import name_objective, quiet_optuna
from zenith_tune.study.parameters import Direction
from zenith_tune.study.trial import Trial
from zenith_tune.units import MIB

MAX_BYTES = 64 * MIB
_RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveredStudy:
    """A study that was recovered."""

    name: str
    num_finished: int
    num_unfinished: int
    """Trials that were running: a resumed study runs them again."""
    num_lost: int
    """Trials whose files are gone as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    name: str
    header: Json
    direction: Direction
    distributions: Json
    trials: dict[int, Json]


def recover(folder: Path, database: Path | None = None) -> tuple[list[RecoveredStudy], Path | None]:
    """Write the studies of a folder, or the study that it is, into its database; returns where a damaged one was put.

    A database that can be read keeps what it has: only studies that it does not know are added.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {folder}", hint="give that of a study, or the output folder of several")
    if (folder / ABOUT_NAME).is_file():
        problem = f"{folder} came by zenithtune import, which brings no record to rebuild a database from"
        raise UsageError(problem, hint="continue the study where it ran")
    is_study = (folder / "trials").is_dir() or (folder / RECORD_NAME).is_file()
    root = folder.absolute().parent if is_study else folder.absolute()
    found = [_read(each) for each in ([folder.absolute()] if is_study else _study_folders(root))]
    if not found:
        raise UsageError(f"{folder} holds no study", hint="give the folder of a study, or the output folder of several")
    path = (database or root / DATABASE_NAME).absolute()
    damaged = _put_aside(path)
    if damaged is not None and is_study:  # it may have held the others, too
        found = [_read(each) for each in _study_folders(root)]
    known = set(study_names(database_url(path))) if path.exists() else set()
    missing = [study for study in found if study.name not in known]
    if not missing:
        raise StudyError(f"{path} has every study of {folder}", hint="there is nothing to recover")
    if not path.exists():
        path.touch(mode=0o600)
    return [_write(study, path) for study in missing], damaged


def _study_folders(root: Path) -> list[Path]:
    own = (path for path in root.iterdir() if not (path / ABOUT_NAME).is_file())
    return sorted(path for path in own if (path / RECORD_NAME).is_file() or (path / "trials").is_dir())


def _put_aside(path: Path) -> Path | None:
    """Rename a database that SQLite cannot read, with its journal; it is never removed."""
    if not path.exists():
        return None
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)) as connection:
            answers = [row[0] for row in connection.execute("pragma integrity_check")]
            connection.execute("select count(*) from studies, trials")
    except sqlite3.DatabaseError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_BUSY":
            raise StudyError(
                f"the database {path} is in use ({error})", hint="end who uses it, then try again"
            ) from None
        answers = [str(error)]
    if answers == ["ok"]:
        return None
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%d-%H%M%S')}")
    for suffix in ("", "-journal", "-wal", "-shm"):
        if (part := path.with_name(path.name + suffix)).exists():
            part.rename(aside.with_name(aside.name + suffix))
    return aside


def _read(folder: Path) -> _Files:
    trials: dict[int, Json] = {}
    for path in sorted(folder.glob("trials/*/trial.json")):
        with contextlib.suppress(StudyError):  # one that is damaged is lost; the others are not
            content = {**_json(path), "folder": str(path.parent)}
            with refuse_unreadable(str(path)):
                trials[int(path.parent.name)] = {**content, "parameters": dict(content["parameters"])}
    record = _record(folder, trials)
    with refuse_unreadable(str(folder / RECORD_NAME)):
        return _Files(
            name=folder.name,
            header=dict(record["header"]),
            direction=Direction(record["direction"]),
            distributions=dict(record["distributions"]),
            trials=trials,
        )


def _record(folder: Path, trials: dict[int, Json]) -> Json:
    """Return what a study is, by its own record, or else by its last export and its trials."""
    with contextlib.suppress(StudyError):  # gone, or damaged
        return _json(folder / RECORD_NAME)
    from optuna.distributions import CategoricalDistribution, distribution_to_json

    about: Json = {}
    with contextlib.suppress(StudyError):
        about = _json(folder / FILE_NAME)
    points = [trial["parameters"] for trial in trials.values()]
    values = {
        name: list(dict.fromkeys(each[name] for each in points if name in each)) for point in points for name in point
    }
    units = (str(trial.get("unit") or "s") for trial in trials.values() if trial.get("outcome") == "ok")
    grows = next(units, "s").endswith(("/s", "/GPU"))
    fields = {each.name: about[each.name] for each in dataclasses.fields(StudyHeader) if each.name in about}
    return {
        "header": {"preset": "unknown", "args": {}, "command": "", "evaluator": "value", **fields},
        "direction": about.get("direction", "maximize" if grows else "minimize"),
        "distributions": {
            name: json.loads(distribution_to_json(CategoricalDistribution(list(each)))) for name, each in values.items()
        },
    }


def _json(path: Path) -> Json:
    try:
        content = json.loads(read_regular(path, MAX_BYTES))
    except OSError as error:
        raise StudyError(
            f"{path} cannot be read ({error.strerror})", hint="without it nothing can be recovered"
        ) from None
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{path} is no JSON ({error})", hint="move the trial's folder away to do without it") from None
    if not isinstance(content, dict):
        raise StudyError(f"{path} must be a JSON object", hint="move the trial's folder away to do without it")
    return content


def _write(study: _Files, path: Path) -> RecoveredStudy:
    from optuna import create_study
    from optuna.distributions import json_to_distribution

    url, folder = database_url(path), StudyFolder(path.parent, study.name)
    lock, states = StudyLock(path, study.name), Counter[str]()
    lock.acquire()
    try:
        distributions = {name: json_to_distribution(json.dumps(each)) for name, each in study.distributions.items()}
        with clear_errors(url), opened_storage(url) as storage, quiet_optuna():
            made = create_study(storage=storage, study_name=study.name, direction=study.direction.value)
            made.set_user_attr(HEADER_KEY, study.header)
            name_objective(made, str(study.header.get("evaluator", "value")))
            for number in range(max(study.trials, default=-1) + 1):
                frozen = _frozen(None, folder.path, distributions)
                with contextlib.suppress(StudyError), refuse_unreadable(f"trial {number} of {folder.path}"):
                    frozen = _frozen(study.trials.get(number), folder.path, distributions)
                made.add_trial(frozen)
                states[TWIN_OF if TWIN_OF in frozen.user_attrs else frozen.state.name] += 1
    finally:
        lock.release()
    return RecoveredStudy(
        name=study.name,
        num_finished=states["COMPLETE"] + states["FAIL"],
        num_unfinished=states["RUNNING"],
        num_lost=states[TWIN_OF],
    )


def _frozen(content: Json | None, folder: Path, distributions: Json) -> Any:
    """Return a trial as Optuna holds it; one whose files are gone keeps its number and counts for nothing."""
    from optuna.trial import TrialState, create_trial

    if content is None:
        return create_trial(state=TrialState.FAIL, user_attrs={TWIN_OF: "lost"})
    run = {"identity": content["identity"], "is_baseline": bool(content["is_baseline"]), "why": content["why"] or ""}
    run |= {"label": "", "study_folder": str(folder)}
    run |= {"rerun_of": content["rerun_of"]} if "rerun_of" in content else {}  # not in files of older releases
    params = dict(content["parameters"])
    known = {name: distributions[name] for name in params}
    if content["outcome"] == _RUNNING:
        return create_trial(state=TrialState.RUNNING, params=params, distributions=known, user_attrs={RUN: run})
    trial: Trial = exported_trial(content)
    return create_trial(
        state=TrialState.COMPLETE if trial.value is not None else TrialState.FAIL,
        value=trial.value,
        params=params,
        distributions=known,
        user_attrs={RUN: run, RESULT: result_of(trial)},
    )
