"""What a training takes: days, GPU-hours and money."""

from __future__ import annotations

import pytest

import zenith_tune
from tests.plan_runs import LLAMA, Plan, as_json, planning
from zenith_tune import UsageError
from zenith_tune.describe.gpu_catalog import public_price
from zenith_tune.planner.cost import TrainingCost


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


def test_gpu_hours_are_near_those_of_llama_3_405b() -> None:
    """Compare with 30.84 million GPU-hours for 15.6T tokens (model card of Llama 3.1), restarts included.

    Their MFU was 41% (Llama Team 2024, arXiv 2407.21783, table 4: 16,384 GPUs), and the planner finds better layouts.
    More than 90% of the time was training (section 3.3.4).
    """
    cost = zenith_tune.plan("llama3-405b", "h100x16384", gbs=2048, seq=8192, top=1).cost("15.6T")
    assert cost is not None and 0.7 < cost.gpu_hours / 30.84e6 < 1.0
    assert cost.interval_s[1] * 16_384 / 3600 > 0.9 * 30.84e6


def test_a_cost_is_the_arithmetic_of_the_best_layout(plan: Plan) -> None:
    shown = as_json(plan(*LLAMA, "--tokens", "1T", "--price", "2.5", "--json"))
    cost, best = shown["cost"], shown["best"][0]
    assert cost["seconds"] == pytest.approx(1e12 / best["tokens_per_s"])
    assert cost["days"] == pytest.approx(cost["seconds"] / 86_400)
    assert cost["gpu_hours"] == pytest.approx(cost["seconds"] * 8 / 3600)
    assert cost["usd"] == pytest.approx(cost["gpu_hours"] * 2.5) and not cost["price_is_public"]
    num_steps = 1e12 / (64 * 8192)
    assert cost["interval_90_s"] == pytest.approx([num_steps * end for end in best["step_interval_90_s"]])
    same = zenith_tune.plan("llama3-8b", "h100", gpus=8, gbs=64, seq=8192).cost(1e12, price=2.5)
    assert same is not None and same.dollars == pytest.approx(cost["usd"])


def test_the_answer_comes_first(plan: Plan) -> None:
    title, best, cost, *rest = plan(*LLAMA, "--tokens", "300B", "--price", "h100=2.5,h200=3.5").out.splitlines()
    assert "llama3-8b" in title and best.startswith("best: ") and "GiB" in best
    assert all(part in cost for part in ("300B tokens", "days", "GPU-hours", "$2.50")) and rest[0] == ""
    changed = plan(*LLAMA, "--what-if", "gpus=16", "--tokens", "300B").out
    assert changed.index("gain: ") < changed.index("step time") and changed.count("300B tokens") == 2


def test_an_emitted_file_is_named_before_the_tables(plan: Plan, tmp_path: object) -> None:
    text = plan(*LLAMA, "--emit", "megatron", "--output", str(tmp_path)).out
    assert text.index("written: ") < text.index("step time")


def test_a_price_is_public_where_none_is_given(plan: Plan) -> None:
    cost = as_json(plan(*LLAMA, "--tokens", "300B", "--json"))["cost"]
    assert cost["usd_per_gpu_hour"] == public_price("h100") and cost["price_is_public"]
    unknown = ("--model", "llama3-8b", "--cluster", "h800x8", "--gbs", "64", "--seq", "4096", "--tokens", "300B")
    assert as_json(plan(*unknown, "--json"))["cost"]["usd"] is None
    assert "--price" in plan(*unknown).out
    assert "cost" not in as_json(plan(*LLAMA, "--json"))


def test_a_layout_that_is_explained_has_its_cost(plan: Plan) -> None:
    explain = ("--explain", "TP8 mbs1 SP", "--tokens", "300B")
    shown = as_json(plan(*LLAMA, *explain, "--json"))
    assert shown["cost"]["seconds"] == pytest.approx(300e9 / shown["estimate"]["tokens_per_s"])
    assert "300B tokens" in plan(*LLAMA, *explain).out


@pytest.mark.parametrize(
    "wrong",
    [
        ("--tokens", "0"),
        ("--tokens", "1Q"),
        ("--tokens", "nan"),
        ("--tokens", "1e40"),
        ("--price", "nan"),
        ("--price", "0"),
        ("--price", "cheap"),
        ("--price", "h10=3"),
        ("--price", "h100=3,h100=4"),
        ("--cluster", "h100x8", "--gpus", "16"),
        ("--cluster", "h100", "--gpus", "12"),
    ],
)
def test_a_mistake_is_one_line(plan: Plan, wrong: tuple[str, ...]) -> None:
    done = plan(*LLAMA, *wrong)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1


@pytest.mark.parametrize("tokens", [0, float("nan"), -5, "many"])
def test_a_number_that_is_none_is_refused_from_python_too(tokens: float | str) -> None:
    with pytest.raises(UsageError):
        zenith_tune.plan("llama3-8b", "h100x8", gbs=64, seq=8192, top=1).cost(tokens)


def test_a_training_costs_its_gpu_hours() -> None:
    cost = TrainingCost(
        gpu="h100",
        num_gpus=64,
        price=2.5,
        is_public=False,
        tokens=1e12,
        seconds=864e3,
        interval_s=(7e5, 9e5),
    )
    assert cost.days == 10.0
    assert cost.gpu_hours == 15360.0
    assert cost.dollars == 38400.0
