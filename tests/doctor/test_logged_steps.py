"""The speed that other trainers' logs show."""

from __future__ import annotations

import json

import pytest

from tests.doctor.causes import logs
from tests.presets.mmengine.test_preset import log as of_mmengine
from tests.presets.nanotron.test_preset import OLD_STEP
from tests.presets.nanotron.test_preset import log as of_nanotron
from zenith_tune.doctor.logged_run import logged_steps
from zenith_tune.evaluators.steady import long_run
from zenith_tune.evaluators.steps import after_steps
from zenith_tune.study.trial_log import without_escapes


@pytest.mark.parametrize(
    ("log", "step_s"),
    [
        (logs.TRAINER, 2.0),
        (logs.TITAN, 1.5),
        (logs.BRIDGE, 1.25),
        (of_nanotron(OLD_STEP, ["4.02K", "1.35K", "1.35K", "1.35K"]), 1.35),
        (of_mmengine(), 1.0),
    ],
    ids=["trainer", "titan", "bridge", "nanotron", "mmengine"],
)
def test_the_steps_of_other_trainers_are_timed(log: str, step_s: float) -> None:
    found = logged_steps(without_escapes(log))
    assert found is not None
    assert long_run([step.seconds or 0.0 for step in found.steady]) == pytest.approx(step_s, rel=0.02)


def test_torchtitan_prints_memory() -> None:
    found = logged_steps(without_escapes(logs.TITAN))
    assert found is not None and found.peak_bytes == pytest.approx(12.34 * 2**30, rel=1e-6)


def test_a_summary_of_the_trainer_is_a_speed_where_it_shows_no_bar() -> None:
    found = logged_steps("{'train_runtime': '20.1', 'train_steps_per_second': '0.5', 'train_loss': '2.1'}\n")
    assert found is not None and [step.seconds for step in found.steps] == [2.0]


def test_the_lines_of_a_trials_hook_are_timed() -> None:
    events = ({"event": "step", "step": 1 + index, "passes": 1, "seconds": 900 + index / 4} for index in range(9))
    found = logged_steps("".join(f"zenithtune: {json.dumps(event)}\n" for event in events))
    assert found is not None and {step.seconds for step in found.steps} == {0.25}


@pytest.mark.parametrize("log", [logs.TRAINER, without_escapes(logs.TITAN), logs.BRIDGE, logs.steps()])
def test_what_stands_after_the_last_step_is_found(log: str) -> None:
    assert after_steps(log + "the end").endswith("the end") and "Step Time" not in after_steps(log + "the end")
    assert len(after_steps(log + "the end")) < 400


def test_a_log_without_steps_has_no_speed() -> None:
    assert logged_steps("hello\n") is None and after_steps("hello\n") == "hello\n"
