"""Whether samples rise or fall with time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence


def rank_trend(values: Sequence[float]) -> float:
    """Return Spearman's rank correlation with time, in standard deviations of what chance gives.

    Of samples without a trend it is close to a standard normal number, whatever their distribution.

    >>> round(rank_trend([1.0, 2.0, 3.0, 4.0, 10.0]), 3), rank_trend([7.0] * 5)
    (2.0, 0.0)
    """
    ranks = _ranks(values)
    middle = (len(values) - 1) / 2
    shared = sum((rank - middle) * (time - middle) for time, rank in enumerate(ranks))
    spread = math.sqrt(sum((rank - middle) ** 2 for rank in ranks))
    steps = math.sqrt(sum((time - middle) ** 2 for time in range(len(values))))
    return shared / (spread * steps) * math.sqrt(len(values) - 1) if spread else 0.0


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the rank of each sample from 0; equal ones share the mean of theirs."""
    order = sorted(range(len(values)), key=values.__getitem__)
    ranks = [0.0] * len(values)
    start = 0
    for _, group in itertools.groupby(order, key=values.__getitem__):
        equals = list(group)
        for index in equals:
            ranks[index] = start + (len(equals) - 1) / 2
        start += len(equals)
    return ranks
