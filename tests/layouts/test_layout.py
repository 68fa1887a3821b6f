"""The examples of layout."""

from __future__ import annotations

from zenith_tune.layouts.layout import Layout, divisors, layout_name, layout_of, named_axes, short_values


def test_a_layout_is_named_without_sizes_of_one() -> None:
    assert (
        layout_name(Layout(num_gpus=64, tp=8, pp=4, zero=1, sequence_parallel=True, recompute="selective"))
        == "TP8 PP4 DP2 Z1 mbs1 SP selective"
    )


def test_a_layout_is_made_of_short_names() -> None:
    assert layout_of({"tp": 2, "sp": 1}, num_gpus=8, global_batch=16).sequence_parallel


def test_short_values_have_the_data_parallel_size() -> None:
    assert short_values(Layout(num_gpus=8, tp=2))["dp"] == 4


def test_a_message_names_axes_of_a_layout() -> None:
    assert named_axes("number of query groups (4) must be divisible by tensor_model_parallel_size (8)") == ("tp",)


def test_divisors_are_in_order() -> None:
    assert divisors(12) == [1, 2, 3, 4, 6, 12]
