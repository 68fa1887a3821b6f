"""A study in MLflow's own store, read back by MLflow's own client."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.command_runs import Done, running
from tests.mentions import mentions
from tests.report.hostile import IMAGE, SCRIPT, write_hostile
from tests.report.studies import BEST, COMMAND, TRIALS, Recorded, header, ok, recorded
from tests.requirements import need_module
from zenith_tune.record.reader import StudyReader

pytestmark = pytest.mark.filterwarnings("ignore")  # MLflow's own warnings


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store of its own; its tables take MLflow many seconds to make."""
    need_module("mlflow", "mlflow")
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Recorded]:
    study = Recorded(tmp_path / "out", f"s-{tmp_path.name}", header(tmp_path)).run(TRIALS)
    yield study
    study.record.close()


def export(study: Recorded, uri: str, capsys: pytest.CaptureFixture[str]) -> Done:
    name, folder = study.folder.path.name, str(study.folder.output_dir)
    return running("export", capsys)(name, "--output-dir", folder, "--mlflow", uri)


def client(store: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from mlflow.tracking import MlflowClient

        return MlflowClient(tracking_uri=store)


def runs(store: str, name: str) -> dict[str, Any]:
    """Return the runs of an experiment by their trial's number."""
    experiment = client(store).get_experiment_by_name(name)
    found = client(store).search_runs([experiment.experiment_id])
    return {run.data.tags["zenithtune.trial"]: run for run in found}


def test_every_trial_is_a_run_with_what_it_measured(
    study: Recorded, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = study.folder.path.name
    done = export(study, store, capsys)
    assert done.code == 0 and mentions(done.out, name, 10, 0) and done.out.count("\n") == 1, done.err
    found = runs(store, name)
    best = found[str(BEST)]
    assert best.data.params["tp"] == "2" and best.data.params["recompute_granularity"] == "full"
    assert best.data.metrics["value"] == 61_000.0 and best.data.metrics["gain"] == pytest.approx(0.22)
    assert best.data.metrics["step_s"] == pytest.approx(64 * 4096 / 61_000)
    assert best.data.metrics["peak_memory_bytes"] == (75 - 8 - 6) * 2**30 and best.data.metrics["duration_s"] == 9.0
    assert best.info.run_name == "TP2 PP2 mbs1 full" and best.info.status == "FINISHED"
    assert best.data.tags["command"] == f"{COMMAND} --trial {BEST}" and best.data.tags["outcome"] == "ok"
    view = StudyReader(study.url, name).view()
    assert best.info.start_time == round((view.trials[BEST].started_s or 0) * 1000)
    assert found["0"].data.tags["baseline"] == "true" and "baseline" not in best.data.tags
    oom = found["2"]
    assert (oom.info.status, oom.data.tags["outcome"]) == ("FAILED", "oom")
    assert "12.5 GiB" in oom.data.tags["cause"] and "value" not in oom.data.metrics
    assert client(store).get_experiment_by_name(name).tags["zenithtune.best"] == str(BEST)


def test_called_again_it_adds_what_is_new_and_finishes_what_was_cut_off(
    study: Recorded, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = study.folder.path.name
    export(study, store, capsys)
    cut = runs(store, name)["3"]
    client(store).update_run(cut.info.run_id, status="RUNNING")
    study.run([ok(8, 1, 1, 70_000.0)])
    study.start(ok(8, 2, 1, 1.0))
    done = export(study, store, capsys)
    assert mentions(done.out, name, 2, 9)
    found = runs(store, name)
    assert sorted(map(int, found)) == list(range(11)), "the one that runs is for the next time"
    assert (found["3"].info.run_id, found["3"].info.status) == (cut.info.run_id, "FINISHED")
    assert client(store).get_experiment_by_name(name).tags["zenithtune.best"] == "10"


def test_texts_that_try_to_be_something_else_stay_texts(
    tmp_path: Path, store: str, capsys: pytest.CaptureFixture[str]
) -> None:
    done = export(write_hostile(tmp_path / "out"), store, capsys)
    assert done.code == 0 and mentions(done.out, "hostile", 4, 0), done.err
    found = runs(store, "hostile")
    assert found["0"].data.params["_script_window.pwned_1_/script_"] == IMAGE
    assert found["0"].data.tags["unit"] == SCRIPT
    assert len(found["2"].data.params["_script_window.pwned_1_/script_"]) == 5000


@pytest.mark.parametrize("uri", ["", "mlruns", "sqlite:///file/mlflow.db", "gopher://x", "http://[", "nodb://x"])
def test_a_store_that_is_none_is_one_line(
    uri: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    need_module("mlflow", "mlflow")
    study = recorded(tmp_path / "out", TRIALS[1:2])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    done = export(study, uri, capsys)
    assert done.code == 2 and "sqlite:///mlflow.db" in done.err, done.err
    assert len(done.err) < 600 and done.err.count("\n") == 1


def test_without_mlflow_the_line_names_the_extra(
    study: Recorded, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow.exceptions", None)
    done = export(study, "sqlite:///x.db", capsys)
    assert done.code == 2 and "'zenith-tune[mlflow]'" in done.err
