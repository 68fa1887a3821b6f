"""Logs of TRL's GRPO trainer."""

from __future__ import annotations

import json

import pytest

from zenith_rl.trl import read_steps
from zenith_tune.doctor.logged_run import logged_steps
from zenith_tune.hooks.process import PREFIX

LINE = "{{'loss': '0.01', 'completions/mean_length': '{}', 'completions/max_length': '{}', 'step_time': '{}'}}\n"


def log(*, phases: bool) -> str:
    """Return ten steps of ten seconds; answers are generated before every second one."""
    lines = []
    for number in range(1, 11):
        event = {"event": "step", "step": number, "passes": 1, "seconds": 10.0 * number}
        if phases and number % 2:
            event["phases"] = {"generation": 8.0, "rewards": 0.5}
        lines += [f"{PREFIX}{json.dumps(event)}\n", LINE.format("250.0", "1000.0", "10.0")]
    return "".join(lines)


def test_phases_are_means_over_steps_with_and_without_generation() -> None:
    logged = read_steps(log(phases=True))
    share = sum(bool(step.phases["training"] < 10) for step in logged.steady) / len(logged.steady)
    assert logged.phases["generation"] == pytest.approx(8 * share) and 0.3 < share < 0.7
    first = logged.findings[0]
    assert first.phase == "generation" and "75% of the engines' places" in first.finding
    assert logged_steps(log(phases=True)) == logged


def test_without_a_hook_steps_have_no_phases_and_other_logs_are_not_its_own() -> None:
    logged = read_steps(log(phases=False))
    assert len(logged.steps) == 9 and logged.phases == {} and not logged.findings
    assert read_steps("{'loss': '0.01', 'grad_norm': '1.0'}\n").steps == ()
