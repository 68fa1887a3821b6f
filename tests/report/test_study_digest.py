"""What the page and programs get of a study."""

from __future__ import annotations

import json
import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.report.hostile import write_hostile
from tests.report.studies import BASELINE, BEST, COMMAND, TRIALS, Recorded, header, multiplied, ok, recorded
from zenith_tune.record.reader import StudyReader
from zenith_tune.report.study_digest import StudyDigest, failure_groups
from zenith_tune.study.trial import PHASE


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "out"


def digest(study: Recorded) -> dict[str, Any]:
    return StudyDigest(StudyReader(study.url, study.folder.path.name)).object()


def test_it_shows_the_best_the_gain_and_every_trial(root: Path) -> None:
    content = digest(recorded(root))
    assert (content["best"], content["baseline"], content["fastest_is_baseline"]) == (BEST, 0, False)
    assert content["gain"] == pytest.approx(0.22)
    assert [trial["number"] for trial in content["trials"]] == list(range(len(TRIALS)))
    assert content["trials"][BEST]["label"] == "TP2 PP2 mbs1 full"
    assert content["trials"][BEST]["why"] == TRIALS[BEST].why
    assert content["trials"][BEST]["gain"] == pytest.approx(0.22)
    assert content["outcomes"] == {"ok": 5, "oom": 2, "error": 1, "timeout": 1}


def test_it_shows_what_a_trial_left(root: Path) -> None:
    trial = digest(recorded(root))["trials"][BEST]
    assert trial["log"] == ["starting", "step 1 of 2", "done"]
    assert trial["files"] == ["command.sh", "log.txt"]
    assert trial["command"].endswith(f"--trial {BEST}")
    assert trial["folder"] == str(root / "s" / "trials" / f"{BEST:04d}")


def test_what_the_planner_says_stands_beside_what_was_measured(root: Path) -> None:
    content = digest(recorded(root))
    assert content["why_no_plan"] == ""
    assert content["trials"][BEST]["predicted"]["name"] == "TP2 PP2 DP2 Z1 mbs1 full/uniform1"
    assert content["trials"][0]["predicted"] is None
    assert content["capacity_bytes"] == pytest.approx(79.1 * 2**30, rel=0.01)
    assert [stage["stage"] for stage in content["best_layout"]["stages"]] == [0, 1]
    assert content["best_layout"]["timeline"]["num_stages"] == 2
    assert content["doctor"], "the doctor knows all that it needs"


OWN = (
    f"{COMMAND} --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1 --micro-batch-size 1 "
    "--context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1 --global-batch-size 64 "
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 --vit-gradient-checkpointing true"
)


def test_both_steps_are_divided_as_planned_and_as_long_as_measured(root: Path) -> None:
    own, best = digest(recorded(root, list(TRIALS), command=OWN))["steps"]
    assert (own["number"], best["number"]) == (0, BEST)
    assert sum(own["parts_s"].values()) == pytest.approx(BASELINE.step_s)
    assert sum(best["parts_s"].values()) == pytest.approx(TRIALS[BEST].step_s)
    assert "bubble" in best["parts_s"] and "bubble" not in own["parts_s"]


def test_both_steps_are_divided_by_the_phases_that_their_logs_show(root: Path) -> None:
    phases = {"generation": 3.0, "update": 1.0}
    trials = [replace(each, extra={f"{PHASE}{name}": s for name, s in phases.items()}) for each in TRIALS]
    own, best = digest(recorded(root, trials))["steps"]
    assert own["parts_s"] == best["parts_s"] == phases and own["is_measured"]


def test_a_step_that_has_nothing_beside_it_is_not_divided(root: Path) -> None:
    assert digest(recorded(root))["steps"] == [], "the layout of the own command is not known"
    alone = [BASELINE, ok(2, 1, 1, 40_000.0)]
    assert digest(recorded(root.parent / "slower", alone, command=OWN))["steps"] == [], "it is the best itself"


def test_without_a_plan_it_says_why_and_takes_the_memory_from_a_run_that_was_out_of_it(root: Path) -> None:
    content = digest(recorded(root, args={"n_gpus": "8", "gbs": "64"}))
    assert "model" in content["why_no_plan"]
    assert (content["best_layout"], content["doctor"]) == (None, [])
    assert content["capacity_bytes"] == pytest.approx(79.1 * 2**30)


def test_failures_are_grouped_by_kind_and_by_what_they_say_but_for_numbers(root: Path) -> None:
    groups = digest(recorded(root))["failures"]
    assert [(group["kind"], group["numbers"]) for group in groups] == [
        *(("out of memory", [2, 5]), ("configuration", [7]), ("timeout", [9]))
    ]
    assert [cause["numbers"] for cause in groups[0]["causes"]] == [[2, 5]]
    assert "OutOfMemoryError" in groups[0]["log"][-1]


def test_trials_without_a_cause_are_no_failures() -> None:
    assert failure_groups([{"cause": None, "value": 1.0, "state": "ok", "number": 1}]) == []


def test_a_running_trial_is_shown_with_its_command_and_log(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:2])
    number = study.start(ok(2, 1, 1, 1.0), log="warming up\n")
    content = digest(study)
    assert content["is_running"] and content["ended_s"] is None
    last = content["trials"][-1]
    assert (last["number"], last["state"], last["value"], last["log"]) == (number, "running", None, ["warming up"])
    assert last["command"].endswith(f"--trial {number}")


def test_asked_again_it_follows_the_study(root: Path) -> None:
    study = Recorded(root, "s", header(root.parent)).run(TRIALS[:2])
    digester = StudyDigest(StudyReader(study.url, "s"))
    assert digester.object()["best"] == 1
    number = study.start(TRIALS[BEST])
    assert digester.object()["trials"][-1]["state"] == "running"
    study.finish(number, TRIALS[BEST])
    content = digester.object()
    assert (content["best"], content["trials"][-1]["state"]) == (number, "ok")
    assert content["best_layout"]["name"].startswith("TP2 PP2")


def test_numbers_that_json_has_no_word_for_are_left_out(root: Path) -> None:
    odd = replace(ok(2, 1, 1, 55.0), spread=float("nan"), step_s=float("inf"))
    content = digest(recorded(root, [BASELINE, odd]))
    assert json.loads(json.dumps(content, allow_nan=False))["trials"][1]["step_s"] is None
    assert math.isfinite(content["noise"])


def test_hostile_texts_pass_through_as_they_are(root: Path) -> None:
    content = digest(write_hostile(root))
    again = json.loads(json.dumps(content, allow_nan=False))
    assert len(again["trials"]) == 5
    assert all("\x1b" not in line and "\u202e" not in line for trial in again["trials"] for line in trial["log"])


def looks_cpu_s(root: Path, num_trials: int) -> tuple[float, float]:
    """Take the CPU seconds of the first look at a study of so many trials, and of the best later one."""
    study = recorded(root, TRIALS[:2])
    multiplied(root / "studies.db", num_trials)
    digester, times_s = StudyDigest(StudyReader(study.url, "s")), []
    for _ in range(3):
        start = time.process_time()
        assert len(digester.object()["trials"]) == num_trials
        times_s.append(time.process_time() - start)
    return times_s[0], min(times_s[1:])


@pytest.mark.slow
def test_a_first_look_grows_no_faster_than_the_study_and_a_later_one_is_cheaper(tmp_path: Path) -> None:
    looks_cpu_s(tmp_path / "warm-up", 10)
    few_s, _ = looks_cpu_s(tmp_path / "few", 100)
    many_s, later_s = looks_cpu_s(tmp_path / "many", 1000)
    assert many_s < 20 * few_s
    assert later_s < many_s
