"""One trial of a record: what is written of it, and the one place where it is read back, from whatever holds it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zenith_tune.errors import StudyError, UsageError
from zenith_tune.record.folder import trial_folder
from zenith_tune.record.view import TrialView
from zenith_tune.study.files import Json
from zenith_tune.study.parameters import Value
from zenith_tune.study.trial import Outcome, RunKey, Trial

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

RUN, RESULT = "run", "result"
"""The attributes of a trial in Optuna's storage, as it starts and as it ends."""
TWIN_OF = "twin_of"
"""The attribute of a trial that was written once too often; it cannot be deleted, for Optuna numbers by counting."""
_TEXTS = ("cause", "failure", "early", "unit")
_NUMBERS = ("duration_s", "spread", "error", "drift", "step_s", "peak_memory_bytes", "num_samples", "num_runs")
_EXPORTED = {
    *_TEXTS,
    *_NUMBERS,
    *("number", "outcome", "value", "command", "folder", "is_baseline", "why", "parameters", "identity", "rerun_of"),
    *("label", "started_s", "ended_s"),
}


class TrialFolders:
    """The folders of trials where they are now: a whole output folder may have been moved, or copied."""

    def __init__(self, database: Path | None, default: Path | None = None) -> None:
        self._database, self._default = database, default
        self._places: dict[str, Path] = {}

    def find(self, study_folder: object, number: int) -> Path | None:
        """Return the folder of a trial that ran in `study_folder`; None where neither that nor a default is known."""
        recorded = str(study_folder or self._default or "")
        if not recorded:
            return None
        if recorded not in self._places:
            self._places[recorded] = self._place(Path(recorded))
        return trial_folder(self._places[recorded], number)

    def _place(self, recorded: Path) -> Path:
        if self._database is None or recorded.is_dir():
            return recorded
        moved = self._database.absolute().parent / recorded.name
        return moved if moved.is_dir() else recorded


def result_of(trial: Trial) -> Json:
    """Return how a trial ended, as it is recorded."""
    measured = {name: getattr(trial, name) for name in (*_TEXTS, *_NUMBERS)}
    return {"outcome": str(trial.outcome), "command": trial.command, **measured, "extra": dict(trial.extra)}


def trial_view(frozen: FrozenTrial, folders: TrialFolders, trials: Sequence[FrozenTrial]) -> TrialView:
    """Return one of the trials of Optuna's storage; to be read under `refuse_unreadable`."""
    runs = ({**each.user_attrs.get(RUN, {}), "number": each.number} for each in trials)
    run, result = dict(frozen.user_attrs.get(RUN, {})), dict(frozen.user_attrs.get(RESULT, {}))
    is_running = not frozen.state.is_finished()
    folder = folders.find(run.get("study_folder"), frozen.number)
    value = None if is_running else frozen.value
    return TrialView(
        trial=_decoded(frozen.number, frozen.params, value, run, {} if is_running else result, folder, runs),
        label=str(run.get("label", "")),
        # Optuna's times are local and without their zone.
        started_s=frozen.datetime_start.timestamp() if frozen.datetime_start else None,
        ended_s=frozen.datetime_complete.timestamp() if frozen.datetime_complete else None,
        is_running=is_running,
        host=str(run.get("host", "")),
        claim=str(run.get("claim", "")),
    )


def exported_trial(content: Json, trials: Sequence[Json] = ()) -> Trial:
    """Return one of the trials of a study.json; to be read under `refuse_unreadable`."""
    folder = Path(content["folder"]) if content["folder"] else None
    extra = {name: value for name, value in content.items() if name not in _EXPORTED}
    number, params, result = int(content["number"]), dict(content["parameters"]), {**content, "extra": extra}
    return _decoded(number, params, content["value"], content, result, folder, trials)


def exported_view(content: Json, trials: Sequence[Json]) -> TrialView:
    """Return one of the trials of a study.json, with its name and times where a bundle brought them."""
    return TrialView(
        trial=exported_trial(content, trials),
        label=str(content.get("label", "")),
        started_s=_finite(content.get("started_s")),
        ended_s=_finite(content.get("ended_s")),
    )


@contextmanager
def refuse_unreadable(what: str) -> Iterator[None]:
    """Turn what reading raises where something else has changed a record into one line."""
    try:
        yield
    except UsageError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        problem = f"{what} cannot be read ({type(error).__name__}: {error})"
        raise StudyError(problem, hint="something else has changed it; choose another study") from error


def _decoded(
    number: int,
    params: Mapping[str, Value],
    value: Any,
    run: Json,
    result: Json,
    folder: Path | None,
    runs: Iterable[Json],
) -> Trial:
    key = _run_key(run, number, runs)
    outcome = Outcome(result.get("outcome", Outcome.CANCELLED))
    return Trial(
        params=params,
        outcome=outcome,
        value=_finite(value) if outcome is Outcome.OK else None,
        number=number,
        command=str(result.get("command") or ""),
        folder=folder,
        **key._asdict(),
        why=str(run.get("why") or ""),
        extra=dict(result.get("extra", {})),
        **_measured(result),
    )


_RERUN = re.compile(r"(?: # [0-9]+)? # alone$")
"""The end of the identity of a run that repeats another one, in records of releases before `rerun_of`."""


def _run_key(run: Json, number: int, runs: Iterable[Json]) -> RunKey:
    identity, is_baseline = str(run.get("identity", "")), bool(run.get("is_baseline"))
    rerun_of = run.get("rerun_of")
    if "rerun_of" not in run and (mark := _RERUN.search(identity)) is not None:
        identity = identity[: mark.start()]
        earlier = (each for each in runs if each["number"] < number and bool(each.get("is_baseline")) is is_baseline)
        same = (each["number"] for each in earlier if is_baseline or each.get("identity") == identity)
        rerun_of = max(same, default=None)
    return RunKey(identity, is_baseline, rerun_of)


def _measured(result: Json) -> Json:
    """Return the measurements and the texts of a trial; a float that is not finite, of a plug-in, is left out."""
    known = {name: result[name] for name in (*_TEXTS, *_NUMBERS) if result.get(name) is not None}
    known = {name: value for name, value in known.items() if not _is_odd_float(value)}
    for name, value in known.items():
        if name in _NUMBERS:
            _finite(value)
        elif not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}")
    return known


def _finite(value: Any) -> Any:
    """Return a number that can be computed with, or None."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or _is_odd_float(value)):
        raise TypeError(f"value is {value!r}")
    return value


def _is_odd_float(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
