"""The optimizer over modules on different ranks: what its ranks agree on, and what sharding changes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram

pytestmark = pytest.mark.slow

TOLERANCE = 1e-10
VISION_RANKS = range(4)


def worst(rank: dict[str, Any]) -> float:
    return max(float(error) for error in rank["errors"].values())


def test_sharding_changes_nothing_but_the_state_that_a_rank_keeps(run_program: RunProgram) -> None:
    scenarios = ("sharded, pipelined", "sharded, colocated")
    found = run_program("optimizer", *scenarios)
    for scenario in scenarios:
        ranks = [rank[scenario] for rank in found["ranks"]]
        for rank in ranks:
            whole, shards = rank["False"], rank["True"]
            assert worst(whole) < TOLERANCE and worst(shards) < TOLERANCE
            for module, dp in whole["dp"].items():
                # All rows of these shapes divide evenly: a rank keeps exactly its part.
                assert shards["state"][module] * dp == whole["state"][module] > 0
            assert [zeros for _, _, _, zeros in shards["alike"]] == found["zeros"][:3]
        assert all(rank["True"]["alike"] == ranks[0]["True"]["alike"] for rank in ranks)
    assert any(dp > 1 for rank in found["ranks"] for dp in rank["sharded, pipelined"]["True"]["dp"].values())


def test_a_bad_number_or_a_failed_update_on_one_rank_is_the_verdict_of_all(run_program: RunProgram) -> None:
    planted = ("inf in vision", "nan in language")
    for number, rank in enumerate(run_program("optimizer", *planted, "refused update")["ranks"]):
        assert [rank[name] for name in planted] == [{"verdict": [False, None, None], "kept": True, "then": True}] * 2
        # As upstream's, `step_with_ready_grads` speaks for its own rank, and `step` for all.
        assert rank["refused update"] == {"success": False, "ready": [number != 5, True], "bare": False}


def test_state_dicts_are_keyed_by_module_and_a_scaled_loss_is_unscaled(run_program: RunProgram) -> None:
    ranks = run_program("optimizer", "state dicts", "scaled loss")["ranks"]
    for number, rank in enumerate(ranks):
        state = rank["state dicts"]
        assert state["keys"] == ["language", "vision"]
        here = ["vision"] if number in VISION_RANKS else ["language"]
        assert state["filled"] == state["here"] == state["active"] == here
        # An empty state dict is skipped; a full one brings the settings and the moments along.
        assert state["untouched"] == 0.5 and set(state["lr"]) == {0.01}
        before, after = state["state"]
        assert before == after and before[here[0]] > 0
        assert worst(rank["scaled loss"]) < TOLERANCE


def test_more_than_one_instance_of_the_distributed_optimizer_is_refused(
    start_warm: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    code = (
        "from zenith_mimo.optimizer import get_mimo_optimizer\n"
        "from zenith_mimo.optimizer import OptimizerConfig\n"
        "try: get_mimo_optimizer(None, OptimizerConfig(num_distributed_optimizer_instances=2))\n"
        "except ValueError as error: print(error)"
    )
    assert mentions(start_warm("-c", code).stdout, "num_distributed_optimizer_instances", 1, 2)
