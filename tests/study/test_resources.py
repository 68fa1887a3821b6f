from __future__ import annotations

import pytest

from zenith_tune.errors import UsageError
from zenith_tune.study.resources import Resources


def test_what_the_user_gives_stands_in_for_what_nobody_tells() -> None:
    assert Resources().given(gpus_per_node=2) == Resources(gpus_per_node=2)
    assert Resources(nodes=2).given(gpus_per_node=4) == Resources(nodes=2, gpus_per_node=4)
    assert Resources(gpus_per_node=8).given() == Resources(gpus_per_node=8)


def test_the_gpus_of_a_command_may_be_spread_over_nodes() -> None:
    assert Resources(gpus_per_node=16).given(nodes=2) == Resources(nodes=2, gpus_per_node=8)
    assert Resources(nodes=2, gpus_per_node=8).given(nodes=4, gpus_per_node=4).describe() == "4 nodes of 4 GPUs"


@pytest.mark.parametrize("given", [{"gpus_per_node": 2}, {"nodes": 3}, {"nodes": 2, "gpus_per_node": 8}])
def test_other_gpus_than_the_layouts_are_for_are_refused(given: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=r"\b8 GPUs\b"):
        Resources(gpus_per_node=8).given(**given)


def test_resources_are_named_in_words() -> None:
    assert Resources(nodes=2, gpus_per_node=8).describe() == "2 nodes of 8 GPUs"


def test_gpus_fill_the_nodes_that_a_command_asks_for() -> None:
    assert Resources(nodes=2).for_gpus(16).describe() == "2 nodes of 8 GPUs"


def test_nodes_that_are_given_share_the_same_gpus() -> None:
    assert Resources(gpus_per_node=16).given(nodes=2).describe() == "2 nodes of 8 GPUs"
