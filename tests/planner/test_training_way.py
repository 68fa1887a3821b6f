"""Adapters, smaller optimizers, states in the host's memory, and a reference model."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

import zenith_tune
from tests.plan_runs import Plan, as_json, planning
from tests.planner.planners import planner
from zenith_tune import UsageError
from zenith_tune.describe.model_catalog import catalog_model
from zenith_tune.planner.training_way import TrainingWay
from zenith_tune.planner.ways_out import ways_out

SMALL = ("--model", "llama3-8b", "--cluster", "rtx-4090x1", "--gbs", "8", "--seq", "2048")
WAYS: dict[str, dict[str, Any]] = {
    "LoRA": {"lora": True},
    "QLoRA": {"qlora": True},
    "8-bit Adam": {"optimizer": "adam-8bit"},
    "pure bf16": {"optimizer": "adam-bf16"},
    "optimizer offload": {"offload": True},
}
STATES = ("weights", "gradients", "optimizer")


@pytest.fixture
def plan(capsys: pytest.CaptureFixture[str]) -> Plan:
    return planning(capsys)


@pytest.mark.parametrize(("way", "published"), [("lora", 16e9), ("qlora", 6e9)])
def test_7b_needs_about_what_llama_factory_publishes(way: str, published: float) -> None:
    """Compare with the hardware table of its README: 7B takes 16 GB by LoRA, 6 by QLoRA of 4 bits."""
    options: dict[str, Any] = {"gbs": 1, "seq": 512, way: True}
    one = zenith_tune.estimate("llama2-7b", "h200x1", "mbs1 full/uniform1", **options)
    without_context = one.memory_bytes - one.memory_parts["context"]
    assert 0.75 * published < without_context < 1.25 * published


@pytest.mark.parametrize("name", WAYS)
def test_a_plan_and_the_ways_out_have_one_arithmetic(name: str) -> None:
    way = next(way for way in ways_out(planner("llama2-7b", "rtx-4090x4", seq_len=2048)) if way.name == name)
    job: dict[str, Any] = {"gbs": 4, "seq": 2048, **WAYS[name]}
    same = zenith_tune.estimate("llama2-7b", "rtx-4090x4", way.planned.layout, **job)
    assert (same.memory_parts, same.step_s) == (way.planned.memory_parts, way.planned.step_s)


def test_what_does_not_fit_names_the_options_that_do(plan: Plan) -> None:
    shown = plan(*SMALL, "--json")
    assert shown.code == 1 and '"options": "--lora"' in shown.out
    text = plan(*SMALL).out
    [command] = re.findall(r"^plan by the first of them: zenithtune plan (.*)$", text, re.MULTILINE)
    assert command.split() == [*SMALL, "--lora"] and plan(*command.split()).code == 0
    assert text.index("--qlora") < text.index("nearest to fitting")
    for option in ("--lora", "--qlora"):
        assert as_json(plan(*SMALL, option, "--json"))["best"]


def test_a_plan_says_which_framework_a_way_is_planned_for() -> None:
    job: dict[str, Any] = {"gbs": 64, "seq": 4096, "top": 1}
    assert any("fsdp" in line for line in zenith_tune.plan("llama3-8b", "h100x8", lora=True, **job).assumptions)
    assert not any("fsdp" in line for line in zenith_tune.plan("llama3-8b", "h100x8", **job).assumptions)


def test_an_offloaded_optimizer_takes_the_time_that_was_measured() -> None:
    """Compare with 64 / 2.05 s of LLaMA-7B on eight A800 (gist.github.com/chenyaofo d4cd6a20), within a factor of 2."""
    job: dict[str, Any] = {"gbs": 64, "seq": 4096, "framework": "deepspeed", "offload": True}
    one = zenith_tune.estimate("llama2-7b", "a800x8", "Z3 mbs2 full/uniform1", **job)
    assert 0.5 < one.step_s / (64 / 2.05) < 2
    params = catalog_model("llama2-7b").num_params
    assert one.time_parts["optimizer"] == pytest.approx(1.5e-9 * params, rel=0.01) and not one.memory_parts["optimizer"]


def test_adapters_leave_out_the_gradients_of_frozen_weights() -> None:
    job: dict[str, Any] = {"gbs": 8, "seq": 2048, "framework": "fsdp"}
    whole, lora = (zenith_tune.estimate("llama2-7b", "h200x1", "mbs1", **job, lora=on) for on in (False, True))
    # Frozen weights take 4 operations in place of 6, and less traffic; attention stays.
    assert 0.95 * 4 / 6 < lora.time_parts["compute"] / whole.time_parts["compute"] < 0.75
    assert lora.mfu < 1.05 * whole.mfu


def test_a_reference_model_is_a_copy_and_a_forward_pass() -> None:
    job: dict[str, Any] = {"gbs": 16, "seq": 4096}
    plain, dpo = (zenith_tune.estimate("llama2-7b", "h200x8", "Z1 mbs1", **job, reference=on) for on in (False, True))
    params = catalog_model("llama2-7b").num_params
    assert dpo.memory_parts["weights"] - plain.memory_parts["weights"] == pytest.approx(2 * params, rel=0.01)
    assert dpo.time_parts["reference"] == pytest.approx(plain.time_parts["compute"] / 3)
    assert dpo.time_parts["compute"] == pytest.approx(plain.time_parts["compute"])
    assert sum(dpo.time_parts.values()) == pytest.approx(dpo.step_s)


def test_adapters_are_their_own_reference_when_they_are_switched_off() -> None:
    lora: dict[str, Any] = {"gbs": 16, "seq": 4096, "lora": True}
    plain, dpo = (zenith_tune.estimate("llama2-7b", "h200x8", "Z0 mbs1", **lora, reference=on) for on in (False, True))
    assert dpo.memory_parts["weights"] == plain.memory_parts["weights"] and dpo.step_s > 1.2 * plain.step_s


def test_a_sharded_copy_is_shared_by_the_ranks() -> None:
    at = planner("llama2-7b", "h200x8", seq_len=2048)
    job: dict[str, Any] = {"gbs": 16, "seq": 2048, "framework": "fsdp"}
    parts = [
        zenith_tune.estimate("llama2-7b", "h200x8", "Z3 mbs1", **job, reference=on).memory_parts for on in (False, True)
    ]
    assert parts[1]["weights"] - parts[0]["weights"] == pytest.approx(2 * at.model.num_params / 8, rel=0.01)


def test_a_plan_says_how_it_trains(plan: Plan) -> None:
    done = plan(*SMALL, "--qlora", "--reference")
    assert "QLoRA, reference model" in done.out.splitlines()[0] and done.out.count("assumed: ") == 4
    shown = as_json(plan(*SMALL, "--qlora", "--reference", "--json"))
    assert (shown["way"], shown["reference"], shown["framework"]) == ("QLoRA", True, "fsdp")


def test_experts_without_a_dense_layer_have_adapters_of_attention() -> None:
    model = replace(catalog_model("qwen3-30b-a3b"), ffn_hidden=0)
    assert zenith_tune.plan(model, "h100x8", gbs=8, seq=2048, lora=True).best


@pytest.mark.parametrize(
    "wrong",
    [
        ("--lora", "--qlora"),
        ("--offload", "--optimizer", "adam-8bit"),
        ("--optimizer", "sgd"),
        ("--lora", "--emit", "accelerate"),
    ],
)
def test_a_mistake_is_one_line(plan: Plan, wrong: tuple[str, ...]) -> None:
    done = plan(*SMALL, *wrong)
    assert done.code == 2 and done.out == "" and done.err.count("\n") == 1


def test_an_optimizer_that_is_none_is_refused_from_python_too() -> None:
    with pytest.raises(UsageError):
        zenith_tune.plan("llama3-8b", "h100x8", gbs=8, seq=2048, optimizer="sgd")


def test_a_way_to_train_has_a_name_and_options() -> None:
    assert TrainingWay(qlora=True).name == "QLoRA"
    assert TrainingWay(optimizer="adam-8bit").options == "--optimizer adam-8bit"
    assert TrainingWay().is_plain
