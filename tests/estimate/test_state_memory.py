from __future__ import annotations

import numpy as np
import pytest

from tests.estimate.memory_cases import gpt, llama, memory_of, workload
from zenith_tune.describe.framework_catalog import load_framework
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimate.stage import Stage
from zenith_tune.estimate.state_memory import stage_params
from zenith_tune.layouts.layout_batch import LayoutBatch
from zenith_tune.units import GIB


def params_by_stage(model: ModelSpec, pp: int, **layout: int) -> float:
    """Count the parameters of all ranks of one tensor-parallel rank's pipeline."""
    batch = LayoutBatch.of(pp=[pp] * pp, gbs=64, **layout)
    stage = Stage.of(workload(model, "megatron"), batch, load_framework("megatron"), np.arange(float(pp)))
    found = stage_params(workload(model, "megatron"), stage)
    return float((found.dense + found.experts).sum())


@pytest.mark.parametrize(
    ("model", "pp", "published"), [(gpt("22b", 48, 6144, 64), 1, 45.5625), (gpt("175b", 96, 12288, 96), 8, 45.5625)]
)
def test_states_match_korthikanti_figure_1(model: ModelSpec, pp: int, published: float) -> None:
    parts = memory_of(model, "megatron-ci", {"tp": 8, "pp": pp, "gbs": 64}, stage=0.0).parts
    states = parts["weights"] + parts["gradients"] + parts["optimizer"]
    assert states[0] / GIB == pytest.approx(published, rel=0.05)


@pytest.mark.parametrize("name", ["llama3-70b", "mixtral-8x7b", "qwen3-30b-a3b"])
@pytest.mark.parametrize("pp", [1, 2, 4])
def test_stages_together_hold_the_parameters_of_the_model(name: str, pp: int) -> None:
    model = load_model(name)
    assert params_by_stage(model, pp) == pytest.approx(model.num_params, rel=0.002)


def test_experts_are_split_by_ep_and_etp_and_the_rest_by_tp() -> None:
    model = load_model("mixtral-8x7b")
    experts = model.num_moe_layers * model.num_experts * model.expert_params
    split = params_by_stage(model, 1, tp=4, ep=4, etp=2)
    assert split == pytest.approx((model.num_params - experts) / 4 + experts / 8, rel=0.005)


def test_zero_shards_optimizer_then_gradients_then_weights() -> None:
    model = llama(num_layers=32)
    found = memory_of(model, "deepspeed", {"dp": 8, "gbs": 8, "zero": [0, 1, 2, 3]})
    per_param = {name: found.parts[name] / model.num_params for name in ("weights", "optimizer")}
    assert per_param["optimizer"] == pytest.approx([12, 12 / 8, 12 / 8, 12 / 8], rel=0.01)
    assert per_param["weights"][:3] == pytest.approx([2, 2, 2], rel=0.01)
    assert per_param["weights"][3] < 1


def test_the_distributed_optimizer_shards_over_context_ranks_too() -> None:
    found = memory_of(llama(), "megatron", {"dp": 2, "cp": [1, 4], "gbs": 2, "zero": 1})
    assert found.parts["optimizer"][0] == pytest.approx(4 * found.parts["optimizer"][1])
