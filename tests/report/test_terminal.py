from __future__ import annotations

import io
import os
import pty
import re
import sys
from pathlib import Path

import pytest
from rich.console import Console

from tests.conftest import FAKE_TRAINER
from tests.study_tools import tune
from tests.toy_preset import ToyPreset
from tests.warm_process import COMMANDS, WarmProcess, start_server, zenithtune_words
from zenith_tune import Direction, Outcome, Trial
from zenith_tune.report.terminal.terminal import gain_text
from zenith_tune.report.terminal.trial_table import early_lines, trial_table
from zenith_tune.report.terminal.verbose import VerboseReporter
from zenith_tune.study.study import Study

TRAIN = [sys.executable, str(FAKE_TRAINER)]


def run_in_terminal(arguments: list[str], cwd: Path) -> str:
    """Run the command line in a real pseudo-terminal and return everything that it drew."""
    ours, theirs = pty.openpty()
    env = {**os.environ, "COLUMNS": "80", "LINES": "40", "TERM": "xterm"}
    start_server(COMMANDS)
    process = WarmProcess(COMMANDS, zenithtune_words(arguments), folder=cwd, env=env, out=theirs, err=theirs)
    os.close(theirs)
    drawn = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # a closed terminal reads as an error, not as an end
            break
        if not piece:
            break
        drawn += piece
    os.close(ours)
    assert process.wait(timeout=500) == 0, drawn.decode()
    return drawn.decode()


def test_a_terminal_shows_trials_live_with_state_value_best_and_time_left(tmp_path: Path) -> None:
    arguments = ["optimize", "-v", "--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--n-trials", "4"]
    # Longer than the display's refresh, so that each trial is seen to run.
    drawn = run_in_terminal([*arguments, "--", *TRAIN, "--iteration-seconds", "0.1"], tmp_path)
    assert "iteration" in drawn
    assert "\x1b[2K" in drawn, "nothing was drawn over: it is not live"
    assert re.search(r"1 of [a-z ]*4 runs", drawn)
    assert "best 221.1 (" in drawn


def printed(tmp_path: Path, command: str, preset: ToyPreset, columns: int = 80) -> str:
    stream = io.StringIO()
    console = Console(file=stream, width=columns, highlight=False)
    tune(tmp_path, command, preset, listener=VerboseReporter(console)).optimize()
    return stream.getvalue()


def test_plain_lines_show_trial_layout_state_value_best_and_time_left(tmp_path: Path) -> None:
    lines = printed(tmp_path, "sh -c 'echo value: {x}'", ToyPreset()).splitlines()
    second = next(line for line in lines if line.startswith("trial    1"))
    for part in ("x=2", "ok", " 2 ", "best 2 (trial 1)", "2 of at most 3", "left"):
        assert part in second
    assert "\x1b" not in "".join(lines)


def test_the_table_fits_eighty_columns_and_the_best_command_is_one_line(tmp_path: Path) -> None:
    command = "sh -c 'echo value: {x}; exit $(( {x} / 3 ))' " + "a-long-argument " * 20
    text = printed(tmp_path, command, ToyPreset())
    table = text[text.index("trial  layout") : text.index("best: trial")].splitlines()
    assert all(len(line) <= 80 for line in table[:5])
    assert command.replace("{x}", "2").strip() in [line.strip() for line in text.splitlines()]


def test_failures_are_grouped_with_their_cause(tmp_path: Path) -> None:
    text = printed(tmp_path, "sh -c 'echo RuntimeError: no luck; exit 1' {x}", ToyPreset())
    assert "3 crash (trial 0, 1, 2): RuntimeError: no luck" in text
    assert "verdict: every trial failed" in text and "\nbest: " not in text


def test_the_table_shows_which_trials_were_ended_early_and_why_within_eighty_columns() -> None:
    made = Study(Direction.MAXIMIZE)
    reasons = (None, "known within 1% after 15 iterations (90%)", "behind the best by 12% after 31 iterations (99.9%)")
    for number, early in enumerate(reasons):
        made.add(
            Trial(
                params={},
                outcome=Outcome.OK,
                value=200.0 - number,
                number=number,
                early=early,
                unit="TFLOP/s/GPU",
                spread=0.012,
                peak_memory_bytes=80 * 2**30,
                duration_s=6_000.0,
            )
        )
    stream = io.StringIO()
    console = Console(file=stream, width=80, highlight=False)
    console.print(trial_table(made, {0: "TP2 PP2 CP1 EP4 mbs1 full", 1: "TP4", 2: "TP8"}))
    lines = stream.getvalue().splitlines()
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0] for line in lines if "done early" in line] == ["1"]
    assert [line.split()[0] for line in lines if "too slow" in line] == ["2"]
    assert early_lines(made) == [f"  1 stopped early (trial {n}): {reasons[n]}" for n in (1, 2)]


@pytest.mark.parametrize("evil", ["[red]markup[/red]", "[/]", "\x1b[31mred\x1b]0;title\x07", "\x9b31m"])
def test_hostile_log_content_stays_text(tmp_path: Path, evil: str) -> None:
    script = tmp_path / "evil.py"
    script.write_text(f"import sys; print('ValueError:', {evil!r}); sys.exit(1)")
    text = printed(tmp_path, f"{sys.executable} {script} {{x}}", ToyPreset([1]))
    assert "\x1b" not in text and "\x9b" not in text
    if evil.startswith("["):
        assert evil in text


@pytest.mark.slow
def test_a_long_study_shows_its_best_trials(tmp_path: Path) -> None:
    text = printed(tmp_path, "echo value: {x}", ToyPreset(range(1, 72)))
    assert re.search(r"^71 trials .*\b30 .*: 71 ok", text, re.MULTILINE)
    table = text[text.index("trial  layout") : text.index("\n71 trials ")]
    assert "x=71" in table and "x=42" in table and "x=41 " not in table


def test_small_gains_have_a_digit_more() -> None:
    assert gain_text(0.384) == "+38%"
    assert gain_text(0.021) == "+2.1%"
