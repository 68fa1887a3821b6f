from __future__ import annotations

import numpy as np
import pytest

from tests.estimates.memory_cases import gpt, llama, memory_of, workload
from zenith_tune.describe.framework_spec import load_framework
from zenith_tune.describe.model_catalog import load_model
from zenith_tune.describe.model_spec import ModelSpec
from zenith_tune.estimates.stage import Stage
from zenith_tune.estimates.state_memory import stage_params
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


def test_down_projections_of_latent_attention_are_whole_on_every_tensor_parallel_rank() -> None:
    model = load_model("deepseek-v2-lite")
    mla = model.latent_attention
    assert mla is not None
    # Lite projects the query at once: only keys and values go down first.
    down = model.hidden * (mla.kv_rank + mla.qk_rope_dim) + mla.kv_rank
    assert model.whole_attention_params == down
    at = workload(model, "megatron")
    split, unsplit = (params_by_stage(model, 1, tp=tp, ep=1, etp=1) for tp in (2, 1))
    halved = (at.attention_params - down + at.shared_params) / 2
    dense_halved = (at.attention_params - down + at.dense_mlp_params) / 2
    layers = model.num_moe_layers * halved + model.num_dense_layers * dense_halved
    assert unsplit - split == pytest.approx(layers + model.embedding_params, rel=1e-6)


def test_the_stage_of_multi_token_prediction_has_its_layer_a_join_and_an_embedding() -> None:
    one, none = (params_by_stage(llama(num_mtp_layers=number), 2) for number in (1, 0))
    model = llama()
    join = 2 * model.hidden**2 + 3 * model.norm_params
    assert one - none == model.dense_layer_params + join + model.embedding_params


def test_one_stage_alone_has_one_embedding_for_multi_token_prediction_too() -> None:
    one, none = (params_by_stage(llama(num_mtp_layers=number), 1) for number in (1, 0))
    model = llama()
    assert one - none == model.dense_layer_params + 2 * model.hidden**2 + 3 * model.norm_params


@pytest.mark.parametrize("pp", [1, 2])
def test_a_tied_table_of_the_last_stage_serves_multi_token_prediction_as_well(pp: int) -> None:
    one, none = (params_by_stage(llama(num_mtp_layers=number, tied_embeddings=True), pp) for number in (1, 0))
    model = llama()
    assert one - none == model.dense_layer_params + 2 * model.hidden**2 + 3 * model.norm_params


def test_multi_token_prediction_computes_logits_twice() -> None:
    layout = {"pp": 2, "tp": 2, "mbs": 4, "gbs": 64, "recompute": 2, "recompute_layers": 1}
    found = [memory_of(llama(num_mtp_layers=number, vocab=262144), "megatron", layout, stage=1.0) for number in (0, 1)]
    assert found[1].parts["logits"] == pytest.approx(2 * found[0].parts["logits"])
    assert found[1].parts["activations"] > found[0].parts["activations"]


@pytest.mark.parametrize("framework", ["deepspeed", "fsdp", "hf-accelerate"])
def test_gradients_of_earlier_micro_batches_wait_through_the_next_forward_pass(framework: str) -> None:
    model = load_model("llama3-8b")
    once, many = (
        memory_of(model, framework, {"dp": 8, "zero": [0, 1, 2, 3], "mbs": 4, "gbs": 32 * steps}).parts
        for steps in (1, 8)
    )
    whole = load_framework(framework).gradient_bytes * model.num_params
    assert many["gradients"] == pytest.approx([whole, whole, whole / 8, whole / 8], rel=0.01)
    assert once["logits"][3] > 0 and once["gradients"][3] == 0
