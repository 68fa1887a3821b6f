from __future__ import annotations

import re
import sys
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, overload

import pytest

from tests.data_folder import measured_data
from tests.evaluators.iteration_logs import log_of
from zenith_tune import Outcome, Trial, TuningEvaluator
from zenith_tune.evaluators.base import Progress
from zenith_tune.evaluators.early_stop import EarlyStop, Stakes
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.runners.base import End, Job, JobRequest, JobResult
from zenith_tune.runners.local.runner import LocalRunner
from zenith_tune.study.resources import Resources
from zenith_tune.tuning.watch import TrialWatch

_STAMP = re.compile(r"^ \[(\S+ \S+)\] iteration +\d+/", re.MULTILINE)


class Replay(Job):
    """Write a recorded log to a file again, each iteration line at its time, on a clock of its own."""

    def __init__(self, log: str, path: Path, start_up_s: float) -> None:
        self.now_s = 0.0
        self._log = log
        stamps = [(match.start(), datetime.fromisoformat(match[1])) for match in _STAMP.finditer(log)]
        first = stamps[0][1]
        self._times = [(start_up_s + (stamp - first).total_seconds(), position) for position, stamp in stamps]
        self._end_s = self._times[-1][0] + 1
        super().__init__(LocalRunner(), JobRequest(command="", folder=path.parent, resources=Resources()))

    def clock(self) -> float:
        return self.now_s

    def start(self) -> None:
        """Begin with the first wait."""

    def look(self) -> JobResult | None:
        is_over = self.now_s == self._end_s
        return JobResult(end=End.EXITED, exit_code=0, duration_s=self.now_s) if is_over else None

    def kill(self, end: End) -> JobResult:
        return JobResult(end=end, exit_code=None, duration_s=self.now_s)

    @overload
    def wait(self, timeout_s: None = None) -> JobResult: ...

    @overload
    def wait(self, timeout_s: float) -> JobResult | None: ...

    def wait(self, timeout_s: float | None = None) -> JobResult | None:
        if self.poll() is None:
            self.now_s = self._end_s if timeout_s is None else min(self.now_s + timeout_s, self._end_s)
            ahead = [position for at_s, position in self._times if at_s > self.now_s]
            # Of the next line so much is there that its time of 425.2 ms reads as 4 ms.
            torn = self._log.index("(ms): ", ahead[0]) + len("(ms): 4") if ahead else len(self._log)
            self.log_path.write_text(self._log[:torn])
        return self.poll()


@pytest.mark.parametrize("start_up_s", [3.0, 10.0, 20.03, 31.17])
def test_a_measured_run_fed_as_it_was_timed_ends_at_little_more_than_half_of_it(
    tmp_path: Path, start_up_s: float
) -> None:
    log = (measured_data() / "logs" / "megatron_steady60.log").read_text()
    evaluator = MegatronEvaluator()
    job = Replay(log, tmp_path / "log.txt", start_up_s)
    result, early = TrialWatch(evaluator, EarlyStop(), {}, clock=job.clock).wait(job)
    assert result.end is End.STOPPED and early is not None
    assert len(_STAMP.findall(early.log)) <= 35 and early.log.endswith("|\n")
    assert result.duration_s < start_up_s + 17, "the whole run takes 26 s after its first line"
    assert evaluator.evaluate(early.log, {}) == pytest.approx(evaluator.evaluate(log, {}), rel=0.01)


@pytest.mark.parametrize("start_up_s", [30.0, 700.0])
def test_a_trial_of_long_iterations_ends_within_a_second_of_the_line_that_decides(
    tmp_path: Path, start_up_s: float
) -> None:
    begin, line = datetime(2026, 1, 1), " [{}] iteration {:8d}/ 60 | elapsed time per iteration (ms): {:.1f} |\n"
    steps = [9000.0, *(4000 + 3 * (number % 3) for number in range(59))]
    log = "".join(line.format(begin + timedelta(seconds=4 * at), at + 1, step) for at, step in enumerate(steps))
    job, progress = Replay(log, tmp_path / "log.txt", start_up_s), list[Progress]()
    watch = TrialWatch(
        MegatronEvaluator("step_time"),
        EarlyStop(),
        {},
        on_progress=lambda by_now, _: progress.append(by_now),
        clock=job.clock,
    )
    result, early = watch.wait(job)
    assert early is not None and early.reason.startswith("known")
    num_lines = len(_STAMP.findall(early.log))
    assert num_lines == len(progress[-1].values) + 1 <= 8
    assert result.duration_s < start_up_s + 4 * (num_lines - 1) + 1.1
    assert len(progress) <= num_lines, "a log that has not grown is not read again"


class Talker:
    """Write a program that prints a log slowly, and note how far it came."""

    def __init__(self, folder: Path, log: str, pause_s: float) -> None:
        (folder / "lines").write_text(log)
        script = folder / "talk.py"
        script.write_text(
            "import sys, time\n"
            "for line in open(sys.argv[1]):\n"
            "    print(line, end='', flush=True)\n"
            "    time.sleep(float(sys.argv[2]))\n"
        )
        self.command = f"{sys.executable} {script} {folder / 'lines'} {pause_s}"


def watch(tmp_path: Path, evaluator: TuningEvaluator, log: str, best: Trial | None = None) -> tuple[JobResult, Any]:
    folder = tmp_path / "trial"
    folder.mkdir()
    job = LocalRunner(grace_s=0.3).submit(Talker(tmp_path, log, 0.02).command, folder, Resources(), timeout_s=120)
    return TrialWatch(evaluator, EarlyStop(), {}, lambda: Stakes(best=best)).wait(job)


def test_a_job_that_says_nothing_runs_to_its_end(tmp_path: Path) -> None:
    result, early = watch(tmp_path, MegatronEvaluator(), "hello\n" * 60)
    assert (result.end, result.exit_code, early) == (End.EXITED, 0, None)


def test_a_best_value_in_another_unit_is_not_compared(tmp_path: Path) -> None:
    uneven = log_of([2.0, *([0.8, 1.2, 0.9, 1.3] * 16)])
    best = Trial(params={}, outcome=Outcome.OK, value=1000.0, unit="TFLOP/s/GPU")
    _, early = watch(tmp_path, MegatronEvaluator(), uneven, best)
    assert early is None or early.reason.startswith("known ")


def test_a_job_that_is_surely_behind_the_best_is_stopped(tmp_path: Path) -> None:
    uneven = log_of([2.0, *([0.8, 1.2, 0.9, 1.3] * 50)])
    best = Trial(params={}, outcome=Outcome.OK, value=1000.0, unit="samples/s")
    result, early = watch(tmp_path, MegatronEvaluator(), uneven, best)
    assert result.end is End.STOPPED
    assert early.reason.startswith("behind ") and "99%" in early.reason


@pytest.mark.parametrize("num_steps", [4, 5])
def test_a_job_that_evaluates_after_its_last_iteration_is_not_waited_for(tmp_path: Path, num_steps: int) -> None:
    log = log_of([2.0, 0.8, 1.2, 0.9])
    (tmp_path / "log").write_text(log.replace("/       4", f"/       {num_steps}"))
    command = f"{sys.executable} -c 'import time; print(open(\"{tmp_path}/log\").read(), flush=True); time.sleep(12)'"
    job = LocalRunner(grace_s=0.3).submit(command, tmp_path, Resources())
    result, early = TrialWatch(MegatronEvaluator(), EarlyStop(), {}).wait(job)
    is_last = num_steps == 4
    assert result.end is (End.STOPPED if is_last else End.EXITED)
    assert (early is not None and early.reason.startswith("known ") and early.log.strip() == log.strip()) == is_last


class Broken(TuningEvaluator):
    """Fail while the trial runs, as a plug-in may."""

    num_calls = 0

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        return 1.0

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        self.num_calls += 1
        raise RuntimeError("no")


def test_an_evaluator_that_fails_while_a_job_runs_lets_it_run_to_its_end(tmp_path: Path) -> None:
    evaluator = Broken()
    result, early = watch(tmp_path, evaluator, "hello\n" * 80)
    assert (result.end, early, evaluator.num_calls) == (End.EXITED, None, 1)


class Slow(TuningEvaluator):
    """Take long to look at a log, and count the looks."""

    num_calls = 0

    def evaluate(self, stdout: str, metadata: Mapping[str, Any]) -> float:
        return 1.0

    def progress(self, stdout: str, metadata: Mapping[str, Any]) -> Progress | None:
        self.num_calls += 1
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        return None


def test_looking_takes_at_most_a_hundredth_of_the_time(tmp_path: Path) -> None:
    evaluator, began = Slow(), time.monotonic()
    watch(tmp_path, evaluator, "hello\n" * 75)
    most = 1 + (time.monotonic() - began) / 2
    assert 1 <= evaluator.num_calls <= most, "each look takes 20 ms: the next one waits for 2 s more of the trial"
