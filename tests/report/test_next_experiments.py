"""What a study suggests next, each with a command that can be run as it is."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.studies import COMMAND, TRIALS, Recorded, header
from zenith_tune.record.reader import StudyReader
from zenith_tune.record.search import StudySearch
from zenith_tune.report.next_experiments import next_experiments
from zenith_tune.study.budget import Budget
from zenith_tune.study.lever_results import LeverResult, LeverStatus
from zenith_tune.study.trial import Outcome
from zenith_tune.study.verdict import Verdict

NUMERICS = "it changes the numerics: give --allow bf16_grads; expected to save 2% of a step"
LEVERS = (
    LeverResult(lever="bf16_grads", why=NUMERICS),
    LeverResult(lever="softmax_fusion", why="it needs the package fused, which is not installed"),
    LeverResult(lever="bucket_size=1", why="it is expected to save too little to be worth a trial"),
    LeverResult(lever="manual_gc", status=LeverStatus.KEPT, trial=4, speedup=1.1),
)
ADVICE = ["1. the pipeline waits", "   change pp 2 -> 1", "   predicted +5%", "   written by: zenithtune plan --emit x"]


def suggested(root: Path, search: StudySearch, advice: tuple[str, ...] = (), **changes: Any) -> list[dict[str, Any]]:
    study = Recorded(root / "out", "s", header(root, **changes)).run(TRIALS[:3])
    study.record.keep_search(search)
    study.record.close()
    return next_experiments(StudyReader(study.url, "s").view(), advice)


def test_levers_that_must_be_allowed_come_with_the_command_that_tests_them(tmp_path: Path) -> None:
    search = StudySearch().ended(2.0, "done", None, Verdict(sentence="s", levers=LEVERS))
    allowed, lacking = suggested(tmp_path, search, options=["--cluster", "my cluster.toml"])
    words = ["zenithtune", "optimize", "--cluster", "my cluster.toml", "--allow", "bf16_grads", "--"]
    assert shlex.split(allowed["command"]) == [*words, *shlex.split(COMMAND)]
    assert "bf16_grads" in allowed["what"] and allowed["why"].endswith("2% of a step") and "give" not in allowed["why"]
    assert "softmax_fusion" in lacking["what"] and "fused" in lacking["why"] and lacking["command"] == ""


def test_a_study_of_an_earlier_release_names_them_without_a_command(tmp_path: Path) -> None:
    search = StudySearch().ended(2.0, "done", None, Verdict(sentence="s", levers=LEVERS[:1]))
    assert [each["command"] for each in suggested(tmp_path, search)] == [""]


@pytest.mark.parametrize(
    ("budget", "option"),
    [(Budget(), "--n-trials 4"), (Budget(gpu_hours=0.5), "--gpu-hours 1"), (Budget(max_hours=2.0), "--max-hours 4")],
)
def test_a_spent_budget_is_doubled(tmp_path: Path, budget: Budget, option: str) -> None:
    search = StudySearch(budget=budget).ended(2.0, "budget of 2 trials used", None)
    (found,) = suggested(tmp_path, search, working_folder=str(tmp_path))
    assert found["command"] == f"zenithtune resume out/s {option}"


def test_a_study_that_was_cut_off_is_continued_and_one_that_runs_has_no_next(tmp_path: Path) -> None:
    study = Recorded(tmp_path / "out", "s", header(tmp_path)).run(TRIALS[:2])
    number = study.start(TRIALS[3])
    assert next_experiments(StudyReader(study.url, "s").view(), ADVICE) == []
    study.finish(number, replace(TRIALS[3], outcome=Outcome.CANCELLED, value=None))
    continued, advised = next_experiments(StudyReader(study.url, "s").view(), ADVICE)
    assert continued["command"] == f"zenithtune resume {tmp_path / 'out' / 's'}" and "1 trial" in continued["why"]
    assert advised["command"] == "zenithtune plan --emit x" and "pp 2 -> 1" in advised["what"]
