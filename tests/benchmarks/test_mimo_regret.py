from __future__ import annotations

import sys

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

from mimo_regret import JOBS, bound_preset, layout_times, layouts_of, play

JOB = JOBS["narrow, 2 ranks"]


def test_a_busy_round_changes_no_layout_s_time_relative_to_others() -> None:
    steps = {"a": 0.1, "b": 0.2, "c": 0.4}
    rows = [
        {"round": number, "layout": name, "steps_s": [load * step_s, load * step_s]}
        for number, load in enumerate((1.0, 5.0, 1.2))
        for name, step_s in steps.items()
    ]
    times, noise = layout_times(rows)
    assert noise == pytest.approx(0.0)
    assert times["b"] / times["a"] == pytest.approx(2.0) and times["c"] / times["b"] == pytest.approx(2.0)


def test_a_plan_that_is_right_has_no_regret_and_one_that_is_not_is_corrected() -> None:
    plan = {each.candidate.label: each.step_s for each in bound_preset(JOB).space.plan.ranked}
    assert set(plan) == {at.label for at in layouts_of(JOB)}
    right = play(JOB, plan)
    assert right["regret"]["first 2"] == right["regret"]["at its end"] == 0.0
    assert right["rank correlation"] == 1.0 and right["best on paper is pick"] in (1, 2)
    best = min(plan, key=lambda label: plan[label])
    wrong = play(JOB, {label: step_s * (1.5 if label == best else 1.0) for label, step_s in plan.items()})
    assert wrong["regret"]["first 1"] >= wrong["regret"]["at its end"]
