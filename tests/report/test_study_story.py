"""What the report shows beside the trials: your own command, a fair gain, the strategy, its table, its predictions."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.studies import BASELINE, OOM, TRIALS, Recorded, failed, header, ok
from tests.study_tools import Asks, tune
from zenith_mimo.preset.preset import MimoPreset
from zenith_tune.record.reader import ExportedStudy, StudyReader
from zenith_tune.record.restored_preset import RestoredPreset
from zenith_tune.record.search import StudySearch
from zenith_tune.report.study_comparison import compared
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.report.study_markdown import study_markdown
from zenith_tune.study.trial import Findings, Outcome, Prediction

WHY_ENDED = "no gain is likely"
EXPECTED = Prediction(step_s=4.4, error=0.05, by="strategy guided, by what it had learned")
FOUND = Findings(
    title="predicted against measured",
    columns=("trial", "layout"),
    rows=(("4", "TP2 | PP2"),),
    lines=("off by 4%",),
    predictions={3: replace(EXPECTED, step_s=4.9, error=0.0), 4: EXPECTED},
)
OWN_OOM = replace(BASELINE, outcome=Outcome.OOM, value=None, failure="out of memory", cause=OOM.format("9"))


def digest_of(root: Path, *trials: Any, search: StudySearch | None = None, **changes: Any) -> dict[str, Any]:
    study = Recorded(root / "out", "s", header(root, **changes)).run(trials or TRIALS)
    if search is not None:
        study.record.keep_search(search)
    study.record.close()
    return StudyDigest(StudyReader(study.url, "s")).object()


def test_strategy_stop_reason_and_closing_table_are_shown(tmp_path: Path) -> None:
    search = StudySearch(strategy="guided", max_trials=30, begun_s=1.0).ended(2.0, WHY_ENDED, FOUND)
    study = digest_of(tmp_path, search=search)
    assert (study["strategy"], study["stopped"], study["max_trials"]) == ("guided", WHY_ENDED, 30)
    assert study["num_budgeted"] == 9 and study["time_left_s"] > 0
    table = {"title": FOUND.title, "columns": ["trial", "layout"], "rows": [["4", "TP2 | PP2"]], "notes": ["off by 4%"]}
    assert study["findings"] == [table]
    text = study_markdown(study)
    table_text = "| trial | layout |\n| --- | --- |\n| 4 | TP2 \\| PP2 |\n\n- off by 4%"
    assert f"### {FOUND.title.capitalize()}\n\n{table_text}" in text
    *_, made_with, stopped = text.strip().split("\n\n")
    assert all(name in made_with for name in ("megatron", "guided", "megatron tokens")) and WHY_ENDED in stopped


def test_a_record_without_them_is_shown_without_them(tmp_path: Path) -> None:
    study = digest_of(tmp_path)
    assert (study["strategy"], study["stopped"], study["findings"], study["max_trials"]) == ("", "", [], None)
    assert "Stopped" not in study_markdown(study)


def test_what_the_strategy_expected_is_the_prediction_and_says_whose_it_is(tmp_path: Path) -> None:
    trials = digest_of(tmp_path, search=StudySearch(strategy="guided").ended(2.0, "done", FOUND))["trials"]
    predicted = trials[4]["predicted"]
    assert (predicted["step_s"], predicted["by"]) == (4.4, EXPECTED.by)
    assert predicted["memory_bytes"] > 0
    assert "planner" in predicted["memory_by"] and trials[1]["predicted"]["by"] == predicted["memory_by"]
    ranges = [trials[number]["predicted"]["step_interval_90_s"] for number in (1, 3, 4)]
    assert ranges[0][0] < trials[1]["predicted"]["step_s"] < ranges[0][1] and ranges[1] is None
    assert ranges[2] == pytest.approx((4.4 / 1.0857, 4.4 * 1.0857), rel=1e-3), "1.645 standard errors to each side"
    low, high = predicted["memory_interval_90_bytes"]
    assert low < predicted["memory_bytes"] < high


def test_a_preset_that_plans_by_itself_predicts_its_trials(tmp_path: Path) -> None:
    command = "python mimo_train.py --encoder-layers 8 --encoder-hidden 64 --llm-layers 2 --llm-hidden 32"
    command += " --vocab-size 64 --images 4,0,0,0 --global-batch-size 8 --train-iters 4 --device-flops 5e7"
    preset = MimoPreset(n_gpus=4, mbs_max=2)
    preset.bind(command)
    fastest = preset.space.plan.ranked[0]
    trial = replace(ok(1, 1, 1, 300.0), params=preset.space.point(fastest.candidate))
    about = header(tmp_path, preset="mimo", args={"n_gpus": "4", "mbs_max": "2"}, command=command)
    study = Recorded(tmp_path / "out", "s", about)
    study.finish(study.start(trial, space=preset.get_search_space()), trial)
    study.record.close()
    digest = StudyDigest(StudyReader(study.url, "s")).object()
    (predicted,) = (each["predicted"] for each in digest["trials"])
    assert predicted["step_s"] == fastest.step_s and predicted["memory_bytes"] == fastest.memory_bytes
    assert predicted["by"] == predicted["memory_by"] and "mimo" in predicted["by"]
    assert "by itself" in digest["why_no_plan"]


def test_a_preset_without_plans_still_says_so(tmp_path: Path) -> None:
    about = header(tmp_path, preset="demo", args={}, command="python train.py")
    assert "demo" in RestoredPreset(about).why_not and "by itself" not in RestoredPreset(about).why_not


def test_another_batch_is_noted_wherever_the_gain_is(tmp_path: Path) -> None:
    own = replace(BASELINE, extra={"global_batch_size": 16})
    study = digest_of(tmp_path, own, ok(2, 2, 1, 61_000.0, extra={"global_batch_size": 64}))
    note = study["batch_note"].partition(":")[0]
    assert re.findall(r"\d+", note) == ["16", "64"]
    assert f"(1 trial, 0 failed).\n\nNote: {note}" in study_markdown(study)
    (gains,) = (row for row in compared(study, study)["summary"] if row[0].startswith("gain"))
    assert gains[1] == f"+22.0% ({note})"


def test_study_json_keeps_the_note_and_reads_the_batch_again(tmp_path: Path) -> None:
    tune(tmp_path, strategy=Asks(3)).optimize()
    path = tmp_path / "out" / "s" / "study.json"
    content = json.loads(path.read_text())
    assert content["batch_note"] == ""
    (trial,) = content["trials"]
    own = {**trial, "number": 9, "is_baseline": True, "value": 1.0, "global_batch_size": 16}
    path.write_text(json.dumps({**content, "trials": [{**trial, "global_batch_size": 64}, own]}))
    assert re.findall(r"\d+", StudyDigest(ExportedStudy(path)).object()["batch_note"]) == ["16", "64"]


def test_a_baseline_that_failed_is_shown_and_not_counted_among_the_trials(tmp_path: Path) -> None:
    study = digest_of(
        tmp_path, OWN_OOM, ok(2, 2, 1, 61_000.0), failed(1, 1, 4, Outcome.OOM, "out of memory", OOM.format("1"))
    )
    (group,) = study["failures"]
    assert (study["num_failed"], group["numbers"]) == (1, [0, 2]) and group["who"].endswith(" and 1 trial")
    text = study_markdown(study)
    assert "(2 trials, 1 failed)" in text
    assert re.search(r"^Your own command .*\(out of memory\): torch\.OutOfMem", text, re.MULTILINE)
    assert re.search(rf"^- 2 {OWN_OOM.failure} \(.*command, trial 2\): ", text, re.MULTILINE)


def test_a_study_of_nothing_but_a_failed_baseline_has_no_trial_that_failed(tmp_path: Path) -> None:
    study = digest_of(tmp_path, OWN_OOM)
    assert "trial" not in study["failures"][0]["who"] and study["num_failed"] == 0
    assert re.search(r"^- 1 out of memory \([^)]*command\): ", study_markdown(study), re.MULTILINE)
