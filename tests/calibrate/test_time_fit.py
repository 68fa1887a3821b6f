from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.calibrate.made_runs import LARGE, a_run, layouts, made_runs, timed
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.calibrate.time_family import Recipes, TimeFamily, family_of
from zenith_tune.calibrate.time_fit import RunTable, TimeFit
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.estimates.calibration import TimeCalibration, TimeCoefficients
from zenith_tune.estimates.workload import FloatArray

MEGATRON = load_framework("megatron")
TRUTH = TimeCoefficients(gemm_efficiency=0.6, fast_efficiency=0.45, slow_efficiency=0.8, hidden_passes=50.0)
FITTED = dict.fromkeys(("gemm_efficiency", "fast_efficiency", "slow_efficiency", "hidden_passes"), 20.0)
FAMILY = TimeFamily(name="megatron", frameworks=("megatron",), fitted=FITTED)


def fit(runs: list[MeasuredRun], family: TimeFamily = FAMILY, start: TimeCalibration | None = None) -> TimeCalibration:
    time_fit = TimeFit(family, RunTable.of(runs, MEGATRON), MEGATRON, start=start)
    return time_fit.calibration(time_fit.fit())


def predicted_s(runs: list[MeasuredRun], start: TimeCalibration) -> FloatArray:
    time_fit = TimeFit(family_of("megatron"), RunTable.of(runs, MEGATRON), MEGATRON, start=start)
    return time_fit.predict(time_fit.start)


def test_the_coefficients_that_made_the_runs_are_found() -> None:
    found = fit(made_runs(TRUTH)).coefficients
    assert [getattr(found, name) for name in FITTED] == pytest.approx([0.6, 0.45, 0.8, 50.0], rel=0.02)


def test_a_fifth_of_wrong_rows_hardly_matters() -> None:
    runs = made_runs(TRUTH, noise=0.02)
    wrong = [replace(run, step_s=3 * (run.step_s or 0)) for run in runs[::5]]
    found = fit([*wrong, *(run for i, run in enumerate(runs) if i % 5)]).coefficients
    assert found.gemm_efficiency == pytest.approx(0.6, rel=0.05)


def test_each_kind_of_gpu_has_its_own_factor() -> None:
    runs = made_runs(TRUTH) + made_runs(replace(TRUTH, gemm_efficiency=0.3), gpus=("a100-80",))
    found = fit(runs, replace(FAMILY, by_gpu=("gemm_efficiency",)))
    reached = {gpu: found.coefficients_for(gpu=gpu, precision="bf16", framework="megatron") for gpu in ("h100", "a800")}
    assert reached["h100"].gemm_efficiency == pytest.approx(0.6, rel=0.03)
    assert reached["a800"].gemm_efficiency == pytest.approx(0.3, rel=0.03), "an A800 is a kind of A100"


def test_a_trend_over_releases_is_found() -> None:
    runs = []
    for year in (2023.0, 2024.0, 2025.0, 2026.0):
        made = made_runs(replace(TRUTH, gemm_efficiency=0.6 * np.exp(0.1 * (year - 2026))))
        runs += [replace(run, release=year) for run in made]
    found = fit(runs, replace(FAMILY, by_release=("gemm_efficiency",)))
    assert found.trends["gemm_efficiency"] == pytest.approx(0.1, abs=0.01)
    assert found.coefficients.gemm_efficiency == pytest.approx(0.6, rel=0.03)


def test_recipes_of_a_release_say_nothing_of_jobs_without_their_settings() -> None:
    recipes = Recipes(since=2026.4, gpus=("h100",), precision="mxfp8", coefficients=("expert_efficiency",))
    family = replace(FAMILY, fitted={**FITTED, "expert_efficiency": 20.0}, recipes=(recipes,))
    slow, fast = (replace(TRUTH, expert_efficiency=share) for share in (0.4, 0.8))
    model, sizes = load_model("mixtral-8x7b"), (8, 16, 32, 64)
    runs = [a_run(model, "h100", size, layout | {"ep": 8}) for size in sizes for layout in layouts(size)]
    runs = [replace(run, precision="mxfp8") for run in runs if int(run.layout["dp"]) % 8 == 0]
    old, new = (
        timed([replace(run, release=year) for run in runs], truth) for year, truth in ((2026.0, slow), (2026.5, fast))
    )
    without = replace(family, recipes=())
    alone, both, mixed = (
        fit(made, each) for made, each in ((old, without), ([*old, *new], family), ([*old, *new], without))
    )
    old_s, found_s, mixed_s = (predicted_s(old, each) for each in (alone, both, mixed))
    assert found_s == pytest.approx(old_s, rel=0.01)
    assert (mixed_s < 0.95 * old_s).all()


def test_a_start_is_refined_and_what_the_runs_do_not_say_is_kept() -> None:
    start = TimeCalibration(
        coefficients=replace(TRUTH, gemm_efficiency=0.55, expert_passes=77.0),
        factors={"gpu:gb200": {"gemm_efficiency": 1.3}, "gpu:h100": {"gemm_efficiency": 0.9}},
        trends={"expert_passes": -0.4},
        release=2025.5,
    )
    found = fit(made_runs(TRUTH), replace(FAMILY, by_gpu=("gemm_efficiency",)), start)
    assert found.factors["gpu:gb200"] == {"gemm_efficiency": 1.3}
    assert (found.coefficients.expert_passes, found.release) == (77.0, 2025.5)
    assert found.trends["expert_passes"] == -0.4
    reached = found.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    assert reached.gemm_efficiency == pytest.approx(0.6, rel=0.02)


def test_without_rows_a_start_predicts_what_it_says() -> None:
    factors = {"gpu:h100": {"gemm_efficiency": 0.8}}
    start = TimeCalibration(coefficients=TRUTH, factors=factors)
    runs = made_runs(replace(TRUTH, gemm_efficiency=0.48))
    time_fit = TimeFit(family_of("megatron"), RunTable.of(runs, MEGATRON), MEGATRON, start=start)
    assert time_fit.predict(time_fit.start) == pytest.approx(time_fit.table.step_s, rel=1e-9)


def test_runs_of_one_node_say_nothing_of_the_network() -> None:
    runs = timed([a_run(LARGE, "h100", 8, layout) for layout in layouts(8)], TRUTH)
    found = fit(runs).coefficients
    assert found.slow_efficiency == pytest.approx(TimeCoefficients().slow_efficiency, rel=1e-3)
    assert found.fast_efficiency != pytest.approx(TimeCoefficients().fast_efficiency, rel=0.05)
