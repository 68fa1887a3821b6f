"""Whole studies whose trials run side by side on one machine."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from tests.runners.fake_nvidia_smi import put_on_path
from tests.started_processes import start_forked, wait_until
from tests.study_tools import Witness, tune
from tests.toy_preset import ToyPreset
from zenith_tune import PresetTuner, RegexEvaluator
from zenith_tune.errors import UsageError
from zenith_tune.evaluators.duration import DurationEvaluator
from zenith_tune.record.source import find_study
from zenith_tune.report.search_digest import best_so_far
from zenith_tune.report.terminal.verbose import VerboseReporter
from zenith_tune.strategies.grid import GridStrategy
from zenith_tune.study.trial import Trial

NOTED = "sh -c 'echo $CUDA_VISIBLE_DEVICES $MASTER_PORT $(date +%s%N) >> {log}; sleep 0.3; " + (
    "echo $CUDA_VISIBLE_DEVICES end $(date +%s%N) >> {log}; echo value: {x}'"
)


@pytest.fixture
def eight_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(tmp_path, monkeypatch, num_gpus=8)


def intervals(log: Path) -> dict[str, list[tuple[int, int]]]:
    """Return when each set of GPUs was in use, by what the trials themselves noted."""
    begun: dict[str, int] = {}
    found: dict[str, list[tuple[int, int]]] = {}
    for line in log.read_text().splitlines():
        gpus, what, at = line.split()
        if what == "end":
            found.setdefault(gpus, []).append((begun.pop(gpus), int(at)))
        else:
            assert gpus not in begun, f"GPUs {gpus} were given twice"
            begun[gpus] = int(at)
    return found


@pytest.mark.usefixtures("eight_gpus")
def test_four_trials_of_two_gpus_share_a_node_of_eight(tmp_path: Path) -> None:
    log, witness = tmp_path / "used", Witness()
    # The first four wait for one another: however slow the machine is, they must all be running at once.
    waits = "i=0; while [ $(wc -l < {log}) -lt 4 ] && [ $i -lt 1000 ]; do sleep 0.1; i=$((i+1)); done; "
    command = NOTED.replace("sleep 0.3; ", waits).replace("{log}", str(log))
    preset = ToyPreset(range(1, 13))
    tuner = tune(
        tmp_path, command, preset, strategy=GridStrategy(), listener=witness, parallel="auto", gpus_per_trial=2
    )
    value, params = tuner.optimize()
    assert (value, params) == (12.0, {"x": 12})
    assert len({trial.params["x"] for trial in witness.trials}) == 12
    used = intervals(log)
    assert set(used) == {"0,1", "2,3", "4,5", "6,7"}
    spans = sorted(span for of_set in used.values() for span in of_set)
    most = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
    assert most == 4
    assert {trial.extra["place"] for trial in witness.trials} >= {"GPU 0,1", "GPU 6,7"}


@pytest.mark.usefixtures("eight_gpus")
def test_the_best_runs_once_more_alone(tmp_path: Path) -> None:
    witness = Witness()
    options: dict[str, Any] = {
        "parallel": 4,
        "gpus_per_trial": 2,
        "listener": witness,
        "strategy": GridStrategy(),
        "confirm": True,
    }
    tune(tmp_path, preset=ToyPreset(range(1, 6)), **options).optimize()
    assert [trial.params["x"] for trial in witness.trials][-1] == 5
    assert witness.trials[-1].is_rerun
    [line] = [note for note in witness.notes if "run again" in note]
    assert "slow one another" not in line
    again = Witness()
    tune(tmp_path, preset=ToyPreset(range(1, 6)), resume=True, **{**options, "listener": again}).optimize()
    assert again.trials == []


@pytest.mark.usefixtures("eight_gpus")
def test_neighbours_that_cost_time_are_reported_and_contenders_run_alone(tmp_path: Path) -> None:
    witness, best = alone_study(tmp_path, {x: (100.0 * x / 14, 100.0 * x / 11) for x in range(10, 14)})
    [line] = [note for note in witness.notes if "run again" in note]
    assert "slow one another" in line and "stays" in line
    assert best.is_rerun and best.params["x"] == 13
    alone = [trial.params["x"] for trial in witness.trials if trial.is_rerun]
    assert alone[0] == 13 and len(alone) > 1


@pytest.mark.usefixtures("eight_gpus")
def test_more_trials_than_the_machine_has_gpus_for_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"5 trials .*2 GPUs .*10"):
        tune(tmp_path, parallel=5, gpus_per_trial=2).optimize()


def test_the_same_best_as_in_sequence(tmp_path: Path) -> None:
    found = []
    for parallel in (1, 4):
        folder = tmp_path / str(parallel)
        found.append(
            tune(folder, preset=ToyPreset(range(1, 21)), strategy=GridStrategy(), parallel=parallel).optimize()
        )
    assert found[0] == found[1]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_trials_and_keeps_the_finished(tmp_path: Path, signum: signal.Signals) -> None:
    command = ["optimize", "--preset", "demo", "--strategy", "grid"]
    command += ["--parallel", "3", "--output-dir", str(tmp_path / "out"), "--study-name", "s", "--no-baseline"]
    command += ["--", "sh", "-c", f"touch {tmp_path}/$$; sleep 60; echo {{tp}} {{mbs}} {{recompute}} {{gbs}}"]
    process = start_forked(command, tmp_path, os.environ)
    try:
        wait_until(lambda: len([path for path in tmp_path.iterdir() if path.name.isdigit()]) == 3)
        process.send_signal(signum)
        output, _ = process.communicate(timeout=500)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 128 + signum, output
    started = [int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()]
    assert len(started) == 3
    assert not any(Path(f"/proc/{pid}").exists() for pid in started), "a trial is not ended, or not reaped"
    stored = json.loads((tmp_path / "out" / "s" / "study.json").read_text())
    assert stored["trials"] == []


@pytest.mark.usefixtures("eight_gpus")
def test_a_value_that_does_not_hold_alone_does_not_count(tmp_path: Path) -> None:
    # Beside others the fifth prints twice its value.
    script = tmp_path / "train.sh"
    script.write_text("test $1 != 5 && echo value: $1 && exit; test -e $2 && echo value: 5 || echo value: 10; touch $2")
    command = f"sh {script} {{x}} {tmp_path}/seen"
    witness = Witness()
    options: dict[str, Any] = {"parallel": 4, "gpus_per_trial": 2, "listener": witness, "confirm": True}
    value, params = tune(
        tmp_path, command, ToyPreset([1, 2, 3, 4, 5, 6]), strategy=GridStrategy(), **options
    ).optimize()
    assert (value, params) == (6.0, {"x": 6})
    [line] = [note for note in witness.notes if "run again" in note]
    assert re.search(r"-50\.0%: .*not hold; .*\b1 more .*\btrial \d", line)


@pytest.mark.usefixtures("eight_gpus")
def test_runs_alone_are_not_part_of_the_budget(tmp_path: Path) -> None:
    options: dict[str, Any] = {"parallel": 4, "gpus_per_trial": 2, "strategy": GridStrategy()}
    first, second = Witness(), Witness()
    preset = ToyPreset(range(1, 9))
    tune(tmp_path, preset=preset, listener=first, **options).optimize(n_trials=4)
    tune(tmp_path, preset=preset, listener=second, resume=True, **options).optimize(n_trials=6)
    assert sum(not trial.is_rerun for trial in first.trials) == 4
    assert sorted(trial.params["x"] for trial in second.trials if not trial.is_rerun) == [5, 6]


def test_a_trial_that_hangs_beside_the_first_success_is_ended_by_the_dynamic_limit(tmp_path: Path) -> None:
    witness = Witness()
    command = "sh -c 'test {x} = 2 && sleep 600; echo value: {x}'"
    began = time.monotonic()
    options: dict[str, Any] = {"parallel": 3, "listener": witness, "baseline": False, "evaluator": DurationEvaluator()}
    tune(tmp_path, command, strategy=GridStrategy(), timeout_dynamic=True, **options).optimize()
    assert time.monotonic() - began < 300
    assert {trial.params["x"]: trial.outcome for trial in witness.trials}[2] == "timeout"


def alone_study(
    tmp_path: Path, beside_and_alone: dict[int, tuple[float, float]], **given: Any
) -> tuple[Witness, Trial]:
    """Tune trials that print one value beside others and another one when they run again."""
    script = tmp_path / "train.sh"
    cases = "\n".join(f"{x}) first={beside} second={alone} ;;" for x, (beside, alone) in beside_and_alone.items())
    script.write_text(f"case $1 in {cases}\nesac\nmkdir {tmp_path}/$1 && echo value: $first || echo value: $second\n")
    witness = Witness()
    given = {"confirm": True, **given}
    options: dict[str, Any] = {"parallel": 2, "gpus_per_trial": 2, "listener": witness, "baseline": False, **given}
    tune(
        tmp_path, f"sh {script} {{x}}", ToyPreset(list(beside_and_alone)), strategy=GridStrategy(), **options
    ).optimize()
    assert witness.end is not None and witness.end.study.best is not None
    return witness, witness.end.study.best


@pytest.mark.usefixtures("eight_gpus")
@pytest.mark.parametrize("other", [99.9, 100.0, 99.0])
def test_the_best_is_one_that_ran_alone_also_where_another_printed_as_much_beside_it(
    tmp_path: Path, other: float
) -> None:
    witness, best = alone_study(tmp_path, {1: (100.0, 99.0), 2: (other, other)})
    # Both run again, since a run takes no time beside the training, and what they measure then is what counts.
    expected = (True, 1, 99.0) if other == 99.0 else (True, 2, other)
    assert (best.is_rerun, best.params["x"], best.value) == expected
    assert sum(trial.is_rerun for trial in witness.trials) == 2


@pytest.mark.usefixtures("eight_gpus")
def test_what_is_clearly_better_than_the_best_alone_runs_alone_too(tmp_path: Path) -> None:
    witness, best = alone_study(tmp_path, {1: (100.0, 80.0), 2: (99.0, 70.0), 3: (98.0, 97.0), 4: (90.0, 90.0)})
    assert (best.is_rerun, best.params["x"], best.value) == (True, 3, 97.0)
    assert [trial.params["x"] for trial in witness.trials if trial.is_rerun] == [1, 2, 3]


@pytest.mark.usefixtures("eight_gpus")
def test_after_four_runs_alone_the_best_of_these_is_the_best(tmp_path: Path) -> None:
    halves = {x: (100.0 - x, 50.0 - x) for x in range(1, 8)}
    witness, best = alone_study(tmp_path, halves)
    assert (best.is_rerun, best.params["x"]) == (True, 1)
    assert sum(trial.is_rerun for trial in witness.trials) == 4
    [line] = [note for note in witness.notes if "run again" in note]
    assert re.search(r"not hold; .*\b3 more .*stays .*best", line)


@pytest.mark.usefixtures("eight_gpus")
def test_nothing_runs_again_where_nothing_is_to_be_confirmed(tmp_path: Path) -> None:
    witness, best = alone_study(tmp_path, {1: (100.0, 99.0), 2: (90.0, 90.0)}, confirm=False)
    assert not any(trial.is_rerun for trial in witness.trials) and best.value == 100.0


@pytest.mark.usefixtures("eight_gpus")
def test_a_run_alone_is_marked_in_the_table_and_in_the_report(tmp_path: Path) -> None:
    witness, best = alone_study(tmp_path, {1: (100.0, 99.0), 2: (90.0, 90.0)})
    view = find_study("s", db=str(tmp_path / "out" / "studies.db")).view()
    assert sorted(each.label for each in view.trials) == ["x=1", "x=1 (again)", "x=2"]  # two ran at once
    first = next(each.number for each in view.trials if each.label == "x=1")
    assert best_so_far(view.study)[-1] == (first, 99.0)
    assert view.best is not None and view.best.number == best.number
    shown = Console(file=io.StringIO(), width=80)
    reporter = VerboseReporter(shown)
    for each in view.trials:
        reporter.trial_recalled(each.trial, each.label)
    assert witness.end is not None
    reporter.study_ended(witness.end)
    assert re.search(r"\* \d+'  x=1 \(again\) +ok +99", shown.file.getvalue())  # type: ignore[attr-defined]


@pytest.mark.usefixtures("eight_gpus")
def test_n_gpus_of_the_preset_says_what_a_trial_needs_where_the_command_does_not(tmp_path: Path) -> None:
    witness = Witness()
    options: dict[str, Any] = {"listener": witness, "parallel": "auto", "baseline": False, "study_name": "s"}
    command = "sh -c 'echo score: $CUDA_VISIBLE_DEVICES' {tp} {mbs} {recompute} {gbs}"
    args = {"n_gpus": "2"}
    score = RegexEvaluator(r"score: (\d)")
    tuner = PresetTuner(command, "demo", evaluator=score, output_dir=tmp_path, tune_args=args, **options)
    tuner.optimize(4)
    assert {str(trial.extra["place"]) for trial in witness.trials} <= {"GPU 0,1", "GPU 2,3", "GPU 4,5", "GPU 6,7"}
    assert PresetTuner(command, "demo", output_dir=tmp_path, study_name="t").config.resources.gpus_per_node is None
