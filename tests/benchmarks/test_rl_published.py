"""Steps of reinforcement learning that were published, as the planner predicts them."""

from __future__ import annotations

import statistics
import sys

from tests.conftest import ROOT
from zenith_rl.report import PUBLISHED

sys.path.insert(0, str(ROOT / "benchmarks"))

from rl_published import published


def test_their_errors_are_those_that_a_plan_prints() -> None:
    """Nothing is fitted to them."""
    ratios = sorted(float(row["step_s"]) / placed.step_s for row, placed in published())
    lowest, middle, highest = (f"{ratio:.1f}" for ratio in (ratios[0], statistics.median(ratios), ratios[-1]))
    assert PUBLISHED.split()[2] == str(len(ratios))
    assert f"{lowest} to {highest} times" in PUBLISHED and f"{middle} times on the median" in PUBLISHED
