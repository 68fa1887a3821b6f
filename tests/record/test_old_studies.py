"""Studies that an earlier release left: a whole one, and one whose tuner was killed in its third trial."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.command_runs import as_json, running
from tests.conftest import FAKE_TRAINER
from tests.requirements import need_module
from zenith_tune.record.reader import ExportedStudy
from zenith_tune.record.source import find_study
from zenith_tune.study.trial import Outcome

OLD_STUDIES = Path(__file__).parent / "old_studies"
COMMAND = ["python", "train.py", "--train-iters", "6", "--iteration-seconds", "0.05"]
OPTIONS = ["--preset", "megatron", "--args", "n_gpus=4,gbs=16", "--output-dir", "out", "--resume"]


@pytest.fixture(autouse=True)
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(OLD_STUDIES, tmp_path / "out")
    shutil.copyfile(FAKE_TRAINER, tmp_path / "train.py")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "out"


@pytest.mark.parametrize(("name", "num_old", "num_trials"), [("complete", 4, 6), ("killed", 2, 4)])
def test_a_study_of_an_earlier_release_is_resumed(
    capsys: pytest.CaptureFixture[str], name: str, num_old: int, num_trials: int
) -> None:
    before = find_study(name, output_dir=Path("out")).view()
    assert before.study.num_searched == num_old
    optimize = running("optimize", capsys)
    done = optimize(*OPTIONS, "--study-name", name, "--n-trials", str(num_trials), "--", *COMMAND)
    assert done.code == 0, done.err
    after = find_study(name, output_dir=Path("out")).view()
    assert after.study.num_searched == num_trials and not after.running
    assert after.study.first_baseline == before.baseline
    assert after.study.trials[:num_old] == before.study.trials
    cut_off = [view.trial for view in after.trials if view.trial.outcome is Outcome.CANCELLED]
    assert [trial.number for trial in cut_off] == ([] if name == "complete" else [3])


def test_the_trial_of_the_killed_tuner_is_seen_as_running(out: Path) -> None:
    view = find_study("killed", output_dir=out).view()
    assert [each.number for each in view.running] == [3]
    assert view.running[0].trial.folder == out / "killed" / "trials" / "0003"
    assert view.running[0].trial.params["ep"] == 2


def test_the_record_and_the_export_of_an_earlier_release_say_the_same(out: Path) -> None:
    record, exported = find_study("complete", output_dir=out).view(), ExportedStudy(out / "complete").view()
    assert exported.header == record.header and exported.best_command == record.best_command
    for ours, theirs in zip(exported.trials, record.trials, strict=True):
        assert (ours.trial.value, ours.trial.unit, ours.trial.step_s) == (
            *(theirs.trial.value, theirs.trial.unit, theirs.trial.step_s),
        )
        assert ours.trial.params == theirs.trial.params and ours.trial.extra == theirs.trial.extra


@pytest.mark.parametrize(("name", "num_trials"), [("complete", 5), ("killed", 4)])
def test_a_study_of_an_earlier_release_is_reported_and_exported(
    capsys: pytest.CaptureFixture[str], name: str, num_trials: int
) -> None:
    content = as_json(running("report", capsys)(name, "--output-dir", "out", "--format", "json"))
    assert len(content["trials"]) == num_trials
    need_module("tensorboard", "tensorboardX")
    done = running("export", capsys)(name, "--output-dir", "out", "--tensorboard", "runs")
    assert done.code == 0, done.err
    assert any(Path("runs").rglob("*tfevents*"))
