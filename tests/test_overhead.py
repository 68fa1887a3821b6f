"""What the tuner itself costs, by the benchmark; CPU time is judged here, wall time only on a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow


@pytest.mark.timeout(600)
def test_a_trial_costs_little_and_no_more_at_the_end_than_at_the_beginning(tmp_path: Path) -> None:
    output = tmp_path / "overhead.json"
    arguments = ["--trials", "150", "--growth", "400", "--slots", "1", "--output", str(output)]
    subprocess.run([sys.executable, ROOT / "benchmarks" / "overhead.py", *arguments], check=True, capture_output=True)
    figures = json.loads(output.read_text())
    assert figures["overhead_cpu_ms"] < 40
    assert figures["growth_cpu"]["ratio"] < 1.25
