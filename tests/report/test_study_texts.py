"""A study as Markdown and as CSV, and two of them compared."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.hostile import write_hostile
from tests.report.studies import BASELINE, BEST, TRIALS, Recorded, failed, header, ok, recorded
from zenith_tune.record.reader import StudyReader
from zenith_tune.report.study_comparison import compared
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.report.study_markdown import comparison_markdown, escaped, fenced, study_csv, study_markdown
from zenith_tune.study.trial import Outcome


def digest(root: Path, *trials: Any, name: str = "s", **changes: Any) -> dict[str, Any]:
    study = recorded(root, trials or TRIALS, name=name, **changes)
    return StudyDigest(StudyReader(study.url, name)).object()


@pytest.fixture
def study(tmp_path: Path) -> dict[str, Any]:
    return digest(tmp_path / "out")


def test_markdown_shows_best_command_trials_failures_and_doctor(study: dict[str, Any]) -> None:
    text = study_markdown(study)
    assert "trial 4, **TP2 PP2 mbs1 full**, 61,000 tokens/s ±1.6% (90%), **+22.0%**" in text
    assert f"--trial {BEST}\n```" in text
    cells = (str(BEST), "TP2 PP2 mbs1 full", "ok", "61,000 ±1.6%", "+22.0%", "4.3 s", "61.0 GiB")
    assert f"| {' | '.join(cells)} |" in text
    assert "- 2 out of memory (trial 2, 5): torch.OutOfMemoryError" in text
    assert study["doctor"] and fenced("\n".join(study["doctor"])) in text


def test_markdown_of_a_hostile_study_is_text(tmp_path: Path) -> None:
    study = write_hostile(tmp_path / "out")
    text = study_markdown(StudyDigest(StudyReader(study.url, "hostile")).object())
    fences = text.split("```")
    assert all("<img" not in part.replace("\\<img", "") for part in fences[::2])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 5 and {row.replace("\\|", "").count("|") for row in rows} == {8}


def test_nothing_ends_a_fence_from_inside() -> None:
    assert fenced("a ```` b").startswith("`````text\n")
    assert escaped("a\nb | `c`") == "a b \\| \\`c\\`"


def test_csv_has_one_row_for_each_trial_with_its_parameters(study: dict[str, Any]) -> None:
    rows = list(csv.DictReader(io.StringIO(study_csv(study))))
    assert [row["number"] for row in rows] == [str(number) for number in range(len(TRIALS))]
    best = rows[BEST]
    assert [best[name] for name in ("tp", "pp", "value", "unit", "state")] == ["2", "2", "61000.0", "tokens/s", "ok"]
    assert float(best["predicted_step_s"]) > 0
    assert rows[0]["predicted_step_s"] == ""


def test_no_cell_is_a_formula(tmp_path: Path) -> None:
    study = write_hostile(tmp_path / "out")
    table = csv.reader(io.StringIO(study_csv(StudyDigest(StudyReader(study.url, "hostile")).object())))
    assert not [cell for row in table for cell in row if cell.startswith(("=", "@"))]


def test_two_studies_are_compared_by_their_bests_and_common_layouts(tmp_path: Path) -> None:
    first = digest(tmp_path / "out")
    second = digest(
        tmp_path / "two",
        BASELINE,
        ok(2, 2, 1, 67_100.0),
        ok(8, 1, 1, 40_000.0),
        name="t",
        args={"n_gpus": "8", "gbs": "64"},
    )
    found = compared(first, second)
    assert found["gain"] == pytest.approx(0.1)
    assert [(row["label"], round(row["gain"], 3)) for row in found["common"]] == [
        *(("TP2 PP2 mbs1 full", 0.1), ("your command", 0.0))
    ]
    assert {row[0]: row[2] for row in found["differences"]} == {
        **dict.fromkeys(("model", "cluster", "seq"), "–"),
        "folding": "False",
    }
    text = comparison_markdown(found)
    assert re.search(r"\*\*t\*\* .*10\.0% faster .*\*\*s\*\*", text)
    assert re.search(r"\*\*s\*\* .*9\.1% slower .*\*\*t\*\*", comparison_markdown(compared(second, first)))
    assert ["state", "ended", "ended"] in found["summary"]
    assert "| TP2 PP2 mbs1 full | 61,000 tokens/s | 67,100 tokens/s | +10.0% |" in text


def test_values_of_two_units_are_not_compared(tmp_path: Path, study: dict[str, Any]) -> None:
    other = digest(tmp_path / "two", replace(ok(2, 2, 1, 300.0), unit="TFLOP/s/GPU"), name="t", evaluator="other")
    found = compared(study, other)
    assert (found["gain"], found["common"], found["is_comparable"]) == (None, [], False)
    assert re.search(r"tokens/s .*TFLOP/s/GPU", comparison_markdown(found))
    assert ["evaluator", "megatron tokens", "other"] in found["differences"]


def test_a_study_without_success_has_no_best(tmp_path: Path, study: dict[str, Any]) -> None:
    none = digest(tmp_path / "two", TRIALS[2], name="t")
    assert "(1 trial, 1 failed)." in study_markdown(none) and "Best:" not in study_markdown(none)
    assert compared(study, none)["gain"] is None and "no unit" in compared(study, none)["why_no_gain"]


def test_a_study_whose_own_command_is_the_fastest_has_no_gain(tmp_path: Path, study: dict[str, Any]) -> None:
    slower = digest(tmp_path / "two", BASELINE, ok(2, 2, 1, 46_300.0), name="t")
    text = study_markdown(slower)
    (headline,) = (line for line in text.splitlines() if line.startswith("Best:"))
    assert "own command, 50,000 tokens/s ±1.6% (90%) (1 trial, 0 failed). " in headline
    assert "none; " in headline and "-7.4%" in headline and "**" not in headline
    (row,) = (row for row in compared(study, slower)["summary"] if row[0].startswith("gain"))
    assert row[1] == "+22.0%" and row[2].startswith("none; ") and row[2].endswith("-7.4%")


def test_a_trial_that_was_cancelled_by_hand_has_not_failed(tmp_path: Path) -> None:
    by_hand = failed(4, 1, 2, Outcome.CANCELLED, "cancelled from outside", "cancelled by hand")
    content = digest(tmp_path / "out", BASELINE, TRIALS[3], TRIALS[2], by_hand)
    assert (content["num_failed"], content["num_cancelled"], content["num_unfinished"]) == (1, 1, 0)
    assert "(3 trials, 1 failed, 1 cancelled)." in study_markdown(content)


def test_a_study_that_was_cut_off_is_unfinished_until_its_trial_runs_again(
    tmp_path: Path, study: dict[str, Any]
) -> None:
    cut = replace(TRIALS[3], outcome=Outcome.CANCELLED, value=None, cause="interrupted")
    content = digest(tmp_path / "two", BASELINE, TRIALS[4], cut, name="t")
    assert "(2 trials, 0 failed, 1 cancelled, unfinished)." in study_markdown(content)
    found = compared(study, content)
    (state,) = (row for row in found["summary"] if row[0] == "state")
    assert state[1] == "ended" and state[2].startswith("unfinished: 1 trial")
    again = digest(tmp_path / "three", BASELINE, cut, TRIALS[3], name="t")
    assert again["num_unfinished"] == 0


def test_a_study_with_a_running_trial_is_unfinished(tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS[:2])
    study.start(TRIALS[3])
    content = StudyDigest(StudyReader(study.url, "s")).object()
    study.record.close()
    assert (content["num_unfinished"], content["num_failed"], content["num_cancelled"]) == (1, 0, 0)
