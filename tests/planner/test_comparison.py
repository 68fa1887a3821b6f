"""One job on several clusters."""

from __future__ import annotations

import pytest

import zenith_tune
from tests.plan_runs import Plan, as_json, planning

JOB = ("--model", "llama3-8b", "--gbs", "64", "--seq", "8192")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


def test_fastest_and_cheapest_are_those_of_single_plans(plan: Plan) -> None:
    prices = ("--tokens", "1T", "--price", "h100=2,h200=9,b200=5")
    shown = as_json(plan(*JOB, "--compare", "h100x8,h200x8,b200x8", *prices, "--json"))
    alone = [as_json(plan(*JOB, "--cluster", name, *prices, "--json")) for name in ("h100x8", "h200x8", "b200x8")]
    assert [each["cost"] for each in shown["compared"]] == [each["cost"] for each in alone]
    assert [each["best"] for each in shown["compared"]] == [each["best"][0] for each in alone]
    seconds, dollars = ([each["cost"][key] for each in alone] for key in ("seconds", "usd"))
    names = ["h100x8", "h200x8", "b200x8"]
    assert shown["fastest"] == names[seconds.index(min(seconds))] == "b200x8"
    assert shown["cheapest"] == names[dollars.index(min(dollars))] != "h200x8"


def test_the_answer_is_ahead_of_the_table(plan: Plan) -> None:
    lines = plan(*JOB, "--compare", "h100x8,b200x8", "--tokens", "1T").out.splitlines()
    assert lines[1].startswith("fastest:") and "b200x8" in lines[1] and lines[2].startswith("cheapest:")
    assert all(len(line) <= 110 for line in lines)


def test_a_price_that_is_not_known_is_answered_by_the_one_that_would_be_cheapest(plan: Plan) -> None:
    clusters = ("--compare", "h100x8,gb200x8", "--tokens", "1T")
    below = as_json(plan(*JOB, *clusters, "--json"))["cheapest_below_usd_per_gpu_hour"]
    for factor, cheapest in ((0.99, "gb200x8"), (1.01, "h100x8")):
        price = f"h100=3.85,gb200={below['gb200x8'] * factor}"
        assert as_json(plan(*JOB, *clusters, "--price", price, "--json"))["cheapest"] == cheapest


def test_a_cluster_on_which_nothing_fits_is_shown_as_such(plan: Plan) -> None:
    shown = as_json(plan(*JOB, "--cluster", "rtx-4090x1", "--compare", "h100x8", "--json"))
    assert shown["compared"][0]["best"] is None and shown["fastest"] == shown["cheapest"] == "h100x8"
    assert plan(*JOB, "--compare", "rtx-4090x1,l4x1").code == 1


def test_python_compares_as_the_command_line_does(plan: Plan) -> None:
    shown = as_json(plan(*JOB, "--compare", "h100,b200", "--gpus", "8", "--json"))
    found = zenith_tune.compare_clusters("llama3-8b", ["h100x8", "b200x8"], gbs=64, seq=8192)
    assert found.fastest is not None and found.fastest.cluster.name == shown["fastest"]
    assert [cost and cost.dollars for cost in found.costs] == [each["cost"]["usd"] for each in shown["compared"]]


@pytest.mark.parametrize(
    "wrong",
    [
        ("--compare", "h100x8"),
        ("--compare", "h100x8,8xH100"),
        ("--compare", ""),
        ("--compare", "h100x8,h300x8"),
        ("--compare", "h100x8,h200x8", "--explain", "TP8"),
        ("--compare", "h100x8,h200x8", "--emit", "megatron"),
        ("--compare", "h100x8,h200x8", "--tokens", "0"),
    ],
)
def test_a_mistake_is_one_line(plan: Plan, wrong: tuple[str, ...]) -> None:
    done = plan(*JOB, *wrong)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1
