"""Real processes that stand in for ranks: how they end, what is read of them, and that none is left."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.calibration.probe.rank_script import started, training, write_script
from tests.started_processes import is_alive, marked_processes
from zenith_calibration.probe.command import NUM_STEPS
from zenith_calibration.probe.probe_job import ProbeJob
from zenith_calibration.probe.probed_layout import ProbedLayout
from zenith_calibration.probe.prober import Prober
from zenith_tune.planner.planner import Planner
from zenith_tune.presets.megatron.job import MegatronLmOverrides
from zenith_tune.runners.local import gpu_usage
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.shell import ParsedCommand
from zenith_tune.study.trial import Outcome
from zenith_tune.units import GIB, MIB

Probe = Callable[..., ProbedLayout]


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Probe]:
    """Probe a layout of a command whose script stands in an empty folder, where nvidia-smi is not found."""
    write_script(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "/bin:/usr/bin")
    runner = LocalRunner(grace_s=1.0)

    def run(
        layout: str = "PP4", *, timeout_s: float | None = 60, notes: list[str] | None = None, **how: str
    ) -> ProbedLayout:
        lines: list[str] = [] if notes is None else notes
        job = ProbeJob.of(ParsedCommand.from_argv(training(**how)).text, MegatronLmOverrides())
        subject = job.subject("h200x8")
        prober = Prober(
            planner=Planner(subject.model, subject.cluster, subject.job),
            runner=runner,
            folder=tmp_path / "out",
            job=job,
            num_steps=NUM_STEPS,
            timeout_s=timeout_s,
            notify=lines.append,
        )
        return prober.probe(job.named(layout))

    yield run
    runner.close()


def test_three_stages_run_one_after_the_other_until_they_have_measured_enough(probe: Probe, tmp_path: Path) -> None:
    notes: list[str] = []
    begin = time.monotonic()
    probed = probe(notes=notes)
    assert time.monotonic() - begin < 100, "the script itself would train for 50 seconds on each rank"
    assert probed.ok and [stage.probe.stage for stage in probed.stages] == [0, 1, 3]
    assert [(rank, world) for rank, world, _ in started(tmp_path)] == [(0, 8), (2, 8), (6, 8)]
    assert notes == [f"{probed.planned.name}: stage {stage} of 4" for stage in (0, 1, 3)]
    assert marked_processes(tmp_path) == [], "nothing is left running, not even what left its process group"


def test_what_the_hook_notes_is_what_is_measured(probe: Probe) -> None:
    probed = probe("PP2")
    first, last = (stage.probe for stage in probed.stages)
    assert first.allocated_bytes == 10 * GIB and last.allocated_bytes == 10 * GIB - 4
    assert (first.reserved_bytes, first.device_bytes) == (11 * GIB, 12 * GIB)
    assert (first.gpu, first.source, first.num_micro_batches) == ("Fake H200", "hook", 4)
    assert first.num_steps >= 3 and first.step_s is not None and 0.04 < first.step_s < 5
    assert probed.fullest is probed.stages[0]


def test_a_rank_that_prints_but_notes_nothing_is_read_by_its_log(probe: Probe) -> None:
    (stage,) = probe("TP2", STANDIN="log").stages
    assert stage.probe.ok and (stage.probe.source, stage.probe.peak_bytes) == ("log", None)
    assert stage.probe.step_s == pytest.approx(0.05)


def test_where_a_rank_shows_no_memory_nvidia_smi_does(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text('#!/bin/sh\necho "$@" >> asked.txt\necho 4096\n')
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    (stage,) = probe("TP2", STANDIN="log", STANDIN_STEP_S="0.3").stages
    assert (stage.probe.device_bytes, stage.probe.source) == (4096 * MIB, "nvidia-smi")
    assert stage.planned_bytes == stage.plan.device_bytes
    assert "--id=3" in (tmp_path / "asked.txt").read_text()


@pytest.mark.parametrize("answer", ["echo N/A", "exit 9", "true", "echo; echo"])
def test_an_nvidia_smi_without_an_answer_is_asked_once(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(f"#!/bin/sh\necho asked >> asked.txt\n{answer}\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(gpu_usage, "INTERVAL_S", 600.0)  # the runner asks as well, how busy the GPUs are
    (stage,) = probe("TP2", STANDIN="log", STANDIN_STEP_S="0.3").stages
    assert stage.probe.ok and stage.probe.peak_bytes is None
    assert (tmp_path / "asked.txt").read_text() == "asked\n"


def test_a_stage_out_of_memory_is_the_cause_and_no_other_is_run(probe: Probe, tmp_path: Path) -> None:
    probed = probe(STANDIN_2="oom")
    assert [stage.probe.outcome for stage in probed.stages] == [Outcome.OK, Outcome.OOM]
    assert probed.cause.startswith("oom on stage 1: ") and "out of memory" in probed.cause
    assert [rank for rank, _, _ in started(tmp_path)] == [0, 2]
    assert (tmp_path / "out" / "layout-1" / "stage-1" / "log.txt").is_file()


def test_a_rank_that_hangs_is_ended_and_gone(probe: Probe, tmp_path: Path) -> None:
    (stage,) = probe("TP2", STANDIN="hang", timeout_s=1.5).stages
    assert stage.probe.outcome is Outcome.TIMEOUT and stage.probe.step_s is None
    assert marked_processes(tmp_path) == []


def test_a_rank_that_ends_well_without_a_step_has_failed(probe: Probe) -> None:
    (stage,) = probe("TP2", STANDIN="nothing").stages
    assert stage.probe.outcome is Outcome.ERROR
    assert "step" in str(stage.probe.cause) and "log" in str(stage.probe.cause)


def test_a_rank_that_ends_by_itself_after_a_step_or_two_is_taken(probe: Probe) -> None:
    (stage,) = probe("TP2", STANDIN_STEPS="3").stages
    assert stage.probe.ok and stage.probe.num_steps == 2


def test_a_script_that_is_not_there_is_an_error_with_its_cause(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "pretrain_gpt.py").unlink()
    probed = probe("TP2")
    assert not probed.ok and "No such file" in probed.cause


def test_secrets_are_kept_out_of_the_files_and_the_result(probe: Probe, tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"
    (stage,) = probe("TP2", STANDIN="secret", HF_TOKEN=secret).stages
    assert stage.probe.ok and "HF_TOKEN=" in stage.probe.command and secret not in stage.probe.command
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {"command.sh", "log.txt"} <= {path.name for path in files}
    assert all(secret.encode() not in path.read_bytes() for path in files)


def test_whatever_goes_wrong_while_a_rank_runs_nothing_of_it_is_left(probe: Probe, tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrstuvwxyzabcdefgh"

    def strike(signum: int, frame: object) -> None:
        raise MemoryError("struck")

    previous = signal.signal(signal.SIGALRM, strike)
    signal.setitimer(signal.ITIMER_REAL, 1.0)
    try:
        with pytest.raises(MemoryError, match="struck"):
            probe("TP2", STANDIN="secret", STANDIN_STEP_S="100", HF_TOKEN=secret)
    finally:
        signal.signal(signal.SIGALRM, previous)
    assert [is_alive(pid) for _, _, pid in started(tmp_path)] == [False]
    assert marked_processes(tmp_path) == []
    (log,) = tmp_path.rglob("log.txt")
    assert log.read_text() == f"token is {'*' * len(secret)}\n"
