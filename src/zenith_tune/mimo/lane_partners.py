"""Which data-parallel lanes of two modules hold the same samples."""

from __future__ import annotations

from zenith_tune.errors import UsageError


def lane_partners(lane: int, dp: int, other_dp: int) -> list[int]:
    """Return the lanes of the other side that hold samples of this lane.

    >>> lane_partners(1, dp=2, other_dp=4), lane_partners(3, dp=4, other_dp=2)
    ([2, 3], [1])
    """
    if max(dp, other_dp) % min(dp, other_dp):
        raise UsageError(f"data-parallel sizes must divide one another, but got {dp} and {other_dp}.")
    if other_dp >= dp:
        ratio = other_dp // dp
        return list(range(lane * ratio, (lane + 1) * ratio))
    return [lane * other_dp // dp]
