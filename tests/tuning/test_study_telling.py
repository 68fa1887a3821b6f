"""What the terminal shows of trials that wait, in which order and under which names."""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from zenith_tune import Direction, Outcome, Trial
from zenith_tune.report.search_digest import StudyPace
from zenith_tune.report.terminal.verbose import VerboseReporter
from zenith_tune.study.study import Study
from zenith_tune.study.trial import YOUR_COMMAND
from zenith_tune.tuning.events import StudyNotifier


def lines_of(output: io.StringIO) -> list[list[str]]:
    return [line.split() for line in output.getvalue().splitlines()]


def telling() -> tuple[StudyNotifier, io.StringIO]:
    output = io.StringIO()
    reporter = VerboseReporter(Console(file=output, width=120))
    return StudyNotifier(lambda: reporter), output


def trial(number: int, *, is_baseline: bool = False) -> Trial:
    return Trial(params={}, outcome=Outcome.CANCELLED, number=number, is_baseline=is_baseline)


def test_what_a_found_job_does_is_reported_once_its_trial_has_a_name() -> None:
    tell, output = telling()
    tell.state(3, "pending (Priority)")
    tell.state(3, "running on n1")
    assert output.getvalue() == ""
    tell.started(trial(3), "mbs1", Path("log.txt"), None)
    tell.state(3, "running on n2")
    assert lines_of(output) == [["trial", "3", "mbs1", "running", "on", n] for n in ("n1", "n2")]


def test_the_users_own_command_has_one_name() -> None:
    tell, output = telling()
    tell.started(trial(0, is_baseline=True), YOUR_COMMAND, Path("log.txt"), None)
    tell.state(0, "pending")
    tell.finished(trial(0, is_baseline=True), YOUR_COMMAND, Study(Direction.MAXIMIZE))
    assert [line[:4] for line in lines_of(output)] == [["trial", "0", "your", "command"]] * 2


def test_a_trial_that_is_not_submitted_yet_does_not_show_as_running() -> None:
    screen, output = VerboseReporter(Console(file=io.StringIO())), io.StringIO()
    screen.begin(Study(Direction.MAXIMIZE), StudyPace(num_slots=2), "starting")
    screen.trial_started(0, YOUR_COMMAND, Path("log.txt"), None)
    screen.trial_started(1, "mbs1", Path("log.txt"), None)
    screen.trial_state(1, "running on n1")
    Console(file=output, width=120, height=30).print(screen.draw())
    shown = [line.split() for line in output.getvalue().splitlines()]
    assert [row[1:5] for row in shown[:2]] == [["0", "your", "command", "starting,"], ["1", "mbs1", "running", "on"]]
