"""Make a calibration from measured runs: fit, hold out to learn the spread, and note where it comes from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from zenith_tune.calibrate.holdout import families_of, interval, time_residuals
from zenith_tune.calibrate.run_table import RunTable
from zenith_tune.calibrate.time_fit import TimeFit
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.estimate.calibration import Calibration
from zenith_tune.estimate.time_calibration import TimeCalibration
from zenith_tune.measured.measured_run import MeasuredRun


def calibrate_time(runs: list[MeasuredRun]) -> dict[str, TimeCalibration]:
    """Fit every family of frameworks that has runs, and return the calibrations by family."""
    found = {}
    for family, members in families_of(runs):
        framework = load_framework(family.name)
        fit = TimeFit(family, RunTable.of(members, framework), framework)
        spread = interval(time_residuals(fit))
        found[family.name] = replace(fit.calibration(fit.fit()), interval=spread)
    return found
