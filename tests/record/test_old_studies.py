"""Studies that an earlier release left: a whole one, and one whose tuner was killed in its third trial."""

from __future__ import annotations

import shlex
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.command_runs import as_json, running
from tests.conftest import FAKE_TRAINER
from tests.requirements import need_module
from zenith_tune.presets.megatron.levers.offered import LEVERS
from zenith_tune.record.reader import ExportedStudy, recorded_choices
from zenith_tune.record.source import find_study
from zenith_tune.record.view import StudyView
from zenith_tune.study.trial import Outcome

OLD_STUDIES = Path(__file__).parent / "old_studies"
STAND_IN = Path(__file__).parents[1] / "standins" / "pretrain_gpt.py"
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
    assert before.study.num_trials == num_old
    optimize = running("optimize", capsys)
    done = optimize(*OPTIONS, "--no-confirm", "--study-name", name, "--n-trials", str(num_trials), "--", *COMMAND)
    assert done.code == 0, done.err
    after = find_study(name, output_dir=Path("out")).view()
    assert after.study.num_trials == num_trials and not after.running
    assert after.study.first_baseline == before.baseline
    assert after.study.trials[:num_old] == before.study.trials
    cut_off = [view.trial for view in after.trials if view.trial.outcome is Outcome.CANCELLED]
    assert [trial.number for trial in cut_off] == ([] if name == "complete" else [3])


LAYOUTS = shlex.split(
    "env WORLD_SIZE=4 python pretrain_gpt.py --num-layers 8 --hidden-size 1024 --num-attention-heads 16 "
    "--seq-length 1024 --vocab-size 32000 --bf16 --micro-batch-size 1 --global-batch-size 16 "
    "--pipeline-model-parallel-size 2 --train-iters 6 --log-interval 1 --mock-data"
)


def test_a_study_of_layouts_continues_with_the_choices_that_it_was_recorded_with(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.copyfile(STAND_IN, "pretrain_gpt.py")
    options = ["--args", "cluster=h100x8", "--strategy", "grid", "--db", "out/layouts.db", "--no-confirm"]
    resumed = ["--study-name", "layouts", "--resume", "--n-trials", "5", "--patience", "thorough"]
    done = running("optimize", capsys)(*options, *resumed, "--", *LAYOUTS)
    assert done.code == 0, done.err
    study = find_study("layouts", db="out/layouts.db").view().study
    assert study.num_trials == 5
    # What this release searches beyond them is not in the record: the sharded optimizer, and chunks that are laid out.
    levers = {lever.name for lever in LEVERS}
    assert all(trial.params.keys() - levers == study.trials[0].params.keys() for trial in study.trials)
    assert "zero" not in study.trials[-1].params
    choices = recorded_choices("sqlite:///out/layouts.db", "layouts")
    assert choices["vp"] == (1, 2, 4)
    # A new study of the same command has both.
    done = running("optimize", capsys)(*options, "--study-name", "new", "--n-trials", "1", "--", *LAYOUTS)
    assert done.code == 0, done.err
    choices = recorded_choices("sqlite:///out/layouts.db", "new")
    assert choices["zero"] == (0, 1) and choices["vp"] == (1, 2, 3, 4)


def test_a_study_that_is_not_there_was_recorded_with_nothing() -> None:
    assert recorded_choices("sqlite:///out/none.db", "layouts") == {}
    assert recorded_choices("sqlite:///out/layouts.db", "none") == {}


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


CONFIRMED = OLD_STUDIES / "confirmed.sql"
"""A study of which trials and the user's own command ran again, twice resumed and then interrupted."""
SCRIPT = 'while [ $# -gt 1 ]; do case $1 in --x) x=$2;; esac; shift; done\necho "value: $((100 * x))"\n'


@pytest.fixture
def confirmed(tmp_path: Path) -> StudyView:
    with closing(sqlite3.connect(tmp_path / "out" / "confirmed.db")) as database:
        database.executescript(CONFIRMED.read_text())
    (tmp_path / "train.sh").write_text(SCRIPT)
    return find_study("old", db="out/confirmed.db").view()


def test_a_run_that_an_earlier_release_marked_in_its_identity_repeats_the_trial_of_that_number(
    confirmed: StudyView,
) -> None:
    runs = {each.number: each.trial for each in confirmed.trials}
    assert {number: trial.rerun_of for number, trial in runs.items() if trial.is_rerun} == {3: 1, 4: 0, 7: 6, 8: 4}
    assert all(runs[again].identity == runs[first].identity for again, first in ((3, 1), (4, 0), (7, 6), (8, 0)))
    study = confirmed.study
    assert study.num_trials == 4 and study.best is not None and study.number_of(study.best) == 6
    assert study.reruns_of(study.best) == [7] and study.gain == pytest.approx(3.0)
    assert study.baseline is not None and (study.baseline.number, study.first_run(study.baseline)) == (8, runs[0])


def test_a_confirmed_study_of_an_earlier_release_is_resumed_without_running_its_reruns_again(
    confirmed: StudyView, capsys: pytest.CaptureFixture[str]
) -> None:
    done = running("resume", capsys)("old", "--db", "out/confirmed.db", "--no-confirm")
    assert done.code != 0, "it was started in a folder that is not here"
    options = ["--space", "x=1,2,3,4,5,6", "--strategy", "random", "--strategy-args", "seed=1", "--maximize"]
    options += ["--patience", "thorough"]
    place = ["--db", "out/confirmed.db", "--study-name", "old", "--resume", "--n-trials", "11"]
    command = ["bash", "train.sh", "--x", "1"]
    done = running("optimize", capsys)(*options, "--objective", r"value: (\S+)", *place, "--", *command)
    assert done.code == 0, done.err
    view = find_study("old", db="out/confirmed.db").view()
    new = [each.trial for each in view.trials if each.number > 9]
    assert [trial.params.get("x") for trial in new] == [6, None, 6]
    assert [trial.rerun_of for trial in new] == [None, 8, 10]
    assert view.study.gain == pytest.approx(5.0)
    exported = ExportedStudy(Path("out/old")).view().study
    assert {trial.number: trial.rerun_of for trial in exported.trials} == {
        trial.number: trial.rerun_of for trial in view.study.trials
    }
