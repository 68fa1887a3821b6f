"""The examples of routing."""

from __future__ import annotations

import numpy as np

from zenith_tune.estimates.routing import busiest_of


def test_the_busiest_of_many_ranks_has_more_than_the_mean() -> None:
    assert [figure.round(2).tolist() for figure in busiest_of(np.array([0.35, 0.35]), np.array([1, 8]))] == [
        [1.0, 1.54],
        [0.0, 0.26],
    ]
