"""What is kept from one study to the next on a machine: a calibration for each framework and kind of GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from zenith_tune.calibrate.calibrate import calibrate
from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration, save_calibration
from zenith_tune.describe.plan_subject import PlanSubject
from zenith_tune.errors import UsageError
from zenith_tune.estimate.calibration import Calibration
from zenith_tune.measured.measured_run import MeasuredRun

FILE_NAME = "prior.json"
"""In the study's folder: what it began with, so that a resumed study goes on as it would have."""


def learned_path(subject: PlanSubject) -> Path:
    """Return where the calibration of this machine is kept; ZENITHTUNE_HOME moves it."""
    data = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    home = Path(os.environ.get("ZENITHTUNE_HOME") or Path(data) / "zenithtune")
    return home / "learned" / f"{subject.job.framework.name}-{subject.cluster.gpu.name}.json"


def starting_calibration(
    subject: PlanSubject, *, given: Path | None, learns: bool, folder: Path | None
) -> tuple[Calibration, str]:
    """Return what a study begins with, and where that comes from in words."""
    kept = folder / FILE_NAME if folder is not None else None
    if kept is not None and kept.is_file():
        return load_calibration(kept), "as when the study began"
    calibration, origin = _begin(subject, given, learns)
    if kept is not None and kept.parent.is_dir():
        save_calibration(calibration, kept)
    return calibration, origin


def keep(
    subject: PlanSubject, calibration: Calibration, runs: Sequence[MeasuredRun], memory_error: float
) -> Path | None:
    """Refine `calibration` by the runs of a study and keep it for the next one; None where they are too few.

    `memory_error` is what was found of the error that all estimates of memory share.
    """
    path = learned_path(subject)
    try:
        learned = calibrate(
            runs,
            framework=calibration.framework,
            origin=f"{calibration.origin.partition(' + ')[0]} + studies on this machine",
            date=datetime.now(UTC).date().isoformat(),
            start=calibration,
        )
        errors = tuple(error + memory_error for error in calibration.memory.log_errors)
        learned = replace(learned, memory=replace(calibration.memory, log_errors=errors))
        path.parent.mkdir(parents=True, exist_ok=True)
        save_calibration(learned, path)
    except (UsageError, OSError):  # too few runs, or no room to keep them: the study itself is not worse for it
        return None
    return path


def _begin(subject: PlanSubject, given: Path | None, learns: bool) -> tuple[Calibration, str]:
    if given is not None:
        return load_calibration(given), f"calibrated by {given}"
    path = learned_path(subject)
    if learns and path.is_file():
        try:
            return load_calibration(path), "calibrated by earlier studies on this machine"
        except UsageError:  # written by another release: the one that comes with the package will do
            pass
    calibration = default_calibration(subject.job.framework.name)
    return calibration, "calibrated by published runs" if calibration.num_runs else "not calibrated"
