from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.strategies.guided import worlds
from zenith_tune.calibrate.calibration_file import default_calibration, load_calibration
from zenith_tune.calibrate.measured_run import MeasuredRun
from zenith_tune.errors import UsageError
from zenith_tune.layouts.layout_batch import batch_of
from zenith_tune.strategies.guided.learned import FILE_NAME, keep, learned_path, measured_run, starting_calibration
from zenith_tune.strategies.guided.observer import CountedTrials

SUBJECT = worlds.subject()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ZENITHTUNE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def runs(factor: float) -> list[MeasuredRun]:
    """Return runs of a machine whose matrix products are so much faster than thought."""
    layouts = batch_of([worlds.layout(point) for point in worlds.points()])
    trials = worlds.World({"gemm_efficiency": factor}, noise=0.0).trials()
    ran = [(index, trial) for index, trial in trials.items() if trial.ok][:20]
    return [measured_run(SUBJECT, layouts, index, trial) for index, trial in ran]


def test_what_is_kept_is_what_the_next_study_begins_with(home: Path) -> None:
    known = default_calibration("megatron")
    path = keep(SUBJECT, known, runs(0.7), memory_error=0.1)
    assert path is not None and path.is_relative_to(home)
    begun, origin = starting_calibration(SUBJECT, given=None, learns=True, folder=None)
    assert "earlier studies" in origin
    now = begun.time.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    before = known.time.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    assert now.gemm_efficiency < 0.85 * before.gemm_efficiency
    assert begun.memory.log_errors[0] == pytest.approx(known.memory.log_errors[0] + 0.1, abs=1e-5)


def test_a_study_refines_what_another_learned_meanwhile() -> None:
    known = default_calibration("megatron")
    keep(SUBJECT, known, runs(0.7), memory_error=0.0)
    path = keep(SUBJECT, known, runs(0.7)[:3], memory_error=0.0)
    assert path is not None
    learned = load_calibration(path).time.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    before = known.time.coefficients_for(gpu="h100", precision="bf16", framework="megatron")
    assert learned.gemm_efficiency < 0.85 * before.gemm_efficiency, "twenty runs are not forgotten for three"


def test_too_few_runs_keep_nothing(home: Path) -> None:
    assert keep(SUBJECT, default_calibration("megatron"), runs(0.7)[:1], memory_error=0.0) is None
    assert not home.exists()


def test_a_study_continues_with_what_it_began_with(tmp_path: Path) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    first, _ = starting_calibration(SUBJECT, given=None, learns=True, folder=folder)
    keep(SUBJECT, first, runs(0.5), memory_error=0.0)
    again, origin = starting_calibration(SUBJECT, given=None, learns=True, folder=folder)
    assert "began" in origin and "this machine" not in origin
    assert again.time.coefficients == load_calibration(folder / FILE_NAME).time.coefficients


def test_a_prior_that_cannot_be_read_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text("{")
    with pytest.raises(UsageError) as caught:
        starting_calibration(SUBJECT, given=None, learns=True, folder=tmp_path)
    assert "delete" in caught.value.hint and str(tmp_path / FILE_NAME) in caught.value.hint


def test_a_gpu_named_like_a_path_stays_inside_the_home(home: Path) -> None:
    cluster = replace(SUBJECT.cluster, gpu=replace(SUBJECT.cluster.gpu, name="x/../../../evil"))
    path = learned_path(replace(SUBJECT, cluster=cluster))
    assert path is not None and path.parent == home / "learned"


def test_a_learned_file_that_is_none_is_passed_over(home: Path) -> None:
    path = learned_path(SUBJECT)
    assert path is not None
    path.parent.mkdir(parents=True)
    path.write_text("nonsense")
    _, origin = starting_calibration(SUBJECT, given=None, learns=True, folder=None)
    assert "published" in origin


def test_a_user_without_a_home_learns_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ZENITHTUNE_HOME")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)

    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", no_home)
    assert learned_path(SUBJECT) is None
    assert keep(SUBJECT, default_calibration("megatron"), runs(0.7), memory_error=0.0) is None


def test_counted_trials_are_remembered(tmp_path: Path) -> None:
    CountedTrials(tmp_path).add([3, 1])
    assert CountedTrials(tmp_path).numbers == {1, 3}
    assert CountedTrials(None).numbers == set()
    (tmp_path / "taught.json").write_text("[1, {")
    assert CountedTrials(tmp_path).numbers == set()
