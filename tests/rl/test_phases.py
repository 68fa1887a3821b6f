"""What a log says of the phases of its steps, through the doctor and at the end of a study."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.rl.verl.test_preset import COMMAND, TRAINER
from zenith_rl.phases import Answers, Phase, findings, named
from zenith_tune import diagnose

Tune = Callable[..., subprocess.CompletedProcess[str]]
PHASES: Mapping[str, float] = {Phase.GENERATION: 24.0, Phase.UPDATE: 9.0, Phase.LOG_PROBS: 3.0}


def test_what_no_timer_shows_is_a_phase_too() -> None:
    names = {"gen": Phase.GENERATION, "values": Phase.CRITIC, "update_critic": Phase.CRITIC, "ref": Phase.REFERENCE}
    found = named({"gen": 5.0, "values": 1.0, "update_critic": 2.0, "step": 10.0}, names, 10.0)
    assert found == {"generation": 5.0, "critic": 3.0, "other": 2.0}
    assert named({"step": 10.0}, names, 10.0) == {}, "a log without timers has no phases"


def test_places_that_wait_for_the_longest_answer_are_counted() -> None:
    (first,) = findings(PHASES, Answers(mean=500, longest=1000), {})
    assert first.phase == "generation" and first.gain == pytest.approx(24 / 36 / 2)
    assert "50% of the engines' places" in first.finding and "500 tokens on the mean" in first.finding


def test_forward_passes_that_take_more_than_their_work_are_named() -> None:
    slow: Mapping[str, float] = {**PHASES, Phase.LOG_PROBS: 8.0}
    (first,) = findings(slow, Answers(), {Phase.LOG_PROBS: "larger ones"})
    assert (first.phase, first.change) == ("log-probs", "larger ones") and first.gain == pytest.approx((8 - 3) / 41)
    both = findings(slow, Answers(), {}, forward_passes=2)
    assert both == [], "two passes may take two thirds of the update"


def test_without_a_finding_the_longest_phase_has_its_settings() -> None:
    (only,) = findings(PHASES, Answers(), {Phase.GENERATION: "these"})
    assert (only.phase, only.change) == ("generation", "these") and only.gain == pytest.approx(2 / 3)
    assert findings({}, Answers(mean=1, longest=2), {}) == []


def test_what_is_neither_generation_nor_training_is_named_where_it_takes_long() -> None:
    slow: Mapping[str, float] = {**PHASES, Phase.REWARDS: 12.0, Phase.SYNC: 1.0}
    (first,) = findings(slow, Answers(), {Phase.REWARDS: "more workers"})
    assert (first.phase, first.change) == ("rewards", "more workers") and first.gain == pytest.approx(12 / 49)


STEP = (
    "step:{} - actor/pg_loss:0.01 - response_length/mean:410.5 - response_length/max:1024.0 - timing_s/gen:24.0 - "
    "timing_s/old_log_prob:4.5 - timing_s/update_actor:7.0 - perf/time_per_step:36.0 - perf/throughput:1700.0\n"
)


def test_the_doctor_says_where_a_step_goes_and_what_to_change(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("".join(map(STEP.format, range(1, 9))))
    found = diagnose(log)
    assert found.is_sound and found.measured.step_s == pytest.approx(36)
    assert found.measured.phases_s == pytest.approx({"generation": 24, "update": 7, "log-probs": 4.5, "other": 0.5})
    first, second = found.measured.phase_findings
    assert (first.phase, second.phase) == ("generation", "log-probs") and first.gain > second.gain
    assert "time: generation 67%, update 19%" in str(found) and first.finding in str(found)
    assert found.as_json()["measured"]["phase_findings"][0]["gain"] == first.gain
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"
    assert diagnose(log, command=command).measured.phases_s == found.measured.phases_s


def test_the_end_of_a_study_has_the_phases_before_and_after(zenithtune: Tune, tmp_path: Path) -> None:
    folder = tmp_path / "verl" / "trainer"
    folder.mkdir(parents=True)
    (folder / "main_ppo.py").write_text(TRAINER)
    command = COMMAND.replace("python3 -m verl.trainer.main_ppo", f"{sys.executable} {folder}/main_ppo.py")
    done = zenithtune("optimize", "--args", "levers=none", "--no-confirm", "--", *shlex.split(command))
    assert done.returncode == 0, done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("phases")]
    assert "generation 24.0 s -> 22.0 s" in line and "update 19.5 s -> 12.0 s" in line
