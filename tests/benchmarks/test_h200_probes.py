"""Recorded probes of real ranks on one H200: the planner predicts models that its calibration has not seen."""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.data_folder import measured_data
from tests.mentions import mentions
from zenith_calibration.calibrate.measured_rows import read_measured
from zenith_calibration.calibrate.probed_runs import read_probes
from zenith_tune.calibrate.calibration_file import load_calibration
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.cli.main import main

sys.path.insert(0, str(ROOT / "benchmarks"))

from h200_probes import TARGET, Compared, compare, report, swept

FILES = sorted((ROOT / "benchmarks" / "results").glob("h200-probes-*/*.json"))


@pytest.fixture(scope="module")
def probes() -> list[MeasuredRun]:
    return [run for path in FILES for run in read_probes(path)]


@pytest.fixture(scope="module")
def compared(probes: list[MeasuredRun]) -> list[Compared]:
    """Return every probe beside what a calibration without its model says of it."""
    return compare(probes, [*read_measured(measured_data() / "h200"), *swept()])


@pytest.mark.slow
def test_memory_of_a_model_that_was_not_seen_is_predicted_within_three_percent(compared: list[Compared]) -> None:
    assert TARGET == 0.03 and len(compared) >= 8
    off = {f"{each.run.model_name} {each.run.layout}": each.memory_error for each in compared}
    assert max(map(abs, off.values())) < TARGET, off


@pytest.mark.slow
def test_work_of_a_model_that_was_not_seen_is_predicted(compared: list[Compared]) -> None:
    errors = [abs(each.time_error) for each in compared]
    # Host and GPU take as long as one another in one of them, and hosts differ by a quarter from day to day.
    assert len(errors) >= 8 and statistics.median(errors) < 0.06 and max(errors) < 0.25


def test_the_recorded_probes_alone_predict_each_others_memory(probes: list[MeasuredRun]) -> None:
    errors = [abs(each.memory_error) for each in compare(probes, [])]
    assert len(errors) == len(probes) and max(errors) < TARGET


def test_the_table_has_a_row_for_each_rank_and_names_the_worst(probes: list[MeasuredRun]) -> None:
    run = probes[0]
    assert run.memory_bytes and run.step_s
    exact = [Compared(each, each.memory_bytes or 0.0, each.step_s or 0.0) for each in probes[1:]]
    text = report([Compared(run, 1.02 * run.memory_bytes, 0.5 * run.step_s), *exact])
    memory, work = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("Memory", "Work"))
    assert mentions(memory, "worst 2.0%") and mentions(work, "median 0.0%", "worst 50.0%")
    assert sum(line.startswith("| ") for line in text.splitlines()) == len(probes) + 2


def test_calibrate_takes_the_recorded_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "mine.json"
    places = [word for path in FILES for word in ("--probes", str(path))]
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", *places, "--output", str(output), "--json"])
    assert not ended.value.code
    shown = json.loads(capsys.readouterr().out)
    mine = load_calibration(output)
    assert (mine.framework, mine.num_runs) == ("megatron-local", 8) and shown["num_runs"] == 8
    assert "probes on h200" in mine.origin


def test_calibrate_refuses_what_is_no_probe_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "probe.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "--probes", str(tmp_path), "--output", str(tmp_path / "mine.json")])
    shown = capsys.readouterr()
    assert ended.value.code == 2 and shown.out == "" and len(shown.err.strip().splitlines()) == 1
    assert mentions(shown.err, tmp_path / "probe.json") and not (tmp_path / "mine.json").exists()
