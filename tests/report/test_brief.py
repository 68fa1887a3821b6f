"""The default output of a study: about fifteen lines, nothing twice, the gain and what changed under the table."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.conftest import FAKE_TRAINER
from tests.report.test_terminal import TRAIN, run_in_terminal
from tests.study_tools import tune
from tests.toy_preset import ToyPreset
from zenith_tune import PresetTuner
from zenith_tune.report.terminal.terminal import QuietReporter, TerminalReporter
from zenith_tune.study.changes import Change, changes_text

FAIR = "sh -c 'echo value: {x}; exit $(( {x} / 3 ))'"
OPTIONS = ["--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--n-trials", "4"]


def printed(tmp_path: Path, command: str = FAIR, columns: int = 80, **options: Any) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=columns, highlight=False)
    tune(tmp_path, command, ToyPreset(), listener=TerminalReporter(console), **options).optimize()
    return stream.getvalue().splitlines()


def test_each_trial_is_one_row_of_a_table_that_fits_eighty_columns(tmp_path: Path) -> None:
    lines = printed(tmp_path)
    head = next(at for at, line in enumerate(lines) if line.split()[:1] == ["layout"])
    rows = lines[head + 1 : head + 4]
    assert [row.split()[:2] for row in rows] == [["0", "x=1"], ["1", "x=2"], ["2", "x=3"]]
    assert all(len(line) <= 80 for line in lines[head : head + 4])
    assert "crash" in rows[2] and len(lines) < 16


def test_rows_that_cannot_be_changed_any_more_carry_no_mark(tmp_path: Path) -> None:
    lines = printed(tmp_path, "sh -c 'echo value: {x}'")  # each is better than the one before
    assert not any(line.startswith("*") for line in lines)
    assert sum(line.startswith("best: ") for line in lines) == 1


def test_the_best_command_is_a_script_to_run_and_quiet_prints_it_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = printed(tmp_path)
    [run] = [line for line in lines if line.startswith("run:")]
    script = Path(run.split("bash ")[1])
    assert script.read_text().splitlines()[-1] == FAIR.replace("{x}", "2")
    quiet = QuietReporter(lambda end: end.best_command or "")
    tune(tmp_path / "quiet", FAIR, ToyPreset(), listener=quiet).optimize()
    assert capsys.readouterr().out == FAIR.replace("{x}", "2") + "\n"


def test_a_study_without_success_says_so_and_where_its_logs_are(tmp_path: Path) -> None:
    lines = printed(tmp_path, "sh -c 'echo RuntimeError: no luck; exit 1' {x}")
    assert not any(line.startswith("run:") for line in lines)
    assert any("every trial failed" in line for line in lines)
    [logs] = [line for line in lines if line.startswith("logs:")]
    assert Path(logs.split()[1]).is_dir()


def test_a_terminal_shows_the_running_trial_and_keeps_one_star(tmp_path: Path) -> None:
    # Longer than the display's refresh, so that each trial is seen to run.
    drawn = run_in_terminal(["optimize", *OPTIONS, "--", *TRAIN, "--iteration-seconds", "0.1"], tmp_path)
    assert re.search(r"(starting|running|iteration \d+), ", drawn) and "\x1b[2K" in drawn
    last = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", drawn[drawn.rindex("layout") :])
    rows = [line for line in last.splitlines() if re.match(r"[ *] +\d", line)]
    assert len(rows) == 4 and sum(row.startswith("*") for row in rows) <= 1, "one of four trials is kept to confirm"
    [page] = re.findall(r"page: +(\S+)", last)
    assert "</html>" in (tmp_path / page).read_text()


def test_a_resumed_study_shows_the_rows_of_before_once(tmp_path: Path) -> None:
    command = f"python {FAKE_TRAINER} --iteration-seconds 0"
    options: dict[str, Any] = {"preset": "megatron", "args": {"n_gpus": 8, "gbs": 16}, "output_dir": tmp_path}
    from zenith_tune import tune as whole_study

    def rows(**more: Any) -> list[str]:
        stream = io.StringIO()
        listener = TerminalReporter(Console(file=stream, width=90, highlight=False))
        whole_study(command, listener=listener, study_name="s", confirm=False, **options, **more)
        return [line[1:48] for line in stream.getvalue().splitlines() if re.match(r"[ *] +\d", line)]

    first = rows(n_trials=2)
    again = rows(n_trials=3, resume=True)
    assert len(first) == 3 and again[:3] == first and len(again) == 4


def test_changes_are_grouped_by_what_they_brought() -> None:
    layout = [Change(name="tp", before=4, after=1, speedup=1.38), Change(name="mbs", before=1, after=4, speedup=1.38)]
    lever = Change(name="manual_gc", after=True, speedup=1.07)
    assert changes_text([*layout, lever]) == "TP 4 -> 1, micro-batch 1 -> 4 (1.38x); + manual_gc (1.07x)"
    assert changes_text(layout) == "TP 4 -> 1, micro-batch 1 -> 4"


def test_a_pattern_says_which_way_it_is_better_unless_that_was_given(tmp_path: Path) -> None:
    def noted(name: str, **options: Any) -> bool:
        command = f"sh -c 'echo {name} 1'"
        lines = printed(tmp_path / f"{len(name)}-{len(options)}", command, objective=rf"{name} (\d+)", **options)
        return any("--maximize" in line for line in lines)

    assert noted("mass") and not noted("mass", maximize=True)
    assert not noted("tokens/s") and not noted("step_time"), "a rate and a time say it themselves"


def test_the_whole_cause_of_a_failure_is_shown_below_its_row(tmp_path: Path) -> None:
    cause = "RuntimeError: the weights (4096, 11008) do not match those of the checkpoint, which are (4096, 14336)"
    command = f"sh -c 'echo value: {{x}}; echo \"{cause}\"; exit $(( {{x}} / 3 ))'"
    lines = printed(tmp_path, command)
    shown = " ".join(" ".join(lines).split())
    assert cause in shown and all(len(line) <= 80 for line in lines if line.startswith(" "))


def test_of_a_command_that_fails_its_error_is_shown_as_it_was_printed_and_no_table(tmp_path: Path) -> None:
    script = tmp_path / "fails.py"
    script.write_text("def load():\n    raise RuntimeError('no such data')\n\nload()\n")
    stream = io.StringIO()
    listener = TerminalReporter(Console(file=stream, width=80))
    own: dict[str, Any] = {"space": {"x": [1, 2]}, "objective": r"v (\d+)", "output_dir": tmp_path / "out"}
    PresetTuner(f"python {script} --x 1", listener=listener, **own).optimize()
    lines = stream.getvalue().splitlines()
    assert "      raise RuntimeError('no such data')" in lines
    assert not any("layout" in line for line in lines)
