"""How busy a trial keeps its GPUs, by a small nvidia-smi on PATH."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.runners.fake_nvidia_smi import put_on_path
from tests.started_processes import wait_until
from zenith_tune.runners.local import gpu_usage
from zenith_tune.runners.local.gpu_usage import POWER, UTILIZATION, GpuWatch, parse_samples, usage_of
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.resources import Resources

ROWS = "0, 90, 600.00\n1, 94, 640.00\n2, 0, 70.00\n"


def test_idle_gpus_and_those_that_report_nothing_do_not_count() -> None:
    samples = gpu_usage.parse_samples(f"{ROWS}3, [N/A], [N/A]\n")
    assert usage_of(samples) == {UTILIZATION: 0.92, POWER: 620.0}
    start = [("0", 0.0, 70.0)] * 9
    assert usage_of([*start, ("0", 0.5, 300.0)]) == {UTILIZATION: 0.5, POWER: 300.0}
    assert usage_of(start) == {} and usage_of([("0", 0.5, None)]) == {UTILIZATION: 0.5}


def test_a_local_trial_says_how_busy_its_gpus_were(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    put_on_path(tmp_path, monkeypatch, num_gpus=None, script=f"printf '{ROWS}'; echo \"$@\" >> {asked}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(gpu_usage, "INTERVAL_S", 0.05)
    (tmp_path / "trial").mkdir()
    runner = LocalRunner(grace_s=0.5)
    enough = f"until [ $(cat {asked} | wc -l) -gt 2 ]; do sleep 0.05; done"
    result = runner.submit(enough, tmp_path / "trial", Resources(), timeout_s=500.0).wait()
    runner.close()
    assert result is not None and result.exit_code == 0
    assert result.usage == {UTILIZATION: 0.92, POWER: 620.0}
    assert all(line.endswith("-i 0,1") for line in asked.read_text().splitlines())


def test_a_driver_that_fails_is_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = tmp_path / "asked"
    put_on_path(tmp_path, monkeypatch, num_gpus=None, script=f"echo asked >> {asked}; exit 9")
    monkeypatch.setattr(gpu_usage, "INTERVAL_S", 0.01)
    watch = GpuWatch()
    wait_until(lambda: not any(thread.name == "zenithtune-gpus" for thread in threading.enumerate()))
    assert watch.end() == {} and asked.read_text() == "asked\n"


def test_a_trial_that_may_see_no_gpu_is_not_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, num_gpus=None, script=f"printf '{ROWS}'")
    GpuWatch(())
    assert not any(thread.name == "zenithtune-gpus" for thread in threading.enumerate())


def test_a_gpu_without_a_reading_is_left_out() -> None:
    assert parse_samples("0, 97, 612.40\n1, [N/A], 80.00\n2, 95, [N/A]\n") == [("0", 0.97, 612.4), ("2", 0.95, None)]
