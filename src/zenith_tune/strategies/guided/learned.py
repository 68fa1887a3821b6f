"""The calibrations that studies on this machine have learned, one for each framework and kind of GPU."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from pathlib import Path

from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration, save_calibration
from zenith_tune.calibrate.holdout import LEAST_RUNS, fit_time
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_family import family_of
from zenith_tune.calibrate.time_fit import unusable_by, with_default_batch
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.job_spec import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.study.files import learned_folder, plain_name
from zenith_tune.study.trial import Outcome, Trial

STUDIES = " + studies on this machine"
FILE_NAME = "prior.json"
"""The calibration that a study began with, in its folder, so that a resumed study continues as it would have."""


def learned_path(subject: PlanSubject) -> Path | None:
    """Return the file of this machine's calibration, if there is a folder for it."""
    folder = learned_folder()
    name = plain_name(f"{subject.job.framework.name}-{subject.cluster.gpu.name}")
    return None if folder is None else folder / f"{name}.json"


def starting_calibration(
    subject: PlanSubject, *, given: Path | None, learns: bool, folder: Path | None
) -> tuple[Calibration, str]:
    """Return the calibration that a study begins with, and a description of its origin."""
    if folder is not None and (kept := kept_calibration(folder)) is not None:
        return kept, "as when the study began"
    calibration, origin = _begin(subject, given, learns)
    if folder is not None and folder.is_dir():
        with contextlib.suppress(OSError):  # without it, a resumed study begins with the calibration of that day
            save_calibration(calibration, folder / FILE_NAME)
    return calibration, origin


def kept_calibration(folder: Path) -> Calibration | None:
    """Return the calibration that the study in a folder began with, if it began."""
    path = folder / FILE_NAME
    try:
        return load_calibration(path) if path.is_file() else None
    except UsageError as error:
        raise UsageError(error.problem, hint=f"delete {path}, and the study continues with what is known now") from None


def keep(
    subject: PlanSubject, calibration: Calibration, runs: Sequence[MeasuredRun], memory_error: float
) -> Path | None:
    """Refine `calibration` by the new runs of a study and save it for the next one; None where they are too few.

    `memory_error` is the error common to all estimates of memory.
    """
    path = learned_path(subject)
    if path is None:
        return None
    try:
        # Another study may have saved its own in the meantime, which is then refined.
        start = _learned(path) or calibration
        name = load_framework(calibration.framework).name
        family = family_of(name)
        timed = [with_default_batch(run) for run in runs if unusable_by(family, run) is None]
        if len(timed) < LEAST_RUNS:
            return None
        errors = tuple(error + memory_error for error in calibration.memory.log_errors)
        learned = replace(
            start,
            framework=name,
            time=fit_time(timed, family, start.time, refines=True)[0],
            memory=replace(calibration.memory, log_errors=errors),
            origin=start.origin.removesuffix(STUDIES) + STUDIES,
            date=datetime.now(UTC).date().isoformat(),
            num_runs=len(timed),
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        save_calibration(learned, path)
    except (UsageError, OSError):  # such as a full disk: the study itself is complete
        return None
    return path


def adopt(path: Path) -> Path | None:
    """Keep what another machine learned for the next study here, unless this one has learned from as many runs."""
    folder, theirs = learned_folder(), load_calibration(path)
    known = None if folder is None else _learned(folder / path.name)
    if folder is None or (known is not None and known.time.num_own >= theirs.time.num_own):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    save_calibration(theirs, folder / path.name)
    return folder / path.name


def _begin(subject: PlanSubject, given: Path | None, learns: bool) -> tuple[Calibration, str]:
    if given is not None:
        return load_calibration(given), f"calibrated by {given}"
    path = learned_path(subject)
    learned = _learned(path) if learns and path is not None else None
    if learned is not None:
        return learned, "calibrated by earlier studies"
    calibration = default_calibration(subject.job.framework.name)
    return calibration, "calibrated by published runs" if calibration.num_runs else "not calibrated"


def _learned(path: Path) -> Calibration | None:
    try:
        return load_calibration(path) if path.is_file() else None
    except (UsageError, OSError):  # from another release, or unreadable: the packaged calibration serves
        return None


def measured_run(subject: PlanSubject, layouts: LayoutBatch, index: int, trial: Trial) -> MeasuredRun:
    """Return a trial of the layout at `index` as a run."""
    cluster, job = subject.cluster, subject.job
    return MeasuredRun(
        source="studies on this machine",
        framework=job.framework.name,
        model=subject.model,
        model_name=subject.model.name,
        gpu=cluster.gpu.name,
        num_gpus=cluster.num_gpus,
        gpus_per_node=cluster.gpus_per_node,
        cluster=cluster,
        precision=job.precision,
        dispatcher=job.dispatcher,
        seq_len=job.seq_len,
        layout={field.name: getattr(layouts, field.name)[index].item() for field in fields(LayoutBatch)},
        step_s=trial.step_s if trial.ok else None,
        memory_bytes=float(trial.peak_memory_bytes) if trial.peak_memory_bytes else None,
        memory_kind="reserved" if trial.peak_memory_bytes else "",
        out_of_memory=trial.outcome is Outcome.OOM,
    )
