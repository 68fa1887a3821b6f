"""A simulated study takes the time that its runs print, whatever the clock of the machine says."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.benchmarks.test_replay import HEAD, ROWS
from tests.conftest import ROOT
from zenith_tune.calibrate.calibration_file import save_calibration
from zenith_tune.estimates.calibration import Calibration
from zenith_tune.runners.base import End
from zenith_tune.study.resources import Resources

sys.path.insert(0, str(ROOT / "benchmarks"))

from replay_landscape import START_UP_S, landscapes, read_runs
from study_cost import NUM_ITERATIONS, Case, Cost, RecordedPreset, SimulatedRunner, markdown, play, summaries


@pytest.fixture
def case(tmp_path: Path) -> Case:
    """Return a study of five layouts, one of which is out of memory, from an own command twice as slow as the best."""
    lines = [
        f"ultrascale_playbook,2025,nanotron,H100,8,8,tiny,16,2048,8192,32,32,131072,4096,bf16,{tp},{pp},"
        f"{8 // tp // pp},ZeRO-{zero},{mbs},256,{step},{memory},{outcome},{notes}"
        for tp, pp, zero, mbs, step, memory, outcome, notes in ROWS
    ]
    (tmp_path / "tiny.csv").write_text("\n".join([HEAD, *lines]) + "\n")
    (landscape,) = landscapes(read_runs(tmp_path))
    own = next(item for item in landscape.recorded if item.step_s == 10.0)
    return Case(landscape=landscape, own=own)


def played(case: Case, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Cost:
    monkeypatch.setenv("ZENITHTUNE_HOME", str(folder))
    folder.mkdir()
    save_calibration(Calibration(framework="nanotron"), folder / "calibration.json")
    return play(case, folder / "calibration.json", folder)


def test_a_study_is_paid_by_the_simulated_clock_and_twice_alike(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost, again = (played(case, tmp_path / name, monkeypatch) for name in ("first", "again"))
    assert cost == again
    own_s = START_UP_S + 10.0 * (3 + 1.05)
    assert cost.better_s is not None and own_s + START_UP_S < cost.better_s <= cost.stop_s <= cost.verdict_s
    assert cost.verdict_s < 5000 and 2 <= cost.stop_launches <= cost.verdict_launches
    assert cost.behind == pytest.approx(10.0 / cost.true_speedup / 4.8 - 1) and cost.behind < 0.05
    assert cost.holds and not cost.is_wrong and cost.speedup == pytest.approx(cost.true_speedup, rel=0.05)
    kept = {"commit": "c", "command": "d", "machine": "m", "seconds": 1, "groups": summaries([(case, cost)])}
    assert f"| {cost.base_samples} ({cost.base_samples}) | " in markdown({"labels": {"before": kept, "after": kept}})


def test_a_run_prints_as_its_clock_advances_and_one_without_memory_fails(case: Case, tmp_path: Path) -> None:
    runner, preset = SimulatedRunner(replace(case, noise=0.0, launch=0.0)), RecordedPreset(case)
    job = runner.submit(preset.apply_parameters("", case.own.point), tmp_path, Resources())
    assert job.wait(START_UP_S + 29.9) is None and not job.log_path.exists()
    assert job.wait(0.2) is None and job.log_path.read_text().count("(ms): 30000.0") == 1
    ended = job.wait()
    assert ended.end is End.EXITED and ended.exit_code == 0
    assert ended.duration_s == pytest.approx(START_UP_S + 10 * (NUM_ITERATIONS + 2.05))
    full = next(item for item in case.landscape.recorded if item.step_s is None)
    (tmp_path / "full").mkdir()
    failed = runner.submit(preset.apply_parameters("", full.point), tmp_path / "full", Resources()).wait()
    assert failed.exit_code == 1 and failed.duration_s == pytest.approx(START_UP_S)


def test_the_noise_of_a_launch_is_drawn_again_by_each(case: Case) -> None:
    runner = SimulatedRunner(replace(case, noise=0.0, launch=0.03))
    command = RecordedPreset(case).apply_parameters("", case.own.point)
    first, second = ([at for at, _ in runner.lines(command)] for _ in range(2))
    assert first != second and first == [at for at, _ in SimulatedRunner(runner._case).lines(command)]
