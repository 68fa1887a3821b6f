from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.calibration.calibrate.rows import LLAMA, table
from tests.conftest import FAKE_TRAINER, ROOT
from tests.data_folder import measured_data
from tests.start_cost import assert_answers_quickly
from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration
from zenith_tune.cli.main import main

JOB = ("--model", "llama3-8b", "--cluster", "h100x8", "--seq", "8192")
STEPS = {("2", "1"): "9.6", ("4", "1"): "10.6", ("1", "1"): "9.9", ("2", "2"): "10.3", ("8", "1"): "13.5"}
"""Tensor and pipeline parallelism, and the seconds of a step on a machine that is slower than most."""


class Done(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Done]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command line in this process."""

    def run(*arguments: str) -> Done:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        shown = capsys.readouterr()
        return Done(int(ended.value.code or 0), shown.out, shown.err)

    return run


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "my runs.csv"
    path.write_text(table(*(LLAMA | {"tp": tp, "pp": pp, "step_time_s": step} for (tp, pp), step in STEPS.items())))
    return path


def study(folder: Path) -> Path:
    params = [{"tp": tp, "pp": 1, "cp": 1, "ep": 1, "etp": 1, "mbs": 1} for tp in (1, 2, 4, 8)]
    trials = [{"outcome": "ok", "step_s": 6.0 + i, "parameters": each, "command": "x"} for i, each in enumerate(params)]
    folder.mkdir()
    (folder / "study.json").write_text(json.dumps({"args": {"n_gpus": "8", "gbs": "64"}, "trials": trials}))
    return folder


def test_rows_become_a_file_that_the_planner_takes(run: Run, rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "mine.json"
    done = run("calibrate", "--rows", str(rows), "--output", str(output))
    assert done.code == 0 and done.err == ""
    for part in ("megatron", "5 runs of ours", f"--calibration {output}"):
        assert part in done.out
    shown = json.loads(run("calibrate", "--rows", str(rows), "--output", str(output), "--json").out)
    assert shown["moved"] and all(name in done.out for name in list(shown["moved"])[:1])
    assert shown["held_out"] == "run" and f"{shown['median_error']:.1%}" in done.out
    mine = load_calibration(output)
    assert (mine.framework, mine.num_runs, mine.origin) == ("megatron", 5, "ours") and len(mine.date) == 10
    plan = run("plan", *JOB, "--gbs", "64", "--calibration", str(output), "--json", "--explain", "TP2 SP Z1 mbs1")
    default = run("plan", *JOB, "--gbs", "64", "--json", "--explain", "TP2 SP Z1 mbs1")
    after, before = (json.loads(done.out)["estimate"]["step_s"] for done in (plan, default))
    assert abs(after - 9.6) < 0.5 * abs(before - 9.6)


def test_json_says_the_same_in_plain_values(run: Run, rows: Path, tmp_path: Path) -> None:
    done = run("calibrate", "--rows", str(rows), "--output", str(tmp_path / "mine.json"), "--json")
    shown: dict[str, Any] = json.loads(done.out)
    assert (shown["framework"], shown["num_runs"], shown["held_out"]) == ("megatron", 5, "run")
    assert shown["interval"][0] < shown["interval"][1] and 0 <= shown["median_error"] < 0.3
    assert all(before != after for before, after in shown["moved"].values())


def test_several_rows_are_taken_together_and_what_is_left_out_is_counted(run: Run, rows: Path, tmp_path: Path) -> None:
    (tmp_path / "more.csv").write_text(table(LLAMA, LLAMA | {"step_time_s": "6", "notes": "PROXY"}))
    output = str(tmp_path / "mine.json")
    done = run("calibrate", "--rows", str(rows), "--rows", str(tmp_path / "more.csv"), "--output", output)
    assert "5 runs" in done.out
    left_out = [line for line in done.out.splitlines() if "1 run: " in line]
    assert sum("speed" in line for line in left_out) == sum("PROXY" in line for line in left_out) == 1


def test_a_study_refines_the_packaged_calibration(run: Run, tmp_path: Path) -> None:
    folder, output = study(tmp_path / "first"), tmp_path / "mine.json"
    done = run("calibrate", "--study", str(folder), *JOB, "--output", str(output))
    assert done.code == 0 and re.search(r"\b4 runs .*\bfirst$", done.out, re.MULTILINE)
    mine, packaged = load_calibration(output), default_calibration("megatron")
    assert mine.memory == packaged.memory
    assert mine.time.coefficients.slow_efficiency == pytest.approx(packaged.time.coefficients.slow_efficiency, rel=1e-3)
    assert mine.time.coefficients != packaged.time.coefficients


@pytest.mark.slow
def test_a_study_that_really_ran_is_read(zenithtune: Callable[..., Any], tmp_path: Path) -> None:
    command = f"{sys.executable} {FAKE_TRAINER} --iteration-seconds 0.001"
    about = ("--preset", "megatron", "--args", "n_gpus=8,gbs=16", "--study-name", "s")
    assert zenithtune("optimize", *about, "--n-trials", "5", "--no-confirm", "--", *command.split()).returncode == 0
    done = zenithtune("calibrate", "--study", "zenithtune-out/s", *JOB, "--output", "mine.json", "--json")
    assert done.returncode == 0, done.stderr
    shown = json.loads(done.stdout)
    assert shown["num_time_runs"] == 3
    assert sorted(shown["left_out"].values()) == [1, 2]
    assert [num for why, num in shown["left_out"].items() if "experts" in why] == [2]


def test_every_framework_of_a_folder_gets_its_file(run: Run, tmp_path: Path) -> None:
    shapes = [("llama3-8b", "32"), ("half of it", "16")]
    measured = [{"tp": tp, "pp": pp, "step_time_s": step} for (tp, pp), step in STEPS.items()]
    made = [
        LLAMA | run | {"framework": framework, "model": name, "num_layers": layers}
        for framework in ("megatron", "torchtitan")
        for name, layers in shapes
        for run in measured
    ]
    (tmp_path / "rows.csv").write_text(table(*made))
    (tmp_path / "all").mkdir()
    done = run("calibrate", "--rows", str(tmp_path / "rows.csv"), "--all", "--output", str(tmp_path / "all"))
    assert done.code == 0, done.err
    assert sorted(path.name for path in (tmp_path / "all").iterdir()) == ["megatron.json", "torchtitan-autocast.json"]
    assert load_calibration(tmp_path / "all" / "torchtitan-autocast.json").num_runs == 10


@pytest.mark.slow
def test_published_runs_are_fitted_with_the_error_that_their_kind_allows(run: Run, tmp_path: Path) -> None:
    place, output = measured_data(), str(tmp_path / "mine.json")
    done = run("calibrate", "--rows", str(place), "--framework", "llm-foundry", "--output", output, "--json")
    shown = json.loads(done.out)
    assert shown["num_time_runs"] > 100 and shown["held_out"] == "landscape"
    assert shown["median_error"] <= 0.06


WRONG: list[tuple[list[str], list[str]]] = [
    ([], ["Missing option '--output'"]),
    (["--output", "x.json"], ["--rows PATH, --probes FOLDER or --study FOLDER"]),
    (["--rows", "ROWS", "--study", "STUDY", "--output", "x.json"], ["--rows", "--study", "give one"]),
    (["--rows", "nowhere.csv", "--output", "x.json"], ["nowhere.csv", "No such file"]),
    (["--rows", "ROWS", "--output", "no/such/x.json"], ["no/such is no folder"]),
    (["--rows", "ROWS", "--output", "."], ["--output", "folder"]),
    (["--rows", "ROWS", "--output", "x.json", "--all"], ["x.json is no folder"]),
    (["--rows", "ROWS", "--output", ".", "--all", "--framework", "fsdp"], ["--all", "--framework"]),
    (["--rows", "ROWS", "--output", "x.json", "--framework", "megatorn"], ["did you mean 'megatron'"]),
    (
        ["--rows", "ROWS", "--output", "x.json", "--framework", "nanotron"],
        ["3 runs", "5 of another framework"],
    ),
    (["--rows", "ROWS", "--output", "x.json", "--seq", "8"], ["--seq", "study"]),
    (["--study", "STUDY", "--output", "x.json"], ["--model, --cluster, --seq"]),
    (["--study", "nowhere", *JOB, "--output", "x.json"], ["OUTPUT_DIR/STUDY"]),
    (["--study", "STUDY", *JOB, "--model", "lama3-8b", "--output", "x.json"], ["unknown model", "llama3-8b"]),
    (["--study", "STUDY", *JOB, "--cluster", "h100x16", "--output", "x.json"], ["8 GPUs", "16"]),
    (["--study", "STUDY", *JOB, "--framework", "jax", "--output", "x.json"], ["3 runs", "not fitted"]),
    (["--study", "STUDY", *JOB, "--precision", "int3", "--output", "x.json"], ["--precision"]),
]


@pytest.mark.parametrize(("arguments", "parts"), WRONG)
def test_every_mistake_is_one_line(
    run: Run, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], parts: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"ROWS": str(rows), "STUDY": str(study(tmp_path / "first"))}
    done = run("calibrate", *(names.get(word, word) for word in arguments))
    assert done.code == 2 and done.out == ""
    assert len(done.err.strip().splitlines()) == 1, done.err
    for part in parts:
        assert part in done.err
    assert not (tmp_path / "x.json").exists()


def test_two_runs_are_too_few(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text(table(*(LLAMA | {"step_time_s": step} for step in ("6", "7"))))
    done = run("calibrate", "--rows", str(path), "--output", str(tmp_path / "x.json"))
    assert done.code == 2 and "3 runs" in done.err and "but got 2" in done.err


@pytest.mark.parametrize("index", [0, 1, 2, 4, 8, 11, 12, 13])
def test_usage_errors_answer_quickly(index: int, tmp_path: Path) -> None:
    arguments = [sys.executable, "-m", "zenith_tune.cli.main", "calibrate", *WRONG[index][0]]
    environment = {"PYTHONPATH": str(ROOT / "src")}
    assert_answers_quickly(lambda: subprocess.run(arguments, capture_output=True, cwd=tmp_path, env=environment))


@pytest.mark.parametrize("kind", ["rows", "device"])
def test_nothing_but_a_calibration_is_ever_replaced(run: Run, rows: Path, tmp_path: Path, kind: str) -> None:
    target = rows if kind == "rows" else Path("/dev/null")
    before = rows.read_text()
    result = run("calibrate", "--rows", str(rows), "--output", str(target))
    assert result.code == 2 and "--output" in result.err and str(target) in result.err
    assert rows.read_text() == before and not Path("/dev/null").is_file()


def test_a_calibration_may_be_made_anew(run: Run, rows: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.json"
    assert [run("calibrate", "--rows", str(rows), "--output", str(path)).code for _ in range(2)] == [0, 0]
    assert load_calibration(path).num_runs > 0
