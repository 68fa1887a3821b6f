from __future__ import annotations

import numpy as np
import pytest

from zenith_tune.calibrate.robust_fit import folds, robust_fit
from zenith_tune.estimates.workload import FloatArray

X = np.linspace(0, 5, 60)
TRUTH = np.array([1.0, 2.0, 0.3])
LOOSE = np.full(3, 50.0)


def curve(c: FloatArray) -> FloatArray:
    values: FloatArray = c[0] + c[1] * X + np.sin(c[2] * X)
    return values


def test_known_coefficients_are_found_among_a_fifth_of_wrong_points() -> None:
    random = np.random.default_rng(1)
    measured = curve(TRUTH) + random.normal(0, 0.02, len(X))
    wrong = random.choice(len(X), len(X) // 5, replace=False)
    measured[wrong] += random.uniform(3, 30, len(wrong))
    fitted = robust_fit(lambda c: curve(c) - measured, np.array([0.0, 1.0, 0.5]), prior_scale=LOOSE, scale=0.05)
    assert fitted == pytest.approx(TRUTH, abs=0.06)
    plain = np.linalg.lstsq(np.stack([np.ones_like(X), X], axis=1), measured - np.sin(0.3 * X), rcond=None)[0]
    assert abs(plain[0] - 1.0) > 1.0, "least squares on the same points is far off, or the test shows nothing"


def test_what_the_data_does_not_tell_stays_at_its_start() -> None:
    fitted = robust_fit(lambda c: c[0] * X - 2 * X, np.array([1.0, 7.0]), prior_scale=np.array([10.0, 1.0]))
    assert fitted == pytest.approx([2.0, 7.0], abs=1e-3)


def test_one_weak_point_moves_a_coefficient_less_than_many() -> None:
    def moved(points: int) -> float:
        return float(robust_fit(lambda c: np.full(points, c[0] - 1.0), np.zeros(1), prior_scale=np.full(1, 0.05))[0])

    assert 0 < moved(1) < 0.5 * moved(50) and moved(50) > 0.9


def test_a_start_where_nothing_is_a_number_is_left_as_it_is() -> None:
    with np.errstate(invalid="ignore"):
        fitted = robust_fit(lambda c: np.sqrt(c[0] - np.full(3, 5.0)), np.array([1.0]), prior_scale=np.ones(1))
    assert fitted == pytest.approx([1.0])


def test_a_wrong_point_hardly_moves_a_robust_fit() -> None:
    x, y = np.arange(6.0), np.array([1.0, 3, 5, 7, 9, 100])  # a line, and a wrong last point
    fitted = robust_fit(lambda c: c[0] + c[1] * x - y, np.zeros(2), prior_scale=np.full(2, 100.0))
    assert bool(abs(fitted[1] - 2) < 0.1)


def test_folds_are_places_or_single_runs() -> None:
    assert [fold.tolist() for fold in folds(["a", "a", "b"])] == [[True, True, False], [False, False, True]]
    assert [fold.tolist() for fold in folds(["a", "a"])] == [[True, False], [False, True]]
