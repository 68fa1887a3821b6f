"""What a study's preset, made anew from the header, tells of the trials."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.report.studies import BEST, TRIALS, header, recorded
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.restored_preset import RestoredPreset
from zenith_tune.record.view import StudyView, TrialView
from zenith_tune.study.trial import Outcome, Trial


@pytest.fixture
def view(tmp_path: Path) -> StudyView:
    return StudyReader(recorded(tmp_path / "out").url, "s").view()


def test_labels_are_those_that_the_tuner_shows(view: StudyView) -> None:
    preset = RestoredPreset(view.header)
    labels = [preset.label(each) for each in view.trials]
    assert labels[:3] == ["your command", "mbs1 full", "mbs4 full"]
    assert labels[BEST] == "TP2 PP2 mbs1 full"


def test_a_label_that_the_record_holds_goes_before(view: StudyView) -> None:
    stored = TrialView(trial=view.trials[1].trial, label="stored label")
    assert RestoredPreset(view.header).label(stored) == "stored label"


def test_the_planner_predicts_time_and_memory_of_each_layout_that_it_can_estimate(view: StudyView) -> None:
    preset = RestoredPreset(view.header)
    planned = preset.planned(view)
    assert preset.why_not == ""
    assert planned[BEST].layout.pp == 2
    assert planned[BEST].step_s > 0 and planned[BEST].memory_bytes > 0
    assert 0 not in planned, "the command itself does not say its layout"
    assert preset.planned(view)[BEST] is planned[BEST]


def test_a_preset_that_cannot_plan_says_why(tmp_path: Path) -> None:
    about = header(tmp_path, args={"n_gpus": "8", "gbs": "64"})
    preset = RestoredPreset(about)
    assert "model" in preset.why_not
    assert preset.label(TrialView(trial=TRIALS[4])) == "TP2 PP2 mbs1 full"
    demo = RestoredPreset(header(tmp_path, preset="demo", args={"n_gpus": "8", "gbs": "16"}))
    assert "demo" in demo.why_not


def test_a_study_that_found_its_cluster_by_itself_is_planned_for_that_one_everywhere(tmp_path: Path) -> None:
    given = header(tmp_path)
    found = replace(given, args={name: value for name, value in given.args.items() if name != "cluster"})
    remade = RestoredPreset(found, cluster="h200x8")
    assert remade.planner is not None and remade.planner.cluster.gpu.name == "h200"
    stated = RestoredPreset(given, cluster="h200x8")
    assert stated.planner is not None and stated.planner.cluster.gpu.name != "h200"
    assert RestoredPreset(found, cluster="h200x8 as nodes.txt").planner is None


@pytest.mark.parametrize(("preset", "args"), [("of-another-package", {}), ("megatron", {"n_gpus": "many"})])
def test_without_the_preset_the_parameters_are_the_label(tmp_path: Path, preset: str, args: dict[str, str]) -> None:
    remade = RestoredPreset(header(tmp_path, preset=preset, args=args))
    trial = Trial(params={"x": 1, "y": "a"}, outcome=Outcome.OK, number=3)
    assert remade.label(TrialView(trial=trial)) == "x=1 y=a"
    assert remade.why_not


def test_points_of_another_release_have_no_plan_and_still_a_label(tmp_path: Path) -> None:
    remade = RestoredPreset(header(tmp_path))
    trial = TrialView(trial=Trial(params={"tp": "wide", "unheard": 7}, outcome=Outcome.OK, number=3))
    assert remade.layout(trial) is None
    assert "wide" in remade.label(trial)
