"""A short part of each attack of the benchmark; `benchmarks/fuzz.py` runs as much of it as is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.warm_process import run_python


def attacked(tmp_path: Path, *options: str) -> dict[str, dict[str, int]]:
    output = tmp_path / "found.json"
    words = [str(ROOT / "benchmarks" / "fuzz.py"), *options, "--output", str(output)]
    done = run_python(words, tmp_path, os.environ, timeout_s=800)
    assert output.exists(), done.stderr
    found: dict[str, dict[str, int]] = json.loads(output.read_text())
    return found


def test_no_line_log_or_secret_of_a_short_attack_gets_through(tmp_path: Path) -> None:
    found = attacked(tmp_path, "--lines", "500", "--logs", "50", "--secrets", "500")
    assert [found[part]["found"] for part in ("lines", "logs", "secrets")] == [0, 0, 0]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_no_kill_loses_a_trial_and_a_soak_records_all(tmp_path: Path) -> None:
    others = ("--seed", "2", "--lines", "1000", "--logs", "150", "--secrets", "1000")
    found = attacked(tmp_path, *others, "--kills", "8", "--soak", "60")
    assert [found[part]["found"] for part in ("lines", "logs", "secrets", "kills", "soak")] == [0] * 5
