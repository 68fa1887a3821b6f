"""The examples of framework spec."""

from __future__ import annotations

from zenith_tune.describe.framework_spec import OwnPipeline, titan_framework


def test_a_rank_has_the_layers_of_its_chunks() -> None:
    assert OwnPipeline(num_ranks=2, layers=(3, 4, 4, 2), mtp_layers=(0, 0, 0, 1)).on_rank(1) == 6


def test_torchtitan_has_an_entry_for_each_way_it_runs() -> None:
    assert titan_framework(False, True) == "torchtitan-autocast"
    assert titan_framework(True, False) == "torchtitan"
