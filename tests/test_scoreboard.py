"""The scoreboard takes any folders of measured runs, and the targets that were reached stay reached."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.data_folder import measured_data

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "scoreboard.py"
ERRORS = {"n", "median_abs_pct", "mean_abs_pct", "max_abs_pct"}


def scoreboard(*arguments: str | Path) -> dict[str, Any]:
    command = [sys.executable, str(SCRIPT), "--json", *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def folder_of(place: Path, *names: str) -> Path:
    """Put some of the measured files into a folder of the same form."""
    data = measured_data()
    for name in names:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data / name, target)
    return place


@pytest.mark.slow
def test_one_folder_predicts_another(tmp_path: Path) -> None:
    fit = folder_of(tmp_path / "fit", "published/llm_foundry.csv", "h200/hf_accelerate.csv")
    judge = folder_of(tmp_path / "judge", "h200/hf_accelerate.csv")
    found = scoreboard("--fit", fit, "--judge", judge)
    assert found["memory"]["h200_hf_accelerate"].keys() == ERRORS
    assert found["memory"]["h200_hf_accelerate"]["n"] == 24
    assert found["speed"].keys() == {"h200_hf_accelerate"}
    assert found["fits"]["n"] == 0 and found["choice"]["landscapes"] == 0
    assert 0 <= found["interval"]["inside_pct"] <= 100


def test_a_folder_without_runs_is_refused_in_one_line(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--json", "--fit", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and "must hold measured runs" in result.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_targets_that_were_reached_stay_reached(tmp_path: Path) -> None:
    found = scoreboard("--fit", measured_data(), "--output", tmp_path / "scoreboard.md")
    memory, speed = found["memory"], found["speed"]
    for source in ("h200_megatron_lm_0.20", "h200_hf_accelerate"):
        assert memory[source]["mean_abs_pct"] <= 3 and memory[source]["max_abs_pct"] <= 8
    assert memory["ultrascale_playbook"]["median_abs_pct"] <= 6
    assert memory["mcore_ci_golden"]["median_abs_pct"] <= 8
    limits = {"llm_foundry": 6, "megatron_bridge": 10, "dgxc_benchmarking": 10, "bloom_prequel": 10}
    limits |= {"megascale": 10, "megatron_sc21": 10, "ultrascale_playbook": 15}
    assert {
        name: speed[name]["median_abs_pct"]
        for name, limit in limits.items()
        if not speed[name]["median_abs_pct"] <= limit
    } == {}
    assert found["fits"]["accuracy_pct"] >= 90
    assert found["choice"]["first_pick_median_pct"] <= 5 and found["choice"]["spearman_median"] > 0.9
    assert 85 <= found["interval"]["inside_pct"] <= 95
    assert "NOT MET" not in (tmp_path / "scoreboard.md").read_text().partition("## Choice")[0]
