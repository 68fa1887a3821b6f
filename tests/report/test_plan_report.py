from __future__ import annotations

import pytest

from tests.plan_runs import LARGE, Plan, as_json, planning


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


@pytest.mark.parametrize(
    "arguments",
    [
        [*LARGE, "--pareto"],
        pytest.param(
            ["--model", "qwen3-235b-a22b", "--cluster", "h100x256", "--gbs", "510", "--seq", "4096"],
            marks=pytest.mark.slow,
        ),
        ["--model", "qwen3-30b-a3b", "--cluster", "h100x32", "--gbs", "64", "--seq", "4096", "--what-if", "mem=+60"],
        [
            "--model",
            "llama3-70b",
            "--cluster",
            "h100x64",
            "--gbs",
            "512",
            "--seq",
            "8192",
            "--explain",
            "TP4 PP4 SP Z1",
        ],
        ["--model", "llama3-405b", "--cluster", "h100x8", "--gbs", "64", "--seq", "8192"],
    ],
)
def test_no_line_is_wider_than_110_columns_or_ends_in_blanks(plan: Plan, arguments: list[str]) -> None:
    lines = plan(*arguments).out.splitlines()
    assert len(lines) > 5
    for line in lines:
        assert len(line) <= 110 and line == line.rstrip(), line


def test_a_layout_that_does_not_fit_says_the_same_in_a_plan_and_explained(plan: Plan) -> None:
    misses = as_json(plan(*LARGE, "--json"))["near_misses"]
    miss = next(miss for miss in misses if miss["obstacle"] == "memory")
    words = f"{miss['name']}: {miss['reason']}"
    for done in (plan(*LARGE), plan(*LARGE, "--explain", miss["name"])):
        assert words in " ".join(done.out.split())
    explained = as_json(plan(*LARGE, "--explain", miss["name"], "--json"))
    assert (explained["fits"], explained["verdict"]) == (False, miss["reason"])
    assert explained["estimate"]["step_s"] == miss["step_s"]
