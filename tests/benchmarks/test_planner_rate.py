"""How fast the planner is, by the benchmark: CPU time and memory, which other work on the machine does not change."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.timeout(900)
def test_whole_spaces_take_seconds_and_many_at_once_are_as_good_as_one() -> None:
    arguments = [sys.executable, str(ROOT / "benchmarks" / "planner_rate.py"), "--json"]
    cases = json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)["cases"]
    limits_s = {"llama3-70b": 2.0, "llama3-405b": 10.0}
    assert limits_s.keys() <= {case["model"] for case in cases}
    for case in cases:
        assert case["plan_cpu_s"] < limits_s.get(case["model"], 10.0), case
        assert case["peak_rss_mib"] < 2048, case
        assert case["largest_relative_difference"] < 1e-9, case
    assert max(case["estimate_layouts_per_cpu_s"] for case in cases) > 200_000
