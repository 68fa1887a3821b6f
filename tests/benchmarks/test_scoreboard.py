"""The scoreboard takes any folders of measured runs, and the targets that were reached stay reached."""

from __future__ import annotations

import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.data_folder import measured_data
from tests.mentions import mentions
from tests.warm_process import run_python

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "scoreboard.py"
ERRORS = {"n", "median_abs_pct", "mean_abs_pct", "max_abs_pct"}


def scoreboard(*arguments: str | Path) -> dict[str, Any]:
    result = run_python([str(SCRIPT), "--json", *map(str, arguments)], SCRIPT.parent, os.environ, timeout_s=1700)
    assert result.returncode == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def rows_of(name: str, place: Path, *, held: str, wanted: bool) -> None:
    """Write those rows of a measured file whose model is `held`, or all the others, into a folder of the same form."""
    with (measured_data() / name).open(newline="") as file:
        reader = csv.DictReader(file)
        rows = [row for row in reader if (row["model"] == held) == wanted]
    target = place / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", newline="") as file:
        writer = csv.DictWriter(file, reader.fieldnames or ())
        writer.writeheader()
        writer.writerows(rows)


@pytest.mark.slow
def test_one_folder_predicts_another(tmp_path: Path) -> None:
    held = {"published/llm_foundry.csv": "MPT-7b", "h200/hf_accelerate.csv": "llama0.4b"}
    for name, model in held.items():
        rows_of(name, tmp_path / "fit", held=model, wanted=False)
        rows_of(name, tmp_path / "judge", held=model, wanted=True)
    found = scoreboard("--fit", tmp_path / "fit", "--judge", tmp_path / "judge")
    assert found["memory"]["h200_hf_accelerate"].keys() == ERRORS
    assert found["memory"]["h200_hf_accelerate"]["n"] == 14
    limits = {"llm_foundry": 15, "h200_hf_accelerate": 25}  # the latter is judged by a single model
    assert found["speed"].keys() == limits.keys()
    assert all(found["speed"][name]["median_abs_pct"] < limit for name, limit in limits.items())
    assert found["fits"]["n"] == 0 and found["choice"]["landscapes"] == 0 and found["choice"]["spearman_median"] is None
    assert 0 <= found["interval"]["inside_pct"] <= 100
    assert found["left_out"] == {}


@pytest.mark.slow
def test_runs_that_are_judged_are_not_fitted_to(tmp_path: Path) -> None:
    rows_of("published/llm_foundry.csv", tmp_path / "all", held="", wanted=False)
    rows_of("published/llm_foundry.csv", tmp_path / "judge", held="MPT-7b", wanted=True)
    rows_of("published/llm_foundry.csv", tmp_path / "fit", held="MPT-7b", wanted=False)
    both = [scoreboard("--fit", tmp_path / place, "--judge", tmp_path / "judge") for place in ("all", "fit")]
    assert both[0]["speed"] == both[1]["speed"]


def test_a_folder_without_runs_is_refused_in_one_line(tmp_path: Path) -> None:
    result = run_python([str(SCRIPT), "--json", "--fit", str(tmp_path)], SCRIPT.parent, os.environ, timeout_s=500)
    assert result.returncode == 2
    assert len(result.stderr.strip().splitlines()) == 1 and mentions(result.stderr, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_targets_that_were_reached_stay_reached(tmp_path: Path) -> None:
    found = scoreboard("--fit", measured_data(), "--output", tmp_path / "scoreboard.md")
    memory, speed = found["memory"], found["speed"]
    for source in ("h200_megatron_lm_0.20", "h200_hf_accelerate"):
        assert memory[source]["mean_abs_pct"] <= 3 and memory[source]["max_abs_pct"] <= 8
    assert memory["ultrascale_playbook"]["median_abs_pct"] <= 5
    assert memory["mcore_ci_golden"]["median_abs_pct"] <= 8
    limits = {"llm_foundry": 6, "megatron_bridge": 10, "dgxc_benchmarking": 10, "bloom_prequel": 10}
    limits |= {"megascale": 10, "megatron_sc21": 10, "ultrascale_playbook": 15}
    assert {
        name: speed[name]["median_abs_pct"]
        for name, limit in limits.items()
        if not speed[name]["median_abs_pct"] <= limit
    } == {}
    assert found["fits"]["accuracy_pct"] >= 90
    assert found["choice"]["first_pick_median_pct"] <= 0.5 and found["choice"]["spearman_median"] > 0.9
    assert 85 <= found["interval"]["inside_pct"] <= 95
    assert "## Choice" in (tmp_path / "scoreboard.md").read_text()
