"""What the top of a study's page says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna import load_study

from tests.report.studies import BASELINE, OOM, TRIALS, Recorded, failed, header, ok, recorded
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.search import StudySearch
from zenith_tune.record.storage import open_for_reading
from zenith_tune.report.study_digest import StudyDigest
from zenith_tune.study.changes import Change
from zenith_tune.study.lever_results import LeverGain
from zenith_tune.study.trial import Outcome, Trial
from zenith_tune.study.verdict import Verdict
from zenith_tune.units import GIB


def standing(root: Path, trials: list[Trial], **changes: Any) -> dict[str, Any]:
    study = recorded(root, trials, **changes)
    found: dict[str, Any] = StudyDigest(StudyReader(study.url, "s")).object()["standing"]
    return found


def test_a_gain_has_its_interval_its_memory_and_its_cost(tmp_path: Path) -> None:
    found = standing(tmp_path / "out", list(TRIALS))
    assert found["speedup"] == pytest.approx(1.22) and found["low"] < 1.22 < found["high"]
    assert found["is_confirmed"] is False
    assert 0.7 < found["memory_share"] < 0.8
    spent_s = sum(trial.duration_s or 0 for trial in TRIALS)
    assert found["num_gpus"] == 8 and round(found["gpu_hours"] * 3600) == round(8 * spent_s)
    assert "1.22" in found["headline"]


def test_the_layout_and_each_group_of_levers_have_their_gain(tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS)
    gains = (LeverGain(levers=("overlap=params", "manual_gc"), speedup=1.1), LeverGain(levers=("fp8",), speedup=1.001))
    changes = (
        Change(name="tp", before=4, after=1, speedup=1.2),
        Change(name="mbs", before=1, after=4, speedup=1.2),
        Change(name="overlap", after="params", speedup=1.1),
        Change(name="manual_gc", after=True, speedup=1.1),
    )
    verdict = Verdict(sentence="s", layout_speedup=1.2, lever_gains=gains, changes=changes)
    study.record.keep_search(StudySearch().ended(2.0, "done", None, verdict))
    study.record.close()
    found = StudyDigest(StudyReader(study.url, "s")).object()["standing"]["gains"]
    assert found == [
        {"name": "TP 4 -> 1, micro-batch 1 -> 4", "speedup": 1.2},
        {"name": "overlap=params + manual_gc", "speedup": 1.1},
    ]


def test_ties_and_a_safer_trial_are_named(tmp_path: Path) -> None:
    full = replace(ok(2, 2, 1, 61_000.0), peak_memory_bytes=round(78.5 * GIB))
    found = standing(tmp_path / "out", [BASELINE, full, ok(4, 2, 1, 60_990.0), ok(8, 1, 1, 55_000.0)])
    assert list(found["ties"]) == [2]
    assert found["safer"]["number"] == 2 and found["safer"]["speedup"] > 1.2


def test_gpu_hours_are_not_claimed_where_nobody_knows_the_gpus(tmp_path: Path) -> None:
    found = standing(tmp_path / "out", list(TRIALS), preset="unknown", args={})
    assert found["num_gpus"] is None and found["gpu_hours"] is None


def test_a_study_without_a_value_says_whether_its_trials_failed(tmp_path: Path) -> None:
    oom = failed(1, 1, 4, Outcome.OOM, "out of memory", OOM.format("12.5"))
    lines = {
        standing(tmp_path / str(index) / "out", trials)["headline"]
        for index, trials in enumerate(([BASELINE, oom], [BASELINE], [BASELINE, ok(1, 1, 1, 11_000.0)]))
    }
    assert len(lines) == 3


def test_optuna_knows_the_objective_by_its_name(tmp_path: Path) -> None:
    study = recorded(tmp_path / "out")
    assert load_study(study_name="s", storage=open_for_reading(study.url)).metric_names == ["megatron tokens"]
