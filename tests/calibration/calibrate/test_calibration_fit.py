from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.calibrate.made_runs import MIDDLE, SMALL, a_run, layouts, made_runs, timed
from tests.calibrate.test_time_fit import TRUTH
from tests.calibration.calibrate.test_memory_fit import measured_as
from tests.mentions import mentions
from zenith_calibration.calibrate.calibration_fit import fit_calibration
from zenith_calibration.calibrate.report import moves
from zenith_tune.calibrate.calibration_file import default_calibration
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.errors import UsageError
from zenith_tune.estimates.calibration import Calibration, MemoryCoefficients, TimeCalibration

ABOUT: dict[str, Any] = {"framework": "megatron", "origin": "made up", "date": "2026-11-15"}
FLAGGED = [replace(run, flags=("PROXY",)) for run in made_runs(TRUTH)[:7]]
ON_ONE_NODE = [a_run(MIDDLE, "h100", 8, layout) for layout in layouts(8)]


def named(runs: list[MeasuredRun], framework: str) -> list[MeasuredRun]:
    return [replace(run, framework=framework, source=f"{framework} paper") for run in runs]


def test_a_calibration_says_where_it_comes_from_and_what_was_left_out() -> None:
    others = named(made_runs(TRUTH)[:4], "nanotron")
    runs = [*made_runs(TRUTH), *FLAGGED, *others]
    fit = fit_calibration(runs, **ABOUT)
    calibration = fit.calibration
    assert (calibration.origin, calibration.date) == ("made up", "2026-11-15")
    assert calibration.num_runs == fit.num_time_runs == len(runs) - 11
    assert sorted(fit.left_out.values()) == [4, 7]
    reasons = {number: reason for reason, number in fit.left_out.items()}
    assert mentions(reasons[7], "PROXY") and mentions(reasons[4], "nanotron")
    assert fit.num_landscapes == 12 and fit.held_out == "landscape"


def test_the_sources_of_each_gpu_are_counted_and_tables_of_one_author_are_one() -> None:
    runs, names = made_runs(TRUTH, gpus=("h100", "a100-80")), ("h200_sweep", "probes on h200", "vtrain_single", "bloom")
    several = [replace(run, source=names[i % 4] if run.gpu == "h100" else "bloom") for i, run in enumerate(runs)]
    assert fit_calibration(several, **ABOUT).calibration.time.sources == {"a100-80": 1, "h100": 3}


def test_exact_runs_leave_hardly_any_error() -> None:
    fit = fit_calibration(made_runs(TRUTH), **ABOUT)
    assert fit.median_error < 0.02 and -0.15 < fit.interval[0] < fit.interval[1] < 0.15
    assert {move.name for move in moves(fit)[:6]} & {"fast_efficiency", "hidden_passes", "slow_efficiency"}


def test_a_few_runs_refine_what_was_known_and_stay_near_it() -> None:
    start = Calibration(time=TimeCalibration(coefficients=TRUTH, interval=(-0.3, 0.3)))
    slower = timed(ON_ONE_NODE[:3], replace(TRUTH, gemm_efficiency=0.5))
    fit = fit_calibration(slower, **ABOUT, start=start)
    assert fit.before == TRUTH and fit.held_out == "run"
    assert fit.calibration.time.coefficients.slow_efficiency == pytest.approx(TRUTH.slow_efficiency, rel=1e-6)
    assert 0.4 < fit.calibration.time.coefficients.gemm_efficiency < 0.6
    low, high = fit.calibration.time.interval
    assert fit.calibration.time.num_own == 3
    assert low < -0.2 and high > 0.2, "three runs do not make the interval of a thousand narrow"


def test_the_refined_calibration_predicts_the_users_own_machine_better() -> None:
    slow = replace(TRUTH, gemm_efficiency=0.35)
    start = Calibration(time=TimeCalibration(coefficients=TRUTH))
    mine = fit_calibration(timed(ON_ONE_NODE, slow), **ABOUT, start=start).calibration
    new = [a_run(SMALL, "h100", 8, layout) for layout in layouts(8)]
    truth = np.array([run.step_s for run in timed(new, slow)])
    before = np.array([run.step_s for run in timed(new, TRUTH)])
    reached = mine.time.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    after = np.array([run.step_s for run in timed(new, reached)])
    assert np.abs(after / truth - 1).max() < 0.1 < 0.2 < np.abs(before / truth - 1).max()


@pytest.mark.parametrize("count", [0, 1, 2])
def test_fewer_than_three_runs_are_refused_with_the_reasons(count: int) -> None:
    with pytest.raises(UsageError, match=rf"\b3 runs .*\b{count} .*\b7 .*PROXY"):
        fit_calibration([*made_runs(TRUTH)[:count], *FLAGGED], **ABOUT)


def test_memory_is_fitted_where_enough_runs_state_what_they_allocated() -> None:
    truth = MemoryCoefficients(activations=1.2)
    runs = measured_as(truth, "megatron")
    assert fit_calibration(runs, **ABOUT).calibration.memory.activations == pytest.approx(1.2, rel=0.03)
    known = replace(default_calibration("megatron"), memory=MemoryCoefficients(activations=0.8))
    fast = timed(ON_ONE_NODE, TRUTH)
    few = fit_calibration([*runs[:4], *fast], **ABOUT, start=known).calibration
    assert few.memory == known.memory
    reserved = [replace(run, memory_kind="reserved") for run in runs]
    assert fit_calibration([*reserved, *fast], **ABOUT, start=known).calibration.memory == known.memory


def test_memory_alone_leaves_the_time_as_it_was() -> None:
    start = Calibration(time=TimeCalibration(coefficients=TRUTH))
    fit = fit_calibration(measured_as(MemoryCoefficients(), "megatron"), **ABOUT, start=start)
    assert fit.calibration.time == start.time and fit.num_time_runs == 0 and np.isnan(fit.median_error)
