"""What a terminal of 80 columns shows while a study runs, what a pipe gets, and the strategies' closing tables."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from zenith_mimo.preset.strategy import COLUMNS as MIMO
from zenith_tune import Direction, Outcome, Trial
from zenith_tune.presets.megatron.evaluator import MegatronEvaluator
from zenith_tune.report.json_lines import JsonLinesReporter
from zenith_tune.report.search_digest import StudyPace
from zenith_tune.report.terminal.running import Countdown
from zenith_tune.report.terminal.trial_table import trial_line
from zenith_tune.report.terminal.verbose import VerboseReporter, findings_lines
from zenith_tune.strategies.guided.strategy import COLUMNS as REVIEW
from zenith_tune.strategies.zero_progressive.strategy import COLUMNS as ZERO
from zenith_tune.study.study import EndReason, Study
from zenith_tune.study.trial import Findings
from zenith_tune.tuning.events import StudyEnd, StudyNotifier

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 17.20 GiB. GPU 0 has 80.00 GiB of which 0.50 is free"
)
WHY = "34% chance of a gain: 3.14 s ±15% a step expected (4% slower than the best), 99% to fit"
LONG = "TP2 PP2 CP2 mbs4 full block layers2"
MODULES = "encoder tp2 dp2 on 4 shared | llm dp4 on 4 shared"


def trial(number: int, value: float | None, **more: Any) -> Trial:
    outcome = Outcome.OK if value is not None else Outcome.OOM
    known: dict[str, Any] = {"unit": "TFLOP/s/GPU", "duration_s": 61.5, "peak_memory_bytes": 77 * 2**30, **more}
    return Trial(params={}, outcome=outcome, value=value, number=number, **known)


def drawn(reporter: VerboseReporter, width: int = 80, height: int = 40) -> list[str]:
    stream = io.StringIO()
    Console(file=stream, width=width, height=height, highlight=False).print(reporter.draw())
    return stream.getvalue().splitlines()


def test_what_runs_is_drawn_with_its_iteration_what_is_known_and_how_far_the_study_is() -> None:
    reporter, study = VerboseReporter(Console(file=io.StringIO(), height=40)), Study(Direction.MAXIMIZE)
    study.max_trials = 9
    reporter.begin(study, StudyPace())
    reporter.trial_started(3, "TP2", Path("log.txt"), None, WHY)
    reporter.trial_progress(3, 12, 197.0, "TFLOP/s/GPU")
    reporter.trial_outlook(3, "known within 3%", 9.5)
    running, last = drawn(reporter, width=120)
    assert running.split() == [
        "trial",
        "3",
        "TP2",
        "iteration",
        "12,",
        "about",
        "9.5",
        "s",
        "left;",
        "known",
        "within",
        "3%",
    ]
    assert re.findall(r"\d+", last) == ["0", "9"]


def test_a_tab_and_a_bar_show_how_far_a_study_is() -> None:
    study, pace = Study(Direction.MAXIMIZE), StudyPace()
    assert pace.bar(study) == "" and pace.title(study) == "0", "before it is known how many there are"
    study.max_trials = 8
    assert (pace.title(study), pace.bar(study, 8).count("━")) == ("0/8", 0)
    study.add(Trial(params={}, outcome=Outcome.OK, value=100.0, is_baseline=True, number=0))
    for number, value in enumerate((90.0, 131.0), start=1):
        study.add(Trial(params={"tp": number}, outcome=Outcome.OK, value=value, number=number, identity=str(number)))
    assert (pace.title(study), pace.bar(study, 8).count("━"), len(pace.bar(study, 8))) == ("2/8 · +31%", 2, 8)
    study.add(Trial(params={"tp": 2}, outcome=Outcome.OK, value=131.0, number=3, identity="2", rerun_of=2))
    study.add(Trial(params={}, outcome=Outcome.OK, value=100.0, is_baseline=True, number=4, rerun_of=0))
    assert pace.title(study) == "4/8 · +31%", "what confirms a gain counts too"


def test_time_that_is_left_falls_and_rises_only_where_it_ran_out_or_is_far_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s, countdown = 1000.0, Countdown()
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    shown = []
    for after_s, estimate_s in ((0, 20.0), (2, 25.0), (3, 10.0), (4, 12.0), (14, 6.0), (15, 30.0), (16, None)):
        now_s = 1000.0 + after_s
        countdown.expect(estimate_s)
        shown.append(countdown.left_s)
    assert shown == [20.0, 18.0, 10.0, 9.0, 6.0, 30.0, None]


def test_memory_that_a_log_shows_while_it_runs_reaches_the_listener() -> None:
    line = " iteration {}/ 9 | memory(GiB): 41.2 | elapsed time per iteration (ms): 500.0 | global batch size: 8 |\n"
    progress = MegatronEvaluator().progress("".join(line.format(at) for at in range(1, 5)), {})
    assert progress is not None and progress.peak_memory_bytes == round(41.2 * 2**30)
    heard: list[tuple[int, int]] = []

    class Listens(VerboseReporter):
        def trial_memory(self, number: int, peak_memory_bytes: int) -> None:
            heard.append((number, peak_memory_bytes))

    listener = Listens(Console(file=io.StringIO()))
    StudyNotifier(lambda: listener).progress(7, progress, None)
    assert heard == [(7, round(41.2 * 2**30))]


def test_piped_lines_carry_memory_and_what_matters_within_eighty_columns_in_columns() -> None:
    lines = [
        trial_line(trial(1, 221.1), "1", "TP8 mbs1 full", "best 221.1").plain,
        trial_line(trial(12, 197.0), "12", LONG, "best 221.1").plain,
        trial_line(trial(3, 61_000.0), "3", "TP8", "best").plain,
        trial_line(trial(4, 0.5), "4", MODULES, "best").plain,
        trial_line(trial(5, None, cause=OOM), "5", "TP8", "best").plain,
    ]
    assert {line.index(" ok ") for line in lines[:4]} == {lines[4].index(" oom ")}
    points = [
        line.index(number) + number.index(end)
        for line, number, end in zip(lines, ("221.1", "197 ", "61,000 ", "0.5"), (".", " ", " ", "."), strict=False)
    ]
    assert len(set(points)) == 1 and points[0] < 75
    assert all("77.0 GiB" in line for line in lines[:4])
    assert MODULES in lines[3] and LONG in lines[1][:80]


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        (REVIEW, ("base", "3.37", "3.37", "3.02", "-10%", "58.1", "77.3", "TP2 PP2 DP2 mbs2 full/block1")),
        (ZERO, ("stage 1", "12", "177.3 samples/s", "8", "16", "micro-batch 16 does not run (oom): " + OOM)),
        (MIMO, ("1038.8 ms", "1182.4 ms", "770.2 ms", "220.2 ms", "1", "37%", "encoder dp4 on 4 | llm dp4, alike")),
    ],
)
def test_closing_tables_fit_eighty_columns_and_lose_nothing(columns: tuple[str, ...], row: tuple[str, ...]) -> None:
    found = Findings(title="found", columns=columns, rows=(row, row), lines=("a note",))
    lines = findings_lines(found, 80)
    assert max(map(len, lines)) <= 80
    flat = " ".join(" ".join(lines).split())
    assert all(" ".join(cell.split()) in flat for cell in row)
    assert {word for name in columns for word in name.split()} <= set(flat.split())
    assert lines[0] == "found:" and lines[-1] == "a note"


def test_a_layout_of_a_guided_study_takes_one_line_of_its_closing_table() -> None:
    row = ("12", "3.37", "3.37", "3.02", "-10%", "58.1", "77.3", "TP2 PP2 DP2 mbs2 full/block1")
    lines = findings_lines(Findings(title="found", columns=REVIEW, rows=(row,)), 80)
    assert lines[-1].split() == " ".join(row).split()


def test_a_terminal_and_json_lines_note_another_batch_beside_the_gain(tmp_path: Path) -> None:
    study = Study(Direction.MAXIMIZE)
    study.add(trial(0, 100.0, is_baseline=True, extra={"global_batch_size": 16}))
    study.add(trial(1, 136.0, extra={"global_batch_size": 64}))
    paths = dict.fromkeys(("csv_path", "json_path", "trials_path", "best_command_path"), tmp_path / "none")
    known: dict[str, Any] = {
        "reason": EndReason.DONE,
        "why": "done",
        "best_command": "go",
        "study_name": "s",
        "warnings": [],
        **paths,
    }
    people, programs = io.StringIO(), io.StringIO()
    reporter = JsonLinesReporter(programs, VerboseReporter(Console(file=people, width=80, highlight=False)))
    reporter.study_ended(StudyEnd(study=study, database_url="sqlite:///x", **known))
    note = json.loads(programs.getvalue())["batch_note"]
    assert re.findall(r"\d+", note) == ["16", "64"]
    assert re.search(rf"^gain: \+36\.0% .*\(100 TFLOP/s/GPU\)\nnote: {re.escape(note)}\n", people.getvalue(), re.M)
