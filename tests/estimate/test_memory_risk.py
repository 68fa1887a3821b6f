from __future__ import annotations

import numpy as np
import pytest

from zenith_tune.estimate.memory_coefficients import MemoryCoefficients, even_quantiles
from zenith_tune.estimate.memory_risk import memory_quantiles, oom_probability
from zenith_tune.units import GIB


def test_the_probability_rises_with_the_need_and_is_even_at_the_limit() -> None:
    need = np.linspace(60, 100, 41) * GIB
    found = oom_probability(need, 80 * GIB, MemoryCoefficients(log_errors=even_quantiles(0.05)))
    assert (np.diff(found) >= 0).all() and found[0] == 0 and found[-1] == 1
    assert found[20] == pytest.approx(0.5)


def test_the_interval_is_that_of_the_errors() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.1))
    assert c.interval == pytest.approx((-0.1645, 0.1645), abs=0.01)
    low, high = memory_quantiles(np.array([50.0]), (0.05, 0.95), c)
    assert (low[0], high[0]) == pytest.approx((50 * np.exp(c.interval[0]), 50 * np.exp(c.interval[1])), rel=1e-3)


def test_a_variant_widens_the_interval_on_its_side_only() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.02), variant_share=0.3)
    low, high = memory_quantiles(np.array([50.0]), (0.05, 0.95), c, variant=np.array([80.0]))
    assert low[0] > 47 and 79 < high[0] < 84


def test_no_variant_leaves_the_interval_as_it_is() -> None:
    c = MemoryCoefficients(log_errors=even_quantiles(0.02))
    alone = memory_quantiles(np.array([50.0]), (0.05, 0.95), c)
    assert memory_quantiles(np.array([50.0]), (0.05, 0.95), c, variant=np.array([80.0])) == pytest.approx(alone)
