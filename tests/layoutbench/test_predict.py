"""The track of predictions: planners are asked in their own process, and judged on the rows that each can express."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from layoutbench.cli import main
from layoutbench.landscape import LandscapeError
from layoutbench.predict import Answers, Prediction, Row, ask, predictions_of, read_rows, scores, write_rows
from layoutbench.runner import TunerError

GIVEN: dict[str, Any] = {"model": {"layers": 2}, "job": {"seq_len": 128}, "cluster": {"num_gpus": 8}, "layout": {}}
ROWS = [
    Row(source="a", given={**GIVEN, "layout": {"tp": 1}}, measured={"step_s": 2.0, "peak_memory_bytes": 10.0}),
    Row(source="a", given={**GIVEN, "layout": {"tp": 2}}, measured={"step_s": 4.0}),
    Row(source="b", given={**GIVEN, "layout": {"tp": 4}}, measured={"step_s": 8.0}),
]
PLANNER = """
import json, sys
rows = json.load(sys.stdin)["rows"]
assert not any("step_s" in row for row in rows), "what was measured is not given away"
def predict(row):
    tp = row["layout"]["tp"]
    return {"step_s": 1.5 * tp if tp < 4 else "no such layout", "peak_memory_bytes": 12.0}
print("secret", rows, file=sys.stderr)
found = [predict(row) for row in rows]
json.dump({"version": "3.1", "assumed": ["secret"], "cpu_s": 0.5, "predictions": found}, sys.stdout)
"""


@pytest.fixture
def command(tmp_path: Path) -> str:
    """Return the command of a planner whose steps are 1.5 s for each rank of tensor parallelism."""
    (tmp_path / "planner.py").write_text(PLANNER)
    write_rows(ROWS, tmp_path / "rows.json")
    return f"{sys.executable} {tmp_path / 'planner.py'}"


def test_errors_are_of_the_rows_that_a_planner_can_express(command: str) -> None:
    found = scores(ROWS, ask(command, ROWS).predictions)
    step = found["step"]
    # 1.5 s against 2 s, and 3 s against 4 s.
    assert (step["rows"], step["predicted"], step["median_abs_pct"], step["median_ratio"]) == (3, 2, 25.0, 0.75)
    assert step["why_not"] == {"no such layout": 1} and set(step["by_source"]) == {"a"}
    assert (found["memory"]["rows"], found["memory"]["predicted"], found["memory"]["median_abs_pct"]) == (1, 1, 20.0)


def test_two_planners_are_compared_on_the_same_rows() -> None:
    theirs: list[Prediction] = [{"step_s": 2.0}, {"step_s": float("nan")}, {"step_s": "no"}]
    ours: list[Prediction] = [{"step_s": 2.2}, {"step_s": 40.0}, {"step_s": 80.0}]
    same = scores(ROWS, ours, among=theirs)["step"]
    assert (same["rows"], same["predicted"], same["median_abs_pct"]) == (1, 1, 10.0)
    assert scores(ROWS, theirs)["step"]["predicted"] == 1, "what is no number is no prediction"


def test_sources_count_alike_in_the_median_of_sources() -> None:
    predictions = [{"step_s": row.measured["step_s"] * (1.1 if row.source == "a" else 1.5)} for row in ROWS]
    step = scores(ROWS, predictions)["step"]
    assert step["median_abs_pct"] == pytest.approx(10.0) and step["median_of_sources_pct"] == pytest.approx(30.0)


def test_rows_are_read_as_they_were_written_and_planners_run_from_the_command_line(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_rows([tmp_path]) == ROWS
    run = ["predict", "--planner", f"mine={command}", "--rows", str(tmp_path / "rows.json")]
    main([*run, "--output", str(tmp_path / "out.json")])
    mine = json.loads((tmp_path / "out.json").read_text())["planners"]["mine"]
    assert mine["version"] == "3.1" and mine["layouts_per_cpu_s"] == 6.0
    main([*run, "--sealed"])
    sealed = capsys.readouterr().out
    assert json.loads(sealed)["planners"]["mine"]["scores"]["step"]["median_abs_pct"] == 25.0
    assert not any(word in sealed for word in ("secret", "no such layout", '"a"')), "nothing of a sealed row is told"


def test_what_is_wrong_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "few.py").write_text("print('{\"predictions\": []}')")
    for command in ("no-such-planner", f"{sys.executable} -c 1/0", f"{sys.executable} {tmp_path / 'few.py'}"):
        with pytest.raises(TunerError, match="planner"):
            ask(command, ROWS)
    (tmp_path / "rows.json").write_text('{"schema": "layoutbench-rows/1", "rows": [{"source": "a"}]}')
    with pytest.raises(LandscapeError, match="model"):
        read_rows([tmp_path / "rows.json"])
    with pytest.raises(SystemExit):
        main(["predict", "--planner", "mine=x", "--rows", str(tmp_path / "few.py")])
    assert capsys.readouterr().err.count("\n") == 1


def test_a_rate_counts_the_rows_that_were_predicted() -> None:
    given = Answers(predictions=[{"step_s": 1.0}, {"step_s": "no"}, {"step_s": "no"}], cpu_s=0.25)
    assert predictions_of(ROWS, {"mine": given})["planners"]["mine"]["layouts_per_cpu_s"] == 4.0
