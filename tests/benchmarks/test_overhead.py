"""What the tuner itself costs, by the benchmark, beside a known command in the same run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.start_cost import reference_cpu_s

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def test_a_trial_costs_little_and_no_more_at_the_end_than_at_the_beginning(tmp_path: Path) -> None:
    output = tmp_path / "overhead.json"
    options = ["--trials", "10", "--growth", "220", "--slots", "1", "--output", str(output)]
    before_s = reference_cpu_s()
    subprocess.run([sys.executable, str(ROOT / "benchmarks" / "overhead.py"), *options], check=True)
    growth = json.loads(output.read_text())["growth_cpu"]
    # A seventh of the reference where nothing else runs.
    assert growth["first_ms"] / 1000 < max(before_s, reference_cpu_s()) / 3
    assert growth["ratio"] < 1.5
