"""Samples read once for each replica and ahead of the schedule, from a DataLoader, and balanced over lanes."""

from __future__ import annotations

import pytest

from tests.mentions import mentions
from tests.mimo.conftest import RunProgram
from tests.mimo.small_models import GLOBAL_BATCH_SIZE


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_data_loader_is_read_once_for_each_replica_ahead_of_the_schedule(run_program: RunProgram) -> None:
    ranks = run_program("data")
    one, other = (ranks[0]["loader"][name] for name in ranks[0]["loader"])
    assert len(one[0]["losses"]) == 3 and one[0]["losses"] == pytest.approx(other[0]["losses"], rel=1e-9)
    # Continued after two batches, the sampler's third comes first.
    assert len(one[1]["losses"]) == 1 and one[1]["consumed"] == GLOBAL_BATCH_SIZE
    assert one[1]["losses"] == pytest.approx(other[1]["losses"], rel=1e-9)
    for rank in ranks:
        for runs in rank["loader"].values():
            for run in runs:
                assert run["losses"] == pytest.approx(ranks[0]["loader"]["4 ranks, llm pp3"][runs.index(run)]["losses"])
                assert (run["num_read"] > 0) == run["reads"] and not run["main thread"]
        for found in rank["balanced"].values():
            assert found["True"] == pytest.approx(found["False"], rel=1e-9) and found["True"] != [0.0, 0.0]
        refused = rank["refused"]
        assert mentions(refused["stream"], "IterableDataset") and mentions(refused["size"], 16, 1)
        assert mentions(refused["uncounted"], "count_items")
        # The lane that reads it says why, on all its ranks; the other lane has lost those.
        assert ("no such image" if ranks.index(rank) < 2 else "lost rank") in refused["broken"]
