from __future__ import annotations

import pytest

from zenith_tune.layouts import constraints


def test_the_documented_world_counts_every_size_as_a_factor() -> None:
    assert constraints.check_documented_world(8, tp=4, pp=2, cp=1, ep=1, etp=1) is None
    assert constraints.check_documented_world(8, tp=4, pp=2, cp=2, ep=1, etp=1) == (
        "n_gpus must be divisible by tp*pp*cp*ep*etp, but 8 % (4*2*2*1*1 = 16) != 0"
    )
    assert constraints.check_documented_world(8, tp=4, pp=1, cp=1, ep=8, etp=1) == (
        "n_gpus must be divisible by tp*pp*cp*ep*etp, but 8 % (4*1*1*8*1 = 32) != 0"
    )


def test_megatrons_world_is_factored_twice() -> None:
    assert constraints.check_dense_world(8, tp=4, pp=1, cp=1) is None
    assert constraints.check_expert_world(8, etp=1, ep=8, pp=1) is None
    assert constraints.check_dense_world(8, tp=3, pp=1, cp=1) == (
        "n_gpus must be divisible by tp*pp*cp, but 8 % (3*1*1 = 3) != 0"
    )
    # Megatron says: world_size (8) is not divisible by expert_tensor_model_pipeline_parallel size (16)
    assert constraints.check_expert_world(8, etp=4, ep=4, pp=1) == (
        "n_gpus must be divisible by etp*ep*pp, but 8 % (4*4*1 = 16) != 0"
    )


def test_the_batch_is_split_over_data_parallel_ranks_and_micro_batches() -> None:
    assert constraints.check_batch(16, dp=8, mbs=2) is None
    assert constraints.check_batch(16, dp=8, mbs=4) == "gbs must be divisible by dp*mbs, but 16 % (8*4 = 32) != 0"


def test_expert_tensor_parallelism_stays_within_tensor_parallelism() -> None:
    assert constraints.check_expert_tensor(2, tp=2) is None
    assert constraints.check_expert_tensor(4, tp=2) == "etp must not exceed tp, but 4 > 2"


def test_query_groups_are_a_multiple_of_tp_or_in_newer_versions_a_divisor() -> None:
    assert constraints.check_query_groups(4, tp=2) is None
    assert constraints.check_query_groups(4, tp=8) == "num_query_groups must be divisible by tp, but 4 % 8 != 0"
    assert constraints.check_query_groups_either_way(4, tp=2) is None
    assert constraints.check_query_groups_either_way(4, tp=8) is None
    assert constraints.check_query_groups_either_way(6, tp=4) == (
        "num_query_groups must be a multiple or a divisor of tp, but got 6 and 4"
    )


def test_heads_layers_and_experts_are_split_evenly() -> None:
    assert constraints.check_attention_heads(32, tp=8) is None
    assert constraints.check_attention_heads(12, tp=8) == "num_attention_heads must be divisible by tp, but 12 % 8 != 0"
    assert constraints.check_layers(48, pp=4) is None
    assert constraints.check_layers(30, pp=4) == "num_layers must be divisible by pp, but 30 % 4 != 0"
    assert constraints.check_experts(8, ep=4) is None
    assert constraints.check_experts(6, ep=4) == "num_experts must be divisible by ep, but 6 % 4 != 0"


def test_a_model_without_experts_has_no_expert_parallelism() -> None:
    assert constraints.check_experts(None, ep=1) is None
    assert constraints.check_experts(None, ep=2) == "ep must be 1 for a model without experts, but got 2"


def test_recomputed_layers_divide_a_stage() -> None:
    assert constraints.check_recompute_layers(3, num_layers=48, pp=4) is None
    assert constraints.check_recompute_layers(3, num_layers=32, pp=4) == (
        "recompute_num_layers must divide num_layers/pp, but 32/4 = 8 and 8 % 3 != 0"
    )


def test_a_vision_language_model_is_recomputed_fully_and_uniformly() -> None:
    assert constraints.check_vision_granularity("full") is None
    assert "must be full" in str(constraints.check_vision_granularity("selective"))
    assert constraints.check_vision_method("uniform") is None
    assert "must be uniform" in str(constraints.check_vision_method("block"))


@pytest.mark.parametrize(("method", "num_layers"), [("block", 1), ("uniform", 2), ("block", 4)])
def test_selective_recomputation_stands_in_the_space_once(method: str, num_layers: int) -> None:
    assert constraints.check_selective_once("uniform", 1, first_method="uniform", first_num_layers=1) is None
    reason = constraints.check_selective_once(method, num_layers, first_method="uniform", first_num_layers=1)
    assert f"{method} and {num_layers} are the same run under another name as uniform and 1" in str(reason)
