"""The run that a target names: the most informative trial of a study, a log, or a command."""

from __future__ import annotations

import contextlib
import json
import math
import os
import shlex
from contextlib import chdir
from dataclasses import replace
from pathlib import Path
from typing import Any

from zenith_tune.doctor.diagnosed_run import (
    MEGATRON,
    MEGATRON_LM,
    OF_ANOTHER_RELEASE,
    DiagnosedRun,
    FasterRun,
    Measured,
    RunHints,
    UnplannedRun,
    emitted,
    from_command,
    made_preset,
    run_of_point,
    run_of_preset,
    tried_layouts,
)
from zenith_tune.doctor.logged_run import from_log, log_causes, logged_steps, positive, read_bytes
from zenith_tune.errors import StudyError, UnknownNameError, UsageError
from zenith_tune.evaluators.base import BATCH
from zenith_tune.evaluators.steps import LoggedSteps
from zenith_tune.presets.parts import CompletePreset
from zenith_tune.record.folder import BEST_COMMAND, DATABASE_NAME
from zenith_tune.record.restored_preset import study_calibration
from zenith_tune.study.files import Json, TrialFolder
from zenith_tune.study.trial import PHASE
from zenith_tune.study.trial_log import without_escapes
from zenith_tune.units import format_value

STUDY_FILE, TRIALS = "study.json", "trials"
ASKED = "asked"
"""Where a study that was read has the trial to diagnose, in place of the most informative one."""


def find_run(
    target: Path | None, command: str | None, hints: RunHints, *, db: str | None, output_dir: Path | None
) -> DiagnosedRun | UnplannedRun:
    """Read the run of a study's name, folder or study.json, of a log, or of a command alone.

    The log of a trial is read with what its study knows.
    """
    if target is None:
        if command is not None:
            return from_command(command, hints)
        try:
            return from_named_study(None, hints, db=db, output_dir=output_dir)
        except StudyError:
            if output_dir is not None or db is not None:
                raise
        hint = "give a study's name or folder, a log, or your command after --"
        raise UsageError("the doctor needs a run", hint=hint)
    if (target / DATABASE_NAME).is_file() and command is None:
        return from_named_study(str(target), hints, db=db, output_dir=output_dir)
    if target.is_dir() or target.name == STUDY_FILE:
        if command is not None:
            raise UsageError("a study knows the command that it tuned", hint="leave -- COMMAND out")
        folder = target if target.is_dir() else target.parent
        return _diagnosed(_study(folder), folder, hints)
    if command is None and not target.exists():
        try:
            return from_named_study(str(target), hints, db=db, output_dir=output_dir)
        except (StudyError, UnknownNameError):
            if not target.suffix and len(target.parts) == 1:  # not the name of a file
                raise
    trial = _logged_trial(target) if command is None else None
    return from_log(target, command, hints) if trial is None else _diagnosed(*trial, hints)


def _logged_trial(log: Path) -> tuple[Json, Path] | None:
    """Return the study in whose folder a log lies, with the log's trial as the one to diagnose, and that folder."""
    place = log.absolute()
    for folder in place.parents:
        if folder.name == TRIALS and (folder.parent / STUDY_FILE).is_file():
            with contextlib.suppress(UsageError):  # it may be of another program
                study, name = _study(folder.parent), place.relative_to(folder).parts[0]
                shown = folder.parent if log.is_absolute() else Path(os.path.relpath(folder.parent))
                for trial in study["trials"]:
                    if isinstance(trial, dict) and Path(str(trial.get("folder"))).name == name:
                        return {**study, ASKED: trial}, shown
    return None


def from_named_study(
    name: str | None, hints: RunHints, *, db: str | None, output_dir: Path | None
) -> DiagnosedRun | UnplannedRun:
    """Read a study of a database by its name, as far as it has come; without one it is the study begun last."""
    from zenith_tune.record.export import best_as_json, trial_as_json
    from zenith_tune.record.source import find_study

    view = find_study(name, db=db, output_dir=output_dir).view()
    shown = view.name if name is None or Path(name).is_dir() else name
    baseline = trial_as_json(view.baseline) if view.baseline else None
    study = {
        "command": view.header.command,
        "preset": view.header.preset,
        "args": view.header.args,
        "working_folder": view.header.working_folder,
        "best": best_as_json(view.study),
        "baseline": baseline,
        "gain": view.study.gain,
        "is_within_noise": view.study.is_within_noise,
        "trials": [trial_as_json(trial) for trial in view.study.trials],
        "search": {"memory_limit_bytes": view.study.memory_limit_bytes},
    }
    folder = view.folder if view.folder is not None and view.folder.is_dir() else Path(shown)
    run = _diagnosed(study, folder, hints)
    return replace(run, what=run.what.replace(str(folder), shown))


def _diagnosed(study: Json, folder: Path, hints: RunHints) -> DiagnosedRun | UnplannedRun:
    """Read the run in the study's working folder, so that the scripts of a relative command are found."""
    here = str(study.get("working_folder") or "")
    if not Path(here).is_dir():  # the study may be of another machine
        here = ""
    args = {name: _from_anywhere(value) for name, value in hints.args.items()}
    hints = replace(hints, args=args, cluster=_from_anywhere(hints.cluster))
    place = folder.absolute() if folder.is_dir() else folder
    with chdir(here or "."):
        run = _diagnosed_in_place(study, place, hints)
    if isinstance(run, DiagnosedRun) and (faster := run.origin.faster) is not None:
        shown = replace(faster, command=faster.command.replace(str(place), str(folder)))
        run = replace(run, origin=replace(run.origin, faster=shown))
    return replace(run, what=run.what.replace(str(place), str(folder)))


def _from_anywhere(value: Any) -> Any:
    """Return the absolute path of a file that exists, and anything else unchanged."""
    return str(Path(value).absolute()) if isinstance(value, str) and os.path.lexists(value) else value


def _diagnosed_in_place(study: Json, folder: Path, hints: RunHints) -> DiagnosedRun | UnplannedRun:
    command, trial = str(study["command"]), _informative_trial(study)
    name = hints.preset or str(study["preset"])
    args = {**study["args"], **hints.all_args}
    if trial is None:
        return _failed(study, folder, RunHints(preset=name, args=args))
    params = _point(trial)
    is_out = trial.get("outcome") == "oom"
    has_phases = any(name.startswith(PHASE) for name in trial)
    text = _log_text(trial, folder) if has_phases or ASKED in study else ""
    logged = (logged_steps(text) if has_phases else None) or LoggedSteps()
    measured = Measured(
        step_s=None if is_out else positive(trial.get("step_s")),
        peak_bytes=None if is_out else positive(trial.get("peak_memory_bytes")),
        out_of_memory=is_out,
        cause=str(trial.get("cause") or ""),
        causes=log_causes(text) if ASKED in study and not is_out else (),
        phases_s=logged.phases,
        phase_findings=tuple(logged.findings),
    )
    preset = made_preset(name, args)
    preset.bind(command)
    if isinstance(base := study.get("baseline"), dict):
        with contextlib.suppress(UsageError):
            preset.read_baseline(_log_text(base, folder))
    what = f"{_name(trial)} of {folder}"
    try:
        if params:
            run = _run_of_trial(preset, name, command, params, folder)
        elif name in (MEGATRON, MEGATRON_LM):
            run = from_command(command, RunHints(preset=name, args=args))
        else:
            run = run_of_preset(preset, name, command, RunHints(preset=name, args=args))
    except UsageError as error:
        if hints.all_args or isinstance(error, StudyError):  # which may be mistaken
            raise
        value = format_value(positive(trial.get("value")) or 0.0, str(trial.get("unit") or ""))
        return UnplannedRun(measured=measured, what=what, reason=str(error), value=value)
    points = [_point(each) for each in (study.get("baseline"), *study["trials"]) if isinstance(each, dict)]
    origin = replace(
        RunHints(args=args).origin(emitted(name, command), run.origin.unasked),
        tried=tried_layouts(preset, command, points, but=run.layout),
        memory_limit_bytes=_memory_limit(study),
        tries=preset.tries,
        faster=_faster(study, trial, folder, preset),
    )
    return replace(run, measured=measured, origin=origin, what=what, calibration=study_calibration(folder))


def _faster(study: Json, trial: Json, folder: Path, preset: CompletePreset) -> FasterRun | None:
    """Return the fastest run of a study, where it is faster than a trial that it does not repeat."""
    fastest = next(iter(_went_well(study)), trial)
    numbers = {fastest.get("number"), *(fastest.get("reruns") or ())}
    if trial.get(BATCH) != fastest.get(BATCH):  # their steps are not of the same work
        return None
    step_s, its_step_s = positive(trial.get("step_s")), positive(fastest.get("step_s"))
    if trial.get("number") in numbers or (trial.get("is_baseline") and fastest.get("is_baseline")):
        return None
    if step_s is None or its_step_s is None or its_step_s >= step_s:
        return None
    script = folder / BEST_COMMAND
    label = "as it is" if fastest.get("is_baseline") else preset.label(_point(fastest))
    start = f"bash {shlex.quote(str(script))}" if script.is_file() and not fastest.get("is_baseline") else ""
    return FasterRun(name=_name(fastest), label=label, step_s=its_step_s, command=start)


def _failed(study: Json, folder: Path, hints: RunHints) -> DiagnosedRun | UnplannedRun:
    """Read the log of the first trial that failed, for what ended it."""
    for trial in (study.get(ASKED, study.get("baseline")), *study["trials"]):
        if isinstance(trial, dict) and (log := _log(trial, folder)) is not None:
            command = str(trial.get("command") or study["command"])
            return replace(from_log(log, command, hints), what=f"{_name(trial)} of {folder}")
    problem = f"no trial of study {str(folder)!r} succeeded, ran out of memory or left a log"
    raise UsageError(problem, hint="give another study")


def _log(trial: Json, folder: Path) -> Path | None:
    """Return a trial's log, where it has one; a study's folder may have been moved or copied since."""
    if not isinstance(trial.get("folder"), str):
        return None
    place = Path(trial["folder"])
    log = TrialFolder(folder / place.parent.name / place.name if folder.is_dir() else place).log
    return log if log.is_file() else None


def _log_text(trial: Json, folder: Path) -> str:
    """Return what a trial printed; nothing where it left no log."""
    log = _log(trial, folder)
    return "" if log is None else without_escapes(read_bytes(log).decode("utf-8", errors="replace"))


def _name(trial: Json) -> str:
    return "your own command" if trial.get("is_baseline") else f"trial {trial.get('number')}"


def _memory_limit(study: Json) -> float | None:
    """Return the study's limit of a GPU's memory, where it has one."""
    search = study.get("search")
    return positive(search.get("memory_limit_bytes")) if isinstance(search, dict) else None


def _point(trial: Json) -> Json:
    params = trial.get("parameters")
    return params if isinstance(params, dict) else {}


def _run_of_trial(preset: CompletePreset, name: str, command: str, params: Json, folder: Path) -> DiagnosedRun:
    try:
        return run_of_point(preset, name, command, params)
    except UsageError:
        raise
    except OF_ANOTHER_RELEASE as error:  # or of a study that was edited
        problem = f"study {str(folder)!r} must have trials of the preset {name!r}, but their parameters are of another"
        raise StudyError(f"{problem} ({type(error).__name__}: {error})", hint="give another study") from None


def _study(folder: Path) -> Json:
    path = folder / STUDY_FILE
    data = read_bytes(path)
    try:
        study = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        study = None
    is_one = isinstance(study, dict) and isinstance(study.get("trials"), list)
    if not is_one or not all(key in study for key in ("command", "preset")) or not isinstance(study.get("args"), dict):
        raise UsageError(f"{path} must be what a study writes, but is not", hint="give the folder of another study")
    return dict(study)


def _informative_trial(study: Json) -> Json | None:
    """Return the most informative trial: the fastest, else the first out of memory; None where all failed."""
    if (asked := study.get(ASKED)) is not None:
        return asked if asked.get("outcome") in ("ok", "oom") else None
    trials = [trial for trial in study["trials"] if isinstance(trial, dict)]
    failed = [each for each in trials if each.get("outcome") == "oom"]
    return next(iter([*_went_well(study), *failed]), None)


def _went_well(study: Json) -> list[Json]:
    """Return the user's own command and the best trial as far as they went well, the one to use first."""
    base, best, gain = study.get("baseline"), study.get("best"), study.get("gain")
    limit = _memory_limit(study) or math.inf
    is_over = isinstance(base, dict) and (positive(base.get("peak_memory_bytes")) or 0.0) > limit
    is_no_gain = isinstance(gain, int | float) and (gain < 0 or bool(study.get("is_within_noise")))
    candidates = [base, best] if is_no_gain and not is_over else [best, base]
    return [each for each in candidates if isinstance(each, dict) and each.get("outcome") == "ok"]
