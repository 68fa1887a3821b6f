"""Ways to train on small GPUs, with the memory of each by the planner's arithmetic."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.command_runs import running
from tests.planner.planners import planner
from zenith_tune.describe.model_catalog import catalog_model
from zenith_tune.planner.training_way import adapter_params
from zenith_tune.planner.ways_out import WayOut, way_lines, ways_out


def ways(model: str = "llama2-7b", cluster: str = "rtx-4090x4", seq_len: int = 2048) -> dict[str, WayOut]:
    return {way.name: way for way in ways_out(planner(model, cluster, seq_len=seq_len))}


def test_7b_fits_on_four_gpus_of_24_gb_by_every_way_but_sharding_alone() -> None:
    found = ways()
    assert {name for name, way in found.items() if not way.fits} == {"sharding"}
    assert set(found) == {"sharding", "8-bit Adam", "pure bf16", "optimizer offload", "LoRA", "QLoRA"}


def test_states_differ_by_their_bytes_per_parameter() -> None:
    found, params = ways(cluster="h100x1"), catalog_model("llama2-7b").num_params

    def state(name: str) -> float:
        parts = found[name].planned.memory_parts
        return sum(parts[part] for part in ("weights", "gradients", "optimizer")) / params

    kept = {"sharding": 16, "8-bit Adam": 10, "pure bf16": 8, "optimizer offload": 4}
    for name, bytes_per_parameter in kept.items():
        assert state(name) == pytest.approx(bytes_per_parameter, rel=0.01)
    assert 2 < state("LoRA") < 2.2 and 0.5 < state("QLoRA") < 0.8
    assert found["optimizer offload"].host_bytes == 12 * params


def test_adapters_of_llama_2_7b_are_counted_as_peft_does() -> None:
    """Compare with r (in + out) of q, k, v, o (4096 to 4096) and gate, up, down (4096 to 11008) in 32 layers."""
    assert adapter_params(catalog_model("llama2-7b")) == 16 * 32 * (4 * 8192 + 3 * (4096 + 11008)) == 39_976_960


@pytest.mark.parametrize(("model", "cluster"), [("llama2-70b", "l40sx1"), ("llama2-13b", "rtx-4090x1")])
def test_qlora_alone_fits_the_largest_models_on_one_gpu(model: str, cluster: str) -> None:
    """Dettmers et al. 2023: QLoRA trains 65B on one GPU of 48 GB, with sequences of 512."""
    assert [name for name, way in ways(model, cluster, seq_len=512).items() if way.fits] == ["QLoRA"]


@pytest.mark.parametrize("command", ["guide", "doctor"])
def test_where_nothing_fits_the_ways_are_listed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    run = running(command, capsys)
    words = ["torchrun", "--nproc-per-node", "4", "pretrain_gpt.py", "--seq-length", "2048", "--bf16"]
    sizes = ["--micro-batch-size", "1", "--global-batch-size", "4"]
    arguments = {
        "guide": ["7B", "--gpus", "4", "--gpu", "rtx-4090"],
        "doctor": ["--model", "llama2-7b", "--cluster", "rtx-4090x4", "--", *words, *sizes],
    }[command]
    done = run("--json", *arguments)
    shown: dict[str, Any] = json.loads(done.out)
    assert done.code == 1 and len(shown["ways_out"]) == 6
    text = run(*arguments).out
    assert [way["how"] in text for way in shown["ways_out"]] == [True] * 3 + [False] * 3


def test_ways_that_fit_come_first_and_where_none_fits_the_nearest() -> None:
    found = ways("llama3-8b", "rtx-4090x1")
    assert [(name, way.fits) for name, way in found.items()][:3] == [
        *(("LoRA", True), ("QLoRA", True), ("optimizer offload", False))
    ]
    assert len(list(way_lines(found.values()))) == 1 + 2
    nearest = list(ways("llama3-70b", "rtx-4090x1").values())
    assert not any(way.fits for way in nearest) and len(list(way_lines(nearest))) == 1 + 3
    assert [way.planned.memory_bytes for way in nearest] == sorted(way.planned.memory_bytes for way in nearest)
