"""How fast the planner is, by the benchmark, beside a fixed piece of work in the same run; and that it is right."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

LIMITS = {"llama3-70b": 45, "llama3-405b": 150}
"""Times the reference: about three times what it is on a quiet machine, whose caches nobody else uses."""
LEAST_RATE = 6_000
"""Layouts in the time of the reference: a third of what a quiet machine estimates."""
ATTEMPTS = 3


@pytest.mark.timeout(900)
def test_whole_spaces_take_seconds_and_many_at_once_are_as_good_as_one() -> None:
    tried = []
    for _ in range(ATTEMPTS):
        cases = measured()
        assert LIMITS.keys() <= {case["model"] for case in cases}
        for case in cases:
            assert case["peak_rss_mib"] < 2048, case
            assert case["largest_relative_difference"] < 1e-9, case
        tried.append([case["plan_cpu_s"] / case["reference_cpu_s"] for case in cases])
        rate = max(case["estimate_layouts_per_cpu_s"] * case["reference_cpu_s"] for case in cases)
        limits = [LIMITS.get(case["model"], 150) for case in cases]
        if rate > LEAST_RATE and all(took < limit for took, limit in zip(tried[-1], limits, strict=True)):
            return
    raise AssertionError(f"times the reference: {tried}")


def measured() -> list[dict[str, Any]]:
    arguments = [sys.executable, str(ROOT / "benchmarks" / "planner_rate.py"), "--json"]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    cases: list[dict[str, Any]] = json.loads(done.stdout)["cases"]
    return cases
