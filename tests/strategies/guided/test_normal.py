from __future__ import annotations

from statistics import NormalDist

import numpy as np

from zenith_tune.strategies.guided.prior import normal_cdf, normal_density


def test_both_agree_with_the_standard_library() -> None:
    x, normal = np.linspace(-6, 6, 241), NormalDist()
    assert np.allclose(normal_cdf(x), [normal.cdf(value) for value in x], atol=1e-7)
    assert np.allclose(normal_density(x), [normal.pdf(value) for value in x])
