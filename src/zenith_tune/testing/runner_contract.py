"""What every runner is held to."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from pathlib import Path

from zenith_tune.runners.base import End, Runner
from zenith_tune.study.resources import Resources


class RunnerContract(ABC):
    """Hold a runner to its contract; each test gets an empty folder as pytest's `tmp_path`."""

    scheduler_logs_too: bool = False
    """Whether whoever runs the job may add to its log that the job was ended."""

    @abstractmethod
    def make(self) -> Runner:
        """Return a runner."""

    def test_output_and_errors_land_in_the_log_and_the_exit_code_is_reported(self, tmp_path: Path) -> None:
        """Check a command that fails."""
        job = self.make().submit("sh -c 'echo out; echo err >&2; exit 3'", tmp_path, Resources())
        result = job.wait()
        assert (result.end, result.exit_code) == (End.EXITED, 3)
        assert sorted(job.log_path.read_text().split()) == ["err", "out"]
        assert job.poll() == result

    def test_a_job_that_runs_has_no_result_yet(self, tmp_path: Path) -> None:
        """Check poll and cancel."""
        job = self.make().submit("sleep 60", tmp_path, Resources())
        assert job.poll() is None
        job.cancel()
        result = job.poll()
        assert result is not None and result.end is End.CANCELLED and result.exit_code is None

    def test_waiting_for_a_while_shows_that_the_job_still_runs(self, tmp_path: Path) -> None:
        """Check the wait of whoever looks at the log in between."""
        go = tmp_path / "go"
        job = self.make().submit(f"sh -c 'while [ ! -e {go} ]; do sleep 0.05; done'", tmp_path, Resources())
        start = time.monotonic()
        assert job.wait(0.1) is None
        assert time.monotonic() - start >= 0.1
        go.touch()
        result = job.wait(500)
        assert result is not None and (result.end, result.exit_code) == (End.EXITED, 0)
        assert job.wait(0) == result

    def test_a_job_whose_output_suffices_is_stopped(self, tmp_path: Path) -> None:
        """Check stop: what was printed stays, and there is no exit code."""
        job = self.make().submit("sh -c 'echo enough; sleep 60'", tmp_path, Resources())
        while not job.log_path.exists() or not job.log_path.read_text():
            time.sleep(0.01)
        job.stop()
        result = job.wait()
        assert (result.end, result.exit_code) == (End.STOPPED, None)
        text = job.log_path.read_text()
        assert text == "enough\n" or (self.scheduler_logs_too and text.startswith("enough\n"))

    def test_a_job_that_is_over_cannot_be_stopped(self, tmp_path: Path) -> None:
        """Check that an exit code is not lost between the look and the stop."""
        job = self.make().submit("sh -c 'exit 3'", tmp_path, Resources())
        result = job.wait()
        job.stop()
        assert job.wait() == result and result.exit_code == 3

    def test_a_timeout_ends_a_job_that_is_waited_for_piece_by_piece(self, tmp_path: Path) -> None:
        """Check the limit of whoever looks at the log in between."""
        job = self.make().submit("sleep 60", tmp_path, Resources(), timeout_s=0.3)
        assert job.wait(0.05) is None
        result = job.wait(500)
        assert result is not None and result.end is End.TIMED_OUT

    def test_a_timeout_ends_the_job(self, tmp_path: Path) -> None:
        """Check the limit."""
        start = time.monotonic()
        result = self.make().submit("sleep 60", tmp_path, Resources(), timeout_s=0.3).wait()
        assert result.end is End.TIMED_OUT
        assert 0.3 <= time.monotonic() - start < 50

    def test_a_timeout_ends_a_job_that_is_only_polled(self, tmp_path: Path) -> None:
        """Check the limit for whoever does not wait."""
        job = self.make().submit("sleep 60", tmp_path, Resources(), timeout_s=0.2)
        deadline = time.monotonic() + 500
        while (result := job.poll()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
        assert result is not None and result.end is End.TIMED_OUT

    def test_an_interrupt_is_forgotten_when_the_next_study_begins(self, tmp_path: Path) -> None:
        """Check a runner that serves twice."""
        runner = self.make()
        runner.interrupt()
        runner.reset()
        assert runner.submit("true", tmp_path, Resources()).wait().end is End.EXITED

    def test_an_interrupt_ends_the_wait(self, tmp_path: Path) -> None:
        """Check that an interrupt before the wait is not lost, nor one between two waits for a while."""
        runner = self.make()
        job = runner.submit("sleep 60", tmp_path, Resources())
        assert job.wait(0.01) is None
        runner.interrupt()
        result = job.wait(500)
        assert result is not None and result.end is End.CANCELLED

    def test_a_job_knows_its_folder(self, tmp_path: Path) -> None:
        """Check the variable that a training script may use."""
        job = self.make().submit("sh -c 'echo $ZENITHTUNE_TRIAL_FOLDER'", tmp_path, Resources())
        job.wait()
        assert job.log_path.read_text().strip() == str(tmp_path)

    def test_recovering_a_folder_where_nothing_ran_finds_nothing(self, tmp_path: Path) -> None:
        """Check a tuner that was killed before the start."""
        assert self.make().recover(tmp_path) is None

    def test_recovering_a_finished_job_reports_its_exit_code(self, tmp_path: Path) -> None:
        """Check a tuner that was killed after the end."""
        self.make().submit("sh -c 'exit 7'", tmp_path, Resources()).wait()
        result = self.make().recover(tmp_path)
        assert result is not None and (result.end, result.exit_code) == (End.EXITED, 7)

    def test_the_environment_of_the_tuner_reaches_the_job(self, tmp_path: Path) -> None:
        """Check that nothing of the environment is lost."""
        os.environ["ZENITHTUNE_CONTRACT"] = "a b"
        try:
            job = self.make().submit("sh -c 'echo \"$ZENITHTUNE_CONTRACT\"'", tmp_path, Resources())
            job.wait()
        finally:
            del os.environ["ZENITHTUNE_CONTRACT"]
        assert job.log_path.read_text() == "a b\n"
