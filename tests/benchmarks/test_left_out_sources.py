"""Whole sources are predicted from the others, with intervals that know how far sources differ."""

from __future__ import annotations

import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.calibrate.made_runs import SMALL, made_runs
from tests.calibrate.test_time_fit import TRUTH
from tests.conftest import ROOT
from zenith_tune.calibrate.measured_run import MeasuredRun

sys.path.insert(0, str(ROOT / "benchmarks"))

from left_out_sources import judge_sources, leave_sources_out, source_sds


def of_sources(*levels: float) -> list[MeasuredRun]:
    """Return the same runs by several authors, each longer by the author's own factor."""
    runs = [run for run in made_runs(TRUTH, noise=0.03) if run.model == SMALL]
    return [
        replace(run, source=f"source {number}", step_s=level * (run.step_s or 0))
        for number, level in enumerate(levels)
        for run in runs
    ]


def test_a_source_is_predicted_from_the_others_alone() -> None:
    cases = {case.author: case for case in leave_sources_out(of_sources(1.0, 1.0, 2.0))}
    assert float(np.median(cases["source 2"].held.residuals)) == pytest.approx(np.log(2), abs=0.05)
    assert cases["source 2"].errors.sources == {"h100": 2}


def test_the_interval_of_a_source_holds_as_far_as_others_differ() -> None:
    cases = leave_sources_out(of_sources(0.8, 0.9, 1.0, 1.1, 1.25))
    assert 0.1 < source_sds(cases)["work"] < 0.3
    inside = [item.inside for _, judged in judge_sources(cases) for item in judged]
    without = [item.inside for case in cases for item in case.judged(dict.fromkeys(source_sds(cases), 0.0))]
    assert np.mean(inside) > 0.9 > 0.7 > np.mean(without)


def test_a_framework_of_a_single_source_is_predicted_with_another_ones_coefficients() -> None:
    alone = [replace(run, framework="nanotron", source="alone") for run in of_sources(1.5)]
    cases = leave_sources_out([*of_sources(1.0, 1.1), *alone])
    ((case, judged),) = [found for found in judge_sources(cases) if found[0].author == "alone"]
    assert case.framework == "nanotron" and not case.is_measured
    assert all(item.high_s > 2 * item.predicted_s for item in judged), "it may take any time"
