"""The examples of prior."""

from __future__ import annotations

import numpy as np

from zenith_tune.strategies.guided.prior import normal_cdf


def test_the_normal_distribution_is_close_to_tables() -> None:
    assert normal_cdf(np.array([-1.96, 0.0, 1.96])).round(3).tolist() == [0.025, 0.5, 0.975]
