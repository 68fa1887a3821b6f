"""The benchmark of a large merge, at a size that takes no time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "benchmarks" / "checkpoint_merge.py"
pytestmark = pytest.mark.slow


def benchmark(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    arguments = [sys.executable, str(SCRIPT), "--gib", "0.3", "--hidden", "1024", "--folder", str(folder), *options]
    return subprocess.run(arguments, capture_output=True, text=True, timeout=500)


def test_a_merge_under_a_limit_is_measured_and_compared_and_nothing_is_left(tmp_path: Path) -> None:
    folder, output = tmp_path / "data", tmp_path / "figures.json"
    folder.mkdir()
    done = benchmark(folder, "--limit-mib", "300", "--output", str(output))
    assert done.returncode == 0, done.stderr
    figures = json.loads(output.read_text())
    assert figures["merged_gib"] >= 0.3 and figures["compared"] > 20 and figures["different"] == []
    assert 0 < figures["peak_rss_mib"] < figures["limit_mib"] < figures["merged_gib"] * 1024
    assert list(folder.iterdir()) == []


def test_the_limit_is_a_real_one(tmp_path: Path) -> None:
    done = benchmark(tmp_path, "--limit-mib", "16")
    assert done.returncode != 0 and list(tmp_path.iterdir()) == []
