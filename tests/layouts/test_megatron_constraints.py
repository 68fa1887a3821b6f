from __future__ import annotations

from zenith_tune.layouts import megatron_constraints as rules


def test_405b_goes_into_sixteen_stages_with_embedding_and_loss_counted() -> None:
    assert rules.check_pipeline_split(126, pp=16, vp=1) is None
    assert rules.check_pipeline_split(126, pp=16, vp=4) is None
    assert rules.check_pipeline_split(126, pp=2, vp=9) is None
    assert rules.check_pipeline_split(126, pp=16, vp=8) is not None, "the first chunk would be empty"


def test_layers_that_go_neither_way_are_refused_with_both_counts() -> None:
    assert rules.check_pipeline_split(61, pp=2, vp=1) == (
        "num_layers, or num_layers+2 with embedding and loss counted, must be divisible by pp*vp, "
        "but neither 61 nor 63 gives whole chunks for 2*1 = 2"
    )


def test_layers_that_go_neither_way_are_laid_out_where_a_layout_can_be_written() -> None:
    for pp, vp in [(2, 1), (16, 1), (8, 4), (4, 4), (61, 1), (3, 20)]:
        assert rules.check_pipeline_split(61, pp=pp, vp=vp, layout_strings=True) is None
    assert rules.check_pipeline_split(61, pp=16, vp=4, layout_strings=True) == (
        "num_layers must be at least pp*vp, but 61 < 16*4 = 64"
    )
    assert "must be divisible" in str(rules.check_pipeline_split(61, pp=1, vp=2, layout_strings=True))


def test_an_interleaved_pipeline_needs_ranks_and_whole_groups_of_micro_batches() -> None:
    assert rules.check_interleaving(2, pp=2) is None
    assert rules.check_interleaving(2, pp=1) == "vp above 1 needs pp above 1, but got vp 2 and pp 1"
    assert rules.check_interleaved_batches(6, pp=4, vp=1) is None
    assert rules.check_interleaved_batches(8, pp=4, vp=2) is None
    assert rules.check_interleaved_batches(6, pp=4, vp=2) == (
        "m must be divisible by pp when vp is above 1, but 6 % 4 != 0"
    )


def test_a_sequence_is_cut_twice_per_context_rank_and_once_per_tensor_rank() -> None:
    assert rules.check_context_chunks(123, cp=1) is None
    assert rules.check_context_chunks(124, cp=4) == "seq_len must be divisible by 2*cp, but 124 % (2*4 = 8) != 0"
    assert rules.check_sequence_chunks(4098, cp=1, tp=4, sp=False) is None
    assert "4098 % (1*4 = 4)" in str(rules.check_sequence_chunks(4098, cp=1, tp=4, sp=True))


def test_sequence_parallelism_stands_on_tensor_parallelism_and_experts_on_both() -> None:
    assert rules.check_sequence_parallel(True, tp=2) is None
    assert rules.check_sequence_parallel(True, tp=1) is not None
    assert rules.check_expert_sequence_parallel(0, tp=2, sp=False) is None
    assert rules.check_expert_sequence_parallel(8, tp=2, sp=True) is None
    assert rules.check_expert_sequence_parallel(8, tp=2, sp=False) is not None


def test_experts_are_cut_by_tensor_parallelism_only_where_they_can_be() -> None:
    assert rules.check_expert_tensor_bias(True, etp=1) is None
    assert rules.check_expert_tensor_bias(True, etp=2) is not None
    assert rules.check_expert_tensor_experts(0, etp=2) == "etp must be 1 for a model without experts, but got 2"
    assert rules.check_expert_ffn(2880, etp=7) is not None
    assert rules.check_ffn(28672, tp=8) is None


def test_only_full_recomputation_takes_layers_and_no_more_than_a_chunk_has() -> None:
    assert rules.check_recompute_takes_layers("selective", num_layers=0) is None
    assert rules.check_recompute_takes_layers("selective", num_layers=1) is not None
    assert rules.check_recompute_in_chunk("full/block", num_layers=3, chunk=8) is None, "it need not divide"
    assert rules.check_recompute_in_chunk("full/block", num_layers=9, chunk=8) is not None
    assert rules.check_recompute_in_chunk("full/uniform", num_layers=0, chunk=8) is not None


def test_gradients_and_weights_are_not_sharded_under_a_pipeline() -> None:
    assert rules.check_zero_pipeline(3, pp=1) is None
    assert rules.check_zero_pipeline(2, pp=2) is not None
    assert rules.check_zero_stage(2, framework="megatron", stages=(0, 1)) == (
        "zero must be one of 0, 1 with megatron, but got 2"
    )
