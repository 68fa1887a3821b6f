from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from zenith_tune.describe.cluster_spec import precision_class
from zenith_tune.estimates.calibration import TimeCalibration, TimeCoefficients

KNOWN = TimeCalibration(
    coefficients=TimeCoefficients(gemm_efficiency=0.5, expert_passes=40.0),
    factors={
        "gpu:h100": {"gemm_efficiency": 1.2},
        "gpu:b200": {"gemm_efficiency": 0.9},
        "precision:fp8": {"gemm_efficiency": 0.8},
        "framework:megascale": {"gemm_efficiency": 1.1},
    },
    trends={"expert_passes": -0.5},
    release=2026.0,
    interval=(-0.329, 0.329),
    sources={"h100": 4, "b200": 1},
)


def reached(gpu: str, precision: str = "bf16", framework: str = "megatron", release: float | None = None) -> float:
    at = KNOWN.coefficients_for(gpu=gpu, precision=precision, framework=framework, release=release)
    return at.gemm_efficiency


@pytest.mark.parametrize(
    ("gpu", "efficiency"), [("h100", 0.6), ("h200", 0.6), ("b200", 0.45), ("gb300", 0.45), ("v100-32", 0.5)]
)
def test_a_gpu_that_was_not_measured_is_taken_for_its_nearest_kin(gpu: str, efficiency: float) -> None:
    assert reached(gpu) == pytest.approx(efficiency)


def test_factors_of_gpu_precision_and_framework_multiply() -> None:
    assert reached("h100", "fp8", "megascale") == pytest.approx(0.5 * 1.2 * 0.8 * 1.1)


def test_a_trend_counts_the_years_from_the_release() -> None:
    passes = {
        year: KNOWN.coefficients_for(gpu="h100", precision="bf16", framework="", release=year).expert_passes
        for year in (2024.0, 2026.0, None)
    }
    assert passes[2024.0] == pytest.approx(40 * 2.71828182846) and passes[2026.0] == passes[None] == 40.0


def test_the_spread_is_that_of_a_normal_distribution_with_the_same_interval() -> None:
    assert KNOWN.spread == pytest.approx(0.2)


def level_sd(time: TimeCalibration, gpu: str = "h100", host_share: float = 0.0) -> float:
    return float(time.level_sd(np.array([[host_share], [0.0], [0.0]]), gpu)[0])


def test_the_level_of_a_machine_is_better_known_the_more_sources_measured_its_gpu() -> None:
    many, similar, one = (level_sd(KNOWN, gpu) for gpu in ("h100", "h200", "b200"))
    assert many == similar == pytest.approx(one * (1.25 / 2) ** 0.5)
    assert level_sd(KNOWN, host_share=0.8) > 2 * many, "hosts differ more than GPUs do"
    assert level_sd(replace(KNOWN, sources={})) > 1, "a framework that nobody measured may take any time"


def test_the_level_is_known_once_the_user_has_measured() -> None:
    sds = [level_sd(replace(KNOWN, num_own=num), "b200") for num in (0, 1, 100)]
    assert sds[1] == pytest.approx((1 / (1 / sds[0] ** 2 + 1 / KNOWN.spread**2)) ** 0.5) and sds[2] < 0.03


def test_the_level_widens_both_ends_of_an_interval_alike() -> None:
    low, high = replace(KNOWN, interval=(-0.1, 0.4)).ends(2.0, 0.5)
    assert low == pytest.approx(-((0.2**2 + 0.8225**2) ** 0.5)) and high == pytest.approx((0.8**2 + 0.8225**2) ** 0.5)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("BF16", "bf16"), ("fp16", "bf16"), ("FP8-CS", "fp8"), ("mxfp8", "mxfp8"), ("NVFP4", "fp4"), ("float8", "fp8")],
)
def test_precisions_are_sorted_by_their_matrix_products(text: str, kind: str) -> None:
    assert precision_class(text) == kind
