"""The examples of options."""

from __future__ import annotations

from zenith_tune.presets.megatron.options import dumped_options, dumped_sizes


def test_sizes_are_dumped_by_their_long_names() -> None:
    assert dumped_sizes({"tp": 2, "mbs": 4, "recompute": "none"}) == {
        "tensor_model_parallel_size": 2,
        "micro_batch_size": 4,
    }


def test_dumped_options_leave_the_split_out() -> None:
    assert dumped_options({"--recompute-method": None, "--sequence-parallel": True}, tp=2) == {
        "sequence_parallel": True
    }
