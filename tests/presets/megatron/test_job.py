"""The examples of job."""

from __future__ import annotations

from zenith_tune.layouts.layout import Layout
from zenith_tune.presets.megatron.job import recompute_name


def test_recomputation_has_a_name_in_one_word() -> None:
    assert recompute_name(Layout(num_gpus=1, recompute="full/block", recompute_layers=4)) == "full/block4"
