"""Precision, data and the sending of gradients in a real step on four ranks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import GLOBAL_BATCH_SIZE

pytestmark = pytest.mark.slow


def test_four_ranks_train_in_bfloat16_read_their_own_samples_and_send_gradients_early(
    run_program: RunProgram, tmp_path: Path
) -> None:
    ranks = run_program("training", str(tmp_path))
    for rank in ranks:
        whole, sharded = rank["bf16"]
        for found in (whole, sharded):
            assert (found["model"], found["kept"]) == (["torch.bfloat16"], ["torch.float32"])
            # About one lr a step: without copies of full precision most of these steps would be rounded away.
            assert all(moved > 1e-5 for moved in found["moved"])
            assert found["rounded"] and found["alike"]
            assert found["loaded"] == 0.0
        for found in rank["restored"]:
            assert found["weights"] == found["optimizer"] == 0.0
            # Within the rounding of the weights: another initialisation is 1 away.
            assert 0.0 < found["weights alone"] < 0.02
        # Reduce-scatter sums what all-reduce does.
        assert sharded["losses"] == pytest.approx(whole["losses"], rel=1e-3)
        few, one = rank["overlap"]["found"]
        assert few["norm"] == pytest.approx(one["norm"], rel=1e-12)
        assert one["buckets"] == 1 and few["buckets"] > 2 and few["overlapped"] == few["buckets"]
    read: list[int] = []
    for rank in ranks:
        seen = rank["reads"]["seen"]
        mine = {index for index, _ in seen}
        # Once for its text and once for its images, by the first rank of a tensor-parallel group for all of it.
        assert sorted(seen, key=str) == sorted([[i, name] for i in mine for name in (None, "vision")], key=str)
        assert bool(mine) == (rank["reads"]["tp_rank"] == 0)
        read += mine
    assert sorted(read) == list(range(GLOBAL_BATCH_SIZE))
